"""A fine-tuned classifier and its folder.

The folder holds config.toml (`model`, `finetune`, and `run`, its origin), labels.json (a list, in the order of the
logits), tokenizer.json, model.safetensors, manifest.json (see `pipelines.run.manifest`) and evaluation.json.
"""

import json
from collections.abc import Callable, Mapping, Sequence
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any

import numpy as np
import tomli_w
import torch
from safetensors import SafetensorError
from safetensors.torch import load
from torch import Tensor

from corpora.labelled import Label
from lm.classification import Classifier
from lm.config import ModelConfig
from pipelines.files import file_sha256, read_json, read_toml, save_tensors, write_json, write_whole
from pipelines.machine import choose_machine
from pipelines.recipes.config import FinetuneConfig
from pipelines.run.folder import checked_tokenizer, holds_classifier
from pipelines.run.manifest import (
    MANIFEST,
    DamagedCheckpointError,
    check_settings,
    fixed_facts,
    flat,
    manifest_json,
    read_manifest,
    read_verified,
)
from pipelines.run.text_ids import is_known
from tokenizer import Tokenizer

WEIGHTS, LABELS = "model.safetensors", "labels.json"
PREDICTED_TEXTS = 64


@dataclass(frozen=True)
class TextClassifier:
    """A trained classifier with its tokenizer and labels. Made by `load_classifier`."""

    model: Classifier
    tokenizer: Tokenizer
    labels: list[Label]
    config: FinetuneConfig
    edges: tuple[int, int]
    """Ids of <|cls|> and <|sep|>, which the model reads around a text."""

    def predict(self, texts: Sequence[str]) -> tuple[list[Label], np.ndarray]:
        """Return the likeliest label of each of N texts, and the probabilities (N, L) float64 of all `labels`.

        A text longer than `room` tokens is cut at its end.
        """
        probabilities = torch.softmax(self.logits(texts).double(), dim=-1)
        return [self.labels[i] for i in probabilities.argmax(dim=-1).tolist()], probabilities.numpy()

    def cut(self, texts: Sequence[str]) -> list[bool]:
        """Return for each text whether it is longer than `room` tokens."""
        return [len(ids) > self.room for ids in self.tokenizer.encode_batch(texts, disallowed_special=())]

    @property
    def room(self) -> int:
        """Number of tokens that the model reads of a text: the context without <|cls|> and <|sep|>."""
        return self.model.config.context_length - 2

    def logits(self, texts: Sequence[str], progress: Callable[[int], None] | None = None) -> Tensor:
        """Return the logits (N, L) of N texts, float32 on the CPU."""
        rows, _ = encode_texts(self.tokenizer, texts, self.model.config.context_length, self.edges)
        return _predict_logits(self.model, rows, progress)

    def save(self, folder: Path, run: dict[str, Any], evaluation: dict[str, Any]) -> None:
        """Write the files of the classifier into `folder`, which exists; `run`: facts about its origin."""
        self.tokenizer.save(folder)
        weights = {name: value.cpu().contiguous() for name, value in self.model.state_dict().items()}
        save_tensors(folder / WEIGHTS, weights)
        facts = {"edges": list(self.edges), "tokenizer_fingerprint": self.tokenizer.fingerprint, **run}
        tables = {"model": asdict(self.model.config), "finetune": asdict(self.config), "run": facts}
        write_whole(folder / "config.toml", tomli_w.dumps(tables))
        write_whole(folder / LABELS, json.dumps(self.labels, ensure_ascii=False, indent=2) + "\n")
        files = {name: file_sha256(folder / name) for name in (WEIGHTS, LABELS)}
        write_whole(folder / MANIFEST, manifest_json(files, _settings(self.model.config, self.config, facts)))
        write_json(folder / "evaluation.json", evaluation)


def load_classifier(folder: str | Path, device: str = "auto", dtype: str = "float32") -> TextClassifier:
    """Return the classifier that `bytelm finetune` wrote into `folder`.

        labels, probabilities = load_classifier("my-classifier").predict(["a text", "another"])

    Raises ValueError, naming the file, if there is none or it is damaged.
    """
    folder = Path(folder)
    if not holds_classifier(folder):
        raise ValueError(f"{folder} holds no classifier (bytelm finetune makes one): give the folder of its `out`")
    model_config, config, facts = _configs(folder / "config.toml")
    weights = _verified_weights(folder, _settings(model_config, config, facts))
    labels = _labels(folder / LABELS)
    model = Classifier(model_config, len(labels), config.pooling)
    try:
        model.load_state_dict(load(weights))
    except (SafetensorError, RuntimeError):
        raise ValueError(f"{folder / WEIGHTS} is damaged or of another model: run bytelm finetune again") from None
    machine = choose_machine(device, dtype, needs="float64")
    model.body.compute_dtype = machine.dtype
    tok = checked_tokenizer(folder, str(facts.get("tokenizer_fingerprint")))
    edges = facts.get("edges")
    if not isinstance(edges, list) or len(edges) != 2 or not all(is_known(tok, i) for i in edges):
        raise ValueError(f"{folder / 'config.toml'} is damaged (run.edges = {edges!r}): run bytelm finetune again")
    return TextClassifier(model.to(machine.device).eval(), tok, labels, config, tuple(edges))


def _settings(model: ModelConfig, finetuning: FinetuneConfig, facts: Mapping[str, Any]) -> dict[str, Any]:
    """Return what the manifest records of a classifier's config.toml."""
    return flat({"model": asdict(model), "finetune": asdict(finetuning)}) | fixed_facts(facts)


def _verified_weights(folder: Path, settings: Mapping[str, Any]) -> bytes:
    """Return the content of model.safetensors, after labels.json and `settings` have been verified too."""
    try:
        manifest = read_manifest(folder)
        read_verified(folder, manifest, LABELS)
        weights = read_verified(folder, manifest, WEIGHTS)
    except DamagedCheckpointError as error:
        raise ValueError(f"{error}: run bytelm finetune again") from None
    defaults = _settings(ModelConfig(), FinetuneConfig(), {})
    check_settings(manifest, settings, folder / "config.toml", defaults)
    return weights


def _labels(path: Path) -> list[Label]:
    labels: list[Label] = read_json(path, "run bytelm finetune again", list)
    if not all(isinstance(label, str | int) for label in labels):
        raise ValueError(f"{path} is damaged: run bytelm finetune again")
    return labels


def _configs(path: Path) -> tuple[ModelConfig, FinetuneConfig, dict[str, Any]]:
    tables = read_toml(path)
    try:
        return ModelConfig(**tables["model"]), FinetuneConfig(**tables["finetune"]), dict(tables["run"])
    except (KeyError, TypeError, ValueError) as error:
        raise ValueError(f"{path} is damaged ({error}): run bytelm finetune again") from None


def encode_texts(
    tokenizer: Tokenizer, texts: Sequence[str], positions: int, edges: tuple[int, int]
) -> tuple[list[np.ndarray], int]:
    """Return the ids (T,) int64 that an encoder reads of each text, at most `positions`, and the number of cut texts.

    The ids are the first of `edges` (`<|cls|>`), the tokens, cut at the end if they are too many, and the second of
    `edges` (`<|sep|>`). Special tokens spelled in a text are encoded as text.
    """
    room = positions - 2
    encoded = tokenizer.encode_batch(texts, disallowed_special=())
    rows = [np.array([edges[0], *ids[:room], edges[1]], dtype=np.int64) for ids in encoded]
    return rows, sum(len(ids) > room for ids in encoded)


@torch.no_grad()
def _predict_logits(
    model: Classifier, rows: Sequence[np.ndarray], progress: Callable[[int], None] | None = None
) -> Tensor:
    """Return the logits (N, labels) of texts of token ids (T,), float32 on the CPU."""
    model.eval()
    device = next(model.parameters()).device
    order = np.argsort([len(row) for row in rows], kind="stable")
    logits = torch.empty(len(rows), model.head.output.weight.shape[0])
    for start in range(0, len(rows), PREDICTED_TEXTS):
        chosen = order[start : start + PREDICTED_TEXTS]
        logits[torch.from_numpy(chosen)] = model(*pad([rows[i] for i in chosen], device)).cpu()
        if progress:
            progress(start + len(chosen))
    return logits


def pad(rows: Sequence[np.ndarray], device: torch.device) -> tuple[Tensor, Tensor | None]:
    """Return the rows padded to the longest, ids (B, T), and a mask (B, T) bool, False at padding; None without any."""
    lengths = torch.tensor([len(row) for row in rows])
    longest = int(lengths.max())
    ids = torch.zeros(len(rows), longest, dtype=torch.int64)
    for target, row in zip(ids, rows, strict=True):
        target[: len(row)] = torch.from_numpy(row)
    present = None if bool((lengths == longest).all()) else (torch.arange(longest) < lengths[:, None]).to(device)
    return ids.to(device), present
