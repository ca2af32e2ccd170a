"""The truncation and padding of a tokenizer.json are kept for `tokenizers`, and change no ids of `encode`."""

import json

import pytest
import tokenizers
from hypothesis import given, settings
from hypothesis import strategies as st
from tokenizers import decoders, models, normalizers, pre_tokenizers

from tokenizer import Tokenizer

TEXTS = ["a short text", "a much longer text " * 20, ""]
SIZES = st.integers(0, 2**64 - 1)
TRUNCATIONS = st.fixed_dictionaries(
    {
        "max_length": SIZES,
        "strategy": st.sampled_from(["LongestFirst", "OnlyFirst", "OnlySecond"]),
        "stride": SIZES,
    },
    optional={"direction": st.sampled_from(["Left", "Right"])},
)
PADDINGS = st.fixed_dictionaries(
    {
        "strategy": st.just("BatchLongest") | st.fixed_dictionaries({"Fixed": SIZES}),
        "direction": st.sampled_from(["Left", "Right"]),
        "pad_id": st.integers(0, 2**32 - 1),
        "pad_type_id": st.integers(0, 2**32 - 1),
        "pad_token": st.text(max_size=8),
    },
    optional={"pad_to_multiple_of": st.none() | SIZES},
)


def byte_level():
    peer = tokenizers.Tokenizer(models.BPE())
    peer.pre_tokenizer, peer.decoder = pre_tokenizers.ByteLevel(add_prefix_space=False), decoders.ByteLevel()
    alphabet = pre_tokenizers.ByteLevel.alphabet()
    trainer = tokenizers.trainers.BpeTrainer(
        vocab_size=300, show_progress=False, special_tokens=["<pad>"], initial_alphabet=alphabet
    )
    peer.train_from_iterator(TEXTS, trainer)
    return peer


def word_piece():
    peer = tokenizers.BertWordPieceTokenizer()
    peer.train_from_iterator(TEXTS, vocab_size=60, show_progress=False)
    return peer._tokenizer


def unigram():
    pieces = [("<unk>", 0.0), *((letter, -2.0) for letter in "▁ashorttextmuclng")]
    peer = tokenizers.Tokenizer(models.Unigram(list(dict(pieces).items()), unk_id=0))
    peer.normalizer = normalizers.Replace("\t", " ")
    peer.pre_tokenizer, peer.decoder = pre_tokenizers.Metaspace(), decoders.Metaspace()
    return peer


@pytest.fixture(scope="module", params=[byte_level, word_piece, unigram], ids=lambda kind: kind.__name__)
def peer(request):
    return request.param()


def cutting_and_padding(peer):
    """Return a copy of a peer that cuts texts to 5 tokens and pads them to 8."""
    changed = tokenizers.Tokenizer.from_str(peer.to_str())
    changed.enable_truncation(5, stride=2, strategy="only_first", direction="left")
    changed.enable_padding(length=8, pad_id=0, pad_token="<pad>", pad_to_multiple_of=4, direction="left")
    return changed


def test_a_file_saved_after_a_padded_call_loads_with_all_ids_and_saves_both_fields_unchanged(peer, tmp_path):
    changed = cutting_and_padding(peer)
    changed.save(str(tmp_path / "theirs.json"))
    assert [len(each.ids) for each in changed.encode_batch(TEXTS)] == [8, 8, 8]
    tok = Tokenizer.load(tmp_path / "theirs.json")
    expected = [each.ids for each in peer.encode_batch(TEXTS, add_special_tokens=False)]
    assert tok.encode_batch(TEXTS) == [tok.encode(text) for text in TEXTS] == expected
    assert len(expected[1]) > 8
    peer.save(str(tmp_path / "plain.json"))
    assert Tokenizer.load(tmp_path / "plain.json").fingerprint == tok.fingerprint
    for each in (tok, Tokenizer.load(tmp_path / "theirs.json").add_special_tokens(["<new>"])):
        each.save(tmp_path / "ours")
        again = tokenizers.Tokenizer.from_file(str(tmp_path / "ours" / "tokenizer.json"))
        assert (again.truncation, again.padding) == (changed.truncation, changed.padding)
        assert [each.ids for each in again.encode_batch(TEXTS, add_special_tokens=False)] == [
            each.ids for each in changed.encode_batch(TEXTS, add_special_tokens=False)
        ]


@pytest.fixture(scope="module")
def content(peer):
    return json.loads(cutting_and_padding(peer).to_str())


@settings(deadline=None, max_examples=60)
@given(st.none() | TRUNCATIONS, st.none() | PADDINGS)
def test_every_truncation_and_padding_of_tokenizers_is_saved_as_it_was_read(
    content, tmp_path_factory, truncation, padding
):
    folder = tmp_path_factory.mktemp("lengths")
    given = {"truncation": truncation, "padding": padding}
    text = json.dumps(content | given)
    tokenizers.Tokenizer.from_str(text)  # raises for what tokenizers does not read
    (folder / "tokenizer.json").write_text(text)
    Tokenizer.load(folder).save(folder)
    saved = json.loads((folder / "tokenizer.json").read_text(encoding="utf-8"))
    assert {field: saved[field] for field in given} == given


@pytest.mark.parametrize(
    ("path", "value", "message"),
    [
        (("truncation",), [], r"a truncation that is not an object: \[\]"),
        (("truncation",), {"max_length": 3}, "a truncation without strategy"),
        (("truncation", "max_length"), -1, "truncation.max_length = -1"),
        (("truncation", "max_length"), True, "truncation.max_length = True"),
        (("truncation", "max_length"), 2**64, "truncation.max_length = 18446744073709551616"),
        (("truncation", "strategy"), "Shortest", "truncation.strategy = 'Shortest'"),
        (("truncation", "stride"), 1.0, "truncation.stride = 1.0"),
        (("truncation", "direction"), "Up", "truncation.direction = 'Up'"),
        (("padding",), "right", "a padding that is not an object: 'right'"),
        (("padding",), {"strategy": "BatchLongest"}, "a padding without direction"),
        (("padding", "strategy"), {"Fixed": -1}, "padding.strategy = {'Fixed': -1}"),
        (("padding", "strategy"), {"Fixed": 3, "More": 1}, "padding.strategy = {'Fixed': 3, 'More': 1}"),
        (("padding", "strategy"), ["BatchLongest"], r"padding.strategy = \['BatchLongest'\]"),
        (("padding", "direction"), None, "padding.direction = None"),
        (("padding", "pad_to_multiple_of"), "8", "padding.pad_to_multiple_of = '8'"),
        (("padding", "pad_id"), 2**32, "padding.pad_id = 4294967296"),
        (("padding", "pad_type_id"), None, "padding.pad_type_id = None"),
        (("padding", "pad_token"), None, "padding.pad_token = None"),
        (("padding", "pad_token"), "\ud800", "padding.pad_token = '.ud800'"),
    ],
)
def test_a_malformed_truncation_or_padding_is_named(content, tmp_path, path, value, message):
    changed = json.loads(json.dumps(content))
    place = changed
    for name in path[:-1]:
        place = place[name]
    place[path[-1]] = value
    text = json.dumps(changed)
    with pytest.raises(Exception, match=r"at line 1 column|surrogate"):
        tokenizers.Tokenizer.from_str(text)
    (tmp_path / "tokenizer.json").write_text(text)
    with pytest.raises(ValueError, match=f"tokenizer.json: has {message}"):
        Tokenizer.load(tmp_path)
