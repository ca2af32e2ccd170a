"""Text: show the tokens of a text or a file.

Examples:
    bytelm tokenize "The quick brown fox" --tokenizer tokenizer
    bytelm tokenize --file poem.txt --tokenizer tokenizer --json
"""

import json
from collections.abc import Iterator
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import tyro

from pipelines.cli.arguments import AsJson, TokenizerPath, TokenizerPattern
from pipelines.cli.display import answer, count_text, write
from pipelines.cli.named_tokenizers import load_tokenizer
from pipelines.cli.process import read_standard_input
from pipelines.cli.verbs import verb
from pipelines.files import read_bytes

if TYPE_CHECKING:
    from typing import Literal

    import numpy as np

    from tokenizer import Tokenizer

OUT_OF_MEMORY = "give a shorter text"

SHORT_TEXT = 1000  # bytes; shorter texts are encoded without loading numba


@verb
def tokenize(
    text: Annotated[str | None, tyro.conf.Positional, tyro.conf.arg(metavar="[TEXT]")] = None,
    *,
    tokenizer: TokenizerPath,
    file: Path | None = None,
    pattern: TokenizerPattern = None,
    special: bool = False,
    dropout: float = 0,
    alpha: float | None = None,
    nbest: int | None = None,
    seed: int = 0,
    limit: int = 200,
    as_json: AsJson = False,
) -> "np.ndarray":
    """Print the tokens of a text or a file in colour, each above its id; return the ids, uint32.

    White space is printed as · (space), ⏎, ␍ and → (tab), and incomplete characters as \\xNN.

    Args:
        text: Text to tokenize; - reads standard input.
        file: File to read instead of a text; - reads standard input.
        special: Encode the spellings of special tokens as these tokens, not as text.
        dropout: Probability of dropping a merge (BPE dropout); not for wordpiece, unigram, words or characters.
        alpha: Inverse temperature, such as 0.1: draw a segmentation with a probability proportional to
            exp(ALPHA * score); unigram only.
        nbest: Number of best segmentations to print, each with its score in nats; unigram only. Meant for short
            texts: 200 segmentations of 400 kB take minutes.
        seed: Seed of `dropout` and `alpha`.
        limit: Maximum number of tokens to print; 0 prints all.
        as_json: Print all ids as a JSON array, and nothing else.
    """
    import numpy as np

    if (text is None) == (file is None):
        raise ValueError("give either a text or `file`")
    if limit < 0:
        raise ValueError(f"`limit` is {limit}, but must not be negative")
    tok = load_tokenizer(tokenizer, pattern)
    if special and not tok.special_tokens:
        raise ValueError(f"{tokenizer} has no special tokens: leave out `special`")
    if text == "-" or file == Path("-"):
        data = read_standard_input()
    else:
        data = read_bytes(file) if file else (text or "").encode("utf-8", "surrogateescape")
    if sum([bool(dropout), alpha is not None, nbest is not None]) > 1 or (nbest is not None and special):
        raise ValueError("give only one of `dropout`, `alpha` and `nbest`, and no `special` with `nbest`")
    if nbest is not None and nbest < 1:
        raise ValueError(f"`nbest` is {nbest}, but must be at least 1")
    if nbest is not None:
        return _show_best(tok, data, nbest, limit, as_json)
    ids = np.array(_encode(tok, data, "all" if special else (), dropout, alpha, seed), dtype=np.uint32)
    if as_json:
        write(json.dumps(ids.tolist()))
        return ids
    from pipelines.reporting.coloured_tokens import print_tokens

    print_tokens(tok, ids, limit)
    content = data.decode("utf-8", "replace")
    counts = count_text(len(ids), "token"), count_text(len(data), "byte"), count_text(len(content), "character")
    answer(f"{', '.join(counts)}; {', '.join(_fit(tok, content, len(data), ids))}")
    return ids


def _show_best(tok: "Tokenizer", data: bytes, n: int, limit: int, as_json: bool) -> "np.ndarray":
    """Print the n best segmentations with their scores; return the ids of the best one."""
    import numpy as np

    found = tok.encode_nbest(data, n)
    if as_json:
        write(json.dumps([{"ids": ids, "score": score} for ids, score in found]))
    else:
        from pipelines.reporting.coloured_tokens import print_tokens

        for ids, score in found:
            print_tokens(tok, np.array(ids, dtype=np.uint32), limit)
            answer(f"{count_text(len(ids), 'token')}, {score:.3f} nats")
    return np.array(found[0][0], dtype=np.uint32)


def _fit(tok: "Tokenizer", text: str, size: int, ids: "np.ndarray") -> Iterator[str]:
    """Yield the bytes per token, tokens per word, share of whole words and share of unknown tokens of a text."""
    import numpy as np
    import pyarrow as pa

    from pipelines.reporting.tokenizer_fit import fit_to_words, words_of

    # pa.array would import pandas.
    buffers = np.array([0, len(text.encode())]), text.encode()
    whole = pa.LargeStringArray.from_buffers(1, *map(pa.py_buffer, buffers))
    yield f"{size / max(1, len(ids)):.2f} bytes per token"
    found = fit_to_words(tok, words_of(pa.chunked_array([whole])), in_python=size <= SHORT_TEXT)
    if found["tokens_per_word"] is not None:
        yield f"{found['tokens_per_word']:.2f} tokens per word"
        yield f"{found['whole_words']:.0%} of the words whole"
    unknown = tok.vocabulary.unknown_id
    if unknown is not None and len(ids):
        yield f"{(ids == unknown).mean():.1%} unknown"


def _encode(
    tok: "Tokenizer",
    data: bytes,
    allowed: "Literal['all'] | tuple[()]",
    dropout: float,
    alpha: float | None,
    seed: int,
) -> "list[int] | np.ndarray":
    """Return the ids of a text. `allowed` special tokens are encoded as such, all others as text."""
    if alpha is not None:
        from pipelines.dataset.encoding import check_alpha

        check_alpha(alpha)
        return tok.encode_sampled(data, alpha, seed, allowed, ())
    if dropout:
        return tok.encode_with_dropout(data, dropout, seed, allowed, ())
    if len(data) <= SHORT_TEXT:
        return tok.encode(data, allowed, ())
    return tok.encode_to_numpy(data, allowed_special=allowed, disallowed_special=())
