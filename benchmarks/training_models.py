"""The models of the pretraining benchmark: ours, and each peer's with the same architecture and weights."""

from collections.abc import Callable
from contextlib import nullcontext
from dataclasses import dataclass, replace

import torch
import torch.nn.functional as F  # noqa: N812
from torch import Tensor, nn

from lm.config import ModelConfig
from lm.model import LanguageModel
from lm.presets import PRESETS

OURS, PEERS = "bytelm", ("transformers", "litgpt")
Loss = Callable[[Tensor, Tensor], Tensor]
"""Maps inputs and labels (B, T) int64, -100 for ignored positions, to the mean nats per target."""


@dataclass(frozen=True)
class Case:
    """A model shape and the number of sequences per step, which are read in equal micro-batches."""

    config: ModelConfig
    batch: int
    micro_batches: int = 1

    @property
    def tokens(self) -> int:
        """Tokens per step."""
        return self.batch * self.config.context_length

    @property
    def masked(self) -> bool:
        return self.config.architecture == "encoder"

    @property
    def says(self) -> str:
        shape = self.config
        parts = f" in {self.micro_batches} parts" if self.micro_batches > 1 else ""
        return (
            f"{shape.layers} layers, width {shape.width}, T = {shape.context_length}, batch {self.batch}{parts}, "
            f"vocabulary {shape.vocab_size:,}"
        )


GPT2 = ModelConfig(positions="learned", activation="gelu_tanh")
LLAMA = ModelConfig(norm="rmsnorm", activation="swiglu", bias=False, tied_head=False)
BERT = ModelConfig(
    architecture="encoder",
    positions="learned",
    norm_position="post",
    embedding_norm=True,
    norm_eps=1e-12,
    token_types=2,
)
SMALL = {"vocab_size": 8192, "layers": 6, "width": 384, "heads": 6}
TINY = {"vocab_size": 512, "layers": 2, "width": 64, "heads": 2, "context_length": 32}


def _published(name: str, **fields: int) -> ModelConfig:
    """Return a preset without dropout, so that losses compare, and with the given fields replaced."""
    return replace(PRESETS[name], dropout=0.0, **fields)


PADDED = 50304
ON_A_CPU = {
    "gpt2": Case(replace(GPT2, **SMALL, context_length=256), 16),
    "llama": Case(replace(LLAMA, **SMALL, context_length=256), 16),
    "bert": Case(replace(BERT, **SMALL, context_length=128), 32),
}
ON_A_GPU = {
    "gpt2-124m": Case(_published("gpt2", vocab_size=PADDED), 64),
    "gpt2-124m-524k": Case(_published("gpt2", vocab_size=PADDED), 512, micro_batches=8),
    "gpt2-350m": Case(_published("gpt2-medium", vocab_size=PADDED), 32),
    "gpt3-1.3b": Case(_published("gpt3-xl", vocab_size=PADDED), 8),
    "bert-base": Case(_published("bert-base", vocab_size=30592), 64),
}
TO_TRY = {
    "tiny-gpt2": Case(replace(GPT2, **TINY), 4),
    "tiny-gpt2-parts": Case(replace(GPT2, **TINY), 4, micro_batches=2),
    "tiny-llama": Case(replace(LLAMA, **TINY), 4),
    "tiny-bert": Case(replace(BERT, **TINY), 4),
}
CASES = {**ON_A_CPU, **ON_A_GPU, **TO_TRY}


def peers_of(case: Case) -> list[str]:
    """Return the peers that can train this model. litgpt has no encoders."""
    return [peer for peer in PEERS if not (peer == "litgpt" and case.masked)]


def build_ours(case: Case) -> LanguageModel:
    """Return our model with the initial weights of all contestants."""
    return LanguageModel(case.config, seed=0)


def build_peer(
    peer: str, case: Case, device: torch.device, dtype: torch.dtype, compiled: bool
) -> tuple[nn.Module, Loss]:
    """Return a peer's model with our weights, and its loss function under autocast. Compilation includes the
    cross-entropy."""
    ours = build_ours(case)
    model = (litgpt_model if peer == "litgpt" else transformers_model)(ours).to(device)

    def loss(inputs: Tensor, labels: Tensor) -> Tensor:
        with torch.autocast(device.type, dtype) if dtype != torch.float32 else nullcontext():
            out = model(inputs)
            logits = out if isinstance(out, Tensor) else out.logits
            return F.cross_entropy(logits.flatten(0, 1), labels.flatten(), ignore_index=-100)

    return model, torch.compile(loss) if compiled else loss


def transformers_model(ours: LanguageModel) -> nn.Module:
    """Return the model of `transformers` with our weights."""
    import transformers

    from lm.exchange import to_hugging_face

    settings, tensors = to_hugging_face(ours.config, ours.state_dict())
    config = transformers.AutoConfig.for_model(**settings, use_cache=False)
    kind = "AutoModelForMaskedLM" if ours.config.architecture == "encoder" else "AutoModelForCausalLM"
    model = getattr(transformers, kind).from_config(config, attn_implementation="sdpa")
    missing, unexpected = model.load_state_dict(tensors, strict=False)
    tied = {"lm_head.weight", "cls.predictions.decoder.weight", "cls.predictions.decoder.bias"}
    assert not unexpected and set(missing) <= tied, (missing, unexpected)
    return model.train()


class _TokensAndPositions(nn.Embedding):
    """A token embedding that adds GPT-2's learned positions, which litgpt lacks."""

    def __init__(self, entries: int, length: int, width: int) -> None:
        super().__init__(entries, width)
        self.positions = nn.Parameter(torch.empty(length, width))

    def forward(self, ids: Tensor) -> Tensor:
        return super().forward(ids) + self.positions[: ids.shape[1]]


def litgpt_model(ours: LanguageModel) -> nn.Module:
    """Return the model of `litgpt` with our weights: Llama, or GPT-2 with learned positions and a tied head added."""
    import litgpt

    shape = ours.config
    learned = shape.positions == "learned"
    config = litgpt.Config(
        block_size=shape.context_length,
        vocab_size=shape.vocab_size,
        padded_vocab_size=shape.vocab_size,
        n_layer=shape.layers,
        n_head=shape.heads,
        n_embd=shape.width,
        rotary_percentage=0.0 if learned else 1.0,
        rope_base=int(shape.rotary_base),
        parallel_residual=False,
        bias=shape.bias,
        norm_class_name="RMSNorm" if shape.norm == "rmsnorm" else "LayerNorm",
        norm_eps=shape.norm_eps,
        mlp_class_name="LLaMAMLP" if shape.activation == "swiglu" else "GptNeoxMLP",
        gelu_approximate="tanh",
        intermediate_size=shape.hidden_width,
    )
    model = litgpt.GPT(config)
    if learned:
        model.transformer.wte = _TokensAndPositions(shape.vocab_size, shape.context_length, shape.width)
    if shape.tied_head:
        model.lm_head.weight = model.transformer.wte.weight
    model.load_state_dict(_litgpt_names(ours))
    return model.train()


def _litgpt_names(ours: LanguageModel) -> dict[str, Tensor]:
    """Return our weights under litgpt's names."""
    shape, weights = ours.config, ours.state_dict()
    names = {
        "transformer.wte.weight": weights["embedding.weight"],
        "lm_head.weight": weights["embedding.weight" if shape.tied_head else "head.weight"],
    }
    if shape.positions == "learned":
        names["transformer.wte.positions"] = weights["decoder.positional.learned.weight"]
    kinds = ("weight", "bias") if shape.bias else ("weight",)
    gated = {"mlp.fc_1": "mlp.gate", "mlp.fc_2": "mlp.up"}
    layers = {
        "attn.proj": "attention.output",
        **(gated if shape.activation == "swiglu" else {"mlp.fc": "mlp.up"}),
        "mlp.proj": "mlp.down",
        "norm_1": "attention_norm",
        "norm_2": "mlp_norm",
    }
    for kind in kinds:
        names[f"transformer.ln_f.{kind}"] = weights[f"decoder.final_norm.{kind}"]
        for i in range(shape.layers):
            mine, theirs = f"decoder.blocks.{i}", f"transformer.h.{i}"
            qkv = [weights[f"{mine}.attention.{part}.{kind}"] for part in ("query", "key", "value")]
            names[f"{theirs}.attn.qkv.{kind}"] = torch.cat(qkv)
            for their_layer, my_layer in layers.items():
                names[f"{theirs}.{their_layer}.{kind}"] = weights[f"{mine}.{my_layer}.{kind}"]
    return names
