import pytest

from longrm.errors import ConfigError
from longrm.synthesis.recipes import benchmark, distill, responses, short_to_long, vote

OLD_NAMES = {
    short_to_long: {
        "chunk": "chunk_size",
        "find": "evidence_from",
        "most": "max_chunks",
        "window": "chunks_per_request",
        "check": "distractor_check",
        "enough": "coverage_threshold",
        "alike": "similarity_threshold",
        "closest": "judge_top_k",
        "own": "in_document_share",
        "finder": "evidence_model",
        "judge.also": "replica_urls",
        "candidates.unwritten": "synthetic",
    },
    vote: {"closest": "judge_top_k", "finder": "evidence_model"},
    responses: {"passage": "passage_size", "pool": "pool_passages"},
    benchmark: {"check": "second_check", "benchmark.unwritten_pairs": "synthetic_pairs"},
    distill: {"reads": "short_context"},
}
CASES = [(kind, *names) for kind, renamed in OLD_NAMES.items() for names in renamed.items()]


INPUTS = {"documents.path": "d.jsonl", "candidates.recorded": True, "documents.format": "leval"}
MODEL = "simulated:0"
COMPLETE = {
    short_to_long: INPUTS | {"judge.model": MODEL},
    vote: INPUTS | {"judges": [{"model": MODEL, "name": "a"}, {"model": MODEL, "name": "b"}]},
    responses: {"documents.path": "d.jsonl", "writers": [{"model": MODEL}]},
    benchmark: INPUTS,
    distill: {"documents.path": "d.jsonl", "policy.model": MODEL, "reward_model": "baseline:overlap"},
}


@pytest.mark.parametrize(("kind", "old", "new"), CASES)
def test_an_old_name_of_a_setting_is_refused_with_the_new_one(kind, old, new):
    kind.RECIPE.resolve(None, COMPLETE[kind])
    *groups, _ = old.split(".")
    with pytest.raises(ConfigError, match=f"the setting '{old}' is called '{'.'.join([*groups, new])}' now"):
        kind.RECIPE.resolve(None, COMPLETE[kind] | {old: "x"})
    group = kind.RECIPE
    for part in [*groups, new]:
        assert part in group.model_fields
        group = group.model_fields[part].annotation
