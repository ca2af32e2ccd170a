"""The logit lens: what the head would predict from the stream after each layer.

    lens_l(x) = head(final_norm(x_l))       (nostalgebraist 2020, "interpreting GPT: the logit lens")

The last layer's lens is the model's prediction. Early layers need not write in the basis of the head: a lens that shows
nothing there does not say that the layer knows nothing (Belrose et al. 2023).
"""

from __future__ import annotations

from collections.abc import Iterator

import torch
from torch import Tensor

from lm.introspection.inference import inference_mode
from lm.introspection.trace import Trace
from lm.model import LanguageModel


def lens_logits(model: LanguageModel, ids: Tensor) -> Iterator[Tensor]:
    """Yield the logits (T, V) of ids (T,) from the input of the first layer, and from the output of each layer.

    They are float32, or float64 of a float64 model. Raises ValueError for an encoder-decoder.
    """
    if model.config.architecture == "encoder-decoder":
        raise ValueError("model.architecture is 'encoder-decoder', but the lens needs a decoder or an encoder")
    names = ["blocks.0.hook_resid_pre", *(f"blocks.{i}.hook_resid_post" for i in range(len(model.stack.blocks)))]
    with inference_mode(model):
        trace = Trace(model, ids[None]).record(*names)
        for name in names:
            logits = model.logits(model.stack.final_norm(trace[name][0]))
            yield logits.to(torch.promote_types(logits.dtype, torch.float32))
