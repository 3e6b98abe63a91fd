"""Which library computes fp32 matrix products on a CPU: torch's default (MKL in x86 builds) or oneDNN, by trial.

On some processors MKL is half as fast as oneDNN, on others equal, and names do not say which. Torch's public switch to
oneDNN, `set_float32_matmul_precision("medium")`, allows bf16 products: oneDNN computes in fp32 all the same unless the
processor has AMX, where it rounds. So a trial checks the precision, too.

Products of bf16 are oneDNN's in any case, on AVX512_BF16 as on AMX; a model's dtype is never changed here.
"""

import logging
import time
from collections import Counter
from collections.abc import Callable, Iterable, Iterator
from contextlib import contextmanager
from functools import cache
from typing import Any

import torch
from jaxtyping import Float
from torch import Tensor, nn

_logger = logging.getLogger(__name__)

Product = tuple[Float[Tensor, "M K"], Float[Tensor, "K N"]]

_GAIN = 1.25
"""Least gain. At 1.1 (AMD Zen 4) one long pass takes 5% less time, a training step 2% more, and short requests to a
server 6% more: oneDNN takes new memory for every product, and prepares itself for every number of rows."""

_ROUNDING = 16
"""Largest error, in errors of torch's default. Another order of sums makes up to 4, products in tf32 over 1,000."""

_SMALL = 2**18
"""Elements of a matrix below which a model is too small for a trial: its results stay the same bytes in every run."""

_ROWS, _WIDEST, _REPEATS = 128, 1024, 8  # of the trial, which takes about 0.25 s

_MKLDNN: Any = torch.backends.mkldnn  # its types lack `matmul`

_ON, _UNSET = "bf16", "none"  # what torch's switch reads

_switched_on = False


def choose_products(model: Any) -> None:
    """Lets oneDNN compute fp32 products if a trial on the shapes of a model on a CPU finds it faster and as precise.

    The choice holds for the whole process, as torch's switch does: that for the last model. Results change by rounding.
    It does nothing if the caller has set torch's switch (`torch.backends.mkldnn.matmul.fp32_precision = "ieee"` keeps
    the default), or where torch sees a GPU, which has the same switch. Loading and training call this; `share_prefixes`
    does not, as the rest of the caller's program would change with it.
    """
    global _switched_on
    if not _is_ours() or torch.accelerator.is_available() or not _MKLDNN.is_available():
        return
    layers = (module for module in model.base_model.modules() if isinstance(module, nn.Linear))
    weights = [layer.weight for layer in layers if layer.weight.dtype == torch.float32]
    sizes = Counter[tuple[int, int]]()
    for weight in weights:
        if weight.device.type == "cpu" and weight.numel() >= _SMALL:
            sizes[weight.shape[0], weight.shape[1]] += weight.numel()
    shapes = tuple(sorted(shape for shape, _ in sizes.most_common(2)))
    if not shapes:
        return
    gain = _gain(shapes)
    faster = gain >= _GAIN
    if faster and not _switched_on:
        _logger.info("fp32 products: oneDNN, %.1fx", gain)
    use_onednn(faster)
    _switched_on = faster


@contextmanager
def default_products() -> Iterator[None]:
    """Undoes the choice while tokens are sampled: with 1 to 8 rows SmolLM2 is 14 to 22% slower by oneDNN (Zen 4)."""
    chosen = _switched_on and _is_ours()
    if chosen:
        use_onednn(False)
    try:
        yield
    finally:
        if chosen:
            use_onednn(True)


@cache
def _gain(shapes: tuple[tuple[int, int], ...]) -> float:
    gain = speedup(_products(shapes), use_onednn)
    _logger.debug("fp32 products: oneDNN would be %.2fx", gain)
    return gain


def _is_ours() -> bool:
    """Whether torch's switch is as it was left here."""
    return bool(_MKLDNN.matmul.fp32_precision == (_ON if _switched_on else _UNSET))


def use_onednn(on: bool) -> None:
    """Sets torch's switch, or makes it as if it was never set."""
    # The older of torch's two functions: after the newer one alone, torch.compile fails, as it reads the older.
    torch.set_float32_matmul_precision("medium" if on else "highest")
    if not on:
        _MKLDNN.matmul.fp32_precision = _UNSET


@torch.inference_mode()
def _products(shapes: Iterable[tuple[int, int]]) -> list[Product]:
    """Forward product and both backward products of a linear layer with each of these weights, cut to a fixed size."""
    draw = torch.Generator().manual_seed(0)
    products: list[Product] = []
    for shape in shapes:
        outputs, inputs = (min(size, _WIDEST) for size in shape)
        x = torch.randn(_ROWS, inputs, generator=draw)
        weight = torch.randn(outputs, inputs, generator=draw)
        grad = torch.randn(_ROWS, outputs, generator=draw)
        products += [(x, weight.T), (grad, weight), (grad.T, x)]
    return products


@torch.inference_mode()
def speedup(
    products: Iterable[Product],
    switch: Callable[[bool], None],
    product: Callable[[Tensor, Tensor], Tensor] = torch.mm,
) -> float:
    """Returns how many times faster products are with a switch on than off, and 0.0 if it makes them less precise.

    Times are the shortest of several, in turn, on one core: other programs disturb them little there. The switch is off
    at the end.
    """
    off_seconds = on_seconds = 0.0
    threads = torch.get_num_threads()
    torch.set_num_threads(1)
    try:
        for one, other in products:
            exact = product(one.double(), other.double())
            errors, seconds = [0.0, 0.0], [float("inf")] * 2
            for repeat in range(1 + _REPEATS):
                for on in (False, True):
                    switch(on)
                    start = time.thread_time()
                    found = product(one, other)
                    if repeat:  # the first call prepares a library for the shape
                        seconds[on] = min(seconds[on], time.thread_time() - start)
                    else:
                        errors[on] = float((found - exact).abs().max())
            if not errors[True] <= _ROUNDING * errors[False]:
                return 0.0
            off_seconds, on_seconds = off_seconds + seconds[False], on_seconds + seconds[True]
    finally:
        switch(False)
        torch.set_num_threads(threads)
    return off_seconds / on_seconds
