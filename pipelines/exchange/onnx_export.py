"""A run's model as an ONNX file, compared with the model in onnxruntime."""

import logging
import warnings
from dataclasses import replace
from pathlib import Path

import onnxruntime
import torch
from torch import Tensor, nn

from lm.config import ModelConfig
from lm.model import LanguageModel
from pipelines.cli.waiting import doing
from pipelines.exchange.model_card import model_card
from pipelines.exchange.possible_exports import check_onnx
from pipelines.files import unfinished_folder
from pipelines.run.folder import Run
from pipelines.run.loaded_run import load_trained
from tokenizer.formats.whole_files import publish

LOADING = """import onnxruntime

session = onnxruntime.InferenceSession("{out}")
inputs = {{{inputs}}}  # int64, (batch, length)
(logits,) = session.run(["logits"], inputs)"""
TOLERANCE = 1e-4
SHAPES = ((1, 1), (3, 5))
"""Batches and lengths that are compared, besides one sequence of the full context"""


def write_onnx(run: Run, checkpoint: str, out: Path) -> float:
    """Write the model of a run to `out` with a model card, and return its largest relative error.

    Raises ValueError, and writes nothing, if the error is above TOLERANCE.
    """
    check_onnx(run.recipe.model)
    # Not every runtime has counterparts of fused attention kernels.
    model = LanguageModel(replace(run.recipe.model, attention="reference"), seed=None)
    model.load_state_dict(load_trained(run, device="cpu", checkpoint=checkpoint).model.state_dict())
    model.eval()
    with unfinished_folder(out) as folder:
        written = folder / out.name
        doing("exporting the model")
        _write(model, written)
        parameters = sum(p.numel() for p in model.parameters())
        inputs = ", ".join(f'"{name}": {name}' for name in _random_inputs(model.config, 1, 1))
        loading = LOADING.format(out=out.name, inputs=inputs)
        card = model_card(run, run.tokenizer(), parameters, "onnx", loading, checkpoint=checkpoint)
        (folder / f"{out.name}.md").write_text(card, encoding="utf-8")
        doing("comparing the file with the model")
        error = _largest_error(model, written)
        if not error <= TOLERANCE:
            raise ValueError(
                f"{out} was not written: its logits in onnxruntime differ by {error:.2g} of the largest from the "
                "model's: try another version of torch or onnxscript"
            )
        # Reversed, a separate file of weights moves before the file that names it.
        for path in sorted(folder.iterdir(), reverse=True):
            publish(path, out.parent / path.name)
    return error


class _NamedInputs(nn.Module):
    """The model as a function from the inputs of the ONNX file to logits."""

    def __init__(self, model: LanguageModel) -> None:
        super().__init__()
        self.model = model

    def forward(
        self,
        input_ids: Tensor,
        attention_mask: Tensor | None = None,
        token_type_ids: Tensor | None = None,
        decoder_input_ids: Tensor | None = None,
    ) -> Tensor:
        present = None if attention_mask is None else attention_mask.bool()
        if decoder_input_ids is None:
            hidden = self.model(input_ids, present=present, types=token_type_ids)
        else:
            hidden = self.model(decoder_input_ids, input_ids, source_present=present)
        return self.model.logits(hidden)


def _write(model: LanguageModel, path: Path) -> None:
    # With shorter inputs, windows would mask nothing, and the exporter would leave the masks out.
    inputs = _random_inputs(model.config, 2, model.config.context_length)
    axes = {name: {0: "batch", 1: "target_length" if name == "decoder_input_ids" else "length"} for name in inputs}
    logging.getLogger("torch.onnx").setLevel(logging.ERROR)
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")  # of deprecations within the exporter
        program = torch.onnx.export(
            _NamedInputs(model).eval(),
            kwargs=inputs,
            input_names=list(inputs),
            output_names=["logits"],
            dynamic_shapes=axes,
            dynamo=True,
            verbose=False,
        )
        assert program is not None  # with dynamo
        program.save(path)


def _random_inputs(config: ModelConfig, batch: int, length: int) -> dict[str, Tensor]:
    """Return random inputs of the model; the last row ends in padding if the model takes a mask."""
    generator = torch.Generator().manual_seed(batch)
    inputs = {"input_ids": torch.randint(config.vocab_size, (batch, length), generator=generator)}
    if config.architecture != "decoder":
        inputs["attention_mask"] = torch.ones(batch, length, dtype=torch.int64)
        inputs["attention_mask"][-1, length // 2 + 1 :] = 0
    if config.architecture == "encoder" and config.token_types:
        inputs["token_type_ids"] = torch.randint(config.token_types, (batch, length), generator=generator)
    if config.architecture == "encoder-decoder":
        target = (batch, max(1, length - 2))
        inputs["decoder_input_ids"] = torch.randint(config.vocab_size, target, generator=generator)
    return inputs


def _largest_error(model: LanguageModel, path: Path) -> float:
    """Return the largest difference between logits of the file in onnxruntime and of the model, over several shapes.

    It is relative to the largest logit of each shape, or absolute if that is below 1.
    """
    session = onnxruntime.InferenceSession(path, providers=["CPUExecutionProvider"])
    named, largest = _NamedInputs(model).eval(), 0.0
    context = model.config.context_length
    for batch, length in (*SHAPES, (1, context)):
        inputs = _random_inputs(model.config, batch, min(length, context))
        with torch.inference_mode():
            expected = named(**inputs)
        (logits,) = session.run(["logits"], {name: value.numpy() for name, value in inputs.items()})
        error = (torch.from_numpy(logits) - expected).abs().max() / expected.abs().max().clamp(min=1)
        largest = max(largest, float(error))
    return largest
