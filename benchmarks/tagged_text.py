"""Make examples with exact tags for the task `tokens`: spans of Python tokens, or restored punctuation and capitals.

    python -m benchmarks.tagged_text python --out FOLDER
    python -m benchmarks.tagged_text restore --corpus FILE --out FOLDER

`python` marks the tokens of the standard library's source, as `tokenize` finds them, as spans of characters. `restore`
removes punctuation and capitals of a text; the tags say what stood there. FOLDER gets train.jsonl and test.jsonl, a
tenth of the documents.
"""

import argparse
import io
import json
import keyword
import re
import sysconfig
import tokenize
from collections.abc import Iterator
from pathlib import Path
from typing import Any

LINES = 6  # of source in an example
WORDS = 40  # of text in an example
KINDS = {"NAME", "OP", "NUMBER", "STRING", "COMMENT"}
TEST_EVERY = 10  # documents


def python_examples(source: str) -> Iterator[dict[str, Any]]:
    """Yield parts of a module with the spans of its names, keywords, operators, numbers, strings and comments.

    A part ends only where no token continues.
    """
    starts = [0]
    for line in source.splitlines(keepends=True):
        starts.append(starts[-1] + len(line))
    spans = []
    for kind, first, last in _tokens(source):
        (begin, end) = (starts[row - 1] + column for row, column in (first, last))
        spans.append((begin, end, kind, first[0], last[0]))
    inside = {row for *_, first, last in spans for row in range(first + 1, last + 1)}
    first = 1
    for row in range(1, len(starts) + 1):
        if row == len(starts) or (row - first >= LINES and row not in inside):
            begin, end = starts[first - 1], starts[row - 1]
            entities = [[a - begin, b - begin, kind] for a, b, kind, *_ in spans if begin <= a < end]
            if entities:
                yield {"text": source[begin:end], "entities": entities}
            first = row


def _tokens(source: str) -> Iterator[tuple[str, tuple[int, int], tuple[int, int]]]:
    """Yield (kind, start, end) of the tokens of a module; Python 3.12 and newer cut formatted strings into tokens."""
    depth, begin = 0, (0, 0)
    for token in tokenize.generate_tokens(io.StringIO(source).readline):
        kind = tokenize.tok_name[token.type]
        if kind.endswith("STRING_START"):
            begin = token.start if not depth else begin
            depth += 1
        elif kind.endswith("STRING_END"):
            depth -= 1
            if not depth:
                yield "STRING", begin, token.end
        elif not depth and kind in KINDS:
            yield "KEYWORD" if kind == "NAME" and keyword.iskeyword(token.string) else kind, token.start, token.end


def restore_examples(text: str) -> Iterator[dict[str, Any]]:
    """Yield words in lower case without punctuation, and tags of what is removed: Upper, comma, Upper+period, O."""
    names = {",": "comma", ".": "period", "?": "question", "!": "exclamation", ":": "colon", ";": "semicolon"}
    words, tags = [], []
    for word in text.split():
        bare = word.strip(".,?!:;\"'()[]")
        if not bare:
            continue
        mark = names.get(re.sub("[\"')\\]]+$", "", word)[-1:])
        parts = [*(["Upper"] if bare[0].isupper() else []), *([mark] if mark else [])]
        words.append(bare.lower())
        tags.append("+".join(parts) or "O")
    for start in range(0, len(words), WORDS):
        yield {"tokens": words[start : start + WORDS], "tags": tags[start : start + WORDS]}


def write_examples(documents: Iterator[Iterator[dict[str, Any]]], folder: Path, most: int) -> None:
    """Write at most `most` examples to train.jsonl, and those of every tenth document to test.jsonl."""
    folder.mkdir(parents=True, exist_ok=True)
    counts = {"train": 0, "test": 0}
    with (folder / "train.jsonl").open("w") as train, (folder / "test.jsonl").open("w") as test:
        for number, document in enumerate(documents):
            name = "train" if number % TEST_EVERY else "test"
            for example in document:
                if counts[name] >= (most if name == "train" else max(1, most // TEST_EVERY)):
                    break
                (train if name == "train" else test).write(json.dumps(example, ensure_ascii=False) + "\n")
                counts[name] += 1
            if counts["train"] >= most:
                break
    print(f"{counts['train']:,} examples to train on and {counts['test']:,} to test on in {folder}")


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("kind", choices=["python", "restore"])
    parser.add_argument("--corpus", type=Path, nargs="+", help="text files for `restore`")
    parser.add_argument("--out", type=Path, required=True)
    parser.add_argument("--examples", type=int, default=5000)
    given = parser.parse_args()
    if given.kind == "restore" and not given.corpus:
        parser.error("name text files with --corpus")
    sources = given.corpus or sorted(Path(sysconfig.get_paths()["stdlib"]).glob("*.py"))
    make = python_examples if given.kind == "python" else restore_examples
    write_examples((make(path.read_text(encoding="utf-8")) for path in sources), given.out, given.examples)


if __name__ == "__main__":
    main()
