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
for spec in sys.argv[1:]:
    try:
        corpus = open_corpus(spec)
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
    twice = root / "ann" / "twice"
    twice.mkdir()
    card = ["---", "configs:", "- config_name: default", "  data_files:"]
    for split in ("train", "dev", "validation"):
        pq.write_table(pa.table({"text": [split]}), twice / f"{split}.parquet")
        card += [f"  - split: {split}", f"    path: {split}.parquet"]
    (twice / "README.md").write_text("\n".join([*card, "---", ""]))
    with subprocess.Popen(
        [sys.executable, str(SERVER), str(root)], stdout=subprocess.PIPE, stderr=subprocess.DEVNULL, text=True
    ) as server:
        yield server.stdout.readline().strip()
        server.terminate()


def read(endpoint: str, home: Path, *specs: str) -> list[dict]:
    """Read the corpora `specs` in one process; return its answer for each."""
    environment = os.environ | {
        "HF_ENDPOINT": endpoint,
        "HF_HOME": str(home),
        "NO_PROXY": "127.0.0.1",
        "HF_HUB_OFFLINE": "0",
    }
    result = subprocess.run(
        [sys.executable, "-c", READ, *specs], env=environment, capture_output=True, text=True, timeout=300, check=True
    )
    return [json.loads(line) for line in result.stdout.splitlines()]


def test_a_hub_corpus_streams_with_its_own_splits_and_leaves_no_data_behind(hub, tmp_path):
    (answer,) = read(hub, tmp_path, "hub:ann/words")
    assert answer["rule"] == "predefined"
    assert answer["found"] == {
        "train": [f"train {i}\r\n" for i in range(50)],
        "validation": [f"validation {i}\r\n" for i in range(5)],
        "test": [f"test {i}\r\n" for i in range(4)],
    }
    assert sum(path.stat().st_size for path in tmp_path.rglob("*") if path.is_file()) < 10_000


COMPLAINTS = {
    "hub:ann/nothing": ("FileNotFoundError", "no such dataset on the hub"),
    "hub:ann/words/french": ("ValueError", "'french' not found. Available: ['default']"),
    "hub:ann/one": ("ValueError", 'no column "text": choose one of its columns (title, body) with `text_column`'),
    "hub:ann/twice": ("ValueError", 'has two validation splits, "dev" and "validation"'),
    "hub:ann": ("ValueError", "is not a hub name"),
}


@pytest.fixture(scope="module")
def answers(hub, tmp_path_factory):
    """Return the answers of `read` for a card that points at the hub ("card") and for the corpora of COMPLAINTS."""
    card = tmp_path_factory.mktemp("card") / "card.toml"
    card.write_text('reader = "hub"\nrepository = "ann/words"\n[splits]\ntrain = "train"\nvalidation = "test"\n')
    home = tmp_path_factory.mktemp("home")
    return dict(zip(["card", *COMPLAINTS], read(hub, home, str(card), *COMPLAINTS), strict=True))


def test_a_card_can_point_at_the_hub(answers):
    assert answers["card"]["found"]["validation"] == [f"test {i}\r\n" for i in range(4)]


@pytest.mark.parametrize("spec", COMPLAINTS)
def test_a_missing_hub_dataset_is_refused_in_one_sentence(answers, spec):
    kind, complaint = COMPLAINTS[spec]
    assert answers[spec]["kind"] == kind
    assert complaint in answers[spec]["error"]
    assert "\n" not in answers[spec]["error"]


def test_an_unreachable_hub_is_a_one_line_error(tmp_path):
    (answer,) = read("http://127.0.0.1:9", tmp_path, "hub:ann/words")
    assert answer["kind"] == "ConnectionError"
    assert "cannot be fetched from the hub" in answer["error"]
    assert "\n" not in answer["error"]
