"""`bytelm finetune`: a pretrained encoder and labelled texts to a classifier, and what the pretraining was worth.

evaluation.json has, on the held-out texts: `accuracy` (the share labelled right) and its `standard_error`, `macro_f1`,
`cross_entropy` (mean nats) and `cross_entropy_bits`; the same of `scratch`, the same model with random weights instead
of the run's, of `naive_bayes` over the run's tokens, and of `most_frequent`, the label that training texts have most
often; `confusions`, the most frequent mistakes; and how many `texts` there were and how many of them were `cut`.
"""

import warnings
from collections.abc import Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Annotated, Any

import tyro

from corpora.labelled import Label, LabelledTexts, read_labelled
from pipelines.cli.arguments import RunFolder
from pipelines.cli.parsing import parse
from pipelines.cli.verbs import verb
from pipelines.training.finetune_config import FinetuneConfig

SETTINGS = FinetuneConfig()


@verb
def finetune(
    run: RunFolder,
    *,
    data: Path,
    test: Path | None = None,
    out: Path,
    text_field: str = "text",
    label_field: str = "label",
    held_out: float = 0.1,
    from_scratch: bool = False,
    compare_scratch: bool = True,
    overwrite: bool = False,
    settings: Annotated[FinetuneConfig, tyro.conf.arg(name="")] = SETTINGS,
) -> dict[str, Any]:
    """Make a classifier of an encoder that was pretrained; write it into `out` and return its evaluation.json.

    Raises ValueError, naming what is wrong, for a run that is no encoder and for texts that teach or test nothing.

    Args:
        data: Texts to train on, each with its label: .jsonl, also .gz, .xz or .zst, or .parquet.
        test: Texts to be tested on; by default a part of `data` is held out.
        out: Folder of the classifier.
        text_field: The field of a row that holds the text.
        label_field: The field that holds its label, a string or a whole number.
        held_out: Without --test, the share of the texts, by their hash, that is held out.
        from_scratch: Start from random weights instead of the run's.
        compare_scratch: Whether to train the same model from random weights too, which takes as long again.
        overwrite: Whether a classifier that is there already is replaced.
        settings: How it is trained.
    """
    from pipelines.files import whole_folder
    from pipelines.run.classifier import holds_classifier

    def replaceable(there: Path) -> bool:
        return overwrite and holds_classifier(there)

    if out.exists() and not replaceable(out):
        raise ValueError(f"{out} exists already: choose another --out (or replace a classifier with --overwrite)")
    encoder = _encoder(run, settings)
    train, tested = _texts(data, test, text_field, label_field, held_out)
    labels = train.distinct_labels()
    task = _Task(encoder, train, tested, labels, settings)
    with whole_folder(out, replaceable) as folder:
        result = task.describe(data, test, held_out)
        classifier, checkpoint = task.trained("from scratch" if from_scratch else "fine-tuning", from_scratch)
        result |= {"checkpoint": checkpoint, **task.scores(classifier)}
        result["scratch"] = None
        if compare_scratch and not from_scratch:
            scratch, _ = task.trained("from scratch", True)
            result["scratch"] = task.numbers(scratch.logits(tested.texts))
        result |= task.baselines()
        facts = {"pretrained": str(encoder.folder.resolve()), "checkpoint": checkpoint or "none", "data": str(data)}
        classifier.save(folder, facts, result)
    return result


@dataclass(frozen=True)
class _Task:
    """Which texts are to be told apart, and by which encoder; `run` is a `pipelines.run.folder.Run`, which imports
    torch."""

    run: Any
    train: LabelledTexts
    test: LabelledTexts
    labels: list[Label]
    settings: FinetuneConfig

    def describe(self, data: Path, test: Path | None, held_out: float) -> dict[str, Any]:
        """What evaluation.json says of the task."""
        return {
            "run": self.run.name,
            "data": str(data),
            "test": str(test) if test else f"hash:{held_out:g}",
            "labels": len(self.labels),
            "texts": {"train": len(self.train), "test": len(self.test)},
            "empty": {"train": self.train.empty, "test": self.test.empty},
        }

    def trained(self, name: str, scratch: bool) -> tuple[Any, str | None]:
        """The classifier, and the name of the checkpoint that it began as, if any."""
        import torch

        from lm.classification import build_classifier
        from pipelines.cli.display import Bar
        from pipelines.run.classifier import TextClassifier
        from pipelines.run.loading import load_trained
        from pipelines.run.text_ids import text_ids
        from pipelines.training.finetuning import encode_texts, train_classifier
        from pipelines.training.machine import choose_machine, without_subnormals
        from tokenizer import CLS, SEP

        settings, tok = self.settings, self.run.tokenizer()
        special = text_ids(self.run, tok).special
        edges = special[CLS], special[SEP]
        start = None if scratch else load_trained(self.run, "cpu")
        machine = choose_machine(settings.device, settings.dtype)
        config = replace(self.run.recipe.model, dropout=settings.dropout)
        pretrained = start.model if start else None
        model = build_classifier(config, len(self.labels), settings.seed, settings.pooling, pretrained)
        model.body.compute_dtype = machine.dtype
        rows, _ = encode_texts(tok, self.train.texts, config.context_length, edges)
        with without_subnormals(), Bar(name, settings.epochs * len(rows), "texts") as bar:
            train_classifier(
                model.to(machine.device),
                rows,
                self.numbered(self.train.labels),
                settings,
                lambda texts, loss: bar.update(texts, note=f"loss {loss:.3f}"),
            )
        model.body.compute_dtype = torch.float32  # in which it is tested, and used by default
        return TextClassifier(model, tok, self.labels, settings, edges), start.checkpoint.name if start else None

    def scores(self, classifier: Any) -> dict[str, Any]:
        """What evaluation.json says of a classifier, its mistakes included."""
        import torch

        from lm.classification import most_confused
        from pipelines.cli.display import Bar
        from pipelines.training.finetuning import encode_texts

        with Bar("testing", len(self.test), "texts") as bar:
            logits = classifier.logits(self.test.texts, bar.update)
        targets = torch.from_numpy(self.numbered(self.test.labels))
        confusions = [
            {"label": self.labels[label], "predicted": self.labels[predicted], "times": times}
            for label, predicted, times in most_confused(targets, logits.argmax(dim=-1))
        ]
        positions = classifier.model.config.context_length
        cut = {
            name: encode_texts(classifier.tokenizer, part.texts, positions, classifier.edges)[1]
            for name, part in (("train", self.train), ("test", self.test))
        }
        return {"cut": cut, "cut_to": positions - 2, **self.numbers(logits), "confusions": confusions}

    def numbers(self, logits: Any) -> dict[str, float]:
        """Accuracy, macro F1 and cross-entropy of logits (N, L) on the test texts."""
        import torch

        from lm.analysis.metrics import accuracy, bits, token_nll
        from lm.classification import macro_f1

        targets = torch.from_numpy(self.numbered(self.test.labels))
        right = accuracy(logits, targets)
        nats = float(token_nll(logits, targets).mean())
        return {
            "accuracy": right,
            "standard_error": (right * (1 - right) / len(targets)) ** 0.5,
            "macro_f1": macro_f1(targets, logits.argmax(dim=-1)),
            "cross_entropy": nats,
            "cross_entropy_bits": bits(nats),
        }

    def baselines(self) -> dict[str, dict[str, float]]:
        """What counts of tokens, and of labels alone, are worth on the test texts."""
        import numpy as np
        import torch

        from lm.analysis.naive_bayes import NaiveBayes

        tok = self.run.tokenizer()
        train, test = (
            [np.array(ids) for ids in tok.encode_batch(part.texts, disallowed_special=())]
            for part in (self.train, self.test)
        )
        targets = self.numbered(self.train.labels)
        bayes = NaiveBayes.fit(train, targets, len(self.labels), tok.vocab_size)
        frequencies = np.bincount(targets, minlength=len(self.labels)) / len(targets)
        return {
            "naive_bayes": self.numbers(torch.from_numpy(bayes.log_posteriors(test))),
            "most_frequent": self.numbers(torch.from_numpy(np.log(frequencies)).expand(len(test), -1)),
        }

    def numbered(self, labels: Sequence[Label]) -> Any:
        """Labels as their places among `labels`: int64 (N,)."""
        import numpy as np

        places = {label: place for place, label in enumerate(self.labels)}
        return np.array([places[label] for label in labels], dtype=np.int64)


def _encoder(folder: Path, settings: FinetuneConfig) -> Any:
    from lm.config import WITHOUT_DROPOUT
    from pipelines.run.folder import Run
    from pipelines.run.text_ids import text_ids
    from pipelines.training.loader import required
    from tokenizer import CLS, SEP

    run = Run(folder)
    if run.recipe.model.architecture != "encoder":
        raise ValueError(
            f"{folder} has a model of architecture {run.recipe.model.architecture!r}: a classifier is made of an "
            "encoder, such as bytelm pretrain bert-tiny trains"
        )
    if settings.dropout and run.recipe.model.attention in WITHOUT_DROPOUT:
        raise ValueError(
            f"{folder} has model.attention = {run.recipe.model.attention!r}, which has no dropout, but --dropout is "
            f"{settings.dropout:g}: give --dropout 0"
        )
    required("a classifier", (CLS, SEP), text_ids(run, run.tokenizer()).special)
    return run


def _texts(
    data: Path, test: Path | None, text_field: str, label_field: str, held_out: float
) -> tuple[LabelledTexts, LabelledTexts]:
    train = read_labelled(data, text_field, label_field)
    if len(set(train.labels)) < 2:
        raise ValueError(f"all texts of {data} have the label {train.labels[0]!r}: give some with another")
    if test is not None:
        tested = read_labelled(test, text_field, label_field)
        trained_on = set(train.texts)
        if known := sum(text in trained_on for text in tested.texts):
            warnings.warn(
                f"{known:,} of the {len(tested):,} texts of {test} are in {data} too: how well those are labelled says "
                "little of others",
                stacklevel=2,
            )
    elif 0 < held_out < 1:
        train, tested = train.hold_out(held_out)
    else:
        raise ValueError(f"--held-out is {held_out}: give a share above 0 and below 1, or --test a file")
    if not len(tested):
        raise ValueError(f"no text of {data} is held out: raise --held-out from {held_out:g}, or --test a file")
    if unknown := set(tested.labels) - set(train.labels):
        label = min(unknown, key=repr)
        raise ValueError(f"{test} has the label {label!r}, which no text of {data} has: remove it, or teach it")
    return train, tested


def show(result: dict[str, Any]) -> None:
    """Print what a classifier and its rivals make of the held-out texts, and its most frequent mistakes."""
    from pipelines.cli.display import answer, table

    texts, cut = result["texts"], result["cut"]
    answer(
        f"{texts['train']:,} texts to train on, {texts['test']:,} to test on, {result['labels']:,} labels; "
        f"{sum(cut.values()):,} texts were cut to {result['cut_to']:,} tokens"
    )
    names = {
        f"{result['run']}, fine-tuned" if result["checkpoint"] else "from scratch": result,
        "the same from scratch": result["scratch"],
        "naive Bayes": result["naive_bayes"],
        "most frequent label": result["most_frequent"],
    }
    rows = [
        (name, f"{n['accuracy']:.1%} ± {n['standard_error']:.1%}", f"{n['macro_f1']:.3f}", f"{n['cross_entropy']:.3f}")
        for name, n in names.items()
        if n
    ]
    table(("", "accuracy", "macro F1", "cross-entropy (nats)"), rows)
    if result["confusions"]:
        answer("most frequent mistakes:")
    for mistake in result["confusions"][:5]:
        answer(f"{mistake['times']:6,} times {mistake['label']!r} was taken for {mistake['predicted']!r}")


def main(arguments: list[str]) -> None:
    parse(finetune, arguments, "finetune", shown=show)
