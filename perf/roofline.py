"""How close scoring and training steps come to the best matrix product of the machine, part by part.

Every operation of a step is timed on its own. Matrix products and attention kernels have a rate in GFLOP/s, which is
compared with that of the fastest product of two large matrices in the same precision, by torch's default or by oneDNN.
The other parts read and write memory; they have a share of the time only. With one thread, times are CPU time, so that
other processes disturb little. By default the model has the shapes of SmolLM2-135M and random weights.
"""

import argparse
import json
import time
from collections import Counter
from collections.abc import Callable
from typing import Any

import torch
from measuring import circumstances
from torch.nn import functional
from torch.overrides import TorchFunctionMode
from torch.utils._python_dispatch import TorchDispatchMode
from transformers import LlamaConfig, LlamaForSequenceClassification

from longrm.modeling.attention import SHARED_PREFIX
from longrm.modeling.device_memory import set_precision
from longrm.modeling.loading import load_scorer
from longrm.modeling.products import choose_products, speedup, use_onednn
from longrm.modeling.shapes import TokenTree
from longrm.modeling.shared_prefix import pack, scores
from longrm.runs.freed_memory import keep_freed_memory, return_freed_memory
from longrm.training.settings import OptimizerSettings
from longrm.training.train import make_optimizer

PRODUCTS = {"mm", "addmm", "bmm", "baddbmm"}
ATTENTION = {
    "_scaled_dot_product_flash_attention_for_cpu": 4,  # operations per pair of tokens, head and size: two products
    "_scaled_dot_product_flash_attention_for_cpu_backward": 10,  # five products
}


class Parts(TorchDispatchMode):
    """Adds up the time and the operations of every part of a step, named by `part` unless the operation names it."""

    def __init__(self, clock: Callable[[], float]) -> None:
        super().__init__()
        self.part = "head and loss"
        self.seconds, self.flops = Counter[str](), Counter[str]()
        self._clock = clock

    def __torch_dispatch__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        kwargs = kwargs or {}
        name = func.overloadpacket.__name__
        part, flops = self.part, 0
        if name in PRODUCTS:
            one, other = [states for states in args if isinstance(states, torch.Tensor)][-2:]
            flops = 2 * one.numel() * other.shape[-1]
            part = self.part if self.part == "head and loss" else "products"
        elif name in ATTENTION:
            part = "attention"
            backward = name.endswith("backward")
            q, k = args[backward : backward + 2]
            rows, keys = q.shape[2], k.shape[2]
            causal = args[7] if backward else kwargs.get("is_causal", len(args) > 4 and args[4])
            pairs = rows * keys - (rows * (rows - 1) // 2 if causal else 0)
            flops = ATTENTION[name] * q.shape[0] * q.shape[1] * q.shape[3] * pairs
        elif name.startswith("embedding"):  # backward, a gradient of the whole vocabulary
            part = "embedding"
        start = self._clock()
        output = func(*args, **kwargs)
        self.seconds[part] += self._clock() - start
        self.flops[part] += flops
        return output


class Named(TorchFunctionMode):
    """Sets the part of the operations in every module's forward, and of their gradients in the backward pass."""

    def __init__(self, parts: Parts, model: Any) -> None:
        super().__init__()
        self._parts = parts
        self._stack = [parts.part]
        self._hooks: list[Any] = []
        for module in model.base_model.modules():
            if name := part_of(type(module).__name__):
                self._hooks += [
                    module.register_forward_pre_hook(lambda *_, name=name: self._enter(name)),
                    module.register_forward_hook(lambda *_: self._leave()),
                ]

    def _enter(self, name: str) -> None:
        self._stack.append(name)
        self._parts.part = name

    def _leave(self) -> None:
        self._stack.pop()
        self._parts.part = self._stack[-1]

    def __torch_function__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        output = func(*args, **(kwargs or {}))
        node = getattr(output, "grad_fn", None)
        if node is not None:
            node.register_prehook(lambda _, part=self._parts.part: setattr(self._parts, "part", part))
        return output

    def remove(self) -> None:
        """Takes the hooks off the model."""
        for hook in self._hooks:
            hook.remove()


def part_of(module: str) -> str | None:
    """The part of what a module computes other than matrix products and attention, by the name of its class."""
    parts = {"Norm": "norms", "Rotary": "rotary, copies", "Attention": "rotary, copies", "MLP": "activation"}
    parts |= {"Layer": "residual", "Model": "embedding"}
    return next((part for name, part in parts.items() if name in module), None)


def measure(
    model: Any, run: Callable[[Parts], None], best: float, clock: Callable[[], float]
) -> dict[str, Any]:
    parts = Parts(clock)
    named = Named(parts, model)
    with named, parts:
        run(parts)
    named.remove()
    # The same step without a look at every operation.
    start = clock()
    run(Parts(clock))
    whole = clock() - start
    found = {}
    for part, seconds in parts.seconds.most_common():
        found[part] = {"seconds": round(seconds, 3), "share": round(seconds / parts.seconds.total(), 3)}
        if parts.flops[part]:
            rate = parts.flops[part] / seconds / 1e9
            found[part] |= {"gflop": round(parts.flops[part] / 1e9, 3), "gflops": round(rate, 1)}
            found[part]["of_best"] = round(rate / best, 2)
    rate = parts.flops.total() / whole / 1e9
    return {
        "seconds": round(whole, 2),
        "gflops": round(rate, 1),
        "of_best": round(rate / best, 2),
        "parts": found,
    }


def best_rate(dtype: torch.dtype, clock: Callable[[], float]) -> float:
    """GFLOP/s of the fastest product of two matrices of 2,048 x 2,048; by oneDNN only where that does not round."""
    one, other = (torch.randn(2048, 2048).to(dtype) for _ in range(2))
    precise = dtype == torch.float32 and speedup([(one, other)], use_onednn) > 0
    seconds = []
    for onednn in (False, precise):
        use_onednn(onednn)
        for _ in range(5):
            start = clock()
            one @ other
            seconds.append(clock() - start)
    use_onednn(False)
    return 2 * 2048**3 / min(seconds) / 1e9


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--model", help="a scorer's folder (default: random weights)")
    parser.add_argument("--layers", type=int, default=30, help="of random weights (%(default)s)")
    parser.add_argument("--precision", choices=["float32", "bfloat16"], default="float32")
    parser.add_argument("--products", choices=["trial", "default", "onednn"], default="trial", help="of fp32")
    parser.add_argument("--prompt", type=int, default=4000, help="tokens of a scored prompt (%(default)s)")
    parser.add_argument("--responses", type=int, default=4, help="scored responses (%(default)s)")
    parser.add_argument("--response", type=int, default=64, help="tokens of a scored response (%(default)s)")
    parser.add_argument("--trained-prompt", type=int, default=1000, help="tokens (%(default)s)")
    parser.add_argument(
        "--trained-response", type=int, default=100, help="tokens of each of two (%(default)s)"
    )
    parser.add_argument("--threads", type=int, default=1, help="threads of torch (%(default)s)")
    parser.add_argument("--json", action="store_true", help="print one JSON line instead of text")
    options = parser.parse_args()
    if options.threads < 1:
        parser.error("--threads is at least 1")
    torch.set_num_threads(options.threads)
    torch.manual_seed(0)
    clock = time.thread_time if options.threads == 1 else time.perf_counter
    dtype = getattr(torch, options.precision)
    best = best_rate(dtype, clock)
    if options.products == "onednn":
        use_onednn(True)  # a switch that is set is left alone
    elif options.products == "default":
        torch.backends.mkldnn.matmul.fp32_precision = "ieee"
    model = load_scorer(options.model, dtype=dtype).model if options.model else smollm2(options.layers)
    model.requires_grad_(False)
    set_precision(model, options.precision)  # as it is loaded for scoring
    choose_products(model)
    keep_freed_memory()  # as commands that read a model do
    token = lambda: int(torch.randint(5, model.config.vocab_size, ()))  # noqa: E731 (a line's worth)
    tokens = lambda count: [token() for _ in range(count)]  # noqa: E731
    scored = pack(
        [TokenTree(tokens(options.prompt), [tokens(options.response) for _ in range(options.responses)])]
    )
    trained = pack(
        [TokenTree(tokens(options.trained_prompt), [tokens(options.trained_response) for _ in range(2)])]
    )

    @torch.no_grad()
    def scoring(_: Parts) -> None:
        scores(model, scored)

    scoring(Parts(clock))  # once as a warm-up
    result: dict[str, Any] = {"scoring": measure(model, scoring, best, clock)}
    model.requires_grad_(True)
    set_precision(model, options.precision)
    return_freed_memory()
    optimizer = make_optimizer(model, OptimizerSettings(max_steps=1))

    def step(parts: Parts) -> None:
        parts.part = "head and loss"
        chosen, rejected = scores(model, trained)
        loss = -functional.logsigmoid(chosen - rejected)
        loss.backward()  # type: ignore[no-untyped-call]  # torch has no types here
        parts.part = "optimizer"
        optimizer.step()
        optimizer.zero_grad()

    step(Parts(clock))
    result["training"] = measure(model, step, best, clock)
    features = torch.cpu.get_capabilities()
    result |= {
        "precision": options.precision,
        "best_gflops": round(best, 1),
        "fp32_products": "oneDNN" if torch.backends.mkldnn.matmul.fp32_precision == "bf16" else "default",
        "processor": features.get("cpu_name"),
        "features": [name for name in ("avx512_f", "avx512_bf16", "amx_bf16") if features.get(name)],
        **circumstances(options),
    }
    if options.json:
        print(json.dumps(result))
        return
    for kind in ("scoring", "training"):
        found = result[kind]
        print(
            f"{kind}: {found['seconds']} s, {found['gflops']} of {best:.0f} GFLOP/s ({found['of_best']:.0%})"
        )
        for part, own in found["parts"].items():
            rate = f"{own['gflops']:7.0f} GFLOP/s ({own['of_best']:.0%})" if "gflops" in own else ""
            print(f"  {part:16} {own['share']:6.1%} {rate}")


def smollm2(layers: int) -> Any:
    """A scorer with the shapes of SmolLM2-135M."""
    config = LlamaConfig(
        vocab_size=49_152,
        hidden_size=576,
        intermediate_size=1536,
        num_hidden_layers=layers,
        num_attention_heads=9,
        num_key_value_heads=3,
        max_position_embeddings=131_072,
    )
    config.num_labels = 1
    model: Any = LlamaForSequenceClassification(config).eval()
    model.set_attn_implementation(SHARED_PREFIX)
    return model


if __name__ == "__main__":
    main()
