"""Write the files of the present formats: run `python -m tests.compatibility.make_files`.

The command writes tests/compatibility/VERSION/: the text, pretoken counts, a BPE and a Unigram tokenizer, a dataset, a
decoder, an encoder, an encoder-decoder and a run of classes. The decoder averages its weights. Its last checkpoint is
removed, as if a kill had prevented it. expected.json holds the losses and the ids of a text.

Before the first release, remove the folder and run the command again when a format changes on purpose. Afterwards, run
it before each release; the files of a released version stay as they are.
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

UNIGRAM_TEXT = "The night heron  forgets about our old kitchen, zebra."


def documents() -> list[str]:
    """Return all combinations of the sentence parts."""
    return [f"{subject} {verb} {place}." for subject, verb, place in product(SUBJECTS, VERBS, PLACES)]


def recipe(kind: str):
    """Return a recipe for a tiny model: one layer, 16 batches, a checkpoint half-way. An encoder-decoder is like T5."""
    from lm.config import ModelConfig
    from pipelines.recipes.config import TrainConfig
    from pipelines.recipes.recipe import Recipe

    shape = {"architecture": kind, "context_length": 18 if kind == "encoder" else 16, "tied_head": True}
    if kind == "encoder-decoder":
        shape |= {"positions": "relative", "norm": "rmsnorm", "activation": "geglu_tanh", "bias": False}
        shape |= {"tied_head": False, "scaled_attention": False, "mlp_width": 16}
    model = ModelConfig(layers=1, width=8, heads=2, **shape)
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
    objectives = {"decoder": "next-token", "encoder": "masked-token", "encoder-decoder": "span-corruption"}
    return Recipe(objective=objectives[kind], model=model, train=train)


def make(folder: Path) -> None:
    """Write all files into the new folder `folder`."""
    from pipelines.verbs.build_dataset import build_dataset
    from pipelines.verbs.finetune import finetune
    from pipelines.verbs.pretrain import pretrain
    from pipelines.verbs.train_tokenizer import train_tokenizer

    folder.mkdir()
    os.chdir(folder)
    rows = [{"text": text, "label": text.split()[0]} for text in documents()]
    Path("text.jsonl").write_text("".join(json.dumps(row) + "\n" for row in rows), encoding="utf-8")
    train_tokenizer(["text.jsonl"], vocab_size=280, out=Path("tokenizer"), save_counts=Path("counts.parquet"))
    build_dataset(["text.jsonl"], tokenizer=Path("tokenizer"), context_length=16, out=Path("dataset"))
    for kind in ("decoder", "encoder"):
        pretrain(recipe(kind), data=Path("dataset"), out=Path(kind))
    train = {"epochs": 1, "device": "cpu", "dtype": "float32", "dropout": 0.0}
    finetune(Path("encoder"), data=Path("text.jsonl"), out=Path("classes"), train=train, compare_scratch=False)
    found = losses() | {"encoder-decoder": make_encoder_decoder(), "Unigram ids": make_unigram()}
    Path("expected.json").write_text(json.dumps(found, indent=2) + "\n", encoding="utf-8")
    shutil.rmtree("encoder/checkpoints/step-0000008")


def make_encoder_decoder() -> float:
    """Train an encoder-decoder, and return its validation loss in nats per token. Its dataset is not kept."""
    from pipelines.verbs.build_dataset import build_dataset
    from pipelines.verbs.evaluate import evaluate
    from pipelines.verbs.pretrain import pretrain
    from pipelines.verbs.train_tokenizer import train_tokenizer

    train_tokenizer(["text.jsonl"], vocab_size=280, sentinels=10, out=Path("with-sentinels"))
    build_dataset(["text.jsonl"], tokenizer=Path("with-sentinels"), context_length=16, out=Path("for-spans"))
    pretrain(recipe("encoder-decoder"), data=Path("for-spans"), out=Path("encoder-decoder"))
    found = evaluate(Path("encoder-decoder")).validation.cross_entropy
    for folder in ("with-sentinels", "for-spans", "encoder-decoder/checkpoints/step-0000008"):
        shutil.rmtree(folder)
    return found


def make_unigram() -> list[int]:
    """Train a Unigram tokenizer, and return the ids of `UNIGRAM_TEXT`."""
    from pipelines.verbs.train_tokenizer import train_tokenizer
    from tokenizer import Tokenizer

    train_tokenizer(["text.jsonl"], vocab_size=80, kind="unigram", out=Path("unigram"))
    return Tokenizer.load("unigram").encode(UNIGRAM_TEXT)


def losses() -> dict[str, float]:
    """Return the runs' validation losses in nats per token, and leave the decoder as if killed after step 8."""
    from pipelines.verbs.evaluate import evaluate

    def loss(run: str) -> float:
        return evaluate(Path(run)).validation.cross_entropy

    found = {"decoder at its end": loss("decoder"), "encoder": loss("encoder")}
    shutil.rmtree("decoder/checkpoints/step-0000016")
    return found | {"decoder": loss("decoder")}


def main() -> None:
    out = HERE / ".".join(version("bytelm").split(".")[:2])
    assert not out.exists(), f"{out} exists: remove it if a format changed on purpose before the first release"
    with tempfile.TemporaryDirectory(prefix="bytelm-") as scratch:
        made = Path(scratch).resolve() / out.name
        make(made)
        os.chdir(HERE)
        shutil.copytree(made, out)


if __name__ == "__main__":
    main()
