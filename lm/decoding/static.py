"""Generation on a GPU with steps of one shape, which a CUDA graph records.

A step of one token takes a GPU less time than launching its kernels one by one takes Python. A CUDA graph launches them
all at once, but its shapes and addresses are fixed.
"""

from __future__ import annotations

from functools import partial

import torch
from torch import Tensor

from lm.config import ModelConfig
from lm.decoding.cache import KVCache, attend_all, padding_bias, with_relative_keys
from lm.decoding.packed import InferenceModel
from lm.masks import Mask
from lm.mixers.attention import Attend
from lm.model import Stack
from lm.positions import Rows, key_offsets

# Recording a graph takes as long as about 5 tokens without one. With it, a token takes a fifth to a quarter of the time
# (6 layers of width 384 on an H200). Compiling the step first would save another tenth, but takes 4 s for each shape.
FEWEST_TOKENS = 16
COLUMNS = 256  # the number of columns is a multiple of this: fused kernels of attention need aligned masks


def static_cache_pays(config: ModelConfig, device: torch.device, new_tokens: int) -> bool:
    """Return whether `StaticCache` generates `new_tokens` faster than `KVCache` does, with recording its graph.

    It does on CUDA from FEWEST_TOKENS on, and never on a CPU, where computing outweighs launching.
    """
    return supports(config) and device.type == "cuda" and new_tokens >= FEWEST_TOKENS


def supports(config: ModelConfig) -> bool:
    """Return whether `StaticCache` supports the model: a decoder with attention to all positions before."""
    dense = not config.window and config.attention_pattern == "none"
    return config.architecture == "decoder" and config.attention_only and dense


class StaticCache(KVCache):
    """A KVCache with one shape for all steps of a single token; several tokens are read as by `KVCache`.

    A single token attends to every column, and a mask hides later columns and padding. Its column is a tensor.
    Attention windows, encoder-decoders and beam search, which reorders sequences, keep the KVCache.
    """

    def __init__(
        self,
        stack: Stack,
        batch: int,
        capacity: int,
        *,
        dtype: torch.dtype,
        device: torch.device,
        padding: Tensor | None = None,
    ) -> None:
        if not supports(stack.config):
            raise ValueError(
                "a static cache needs a decoder with attention, and without attention windows and patterns: give "
                "static=False"
            )
        with torch.inference_mode(False):  # so that tensors can be used inside and outside of it
            self.column = torch.zeros(1, dtype=torch.int64, device=device)
            self.first = torch.zeros(batch, dtype=torch.int64, device=device)
            columns = -(-capacity // COLUMNS) * COLUMNS
            super().__init__(stack, batch, columns, dtype=dtype, device=device, padding=padding)
            for tensor in (*self.keys, *self.values):
                tensor.zero_()  # hidden columns have weight 0, and 0 x NaN would be NaN
        self._graph: StepGraph | None = None

    def clear(self, padding: Tensor | None = None) -> None:
        super().clear(padding)
        self.column.zero_()
        self.first.zero_()
        if padding is not None:
            self.first.copy_(padding)

    def advance(self, tokens: int) -> None:
        super().advance(tokens)
        self.column += tokens

    def positions(self, tokens: int) -> Rows:
        if tokens > 1:
            return super().positions(tokens)
        return (self.column - self.first).unsqueeze(-1)

    def mixes(self, tokens: int) -> list[Attend]:
        if tokens > 1:
            return super().mixes(tokens)
        config, dtype = self.stack.config, self.keys[0].dtype
        columns = torch.arange(self.columns, device=self.column.device)
        added = padding_bias((columns <= self.column) & (columns >= self.first.unsqueeze(-1)), dtype)
        bias = self.stack.bias(self.column, self.columns, dtype)
        added = added if bias is None else added + bias
        offsets = None
        if config.positions == "relative-keys":
            offsets = key_offsets(self.column, self.columns, self.column.device)
        scale = None if config.scaled_attention else 1.0
        return [partial(self._attend_next, block, added, offsets, scale) for block in range(len(self.keys))]

    def select(self, rows: Tensor) -> None:
        raise NotImplementedError("a StaticCache keeps its sequences: give beam search a KVCache")

    def next_logits(self, model: InferenceModel, ids: Tensor) -> Tensor:
        """Read one token of each sequence, ids (B, 1), and return the logits (B, V) after it."""
        with torch.inference_mode(False), torch.no_grad():
            if self._graph is None and ids.device.type == "cuda":
                self._graph = StepGraph(model, self, ids)
            logits = step(model, self, ids) if self._graph is None else self._graph(ids)
        self.advance(1)
        return logits

    def _attend_next(
        self,
        block: int,
        mask: Tensor,
        offsets: Tensor | None,
        scale: float | None,
        q: Tensor,
        k: Tensor,
        v: Tensor,
    ) -> Tensor:
        keys, values = self.keys[block], self.values[block]
        keys.index_copy_(2, self.column, k.to(keys.dtype))
        values.index_copy_(2, self.column, v.to(values.dtype))
        added = with_relative_keys(self.blocks[block], q.to(keys.dtype), offsets, mask)
        return attend_all(q, keys, values, added, scale)


class StepGraph:
    """`step` of one model and cache as a CUDA graph."""

    def __init__(self, model: InferenceModel, cache: StaticCache, ids: Tensor) -> None:
        self._ids = ids.clone()
        stream = torch.cuda.Stream(ids.device)
        stream.wait_stream(torch.cuda.current_stream(ids.device))
        with torch.cuda.stream(stream):
            step(model, cache, self._ids)  # libraries allocate their workspaces before the recording
        torch.cuda.current_stream(ids.device).wait_stream(stream)
        self._graph = torch.cuda.CUDAGraph()
        with torch.cuda.graph(self._graph, capture_error_mode="thread_local"):
            self._logits = step(model, cache, self._ids)

    def __call__(self, ids: Tensor) -> Tensor:
        """Return the logits (B, V) after ids (B, 1)."""
        self._ids.copy_(ids)
        self._graph.replay()
        return self._logits.clone()  # the next step overwrites the graph's own


def step(model: InferenceModel, cache: StaticCache, ids: Tensor) -> Tensor:
    """Write the keys and values of ids (B, 1) to the cache and return the logits (B, V). The cache does not advance.

    All its shapes are fixed, and it reads no value of the device, so a graph can record it.
    """
    embedded = model.model.embed(ids)
    positions, mixes = cache.positions(1), cache.mixes(1)
    hidden = model.stack(embedded, ids, dtype=model.dtype, mask=Mask(), positions=positions, mixes=mixes)
    return model.logits(hidden.flatten(0, -2))
