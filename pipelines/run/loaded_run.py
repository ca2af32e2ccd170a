"""A trained run in a notebook: its model, its tokenizer, and the logits of a text."""

from dataclasses import dataclass
from pathlib import Path

import torch
from torch import Tensor

from lm.model import LanguageModel, build_model
from pipelines.cli.arguments import Device, Dtype
from pipelines.cli.verbs import checks_arguments
from pipelines.cli.waiting import doing
from pipelines.machine import Machine, choose_machine
from pipelines.recipes.recipe import Recipe
from pipelines.run.checkpoint_reader import check_weights, load_weights
from pipelines.run.folder import Run
from pipelines.run.text_ids import TextIds, text_ids
from tokenizer import CLS, MASK, SEP, Tokenizer


@dataclass(frozen=True)
class LoadedRun:
    """A run's trained model, ready to predict. Made by `load_run`."""

    model: LanguageModel
    """On its device and in evaluation mode."""
    tokenizer: Tokenizer
    config: Recipe
    """The resolved configuration: `config.model`, `config.train` and so on."""
    around: TextIds
    """The ids that the model reads around a text."""

    def ids(self, text: str) -> list[int]:
        """Return the ids that the model reads for a text.

        A decoder reads the start token that documents had in training (<|endoftext|>), if any, and the text. An encoder
        reads <|cls|>, the text and <|sep|>; a <|mask|> in the text is the mask. An encoder-decoder reads the source and
        its end.
        """
        tok, special = self.tokenizer, self.around.special
        if self.config.model.architecture != "encoder":
            ids = tok.encode(text, disallowed_special=())
            after = self.around.after if self.config.model.architecture == "encoder-decoder" else ()
            return [*self.around.before, *ids, *after]
        masks = {spelling for spelling, i in tok.special_tokens.items() if i == special[MASK]}
        return [special[CLS], *tok.encode(text, allowed_special=masks, disallowed_special=()), special[SEP]]

    def target_ids(self, target: str) -> list[int]:
        """Return the ids that an encoder-decoder reads for a target: its start token and the text."""
        start = [] if self.around.start is None else [self.around.start]
        return [*start, *self.tokenizer.encode(target, disallowed_special=())]

    @torch.inference_mode()
    def logits(self, text: str, target: str | None = None) -> Tensor:
        """Return the logits of a text: float32 (T, V), on the model's device.

        T is the number of tokens that the model reads, `len(run.ids(text))`. A decoder's row t predicts token t + 1:
        with a start token, row 0 predicts the first token of the text, and the last row the token after the text. An
        encoder's row t predicts the token at position t. An encoder-decoder reads `text` as the source, and its rows
        predict the target as a decoder does, one for each of `run.target_ids(target)`.

        Raises ValueError for a text longer than the context, for an empty text if the model has no start token, and for
        a target that is missing or that the architecture does not take.
        """
        architecture = self.config.model.architecture
        two = architecture == "encoder-decoder"
        if two and target is None:
            raise ValueError("an encoder-decoder needs a target: logits(source, target)")
        if target is not None and not two:
            raise ValueError(
                f"only an encoder-decoder takes a target; the architecture of this model is {architecture}"
            )
        device = self.model.embedding.weight.device
        source = torch.tensor([self.ids(text)], device=device)
        ids = torch.tensor([self.target_ids(target)], device=device) if target is not None else source
        if not ids.shape[1] or not source.shape[1]:
            raise ValueError("the text has no tokens, and the model has no start token: give a text")
        hidden = self.model(ids.long(), source.long() if two else None)
        return self.model.logits(hidden)[0].float()


@checks_arguments
def load_run(
    path: str | Path, *, checkpoint: str | int = "newest", device: Device = "auto", dtype: Dtype = "float32"
) -> LoadedRun:
    """Return the trained model of a run's folder with its tokenizer and configuration.

    Raises ValueError for a folder that is not a run, and for a run without a whole checkpoint.

    Args:
        path: Folder of the run.
        checkpoint: newest, best (the lowest validation loss), or the number of a step.
        device: auto, cpu, cuda or mps.
        dtype: Dtype of activations and matrix products: float32, bfloat16 or auto.
    """
    run = Run(path)
    tok = run.tokenizer()
    trained = load_trained(run, device, dtype, str(checkpoint))
    return LoadedRun(trained.model, tok, run.recipe, text_ids(run, tok))


@dataclass(frozen=True)
class Trained:
    """A model in evaluation mode, its machine, and the folder of its checkpoint."""

    model: LanguageModel
    machine: Machine
    checkpoint: Path


def load_trained(
    run: Run, device: str = "auto", dtype: str = "float32", checkpoint: str = "newest", needs: str = ""
) -> Trained:
    """Return the model of a checkpoint, with averaged weights if the run averages them.

    `checkpoint` is "newest" (the newest whole one), "best" (the lowest validation loss), or the number of a step.
    `needs`: see `choose_machine`. Raises ValueError if there is no such checkpoint, or if config.toml does not
    match it.
    """
    doing("loading the model")
    machine = choose_machine(device, dtype, needs=needs)
    folder, weights = load_weights(run.folder, run.settings, checkpoint)
    model = build_model(run.recipe.model, seed=0)
    check_weights(folder, model, weights)
    model.load_state_dict(weights)
    model.compute_dtype = machine.dtype
    return Trained(model.to(machine.device).eval(), machine, folder)
