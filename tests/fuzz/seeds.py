"""Valid rows of every kind that longrm reads, small, and as its own writers make them where it writes them."""

from functools import cache
from typing import Any

from longrm.data.native import to_native_row
from longrm.worlds import WorldPlan, generate
from longrm.worlds.words_tokenizer import load_tokenizer

TRL = {"prompt": "Who holds the key?", "chosen": "Ann holds it.", "rejected": "Bob does.", "id": "t"}
CHAT = {
    "prompt": [{"role": "system", "content": "Be brief."}, {"role": "user", "content": "Who holds the key?"}],
    "chosen": [{"role": "assistant", "content": [{"type": "text", "text": "Ann."}]}],
    "rejected": [{"role": "assistant", "content": "Bob."}],
    "margin": 0.5,
    "context": "Who holds",
    "question": "the key?",
    "document_id": "d",
}
JUDGMENTS = {
    "chat_template": [{"role": "user", "content": "Judge this. Ann holds the key. Who?"}],
    "chosen": "Right. [[8]]",
    "rejects": ["Wrong. [[2]]", "So so. [[5]]"],
    "chosen_model": "one",
    "reject_models": ["two", "three"],
    "scores": {"one": 8, "two": 2, "three": 5},
    "conf": [1, 1, 1],
    "context": "Ann holds the key.",
    "query": "Who?",
    "insert_index": 0,
    "prompt_ctx_length": 20,
}
CANDIDATES = {
    "prompt": "Who holds the key?",
    "candidates": ["Ann.", "Bob.", "Nobody."],
    "candidates_score": [0.9, 0.5, 0.1],
    "task": "LongQA",
    "source": "made",
}
DEMONSTRATION = {
    "id": "d",
    "prompt": "Who holds the key?",
    "completion": "Ann. [[8]]",
    "depths": [0.5],
    "evidence": [],
}
DOCUMENT = {
    "id": "1",
    "context": "Ann holds the key of the house. Bob has the lamp.",
    "question": "Who holds the key?",
    "answer": "Ann",
    "task": "LongQA",
    "metric": "token_f1",
    "evidence": [[0, 31]],
    "exemplars": ["Who has the lamp? Bob"],
}
CANDIDATE = {"document": "1", "model": "one", "text": "Ann does", "perturbation": "", "score": 0.5}


@cache
def native() -> list[dict[str, Any]]:
    """Rows of a generated world, as `longrm world` writes them."""
    plan = WorldPlan(world="records", length=64, per_group=2, responses=3)
    return [to_native_row(comparison) for comparison in generate(plan, 4, load_tokenizer("words"))]


def rows() -> list[list[dict[str, Any]]]:
    """Small data sets, one of every format."""
    return [
        native(),
        [{**TRL, "id": f"t{number}", "prompt": f"{number}? Who?"} for number in range(4)],
        [{**CHAT, "id": number} for number in range(3)],
        [{**JUDGMENTS, "id": f"j{number}"} for number in range(3)],
        [CANDIDATES] * 3,
        [{**DEMONSTRATION, "id": f"d{number}"} for number in range(3)],
        [{**DOCUMENT, "id": str(number)} for number in range(3)],
    ]
