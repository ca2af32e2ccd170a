"""Run one measurement in its own process: `python -m benchmarks.worker JOB` reads and prints a JSON object.

A small text first warms up imports, cached kernels and thread pools, with separate objects. The clock runs from the
call to the result; writing the result to the job's `result` file is not timed.
"""

import gc
import json
import statistics
import sys
import tempfile
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

from benchmarks.harness import answers, reset_peak, resident_bytes
from benchmarks.peers import DISTRIBUTIONS, OURS, installed_version
from benchmarks.texts import LINE_END, WARM_UP, documents, write_text

PASSES = 5  # after the first


def main() -> None:
    job, send = json.loads(sys.argv[1]), answers()  # some peers print
    try:
        peer = job["peer"]
        if installed_version(peer) is None:
            raise ValueError(f"not installed: pip install {DISTRIBUTIONS[peer]}")
        with tempfile.TemporaryDirectory() as folder:
            answer = TASKS[job["task"]](job, Path(folder))
    except ValueError as error:
        answer = {"error": str(error)[:200]}
    except BaseException as error:  # a panic in a peer's Rust is no Exception
        answer = {"error": f"{type(error).__name__}: {error}"[:200]}
    send(answer)


def train(job: dict, folder: Path) -> dict:
    """Train, and write the merges in hexadecimal: one per line, as a pair or as the merged token."""
    from benchmarks.peers.training import TRAINERS

    trainer = TRAINERS[job["peer"], job["way"]]
    settings = [job["pattern"], job["threads"]]
    if job["peer"] == OURS:
        settings.append(job["byte_order"])
    trainer.train(write_text(folder, "warm-up", WARM_UP, "").path, 300, *settings)
    list_merges, answer = measured(lambda: trainer.train(Path(job["path"]), job["vocab_size"], *settings))
    merges = list_merges()
    lines = [merge.hex() if isinstance(merge, bytes) else f"{merge[0].hex()} {merge[1].hex()}" for merge in merges]
    Path(job["result"]).write_text("\n".join(lines))
    return answer


def phases(job: dict, folder: Path) -> dict:
    """Return the seconds of counting and of merging in our training."""
    from tokenizer import Tokenizer, count_pretokens

    def run(path, vocab_size):
        started = time.perf_counter()
        counts = count_pretokens(path, job["pattern"], threads=job["threads"])
        counted = time.perf_counter()
        Tokenizer.train_from_counts(counts, vocab_size, special_tokens=(), min_frequency=1)
        return {"counting": counted - started, "merging": time.perf_counter() - counted}

    run(write_text(folder, "warm-up", WARM_UP, "").path, 300)
    return run(Path(job["path"]), job["vocab_size"])


def encode(job: dict, folder: Path) -> dict:
    """Encode a file, and write the ids as a .npy array of uint32."""
    import numpy as np

    warm_up = write_text(folder, "warm-up", WARM_UP, "")
    _encoder(job).encode_file(warm_up.path, warm_up.separated, job["threads"])
    started = time.perf_counter()
    encoder = _encoder(job)
    loading = time.perf_counter() - started

    def run():
        return encoder.encode_file(Path(job["path"]), Path(job["separated"]), job["threads"])

    parts, answer = measured(run)
    parts = [np.asarray(part, dtype=np.uint32) for part in parts]
    np.save(job["result"], parts[0] if len(parts) == 1 else np.concatenate(parts))
    if job["again"] and answer["seconds"] < 5:
        del parts
        started = time.perf_counter()
        run()
        answer["again"] = time.perf_counter() - started
    return answer | {"loading": loading}


def encode_lines(job: dict, folder: Path) -> dict:
    """Encode the lines of a file with a new encoder, then again with its caches.

    Writes the ids of the first pass, with `LINE_END` after each line. Memory includes the encoder's tables and caches.
    """
    import numpy as np

    from benchmarks.peers.lines import LINE_ENCODERS, PieceFiles

    make, files = LINE_ENCODERS[job["peer"], job["way"]], PieceFiles(**job["vocabulary"])
    warm_up = write_text(folder, "warm-up", WARM_UP, "").path
    make(files).encode(WARM_UP.split("\n"), warm_up)
    path = Path(job["path"])
    lines = path.read_bytes().decode().split("\n")
    before, started = resident_bytes(), time.perf_counter()
    encoder = make(files)
    loading = time.perf_counter() - started
    encoded, answer = measured(lambda: encoder.encode(lines, path))
    ids, lengths = encoder.arrays(encoded)
    if lengths is not None:
        ids = np.insert(ids, np.cumsum(lengths, dtype=np.int64), LINE_END)
    np.save(job["result"], ids)
    del encoded, ids, lengths
    if answer["seconds"] < 5:
        again = [measured(lambda: encoder.encode(lines, path))[1]["processor"] for _ in range(PASSES)]
        answer["again_processor"] = min(again)
    return answer | {"loading": loading, "before": before}


def train_pieces(job: dict, folder: Path) -> dict:
    """Train a WordPiece vocabulary, and write its tokens."""
    from benchmarks.peers.wordpiece import WORDPIECE_TRAINERS

    train = WORDPIECE_TRAINERS[job["peer"]]
    train(write_text(folder, "warm-up", WARM_UP, "").path, 200, job["threads"])
    tokens, answer = measured(lambda: train(Path(job["path"]), job["vocab_size"], job["threads"]))
    Path(job["result"]).write_text(json.dumps(tokens))
    return answer


def train_unigram(job: dict, folder: Path) -> dict:
    """Train a Unigram vocabulary on one thread, and write the score of each piece."""
    from benchmarks.unigram import TRAINERS

    train = TRAINERS[job["peer"]]
    train(write_text(folder, "warm-up", WARM_UP, "").path, 80)  # so few entries that training prunes pieces
    scores, answer = measured(lambda: train(Path(job["path"]), job["vocab_size"]))
    Path(job["result"]).write_text(json.dumps(scores))
    return answer


def decode(job: dict, folder: Path) -> dict:
    """Decode ids, and write the bytes. Ids are converted to the peer's input type before the clock starts."""
    import numpy as np

    encoder, ids = _encoder(job), np.load(job["ids"])
    if not encoder.decodes_arrays:
        ids = ids.tolist()
    encoder.decode(ids[: 1 << 18])
    text, answer = measured(lambda: encoder.decode(ids))
    Path(job["result"]).write_bytes(text if isinstance(text, bytes) else text.encode())
    return answer


def document(job: dict, folder: Path) -> dict:
    """Return the median seconds to encode a document to a list, in turn with tiktoken. All documents are warmed up."""
    encoders = [_encoder(job), _encoder(job | {"peer": "tiktoken", "way": ""})]
    texts = documents(Path(job["path"]), job["documents"])
    expected = [encoders[1].encode_document(text) for text in texts]
    results = [encoders[0].encode_document(text) for text in texts]
    times: list[list[int]] = [[], []]
    gc.disable()
    for _ in range(job["passes"]):
        for text in texts:
            for encoder, nanoseconds in zip(encoders, times, strict=True):
                started = time.perf_counter_ns()
                encoder.encode_document(text)
                nanoseconds.append(time.perf_counter_ns() - started)
    Path(job["result"]).write_text(json.dumps(results))
    Path(job["expected"]).write_text(json.dumps(expected))
    return dict(zip(("seconds", "beside"), (statistics.median(t) / 1e9 for t in times), strict=True))


def first_use(job: dict, folder: Path) -> dict:
    """Return the seconds of a process's `import numba`, first training and first encoding."""
    started = time.perf_counter()
    import numba  # noqa: F401

    imported = time.perf_counter()
    from tokenizer import Tokenizer

    path = write_text(folder, "warm-up", WARM_UP, "").path
    for pattern in ("gpt2", "cl100k"):
        tokenizer = Tokenizer.train(path, 400, pattern, special_tokens=())
    trained = time.perf_counter()
    for threads in (1, 2):
        ids = tokenizer.encode_to_numpy(WARM_UP, threads)
    if tokenizer.decode_bytes(ids) != WARM_UP.encode():
        raise ValueError("the ids do not decode to the text")
    encoded = time.perf_counter()
    return {"numba": imported - started, "training": trained - imported, "encoding": encoded - trained}


TASKS: dict[str, Callable[[dict, Path], dict]] = {
    "train": train,
    "phases": phases,
    "encode": encode,
    "encode_lines": encode_lines,
    "train_pieces": train_pieces,
    "train_unigram": train_unigram,
    "decode": decode,
    "document": document,
    "first_use": first_use,
}


def _encoder(job: dict) -> Any:
    from benchmarks.peers.encoding import ENCODERS, VocabularyFiles

    return ENCODERS[job["peer"], job["way"]](VocabularyFiles(**job["vocabulary"]))


def measured(call: Callable[[], Any]) -> tuple[Any, dict]:
    """Return the call's result and its wall-clock seconds, CPU seconds, memory before and peak memory in bytes."""
    gc.collect()
    reset_peak()
    before, processor, started = resident_bytes(), time.process_time(), time.perf_counter()
    result = call()
    seconds = time.perf_counter() - started
    processor = time.process_time() - processor
    return result, {"seconds": seconds, "processor": processor, "before": before, "peak": resident_bytes("VmHWM")}


if __name__ == "__main__":
    main()
