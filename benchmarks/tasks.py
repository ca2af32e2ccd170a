"""Measure one result for each task of fine-tuning: its baselines, the same model from scratch, seeds and time.

    python -m benchmarks.tasks --corpora FOLDER [--tasks classes chat] [--work FOLDER]

FOLDER holds multilingual.jsonl.xz, books.jsonl.xz, enwiki.jsonl.xz and multi30k-en-de.*.jsonl.xz. A small model is
pretrained for each kind of text and fine-tuned on examples that this script makes from the texts. Every test example
comes from documents that no training saw. The same command continues after an interruption.
"""

import json
import lzma
import random
import re
import sys
import sysconfig
import time
from collections.abc import Callable, Iterable, Iterator, Mapping
from dataclasses import dataclass, field
from itertools import islice
from pathlib import Path
from statistics import fmean, stdev
from typing import Any

import tyro

from benchmarks import conversations, tagged_text
from benchmarks.harness import RESULTS, command_line, heading, machine, record, table
from pipelines.cli.display import show
from pipelines.evaluation.results import Evaluation
from pipelines.tasks.comparison import Comparison
from pipelines.tasks.seeds import Seeds
from pipelines.verbs.build_dataset import build_dataset
from pipelines.verbs.finetune import finetune
from pipelines.verbs.pretrain import pretrain
from pipelines.verbs.train_tokenizer import train_tokenizer

SENTENCE = re.compile(r"[^.!?]{40,300}[.!?]")
NUMBER = re.compile(r"\b\d{2,4}\b")
WORDS_TOO_COMMON = 3  # letters
Row = dict[str, Any]


@dataclass(frozen=True, kw_only=True)
class Options:
    """Fine-tune a small model for each task."""

    corpora: Path
    """Folder of the texts"""
    work: Path = Path("task-results")
    """Folder for examples, datasets and runs"""
    tasks: tuple[str, ...] = ()
    """Tasks to measure; all by default"""
    seeds: int = 3
    """Seeds of fine-tuning"""


@dataclass(frozen=True)
class Base:
    """A small pretrained model."""

    recipe: str
    texts: Callable[[Path], Iterable[str]]
    """From the folder of texts to the documents to pretrain on"""
    tokens: int
    entries: int = 4096
    settings: Mapping[str, object] = field(default_factory=dict)
    """Changes of the model"""
    tokenizer_of: str = ""
    """Another base whose tokenizer it takes, by default its own"""


@dataclass(frozen=True)
class Case:
    """A task with its base model and examples."""

    base: str
    examples: Callable[[Path, Path], None]
    """Writes train and test files, from the folder of texts to a folder"""
    what: str
    """What the model learns, for the table"""
    train: Mapping[str, object] = field(default_factory=dict)
    teacher: str = ""
    """Base that teaches it"""


def rows(path: Path) -> Iterator[Row]:
    """Yield the rows of a compressed JSON Lines file."""
    with lzma.open(path, "rt", encoding="utf-8") as file:
        yield from map(json.loads, file)


def write(folder: Path, train: Iterable[Row], test: Iterable[Row]) -> None:
    """Write train.jsonl and test.jsonl."""
    for name, examples in (("train", train), ("test", test)):
        lines = [json.dumps(row, ensure_ascii=False) for row in examples]
        (folder / f"{name}.jsonl").write_text("\n".join(lines) + "\n", encoding="utf-8")


# Texts to pretrain on. The last fifth of the books, articles and languages' texts is only for tests.


def languages(corpora: Path) -> dict[str, str]:
    """Return the text of each language: the language's documents in one string."""
    texts: dict[str, list[str]] = {}
    for row in rows(corpora / "multilingual.jsonl.xz"):
        texts.setdefault(row["lang"], []).append(row["text"])
    return {language: "\n".join(parts) for language, parts in texts.items()}


def first_part(text: str) -> str:
    """Return the part for training."""
    return text[: len(text) * 4 // 5]


def last_part(text: str) -> str:
    """Return the part for tests."""
    return text[len(text) * 4 // 5 :]


def multilingual_text(corpora: Path) -> Iterable[str]:
    return (first_part(text)[:200_000] for text in languages(corpora).values())


def books(corpora: Path) -> list[str]:
    return [row["text"] for row in rows(corpora / "books.jsonl.xz")]


def training_books(corpora: Path) -> list[str]:
    return books(corpora)[:48]


def articles(corpora: Path) -> list[str]:
    return [row["text"] for row in islice(rows(corpora / "enwiki.jsonl.xz"), 600)]


def training_articles(corpora: Path) -> list[str]:
    return articles(corpora)[:480]


def python_modules(_: Path) -> Iterable[str]:
    """Yield the modules of the standard library that `tagged_text` does not test on."""
    paths = sorted(Path(sysconfig.get_paths()["stdlib"]).glob("*.py"))
    return (path.read_text(encoding="utf-8") for i, path in enumerate(paths) if i % tagged_text.TEST_EVERY)


def sentence_pairs(corpora: Path) -> Iterable[str]:
    return (row[name] for row in rows(corpora / "multi30k-en-de.train.jsonl.xz") for name in ("en", "de"))


def facts(corpora: Path) -> Iterable[str]:
    """Yield the sentences of `conversations`, which have no test question."""
    training, _ = conversations.parts(0)
    random_ = random.Random(1)
    for _number in range(10_000):
        yield " ".join(conversations.question(training, random_)[2] for _ in range(8))


# Examples. Each function writes train and test files.


def language_examples(corpora: Path, folder: Path) -> None:
    """Passages of 60 characters with their language. Most texts are translations of one handbook."""
    random_ = random.Random(0)
    both: list[list[Row]] = [[], []]
    for language, text in languages(corpora).items():
        for side, part, count in ((0, first_part(text), 40), (1, last_part(text), 40)):
            starts = (random_.randrange(len(part) - 60) for _ in range(count))
            both[side] += [{"text": part[start : start + 60], "label": language} for start in starts]
    write(folder, *both)


def readability(text: str) -> float:
    """Return the reading ease of a text (Flesch 1948), with vowel groups as syllables."""
    words = re.findall(r"[A-Za-z']+", text)
    syllables = sum(max(1, len(re.findall(r"[aeiouy]+", word.lower()))) for word in words)
    sentences = max(1, len(re.findall(r"[.!?]+", text)))
    return 206.835 - 1.015 * len(words) / sentences - 84.6 * syllables / max(1, len(words))


def readability_examples(corpora: Path, folder: Path) -> None:
    """Passages of books with their reading ease."""
    both = ([row for text in part for row in _passages(text, 30)] for part in _both_parts(books(corpora)))
    write(folder, *both)


def _passages(text: str, count: int) -> Iterator[Row]:
    random_ = random.Random(len(text))
    for _ in range(count):
        start = random_.randrange(max(1, len(text) - 600))
        passage = " ".join(text[start : start + 600].split())
        yield {"text": passage, "score": round(readability(passage), 2)}


def continuation_examples(corpora: Path, folder: Path) -> None:
    """A sentence of a book, and the next sentence among three others of the same book."""
    write(folder, *([row for text in part for row in _continuations(text)] for part in _both_parts(books(corpora))))


def _continuations(text: str) -> Iterator[Row]:
    random_ = random.Random(len(text))
    sentences = [" ".join(sentence.split()) for sentence in SENTENCE.findall(text)]
    for _ in range(20):
        at = random_.randrange(len(sentences) - 1)
        choices = [sentences[at + 1], *random_.sample(sentences, 3)]
        order = random_.sample(range(4), 4)
        yield {
            "question": sentences[at],
            "choices": [choices[number] for number in order],
            "answer": order.index(0),
        }


def python_tags(_: Path, folder: Path) -> None:
    """Names, keywords, operators, numbers, strings and comments in Python's source."""
    sources = sorted(Path(sysconfig.get_paths()["stdlib"]).glob("*.py"))
    documents = (tagged_text.python_examples(path.read_text(encoding="utf-8")) for path in sources)
    tagged_text.write_examples(documents, folder, 3000)


def cloze_examples(corpora: Path, folder: Path) -> None:
    """A sentence of an article without its number, and the paragraph that has the number, or another paragraph."""
    write(folder, *([row for text in part for row in _clozes(text)] for part in _both_parts(articles(corpora))))


def _clozes(text: str) -> Iterator[Row]:
    random_ = random.Random(len(text))
    paragraphs = [paragraph for paragraph in text.split("\n") if 200 < len(paragraph) < 900]
    found = []
    for paragraph in paragraphs:
        for sentence in SENTENCE.finditer(paragraph):
            numbers = [match for match in NUMBER.finditer(sentence[0]) if paragraph.count(match[0]) == 1]
            if numbers and len(NUMBER.findall(paragraph)) > 2:
                number = random_.choice(numbers)
                words = [word for word in re.findall(r"\w+", sentence[0]) if len(word) > WORDS_TOO_COMMON]
                asked = " ".join(random_.sample(words, min(8, len(words))))
                if number[0] not in asked:
                    found.append((asked, paragraph, number[0]))
    for asked, paragraph, number in random_.sample(found, min(4, len(found))):
        if random_.random() < 0.2 and len(paragraphs) > 1:
            other = random_.choice([p for p in paragraphs if p != paragraph])
            yield {"question": asked, "context": other, "answers": {"text": [], "answer_start": []}}
        else:
            start = paragraph.index(number)
            yield {"question": asked, "context": paragraph, "answers": {"text": [number], "answer_start": [start]}}


def translation_examples(corpora: Path, folder: Path) -> None:
    """Descriptions of pictures in German and English."""
    both = (rows(corpora / f"multi30k-en-de.{name}.jsonl.xz") for name in ("train", "test"))
    write(folder, *([{"source": row["de"], "target": row["en"]} for row in islice(part, 15_000)] for part in both))


def conversation_examples(_: Path, folder: Path) -> None:
    """Sums, dates, copying and spelling; no test question shares a number, a date or a word with training."""
    conversations.main(conversations.Options(out=folder, count=4000))


def preference_examples(_: Path, folder: Path) -> None:
    """Questions with the right answer, preferred to an answer with one character changed."""
    random_ = random.Random(2)
    write(
        folder,
        *(
            [_preference(things, random_) for _ in range(count)]
            for things, count in zip(conversations.parts(0), (2000, 400), strict=True)
        ),
    )


def _preference(things: conversations.Things, random_: random.Random) -> Row:
    question, answer, _ = conversations.question(things, random_)
    wrong = answer
    while wrong == answer:
        at = random_.randrange(len(answer))
        letters = "0123456789" if answer[at].isdigit() else "abcdefghijklmnopqrstuvwxyz"
        wrong = answer[:at] + random_.choice(letters) + answer[at + 1 :]
    ask = [{"role": "user", "content": question}]
    say = [[{"role": "assistant", "content": text}] for text in (answer, wrong)]
    return {"prompt": ask, "chosen": say[0], "rejected": say[1]}


def book_pieces(corpora: Path, folder: Path) -> None:
    """Parts of books, to learn from a teacher."""
    both = (
        [{"text": text[at : at + 4000]} for text in part for at in range(20_000, 60_000, 4000)]
        for part in _both_parts(books(corpora))
    )
    write(folder, *both)


def _both_parts(documents: list[str]) -> tuple[list[str], list[str]]:
    cut = len(documents) * 4 // 5
    return documents[:cut], documents[cut:]


BASES = {
    "multilingual-bert": Base("bert-tiny", multilingual_text, 1_000_000),
    "books-bert": Base("bert-tiny", training_books, 1_000_000),
    "code-bert": Base("bert-tiny", python_modules, 1_000_000),
    "wiki-bert": Base("bert-tiny", training_articles, 1_000_000),
    "pairs-t5": Base("t5-tiny", sentence_pairs, 1_000_000),
    "facts-gpt": Base("gpt-tiny", facts, 1_500_000, entries=261, settings={"layers": 4}),
    "books-gpt": Base("gpt-tiny", training_books, 1_000_000),
    "small-gpt": Base(
        "gpt-tiny", training_books, 500_000, settings={"layers": 1, "width": 64}, tokenizer_of="books-gpt"
    ),
}
CASES = {
    "classes": Case("multilingual-bert", language_examples, "language of 60 characters, 24 languages", {"epochs": 8}),
    "regression": Case("books-bert", readability_examples, "reading ease (Flesch) of 600 characters", {"epochs": 5}),
    "choices": Case("books-bert", continuation_examples, "the next sentence of a book among 4", {"epochs": 3}),
    "tokens": Case("code-bert", python_tags, "kinds of tokens in Python source", {"epochs": 3}),
    "spans": Case("wiki-bert", cloze_examples, "the number that a sentence of the paragraph had", {"epochs": 3}),
    "text-to-text": Case("pairs-t5", translation_examples, "German to English (Multi30k)", {"epochs": 2}),
    "chat": Case("facts-gpt", conversation_examples, "sums, dates, copying, spelling", {"epochs": 3}),
    "preferences": Case("chat", preference_examples, "right answers over wrong ones", {"epochs": 1}),
    "distillation": Case(
        "small-gpt", book_pieces, "half the width of gpt-tiny, its teacher", {"epochs": 2}, "books-gpt"
    ),
}


def base_run(name: str, options: Options) -> Path:
    """Return the folder of a pretrained run. Steps that an earlier call finished are not repeated."""
    base, folder = BASES[name], options.work / "bases" / name
    out, tok, data, text = (folder / part for part in ("run", "tok", "data", "text.jsonl"))
    folder.mkdir(parents=True, exist_ok=True)
    if not data.exists():
        documents = (json.dumps({"text": document}) + "\n" for document in base.texts(options.corpora))
        text.write_text("".join(documents), encoding="utf-8")
        if base.tokenizer_of:
            tok = base_run(base.tokenizer_of, options)
        elif not tok.exists():
            sentinels = 100 if base.recipe == "t5-tiny" else 0
            train_tokenizer([str(text)], vocab_size=base.entries, sentinels=sentinels, out=tok)
        build_dataset([str(text)], tokenizer=tok, context_length=256, out=data)
    pretrain(base.recipe, data=data, out=out, model=base.settings, train={"tokens": base.tokens})
    return out


def measure(name: str, options: Options) -> Row:
    """Return the numbers of a task: the run's by seed, the baselines', and the minutes of fine-tuning."""
    case, folder = CASES[name], options.work / name
    base = options.work / case.base / "run" if case.base in CASES else base_run(case.base, options)
    task = {"teacher": str(base_run(case.teacher, options))} if case.teacher else {}
    if not folder.exists():
        folder.mkdir(parents=True)
        case.examples(options.corpora, folder)
    started = time.monotonic()
    out = folder / "run"
    finetune(
        base,
        task=name,
        data=[folder / "train.jsonl"],
        test=[folder / "test.jsonl"],
        out=out,
        seeds=options.seeds,
        train=dict(case.train),
        options=task,
    )
    evaluation = Evaluation.read(out)
    assert evaluation is not None
    (split,) = evaluation.all
    comparison, seeds = split.find(Comparison), split.find(Seeds)
    assert comparison is not None and seeds is not None
    return {
        "task": name,
        "what": case.what,
        "base": case.base,
        "train": sum(1 for _ in (folder / "train.jsonl").open(encoding="utf-8")),
        "test": sum(1 for _ in (folder / "test.jsonl").open(encoding="utf-8")),
        "number": comparison.number,
        "by_seed": seeds.numbers_of,
        "others": comparison.others,
        "minutes": round((time.monotonic() - started) / 60, 2),
    }


def page(result: Mapping[str, Any]) -> str:
    """Return the table of all tasks as Markdown."""
    lines = []
    for row in result["rows"]:
        values = [value for value in row["by_seed"][row["number"]] if value is not None]
        own = f"{fmean(values):.3f} ± {stdev(values):.3f}" if len(values) > 1 else f"{values[0]:.3f}"
        others = [f"{name} {rounded(numbers.get(row['number']))}" for name, numbers in row["others"].items()]
        examples = f"{row['train']:,} / {row['test']:,}"
        lines.append(
            (row["task"], row["what"], examples, row["number"], own, "; ".join(others), f"{row['minutes']:.1f}")
        )
    head = ("task", "learns", "examples: train / test", "number", "mean ± deviation", "others", "minutes")
    where = result["machine"]
    on = f"{where['processor']}, {where['cores']} cores"
    return "\n".join([*heading("One result for each task", result["command"], on), *table(head, lines)]) + "\n"


def rounded(value: float | None) -> str:
    return "–" if value is None else f"{value:.3f}"


def main(options: Options) -> None:
    """Measure the tasks and record the results."""
    path = RESULTS / "tasks" / "tasks.json"
    known = {row["task"]: row for row in json.loads(path.read_text())["rows"]} if path.exists() else {}
    for name in options.tasks or CASES:
        with show():
            known[name] = measure(name, options)
        rows_ = [known[task] for task in CASES if task in known]
        result = {"machine": machine(), "command": command_line("benchmarks.tasks", sys.argv[1:]), "rows": rows_}
        record(RESULTS / "tasks", "tasks", result, page(result))


if __name__ == "__main__":
    main(tyro.cli(Options))
