"""Draw the data path from text to report: `python docs/data_path.py` writes docs/pictures/data-path.svg."""

from html import escape
from pathlib import Path

PICTURE = Path(__file__).parent / "pictures" / "data-path.svg"
# (module, its output) in the order of the data.
STOPS = (
    ("corpora/corpus.py", "documents in Arrow record batches, split into train and validation"),
    ("tokenizer/training/counting.py", "pretokens and their counts"),
    ("tokenizer/training/merging.py", "the merge list: tokenizer.json"),
    ("tokenizer/encoding/kernel_encoder.py", "token ids of documents"),
    ("pipelines/dataset/encoding.py", "the stream: a separator and a document, again and again"),
    ("pipelines/dataset/block_dataset.py", "blocks of T ids on disk, and dataset.json; several files by shards.py"),
    ("pipelines/training/batch_objectives.py", "batches (B, T), masked by lm/objectives.py"),
    ("lm/model.py", "hidden states (B, T, width)"),
    ("lm/losses.py", "nats per target, in chunks of logits"),
    ("pipelines/training/loop.py", "steps of lm/optim/, metrics.jsonl"),
    ("pipelines/training/checkpoints.py", "checkpoints/step-NNNNNNN/"),
    ("pipelines/evaluation/scoring.py", "evaluation.json"),
    ("pipelines/verbs/report.py", "report.html"),
)
STEP, LEFT, RIGHT, WIDTH = 44, 16, 300, 800


def picture() -> str:
    """Return the SVG."""
    height = STEP * len(STOPS) + 12
    lines = [
        f'<svg xmlns="http://www.w3.org/2000/svg" viewBox="0 0 {WIDTH} {height}" font-family="sans-serif">',
        "<style>text { font-size: 14px }</style>",
        "<title>From text to report, one module per step</title>",
        f'<rect width="{WIDTH}" height="{height}" fill="white"/>',
    ]
    for number, (module, result) in enumerate(STOPS):
        top = 10 + STEP * number
        lines.append(f'<rect x="{LEFT}" y="{top}" width="264" height="28" rx="5" fill="#e8eef7" stroke="#2b5797"/>')
        lines.append(f'<text x="{LEFT + 10}" y="{top + 19}" fill="#1a2b45">{escape(module)}</text>')
        lines.append(f'<text x="{RIGHT}" y="{top + 19}" fill="#444">{escape(result)}</text>')
        if number:
            lines.append(f'<path d="M{LEFT + 132} {top - 15}v11m-4-4l4 4l4-4" fill="none" stroke="#2b5797"/>')
    return "\n".join([*lines, "</svg>\n"])


if __name__ == "__main__":
    PICTURE.write_text(picture(), encoding="utf-8")
