"""Blocks that share weights: each block holds the same parameters as the first block of its group.

A block is a module of its own at every depth, with its own hooks, probability of being skipped and decoding state.
`named_parameters` yields a shared parameter once, under the name that it has in the first block of its group. State
dicts have the same names, and the buffers of every block: the random features of a Performer differ by block.
"""

from __future__ import annotations

from collections.abc import Iterator
from typing import TYPE_CHECKING, Any, cast

from torch import Tensor, nn

from lm.layer_groups import first_of_group

if TYPE_CHECKING:
    from lm.model import Stack


def share_weights(stack: Stack) -> None:
    """Replace the parameters of every block by those of the first block of its group. Idempotent."""
    for layer, first in _copies(stack):
        pairs = zip(stack.blocks[layer].modules(), stack.blocks[first].modules(), strict=True)
        for module, source in pairs:
            for name, parameter in source.named_parameters(recurse=False):
                setattr(module, name, parameter)


def save_once(stack: Stack) -> None:
    """Keep parameters once in the stack's state dicts, in the first block of a group. Loading fills the others in."""
    if any(True for _ in _copies(stack)):
        stack.register_state_dict_post_hook(_without_copies)  # type: ignore[no-untyped-call]
        stack.register_load_state_dict_pre_hook(_with_copies)  # type: ignore[no-untyped-call]


def _copies(stack: Stack) -> Iterator[tuple[int, int]]:
    """Yield the index of each block that shares weights with an earlier one, and the index of the earlier one."""
    for layer in range(len(stack.blocks)):
        first = first_of_group(stack.config, layer, len(stack.blocks))
        if first != layer:
            yield layer, first


def _without_copies(module: nn.Module, state: dict[str, Tensor], prefix: str, _: dict[str, Any]) -> None:
    stack = cast("Stack", module)
    for layer, _first in _copies(stack):
        for name, _parameter in stack.blocks[layer].named_parameters():
            del state[f"{prefix}blocks.{layer}.{name}"]


def _with_copies(module: nn.Module, state: dict[str, Tensor], prefix: str, *_: Any) -> None:
    for layer, first in _copies(cast("Stack", module)):
        copy, source = f"{prefix}blocks.{layer}.", f"{prefix}blocks.{first}."
        found = {name: tensor for name, tensor in state.items() if name.startswith(source)}
        for name, tensor in found.items():
            state.setdefault(copy + name.removeprefix(source), tensor)  # buffers are there already
