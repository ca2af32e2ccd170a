"""Make a text and conversations for a tiny assistant: sums, dates, copying and spelling.

    python -m benchmarks.conversations --out my/questions [--count 20000] [--seed 0]

Writes three files. train.jsonl and test.jsonl have conversations of one to three questions with exact answers.
text.jsonl has the same kinds of facts as plain sentences, to pretrain on. No question in test.jsonl shares a number, a
date or a word with the other two files; the script reads its files again and checks this. The words come from Python's
documentation.
"""

import calendar
import json
import random
import re
import sys
from collections.abc import Iterable
from dataclasses import dataclass
from datetime import date, timedelta
from pathlib import Path
from pydoc_data.topics import topics

import tyro

MOST = 99  # the largest number to add
YEARS = range(1950, 2050)
TESTED = 0.2  # share of the numbers, dates and words that only the test has
FRAME = {"what", "the", "day", "after", "repeat", "spell", "word", "number", "plus", "minus"}  # words of questions
WORD = re.compile(r"\b[a-z]{3,8}\b")
ASKED = re.compile(r"What is (\d+) (?:plus|minus) (\d+)\?|the day after (\d+ \w+ \d+)\?|(?:Repeat|Spell) (\w+)\.")


@dataclass(frozen=True, kw_only=True)
class Options:
    """Make a text and conversations for a tiny assistant."""

    out: Path
    """Folder to write"""
    count: int = 20_000
    """Conversations to train on; the test has a tenth as many"""
    seed: int = 0
    """Seed of the questions"""


@dataclass(frozen=True)
class Things:
    """What the questions of one part are about."""

    numbers: list[int]
    days: list[date]
    words: list[str]


def parts(seed: int) -> tuple[Things, Things]:
    """Return what the training and what the test asks about."""
    random_ = random.Random(seed)
    days = [date(year, 1, 1) + timedelta(days) for year in YEARS for days in range(0, 365, 3)]
    words = sorted({word for text in topics.values() for word in WORD.findall(text)} - FRAME)
    halves: list[tuple[list, list]] = []  # type: ignore[type-arg]  # of numbers, days and words
    for things in (list(range(MOST + 1)), days, words):
        random_.shuffle(things)
        cut = round(TESTED * len(things))
        halves.append((things[cut:], things[:cut]))
    training, test = zip(*halves, strict=True)
    return Things(*training), Things(*test)


def question(things: Things, random_: random.Random) -> tuple[str, str, str]:
    """Return a question, its answer, and both as a sentence."""
    kind = random_.choice(("plus", "minus", "date", "copy", "spell"))
    if kind == "date":
        day = random_.choice(things.days)
        after = _spelled(day + timedelta(1))
        return f"What is the day after {_spelled(day)}?", after, f"The day after {_spelled(day)} is {after}."
    if kind in ("copy", "spell"):
        word = random_.choice(things.words)
        if kind == "copy":
            return f"Repeat {word}.", word, f"The word {word} is {word}."
        return f"Spell {word}.", "-".join(word), f"We spell {word} as {'-'.join(word)}."
    one, other = sorted((random_.choice(things.numbers), random_.choice(things.numbers)), reverse=True)
    result = one + other if kind == "plus" else one - other
    return f"What is {one} {kind} {other}?", str(result), f"The number {one} {kind} {other} is {result}."


def conversation(things: Things, random_: random.Random) -> list[dict[str, str]]:
    """Return the messages of one to three questions and their answers."""
    asked = [question(things, random_) for _ in range(random_.choice((1, 1, 2, 3)))]
    return [
        {"role": role, "content": content}
        for user, assistant, _ in asked
        for role, content in (("user", user), ("assistant", assistant))
    ]


def asked_about(questions: Iterable[str]) -> set[str]:
    """Return the numbers to add, the dates and the words in questions."""
    return {thing for text in questions for found in ASKED.finditer(text) for thing in found.groups() if thing}


def check(out: Path) -> None:
    """Exit with an error if a question in test.jsonl shares a number, a date or a word with the other files."""
    lines = {name: (out / f"{name}.jsonl").read_text(encoding="utf-8").splitlines() for name in ("train", "test")}
    sides = {
        name: asked_about(m["content"] for line in rows for m in json.loads(line)["messages"] if m["role"] == "user")
        for name, rows in lines.items()
    }
    text = (out / "text.jsonl").read_text(encoding="utf-8")
    facts = set(re.findall(r"number (\d+) ", text)) | set(re.findall(r"(?:plus|minus) (\d+) is", text))
    facts |= set(re.findall(r"The day after (\d+ \w+ \d+) is", text)) | set(re.findall(r"(?:word|spell) (\w+) ", text))
    if shared := sides["test"] & (sides["train"] | facts):
        sys.exit(f"the test asks about {', '.join(sorted(shared)[:5])}, which the other files have too")


def main(options: Options) -> None:
    """Write the files and check them."""
    options.out.mkdir(parents=True, exist_ok=True)
    training, test = parts(options.seed)
    random_ = random.Random(options.seed + 1)
    for name, things, count in (("train", training, options.count), ("test", test, max(1, options.count // 10))):
        rows = [json.dumps({"messages": conversation(things, random_)}) for _ in range(count)]
        (options.out / f"{name}.jsonl").write_text("\n".join(rows) + "\n", encoding="utf-8")
    documents = [" ".join(question(training, random_)[2] for _ in range(8)) for _ in range(options.count)]
    rows = [json.dumps({"text": document}) for document in documents]
    (options.out / "text.jsonl").write_text("\n".join(rows) + "\n", encoding="utf-8")
    check(options.out)
    print(f"{options.out}: {options.count:,} conversations, {max(1, options.count // 10):,} to test, text.jsonl")


def _spelled(day: date) -> str:
    return f"{day.day} {calendar.month_name[day.month]} {day.year}"


if __name__ == "__main__":
    main(tyro.cli(Options))
