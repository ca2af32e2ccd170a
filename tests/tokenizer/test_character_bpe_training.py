"""Trained BPE over characters has the same ids in sentencepiece and tokenizers, from both kinds of files."""

import collections
import itertools
import json

import pytest
import sentencepiece
import tokenizers
from hypothesis import given, settings
from hypothesis import strategies as st

from tokenizer import Tokenizer

WORDS = ["the", "of", "and", "to", "a", "in", "that", "is", "was", "he", "for", "it", "with", "as", "his", "on", "be"]
TEXTS = [f"{a} {b}{a}  {b}\n" for a in WORDS for b in WORDS] + ["naïve café 日本語 日本", "x = [1, 23]"] * 5
PATTERNS = ["llama2", "metaspace", "nmt_nfkc"]


def train(pattern="llama2", size=360, **options):
    return Tokenizer.train(TEXTS, size, pattern, kind="character-bpe", **options)


@pytest.fixture(scope="module", params=PATTERNS)
def saved(request, tmp_path_factory):
    """Return a tokenizer, its two forms, and the peers that read their files."""
    ours = train(request.param)
    folder = tmp_path_factory.mktemp("trained")
    ours.save(folder / "json")
    ours.as_sentencepiece().save(folder / "model")
    return (
        ours,
        Tokenizer.load(folder / "json"),
        Tokenizer.load(folder / "model"),
        tokenizers.Tokenizer.from_file(str(folder / "json" / "tokenizer.json")),
        sentencepiece.SentencePieceProcessor(model_file=str(folder / "model" / "tokenizer.model")),
    )


@settings(max_examples=150, deadline=None)
@given(text=st.lists(st.sampled_from([*WORDS, " ", "  ", "é", "日本", "🎉", "▁", "1", "<s>", "x\ny"]), max_size=30))
def test_both_files_have_the_same_ids_in_both_libraries(saved, text):
    ours, from_json, from_model, peer, processor = saved
    text = "".join(text)
    if ours.pattern != LOSSLESS.pattern:
        text = text.replace("▁", "_")  # tokenizers keeps the mark at the end of a text, where sentencepiece drops it
    ids = ours.encode(text)
    assert from_json.encode(text) == peer.encode(text, add_special_tokens=False).ids == ids
    assert from_model.encode(text) == processor.encode(text) == ids
    assert ours.decode(ids) == peer.decode(ids)


@settings(max_examples=150, deadline=None)
@given(text=st.text(alphabet="theo\n\t  é日🎉\0", max_size=30))
def test_every_text_without_a_mark_decodes_to_itself(text):
    ours = LOSSLESS
    assert ours.decode(ours.encode(text)) == text
    assert ours.as_sentencepiece().decode(ours.encode(text)) == text


LOSSLESS = train()


def test_the_merges_are_those_of_plain_training():
    """Sennrich's loop: the pair with the largest count, among equals the one with the smallest ids."""
    counts = collections.Counter(
        word for text in TEXTS for word in LOSSLESS.vocabulary.pattern.pretokens(text.encode())
    )
    words = {word: list(word.decode().replace(" ", "▁")) for word in counts}
    ids = LOSSLESS.vocabulary.ids
    for expected in LOSSLESS.vocabulary.pairs[:100]:
        pairs = collections.Counter()
        for word, parts in words.items():
            for pair in itertools.pairwise(parts):
                pairs[pair] += counts[word]
        best = min(pairs, key=lambda pair: (-pairs[pair], ids[pair[0]], ids[pair[1]]))
        assert best == tuple(expected)
        for parts in words.values():
            place = 0
            while place < len(parts) - 1:
                if (parts[place], parts[place + 1]) == best:
                    parts[place : place + 2] = ["".join(best)]
                place += 1


def test_the_vocabulary_begins_like_llama_2s():
    tok = train(special_tokens=("<unk>", "<s>"))
    assert tok.token_to_id("<unk>") == 0
    assert [tok.token_to_id(f"<0x{byte:02X}>") for byte in (0, 255)] == [1, 256]
    assert tok.token_to_id("<s>") == tok.vocab_size - 1 == 359


def test_rare_characters_are_spelled_by_bytes():
    tok = train(limit_alphabet=10)
    text = "naïve 日本"
    assert tok.decode(tok.encode(text)) == text
    assert tok.token_to_id("日") is None


@pytest.mark.parametrize(
    ("options", "message"),
    [
        ({"size": 258}, "vocab_size must be at least 263"),
        ({"size": 270}, "the words have .* characters; or keep only the most frequent with `limit_alphabet`"),
        ({"special_tokens": ("the",)}, "the corpus makes the token 'the', which is a special token"),
        ({"special_tokens": ("¤",)}, "the special token '¤' can be a character of a text"),
        ({"pattern": "cl100k"}, "character-bpe needs words: llama2"),
        ({"max_token_length": 5}, "`max_token_length` is not an option of character-bpe"),
    ],
)
def test_options_that_train_nothing_are_refused(options, message):
    if "the" in options.get("special_tokens", ()):
        options = options | {"pattern": "llama2"}
        with pytest.raises(ValueError, match=message):
            Tokenizer.train(["xthe the"] * 50 + ["the"], 300, kind="character-bpe", **options)
        return
    with pytest.raises(ValueError, match=message):
        train(**options)


def test_a_sentencepiece_model_becomes_a_tokenizer_json_with_equal_ids(tmp_path):
    model = LOSSLESS.as_sentencepiece()
    converted = model.as_tokenizers()
    converted.save(tmp_path)
    peer = tokenizers.Tokenizer.from_file(str(tmp_path / "tokenizer.json"))
    for text in ["", " a", "the  café\n", *TEXTS[:50]]:
        assert converted.encode(text) == peer.encode(text, add_special_tokens=False).ids == model.encode(text)
    assert converted.as_sentencepiece().encode("the café") == model.encode("the café")


def test_a_token_that_no_word_contains_is_refused_because_sentencepiece_would_make_it(tmp_path):
    LOSSLESS.save(tmp_path)
    path = tmp_path / "tokenizer.json"
    content = json.loads(path.read_text(encoding="utf-8"))
    content["model"]["vocab"]["a▁th"] = LOSSLESS.vocab_size
    content["model"]["merges"].append(["a", "▁th"])
    path.write_text(json.dumps(content), encoding="utf-8")
    ours = Tokenizer.load(tmp_path)
    assert ours.encode("a the") == LOSSLESS.encode("a the")
    with pytest.raises(ValueError, match="it has the token 'a▁th', which no word contains"):
        ours.as_sentencepiece()
