import pytest

from longrm.demo import DemoSettings, demo_run, stage_evaluations, trainings


@pytest.mark.parametrize("generative", [False, True])
def test_scalar_stages_are_judged_on_ten_contexts_a_length_at_least(generative):
    settings = DemoSettings(generative=generative, controls=True)
    for stage in demo_run.stages_of(settings):
        if trainings.is_generative(stage):
            continue
        for evaluation in stage_evaluations.evaluations_of(stage):
            learned = stage_evaluations.probes(settings)[False, evaluation]
            asked = stage_evaluations.probe_of(stage, evaluation, settings)
            for cell, whole in zip(asked.cells, learned.cells, strict=True):
                assert 10 <= cell.groups <= whole.groups
                assert (cell.groups < whole.groups) == (stage in ("untrained", "unstructured"))
