"""Texts that cannot be encoded raise errors that name the place and the remedy."""

import pytest


@pytest.mark.parametrize("text", ["\ud800", "ab\udfff", "x" * 100 + "\udc80y"])
def test_a_lone_surrogate_is_named_with_its_position(text, trained):
    place = next(i for i, c in enumerate(text) if 0xD800 <= ord(c) < 0xE000)
    for method in ("encode", "encode_ordinary", "encode_to_numpy"):
        with pytest.raises(ValueError, match=rf"U\+{ord(text[place]):04X}.* character {place}\b"):
            getattr(trained["gpt2"], method)(text)


def test_the_error_for_a_surrogate_pair_names_a_repair_that_works(trained):
    text = "ab\ud83d\ude00"
    with pytest.raises(ValueError, match=r"pair \(U\+D83D U\+DE00\) at character 2 instead of U\+1F600") as caught:
        trained["gpt2"].encode(text)
    assert "text.encode('utf-16', 'surrogatepass').decode('utf-16')" in str(caught.value)
    assert text.encode("utf-16", "surrogatepass").decode("utf-16") == "ab\U0001f600"
    for lone in ("\ude00\ud83d", "\ud83d", "\ud83dx", "\ud83d\ud83d\ude00"):
        with pytest.raises(ValueError, match="lone surrogate"):
            trained["gpt2"].encode(lone)


def test_an_error_in_a_batch_names_its_text(trained):
    tok = trained["gpt2"]
    for wrong, said in ((3, "not int"), ("\ud800", "lone surrogate"), ("<|pad|>", "special token")):
        with pytest.raises(ValueError, match=rf"texts\[2\]: .*{said}"):
            tok.encode_batch(["a", b"b", wrong])
    for wrong in ("hi", b"hi", None, 3):
        with pytest.raises(ValueError, match="must be a list of texts"):
            tok.encode_batch(wrong)
    with pytest.raises(ValueError, match='must be "all"'):
        tok.encode_batch([], allowed_special="<|pad|>")
    assert tok.encode_batch([]) == []


@pytest.mark.parametrize("wrong", [None, 3, ["a"]])
def test_input_that_is_not_text_is_a_value_error(wrong, trained):
    with pytest.raises(ValueError, match="str or bytes"):
        trained["gpt2"].encode(wrong)
