"""Models train on datasets of words and of characters, and are evaluated, sampled and exported."""

import pytest
from transformers import AutoTokenizer

from pipelines.dataset.reader import TokenDataset
from pipelines.verbs.build_dataset import build_dataset
from pipelines.verbs.evaluate import evaluate
from pipelines.verbs.export_gguf import export_gguf
from pipelines.verbs.export_hf import export_hf
from pipelines.verbs.generate import generate
from pipelines.verbs.pretrain import pretrain
from pipelines.verbs.train_tokenizer import train_tokenizer
from tokenizer import Tokenizer


@pytest.fixture(scope="module", params=["words", "characters"])
def run(request, tmp_path_factory, small_recipe):
    """Return the run folder of a small decoder; its dataset `data` and tokenizer `tok` are beside it."""
    folder = tmp_path_factory.mktemp(request.param)
    corpus = folder / "cats.txt"
    corpus.write_text("".join(f"the {number % 9} cats, {number % 5} of them sat\n" for number in range(3000)))
    train_tokenizer([str(corpus)], vocab_size=20, kind=request.param, out=folder / "tok")
    build_dataset([str(corpus)], tokenizer=folder / "tok", context_length=32, out=folder / "data")
    pretrain(small_recipe, data=folder / "data", out=folder / "run")
    return folder / "run"


def test_the_dataset_holds_the_tokens_of_the_text(run):
    tok = Tokenizer.load(run.parent / "tok")
    assert tok.kind == run.parent.name.rstrip("0123456789")
    ids = TokenDataset(run.parent / "data").split("train").read(0, 100)
    text = tok.decode(ids)
    start = {"words": "<|endoftext|> the 0 cats , 0", "characters": "<|endoftext|>the 0 cats, 0"}
    assert text.startswith(start[tok.kind])


def test_bits_are_per_byte_of_the_original_text(run):
    numbers = evaluate(run).to_json()["splits"]["validation"]
    assert numbers["bits_per_original_byte"] == pytest.approx(
        numbers["cross_entropy_bits"] * numbers["tokens"] / numbers["original_bytes"], rel=1e-3
    )
    assert numbers["bits_per_byte"] is None and numbers["bytes"] is None


def test_generated_tokens_are_joined_as_the_kind_joins_them(run):
    text, tok = generate(run, prompt="the 3 cats", tokens=8, seed=1), Tokenizer.load(run)
    parts = text.split(" ")[1:] if tok.kind == "words" else text
    assert 1 < len(parts) <= 8 and all(part in tok.vocabulary.ids for part in parts)
    assert text.startswith(" ") or tok.kind == "characters"


def test_transformers_reads_the_exported_tokenizer(run, tmp_path):
    export_hf(run, out=tmp_path / "hf")
    peer, tok = AutoTokenizer.from_pretrained(tmp_path / "hf"), Tokenizer.load(run)
    text = "the 3 cats of ζ"
    assert peer(text)["input_ids"] == tok.encode(text) == tok(text)["input_ids"]
    assert peer.decode(tok.encode(text)) == tok.decode(tok.encode(text))
    assert peer(text).keys() == tok(text).keys()


def test_gguf_is_refused(run, tmp_path):
    kind = Tokenizer.load(run).kind
    with pytest.raises(ValueError, match=f"a vocabulary of the kind {kind} cannot be exported to GGUF"):
        export_gguf(run, out=tmp_path / "model.gguf")
