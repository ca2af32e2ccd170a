"""Published vocabularies give the ids of their libraries in each form of saving, or a refusal with the reason.

A form is a function that saves a tokenizer of transformers and returns the file or folder.
"""

import base64
import json

import pytest
import sentencepiece
import tiktoken
import tokenizers
import transformers
from tokenizers import AddedToken
from transformers.convert_slow_tokenizer import TikTokenConverter

from tokenizer import Tokenizer
from tokenizer.formats.published import PUBLISHED

NAMES = ("gpt2", "roberta", "cl100k", "bert-uncased", "bert-cased", "t5-small")
BPE = ("gpt2", "roberta", "cl100k")
WORDPIECE = ("bert-uncased", "bert-cased")


def published(name, vectors):
    """Return a vocabulary as a tokenizer of transformers."""
    folder = vectors / name
    if name == "gpt2":
        return transformers.GPT2Tokenizer(str(folder / "encoder.json"), str(folder / "vocab.bpe"))
    if name == "cl100k":
        special = [*PUBLISHED["cl100k"].special_tokens]
        converter = TikTokenConverter(str(folder / "cl100k_base.tiktoken"), extra_special_tokens=special)
        return transformers.PreTrainedTokenizerFast(tokenizer_object=converter.converted(), eos_token="<|endoftext|>")
    if name in WORDPIECE:
        return transformers.BertTokenizer(str(folder / "vocab.txt"), do_lower_case=name.endswith("uncased"))
    options = {"eos_token": "</s>", "pad_token": "<pad>", "unk_token": "<unk>"}
    return transformers.PreTrainedTokenizerFast(tokenizer_file=str(folder / "tokenizer.json"), **options)


def by_transformers(peer, folder):
    peer.save_pretrained(folder)
    return folder


def by_tokenizers(peer, folder):
    peer.backend_tokenizer.save(str(folder / "tokenizer.json"))
    return folder / "tokenizer.json"


def on_one_line(peer, folder):
    peer.backend_tokenizer.save(str(folder / "tokenizer.json"), pretty=False)
    return folder


def after_padding(peer, folder):
    peer.pad_token = peer.pad_token or peer.eos_token
    assert len({*map(len, peer(["a", "a b c d e f"], padding=True, truncation=True, max_length=5)["input_ids"])}) == 1
    peer.save_pretrained(folder)
    return folder


def after_padding_to_a_length(peer, folder):
    peer.backend_tokenizer.enable_padding(length=40, direction="left", pad_id=1, pad_token="<x>", pad_to_multiple_of=8)
    peer.backend_tokenizer.enable_truncation(20, stride=3, strategy="only_first", direction="left")
    peer.backend_tokenizer.save(str(folder / "tokenizer.json"))
    return folder


def after_adding_special_tokens(peer, folder):
    peer.add_special_tokens({"additional_special_tokens": ["<new>", "<字>"], "mask_token": "<a mask>"})
    peer.save_pretrained(folder)
    return folder


def after_adding_tokens_with_flags(peer, folder):
    flags = {"normalized": False, "special": False}
    tokens = [AddedToken("<new>", lstrip=True, **flags), AddedToken("字", rstrip=True, **flags)]
    peer.add_tokens([*tokens, AddedToken("new", single_word=True, **flags), AddedToken("\n", **flags)])
    peer.save_pretrained(folder)
    return folder


def after_adding_words(peer, folder):
    """Words are matched in normalized text."""
    peer.add_tokens(["brandnewword", "Anotherone"])
    peer.save_pretrained(folder)
    return folder


def after_adding_a_token_of_the_vocabulary(peer, folder):
    token = "the" if peer.convert_tokens_to_ids("the") not in (None, peer.unk_token_id) else "▁the"
    peer.add_special_tokens({"additional_special_tokens": [AddedToken(token, normalized=False)]})
    peer.save_pretrained(folder)
    return folder


def _edited(peer, folder, edit):
    path = by_tokenizers(peer, folder)
    content = json.loads(path.read_text(encoding="utf-8"))
    edit(content)
    path.write_text(json.dumps(content), encoding="utf-8")
    return folder


def with_gaps_in_the_ids_of_added_tokens(peer, folder):
    peer.add_tokens([AddedToken(token, normalized=False) for token in ("<new>", "<字>", "<more>")])

    def edit(content):
        for token, i in zip(content["added_tokens"][-3:], (3, 5, 4), strict=True):
            token["id"] = len(content["model"]["vocab"]) + 100 * i

    return _edited(peer, folder, edit)


def with_added_tokens_in_another_order(peer, folder):
    peer.add_tokens([AddedToken(token, normalized=False) for token in ("<new>", "<字>", "<more>")])
    return _edited(peer, folder, lambda content: content["added_tokens"].reverse())


def with_pairs_as_strings(peer, folder):
    """Releases of `tokenizers` before 0.20 write merges in this form, and leave out fields that are newer."""

    def edit(content):
        content["model"]["merges"] = [" ".join(merge) for merge in content["model"].get("merges", [])]
        for field in ("ignore_merges", "byte_fallback", "type"):
            content["model"].pop(field, None)

    return _edited(peer, folder, edit)


def with_empty_merges(peer, folder):
    return _edited(peer, folder, lambda content: content["model"].update(merges=[]))


def without_merges(peer, folder):
    return _edited(peer, folder, lambda content: content["model"].pop("merges"))


def as_files_of_the_model(peer, folder):
    """vocab.json with merges.txt, vocab.txt, or unigram.json."""
    peer.backend_tokenizer.model.save(str(folder))
    config = {"tokenizer_class": type(peer).__name__, "do_lower_case": getattr(peer, "do_lower_case", False)}
    (folder / "tokenizer_config.json").write_text(json.dumps(config))
    return folder


def as_vocab_json_alone(peer, folder):
    as_files_of_the_model(peer, folder)
    (folder / "merges.txt").unlink()
    return folder


FORMS = (
    by_transformers,
    by_tokenizers,
    on_one_line,
    after_padding,
    after_padding_to_a_length,
    after_adding_special_tokens,
    after_adding_tokens_with_flags,
    after_adding_words,
    after_adding_a_token_of_the_vocabulary,
    with_gaps_in_the_ids_of_added_tokens,
    with_added_tokens_in_another_order,
)
BPE_FORMS = (with_pairs_as_strings, with_empty_merges, without_merges, as_files_of_the_model, as_vocab_json_alone)
CASES = [(name, form) for name in NAMES for form in FORMS] + [(name, form) for name in BPE for form in BPE_FORMS]
CASES += [(name, as_files_of_the_model) for name in WORDPIECE]


def of_cases(cases):
    """Return the parameters of a test. The forms of cl100k take several seconds each."""
    return [
        pytest.param(
            *case,
            id="-".join([case[0], case[1].__name__]),
            marks=[pytest.mark.slow] * (case[0] == "cl100k" and case[1] is not by_transformers),
        )
        for case in cases
    ]


# What is refused: the form, the vocabularies, and the reason.
REFUSED = {
    after_adding_words: (
        ("t5-small",),
        "has the added token 'brandnewword' with normalized, .*not supported",
    ),
    without_merges: (BPE, "has no merges"),
    as_vocab_json_alone: (BPE, "has no tokenizer.json, vocab.bpe, merges.txt"),
    as_files_of_the_model: (("cl100k", "roberta"), "names the tokenizer_class 'TokenizersBackend', .* pass pattern="),
}
TEXTS = (
    "the cat sat\non the mat.  <new>  new 字 x<字>the <more> <a mask>",
    "brandnewword Anotherone anotherone the<s></s>[CLS]",
    "Hello wörld, don't 12345 naïve\r\n\t\u3000 x … e\u0301 <|endoftext|>",
    " \n",
)


@pytest.fixture(scope="module")
def vectors(shared):
    return shared / "vectors"


def assert_the_ids_of_tokenizers(path):
    """Check that a saved file has the ids of `tokenizers`, also after we save it again."""
    path = path if path.is_file() else path / "tokenizer.json"
    tok = Tokenizer.load(path)
    tok.save(path.parent / "again")
    for file in (path, path.parent / "again" / "tokenizer.json"):
        peer = tokenizers.Tokenizer.from_file(str(file))
        peer.no_padding()
        peer.no_truncation()
        for text in TEXTS:
            assert tok.encode(text, allowed_special="all") == peer.encode(text, add_special_tokens=False).ids
    assert Tokenizer.load(path.parent / "again") == tok


@pytest.mark.parametrize(("name", "form"), of_cases(CASES))
def test_a_saved_vocabulary_gives_the_ids_of_its_library_or_a_refusal_with_the_reason(name, form, vectors, tmp_path):
    peer = published(name, vectors)
    path = form(peer, tmp_path)
    names, reason = REFUSED.get(form, ((), ""))
    if name in names:
        with pytest.raises((ValueError, FileNotFoundError), match=reason) as caught:
            Tokenizer.load(path)
        assert str(tmp_path) in str(caught.value)
    elif form is as_files_of_the_model:
        theirs, tok = type(peer).from_pretrained(path), Tokenizer.load(path)
        assert [tok.encode(text, allowed_special="all") for text in TEXTS] == [
            theirs(text, add_special_tokens=False)["input_ids"] for text in TEXTS
        ]
    else:
        assert_the_ids_of_tokenizers(path)


def test_saved_ranks_give_the_ids_of_tiktoken(vectors, tiktoken_patterns, tmp_path):
    tok = Tokenizer.load(vectors / "cl100k" / "cl100k_base.tiktoken")
    ranks = {tok.token_bytes(i): i for i in range(PUBLISHED["cl100k"].ranks)}
    lines = [base64.b64encode(token) + b" %d\n" % rank for token, rank in ranks.items()]  # as tiktoken saves them
    (tmp_path / "mine.tiktoken").write_bytes(b"".join(lines))
    special = {"<new>": 200_000, "<字>": 100_300}  # with gaps
    theirs = tiktoken.Encoding(
        "mine", pat_str=tiktoken_patterns["cl100k"], mergeable_ranks=ranks, special_tokens=special
    )
    mine = Tokenizer.load(tmp_path / "mine.tiktoken", pattern="cl100k", special_tokens=special)
    for text in TEXTS:
        assert mine.encode(text, allowed_special="all") == theirs.encode(text, allowed_special="all")
    mine.save(tmp_path)
    assert_the_ids_of_tokenizers(tmp_path / "tokenizer.json")


def test_a_saved_sentencepiece_model_gives_its_ids(vectors, tmp_path):
    path = vectors / "sentencepiece" / "test_model.model"
    theirs = sentencepiece.SentencePieceProcessor(model_file=str(path))
    (tmp_path / "mine.model").write_bytes(theirs.serialized_model_proto())
    for saved in (path, tmp_path / "mine.model"):
        tok = Tokenizer.load(saved)
        assert [tok.encode(text, disallowed_special=()) for text in TEXTS] == [theirs.encode(text) for text in TEXTS]


def test_a_sentencepiece_model_that_transformers_converts_gives_its_ids(vectors, tmp_path):
    content = (vectors / "sentencepiece" / "test_model.model").read_bytes()
    (tmp_path / "spiece.model").write_bytes(content)
    peer = transformers.T5Tokenizer.from_pretrained(tmp_path)
    peer.save_pretrained(tmp_path / "saved")
    assert_the_ids_of_tokenizers(tmp_path / "saved")
