"""A fine-tuned classifier and its folder.

config.toml (`model`, `finetune`, `run`: where it comes from), labels.json (a list, in the order of the logits),
tokenizer.json, model.safetensors, manifest.json (see `pipelines.run.manifest`) and evaluation.json.
"""

import hashlib
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

from corpora.labelled import Label
from lm.classification import Classifier
from lm.config import ModelConfig
from pipelines.files import read_json, read_toml, save_tensors, write_json, write_whole
from pipelines.run.folder import checked_tokenizer
from pipelines.run.manifest import (
    MANIFEST,
    DamagedCheckpointError,
    check_settings,
    fixed_facts,
    flat,
    manifest_json,
    read_manifest,
    verified,
    warn_of_old,
)
from pipelines.run.text_ids import is_known
from pipelines.training.finetune_config import FinetuneConfig
from pipelines.training.finetuning import encode_texts, predict_logits
from pipelines.training.machine import choose_machine
from tokenizer import CLS, SEP, Tokenizer

WEIGHTS, LABELS = "model.safetensors", "labels.json"


@dataclass(frozen=True)
class TextClassifier:
    """A trained model with what it takes to ask it about texts."""

    model: Classifier
    tokenizer: Tokenizer
    labels: list[Label]
    config: FinetuneConfig
    edges: tuple[int, int]
    """The ids that a text is read between, which stand for <|cls|> and <|sep|>."""

    def predict(self, texts: Sequence[str]) -> tuple[list[Label], np.ndarray]:
        """The likeliest label of each of N texts, and the probabilities (N, L) float64 of all `labels`, in their order.

        A text longer than the model reads is cut at its end.
        """
        probabilities = torch.softmax(self.logits(texts).double(), dim=-1)
        return [self.labels[i] for i in probabilities.argmax(dim=-1).tolist()], probabilities.numpy()

    def cut(self, texts: Sequence[str]) -> list[bool]:
        """Which of the texts are longer than what is read of them, `room` tokens."""
        return [len(ids) > self.room for ids in self.tokenizer.encode_batch(texts, disallowed_special=())]

    @property
    def room(self) -> int:
        """Tokens of a text that are read: <|cls|> and <|sep|> take two of the context."""
        return self.model.config.context_length - 2

    def logits(self, texts: Sequence[str], progress: Callable[[int], None] | None = None) -> torch.Tensor:
        """(N, L) float32 on the CPU."""
        rows, _ = encode_texts(self.tokenizer, texts, self.model.config.context_length, self.edges)
        return predict_logits(self.model, rows, progress)

    def save(self, folder: Path, run: dict[str, Any], evaluation: dict[str, Any]) -> None:
        """Write the files of a classifier into `folder`, which is there; `run`: facts of where it comes from."""
        self.tokenizer.save(folder)
        weights = {name: value.cpu().contiguous() for name, value in self.model.state_dict().items()}
        save_tensors(folder / WEIGHTS, weights)
        facts = {"edges": list(self.edges), "tokenizer_fingerprint": self.tokenizer.fingerprint, **run}
        tables = {"model": asdict(self.model.config), "finetune": asdict(self.config), "run": facts}
        write_whole(folder / "config.toml", tomli_w.dumps(tables))
        write_whole(folder / LABELS, json.dumps(self.labels, ensure_ascii=False, indent=2) + "\n")
        files = {name: hashlib.sha256((folder / name).read_bytes()).hexdigest() for name in (WEIGHTS, LABELS)}
        write_whole(folder / MANIFEST, manifest_json(files, _settings(self.model.config, self.config, facts)))
        write_json(folder / "evaluation.json", evaluation)


def load_classifier(folder: str | Path, device: str = "auto", dtype: str = "float32") -> TextClassifier:
    """The classifier that `bytelm finetune` wrote into `folder`, ready to `predict`:

        labels, probabilities = load_classifier("my-classifier").predict(["a text", "another"])

    Raises ValueError, naming the file, for a folder that holds none or a damaged one.
    """
    folder = Path(folder)
    if not holds_classifier(folder):
        raise ValueError(f"{folder} holds no classifier (bytelm finetune makes one): give the folder of its --out")
    model_config, config, facts = _configs(folder / "config.toml")
    weights = _verified_weights(folder, _settings(model_config, config, facts))
    labels = _labels(folder / LABELS)
    model = Classifier(model_config, len(labels), config.pooling)
    try:
        model.load_state_dict(load(weights))
    except (SafetensorError, RuntimeError):
        raise ValueError(f"{folder / WEIGHTS} is damaged or of another model: run bytelm finetune again") from None
    machine = choose_machine(device, dtype)
    model.body.compute_dtype = machine.dtype
    fingerprint = facts.get("tokenizer_fingerprint")
    tok = checked_tokenizer(folder, fingerprint) if fingerprint else Tokenizer.load(folder)
    edges = facts.get("edges", [tok.special_tokens.get(name) for name in (CLS, SEP)])
    if not isinstance(edges, list) or len(edges) != 2 or not all(is_known(tok, i) for i in edges):
        raise ValueError(f"{folder / 'config.toml'} is damaged (run.edges = {edges!r}): run bytelm finetune again")
    return TextClassifier(model.to(machine.device).eval(), tok, labels, config, tuple(edges))


def holds_classifier(folder: Path) -> bool:
    """Whether the folder has the files of a classifier."""
    return all((folder / name).is_file() for name in ("config.toml", LABELS, WEIGHTS))


def _settings(model: ModelConfig, finetuning: FinetuneConfig, facts: Mapping[str, Any]) -> dict[str, Any]:
    """Return what the manifest records of a classifier's config.toml."""
    return flat({"model": asdict(model), "finetune": asdict(finetuning)}) | fixed_facts(facts)


def _verified_weights(folder: Path, settings: Mapping[str, Any]) -> bytes:
    """Return the content of model.safetensors, after labels.json and `settings` have been verified too."""
    if not (folder / MANIFEST).exists():
        warn_of_old(folder)
        return (folder / WEIGHTS).read_bytes()
    try:
        manifest = read_manifest(folder)
        verified(folder, manifest, LABELS)
        weights = verified(folder, manifest, WEIGHTS)
    except DamagedCheckpointError as error:
        raise ValueError(f"{error}: run bytelm finetune again") from None
    defaults = _settings(ModelConfig(), FinetuneConfig(), {})
    check_settings(manifest, settings, folder / "config.toml", defaults)
    return weights


def _labels(path: Path) -> list[Label]:
    labels = read_json(path, "run bytelm finetune again", list)
    if not all(isinstance(label, str | int) for label in labels):
        raise ValueError(f"{path} is damaged: run bytelm finetune again")
    return labels


def _configs(path: Path) -> tuple[ModelConfig, FinetuneConfig, dict[str, Any]]:
    tables = read_toml(path)
    try:
        return ModelConfig(**tables["model"]), FinetuneConfig(**tables["finetune"]), dict(tables["run"])
    except (KeyError, TypeError, ValueError) as error:
        raise ValueError(f"{path} is damaged ({error}): run bytelm finetune again") from None
