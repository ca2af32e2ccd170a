"""BPE models of SentencePiece give the ids and decoded texts of sentencepiece."""

import io
import random

import pytest
import sentencepiece
from hypothesis import given, settings
from hypothesis import strategies as st
from sentencepiece import sentencepiece_model_pb2

from tests.tokenizer.test_sentencepiece_models import NASTY, OPTIONS, POOL, both_of, random_texts
from tokenizer import Tokenizer

LOSSLESS = {"normalization_rule_name": "identity", "remove_extra_whitespaces": False, "byte_fallback": True}
BPE_OPTIONS = OPTIONS | {
    "llama": LOSSLESS | {"split_digits": True, "allow_whitespace_only_pieces": True},
    "gemma": LOSSLESS | {"add_dummy_prefix": False, "user_defined_symbols": ["\n", "\n\n", "▁▁", "  ", "<b>"]},
    "phrases": {"split_by_whitespace": False},
}


def trained(options):
    model = io.BytesIO()
    words = "the of and to a in that is was he for it with as his on be at by I this had not are but from or have an"
    texts = [f"{a} {b}{a} {b}" for a in words.split() for b in words.split()]
    sentencepiece.SentencePieceTrainer.train(
        sentence_iterator=iter([*texts, *["日本語 テスト", "naïve Ünïcödé", "----- *** =====  x", "12 345"] * 30]),
        model_writer=model,
        model_type="bpe",
        vocab_size=420,
        hard_vocab_limit=False,
        minloglevel=2,
        **BPE_OPTIONS[options],
    )
    return model.getvalue()


@pytest.fixture(scope="module", params=[*BPE_OPTIONS, "spaces"])
def both(request, tmp_path_factory):
    content = trained("plain" if request.param == "spaces" else request.param)
    if request.param == "spaces":
        model = sentencepiece_model_pb2.ModelProto.FromString(content)
        model.normalizer_spec.escape_whitespaces = False
        content = model.SerializeToString()
    return both_of(content, tmp_path_factory.mktemp("model"))


@pytest.mark.parametrize("warm", [False, True], ids=["python", "kernels"])
def test_ids_and_texts_are_those_of_sentencepiece(both, warm):
    ours, peer = both
    ours = Tokenizer(ours.vocabulary)
    if warm:
        ours.warm_up(1)
    texts = [*NASTY, *random_texts(300, 0)]
    ids = peer.encode(texts)
    assert ours.encode_batch(texts, disallowed_special=()) == ids
    assert [ours.encode_ordinary(text) for text in texts] == ids
    assert ours.decode_batch(ids) == peer.decode(ids)


@settings(max_examples=60, deadline=None)
@given(text=st.lists(st.sampled_from([*POOL, "\n\n", "<b>", "  ", "12"]), max_size=40).map("".join))
def test_random_texts_have_the_ids_of_sentencepiece(both, text):
    ours, peer = both
    ours.warm_up(1)
    ids = peer.encode(text)
    assert ours.encode_ordinary(text) == ids
    assert ours.count(text, disallowed_special=()) == len(ids)
    assert list(ours.encode_iterable(iter([text[:5], text[5:]]), disallowed_special=())) == ids


def test_a_saved_model_is_the_file_that_was_read(both, tmp_path):
    ours, _ = both
    ours.save(tmp_path)
    assert (tmp_path / "tokenizer.model").read_bytes() == ours.vocabulary.source
    assert Tokenizer.load(tmp_path) == ours


def test_new_special_tokens_are_control_pieces(both, tmp_path):
    ours, _ = both
    more = ours.add_special_tokens(["<x>"])
    more.save(tmp_path)
    peer = sentencepiece.SentencePieceProcessor(model_file=str(tmp_path / "tokenizer.model"))
    assert more.special_tokens["<x>"] == peer.piece_to_id("<x>") == ours.vocab_size
    assert more.encode_ordinary("the <x>") == peer.encode("the <x>")


def piece(spelling, score, kind):
    return {"piece": spelling, "score": score, "type": kind}


@pytest.mark.parametrize(
    ("pieces", "message"),
    [
        ([piece("ab", -1, 1), piece("a", -2, 1)], r"pieces\[1\] = 'ab' with a character that is no piece"),
        ([piece("a", -1, 1), piece("b", -1, 5)], r"pieces\[2\] = 'b', an unused piece"),
    ],
)
def test_models_that_sentencepiece_encodes_by_other_rules_are_refused(pieces, message, tmp_path):
    model = sentencepiece_model_pb2.ModelProto()
    for fields in [piece("<unk>", 0, 2), *pieces]:
        model.pieces.add(**fields)
    model.trainer_spec.model_type = 2
    (tmp_path / "a.model").write_bytes(model.SerializeToString())
    with pytest.raises(ValueError, match=message):
        Tokenizer.load(tmp_path / "a.model")


def test_pieces_of_equal_score_merge_from_the_left(tmp_path):
    model = sentencepiece_model_pb2.ModelProto()
    for fields in [piece("<unk>", 0, 2), *(piece(s, -1, 1) for s in ("a", "b", "c", "ab", "bc", "abc", "ca"))]:
        model.pieces.add(**fields)
    model.trainer_spec.model_type = 2
    ours, peer = both_of(model.SerializeToString(), tmp_path)
    for warm in (False, True):
        if warm:
            ours.warm_up(1)
        for text in ("abc", "bcabca", "cabcabbc" * 20, "cacab"):
            assert ours.encode(text) == peer.encode(text)


@pytest.mark.parametrize("byte_fallback", [False, True])
def test_no_text_becomes_the_padding_the_unknown_piece_or_a_control_symbol_of_one_character(byte_fallback, tmp_path):
    model = io.BytesIO()
    sentencepiece.SentencePieceTrainer.train(
        sentence_iterator=iter(["abc abd bcd cab", "x y xy yx xé"] * 30),
        model_writer=model,
        model_type="bpe",
        vocab_size=300,
        hard_vocab_limit=False,
        byte_fallback=byte_fallback,
        pad_id=3,
        pad_piece="_",
        unk_piece="?",
        control_symbols=["|"],
        minloglevel=2,
    )
    ours, peer = both_of(model.getvalue(), tmp_path)
    draw = random.Random(0)
    texts = ["a_b", "a|b", "x?é|y", *("".join(draw.choices("ab_|?é xy", k=draw.randrange(40))) for _ in range(200))]
    for tok in (ours, Tokenizer(ours.vocabulary)):
        assert [tok.encode_ordinary(text) for text in texts] == peer.encode(texts)
        assert tok.encode_ordinary(" ".join(texts)) == peer.encode(" ".join(texts))
        tok.warm_up(1)
