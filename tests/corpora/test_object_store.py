"""A corpus in an object store has the documents, order, splits and errors of the same files in a folder."""

import http.server
import json
import pickle
import socket
import threading

import pyarrow as pa
import pyarrow.parquet
import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from corpora import open_corpus, open_pairs, summarize
from corpora.documents import Dropped
from corpora.object_store import ObjectPath
from tests.corpora.helpers import COMPRESSORS, all_documents, everything, jsonl

TEXTS = ["one text", "ein zweiter, größerer Text\n", "\x00nul", "😀" * 50] * 20


def arrow(write):
    sink = pa.BufferOutputStream()
    table = pa.table({"text": TEXTS})
    with write(sink, table.schema) as writer:
        writer.write_table(table, max_chunksize=7)
    return sink.getvalue().to_pybytes()


def parquet(texts, rows=7):
    sink = pa.BufferOutputStream()
    pyarrow.parquet.write_table(pa.table({"text": texts}), sink, row_group_size=rows)
    return sink.getvalue().to_pybytes()


def files():
    """Return files of every format and compression: content by name."""
    found = {
        "train/a.txt": b"\xef\xbb\xbfa text",
        "train/b.jsonl": jsonl(TEXTS),
        "train/deep/er/c.parquet": parquet(TEXTS),
        "train/d.arrow": arrow(pa.ipc.new_stream),
        "train/e e%20+.arrow": arrow(pa.ipc.new_file),
        "train/empty.txt": b"",
        "test/f.txt": b"held out",
        "test/.hidden/g.txt": b"hidden",
        "test/.h.txt": b"hidden",
        "test/picture.png": b"\x89PNG",
        "saved/train/state.json": b"{}",
        "saved/train/cache-1.arrow": arrow(pa.ipc.new_file),
    }
    for suffix, compress in COMPRESSORS.items():
        found[f"train/text.txt{suffix}"] = compress(f"compressed {suffix}\n".encode() * 1000)
        found[f"train/rows.jsonl{suffix}"] = compress(jsonl(TEXTS))
    return found


@pytest.fixture(scope="module")
def both(object_store, tmp_path_factory):
    """Return a folder and a bucket with the same files."""
    folder, bucket = tmp_path_factory.mktemp("files"), object_store()
    for name, content in files().items():
        (folder / name).parent.mkdir(parents=True, exist_ok=True)
        (folder / name).write_bytes(content)
        bucket.put(name, content)
    return folder, bucket


def assert_same(folder, uri, **options):
    here, there = open_corpus(str(folder), **options), open_corpus(uri, **options)
    assert everything(there) == everything(here)
    assert (there.split_rule, there.skipped_files) == (here.split_rule, here.skipped_files)
    assert there.text_bytes_estimate == here.text_bytes_estimate
    return there


@pytest.mark.parametrize("options", [{}, {"split": "hash:0.5"}, {"split": "tail:0.1", "invalid": "bytes"}])
def test_a_bucket_is_read_as_a_folder_is(both, options):
    folder, bucket = both
    assert_same(folder, bucket.uri, **options)


@pytest.mark.parametrize("name", [name for name in files() if ".png" not in name and "cache" not in name])
def test_a_single_object_is_read_as_a_file_is(both, name):
    folder, bucket = both
    if name in ("saved/train/state.json", "train/empty.txt"):
        pytest.skip("holds no document")
    assert_same(folder / name, f"{bucket.uri}/{name}")


@pytest.mark.parametrize(
    "pattern", ["*/*.jsonl", "**/*.arrow", "t*", "train/[a-c].*", "**", "train/**/c.*", "*/?.txt", "train/*", "*/.h*"]
)
def test_a_glob_in_a_bucket_matches_what_it_matches_in_a_folder(both, pattern):
    folder, bucket = both
    assert_same(folder / pattern, f"{bucket.uri}/{pattern}", split="hash:0.5")


def test_the_endpoint_may_be_in_the_uri(both, monkeypatch):
    folder, bucket = both
    monkeypatch.setenv("AWS_ENDPOINT_URL", "http://127.0.0.1:1")
    host = bucket.endpoint.removeprefix("http://")
    assert_same(folder / "test", f"{bucket.uri}/test/?endpoint_override={bucket.endpoint}")
    assert_same(folder / "t*/*.txt", f"{bucket.uri}/t*/*.txt?scheme=http&endpoint_override={host}")


def test_folders_and_buckets_are_one_corpus_in_which_each_file_is_read_once(both):
    folder, bucket = both
    specs = [f"{bucket.uri}/test", f"{bucket.uri}/test/f.txt", str(folder / "train/a.txt")]
    assert sorted(all_documents(*specs, split="hash:0.5")) == ["a text", "held out"]


def test_pairs_are_read_from_a_bucket(bucket, tmp_path):
    rows = "".join(json.dumps({"en": f"{i}", "de": f"{i} de"}) + "\n" for i in range(50))
    (tmp_path / "a.jsonl").write_text(rows)
    bucket.put("a.jsonl", rows.encode())
    here, there = (open_pairs(name, ("en", "de")) for name in (str(tmp_path / "a.jsonl"), f"{bucket.uri}/a.jsonl"))
    assert [(s, b.to_pydict()) for s, b in there.routed_batches()] == [
        (s, b.to_pydict()) for s, b in here.routed_batches()
    ]


@settings(max_examples=10, suppress_health_check=[HealthCheck.function_scoped_fixture])
@given(st.lists(st.text(max_size=30), min_size=1, max_size=40), st.integers(1, 400), st.integers(1, 9))
def test_ranges_of_objects_are_those_of_files_after_pickling(bucket, tmp_path, texts, size, rows):
    texts = [*texts, "a text"]
    for name, content in {"a.jsonl": jsonl(texts), "b.parquet": parquet(texts, rows)}.items():
        (tmp_path / name).write_bytes(content)
        bucket.put(name, content)
    here, there = (open_corpus(name, "hash:0.3") for name in (str(tmp_path), bucket.uri))
    ours, theirs = here.ranges(size), pickle.loads(pickle.dumps(there.ranges(size)))
    assert [each.size for each in theirs] == [each.size for each in ours]
    for one, other in zip(theirs, ours, strict=True):
        assert [(s, b.to_pydict()) for s, b in one.routed_batches(Dropped())] == [
            (s, b.to_pydict()) for s, b in other.routed_batches(Dropped())
        ]


def test_a_fingerprint_of_a_range_changes_with_the_object(bucket):
    def fingerprints():
        return [each.fingerprint for each in open_corpus(f"{bucket.uri}/a.jsonl", "hash:0.3").ranges(500)]

    bucket.put("a.jsonl", jsonl(TEXTS))
    before = fingerprints()
    assert before == fingerprints()
    bucket.put("a.jsonl", jsonl([*TEXTS, "more"]))
    assert not {*before} & {*fingerprints()}


def test_an_object_that_changes_during_the_work_is_an_error(bucket):
    bucket.put("a.jsonl", jsonl(TEXTS))
    corpus = open_corpus(f"{bucket.uri}/a.jsonl", "hash:0.3")
    bucket.put("a.jsonl", jsonl(TEXTS * 2))
    with pytest.raises(ValueError, match=rf"{bucket.uri}/a\.jsonl changed while it was read: run the command again"):
        list(corpus.routed_batches())


def test_the_summary_of_a_bucket_counts_its_documents(both):
    folder, bucket = both
    here, there = summarize(open_corpus(str(folder))), summarize(open_corpus(bucket.uri))
    assert (there.documents, there.bytes, there.excerpts) == (here.documents, here.bytes, here.excerpts)


@pytest.mark.parametrize(
    ("name", "message"),
    [
        ("none.jsonl", r"s3://bucket-\d+/none\.jsonl does not exist: check the names of bucket and file"),
        ("none/*.txt", r"nothing matches s3://bucket-\d+/none/\*\.txt"),
        ("bad.jsonl.gz", r"s3://bucket-\d+/bad\.jsonl\.gz is damaged or cut short .*: fetch or write it again"),
        ("bad.parquet", r"s3://bucket-\d+/bad\.parquet is not a readable parquet file"),
        ("bad.arrow", r"s3://bucket-\d+/bad\.arrow is not a readable arrow file"),
        ("empty.arrow", r"s3://bucket-\d+/empty\.arrow is not a readable arrow file"),
        ("a.png", r"s3://bucket-\d+/a\.png is not a \.txt, \.jsonl, \.parquet or \.arrow file: if it is text"),
        ("pictures", r"the folder s3://bucket-\d+/pictures holds no .* file, but 1 \.png; if they are text, add"),
    ],
)
def test_an_error_names_the_uri_and_the_remedy(bucket, name, message):
    bucket.put("bad.jsonl.gz", COMPRESSORS[".gz"](jsonl(TEXTS))[:-9])
    bucket.put("bad.parquet", parquet(TEXTS)[:-9])
    bucket.put("bad.arrow", arrow(pa.ipc.new_stream)[:700])
    for key in ("empty.arrow", "a.png", "pictures/a.png"):
        bucket.put(key, b"")
    with pytest.raises((ValueError, OSError), match=message):
        list(open_corpus(f"{bucket.uri}/{name}").routed_batches())


@pytest.mark.parametrize(
    ("uri", "message"),
    [
        ("s3://no-such-bucket/a.txt", "s3://no-such-bucket/a.txt does not exist: check the names of bucket and file"),
        ("s3://", "s3:// names no bucket: write s3://BUCKET/FOLDER"),
        ("https://host/a.txt", "https://host/a.txt is not in a supported object store: use s3://"),
        ("s3://key:hush@bucket/a.txt", r"s3://...@bucket has a password in its URI, which would be written to logs"),
        ("s3://bucket/a.txt?endpoint=x", "s3://bucket/a.txt.endpoint=x: Unexpected query parameter in S3 URI"),
    ],
)
def test_a_bad_uri_is_refused_with_the_remedy(object_store, uri, message):
    with pytest.raises((ValueError, OSError), match=message) as raised:
        open_corpus(uri)
    assert "hush" not in str(raised.value)


def test_a_store_that_does_not_answer_is_named(object_store):
    with socket.socket() as unused:
        unused.bind(("127.0.0.1", 0))
        uri = f"s3://bucket/a.txt?scheme=http&endpoint_override=127.0.0.1:{unused.getsockname()[1]}"
        with pytest.raises(OSError, match=r"s3://bucket/a\.txt.*: the object store does not answer .*: check the net"):
            open_corpus(uri)


class Refusing(http.server.BaseHTTPRequestHandler):
    """Answers every request as S3 answers wrong credentials."""

    def do_HEAD(self):
        self.send_response(403)
        self.end_headers()

    def log_message(self, *words):
        pass


def test_refused_credentials_are_named(object_store):
    with http.server.HTTPServer(("127.0.0.1", 0), Refusing) as server:
        threading.Thread(target=server.serve_forever, daemon=True).start()
        uri = f"s3://bucket/a.txt?scheme=http&endpoint_override=127.0.0.1:{server.server_port}"
        with pytest.raises(OSError, match=r"s3://bucket/a\.txt.*: access is denied .*: check the credentials"):
            open_corpus(uri)
        server.shutdown()


@given(st.text(st.characters(exclude_categories=["Cs"]), min_size=1))
def test_a_uri_survives_parsing_and_pickling(name):
    parts = [part for part in name.replace("?", "").split("/") if part not in ("", ".", "..")]
    path = ObjectPath("s3://bucket/" + "/".join(parts) + "?region=eu-west-1")
    assert ObjectPath(str(path)) == path
    assert (path.parts, pickle.loads(pickle.dumps(path))) == (("s3://bucket", *parts), path)
    assert (path / "x").parent == path
