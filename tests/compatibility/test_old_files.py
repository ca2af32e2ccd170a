"""Files of the present formats open and give the ids, losses and labels of their writer (see make_files.py)."""

import json
import shutil
from pathlib import Path

import numpy as np
import pytest
from safetensors.torch import load_file

from pipelines.dataset.reader import DATA_FILE, TokenDataset
from pipelines.run.folder import Run
from pipelines.run.loaded_run import load_trained
from pipelines.tasks.data import ExampleFiles
from pipelines.verbs.build_dataset import build_dataset
from pipelines.verbs.evaluate import evaluate
from pipelines.verbs.export_hf import export_hf
from pipelines.verbs.finetune import finetune
from pipelines.verbs.generate import generate
from pipelines.verbs.import_hf import import_hf
from pipelines.verbs.predict import predict
from pipelines.verbs.pretrain import pretrain
from pipelines.verbs.report import report
from tests.compatibility.make_files import UNIGRAM_TEXT
from tokenizer import PretokenCounts, Tokenizer

VERSIONS = sorted(path for path in Path(__file__).parent.iterdir() if (path / "expected.json").is_file())


@pytest.fixture(params=VERSIONS, ids=lambda path: path.name)
def old(request, tmp_path):
    """Return a writable copy of one version's files."""
    return shutil.copytree(request.param, tmp_path / "old")


def loss_of(run, data):
    return evaluate(run, data=data).validation.cross_entropy


def expected(old, name):
    return pytest.approx(json.loads((old / "expected.json").read_text())[name], abs=1e-4)


def test_files_of_version_0_1_exist():
    assert "0.1" in [path.name for path in VERSIONS]


def test_an_old_tokenizer_gives_the_ids_of_its_dataset(old):
    tok, dataset = Tokenizer.load(old / "tokenizer"), TokenDataset(old / "dataset")
    assert tok.fingerprint == dataset.tokenizer_fingerprint
    stream = dataset.split("train")
    read = tok.decode(stream.read(0, stream.tokens).tolist())
    assert "<|endoftext|>A small lamp waits near the river.<|endoftext|>" in read


def test_an_old_text_still_builds_the_same_dataset(old):
    build_dataset([str(old / "text.jsonl")], tokenizer=old / "tokenizer", context_length=16, out=old / "again")
    for split in ("train", "validation"):
        before, again = (old / name / split / DATA_FILE for name in ("dataset", "again"))
        assert before.read_bytes() == again.read_bytes()
    assert TokenDataset(old / "again").fingerprint == TokenDataset(old / "dataset").fingerprint


def test_old_counts_give_the_vocabulary_of_their_corpus(old):
    again = Tokenizer.train_from_counts(PretokenCounts.load(old / "counts.parquet"), vocab_size=280)
    assert again.fingerprint == Tokenizer.load(old / "tokenizer").fingerprint


def test_an_old_decoder_has_its_loss_and_generates_text(old, capsys):
    assert loss_of(old / "decoder", old / "dataset") == expected(old, "decoder")
    assert generate(old / "decoder", prompt="The grey heron", tokens=5)
    assert report([old / "decoder"], inside=False).is_file()
    average = load_file(old / "decoder" / "checkpoints" / "step-0000008" / "average.safetensors")
    weights = load_trained(Run(old / "decoder")).model.state_dict()
    assert all(weights[name].equal(value) for name, value in average.items())


def test_an_old_decoder_resumes_and_ends_with_the_loss_of_an_uninterrupted_run(old):
    out = old / "decoder"
    pretrain(Run(out).recipe, data=old / "dataset", out=out)
    assert loss_of(out, old / "dataset") == expected(old, "decoder at its end")


def test_an_old_encoder_has_its_loss_and_is_fine_tuned(old):
    assert loss_of(old / "encoder", old / "dataset") == expected(old, "encoder")
    train = {"epochs": 1, "device": "cpu", "dtype": "float32"}
    made = finetune(old / "encoder", data=old / "text.jsonl", out=old / "made", train=train, compare_scratch=False)
    assert made.run.facts["init_from_checkpoint"] == "step-0000016"


def test_an_old_encoder_decoder_has_its_loss_and_continues_a_text(old, capsys):
    run = old / "encoder-decoder"
    build_dataset([str(old / "text.jsonl")], tokenizer=run, context_length=16, out=old / "for-spans")
    assert loss_of(run, old / "for-spans") == expected(old, "encoder-decoder")
    assert generate(run, prompt="The grey heron", tokens=5)
    again = import_hf(str(export_hf(run, out=old / "exported")), out=old / "imported")
    assert Run(again).recipe.model.initialization == Run(run).recipe.model.initialization == "gpt2"


def test_an_old_unigram_tokenizer_gives_its_ids(old):
    tok = Tokenizer.load(old / "unigram")
    assert tok.encode(UNIGRAM_TEXT) == json.loads((old / "expected.json").read_text())["Unigram ids"]
    tok.save(old / "again")
    assert Tokenizer.load(old / "again").fingerprint == tok.fingerprint


def test_an_old_decoder_can_be_exported_and_imported_again(old):
    folder = export_hf(old / "decoder", out=old / "exported")
    again = import_hf(str(folder), out=old / "imported")
    assert loss_of(again, old / "dataset") == expected(old, "decoder")


def test_an_old_run_of_a_task_has_its_loss_on_held_out_texts(old):
    recorded = json.loads((old / "classes" / "evaluation.json").read_text())["splits"]["validation"]
    run = Run(old / "classes")
    _, training, held_out = ExampleFiles(data=(old / "text.jsonl",)).read(run.recipe.task)
    said = predict(run.folder, tuple(example.inputs[0] for example in held_out))
    right = [one["probabilities"][example.target] for one, example in zip(said, held_out, strict=True)]
    assert -np.log(right).mean() == pytest.approx(recorded["label_nats"], abs=1e-4)
    assert len(training) + len(held_out) == 125
