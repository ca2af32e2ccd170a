"""Questions in the nested JSON of SQuAD: data, paragraphs with a context, questions with answers."""

import json
from collections.abc import Iterator
from pathlib import Path
from typing import Any

from corpora.formats.text_files import text_pieces
from corpora.input_files import own_suffix, regular_size
from corpora.read_options import ReadOptions
from corpora.rows import Row


def is_squad_file(path: Path) -> bool:
    """Return whether the name of a file, also compressed, ends in .json."""
    return not path.is_dir() and own_suffix(path) == ".json"


def read_squad(path: Path) -> Iterator[Row]:
    """Yield a row for each question of SQuAD 1.1 or 2.0, with `id`, `title`, `context`, `question` and `answers`.

    `answers` are objects with `text` and `answer_start`; a question that is impossible has none. Raises ValueError with
    the file for other JSON.
    """
    regular_size(path)
    try:
        contents = json.loads(b"".join(text_pieces(path, ReadOptions())))
    except (ValueError, RecursionError) as error:
        raise ValueError(f"{path} is not JSON ({str(error).split(': line ')[0].lower()}): fix it") from None
    if not isinstance(contents, dict) or "data" not in contents:
        raise ValueError(f'{path} is not in the format of SQuAD: give {{"data": [...]}}, or rows in a .jsonl')
    for article in _list(contents, "data", f"{path}"):
        for paragraph in _list(article, "paragraphs", f"an article of {path}"):
            for question in _list(paragraph, "qas", f"a paragraph of {path}"):
                answers = [] if question.get("is_impossible") else question.get("answers")
                fields = {
                    "id": question.get("id"),
                    "title": article.get("title"),
                    "context": paragraph.get("context"),
                    "question": question.get("question"),
                    "answers": answers,
                }
                name = fields["id"] or fields["question"]
                present = {name: value for name, value in fields.items() if value is not None}
                yield Row(f"question {name!r:.60} of {path}", present)


def _list(value: dict[str, Any], name: str, place: str) -> list[dict[str, Any]]:
    found = value.get(name)
    if not isinstance(found, list) or not all(isinstance(one, dict) for one in found):
        raise ValueError(f'"{name}" of {place} is no list of objects: give a file in the format of SQuAD')
    return found
