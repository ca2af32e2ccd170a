"""`bytelm classify`: the labels that a fine-tuned classifier gives to texts."""

import io
import json
import sys
import warnings
from pathlib import Path
from typing import Annotated, Any

import tyro

from pipelines.cli.arguments import Device, Dtype
from pipelines.cli.errors import complain
from pipelines.cli.parsing import parse
from pipelines.cli.process import read_standard_input
from pipelines.cli.verbs import verb


@verb
def classify(
    classifier: Annotated[Path, tyro.conf.Positional, tyro.conf.arg(metavar="DIR")],
    text: Annotated[tuple[str, ...], tyro.conf.Positional, tyro.conf.arg(metavar="TEXT")] = (),
    *,
    top: int = 3,
    device: Device = "auto",
    dtype: Dtype = "float32",
    as_json: Annotated[bool, tyro.conf.arg(name="json")] = False,
) -> list[dict[str, Any]]:
    """Say which labels texts most likely have: for each a `label`, its `probability`, the likeliest `labels`, and
    whether the text was `cut`, being longer than the classifier reads.

    Args:
        classifier: Folder that bytelm finetune wrote.
        text: The texts; without any, each line of standard input is one.
        top: How many labels to show of each.
        device: Where to compute.
        dtype: Of activations and matrix products.
        as_json: Whether to print a JSON object a text, one a line.
    """
    if top < 1:
        raise ValueError(f"--top is {top}, but must be at least 1")
    if not text and sys.stdin.isatty():
        complain("classify", "reading texts, one a line; Ctrl-D ends them")
    texts = list(text) or _lines_of_standard_input()
    if not texts:
        raise ValueError("there is no text: give one or several, or lines on standard input")
    from pipelines.run.classifier import load_classifier

    model = load_classifier(classifier, device, dtype)
    cut = model.cut(texts)
    if times := sum(cut):
        warnings.warn(
            f"{times:,} of {len(texts):,} texts {'is' if times == 1 else 'are'} longer than the {model.room:,} tokens "
            "that the classifier reads: what follows them was cut off",
            stacklevel=2,
        )
    results = []
    for label, probabilities, is_cut in zip(*model.predict(texts), cut, strict=True):
        likeliest = (-probabilities).argsort(kind="stable")[:top].tolist()  # of equals the first, as in predict
        ranked = [{"label": model.labels[i], "probability": float(probabilities[i])} for i in likeliest]
        results.append({"label": label, "probability": float(probabilities.max()), "labels": ranked, "cut": is_cut})
    _show(texts, results, as_json)
    return results


def _lines_of_standard_input() -> list[str]:
    lines = []
    for number, line in enumerate(io.BytesIO(read_standard_input()), 1):
        try:
            lines.append(line.decode().rstrip("\r\n"))
        except UnicodeDecodeError as error:
            raise ValueError(f"line {number} of standard input is not UTF-8 ({error.reason}): convert it") from None
    return lines


def _show(texts: list[str], results: list[dict[str, Any]], as_json: bool) -> None:
    from pipelines.cli.display import answer, write

    for text, result in zip(texts, results, strict=True):
        if as_json:
            write(json.dumps(result, ensure_ascii=False))
        else:
            ranked = ", ".join(f"{label['label']} {label['probability']:.0%}" for label in result["labels"])
            answer(f"{ranked}: {' '.join(text.split())[:60]}")


def main(arguments: list[str]) -> None:
    parse(classify, arguments, "classify")
