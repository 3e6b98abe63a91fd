"""Servers in this process that answer as vLLM, SGLang and longrm do, and that go wrong as these do.

Bodies are those of vLLM 0.33.0 (`entrypoints/pooling/classify`) and SGLang 0.5.23; scores are computed by transformers
alone, one sequence a request.
"""

import json
import math
import threading
from dataclasses import dataclass, field

import torch
from transformers import AutoModelForSequenceClassification, AutoTokenizer

from ..clients.conftest import HANG_UP, Reply

NOT_FOUND = Reply({"detail": "Not Found"}, 404)


@dataclass
class FakeServer:
    """Serves a folder.

    Attributes:
        folder: The model.
        kind: As what it answers.
        change: Makes what it answers of the right score, the token ids and the number of the request.
        extra_ids: What it puts before the ids that it was sent.
        fails: How often a request fails before it is answered, by status; 0 hangs up.
        gone_after: The request from which on all are hung up on.
        key: What requests must carry.
    """

    folder: str
    kind: str = "vllm"
    change: object = lambda score, ids, number: score
    extra_ids: tuple = ()
    fails: list = field(default_factory=list)
    gone_after: float = math.inf
    key: str = ""
    model_name: str = ""
    counts_tokens: bool = True
    at: str = ""
    asked: list = field(default_factory=list)
    most_at_once: int = 0

    def __post_init__(self):
        self._tokenizer = AutoTokenizer.from_pretrained(self.folder)
        self._model = AutoModelForSequenceClassification.from_pretrained(
            self.folder, dtype=torch.float32
        ).eval()
        self._lock, self._inside = threading.Lock(), 0

    def cast(self, dtype):
        """Computes in another dtype from now on."""
        self._model.to(dtype)

    def __call__(self, seen, number):
        if number > self.gone_after:
            return HANG_UP
        if self.key and seen.headers.get("Authorization") != f"Bearer {self.key}":
            return Reply({"error": f"Unauthorized: {seen.headers.get('Authorization')}"}, 401)
        if self.fails:
            status = self.fails.pop()
            return HANG_UP if status == 0 else Reply({"error": {"message": "later"}}, status)
        self._inside += 1
        self.most_at_once = max(self.most_at_once, self._inside)
        try:
            with self._lock:
                return getattr(self, f"_{self.kind}")(seen, number)
        finally:
            self._inside -= 1

    def _vllm(self, seen, number):
        body = seen.body
        if seen.path != self.at + "/classify":
            return NOT_FOUND
        if self.model_name and body.get("model", self.model_name) != self.model_name:
            message = f"The model `{body['model']}` does not exist."
            error = {"message": message, "type": "NotFoundError", "param": "model", "code": 404}
            return Reply({"error": error}, 404)
        if "input" not in body:
            return Reply(
                {"error": {"message": "Field required: input", "type": "Bad Request", "code": 400}}, 400
            )
        assert body["use_activation"] is False
        assert body["add_special_tokens"] is False
        value, count = self._answer(body["input"], number, body["cache_salt"])
        probs = value if isinstance(value, list) else [value]
        usage = {
            "prompt_tokens": count,
            "total_tokens": count,
            "completion_tokens": 0,
            "prompt_tokens_details": None,
        }
        item = {"index": 0, "label": "LABEL_0", "probs": probs, "num_classes": len(probs)}
        answer = {
            "id": "classify-1",
            "object": "list",
            "created": 1,
            "model": "m",
            "data": [item],
            "usage": usage,
        }
        return Reply(answer)

    def _sglang(self, seen, number):
        body = seen.body
        if seen.path != "/classify":
            return NOT_FOUND
        if "input_ids" not in body and "text" not in body:
            return Reply(
                {"error": {"message": "At least one of text, input_ids, image should be provided"}}, 400
            )
        (ids,) = body["input_ids"]
        value, count = self._answer(ids, number, None)
        about = {"id": "a", "finish_reason": {"type": "length", "length": 0}, "prompt_tokens": count}
        return Reply([{"embedding": [value], "meta_info": about | {"cached_tokens": 3, "e2e_latency": 0.01}}])

    def _longrm(self, seen, number):
        if seen.path != "/v1/scores":
            return NOT_FOUND
        (response,) = seen.body["responses"]
        whole = [*seen.body["prompt"], *response]
        ids = self._tokenizer.apply_chat_template(whole)["input_ids"]
        value, count = self._answer(ids, number, None)
        usage = {"prompt_tokens": count - 1, "cached_tokens": 2, "total_tokens": count}
        return Reply({"model": "m", "scores": [value], "order": [0], "usage": usage, "seconds": 0.1})

    def _answer(self, ids, number, salt):
        self.asked.append((tuple(ids), salt))
        ids = [*self.extra_ids, *ids]
        with torch.inference_mode():
            score = self._model(torch.tensor([ids])).logits.item()
        return self.change(score, ids, number), len(ids) if self.counts_tokens else None


def openai_classify(seen, number):
    """SGLang's `/v1/classify`: the softmax of the one label that there is."""
    if seen.path != "/v1/classify" or "input" not in seen.body:
        return NOT_FOUND
    count = len(seen.body["input"])
    item = {"index": 0, "label": "LABEL_0", "probs": [1.0], "num_classes": 1}
    usage = {"prompt_tokens": count, "total_tokens": count, "completion_tokens": 0}
    return Reply(
        {"id": "classify-1", "object": "list", "created": 1, "model": "m", "data": [item], "usage": usage}
    )


def rows(path, comparisons):
    """Writes comparisons, and returns the path."""
    lines = [
        {
            "id": one.id,
            "prompt": list(one.prompt),
            "responses": [list(response) for response in one.responses],
            "ranks": list(one.ranks),
        }
        for one in comparisons
    ]
    path.write_text("".join(json.dumps(line) + "\n" for line in lines))
    return path
