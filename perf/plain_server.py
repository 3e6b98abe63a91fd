"""A reward server as trainers ship it: requests one by one, each sample in full and padded to the longest.

The same as OpenRLHF's `serve_rm`, reimplemented: FastAPI, transformers with its own SDPA, `POST /get_reward`.
"""

import argparse
from typing import Any

import torch
import uvicorn
from fastapi import FastAPI, Request
from transformers import AutoModelForSequenceClassification, AutoTokenizer


def build(folder: str, batch: int) -> FastAPI:
    """The server of a folder's model; it reads at most `batch` samples at once."""
    tokenizer = AutoTokenizer.from_pretrained(folder)
    tokenizer.padding_side = "right"
    model = AutoModelForSequenceClassification.from_pretrained(
        folder, dtype=torch.float32, attn_implementation="sdpa"
    ).eval()
    model.config.pad_token_id = tokenizer.pad_token_id
    app = FastAPI()

    @torch.inference_mode()
    def scores(texts: list[str]) -> list[float]:
        read = tokenizer(texts, add_special_tokens=False, padding=True, return_tensors="pt")
        if bool(read["attention_mask"].all()):
            del read["attention_mask"]  # nothing is padded, so that attention keeps its fast causal path
        found: list[float] = model(**read, use_cache=False).logits[:, 0].tolist()
        return found

    @app.get("/health")
    async def health() -> dict[str, Any]:
        return {}

    @app.post("/get_reward")
    async def get_reward(request: Request) -> dict[str, Any]:
        texts = (await request.json())["query"]
        rewards = [score for at in range(0, len(texts), batch) for score in scores(texts[at : at + batch])]
        return {"rewards": rewards, "scores": rewards, "extra_logs": {}}

    return app


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--model", required=True)
    parser.add_argument("--port", type=int, required=True)
    parser.add_argument("--batch", type=int, default=8)
    options = parser.parse_args()
    uvicorn.run(build(options.model, options.batch), port=options.port, log_level="warning", access_log=False)


if __name__ == "__main__":
    main()
