"""Scalar heads of reward models: a linear layer, or two with SiLU in between (BaseReward, arXiv 2509.16127).

Shapes: N scored tokens, C hidden size.
"""

from typing import Any

import torch
from jaxtyping import Float
from torch import Tensor, nn
from torch.nn import functional

from longrm.modeling.shapes import HeadForm


class MLPHead(nn.Linear):
    """Two layers without biases, `out(silu(W h))`, in place of a sequence classifier's linear `score`.

    The first layer is this module's own weight, so that it is saved as `score.weight`, with another shape than that of
    a linear head: transformers' own class refuses to load it. If it found no `score.weight`, it would score with a
    random head.
    """

    def __init__(self, hidden: int) -> None:
        super().__init__(hidden, hidden, bias=False)
        self.out = nn.Linear(hidden, 1, bias=False)

    def forward(self, states: Float[Tensor, "*N C"]) -> Float[Tensor, "*N 1"]:
        """Returns the scores of hidden states, as transformers computes them."""
        scores: Tensor = self.out(functional.silu(super().forward(states)))
        return scores


def last_layer(head: nn.Module) -> Any:
    """The layer of a head that returns scores."""
    return head.out if isinstance(head, MLPHead) else head


def draw_head(model: Any, form: HeadForm, seed: int) -> None:
    """Replaces the head of a sequence classifier by a random one, in place; the same seed gives the same weights."""
    if form == "mlp":
        model.score = MLPHead(model.config.hidden_size)
    generator = torch.Generator().manual_seed(seed)
    for layer in dict.fromkeys((model.score, last_layer(model.score))):
        nn.init.normal_(layer.weight, std=model.config.initializer_range, generator=generator)
