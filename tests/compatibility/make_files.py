"""Write the files that later versions must open: run `python -m tests.compatibility.make_files` before each release.

The command uses the current code to write tests/compatibility/VERSION/: the text, pretoken counts, a tokenizer, a
dataset, a decoder, an encoder and a classifier. The decoder averages its weights. Its last checkpoint is removed, as if
a kill had prevented it. expected.json holds the losses. The files of an old version are never regenerated.
"""

import json
import os
import shutil
import tempfile
from importlib.metadata import version
from itertools import product
from pathlib import Path

HERE = Path(__file__).parent
SUBJECTS = ["A small lamp", "The grey heron", "My neighbour", "An old clock", "The night train"]
VERBS = ["waits near", "forgets about", "circles", "never leaves", "hums beside"]
PLACES = ["the river", "a locked gate", "the kitchen window", "our bridge", "the market square"]


def documents() -> list[str]:
    """Return all combinations of the sentence parts."""
    return [f"{subject} {verb} {place}." for subject, verb, place in product(SUBJECTS, VERBS, PLACES)]


def recipe(kind: str):
    """Return a recipe for a tiny decoder or encoder: one layer, 16 batches, a checkpoint half-way."""
    from lm.config import ModelConfig
    from pipelines.run.recipe import Recipe
    from pipelines.training.config import TrainConfig

    positions = {"decoder": 16, "encoder": 18}[kind]
    model = ModelConfig(architecture=kind, context_length=positions, layers=1, width=8, heads=2, tied_head=True)
    train = TrainConfig(
        tokens=2048,
        batch_tokens=128,
        lr=1e-2,
        warmup_tokens=256,
        average=0.5 if kind == "decoder" else 0.0,
        device="cpu",
        dtype="float32",
        validate_every_tokens=1024,
        checkpoint_every_tokens=1024,
        log_every_steps=4,
    )
    return Recipe(objective={"decoder": "next-token", "encoder": "masked-token"}[kind], model=model, train=train)


def make(folder: Path) -> None:
    """Write all files into the new folder `folder`."""
    from pipelines.build_dataset import build_dataset
    from pipelines.finetune import finetune
    from pipelines.pretrain import pretrain
    from pipelines.train_tokenizer import train_tokenizer
    from pipelines.training.config import FinetuneConfig

    folder.mkdir()
    os.chdir(folder)
    rows = [{"text": text, "label": text.split()[0]} for text in documents()]
    Path("text.jsonl").write_text("".join(json.dumps(row) + "\n" for row in rows), encoding="utf-8")
    train_tokenizer(["text.jsonl"], vocab_size=280, out=Path("tokenizer"), save_counts=Path("counts.parquet"))
    build_dataset(["text.jsonl"], tokenizer=Path("tokenizer"), context_length=16, out=Path("dataset"))
    for kind in ("decoder", "encoder"):
        assert pretrain(recipe(kind), data=Path("dataset"), out=Path(kind)) == 0
    settings = FinetuneConfig(epochs=1, device="cpu", dtype="float32", dropout=0.0)
    finetune(Path("encoder"), data=Path("text.jsonl"), out=Path("classifier"), settings=settings, compare_scratch=False)
    Path("expected.json").write_text(json.dumps(losses(), indent=2) + "\n", encoding="utf-8")
    shutil.rmtree("encoder/checkpoints/step-0000008")


def losses() -> dict[str, float]:
    """Return the runs' validation losses in nats per token, and leave the decoder as if killed after step 8."""
    from pipelines.evaluate import evaluate

    def loss(run: str) -> float:
        return evaluate(Path(run))["splits"]["validation"]["cross_entropy"]

    found = {"decoder at its end": loss("decoder"), "encoder": loss("encoder")}
    shutil.rmtree("decoder/checkpoints/step-0000016")
    return found | {"decoder": loss("decoder")}


def main() -> None:
    out = HERE / ".".join(version("bytelm").split(".")[:2])
    assert not out.exists(), f"{out} exists: the files of a version are never regenerated"
    with tempfile.TemporaryDirectory(prefix="bytelm-") as scratch:
        made = Path(scratch).resolve() / out.name
        make(made)
        os.chdir(HERE)
        shutil.copytree(made, out)


if __name__ == "__main__":
    main()
