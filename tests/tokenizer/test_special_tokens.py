"""Special tokens in a text follow tiktoken's rule."""

import pytest

from tokenizer import Tokenizer
from tokenizer.encoding.text_encoder import TextEncoder

SPECIAL_TEXTS = [
    "<|endoftext|>",
    "a<|endoftext|>b",
    "a <|pad|><|pad|> <|mask|",
    " \n<|sep|> x",
    "none",
    "<|endoftext|><|end",
]


@pytest.mark.parametrize("text", SPECIAL_TEXTS)
@pytest.mark.parametrize("allowed", [set(), "all", {"<|endoftext|>"}, {"<|pad|>", "<|sep|>"}])
@pytest.mark.parametrize("disallowed", ["all", (), {"<|pad|>"}])
def test_special_tokens_follow_tiktokens_rule(text, allowed, disallowed, trained, as_tiktoken, tiktoken_patterns):
    tok = trained["cl100k"]
    peer = as_tiktoken(tok, tiktoken_patterns["cl100k"])
    options = {"allowed_special": allowed, "disallowed_special": disallowed}
    try:
        expected = peer.encode(text, **options)
    except ValueError:
        with pytest.raises(ValueError, match="special token"):
            tok.encode(text, **options)
        with pytest.raises(ValueError, match="special token"):
            tok.encode_batch(["x", text], **options)
        return
    assert tok.encode(text, **options) == expected
    assert tok.encode(text.encode(), **options) == expected
    assert tok.encode_to_numpy(text, **options).tolist() == expected
    assert tok.encode_batch([text, "x"], **options) == [expected, peer.encode("x")]
    assert tok.decode(expected) == text == peer.decode(expected)


def test_one_text_with_a_special_token_does_not_put_the_others_on_a_slow_path(trained, monkeypatch):
    """The kernels are called once for all texts, not once for each."""
    tok, calls = trained["gpt2"], []
    texts = [f"text number {n}" for n in range(300)]
    texts[100:100] = ["<|pad|>some<|endoftext|> more text<|sep|>", "", "<|pad|>"]
    expected = [tok.encode(text, allowed_special="all") for text in texts]
    encode = TextEncoder.to_arrays
    monkeypatch.setattr(TextEncoder, "to_arrays", lambda *given: calls.append(given) or encode(*given))
    assert tok.encode_batch(texts, allowed_special="all") == expected
    assert tok.encode_to_numpy("".join(texts), allowed_special="all").tolist() == tok.encode(
        "".join(texts), allowed_special="all"
    )
    assert len(calls) == 2
    assert tok.encode_batch([], allowed_special="all") == []
    assert tok.encode_batch(["", "<|pad|>", ""], allowed_special="all") == [[], [tok.special_tokens["<|pad|>"]], []]


def test_a_missing_byte_beside_special_tokens_is_named_by_its_text_and_place():
    ids = {bytes([byte]): byte for byte in range(256) if byte != ord("~")}
    tok = Tokenizer.from_merges(ids, [], "gpt2", {"<x>": 300})
    with pytest.raises(ValueError, match=r"^texts\[2\]: the text has the byte 0x7e at byte offset 5"):
        tok.encode_batch(["a<x>", "<x>b<x>", "a<x>b~"], allowed_special="all")
    with pytest.raises(ValueError, match=r"^the text has the byte 0x7e at byte offset 4"):
        tok.encode_to_numpy("a<x>~", allowed_special="all")


def test_the_error_for_a_special_token_says_what_to_do(trained):
    with pytest.raises(ValueError, match=r"'<\|pad\|>' at byte 3.*allowed_special.*disallowed_special=\(\)"):
        trained["gpt2"].encode("ab <|pad|>")
    with pytest.raises(ValueError, match="all"):
        trained["gpt2"].encode("x", allowed_special="<|pad|>")
