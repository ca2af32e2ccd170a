"""The tuned lens: a logit lens with an affine map for each layer, trained to predict what the model predicts.

    lens_l(x) = head(final_norm(x_l + A_l x_l + b_l))         (Belrose et al. 2023, arXiv 2303.08112)

A and b start at 0, which gives the logit lens. Training minimises the mean D(model's prediction || lens). The map makes
up for changes by later layers that are the same for every text, such as a rotation or a mean. Because it is trained, it
can also find what the model does not use.
"""

from __future__ import annotations

from collections.abc import Mapping
from functools import partial

import torch
from torch import Tensor, nn

from lm.introspection.activations import observed
from lm.introspection.inference import inference_mode
from lm.model import LanguageModel

LEARNING_RATE = 4e-3


class TunedLens(nn.Module):
    """Affine maps of L layers: the input of the first layer, and the outputs of all layers but the last."""

    def __init__(self, model: LanguageModel) -> None:
        """Raises ValueError for an encoder-decoder."""
        super().__init__()
        if model.config.architecture == "encoder-decoder":
            raise ValueError("model.architecture is 'encoder-decoder', but the lens needs a decoder or an encoder")
        width, weight = model.config.width, model.embedding.weight
        dtype = torch.promote_types(weight.dtype, torch.float32)
        outputs = [f"blocks.{layer}.hook_resid_post" for layer in range(len(model.stack.blocks) - 1)]
        self.names = ["blocks.0.hook_resid_pre", *outputs]
        """Activations that the maps read"""
        layers, zeros = len(self.names), partial(torch.zeros, dtype=dtype, device=weight.device)
        self.matrices = nn.ParameterList(zeros(width, width) for _ in range(layers))
        self.biases = nn.ParameterList(zeros(width) for _ in range(layers))
        self.scales = [1.0] * layers
        """Units of the biases: the size of the stream, so that a step of Adam changes them as much as the matrices"""

    def forward(self, x: Tensor, layer: int) -> Tensor:
        """x (..., width) to (..., width): the stream as the final norm reads it; `layer` is an index of `names`."""
        read: Tensor = x + x @ self.matrices[layer].T + self.scales[layer] * self.biases[layer]
        return read

    def streams(self, model: LanguageModel, inputs: Mapping[str, Tensor], rows: Tensor) -> tuple[list[Tensor], Tensor]:
        """Return the streams (N, width) at the positions where `rows` (B, T) is True, and the model's ln p (N, V).

        `inputs` are the arguments of the model by name.
        """
        with inference_mode(model), observed(model, self.names) as found:
            hidden = model(**inputs)[rows]
            streams = [found[name][rows].to(self.biases[0].dtype) for name in self.names]
            return streams, model.logits(hidden).to(self.biases[0].dtype).log_softmax(dim=-1)

    def log_probabilities(self, model: LanguageModel, x: Tensor, layer: int, tuned: bool = True) -> Tensor:
        """Return ln p (N, V) of the lens for the stream x (N, width); of the logit lens unless `tuned`."""
        read = self(x, layer) if tuned else x
        return model.logits(model.stack.final_norm(read)).to(x.dtype).log_softmax(dim=-1)


class LensTraining:
    """Adam on the divergence of the lens of each layer, with a learning rate that falls to 0."""

    def __init__(self, model: LanguageModel, lens: TunedLens) -> None:
        self.model, self.lens = model, lens
        self.optimizer = torch.optim.Adam(lens.parameters(), LEARNING_RATE, betas=(0.9, 0.99))
        self._begun = False

    def step(self, inputs: Mapping[str, Tensor], rows: Tensor, done: float) -> float:
        """Do one step, after the share `done` of the training; return the mean divergence over layers, in nats."""
        streams, final = self.lens.streams(self.model, inputs, rows)
        if not self._begun:
            self.lens.scales = [x.square().mean().sqrt().item() for x in streams]
            self._begun = True
        total = 0.0
        for layer, x in enumerate(streams):
            own = [self.lens.matrices[layer], self.lens.biases[layer]]
            with torch.enable_grad():
                lens = self.lens.log_probabilities(self.model, x, layer)
                loss = (final.exp() * (final - lens)).sum(dim=-1).mean()
                gradients = torch.autograd.grad(loss, own)
            for parameter, gradient in zip(own, gradients, strict=True):
                parameter.grad = gradient
            total += loss.item()
        for group in self.optimizer.param_groups:
            group["lr"] = LEARNING_RATE * (1 - done)
        self.optimizer.step()
        return total / len(streams)
