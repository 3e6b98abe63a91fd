"""Skywork-Critic: only a verdict."""

import re

from longrm.judging.judges.named import NamedJudge


class SkyworkCritic(NamedJudge):
    """Skywork-Critic-Llama-3.1: answers `[[A]]` or `[[B]]` to a prompt in the form of MT-bench, without ties."""

    name = "skywork-critic"
    source = (
        "huggingface.co/Skywork/Skywork-Critic-Llama-3.1-70B, README.md (license of Skywork), as quoted by "
        "github.com/Freder-chen/ReasonGenRM at 91070c2, src/utils/prompt_templates.py"
    )
    pattern = re.compile(r"\[\[([AB])\]\]")
