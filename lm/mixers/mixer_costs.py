"""The interface of a mixer's costs. Imports no torch."""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Iterator
from importlib import import_module
from typing import ClassVar

from lm.config import MixerKind, ModelConfig

Shape = tuple[int, ...]


class MixerCosts(ABC):
    """What one mixer costs. The mixer in `lm/mixers/NAME.py` has its costs in `lm/mixers/NAME_costs.py`, as `COSTS`."""

    wide_state: ClassVar[bool] = False
    """Whether the state has at least float32, whatever the dtype of activations."""

    def __init__(self, config: ModelConfig) -> None:
        self.config = config

    @abstractmethod
    def parameters(self, value_embedding: bool = False) -> Iterator[Shape]:
        """Yield the shape of each parameter; `value_embedding`: as in `Mixer.forward`."""

    @abstractmethod
    def flops(self, length: float, visible: float, outputs: float) -> float:
        """Return the training FLOPs of `length` positions, of which each sees `visible`.

        `outputs`: positions that the last projection is applied to.
        """

    @abstractmethod
    def state_size(self, length: int) -> int:
        """Return how many numbers the state of one sequence holds after `length` tokens."""

    @abstractmethod
    def saved_bytes(self, length: int, outputs: int, itemsize: int, value_embedding: bool = False) -> int:
        """Return the bytes that autograd saves for `length` positions in a dtype of `itemsize` bytes, with the input.

        `outputs`: positions that the last projection is applied to.
        """


def mixer_costs(config: ModelConfig, mixer: MixerKind) -> MixerCosts:
    """Return the costs of a mixer of the model."""
    costs: MixerCosts = import_module(f"lm.mixers.{mixer.replace('-', '_')}_costs").COSTS(config)
    return costs


def linear_parameters(inputs: int, outputs: int, bias: bool) -> Iterator[Shape]:
    """Yield the shapes of the weight and the bias of a `Linear`."""
    yield outputs, inputs
    if bias:
        yield (outputs,)
