"""Default vocabularies of `tokenizers`: pre-tokenizers of several steps, and no token for some bytes."""

import json
import lzma
import random
import re

import pyarrow as pa
import pytest
import tokenizers
from hypothesis import given, settings
from hypothesis import strategies as st
from tokenizers import Regex, decoders, models, trainers
from tokenizers import pre_tokenizers as pre

from tokenizer import Tokenizer
from tokenizer.splitting.chains import Chain
from tokenizer.splitting.patterns import LLAMA3_REGEX

pytestmark = pytest.mark.filterwarnings("ignore:the split pattern")

PLAIN = {"add_prefix_space": False, "use_regex": False}
WORDS_AND_PUNCTUATION = (
    r"[!\"#$%&'()*+,\-./:;<=>?@\[\\\]^_`{|}~][A-Za-z]+|[^\r\n\p{L}\p{P}\p{S}]?[\p{L}\p{M}]+| ?[\p{P}\p{S}]+[\r\n]*"
    r"|\s*[\r\n]+|\s+(?!\S)|\s+"
)


def split(regex, behavior="isolated", invert=False):
    return pre.Split(Regex(regex), behavior, invert)


# Published pre-tokenizers, and steps that they do not have.
SHAPES = {
    "GPT-NeoX, MPT": pre.ByteLevel(add_prefix_space=False),
    "StarCoder": pre.Sequence([pre.Digits(individual_digits=True), pre.ByteLevel(add_prefix_space=False)]),
    "Falcon": pre.Sequence(
        [
            pre.Punctuation(behavior="contiguous"),
            pre.ByteLevel(add_prefix_space=False),
            pre.Digits(individual_digits=False),
            split("[0-9][0-9][0-9]"),
        ]
    ),
    "DeepSeek-V3": pre.Sequence(
        [split(r"\p{N}{1,3}"), split("[一-龥぀-ゟ゠-ヿ]+"), split(WORDS_AND_PUNCTUATION), pre.ByteLevel(**PLAIN)]
    ),
    "DeepSeek-Coder": pre.Sequence(
        [
            split("[\r\n]"),
            split(r"\s?\p{L}+"),
            split(r"\s?\p{P}+"),
            split(r"\s+$"),
            split("[一-龥ࠀ-一가-퟿]+"),
            pre.Digits(individual_digits=True),
            pre.ByteLevel(**PLAIN),
        ]
    ),
    "a prefix space": pre.ByteLevel(add_prefix_space=True),
    "a prefix space to each piece": pre.Sequence(
        [pre.Digits(individual_digits=False), pre.ByteLevel(add_prefix_space=True, use_regex=False)]
    ),
    "a named pattern, then more": pre.Sequence(
        [split(LLAMA3_REGEX), pre.Digits(individual_digits=True), pre.ByteLevel(**PLAIN)]
    ),
    "every behavior": pre.Sequence(
        [
            pre.Punctuation(behavior="merged_with_previous"),
            pre.Split(" ", "merged_with_next"),
            split(r"\w+", "contiguous", invert=True),
            split(r"^x|\Ay|z\z|\n", "merged_with_previous"),
            pre.ByteLevel(**PLAIN),
        ]
    ),
    "the whole text": pre.ByteLevel(**PLAIN),
}


@pytest.fixture(scope="module")
def texts(shared):
    """Excerpts in many languages."""
    with lzma.open(shared / "corpora" / "multilingual.jsonl.xz", "rt", encoding="utf-8") as file:
        documents = [json.loads(line)["text"][:3000] for line in file]
    return random.Random(0).sample(documents, 100)


def trained_by_tokenizers(texts, shape, path):
    """Return (ours, theirs) for a vocabulary that `tokenizers` trains without `initial_alphabet`."""
    theirs = tokenizers.Tokenizer(models.BPE())
    theirs.pre_tokenizer, theirs.decoder = SHAPES[shape], decoders.ByteLevel()
    special = ["<|endoftext|>"]
    theirs.train_from_iterator(
        texts, trainers.BpeTrainer(vocab_size=1200, special_tokens=special, show_progress=False, max_token_length=40)
    )
    theirs.save(str(path))
    return Tokenizer.load(path), theirs


@pytest.fixture(scope="module", params=SHAPES)
def pair(request, texts, tmp_path_factory):
    return trained_by_tokenizers(texts, request.param, tmp_path_factory.mktemp("trained") / "tokenizer.json")


def assert_same_ids(ours, theirs, text):
    """Check that ids are equal, or that our error names a byte without a token, which `tokenizers` drops."""
    try:
        ids = ours.encode(text)
    except ValueError as error:
        byte, offset = re.search(r"byte 0x(..) at byte offset (\d+), for which", str(error)).groups()
        assert text.encode()[int(offset)] == int(byte, 16)
        assert int(byte, 16) in ours.vocabulary.missing_bytes
    else:
        assert ids == theirs.encode(text).ids


def test_ids_are_those_of_tokenizers_on_real_text(pair, texts):
    ours, theirs = pair
    assert 0 < len(ours.vocabulary.missing_bytes) < 128
    expected = [encoding.ids for encoding in theirs.encode_batch(texts)]
    assert ours.encode_batch(texts) == expected
    assert ours.encode_arrow(pa.array(texts)).to_pylist() == expected
    for text, ids in zip(texts[:20], expected, strict=False):
        assert ours.encode(text[:500]) == theirs.encode(text[:500]).ids
        assert ours.encode_to_numpy(text, threads=2).tolist() == ids
        assert ours.decode(ids) == theirs.decode(ids)
        assert ours.decode(ids).replace(" ", "") == text.replace(" ", "")


def test_ids_are_those_of_tokenizers_on_random_text(pair, texts, random_strings):
    ours, theirs = pair
    characters = sorted(set("".join(texts))) + list("0123²½ \t\n\r ''“”…。!?")
    characters += list(" \n1.a字") * (len(characters) // 6)

    @settings(max_examples=80)
    @given(st.text(st.sampled_from(characters), max_size=40))
    def check(text):
        assert_same_ids(ours, theirs, text)

    check()
    for text in random_strings(200, 13):
        assert_same_ids(ours, theirs, text)


def test_a_saved_file_gives_the_same_ids(pair, texts, tmp_path):
    ours, theirs = pair
    ours.save(tmp_path)
    again = Tokenizer.load(tmp_path)
    assert again.fingerprint == ours.fingerprint
    assert again.pattern == ours.pattern
    hugging_face = tokenizers.Tokenizer.from_file(str(tmp_path / "tokenizer.json"))
    expected = [encoding.ids for encoding in theirs.encode_batch(texts)]
    assert [encoding.ids for encoding in hugging_face.encode_batch(texts)] == expected
    assert again.encode_batch(texts) == expected
    again.save(tmp_path / "again")
    assert (tmp_path / "again" / "tokenizer.json").read_bytes() == (tmp_path / "tokenizer.json").read_bytes()


@pytest.mark.parametrize("step", [None, {"type": "Split", "pattern": {"String": "Ġ"}, "behavior": "MergedWithNext"}])
def test_bytes_that_a_normalizer_spells_have_the_ids_of_tokenizers(step, texts, tmp_path):
    path = tmp_path / "tokenizer.json"
    trained_by_tokenizers(texts[:20], "GPT-NeoX, MPT", path)
    content = json.loads(path.read_text(encoding="utf-8"))
    content |= {"normalizer": {"type": "ByteLevel"}, "pre_tokenizer": step and step | {"invert": False}}
    path.write_text(json.dumps(content), encoding="utf-8")
    ours, theirs = Tokenizer.load(path), tokenizers.Tokenizer.from_file(str(path))
    expected = [encoding.ids for encoding in theirs.encode_batch(texts[:20])]
    assert [ours.encode(text) for text in texts[:20]] == expected  # in plain Python if a text is short
    assert ours.encode_batch(texts[:20]) == expected


def test_the_fingerprint_depends_on_every_step(pair, tmp_path):
    ours, _ = pair
    ours.save(tmp_path)
    content = json.loads((tmp_path / "tokenizer.json").read_text(encoding="utf-8"))
    fingerprints = set()
    for shape in SHAPES.values():
        content["pre_tokenizer"] = json.loads(shape.__getstate__())
        (tmp_path / "tokenizer.json").write_text(json.dumps(content), encoding="utf-8")
        fingerprints.add(Tokenizer.load(tmp_path).fingerprint)
    assert len(fingerprints) == len(SHAPES)
    assert ours.fingerprint in fingerprints


@pytest.mark.parametrize(
    ("step", "split_as"),
    [
        ({"type": "Digits", "individual_digits": True}, pre.Digits(individual_digits=True)),
        ({"type": "Punctuation", "behavior": "Isolated"}, pre.Punctuation()),
    ],
)
def test_digits_and_punctuation_are_those_of_tokenizers_for_every_code_point(step, split_as):
    chain = Chain([step, {"type": "ByteLevel"} | PLAIN])
    characters = [chr(c) for c in range(0x110000) if not 0xD800 <= c < 0xE000]
    for first in range(0, len(characters), 256):
        text = "".join(f"a{c}" for c in characters[first : first + 256])
        expected = [piece.encode() for piece, _ in split_as.pre_tokenize_str(text)]
        assert list(chain.pretokens(text.encode())) == expected


@pytest.fixture(scope="module")
def ascii_only(tmp_path_factory):
    """Return (ours, theirs) for a vocabulary without tokens for capitals and non-ASCII bytes."""
    path = tmp_path_factory.mktemp("ascii") / "tokenizer.json"
    return trained_by_tokenizers(["the cat and the dog, the cat and the mouse; " * 20], "GPT-NeoX, MPT", path)


def test_a_byte_without_a_token_is_named_with_its_offset(ascii_only, tmp_path):
    ours, theirs = ascii_only
    assert ours.encode("the mouse") == theirs.encode("the mouse").ids
    long = "the cat and " * 1000 + "the Mouse"
    for text, named in (
        ("the Cat", "0x43 at byte offset 4"),
        ("the café", "0x66 at byte offset 6"),
        ("Zé", "0x5a at byte offset 0"),
        (long, "0x4d at byte offset 12004"),
        (b"the \xff", "0xff at byte offset 4"),
    ):
        (tmp_path / "text").write_bytes(text if isinstance(text, bytes) else text.encode())
        for encode in (ours.encode, ours.encode_ordinary, ours.encode_to_numpy, lambda text: ours.encode_batch([text])):
            with pytest.raises(ValueError, match=f"the byte {named}, for which the vocabulary has no token"):
                encode(text)
        with pytest.raises(ValueError, match=named):
            ours.encode_file(tmp_path / "text", threads=2)
    for encode in (ours.encode_batch, lambda texts: ours.encode_arrow(pa.array(texts))):
        with pytest.raises(ValueError, match=r"^texts\[2\]: the text has the byte 0x43 at byte offset 4"):
            encode(["the dog", "", "the Cat", "Z"])
    with pytest.raises(ValueError, match="0x43 at byte offset 17"):
        ours.encode("the<|endoftext|>aCat", allowed_special="all")
    with pytest.raises(ValueError, match=r"texts\[1\]: .*0x43 at byte offset 17"):
        ours.encode_batch(["the", "the<|endoftext|>aCat"], allowed_special="all")
    # The encoder still works after the error.
    assert ours.encode("the dog") == theirs.encode("the dog").ids
    assert ours.encode_to_numpy(long[:-5] + "mouse").tolist() == theirs.encode(long[:-5] + "mouse").ids


def test_a_vocabulary_without_all_bytes_decodes_every_id(ascii_only, tmp_path):
    ours, theirs = ascii_only
    assert ours.vocab_size == theirs.get_vocab_size()
    ids = list(range(ours.vocab_size))
    assert ours.decode(ids) == "<|endoftext|>" + "".join(ours.decode([i]) for i in ids[1:])
    for wrong in (ours.vocab_size, ours.vocab_size + 1):
        with pytest.raises(ValueError, match="is not an id"):
            ours.decode([wrong])
    assert len(ours.token_byte_lengths) == ours.vocab_size
    path = tmp_path / "tokenizer.json"
    ours.save(tmp_path)
    content = json.loads(path.read_text(encoding="utf-8"))
    content["model"] |= {"vocab": {"<|endoftext|>": 0}, "merges": []}
    path.write_text(json.dumps(content), encoding="utf-8")
    with pytest.raises(ValueError, match="lacks 256 of the 256 single bytes"):
        Tokenizer.load(path)


def test_a_dataset_is_built_or_the_error_names_the_missing_byte(in_process, texts, tmp_path):
    trained_by_tokenizers(texts, "Falcon", tmp_path / "tokenizer.json")
    (tmp_path / "text.txt").write_text("".join(texts[:40]), encoding="utf-8")
    build = ("build-dataset", "text.txt", "--tokenizer", "tokenizer.json", "--context-length", "64")
    done = in_process(*build, "--out", "data")
    assert done.returncode == 0, done.stderr
    info = json.loads((tmp_path / "data" / "dataset.json").read_text(encoding="utf-8"))
    assert info["tokenizer"]["fingerprint"] == Tokenizer.load(tmp_path / "data").fingerprint
    assert info["splits"]["train"]["encoded_tokens"] > 10_000
    missing = Tokenizer.load(tmp_path / "tokenizer.json").vocabulary.missing_bytes
    (tmp_path / "text.txt").write_bytes(b"a text" * 50 + missing[:1] + b" more" * 50)
    done = in_process(*build, "--invalid", "bytes", "--out", "other")
    assert done.returncode == 1
    assert f"the byte 0x{missing[0]:02x} at byte offset 300, for which the vocabulary has no token" in done.stderr
    assert not (tmp_path / "other").exists()
