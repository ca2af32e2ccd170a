"""SentencePiece models give the ids and decoded texts of sentencepiece, and the differences to tokenizers are known."""

import io
import json
import pickle
import random
from pathlib import Path

import pytest
import sentencepiece
import tokenizers
from hypothesis import example, given
from hypothesis import strategies as st

from tests.tokenizer.test_unigram import batches_of_documents, tokenizer_json
from tokenizer import Tokenizer
from tokenizer.formats.wire_format import fields
from tokenizer.splitting.double_array import compile_map

NASTY = [
    *(
        "",
        " ",
        "  a  b ",
        "▁",
        "▁a▁",
        "a▁ ",
        "\n\n",
        "a\r\nb",
        "a\u0301e\u0301",
        "ｶﾞ",
        "\ufdfa",
        "<unk>",
        "<s>a",
        "\0a",
        "\u200b",
    ),
    *(
        "<sep>a<sep> ab",
        "-------",
        "*" * 50,
        "x" * 300,
        "日本語" * 40,
        "\u3000a\u3000",
        "…",
        "the the  the",
        "a\ufffdb",
    ),
    *("▁the▁x", "Ünïx", " é e\u0301 ", "<0x41>", "👩\u200d👧", "\U0010ffff"),
]
POOL = [*"abcde theA ▁  \u0301éÜïẍ日本語😀ﬁ™\u00a0\u3000\n\t-*=.<>", "<sep>", "the", "ab", "...", "e\u0301"]
OPTIONS = {
    "plain": {},
    "byte_fallback": {"byte_fallback": True},
    "suffix": {"treat_whitespace_as_suffix": True},
    "no dummy prefix": {"add_dummy_prefix": False},
    "all spaces": {"remove_extra_whitespaces": False},
    "identity": {"normalization_rule_name": "identity"},
    "lower case": {"normalization_rule_name": "nmt_nfkc_cf"},
    "user-defined": {"user_defined_symbols": ["<sep>", "ab", "Ünï", "▁the▁", "..."]},
    "control": {"control_symbols": ["<c>"], "user_defined_symbols": ["é"]},
}


@pytest.fixture(scope="module")
def lines(shared):
    path = shared / "vectors" / "sentencepiece" / "botchan.txt"
    return path.read_text(encoding="utf-8").splitlines()


@pytest.fixture(scope="module")
def published(shared):
    return shared / "vectors" / "sentencepiece" / "test_model.model"


def both_of(content, folder):
    """Return our tokenizer and sentencepiece's processor for the bytes of a model."""
    (folder / "tokenizer.model").write_bytes(content)
    return Tokenizer.load(folder), sentencepiece.SentencePieceProcessor(model_proto=content)


MODELS: dict[str, bytes] = {}  # trained once


def trained(lines, options):
    """Return the bytes of a model that sentencepiece trained with these `OPTIONS`."""
    if options not in MODELS:
        model = io.BytesIO()
        sentencepiece.SentencePieceTrainer.train(
            sentence_iterator=iter([*lines[:1000], *["日本語 テスト", "naïve Ünïcödé", "----- *** ====="] * 30]),
            model_writer=model,
            vocab_size=600,
            hard_vocab_limit=False,
            minloglevel=2,
            **OPTIONS[options],
        )
        MODELS[options] = model.getvalue()
    return MODELS[options]


@pytest.fixture(scope="module", params=["published", *OPTIONS])
def both(request, lines, published, tmp_path_factory):
    content = published.read_bytes() if request.param == "published" else trained(lines, request.param)
    return both_of(content, tmp_path_factory.mktemp("model"))


def random_texts(count, seed):
    rng = random.Random(seed)
    return ["".join(rng.choice(POOL) for _ in range(rng.randrange(30))) for _ in range(count)]


def random_texts_of(pieces, count, seed):
    """Return random texts that mix pieces (with marks or spaces), POOL, and code points of one to four bytes."""
    rng = random.Random(seed)
    ranges = [range(0x80), range(0x800), range(0x10000), range(0x10000, 0x110000)]
    draws = [
        lambda: rng.choice(pieces),
        lambda: rng.choice(pieces).replace("▁", " "),
        lambda: rng.choice(POOL),
        lambda: chr(rng.choice(rng.choice(ranges))),
    ]
    texts = ("".join(rng.choice(draws)() for _ in range(rng.randrange(25))) for _ in range(count))
    return [text.encode(errors="replace").decode() for text in texts]  # without lone surrogates


def assert_equal_ids(both, texts):
    ours, peer = both
    for text, mine, theirs in zip(
        texts, ours.encode_batch(texts, disallowed_special=()), peer.encode(texts), strict=True
    ):
        assert mine == theirs, ascii(text)


def test_ids_of_nasty_and_random_texts_are_those_of_sentencepiece(both, lines):
    assert_equal_ids(both, [*NASTY, *random_texts(1500, 1), *lines[:300]])
    plain_python = Tokenizer(both[0].vocabulary)
    for text in [*NASTY, *lines[:20]]:
        assert plain_python.encode(text, disallowed_special=()) == both[1].encode(text)


@given(text=st.text(max_size=60))
@example("e\u0301 ▁ ")
def test_ids_of_any_text_are_those_of_sentencepiece(both, text):
    assert both[0].encode_ordinary(text) == both[1].encode(text)


@given(data=st.binary(max_size=30))
@example(b"caf\xe9 a\xe2\x82 b\xf0\x9f \xed\xa0\x80")
def test_invalid_utf8_is_read_as_by_sentencepiece(both, data):
    assert both[0].encode_ordinary(data) == both[1].encode(data)


def test_decoded_texts_are_those_of_sentencepiece(both):
    ours, peer = both
    rng = random.Random(1)
    for _ in range(1000):
        ids = [rng.randrange(rng.choice([12, ours.vocab_size])) for _ in range(rng.randrange(8))]
        assert ours.decode(ids) == peer.decode(ids), ids


def test_sums_of_long_lines_are_rounded_and_shifted_as_in_sentencepiece(both, lines):
    ours, peer = both
    line = " ".join(lines)[:200_000] + "-" * 5000 + "日" * 3000 + "=*" * 3000
    assert ours.encode_ordinary(line) == peer.encode(line)
    text = " ".join(lines)[:20_000]
    path = Tokenizer(ours.vocabulary)
    path._texts.short.extend(10**6)  # in plain Python
    assert path.encode_ordinary(text) == peer.encode(text)


@pytest.mark.slow
def test_ids_of_a_million_random_texts_are_those_of_sentencepiece(both):
    for seed in range(2):
        assert_equal_ids(both, random_texts(20_000, 100 + seed))
        assert_equal_ids(both, random_texts_of(both[0].vocabulary.pieces, 30_000, 200 + seed))


@pytest.mark.slow
@pytest.mark.parametrize("pieces", ["published", "T5"])
@pytest.mark.parametrize("corpus", ["books", "multilingual"])
def test_ids_of_whole_files_are_those_of_sentencepiece(published, t5_model, shared, corpus, pieces, tmp_path):
    both = both_of(published.read_bytes() if pieces == "published" else t5_model[0], tmp_path)
    size = 0
    for texts in batches_of_documents(shared / "corpora" / f"{corpus}.jsonl.xz"):
        size += sum(len(text.encode()) for text in texts)
        assert_equal_ids(both, texts)
    assert size > 24_000_000


def test_a_saved_model_has_the_same_bytes_and_ids(both, lines, tmp_path):
    ours, _ = both
    ours.save(tmp_path)
    assert (tmp_path / "tokenizer.model").read_bytes() == ours.vocabulary.source
    again = Tokenizer.load(tmp_path)
    assert again.fingerprint == ours.fingerprint
    assert pickle.loads(pickle.dumps(again)).encode_batch(lines[:20]) == ours.encode_batch(lines[:20])
    (tmp_path / "tokenizer.json").write_text("{}")
    with pytest.raises(ValueError, match=r"tokenizer\.json, which would be read in place"):
        ours.save(tmp_path)


def test_added_special_tokens_become_control_pieces_that_sentencepiece_reads(both, lines, tmp_path):
    ours, peer = both
    more = ours.add_special_tokens(["<mask>", next(iter(ours.special_tokens)), "<字 new>"])
    assert more.special_tokens == ours.special_tokens | {"<mask>": len(ours), "<字 new>": len(ours) + 1}
    more.save(tmp_path)
    again = Tokenizer.load(tmp_path)
    assert again == more
    theirs = sentencepiece.SentencePieceProcessor(model_file=str(tmp_path / "tokenizer.model"))
    assert theirs.piece_to_id(["<mask>", "<字 new>"]) == [len(ours), len(ours) + 1]
    assert theirs.is_control(len(ours))
    assert theirs.encode(lines[:50]) == peer.encode(lines[:50]) == again.encode_batch(lines[:50])
    with pytest.raises(ValueError, match="is an ordinary piece of the SentencePiece model: choose another spelling"):
        ours.add_special_tokens([next(piece for piece in ours.vocabulary.matches)])


def test_control_pieces_are_special_and_user_defined_ones_are_not(lines, published, tmp_path):
    ours, peer = both_of(published.read_bytes(), tmp_path)
    assert set(ours.special_tokens) == {"<unk>", "<s>", "</s>"}
    assert ours.encode("a</s>b", allowed_special="all") == [*peer.encode("a"), 2, *peer.encode("b")]
    assert (ours.kind, ours.is_lossless) == ("unigram", False)


def test_arguments_that_a_model_contains_are_refused(published):
    with pytest.raises(ValueError, match="contains its own pattern"):
        Tokenizer.load(published, pattern="llama3")


# The two arithmetics and normalizations: docs/python.md lists what differs.


@pytest.fixture(scope="module")
def t5_model(shared):
    """Return T5's pieces as a SentencePiece model, and its published tokenizer.json."""
    path = shared / "vectors" / "t5-small" / "tokenizer.json"
    vocabulary = Tokenizer.load(path).vocabulary
    pieces = []
    for i, piece in enumerate(vocabulary.pieces[:32000]):
        score = json.loads(repr(vocabulary.scores[i]))
        pieces.append(piece_message(piece, score, 2 if i == 2 else 3 if i < 2 else 1))
    characters = vocabulary.pattern.normalizers[0].characters.compiled
    content = b"".join(field(1, piece) for piece in pieces)
    return content + field(2, b"\x18\x01") + field(3, field(2, characters)), path


def varint(value):
    return bytes([value & 0x7F | 0x80]) + varint(value >> 7) if value > 0x7F else bytes([value])


def field(number, content):
    return varint(number << 3 | 2) + varint(len(content)) + content


def piece_message(piece, score, kind):
    import struct

    return field(1, piece.encode()) + b"\x15" + struct.pack("<f", score) + b"\x18" + bytes([kind])


def model_of(pieces=(("<unk>", 0.0, 2), ("▁", -1.0, 1), ("a", -2.0, 1)), trainer=b"", normalizer=b""):
    content = b"".join(field(1, piece_message(*piece)) for piece in pieces)
    return content + field(2, trainer) + field(3, normalizer)


# The rows of the table in docs/python.md: pieces with scores and types (None: T5's), and a text.
UNK = ("<unk>", 0.0, 2)
BYTE_FALLBACK = b"\x98\x02\x01"
DIFFERENCES = {
    # `a` and `b` together beat `ab` by 0.001, which is less than the spacing of float32 at -50,000.
    "sums of scores": (
        [UNK, ("▁x", -5e4, 1), ("▁", -1.0, 1), ("a", -0.999, 1), ("b", -1.0, 1), ("ab", -2.0, 1)],
        "x ab",
    ),
    # Exactly twice the score of `a`; the JSON reader makes `aa` smaller than that.
    "scores": ([UNK, ("▁", 0.0, 1), ("a", -4.800000190734863, 1), ("aa", -9.600000381469727, 1)], "aa"),
    "ties": (None, "-------"),
    "character map": (None, "Tie\u0302\u0301ng Vie\u0323\u0302t"),
    "white space that the map keeps, such as U+0085": (None, "a\x85b"),
    "`▁` at the start of a text, if the map keeps it": ([UNK, ("▁", -1.0, 1), ("▁a", -1.0, 1)], "▁a"),
    "`</s>` spelled in a text": (None, "</s>"),
    "a byte piece such as `<0x41>` spelled in a text": (
        [UNK, ("▁", -1.0, 1), *((f"<0x{byte:02X}>", 0.0, 6) for byte in range(256))],
        "<0x41>",
    ),
    "score of an unknown character": (
        [UNK, ("</s>", -100.0, 3), ("▁", -1.0, 1), ("a", 15.0, 1), ("az", -20.0, 1)],
        "az",
    ),
    # The pair costs more than two unknown characters.
    "adjacent unknown characters": ([UNK, ("▁", 100.0, 1), ("xy", 99.0, 1), ("a", 100.0, 1)], "axya"),
    "decoded unknown piece": ([UNK, ("▁", -1.0, 1), ("a", -1.0, 1)], "az"),
}


def of_tokenizers(pieces, t5_model):
    """Return the text of a tokenizer.json without added tokens, as `tokenizers` writes it."""
    if pieces is None:
        text = tokenizers.Tokenizer.from_file(str(t5_model[1])).to_str()
    else:
        has_bytes = any(kind == 6 for _, _, kind in pieces)
        text = tokenizer_json([(piece, score) for piece, score, _ in pieces], byte_fallback=has_bytes)
    return json.dumps(json.loads(text) | {"added_tokens": [], "post_processor": None})


@pytest.mark.parametrize("row", DIFFERENCES)
def test_each_difference_between_sentencepiece_and_tokenizers_is_reproduced(t5_model, row, tmp_path):
    pieces, text = DIFFERENCES[row]
    trainer = BYTE_FALLBACK if "byte piece" in row else b""
    model, sentence_piece = both_of(model_of(pieces, trainer) if pieces else t5_model[0], tmp_path)
    content = of_tokenizers(pieces, t5_model)
    hugging_face = tokenizers.Tokenizer.from_str(content)
    (tmp_path / "tokenizer.json").write_text(content, encoding="utf-8")
    ours = Tokenizer.load(tmp_path / "tokenizer.json")
    of_model, of_json = sentence_piece.encode(text), hugging_face.encode(text).ids
    assert model.encode_ordinary(text) == Tokenizer(model.vocabulary).encode_ordinary(text) == of_model
    assert ours.encode_ordinary(text) == Tokenizer(ours.vocabulary).encode_ordinary(text) == of_json
    texts = sentence_piece.decode(of_model), hugging_face.decode(of_json, skip_special_tokens=False)
    assert (model.decode(of_model), ours.decode(of_json)) == texts
    assert texts[0] != texts[1] if row == "decoded unknown piece" else of_model != of_json


def test_the_docs_list_the_differences_that_are_tested():
    page = (Path(__file__).parents[2] / "docs" / "python.md").read_text(encoding="utf-8")
    lines = page[page.rindex("| | `tokenizer.json`, as in") :].partition("\n\n")[0].splitlines()[2:]
    assert [line.split("|")[1].strip() for line in lines] == [*DIFFERENCES]


@pytest.mark.parametrize("text", ["-------", "--d----.a*the a=c"])
def test_the_best_segmentation_in_float64_may_differ_from_the_ids_of_a_model_on_ties(t5_model, text, tmp_path):
    model, sentence_piece = both_of(t5_model[0], tmp_path)
    scores = model.vocabulary.scores
    ((best, score), *_) = model.encode_nbest(text, 1)
    ids = sentence_piece.encode(text)
    assert model.encode_ordinary(text) == ids
    assert score == sum(scores[i] for i in best) == pytest.approx(sum(scores[i] for i in ids), rel=1e-6)
    published = Tokenizer.load(t5_model[1])
    assert published.encode_nbest(text, 1)[0][0] == published.encode_ordinary(text)
    assert (best != ids) == (text != "-------")


@pytest.mark.parametrize("text", ["The house is small.", "Tiếng Việt", "a\u200bb"])
def test_texts_without_these_differences_have_the_same_ids_in_both(t5_model, text, tmp_path):
    model, sentence_piece = both_of(t5_model[0], tmp_path)
    assert model.encode(text) == Tokenizer.load(t5_model[1]).encode(text) == sentence_piece.encode(text)


def test_random_texts_have_the_ids_of_sentencepiece_with_the_pieces_of_t5(t5_model, lines, tmp_path):
    both = both_of(t5_model[0], tmp_path)
    assert_equal_ids(both, [*NASTY, *random_texts(500, 2), *lines[:100], "-" * 100, "* " * 100])


@pytest.mark.parametrize("options", ["plain", "byte_fallback", "no dummy prefix"])
def test_a_converted_model_has_the_ids_of_tokenizers_and_on_plain_text_those_of_sentencepiece(options, lines, tmp_path):
    ours, peer = both_of(trained(lines, options), tmp_path)
    converted = ours.as_tokenizers()
    converted.save(tmp_path / "json")
    texts = [text for text in [*NASTY, *random_texts(500, 3), *lines[:300]] if "<" not in text]
    hugging_face = tokenizers.Tokenizer.from_file(str(tmp_path / "json" / "tokenizer.json"))
    expected = [each.ids for each in hugging_face.encode_batch(texts, add_special_tokens=False)]
    assert converted.encode_batch(texts) == Tokenizer.load(tmp_path / "json").encode_batch(texts) == expected
    assert [converted.decode(ids) for ids in expected] == [
        hugging_face.decode(ids, skip_special_tokens=False) for ids in expected
    ]
    if options != "no dummy prefix":
        assert converted.encode_batch(lines[:300]) == peer.encode(lines[:300])
    assert converted.as_tokenizers() is converted


def test_t5_as_a_model_converts_to_the_published_file(t5_model, tmp_path):
    ours = both_of(t5_model[0], tmp_path)[0].as_tokenizers()
    published = Tokenizer.load(t5_model[1])
    assert ours.vocabulary.scores == published.vocabulary.scores[:32000]
    assert ours.vocabulary.pattern == published.vocabulary.pattern
    assert ours.encode("-------") == published.encode("-------")


@pytest.mark.parametrize(
    ("options", "message"),
    [
        ("suffix", "puts marks after words"),
        ("all spaces", "keeps extra spaces"),
        ("user-defined", "has user-defined pieces"),
        ("identity", r"keeps the white space U\+0009"),
    ],
)
def test_a_model_that_tokenizers_cannot_express_is_refused_in_a_sentence(options, message, lines, tmp_path):
    ours, _ = both_of(trained(lines, options), tmp_path)
    with pytest.raises(ValueError, match=f"cannot express this SentencePiece model: it {message}"):
        ours.as_tokenizers()


# Damaged files


def test_spaces_stay_spaces_if_the_model_does_not_escape_them(tmp_path):
    pieces = [("<unk>", 0.0, 2), ("▁", -1.0, 1), ("a", -2.0, 1), (" a", -1.0, 1), (" ", -3.0, 1)]
    both = both_of(model_of(pieces, normalizer=b"\x28\x00"), tmp_path)
    assert_equal_ids(both, ["a a", "a▁a", " a  ▁ a", "", " "])


def test_unused_pieces_and_bytes_are_not_found_in_texts(tmp_path):
    pieces = [("<unk>", 0.0, 2), ("▁", -1.0, 1), ("a", -2.0, 1), ("aa", -0.5, 5), ("b", -1.0, 5)]
    pieces += [(f"<0x{byte:02X}>", 0.0, 6) for byte in range(256)]
    both = both_of(model_of(pieces, trainer=BYTE_FALLBACK), tmp_path)
    assert_equal_ids(both, ["aa", "b", "<0x41>", "abab"])


def test_fields_may_be_in_any_order(tmp_path):
    trainer = field(2, b"\x18\x01")
    whole = model_of([("<unk>", 0.0, 2), ("▁", -1.0, 1), ("a", -2.0, 1), ("▁a", -2.5, 1)])
    both = both_of(trainer + whole, tmp_path)
    assert_equal_ids(both, ["a a", "b", ""])


@pytest.mark.parametrize(
    ("content", "message"),
    [
        (b"", "read as a SentencePiece model, it has no pieces"),
        (b"hello world", "read as a SentencePiece model, it has a field 13 of wire type 4, which no"),
        (b"\n", "cut off or damaged within a number"),
        (b"\n\xff\xff\xff\xff\x7f", "cut off within field 1 of a message, which has 34,359,738,367 bytes"),
        (b"\n" + b"\xff" * 11, "cut off or damaged within a number"),
        (b"\n\x00\x0b", "field 1 of wire type 3, which no SentencePiece model has|empty piece"),
        (b"\n\x00", r"pieces\[0\] with an empty piece"),
        (model_of([("<unk>", 0.0, 2), ("a", float("nan"), 1)]), r"pieces\[1\].score = nan"),
        (model_of([("<unk>", 0.0, 2), ("a", float("-inf"), 1)]), r"pieces\[1\].score = -inf"),
        (model_of([("<unk>", 0.0, 2), ("a", 0.0, 9)]), r"pieces\[1\].type = 9"),
        (model_of([("<unk>", 0.0, 2), ("a", 0.0, 1), ("a", 0.0, 1)]), r"'a' twice, as pieces\[1\] and pieces\[2\]"),
        (model_of([("a", 0.0, 1)]), "0 unknown pieces instead of one"),
        (model_of([("<unk>", 0.0, 2)]), "no normal pieces"),
        (model_of([("<unk>", 0.0, 2), ("a" * 5000, 0.0, 1)]), "a piece of 5,000 characters"),
        (model_of(trainer=b"\x18\x03"), "model_type word, which is not supported"),
        (model_of(trainer=b"\x1a\x01a"), "trainer_spec.model_type with wire type 2"),
        (model_of(trainer=BYTE_FALLBACK), "byte_fallback, but no byte piece <0x00>"),
        (model_of(normalizer=field(2, b"abc")), "precompiled_charsmap that says that its trie has"),
        (model_of(normalizer=field(2, compile_map({b"ab": b"cd"})[:-1])), "precompiled_charsmap that has a key"),
        (field(1, field(1, b"\xff")), r"pieces\[0\].piece = b'\\xff', which is not UTF-8"),
    ],
)
def test_a_damaged_model_is_refused_in_a_sentence(tmp_path, content, message):
    (tmp_path / "tokenizer.model").write_bytes(content)
    with pytest.raises(ValueError, match=f"tokenizer.model: .*({message})"):
        Tokenizer.load(tmp_path)


@given(place=st.integers(0, 2000), noise=st.binary(min_size=1, max_size=8))
def test_random_damage_raises_nothing_but_value_errors(tmp_path_factory, published, place, noise):
    content = published.read_bytes()
    content = content[:place] + noise + content[place + len(noise) :]
    path = tmp_path_factory.getbasetemp() / "damaged.model"
    path.write_bytes(content)
    try:
        tok = Tokenizer.load(path)
    except ValueError:
        return
    assert isinstance(tok.encode_ordinary("Hello world"), list)


@given(st.binary(max_size=40))
def test_any_bytes_are_fields_or_a_value_error(data):
    try:
        assert all(number >= 0 for number, _, _ in fields(data))
    except ValueError as error:
        assert "cut off" in str(error) or "wire type" in str(error)
