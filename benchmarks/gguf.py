"""Compare exported GGUF files in llama.cpp with the runs they come from.

`python -m benchmarks.gguf RUN... --text FILE` exports each run in each dtype. It compares log-probabilities of the 50
likeliest next tokens after 20 passages of the text, the greedy continuations of the passages, and the ids of 10,000
texts: lines of the file and random strings.
"""

import argparse
import tempfile
from pathlib import Path

import torch
import xllamacpp

import bytelm
from benchmarks.harness import command_line, heading, table
from lm.model import LanguageModel
from pipelines.run.folder import Run
from pipelines.run.loaded_run import load_trained
from tests.pipelines.gguf_cases import nasty_strings
from tests.pipelines.llama_cpp import LlamaCpp

DTYPES = ("f32", "f16", "bf16", "q8_0")
PASSAGES, LENGTH, WRITTEN, STRINGS = 20, 60, 24, 10_000


def passages(run: bytelm.LoadedRun, text: str) -> list[str]:
    """Return the texts of passages, evenly spaced, each of at most LENGTH tokens."""
    tok, step = run.tokenizer, len(text) // PASSAGES
    return [tok.decode(tok.encode_ordinary(text[i * step : i * step + 8 * LENGTH])[:LENGTH]) for i in range(PASSAGES)]


@torch.no_grad()
def differences(model: LanguageModel, peer: LlamaCpp, texts: list[str]) -> list[float]:
    """Return the differences of log-probabilities after each text."""
    found = []
    for text in texts:
        ids = peer.ids(text, around=True)
        ours = model.logits(model(torch.tensor([ids])))[0, -1].log_softmax(-1)
        found += [abs(float(ours[i]) - value) for i, value in peer.log_probabilities(ids).items()]
    return found


def same_texts(run: bytelm.LoadedRun, peer: LlamaCpp, texts: list[str]) -> int:
    """Return the number of texts with the same greedy continuation."""
    special, equal = set(run.tokenizer.special_tokens.values()), 0
    for text in texts:
        written = [i for i in peer.greedy(peer.ids(text, around=True), WRITTEN) if i not in special]
        ours = str(run.generate(text, tokens=WRITTEN, greedy=True))
        equal += run.tokenizer.decode(written) == ours
    return equal


def rows_of(folder: Path, text: str, work: Path, compared: set[str]) -> list[tuple[str, ...]]:
    """Return a row for each dtype. `compared`: fingerprints of the tokenizers whose ids were compared."""
    run = bytelm.load_run(folder)
    model = load_trained(Run(folder), device="cpu").model
    texts, rows = passages(run, text), []
    for dtype in DTYPES:
        file = bytelm.export_gguf(folder, out=work / f"{folder.name}-{dtype}.gguf", dtype=dtype)
        with LlamaCpp(file) as peer:
            exact, equal = differences(model, peer, texts), same_texts(run, peer, texts)
            ids = "-"
            if run.tokenizer.fingerprint not in compared:
                compared.add(run.tokenizer.fingerprint)
                lines = [line for line in text.splitlines() if line][: STRINGS // 2]
                strings = [*lines, *nasty_strings(STRINGS - len(lines), seed=0)]
                ids = str(sum(peer.ids(each) != run.tokenizer.encode_ordinary(each) for each in strings))
        with LlamaCpp(file, exact=False) as peer:
            usual = differences(model, peer, texts)
        size = f"{file.stat().st_size / 1e6:.1f} MB"
        mean = f"{sum(exact) / len(exact):.4f}"
        rows.append(
            (folder.name, dtype, size, f"{max(exact):.4f}", mean, f"{max(usual):.4f}", f"{equal} of {PASSAGES}", ids)
        )
        print(*rows[-1], sep=" | ", flush=True)
    return rows


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, prog="python -m benchmarks.gguf")
    parser.add_argument("runs", type=Path, nargs="+", metavar="RUN")
    parser.add_argument("--text", type=Path, required=True, help="text file like the one that the runs learned")
    parser.add_argument("--out", type=Path, help="file for the table, such as benchmarks/results/gguf.md")
    options = parser.parse_args()
    text = options.text.read_text(encoding="utf-8")
    compared: set[str] = set()
    with tempfile.TemporaryDirectory() as work:
        rows = [row for run in options.runs for row in rows_of(run, text, Path(work), compared)]
    if options.out:
        names = [run.name for run in options.runs]
        command = command_line("benchmarks.gguf", [*names, "--text", options.text.name])
        facts = (
            f"xllamacpp {xllamacpp.__version__}. Differences are of log-probabilities, of the 50 likeliest tokens "
            f"after {PASSAGES} passages of {LENGTH} tokens. The KV cache is in float32 without flash attention; the "
            f"usual one is in float16. Ids: the number of texts, of {STRINGS:,}, with other ids."
        )
        head = ("run", "dtype", "size", "largest difference", "mean", "largest, usual cache", "same greedy text", "ids")
        lines = [*heading("GGUF files in llama.cpp", command, facts), *table(head, rows), ""]
        options.out.write_text("\n".join(lines))


if __name__ == "__main__":
    main()
