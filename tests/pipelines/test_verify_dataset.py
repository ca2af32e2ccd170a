"""`bytelm dataset verify` names every file of a dataset that is not as it was written."""

import json
import shutil

import pytest

from pipelines.files import checksummed_json
from pipelines.verbs.build_dataset import build_dataset
from pipelines.verbs.dataset import verify_dataset


@pytest.fixture(scope="module")
def sharded_folder(tmp_path_factory, text_folder, tokenizer_folder):
    """Return a dataset in shards of 300 kB."""
    folder = tmp_path_factory.mktemp("sharded") / "data"
    build_dataset([str(text_folder)], tokenizer=tokenizer_folder, context_length=32, out=folder, shard_size=300_000)
    return folder


@pytest.fixture
def copy(sharded_folder, tmp_path):
    return shutil.copytree(sharded_folder, tmp_path / "data")


def names_of(folder):
    return sorted(path.relative_to(folder).as_posix() for path in folder.rglob("*") if path.is_file())


def test_a_new_dataset_is_sound(sharded_folder, dataset_folder, in_process):
    for folder in (sharded_folder, dataset_folder):
        assert verify_dataset(folder) == {}
        done = in_process("dataset", "verify", folder)
        assert done.returncode == 0 and f"{folder}: every file is sound\n" in done.stdout
    done = in_process("dataset", "verify", sharded_folder, "--json")
    assert json.loads(done.stdout) == {"dataset": str(sharded_folder), "problems": {}}


def test_each_altered_truncated_or_missing_file_is_named(copy, in_process):
    names = names_of(copy)
    assert {"dataset.json", "tokenizer.json", "train/data-00000-of-00002.arrow", "train/state.json"} < {*names}
    for name in names:
        path, content = copy / name, (copy / name).read_bytes()
        altered = bytearray(content)
        altered[len(altered) // 2] ^= 1
        for damage, problem in ((bytes(altered), "altered"), (content[:-1], "altered"), (None, "missing")):
            path.write_bytes(damage) if damage is not None else path.unlink()
            done = in_process("dataset", "verify", copy)
            assert done.returncode == 1
            if name == "manifest.json":
                assert f"{path} is" in done.stderr and "build the dataset again" in done.stderr
            else:
                assert f"{path} is {problem}" in done.stdout
                assert verify_dataset(copy).keys() == {name}
            path.write_bytes(content)
    assert verify_dataset(copy) == {}


FILES = [
    None,
    [],
    ["a"],
    {"a": 3},
    {"a": {"bytes": 1}},
    {"a": {"bytes": "1", "sha256": "x"}},
    {"a": {"sha256": [], "bytes": 1}},
]


@pytest.mark.parametrize("content", [{}, *({"files": files} for files in FILES)])
def test_a_manifest_with_a_right_checksum_and_wrong_fields_is_refused_with_one_sentence(copy, in_process, content):
    (copy / "manifest.json").write_text(checksummed_json(content))
    done = in_process("dataset", "verify", copy)
    assert (done.returncode, done.stderr.count("\n")) == (1, 1)
    assert f"{copy / 'manifest.json'} is damaged (" in done.stderr and "build the dataset again" in done.stderr


def test_an_extra_file_is_named(copy, in_process):
    (copy / "train" / "cache-1.arrow").write_bytes(b"")
    (copy / "notes.txt").write_text("mine")
    done = in_process("dataset", "verify", copy, "--json")
    assert done.returncode == 1
    expected = dict.fromkeys(("notes.txt", "train/cache-1.arrow"), "extra: the manifest does not list it")
    assert json.loads(done.stdout)["problems"] == expected


def test_all_problems_are_named_at_once(copy):
    (copy / "dataset.json").unlink()
    (copy / "new").write_text("")
    shard = copy / "train" / "data-00001-of-00002.arrow"
    shard.write_bytes(shard.read_bytes() + b"x")
    size = shard.stat().st_size
    assert verify_dataset(copy) == {
        "dataset.json": "missing",
        "new": "extra: the manifest does not list it",
        "train/data-00001-of-00002.arrow": f"altered: it has {size:,} bytes instead of {size - 1:,}",
    }


def test_a_broken_link_is_a_missing_file(copy):
    (copy / "train" / "state.json").unlink()
    (copy / "train" / "state.json").symlink_to(copy / "moved.json")
    (copy / "new").write_text("")
    assert verify_dataset(copy) == {
        "new": "extra: the manifest does not list it",
        "train/state.json": "missing",
    }


def test_a_folder_that_is_no_dataset_is_refused(tmp_path, in_process):
    done = in_process("dataset", "verify", tmp_path)
    assert done.returncode == 1
    assert f"{tmp_path} is not a dataset" in done.stderr
    assert in_process("dataset", "check", tmp_path).returncode == 2
