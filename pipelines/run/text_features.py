"""Hidden states of texts, and one vector for each text."""

from collections.abc import Sequence

import numpy as np
import torch
from torch import Tensor

from lm.model import LanguageModel
from lm.task_heads import pool
from pipelines.cli.arguments import TextPooling, check_layer
from pipelines.training.batch import Array

POSITIONS = 16_384  # padding included, in one forward pass


def hidden_states(
    model: LanguageModel, ids: Tensor, source: Tensor | None = None, *, present: Tensor | None = None, layer: int = -1
) -> Tensor:
    """Return the hidden states that `layer` reads, (B, T, width) float32; see `LoadedRun.features`.

    An encoder-decoder without a source gives the states of its encoder, which reads `ids`. `present` (B, T) is False at
    padding.
    """
    encodes = model.config.architecture == "encoder-decoder" and source is None
    stack = model.encoder if encodes else model.stack
    assert stack is not None
    layers = len(stack.blocks)
    check_layer(layer, layers)
    read: list[Tensor] = []
    hooks = []
    if layer not in (layers, -1):
        block = stack.blocks[layer % (layers + 1)]
        hooks = [block.register_forward_pre_hook(lambda _, inputs: read.append(inputs[0]))]
    try:
        read.append(model.encode(ids, present) if encodes else model(ids, source, present=present))
    finally:
        for hook in hooks:
            hook.remove()
    return read[0].float()


@torch.inference_mode()
def text_vectors(model: LanguageModel, rows: Sequence[Sequence[int]], layer: int, pooling: TextPooling) -> Array:
    """Return a vector for each row of ids, (N, width) float32, in batches of rows of similar length.

    The vector is the mean of the hidden states of all positions of the row, or that of its first or its last position.
    Padding changes it by rounding only. No row may be empty.
    """
    device = model.embedding.weight.device
    lengths = np.array([len(row) for row in rows])
    order = np.argsort(-lengths, kind="stable")
    vectors = np.zeros((len(rows), model.config.width), np.float32)
    start = 0
    while start < len(rows):
        longest = int(lengths[order[start]])
        chosen = order[start : start + max(1, POSITIONS // longest)]
        places = np.arange(longest) < lengths[chosen, None]
        ids = np.zeros(places.shape, np.int64)
        ids[places] = np.concatenate([rows[i] for i in chosen])
        present = None if places.all() else torch.from_numpy(places).to(device)
        hidden = hidden_states(model, torch.from_numpy(ids).to(device), present=present, layer=layer)
        vectors[chosen] = pool(hidden, present, "first" if pooling == "cls" else pooling).cpu().numpy()
        start += len(chosen)
    return vectors
