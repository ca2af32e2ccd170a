"""BPE over characters gives the ids and texts of `tokenizers`, by the kernels and in plain Python."""

import json
import random

import pytest
import tokenizers
from hypothesis import given, settings
from hypothesis import strategies as st

from tokenizer import Tokenizer
from tokenizer.character_bpe_vocabulary import CharacterPairVocabulary
from tokenizer.encoding.character_merging import CharacterMerging
from tokenizer.splitting.patterns import resolve_pattern

LETTERS = "abcdé日🎉"
WORDS = st.lists(
    st.sampled_from([*LETTERS, " ", "▁", "\n", "x", "本", "\0", "\ufffd", "<s>", "<0x41>"]), max_size=40
).map("".join)


def random_content(seed, **model):
    """Return the value of a tokenizer.json with random merges over some of LETTERS."""
    rng = random.Random(seed)
    prefix, suffix = model.get("continuing_subword_prefix") or "", model.get("end_of_word_suffix") or ""
    known = [*rng.sample(LETTERS, 5), *(["▁"] if rng.random() < 0.8 else [])]
    tokens = ["<unk>", "<s>", *known, *[f"<0x{byte:02X}>" for byte in range(256) if model.get("byte_fallback")]]
    symbols = [*known]
    for start, end in ((prefix, ""), ("", suffix), (prefix, suffix)):
        if (start or end) and (not start or prefix) and (not end or suffix):
            symbols += [start + c + end for c in known if rng.random() < 0.9]
    tokens = list(dict.fromkeys([*tokens, *symbols]))
    merges = []
    while len(merges) < 60:
        left, right = rng.choice(symbols), rng.choice(symbols)
        if [left, right] in merges or (suffix and left.endswith(suffix)) or (prefix and not right.startswith(prefix)):
            continue
        merges.append([left, right])
        symbols.append(left + right[len(prefix) :])
        tokens = list(dict.fromkeys([*tokens, symbols[-1]]))
    rng.shuffle(merges)
    return {
        "version": "1.0",
        "truncation": None,
        "padding": None,
        "added_tokens": [
            {"id": i, "content": spelling, "single_word": False, "lstrip": False, "rstrip": rstrip}
            | {"normalized": False, "special": True}
            for i, (spelling, rstrip) in enumerate([("<unk>", False), ("<s>", True)])
        ],
        "normalizer": None,
        "pre_tokenizer": {"type": "Metaspace", "replacement": "▁", "prepend_scheme": "always", "split": True},
        "post_processor": None,
        "decoder": {"type": "Sequence", "decoders": [{"type": "ByteFallback"}, {"type": "Fuse"}]},
        "model": {
            "type": "BPE",
            "dropout": None,
            "unk_token": "<unk>",
            "continuing_subword_prefix": None,
            "end_of_word_suffix": None,
            "fuse_unk": False,
            "byte_fallback": False,
            "ignore_merges": False,
            "vocab": {token: i for i, token in enumerate(tokens)},
            "merges": merges,
        }
        | model,
    }


MODELS = {
    "llama": {"byte_fallback": True, "fuse_unk": True},
    "bytes": {"byte_fallback": True, "unk_token": None},
    "unknown": {},
    "fused": {"fuse_unk": True},
    "dropped": {"unk_token": None},
    "clip": {"end_of_word_suffix": "</w>"},
    "continued": {"continuing_subword_prefix": "##"},
    "both": {"continuing_subword_prefix": "##", "end_of_word_suffix": "</w>", "fuse_unk": True},
    "whole": {"byte_fallback": True, "ignore_merges": True},
}
MARKS = {"type": "Replace", "pattern": {"String": " "}, "content": "▁"}
LEGACY = {"type": "Sequence", "normalizers": [{"type": "Prepend", "prepend": "▁"}, MARKS]}
PIPELINES = {
    "words": {},
    "legacy": {"normalizer": LEGACY, "pre_tokenizer": None},
    "gemma": {"normalizer": MARKS, "pre_tokenizer": None},
    "first": {"pre_tokenizer": {"type": "Metaspace", "replacement": "▁", "prepend_scheme": "first", "split": False}},
    "never": {"pre_tokenizer": {"type": "Metaspace", "replacement": "▁", "prepend_scheme": "never", "split": False}},
}


@pytest.fixture(scope="module", params=MODELS)
def model(request):
    return MODELS[request.param]


@pytest.fixture(scope="module", params=PIPELINES)
def both(request, model, tmp_path_factory):
    """Return some of our tokenizers, each with that of `tokenizers`, from the same files."""
    made = []
    for seed in range(3):
        content = random_content(seed, **model) | PIPELINES[request.param]
        path = tmp_path_factory.mktemp("files") / "tokenizer.json"
        path.write_text(json.dumps(content), encoding="utf-8")
        ours = Tokenizer.load(path)
        ours.warm_up(1)
        made.append((ours, tokenizers.Tokenizer.from_file(str(path))))
    return made


@settings(max_examples=20, deadline=None)
@given(texts=st.lists(WORDS, max_size=4), seed=st.integers(0, 2))
def test_ids_and_texts_are_those_of_tokenizers(both, texts, seed):
    ours, theirs = both[seed]
    expected = [theirs.encode(text, add_special_tokens=False).ids for text in texts]
    assert ours.encode_batch(texts, allowed_special="all") == expected
    for text, ids in zip(texts, expected, strict=True):
        assert ours.decode(ids) == theirs.decode(ids, skip_special_tokens=False)
        assert ours.count(text, allowed_special="all") == len(ids)
        plain = CharacterMerging(ours.vocabulary)
        if "<s>" not in text:
            assert [i for p in ours.vocabulary.pattern.pretokens(text.encode()) for i in plain.encode(p)] == ids


@settings(max_examples=20, deadline=None)
@given(text=WORDS, seed=st.integers(0, 2))
def test_offsets_are_those_of_tokenizers(both, text, seed):
    ours, theirs = both[seed]
    if ours.vocabulary.prefix or ours.vocabulary.suffix:
        with pytest.raises(ValueError, match="offsets of tokens of characters are not supported"):
            ours.encode_with_offsets("a" + text, allowed_special="all")
        return
    expected = theirs.encode(text, add_special_tokens=False)
    ids, offsets = ours.encode_with_offsets(text, allowed_special="all")
    assert ids == expected.ids
    # tokenizers counts the characters that it leaves out as none
    if ours.vocabulary.unknown is not None or ours.vocabulary.byte_fallback:
        assert offsets == expected.offsets


@settings(max_examples=15, deadline=None)
@given(text=WORDS, dropout=st.sampled_from([0.0, 0.3, 1.0]), seed=st.integers(0, 9))
def test_dropout_keeps_the_text(both, text, dropout, seed):
    ours, _ = both[0]
    ids = ours.encode_with_dropout(text, dropout, seed, disallowed_special=())
    if dropout == 0:
        assert ids == ours.encode_ordinary(text)
    elif not (ours.vocabulary.prefix or ours.vocabulary.suffix or ours.vocabulary.whole_first):
        assert ours.decode(ids) == ours.decode(ours.encode_ordinary(text)) or ours.vocabulary.unknown_id in ids


@pytest.mark.parametrize("name", MODELS)
def test_saved_file_gives_the_same_ids(name, tmp_path):
    path = tmp_path / "tokenizer.json"
    path.write_text(json.dumps(random_content(3, **MODELS[name])), encoding="utf-8")
    ours = Tokenizer.load(path)
    ours.save(tmp_path / "saved")
    again = Tokenizer.load(tmp_path / "saved")
    theirs = tokenizers.Tokenizer.from_file(str(tmp_path / "saved" / "tokenizer.json"))
    assert again == ours
    for text in ("", "ab cd", "▁日é a\nxx"):
        assert ours.encode(text) == again.encode(text) == theirs.encode(text, add_special_tokens=False).ids


def test_a_long_text_without_spaces_gives_the_ids_of_plain_merging(tmp_path):
    rng = random.Random(0)
    path = tmp_path / "tokenizer.json"
    path.write_text(json.dumps(random_content(1, byte_fallback=True) | PIPELINES["gemma"]), encoding="utf-8")
    ours = Tokenizer.load(path)
    ours.warm_up(1)
    for alphabet in (LETTERS, "ab", "日"):
        text = "".join(rng.choices(alphabet, k=30_000)).encode()
        assert ours.encode(text) == CharacterMerging(ours.vocabulary).encode(text)


@settings(max_examples=50, deadline=None)
@given(text=WORDS | st.binary(max_size=30))
def test_any_pattern_splits_for_bpe_over_characters(text):
    content = random_content(2, end_of_word_suffix="</w>")["model"]
    vocabulary = CharacterPairVocabulary(
        ids=content["vocab"],
        pairs=content["merges"],
        unknown="<unk>",
        suffix="</w>",
        decoder=[{"type": "Fuse"}],
        special_tokens={"<s>": 1},
        pattern=resolve_pattern("gpt2"),
    )
    ours = Tokenizer(vocabulary)
    ours.warm_up(1)
    data = text.encode() if isinstance(text, str) else text
    plain = CharacterMerging(vocabulary)
    expected = [i for pretoken in vocabulary.pattern.pretokens(data) for i in plain.encode(pretoken)]
    assert ours.encode_ordinary(data) == expected


def test_bytes_without_a_token_become_the_unknown_token(tmp_path):
    """As in files of tokenizers whose BpeTrainer had no initial_alphabet."""
    peer = tokenizers.Tokenizer(tokenizers.models.BPE(unk_token="[UNK]"))
    peer.pre_tokenizer = tokenizers.pre_tokenizers.ByteLevel(add_prefix_space=False)
    peer.decoder = tokenizers.decoders.ByteLevel()
    trainer = tokenizers.trainers.BpeTrainer(vocab_size=40, special_tokens=["[UNK]"], show_progress=False)
    peer.train_from_iterator(["to be or not to be, that is the question"], trainer)
    peer.save(str(tmp_path / "tokenizer.json"))
    tok = Tokenizer.load(tmp_path)
    tok.save(tmp_path / "again")
    again = tokenizers.Tokenizer.from_file(str(tmp_path / "again" / "tokenizer.json"))
    for text in ("to be é", "", " Z", "to 漢 be"):
        assert tok.encode_ordinary(text) == peer.encode(text).ids == again.encode(text).ids
    assert Tokenizer.load(tmp_path / "again") == tok
