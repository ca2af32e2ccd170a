"""Unigram training beside sentencepiece under the same constraints: CPU seconds, and likelihood of held-out text.

`python -m benchmarks.unigram [--quick] [FILE ...]` holds out every tenth run of 50 lines, trains on the others and
prints the bits per byte of the held-out words whose characters both vocabularies have. The likelihood is the sum over
all segmentations, with the scores as trained and with probabilities normalized to a sum of 1.
"""

import argparse
import io
import math
import tempfile
import time
from collections import Counter
from pathlib import Path

from benchmarks.texts import corpora

SIZES = (8000, 32_000)
LINES = 50  # of a run
META = 3  # special entries of sentencepiece


def ours(path: Path, size: int) -> dict[str, float]:
    """Return the scores of our pieces."""
    from tokenizer import Tokenizer

    vocabulary = Tokenizer.train(path, size, model="unigram", special_tokens=(), threads=1).vocabulary
    return dict(zip(vocabulary.pieces[1:], vocabulary.scores[1:], strict=True))


def sentencepiece(path: Path, size: int) -> dict[str, float]:
    """Return the scores of the pieces of sentencepiece."""
    import sentencepiece as peer

    model = io.BytesIO()
    options = {"model_type": "unigram", "normalization_rule_name": "identity", "max_sentence_length": 1 << 22}
    options |= {"hard_vocab_limit": False}  # a small text has fewer pieces
    peer.SentencePieceTrainer.train(
        input=str(path), model_writer=model, vocab_size=size, num_threads=1, minloglevel=2, **options
    )
    trained = peer.SentencePieceProcessor(model_proto=model.getvalue())
    return {trained.id_to_piece(i): trained.get_score(i) for i in range(META, len(trained))}


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


def compare(path: Path, folder: Path, size: int) -> None:
    """Train both on a text and print a row for each."""
    lines = [line for line in path.read_text(encoding="utf-8").split("\n") if line.strip()]
    train = folder / "train.txt"
    train.write_text("\n".join(line for i, line in enumerate(lines) if i // LINES % 10), encoding="utf-8")
    held_out = Counter("▁" + word for i, line in enumerate(lines) if not i // LINES % 10 for word in line.split())
    trained = {}
    for trainer in (ours, sentencepiece):
        before = time.process_time()
        scores = trainer(train, size)
        trained[trainer.__name__] = (scores, time.process_time() - before)
    known = set.intersection(*({piece for piece in scores if len(piece) == 1} for scores, _ in trained.values()))
    words = Counter({word: count for word, count in held_out.items() if set(word) <= known})
    for name, (scores, seconds) in trained.items():
        total = math.log(math.fsum(map(math.exp, scores.values())))
        bits = bits_per_byte(scores, words), bits_per_byte(scores, words, total)
        print(f"{path.stem:13}{size:7,}  {name:14}{seconds:7.1f} s  {bits[0]:.4f} bits/byte, normalized {bits[1]:.4f}")


def main() -> None:
    """Run the benchmark."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("files", nargs="*", type=Path, help="texts; by default English, code and multilingual")
    parser.add_argument("--quick", action="store_true", help="2 MB of each text")
    options = parser.parse_args()
    with tempfile.TemporaryDirectory() as folder:
        texts = corpora(Path(folder), options.files, options.quick)
        ours(texts[0].path, SIZES[0])  # compiles the kernels
        for text in texts:
            for size in SIZES:
                compare(text.path, Path(folder), size)


if __name__ == "__main__":
    main()
