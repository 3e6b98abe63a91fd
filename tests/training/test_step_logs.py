"""What is told of a step while training goes on."""

from longrm.runs.records import StepRecord
from longrm.training.step_logs import progress_note


def record(accuracy):
    return StepRecord(3, 0.6931, accuracy, 1.0, 2e-6, length=100, tokens=5000)


def test_a_step_tells_what_it_learned_and_how_fast():
    assert (
        progress_note(record(0.75), 2.0) == "loss 0.693, accuracy 0.75, learning rate 2.0e-06, 2,500 tokens/s"
    )
    assert "accuracy" not in progress_note(record(None), 2.0)
