"""A run as a folder that `transformers` opens."""

from collections.abc import Callable, Iterable, Mapping
from dataclasses import replace
from pathlib import Path
from typing import Any

import torch
from torch import Tensor

from lm.exchange import format_of, to_hugging_face
from lm.exchange.adapters import to_peft
from pipelines.cli.display import quantity
from pipelines.exchange.model_card import WITHOUT_MASKS, model_card
from pipelines.exchange.parts import Edges, Ids, Parts
from pipelines.exchange.possible_exports import check_padding, check_tokenizer
from pipelines.exchange.task_export import task_parts
from pipelines.files import read_json, save_tensors, whole_folder, write_json, write_whole
from pipelines.run.checkpoint_reader import load_with_adapters
from pipelines.run.folder import Run
from pipelines.run.loaded_run import load_trained
from pipelines.run.text_ids import BEFORE_TEXT, OPTIONAL_ROLES, ROLES, special_ids, text_ids
from pipelines.training.init_from import ROTARY_FREQUENCIES, source_of
from tokenizer import CLS, SEP, Tokenizer

AUTO_CLASSES = {
    "decoder": "AutoModelForCausalLM",
    "encoder": "AutoModelForMaskedLM",
    "encoder-decoder": "AutoModelForSeq2SeqLM",
}
LOADING = """from transformers import {auto}, AutoTokenizer

model = {auto}.from_pretrained("{out}")
tokenizer = AutoTokenizer.from_pretrained("{out}")"""
ADAPTER_LOADING = """from peft import PeftModel
from transformers import {auto}

base = {auto}.from_pretrained("{base}-hf")  # bytelm export-hf {base} --out {base}-hf
model = PeftModel.from_pretrained(base, "{out}")"""
TEXT, TARGET = "It was a dark and stormy night.", "Es war eine dunkle Nacht."
SCORING = {
    "decoder": """import torch

start = {start}  # read before a text
ids = tokenizer("{text}", add_special_tokens=False)["input_ids"]
read = torch.tensor([start + ids])
with torch.no_grad():
    log_p = model(read).logits[0, :-1].log_softmax(dim=-1)
nats = log_p.gather(1, read[0, 1:, None])[-len(ids) :].sum()""",
    "encoder": """import torch

read = tokenizer("{text}", return_tensors="pt")["input_ids"][0]
nats = 0.0
for place in range(1, len(read) - 1):  # each token is masked alone
    masked = read.clone()
    masked[place] = tokenizer.mask_token_id
    with torch.no_grad():
        log_p = model(masked[None]).logits[0, place].log_softmax(dim=-1)
    nats += float(log_p[read[place]])""",
    "encoder-decoder": """import torch

source = tokenizer("{text}", return_tensors="pt")["input_ids"]
target = tokenizer("{target}", return_tensors="pt")["input_ids"]  # with its end token
with torch.no_grad():
    log_p = model(source, labels=target).logits[0].log_softmax(dim=-1)
nats = log_p.gather(1, target[0, :, None]).sum()""",
}
REMEDIES = {"encoder": ": the recipe bert-tiny has the architecture of ModernBERT, which can be exported"}


def write_transformers_folder(
    run: Run, checkpoint: str, out: Path, replaceable: Callable[[Path], bool], start_token: bool = False
) -> str:
    """Write a run to `out`, and return a line about the result.

    `start_token`: whether the tokenizer of a decoder puts the start token from training before a text. Raises
    ValueError if the run has none.
    """
    tok = run.tokenizer()
    check_tokenizer(tok)
    start = _start_edges(run, tok) if start_token else None
    ids = _special_ids(run, tok)
    parts = (_language_parts if run.recipe.head is None else task_parts)(run, checkpoint, tok, ids, out.name)
    if start:
        parts = replace(parts, edges=start)
    with whole_folder(out, replaceable) as partial:
        # Ids that are None are written too: otherwise transformers would use its defaults. `settings` come last:
        # RoBERTa's have the padding id that its positions are numbered from.
        write_json(partial / "config.json", {**parts.ids, **parts.settings})
        if run.recipe.model.architecture != "encoder" and run.recipe.head is None:
            write_json(partial / "generation_config.json", {name: i for name, i in parts.ids.items() if i is not None})
        save_tensors(partial / "model.safetensors", parts.tensors, metadata={"format": "pt"})
        _write_tokenizer(partial, run, tok, parts)
        card = model_card(
            run, tok, parts.parameters, "transformers", parts.loading, parts.scoring, checkpoint, start_token
        )
        write_whole(partial / "README.md", card)
    without = f"; {WITHOUT_MASKS}" if run.recipe.train.masked_rows else ""
    return f"{out}: {quantity(parts.parameters, '')} parameters in the format of {parts.title}{without}"


def _language_parts(run: Run, checkpoint: str, tok: Tokenizer, ids: Ids, out: str) -> Parts:
    """Return the parts of the export of a language model. `out`: name of its folder."""
    config, around = run.recipe.model, text_ids(run, tok)
    try:
        chosen = format_of(config, run.facts.get("model_type"))
    except ValueError as error:
        raise ValueError(f"{error}{REMEDIES.get(config.architecture, '')}") from None
    check_padding(config, tok, run.facts)
    model = load_trained(run, device="cpu", checkpoint=checkpoint).model
    settings, tensors = to_hugging_face(config, model.state_dict(), chosen.model_type)
    before = list(around.before)
    if config.architecture == "decoder":
        settings[BEFORE_TEXT] = before
    return Parts(
        title=f"{chosen.name} ({chosen.auto_class})",
        parameters=sum(p.numel() for p in model.parameters()),
        settings=settings,
        tensors=tensors,
        ids=ids,
        edges=_edges(run, tok),
        loading=LOADING.format(auto=AUTO_CLASSES[config.architecture], out=out),
        scoring=SCORING[config.architecture].format(start=before, text=TEXT, target=TARGET),
    )


def _edges(run: Run, tok: Tokenizer) -> Edges | None:
    """Return the ids that an exported tokenizer adds around a text; None keeps the tokenizer as it was imported.

    The tokenizer of a decoder adds none, although training has a start token before each text.
    """
    architecture, around = run.recipe.model.architecture, text_ids(run, tok)
    if architecture == "decoder":
        return None if "imported_from" in run.facts else Edges()
    if architecture == "encoder-decoder":
        return Edges((), around.after[:1], around.after[:1])
    first, last = (tuple(around.special[name] for name in (role,) if name in around.special) for role in (CLS, SEP))
    return Edges(first, last * (2 if run.facts.get("model_type") == "roberta" else 1), last)


def _start_edges(run: Run, tok: Tokenizer) -> Edges:
    """Return the start ids of a decoder as ids before a text; ValueError if the run has none that can be spelled."""
    if run.recipe.model.architecture != "decoder" or run.recipe.head is not None:
        raise ValueError(
            f"`start_token` is for decoders that predict text, and {run.folder} is another model, whose tokenizer adds "
            "all tokens that it reads around a text: leave it out"
        )
    before = text_ids(run, tok).before
    if not before or not {*before} <= {*tok.special_tokens.values()}:
        raise ValueError(
            f"{run.folder} was trained without a start token before texts: leave `start_token` out, or train on a "
            "dataset with separators"
        )
    return Edges(before)


def write_adapter_folder(run: Run, checkpoint: str, out: Path, replaceable: Callable[[Path], bool]) -> str:
    """Write the adapters of a run to `out` as peft does, and return a line about the result.

    Averages replace weights. Raises ValueError if the model of the run is not its base with adapters.
    """
    config, base = run.recipe.model, Path(run.facts["init_from"])
    _, weights = load_with_adapters(run.folder, run.settings, checkpoint)
    _check_base(run, weights)
    settings, tensors = to_peft(config, run.recipe.lora, weights, run.facts.get("model_type"))
    parameters = sum(tensor.numel() for tensor in tensors.values())
    loading = ADAPTER_LOADING.format(auto=AUTO_CLASSES[config.architecture], out=out.name, base=base.name)
    with whole_folder(out, replaceable) as partial:
        write_json(partial / "adapter_config.json", settings)
        save_tensors(partial / "adapter_model.safetensors", tensors, metadata={"format": "pt"})
        card = model_card(run, run.tokenizer(), parameters, "peft", loading, checkpoint=checkpoint)
        write_whole(partial / "README.md", card)
    return f"{out}: adapters of {quantity(parameters, '')} parameters in the format of peft, for an export of {base}"


def _check_base(run: Run, weights: Mapping[str, Tensor]) -> None:
    """Raise ValueError unless the `weights` of a run, without its adapters, are the model that it started from.

    The run may have another context or other rotary positions, and its base may have been trained further since.
    """
    remedy = "export the merged run: leave `adapter` out"
    try:
        source = source_of(run)
    except ValueError as error:
        raise ValueError(f"the base of the adapters of {run.folder} cannot be read ({error}): {remedy}") from None
    ours, theirs = run.recipe.model, source.run.recipe.model
    fields = ("vocab_size", *ROTARY_FREQUENCIES, *(("context_length",) if ours.positions == "learned" else ()))
    changed = [f"model.{name}" for name in fields if getattr(ours, name) != getattr(theirs, name)]
    changed += [name for name, tensor in source.weights.items() if not torch.equal(weights[name], tensor)]
    if changed:
        raise ValueError(f"{changed[0]} of {run.folder} differs from that of its base {source.run.folder}: {remedy}")


def _special_ids(run: Run, tok: Tokenizer) -> Ids:
    """Return the special ids of config.json. Our own encoders have no start id and no end id."""
    architecture = run.recipe.model.architecture
    ids = special_ids(run.facts, tok)
    if architecture != "encoder-decoder":
        del ids["decoder_start_token_id"]
    if architecture != "encoder":
        return ids
    if "special_ids" not in run.facts:
        ids |= {"bos_token_id": None, "eos_token_id": None}
    special = text_ids(run, tok).special
    return ids | {f"{role}_id": special.get(ROLES[role]) for role in ("cls_token", "sep_token")}


def _write_tokenizer(folder: Path, run: Run, tok: Tokenizer, parts: Parts) -> None:
    """Write tokenizer.json and the settings that transformers reads from files beside it."""
    tok.save(folder)
    config, around, ids = run.recipe.model, text_ids(run, tok), parts.ids
    spellings = {i: token for token, i in tok.special_tokens.items()}

    def spelling(i: int | list[int] | None) -> str | None:
        first = i[0] if isinstance(i, list) else i
        return None if first is None else spellings.get(first)

    named = {name: spelling(ids.get(f"{name}_id")) for name in ("pad_token", "bos_token", "eos_token")}
    if config.architecture == "encoder" or "roles" in run.facts:  # of our own models, only encoders learn these tokens
        named |= {role: spelling(around.special.get(ours)) for role, ours in (ROLES | OPTIONAL_ROLES).items()}
    roles = {role: token for role, token in named.items() if token is not None}
    inputs = ["input_ids", "attention_mask"]
    if config.token_types > 1:  # RoBERTa has one type, which its tokenizer leaves out
        inputs.insert(1, "token_type_ids")
    settings = {
        "tokenizer_class": "PreTrainedTokenizerFast",
        "model_max_length": config.context_length,
        "model_input_names": inputs,
        "clean_up_tokenization_spaces": False,
        **parts.tokenizer_settings,
    }
    if template := run.facts.get("chat_template"):
        settings["chat_template"] = template
    write_json(folder / "tokenizer_config.json", settings | roles)
    write_json(folder / "special_tokens_map.json", roles)
    if parts.edges is not None:
        _set_template(folder / "tokenizer.json", parts.edges, spellings, keep="imported_from" in run.facts)


def _set_template(path: Path, edges: Edges, spellings: dict[int, str], *, keep: bool) -> None:
    """Make tokenizer.json add the ids of `edges` around a text, and around and between two texts.

    With `keep`, a template that is already present stays. Ids without a spelling are no special tokens: left out.
    """

    def tokens(ids: Iterable[int], kind: int) -> list[dict[str, Any]]:
        return [{"SpecialToken": {"id": spellings[i], "type_id": kind}} for i in ids if i in spellings]

    def text(name: str, kind: int) -> dict[str, Any]:
        return {"Sequence": {"id": name, "type_id": kind}}

    content = read_json(path, "export the run again")
    processor = content["post_processor"] or {"processors": []}
    steps = processor.get("processors", [processor])
    byte_level = [step for step in steps if step["type"] == "ByteLevel"]  # adds no tokens
    if keep and len(byte_level) < len(steps):
        return
    first = [*tokens(edges.before, 0), text("A", 0)]
    used = {i: spellings[i] for i in (*edges.before, *edges.between, *edges.after) if i in spellings}
    template = {
        "type": "TemplateProcessing",
        "single": [*first, *tokens(edges.after, 0)],
        "pair": [*first, *tokens(edges.between, 0), text("B", 1), *tokens(edges.after, 1)],
        "special_tokens": {name: {"id": name, "ids": [i], "tokens": [name]} for i, name in used.items()},
    }
    steps = [*byte_level, template] if used else byte_level
    content["post_processor"] = {"type": "Sequence", "processors": steps} if len(steps) > 1 else (steps or [None])[0]
    write_json(path, content)
