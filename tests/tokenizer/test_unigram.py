"""Unigram ids, decoded texts and files equal those of tokenizers."""

import base64
import itertools
import json
import lzma
import math
import pickle
import random
import re
import subprocess
import sys

import pyarrow as pa
import pytest
import tokenizers
from hypothesis import assume, example, given
from hypothesis import strategies as st
from tokenizers import decoders, models, normalizers, pre_tokenizers

from tokenizer import Tokenizer
from tokenizer.formats.number_text import number_text, read_number
from tokenizer.splitting.double_array import compile_map, offset_of
from tokenizer.splitting.graphemes import CLASSES, code_point_classes, probe_tokenizers
from tokenizer.splitting.metaspace_splitter import PLAIN_WORDS
from tokenizer.splitting.normalizers import MARK, Precompiled, Replace
from tokenizer.splitting.precompiled_map import CharacterMap
from tokenizer.splitting.pretokenize import split

NASTY = [
    *(
        "",
        " ",
        "\n",
        MARK,
        MARK * 3,
        " " * 5,
        f" {MARK} ",
        f"a{MARK}b",
        f"{MARK}a",
        f"a {MARK}b",
        "a  b",
        " a",
        "a ",
        "\0",
    ),
    *(
        "\r\n",
        "a\r\nb",
        "a\rb",
        "a\u0301",
        "\u0301",
        "© \u0301",
        "™\u0301",
        "ﬁ\u0301",
        "\ufdfa",
        "ｶﾞ",
        "\u1112\u1161\u11ab",
    ),
    *("<unk>", "a<unk>b", "<unk><unk>", "<0x41>", "<pad>", "<0x", "</s", "-------", "****", "====", "x" * 5000),
    *(
        "日本語" * 40,
        "👩\u200d👩\u200d👧",
        "क्षि",
        "\u0600a",
        "\ufeffa",
        "\u200b",
        "\ufffd",
        "\U0010ffff",
        "a\u3000b",
        "\u00a0",
    ),
]


def tokenizer_json(
    pieces,
    *,
    normalizer=None,
    split_at_white_space=True,
    prepend="always",
    cuts=True,
    unknown=0,
    byte_fallback=False,
    decoder=None,
):
    """Return the text of a tokenizer.json that tokenizers wrote."""
    peer = tokenizers.Tokenizer(models.Unigram(pieces, unk_id=unknown, byte_fallback=byte_fallback))
    if normalizer is not None:
        peer.normalizer = normalizer
    metaspace = pre_tokenizers.Metaspace(prepend_scheme=prepend, split=cuts)
    steps = [pre_tokenizers.WhitespaceSplit(), metaspace] if split_at_white_space else [metaspace]
    peer.pre_tokenizer = pre_tokenizers.Sequence(steps) if split_at_white_space else metaspace
    peer.decoder = decoder or decoders.Metaspace(prepend_scheme=prepend, split=cuts)
    return peer.to_str()


def both_of(text, folder):
    """Return our tokenizer and that of tokenizers for the text of a tokenizer.json."""
    (folder / "tokenizer.json").write_text(text, encoding="utf-8")
    return Tokenizer.load(folder), tokenizers.Tokenizer.from_str(text)


@pytest.fixture(scope="module")
def t5(shared):
    """Return our tokenizer and that of tokenizers for the published file of T5."""
    path = shared / "vectors" / "t5-small" / "tokenizer.json"
    return Tokenizer.load(path), tokenizers.Tokenizer.from_file(str(path))


@pytest.fixture(scope="module")
def characters(t5):
    """Return the map of T5, which normalizes to a form close to NFKC."""
    return t5[0].vocabulary.pattern.normalizers[0].characters


@pytest.fixture(scope="module")
def pieces(t5):
    """Return every seventh piece of T5 and some nasty ones, with scores full of ties."""
    vocabulary = t5[0].vocabulary
    some = dict(zip(vocabulary.pieces[3:32000:7], vocabulary.scores[3:32000:7], strict=True))
    some |= {MARK: -3.0, "a": -2.0, "b": -2.0, "ab": -4.0, "<unk>": -1.0, "aa": -4.0, "aaa": -6.0, f"{MARK}a": -5.0}
    some |= {"--": -5.0, "---": -7.5, "-": -2.5, "x y": 0.0, f"a{MARK}b": -1.0, "日本": -9.0, f"{MARK}{MARK}": -6.0}
    return [("<unk>", some.pop("<unk>")), *some.items()]


def peer_ids(peer, texts):
    return [encoding.ids for encoding in peer.encode_batch(texts, add_special_tokens=False)]


def assert_equal_ids(both, texts):
    ours, peer = both
    texts = [text for text in texts if not any(token in text for token in ours.special_tokens)]
    expected = peer_ids(peer, texts)
    for text, mine, theirs in zip(texts, ours.encode_batch(texts), expected, strict=True):
        assert mine == theirs, ascii(text)


def assert_equal_offsets(both, texts):
    ours, peer = both
    for text, expected in zip(texts, peer.encode_batch(texts, add_special_tokens=False), strict=True):
        ids, offsets = ours.encode_with_offsets(text, allowed_special="all")
        assert ids == expected.ids
        assert offsets == expected.offsets, ascii(text)


def batches_of_documents(path):
    """Yield all documents of a compressed JSONL file, in lists of ten."""
    with lzma.open(path, "rt", encoding="utf-8") as file:
        while lines := list(itertools.islice(file, 10)):
            yield [json.loads(line)["text"] for line in lines]


def hard_strings(count, seed, characters):
    """Return random strings of all classes of clusters, code points that the map replaces, white space and ASCII."""
    rng = random.Random(seed)
    classes = code_point_classes()
    replaced = [c for c in range(0x3400) if characters.shortest(chr(c).encode()) is not None]
    pools = [[] for _ in CLASSES]
    for c, kind in enumerate(classes):
        if not 0xD800 <= c < 0xE000:
            pools[kind].append(c)
    pools += [replaced, replaced, [*range(0x20, 0x7F)], [0x20, 0x2581, 0x0A, 0x3000, 0xA0], [*range(0x300, 0x330)]]
    for _ in range(count):
        chosen = rng.choices(pools, k=4)
        text = "".join(chr(rng.choice(rng.choice(chosen))) for _ in range(rng.randrange(24)))
        yield text if rng.random() < 0.7 else f"The quick {text}, brown -- fox {text} jumps{text}over {text[::-1]} it"


def test_ids_of_20_000_random_and_nasty_strings_are_those_of_tokenizers(t5, random_strings, characters):
    assert_equal_ids(t5, random_strings(10_000, 3))
    assert_equal_ids(t5, [*hard_strings(10_000, 4, characters), *NASTY])


@pytest.mark.slow
def test_ids_of_a_million_random_strings_are_those_of_tokenizers(t5, random_strings, characters):
    for seed in range(10):
        assert_equal_ids(t5, random_strings(50_000, 100 + seed))
        assert_equal_ids(t5, list(hard_strings(50_000, 200 + seed, characters)))


@given(text=st.text(max_size=100))
@example("a\u0301 \u0600a ©\u200d™\u0301")
def test_ids_of_any_text_are_those_of_tokenizers_by_every_way_to_encode(t5, text):
    ours, peer = t5
    assume(not any(token in text for token in ours.special_tokens))  # `tokenizers` always cuts them out
    expected = peer.encode(text, add_special_tokens=False).ids
    assert ours.encode_ordinary(text) == expected
    assert ours.encode_to_numpy(text, disallowed_special=()).tolist() == expected
    assert Tokenizer(ours.vocabulary).encode_ordinary(text) == expected  # in plain Python


# Bases and marks of one to four bytes, of scripts in which clusters are often longer than a character.
MARKED = [
    *"ก\u0e33\u0e48\u0e34เ가각\u1100\u1161\u11a8字々か\u3099क\u093f\u094d\u0301",
    *"אé\u05b0aA,。，\u200d\ufffd🙂𠀀",
    " ",
    "\n",
    " ",
]


@given(st.lists(st.text(st.sampled_from(MARKED), max_size=150), max_size=4), st.binary(max_size=3))
def test_runs_of_characters_with_marks_are_normalized_as_in_tokenizers(t5, texts, ending):
    ours, peer = t5
    ours.warm_up(1)
    assert ours.encode_batch(texts) == peer_ids(peer, texts)
    # A document may end within a character; the next one begins with its last bytes.
    cut = [part for text in texts for part in (text.encode()[:-1] + ending, text.encode()[-1:] + b" " * 80)]
    plain_python = Tokenizer(ours.vocabulary)
    assert ours.encode_batch(cut) == [plain_python.encode_ordinary(text) for text in cut]


def test_every_way_to_encode_a_long_text_gives_the_same_ids(t5, stdlib_texts, tmp_path):
    ours, peer = t5
    texts = [*stdlib_texts[60:120], *NASTY, "日本 Déjà " * 1000, "x" * 10_000]
    texts = [text for text in texts if not any(token in text for token in ours.special_tokens)]
    expected = peer_ids(peer, texts)
    assert ours.encode_batch(texts, threads=2) == expected
    assert ours.encode_arrow(pa.array(texts), threads=2).to_pylist() == expected
    whole = "\n".join(texts)
    (tmp_path / "text.txt").write_bytes(whole.encode())
    together = peer.encode(whole, add_special_tokens=False).ids
    for threads in (1, 2, 3):
        assert ours.encode_file(tmp_path / "text.txt", threads=threads).tolist() == together
    assert [i for part in ours.encode_in_parts(whole) for i in part.tolist()] == together
    cuts = [0, *ours.cuts(whole.encode(), 50_000), len(whole.encode())]
    assert len(cuts) > 5
    parts = [whole.encode()[start:end] for start, end in itertools.pairwise(cuts)]
    assert [i for part in parts for i in ours.encode_ordinary(part)] == together


@pytest.mark.parametrize(
    "step",
    [
        *(Replace(r"\s+", True, " "), Replace(" {2,}", True, MARK), Replace("``", False, '"'), Replace("a", False, "")),
        *(Replace(r"\s+", True, ""), Replace(" {2,}", True, ""), Replace(r"\n", True, ""), Replace(" ", False, "")),
        *(Replace(" b", False, "c"), Precompiled(CharacterMap(compile_map({b"\n": b""})))),
    ],
)
def test_a_text_is_cut_at_spaces_only_if_words_end_there(step):
    words, text = PLAIN_WORDS._replace(normalizers=(step,)), b"a a  b``\nb\n\nb b c\nc"
    ends = [match.start() for match in re.finditer(rb"(?<=\w)[ \n]", text)]
    whole = [*words.pretokens(text)]
    splits = all([*words.pretokens(text[:end]), *words.pretokens(text[end:])] == whole for end in ends)
    assert words.splits_at_spaces is splits


@pytest.mark.slow
@pytest.mark.parametrize("corpus", ["books", "multilingual"])
def test_ids_of_whole_files_are_those_of_tokenizers_with_the_published_vocabulary(t5, shared, corpus):
    ours, peer = t5
    size = 0
    for texts in batches_of_documents(shared / "corpora" / f"{corpus}.jsonl.xz"):
        size += sum(len(text.encode()) for text in texts)
        assert ours.encode_batch(texts, allowed_special="all") == peer_ids(peer, texts)
    assert size > 24_000_000


def normalizers_of(characters):
    """Return normalizers of published files, and some of our own."""
    compiled = normalizers.Precompiled(characters.compiled)
    squeeze = normalizers.Replace(tokenizers.Regex(" {2,}"), " ")
    lines = normalizers.Replace(tokenizers.Regex(r"\n"), " ")
    tiny = {b"a": b"", b"b": " b\u3000▁".encode(), "e\u0301".encode(): b"E", "é".encode(): b"E", b"\r": b"CR"}
    return {
        "none": None,
        "T5": compiled,
        "XLM-R, mBART": normalizers.Sequence(
            [compiled, normalizers.Strip(False, True), normalizers.Replace(tokenizers.Regex(" {2,}"), MARK)]
        ),
        "Pegasus": normalizers.Sequence([compiled, squeeze]),
        "Pegasus without a map": normalizers.Sequence([lines, squeeze]),
        "DeBERTa": normalizers.Sequence([normalizers.Strip(), compiled, squeeze]),
        "quotes": normalizers.Sequence([normalizers.Replace("``", '"'), normalizers.Replace("''", '"'), compiled]),
        "white space": normalizers.Replace(tokenizers.Regex(r"\s{2,}|[\n\r\t]"), " "),
        "a map of our own": normalizers.Precompiled(compile_map(tiny)),
    }


PRE_TOKENIZERS = [(True, "always", True), (True, "never", True), (True, "always", False)]
PRE_TOKENIZERS += [(False, prepend, cuts) for prepend in ("always", "first", "never") for cuts in (True, False)]


@pytest.mark.parametrize("name", [*normalizers_of(CharacterMap(compile_map({})))])
def test_ids_are_those_of_tokenizers_for_every_normalizer_and_pre_tokenizer(
    pieces, characters, name, random_strings, tmp_path
):
    normalizer = normalizers_of(characters)[name]
    texts = [*random_strings(10_000, 3)[:100], *hard_strings(100, 5, characters), *NASTY]
    for split_at_white_space, prepend, cuts in PRE_TOKENIZERS if name == "T5" else PRE_TOKENIZERS[::4]:
        text = tokenizer_json(
            pieces, normalizer=normalizer, split_at_white_space=split_at_white_space, prepend=prepend, cuts=cuts
        )
        both = both_of(text, tmp_path)
        assert_equal_ids(both, texts)
        assert_equal_offsets(both, texts[::3])
        words = both[0].vocabulary.pattern
        for each in texts:
            assert split(each, words) == list(words.pretokens(each.encode())), (ascii(each), str(words))


@pytest.mark.parametrize("missing", [0, 1, 200])
def test_unknown_characters_become_their_bytes_if_all_have_pieces(pieces, characters, missing, tmp_path):
    spelled = [(f"<0x{byte:02X}>", 0.0) for byte in range(256) if byte % 256 >= missing]
    chain = decoders.Sequence(
        [decoders.Replace(MARK, " "), decoders.ByteFallback(), decoders.Fuse(), decoders.Strip(" ", 1, 0)]
    )
    text = tokenizer_json(pieces + spelled, byte_fallback=True, decoder=chain)
    ours, peer = both_of(text, tmp_path)
    texts = [*hard_strings(500, 6, characters), *NASTY, "\u0e01\u0e02 ðþ", "<unk>þ", "þ<unk>"]
    assert_equal_ids((ours, peer), texts)
    assert_equal_offsets((ours, peer), texts)
    rng = random.Random(1)
    for _ in range(500):
        ids = rng.choices([*range(20), *range(len(pieces), len(pieces) + len(spelled))], k=rng.randrange(8))
        assert ours.decode(ids) == peer.decode(ids, skip_special_tokens=False)
    if not missing:
        assert ours.added_bytes(ours.encode("\u0e01")[-1]) == "\u0e01".encode()[-1:]


def test_joined_unknown_pieces_that_spell_a_piece_become_this_piece(tmp_path):
    # The pair costs more than two unknown characters.
    text = tokenizer_json([("<unk>", 100.0), (MARK, 100.0), ("xy", 99.0), ("a", 100.0)])
    ours, peer = both_of(text, tmp_path)
    assert_equal_ids((ours, peer), ["xy", "axya", "xyx", "yx", "a<unk>xy", "<unk>"])
    assert_equal_offsets((ours, peer), ["xy", "axya", "xyx", "yx", "a<unk>xy", "<unk>"])
    assert ours.encode("axya") == [1, 3, 2, 3]


@given(ids=st.lists(st.integers(0, 32099), max_size=12))
@example([])
@example([3, 3])
def test_decoded_texts_are_those_of_tokenizers(t5, ids):
    ours, peer = t5
    expected = peer.decode(ids, skip_special_tokens=False)
    assert ours.decode(ids) == expected
    assert ours.decode_bytes(ids[:1]) + b"".join(map(ours.added_bytes, ids[1:])) == expected.encode()


def test_special_tokens_follow_the_rule_of_special_tokens(t5):
    ours, peer = t5
    with pytest.raises(ValueError, match="special token '<extra_id_0>' at byte 2"):
        ours.encode("a <extra_id_0> b")
    text = "a <extra_id_0> b</s>c <extra_id_99>"
    assert ours.encode(text, allowed_special="all") == peer.encode(text, add_special_tokens=False).ids
    assert ours.encode_ordinary("<extra_id_0>") == [3, ours.special_tokens["<extra_id_0>"]]  # a piece like any other


def test_only_the_start_of_a_text_gets_a_mark_with_the_scheme_first(pieces, tmp_path):
    peer = tokenizers.Tokenizer.from_str(tokenizer_json(pieces, split_at_white_space=False, prepend="first"))
    peer.add_special_tokens(["<s>"])
    both = both_of(peer.to_str(), tmp_path)
    for text in ("a b<s>a b<s> a", "<s>a", "a<s>"):
        expected = peer.encode(text).ids
        assert both[0].encode(text, allowed_special="all") == expected
        assert both[0].encode_to_numpy(text, allowed_special="all").tolist() == expected


def test_a_saved_tokenizer_opens_in_tokenizers_with_the_same_ids_and_scores(t5, random_strings, tmp_path):
    ours, _ = t5
    ours.save(tmp_path)
    texts = random_strings(10_000, 3)[:500]
    loaded = tokenizers.Tokenizer.from_file(str(tmp_path / "tokenizer.json"))
    assert peer_ids(loaded, texts) == ours.encode_batch(texts)
    assert [score for _, score in json.loads(loaded.to_str())["model"]["vocab"]] == ours.vocabulary.scores
    again = Tokenizer.load(tmp_path)
    assert again.fingerprint == ours.fingerprint
    assert pickle.loads(pickle.dumps(ours)).encode("The house is small.") == again.encode("The house is small.")


def test_scores_are_those_that_tokenizers_reads(tmp_path):
    rng = random.Random(1)
    texts = [repr(rng.uniform(-20, 0)) for _ in range(2000)] + ["0", "-0.0", "-12", "1e-320", "0.1e5", "-5E-3", "1e300"]
    texts += [f"-{rng.randrange(10**30)}.{rng.randrange(10**30)}" for _ in range(500)]
    texts += [f"{rng.randrange(10**12)}e{rng.randrange(-330, 290)}" for _ in range(500)]
    texts += [f"1844674407370955161{digit}{rest}" for digit in range(10) for rest in ("", ".0", ".6", "e-3", "0.5")]
    peer = json.loads(tokenizer_json([("<unk>", 0.0)]))
    entries = [f'["{number}", {text}]' for number, text in enumerate(texts)]
    content = json.dumps(peer).replace('[["<unk>", 0.0]]', f"[{', '.join(entries)}]")
    ours, theirs = both_of(content, tmp_path)
    assert ours.vocabulary.scores == [float(score) for _, score in json.loads(theirs.to_str())["model"]["vocab"]]


@given(st.floats(-1e6, 1e6, allow_nan=False))
def test_written_scores_are_read_again(score):
    readable = read_number(repr(score))
    assert math.isclose(readable, score, rel_tol=1e-15, abs_tol=1e-323)
    assert read_number(number_text(readable)) == readable


@given(st.integers(0, 10**22), st.integers(-345, -270))
@example(45900, -306)
@example(5, -324)
def test_tiny_scores_of_a_file_can_be_saved(digits, exponent):
    score = read_number(f"-{digits}e{exponent}")
    assert read_number(number_text(score)) == score


def test_a_published_file_gives_the_nearest_float64_for_three_quarters_of_its_scores(t5, shared):
    content = json.loads((shared / "vectors" / "t5-small" / "tokenizer.json").read_text(encoding="utf-8"))
    exact = [score for _, score in content["model"]["vocab"]]
    differing = sum(a != b for a, b in zip(exact, t5[0].vocabulary.scores, strict=True))
    assert differing == 8334
    assert t5[0].encode("-------") == t5[1].encode("-------", add_special_tokens=False).ids


@pytest.mark.parametrize("prefix", [True, False])
def test_old_spellings_of_metaspace_are_read_as_tokenizers_reads_them(pieces, prefix, tmp_path):
    content = json.loads(tokenizer_json(pieces, split_at_white_space=False))
    old = {"type": "Metaspace", "replacement": MARK, "str_rep": MARK, "add_prefix_space": prefix}
    if not prefix:
        old["prepend_scheme"] = "never"
    content["pre_tokenizer"] = content["decoder"] = old
    both = both_of(json.dumps(content), tmp_path)
    assert_equal_ids(both, ["a b", " a b", "a  b"])
    assert both[0].decode([1, 2, 3]) == both[1].decode([1, 2, 3])


def test_invalid_utf8_is_read_as_the_replacement_character(t5):
    ours, peer = t5
    for data in (
        b"caf\xe9 x",
        b"\xff",
        b"a\xe2\x82 b\xf0\x9f",
        b"\xed\xa0\x80x",
        b"e\xcc",
        b"0123456789" * 10 + b"\xe2\x82",
    ):
        text = "".join("\ufffd" if "\udc80" <= c <= "\udcff" else c for c in data.decode(errors="surrogateescape"))
        expected = peer.encode(text, add_special_tokens=False).ids
        assert ours.encode_ordinary(data) == ours.encode_to_numpy(data).tolist() == expected
        assert Tokenizer(ours.vocabulary).encode_ordinary(data) == expected


@given(
    st.text(max_size=40) | st.text(alphabet="a\u0301\u0323ﬁ½ \n\u3000\uff76\uff9e\u200b\x00한\u1112\u1161", max_size=20)
)
def test_offsets_of_any_text_are_those_of_tokenizers(t5, text):
    assert_equal_offsets(t5, [text])


def test_offsets_of_bytes_count_bytes(t5):
    ours, _ = t5
    data = "Déjà vu ﬁx 日本 ".encode() + b"\xff\xe2\x82 x"
    ids, spans = ours.encode_with_offsets(data)
    assert ids == ours.encode(data)
    assert b"".join(dict.fromkeys(data[start:end] for start, end in spans[:6])) == "Déjàvuﬁx日".encode()
    assert data[slice(*spans[-1])] == b"x"


def test_properties_say_that_text_is_lost(t5):
    ours, _ = t5
    assert (ours.kind, ours.is_lossless, ours.merges) == ("unigram", False, [])
    with pytest.raises(ValueError, match="have no fixed number of bytes"):
        _ = ours.token_byte_lengths
    assert ours.token_bytes(ours.encode("house")[0]) == f"{MARK}house".encode()
    assert ours.encode_single_token(f"{MARK}house") == ours.token_to_id(f"{MARK}house") == ours.encode("house")[0]
    with pytest.raises(ValueError, match="convert the model"):
        ours.as_sentencepiece().encode_with_offsets("house")


def test_streams_numbers_of_ids_and_first_ids_agree_with_encode(t5):
    ours, _ = t5
    text = "The house is  small.\n\nTiếng Việt 日本 " * 50
    ids = ours.encode(text)
    assert list(ours.encode_iterable(text[k : k + 7] for k in range(0, len(text), 7))) == ids
    assert ours.count(text) == len(ids)
    assert ours.encode(text, max_tokens=9) == ids[:9]
    assert b"".join(ours.decode_tokens_bytes(ids[:40])) == ours.decode_bytes(ids[:40])


def test_a_short_text_is_encoded_without_numba_or_numpy(shared):
    path = shared / "vectors" / "t5-small" / "tokenizer.json"
    code = f"""
import sys
from tokenizer import Tokenizer
tok = Tokenizer.load({str(path)!r})
assert tok.decode(tok.encode("a short text")) == "a short text"
assert not {{"numba", "numpy"}} & sys.modules.keys()
"""
    subprocess.run([sys.executable, "-c", code], check=True)


# Character maps


@given(
    st.dictionaries(
        st.text(st.sampled_from("ab\u0301é\u0600क\u094d\u200d©가"), min_size=1, max_size=3), st.text(max_size=3)
    ),
    st.text(st.sampled_from("ab\u0301é\u0600क\u094d\u200d©가ᄀ\r\n"), max_size=12),
)
def test_any_map_normalizes_as_in_tokenizers(replacements, text):
    compiled = compile_map({key.encode(): value.encode() for key, value in replacements.items() if "\0" not in value})
    assert CharacterMap(compiled).normalize(text) == normalizers.Precompiled(compiled).normalize_str(text)


def test_clusters_of_every_class_are_cut_as_in_tokenizers(characters):
    rng = random.Random(2)
    members = {}
    for c, kind in enumerate(code_point_classes()):
        if not 0xD800 <= c < 0xE000:
            members.setdefault(kind, []).append(chr(c))
    some = [rng.sample(each, min(12, len(each))) for each in members.values()]
    compiled = compile_map({c.encode(): b"x" for each in some for c in each})
    ours, peer = CharacterMap(compiled), normalizers.Precompiled(compiled)
    for _ in range(10_000):
        text = "".join(rng.choice(rng.choice(some)) for _ in range(rng.randrange(9)))
        assert ours.normalize(text) == peer.normalize_str(text), ascii(text)


@pytest.mark.slow
def test_every_code_point_is_normalized_as_in_tokenizers(characters):
    peer = normalizers.Precompiled(characters.compiled)
    for c in range(0x110000):
        if not 0xD800 <= c < 0xE000:
            text = f"a{chr(c)}a{chr(c)}\u0301"
            assert characters.normalize(text) == peer.normalize_str(text), hex(c)


@pytest.mark.slow
def test_committed_classes_of_clusters_equal_those_of_the_installed_tokenizers():
    probed = probe_tokenizers()
    classes = code_point_classes()
    from tokenizer.splitting.unicode_properties import ranges_of

    for kind, gaps in enumerate(probed):
        for first, last in ranges_of(gaps):
            assert classes[first : last + 1] == bytes([kind]) * (last + 1 - first)


def damaged(compiled, place, word):
    return compiled[:place] + word.to_bytes(4, "little") + compiled[place + 4 :]


def with_unit_of_a(compiled, offset_from):
    """Return a map with another unit for `a`, whose offset is a function of its place and the root's base."""
    base = offset_of(int.from_bytes(compiled[4:8], "little"))
    place = base ^ ord("a")
    return damaged(compiled, 4 + 4 * place, ord("a") | offset_from(place, base) << 10)


@pytest.mark.parametrize(
    ("damage", "message"),
    [
        (lambda b: b"", "says that its trie has 0 bytes"),
        (lambda b: b[:3], "says that its trie has"),
        (lambda b: damaged(b, 0, len(b) + 8), "says that its trie has"),
        (lambda b: damaged(b, 0, 6), "says that its trie has 6 bytes"),
        (lambda b: damaged(b, 4, 1 << 9 | 0x3FFFFF << 10), "no message"),
        (lambda b: b[:-3] + b"\xff\xff\0", "not UTF-8"),
        (lambda b: b.removesuffix(b"\0"), "no text of up to"),
        (lambda b: b[:-1] + b"x" * 2000 + b"\0", "no text of up to"),
        (lambda b: with_unit_of_a(b, lambda place, base: place ^ base), "cycle"),
        (lambda b: with_unit_of_a(b, lambda place, base: 1 << 19), "cut off"),
    ],
)
def test_a_damaged_map_is_refused_in_a_sentence(pieces, damage, message, tmp_path):
    compiled = compile_map({b"ab": b"cd"})
    content = json.loads(tokenizer_json(pieces, normalizer=normalizers.Precompiled(compiled)))
    content["normalizer"]["precompiled_charsmap"] = base64.b64encode(damage(compiled)).decode()
    (tmp_path / "tokenizer.json").write_text(json.dumps(content))
    if message == "no message":  # the root leads nowhere, so that the map is empty
        assert Tokenizer.load(tmp_path).vocabulary.pattern.normalize("ab") == "ab"
        return
    with pytest.raises(ValueError, match=f"precompiled_charsmap that .*{message}"):
        Tokenizer.load(tmp_path)


@given(st.binary(max_size=60), st.integers(0, 3000))
def test_random_damage_to_a_map_never_raises_anything_else(noise, place):
    compiled = compile_map({b"ab": b"cd", "é".encode(): b"e"})
    try:
        characters = CharacterMap(compiled[:place] + noise + compiled[place + len(noise) :])
    except ValueError:
        return
    assert isinstance(characters.normalize("abé ab\u0301"), str)


# Damaged files


@pytest.mark.parametrize(
    ("path", "value", "message"),
    [
        (("normalizer",), {"type": "NFX"}, "normalizer of type NFX, which is not supported"),
        (("normalizer",), {"type": "Sequence", "normalizers": 3}, "normalizer.normalizers that are not a list"),
        (("normalizer",), {"type": "Precompiled", "precompiled_charsmap": None}, "precompiled_charsmap = None"),
        (
            ("normalizer",),
            {"type": "Precompiled", "precompiled_charsmap": "?"},
            "precompiled_charsmap that is not base64",
        ),
        (("normalizer",), {"type": "Replace", "pattern": {"Regex": ""}, "content": ""}, "Replace with pattern"),
        (("normalizer",), {"type": "Strip", "strip_left": 1}, "normalizer Strip with"),
        (("pre_tokenizer",), {"type": "Whitespace"}, "pre_tokenizer 'Whitespace'; with Unigram"),
        (("pre_tokenizer",), None, "pre_tokenizer ''; with Unigram"),
        (("pre_tokenizer", "pretokenizers", 1, "replacement"), "_", "Metaspace with replacement = '_'"),
        (("pre_tokenizer", "pretokenizers", 1, "prepend_scheme"), "last", "prepend_scheme = 'last'"),
        (("pre_tokenizer", "pretokenizers", 1, "prepend_scheme"), "first", "WhitespaceSplit before Metaspace"),
        (("pre_tokenizer", "pretokenizers", 1, "add_prefix_space"), False, "add_prefix_space = False, but"),
        (("pre_tokenizer", "pretokenizers", 1, "split"), None, "split = None"),
        (("decoder",), None, "has no decoder"),
        (("decoder",), {"type": "Bytes"}, "decoder of type Bytes"),
        (("decoder",), {"type": "Strip", "content": "ab", "start": 1, "stop": 0}, "Strip with content = 'ab'"),
        (("decoder",), {"type": "Strip", "content": "a", "start": -1, "stop": 0}, "Strip with start = -1"),
        (("model", "vocab"), [], "empty model.vocab"),
        (("model", "vocab"), [["<unk>", 0.0], ["a"]], r"model.vocab\[1\] = \['a'\]"),
        (("model", "vocab"), [["<unk>", 0.0], ["", 1.0]], r"model.vocab\[1\] with the piece ''"),
        (("model", "vocab"), [["<unk>", 0.0], ["\ud800", 1.0]], "lone surrogate"),
        (("model", "vocab"), [["<unk>", 0.0], ["a" * 5000, 1.0]], "a piece of 5,000 characters"),
        (("model", "vocab"), [["<unk>", 0.0], ["a", "1"]], "with the score '1'"),
        (("model", "vocab"), [["<unk>", 0.0], ["a", True]], "with the score True"),
        (
            ("model", "vocab"),
            [["<unk>", 0.0], ["a", 1.0], ["a", 2.0]],
            "'a' twice in model.vocab; the second is number 2",
        ),
        (("model", "unk_id"), None, "model.unk_id = None"),
        (("model", "unk_id"), 10**9, "model.unk_id = 1000000000"),
        (("model", "byte_fallback"), 1, "model.byte_fallback = 1"),
        (("model", "alpha"), 0.1, "sampling is not supported"),
        (("added_tokens",), [{"id": "1", "content": "<x>"}], "added_tokens.*id = '1'"),
        (("added_tokens",), [{"id": 9999, "content": "<x>", "normalized": True}], "normalized, which is not supported"),
        (("truncation",), {"max_length": 3}, "has a truncation"),
    ],
)
def test_a_damaged_tokenizer_json_is_refused_in_a_sentence(pieces, tmp_path, path, value, message):
    content = json.loads(tokenizer_json(pieces))
    place = content
    for name in path[:-1]:
        place = place[name]
    place[path[-1]] = value
    (tmp_path / "tokenizer.json").write_text(json.dumps(content))
    with pytest.raises(ValueError, match=rf"tokenizer.json: .*{message}"):
        Tokenizer.load(tmp_path)


BOMB = [{"type": "Replace", "pattern": {"String": "a"}, "content": "a" * 10}] * 12


def test_replacements_that_make_a_text_far_longer_are_refused_in_a_sentence(pieces, tmp_path):
    content = json.loads(tokenizer_json(pieces))
    grown = content | {"normalizer": {"type": "Sequence", "normalizers": BOMB}}
    (tmp_path / "tokenizer.json").write_text(json.dumps(grown))
    tok = Tokenizer.load(tmp_path)
    for text in ("aaaa bé x", "a" * 1_000_000):
        with pytest.raises(ValueError, match="replacement of 'a' by 10 characters makes a text more than 100 times"):
            tok.encode(text)
    grown = content | {"decoder": {"type": "Sequence", "decoders": [{"type": "Fuse"}, *BOMB]}}
    (tmp_path / "tokenizer.json").write_text(json.dumps(grown))
    tok = Tokenizer.load(tmp_path)
    with pytest.raises(ValueError, match="replacement of 'a' by 10 characters makes a text more than 100 times"):
        tok.decode(tok.encode("aaaa"))
    long = {"type": "Replace", "pattern": {"String": "a"}, "content": "a long name " * 100}
    (tmp_path / "tokenizer.json").write_text(json.dumps(content | {"normalizer": long}))
    ours, peer = Tokenizer.load(tmp_path), tokenizers.Tokenizer.from_file(str(tmp_path / "tokenizer.json"))
    assert ours.encode("aaaa" + 1000 * "b c ") == peer.encode("aaaa" + 1000 * "b c ").ids


@pytest.mark.parametrize("number", ["NaN", "Infinity", "1e999"])
def test_scores_that_are_not_finite_are_refused(pieces, tmp_path, number):
    content = tokenizer_json([("<unk>", 0.125)]).replace("0.125", number)
    (tmp_path / "tokenizer.json").write_text(content)
    with pytest.raises(ValueError, match=rf"tokenizer.json: has the number {number}"):
        Tokenizer.load(tmp_path)
