"""MLPs as memories: what makes a unit fire, and which tokens it makes likelier.

An MLP writes the sum of m_i v_i. Unit i has the activation m_i, computed from the stream and its key (a row of `up`),
and the value v_i, its column of `down` (Geva et al. 2021, arXiv 2012.14913). In a gated MLP m_i is act(gate) times up,
and can be negative. The value in the vocabulary is head(N(v_i)), where N is the linear part of the norms on the path to
the head, as in direct logit attribution. It has the order of the direct effects on the logits; their size also depends
on the norms' scales.
"""

from __future__ import annotations

from collections.abc import Mapping

import torch
from torch import Tensor

from lm.config import ModelConfig
from lm.introspection.activations import observed
from lm.introspection.inference import inference_mode
from lm.introspection.norms import linear_part
from lm.introspection.unit_activity import UnitActivity
from lm.layers import LayerNorm, RMSNorm
from lm.model import LanguageModel


class ActivityOfUnits:
    """Collects the activity of all units of a decoder's or encoder's MLPs.

    A unit fires where the input of its activation function (in a gated MLP, of its gate) is positive.
    """

    def __init__(self, model: LanguageModel, triggers: int) -> None:
        """`triggers` is K. Raises ValueError for a model without MLPs."""
        if not model.config.mlp:
            raise ValueError("model.mlp is false: the model has no units")
        self.model, self.triggers = model, triggers
        self.layers: list[UnitActivity] = []

    def read(self, inputs: Mapping[str, Tensor]) -> None:
        """Read a batch: the arguments of the model by name."""
        count = len(self.model.stack.blocks)
        names = [f"blocks.{i}.mlp.{short}" for i in range(count) for short in ("hook_pre", "hook_post")]
        with inference_mode(self.model), observed(self.model, names) as found:
            self.model(**inputs)
        for layer in range(count):
            pre, post = (found[f"blocks.{layer}.mlp.{short}"].flatten(0, -2) for short in ("hook_pre", "hook_post"))
            new = UnitActivity.of(post, pre > 0, self.triggers)
            if layer == len(self.layers):
                self.layers.append(new)
            else:
                self.layers[layer] = self.layers[layer].joined(new, self.triggers)


def check_values(config: ModelConfig) -> None:
    """Raise ValueError unless later layers only add to what a unit writes to the stream."""
    changed = {
        f"norm_position {config.norm_position!r}": config.norm_places.after or config.norm_position == "rezero",
        "embedding_skips": config.embedding_skips,
        f"residual {config.residual!r}": config.residual == "none",
    }
    for which in (name for name, found in changed.items() if found):
        raise ValueError(f"the model has {which}, which changes what a unit writes on its way to the head")


@torch.no_grad()
def values_in_vocabulary(model: LanguageModel, layer: int, units: Tensor) -> Tensor:
    """Return the logits of the values of `units` (N,) of a layer, without scales and biases of norms: (N, V).

    Raises ValueError as `check_values` does.
    """
    check_values(model.config)
    block = model.stack.blocks[layer]
    assert block.mlp is not None
    written = block.mlp.down.matrix[:, units].T.float()
    norms: list[torch.nn.Module] = [model.stack.final_norm]
    if block.places.branch:
        norms.insert(0, getattr(block, "mlp_branch_norm" if block.places.before else "mlp_norm"))
    for norm in norms:
        if isinstance(norm, LayerNorm | RMSNorm):
            written = linear_part(norm, written)
    return written @ model.head.output_weight.detach().float().T
