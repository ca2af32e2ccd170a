"""The models that are trained beside each other: ours, and the same in a peer's words with the same weights."""

from collections.abc import Callable
from dataclasses import dataclass

import torch
import torch.nn.functional as F  # noqa: N812
from torch import Tensor, nn

from lm.config import ModelConfig
from lm.model import LanguageModel, build_model

OURS = "bytelm"
Loss = Callable[[Tensor, Tensor, Tensor], Tensor]
"""Inputs and targets (B, T) int64 and weights (B, T) to the mean nats of the targets whose weight is 1."""


@dataclass(frozen=True)
class Case:
    """A shape, and the batches that it is trained on."""

    config: ModelConfig
    batch: int
    length: int
    says: str


SMALL = {"vocab_size": 8192, "layers": 6, "width": 384, "heads": 6}
CASES = {
    "gpt2": Case(
        ModelConfig(**SMALL, context_length=256, positions="learned", activation="gelu_tanh"),
        16,
        256,
        "6 layers, width 384, T = 256, batch 16, vocabulary 8,192, GPT-2's architecture",
    ),
    "llama": Case(
        ModelConfig(**SMALL, context_length=256, norm="rmsnorm", activation="swiglu", bias=False, tied_head=False),
        16,
        256,
        "6 layers, width 384, T = 256, batch 16, vocabulary 8,192, Llama's architecture",
    ),
    "bert": Case(
        ModelConfig(
            **SMALL,
            context_length=128,
            architecture="encoder",
            positions="learned",
            norm_position="post",
            norm_eps=1e-12,
            token_types=2,
        ),
        32,
        128,
        "6 layers, width 384, T = 128, batch 32, vocabulary 8,192, BERT's architecture",
    ),
}
PEERS = {"gpt2": [OURS, "transformers"], "llama": [OURS, "transformers", "litgpt"], "bert": [OURS, "transformers"]}


def build(peer: str, case: Case, device: torch.device, dtype: torch.dtype, compiled: bool) -> tuple[nn.Module, Loss]:
    """A peer's model with the weights of ours, and its loss as its users compute it."""
    ours = build_model(case.config, seed=0)
    if peer == OURS:
        ours.compute_dtype = dtype
        return ours.to(device), _our_loss(ours.to(device), compiled)
    theirs = (_litgpt if peer == "litgpt" else _transformers)(ours).to(device)
    forward = torch.compile(theirs) if compiled else theirs

    def loss(inputs: Tensor, targets: Tensor, weights: Tensor) -> Tensor:
        with torch.autocast(device.type, dtype):
            out = forward(inputs)
            logits = out if isinstance(out, Tensor) else out.logits
            labels = targets.masked_fill(weights == 0, -100)
            return F.cross_entropy(logits.flatten(0, 1), labels.flatten(), ignore_index=-100)

    return theirs, loss


def _our_loss(model: LanguageModel, compiled: bool) -> Loss:
    """As the training loop does: the head only where something is predicted."""
    forward = torch.compile(model) if compiled else model
    everywhere = model.config.architecture == "decoder"

    def loss(inputs: Tensor, targets: Tensor, weights: Tensor) -> Tensor:
        hidden, targets = forward(inputs).flatten(0, 1), targets.flatten()
        if not everywhere:
            rows = weights.flatten().nonzero().squeeze(1)
            hidden, targets = hidden[rows], targets[rows]
        return model.loss(hidden, targets) / len(targets)

    return loss


def _transformers(ours: LanguageModel) -> nn.Module:
    import transformers

    from lm.exchange import to_hugging_face

    settings, tensors = to_hugging_face(ours.config, ours.state_dict())
    config = transformers.AutoConfig.for_model(**settings)
    kind = "AutoModelForMaskedLM" if ours.config.architecture == "encoder" else "AutoModelForCausalLM"
    model = getattr(transformers, kind).from_config(config, attn_implementation="sdpa")
    missing, unexpected = model.load_state_dict(tensors, strict=False)
    tied = {"lm_head.weight", "cls.predictions.decoder.weight", "cls.predictions.decoder.bias"}
    assert not unexpected and set(missing) <= tied, (missing, unexpected)
    return model.train()


def _litgpt(ours: LanguageModel) -> nn.Module:
    import litgpt

    shape, weights = ours.config, ours.state_dict()
    config = litgpt.Config(
        block_size=shape.context_length,
        vocab_size=shape.vocab_size,
        padded_vocab_size=shape.vocab_size,
        n_layer=shape.layers,
        n_head=shape.heads,
        n_embd=shape.width,
        rotary_percentage=1.0,
        parallel_residual=False,
        bias=False,
        norm_class_name="RMSNorm",
        norm_eps=shape.norm_eps,
        mlp_class_name="LLaMAMLP",
        intermediate_size=shape.hidden_width,
        rope_base=int(shape.rotary_base),
    )
    model = litgpt.GPT(config)
    names = {
        "lm_head.weight": weights["head.weight"],
        "transformer.wte.weight": weights["embedding.weight"],
        "transformer.ln_f.weight": weights["decoder.final_norm.weight"],
    }
    for i in range(shape.layers):
        mine, theirs = f"decoder.blocks.{i}", f"transformer.h.{i}"
        qkv = [weights[f"{mine}.attention.{part}.weight"] for part in ("query", "key", "value")]
        names[f"{theirs}.attn.qkv.weight"] = torch.cat(qkv)
        for part, name in (
            ("attn.proj", "attention.output"),
            ("mlp.fc_1", "mlp.gate"),
            ("mlp.fc_2", "mlp.up"),
            ("mlp.proj", "mlp.down"),
            ("norm_1", "attention_norm"),
            ("norm_2", "mlp_norm"),
        ):
            names[f"{theirs}.{part}.weight"] = weights[f"{mine}.{name}.weight"]
    model.load_state_dict(names)
    return model.train()
