import math

import pytest

from longrm.evaluation.table import judged_values
from longrm.types import Outcome


@pytest.mark.parametrize("outcome", [o for o in Outcome if o is not Outcome.ANSWERED])
def test_only_answers_have_values(judgment, outcome):
    assert judged_values(judgment(outcome=outcome, scores=(1.0, 0.0))) is None


@pytest.mark.parametrize(
    ("answer", "message"),
    [
        ({"scores": (1.0, math.nan)}, "not finite"),
        ({"scores": (1.0, math.inf)}, "not finite"),
        ({}, "without 2 scores"),
    ],
)
def test_an_answer_that_does_not_fit_is_refused(judgment, answer, message):
    with pytest.raises(ValueError, match=message):
        judged_values(judgment(**answer))
