"""Gradient times embedding: which spans of a prompt a score would follow if their tokens changed a little.

Letters: S tokens of the packed sequence, C hidden size.
"""

from collections.abc import Sequence

import torch

from longrm.data.joining import Encoded
from longrm.data.token_spans import span_tokens
from longrm.data.tokenizing import Tokenizer
from longrm.errors import DataError
from longrm.modeling.attention_rows import ReadValues, embedding_gradients
from longrm.modeling.encoding import build_trees
from longrm.modeling.heads import TransformersModel
from longrm.modeling.shared_prefix import pack
from longrm.types import Query, Span


def span_gradients(
    model: TransformersModel,
    tokenizer: Tokenizer,
    query: Query,
    encoded: Encoded,
    read: ReadValues,
    spans: Sequence[Span],
) -> tuple[float, ...]:
    """Sums |gradient x embedding| over the tokens of each span and all dimensions, by a pass forward and one backward.

    Signs are dropped before the sum: the signed products of a token cancel, and say little of its weight.

    The gradient is that of the score of the first of two responses minus that of the second.

    Args:
        model: The model, in evaluation mode.
        tokenizer: Its tokenizer.
        query: A prompt, and two responses.
        encoded: The same, as it is read.
        read: What turns the last states into one score a response.
        spans: Spans of the prompt.

    Raises:
        DataError: The spans cannot be found in what the chat template makes of the prompt, or one lies behind what the
            responses share of it.
    """
    regions = {str(at): [span] for at, span in enumerate(spans)}
    found = span_tokens(tokenizer, query.prompt, regions, query.tools)
    shared = len(encoded.prompt)
    if any(own and own[0] >= shared for own in found.values()):
        raise DataError(
            f"responses share the first {shared:,} tokens of the prompt, as the chat template renders it before them; "
            "sentences that lie behind these have no gradient: leave ablation.search away"
        )
    packed = pack(build_trees([encoded])).to(model.device)
    signs = torch.tensor([1.0, -1.0], device=model.device)
    gradients = embedding_gradients(model, packed, lambda hidden, whole: read(hidden, whole) * signs)
    with torch.inference_mode():
        embedded = model.get_input_embeddings()(packed.input_ids)[0]
    products = (gradients.float() * embedded.float()).abs().sum(-1).tolist()
    return tuple(sum(products[token] for token in own if token < shared) for own in found.values())
