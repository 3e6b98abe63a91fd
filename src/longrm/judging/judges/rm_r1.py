"""RM-R1: a verdict in tags after a rubric or a solution."""

import re

from longrm.judging.judges.named import NamedJudge


class RmR1(NamedJudge):
    """RM-R1 (arXiv 2505.02387): reasons about chatbots A and B, then writes `<answer>[[A]]</answer>`.

    Models tuned from an instruct model have a system message; distilled ones have a user message only. Both are
    templates of their own.
    """

    name = "rm-r1"
    source = "github.com/RM-R1-UIUC/RM-R1 at d4c2542, demo/demo.ipynb (Apache-2.0)"
    pattern = re.compile(r"<answer>\s*\[\[([AB])\]\]\s*</answer>")
