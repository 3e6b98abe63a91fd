"""A hand-written stand-in of what the plug-in uses of vLLM 0.33.0: the engine is transformers', one text at a time."""

import sys
from dataclasses import dataclass, field
from os.path import commonprefix
from types import ModuleType, SimpleNamespace

import torch
from transformers import AutoModelForSequenceClassification


@dataclass
class PoolingParams:
    task: str | None = None
    use_activation: bool | None = None


@dataclass
class ClassificationOutput:
    probs: list

    @staticmethod
    def from_base(pooling_output):
        return ClassificationOutput(pooling_output.data.tolist())


@dataclass
class PoolingRequestOutput:
    request_id: str
    outputs: object
    prompt_token_ids: list
    num_cached_tokens: int
    finished: bool
    error: object = None


@dataclass
class Engine:
    """vLLM's `EngineClient`, as far as it is used."""

    folder: str
    max_model_len: int = 600
    tokenizer_revision: str | None = None
    asked: list = field(default_factory=list)
    change: object = lambda logits: logits
    error: object = None
    wait: object = None

    def __post_init__(self):
        self._model = AutoModelForSequenceClassification.from_pretrained(
            self.folder, dtype=torch.float32
        ).eval()
        self.model_config = SimpleNamespace(
            tokenizer=self.folder,
            tokenizer_revision=self.tokenizer_revision,
            max_model_len=self.max_model_len,
        )

    async def encode(
        self,
        prompt,
        pooling_params,
        request_id,
        lora_request=None,
        trace_headers=None,
        priority=0,
        tokenization_kwargs=None,
        reasoning_ended=None,
    ):
        ids = prompt["prompt_token_ids"]
        if self.wait is not None:
            await self.wait()
        with torch.inference_mode():
            logits = self._model(torch.tensor([ids])).logits[0]
        if pooling_params.use_activation in (None, True):
            logits = logits.sigmoid()
        # Blocks of 16 tokens that an earlier text has, too; the last token is always computed.
        shared = max((len(commonprefix([list(one), ids[:-1]])) for one, _, _ in self.asked), default=0)  # noqa: RUF071  # not paths
        self.asked.append((tuple(ids), pooling_params, request_id))
        data = SimpleNamespace(data=self.change(logits))
        yield PoolingRequestOutput(request_id, data, ids, 16 * (shared // 16), True, self.error)


def installed(monkeypatch):
    """Puts the stand-in where the plug-in imports vLLM from."""
    vllm, inputs, outputs = (ModuleType(name) for name in ("vllm", "vllm.inputs", "vllm.outputs"))
    vllm.PoolingParams, inputs.TokensPrompt = PoolingParams, dict
    outputs.ClassificationOutput = ClassificationOutput
    for module in (vllm, inputs, outputs):
        monkeypatch.setitem(sys.modules, module.__name__, module)
