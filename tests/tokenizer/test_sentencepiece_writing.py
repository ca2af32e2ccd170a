"""Unigram vocabularies of tokenizer.json and of our training are saved as models that sentencepiece reads."""

import json
import random
import re

import pytest
import sentencepiece
from tokenizers import normalizers

from tests.tokenizer.test_sentencepiece_models import NASTY, random_texts, random_texts_of
from tests.tokenizer.test_unigram import normalizers_of, tokenizer_json
from tokenizer import PieceRules, Tokenizer

WORDS = ["metaspace", "nfkc", "nmt_nfkc"]
SPACES = " \t\n\x0b\x0c\r\u00a0\u1680\u2003\u2028\u3000"


@pytest.fixture(scope="module")
def lines(stdlib_texts):
    text = "\n".join(stdlib_texts[:20])[:150_000]
    return [*text.splitlines(), *["日本語 テスト", "naïve Ünïcödé e\u0301", "-- *** ="] * 30]


@pytest.fixture(scope="module", params=[(words, bytes_too) for words in WORDS for bytes_too in (False, True)])
def trained(request, lines):
    """Return a tokenizer of our own training."""
    pattern, byte_fallback = request.param
    rules = PieceRules(byte_fallback=byte_fallback)
    special = ("<pad>", "<s>", "</s>", "<mask>")
    return Tokenizer.train(lines, 700, pattern, kind="unigram", special_tokens=special, pieces=rules)


@pytest.fixture(scope="module")
def t5(shared):
    return Tokenizer.load(shared / "vectors" / "t5-small" / "tokenizer.json")


def saved(tokenizer, folder):
    """Save the tokenizer as a model. Return what we and sentencepiece load."""
    tokenizer.as_sentencepiece().save(folder)
    path = folder / "tokenizer.model"
    return Tokenizer.load(path), sentencepiece.SentencePieceProcessor(model_file=str(path))


@pytest.fixture(scope="module")
def model(trained, tmp_path_factory):
    """Return what we and sentencepiece load from the trained tokenizer's model, and its path."""
    folder = tmp_path_factory.mktemp("model")
    return saved(trained, folder), folder / "tokenizer.model"


def test_a_vocabulary_trained_here_has_the_same_ids_in_sentencepiece(trained, model, lines):
    (ours, peer), _ = model
    assert [peer.id_to_piece(i) for i in range(peer.get_piece_size())][:600] == trained.vocabulary.pieces[:600]
    texts = [*NASTY, *random_texts(1000, 1), *random_texts_of(trained.vocabulary.pieces, 1000, 2), *lines[:300]]
    assert ours.encode_batch(texts, disallowed_special=()) == peer.encode(texts)
    whole = "\n".join(lines)
    assert ours.encode_ordinary(whole) == peer.encode(whole)
    for text in texts[:500]:
        ids = peer.encode(text)
        assert ours.decode(ids) == peer.decode(ids)


def test_a_model_gives_the_ids_of_tokenizer_json_for_any_white_space(trained, model, lines):
    (ours, _), _ = model
    rng = random.Random(3)
    texts = ["".join(c if c != " " else rng.choice(SPACES) * rng.randrange(1, 3) for c in line) for line in lines]
    texts = [text for text in texts if not re.search(r"([^\s])\1\1", text)][:1000]  # runs have ties
    assert len(texts) == 1000
    assert ours.encode_batch(texts) == trained.encode_batch(texts)


@pytest.mark.parametrize("pattern", ["keep-whitespace", "llama2"])
def test_pieces_of_spaces_are_used_by_a_model(pattern, tmp_path):
    text = "def f(self):\n        x = 1\n        return x\n    def g(self):\n            return 2\n"
    rules = PieceRules(byte_fallback=True)
    tok = Tokenizer.train([text * 3] * 9, 300, pattern, kind="unigram", special_tokens=(), pieces=rules)
    ours, peer = saved(tok, tmp_path)
    assert ours.encode_ordinary(text) == peer.encode(text) == tok.encode_ordinary(text)


def test_special_tokens_keep_their_ids_in_sentencepiece(trained, model):
    (ours, peer), _ = model
    assert ours.special_tokens == trained.special_tokens
    assert (peer.unk_id(), peer.pad_id(), peer.bos_id(), peer.eos_id()) == (0, 696, 697, 698)
    assert [i for i in range(700) if peer.is_control(i)] == [696, 697, 698, 699]
    assert [i for i in range(700) if peer.is_byte(i)] == [*range(1, 257 if trained.vocabulary.byte_fallback else 1)]


def test_other_programs_read_the_sizes_and_ids_of_the_model(model):
    from sentencepiece.sentencepiece_model_pb2 import ModelProto

    trainer = ModelProto.FromString(model[1].read_bytes()).trainer_spec
    assert (trainer.model_type, trainer.vocab_size, trainer.unk_piece) == (trainer.UNIGRAM, 700, "<unk>")
    assert (trainer.unk_id, trainer.bos_id, trainer.eos_id, trainer.pad_id) == (0, 697, 698, 696)


def test_t5_is_saved_with_its_own_character_map_and_loads_as_t5(t5, lines, tmp_path):
    ours, peer = saved(t5, tmp_path)
    assert ours.vocabulary.pattern.characters == t5.vocabulary.pattern.normalizers[0].characters
    texts = [*NASTY, *random_texts(300, 4), *random_texts_of(t5.vocabulary.pieces, 300, 5), *lines[:100]]
    assert ours.encode_batch(texts, disallowed_special=()) == peer.encode(texts)
    (tmp_path / "config.json").write_text(json.dumps({"model_type": "t5"}))
    again = Tokenizer.load(tmp_path)
    assert again.vocabulary.scores == t5.vocabulary.scores
    assert (again.special_tokens, again.ids_around_text) == (t5.special_tokens, t5.ids_around_text)
    assert again.encode_batch(lines[:100]) == t5.encode_batch(lines[:100])


def test_a_file_like_xlm_robertas_is_saved(t5, lines, tmp_path):
    vocabulary = t5.vocabulary
    pieces = [*zip(vocabulary.pieces[2:4000], vocabulary.scores[2:4000], strict=True), ("▁of▁the", -1.0)]
    normalizer = normalizers_of(vocabulary.pattern.normalizers[0].characters)["XLM-R, mBART"]
    text = tokenizer_json(pieces, normalizer=normalizer, split_at_white_space=False)
    (tmp_path / "tokenizer.json").write_text(text, encoding="utf-8")
    original = Tokenizer.load(tmp_path)
    ours, peer = saved(original, tmp_path / "model")
    texts = [*NASTY, *lines[:300]]
    assert ours.encode_batch(texts, disallowed_special=()) == peer.encode(texts)
    assert ours.encode_batch(lines[:300]) == original.encode_batch(lines[:300])


def test_a_model_is_returned_unchanged_and_other_kinds_are_refused(t5):
    model = t5.as_sentencepiece()
    assert model.as_sentencepiece() is model
    with pytest.raises(ValueError, match="only Unigram and BPE over characters become SentencePiece models"):
        Tokenizer.train(["a b"], 256, special_tokens=()).as_sentencepiece()


UNK = ("<unk>", 0.0)
CHAIN = normalizers.Sequence([normalizers.Replace("``", '"'), normalizers.Precompiled(b"\x04\0\0\0\0\0\0\0")])


@pytest.mark.parametrize(
    ("options", "message"),
    [
        ({"prepend": "never"}, "has prepend_scheme = never"),
        ({"cuts": False}, "does not cut words before marks"),
        ({"split_at_white_space": False}, "keeps extra spaces"),
        ({"normalizer": CHAIN}, "has the normalizer {'type': 'Replace'"),
        (
            {"normalizer": normalizers.Precompiled(b"\x04\0\0\0\0\0\0\0\0")},
            "cuts words at white space that its",
        ),
        ({"pieces": [UNK, ("a", -1e39)]}, "has the score -1e[+]39 of 'a', which float32 cannot store"),
        ({"pieces": [UNK, ("▁", -1.0)], "byte_fallback": True}, "has byte_fallback, but no byte piece <0x00>"),
    ],
)
def test_a_vocabulary_that_a_model_cannot_express_is_refused_in_a_sentence(options, message, tmp_path):
    text = tokenizer_json(options.pop("pieces", [UNK, ("▁", -1.0), ("a", -1.0)]), **options)
    (tmp_path / "tokenizer.json").write_text(text, encoding="utf-8")
    tok = Tokenizer.load(tmp_path)
    with pytest.raises(ValueError, match=f"^a SentencePiece model cannot express this vocabulary: it {message}"):
        tok.as_sentencepiece()


def test_an_added_token_that_a_model_cannot_express_is_refused_in_a_sentence(tmp_path):
    content = json.loads(tokenizer_json([UNK, ("▁", -1.0), ("a", -1.0)]))
    content["added_tokens"] = [{"content": "<x>", "id": 3, "special": True, "lstrip": True}]
    (tmp_path / "tokenizer.json").write_text(json.dumps(content), encoding="utf-8")
    tok = Tokenizer.load(tmp_path)
    with pytest.raises(ValueError, match="has the added token '<x>' with lstrip"):
        tok.as_sentencepiece()
