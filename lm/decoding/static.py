"""Generation on a GPU with steps of one shape, which torch.compile turns into a CUDA graph.

A step of one token takes a GPU less time than launching its kernels one by one takes Python. A CUDA graph launches them
all at once, but its shapes and addresses are fixed.
"""

from __future__ import annotations

from collections.abc import Callable
from functools import partial

import torch
from torch import Tensor

from lm.config import ModelConfig
from lm.decoding.cache import KVCache, attend_all, padding_bias
from lm.decoding.packed import InferenceModel
from lm.masks import Mask
from lm.mixers.attention import Attend
from lm.model import Stack
from lm.positions import Rows
from lm.warn import warn

# Estimates, not measured: compiling takes 10 s or more for each batch size and number of columns, and a graph saves
# about 5 ms a token of a model with 12 layers.
FEWEST_TOKENS = 2_000
COLUMNS = 256  # the number of columns is a multiple of this, so that few are compiled for


def static_cache_pays(config: ModelConfig, device: torch.device, new_tokens: int) -> bool:
    """Return whether `StaticCache` generates `new_tokens` faster than `KVCache` does, compilation included.

    It does on CUDA from FEWEST_TOKENS on, and never on a CPU, where computing outweighs launching.
    """
    return supports(config) and device.type == "cuda" and new_tokens >= FEWEST_TOKENS


def supports(config: ModelConfig) -> bool:
    """Return whether `StaticCache` supports the model: a decoder with attention and without windows."""
    return config.architecture == "decoder" and config.attention_only and not config.window


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
                "a static cache needs a decoder with attention and without attention windows: give static=False"
            )
        with torch.inference_mode(False):  # so that tensors can be used inside and outside of it
            self.column = torch.zeros(1, dtype=torch.int64, device=device)
            self.first = torch.zeros(batch, dtype=torch.int64, device=device)
            columns = -(-capacity // COLUMNS) * COLUMNS
            super().__init__(stack, batch, columns, dtype=dtype, device=device, padding=padding)
            for tensor in (*self.keys, *self.values):
                tensor.zero_()  # hidden columns have weight 0, and 0 x NaN would be NaN
                if device.type != "cpu":
                    torch._dynamo.mark_static_address(tensor)  # a CUDA graph writes into it instead of a copy
        # Without fullgraph, shapes beyond the compiler's limit run uncompiled instead of raising an error.
        self._step: Callable[[InferenceModel, StaticCache, Tensor], Tensor] = step
        if device.type != "cpu":
            self._step = torch.compile(step, mode="reduce-overhead", dynamic=False)

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
        scale = None if config.scaled_attention else 1.0
        return [partial(self._attend_next, block, added, scale) for block in range(len(self.keys))]

    def select(self, rows: Tensor) -> None:
        raise NotImplementedError("a StaticCache keeps its sequences: give beam search a KVCache")

    def next_logits(self, model: InferenceModel, ids: Tensor) -> Tensor:
        """Read one token of each sequence, ids (B, 1), and return the logits (B, V) after it."""
        with torch.inference_mode(False), torch.no_grad():
            logits = self._run(model, ids.clone()).clone()  # the next step overwrites a CUDA graph's output
        self.advance(1)
        return logits

    def _run(self, model: InferenceModel, ids: Tensor) -> Tensor:
        """Run the compiled step, or the plain one where the compiler's back end fails: it may lack a C compiler."""
        try:
            return self._step(model, self, ids)
        except RuntimeError as error:
            if type(error).__name__ not in ("BackendCompilerFailed", "InductorError"):
                raise
            warn(f"generation is not compiled, because torch.compile failed: {error}")
            self._step = step
            return step(model, self, ids)

    def _attend_next(self, block: int, added: Tensor, scale: float | None, q: Tensor, k: Tensor, v: Tensor) -> Tensor:
        keys, values = self.keys[block], self.values[block]
        keys.index_copy_(2, self.column, k.to(keys.dtype))
        values.index_copy_(2, self.column, v.to(values.dtype))
        return attend_all(q, keys, values, added, scale)


def step(model: InferenceModel, cache: StaticCache, ids: Tensor) -> Tensor:
    """Write the keys and values of ids (B, 1) to the cache and return the logits (B, V). The cache does not advance.

    All its shapes are fixed, and it reads no value of the device, so it compiles to one graph.
    """
    embedded = model.model.embed(ids)
    positions, mixes = cache.positions(1), cache.mixes(1)
    hidden = model.stack(embedded, ids, dtype=model.dtype, mask=Mask(), positions=positions, mixes=mixes)
    return model.logits(hidden.flatten(0, -2))
