"""A call gives the arrays of a tokenizer of transformers: special tokens, truncation, padding, pairs."""

import numpy as np
import pytest
import transformers
from hypothesis import given, settings
from hypothesis import strategies as st
from tokenizers import processors

from tokenizer import Tokenizer

PIECES = st.sampled_from(["the ", "Déjà", " vu", "字 ", "x" * 30, "[SEP]", "</s>", "<|endoftext|>", "\n", "42 "])
TEXTS = st.lists(PIECES, max_size=12).map("".join)


@pytest.fixture(scope="module", params=["bert-uncased", "roberta", "t5-small", "gpt2", "llama"])
def both(request, shared, tmp_path_factory):
    """Return a tokenizer and the same one of transformers."""
    folder = tmp_path_factory.mktemp("inputs")
    names = {"pad_token": "<pad>", "model_input_names": ["input_ids", "attention_mask"]}
    if request.param == "bert-uncased":
        peer = transformers.BertTokenizer(str(shared / "vectors" / "bert-uncased" / "vocab.txt"))
    elif request.param in ("gpt2", "llama"):
        files = shared / "vectors" / "gpt2"
        peer = transformers.GPT2Tokenizer(str(files / "encoder.json"), str(files / "vocab.bpe"), pad_token="<pad>")
        if request.param == "llama":  # a template in a Sequence, with types that models do not take
            template = processors.TemplateProcessing(
                "<pad> $A", "<pad> $A <pad>:1 $B:1", [("<pad>", peer.convert_tokens_to_ids("<pad>"))]
            )
            peer.backend_tokenizer.post_processor = processors.Sequence([processors.ByteLevel(), template])
    else:
        file = str(shared / "vectors" / request.param / "tokenizer.json")
        peer = transformers.PreTrainedTokenizerFast(tokenizer_file=file, **names)
    peer.save_pretrained(folder)
    return Tokenizer.load(folder), peer


def check(both, texts, pairs, **options):
    tok, peer = both
    expected = peer(texts, pairs, **options)
    found = tok(texts, pairs, allowed_special="all", **options)
    assert {*found} == {*expected}
    for name, values in found.items():
        if options.get("return_tensors"):
            assert values.dtype == expected[name].dtype and np.array_equal(values, expected[name])
        else:
            assert values == expected[name], name


@settings(max_examples=60, deadline=None)
@given(
    st.lists(TEXTS, min_size=1, max_size=4),
    st.randoms(),
    st.booleans(),
    st.sampled_from([False, True, "max_length"]),
    st.sampled_from([False, True, "only_first", "only_second"]),
    st.integers(4, 20),
    st.sampled_from(["left", "right"]),
    st.sampled_from(["left", "right"]),
    st.sampled_from([None, 8]),
    st.booleans(),
)
def test_inputs_are_those_of_transformers(
    both, texts, rng, paired, padding, truncation, length, side, cut_side, multiple, special
):
    pairs = [rng.choice(texts) for _ in texts] if paired else None
    options = {"padding": padding, "truncation": truncation, "add_special_tokens": special}
    if padding == "max_length" or truncation:
        options["max_length"] = length
    if truncation == "only_second" and not paired:
        return
    tok, peer = both
    peer.padding_side, peer.truncation_side = side, cut_side
    if padding and not (truncation and length % 8):
        options["pad_to_multiple_of"] = multiple
    options_here = {**options, "allowed_special": "all", "padding_side": side, "truncation_side": cut_side}
    try:
        expected = peer(texts, pairs, **options)
    except Exception as error:
        assert "too short to respect the provided max_length" in str(error)
        with pytest.raises(ValueError, match="too few to remove"):
            tok(texts, pairs, **options_here)
        return
    found = tok(texts, pairs, **options_here)
    assert {name: found[name] for name in expected} == dict(expected)


def test_texts_are_emptied_where_special_tokens_fill_the_length(both):
    room_for_specials = both[1].num_special_tokens_to_add(pair=True)
    if room_for_specials:
        check(both, "the ", "the ", truncation="only_first", max_length=room_for_specials)


def test_arrays_and_single_texts_are_those_of_transformers(both):
    both[1].padding_side = both[1].truncation_side = "right"
    texts = ["Déjà vu", "", "the 42 and more"]
    check(both, texts, None, padding=True, return_tensors="np")
    check(both, texts, texts[::-1], padding="max_length", truncation=True, max_length=9, return_tensors="np")
    check(both, "Déjà vu", None)
    check(both, "Déjà vu", "the 42", padding="max_length", max_length=16)
    check(both, "Déjà vu", None, return_tensors="np")


@pytest.mark.parametrize(
    ("options", "said"),
    [
        ({"padding": "yes"}, "padding must be one of False, True, 'longest', 'max_length', not 'yes'"),
        ({"truncation": True}, "give max_length with truncation"),
        ({"max_length": 5}, "give max_length with truncation or padding='max_length', and only then"),
        ({"truncation": "only_second", "max_length": 5}, "truncation='only_second' needs text_pair"),
        ({"return_tensors": "pt"}, "return_tensors must be one of None, 'np', not 'pt'"),
        ({"return_tensors": "np"}, "the rows have 1 to 4 ids, but an array needs equal lengths: pass padding=True"),
        ({"padding": True, "pad_token": "<no>"}, "pad_token must be a special token of the vocabulary, not '<no>'"),
        (
            {"padding": True, "truncation": True, "max_length": 9, "pad_to_multiple_of": 8},
            "max_length 9 is not a multiple of pad_to_multiple_of 8",
        ),
        ({"text_pair": ["x"]}, "text_pair has 1 texts, but text has 2"),
    ],
)
def test_a_wrong_call_says_what_to_do(trained, options, said):
    with pytest.raises(ValueError, match=said.replace("(", r"\(")):
        trained["gpt2"](["a", "a\n\n\t!"], **options)


def test_padding_without_a_padding_token_and_texts_too_short_to_cut_are_refused(trained):
    bare = Tokenizer.from_ranks({bytes([byte]): byte for byte in range(256)}, "gpt2", {"<s>": 256})
    with pytest.raises(ValueError, match="no padding token: pass pad_token="):
        bare(["a", "bc"], padding=True)
    assert bare(["a", "bc"], padding=True, pad_token="<s>")["input_ids"] == [[97, 256], [98, 99]]
    with pytest.raises(ValueError, match=r"text\[0\]: the second text has 1 ids, too few to remove 3"):
        bare(["abcd"], ["e"], truncation="only_second", max_length=2)
    with pytest.raises(ValueError, match="special token"):
        trained["gpt2"]("a<|endoftext|>")
