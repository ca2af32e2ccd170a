"""A folder of T5 with spiece.model, and without tokenizer.json, gives the ids of transformers' T5Tokenizer."""

import json

import pytest
import sentencepiece

from tokenizer import Tokenizer

transformers = pytest.importorskip("transformers")

TEXTS = [
    "The <extra_id_0> walks in<extra_id_1>  park <extra_id_99>",
    "Naïve CAFÉ — 漢字 🙂\r\n\t x\u00a0\u200b ﬁ\u0301 e\u0301",
    "a</s> b<pad><unk>c<extra_id_100>",
    *("", " ", "  def f():  ", "-------", "\ufffd\x07", "import <extra_id_3>os"),
]


@pytest.fixture(scope="module")
def folder(tmp_path_factory, stdlib_texts):
    """Return a folder with a trained spiece.model that has the special tokens of T5."""
    folder = tmp_path_factory.mktemp("t5")
    lines = "\n".join(stdlib_texts).splitlines()[:4000]
    sentencepiece.SentencePieceTrainer.train(
        sentence_iterator=iter(lines),
        model_prefix=str(folder / "spiece"),
        vocab_size=300,
        pad_id=0,
        eos_id=1,
        unk_id=2,
        bos_id=-1,
        minloglevel=3,
    )
    return folder


def peer_of(folder):
    return transformers.T5Tokenizer.from_pretrained(folder)


@pytest.mark.parametrize(
    ("name", "content", "sentinels"),
    [
        ("config.json", {"model_type": "t5"}, 100),
        ("config.json", {"model_type": "mt5"}, 100),
        ("tokenizer_config.json", {"tokenizer_class": "T5Tokenizer", "extra_ids": 7}, 7),
        ("tokenizer_config.json", {"tokenizer_class": "T5Tokenizer", "extra_ids": 0}, 0),
    ],
)
def test_ids_sentinels_and_decoded_texts_are_those_of_transformers(
    folder, tmp_path, name, content, sentinels, stdlib_texts
):
    (tmp_path / "spiece.model").write_bytes((folder / "spiece.model").read_bytes())
    (tmp_path / name).write_text(json.dumps(content))
    ours, theirs = Tokenizer.load(tmp_path), peer_of(tmp_path)
    assert ours.vocab_size == len(theirs) == 300 + sentinels
    for number in range(sentinels):
        spelling = f"<extra_id_{number}>"
        assert ours.special_tokens[spelling] == theirs.convert_tokens_to_ids(spelling) == 299 + sentinels - number
    before, after = ours.ids_around_text
    assert (before, after) == ([], [1])
    for text in [*TEXTS, stdlib_texts[5][:3000]]:
        ids = ours.encode(text, allowed_special="all")
        assert [*ids, *after] == theirs(text)["input_ids"], text
        assert ours.decode(ids) == theirs.decode(ids)


def test_the_saved_folder_opens_in_transformers_and_equals_the_one_that_it_saves(folder, tmp_path):
    (folder / "config.json").write_text(json.dumps({"model_type": "t5"}))
    ours = Tokenizer.load(folder)
    ours.save(tmp_path / "ours")
    peer_of(folder).save_pretrained(tmp_path / "theirs")
    assert Tokenizer.load(tmp_path / "ours") == ours == Tokenizer.load(tmp_path / "theirs")
    (folder / "config.json").unlink()


def test_the_model_alone_keeps_the_ids_of_sentencepiece(folder):
    peer = sentencepiece.SentencePieceProcessor(model_file=str(folder / "spiece.model"))
    for path in (folder, folder / "spiece.model"):
        tok = Tokenizer.load(path)
        assert tok.vocab_size == 300
        assert tok.encode_ordinary("import  os") == peer.encode("import  os")


def test_a_model_that_keeps_white_space_is_refused_with_the_remedy(folder, tmp_path):
    options = {"vocab_size": 60, "eos_id": 1, "unk_id": 2, "bos_id": -1, "minloglevel": 3, "pad_id": 0}
    lines = ["the house is wonderful and the park is green and so on"] * 9
    sentencepiece.SentencePieceTrainer.train(
        sentence_iterator=iter(lines),
        model_prefix=str(tmp_path / "spiece"),
        normalization_rule_name="identity",
        hard_vocab_limit=False,
        **options,
    )
    (tmp_path / "config.json").write_text(json.dumps({"model_type": "t5"}))
    with pytest.raises(
        ValueError, match=r"it keeps the white space U\+0009, at which tokenizers cuts words: save a tokenizer.json"
    ):
        Tokenizer.load(tmp_path)
    peer_of(tmp_path).save_pretrained(tmp_path)
    assert Tokenizer.load(tmp_path).encode("the\thouse") == peer_of(tmp_path)("the\thouse")["input_ids"][:-1]


@pytest.mark.parametrize("extra", [-1, 10_001, "7", True, None, 1.0])
def test_a_wrong_number_of_sentinels_is_refused(folder, tmp_path, extra):
    (tmp_path / "spiece.model").write_bytes((folder / "spiece.model").read_bytes())
    (tmp_path / "tokenizer_config.json").write_text(json.dumps({"tokenizer_class": "T5Tokenizer", "extra_ids": extra}))
    with pytest.raises(ValueError, match=r"has tokenizer_config[.]json beside it with extra_ids"):
        Tokenizer.load(tmp_path)
