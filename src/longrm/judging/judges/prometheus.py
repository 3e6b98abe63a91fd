"""Prometheus 2: feedback by a rubric, then `[RESULT]` and the verdict."""

import re

from longrm.judging.judges.named import FivePoints, NamedJudge

_SOURCE = (
    "github.com/prometheus-eval/prometheus-eval at dcfb442, libs/prometheus-eval/prometheus_eval/prompts.py "
    "(Apache-2.0)"
)


class Prometheus(NamedJudge):
    """Prometheus 2 (arXiv 2405.01535), relative grading: feedback, then `[RESULT] A`.

    The prompt is a system message, and a user message with a rubric.
    """

    name = "prometheus-2"
    source = f"{_SOURCE}: REL_SYSTEM_PROMPT and RELATIVE_PROMPT_WO_REF"
    pattern = re.compile(r"\[RESULT\][\s(:]*(?:Response\s+)?([AB])[\s).]*$", re.MULTILINE)


class PrometheusAbsolute(FivePoints):
    """Prometheus 2, absolute grading of one response: feedback, then `[RESULT] 4`."""

    name = "prometheus-2-absolute"
    source = f"{_SOURCE}: ABS_SYSTEM_PROMPT and ABSOLUTE_PROMPT_WO_REF"
    pattern = re.compile(r"\[RESULT\][\s(:]*([1-5])(?:\s*/\s*5)?[\s).]*$", re.MULTILINE)
