import pytest

from longrm.training.data_settings import CurriculumSettings
from longrm.training.sampler import Curriculum


def lengths(steps=100, **settings):
    curriculum = Curriculum(CurriculumSettings(lengths=(24, 48, 96), **settings), steps=steps, seed=0)
    return [curriculum.length(step) for step in range(steps)]


def test_lengths_climb_in_equal_parts_and_stay_at_the_last():
    assert lengths(ramp=0.5) == [24] * 25 + [48] * 25 + [96] * 50


def test_a_full_ramp_reaches_the_last_length_never_before_the_end():
    assert set(lengths(ramp=1.0)) == {24, 48}


def test_a_share_of_the_steps_goes_back_to_the_shortest():
    late = lengths(steps=2000, ramp=0.1, short_share=0.3)[200:]
    assert set(late) == {24, 96}
    assert 0.26 < late.count(24) / len(late) < 0.34
    assert lengths(steps=2000, ramp=0.1)[200:].count(24) == 0


def test_one_length_needs_no_ramp():
    curriculum = Curriculum(CurriculumSettings(lengths=(128,)), steps=3, seed=0)
    assert {curriculum.length(step) for step in range(3)} == {128}


def test_lengths_must_rise():
    with pytest.raises(ValueError, match="curriculum.lengths must rise"):
        CurriculumSettings(lengths=(48, 24))
