"""Runs that chat."""

import pytest

import bytelm
from pipelines.run.loaded_run import load_run
from tests.tasks.conversations import TRAIN, rows, written


@pytest.fixture(scope="session")
def data(tmp_path_factory):
    return written(tmp_path_factory.mktemp("chat") / "chat.jsonl", rows())


@pytest.fixture(scope="session")
def chat_run(trained_gpt, data, tmp_path_factory):
    """Return the folder of a run of two epochs."""
    out = tmp_path_factory.mktemp("runs") / "chat"
    bytelm.finetune(trained_gpt, task="chat", data=data, out=out, train=TRAIN, compare_scratch=False)
    return out


@pytest.fixture(scope="session")
def template(chat_run):
    return load_run(chat_run).template


@pytest.fixture(scope="session")
def peer(chat_run, tmp_path_factory):
    """Return the tokenizer of the exported run in transformers."""
    transformers = pytest.importorskip("transformers")
    out = bytelm.export_hf(chat_run, out=tmp_path_factory.mktemp("export") / "hf")
    return transformers.AutoTokenizer.from_pretrained(out)


@pytest.fixture(scope="session")
def untrained(trained_gpt, data, tmp_path_factory):
    """Return the folder of a run that chats but has learned nothing, so its answers do not end."""
    out = tmp_path_factory.mktemp("runs") / "untrained"
    train = TRAIN | {"lr": 1e-12, "epochs": 1}
    bytelm.finetune(trained_gpt, task="chat", data=data, out=out, train=train, compare_scratch=False)
    return out
