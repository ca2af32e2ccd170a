"""Training: train a classifier from a trained encoder and labelled texts.

Examples:
    bytelm finetune runs/bert --data reviews.jsonl --out classifier
    bytelm finetune runs/bert --data train.jsonl --test test.jsonl --out labels
"""

from collections.abc import Mapping
from pathlib import Path
from typing import Annotated, Any

import tyro

from pipelines.cli.arguments import RunFolder
from pipelines.cli.process import PASSIVE_THREADS
from pipelines.cli.shell import command
from pipelines.cli.verbs import verb
from pipelines.recipes.config import FinetuneConfig
from pipelines.run.folder import holds_classifier, opened

ENVIRONMENT = PASSIVE_THREADS

SETTINGS = FinetuneConfig()

# Options by subject: in --help, and only in --help-all.
HELP = {
    "Texts": ("run data test text_field label_field", "held_out"),
    "Training": (
        "epochs batch_size lr device seed",
        "warmup weight_decay dropout pooling grad_clip dtype from_scratch compare_scratch",
    ),
    "Output": ("out overwrite", ""),
}


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
    """Train a classifier from a pretrained encoder; write it into `out` and return its evaluation.json.

    Raises ValueError for a run that is no encoder, and for texts that teach or test nothing.

    Args:
        data: Texts to train on, each with its label: .jsonl, .csv or .tsv, also .gz, .xz or .zst, or .parquet.
        test: Texts to test on. By default a part of `data` is held out.
        out: Folder of the classifier.
        text_field: Field of a row that holds the text.
        label_field: Field that holds its label, a string or a whole number.
        held_out: Share of the texts to hold out by their hash, without `test`.
        from_scratch: Start from random weights instead of the run's.
        compare_scratch: Also train the same model from random weights, which doubles the time.
        overwrite: Replace an existing classifier.
        settings: Settings of the training.
    """
    if out.exists() and not (overwrite and holds_classifier(out)):
        raise ValueError(f"{out} exists already: choose another `out` (or replace a classifier with `overwrite`)")
    found = opened(run)
    from pipelines.training.labelled_data import LabelledData, check_encoder

    check_encoder(found, settings)
    source = LabelledData(data=data, test=test, text_field=text_field, label_field=label_field, held_out=held_out)
    texts = source.read()
    from pipelines.training.finetuning import finetune_run  # imports PyTorch, which takes seconds

    result = finetune_run(
        found,
        source,
        texts,
        out,
        settings,
        from_scratch=from_scratch,
        compare_scratch=compare_scratch,
        overwrite=overwrite,
    )
    _print(result)
    return result


def next_step(given: Mapping[str, Any], _: Any) -> str:
    """Return the command that follows: it classifies a text."""
    return command("classify", given["out"], "TEXT")


def _print(result: dict[str, Any]) -> None:
    """Print the numbers of a classifier and its baselines, and its most frequent mistakes."""
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
    rows = [(name, _accuracy(n), f"{n['macro_f1']:.3f}", f"{n['cross_entropy']:.3f}") for name, n in names.items() if n]
    table(("", "accuracy", "macro F1", "cross-entropy (nats)"), rows)
    answer(
        "In brackets: 95 % intervals over the test texts. Each model was trained once: other seeds may give other "
        "numbers."
    )
    if result["confusions"]:
        answer("most frequent mistakes:")
    for mistake in result["confusions"][:5]:
        answer(f"{mistake['times']:6,} times {mistake['label']!r} was taken for {mistake['predicted']!r}")


def _accuracy(numbers: dict[str, Any]) -> str:
    low, high = numbers["accuracy_interval"]
    return f"{numbers['accuracy']:.1%} ({low:.1%} to {high:.1%})"
