"""Compare Unigram training with that of sentencepiece: CPU seconds, memory and likelihood of held-out text.

`python -m benchmarks.unigram [--quick] [--out FILE] [FILE ...]` holds out every tenth run of 50 lines and trains on the
others, on one thread and under the same constraints. Trainers take turns, each turn in a fresh process. Bits per byte
are measured on the held-out words whose characters are in both vocabularies. The likelihood of a word is summed over
all its segmentations: once with the trained scores, and once with probabilities normalized to a sum of 1.
"""

import argparse
import io
import json
import math
import sys
import tempfile
from collections import Counter
from collections.abc import Callable
from pathlib import Path

from benchmarks.harness import Worker, command_line, heading, machine, met, table, turns
from benchmarks.peers import OURS, environment, installed_version
from benchmarks.texts import Text, corpora

SIZES = (8000, 32_000)
ROUNDS = 3
LINES = 50  # per run
META = 3  # special entries of sentencepiece
PEER = "sentencepiece"
SPEED = 5  # target, in multiples of the peer's speed
COLUMNS = (
    *("text", "entries", "trainer", "CPU seconds", "peak MB", "MB before", "MB grown"),
    *("bits per byte", "bits per byte, normalized"),
)
NOTE = (
    "CPU seconds and memory are the minimum over all rounds ({rounds}). The memory before training holds the "
    "interpreter, its libraries and, for bytelm, the compiled kernels."
)


def train_ours(path: Path, size: int) -> dict[str, float]:
    """Return the scores of our pieces."""
    from tokenizer import Tokenizer

    vocabulary = Tokenizer.train(path, size, kind="unigram", special_tokens=(), threads=1).vocabulary
    return dict(zip(vocabulary.pieces[1:], vocabulary.scores[1:], strict=True))


def train_sentencepiece(path: Path, size: int) -> dict[str, float]:
    """Return the scores of sentencepiece's pieces."""
    import sentencepiece as peer

    model = io.BytesIO()
    options = {"model_type": "unigram", "normalization_rule_name": "identity", "max_sentence_length": 1 << 22}
    options |= {"hard_vocab_limit": False}  # a small text has fewer pieces
    peer.SentencePieceTrainer.train(
        input=str(path), model_writer=model, vocab_size=size, num_threads=1, minloglevel=2, **options
    )
    trained = peer.SentencePieceProcessor(model_proto=model.getvalue())
    return {trained.id_to_piece(i): trained.get_score(i) for i in range(META, len(trained))}


TRAINERS: dict[str, Callable[[Path, int], dict[str, float]]] = {OURS: train_ours, PEER: train_sentencepiece}


def bits_per_byte(scores: dict[str, float], words: Counter[str], shift: float = 0) -> float:
    """Return the negative log-likelihood of words per byte. shift: subtracted from every score, in nats."""
    weights = {piece: math.exp(score - shift) for piece, score in scores.items()}
    longest = max(map(len, weights))
    nats = 0.0
    for word, count in words.items():
        sums, scale = [1.0] + [0.0] * len(word), 0.0
        for start in range(len(word)):
            if 0 < sums[start] < 1e-100:
                scale -= math.log(1e100)
                sums[start:] = [each * 1e100 for each in sums[start:]]
            for end in range(start + 1, min(len(word), start + longest) + 1):
                if weight := weights.get(word[start:end]):
                    sums[end] += sums[start] * weight
        nats -= count * (math.log(sums[-1]) + scale)
    size = sum(count * len(word[1:].encode()) for word, count in words.items())
    return nats / math.log(2) / size


def compare(text: Text, folder: Path, size: int, rounds: int) -> dict[str, dict[str, float]]:
    """Return the measurements of each trainer.

    These are `processor` in seconds; `peak`, `before` and `grown` in bytes; `bits` and `normalized` in bits per byte.
    """
    lines = [line for line in text.path.read_text(encoding="utf-8").split("\n") if line.strip()]
    train = folder / "train.txt"
    train.write_text("\n".join(line for i, line in enumerate(lines) if i // LINES % 10), encoding="utf-8")
    held_out = Counter("▁" + word for i, line in enumerate(lines) if not i // LINES % 10 for word in line.split())
    answers: dict[str, list[dict]] = {name: [] for name in TRAINERS}
    scores: dict[str, dict[str, float]] = {}
    for _, name in turns([*TRAINERS], rounds):
        result = folder / "scores.json"
        job = {"task": "train_unigram", "peer": name, "path": str(train), "vocab_size": size, "result": str(result)}
        with Worker("benchmarks.worker", job, environment=environment(threads=1)) as worker:
            answer = worker.answer()
        if "error" in answer:
            raise SystemExit(f"{name}: {answer['error']}")
        answers[name].append(answer)
        scores[name] = json.loads(result.read_text())
    known = set.intersection(*({piece for piece in each if len(piece) == 1} for each in scores.values()))
    words = Counter({word: count for word, count in held_out.items() if set(word) <= known})
    found = {}
    for name, each in scores.items():
        total = math.log(math.fsum(map(math.exp, each.values())))
        found[name] = {
            "processor": min(answer["processor"] for answer in answers[name]),
            "peak": min(answer["peak"] for answer in answers[name]),
            "before": min(answer["before"] for answer in answers[name]),
            "grown": min(answer["peak"] - answer["before"] for answer in answers[name]),
            "bits": bits_per_byte(each, words),
            "normalized": bits_per_byte(each, words, total),
        }
    return found


def rows_of(name: str, size: int, found: dict[str, dict[str, float]]) -> list[tuple[str, ...]]:
    """Return the cells of `COLUMNS` for each trainer."""
    return [
        (
            *(name, f"{size:,}", trainer, f"{each['processor']:.2f}"),
            *(f"{each[key] / 1e6:.0f}" for key in ("peak", "before", "grown")),
            *(f"{each[key]:.4f}" for key in ("bits", "normalized")),
        )
        for trainer, each in found.items()
    ]


def targets_of(name: str, size: int, found: dict[str, dict[str, float]]) -> list[tuple[str, ...]]:
    """Return the cells of the targets: text, entries, target, measured and verdict."""
    ours, theirs = found[OURS], found[PEER]
    speed = theirs["processor"] / ours["processor"]
    memory = f"{ours['grown'] / 1e6:.0f} MB, {PEER} {theirs['grown'] / 1e6:.0f} MB"
    bits = f"{ours['bits']:.4f}, {PEER} {theirs['bits']:.4f}"
    return [
        (name, f"{size:,}", f"{SPEED} times the speed of {PEER}", f"{speed:.1f} times", met(speed >= SPEED)),
        (name, f"{size:,}", f"no more memory growth than {PEER}", memory, met(ours["grown"] <= theirs["grown"])),
        (name, f"{size:,}", f"no more bits per byte than {PEER}", bits, met(ours["bits"] <= theirs["bits"])),
    ]


def page(arguments: list[str], texts: list[Text], rounds: int, rows: list, targets: list) -> str:
    """Return the results in Markdown."""
    device = machine()
    facts = (
        f"{device['processor']}, {device['cores']} cores, {device['memory_gb']} GB; {device['system']}, "
        f"Python {device['python']}."
    )
    versions = ", ".join(f"{name} {installed_version(name)}" for name in TRAINERS)
    lines = [
        *heading("Unigram training", command_line("benchmarks.unigram", arguments), facts),
        *(f"{versions}. {NOTE.format(rounds=rounds)}", ""),
        *(f"- {text.name}: {text.size:,} bytes, {text.source}; nine tenths are for training" for text in texts),
        *("", *table(("text", "entries", "target", "measured", "verdict"), targets)),
        *("", *table(COLUMNS, rows), ""),
    ]
    return "\n".join(lines)


def main() -> None:
    """Run the benchmark."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("files", nargs="*", type=Path, help="texts; default: English, code and multilingual")
    parser.add_argument("--quick", action="store_true", help="2 MB of each text, one round")
    parser.add_argument("--sizes", nargs="+", type=int, default=SIZES, metavar="N", help="numbers of entries")
    parser.add_argument("--out", type=Path, help="file for the tables, such as benchmarks/results/unigram/training.md")
    options = parser.parse_args()
    rounds = 1 if options.quick else ROUNDS
    rows: list[tuple[str, ...]] = []
    targets: list[tuple[str, ...]] = []
    with tempfile.TemporaryDirectory() as folder:
        texts = corpora(Path(folder), options.files, options.quick)
        for text in texts:
            for size in options.sizes:
                found = compare(text, Path(folder), size, rounds)
                rows += rows_of(text.name, size, found)
                targets += targets_of(text.name, size, found)
                for row in rows[-len(found) :]:
                    print(*row, sep=" | ", flush=True)
        if options.out:
            options.out.write_text(page(sys.argv[1:], texts, rounds, rows, targets), encoding="utf-8")


if __name__ == "__main__":
    main()
