"""Measure what pretraining adds where labels are few: an encoder from scratch, and pretrained on more and more tokens.

    python -m benchmarks.few_labels --books books.jsonl.xz [--folder FOLDER]

The encoder is `bert-tiny` with 2,048 entries. It is pretrained on the first four fifths of 60 books. Examples are from
the last fifth of each book: the first two thirds of it for training, the last third for tests. The same command with
--folder resumes. The page keeps the rows of earlier commands.

| task    | learns                                                                               |
|---------|--------------------------------------------------------------------------------------|
| ending  | whether a sentence without its last mark is a statement, a question or an exclamation |
| restore | the capitals and the punctuation of a text in lower case, as tags of its words        |
"""

import json
import lzma
import random
import re
import sys
import tempfile
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from pathlib import Path
from statistics import fmean
from typing import Any

import tyro

from benchmarks.harness import RESULTS, command_line, heading, machine, record, table
from benchmarks.tagged_text import restore_examples
from benchmarks.tasks import first_part, last_part
from pipelines.cli.display import show
from pipelines.evaluation.results import Evaluation
from pipelines.run.folder import Run
from pipelines.tasks.comparison import Comparison
from pipelines.tasks.seeds import Seeds
from pipelines.verbs.build_dataset import build_dataset
from pipelines.verbs.finetune import finetune
from pipelines.verbs.pretrain import pretrain
from pipelines.verbs.train_tokenizer import train_tokenizer

PASSAGE = 20_000  # characters
TESTED = {"ending": 600, "restore": 150}
SENTENCE = re.compile(r"(?<=[.!?\"'] )[A-Z][^.!?\"]{25,200}[.!?]")
ENDINGS = {".": "statement", "?": "question", "!": "exclamation"}
TAGS = {"question": "period", "exclamation": "period", "colon": "comma", "semicolon": "comma"}  # merges rare tags
SCRATCH, FROZEN = "from scratch", ", `--freeze 1`"
Row = dict[str, Any]


@dataclass(frozen=True, kw_only=True)
class Options:
    """Fine-tune an encoder on few labels, from scratch and pretrained."""

    books: Path
    """.jsonl.xz file of books"""
    tokens: tuple[int, ...] = (400_000, 1_200_000, 4_000_000)
    """Numbers of tokens to pretrain on"""
    labels: tuple[int, ...] = (300,)
    """Numbers of examples to fine-tune on"""
    seeds: int = 3
    """Seeds of fine-tuning"""
    folder: Path | None = None
    """Work folder; existing parts are reused; default: a temporary folder"""
    out: Path = RESULTS / "finetune"
    """Results folder"""


def endings(book: str) -> Iterator[Row]:
    """Yield sentences without their last mark, and what the mark says."""
    for match in SENTENCE.finditer(" ".join(book.split())):
        yield {"text": match[0][:-1], "label": ENDINGS[match[0][-1]]}


def restored(book: str) -> Iterator[Row]:
    """Yield the examples of `restore_examples`, with fewer tags."""
    for row in restore_examples(book):
        yield {**row, "tags": ["+".join(TAGS.get(part, part) for part in tag.split("+")) for tag in row["tags"]]}


EXAMPLES: dict[str, tuple[str, Callable[[str], Iterator[Row]]]] = {
    "ending": ("classes", endings),
    "restore": ("tokens", restored),
}
"""The kind of each task, and its examples of a book"""


def drawn(name: str, books: list[str], count: int) -> list[Row]:
    """Draw `count` examples of `books`; those with one label have equally many of each."""
    rows = [row for book in books for row in EXAMPLES[name][1](book)]
    random.Random(0).shuffle(rows)
    by_label: dict[str, list[Row]] = {}
    for row in rows:
        by_label.setdefault(row.get("label", ""), []).append(row)
    return [row for group in zip(*by_label.values(), strict=False) for row in group][:count]


def write(path: Path, rows: list[Row]) -> Path:
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_text("".join(json.dumps(row, ensure_ascii=False) + "\n" for row in rows), encoding="utf-8")
    return path


def pretrained(books: list[str], tokens: int, folder: Path) -> Path:
    """Return the run of an encoder pretrained on `tokens` tokens of the first parts of `books`."""
    tok, data, run = folder / "tokenizer", folder / "data", folder / f"pretrained-{tokens}"
    parts = [first_part(book) for book in books]
    if not tok.exists():
        train_tokenizer(
            [str(write(folder / "books.jsonl", [{"text": part} for part in parts]))], vocab_size=2048, out=tok
        )
    if not data.exists():
        passages = [{"text": part[at : at + PASSAGE]} for part in parts for at in range(0, len(part), PASSAGE)]
        text = str(write(folder / "passages.jsonl", passages))
        build_dataset([text], tokenizer=tok, context_length=256, split="hash:0.02", out=data)
    pretrain("bert-tiny", data=data, out=run, train={"tokens": tokens, "warmup_tokens": tokens // 20})
    return run


def write_examples(books: list[str], labels: tuple[int, ...], folder: Path) -> None:
    """Write the examples of all tasks to `folder`."""
    parts = [last_part(book) for book in books]
    for name in EXAMPLES:
        tested = drawn(name, [part[len(part) * 2 // 3 :] for part in parts], TESTED[name])
        write(folder / f"{name}-test.jsonl", tested)
        for count in labels:
            write(folder / f"{name}-{count}.jsonl", drawn(name, [part[: len(part) * 2 // 3] for part in parts], count))


def measure(name: str, start: str, run: Path, labels: int, folder: Path, seeds: int) -> Row:
    """Fine-tune `run`, or the same model from scratch, and return the numbers by seed and the baselines'."""
    out = folder / "-".join([name, str(labels), *re.findall(r"\w+", start)])
    finetune(
        run,
        task=EXAMPLES[name][0],
        data=[folder / f"{name}-{labels}.jsonl"],
        test=[folder / f"{name}-test.jsonl"],
        out=out,
        train={"freeze": 1} if start.endswith(FROZEN) else {},
        from_scratch=start == SCRATCH,
        compare_scratch=False,
        seeds=seeds,
    )
    evaluation = Evaluation.read(out)
    assert evaluation is not None
    (split,) = evaluation.all
    comparison, by_seed = split.find(Comparison), split.find(Seeds)
    assert comparison is not None
    number = "accuracy" if name == "ending" else "accuracy of tags"
    numbers = by_seed.numbers_of[number] if by_seed else [comparison.own[number]]
    others = {other: values[number] for other, values in comparison.others.items()}
    return {"task": name, "labels": labels, "start": start, "by_seed": numbers, "others": others}


def page(result: Row) -> str:
    """Return the tables as Markdown."""
    rows, starts = result["rows"], list(dict.fromkeys(row["start"] for row in result["rows"]))
    lines = heading("Few labels, with and without pretraining", result["command"], result["machine"]["processor"])
    nats = ", ".join(f"{loss:.3f} after {tokens}" for tokens, loss in result["nats"].items())
    lines += [f"Validation loss of pretraining, in nats per masked token: {nats}.", ""]
    cells = []
    for task, labels in dict.fromkeys((row["task"], row["labels"]) for row in rows):
        of = {row["start"]: row for row in rows if (row["task"], row["labels"]) == (task, labels)}
        others = "; ".join(f"{name} {share:.3f}" for name, share in next(iter(of.values()))["others"].items())
        cells.append(
            (task, f"{labels:,}", others, *(shown(of[start]["by_seed"]) if start in of else "–" for start in starts))
        )
    return "\n".join([*lines, *table(("task", "examples", "baselines", *starts), cells)]) + "\n"


def shown(values: list[float]) -> str:
    return f"{fmean(values):.3f} ({', '.join(f'{value:.3f}' for value in values)})"


def main(options: Options) -> None:
    """Measure all tasks and record the results."""
    path = options.out / "few_labels.json"
    known = json.loads(path.read_text())["rows"] if path.exists() else []
    with lzma.open(options.books, "rt", encoding="utf-8") as file:
        books = [json.loads(line)["text"] for line in file]
    with tempfile.TemporaryDirectory() as temporary, show():
        folder = options.folder or Path(temporary)
        runs = {f"{tokens:,} tokens": pretrained(books, tokens, folder) for tokens in options.tokens}
        last, longest = list(runs.items())[-1]
        starts = {SCRATCH: longest, **runs, last + FROZEN: longest}
        nats = {name: Run(run).metrics()[-1]["loss"] for name, run in runs.items()}
        write_examples(books, options.labels, folder)
        rows = [
            measure(name, start, run, labels, folder, options.seeds)
            for labels in options.labels
            for name in EXAMPLES
            for start, run in starts.items()
        ]
    measured = {(row["task"], row["labels"]) for row in rows}
    result = {
        "machine": machine(),
        "command": command_line("benchmarks.few_labels", sys.argv[1:]),
        "nats": nats,
        "rows": [*(row for row in known if (row["task"], row["labels"]) not in measured), *rows],
    }
    record(options.out, "few_labels", result, page(result))
    print(page(result))


if __name__ == "__main__":
    main(tyro.cli(Options))
