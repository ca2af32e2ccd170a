"""Use: label texts with a classifier.

Examples:
    bytelm classify classifier "A fine film."
    bytelm classify classifier "Dull." "Delightful." --top 1 --json
"""

import io
import json
import sys
import warnings
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, TypedDict

import tyro

from pipelines.cli.arguments import AsJson, Device, Dtype
from pipelines.cli.display import answer, write
from pipelines.cli.errors import complain
from pipelines.cli.process import read_standard_input
from pipelines.cli.text_input import without_line_end
from pipelines.cli.verbs import verb
from pipelines.run.folder import holds_classifier

if TYPE_CHECKING:
    from corpora.labelled import Label


class RankedLabel(TypedDict):
    """A label and its probability."""

    label: "Label"
    probability: float


class Classified(TypedDict):
    """The classification of one text."""

    label: "Label"
    """The likeliest"""
    probability: float
    labels: list[RankedLabel]
    """The likeliest first"""
    cut: bool
    """Whether the text is longer than the classifier reads"""


@verb
def classify(
    classifier: Annotated[Path, tyro.conf.Positional, tyro.conf.arg(metavar="DIR")],
    text: Annotated[tuple[str, ...], tyro.conf.Positional, tyro.conf.arg(metavar="[TEXT ...]")] = (),
    *,
    top: int = 3,
    device: Device = "auto",
    dtype: Dtype = "float32",
    as_json: AsJson = False,
) -> list[Classified]:
    """Print the likeliest labels of texts, and return them.

    Args:
        classifier: Folder that bytelm finetune wrote.
        text: Texts to classify; by default the lines of standard input.
        top: Number of labels to show for each text.
        as_json: Print one JSON object per text, each on its own line.
    """
    if top < 1:
        raise ValueError(f"`top` is {top}, but must be at least 1")
    if not text and sys.stdin.isatty():
        complain("classify", "reading texts, one per line; Ctrl-D ends the input")
    texts = list(text) or _lines_of_standard_input()
    if not texts:
        raise ValueError("there are no texts: give one or several, or lines on standard input")
    if not holds_classifier(classifier):
        raise ValueError(f"{classifier} holds no classifier (bytelm finetune makes one): give the folder of its `out`")
    from pipelines.run.classifier import load_classifier  # imports PyTorch, which takes seconds

    model = load_classifier(classifier, device, dtype)
    cut = model.cut(texts)
    if count := sum(cut):
        warnings.warn(
            f"{count:,} of {len(texts):,} texts {'is' if count == 1 else 'are'} longer than the {model.room:,} tokens "
            "that the classifier reads: the rest was cut off",
            stacklevel=2,
        )
    results: list[Classified] = []
    for label, probabilities, is_cut in zip(*model.predict(texts), cut, strict=True):
        likeliest = (-probabilities).argsort(kind="stable")[:top].tolist()  # stable: ties in the order of `predict`
        ranked: list[RankedLabel] = [
            {"label": model.labels[i], "probability": float(probabilities[i])} for i in likeliest
        ]
        results.append({"label": label, "probability": float(probabilities.max()), "labels": ranked, "cut": is_cut})
    _print(texts, results, as_json)
    return results


def _lines_of_standard_input() -> list[str]:
    lines = []
    for number, line in enumerate(io.BytesIO(read_standard_input()), 1):
        try:
            lines.append(without_line_end(line.decode()))
        except UnicodeDecodeError as error:
            raise ValueError(f"line {number} of standard input is not UTF-8 ({error.reason}): convert it") from None
    return lines


def _print(texts: list[str], results: list[Classified], as_json: bool) -> None:
    for text, result in zip(texts, results, strict=True):
        if as_json:
            write(json.dumps(result, ensure_ascii=False))
        else:
            ranked = ", ".join(f"{label['label']} {label['probability']:.0%}" for label in result["labels"])
            answer(f"{ranked}: {' '.join(text.split())[:60]}")
