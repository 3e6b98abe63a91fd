"""Con-J: a reason and the better response as JSON with Chinese keys."""

import re

from longrm.judging.judges.named import NamedJudge


class ConJ(NamedJudge):
    """Con-J (arXiv 2410.03742): a reason, then the number of the better response under the key for it.

    The prompt is an empty system message, `{% set system = "" %}`, and a user message in Chinese.
    """

    name = "con-j"
    source = "github.com/YeZiyi1998/Con-J at 6799bfe, README.md (Apache-2.0)"
    # Nothing may follow the number: a cut answer can end in the middle of one.
    pattern = re.compile(r'"更好的回答"\s*[:：]\s*"?([12])"?\s*(?=[,}]|\Z)')
