"""The interface of a mixer's costs. Imports no torch."""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Iterator
from importlib import import_module
from typing import ClassVar

from lm.config import MixerKind, ModelConfig

Shape = tuple[int, ...]
INT64 = 8


class MixerCosts(ABC):
    """What one mixer costs. The mixer in `lm/mixers/NAME.py` has its costs in `lm/mixers/NAME_costs.py`, as `COSTS`."""

    wide_state: ClassVar[bool] = False
    """Whether the state has at least float32, whatever the dtype of activations."""

    one_way: ClassVar[bool] = True
    """Whether the mixer reads the past only, so that an encoder needs two of them."""

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


class BidirectionalCosts(MixerCosts):
    """Costs of two mixers of one kind in an encoder: see `lm.mixers.bidirectional`."""

    def __init__(self, mixer: MixerCosts) -> None:
        super().__init__(mixer.config)
        self.mixer = mixer

    def parameters(self, value_embedding: bool = False) -> Iterator[Shape]:
        for _ in range(2):
            yield from self.mixer.parameters()

    def flops(self, length: float, visible: float, outputs: float) -> float:
        return 2 * self.mixer.flops(length, visible, outputs)

    def state_size(self, length: int) -> int:
        return 0  # encoders do not generate

    def saved_bytes(self, length: int, outputs: int, itemsize: int, value_embedding: bool = False) -> int:
        """As `MixerCosts.saved_bytes`, with the places of selected outputs in the reversed text."""
        places = INT64 * outputs if outputs < length else 0
        return 2 * self.mixer.saved_bytes(length, outputs, itemsize) + places


def mixer_costs(config: ModelConfig, mixer: MixerKind, causal: bool) -> MixerCosts:
    """Return the costs of a mixer of the model, in a stack that is causal or not."""
    costs: MixerCosts = import_module(f"lm.mixers.{mixer.replace('-', '_')}_costs").COSTS(config)
    return BidirectionalCosts(costs) if costs.one_way and not causal else costs


def linear_parameters(inputs: int, outputs: int, bias: bool) -> Iterator[Shape]:
    """Yield the shapes of the weight and the bias of a `Linear`."""
    yield outputs, inputs
    if bias:
        yield (outputs,)
