"""The file readers to fuzz, their seed files, and a check of the promise that they keep.

The promise: a reader accepts a damaged file, or raises a ValueError or OSError with a one-line message. A file with a
checksum is accepted only if it is whole.
"""

from __future__ import annotations

import asyncio
import json
import random
import shutil
import warnings
from collections.abc import Callable, Iterable, Iterator
from functools import cache
from pathlib import Path
from typing import TYPE_CHECKING

from pipelines.evaluation.results import Evaluation

if TYPE_CHECKING:
    from starlette.testclient import TestClient

SEEDS = Path(__file__).parents[1] / "compatibility" / "0.1"
LONGEST_MESSAGE = 2000  # characters

# Inserted bytes that are likely to break parsers: deep nesting, huge sizes and numbers, invalid text.
WORDS = (
    b"[" * 1000, b'{"a":' * 1000, b"]", b"}", b",", b"null", b"true", b"-1", b"0", b"1e308", b"NaN", b"1" * 400,
    b"18446744073709551616", b'""', b'"\\ud800"', b"\x00", b"\xff\xfe", b"\n", b"=", b"(?R)", b"(a|a)+$", b"{1,9999}",
)  # fmt: skip

# Replacements for the value of a field.
VALUES = (
    None, True, 0, -1, 2**31, 2**64, 0.5, 1e308, float("nan"), "", "a", "\ud800", "a" * 5000, "../../x", [], [None], {},
    {"a": {}}, [[0, 1]], "(a|a)+$", r"(?:(?:a{9999}){9999}){9999}", r"\p{L}+|(?R)",
)  # fmt: skip


class Reader:
    """A reader and a copy of the seed folder. Each input replaces one file of that copy."""

    def __init__(self, folder: Path, name: str):
        file, self._read = READERS[name]
        self.folder, self.path, self._checksummed = folder, folder / file, name in CHECKSUMMED
        self.seed = self.path.read_bytes()

    def check(self, data: bytes) -> bool:
        """Return whether the reader accepts an input. Raises the error or AssertionError if the promise is broken."""
        self.path.write_bytes(data)
        try:
            self._read(self.folder)
        except (ValueError, OSError) as error:
            message = str(error)
            assert 0 < len(message) <= LONGEST_MESSAGE and "\n" not in message, repr(error)
            return False
        assert data == self.seed or not self._checksummed, "a damaged file with a checksum is accepted"
        return True

    def check_quietly(self, data: bytes) -> None:
        """Check an input and ignore warnings."""
        with warnings.catch_warnings():
            warnings.simplefilter("ignore")
            self.check(data)


TEXT = "A small lamp, 1234 é\u0301 waits<|endoftext|>"


def _tokenizer(name: str) -> Callable[[Path], None]:
    def read(folder: Path) -> None:
        from tokenizer import Tokenizer

        tok = Tokenizer.load(folder / name)
        tok.decode(tok.encode(TEXT, disallowed_special=()))

    return read


def _character_map(folder: Path) -> None:
    """Read the character map in both formats that have one: tokenizer.json and the SentencePiece model."""
    from base64 import b64encode

    from tokenizer.formats.sentencepiece_files import NORMALIZER
    from tokenizer.formats.wire_format import message

    compiled = (folder / "map").read_bytes()
    path = folder / "unigram" / "tokenizer.json"
    content = json.loads(path.read_bytes())
    content["normalizer"]["precompiled_charsmap"] = b64encode(compiled).decode()
    path.write_text(json.dumps(content))
    model = folder / "unigram.model"
    with_map = message((NORMALIZER, message((2, compiled))))
    (folder / "mapped.model").write_bytes(model.read_bytes() + with_map)
    try:
        _tokenizer("unigram")(folder)
    finally:
        _tokenizer("mapped.model")(folder)


def _vocab_txt(folder: Path) -> None:
    from tokenizer import Tokenizer

    tok = Tokenizer.load(folder / "vocab.txt", pattern="bert-uncased")
    tok.decode(tok.encode("A small lamp [MASK] waits", disallowed_special=()))


def _dataset(folder: Path) -> None:
    from pipelines.dataset.reader import TokenDataset

    stream = TokenDataset(folder / "dataset").split("train")
    stream.read(0, min(stream.tokens, 1000))


def _dataset_fields(folder: Path) -> None:
    """Read a dataset whose dataset.json has the right fingerprint, so that its other fields are checked."""
    from pipelines.dataset.reader import write_info

    path = folder / "dataset" / "dataset.json"
    try:
        info = json.loads(path.read_bytes())
        write_info(path.parent, {name: value for name, value in info.items() if name != "fingerprint"})
    except (ValueError, AttributeError, RecursionError):
        pass  # not JSON, not an object, or too deep
    _dataset(folder)


def _dataset_manifest(folder: Path) -> None:
    from pipelines.dataset.dataset_manifest import problems

    problems(folder / "dataset")


def _marker(name: str) -> Callable[[Path], None]:
    """Return a reader of the marker of an encoded range or a shard, which an unfinished build keeps."""

    def read(folder: Path) -> None:
        from pipelines.dataset.outputs import read_output

        output = read_output(folder / name)
        if output is None:
            raise ValueError(f"the {name} is made again")
        assert output.sound

    return read


def _corpus(name: str) -> Callable[[Path], None]:
    def read(folder: Path) -> None:
        from corpora import open_corpus

        for _, batch in open_corpus(str(folder / name), invalid="replace").routed_batches():
            batch.column(0).to_pylist()

    return read


def _counts(folder: Path) -> None:
    from tokenizer import PretokenCounts

    list(PretokenCounts.load(folder / "counts.parquet").items())


def _checkpoint(folder: Path) -> None:
    from pipelines.run.checkpoint_reader import newest_whole_checkpoint
    from pipelines.run.folder import Run

    newest_whole_checkpoint(folder / "decoder", Run(folder / "decoder").settings, "model.safetensors", "state.json")


def _state(folder: Path) -> None:
    from pipelines.recipes.config import TrainConfig
    from pipelines.run.retention import checkpoints_to_keep, latest_checkpoint

    run = folder / "decoder"
    checkpoints_to_keep(run, latest_checkpoint(run), TrainConfig(keep_best=True, keep_every_tokens=1))


def _config(folder: Path) -> None:
    from pipelines.run.folder import Run

    Run(folder / "decoder")


def _log(folder: Path) -> None:
    from pipelines.run.folder import Run

    run = Run(folder / "decoder")
    run.metrics()
    Evaluation.read(run.folder)


def _weights(folder: Path) -> None:
    from pipelines.run.folder import Run
    from pipelines.run.loaded_run import load_trained

    load_trained(Run(folder / "decoder"), "cpu", checkpoint="8")


def _gguf(folder: Path) -> None:
    from lm.exchange.gguf import from_gguf
    from pipelines.exchange.gguf_file import read_gguf
    from tokenizer.formats.gguf_fields import HF_JSON, gguf_vocabulary

    content = read_gguf(folder / "model.gguf")
    from_gguf(content.keys, content.tensors, "model.gguf")
    gguf_vocabulary(content.keys)
    gguf_vocabulary({key: value for key, value in content.keys.items() if key != HF_JSON})


def _task(folder: Path) -> None:
    from pipelines.run.folder import Run

    assert Run(folder / "classes").recipe.task is not None


@cache
def _client() -> TestClient:
    """Return a client of a server of the decoder among the seeds; both live as long as the process."""
    from starlette.testclient import TestClient

    from pipelines.run.loaded_run import load_run
    from pipelines.serving.engine import Engine
    from pipelines.serving.models import ServedModel, Service
    from pipelines.serving.security import access_to
    from pipelines.serving.server import create_app

    run = load_run(SEEDS / "decoder", device="cpu")
    engine = Engine({"decoder": run})
    engine.start()
    service = Service({"decoder": ServedModel("decoder", run)}, engine, created=0)
    app = create_app(service, access_to("127.0.0.1", 8000), asyncio.Event())
    return TestClient(app, base_url="http://localhost:8000").__enter__()


def _request(path: str) -> Callable[[Path], None]:
    def read(folder: Path) -> None:
        body = (folder / "request.json").read_bytes()
        answer = _client().post(path, content=body, headers={"content-type": "application/json"})
        assert answer.status_code < 500, answer.text
        if answer.status_code != 200:
            raise ValueError(answer.json()["error"]["message"])

    return read


REQUESTS = {
    "/v1/completions": {
        "model": "decoder", "prompt": ["A small lamp"], "max_tokens": 2, "n": 1, "temperature": 0.5, "top_p": 0.9,
        "top_k": 5, "min_p": 0.1, "seed": 1, "stop": ["x"], "logprobs": 2, "echo": True, "stream": False,
    },
    "/api/score": {"model": "decoder", "text": "A small lamp", "key": "a", "have": [1, 2]},
    "/api/generate": {"model": "decoder", "text": "A", "ids": [3], "max_tokens": 2, "temperature": 0.5, "seed": 1},
}  # fmt: skip

CHECKPOINT = "decoder/checkpoints/step-0000008"
READERS: dict[str, tuple[str, Callable[[Path], object]]] = {
    "tokenizer": ("tokenizer/tokenizer.json", _tokenizer("tokenizer")),
    "wordpiece": ("wordpiece/tokenizer.json", _tokenizer("wordpiece")),
    "vocab": ("vocab.txt", _vocab_txt),
    "unigram": ("unigram/tokenizer.json", _tokenizer("unigram")),
    "sentencepiece": ("unigram.model", _tokenizer("unigram.model")),
    "character-map": ("map", _character_map),
    "dataset": ("dataset/dataset.json", _dataset),
    "dataset-fields": ("dataset/dataset.json", _dataset_fields),
    "blocks": ("dataset/train/data-00000-of-00001.arrow", _dataset),
    "dataset-manifest": ("dataset/manifest.json", _dataset_manifest),
    "range-marker": ("range.json", _marker("range")),
    "shard-marker": ("shard.json", _marker("shard")),
    "arrow": ("corpus.arrow", _corpus("corpus.arrow")),
    "parquet": ("corpus.parquet", _corpus("corpus.parquet")),
    "counts": ("counts.parquet", _counts),
    "manifest": (f"{CHECKPOINT}/manifest.json", _checkpoint),
    "state": (f"{CHECKPOINT}/state.json", _state),
    "config": ("decoder/config.toml", _config),
    "metrics": ("decoder/metrics.jsonl", _log),
    "evaluation": ("decoder/evaluation.json", _log),
    "gguf": ("model.gguf", _gguf),
    "task": ("classes/config.toml", _task),
    "weights": (f"{CHECKPOINT}/model.safetensors", _weights),
    **{f"request{path.replace('/', '-')}": ("request.json", _request(path)) for path in REQUESTS},
}


CHECKSUMMED = ("counts", "dataset-manifest", "range-marker", "shard-marker")
"""Readers of files that hold their own checksum"""


def open_reader(name: str, folder: Path) -> Reader:
    """Return a reader whose files are in a new folder."""
    write_files(name, folder)
    return Reader(folder, name)


def write_files(name: str, folder: Path) -> None:
    """Write the files of a reader into a new folder."""
    import pyarrow as pa
    import pyarrow.parquet as pq

    shutil.copytree(SEEDS, folder)
    table = pa.table({"text": [f"word {i} é " * (1 + i % 4) for i in range(40)] + [None, ""]})
    pq.write_table(table, folder / "corpus.parquet")
    with pa.ipc.new_stream(folder / "corpus.arrow", table.schema) as out:
        out.write_table(table, max_chunksize=20)
    _write_wordpiece(folder)
    _write_unigram(folder)
    if name in ("range-marker", "shard-marker"):
        _begin_build(folder)
    if name == "gguf":
        from pipelines.verbs.export_gguf import export_gguf

        export_gguf(folder / "decoder", out=folder / "model.gguf", dtype="q8_0")
    for path, body in REQUESTS.items():
        if name == f"request{path.replace('/', '-')}":
            (folder / "request.json").write_text(json.dumps(body))


def _write_wordpiece(folder: Path) -> None:
    """Write a WordPiece vocabulary as vocab.txt and as wordpiece/tokenizer.json."""
    from tokenizer import Tokenizer

    pieces = ["a", "small", "lamp", "wait", "##s", "1", "##2", "##3", "##4", ",", "e"]
    special = ["[PAD]", "[UNK]", "[CLS]", "[SEP]", "[MASK]"]
    (folder / "vocab.txt").write_text("".join(f"{token}\n" for token in special + pieces))
    Tokenizer.load(folder / "vocab.txt", pattern="bert-uncased").save(folder / "wordpiece")


def _write_unigram(folder: Path) -> None:
    """Write a small Unigram vocabulary as tokenizer.json, one with byte fallback as a model, and the character map."""
    from tokenizer import PieceRules, Tokenizer
    from tokenizer.splitting.double_array import compile_map
    from tokenizer.splitting.metaspace_splitter import PLAIN_WORDS
    from tokenizer.splitting.normalizers import Precompiled
    from tokenizer.splitting.precompiled_map import CharacterMap

    replacements = dict.fromkeys("\t\n\r\u00a0\u2003\u3000", " ") | {"e\u0301": "é", "ﬁ": "fi", "½": "1/2", "\x07": ""}
    characters = CharacterMap(compile_map({key.encode(): text.encode() for key, text in replacements.items()}))
    words = PLAIN_WORDS._replace(normalizers=(Precompiled(characters),))
    (folder / "map").write_bytes(characters.compiled)

    def trained(size: int, byte_fallback: bool) -> Tokenizer:
        rules = PieceRules(byte_fallback=byte_fallback)
        options = {"kind": "unigram", "special_tokens": ["</s>"], "pieces": rules}
        return Tokenizer.train(["A small lamp waits. The lamps wait, small and late."] * 5, size, words, **options)

    trained(40, False).save(folder / "unigram")
    trained(300, True).as_sentencepiece().save(folder / "model")
    (folder / "model" / "tokenizer.model").rename(folder / "unigram.model")


def _begin_build(folder: Path) -> None:
    """Encode corpus.parquet as one range, and write its training shard, with the markers range.json and shard.json."""
    import numpy as np

    from corpora import open_corpus
    from pipelines.dataset.encoded_range import encode_range
    from pipelines.dataset.shards import shard_tasks, write_shard
    from tokenizer import Tokenizer

    (whole,) = open_corpus(str(folder / "corpus.parquet")).ranges()
    encoded = encode_range(whole, Tokenizer.load(folder / "tokenizer"), folder / "range")
    (task,) = shard_tasks([encoded.splits["train"]], 8, np.dtype(np.uint16), 1 << 20, iter([folder / "shard"]))
    write_shard(task)


def mutated_json(seed: bytes, chance: random.Random) -> bytes:
    """Return JSON with one to three values replaced, removed or duplicated. Other bytes go to `mutated`.

    In JSON lines, only one line is changed.
    """
    lines = seed.split(b"\n")
    number = chance.choice([i for i, line in enumerate(lines) if line]) if seed.startswith(b'{"step"') else None
    try:
        content = json.loads(seed if number is None else lines[number])
    except (ValueError, RecursionError):  # an earlier mutation may have nested it deeply
        return mutated(seed, chance)
    for _ in range(chance.randint(1, 3)):
        places = list(_places(content))
        if not places:
            break
        parent, key = chance.choice(places)
        if (kind := chance.randrange(4)) == 0:
            del parent[key]
        elif kind == 1 and isinstance(parent, list):
            parent.insert(key, _copied(parent[chance.randrange(len(parent))]))
        else:
            parent[key] = _copied(chance.choice([*VALUES, parent[chance.choice(list(_keys(parent)))]]))
    changed = json.dumps(content).encode()
    if number is None:
        return changed
    lines[number] = changed
    return b"\n".join(lines)


def _copied(value: object) -> object:
    """Return a copy, as a value that stood in two places could later be put into itself."""
    return json.loads(json.dumps(value))


def _keys(parent: dict | list) -> Iterable:
    return parent.keys() if isinstance(parent, dict) else range(len(parent))


def _places(content: object) -> Iterator[tuple[dict | list, object]]:
    """Yield the parent and key of every value in nested JSON, but only of the first 40 in each list or object."""
    if isinstance(content, (dict, list)):
        for key in [*_keys(content)][:40]:
            yield content, key
            yield from _places(content[key])


def mutated(seed: bytes, chance: random.Random) -> bytes:
    """Return the seed with one to four changes: flipped bits, inserted words, and deleted or duplicated parts."""
    data = bytearray(seed)
    for _ in range(chance.randint(1, 4)):
        at = chance.randrange(len(data) + 1)
        end = min(len(data), at + chance.choice((1, 2, 8, 64, 1000)))
        kind = chance.randrange(6)
        if kind <= 1 and at < len(data):
            data[at] ^= 1 << chance.randrange(8)
        elif kind == 2:
            data[at:at] = chance.choice(WORDS)
        elif kind == 3:
            data[at:end] = chance.choice(WORDS)
        elif kind == 4:
            del data[at:end]
        else:
            data[at:at] = data[at:end]
    return bytes(data)
