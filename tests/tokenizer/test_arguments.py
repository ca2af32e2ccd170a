"""Every argument of the tokenizer's methods is checked: a wrong value raises ValueError that names the argument."""

import base64
import inspect

import numpy as np
import pyarrow as pa
import pytest

from tokenizer import Tokenizer, count_pretokens
from tokenizer.splitting.chains import Chain
from tokenizer.splitting.patterns import SUPERWORD_STEPS
from tokenizer.training.piece_rules import PieceRules
from tokenizer.training.train import TrainingOptions

CORPUS = ["the cat and the dog, the cat and the mouse " * 20]
WRONG = [object(), 3.5, "two", b"\xff", None, [object()], True, -1, {1: 2}, 10**30]
# Other words by which an error names an argument.
WORDS = {"ids": ["id"], "token": ["an id"], "corpus": ["text", "corpus", "two is"], "pieces": ["text", "PieceRules"]}
WORDS |= {"special_tokens": ["special token"], "array": ["pyarrow array"], "merges": ["merge"]}


@pytest.fixture(scope="module")
def bpe():
    return Tokenizer.train(CORPUS, 280)


@pytest.fixture(scope="module")
def unigram():
    return Tokenizer.train(CORPUS, 30, kind="unigram")


@pytest.fixture(scope="module")
def integers():
    return Tokenizer.train_ids([[1, 2, 300]] * 9, 310)


@pytest.fixture(scope="module")
def valid(bpe, tmp_path_factory):
    """Return a valid value of each required argument, by the method and the argument."""
    folder = tmp_path_factory.mktemp("arguments")
    (folder / "text.txt").write_text("the cat")
    ranks = {bpe.token_bytes(i): i - 5 for i in range(5, bpe.vocab_size)}
    lines = (base64.b64encode(token) + f" {rank}\n".encode() for token, rank in ranks.items())
    (folder / "ranks.tiktoken").write_bytes(b"".join(lines))
    shared = {"text": "the cat", "ids": [65], "token": 65, "batch": [[65]], "texts": ["the"], "n": 2, "alpha": 0.5}
    shared |= {"seed": 1, "dropout": 0.1, "folder": folder / "saved", "pieces": ["the"], "array": pa.array(["the"])}
    shared |= {"corpus": CORPUS, "vocab_size": 280, "special_tokens": ["<x>"], "pattern": "cl100k", "ranks": ranks}
    shared |= {"counts": count_pretokens(CORPUS, "cl100k"), "merges": bpe.merges}
    own = {("encode_file", "path"): folder / "text.txt", ("load", "path"): folder / "ranks.tiktoken"}
    own |= {(name, "sequences"): [[1, 2], [3]] for name in ("train_ids", "grow_ids")}
    own |= {("encode_ids", "sequence"): [1, 2], ("grow_ids", "entries"): 312}
    own |= {("load", "pattern"): "gpt2", ("grow", "entries"): bpe.vocab_size + 2}
    own |= {(name, "token"): "the" for name in ("encode_single_token", "token_to_id")}
    own |= {("from_merges", "vocabulary"): ranks, ("from_wordpiece", "vocabulary"): {"[UNK]": 0, "the": 1}}
    return shared, own


METHODS = [
    *("add_special_tokens", "added_bytes", "count", "decode", "decode_batch", "decode_bytes", "decode_tokens_bytes"),
    *("decode_with_offsets", "encode", "encode_arrow", "encode_batch", "encode_file", "encode_in_parts"),
    *(
        "decode_ids",
        "encode_ids",
        "encode_iterable",
        "encode_nbest",
        "encode_ordinary",
        "encode_sampled",
        "encode_single_token",
    ),
    *("encode_to_numpy", "encode_with_dropout", "encode_with_offsets", "from_merges", "from_ranks", "from_wordpiece"),
    *(
        "grow",
        "grow_ids",
        "id_to_token",
        "load",
        "log_likelihood",
        "save",
        "token_bytes",
        "token_to_id",
        "train",
        "train_from_counts",
        "train_ids",
    ),
    *("trim", "warm_up"),
]


def test_the_catalogue_holds_every_method_with_arguments():
    public = {name: value for name, value in inspect.getmembers(Tokenizer, callable) if not name.startswith("_")}
    with_arguments = {name for name, value in public.items() if set(inspect.signature(value).parameters) - {"self"}}
    assert with_arguments - {"cuts"} == {*METHODS}  # `cuts` is for the builder of datasets


@pytest.mark.parametrize("name", METHODS)
@pytest.mark.filterwarnings("ignore")
def test_every_wrong_argument_is_named(name, bpe, unigram, integers, valid, tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    tok = unigram if name in ("encode_nbest", "encode_sampled", "log_likelihood") else bpe
    tok = integers if name.endswith("_ids") else tok
    method, (shared, own) = getattr(tok, name), valid
    parameters = inspect.signature(method).parameters.values()
    options = TrainingOptions.__annotations__ if name.startswith("train") else {}
    named = [each for each in parameters if each.kind is not each.VAR_KEYWORD]
    required = {p.name: own.get((name, p.name), shared.get(p.name)) for p in named if p.default is p.empty}
    required |= {key: value for (method_name, key), value in own.items() if method_name == name}
    assert None not in required.values()
    for argument in [*(p.name for p in named), *options]:
        for value in WRONG:
            if argument == "corpus" and isinstance(value, str):
                continue  # a path
            try:
                result = method(**required | {argument: value})
                if inspect.isgenerator(result) or hasattr(result, "__next__"):
                    list(result)
            except ValueError as refusal:
                words = [argument, *WORDS.get(argument, [])]
                assert any(word in str(refusal) for word in words), (argument, value, str(refusal))
            except OSError as error:
                assert argument == "path" and "two" in str(error), (argument, value, error)


@pytest.mark.parametrize("name", ["split_digits", "required_chars", "character_coverage", "max_piece_length"])
def test_rules_of_pieces_are_named(name):
    for value in (object(), None, b"x", [1]):
        with pytest.raises(ValueError, match=f"^{name} must be "):
            PieceRules(**{name: value})


def test_whole_numbers_of_numpy_are_whole_numbers(bpe, unigram):
    assert bpe.encode("the cat", max_tokens=np.int64(1)) == bpe.encode("the cat")[:1]
    assert unigram.encode_nbest("the", np.int32(1)) == unigram.encode_nbest("the", 1)
    assert bpe.id_to_token(np.uint16(70)) == bpe.id_to_token(70)
    assert bpe.encode("the cat", max_tokens=10**30 // 10**12) == bpe.encode("the cat")


def test_more_threads_than_any_machine_has_are_refused(bpe):
    with pytest.raises(ValueError, match="threads must be at most 1,024, not 1025"):
        bpe.warm_up(1025)


@pytest.mark.parametrize("kind", ["bpe", "unigram", "wordpiece", "character-bpe", "words"])
@pytest.mark.parametrize("method", ["decode", "decode_tokens_bytes", "decode_with_offsets"])
def test_a_single_id_is_no_list_of_ids(kind, method):
    tok = Tokenizer.train(CORPUS, 300, kind=kind)
    with pytest.raises(ValueError, match="ids must be a list of ids, not 5"):
        getattr(tok, method)(5)


def test_a_list_within_a_list_of_special_tokens_is_named(bpe):
    with pytest.raises(ValueError, match=r"allowed_special must hold special tokens, not \['a'\]"):
        bpe.encode("a", allowed_special=[["a"]])


def test_counts_by_a_splitter_without_a_name_are_not_saved(tmp_path):
    counts = count_pretokens(CORPUS, Chain(SUPERWORD_STEPS))
    with pytest.raises(ValueError, match=r"counts by the splitter .* cannot be saved: it has no name"):
        counts.save(tmp_path / "counts.parquet")
