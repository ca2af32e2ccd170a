"""Exchange of models with llama.cpp: keys and tensors of GGUF files, by architecture.

`to_gguf` turns (`ModelConfig`, our tensors) into (architecture, keys, its tensors); `from_gguf` goes back. Tensors have
the shapes of torch. llama.cpp computes every GELU by the tanh formula, so `bytelm.activation` keeps the model's own.

Sources: the GGUF specification (ggml docs/gguf.md), and src/models of llama.cpp.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping
from functools import partial
from typing import Any

from torch import Tensor

from lm.config import ModelConfig
from lm.exchange.bert import FIXED as BERT_FIXED
from lm.exchange.conversion import Imported, chosen_format, converted, packed
from lm.exchange.format import Entry, Format, Pretrained, Setting, constant, has_own_head, layer

EMBEDDING, HEAD, FINAL = "token_embd.weight", "output.weight", "output_norm"
POSITIONS, TYPES = "position_embd.weight", "token_types.weight"
REQUIRED = 0
"""Default of a key that every file has"""
OURS = "bytelm."
"""Prefix of our own keys, which llama.cpp ignores"""
QKV = ("query", "key", "value")
LINEAR = {"attn_output": "attention.output", "ffn_up": "mlp.up", "ffn_down": "mlp.down"}
SEPARATE = {"attn_q": "attention.query", "attn_k": "attention.key", "attn_v": "attention.value", **LINEAR}
PRE_NORMS = {"attn_norm": "attention_norm", "ffn_norm": "mlp_norm"}
POST_NORMS = {"attn_output_norm": "attention_norm", "layer_output_norm": "mlp_norm"}
QK_NORMS = {"attn_q_norm": "attention.query_norm", "attn_k_norm": "attention.key_norm"}
MASKED_HEAD = "head."
"""Start of the names of the masked-token head, which no GGUF file has"""


# Keys


def _rows(given: Pretrained) -> int:
    """Return the number of entries of the embedding."""
    if EMBEDDING not in given.tensors:
        raise ValueError(f"the weights have no {EMBEDDING}: take a complete file")
    return len(given.tensors[EMBEDDING])


def _sizes(arch: str, eps: str) -> tuple[Setting, ...]:
    """Return the keys that all architectures share. `eps` names the key of the norms' epsilon."""
    return (
        Setting(f"{arch}.vocab_size", "vocab_size", None, read=_rows),
        Setting(f"{arch}.context_length", "context_length", REQUIRED),
        Setting(f"{arch}.embedding_length", "width", REQUIRED),
        Setting(f"{arch}.block_count", "layers", REQUIRED),
        Setting(f"{arch}.feed_forward_length", "mlp_width", REQUIRED, write=lambda config: config.hidden_width),
        Setting(f"{arch}.attention.head_count", "heads", REQUIRED),
        Setting(f"{arch}.attention.{eps}", "norm_eps", 1e-5),
        Setting(HEAD, ("tied_head",), read=lambda given: (not has_own_head(given, HEAD, EMBEDDING),)),
    )


def _rope(arch: str) -> tuple[Setting, ...]:
    """Return the keys of rotary positions."""
    return (
        Setting(f"{arch}.rope.freq_base", "rotary_base", 10000.0),
        Setting(
            f"{arch}.rope.scaling.type",
            "rotary_scaling",
            "none",
            names={"none": "none", "linear": "linear"},
            allowed=("none", "linear"),
            read=lambda given: "none" if _factor(given, arch) == 1.0 else given.settings[f"{arch}.rope.scaling.type"],
        ),
        Setting(f"{arch}.rope.scaling.factor", "rotary_factor", 1.0, read=partial(_factor, arch=arch)),
    )


def _factor(given: Pretrained, arch: str) -> float:
    """Return the factor of linear scaling; 1.0 without scaling."""
    kind = given.settings[f"{arch}.rope.scaling.type"]
    return 1.0 if kind == "none" else float(given.settings[f"{arch}.rope.scaling.factor"])


def _grouped_heads(arch: str) -> tuple[Setting, ...]:
    """Return the keys of attention whose heads may share keys and have any width."""
    heads, width = f"{arch}.attention.head_count", f"{arch}.attention.key_length"

    def head_width(given: Pretrained) -> int:
        each = given.settings[width]
        shared_out = each is None or each * given.settings[heads] == given.settings[f"{arch}.embedding_length"]
        return 0 if shared_out else int(each)

    return (
        Setting(
            f"{heads}_kv",
            "kv_heads",
            None,
            write=lambda config: config.key_value_heads,
            read=lambda given: given.settings[f"{heads}_kv"] or given.settings[heads],
        ),
        Setting(width, "head_width", None, write=lambda config: config.head_features, read=head_width),
        Setting(f"{arch}.attention.value_length", default=None, write=lambda config: config.head_features),
        Setting(f"{arch}.rope.dimension_count", default=None, write=lambda config: config.rotary_features),
    )


def _one_width(arch: str, source: Mapping[str, Any]) -> None:
    """Raise ValueError if queries and values differ in width, or if only a part of a head is rotated."""
    usual = source[f"{arch}.embedding_length"] // source[f"{arch}.attention.head_count"]
    width = source[f"{arch}.attention.key_length"] or usual
    for key in ("attention.value_length", "rope.dimension_count"):
        if source[f"{arch}.{key}"] not in (None, width):
            raise ValueError(
                f"the file has {arch}.{key} = {source[f'{arch}.{key}']}, but heads of {width} components: only equal "
                "numbers are supported"
            )


def _own_heads(arch: str) -> Setting:
    """Return the key of attention in which each head has its own keys."""
    return Setting(f"{arch}.attention.head_count_kv", default=None, write=lambda config: config.heads)


def _check_own_heads(arch: str, settings: Mapping[str, Any]) -> None:
    given, heads = (settings[f"{arch}.attention.{key}"] for key in ("head_count_kv", "head_count"))
    if given not in (None, heads):
        raise ValueError(f"the file has {arch}.attention.head_count_kv = {given}: only {heads} is supported")


def _gelu(usual: str) -> Setting:
    """Return our key of the kind of GELU; `usual`: that of published models."""
    return Setting(f"{OURS}activation", "activation", usual, names={"gelu": "gelu", "gelu_tanh": "gelu_tanh"})


BIAS = Setting(f"{OURS}bias", "bias", True)


# Tensors


def _stack(
    config: ModelConfig,
    norms: Mapping[str, str],
    linear: Mapping[str, str],
    *,
    norm_bias: bool,
    paired: bool = False,
    stack: str = "decoder",
) -> Iterator[Entry]:
    """Yield the tensors of the blocks. `norms` and `linear`: our names of their layers, by the names of GGUF.

    Without `linear`, one matrix holds queries, keys and values. paired: queries and keys are `paired_heads`.
    """
    heads = {"attn_q": config.heads, "attn_k": config.key_value_heads} if paired else {}
    for i in range(config.layers):
        theirs, ours = f"blk.{i}", f"{stack}.blocks.{i}"
        for peer, mine in norms.items():
            yield from layer(f"{theirs}.{peer}", f"{ours}.{mine}", bias=norm_bias)
        if "attn_q" not in linear:
            yield from layer(f"{theirs}.attn_qkv", *(f"{ours}.attention.{part}" for part in QKV), bias=config.bias)
        for peer, mine in linear.items():
            for suffix in ("weight", "bias") if config.bias else ("weight",):
                names = (f"{ours}.{mine}.{suffix}",)
                yield Entry(f"{theirs}.{peer}.{suffix}", names, paired_heads=heads.get(peer, 0))


def _decoder(config: ModelConfig, blocks: Iterator[Entry], norm_bias: bool) -> Iterator[Entry]:
    yield Entry(EMBEDDING, ("embedding.weight",))
    if config.positions == "learned":
        yield Entry(POSITIONS, ("decoder.positional.learned.weight",))
    yield from blocks
    yield from layer(FINAL, "decoder.final_norm", bias=norm_bias)
    if not config.tied_head:
        yield Entry(HEAD, ("head.weight",))


def _with_layer_norms(config: ModelConfig) -> Iterator[Entry]:
    return _decoder(config, _stack(config, PRE_NORMS, LINEAR, norm_bias=config.bias), config.bias)


def _with_rms_norms(config: ModelConfig, *, paired: bool) -> Iterator[Entry]:
    norms = PRE_NORMS | (QK_NORMS if config.qk_norm else {})
    linear = SEPARATE | {"ffn_gate": "mlp.gate"}
    return _decoder(config, _stack(config, norms, linear, norm_bias=False, paired=paired), norm_bias=False)


def _encoder(config: ModelConfig) -> Iterator[Entry]:
    yield Entry(EMBEDDING, ("embedding.weight",))
    yield Entry(POSITIONS, ("encoder.positional.learned.weight",))
    if config.token_types:
        yield Entry(TYPES, ("token_types.weight",))
    yield from layer("token_embd_norm", "encoder.embedding_norm")
    yield from _stack(config, POST_NORMS, SEPARATE, norm_bias=True, stack="encoder")
    for part in ("dense", "norm"):
        yield from layer(f"{MASKED_HEAD}{part}", f"head.{part}")
    yield Entry(f"{MASKED_HEAD}bias", ("head.bias",))


def _zero_biases(config: ModelConfig) -> dict[str, tuple[int, ...]]:
    """Return the biases that llama.cpp needs and that a model without biases lacks."""
    if config.bias:
        return {}
    sizes = dict.fromkeys((*PRE_NORMS, *LINEAR), config.width)
    sizes |= {"attn_qkv": 3 * config.width, "ffn_up": config.hidden_width}
    names = {f"blk.{i}.{name}": size for i in range(config.layers) for name, size in sizes.items()}
    return {f"{name}.bias": (size,) for name, size in (names | {FINAL: config.width}).items()}


def _token_types(given: Pretrained) -> int:
    """Return the number of token types, or 0 if their table is zero, as in the export of a model without any."""
    table = given.tensors.get(TYPES)
    return len(table) if table is not None and table.any() else 0


# Architectures


def _architecture(
    arch: str,
    settings: tuple[Setting, ...],
    entries: Callable[[ModelConfig], Iterator[Entry]],
    check: Callable[[Mapping[str, Any]], None],
    eps: str = "layer_norm_epsilon",
    **fields: Any,
) -> Format:
    """Return the table of an architecture of llama.cpp. `settings` follow the settings that all architectures have."""
    return Format(
        name=arch,
        model_type=arch,
        auto_class="",
        prefix="",
        settings=(*_sizes(arch, eps), *settings),
        entries=entries,
        check_combination=check,
        **fields,
    )


def _tied_copy(config: ModelConfig) -> dict[str, str]:
    return {HEAD: EMBEDDING} if config.tied_head else {}


LAYER_NORMS = {"architecture": "decoder", "norm": "layernorm"}
RMS_NORMS = {"architecture": "decoder", "norm": "rmsnorm", "positions": "rotary", "activation": "swiglu"}
RMS_EPS = "layer_norm_rms_epsilon"

GPT2 = _architecture(
    "gpt2",
    (_gelu("gelu_tanh"), BIAS, _own_heads("gpt2")),
    _with_layer_norms,
    partial(_check_own_heads, "gpt2"),
    fixed=LAYER_NORMS | {"positions": "learned"},
    zeros=_zero_biases,
    copies=_tied_copy,
)
GPT_NEOX = _architecture(
    "gptneox",
    (
        _gelu("gelu"),
        BIAS,
        _own_heads("gptneox"),
        *_rope("gptneox"),
        Setting(
            "gptneox.rope.dimension_count",
            "rotary_width",
            REQUIRED,
            write=lambda config: config.rotary_features,
            read=lambda given: (
                0
                if given.settings["gptneox.rope.dimension_count"] * given.settings["gptneox.attention.head_count"]
                == given.settings["gptneox.embedding_length"]
                else given.settings["gptneox.rope.dimension_count"]
            ),
        ),
        Setting(
            "gptneox.use_parallel_residual",
            "residual",
            True,
            write=lambda config: config.residual == "parallel",
            read=lambda given: "parallel" if given.settings["gptneox.use_parallel_residual"] else "sequential",
        ),
    ),
    _with_layer_norms,
    partial(_check_own_heads, "gptneox"),
    fixed=LAYER_NORMS | {"positions": "rotary"},
    zeros=_zero_biases,
    copies=_tied_copy,
    written_copies=lambda config: tuple(_tied_copy(config)),
)
LLAMA = _architecture(
    "llama",
    (
        *_rope("llama"),
        *_grouped_heads("llama"),
        Setting("blk.0.attn_q.bias", ("bias",), read=lambda given: ("blk.0.attn_q.bias" in given.tensors,)),
    ),
    partial(_with_rms_norms, paired=True),
    partial(_one_width, "llama"),
    RMS_EPS,
    fixed=RMS_NORMS,
    copies=_tied_copy,
)
QWEN3 = _architecture(
    "qwen3",
    (*_rope("qwen3"), *_grouped_heads("qwen3")),
    partial(_with_rms_norms, paired=False),
    partial(_one_width, "qwen3"),
    RMS_EPS,
    fixed=RMS_NORMS | {"qk_norm": True, "bias": False},
    copies=_tied_copy,
)
BERT = _architecture(
    "bert",
    (
        _gelu("gelu"),
        _own_heads("bert"),
        Setting("bert.attention.causal", default=False, allowed=(False,), write=constant(False)),
        Setting("bert.pooling_type", default=1, least=0, write=constant(1)),  # mean, as `bytelm embed` does
        Setting(
            "tokenizer.ggml.token_type_count",
            "token_types",
            None,
            write=lambda config: config.token_types or 1,
            read=_token_types,
        ),
    ),
    _encoder,
    partial(_check_own_heads, "bert"),
    head=MASKED_HEAD,
    fixed={name: value for name, value in BERT_FIXED.items() if name != "activation"},
    zeros=lambda config: {} if config.token_types else {TYPES: (1, config.width)},
)
ARCHITECTURES = (GPT_NEOX, GPT2, LLAMA, QWEN3, BERT)


def gguf_format(config: ModelConfig) -> Format:
    """Return the architecture of llama.cpp that expresses `config`. Raises ValueError, by field, if there is none."""
    return chosen_format(ARCHITECTURES, config, "architecture of llama.cpp that bytelm writes")


def to_gguf(config: ModelConfig, weights: Mapping[str, Tensor]) -> tuple[str, dict[str, Any], dict[str, Tensor]]:
    """Return the architecture, its keys and the tensors of a model, given its `state_dict`.

    Keys of values that the format leaves out are missing. A masked-token head is left out: llama.cpp has none. Raises
    ValueError as `gguf_format` does.
    """
    chosen = gguf_format(config)
    tensors = packed(chosen, config, weights)
    kept = {name: tensor for name, tensor in tensors.items() if not name.startswith(MASKED_HEAD)}
    return chosen.name, chosen.write(config), kept


def from_gguf(keys: Mapping[str, Any], tensors: Mapping[str, Tensor], source: str) -> Imported:
    """Return the model of a file's keys and tensors; `source` is the name of the file, for messages.

    An encoder gets a masked-token head with random weights. Raises ValueError, by name, as `from_hugging_face` does,
    and for keys of the architecture that may change the model and that we do not know.
    """
    arch = keys.get("general.architecture")
    chosen = next((known for known in ARCHITECTURES if known.name == arch), None)
    if chosen is None:
        known = ", ".join(repr(known.name) for known in ARCHITECTURES)
        raise ValueError(f"{source} has general.architecture = {arch!r}: bytelm reads {known}")
    settings = {setting.key: setting for setting in chosen.settings}
    for key, value in keys.items():
        if key.startswith(f"{arch}.") and key not in settings and key not in HARMLESS and value:
            raise ValueError(f"{source} has {key} = {value!r}, which is not supported")
    for key, setting in settings.items():
        if setting.default is REQUIRED and key not in keys:
            raise ValueError(f"{source} has no {key}, which every {arch} model has: take a complete file")
    return converted(chosen, Pretrained({**chosen.defaults, **keys}, tensors, source), [])


HARMLESS = {"gptneox.tensor_data_layout", "llama.tensor_data_layout"}
"""Keys of an architecture that do not change the model"""
