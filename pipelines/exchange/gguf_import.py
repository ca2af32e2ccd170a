"""A run from a GGUF file."""

from collections.abc import Mapping
from pathlib import Path
from typing import Any

from lm.exchange.gguf import from_gguf
from pipelines.cli.display import quantity
from pipelines.exchange.gguf_export import TEMPLATE
from pipelines.exchange.gguf_file import read_gguf
from pipelines.exchange.gguf_ids import ENDS
from pipelines.exchange.imported_run import DEFAULT_OBJECTIVES, warn_of_new_head, write_imported_run
from pipelines.files import whole_folder
from pipelines.recipes.recipe import Recipe
from pipelines.run.text_ids import is_known
from tokenizer import CLS, MASK, SEP, Tokenizer
from tokenizer.formats.gguf_fields import IGNORES_MERGES, PREFIX, gguf_vocabulary

ROLES = {CLS: "bos", SEP: "seperator", MASK: "mask"}  # its spelling
"""Names of the special tokens of an encoder, by our spelling"""


def import_gguf_file(file: Path, out: Path, overwrite: bool) -> list[str]:
    """Write a run of the model in a file to `out`, and return lines about the result.

    Raises ValueError, by name, for a file that is damaged, incomplete or not supported.
    """
    content = read_gguf(file)
    model = from_gguf(content.keys, content.tensors, file.name)
    try:
        tok = Tokenizer(gguf_vocabulary(content.keys))
        facts = _text_facts(content.keys, tok, model.config.architecture)
    except ValueError as error:
        raise ValueError(f"{file} {error}") from None
    if tok.vocab_size > model.config.vocab_size:
        raise ValueError(
            f"{file}: the tokenizer has {tok.vocab_size} entries, but the model only {model.config.vocab_size}: fetch "
            "it again"
        )
    architecture = model.config.architecture
    recipe = Recipe(objective=DEFAULT_OBJECTIVES[architecture], model=model.config)
    with whole_folder(out, lambda _: overwrite) as partial:
        write_imported_run(partial, recipe, model.weights, tok, {"imported_from": str(file), **facts})
    if model.new_head:
        warn_of_new_head(str(file))
    parameters = sum(tensor.numel() for tensor in model.weights.values())
    return [f"{out}: {quantity(parameters, '')} parameters ({architecture}) from {file}"]


def _text_facts(keys: Mapping[str, Any], tok: Tokenizer, architecture: str) -> dict[str, Any]:
    """Return the entries of the table [run] about special ids. Raises ValueError, which completes a sentence."""

    def found(name: str) -> int | None:
        i = keys.get(f"{PREFIX}{name}_token_id")
        if i is not None and not is_known(tok, i):
            raise ValueError(f"has {PREFIX}{name}_token_id = {i!r}, which is no id of its tokenizer: fetch it again")
        return i

    ends = [i for i in map(found, ENDS) if i is not None]
    special = {"bos_token_id": found("bos"), "eos_token_id": ends or None, "pad_token_id": found("padding")}
    # llama.cpp adds a start token by default after these names only.
    starts = keys.get(f"{PREFIX}add_bos_token", keys.get(f"{PREFIX}pre") in IGNORES_MERGES)
    if starts and special["bos_token_id"] is None and architecture != "encoder":
        raise ValueError(f"puts a start token before texts, but has no {PREFIX}bos_token_id: fetch it again")
    facts: dict[str, Any] = {
        "special_ids": {name: i for name, i in special.items() if i is not None},
        "around_text": {"before": [special["bos_token_id"]] if starts else [], "after": []},
    }
    if architecture == "encoder":
        ids = {ours: found(name) for ours, name in ROLES.items()}
        ids[CLS] = found("cls") if ids[CLS] is None else ids[CLS]  # as llama.cpp's converter wrote it until 2025
        for role in (CLS, SEP):
            if ids[role] is None and role not in tok.special_tokens:
                raise ValueError(f"has no {PREFIX}{ROLES[role]}_token_id, which texts need: fetch a complete file")
        facts["roles"] = {o: i for o, i in ids.items() if i is not None and tok.special_tokens.get(o) != i}
        facts["around_text"] = {"before": _listed(ids[CLS]), "after": _listed(ids[SEP])}
    elif template := keys.get(TEMPLATE):
        facts["chat_template"] = str(template)
    return facts


def _listed(i: int | None) -> list[int]:
    return [] if i is None else [i]
