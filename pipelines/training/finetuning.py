"""Fine-tuning: train a classifier from a pretrained encoder, and compare it with simpler classifiers.

evaluation.json holds, for the held-out texts: `accuracy` and its 95 % interval, `macro_f1`, `cross_entropy` (mean
nats) and `cross_entropy_bits`; the same numbers of `scratch` (the same model from random weights), `naive_bayes` (over
the run's tokens) and `most_frequent` (the most frequent label of the training texts); `confusions`, the most frequent
mistakes; the number of `texts`, and how many of them were `cut`.
"""

import math
import warnings
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

import numpy as np
import torch
import torch.nn.functional as F  # noqa: N812
from torch import Tensor

from corpora.labelled import Label, LabelledTexts
from lm.classification import Classifier, accuracy_interval, build_classifier, macro_f1, most_confused
from lm.metrics.baselines import NaiveBayes
from lm.metrics.predictions import accuracy, token_nll
from lm.metrics.units import bits
from lm.optim.optimizer_settings import OptimizerSettings
from lm.optim.optimizers import build_optimizers
from lm.optim.schedules import ends_at_peak, warmup_cosine
from pipelines.cli.display import Bar
from pipelines.files import whole_folder
from pipelines.machine import choose_machine, without_subnormals
from pipelines.recipes.config import FinetuneConfig
from pipelines.run.classifier import TextClassifier, encode_texts, pad
from pipelines.run.folder import Run, holds_classifier
from pipelines.run.loaded_run import load_trained
from pipelines.run.text_ids import text_ids
from pipelines.training.labelled_data import LabelledData
from pipelines.training.progress import LossWatch
from tokenizer import CLS, SEP

# Batches whose texts are sorted together, so that the texts of a batch have similar lengths.
SORTED_BATCHES = 16


def finetune_run(
    run: Run,
    source: LabelledData,
    texts: tuple[LabelledTexts, LabelledTexts],
    out: Path,
    config: FinetuneConfig,
    *,
    from_scratch: bool,
    compare_scratch: bool,
    overwrite: bool,
) -> dict[str, Any]:
    """Train a classifier from a run, write it into `out` and return its evaluation.json.

    `texts` are those of `source`, to train and to test on.
    """

    def replaceable(existing: Path) -> bool:
        return overwrite and holds_classifier(existing)

    train, test = texts
    task = ClassificationTask(run, train, test, train.distinct_labels(), config)
    with whole_folder(out, replaceable) as partial:
        result = {
            "run": run.name,
            "data": str(source.data),
            "test": str(source.test) if source.test else f"hash:{source.held_out:g}",
            "labels": len(task.labels),
            "texts": {"train": len(train), "test": len(test)},
            "empty": {"train": train.empty, "test": test.empty},
        }
        classifier, checkpoint = task.train_classifier("from scratch" if from_scratch else "fine-tuning", from_scratch)
        result |= {"checkpoint": checkpoint, **task.scores(classifier)}
        result["scratch"] = None
        if compare_scratch and not from_scratch:
            scratch, _ = task.train_classifier("from scratch", True)
            result["scratch"] = task.numbers(scratch.logits(test.texts))
        result |= task.baselines()
        facts = {
            "pretrained": str(run.folder.resolve()),
            "checkpoint": checkpoint or "none",
            "data": str(source.data),
        }
        classifier.save(partial, facts, result)
    return result


@dataclass(frozen=True)
class ClassificationTask:
    """Labelled texts, and the run whose encoder learns to classify them."""

    run: Run
    train: LabelledTexts
    test: LabelledTexts
    labels: list[Label]
    config: FinetuneConfig

    def train_classifier(self, name: str, scratch: bool) -> tuple[TextClassifier, str | None]:
        """Return a trained classifier and the name of the checkpoint it started from, if any."""
        config, tok = self.config, self.run.tokenizer()
        special = text_ids(self.run, tok).special
        edges = special[CLS], special[SEP]
        start = None if scratch else load_trained(self.run, "cpu")
        machine = choose_machine(config.device, config.dtype, needs="float64")
        shape = replace(self.run.recipe.model, dropout=config.dropout)
        pretrained = start.model if start else None
        model = build_classifier(shape, len(self.labels), config.seed, config.pooling, pretrained)
        model.body.compute_dtype = machine.dtype
        rows, _ = encode_texts(tok, self.train.texts, shape.context_length, edges)
        with without_subnormals(), Bar(name, config.epochs * len(rows), "texts") as bar:
            fit(
                model.to(machine.device),
                rows,
                self.label_indices(self.train.labels),
                config,
                lambda texts, loss: bar.update(texts, note=f"loss {loss:.3f}"),
            )
        model.body.compute_dtype = torch.float32  # for testing, and the default for use
        return TextClassifier(model, tok, self.labels, config, edges), start.checkpoint.name if start else None

    def scores(self, classifier: TextClassifier) -> dict[str, Any]:
        """Return the entries of evaluation.json about a classifier, including its mistakes."""
        with Bar("testing", len(self.test), "texts") as bar:
            logits = classifier.logits(self.test.texts, bar.update)
        targets = torch.from_numpy(self.label_indices(self.test.labels))
        confusions = [
            {"label": self.labels[label], "predicted": self.labels[predicted], "times": times}
            for label, predicted, times in most_confused(targets, logits.argmax(dim=-1))
        ]
        cut = {name: sum(classifier.cut(part.texts)) for name, part in (("train", self.train), ("test", self.test))}
        return {"cut": cut, "cut_to": classifier.room, **self.numbers(logits), "confusions": confusions}

    def numbers(self, logits: Tensor) -> dict[str, Any]:
        """Return accuracy, macro F1 and cross-entropy of logits (N, L) on the test texts."""
        targets = torch.from_numpy(self.label_indices(self.test.labels))
        share = accuracy(logits, targets)
        nats = float(token_nll(logits, targets).mean())
        return {
            "accuracy": share,
            "accuracy_interval": list(accuracy_interval(share, len(targets))),
            "macro_f1": macro_f1(targets, logits.argmax(dim=-1)),
            "cross_entropy": nats,
            "cross_entropy_bits": bits(nats),
        }

    def baselines(self) -> dict[str, dict[str, Any]]:
        """Return the numbers of classifiers that use only token counts, or only label frequencies."""
        tok = self.run.tokenizer()
        train, test = (
            [np.array(ids) for ids in tok.encode_batch(part.texts, disallowed_special=())]
            for part in (self.train, self.test)
        )
        targets = self.label_indices(self.train.labels)
        bayes = NaiveBayes.fit(train, targets, len(self.labels), tok.vocab_size)
        frequencies = np.bincount(targets, minlength=len(self.labels)) / len(targets)
        return {
            "naive_bayes": self.numbers(torch.from_numpy(bayes.log_posteriors(test))),
            "most_frequent": self.numbers(torch.from_numpy(np.log(frequencies)).expand(len(test), -1)),
        }

    def label_indices(self, labels: Sequence[Label]) -> np.ndarray:
        """Return labels as indices into `labels`: int64 (N,)."""
        places = {label: place for place, label in enumerate(self.labels)}
        return np.array([places[label] for label in labels], dtype=np.int64)


def fit(
    model: Classifier,
    rows: Sequence[np.ndarray],
    targets: np.ndarray,
    config: FinetuneConfig,
    progress: Callable[[int, float], None],
) -> None:
    """Train `model` with cross-entropy on texts of token ids (T,) and their labels (N,).

    Calls `progress` with the number of texts read so far and the smoothed loss in nats. Raises FloatingPointError if
    the loss is not finite.
    """
    torch.manual_seed(config.seed)
    model.train()
    optimizers = build_optimizers(
        model, OptimizerSettings(lr=config.lr, weight_decay=config.weight_decay, beta2=0.98, eps=1e-6)
    )
    device = next(model.parameters()).device
    total = config.epochs * math.ceil(len(rows) / config.batch_size)
    warmup = round(config.warmup * total)
    if ends_at_peak(warmup=warmup, total=total):
        warnings.warn(
            f"`warmup={config.warmup:g}` lasts until the last of {total:,} steps, so the learning rate ends at its "
            "peak: lower `warmup`, or raise `epochs`",
            stacklevel=2,
        )
    seen, watch = 0, LossWatch()
    for step, batch in enumerate(epochs([len(row) for row in rows], config)):
        optimizers.schedule(warmup_cosine(step, warmup=warmup, total=total, final=0.0))
        ids, present = pad([rows[i] for i in batch], device)
        loss = F.cross_entropy(model(ids, present), torch.from_numpy(targets[batch]).to(device))
        if not bool(loss.isfinite()):
            raise FloatingPointError(f"the loss of step {step + 1} is not finite: try a lower `lr` than {config.lr:g}")
        torch.autograd.backward(loss)
        if config.grad_clip:
            torch.nn.utils.clip_grad_norm_(model.parameters(), config.grad_clip)
        optimizers.step()
        optimizers.zero_grad()
        seen += len(batch)
        watch.update(step, float(loss.detach()))
        progress(seen, watch.smoothed_loss())
    model.eval()


def epochs(lengths: Sequence[int], config: FinetuneConfig) -> Iterator[np.ndarray]:
    """Yield the row numbers of each batch, in an order drawn by (seed, epoch)."""
    sizes = np.asarray(lengths)
    for epoch in range(config.epochs):
        generator = np.random.default_rng((config.seed, epoch))
        order = generator.permutation(len(sizes))
        batches = []
        for start in range(0, len(order), SORTED_BATCHES * config.batch_size):
            near = order[start : start + SORTED_BATCHES * config.batch_size]
            near = near[np.argsort(sizes[near], kind="stable")]
            batches += [near[i : i + config.batch_size] for i in range(0, len(near), config.batch_size)]
        for i in generator.permutation(len(batches)):
            yield batches[i]
