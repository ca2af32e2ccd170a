"""Manifests: checksums of the files of a checkpoint or a classifier, and the settings that the weights belong to.

manifest.json holds `files` (file name to SHA-256), `settings` (name to value: everything in config.toml that may not
change when a run resumes, including the tokenizer's fingerprint) and `checksum` (SHA-256 of the others as canonical
JSON). A sharded checkpoint also has `shapes`: the dtype and whole shape of every tensor, by folder of shards and name.
Settings are stored as parsed values, so config.toml may be reformatted, and an error can name the field that differs.
Imports no torch.
"""

import hashlib
from collections.abc import Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from pipelines.files import checksummed_json, file_sha256, read_bytes, read_json
from pipelines.recipes.config import CHANGEABLE, CHANGEABLE_FINETUNING
from pipelines.recipes.recipe import Recipe

MANIFEST = "manifest.json"
# Facts in the table [run] of config.toml that decide what the model reads. Others may change: the dataset may move.
FIXED_FACTS = (
    *("dataset_fingerprint", "tokenizer_fingerprint", "separated"),
    *("special_ids", "roles", "around_text", "edges", "chat_template"),
    "init_from_sha256",
)


Shapes = Mapping[str, Sequence[Any]]
"""The dtype, such as "float32", and the shape of tensors by name: [dtype, [sizes]]."""


class DamagedCheckpointError(ValueError):
    """A file of a checkpoint is missing, truncated or altered; the message names the file."""


@dataclass(frozen=True)
class Manifest:
    """The verified content of a manifest."""

    files: dict[str, str]
    """SHA-256 by file name."""
    settings: dict[str, Any]
    """Values by name, such as model.layers."""
    shapes: dict[str, Shapes] = field(default_factory=dict)
    """Tensors of a sharded checkpoint by folder of shards, such as "model"."""


def manifest_json(
    files: Mapping[str, str], settings: Mapping[str, Any], shapes: Mapping[str, Shapes] | None = None
) -> str:
    """Return the text of manifest.json; `shapes` of a sharded checkpoint only."""
    content: dict[str, Any] = {"files": dict(files), "settings": dict(settings)}
    if shapes:
        content["shapes"] = dict(shapes)
    return checksummed_json(content)


def read_manifest(folder: Path) -> Manifest:
    """Return the manifest of `folder`, verified against its own checksum; DamagedCheckpointError if it is damaged."""
    path = folder / MANIFEST
    try:
        content = read_json(path, "")
    except (OSError, ValueError):
        raise DamagedCheckpointError(f"{path} is missing or damaged") from None
    files, settings, shapes = content.get("files"), content.get("settings"), content.get("shapes", {})
    sound = path.read_bytes() == checksummed_json(content).encode()
    if not (sound and isinstance(files, dict) and isinstance(settings, dict) and isinstance(shapes, dict)):
        raise DamagedCheckpointError(f"{path} is altered (its checksum does not match)")
    return Manifest(files, settings, shapes)


def manifest_sha256(folder: Path) -> str:
    """Return the SHA-256 of the manifest of `folder`, which identifies a checkpoint."""
    return file_sha256(folder / MANIFEST)


def read_verified(folder: Path, manifest: Manifest, name: str) -> bytes:
    """Return the content of a listed file; DamagedCheckpointError if it is missing or differs from the manifest."""
    try:
        content = read_bytes(folder / name)
    except FileNotFoundError:
        raise DamagedCheckpointError(f"{folder / name} is missing") from None
    if hashlib.sha256(content).hexdigest() != manifest.files.get(name):
        raise _altered_error(folder / name)
    return content


def verify_shards(folder: Path, manifest: Manifest, part: str) -> None:
    """Raise DamagedCheckpointError, naming the file, unless `folder / part` holds the listed shards and no others."""
    listed = sorted(name for name in manifest.files if name.startswith(f"{part}/"))
    present = {f"{part}/{path.name}" for path in (folder / part).glob("*")}
    for name in sorted(present.symmetric_difference(listed)):
        raise DamagedCheckpointError(f"{folder / name} is {'not in ' + MANIFEST if name in present else 'missing'}")
    with ThreadPoolExecutor() as threads:
        for name, checksum in zip(listed, threads.map(file_sha256, [folder / name for name in listed]), strict=True):
            if checksum != manifest.files[name]:
                raise _altered_error(folder / name)


def _altered_error(path: Path) -> DamagedCheckpointError:
    """Return the error of a file whose checksum differs from the manifest's."""
    return DamagedCheckpointError(f"{path} is truncated or altered (its SHA-256 does not match)")


def fixed_settings(recipe: Recipe, facts: Mapping[str, Any]) -> dict[str, Any]:
    """Return the settings of a run that may not change when it resumes: values by name, as in config.toml.

    `facts` is the table [run] of config.toml.
    """
    changeable = {f"train.{name}" for name in (*CHANGEABLE, "tokens")}  # a run may be extended
    if recipe.finetune:
        changeable |= {f"finetune.{name}" for name in CHANGEABLE_FINETUNING} | {"train.warmup_tokens"}  # by its epochs
    if recipe.objective == "sequence-pairs":
        changeable.remove("train.batch_tokens")  # pairs are sorted into batches of this size
    settings = {name: value for name, value in flat(recipe.as_tables()).items() if name not in changeable}
    return settings | fixed_facts(facts)


def fixed_facts(facts: Mapping[str, Any]) -> dict[str, Any]:
    """Return the entries of the table [run] that may not change, by name."""
    return {f"run.{name}": facts[name] for name in FIXED_FACTS if name in facts}


def check_settings(manifest: Manifest, present: Mapping[str, Any], config: Path, defaults: Mapping[str, Any]) -> None:
    """Raise ValueError, naming the first field of `config`, if `present` settings differ from the manifest's.

    A field that the manifest lacks was added by a later version and must have its default value.
    """
    recorded = manifest.settings
    expected = {name: recorded.get(name, defaults.get(name, value)) for name, value in present.items()}
    expected |= {name: value for name, value in recorded.items() if name.startswith("run.")}
    for name, value in expected.items():
        if present.get(name) != value:
            raise ValueError(
                f"{config} was altered: {name} is {present.get(name)!r}, but the weights were trained with {value!r}; "
                "restore that value"
            )


def check_run(folder: Path, manifest: Manifest, settings: Mapping[str, Any]) -> None:
    """Raise ValueError, naming the field, if the run in `folder` has other `fixed_settings` than its manifest."""
    check_settings(manifest, settings, folder / "config.toml", fixed_settings(Recipe(), {}))


def flat(tree: Mapping[str, Any], prefix: str = "") -> dict[str, Any]:
    """Return the leaves of nested dicts by their dotted names."""
    found: dict[str, Any] = {}
    for key, value in tree.items():
        found |= flat(value, f"{prefix}{key}.") if isinstance(value, dict) else {prefix + key: value}
    return found
