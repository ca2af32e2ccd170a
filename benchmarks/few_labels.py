"""Measure what pretraining adds where labels are few: an encoder from scratch, and pretrained on more and more tokens.

    python -m benchmarks.few_labels --books books.jsonl.xz [--folder FOLDER]

The encoder is `bert-tiny` with 2,048 entries. It is pretrained on the first four fifths of 60 books, or of the modules
of Python's standard library. Examples are from the last fifth of each book or module: the first two thirds of it for
training, the last third for tests. The same command with --folder resumes. The page keeps the rows of earlier commands.

| task    | learns                                                                               | compared by      |
|---------|--------------------------------------------------------------------------------------|------------------|
| ending  | whether a sentence without its last mark is a statement, a question or an exclamation | accuracy         |
| restore | the capitals and the punctuation of a text in lower case, as tags of its words        | accuracy of tags |
| python  | names, keywords, operators, numbers, strings and comments in Python source            | entity F1        |
"""

import json
import lzma
import random
import re
import sys
import sysconfig
import tempfile
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from pathlib import Path
from statistics import fmean
from typing import Any, Literal

import tyro

from benchmarks.harness import RESULTS, command_line, heading, machine, record, table
from benchmarks.tagged_text import python_examples, restore_examples
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
TESTED = {"ending": 600, "restore": 150, "python": 150}
SENTENCE = re.compile(r"(?<=[.!?\"'] )[A-Z][^.!?\"]{25,200}[.!?]")
DEFINITION = re.compile(r"^(def|class) ", re.MULTILINE)
ENDINGS = {".": "statement", "?": "question", "!": "exclamation"}
TAGS = {"question": "period", "exclamation": "period", "colon": "comma", "semicolon": "comma"}  # merges rare tags
SCRATCH, FROZEN = "from scratch", ", `--freeze 1`"
Row = dict[str, Any]


@dataclass(frozen=True, kw_only=True)
class Options:
    """Fine-tune an encoder on few labels, from scratch and pretrained."""

    books: Path
    """.jsonl.xz file of books"""
    tasks: tuple[Literal["ending", "restore", "python"], ...] = ("ending", "restore", "python")
    """Tasks to measure"""
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


def python_kinds(module: str) -> Iterator[Row]:
    """Yield the examples of `python_examples` in the functions and classes of a part of a module, except the last."""
    starts = [match.start() for match in DEFINITION.finditer(module)]
    if len(starts) > 1:
        yield from python_examples(module[starts[0] : starts[-1]])


def books(options: Options) -> list[str]:
    with lzma.open(options.books, "rt", encoding="utf-8") as file:
        return [json.loads(line)["text"] for line in file]


def modules(_: Options) -> list[str]:
    paths = sorted(Path(sysconfig.get_paths()["stdlib"]).glob("*.py"))
    return [path.read_text(encoding="utf-8") for path in paths]


@dataclass(frozen=True)
class Case:
    """A task with its texts and examples."""

    task: str
    texts: Callable[[Options], list[str]]
    examples: Callable[[str], Iterator[Row]]
    """From a part of a text to its examples"""
    number: str
    """Number to compare"""


CASES = {
    "ending": Case("classes", books, endings, "accuracy"),
    "restore": Case("tokens", books, restored, "accuracy of tags"),
    "python": Case("tokens", modules, python_kinds, "entity F1"),
}


def drawn(case: Case, parts: list[str], count: int) -> list[Row]:
    """Return `count` examples of parts of texts. If each has one label, all labels are equally frequent."""
    rows = [row for part in parts for row in case.examples(part)]
    random.Random(0).shuffle(rows)
    by_label: dict[str, list[Row]] = {}
    for row in rows:
        by_label.setdefault(row.get("label", ""), []).append(row)
    return [row for group in zip(*by_label.values(), strict=False) for row in group][:count]


def write(path: Path, rows: list[Row]) -> Path:
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_text("".join(json.dumps(row, ensure_ascii=False) + "\n" for row in rows), encoding="utf-8")
    return path


def pretrained(texts: list[str], tokens: int, folder: Path) -> Path:
    """Return the run of an encoder pretrained on `tokens` tokens of the first parts of `texts`."""
    tok, data, run = folder / "tokenizer", folder / "data", folder / f"pretrained-{tokens}"
    parts = [first_part(text) for text in texts]
    if not tok.exists():
        rows = [{"text": part} for part in parts]
        train_tokenizer([str(write(folder / "texts.jsonl", rows))], vocab_size=2048, out=tok)
    if not data.exists():
        rows = [{"text": part[at : at + PASSAGE]} for part in parts for at in range(0, len(part), PASSAGE)]
        passages = str(write(folder / "passages.jsonl", rows))
        build_dataset([passages], tokenizer=tok, context_length=256, split="hash:0.02", out=data)
    pretrain("bert-tiny", data=data, out=run, train={"tokens": tokens, "warmup_tokens": tokens // 20})
    return run


def measure(name: str, labels: int, options: Options, folder: Path) -> list[Row]:
    """Fine-tune an encoder from each start, and return rows with its number by seed and the baselines'."""
    case = CASES[name]
    texts = case.texts(options)
    folder /= case.texts.__name__
    last = [last_part(text) for text in texts]
    test = write(
        folder / f"{name}-test.jsonl", drawn(case, [part[len(part) * 2 // 3 :] for part in last], TESTED[name])
    )
    data = write(folder / f"{name}-{labels}.jsonl", drawn(case, [part[: len(part) * 2 // 3] for part in last], labels))
    runs = {f"{tokens:,} tokens": pretrained(texts, tokens, folder) for tokens in options.tokens}
    name_of_last, longest = list(runs.items())[-1]
    rows = []
    for start, run in {SCRATCH: longest, **runs, name_of_last + FROZEN: longest}.items():
        out = folder / "-".join([name, str(labels), *re.findall(r"\w+", start)])
        finetune(
            run,
            task=case.task,
            data=[data],
            test=[test],
            out=out,
            train={"freeze": 1} if start.endswith(FROZEN) else {},
            from_scratch=start == SCRATCH,
            compare_scratch=False,
            seeds=options.seeds,
        )
        evaluation = Evaluation.read(out)
        assert evaluation is not None
        (split,) = evaluation.all
        comparison, by_seed = split.find(Comparison), split.find(Seeds)
        assert comparison is not None
        rows.append(
            {
                "task": name,
                "labels": labels,
                "start": start,
                "nats": Run(run).metrics()[-1]["loss"],
                "by_seed": by_seed.numbers_of[case.number] if by_seed else [comparison.own[case.number]],
                "others": {other: values[case.number] for other, values in comparison.others.items()},
            }
        )
    return rows


def page(result: Row) -> str:
    """Return the tables as Markdown."""
    rows, starts = result["rows"], list(dict.fromkeys(row["start"] for row in result["rows"]))
    lines = heading("Few labels, with and without pretraining", result["command"], result["machine"]["processor"])
    lines += [
        "The mean over seeds of fine-tuning, and each seed. Under it: the validation loss of pretraining, in nats per "
        "masked token.",
        "",
    ]
    cells = []
    for task, labels in dict.fromkeys((row["task"], row["labels"]) for row in rows):
        of = {row["start"]: row for row in rows if (row["task"], row["labels"]) == (task, labels)}
        others = "; ".join(f"{name} {share:.3f}" for name, share in of[SCRATCH]["others"].items())
        cells.append((task, f"{labels:,}", others, *(shown(of.get(start)) for start in starts)))
    return "\n".join([*lines, *table(("task", "examples", "baselines", *starts), cells)]) + "\n"


def shown(row: Row | None) -> str:
    if row is None:
        return "–"
    nats = "" if row["start"] == SCRATCH else f"<br>{row['nats']:.2f} nats"
    return f"{fmean(row['by_seed']):.3f} ({', '.join(f'{value:.3f}' for value in row['by_seed'])}){nats}"


def main(options: Options) -> None:
    """Measure all tasks and record the results."""
    path = options.out / "few_labels.json"
    with tempfile.TemporaryDirectory() as temporary, show():
        for name in options.tasks:
            for labels in options.labels:
                rows = json.loads(path.read_text())["rows"] if path.exists() else []
                rows = [row for row in rows if (row["task"], row["labels"]) != (name, labels)]
                rows += measure(name, labels, options, options.folder or Path(temporary))
                command = command_line("benchmarks.few_labels", sys.argv[1:])
                result = {"machine": machine(), "command": command, "rows": rows}
                record(options.out, "few_labels", result, page(result))


if __name__ == "__main__":
    main(tyro.cli(Options))
