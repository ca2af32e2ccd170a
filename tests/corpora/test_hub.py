"""Hub corpora, from a local server with the hub's API, read in separate processes."""

import json
import os
import subprocess
import sys
from pathlib import Path

import pyarrow as pa
import pyarrow.parquet as pq
import pytest

SERVER = Path(__file__).with_name("hub_server.py")

READ = """
import json, sys
from corpora import open_corpus
try:
    corpus = open_corpus(sys.argv[1])
    found = {name: [] for name in corpus.split_names}
    for split, batch in corpus.routed_batches():
        found[split] += batch.column("text").to_pylist()
    print(json.dumps({"rule": corpus.split_rule, "name": corpus.name, "found": found}))
except (ValueError, OSError) as error:
    print(json.dumps({"kind": type(error).__name__, "error": str(error)}))
"""


@pytest.fixture(scope="module")
def hub(tmp_path_factory):
    root = tmp_path_factory.mktemp("hub")
    splits = {"train": 50, "validation": 5, "test": 4}
    for split, count in splits.items():
        table = pa.table({"id": range(count), "text": [f"{split} {i}\r\n" for i in range(count)]})
        path = root / "ann" / "words" / "data" / f"{split}-00000-of-00001.parquet"
        path.parent.mkdir(parents=True, exist_ok=True)
        pq.write_table(table, path)
    one = root / "ann" / "one" / "data"
    one.mkdir(parents=True)
    pq.write_table(pa.table({"title": ["x"] * 3, "body": ["y"] * 3}), one / "train.parquet")
    with subprocess.Popen(
        [sys.executable, str(SERVER), str(root)], stdout=subprocess.PIPE, stderr=subprocess.DEVNULL, text=True
    ) as server:
        yield server.stdout.readline().strip()
        server.terminate()


def read(spec: str, endpoint: str, home: Path, **environment) -> dict:
    environment = (
        os.environ
        | {"HF_ENDPOINT": endpoint, "HF_HOME": str(home), "NO_PROXY": "127.0.0.1", "HF_HUB_OFFLINE": "0"}
        | environment
    )
    result = subprocess.run(
        [sys.executable, "-c", READ, spec], env=environment, capture_output=True, text=True, timeout=300, check=True
    )
    return json.loads(result.stdout)


def test_a_hub_corpus_streams_with_its_own_splits_and_leaves_no_data_behind(hub, tmp_path):
    answer = read("hub:ann/words", hub, tmp_path)
    assert answer["rule"] == "own"
    assert answer["found"] == {
        "train": [f"train {i}\r\n" for i in range(50)],
        "validation": [f"validation {i}\r\n" for i in range(5)],
        "test": [f"test {i}\r\n" for i in range(4)],
    }
    assert sum(path.stat().st_size for path in tmp_path.rglob("*") if path.is_file()) < 10_000


def test_a_card_can_point_at_the_hub(hub, tmp_path):
    (tmp_path / "card.toml").write_text(
        'reader = "hub"\nrepository = "ann/words"\n[splits]\ntrain = "train"\nvalidation = "test"\n'
    )
    answer = read(str(tmp_path / "card.toml"), hub, tmp_path)
    assert answer["found"]["validation"] == [f"test {i}\r\n" for i in range(4)]


@pytest.mark.parametrize(
    ("spec", "kind", "complaint"),
    [
        ("hub:ann/nothing", "FileNotFoundError", "no such dataset on the hub"),
        ("hub:ann/words/french", "ValueError", "'french' not found. Available: ['default']"),
        ("hub:ann/one", "ValueError", 'no column "text": choose one of its columns (title, body) with --text-column'),
        ("hub:ann", "ValueError", "is not a hub name"),
    ],
)
def test_a_missing_hub_dataset_is_refused_in_one_sentence(hub, tmp_path, spec, kind, complaint):
    answer = read(spec, hub, tmp_path)
    assert answer["kind"] == kind
    assert complaint in answer["error"]
    assert "\n" not in answer["error"]


def test_an_unreachable_hub_is_a_one_line_error(tmp_path):
    answer = read("hub:ann/words", "http://127.0.0.1:9", tmp_path)
    assert answer["kind"] == "ConnectionError"
    assert "cannot be fetched from the hub" in answer["error"]
    assert "\n" not in answer["error"]
