"""Short texts are encoded in plain Python, with the ids of kernels and peers, and without large imports."""

import base64
import json
import random
import subprocess
import sys

import pytest
import tiktoken
import tokenizers
from hypothesis import given
from hypothesis import strategies as st

from tokenizer import Tokenizer
from tokenizer.document_blocks import single_block
from tokenizer.encoding.python_encoder import BUDGET, LONGEST_TEXT, ShortEncoder
from tokenizer.encoding.text_encoder import TextEncoder
from tokenizer.splitting.patterns import LLAMA3_REGEX, QWEN2_REGEX

NAMED = ["gpt2", "cl100k", "llama3", "qwen2", "o200k"]


def in_python(tok, texts):
    """Return the ids that the encoder of short texts gives, even if kernels are loaded."""
    encoder = ShortEncoder(tok.vocabulary.pattern, tok.vocabulary.pretoken_encoder())
    return [encoder.encode(text.encode() if isinstance(text, str) else text) for text in texts]


@pytest.fixture(scope="module")
def vocabularies(stdlib_texts):
    return {name: Tokenizer.train(stdlib_texts[:60], 2000, pattern=name) for name in NAMED}


@pytest.fixture(scope="module")
def regexes(tiktoken_patterns):
    return {"llama3": LLAMA3_REGEX, "qwen2": QWEN2_REGEX} | tiktoken_patterns


@pytest.mark.parametrize("name", NAMED)
def test_short_texts_have_the_ids_of_the_kernels_and_of_tiktoken(
    name, vocabularies, regexes, as_tiktoken, random_strings
):
    tok = vocabularies[name]
    texts = random_strings(5000, 50)
    expected = as_tiktoken(tok, regexes[name]).encode_ordinary_batch(texts)
    assert in_python(tok, texts) == expected
    assert tok.encode_batch(texts) == expected


@pytest.mark.parametrize("name", ["gpt2", "cl100k"])
def test_published_vocabularies_give_the_published_ids(name, shared):
    folder = shared / "vectors" / name
    path, options = (folder, {}) if name == "gpt2" else (folder / "cl100k_base.tiktoken", {"pattern": "cl100k"})
    tok = Tokenizer.load(path, **options)
    cases = [json.loads(line) for line in (folder / "cases.jsonl").read_text(encoding="utf-8").splitlines()]
    assert in_python(tok, [case["text"] for case in cases]) == [case["ids"] for case in cases]
    short = [case for case in cases if len(case["text"].encode()) <= 200][:30]
    encoder = TextEncoder(tok.vocabulary)
    assert [encoder.to_list(case["text"].encode()) for case in short] == [case["ids"] for case in short]
    assert encoder.short is not None


@pytest.fixture(scope="module")
def cl100k(shared):
    return Tokenizer.load(shared / "vectors" / "cl100k" / "cl100k_base.tiktoken", pattern="cl100k")


@pytest.mark.parametrize("unit", ["a", " ", "ab", "\n ", "é", "字", "\x00", "0", "'s", "=", "-=", "\t"])
def test_hard_texts_are_exact_and_take_no_quadratic_time(unit, vocabularies, cl100k):
    for tok in [*vocabularies.values(), cl100k]:
        for size in (1, 7, 300, LONGEST_TEXT):
            text = unit * (size // len(unit.encode()))
            assert in_python(tok, [text]) == [tok.encode_to_numpy(text).tolist()]
    # 100 times the largest text for this encoder. A quadratic merge would not end in time.
    assert sum(map(len, in_python(vocabularies["gpt2"], [unit * 200_000]))) > 0


@given(st.binary(max_size=60) | st.text(max_size=40).map(str.encode))
def test_arbitrary_bytes_have_the_ids_of_the_kernels(vocabularies, data):
    for tok in vocabularies.values():
        assert in_python(tok, [data]) == [tok.encode_to_numpy(data, disallowed_special=()).tolist()]


def test_a_custom_regex_has_the_ids_of_the_kernels(stdlib_texts, random_strings):
    with pytest.warns(UserWarning, match="regex module"):
        tok = Tokenizer.train(stdlib_texts[:20], 600, pattern=r"[A-Za-z]+|[0-9]| {2}")
    texts = [*random_strings(500, 51), b"a\xff b\xc3", ""]
    assert in_python(tok, texts) == tok.encode_batch(texts)


@pytest.mark.parametrize("seed", range(10))
def test_vocabularies_that_merging_cannot_make_equal_tiktoken(seed, tmp_path):
    rng = random.Random(seed)
    ranks = {bytes([byte]): i for i, byte in enumerate(rng.sample(range(256), 256))}
    for _ in range(60):
        ranks.setdefault("".join(rng.choices("ab c", k=rng.randrange(2, 7))).encode(), len(ranks))
    lines = [base64.b64encode(token) + b" %d\n" % rank for token, rank in ranks.items()]
    (tmp_path / "random.tiktoken").write_bytes(b"".join(lines))
    tok = Tokenizer.load(tmp_path / "random.tiktoken", pattern="llama3")
    peer = tiktoken.Encoding("random", pat_str=LLAMA3_REGEX, mergeable_ranks=ranks, special_tokens={})
    texts = ["".join(rng.choices("ab c", k=length)) for length in (1, 3, 8, 20, 60, 500) for _ in range(40)]
    assert in_python(tok, texts) == peer.encode_ordinary_batch(texts)


@pytest.mark.parametrize("ignore_merges", [False, True])
@pytest.mark.parametrize("seed", range(10))
def test_both_merge_semantics_equal_tokenizers(seed, ignore_merges, tmp_path):
    """Merges are random, in random order, and several of them may make the same token."""
    rng = random.Random(seed)
    Tokenizer.train(["ab"], 256, special_tokens=(), min_frequency=1).save(tmp_path)
    path = tmp_path / "tokenizer.json"
    content = json.loads(path.read_text(encoding="utf-8"))
    vocab, merges = content["model"]["vocab"], []
    pieces = ["a", "b", "c", "Ġ"]
    for _ in range(60):
        pair = [rng.choice(pieces), rng.choice(pieces)]
        whole = "".join(pair)
        if pair not in merges and len(whole) <= 8:
            merges.append(pair)
            vocab.setdefault(whole, len(vocab))
            pieces.append(whole)
    rng.shuffle(merges)
    content["model"] |= {"merges": merges, "ignore_merges": ignore_merges}
    path.write_text(json.dumps(content), encoding="utf-8")
    tok, peer = Tokenizer.load(path), tokenizers.Tokenizer.from_file(str(path))
    texts = ["".join(rng.choices("abc ", k=rng.choice((2, 5, 12, 50, 400)))) for _ in range(200)]
    assert in_python(tok, texts) == [encoding.ids for encoding in peer.encode_batch(texts)]


def test_special_tokens_and_errors_are_those_of_long_texts(trained, tmp_path):
    trained["cl100k"].save(tmp_path)
    tok = Tokenizer.load(tmp_path)
    text = "a<|endoftext|> b<|pad|>"
    assert tok.encode(text, allowed_special="all") == trained["cl100k"].encode(text, allowed_special="all")
    assert tok.encode(text, disallowed_special=()) == tok.encode_ordinary(text)
    with pytest.raises(ValueError, match=r"'<\|endoftext\|>' at byte 1"):
        tok.encode(text)
    with pytest.raises(ValueError, match=r"U\+D800.* character 1"):
        tok.encode("a\ud800")
    with pytest.raises(ValueError, match="str or bytes"):
        tok.encode(None)
    for wrong in ([""], [5], "x"):
        with pytest.raises(ValueError, match="disallowed_special"):
            tok.encode("a", disallowed_special=wrong)
    assert tok.encode("") == []


def test_more_or_longer_texts_switch_to_the_kernels(trained):
    vocabulary = trained["gpt2"].vocabulary
    text = b"some words, " * 40
    expected = trained["gpt2"].encode(text)
    encoder = TextEncoder(vocabulary)
    for _ in range(BUDGET // len(text)):
        assert encoder.to_list(text) == expected
        assert encoder.short is not None
    assert encoder.to_list(text) == expected
    assert encoder.short is None
    for long in (b"a" * (LONGEST_TEXT + 1), b"word " * 1000):
        encoder = TextEncoder(vocabulary)
        assert trained["gpt2"].decode_bytes(encoder.to_list(long)) == long
        assert encoder.short is None
    encoder = TextEncoder(vocabulary)
    encoder.to_arrays(single_block(text), threads=1)
    assert encoder.to_list(text) == expected
    assert encoder.short is None


@pytest.mark.parametrize("written", ["tokenizer.json", "ranks", "merges"])
def test_a_short_text_loads_neither_numba_nor_numpy(written, trained, tmp_path):
    tok = trained["gpt2"]
    tok.save(tmp_path)
    load = f"Tokenizer.load({str(tmp_path)!r})"
    if written == "ranks":
        ids = [i for i in range(tok.vocab_size) if tok.token_byte_lengths[i]]
        lines = [base64.b64encode(tok.token_bytes(i)) + b" %d\n" % i for i in ids]
        (tmp_path / "x.tiktoken").write_bytes(b"".join(lines))
        load = f"Tokenizer.load({str(tmp_path / 'x.tiktoken')!r}, pattern='gpt2')"
    elif written == "merges":
        peer = tokenizers.Tokenizer.from_file(str(tmp_path / "tokenizer.json"))
        (tmp_path / "tokenizer.json").unlink()
        peer.model.save(str(tmp_path))
        (tmp_path / "added_tokens.json").write_text(json.dumps(tok.special_tokens))
    script = (
        "import sys\nfrom tokenizer import Tokenizer\n"
        f"tok = {load}\n"
        "ids = tok.encode('hello wörld')\n"
        "assert tok.decode(tok.encode('a<|pad|>b', allowed_special='all')) == 'a<|pad|>b'\n"
        "assert tok.encode('a<|pad|>b', disallowed_special=()) == tok.encode_ordinary('a<|pad|>b')\n"
        "assert tok.decode(ids) == 'hello wörld'\n"
        "print(ids, [m for m in ('numba', 'numpy', 'pyarrow', 'regex', 'torch', 'typing') if m in sys.modules])"
    )
    out = subprocess.run([sys.executable, "-c", script], capture_output=True, text=True, check=True).stdout
    assert out.strip() == f"{tok.encode('hello wörld')} []"


def test_cached_kernels_load_neither_the_compiler_nor_scipy():
    """The compiler and scipy would take three times as long as all other steps to the first id of a long text."""
    script = (
        "import sys\nfrom tokenizer import Tokenizer\n"
        "tok = Tokenizer.train([b'so many words, ' * 20], 280, special_tokens=(), min_frequency=1)\n"
        "text = 'words, ' * 5000\n"
        "assert tok.decode(tok.encode(text)) == text\n"
        "print([name for name in ('numba.np.linalg', 'scipy.linalg', 'awkward') if name in sys.modules])"
    )
    for _ in range(2):  # the first process may have to compile
        out = subprocess.run([sys.executable, "-c", script], capture_output=True, text=True, check=True).stdout
    assert out.strip() == "[]"
