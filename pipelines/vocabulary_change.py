"""Change the vocabulary of a tokenizer or a run, and measure the effect on held-out text."""

import json
from collections.abc import Callable, Iterable, Iterator
from contextlib import nullcontext
from pathlib import Path
from typing import TYPE_CHECKING, Any

import pyarrow as pa

from pipelines.cli.display import Bar, answer, count_text, say, say_on_stderr, table, write
from pipelines.cli.named_tokenizers import load_tokenizer
from pipelines.cli.waiting import doing
from pipelines.files import unfinished_folder
from pipelines.reporting.training_phases import Phases
from pipelines.run.folder import Run
from tokenizer import Tokenizer

if TYPE_CHECKING:
    from corpora import Corpus
    from pipelines.exchange.carried_run import Carried, Measured

SAMPLE_BYTES = 200_000
"""Text that a model is measured on, from the start of the training and of the validation split"""
LONGEST_SAMPLED = 10_000  # bytes of a document
LEAST_DOCUMENTS = 10
Batches = Iterator[pa.RecordBatch]


class VocabularyChange:
    """A change of a tokenizer, or of a run and its tokenizer, written to the folder `out`."""

    def __init__(self, source: Path, out: Path, pattern: str | None, overwrite: bool, steps: int | None = None) -> None:
        """`steps`: optimizer steps that train the changed model.

        Raises ValueError if the source is neither, if `out` exists already, and for `steps` without a decoder.
        """
        self.out, self.steps = out, steps
        self.run = Run(source) if (source / "config.toml").is_file() else None
        if self.run is not None and pattern is not None:
            raise ValueError("`pattern` is for tokenizer files: leave it out for a run")
        if out.exists() and (self.run is not None or (not overwrite and (not out.is_dir() or any(out.iterdir())))):
            remedy = "" if self.run else ", or replace a tokenizer with `overwrite`"
            raise ValueError(f"{out} exists already: choose another `out`{remedy}")
        if self.run is not None:
            self.run.require_language_model()
        self._check_steps(source)
        self.old = load_tokenizer(source, pattern) if self.run is None else self.run.tokenizer()

    def apply(self, change: Callable[[Batches, Phases], Tokenizer], corpus: "Corpus", as_json: bool) -> Tokenizer:
        """Make the new vocabulary from the training split, save it, and print what changed.

        With a run, save the run with the new vocabulary. `change` reads the training split and reports its progress.
        """
        if as_json:
            say_on_stderr()
        training, held_out = Sample(), Sample()
        size = corpus.text_bytes_estimate
        with nullcontext() if as_json else Bar("counting", size, "B") as bar:
            phases = Phases(bar, size)
            phases.begin("count")
            new = change(training.seen(routed(corpus, held_out)), phases)
            phases.end()
        doing("measuring the vocabulary")
        summary: dict[str, Any] = {
            "out": str(self.out),
            "entries": [self.old.vocab_size, new.vocab_size],
            "bytes_per_token": [held_out.bytes_per_token(tok) for tok in (self.old, new)],
        }
        if self.run is None:
            new.save(self.out)
        else:
            summary |= self._carry(self.run, new, training.documents, held_out.documents, corpus)
        _show(summary, held_out.size, as_json)
        return new

    def _check_steps(self, source: Path) -> None:
        if self.steps is None:
            return
        if self.steps < 1:
            raise ValueError(f"`steps` is {self.steps}, but must be at least 1")
        if self.run is None:
            raise ValueError(f"`steps` trains the model of a run, but {source} is a tokenizer: leave it out")
        if self.run.recipe.model.architecture != "decoder":
            raise ValueError(
                f"`steps` trains decoders only: leave it out, and train {self.out} with pretrain and `init_from`"
            )

    def _carry(
        self, run: Run, new: Tokenizer, training: list[bytes], held_out: list[bytes], corpus: "Corpus"
    ) -> dict[str, Any]:
        from pipelines.exchange.carried_run import Carried  # imports PyTorch

        carried = Carried(run, new)
        facts: dict[str, Any] = {
            "new_rows": len(carried.pieces),
            "dropped_rows": self.old.vocab_size - len(carried.new_id),
        }
        rows: list[tuple[str, Measured]] = []
        if run.recipe.model.architecture == "decoder" and len(training) and len(held_out):
            if carried.pieces:
                doing("choosing the rows of new tokens")
                measured = carried.choose(training)
                facts["training_bits_per_byte"] = {name: one.bits_per_byte for name, one in measured.items()}
            doing("measuring the model")
            rows = _compared(carried, held_out)
        facts["method"] = carried.method if carried.pieces else None
        if self.steps is None:
            carried.write(self.out)
        else:
            rows += self._train(carried, held_out, corpus, self.steps)
        if rows:
            facts["bits_per_byte"] = [_row(name, one, rows[0][1]) for name, one in rows]
        return facts

    def _train(
        self, carried: "Carried", held_out: list[bytes], corpus: "Corpus", steps: int
    ) -> list[tuple[str, "Measured"]]:
        """Train both models for `steps` steps, write the new one, and return their measurements."""
        from pipelines.exchange.further_training import weights_after

        with unfinished_folder(self.out.with_name(self.out.name + ".training")) as work:
            carried.write(work / self.out.name)
            start = Run(work / self.out.name)
            old = weights_after(carried.run, carried.old, corpus, steps, work / "old")
            new = weights_after(start, carried.tok, corpus, steps, work / "new")
        carried.write(self.out, new, steps)
        doing("measuring the trained models")
        after = f"after {count_text(steps, 'step')}"
        return [
            (f"old model {after}", carried.measure_before(held_out, old)),
            (f"new model {after}", carried.measure(carried.model(weights=new), held_out)),
        ]


class Sample:
    """The first documents of a split, up to `SAMPLE_BYTES`."""

    def __init__(self) -> None:
        self.documents: list[bytes] = []
        self.size = 0

    def seen(self, batches: Iterable[pa.RecordBatch]) -> Batches:
        """Yield batches, and keep the first documents."""
        for batch in batches:
            self.add(batch)
            yield batch

    def add(self, batch: pa.RecordBatch) -> None:
        """Keep documents of a batch while there is room, each up to `LONGEST_SAMPLED` bytes."""
        for text in batch.column(0):
            if self.size >= SAMPLE_BYTES:
                return
            data = text.as_buffer().to_pybytes()[:LONGEST_SAMPLED]
            self.documents.append(data)
            self.size += len(data)

    def bytes_per_token(self, tok: Tokenizer) -> float | None:
        """Return the bytes per token of the documents; None without documents."""
        tokens = sum(len(ids) for ids in tok.encode_batch(self.documents, disallowed_special=()))
        return self.size / tokens if tokens else None


def routed(corpus: "Corpus", held_out: Sample) -> Batches:
    """Yield the training split, and keep documents of the validation split."""
    for split, batch in corpus.routed_batches():
        if split == "train":
            yield batch
        elif split == "validation":
            held_out.add(batch)


def _compared(carried: "Carried", held_out: list[bytes]) -> list[tuple[str, "Measured"]]:
    """Return measurements of the old model, and of the new model with old and with new tokens."""
    model = carried.model()
    rows = [("old model", carried.measure_before(held_out))]
    if carried.pieces and carried.keeps_old_tokens:
        rows.append(("new model, old tokens", carried.measure(model, held_out, carried.with_old_tokens)))
    return [*rows, ("new model, new tokens", carried.measure(model, held_out))]


def _row(name: str, measured: "Measured", before: "Measured") -> dict[str, Any]:
    difference, interval = measured.difference(before)
    found = {"what": name, "bits_per_byte": measured.bits_per_byte, "tokens": measured.tokens}
    if measured is before:
        return found
    return found | {"difference": difference, "interval": interval if len(before.nats) >= LEAST_DOCUMENTS else None}


def _show(summary: dict[str, Any], size: int, as_json: bool) -> None:
    if as_json:
        write(json.dumps(summary, indent=2))
        return
    old, new = summary["entries"]
    answer(f"{summary['out']}: {new:,} entries ({old:,} before)")
    before, after = summary["bytes_per_token"]
    if before and after:
        answer(f"{after:.3f} bytes per token on {size:,} bytes of held-out text ({before:.3f} before)")
    if summary.get("method"):
        answer(f"{summary['new_rows']:,} new rows by the method {summary['method']}")
    if rows := summary.get("bits_per_byte"):
        table(
            ("held-out text", "bits per byte", "change"),
            ([row["what"], f"{row['bits_per_byte']:.4f}", _change(row)] for row in rows),
        )
    elif "new_rows" in summary:
        say("the model was not measured: that needs a decoder, and text in both splits")


def _change(row: dict[str, Any]) -> str:
    if "difference" not in row:
        return ""
    interval = "" if row["interval"] is None else f" ± {row['interval']:.4f}"
    return f"{row['difference']:+.4f}{interval}"
