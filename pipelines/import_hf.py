"""`bytelm import-hf`: a model in a format of `transformers`, and its tokenizer, as a run."""

import warnings
from pathlib import Path
from typing import Annotated, Any, Literal

import tyro

from pipelines.cli.parsing import parse
from pipelines.cli.verbs import verb
from pipelines.files import read_json, whole_folder

USUAL_OBJECTIVE = {"decoder": "next-token", "encoder": "masked-token", "encoder-decoder": "sequence-pairs"}
INDEX = "model.safetensors.index.json"
WEIGHTS = "model.safetensors"
# What transformers reads where there is no safetensors file.
PICKLES = ("*.bin", "*.pt", "*.pth", "*.ckpt")
FETCHED = ("*.json", "*.safetensors", "merges.txt", "tokenizer.model", "*.tiktoken")


@verb
def import_hf(
    source: Annotated[str, tyro.conf.Positional, tyro.conf.arg(metavar="DIR", help="A folder, or hub:owner/name.")],
    *,
    out: Path,
    objective: Literal["next-token", "masked-token", "sequence-pairs", "span-corruption"] | None = None,
    overwrite: bool = False,
) -> Path:
    """Make a run of a model in a format of transformers: GPT-2, GPT-NeoX, Llama, BERT or T5; return its folder.

    The folder holds config.json, model.safetensors (or its shards and their index) and a byte-level BPE tokenizer. The
    run has one checkpoint, of step 0; it can be evaluated with --data, generated from, reported and exported. Weights
    become float32. Texts begin and end with the ids that config.json, generation_config.json and the tokenizer name, as
    in transformers, or with <|endoftext|> where they name none; masks are what tokenizer_config.json says, spans
    <extra_id_0> and so on. Raises ValueError for what is missing, damaged or not
    supported, by name.

    Args:
        out: Folder of the run to make.
        objective: What the model predicts, if not the usual of its kind; that of an encoder-decoder is sequence-pairs.
        overwrite: Whether to replace an existing imported run.
    """
    from lm.exchange import from_hugging_face
    from pipelines.cli.display import quantity, say
    from pipelines.run.folder import Run
    from pipelines.run.recipe import Recipe
    from pipelines.run.text_ids import given_roles, given_special_ids
    from tokenizer import Tokenizer

    def replaceable(there: Path) -> bool:
        return overwrite and (there / "config.toml").is_file() and "imported_from" in Run(there).facts

    if out.exists() and not replaceable(out):
        raise ValueError(f"{out} exists already: choose another --out (or replace an imported run with --overwrite)")
    folder = _fetch(source)
    settings = read_json(folder / "config.json", "import a folder that transformers' save_pretrained wrote")
    tok = Tokenizer.load(folder)
    config, weights = from_hugging_face(settings, read_weights(folder))
    if tok.vocab_size > config.vocab_size:
        raise ValueError(
            f"{source}: the tokenizer has {tok.vocab_size} entries, but the model only {config.vocab_size}: "
            "they do not belong together"
        )
    special = given_special_ids(tok, _json_beside(folder, "generation_config.json"), settings)
    named = [_json_beside(folder, name) for name in ("tokenizer_config.json", "special_tokens_map.json")]
    imported = {
        "imported_from": source,
        "special_ids": special,
        "roles": given_roles(tok, *named),
        "around_text": _around_text(folder, settings, tok),
    }
    if config.architecture == "encoder":
        _warn_of_missing_roles(source, tok.special_tokens | imported["roles"])
    recipe = Recipe(objective=objective or USUAL_OBJECTIVE[config.architecture], model=config)
    with whole_folder(out, replaceable) as partial:
        _write_run(partial, recipe, weights, tok, imported)
    parameters = sum(tensor.numel() for tensor in weights.values())
    say(f"{out}: {quantity(parameters, '')} parameters ({config.architecture}) from {source}")
    return out


def read_weights(folder: Path) -> dict[str, Any]:
    """The tensors of model.safetensors, or of the shards that its index names.

    Raises ValueError for pickles, which can run any code when they are opened, and for files that are missing or
    damaged.
    """
    from safetensors import SafetensorError
    from safetensors.torch import load_file

    tensors: dict[str, Any] = {}
    for path in _weight_files(folder):
        try:
            tensors |= load_file(path)
        except FileNotFoundError:
            raise ValueError(f"{path} is missing, though {INDEX} names it: fetch the whole model again") from None
        except SafetensorError as error:
            raise ValueError(f"{path} is damaged ({error}): fetch it again") from None
    return tensors


def _weight_files(folder: Path) -> list[Path]:
    if (folder / WEIGHTS).is_file():
        return [folder / WEIGHTS]
    if (folder / INDEX).is_file():
        shards = read_json(folder / INDEX, "fetch it again").get("weight_map")
        names = list(shards.values()) if isinstance(shards, dict) else [None]
        for name in names:
            if not isinstance(name, str) or Path(name).name != name:
                raise ValueError(f"{folder / INDEX} is damaged: its weight_map names no file of the folder")
        return [folder / name for name in sorted(set(names))]
    pickles = sorted(path for pattern in PICKLES for path in folder.glob(pattern))
    if pickles:
        raise ValueError(
            f"{pickles[0]} is a pickle, which can run any code when it is opened: save the model as safetensors first "
            "(transformers' save_pretrained does)"
        )
    raise ValueError(f"{folder} has no {WEIGHTS} and no {INDEX}: name a folder that save_pretrained wrote")


def _write_run(folder: Path, recipe: Any, weights: dict[str, Any], tok: Any, imported: dict[str, Any]) -> None:
    """A run of step 0, with an optimizer that has not begun."""
    from lm.model import LanguageModel
    from pipelines.run.folder import Run
    from pipelines.run.provenance import provenance
    from pipelines.run.recipe import save_config
    from pipelines.run.retention import Keep
    from pipelines.training.checkpoints import take_snapshot, write_checkpoint
    from pipelines.training.progress import Progress

    model = LanguageModel(recipe.model)
    model.load_state_dict(weights)
    facts = {
        "data": "",
        "dataset_fingerprint": "",
        "tokenizer_fingerprint": tok.fingerprint,
        **provenance(),
        **imported,
    }
    tok.save(folder)
    save_config(folder / "config.toml", recipe, facts)
    write_checkpoint(folder, take_snapshot(model), Progress().as_state(), Keep(), Run(folder).settings)


def _warn_of_missing_roles(source: str, special: dict[str, int]) -> None:
    from pipelines.run.text_ids import ROLES

    missing = [name for name, ours in ROLES.items() if ours not in special]
    if missing:
        warnings.warn(
            f"{source}: tokenizer_config.json names no {', no '.join(missing)} among the tokenizer's added tokens, "
            "without which texts cannot be masked or classified: name them there and import again",
            stacklevel=3,
        )


def _around_text(folder: Path, settings: dict[str, Any], tok: Any) -> dict[str, list[int]]:
    """The ids `before` and `after` a text: what the folder's tokenizer puts there, or our own config.json says."""
    from pipelines.run.text_ids import BEFORE_TEXT, is_known

    before, after = [], []
    processor = _json_beside(folder, "tokenizer.json").get("post_processor") or {}
    for step in processor.get("processors", [processor]):
        if step.get("type") in ("BertProcessing", "RobertaProcessing"):
            before, after = [step["cls"][1], *before], [*after, step["sep"][1]]
            continue
        side = before
        for piece in step.get("single", ()):
            if "Sequence" in piece:
                side = after
            else:
                side += step["special_tokens"][piece["SpecialToken"]["id"]]["ids"]
    before = settings.get(BEFORE_TEXT, before)
    if not isinstance(before, list) or not all(is_known(tok, i) for i in before):
        raise ValueError(f"config.json has {BEFORE_TEXT} = {before!r}, which are no ids of its tokenizer: export again")
    return {"before": before, "after": after}


def _json_beside(folder: Path, name: str) -> dict[str, Any]:
    """A file that a model may come without."""
    return read_json(folder / name, "fetch it again") if (folder / name).is_file() else {}


def _fetch(source: str) -> Path:
    """The folder `source`, or where the hub's client keeps what it fetched of hub:owner/name."""
    if not source.startswith("hub:"):
        folder = Path(source)
        if not folder.is_dir():
            raise ValueError(f"{source} is not a folder: name one, or a model of the hub as hub:owner/name")
        return folder
    from huggingface_hub import errors, snapshot_download

    repository, _, revision = source.removeprefix("hub:").partition("@")
    try:
        return Path(snapshot_download(repository, revision=revision or None, allow_patterns=list(FETCHED)))
    except errors.GatedRepoError:
        raise ValueError(f"{source} is gated: ask for access on its page, then `hf auth login`") from None
    except (errors.RepositoryNotFoundError, errors.HFValidationError):
        raise ValueError(f"{source}: there is no such model on the hub, or it is private: check the name") from None
    except errors.RevisionNotFoundError:
        raise ValueError(f"{source} has no such revision on the hub: check what follows @") from None
    except OSError as error:
        reason = " ".join(str(error).split())[:200]
        raise ConnectionError(f"{source} cannot be fetched from the hub ({reason}): check the connection") from None


def main(arguments: list[str]) -> None:
    parse(import_hf, arguments, "import-hf")
