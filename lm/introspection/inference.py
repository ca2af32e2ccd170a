"""A model while it is looked into: without dropout and gradients."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager

import torch

from lm.model import LanguageModel


@contextmanager
def inference_mode(model: LanguageModel) -> Iterator[None]:
    """Turn off dropout and gradients inside the context."""
    training = model.training
    model.eval()
    try:
        with torch.no_grad():
            yield
    finally:
        model.train(training)
