"""A trained run in Python: its model, its tokenizer, and the functions of `bytelm` as methods."""

from collections.abc import Sequence
from copy import deepcopy
from dataclasses import dataclass, replace
from functools import cached_property
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any, Literal, get_args, overload

import numpy as np
import torch
from torch import Tensor

from lm.costs import count_parameters
from lm.model import LanguageModel
from lm.task_model import TrainedModel, build_model, reconfigured
from pipelines.cli.arguments import OR_LOADED, Device, Dtype, TextPooling
from pipelines.cli.display import perplexity_text
from pipelines.cli.verbs import checks_arguments
from pipelines.cli.waiting import doing
from pipelines.machine import Machine, choose_machine
from pipelines.recipes.recipe import Recipe
from pipelines.run.adapter import with_adapter
from pipelines.run.checkpoint_reader import check_weights, load_weights
from pipelines.run.folder import Run, refuse_options
from pipelines.run.laboratory import Laboratory
from pipelines.run.retention import readable_state
from pipelines.run.text_features import hidden_states, text_vectors
from pipelines.run.text_ids import TextIds, text_ids
from pipelines.training.batch_objectives import require_special_tokens
from tokenizer import CLS, MASK, SEP, Tokenizer

if TYPE_CHECKING:
    from pipelines.chat.template import ChatTemplate
    from pipelines.evaluation.results import Evaluation
    from pipelines.generation.generated import Generated, Guesses
    from pipelines.scoring.texts import TextScore

Prompts = list[str] | tuple[str, ...]
"""Several prompts; a `Sequence[str]` would include a string."""


class LoadedRun(Laboratory):
    """A trained run, ready to predict. `load_run` and `pretrain` return one.

    A function that takes the folder of a run also takes a loaded run, and computes with its model, checkpoint, device
    and dtype. The model is loaded once, when it is first needed.
    """

    def __init__(self, run: Run, checkpoint: str = "auto", device: str = "auto", dtype: str = "float32") -> None:
        self.run = run
        run.loaded = self
        self.config: Recipe = run.recipe
        """The resolved configuration: `config.model`, `config.train` and so on"""
        self.tokenizer: Tokenizer = run.tokenizer()
        self.around: TextIds = text_ids(run, self.tokenizer)
        """The ids that the model reads around a text"""
        self._options = checkpoint, device, dtype

    @cached_property
    def template(self) -> "ChatTemplate | None":
        """The chat template of a run that can chat; None for any other."""
        text = self.run.chat_template
        if not text:
            return None
        from pipelines.chat.template import ChatTemplate

        return ChatTemplate.of(text, self.tokenizer, self.around)

    @property
    def path(self) -> Path:
        """The folder of the run."""
        return self.run.folder

    @cached_property
    def loaded(self) -> "Loaded":
        """The model of any kind, its machine and its checkpoint."""
        return _load(self.run, *self._options, needs="float64" if self._options[1] == "auto" else "")

    @property
    def trained(self) -> "Trained":
        """The language model, its machine and its checkpoint; ValueError for a run with the head of a task."""
        return self.loaded.as_language_model(self.run)

    @property
    def model(self) -> LanguageModel:
        """The language model, on its device and in evaluation mode."""
        return self.trained.model

    def __fspath__(self) -> str:
        return str(self.path)

    def __repr__(self) -> str:
        """Return the name, the architecture, the parameters, the tokens trained on and the validation loss."""
        model, checkpoint = self.config.model, self.loaded.checkpoint
        state = readable_state(checkpoint)
        lines = [
            f"{self.run.name}: {model.architecture}, {count_parameters(self.loaded.model):,} parameters, "
            f"{model.layers} layers of width {model.width}, context {model.context_length:,}, vocabulary "
            f"{model.vocab_size:,}",
            f"{checkpoint.name}, trained on {state.get('tokens', 0):,} tokens ({self.config.trained_for})",
        ]
        if (loss := state.get("validation_loss")) is not None and self.config.loss_is_of_tokens:
            lines.append(f"validation loss {loss:.4f} nats per token, perplexity {perplexity_text(loss, ',.2f')}")
        return "\n".join(lines)

    @overload
    def generate(self, prompt: str = ..., *, probabilities: Literal[False] = ..., **options: Any) -> str: ...
    @overload
    def generate(self, prompt: Prompts, *, probabilities: Literal[False] = ..., **options: Any) -> list[str]: ...
    @overload
    def generate(self, prompt: str = ..., *, probabilities: Literal[True], **options: Any) -> "Generated": ...
    @overload
    def generate(self, prompt: Prompts, *, probabilities: Literal[True], **options: Any) -> "list[Generated]": ...
    def generate(self, prompt: str | Prompts = (), *, probabilities: bool = False, **options: Any) -> Any:
        """Return the new text of one prompt, or a list with the new text of each of several.

        An encoder-decoder writes the target of each prompt. With `probabilities`, each result is a dict with `prompt`,
        `text` and `steps` instead of the text. `options` are those of `bytelm.generate`. Raises ValueError for an
        encoder, whose masks `fill_masks` fills.
        """
        import bytelm

        if self.config.model.architecture == "encoder":
            raise ValueError(f"{self.path} is an encoder, which fills masks: call fill_masks")
        made = bytelm.generate(self, prompt=prompt, probabilities=probabilities, **options)
        several = not isinstance(prompt, str) and prompt
        return [made] if several and len(prompt) == 1 else made

    def fill_masks(self, text: str, steps: int = 1) -> "list[Guesses]":
        """Return an encoder's guesses for each <|mask|> in a text, or for each mask token of an imported tokenizer.

        Each is a dict with the `position` of the mask in tokens, and the likeliest `tokens` with their `probabilities`,
        likeliest first. With more than one of `steps`, the least certain tokens are predicted again.
        Raises ValueError for another architecture, and for a text without a mask.
        """
        import bytelm

        if (architecture := self.config.model.architecture) != "encoder":
            raise ValueError(f"{self.path} has architecture {architecture!r}, but only an encoder fills masks")
        guesses: list[Guesses] = bytelm.generate(self, prompt=text, steps=steps)  # type: ignore[assignment]  # that of an encoder
        return guesses

    def chat(self, messages: str | Sequence[dict[str, str]], **options: Any) -> str:
        """Return what `bytelm.answer` returns for this run, with its `options`: the answer to messages, or to a text.

        `messages` are such as [{"role": "user", "content": "Hi"}].
        """
        import bytelm

        return bytelm.answer(self, messages, **options)

    def score(self, text: str, **options: Any) -> "TextScore":
        """Return what `bytelm.score_text` returns for this run, with its `options`: the surprisal of each token."""
        import bytelm

        return bytelm.score_text(self, text, **options)

    def evaluate(self, **options: Any) -> "Evaluation":
        """Return what `bytelm.evaluate` returns for this run, with its `options`; evaluation.json keeps it."""
        import bytelm

        evaluation = bytelm.evaluate(self, **options)
        assert not isinstance(evaluation, list)  # one run, one evaluation
        return evaluation

    def predict(self, texts: str | Sequence[str], **options: Any) -> list[dict[str, Any]]:
        """Return what `bytelm.predict` returns for this fine-tuned run, with its `options`: a dict for each example."""
        import bytelm

        given = (texts,) if isinstance(texts, str) else tuple(texts)
        return bytelm.predict(self, text=given, **options) if given or options.get("file") else []  # no standard input

    def metrics(self, split: Literal["train", "validation"] = "train") -> dict[str, np.ndarray]:
        """Return the log of the training as columns, one row for each logged step: `pandas.DataFrame(run.metrics())`.

        `step` and `tokens`, the tokens trained on so far, are int64 (N,). All others are float64 (N,): `loss` in nats
        per token, `lr`, `grad_norm`, `tokens_per_s`, `time_s` in seconds and so on; NaN where a line lacks the number.
        `spikes` counts the loss spikes since the previous line. A run without spikes lacks this column.
        """
        if split not in ("train", "validation"):
            raise ValueError(f"`split` is {split!r}, but must be 'train' or 'validation'")
        rows, counts = [line for line in self.run.metrics() if line["split"] == split], ("step", "tokens")
        rest = dict.fromkeys(name for line in rows for name in line if name not in ("split", *counts))
        if "spikes" in rest:  # the log lists the steps with a spike
            rows = [line | {"spikes": len(line.get("spikes", ()))} for line in rows]
        whole = {name: np.array([line[name] for line in rows], dtype=np.int64) for name in counts}
        return whole | {name: np.array([line.get(name, np.nan) for line in rows], dtype=np.float64) for name in rest}

    def ids(self, text: str) -> list[int]:
        """Return the ids that the model reads for a text.

        A decoder reads the start token that documents had in training (<|endoftext|>), if any, and the text. An encoder
        reads <|cls|>, the text and <|sep|>; a <|mask|> in the text is the mask. An encoder-decoder reads the source and
        its end.
        """
        before, after, masks = self.surrounding
        return [*before, *self.tokenizer.encode(text, allowed_special=masks, disallowed_special=()), *after]

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
        if target is None and self.config.model.architecture == "encoder-decoder":
            raise ValueError("an encoder-decoder needs a target: logits(source, target)")
        return self.model.logits(self.model(*self._read(text, target)))[0].float()

    @overload
    def features(
        self, text: str, target: str | None = ..., *, layer: int = ..., pooling: TextPooling | None = ...
    ) -> Tensor: ...
    @overload
    def features(
        self, text: Prompts, target: None = ..., *, layer: int = ..., pooling: TextPooling = ...
    ) -> np.ndarray: ...
    @torch.inference_mode()
    def features(
        self, text: str | Prompts, target: str | None = None, *, layer: int = -1, pooling: TextPooling | None = None
    ) -> Tensor | np.ndarray:
        """Return the hidden states of a text: float32 (T, width), on the model's device.

        T is the number of tokens that the model reads, `len(run.ids(text))`. `layer` counts as in `hidden_states` of
        transformers: with L layers, `layer` 0 to L - 1 are the hidden states that this layer reads, so 0 is the
        embedding. L is what the head reads: the output of the last layer, after the final norm if there is one.
        Negative numbers count from the end: -1 is L. An encoder-decoder gives the states of its encoder, or with a
        `target` those of its decoder, one for each of `run.target_ids(target)`. A fine-tuned run gives what the head of
        its task reads.

        With `pooling` the result is one vector for the text, (width,): the "mean" of all positions, the "first" or
        "cls", or the "last". A list of texts, which needs it, gives a float32 array (N, width) in main memory. Texts
        longer than the context are then cut at it.

        Raises ValueError for a layer that the model lacks, for a list without `pooling`, and as `logits` does.
        """
        if pooling is None:
            if not isinstance(text, str):
                raise ValueError("a list of texts gives one vector for each: give `pooling`, such as 'mean'")
            return hidden_states(self._body, *self._read(text, target), layer=layer)[0]
        if pooling not in (poolings := get_args(TextPooling)):
            raise ValueError(f"`pooling` is {pooling!r}, but must be one of {', '.join(poolings)}")
        if target is not None:
            raise ValueError("`pooling` is for texts without a target: leave one of them out")
        texts = [text] if isinstance(text, str) else text
        encoded = self.tokenizer.encode_batch(texts, allowed_special=self.surrounding[2], disallowed_special=())
        vectors = self.vectors(self.cut_rows(encoded)[0], layer, pooling)
        device = self._body.embedding.weight.device
        return torch.from_numpy(vectors[0]).to(device) if isinstance(text, str) else vectors

    def vectors(self, rows: Sequence[Sequence[int]], layer: int = -1, pooling: TextPooling = "mean") -> np.ndarray:
        """Return a vector for each row of ids, float32 (N, width), as `features` of texts with `pooling`."""
        return text_vectors(self._body, rows, layer, pooling)

    def cut_rows(self, encoded: Sequence[list[int]]) -> tuple[list[list[int]], int]:
        """Return the rows that the model reads for the ids of texts, cut at the context, and how many were cut.

        Raises ValueError for a text without tokens if the model has no start token.
        """
        before, after, _ = self.surrounding
        room = self.config.model.context_length - len(before) - len(after)
        rows = [[*before, *ids[:room], *after] for ids in encoded]
        if empty := [number for number, row in enumerate(rows) if not row]:
            raise ValueError(f"texts[{empty[0]}] has no tokens, and the model has no start token: leave it out")
        return rows, sum(len(ids) > room for ids in encoded)

    @property
    def _body(self) -> LanguageModel:
        """The model whose hidden states a head reads."""
        model = self.loaded.model
        return model if isinstance(model, LanguageModel) else model.body

    @property
    def surrounding(self) -> tuple[list[int], list[int], set[str]]:
        """The ids before and after a text, and the special tokens that are not text in it."""
        special, architecture = self.around.special, self.config.model.architecture
        if architecture == "encoder":
            require_special_tokens("an encoder", (CLS, SEP), special)
            masks = {spelling for spelling, i in self.tokenizer.special_tokens.items() if i == special.get(MASK)}
            return [special[CLS]], [special[SEP]], masks
        return list(self.around.before), list(self.around.after) if architecture == "encoder-decoder" else [], set()

    def _read(self, text: str, target: str | None) -> tuple[Tensor, Tensor | None]:
        """Return the ids (1, T) that the model reads, and those of the source of an encoder-decoder with a target."""
        architecture, device = self.config.model.architecture, self._body.embedding.weight.device
        if target is not None and architecture != "encoder-decoder":
            raise ValueError(f"only an encoder-decoder takes a target; this model's architecture is {architecture}")
        rows = [self.ids(text)] + ([] if target is None else [self.target_ids(target)])
        if not all(rows):
            raise ValueError("the text has no tokens, and the model has no start token: give a text")
        *source, ids = (torch.tensor([row], dtype=torch.int64, device=device) for row in rows)
        return ids, source[0] if source else None


@checks_arguments
def load_run(
    path: Annotated[str | Path | LoadedRun, OR_LOADED],
    *,
    checkpoint: str | int = "auto",
    device: Device = "auto",
    dtype: Dtype = "float32",
    adapter: str | Path | None = None,
) -> LoadedRun:
    """Return the trained model of a run's folder with its tokenizer and configuration.

    A loaded run is returned unchanged. Raises ValueError for a folder that is not a run, for a run without a whole
    checkpoint, and for a loaded run with another checkpoint, device or dtype.

    Args:
        path: Folder of the run.
        checkpoint: newest, best (the lowest validation loss, or the best score of a task with patience), or the number
            of a step. auto: best with patience, otherwise newest.
        device: auto, cpu, cuda or mps. auto is never mps, because Apple GPUs lack the float64 that scores need.
        dtype: Dtype of activations and matrix products: float32, bfloat16 or auto.
        adapter: Folder of an adapter that peft saved for an export of the run, to fold into the weights.
    """
    if isinstance(path, LoadedRun):
        refuse_options(path.run, checkpoint=str(checkpoint), device=device, dtype=dtype, adapter=adapter)
        return path
    loaded = LoadedRun(Run(path, adapter), str(checkpoint), device, dtype)
    loaded.loaded  # noqa: B018 - loads the model
    return loaded


@dataclass(frozen=True)
class Trained:
    """A language model in evaluation mode, its machine, and the folder of its checkpoint."""

    model: LanguageModel
    machine: Machine
    checkpoint: Path


@dataclass(frozen=True)
class Loaded:
    """A model of any kind in evaluation mode, its machine, and the folder of its checkpoint."""

    model: TrainedModel
    machine: Machine
    checkpoint: Path

    def as_language_model(self, run: Run) -> Trained:
        """Return the same; ValueError if the model of `run` has the head of a task."""
        if not isinstance(self.model, LanguageModel):
            run.require_language_model()
        assert isinstance(self.model, LanguageModel)
        return Trained(self.model, self.machine, self.checkpoint)


def load_trained(
    run: Run, device: str = "auto", dtype: str = "float32", checkpoint: str = "auto", needs: str = ""
) -> Trained:
    """Return the model of a checkpoint, with averaged weights if the run averages them.

    `checkpoint` is as for `find_checkpoint`.
    `needs`: see `choose_machine`. A loaded run gives its own model, or a copy if `device` is another one. Raises
    ValueError if there is no such checkpoint, or if config.toml does not match it.
    """
    run.require_language_model()
    return load_model(run, device, dtype, checkpoint, needs).as_language_model(run)


def load_model(
    run: Run, device: str = "auto", dtype: str = "float32", checkpoint: str = "auto", needs: str = ""
) -> Loaded:
    """Return the model of a checkpoint, also one with the head of a task; see `load_trained`."""
    if run.loaded is None:
        return _load(run, checkpoint, device, dtype, needs)
    trained = run.loaded.loaded
    own = trained.machine.device_name
    machine = choose_machine(own if device == "auto" else device, trained.machine.dtype_name, needs=needs)
    trained = replace(trained, model=reconfigured(trained.model, run.recipe.model))
    if machine.device.type == trained.machine.device.type:
        return trained
    return replace(trained, model=deepcopy(trained.model).to(machine.device), machine=machine)


def _load(run: Run, checkpoint: str, device: str, dtype: str, needs: str = "") -> Loaded:
    doing("loading the model")
    machine = choose_machine(device, dtype, needs=needs)
    folder, weights = load_weights(run.folder, run.settings, checkpoint)
    if run.adapter is not None:
        weights = with_adapter(run, weights, run.adapter)
    model = build_model(run.trained_recipe.model, run.recipe.head, seed=None)
    check_weights(folder, model, weights)
    model.load_state_dict(weights)
    model.compute_dtype = machine.dtype
    model = reconfigured(model, run.recipe.model)
    return Loaded(model.to(machine.device).eval(), machine, folder)
