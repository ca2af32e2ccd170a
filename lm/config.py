"""The shape of a model, in words of the field. No torch here: a command line is built from this."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Literal, get_args

Architecture = Literal["decoder", "encoder"]
Positions = Literal["rotary", "learned", "sinusoidal"]
Norm = Literal["layernorm", "rmsnorm"]
NormPosition = Literal["pre", "post"]
Activation = Literal["gelu", "gelu_tanh", "swiglu"]
Initialization = Literal["gpt2"]
AttentionBackend = Literal["auto", "sdpa", "blocked", "reference"]

SWIGLU_MULTIPLE = 64  # widths of a multiple of this fill the tiles of every matrix unit


@dataclass(frozen=True, kw_only=True)
class ModelConfig:
    """A transformer's shape. Raises ValueError for one that cannot be built, naming the field."""

    architecture: Architecture = "decoder"
    """decoder: next token, causal. encoder: masked tokens, bidirectional."""
    vocab_size: int = 0
    """Entries of the vocabulary; 0: the tokenizer's."""
    context_length: int = 256
    """Positions read at once. An encoder's block of T tokens takes T + 2: <|cls|> and <|sep|>."""
    layers: int = 4
    """Blocks."""
    width: int = 256
    """Components of a hidden state."""
    heads: int = 4
    """Attention heads a block; each has width / heads components."""
    mlp_width: int = 0
    """Hidden units of the MLP; 0: 4 x width, for swiglu 8/3 x width rounded up to a multiple of 64."""
    positions: Positions = "rotary"
    """How order gets in."""
    rotary_base: float = 10000.0
    """The longest rotary wavelength is 2 pi times nearly this many positions."""
    norm: Norm = "layernorm"
    """Kind of normalisation."""
    norm_position: NormPosition = "pre"
    """Before each sub-layer (GPT-2) or after the residual sum (the original Transformer, BERT)."""
    norm_eps: float = 1e-5
    """Added to the variance."""
    activation: Activation = "gelu"
    """gelu: exact, as in BERT. gelu_tanh: the approximation that GPT-2 uses. swiglu: as in Llama."""
    bias: bool = True
    """Biases in linear layers, layer norms and the masked-token head."""
    tied_head: bool = True
    """The output matrix is the token embedding."""
    dropout: float = 0.0
    """Probability, on embeddings, attention weights and the output of each sub-layer."""
    initialization: Initialization = "gpt2"
    """Scheme of lm/initialization.py."""
    attention: AttentionBackend = "auto"
    """Backend of lm/attention.py; auto: the fastest for device, dtype and length."""

    def __post_init__(self) -> None:
        self._check_choices()
        self._check_counts()
        self._check_heads()
        if not 0.0 <= self.dropout < 1.0:
            raise ValueError(f"model.dropout is {self.dropout}: give a probability from 0 to below 1")
        if not self.norm_eps > 0.0:
            raise ValueError(f"model.norm_eps is {self.norm_eps}: give a small positive number such as 1e-5")
        if not self.rotary_base > 1.0:
            raise ValueError(f"model.rotary_base is {self.rotary_base}: give a number above 1, such as 10000")

    def _check_choices(self) -> None:
        for field, choices in _CHOICES.items():
            value = getattr(self, field)
            if value not in get_args(choices):
                known = ", ".join(get_args(choices))
                raise ValueError(f"model.{field} is {value!r}: choose one of {known}")

    def _check_counts(self) -> None:
        for field in ("context_length", "layers", "width", "heads"):
            value = getattr(self, field)
            if value < 1:
                raise ValueError(f"model.{field} is {value}: give at least 1")
        for field, meaning in (("vocab_size", "the tokenizer's size"), ("mlp_width", "the usual multiple")):
            value = getattr(self, field)
            if value < 0:
                raise ValueError(f"model.{field} is {value}: give at least 1, or 0 for {meaning}")

    def _check_heads(self) -> None:
        if self.width % self.heads:
            raise ValueError(
                f"model.width is {self.width}, which model.heads={self.heads} does not divide: "
                f"try model.width={-(-self.width // self.heads) * self.heads}"
            )
        if self.positions == "rotary" and self.head_width % 2:
            raise ValueError(
                f"model.width={self.width} over model.heads={self.heads} gives heads of {self.head_width} "
                "components, and rotary positions rotate pairs: choose an even head width"
            )
        if self.positions == "sinusoidal" and self.width % 2:
            raise ValueError(
                f"model.width is {self.width}, and sinusoidal positions pair a sine with a cosine: "
                f"try model.width={self.width + 1}, with heads that divide it"
            )

    @property
    def head_width(self) -> int:
        """Components of one attention head."""
        return self.width // self.heads

    @property
    def hidden_width(self) -> int:
        """Hidden units of the MLP, with the default filled in."""
        if self.mlp_width:
            return self.mlp_width
        if self.activation == "swiglu":  # three matrices of 8/3 cost what two of 4 do (Shazeer 2020)
            return -(-8 * self.width // (3 * SWIGLU_MULTIPLE)) * SWIGLU_MULTIPLE
        return 4 * self.width

    @property
    def causal(self) -> bool:
        """Whether a position sees only itself and those before it."""
        return self.architecture == "decoder"

    @property
    def embedding_norm(self) -> bool:
        """BERT normalises the embedding too: without it a post-norm residual stream starts unscaled."""
        return self.architecture == "encoder" and self.norm_position == "post"


_CHOICES = {
    "architecture": Architecture,
    "positions": Positions,
    "norm": Norm,
    "norm_position": NormPosition,
    "activation": Activation,
    "initialization": Initialization,
    "attention": AttentionBackend,
}
