"""The first merges of a trained tokenizer as a table: the pair, its count, and a word before and after."""

from typing import Any

from pipelines.cli.console import messages
from pipelines.cli.display import say, table
from pipelines.cli.escapes import visible
from pipelines.reporting.token_labels import LONGEST_EXAMPLE, shorten
from tokenizer import PretokenCounts, Tokenizer
from tokenizer.training.replay import replay


def trace_of(tok: Tokenizer, counts: PretokenCounts, most: int, merge_by: str) -> list[dict[str, Any]]:
    """Return a row for each of the first `most` merges. Tokens are visible text, of at most 1,000 bytes each.

    counts: the pretokens that `tok` was trained on. With `merge_by` "likelihood", rows also have it as `score`.
    """
    return [
        {
            "merge": number,
            "left": _show(merge.left),
            "right": _show(merge.right),
            "count": merge.count,
            **({"score": merge.likelihood} if merge_by == "likelihood" else {}),
            "token": _show(merge.token),
            "word_count": merge.word_count,
            "before": [_show(token) for token in merge.before],
            "after": [_show(token) for token in merge.after],
        }
        for number, merge in enumerate(replay(counts, tok.vocabulary, most), 1)
    ]


def show_trace(rows: list[dict[str, Any]]) -> None:
    """Print the rows of `trace_of` as a table."""
    say("")
    if not rows:
        say("the vocabulary has no merges to trace")
        return
    scores = ["score"] if "score" in rows[0] else []
    width = max(len("count"), *(len(f"{row['count']:,}") for row in rows))
    heads = ("merge", "pair", f"{'count':>{width}}", *scores, "token", "in a word", "becomes")
    cells = [
        (
            f"{row['merge']:>5,}",
            _line([row["left"], row["right"]]),
            f"{row['count']:>{width},}",
            *(f"{row[score]:.3g}" for score in scores),
            shorten(row["token"]),
            _line(row["before"]),
            _line(row["after"]),
        )
        for row in rows
    ]
    table(heads, cells, text=True, to=messages)


def _show(token: bytes) -> str:
    return visible(token[:LONGEST_EXAMPLE])


def _line(tokens: list[str]) -> str:
    return " ".join(map(shorten, tokens))
