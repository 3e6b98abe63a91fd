import asyncio

import pytest

from longrm.clients import Completion
from longrm.data import read, write_rows
from longrm.errors import ConfigError, RunError
from longrm.runs.folder import RunFolder
from longrm.runs.logs import Log
from longrm.synthesis.ballots import Asking, Ballot, Case, Cast, Election, measured
from longrm.synthesis.pipeline import Output, Pipeline, Provenance
from longrm.synthesis.voting import Voting
from longrm.types import Outcome, message_text


class Judge:
    """Scores a response by what stands behind `quality`, plus its own bias; or says something else."""

    def __init__(self, name, bias=0, says=None, outcome=Outcome.ANSWERED):
        self.name, self.bias, self.says, self.outcome, self.asked = name, bias, says, outcome, []

    async def ask(self, prompts):
        self.asked += prompts
        found = []
        for request in prompts:
            quality = int(message_text(request.messages[0]).rpartition("quality ")[2])
            text = self.says or f"{self.name} finds it sound.\n\n[[{min(10, quality + self.bias)}]]"
            found.append(Completion(self.outcome, text, detail="the server is gone"))
        return found


def case(number, *qualities):
    ballots = tuple(
        Ballot(
            f"answer {quality}",
            f"model {place}",
            ({"role": "user", "content": f"Judge with the rubric: quality {quality}"},),
            ({"role": "user", "content": f"Judge the long one: case {number}"},),
        )
        for place, quality in enumerate(qualities)
    )
    return Case(f"case-{number}", f"document-{number}", ({"role": "user", "content": "Why?"},), ballots)


def judges(*biases):
    return [Judge(f"judge {index}", bias) for index, bias in enumerate(biases)]


def test_judgments_are_made_and_read_back(tmp_path):
    election = Election([*judges(0, 0, 0, 3), Judge("mute", says="No idea.")], Asking())
    (made,) = asyncio.run(election.work([case(1, 4, 7)]))
    assert made.steps["votes read"] == {"kept": 8, "unparsed": 2}
    assert made.steps["consensus"] == {"kept": 2}
    assert made.steps["contrast"] == {"kept": 2}
    write_rows(tmp_path / "rows.jsonl", made.rows)
    first, second = (row.comparison for row in read(tmp_path / "rows.jsonl"))
    assert first.metadata["scores"] == {"judge 0": 4, "judge 1": 4, "judge 2": 4, "judge 3": 7, "mute": -1}
    assert first.metadata["reject_models"] == ["mute", "judge 3"]
    assert second.metadata["consensus_score"] == 7
    assert message_text(first.prompt[0]) == "Judge the long one: case 1"  # and no rubric


def test_what_lacks_consensus_or_contrast_is_counted():
    made = asyncio.run(Election(judges(0, 0), Asking()).work([case(1, 4)]))
    assert made[0].steps["contrast"] == {"no_contrast": 1}
    made = asyncio.run(Election(judges(0, 2), Asking()).work([case(1, 4)]))
    assert (made[0].rows, made[0].steps["consensus"]) == ((), {"tie": 1})
    marked = Asking(voting=Voting(without_contrast="mark"))
    (made,) = asyncio.run(Election(judges(0, 0), marked).work([case(1, 4)]))
    assert made.rows[0]["contrast"] == "none"
    assert made.steps["marked as without contrast"] == {"kept": 1}


def test_pairs_are_made_and_read_back(tmp_path):
    election = Election(judges(0, 0, 1), Asking(rows="pairs"))
    (made,) = asyncio.run(election.work([case(1, 4, 8, 8)]))
    assert made.steps["pairs"] == {"kept": 2, "too_close": 1}
    write_rows(tmp_path / "rows.jsonl", made.rows)
    for row in read(tmp_path / "rows.jsonl"):
        assert message_text(row.comparison.responses[0][0]) == "answer 8"
        assert row.comparison.metadata["margin"] == 4


def test_rows_do_not_depend_on_how_cases_are_batched():
    cases = [case(number, number, 9) for number in range(5)]
    asking = Asking(temperature=0.7)
    together, apart = judges(0, 0, 1), judges(0, 0, 1)
    whole = asyncio.run(Election(together, asking).work(cases))
    single = [asyncio.run(Election(apart, asking).work([one]))[0] for one in cases]
    assert whole == single
    assert together[0].asked == apart[0].asked
    seeds = {request.seed for request in together[0].asked}
    assert len(seeds) == 10
    other = judges(0, 0)
    asyncio.run(Election(other, Asking(temperature=0.7, seed=1)).work(cases))
    assert not seeds & {request.seed for request in other[0].asked}


def test_weights_of_judges_are_used():
    weights = {"judge 0": 3.0, "judge 1": 1.0, "judge 2": 1.0}
    made = asyncio.run(Election(judges(0, 2, 2), Asking(), weights=weights).work([case(1, 4)]))
    assert made[0].rows[0]["consensus_score"] == 4
    made = asyncio.run(Election(judges(0, 2, 2), Asking()).work([case(1, 4)]))
    assert made[0].rows[0]["consensus_score"] == 6


def test_votes_are_logged_once_and_measured(tmp_path):
    for _ in range(2):  # the second time as after a kill
        with Log(tmp_path / "votes.jsonl", Cast) as log:
            asyncio.run(Election(judges(0, 0, 2), Asking(), votes=log).work([case(1, 4, 7), case(2, 3)]))
    found = measured(Log(tmp_path / "votes.jsonl", Cast), 0.0)
    assert found.pairwise().n == 9
    assert found.pairwise().value == pytest.approx(1 / 3)
    assert found.judges()["judge 2"].others.agreement == 0


def test_what_a_user_did_wrong_is_said():
    with pytest.raises(ConfigError, match="two judges"):
        Election(judges(0), Asking())
    with pytest.raises(ConfigError, match="judge 1"):
        Election(judges(0, 0), Asking(), weights={"judge 0": 1.0})
    lost = [Judge("here"), Judge("gone", outcome=Outcome.ERROR)]
    with pytest.raises(RunError, match="gone could not be asked about 'case-1/0' .the server is gone"):
        asyncio.run(Election(lost, Asking()).work([case(1, 4)]))


def test_a_run_is_the_same_whatever_its_batches_and_wherever_it_stopped(tmp_path):
    cases = [case(number, number % 9, 9) for number in range(12)]
    provenance = Provenance([{"name": "mine", "license": "CC0"}], 0, {}, {"judges": "three"})
    found = {}
    for name, batch, first in (("whole", 64, 12), ("pieces", 2, 12), ("stopped", 5, 7)):
        asking = Asking()
        for some in (cases[:first], cases):  # the second time as after a kill
            with (
                RunFolder(tmp_path / name, "synthesis", asking) as folder,
                Log(folder.path / "votes.jsonl", Cast) as log,
            ):
                election = Election(judges(0, 0, 1), asking, votes=log)
                pipeline = Pipeline(lambda one: one.id, election.work)
                tally = asyncio.run(pipeline.run(folder, some, provenance, Output(batch=batch)))
        rows = b"".join(path.read_bytes() for path in sorted((tmp_path / name / "rows").iterdir()))
        found[name] = rows, (tmp_path / name / "votes.jsonl").read_bytes(), tally.to_dict()
    assert found["whole"] == found["pieces"] == found["stopped"]
    assert found["whole"][2]["steps"]["votes read"]["kept"] == 72
    assert sum(1 for _ in read(tmp_path / "whole" / "rows")) == found["whole"][2]["rows"] == 24
