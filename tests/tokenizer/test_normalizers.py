"""The normalizers of tokenizer.json give the texts of `tokenizers`."""

import os

import pytest
from hypothesis import given, reject
from hypothesis import strategies as st
from tokenizers import Regex, normalizers

from tokenizer.splitting.normalizers import NAMED_STEPS, Normalization, normalizer_of

os.environ["RUST_BACKTRACE"] = "0"  # tokenizers panics on some texts, and its backtraces take long
CHARACTERS = (
    "aA ÉéİıßΣσς\u0301\u0308\u0327\u0345\u0334한각ﬁ①½Ａ㍿"
    "⽔字々あアｱ\u200b\u2028\u00ad\ufeff\ufffd\x00\x07\x7f\n\t\u2581ĠΩǅ\U0001f600"
)
FIELDS = [
    *({"type": kind} for kind in NAMED_STEPS),
    {"type": "Strip", "strip_left": True, "strip_right": False},
    {"type": "Strip", "strip_left": False, "strip_right": True},
    {"type": "Prepend", "prepend": "▁"},
    {"type": "Prepend", "prepend": "é "},
    {"type": "Replace", "pattern": {"String": " "}, "content": "▁"},
    {"type": "Replace", "pattern": {"String": "aa"}, "content": ""},
    {"type": "Replace", "pattern": {"Regex": r"\s+"}, "content": " "},
    {"type": "Replace", "pattern": {"Regex": r"\p{L}+"}, "content": "x"},
    {"type": "Replace", "pattern": {"Regex": r"(?<=a)\s|^\p{Lu}|\d$"}, "content": "\\1$0"},
    {"type": "Replace", "pattern": {"Regex": "x*"}, "content": "-"},
    *(
        {
            "type": "BertNormalizer",
            "clean_text": bool(k & 1),
            "handle_chinese_chars": bool(k & 2),
            "strip_accents": [None, True, False][k % 3],
            "lowercase": bool(k & 4),
        }
        for k in range(12)
    ),
]
TEXTS = st.text(st.sampled_from(CHARACTERS) | st.characters(exclude_categories=["Cs"]), max_size=20)


def normalized_by_tokenizers(fields, text):
    """Return the text of `tokenizers`; an example for which it panics is left out."""
    try:
        return peer(fields).normalize_str(text)
    except BaseException as error:
        if type(error).__name__ != "PanicException":
            raise
        reject()


@given(st.lists(st.sampled_from(FIELDS), max_size=4), TEXTS)
def test_any_sequence_of_normalizers_gives_the_text_of_tokenizers(fields, text):
    ours = Normalization(tuple(map(normalizer_of, fields)))
    assert ours.apply(text.encode()).decode() == normalized_by_tokenizers(fields, text)
    assert [step.field for step in ours.steps] == fields


def peer(fields):
    return normalizers.Sequence([step_of_tokenizers(field) for field in fields])


def step_of_tokenizers(field):
    kind = getattr(normalizers, field["type"])
    options = {name: value for name, value in field.items() if name != "type"}
    if field["type"] == "Strip":
        options = {"left": field["strip_left"], "right": field["strip_right"]}
    if "pattern" in options:
        ((form, pattern),) = options["pattern"].items()
        options["pattern"] = Regex(pattern) if form == "Regex" else pattern
    return kind(**options)


@pytest.mark.parametrize("field", [*FIELDS[:8], FIELDS[-1], FIELDS[-2], FIELDS[-6]])
def test_every_code_point_is_normalized_as_in_tokenizers(field):
    characters = [chr(c) for c in range(0x110000) if not 0xD800 <= c < 0xE000]
    text = "".join(f"a{c}" for c in characters)
    assert normalizer_of(field).normalize(text) == step_of_tokenizers(field).normalize_str(text)


def test_invalid_utf_8_stays():
    ours = Normalization(tuple(map(normalizer_of, [{"type": "NFKC"}, {"type": "Lowercase"}])))
    assert ours.apply(b"\xffA\xef\xbc\xa1\xc3") == b"\xffaa\xc3"
