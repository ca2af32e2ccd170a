"""Activations of a model, recorded and edited while it runs, by the names and shapes of TransformerLens.

Hooks are registered only inside the context of `observed`, and only for the names that are asked for. The names of a
decoder or encoder, for layer L (Nanda and Bloom, https://github.com/TransformerLensOrg/TransformerLens):

    hook_embed, hook_pos_embed                          (B, T, width)   token embedding as added, positions
    embed_ln.*                                                          the norm of a BERT's embedding, as ln1.*
    blocks.L.hook_resid_pre, hook_resid_mid, _post      (B, T, width)   the stream before, between, after sub-layers
    blocks.L.ln1.hook_scale                             (B, T, 1)       divisor of the norm; ln2 is the MLP's
    blocks.L.ln1.hook_normalized                        (B, T, width)   after the division, before weight and bias
    blocks.L.attn.hook_q, hook_rot_q                    (B, T, H, D)    queries, and rotated queries
    blocks.L.attn.hook_k, hook_rot_k, hook_v            (B, S, G, D)    keys and values
    blocks.L.attn.hook_attn_scores, hook_pattern        (B, H, T, S)    before and after the softmax
    blocks.L.attn.hook_z                                (B, T, H, D)    weighted values
    blocks.L.attn.hook_result                           (B, T, H, width) what each head adds
    blocks.L.hook_attn_out, hook_mlp_out                (B, T, width)   output of a sub-layer, after its branch norm
    blocks.L.mlp.hook_pre, hook_pre_linear, hook_post   (B, T, hidden)  before and after the activation
    ln_final.hook_scale, hook_normalized                                as ln1.*

An encoder-decoder has them twice, with `encoder_` and `decoder_` before the name: `encoder_blocks.0.hook_resid_pre`.
Its decoder adds `cross_attn.*`, `hook_cross_attn_out` and `hook_resid_mid_cross`, and ln2 is the norm before
cross-attention. In gated MLPs `hook_pre` is the gate and `hook_pre_linear` what it multiplies.

These differ from TransformerLens: in models with norms after the sum, the stream is what the next sub-layer reads.
`hook_embed` includes token types, and `hook_v` value embeddings. With ReZero, outputs are before their scale. Other
mixers than attention have `hook_attn_out` only; Hopfield has no pattern.

Axes: B sequences, T positions, S key positions, H heads, G key-value heads, D features a head.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Collection, Iterator, Mapping, Sequence
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass
from difflib import get_close_matches
from fnmatch import fnmatchcase
from typing import Any

import torch
from torch import Tensor, nn

from lm.attention.backends import attention_weights
from lm.blocks import MLP, Block
from lm.introspection.norms import bias_of, centred, scale_of
from lm.layers import LayerNorm, RMSNorm
from lm.masks import Mask
from lm.mixers.attention import Attend, Attention
from lm.mixers.mixer import select_rows
from lm.model import LanguageModel, Stack
from lm.positions import PositionalEmbedding

Edit = Tensor | Callable[[Tensor], Tensor]
"""The new value of an activation, or a function of the old one. It is broadcast to the shape of the old one."""
IN_ATTENTION = ("q", "k", "v", "rot_q", "rot_k", "attn_scores", "pattern", "z", "result")


def activation_names(model: LanguageModel) -> list[str]:
    """Return the names of a model's activations, in the order of the forward pass."""
    return [name for point in _points(model) for name in point.names]


def matching_names(model: LanguageModel, patterns: Sequence[str]) -> list[str]:
    """Return the names that match at least one pattern, in which * stands for any text: "blocks.*.hook_resid_post".

    Raises ValueError for a pattern without a match, with the reason if the model lacks such an activation.
    """
    known = activation_names(model)
    for pattern in patterns:
        if not any(fnmatchcase(name, pattern) for name in known):
            raise ValueError(reason_for_missing(model, pattern, known))
    return [name for name in known if any(fnmatchcase(name, pattern) for pattern in patterns)]


@contextmanager
def observed(
    model: LanguageModel, record: Collection[str] = (), edits: Mapping[str, Edit] | None = None
) -> Iterator[dict[str, Tensor]]:
    """Record and edit activations of each forward pass inside the context; yields the recorded ones by name.

    A later pass overwrites the records of an earlier one. A recorded activation has its edited value. All positions are
    computed in all layers: `rows` of the model's call selects from its output. Raises ValueError for an unknown name,
    for an edit of another shape, and inside another such context.
    """
    edits = {} if edits is None else edits
    known = {name: point for point in _points(model) for name in point.names}
    for name in (*record, *edits):
        if name not in known:
            raise ValueError(reason_for_missing(model, name, list(known)))
    watch = _Watch(set(record), edits)
    with ExitStack() as undo:
        if record or edits:
            undo.callback(_computed_at_all_positions(model))
        for point in dict.fromkeys(known[name] for name in known if watch.needs(name)):
            undo.callback(point.install(watch))
        yield watch.found


class _Watch:
    """Sees activations on their way: edits those that have an edit, and keeps those that are recorded."""

    def __init__(self, recorded: Collection[str], edits: Mapping[str, Edit]) -> None:
        self.recorded, self.edits = recorded, edits
        self.found: dict[str, Tensor] = {}

    def needs(self, *names: str) -> bool:
        return self.changes(*names) or any(name in self.recorded for name in names)

    def changes(self, *names: str) -> bool:
        return any(name in self.edits for name in names)

    def __call__(self, name: str, value: Tensor) -> Tensor:
        """Return an activation, with its edit."""
        if name in self.edits:
            value = _edited(name, value, self.edits[name])
        if name in self.recorded:
            self.found[name] = value
        return value


def _edited(name: str, value: Tensor, edit: Edit) -> Tensor:
    new = edit if isinstance(edit, Tensor) else edit(value)
    try:
        return new.to(value).expand_as(value)
    except (RuntimeError, AttributeError):
        shape = tuple(new.shape) if isinstance(new, Tensor) else type(new).__name__
        raise ValueError(f"the edit of {name} is {shape}, but the activation is {tuple(value.shape)}") from None


def _computed_at_all_positions(model: LanguageModel) -> Callable[[], None]:
    """Select `rows` from the output of the model instead of inside the last block, and return what ends this."""
    chosen: dict[str, Tensor | None] = {}

    def before(_: nn.Module, inputs: tuple[Any, ...], named: dict[str, Any]) -> tuple[tuple[Any, ...], dict[str, Any]]:
        chosen["rows"] = named.get("rows")
        return inputs, named | {"rows": None}

    handles = [
        model.register_forward_pre_hook(before, with_kwargs=True),
        model.register_forward_hook(lambda _, inputs, hidden: select_rows(hidden, chosen["rows"])),
    ]

    def restore() -> None:
        for handle in handles:
            handle.remove()

    return restore


@dataclass(frozen=True)
class _Point:
    """Activations that one hook sees."""

    names: tuple[str, ...]
    install: Callable[[_Watch], Callable[[], None]]
    """Registers the hook and returns what removes it"""


def _points(model: LanguageModel) -> Iterator[_Point]:
    both = model.config.architecture == "encoder-decoder"
    for stack, prefix in ((model.encoder, "encoder_"), (model.decoder, "decoder_")):
        if stack is not None:
            yield from _stack_points(stack, prefix if both else "")


def _stack_points(stack: Stack, prefix: str) -> Iterator[_Point]:
    yield _embedding(stack.positional, prefix)
    yield from _norm(stack.embedding_norm, f"{prefix}embed_ln.")
    for layer, block in enumerate(stack.blocks):
        yield from _block_points(block, stack.rotary is not None, f"{prefix}blocks.{layer}.")
    yield from _norm(stack.final_norm, f"{prefix}ln_final.")


def _block_points(block: Block, rotary: bool, prefix: str) -> Iterator[_Point]:
    parts: list[tuple[str, nn.Module, str, str]] = [(block.mixer_name, block.mixer, "attn", "hook_resid_mid")]
    if block.cross_attention is not None:
        parts.append(("cross", block.cross_attention, "cross_attn", "hook_resid_mid_cross"))
    if block.mlp is not None:
        parts.append(("mlp", block.mlp, "mlp", "hook_resid_post"))
    yield _input(block, f"{prefix}hook_resid_pre")
    for number, (name, module, label, _) in enumerate(parts, 1):
        yield from _norm(getattr(block, f"{name}_norm"), f"{prefix}ln{number}.")
        if isinstance(module, MLP):
            yield from _mlp(module, f"{prefix}mlp.")
        elif isinstance(module, Attention):
            yield from _attention(module, f"{prefix}{label}.", rotary and label == "attn", label == "cross_attn")
        yield from _norm(getattr(block, f"{name}_branch_norm"), f"{prefix}ln{number}_post.")
        last = module.output if module is block.cross_attention else module  # `cross` is no call of the module
        if block.places.branch:
            last = getattr(block, f"{name}_branch_norm" if block.places.before else f"{name}_norm")
        yield _output(last, f"{prefix}hook_{label}_out")
    if len(parts) > 1 and block.residual != "parallel":
        yield _residual(block, {name: prefix + between for name, _, _, between in parts[:-1]})
    yield _output(block, f"{prefix}hook_resid_post")


def _input(module: nn.Module, name: str) -> _Point:
    def install(watch: _Watch) -> Callable[[], None]:
        def hook(_: nn.Module, inputs: tuple[Any, ...]) -> tuple[Any, ...]:
            return (watch(name, inputs[0]), *inputs[1:])

        return module.register_forward_pre_hook(hook).remove

    return _Point((name,), install)


def _output(module: nn.Module, name: str) -> _Point:
    def install(watch: _Watch) -> Callable[[], None]:
        return module.register_forward_hook(lambda _, inputs, output: watch(name, output)).remove

    return _Point((name,), install)


def _embedding(positional: PositionalEmbedding, prefix: str) -> _Point:
    adds = positional.kind in ("learned", "sinusoidal")
    names = (f"{prefix}hook_embed", f"{prefix}hook_pos_embed")[: 1 + adds]

    def install(watch: _Watch) -> Callable[[], None]:
        def hook(_: nn.Module, inputs: tuple[Any, ...], output: Tensor) -> Tensor:
            x, positions = inputs
            embedded = watch(names[0], x * positional.scale)
            added = positional.forward(torch.zeros_like(x), positions)
            added = watch(names[1], added) if adds else added
            return embedded + added if watch.changes(*names) else output

        return positional.register_forward_hook(hook).remove

    return _Point(names, install)


def _norm(norm: nn.Module, prefix: str) -> Iterator[_Point]:
    if not isinstance(norm, LayerNorm | RMSNorm):
        return
    names = (f"{prefix}hook_scale", f"{prefix}hook_normalized")

    def install(watch: _Watch) -> Callable[[], None]:
        def hook(_: nn.Module, inputs: tuple[Any, ...], output: Tensor) -> Tensor:
            x = inputs[0].to(torch.promote_types(inputs[0].dtype, torch.float32))
            scale = watch(names[0], scale_of(norm, x))
            normalized = watch(names[1], centred(norm, x) / scale)
            if not watch.changes(*names):
                return output
            return (normalized * norm.weight.to(x.dtype) + bias_of(norm, x)).to(output.dtype)

        return norm.register_forward_hook(hook).remove

    yield _Point(names, install)


def _mlp(mlp: MLP, prefix: str) -> Iterator[_Point]:
    if mlp.gate is None:
        yield _output(mlp.up, f"{prefix}hook_pre")
    else:
        yield _output(mlp.gate, f"{prefix}hook_pre")
        yield _output(mlp.up, f"{prefix}hook_pre_linear")
    yield _input(mlp.down, f"{prefix}hook_post")


def _attention(attention: Attention, prefix: str, rotary: bool, cross: bool) -> Iterator[_Point]:
    """Yield the points inside attention. Cross-attention has its queries and keys after their norms, if any."""
    if not cross:
        yield _projections(attention, f"{prefix}hook_q", f"{prefix}hook_k")
    yield _mixing(attention, prefix, ("q", "k") if cross else ("rot_q", "rot_k") if rotary else ())
    yield _results(attention, f"{prefix}hook_result")


def _projections(attention: Attention, query: str, key: str) -> _Point:
    """Queries and keys before norms and rotation."""

    def install(watch: _Watch) -> Callable[[], None]:
        original = attention.attend

        def attend(q: Tensor, k: Tensor, *others: Any) -> Tensor:
            q = watch(query, q.unflatten(-1, (attention.heads, -1))).flatten(-2)
            k = watch(key, k.unflatten(-1, (attention.kv_heads, -1))).flatten(-2)
            return original(q, k, *others)

        return _replaced(attention, "attend", attend)

    return _Point((query, key), install)


def _mixing(attention: Attention, prefix: str, inputs: Sequence[str]) -> _Point:
    """What a head does with queries, keys and values; `inputs` are names for the queries and keys, if they have one."""
    within = ("attn_scores", "pattern") if attention.has_pattern else ()
    names = {short: f"{prefix}hook_{short}" for short in (*inputs, "v", *within, "z")}

    def install(watch: _Watch) -> Callable[[], None]:
        original = attention.parallel_form

        def see(short: str, x: Tensor) -> Tensor:
            """Pass x (B, H, T, D) as (B, T, H, D)."""
            return watch(names[short], x.transpose(1, 2)).transpose(1, 2)

        def parallel_form(mask: Mask) -> Attend:
            attend = original(mask)

            def mix(q: Tensor, k: Tensor, v: Tensor) -> Tensor:
                if inputs:
                    q, k = see(inputs[0], q), see(inputs[1], k)
                v = see("v", v)
                if not watch.needs(*(names[short] for short in within)):
                    return see("z", attend(q, k, v))
                scores = attention.scores(q, k, mask)
                weights = attention_weights(watch(names["attn_scores"], scores), mask)
                weights = watch(names["pattern"], weights)
                return see("z", weights @ v.repeat_interleave(q.shape[1] // v.shape[1], dim=1))

            return mix

        return _replaced(attention, "parallel_form", parallel_form)

    return _Point(tuple(names.values()), install)


def _results(attention: Attention, name: str) -> _Point:
    """What each head adds to the stream; the bias of the output matrix belongs to none."""
    output = attention.output

    def install(watch: _Watch) -> Callable[[], None]:
        def hook(_: nn.Module, inputs: tuple[Any, ...], written: Tensor) -> Tensor:
            z = inputs[0].unflatten(-1, (attention.heads, -1))
            matrices = output.matrix.to(z.dtype).unflatten(1, (attention.heads, -1))  # (width, H, D)
            result = watch(name, torch.einsum("...hd,whd->...hw", z, matrices))
            return result.sum(dim=-2) + bias_of(output, written) if watch.changes(name) else written

        return output.register_forward_hook(hook).remove

    return _Point((name,), install)


def _residual(block: Block, names: Mapping[str, str]) -> _Point:
    """The stream after each sub-layer in `names`."""

    def install(watch: _Watch) -> Callable[[], None]:
        original = block.add_residual

        def add_residual(x: Tensor, update: Tensor, name: str) -> Tensor:
            x = original(x, update, name)
            return watch(names[name], x) if name in names else x

        return _replaced(block, "add_residual", add_residual)

    return _Point(tuple(names.values()), install)


def _replaced(module: nn.Module, method: str, function: Callable[..., Any]) -> Callable[[], None]:
    """Replace a method of one module, and return what restores it."""
    if method in vars(module):
        raise ValueError("this model's activations are already recorded or edited: leave that context first")
    vars(module)[method] = function

    def restore() -> None:
        del vars(module)[method]

    return restore


def reason_for_missing(model: LanguageModel, name: str, known: Sequence[str]) -> str:
    """Return why a model has no activation `name`."""
    config, last = model.config, name.rpartition(".")[2]
    short = last.removeprefix("hook_")
    layer = re.search(r"blocks\.(\d+)\.attn\.", name)
    mixer = config.mixer_of(int(layer[1])) if layer else "attention"
    if short in IN_ATTENTION and mixer != "attention":
        why = f"the layer's mixer is {mixer!r}, which has no {short}: ask for hook_attn_out"
    elif short.startswith("rot_") or short == "pos_embed":
        why = f"model.positions is {config.positions!r}"
    elif not config.mlp and "mlp" in name:
        why = "model.mlp is false"
    elif short.startswith("resid_mid") and config.residual == "parallel":
        why = "model.residual is 'parallel', so no stream lies between attention and MLP"
    elif similar := get_close_matches(name, known, 2, 0.8):
        why = f"did you mean {' or '.join(similar)}?"
    else:
        why = f"names are such as {known[1]}, with layers from 0"
    return f"the model has no activation {name!r}: {why}"
