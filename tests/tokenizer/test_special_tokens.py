"""Special tokens in a text follow tiktoken's rule."""

import pytest

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


def test_the_error_for_a_special_token_says_what_to_do(trained):
    with pytest.raises(ValueError, match=r"'<\|pad\|>' at byte 3.*allowed_special.*disallowed_special=\(\)"):
        trained["gpt2"].encode("ab <|pad|>")
    with pytest.raises(ValueError, match="all"):
        trained["gpt2"].encode("x", allowed_special="<|pad|>")
