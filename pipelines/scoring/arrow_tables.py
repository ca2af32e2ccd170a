"""Convert scores to Arrow tables, for JSON and Parquet. Tokens that were not scored have nulls."""

import json
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow as pa
import pyarrow.parquet

from lm.metrics.units import bits
from pipelines.scoring.choices import ChoiceScores
from pipelines.scoring.minimal_pairs import PairScores
from pipelines.scoring.predictions import Predictions
from pipelines.scoring.questions import QuestionScores
from pipelines.scoring.texts import TextScore
from pipelines.training.batch import Array
from tokenizer import Tokenizer
from tokenizer.formats.whole_files import whole_file


def totals_of(score: TextScore) -> dict[str, Any]:
    """Return the totals of a text, its start ids, and the window and stride in tokens.

    The surprisal of all words is that of all tokens plus `end_of_last_word_bits`, null without words.
    """
    return {
        "measure": score.measure,
        "tokens": score.tokens,
        "bytes": score.bytes,
        "log_probability_nats": score.log_probability,
        "log_probability_bits": score.log_probability_bits,
        "perplexity": score.perplexity,
        "bits_per_byte": score.bits_per_byte,
        "bits_per_original_byte": score.bits_per_original_byte,
        "end_of_last_word_bits": None if score.words is None else bits(-score.words.end) + 0.0,
        "start_ids": list(score.before),
        "window": score.window,
        "stride": score.stride,
        "rolling": score.rolling,
    }


def token_table(score: TextScore, tok: Tokenizer) -> pa.Table:
    """Return one row for each token of a text. If the tokenizer loses text, `bytes` are null."""
    spelled = [tok.token_bytes(i) for i in score.ids.tolist()]
    known = spelled if tok.is_lossless else [None] * len(spelled)
    columns = {"text": _texts(spelled), "bytes": pa.array(known, pa.binary()), "id": pa.array(score.ids)}
    return pa.table(columns | _prediction_columns(score.predictions, tok))


def word_table(score: TextScore) -> pa.Table:
    """Return one row for each word of a text. If the tokenizer loses text, `bytes` are null."""
    words = score.words
    assert words is not None
    pieces = [b"".join(score.pieces[start:end]) for start, end in zip(words.starts, words.ends, strict=True)]
    known = [None] * len(pieces) if score.byte_lengths is None else pieces
    return pa.table(
        {
            "text": _texts(pieces),
            "bytes": pa.array(known, pa.binary()),
            "first_token": pa.array(words.starts),
            "tokens": pa.array(words.ends - words.starts),
            "surprisal_bits": _bits(words.log_probabilities),
            "token_sum_bits": _bits(words.token_sums),
        }
    )


def choice_table(scores: ChoiceScores) -> pa.Table:
    """Return one row for each choice in the order given, with log-probabilities in nats."""
    return pa.table(
        {
            "choice": pa.array(scores.choices, pa.string()),
            "log_probability": pa.array(scores.log_probabilities),
            "per_token": pa.array(scores.per_token),
            "per_byte": pa.array(scores.per_byte),
            "tokens": pa.array(scores.tokens),
            "bytes": pa.array(scores.bytes),
            "greedy": pa.array(scores.greedy),
        }
    )


def row_table(scores: PairScores | QuestionScores) -> pa.Table:
    """Return one row for each minimal pair or question, with log-probabilities in nats."""
    return pa.Table.from_pylist(scores.rows())


def rows_of(table: pa.Table) -> list[dict[str, Any]]:
    """Return the rows of a table for JSON, with bytes as lists of numbers."""
    rows: list[dict[str, Any]] = table.to_pylist()
    return [{name: list(v) if isinstance(v, bytes) else v for name, v in row.items()} for row in rows]


def write_parquet(path: Path, table: pa.Table, totals: dict[str, Any]) -> None:
    """Replace `path` with a Parquet file of the table. The metadata key `bytelm` of the schema has `totals` as JSON."""
    with whole_file(path) as partial:
        pyarrow.parquet.write_table(table.replace_schema_metadata({"bytelm": json.dumps(totals)}), partial)


def _prediction_columns(made: Predictions, tok: Tokenizer) -> dict[str, pa.Array]:
    missing = made.ranks == 0
    count, top = made.top_ids.shape
    offsets = pa.array(np.arange(count + 1, dtype=np.int32) * top)
    candidates = pa.StructArray.from_arrays(
        [
            _texts([_bytes_of(tok, i) for i in made.top_ids.ravel().tolist()]),
            pa.array(made.top_ids.ravel()),
            pa.array(np.exp(made.top_log_probabilities.ravel()), from_pandas=True),
        ],
        ["text", "id", "probability"],
    )
    return {
        "surprisal_bits": _bits(made.log_probabilities),
        "entropy_bits": _bits(-made.entropies),
        "rank": pa.array(made.ranks, mask=missing),
        "probability": pa.array(np.exp(made.log_probabilities), from_pandas=True),
        "top": pa.ListArray.from_arrays(offsets, candidates, mask=pa.array(missing)),
    }


def _bits(log_probabilities: Array) -> pa.Array:
    return pa.array(log_probabilities / -np.log(2.0) + 0.0, from_pandas=True)  # + 0.0: no negative zero


def _texts(pieces: list[bytes]) -> pa.Array:
    return pa.array([piece.decode(errors="replace") for piece in pieces], pa.string())


def _bytes_of(tok: Tokenizer, token: int) -> bytes:
    """Return the bytes of a candidate; empty for an id that the tokenizer does not use."""
    try:
        return tok.token_bytes(token)
    except ValueError:
        return b""
