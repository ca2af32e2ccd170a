"""Vectors of texts: equal to those of transformers, whatever is in a batch, and in files that others read."""

import json

import numpy as np
import pyarrow.parquet
import pytest
import torch
from sklearn.linear_model import LogisticRegression
from transformers import AutoModel, AutoTokenizer

import bytelm
from corpora import open_corpus
from pipelines.run.vectors_file import CorpusVectors
from tests.tasks.files import write

TEXTS = ["a few words", "import os\n\n\ndef main() -> int:\n    return 0\n", "x", "word " * 60]  # the last is cut


def close(ours, theirs):
    np.testing.assert_allclose(ours, theirs, atol=1e-5, rtol=1e-5)


def embedding(path):
    return np.stack(pyarrow.parquet.read_table(path)["embedding"].to_numpy())


@pytest.fixture(scope="module")
def corpus(tmp_path_factory):
    return write(tmp_path_factory.mktemp("corpus") / "texts.jsonl", [{"text": text} for text in TEXTS])


@pytest.mark.parametrize(("kind", "layer"), [("bert", -1), ("bert", 1), ("roberta", -1)])
def test_vectors_equal_mean_pooling_of_the_exported_run_in_transformers(kind, layer, peers, corpus, tmp_path):
    """The recipe of sentence-transformers: truncate, pad, and take the mean under the attention mask."""
    run = bytelm.load_run(peers(kind)[2], device="cpu")
    folder = bytelm.export_hf(run, out=tmp_path / "hf")
    tokenizer, model = AutoTokenizer.from_pretrained(folder), AutoModel.from_pretrained(folder).eval()
    batch = tokenizer(TEXTS, padding=True, truncation=True, return_tensors="pt")
    assert batch["input_ids"].shape[1] == run.config.model.context_length
    with torch.no_grad():
        states = model(**batch, output_hidden_states=True).hidden_states[layer]
    mask = batch["attention_mask"].unsqueeze(-1).float()
    expected = (states * mask).sum(dim=1) / mask.sum(dim=1)
    with pytest.warns(UserWarning, match="1 of 4 documents are longer than the 34 tokens that the model reads"):
        bytelm.embed(run, corpus, layer=layer, out=tmp_path / "vectors.parquet")
    close(embedding(tmp_path / "vectors.parquet"), expected)
    close(run.features(TEXTS, layer=layer, pooling="cls"), states[:, 0])


@pytest.mark.parametrize("model", ["trained_gpt", "trained_bert", "trained_t5"])
@pytest.mark.parametrize("layer", [-1, 0])
def test_a_vector_does_not_depend_on_its_batch(model, layer, request):
    run = bytelm.load_run(request.getfixturevalue(model), device="cpu")
    texts = [*TEXTS[:3], "return", "a naïve text — 漢字"]
    states = [run.features(text, layer=layer).numpy() for text in texts]
    for pooling, alone in [
        ("mean", [rows.mean(axis=0) for rows in states]),
        ("cls", [rows[0] for rows in states]),
        ("first", [rows[0] for rows in states]),
        ("last", [rows[-1] for rows in states]),
    ]:
        vectors = run.features(texts, layer=layer, pooling=pooling)
        assert vectors.shape == (5, run.config.model.width) and vectors.dtype == np.float32
        close(vectors, np.stack(alone))
        close(run.features(texts[1], layer=layer, pooling=pooling), vectors[1])
        close(run.features(texts[::-1], layer=layer, pooling=pooling), vectors[::-1])
    assert run.features([], pooling="mean").shape == (0, run.config.model.width)


def test_files_hold_all_documents_in_order_in_row_groups(trained_gpt, tmp_path):
    texts = [f"{i} is a number of {'many ' * (i % 7)}words" for i in range(5000)]
    data = write(tmp_path / "texts.jsonl", [{"body": text} for text in texts])
    run = bytelm.load_run(trained_gpt, device="cpu")
    options = {"text_column": "body", "pooling": "last"}
    for name in ("v.parquet", "v.npy"):
        assert bytelm.embed(run, data, out=tmp_path / name, **options) == tmp_path / name
    file = pyarrow.parquet.ParquetFile(tmp_path / "v.parquet")
    assert file.num_row_groups == 2 and file.metadata.row_group(0).num_rows == 4096
    table = file.read()
    assert table["document"].to_pylist() == list(range(5000)) and table["start"].to_pylist() == texts
    assert str(table.schema.field("embedding").type) == "fixed_size_list<element: float>[32]"
    facts = json.loads(table.schema.metadata[b"bytelm"])
    assert (facts["run"], facts["layer"], facts["pooling"]) == ("gpt", -1, "last")
    vectors = np.load(tmp_path / "v.npy")
    assert vectors.dtype == np.float32 and (vectors == embedding(tmp_path / "v.parquet")).all()
    close(vectors, run.features(texts, pooling="last"))


def test_progress_counts_the_bytes_of_text(trained_gpt, tmp_path):
    data, done = write(tmp_path / "texts.jsonl", [{"text": "ab\n"}] * 5000), []
    vectors = CorpusVectors(bytelm.load_run(trained_gpt, device="cpu"), -1, "last")
    assert sum(len(rows) for _, rows in vectors.of(open_corpus([str(data)], split="none"), done.append)) == 5000
    assert done == [3 * 4096, 3 * 5000]


def test_scikit_learn_learns_labels_from_the_file(trained_bert, tmp_path, in_process):
    labels = [i % 2 for i in range(200)]
    texts = [f"import module{i}" if label else f"return value{i} + 1" for i, label in enumerate(labels)]
    write(tmp_path / "texts.jsonl", [{"text": text} for text in texts])
    done = in_process("embed", trained_bert, "texts.jsonl", "--out", "vectors.parquet")
    assert done.returncode == 0 and "200 vectors of 32 numbers in vectors.parquet" in done.stdout
    vectors = embedding(tmp_path / "vectors.parquet")
    classifier = LogisticRegression(max_iter=1000).fit(vectors[:100], labels[:100])
    assert classifier.score(vectors[100:], labels[100:]) > 0.95


def test_a_fine_tuned_run_gives_what_its_head_reads(trained_bert, corpus, tmp_path):
    rows = [{"text": f"{'yes' if i % 2 else 'no'} {i}", "score": i % 2} for i in range(40)]
    made = bytelm.finetune(
        trained_bert,
        task="regression",
        data=write(tmp_path / "rows.jsonl", rows),
        out=tmp_path / "made",
        train={"epochs": 1, "dtype": "float32", "device": "cpu"},
        compare_scratch=False,
    )
    bytelm.embed(made.path, corpus, out=tmp_path / "v.npy", device="cpu")
    vectors = np.load(tmp_path / "v.npy")
    head, task = made.loaded.model.head, made.config.task
    with torch.no_grad():
        outputs = head.output(torch.tanh(head.dense(torch.from_numpy(vectors))))[:, 0].numpy()
    said = [one["prediction"] for one in made.predict(TEXTS)]
    close((outputs * task.deviation + task.mean), said)
    assert not np.allclose(vectors, bytelm.load_run(trained_bert, device="cpu").features(TEXTS, pooling="mean"))


def test_mistakes_are_named(trained_gpt, corpus, tmp_path):
    run = bytelm.load_run(trained_gpt, device="cpu")
    with pytest.raises(ValueError, match="a list of texts gives one vector for each: give `pooling`, such as 'mean'"):
        run.features(TEXTS)
    with pytest.raises(ValueError, match="`pooling` is 'max', but must be one of mean, cls, first, last"):
        run.features(TEXTS, pooling="max")
    with pytest.raises(ValueError, match="`pooling` is for texts without a target"):
        run.features("a", "b", pooling="mean")
    with pytest.raises(ValueError, match="`layer` is 2, but must be from 0 to 1, or from -1 to -2"):
        bytelm.embed(run, corpus, out=tmp_path / "v.npy", layer=2)
    for out in ("v.csv", "v"):
        with pytest.raises(ValueError, match=f"`out` is .*{out}: give a file that ends in .parquet or .npy"):
            bytelm.embed(run, corpus, out=tmp_path / out)
    damaged = write(tmp_path / "damaged.jsonl", [{"text": text} for text in ["fine"] * 3])
    damaged.write_bytes(damaged.read_bytes() + b'{"text": "broken\n')
    with pytest.raises(ValueError, match="line 4"):
        bytelm.embed(run, damaged, out=tmp_path / "v.parquet")
    assert not list(tmp_path.glob("v*")) and not list(tmp_path.glob(".v*"))
