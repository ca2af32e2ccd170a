"""A vocabulary of a kind that is not read is refused for its kind, in every form in which its libraries save it."""

import base64
import gzip
import io
import json
from itertools import product

import pytest
import sentencepiece
import tiktoken
import tokenizers
import transformers
from tokenizers import models, normalizers, pre_tokenizers, trainers
from transformers.convert_slow_tokenizer import bytes_to_unicode

from tokenizer import Tokenizer

TEXTS = ["the cat sat on the mat", "low lower lowest", "the newest, the widest: 7"] * 20
END_OF_WORD = "marks the end of a word, as in CLIP and OpenAI's first GPT; such BPE is read from tokenizer.json only"
WITHIN_WORDS = "marks tokens within words, as in WordPiece; such BPE is read from tokenizer.json only"


def marked(normalizer, pre_tokenizer, alphabet=(), **mark):
    """Return BPE of tokenizers whose tokens have a mark."""
    peer = tokenizers.Tokenizer(models.BPE(unk_token="<unk>", **mark))
    peer.normalizer, peer.pre_tokenizer = normalizer, pre_tokenizer
    options = {"special_tokens": ["<unk>"], "initial_alphabet": list(alphabet), "show_progress": False} | mark
    peer.train_from_iterator(TEXTS, trainers.BpeTrainer(vocab_size=600, **options))
    return peer


def clip():
    split = pre_tokenizers.Split(tokenizers.Regex(r"[a-z]+|[0-9]|[^\s\w]+"), "removed", invert=True)
    steps = pre_tokenizers.Sequence([split, pre_tokenizers.ByteLevel(add_prefix_space=False)])
    lower = normalizers.Sequence([normalizers.NFC(), normalizers.Lowercase()])
    return marked(lower, steps, pre_tokenizers.ByteLevel.alphabet(), end_of_word_suffix="</w>")


def openai_gpt():
    return marked(normalizers.BertNormalizer(), pre_tokenizers.BertPreTokenizer(), end_of_word_suffix="</w>")


def continued():
    alphabet = pre_tokenizers.ByteLevel.alphabet()
    return marked(None, pre_tokenizers.ByteLevel(), alphabet, continuing_subword_prefix="##")


MARKED = [(clip, END_OF_WORD), (openai_gpt, END_OF_WORD), (continued, WITHIN_WORDS)]


@pytest.mark.parametrize(("kind", "message"), MARKED, ids=lambda value: getattr(value, "__name__", ""))
@pytest.mark.parametrize("pattern", [None, "gpt2"])
def test_bpe_with_marked_words_is_refused_without_a_tokenizer_json(kind, message, pattern, tmp_path):
    peer = kind()
    peer.model.save(str(tmp_path))
    peer.save(str(tmp_path / "whole.json"))
    ours = Tokenizer.load(tmp_path / "whole.json")
    for text in ("the newest", "Low, lower: 7", "ü"):
        assert ours.encode(text) == peer.encode(text).ids
    for config in (None, '{"tokenizer_class": "CLIPTokenizer"}', '{"tokenizer_class": "GPT2Tokenizer"}'):
        if config:
            (tmp_path / "tokenizer_config.json").write_text(config)
        for path in (tmp_path, tmp_path / "merges.txt", tmp_path / "vocab.json"):
            with pytest.raises(ValueError, match=rf"(merges.txt|vocab.json): has .*{message}"):
                Tokenizer.load(path, pattern=pattern)
    model = json.loads(peer.to_str())["model"]
    with pytest.raises(ValueError, match=f"vocabulary: has .*{message}"):
        Tokenizer.from_merges(model["vocab"], map(tuple, model["merges"]), pattern or "cl100k")
    with pytest.raises(ValueError, match=f"vocabulary: has .*{message}"):
        Tokenizer.from_merges(model["vocab"], [], pattern or "cl100k")


def test_clip_is_read_from_its_gzip_file_and_from_vocab_json_with_merges(tmp_path):
    """Merges of any two characters take the places of CLIP's."""
    characters = [*bytes_to_unicode().values()]
    pairs = list(product(characters, [character + end for end in ("</w>", "") for character in characters]))
    pairs = pairs[: 49152 - 256 - 2]
    tokens = [*characters, *(f"{character}</w>" for character in characters), *map("".join, pairs)]
    ids = {token: i for i, token in enumerate([*tokens, "<|startoftext|>", "<|endoftext|>"])}
    lines = "\n".join(["#version: 0.2", *map(" ".join, pairs), ""])
    (tmp_path / "vocab.json").write_text(json.dumps(ids), encoding="utf-8")
    (tmp_path / "merges.txt").write_text(lines, encoding="utf-8")
    (tmp_path / "bpe_simple_vocab_16e6.txt.gz").write_bytes(gzip.compress(lines.encode()))
    peer = transformers.CLIPTokenizer(ids, pairs)
    for path in (tmp_path, tmp_path / "vocab.json", tmp_path / "bpe_simple_vocab_16e6.txt.gz"):
        tok = Tokenizer.load(path)
        for text in ("A photo of a  Cat!", "naïve'S 字 123\n<|endoftext|> x", "%&' (Hi) 100%"):
            assert tok(text, allowed_special="all")["input_ids"] == peer(text)["input_ids"]
    with pytest.raises(ValueError, match="contains its own pattern"):
        Tokenizer.load(tmp_path, pattern="gpt2")
    (tmp_path / "merges.txt").write_text(lines.replace("\n", "\n" + pairs[1][0] + " </w>\n", 1), encoding="utf-8")
    with pytest.raises(ValueError, match=END_OF_WORD):
        Tokenizer.load(tmp_path)


@pytest.mark.parametrize("merges", ["t h 100\nth e</w> 50\n", "#version: 0.2\nt h\nth e</w>\n"], ids=["xlm", "ctrl"])
def test_merges_with_marked_words_are_refused_whatever_else_their_files_have(merges, tmp_path):
    """XLM has a count in each line; CTRL marks the other tokens in its vocabulary."""
    (tmp_path / "merges.txt").write_text(merges)
    (tmp_path / "vocab.json").write_text('{"the": 0, "th@@": 1, "t@@": 2}')
    with pytest.raises(ValueError, match=END_OF_WORD):
        Tokenizer.load(tmp_path)


@pytest.mark.filterwarnings("ignore:the (split pattern|corpus ran out)")
def test_byte_level_bpe_may_have_tokens_that_end_like_marked_words(tmp_path):
    """They are the result of merges, as all longer tokens of byte-level BPE are."""
    text = "<w>a</w><w>b</w> ##a ##b " * 100
    tok = Tokenizer.train([text], 290, pattern=r"\S+|\s+", special_tokens=["x</w>"])
    assert {b"a</w>", b"##a"} <= {tok.token_bytes(i) for i in range(1, tok.vocab_size)}
    tok.save(tmp_path)
    peer = tokenizers.Tokenizer.from_file(str(tmp_path / "tokenizer.json"))
    (tmp_path / "pair").mkdir()
    peer.model.save(str(tmp_path / "pair"))
    special = {"pattern": tok.pattern, "special_tokens": {"x</w>": 0}}
    for again in (
        Tokenizer.load(tmp_path),
        Tokenizer.load(tmp_path / "pair", **special),
        Tokenizer.from_merges({t: i for t, i in tok.get_vocab().items() if i}, tok.merges, **special),
    ):
        assert again.fingerprint == tok.fingerprint


def sentencepiece_model(**options):
    written = io.BytesIO()
    sentencepiece.SentencePieceTrainer.train(
        sentence_iterator=iter(TEXTS), model_writer=written, hard_vocab_limit=False, minloglevel=2, **options
    )
    return written.getvalue()


@pytest.fixture(scope="module")
def bpe_model():
    """Return a model like Llama 2's."""
    return sentencepiece_model(model_type="bpe", vocab_size=300, byte_fallback=True)


@pytest.mark.parametrize(
    "name",
    ["tokenizer.model", "spiece.model", "tokenizer.model.v1", "mistral.model.v2", "tokenizer.model.v3", "source.spm"],
)
def test_a_bpe_model_of_sentencepiece_is_read_whatever_its_name(bpe_model, name, tmp_path):
    (tmp_path / name).write_bytes(bpe_model)
    peer = sentencepiece.SentencePieceProcessor(model_proto=bpe_model)
    for path in (tmp_path / name, *([tmp_path] if ".model" in name else [])):
        assert Tokenizer.load(path).encode("the cat sät") == peer.encode("the cat sät")
        with pytest.raises(ValueError, match="contains its own pattern"):
            Tokenizer.load(path, pattern="llama3")


@pytest.mark.parametrize("name", ["LlamaTokenizer", "GemmaTokenizer"])
def test_the_tokenizer_json_of_llama_2_and_gemma_gives_the_ids_of_tokenizers(bpe_model, name, tmp_path):
    (tmp_path / "tokenizer.model").write_bytes(bpe_model)
    getattr(transformers, name).from_pretrained(tmp_path).save_pretrained(tmp_path / "hf")
    path = tmp_path / "hf" / "tokenizer.json"
    content = json.loads(path.read_text(encoding="utf-8"))
    prepend = {"type": "Prepend", "prepend": "▁"}
    replace = {"type": "Replace", "pattern": {"String": " "}, "content": "▁"}
    legacy = {"normalizer": {"type": "Sequence", "normalizers": [prepend, replace]}, "pre_tokenizer": None}
    for version in (content, content | legacy):
        path.write_text(json.dumps(version), encoding="utf-8")
        peer = tokenizers.Tokenizer.from_file(str(path))
        ours = Tokenizer.load(tmp_path / "hf")
        for text in ("", "the cat", " the  newest\n", "▁sät"):
            ids = peer.encode(text, add_special_tokens=False).ids
            assert ours.encode(text, allowed_special="all") == ids
            assert ours.decode(ids) == peer.decode(ids, skip_special_tokens=False)
    path.write_text(json.dumps(content | {"decoder": None}), encoding="utf-8")
    peer = tokenizers.Tokenizer.from_file(str(path))
    assert Tokenizer.load(tmp_path / "hf").decode(ids) == peer.decode(ids, skip_special_tokens=False)


def test_sentencepiece_bpe_of_tokenizers_is_read(tmp_path):
    peer = tokenizers.SentencePieceBPETokenizer()
    peer.train_from_iterator(TEXTS, vocab_size=60, show_progress=False)
    content = json.loads(peer._tokenizer.to_str()) | {"normalizer": None}
    steps = {"type": "Sequence", "pretokenizers": [{"type": "WhitespaceSplit"}, content["pre_tokenizer"]]}
    for version in (content, content | {"pre_tokenizer": steps}):
        (tmp_path / "tokenizer.json").write_text(json.dumps(version))
        again = tokenizers.Tokenizer.from_file(str(tmp_path / "tokenizer.json"))
        for text in ("the cat", " the  newest\n x", "▁sät"):
            assert Tokenizer.load(tmp_path).encode(text) == again.encode(text, add_special_tokens=False).ids


def test_tekken_has_the_ids_of_its_ranks_after_those_of_special_tokens(tmp_path):
    """mistral-common gives tiktoken the ranks, and adds the number of special tokens."""
    tokens = [*(bytes([i]) for i in range(256)), b"th", b"the", b" the", b"beyond"]
    vocab = [
        {"rank": i, "token_bytes": base64.b64encode(token).decode(), "token_str": None}
        for i, token in enumerate(tokens)
    ]
    regex = r"[^\r\n\p{L}\p{N}]?\p{L}+|\p{N}| ?[^\s\p{L}\p{N}]+|\s+"
    config = {"pattern": regex, "default_vocab_size": 259 + 25, "default_num_special_tokens": 25, "version": "v3"}
    ranks = {token: rank for rank, token in enumerate(tokens[:259])}
    peer = tiktoken.Encoding("tekken", pat_str=regex, mergeable_ranks=ranks, special_tokens={})
    listed = [
        {"rank": 0, "token_str": "<unk>", "is_control": True},
        {"rank": 1, "token_str": "<s>", "is_control": True},
    ]
    for special_tokens in (None, listed):
        content = {"config": config, "vocab": vocab, "special_tokens": special_tokens}
        (tmp_path / "tekken.json").write_text(json.dumps(content))
        ours = Tokenizer.load(tmp_path)
        for text in ("the other the", "é 12\n the beyond", "<s>"):
            assert ours.encode_ordinary(text) == [i + 25 for i in peer.encode_ordinary(text)]
        assert ours.vocab_size == 259 + 25
        assert ours.special_tokens["<s>"] == 1
        assert ours.special_tokens["<SPECIAL_24>"] == 24
        assert ours.token_to_id("[INST]") == (3 if special_tokens is None else None)
    for damage in ({"vocab": vocab[:200]}, {"vocab": vocab[:3] + vocab[:256]}, {"config": config | {"pattern": 3}}):
        (tmp_path / "tekken.json").write_text(json.dumps(content | damage))
        with pytest.raises(ValueError, match=r"tekken.json: has (200 entries|vocab\[3\]|config.pattern)"):
            Tokenizer.load(tmp_path)


def test_the_error_for_an_object_that_is_no_tokenizer_says_that_it_has_no_model(tmp_path):
    for content in ({}, {"vocab": {"a": 0}}, {"model_type": "llama"}, {"model": None}):
        (tmp_path / "config.json").write_text(json.dumps(content))
        with pytest.raises(ValueError, match=r"config.json: has no model; is it a tokenizer.json\?"):
            Tokenizer.load(tmp_path / "config.json")


def test_a_unigram_model_named_spm_is_read_by_its_name_with_the_ids_of_sentencepiece(tmp_path):
    model = sentencepiece_model(model_type="unigram", vocab_size=40)
    (tmp_path / "source.spm").write_bytes(model)
    peer = sentencepiece.SentencePieceProcessor(model_proto=model)
    assert Tokenizer.load(tmp_path / "source.spm").encode(TEXTS[2]) == peer.encode(TEXTS[2])
    (tmp_path / "target.spm").write_bytes(model)
    (tmp_path / "vocab.json").write_text("{}")
    with pytest.raises(
        FileNotFoundError,
        match=r"has no tokenizer.json.*; load source.spm or target.spm by its name for the ids of sentencepiece; "
        "transformers may give other ids",
    ):
        Tokenizer.load(tmp_path)


def test_the_error_for_an_unknown_format_names_all_formats(tmp_path):
    (tmp_path / "x.bin").write_bytes(b"\x7fELF")
    with pytest.raises(ValueError, match=r"neither a tokenizer.json.* nor a SentencePiece model .\.model or \.spm."):
        Tokenizer.load(tmp_path / "x.bin")
