"""A run from a folder that `transformers` wrote, or from a model of the hub."""

from collections.abc import Callable
from dataclasses import replace
from pathlib import Path
from typing import Any, Literal

from huggingface_hub import errors, snapshot_download
from torch import Tensor

from lm.exchange import named_format
from lm.exchange.adapters import fold_peft
from lm.warn import warn
from pipelines.cli.display import quantity
from pipelines.cli.named_tokenizers import load_tokenizer
from pipelines.cli.text_input import file_text
from pipelines.exchange.imported_run import DEFAULT_OBJECTIVES, Objective, warn_of_new_head, write_imported_run
from pipelines.exchange.task_import import read_model
from pipelines.files import read_json, read_tensors, whole_folder
from pipelines.recipes.recipe import Recipe
from pipelines.run.adapter import read_adapter
from pipelines.run.text_ids import BEFORE_TEXT, ROLES, given_roles, given_special_ids, is_known
from tokenizer import Tokenizer

INDEX = "model.safetensors.index.json"
WEIGHTS = "model.safetensors"
PICKLES = ("*.bin", "*.pt", "*.pth", "*.ckpt")
"""Files that transformers reads if there is no safetensors file"""
FETCHED_FILES = ("*.json", "*.jinja", "*.safetensors", "merges.txt", "vocab.txt", "*.model", "*.model.v*", "*.tiktoken")
WORD_PIECE_NAMES = {"cls_token": "[CLS]", "sep_token": "[SEP]", "mask_token": "[MASK]", "unk_token": "[UNK]"}
DEFAULT_NAMES = {
    "bert": WORD_PIECE_NAMES,
    "distilbert": WORD_PIECE_NAMES,
    "roberta": {"cls_token": "<s>", "sep_token": "</s>", "mask_token": "<mask>", "unk_token": "<unk>"},
}
"""Special tokens by model_type if no file names them, as in transformers"""


def import_model(
    source: str,
    objective: Objective | None,
    out: Path,
    replaceable: Callable[[Path], bool],
    pattern: str | None = None,
    adapter: Path | None = None,
    without_head: bool = False,
    columns: tuple[str, ...] = (),
) -> list[str]:
    """Write a run of the model in `source`, a folder or hub:owner/name, to `out`; return lines about the result.

    pattern: split pattern of a tokenizer whose files have none. adapter: a folder of peft to fold into the weights.
    without_head: leave out the head of a task. columns: names of the columns that the task reads.
    """
    folder = _local_folder(source)
    settings = read_json(folder / "config.json", "import a folder that transformers' save_pretrained wrote")
    chosen = named_format(settings)  # refuses other families before their tokenizers, which often differ too
    tok = load_tokenizer(folder, pattern)
    model = read_model(settings, read_weights(folder), without_head, columns)
    config, weights = model.config, model.weights
    if adapter is not None:
        if model.task is not None:
            raise ValueError(f"{source} has the head of a task, and `adapter` is for language models: leave it out")
        weights = fold_peft(chosen, config, weights, *read_adapter(adapter))
    if tok.vocab_size > config.vocab_size:
        raise ValueError(
            f"{source}: the tokenizer has {tok.vocab_size} entries, but the model only {config.vocab_size}: "
            "they do not belong together"
        )
    special = given_special_ids(tok, _optional_json(folder, "generation_config.json"), settings)
    names = [_optional_json(folder, name) for name in ("tokenizer_config.json", "special_tokens_map.json")]
    roles = given_roles(tok, *names, DEFAULT_NAMES.get(settings["model_type"], {}))
    facts = {
        "imported_from": source,
        "model_type": settings["model_type"],
        "special_ids": special,
        "roles": roles,
        "around_text": _around_text(settings, tok),
    }
    if model.task is not None:
        facts |= _edges(tok, config.architecture)
    if config.architecture == "decoder" and (template := _chat_template(folder, names[0])):
        facts["chat_template"] = template
    if config.architecture == "encoder":
        _warn_of_missing_roles(source, tok.special_tokens | roles)
    recipe = Recipe(
        objective=objective or DEFAULT_OBJECTIVES[config.architecture],
        model=config,
        task=model.task and replace(model.task, truncate=_truncation(names[0])),
        head_layers=model.head_layers,
    )
    with whole_folder(out, replaceable) as partial:
        write_imported_run(partial, recipe, weights, tok, facts)
    if model.new_head:
        warn_of_new_head(source)
    parameters = sum(tensor.numel() for tensor in weights.values())
    origin = source if adapter is None else f"{source}, with the adapters of {adapter}"
    lines = [f"{out}: {quantity(parameters, '')} parameters ({config.architecture}) from {origin}"]
    if model.task is not None:
        lines.append(f"bytelm predict uses its task, {model.task.name}")
    if model.left_out:
        lines.append(f"left out {' and '.join(model.left_out)}, which bytelm's language models do not have")
    return lines


def read_weights(folder: Path) -> dict[str, Tensor]:
    """Return the tensors of model.safetensors, or of the shards that its index names.

    Raises ValueError for pickles, which can run code when they are opened, and for missing or damaged files.
    """
    tensors: dict[str, Tensor] = {}
    for path in _weight_files(folder):
        tensors |= read_tensors(path)
    return tensors


def _weight_files(folder: Path) -> list[Path]:
    if (folder / WEIGHTS).is_file():
        return [folder / WEIGHTS]
    if (folder / INDEX).is_file():
        shards = read_json(folder / INDEX, "fetch it again").get("weight_map")
        names = list(shards.values()) if isinstance(shards, dict) else []
        if not names or any(not isinstance(name, str) or Path(name).name != name for name in names):
            raise ValueError(f"{folder / INDEX} is damaged: its weight_map names no file of the folder")
        return [folder / name for name in sorted(set(names))]
    pickles = sorted(path for pattern in PICKLES for path in folder.glob(pattern))
    if pickles:
        raise ValueError(
            f"{pickles[0]} is a pickle, which can run code when it is opened: save the model as safetensors first "
            "(transformers' save_pretrained does)"
        )
    raise ValueError(f"{folder} has no {WEIGHTS} and no {INDEX}: name a folder that save_pretrained wrote")


def _warn_of_missing_roles(source: str, special: dict[str, int]) -> None:
    missing = [name for name, ours in ROLES.items() if ours not in special]
    if missing:
        warn(
            f"{source}: tokenizer_config.json names no {', no '.join(missing)} among the tokenizer's added tokens, "
            "so texts cannot be masked or classified: add the names and import again"
        )


def _around_text(settings: dict[str, Any], tok: Tokenizer) -> dict[str, list[int]]:
    """Return the ids `before` and `after` a text, from our own config.json or else from the tokenizer."""
    before, after = tok.ids_around_text
    before = settings.get(BEFORE_TEXT, before)
    if not isinstance(before, list) or not all(is_known(tok, i) for i in before):
        raise ValueError(f"config.json has {BEFORE_TEXT} = {before!r}, which are no ids of its tokenizer: export again")
    return {"before": before, "after": after}


def _truncation(settings: dict[str, Any]) -> Literal["left", "right"]:
    """Return the end of a long text that the tokenizer with these settings cuts."""
    return "left" if settings.get("truncation_side") == "left" else "right"


def _edges(tok: Tokenizer, architecture: str) -> dict[str, Any]:
    """Return the ids that the tokenizer adds before, between and after texts, as an entry of the table [run].

    If the tokenizer of an encoder adds none, the entry is left out: its class in transformers adds the usual ids.
    """
    before, after = tok.ids_around_text
    edges = [before, tok.ids_between_texts, after]
    return {"edges": edges} if any(edges) or architecture == "decoder" else {}


def _chat_template(folder: Path, config: dict[str, Any]) -> str:
    """Return the chat template from chat_template.jinja or tokenizer_config.json; "" if there is none.

    If tokenizer_config.json has several templates, the one named "default" is used.
    """
    path = folder / "chat_template.jinja"
    if path.is_file():
        return file_text(path)
    found = config.get("chat_template")
    if isinstance(found, list):
        named = {one.get("name"): one.get("template") for one in found if isinstance(one, dict)}
        found = named.get("default")
    return found if isinstance(found, str) else ""


def _optional_json(folder: Path, name: str) -> dict[str, Any]:
    """Return the object in a JSON file of the model; empty if the file is missing."""
    if not (folder / name).exists():
        return {}
    content: dict[str, Any] = read_json(folder / name, "fetch it again")
    return content


def _local_folder(source: str) -> Path:
    """Return the folder `source`, or the hub client's cached folder of hub:owner/name."""
    if not source.startswith("hub:"):
        return Path(source)
    repository, _, revision = source.removeprefix("hub:").partition("@")
    try:
        return Path(snapshot_download(repository, revision=revision or None, allow_patterns=list(FETCHED_FILES)))
    except errors.GatedRepoError:
        raise ValueError(f"{source} is gated: ask for access on its page, then `hf auth login`") from None
    except (errors.RepositoryNotFoundError, errors.HFValidationError):
        raise ValueError(f"{source}: there is no such model on the hub, or it is private: check the name") from None
    except errors.RevisionNotFoundError:
        raise ValueError(f"{source} has no such revision on the hub: check what follows @") from None
    except OSError as error:
        reason = " ".join(str(error).split())[:200]
        raise ConnectionError(f"{source} cannot be fetched from the hub ({reason}): check the connection") from None
