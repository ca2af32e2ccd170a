"""`bytelm export-onnx`: a trained model as an ONNX file, for runtimes that know no Python."""

import logging
import tempfile
import warnings
from importlib.util import find_spec
from pathlib import Path
from typing import Any

from pipelines.cli.arguments import RunFolder
from pipelines.cli.parsing import parse
from pipelines.cli.verbs import verb
from pipelines.cli.waiting import doing
from pipelines.files import write_whole

LOADING = """import onnxruntime

session = onnxruntime.InferenceSession("{out}")
(logits,) = session.run(["logits"], {{"input_ids": ids}})  # int64, (batch, length)"""
NEEDED = ("onnx", "onnxscript", "onnxruntime")
TOLERANCE = 1e-4
CHECKED = ((1, 1), (3, 5))  # batch and length; and one sequence as long as the context


@verb
def export_onnx(run: RunFolder, *, out: Path, checkpoint: str = "newest", overwrite: bool = False) -> Path:
    """Write the model of a run as an ONNX file, and compare it with the model in onnxruntime; return its path.

    Inputs, int64, of any batch and length up to the context: `input_ids`; of an encoder also `attention_mask`, 0 at
    padding, and `token_type_ids` where it has them; of an encoder-decoder the source's `input_ids` and `attention_mask`
    and the target's `decoder_input_ids`. Output: `logits` (batch, length, vocabulary), float32. A model above 2 GB has
    its weights in a second file beside it, named FILE.onnx.data; FILE.onnx.md is a model card.

    Raises ValueError where a package is missing, and where a logit differs by more than 1e-4 of the largest.

    Args:
        out: File to write, such as model.onnx.
        checkpoint: Which one of the run: newest, best (the lowest validation loss), or the number of a step.
        overwrite: Whether to replace an existing file.
    """
    missing = [name for name in NEEDED if find_spec(name) is None]
    if missing:
        raise ValueError(f"export-onnx needs the package {missing[0]}: pip install 'bytelm[onnx]'")
    there = [
        path for path in (out, out.with_name(f"{out.name}.data"), out.with_name(f"{out.name}.md")) if path.exists()
    ]
    if there and not (overwrite and out.is_file()):
        raise ValueError(f"{there[0]} exists already: choose another --out (or replace an export with --overwrite)")
    from dataclasses import replace

    from lm.model import LanguageModel
    from pipelines.cli.display import say
    from pipelines.run.folder import Run
    from pipelines.run.loading import load_trained
    from pipelines.run.model_card import model_card

    this = Run(run)
    _check(this.recipe.model)
    # The formulas as they are: fused kernels have no counterpart that every runtime knows.
    model = LanguageModel(replace(this.recipe.model, attention="reference"))
    model.load_state_dict(load_trained(this, device="cpu", checkpoint=checkpoint).model.state_dict())
    model.eval()
    out.parent.mkdir(parents=True, exist_ok=True)
    with tempfile.TemporaryDirectory(prefix=f".{out.name}.", dir=out.parent) as folder:
        written = Path(folder) / out.name
        doing("exporting the model")
        _write(model, written)
        parameters = sum(p.numel() for p in model.parameters())
        card = model_card(this, this.tokenizer(), parameters, "onnx", LOADING.format(out=out.name))
        write_whole(Path(folder) / f"{out.name}.md", card)
        doing("comparing the file with the model")
        difference = _largest_difference(model, written)
        if not difference <= TOLERANCE:
            raise ValueError(
                f"{out} was not written: its logits in onnxruntime differ by {difference:.2g} of the largest from the "
                "model's, which another version of torch or onnxscript may change"
            )
        # The weights, if they are apart, before the file that names them.
        for path in sorted(Path(folder).iterdir(), reverse=True):
            path.replace(out.parent / path.name)
    say(f"{out}: its logits in onnxruntime differ by at most {difference:.2g} of the largest from the model's")
    return out


def _check(config: Any) -> None:
    """ValueError for a model whose trace would hold for one length alone."""
    if config.context_length < 4 or config.window == config.context_length - 1:
        raise ValueError(
            f"model.context_length is {config.context_length} and model.window {config.window}: export-onnx needs a "
            "context of at least 4, and a window that is not one less"
        )


def _write(model: Any, path: Path) -> None:
    import torch

    # A mask that hides nothing would be left out of the trace: the whole context shows all that it ever hides.
    inputs = _inputs(model.config, 2, model.config.context_length)
    axes = {name: {0: "batch", 1: "target_length" if name == "decoder_input_ids" else "length"} for name in inputs}
    logging.getLogger("torch.onnx").setLevel(logging.ERROR)
    with warnings.catch_warnings():
        # The exporter warns of itself: of what of torch it uses that will change.
        warnings.simplefilter("ignore")
        program = torch.onnx.export(
            _reader(model),
            kwargs=inputs,
            input_names=list(inputs),
            output_names=["logits"],
            dynamic_shapes=axes,
            dynamo=True,
            verbose=False,
        )
        program.save(path)


def _reader(model: Any) -> Any:
    """The model as a function of the inputs' names, to logits."""
    import torch

    class Reader(torch.nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.model = model

        def forward(
            self,
            input_ids: torch.Tensor,
            attention_mask: torch.Tensor | None = None,
            token_type_ids: torch.Tensor | None = None,
            decoder_input_ids: torch.Tensor | None = None,
        ) -> torch.Tensor:
            present = None if attention_mask is None else attention_mask.bool()
            if decoder_input_ids is None:
                hidden = self.model(input_ids, present=present, types=token_type_ids)
            else:
                hidden = self.model(decoder_input_ids, input_ids, source_present=present)
            return self.model.logits(hidden)

    return Reader().eval()


def _inputs(config: Any, batch: int, length: int) -> dict[str, Any]:
    """Random inputs of the model; the last row ends in padding, where it may."""
    import torch

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


def _largest_difference(model: Any, path: Path) -> float:
    """Between logits of the model and of the file in onnxruntime, over a few shapes; as a share of the largest logit,
    or absolute where that is below 1."""
    import onnxruntime
    import torch

    session = onnxruntime.InferenceSession(path, providers=["CPUExecutionProvider"])
    reader, largest = _reader(model), 0.0
    context = model.config.context_length
    for batch, length in (*CHECKED, (1, context)):
        inputs = _inputs(model.config, batch, min(length, context))
        with torch.inference_mode():
            expected = reader(**inputs)
        (got,) = session.run(["logits"], {name: value.numpy() for name, value in inputs.items()})
        difference = (torch.from_numpy(got) - expected).abs().max() / expected.abs().max().clamp(min=1)
        largest = max(largest, float(difference))
    return largest


def main(arguments: list[str]) -> None:
    parse(export_onnx, arguments, "export-onnx")
