"""A run's folder: its configuration, tokenizer, metrics and checkpoints. One process at a time uses it."""

import hashlib
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from copy import copy
from dataclasses import replace
from pathlib import Path
from typing import TYPE_CHECKING, Any

from lm.longer_context import ContextScaling, with_context
from pipelines.cli.display import say
from pipelines.files import file_sha256, locked_file, place, read_json, read_toml
from pipelines.recipes.recipe import Recipe, load_recipe, save_config
from pipelines.run.manifest import (
    DamagedCheckpointError,
    check_run,
    fixed_settings,
    flat,
    manifest_sha256,
    read_manifest,
)
from pipelines.run.metrics_log import read_metrics
from pipelines.run.retention import checkpoint_folders, find_checkpoint, readable_state
from pipelines.run.sources import Sources, parse_sources
from tokenizer import Tokenizer
from tokenizer.formats.whole_files import make_folder

if TYPE_CHECKING:
    from corpora.object_store import AnyPath
    from pipelines.run.loaded_run import LoadedRun

OPTIONS = {"checkpoint": "auto", "device": "auto", "dtype": "float32", "adapter": None}
"""Options of loading a model, with their defaults"""
ADAPTER_CONFIG = "adapter_config.json"
"""File of every folder that peft's save_pretrained writes"""
ADAPTER_WEIGHTS = "adapter_model.safetensors"
TOKENIZER_FILES = ("tokenizer.json", "tokenizer.model")
"""Files that can hold the tokenizer of a run, which has one of them"""
PLACES = ("data", "test", "held_out", "init_from", "pretrained")
"""Entries of the table [run] that name the places of the data and the source. A resumed run records new places."""


class Run:
    """An existing run folder; ValueError if `folder` holds no run."""

    loaded: "LoadedRun | None" = None
    """The loaded run that this folder belongs to, if any"""

    def __init__(self, folder: str | Path, adapter: str | Path | None = None) -> None:
        """`adapter`: folder of an adapter in the format of peft, which is folded into the weights when they load."""
        self.folder, self.adapter = Path(folder), None if adapter is None else Path(adapter)
        if self.adapter is not None:
            read_json(self.adapter / ADAPTER_CONFIG, "name a folder that peft's save_pretrained wrote")
        path = self.folder / "config.toml"
        if not path.exists():
            below = [str(inner.parent) for inner in sorted(self.folder.glob("*/config.toml"))]
            remedy = f"try {' or '.join(below[:3])}" if below else "bytelm pretrain makes one"
            problem = "it has no config.toml" if self.folder.is_dir() else "there is no such folder"
            raise ValueError(f"{folder} is not a run: {problem} ({remedy})")
        self.recipe: Recipe = load_recipe(path)
        self.trained_recipe: Recipe = self.recipe
        """The recipe in config.toml; `recipe` differs from it after `with_context`"""
        self.facts: dict[str, Any] = read_toml(path).get("run", {})
        for name in ("data", "dataset_fingerprint", "tokenizer_fingerprint"):
            kinds = (str, list) if name == "data" else str
            if not (isinstance(self.facts, dict) and isinstance(self.facts.get(name), kinds)):
                raise ValueError(f"{path}: run.{name} is missing or damaged: restore the file from a copy of the run")
        self.sources = {} if self.recipe.task else _sources(path, self.facts["data"])
        """The datasets that the run was trained on, with their weights; none if it was imported or fine-tuned"""

    @classmethod
    def of(cls, run: "str | Path | LoadedRun", adapter: Path | None = None) -> "Run":
        """Return the run in a folder, with an adapter if it is given, or the folder of a loaded run."""
        return cls(run, adapter) if isinstance(run, str | Path) else run.run

    def with_context(self, length: int, scaling: ContextScaling = "none") -> "Run":
        """Return the run with a model that reads `length` tokens, as `lm.longer_context.with_context`.

        Raises ValueError, which names the folder, if the model cannot.
        """
        self.require_language_model()
        try:
            model = with_context(self.trained_recipe.model, length, scaling)
        except ValueError as error:
            raise ValueError(f"{self.folder}: {error}") from None
        run = copy(self)
        run.recipe = replace(self.recipe, model=model)
        return run

    @property
    def name(self) -> str:
        return self.folder.resolve().name

    @property
    def results(self) -> Path:
        """The folder of evaluation.json: that of the adapter, if there is one, otherwise that of the run."""
        return self.adapter or self.folder

    def weights_sha256(self, checkpoint: Path) -> str:
        """Return a checksum of the weights of a checkpoint, and of the adapter if there is one."""
        own = manifest_sha256(checkpoint)
        if self.adapter is None:
            return own
        return hashlib.sha256((own + file_sha256(self.adapter / ADAPTER_WEIGHTS)).encode()).hexdigest()

    @property
    def data(self) -> "AnyPath":
        """The dataset that the run was trained on; of a mixture the first one."""
        return next(iter(self.sources), Path())

    @property
    def settings(self) -> dict[str, Any]:
        """The settings that may not change when the run resumes (see `pipelines.run.manifest`)."""
        return fixed_settings(self.trained_recipe, self.facts)

    @property
    def chat_template(self) -> str:
        """The Jinja template of a run that answers messages; "" for any other."""
        return str(self.facts.get("chat_template", "")) if self.recipe.head is None else ""

    def require_chat_template(self) -> None:
        """Raise ValueError if the run has no chat template."""
        if not self.chat_template:
            raise ValueError(
                f"{self.folder} has no chat template, so it only continues texts: use bytelm generate, or make a run "
                "that answers with bytelm finetune `task='chat'`"
            )

    def require_language_model(self) -> None:
        """Raise ValueError if the model has the head of a task, and predicts no tokens."""
        if self.recipe.task is not None and self.recipe.head is not None:
            origin = f"the run that it was made of ({self.facts.get('pretrained', 'not recorded')})"
            if "imported_from" in self.facts:
                origin = "import it with `without_head`"
            raise ValueError(
                f"{self.folder} is fine-tuned for the task {self.recipe.task.name} and predicts no tokens: use bytelm "
                f"predict, or {origin}"
            )

    def tokenizer(self) -> Tokenizer:
        """Return the run's tokenizer; ValueError if tokenizer.json is not the tokenizer of the training."""
        return checked_tokenizer(self.folder, self.facts["tokenizer_fingerprint"])

    def metrics(self) -> list[dict[str, Any]]:
        """Return the records in metrics.jsonl; ValueError names the first damaged line."""
        return read_metrics(self.folder / "metrics.jsonl")

    def seconds(self) -> float:
        """Return the seconds of training up to the checkpoint of `saved_state`."""
        return float(self.saved_state().get("seconds") or 0.0)

    def saved_state(self) -> dict[str, Any]:
        """Return the state of the newest readable checkpoint, from which the run resumes; empty without one."""
        return next(filter(None, map(readable_state, reversed(checkpoint_folders(self.folder)))), {})


def opened(
    run: "str | Path | LoadedRun",
    checkpoint: str = "auto",
    device: str = "auto",
    dtype: str = "float32",
    any_task: bool = False,
    adapter: Path | None = None,
) -> Run:
    """Return the run in a folder, or of a loaded run, without importing torch.

    Raises ValueError if the run has no such checkpoint, for a loaded run with other options than its own, and, unless
    `any_task`, for a run with the head of a task.
    """
    found = Run.of(run, adapter)
    if not any_task:
        found.require_language_model()
    if found.loaded is None:
        find_checkpoint(found.folder, checkpoint)
    else:
        refuse_options(found, checkpoint=checkpoint, device=device, dtype=dtype, adapter=adapter)
    return found


def refuse_options(run: Run, **given: Any) -> None:
    """Raise ValueError if one of OPTIONS differs from its default, because a loaded run has its own values."""
    for name, value in given.items():
        if value != OPTIONS[name]:
            raise ValueError(
                f"`{name}` is {str(value)!r}, but {run.folder} is loaded already: give `{name}` to load_run"
            )


def _sources(config: Path, data: str | list[str]) -> Sources:
    """Return the sources that the field run.data of config.toml names; ValueError if it is damaged."""
    if isinstance(data, str):
        return {place(data): 1} if data else {}
    try:
        return parse_sources(data)
    except (ValueError, TypeError, AttributeError) as error:
        raise ValueError(f"{config}: run.data is damaged ({error}): restore the file from a copy of the run") from None


def checked_tokenizer(folder: Path, fingerprint: str) -> Tokenizer:
    """Return the tokenizer in `folder`; ValueError if it has another fingerprint."""
    tok = Tokenizer.load(folder)
    if tok.fingerprint != fingerprint:
        raise ValueError(
            f"{folder / 'tokenizer.json'} is not the tokenizer that the model was trained with: its fingerprint is "
            f"{tok.fingerprint[:16]}, not {fingerprint[:16]}; restore the original file"
        )
    return tok


@contextmanager
def lock(folder: Path) -> Iterator[None]:
    """Lock the run folder for this process, creating it if needed; ValueError if another process holds it."""
    make_folder(folder)
    try:
        with locked_file(
            folder / ".lock", f"{folder} is in use by another process: wait for it, or choose another `out`"
        ):
            yield
    finally:
        # A refused start leaves nothing behind.
        if not any(folder.iterdir()):
            folder.rmdir()


def open_or_create(folder: Path, recipe: Recipe, facts: dict[str, Any], tokenizer: Tokenizer) -> Run:
    """Return the run of `recipe` in `folder`: a new one, or an existing one that differs only in CHANGEABLE fields.

    An existing run takes over the new values. Raises ValueError as `check_folder` does.
    """
    changes = check_folder(folder, recipe, facts, tokenizer)
    if (folder / "config.toml").exists():
        run = Run(folder)
        moved = {name: facts[name] for name in PLACES if name in facts and facts[name] != run.facts.get(name)}
        if changes or moved:
            save_config(folder / "config.toml", recipe, run.facts | moved)
            run = Run(folder)
        if changes:
            changed = ", ".join(f"{name} {now!r} (was {was!r})" for name, was, now in changes)
            say(f"{run.name} resumes with {changed}")
        return run
    tokenizer.save(folder)
    save_config(folder / "config.toml", recipe, facts)
    return Run(folder)


def check_folder(
    folder: Path, recipe: Recipe, facts: Mapping[str, Any], tokenizer: Tokenizer
) -> list[tuple[str, Any, Any]]:
    """Return (field, the run's value, `recipe`'s value) for each change of the run in `folder`. A new run has none.

    Raises ValueError if the folder holds another run, naming the first field that differs, or something else. `facts`
    needs `data` and `dataset_fingerprint`.
    """
    if (folder / "config.toml").exists():
        run = Run(folder)
        if "imported_from" in run.facts:
            raise ValueError(f"{folder} was imported, and training cannot resume it: choose another `out`")
        _check_config(run)
        return _changes(run, recipe, facts)
    there = folder.iterdir() if folder.exists() else ()
    foreign = [path.name for path in there if path.name != ".lock" and path.suffix != ".partial"]
    if foreign and not (len(foreign) == 1 and foreign[0] in TOKENIZER_FILES and _holds(folder, tokenizer)):
        raise ValueError(
            f"{folder} is not empty and holds no run (it has {foreign[0]}): choose another `out`, or empty it"
        )
    return []


def _check_config(run: Run) -> None:
    """Raise ValueError if config.toml differs from the settings in the newest readable manifest.

    Without this check a damaged config.toml would look like the configuration of another run.
    """
    for folder in reversed(checkpoint_folders(run.folder)):
        try:
            manifest = read_manifest(folder)
        except DamagedCheckpointError:
            continue  # resuming warns about it and takes an older checkpoint
        check_run(run.folder, manifest, run.settings)
        return


def _changes(run: Run, recipe: Recipe, facts: Mapping[str, Any]) -> list[tuple[str, Any, Any]]:
    """Return (field, the run's value, `recipe`'s value) for each change; ValueError for a forbidden change.

    `facts`, such as the fingerprint of the data, belong to the run that `recipe` asks for.
    """
    new, old = flat(recipe.as_tables()), flat(run.recipe.as_tables())
    if run.facts["dataset_fingerprint"] != facts["dataset_fingerprint"]:
        own, given = (
            f"{table['data'] if isinstance(table['data'], str) else ' '.join(table['data'])} with the fingerprint "
            f"{table['dataset_fingerprint'][:16]}"
            for table in (run.facts, facts)
        )
        raise ValueError(
            f"{run.folder} was trained on other data: {own}, not {given}: give the run's own `data`, build it again if "
            "it was altered, or choose another `out`"
        )
    changes = [(name, old.get(name), value) for name, value in new.items() if value != old.get(name)]
    for name, was, now in changes:
        if name == "train.batch_tokens" and name in run.settings:
            raise ValueError(
                f"{run.folder} has train.batch_tokens {was!r}, not {now!r}, and its pairs are sorted into batches of "
                "that size: give the same value, or choose another `out`"
            )
        if name == "train.tokens" and recipe.train.minutes == run.recipe.train.minutes > 0:
            raise ValueError(
                f"{run.folder} ends after {recipe.train.minutes:g} minutes, so `train.tokens` does not extend it: give "
                "more `train.minutes`"
            )
        if name == "train.minutes" and was == 0 and run.seconds() >= 60 * now:
            raise ValueError(
                f"{run.folder} has trained for {run.seconds() / 60:.3g} minutes, which `train.minutes={now:g}` does "
                "not exceed: give more"
            )
        if name == "train.minutes" and now == 0 and (read := run.saved_state().get("tokens", 0)) >= recipe.train.tokens:
            raise ValueError(
                f"{run.folder} has trained on {read:,} tokens, which `train.tokens={recipe.train.tokens}` does not "
                "exceed: give more"
            )
        length = "finetune.epochs" if recipe.finetune else "train.tokens"
        shorter = (name == length and now < was) or (name == "train.minutes" and 0 < now < was)
        if name in run.settings or shorter:
            own = "" if recipe.task else f": bytelm pretrain --out {run.folder}"
            raise ValueError(
                f"{run.folder} holds another run: its {name} is {was!r}, not {now!r}; choose another `out`, or resume "
                f"this run with its own settings{own}"
            )
    return changes


def _holds(folder: Path, tokenizer: Tokenizer) -> bool:
    """Return whether the folder has `tokenizer`, as a start that was killed before config.toml leaves it."""
    try:
        return Tokenizer.load(folder).fingerprint == tokenizer.fingerprint
    except ValueError:
        return False
