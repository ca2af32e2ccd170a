"""A dataset in an object store: uploaded with the bytes of a local one, and trained from through a verified copy."""

import json
from concurrent.futures import ThreadPoolExecutor
from dataclasses import replace
from importlib.util import find_spec

import pytest

from corpora.object_store import ObjectPath
from pipelines.dataset.stored import local_copy
from pipelines.evaluation.results import Evaluation
from pipelines.run.folder import Run
from pipelines.verbs.build_dataset import build_dataset
from pipelines.verbs.dataset import verify_dataset
from pipelines.verbs.evaluate import evaluate
from pipelines.verbs.pretrain import pretrain
from pipelines.verbs.train_tokenizer import train_tokenizer


@pytest.fixture(autouse=True)
def cache(tmp_path, monkeypatch):
    monkeypatch.setenv("BYTELM_CACHE", str(tmp_path / "cache"))
    return tmp_path / "cache"


def files_of(folder):
    return {path.relative_to(folder).as_posix(): path.read_bytes() for path in folder.rglob("*") if path.is_file()}


def objects_below(bucket, prefix):
    return {key.removeprefix(prefix): bucket.get(key) for key in bucket.all_keys() if key.startswith(prefix)}


def put_folder(bucket, folder, prefix):
    for name, content in files_of(folder).items():
        bucket.put(prefix + name, content)


@pytest.fixture
def stored(bucket, dataset_folder):
    """Return the URI of a copy of `dataset_folder`, and its bucket."""
    put_folder(bucket, dataset_folder, "data/")
    return f"{bucket.uri}/data", bucket


@pytest.mark.parametrize("shard_size", [None, 100_000])
def test_a_dataset_built_from_a_bucket_into_a_bucket_has_the_bytes_of_a_local_one(
    bucket, text_folder, tokenizer_folder, tmp_path, cache, shard_size
):
    put_folder(bucket, text_folder, "my-text/")
    options = {"tokenizer": tokenizer_folder, "context_length": 32, "shard_size": shard_size}
    build_dataset([str(text_folder)], out=tmp_path / "data", **options)
    build_dataset([f"{bucket.uri}/my-text"], out=f"{bucket.uri}/made/data", **options)
    assert objects_below(bucket, "made/data/") == files_of(tmp_path / "data")
    assert not [path for path in (cache / "builds").rglob("*") if path.is_file()]
    assert verify_dataset(f"{bucket.uri}/made/data") == {}


def test_a_tokenizer_trained_on_a_bucket_equals_the_one_trained_on_the_folder(
    bucket, text_folder, tokenizer_folder, tmp_path
):
    put_folder(bucket, text_folder, "my-text/")
    train_tokenizer([f"{bucket.uri}/my-text"], vocab_size=512, out=tmp_path / "tok")
    assert files_of(tmp_path / "tok") == files_of(tokenizer_folder)


def test_pairs_are_built_into_a_bucket(bucket, pair_dataset):
    folder = pair_dataset.parent
    corpus = [str(folder / "numbers.*.jsonl")]
    build_dataset(corpus, pairs=("en", "de"), tokenizer=folder / "tok", out=f"{bucket.uri}/pairs")
    assert objects_below(bucket, "pairs/") == files_of(pair_dataset)


def test_an_interrupted_upload_is_not_read_and_the_same_command_sends_only_the_missing_files(
    bucket, dataset_folder, text_folder, tokenizer_folder
):
    bucket.client.put_bucket_versioning(Bucket=bucket.name, VersioningConfiguration={"Status": "Enabled"})
    whole = files_of(dataset_folder)
    sent = sorted(whole.keys() - {"manifest.json", "train/state.json"})
    for name in sent:
        bucket.put(f"data/{name}", whole[name][: -1 if name == "dataset.json" else None])  # one is cut short
    bucket.put("data/manifest.partial.json", whole["manifest.json"])
    with pytest.raises(
        ValueError, match=r"/data is incomplete: its upload was interrupted; run the same bytelm build-dataset"
    ):
        local_copy(ObjectPath(f"{bucket.uri}/data"))
    build_dataset([str(text_folder)], tokenizer=tokenizer_folder, context_length=32, out=f"{bucket.uri}/data")
    assert objects_below(bucket, "data/") == whole
    versions = [each["Key"] for each in bucket.client.list_object_versions(Bucket=bucket.name)["Versions"]]
    twice = {key.removeprefix("data/") for key in versions if versions.count(key) > 1}
    assert twice == {"dataset.json", "manifest.partial.json"}


def test_an_interrupted_upload_of_another_dataset_leaves_nothing_behind(
    bucket, dataset_folder, text_folder, tokenizer_folder, tmp_path
):
    options = {"tokenizer": tokenizer_folder, "context_length": 16}
    build_dataset([str(text_folder)], out=tmp_path / "short", shard_size=100_000, **options)
    put_folder(bucket, tmp_path / "short", "data/")
    bucket.client.delete_object(Bucket=bucket.name, Key="data/manifest.json")
    bucket.put("data/manifest.partial.json", (tmp_path / "short" / "manifest.json").read_bytes())
    build_dataset([str(text_folder)], tokenizer=tokenizer_folder, context_length=32, out=f"{bucket.uri}/data")
    assert objects_below(bucket, "data/") == files_of(dataset_folder)


def test_only_a_dataset_is_overwritten_and_only_with_the_option(stored, text_folder, tokenizer_folder, tmp_path):
    uri, bucket = stored
    before = objects_below(bucket, "data/")
    options = {"tokenizer": tokenizer_folder, "context_length": 16}
    with pytest.raises(ValueError, match=rf"{uri} exists already: choose another `out` \(or replace .* `overwrite`\)"):
        build_dataset([str(text_folder)], out=uri, **options)
    bucket.put("other/file.txt", b"mine")
    with pytest.raises(ValueError, match=r"/other holds other objects, such as file\.txt: choose another `out`"):
        build_dataset([str(text_folder)], out=f"{bucket.uri}/other", overwrite=True, **options)
    assert objects_below(bucket, "data/") == before
    assert objects_below(bucket, "other/") == {"file.txt": b"mine"}
    build_dataset([str(text_folder)], out=uri, overwrite=True, **options)
    build_dataset([str(text_folder)], out=tmp_path / "data", **options)
    assert objects_below(bucket, "data/") == files_of(tmp_path / "data")


def test_an_overwritten_dataset_is_sent_whole_so_that_damage_in_the_store_is_repaired(
    stored, dataset_folder, text_folder, tokenizer_folder
):
    uri, bucket = stored
    damaged = bytearray(bucket.get("data/train/data-00000-of-00001.arrow"))
    damaged[1000] ^= 1
    bucket.put("data/train/data-00000-of-00001.arrow", bytes(damaged))
    bucket.put("data/extra.txt", b"")
    found = verify_dataset(uri)
    assert list(found) == ["extra.txt", "train/data-00000-of-00001.arrow"]
    with pytest.raises(
        ValueError, match=rf"{uri}/train/data-00000-of-00001\.arrow is altered: its size or SHA-256 is not"
    ):
        local_copy(ObjectPath(uri))
    bucket.put("data/manifest.json", bucket.get("data/manifest.json") + b" ")
    with pytest.raises(ValueError, match=rf"{uri}/manifest\.json is altered"):
        local_copy(ObjectPath(uri))
    build_dataset([str(text_folder)], tokenizer=tokenizer_folder, context_length=32, out=uri, overwrite=True)
    assert objects_below(bucket, "data/") == {**files_of(dataset_folder), "extra.txt": b""}


def test_a_run_on_a_bucket_is_the_run_on_the_folder_and_resumes_from_anywhere(
    stored, trained_gpt, small_recipe, tmp_path, cache, in_process
):
    uri, _ = stored
    half = replace(small_recipe, train=replace(small_recipe.train, tokens=6400))
    pretrain(half, data=uri, out=tmp_path / "run")
    assert Run(tmp_path / "run").facts["data"] == uri
    for path in cache.rglob("*.arrow"):
        path.unlink()
    resumed = in_process("pretrain", "--out", tmp_path / "run", "--train.tokens", 12_800)
    assert resumed.returncode == 0, resumed.stderr
    pretrain(small_recipe, data=uri, out=tmp_path / "other")
    ours, theirs = (
        [(each["step"], each["split"], each["loss"]) for each in Run(folder).metrics()]
        for folder in (tmp_path / "other", trained_gpt)
    )
    assert ours == theirs
    other, theirs = (evaluate(folder).to_json()["splits"]["validation"] for folder in (tmp_path / "other", trained_gpt))
    assert other == theirs
    assert Evaluation.read(tmp_path / "other").validation.measured.data == uri


def test_a_mixture_names_its_sources_in_buckets(stored, dataset_folder, small_recipe, tmp_path):
    uri, bucket = stored
    put_folder(bucket, dataset_folder, "more/code/")
    sources = {uri: 1, f"{bucket.uri}/more/code": 3}
    short = replace(small_recipe, train=replace(small_recipe.train, tokens=2560))
    pretrain(short, data=sources, out=tmp_path / "run")
    run = Run(tmp_path / "run")
    assert run.facts["data"] == [f"1={uri}", f"3={bucket.uri}/more/code"]
    [validation, *_] = [each for each in run.metrics() if each["split"] == "validation"]
    assert {"loss/data", "loss/code"} <= validation.keys()
    assert [str(source) for source in run.sources] == list(sources)


def test_a_local_copy_is_fetched_once_and_repaired(stored, dataset_folder):
    uri, bucket = stored
    folder = local_copy(ObjectPath(uri))
    assert (
        files_of(folder).items() >= {k: v for k, v in files_of(dataset_folder).items() if k != "manifest.json"}.items()
    )
    kept = {path: path.stat().st_ino for path in folder.rglob("*")}
    for damage in (lambda path: path.write_bytes(b"x" + path.read_bytes()[1:]), lambda path: path.unlink()):
        damage(folder / "validation" / "data-00000-of-00001.arrow")
        assert local_copy(ObjectPath(uri)) == folder
        assert files_of(folder)["validation/data-00000-of-00001.arrow"] == bucket.get(
            "data/validation/data-00000-of-00001.arrow"
        )
    again = {path: path.stat().st_ino for path in folder.rglob("*")}
    assert {path.name for path in kept if kept[path] != again[path]} <= {"data-00000-of-00001.arrow"}


def test_a_dataset_that_changed_in_the_store_gets_another_copy(stored, text_folder, tokenizer_folder):
    uri, _ = stored
    first = local_copy(ObjectPath(uri))
    before = files_of(first)
    build_dataset([str(text_folder)], tokenizer=tokenizer_folder, context_length=16, out=uri, overwrite=True)
    second = local_copy(ObjectPath(uri))
    assert json.loads((second / "dataset.json").read_bytes())["context_length"] == 16
    assert second != first
    assert files_of(first) == before


def test_several_processes_that_start_at_once_get_the_same_sound_copy(stored, dataset_folder, cache):
    uri, _ = stored
    with ThreadPoolExecutor(4) as pool:
        folders = list(pool.map(local_copy, [ObjectPath(uri)] * 4))
    assert len(set(folders)) == 1
    assert files_of(folders[0]) == {k: v for k, v in files_of(dataset_folder).items() if k != "manifest.json"}


def test_a_manifest_cannot_write_outside_of_the_copy(bucket, cache):
    from pipelines.files import checksummed_json

    manifest = checksummed_json({"files": {"../evil": {"bytes": 1, "sha256": "0"}}})
    bucket.put("data/manifest.json", manifest.encode())
    with pytest.raises(ValueError, match=r"manifest\.json names a file outside the dataset, \.\./evil"):
        local_copy(ObjectPath(f"{bucket.uri}/data"))


def test_mistakes_are_one_sentence_on_the_command_line(bucket, in_process, tokenizer_folder, text_folder, monkeypatch):
    build = ("build-dataset", text_folder, "--tokenizer", tokenizer_folder, "--context-length", 32, "--out")
    data = ("pretrain", "gpt-tiny", "--out", "run", "--data")
    for command, message in [
        ((*build, "s3://no-such-bucket/data"), "s3://no-such-bucket/data: there is no such bucket: check its name"),
        ((*build, "ftp://host/data"), "ftp://host/data is not in a supported object store"),
        (
            (*data, f"{bucket.uri}/none"),
            f"{bucket.uri}/none is not a dataset: it has no manifest.json; check the names",
        ),
        (
            (*data, "s3://no-such-bucket/data"),
            "s3://no-such-bucket/data is not a dataset: it has no manifest.json; check the names",
        ),
        (("dataset", "verify", f"{bucket.uri}/none"), f"{bucket.uri}/none is not a dataset: it has no manifest.json"),
    ]:
        done = in_process(*command)
        assert done.returncode == 1
        assert message in done.stderr
        assert done.stderr.count("\n") == 1
    assert bucket.all_keys() == []
    monkeypatch.setenv("BYTELM_CACHE", "")
    done = in_process(*build, f"{bucket.uri}/data")
    assert "needs a local copy, but BYTELM_CACHE is empty: set it to a folder, or unset it" in done.stderr


@pytest.fixture(scope="module")
def nodes(object_store):
    """Return a cluster of two nodes with the settings of the object store."""
    if find_spec("ray") is None:
        pytest.skip("Ray is not installed: pip install 'bytelm[ray]'")
    from tests.pipelines.test_ray import TwoNodes

    cluster = TwoNodes()
    yield cluster
    cluster.end()


@pytest.mark.slow
def test_a_cluster_reads_a_bucket_and_builds_into_one(nodes, bucket, text_folder, tokenizer_folder, tmp_path):
    put_folder(bucket, text_folder, "my-text/")
    options = {"tokenizer": tokenizer_folder, "context_length": 32, "shard_size": 100_000}
    build_dataset([str(text_folder)], out=tmp_path / "data", **options)
    build_dataset([f"{bucket.uri}/my-text"], out=f"{bucket.uri}/made", engine="ray", **options)
    assert objects_below(bucket, "made/") == files_of(tmp_path / "data")


@pytest.mark.slow
def test_the_nodes_of_a_cluster_upload_only_the_missing_files_of_a_dataset(
    nodes, bucket, text_folder, tokenizer_folder, tmp_path
):
    options = {"tokenizer": tokenizer_folder, "context_length": 32, "shard_size": 50_000}
    build_dataset([str(text_folder)], out=tmp_path / "data", **options)
    whole = files_of(tmp_path / "data")
    shards = [name for name in whole if name.startswith("train/data-")]
    bucket.client.put_bucket_versioning(Bucket=bucket.name, VersioningConfiguration={"Status": "Enabled"})
    bucket.put("made/manifest.partial.json", whole["manifest.json"])
    for name in shards[::2]:
        bucket.put(f"made/{name}", whole[name])
    build_dataset([str(text_folder)], out=f"{bucket.uri}/made", engine="ray", address=nodes.address, **options)
    assert objects_below(bucket, "made/") == whole
    versions = [each["Key"] for each in bucket.client.list_object_versions(Bucket=bucket.name)["Versions"]]
    assert {key for key in versions if versions.count(key) > 1} == {"made/manifest.partial.json"}
