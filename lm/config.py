"""Configuration of a model. Imports no torch, because command lines are built from it."""

from __future__ import annotations

import math
from dataclasses import dataclass
from typing import Literal

from lm.layer_groups import check_layer_groups
from lm.norm_places import NORM_PLACES, NormPlaces, NormPosition, check_norms
from lm.position_checks import check_pattern, check_positions, fitting_width
from lm.values import check_fields, check_ranges

Architecture = Literal["decoder", "encoder", "encoder-decoder"]
Positions = Literal["rotary", "learned", "sinusoidal", "relative", "relative-keys", "alibi", "none"]
RotaryScaling = Literal["none", "linear", "yarn", "llama3"]
Norm = Literal["layernorm", "rmsnorm"]
Residual = Literal["sequential", "parallel", "none"]
Activation = Literal["gelu", "gelu_tanh", "relu", "relu2", "swiglu", "geglu", "geglu_tanh"]
Initialization = Literal["gpt2", "xavier", "t5"]
MixerKind = Literal[
    "attention",
    "hopfield",
    "average",
    "linear",
    "performer",
    "retention",
    "gated-linear",
    "mamba2",
    "mingru",
    "gru",
    "lstm",
]
CrossKind = Literal["dot", "additive"]
AttentionPattern = Literal["none", "dilated", "strided", "fixed", "global", "random"]
AttentionBackend = Literal["auto", "sdpa", "blocked", "flex", "closed_form", "reference"]

GATED = ("swiglu", "geglu", "geglu_tanh")
GATED_MULTIPLE = 64  # multiples of 64 fill the tiles of every matrix unit
WITHOUT_DROPOUT = ("flex", "closed_form")  # attention backends without dropout of weights

OPTIONAL = (
    *("head_width", "kv_heads", "qk_norm", "scaled_attention", "window", "document_mask", "value_embeddings"),
    *("attention", "attention_pattern"),
)
"""Fields of `ModelConfig` that only some mixers read."""

SELECTED = 0.15
"""Share of the positions without a special token that masked-token training selects (Devlin et al. 2019, 3.1)"""

# Fields by subject for command-line help: common ones, then rare ones.
SUBJECTS = {
    "size": (
        "layers width heads context_length",
        "vocab_size architecture decoder_layers layer_groups head_width kv_heads mlp mlp_width",
    ),
    "attention": (
        "",
        "mixer mixers cross attention window attention_pattern pattern_size pattern_count document_mask qk_norm "
        "scaled_attention value_embeddings",
    ),
    "positions": (
        "",
        "positions rotary_base rotary_width rotary_scaling rotary_factor rotary_original_length "
        "relative_buckets relative_distance position_offset",
    ),
    "blocks": ("", "norm norm_position mlp_norm embedding_norm norm_eps residual activation bias"),
    "embedding and output": ("", "tied_head scaled_embedding scaled_head soft_cap token_types embedding_skips"),
    "initialization and regularization": ("dropout", "hidden_dropout stochastic_depth initialization zero_projections"),
}


@dataclass(frozen=True, kw_only=True)
class ModelConfig:
    """The shape of a transformer. Impossible shapes are errors that name the field."""

    # Size
    architecture: Architecture = "decoder"
    """decoder: next token, causal. encoder: masked tokens, bidirectional. encoder-decoder: target from source"""
    vocab_size: int = 0
    """Vocabulary entries; 0: the tokenizer's"""
    context_length: int = 256
    """Tokens read at once. An encoder's block of T tokens takes T + 2, with <|cls|> and <|sep|>"""
    layers: int = 4
    """Blocks. For an encoder-decoder, blocks of the encoder"""
    decoder_layers: int = 0
    """Blocks of an encoder-decoder's decoder; 0: as in the encoder"""
    layer_groups: int = 0
    """Number of groups of consecutive blocks with shared weights (ALBERT); 0: no sharing"""
    width: int = 256
    """Features of a hidden state"""
    heads: int = 4
    """Attention heads per block"""
    head_width: int = 0
    """Features of an attention head; 0: width / heads"""
    kv_heads: int = 0
    """Key-value heads, shared by groups of query heads; 0: as many as heads"""
    mlp: bool = True
    """Blocks have an MLP; otherwise they have only attention"""
    mlp_width: int = 0
    """Hidden units of the MLP; 0: 4 x width, for gated activations 8/3 x width rounded up to a multiple of 64"""

    # Attention
    mixer: MixerKind = "attention"
    """Sub-layer in which positions read one another (lm/mixers/)"""
    mixers: tuple[MixerKind, ...] = ()
    """Mixers by layer, instead of one for all: as many as layers, or a pattern that repeats a whole number of times"""
    cross: CrossKind = "dot"
    """Scores of cross-attention. dot: products of queries and keys. additive: a network on their sum (Bahdanau 2015)"""
    attention: AttentionBackend = "auto"
    """Attention backend (lm/attention/); auto: fastest for device, dtype, length and mask"""
    window: int = 0
    """Attention window in tokens, the query included (bidirectional: to each side); 0: unlimited"""
    attention_pattern: AttentionPattern = "none"
    """Sparse attention (lm/attention/patterns.py), within the window if there is one"""
    pattern_size: int = 16
    """Stride, block or reach of the sparse pattern in tokens"""
    pattern_count: int = 1
    """Last tokens of a block that all later ones see (fixed), global tokens, or random blocks of the sparse pattern"""
    document_mask: bool = False
    """Restrict attention to the same document within a block"""
    qk_norm: bool = False
    """Normalise queries and keys per head (RMSNorm)"""
    scaled_attention: bool = True
    """Divide scores by the root of the head width; T5 does not"""
    value_embeddings: int = 0
    """Embedding tables added to the values: table i in blocks i and layers - 1 - i; 0: none"""

    # Positions
    positions: Positions = "rotary"
    """rotary: rotates queries and keys. learned, sinusoidal: added to embeddings. relative (T5), alibi: score biases.
    relative-keys: a key for each distance (Shaw et al. 2018)"""
    rotary_base: float = 10000.0
    """Base of the rotary frequencies: the longest wavelength is nearly 2 pi x base positions"""
    rotary_width: int = 0
    """Number of first components of each head that rotary positions rotate; 0: all of them"""
    rotary_scaling: RotaryScaling = "none"
    """Scaling of rotary frequencies to read beyond the trained length"""
    rotary_factor: float = 1.0
    """Extended length / trained length, for rotary scaling"""
    rotary_original_length: int = 0
    """Trained length in tokens, for yarn and llama3 scaling; 0: none"""
    relative_buckets: int = 32
    """Buckets of distances in T5's relative bias"""
    relative_distance: int = 128
    """Distance in tokens from which all share the last bucket of T5's relative bias, or the last relative key"""
    position_offset: int = 0
    """Unused rows before the first learned position; in RoBERTa padding id + 1"""

    # Blocks
    norm: Norm = "layernorm"
    """Normalisation layer"""
    norm_position: NormPosition = "pre"
    """pre: before each sub-layer (GPT-2). post: after the residual sum (BERT). branch: before the sum (OLMo 2).
    sandwich: pre and branch. deepnorm: post, with a larger stream. rezero: none, sub-layers times a learned scale"""
    mlp_norm: bool = True
    """The MLP has a norm like other sub-layers"""
    embedding_norm: bool = False
    """Normalise an encoder's embedding (BERT). The first attention then has no norm before it (ModernBERT)"""
    norm_eps: float = 1e-5
    """Added to the variance inside the root"""
    residual: Residual = "sequential"
    """sequential: the MLP reads the stream after attention. parallel: both read the same stream (GPT-NeoX). none: no
    residual connections, to see what they do"""
    activation: Activation = "gelu"
    """gelu: exact (BERT). gelu_tanh: GPT-2. relu2: squared. Gated: swiglu (Llama), geglu (exact), geglu_tanh (T5)"""
    bias: bool = True
    """Biases in linear layers and layer norms"""

    # Embedding and output
    tied_head: bool = True
    """Use the token embedding as output matrix"""
    scaled_embedding: bool = False
    """Multiply token embeddings by the root of the width; always so with sinusoidal positions"""
    scaled_head: bool = False
    """Divide hidden states by the root of the width before the output matrix, as in T5"""
    soft_cap: float = 0.0
    """Logits become cap * tanh(logits / cap); 0: no cap"""
    token_types: int = 0
    """Entries of the segment embedding, as in BERT; 0: none"""
    embedding_skips: bool = False
    """Each block reads a learned mixture of residual stream and embedding"""

    # Initialization and regularization
    initialization: Initialization = "gpt2"
    """Scheme of initial values (lm/initialization.py)"""
    zero_projections: bool = False
    """Start the matrices that write to the residual stream at zero"""
    dropout: float = 0.0
    """Dropout probability. Applies to embeddings, attention weights and sub-layer outputs"""
    hidden_dropout: float = 0.0
    """Dropout probability of the MLP's hidden units (original Transformer, T5)"""
    stochastic_depth: float = 0.0
    """Probability that a sequence skips a sub-layer of the last block in training; falls linearly to the first block"""

    def __post_init__(self) -> None:
        check_fields(self, "model.")
        self._check_counts()
        self._check_mixers()
        self._check_numbers()
        self._check_heads()
        check_positions(self)
        self._check_architecture()
        self._check_initialization()
        self._check_attention()
        check_layer_groups(self)
        check_ranges(self, "model.{}")

    def _check_counts(self) -> None:
        for field in ("context_length", "layers", "width", "heads"):
            value = getattr(self, field)
            if value < 1:
                raise ValueError(f"model.{field} is {value}: give at least 1")
        for field, meaning in _ZERO_MEANS.items():
            value = getattr(self, field)
            if value < 0:
                raise ValueError(f"model.{field} is {value}: give at least 1, or 0 for {meaning}")
        for field, most in _MOST.items():
            value = getattr(self, field)
            if value > most:
                raise ValueError(f"model.{field} is {value}: give at most {most:,}")

    def _check_mixers(self) -> None:
        count = len(self.mixers)
        if count and self.mixer != "attention":
            raise ValueError(f"model.mixer is {self.mixer!r}, but model.mixers names the mixer of each layer: give one")
        if count and self.layers % count:
            raise ValueError(
                f"model.mixers has {count} mixers, which model.layers={self.layers} does not repeat a whole number of "
                f"times: try model.layers={-(-self.layers // count) * count}, or name {self.layers} mixers"
            )

    def _check_numbers(self) -> None:
        for field in ("dropout", "hidden_dropout", "stochastic_depth"):
            value = getattr(self, field)
            if not 0.0 <= value < 1.0:
                raise ValueError(f"model.{field} is {value}: give a probability from 0 to below 1")
        for field in ("rotary_base", "rotary_factor", "norm_eps", "soft_cap"):
            value = getattr(self, field)
            if not math.isfinite(value):
                raise ValueError(f"model.{field} is {value}: give a finite number")
        if not self.norm_eps > 0.0:
            raise ValueError(f"model.norm_eps is {self.norm_eps}: give a small positive number such as 1e-5")
        if not self.soft_cap >= 0.0:
            raise ValueError(f"model.soft_cap is {self.soft_cap}: give a positive number such as 30, or 0 for none")

    def _check_heads(self) -> None:
        if self.width % self.heads and not self.head_width:
            raise ValueError(
                f"model.width is {self.width}, which model.heads={self.heads} does not divide: {fitting_width(self)}"
            )
        if self.heads % self.key_value_heads:
            fitting = max(count for count in range(1, min(self.kv_heads, self.heads) + 1) if self.heads % count == 0)
            raise ValueError(
                f"model.kv_heads is {self.kv_heads}, which does not divide model.heads={self.heads}: "
                f"try model.kv_heads={fitting}"
            )

    def _check_architecture(self) -> None:
        if self.decoder_layers and self.architecture != "encoder-decoder":
            raise ValueError(
                f"model.decoder_layers is {self.decoder_layers}, but model.architecture is {self.architecture!r}: "
                "leave it out, and give model.layers"
            )
        fewest = min(self.layers, self.decoder_layers or self.layers)
        if self.value_embeddings > (fewest + 1) // 2:
            raise ValueError(
                f"model.value_embeddings is {self.value_embeddings}: {fewest} layers have room for at most "
                f"{(fewest + 1) // 2}"
            )
        if self.value_embeddings and self.architecture == "encoder-decoder":
            raise ValueError("model.value_embeddings is for decoders and encoders: leave it out of an encoder-decoder")
        for field, needed in (("embedding_norm", "encoder"), ("cross", "encoder-decoder")):
            value = getattr(self, field)
            if value != getattr(type(self), field) and self.architecture != needed:
                raise ValueError(
                    f"model.{field} is {value!r}, but model.architecture is {self.architecture!r}: leave it out, or "
                    f"give model.architecture={needed}"
                )
        if self.residual == "parallel":
            self._check_parallel_residual()
        check_norms(self)

    def _check_parallel_residual(self) -> None:
        for field, needed in (("mlp", True), ("mlp_norm", True), ("norm_position", "pre")):
            value = getattr(self, field)
            if value != needed:
                raise ValueError(
                    f"model.residual is 'parallel', but model.{field}={value!r}: give model.{field}={needed}, or "
                    "model.residual=sequential"
                )
        if self.architecture == "encoder-decoder":
            raise ValueError(
                "model.residual is 'parallel', but model.architecture='encoder-decoder', whose decoder has "
                "cross-attention: give model.residual=sequential"
            )

    def _check_initialization(self) -> None:
        if self.initialization == "t5" and self.tied_head and not self.scaled_head:
            raise ValueError(
                "model.initialization is 't5', whose embeddings have std 1, so the logits of a tied head would have "
                "std sqrt(width): give model.scaled_head=true or model.tied_head=false"
            )

    def _check_attention(self) -> None:
        check_pattern(self)
        if self.dropout and self.attention in WITHOUT_DROPOUT:
            raise ValueError(
                f"model.dropout is {self.dropout}, but model.attention={self.attention!r} has none: give "
                "model.dropout=0, or another backend, such as model.attention=auto"
            )

    @property
    def head_features(self) -> int:
        """Features of an attention head, with the default filled in."""
        return self.head_width or self.width // self.heads

    @property
    def rotary_features(self) -> int:
        """Components of a head that rotary positions rotate, with the default filled in."""
        return self.rotary_width or self.head_features

    @property
    def key_value_heads(self) -> int:
        """Key-value heads, with the default filled in."""
        return self.kv_heads or self.heads

    @property
    def hidden_width(self) -> int:
        """Hidden units of the MLP, with the default filled in."""
        if self.mlp_width:
            return self.mlp_width
        if self.activation in GATED:  # three matrices of 8/3 cost what two of 4 do (Shazeer 2020)
            return -(-8 * self.width // (3 * GATED_MULTIPLE)) * GATED_MULTIPLE
        return 4 * self.width

    @property
    def mixer_pattern(self) -> tuple[MixerKind, ...]:
        """The mixers of the first layers, which the other layers repeat."""
        return self.mixers or (self.mixer,)

    @property
    def attention_only(self) -> bool:
        """Whether the mixer of every layer is attention."""
        return set(self.mixer_pattern) == {"attention"}

    @property
    def mixer_names(self) -> str:
        """The pattern of mixers for messages, such as "mamba2 + mamba2 + attention"."""
        return " + ".join(self.mixer_pattern)

    def mixer_of(self, block: int) -> MixerKind:
        """Return the mixer of a block of a stack."""
        return self.mixer_pattern[block % len(self.mixer_pattern)]

    @property
    def norm_places(self) -> NormPlaces:
        """Where a sub-layer has norms."""
        return NORM_PLACES[self.norm_position]

    @property
    def causal(self) -> bool:
        """Whether the predicting stack attends to the past only."""
        return self.architecture != "encoder"


# Upper limits: far above any model, and low enough that the bytes of a matrix fit 64 bits.
_MOST = {
    "vocab_size": 10**8,
    "context_length": 10**8,
    "layers": 10**4,
    "decoder_layers": 10**4,
    "width": 10**8,
    "head_width": 10**6,
    "mlp_width": 10**9,
    "rotary_original_length": 10**8,
    "relative_buckets": 10**6,
    "position_offset": 10**8,
    "token_types": 10**6,
}
_ZERO_MEANS = {
    "vocab_size": "the tokenizer's size",
    "decoder_layers": "as many as model.layers",
    "layer_groups": "no sharing of weights",
    "kv_heads": "as many as model.heads",
    "head_width": "width / heads",
    "mlp_width": "the usual multiple",
    "rotary_width": "all of them",
    "rotary_original_length": "none",
    "position_offset": "none",
    "token_types": "none",
    "window": "all positions",
    "value_embeddings": "none",
}
