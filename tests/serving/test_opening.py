"""The page opens with whole words of validation text."""

import shutil

import pytest

from pipelines.run.folder import Run
from pipelines.serving.opening import opening_of
from tokenizer import Tokenizer


def validation_text(run):
    from pipelines.reporting.excerpts import Excerpts

    stream = Excerpts(run).stream
    tok: Tokenizer = run.tokenizer()
    return tok.decode(stream.read(0, stream.tokens).tolist())


@pytest.mark.parametrize("kind", ["gpt", "bert"])
def test_the_opening_is_validation_text_that_begins_and_ends_with_whole_words(kind, request):
    run = Run(request.getfixturevalue(f"trained_{kind}"))
    text, target = opening_of(run)
    whole = validation_text(run)
    place = whole.index(text)
    assert len(text.split()) > 1 and target == ""
    assert not text[0].isspace() and not text[-1].isspace()
    assert whole[place - 1].isspace() and whole[place + len(text)].isspace()


def test_the_opening_of_an_encoder_decoder_is_a_source_and_its_target(trained_t5):
    source, target = opening_of(Run(trained_t5))
    assert "<|sentinel_0|>" in source and target.startswith("<|sentinel_0|>")


def test_a_run_without_its_dataset_has_no_opening(trained_gpt, tmp_path):
    shutil.copytree(trained_gpt, tmp_path / "gpt")
    config = tmp_path / "gpt" / "config.toml"
    lines = config.read_text(encoding="utf-8").splitlines()
    moved = ['data = "/no/such/dataset"' if line.startswith("data = ") else line for line in lines]
    assert moved != lines
    config.write_text("\n".join(moved), encoding="utf-8")
    assert opening_of(Run(tmp_path / "gpt")) == ("", "")
