"""`bytelm export-hf`: a trained model and its tokenizer as a folder that `transformers` opens."""

from pathlib import Path
from typing import Any

from pipelines.cli.arguments import RunFolder
from pipelines.cli.parsing import parse
from pipelines.cli.verbs import verb
from pipelines.files import read_json, save_tensors, whole_folder, write_json, write_whole

AUTO = {
    "decoder": "AutoModelForCausalLM",
    "encoder": "AutoModelForMaskedLM",
    "encoder-decoder": "AutoModelForSeq2SeqLM",
}
LOADING = """from transformers import {auto}, AutoTokenizer

model = {auto}.from_pretrained("{out}")
tokenizer = AutoTokenizer.from_pretrained("{out}")"""
INSTEAD = {"encoder": ": the recipe bert-tiny-published has the shape of BERT, which can be exported"}
NAMED_IDS = {
    "decoder": ("bos_token_id", "eos_token_id", "pad_token_id"),
    "encoder": ("pad_token_id",),
    "encoder-decoder": ("bos_token_id", "eos_token_id", "pad_token_id", "decoder_start_token_id"),
}
"""What config.json of each architecture says of special tokens."""


@verb
def export_hf(run: RunFolder, *, out: Path, checkpoint: str = "newest", overwrite: bool = False) -> Path:
    """Write the model and the tokenizer of a run as a folder that transformers opens, and return it.

    AutoModelForCausalLM opens a decoder, AutoModelForMaskedLM an encoder, AutoModelForSeq2SeqLM an encoder-decoder,
    AutoTokenizer the tokenizer. Weights are float32; README.md is a model card. Raises ValueError, naming the fields,
    for a shape that no format of transformers can express.

    Args:
        out: Folder to make.
        checkpoint: Which one of the run: newest, best (the lowest validation loss), or the number of a step.
        overwrite: Whether to replace an existing export.
    """
    from lm.exchange import format_of, to_hugging_face
    from pipelines.cli.display import quantity, say
    from pipelines.run.folder import Run
    from pipelines.run.loading import load_trained
    from pipelines.run.model_card import model_card
    from pipelines.run.text_ids import BEFORE_TEXT, special_ids, text_ids

    def replaceable(there: Path) -> bool:
        return overwrite and all((there / name).is_file() for name in ("config.json", "model.safetensors"))

    if out.exists() and not replaceable(out):
        raise ValueError(f"{out} exists already: choose another --out (or replace an export with --overwrite)")
    this = Run(run)
    tok = this.tokenizer()
    config = this.recipe.model
    try:
        chosen = format_of(config)
    except ValueError as error:
        raise ValueError(f"{error}{INSTEAD.get(config.architecture, '')}") from None
    model = load_trained(this, device="cpu", checkpoint=checkpoint).model
    parameters = sum(p.numel() for p in model.parameters())
    settings, tensors = to_hugging_face(config, model.state_dict())
    if config.architecture == "decoder":
        settings[BEFORE_TEXT] = list(text_ids(this, tok).before)
    # None too, lest a default stand in for what the tokenizer has not.
    ids = {name: i for name, i in special_ids(this, tok).items() if name in NAMED_IDS[config.architecture]}
    with whole_folder(out, replaceable) as partial:
        write_json(partial / "config.json", settings | ids)
        if config.architecture != "encoder":
            write_json(partial / "generation_config.json", {name: i for name, i in ids.items() if i is not None})
        save_tensors(partial / "model.safetensors", tensors, metadata={"format": "pt"})
        _write_tokenizer(partial, this, tok, ids)
        card = model_card(
            this, tok, parameters, "transformers", LOADING.format(auto=AUTO[config.architecture], out=out.name)
        )
        write_whole(partial / "README.md", card)
    say(f"{out}: {quantity(parameters, '')} parameters in the format of {chosen.name} ({chosen.auto_class})")
    return out


def _write_tokenizer(folder: Path, run: Any, tok: Any, ids: dict[str, Any]) -> None:
    """tokenizer.json, and beside it what transformers wants to know that it does not say. `ids`: as in config.json."""
    from pipelines.run.text_ids import ROLES, text_ids

    tok.save(folder)
    config, around = run.recipe.model, text_ids(run, tok)
    spelling = {i: token for token, i in tok.special_tokens.items()}
    roles = {}
    for name in ("pad_token", "bos_token", "eos_token"):
        i = ids.get(f"{name}_id")
        roles[name] = spelling.get(i[0] if isinstance(i, list) else i)
    encoder = config.architecture == "encoder"
    if encoder or "roles" in run.facts:  # of what we train, only an encoder has learned what they mean
        roles |= {role: spelling.get(around.special.get(ours)) for role, ours in ROLES.items()}
    roles = {role: token for role, token in roles.items() if token is not None}
    inputs = ["input_ids", "attention_mask"]
    if config.token_types:
        inputs.insert(1, "token_type_ids")
    named = {
        "tokenizer_class": "PreTrainedTokenizerFast",
        "model_max_length": config.context_length,
        "model_input_names": inputs,
        "clean_up_tokenization_spaces": False,
    }
    write_json(folder / "tokenizer_config.json", named | roles)
    write_json(folder / "special_tokens_map.json", roles)
    imported, edges = "imported_from" in run.facts, ("", "")
    if config.architecture != "decoder":
        last = next((spelling[i] for i in around.after if i in spelling), "")
        edges = (roles.get("cls_token", ""), roles.get("sep_token", "")) if encoder else ("", last)
    if config.architecture != "decoder" or not imported:
        _set_template(folder / "tokenizer.json", *edges, tok.special_tokens, keep=imported)


def _set_template(path: Path, first: str, last: str, special: dict[str, int], *, keep: bool) -> None:
    """Have the tokenizer.json put special tokens around a text as the model saw them in training: `first` before it and
    `last` after it, and after the second of two. With `keep` a template that it has already stays."""

    def token(name: str, kind: int) -> list[dict[str, Any]]:
        return [{"SpecialToken": {"id": name, "type_id": kind}}] if name else []

    def text(name: str, kind: int) -> dict[str, Any]:
        return {"Sequence": {"id": name, "type_id": kind}}

    content = read_json(path, "export the run again")
    processor = content["post_processor"] or {"processors": []}
    steps = processor.get("processors", [processor])
    offsets = [step for step in steps if step["type"] == "ByteLevel"]  # which puts nothing around a text
    if keep and len(offsets) < len(steps):
        return
    single = [*token(first, 0), text("A", 0), *token(last, 0)]
    named = [name for name in (first, last) if name]
    template = {
        "type": "TemplateProcessing",
        "single": single,
        "pair": [*single, text("B", 1), *token(last, 1)],
        "special_tokens": {name: {"id": name, "ids": [special[name]], "tokens": [name]} for name in named},
    }
    steps = [*offsets, template] if named else offsets
    content["post_processor"] = {"type": "Sequence", "processors": steps} if len(steps) > 1 else (steps or [None])[0]
    write_json(path, content)


def main(arguments: list[str]) -> None:
    parse(export_hf, arguments, "export-hf")
