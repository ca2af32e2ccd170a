"""Lines end at LF or CR LF only: other characters that end lines elsewhere belong to tokens."""

import json

import pytest
import tokenizers
import transformers
from hypothesis import given, settings
from hypothesis import strategies as st

from tokenizer import Tokenizer

SPECIAL = ["[PAD]", "[UNK]", "[CLS]", "[SEP]", "[MASK]"]
# The characters besides LF at which str.splitlines, universal newlines or Unicode end a line, and other white space.
ENDS = ["\u2028", "\u2029", "\x85", "\x0b", "\x0c", "\x1c", "\x1d", "\x1e", "\x1f", "\u3000", "\u00a0", " ", "\t"]
TEXT = "the cat" + "".join(f"{end}the{end}cat a{end}b" for end in [*ENDS, "\r", "\n"]) + " zebra"


def write_vocabulary(folder, tokens, line_end="\n"):
    """Write a vocab.txt and return transformers' tokenizer of it."""
    folder.mkdir(exist_ok=True)
    (folder / "vocab.txt").write_bytes("".join(token + line_end for token in [*SPECIAL, *tokens]).encode())
    (folder / "tokenizer_config.json").write_text('{"tokenizer_class": "BertTokenizer", "do_lower_case": false}')
    return transformers.BertTokenizer.from_pretrained(folder)


@pytest.mark.parametrize("line_end", ["\n", "\r\n"])
def test_a_token_of_white_space_in_vocab_txt_keeps_its_line_and_all_ids_are_those_of_transformers(tmp_path, line_end):
    carriage_return = "\r" if line_end == "\r\n" else "\r\r"  # the last CR before a LF belongs to the line end
    tokens = ["the", *ENDS, carriage_return, "cat", "a\rb", "a\u2028b", "a", "##b", "zebra"]
    peer = write_vocabulary(tmp_path, tokens, line_end)
    tok = Tokenizer.load(tmp_path)
    expected = [token.removesuffix("\r") or "\r" for token in [*SPECIAL, *tokens]]
    assert tok.get_vocab() == {token: i for i, token in enumerate(expected)}
    assert tok.encode(TEXT) == peer(TEXT, add_special_tokens=False)["input_ids"]
    assert {tok.token_to_id("the"), tok.token_to_id("cat"), tok.token_to_id("zebra")} <= {*tok.encode(TEXT)}
    assert [tok.decode([tok.token_to_id(end)]) for end in ENDS] == ENDS
    tok.save(tmp_path / "saved")
    assert Tokenizer.load(tmp_path / "saved").fingerprint == tok.fingerprint
    saved = tokenizers.Tokenizer.from_file(str(tmp_path / "saved" / "tokenizer.json"))
    assert saved.encode(TEXT, add_special_tokens=False).ids == tok.encode(TEXT)


@settings(deadline=None, max_examples=60)
@given(st.lists(st.lists(st.sampled_from(["a", "b", "##", *ENDS, "\r"]), min_size=1, max_size=3).map("".join)))
def test_a_vocab_txt_of_any_tokens_has_the_ids_of_transformers_or_is_refused(tmp_path_factory, tokens):
    folder = tmp_path_factory.mktemp("vocabulary")
    peer = write_vocabulary(folder, tokens)
    try:
        tok = Tokenizer.load(folder)
    except ValueError as error:
        assert "empty line" in str(error) or "twice" in str(error)
        return
    for text in ("a", "b", "ab", "aab", "ba abb", TEXT):
        assert tok.encode(text) == peer(text, add_special_tokens=False)["input_ids"]


def test_the_tokenizer_json_of_a_vocab_txt_with_such_a_line_has_an_empty_token_and_loads(tmp_path):
    """tokenizers cuts U+2028 from its line, and keeps the empty token that is left."""
    peer = write_vocabulary(tmp_path / "text", ["the", "\u2028", "cat", "##s"])
    peer.save_pretrained(tmp_path / "json")
    assert json.loads((tmp_path / "json" / "tokenizer.json").read_text())["model"]["vocab"][""] == 6
    tok = Tokenizer.load(tmp_path / "json")
    for text in ("the cats", "the", "thes cat", "x", "", "\u2028the"):
        expected = peer(text, add_special_tokens=False)["input_ids"]
        assert tok.encode(text) == tok.encode_to_numpy(text).tolist() == expected
        assert tok.decode(tok.encode(text)) == peer.decode(expected)
        assert tok.encode_batch([text] * 3) == [expected] * 3
    assert tok.decode([5, 6, 7]) == peer.backend_tokenizer.decode([5, 6, 7])
    tok.save(tmp_path / "saved")
    assert Tokenizer.load(tmp_path / "saved").fingerprint == tok.fingerprint


def test_only_an_empty_line_is_called_empty(tmp_path):
    for content, line in (("[UNK]\n\u2028\n\nb\n", 3), ("[UNK]\r\n\r\nb\r\n", 2), ("[UNK]\na\n\n", 3)):
        (tmp_path / "vocab.txt").write_bytes(content.encode())
        with pytest.raises(ValueError, match=f"empty line, number {line}"):
            Tokenizer.load(tmp_path / "vocab.txt", pattern="bert-cased")
