"""A run as a GGUF file, which llama.cpp runs."""

import re
from pathlib import Path

from lm.config import ModelConfig
from lm.exchange.gguf import gguf_format, to_gguf
from pipelines.cli.display import quantity
from pipelines.exchange.gguf_file import GgufDtype, write_gguf
from pipelines.exchange.gguf_ids import special_keys
from pipelines.exchange.model_card import model_card
from pipelines.files import unfinished_folder
from pipelines.run.folder import Run
from pipelines.run.loaded_run import load_trained
from tokenizer.formats.gguf_fields import gguf_tokenizer
from tokenizer.formats.whole_files import publish

LOADING = """import xllamacpp  # llama.cpp

params = xllamacpp.CommonParams()
params.model.path = "{out}"
server = xllamacpp.Server(params)
answer = server.handle_completions({{"prompt": "It was", "n_predict": 20}})
print(answer["choices"][0]["text"])"""
EMBEDDING = """import xllamacpp  # llama.cpp

params = xllamacpp.CommonParams()
params.model.path = "{out}"
params.embedding = True
server = xllamacpp.Server(params)
answer = server.handle_embeddings({{"input": "It was a dark and stormy night."}})
print(answer["data"][0]["embedding"])"""
TEMPLATE = "tokenizer.chat_template"
GENERATION = re.compile(r"({%[-+]?\s*)(end)?generation(\s*[-+]?%})")


def write_gguf_file(run: Run, checkpoint: str, out: Path, dtype: GgufDtype, approximate: bool) -> list[str]:
    """Write the model and the tokenizer of a run to `out` with a model card, and return lines about the result.

    Raises ValueError, and writes nothing, for a run that llama.cpp cannot express.
    """
    config, tok = run.recipe.model, run.tokenizer()
    gguf_format(config)  # before the weights are read
    vocabulary = gguf_tokenizer(tok.vocabulary, config.vocab_size, approximate)
    keys = {"general.name": run.name, **vocabulary.keys, **special_keys(config.architecture, run.facts, tok)}
    if run.chat_template:
        keys[TEMPLATE] = _without_generation(run.chat_template)
    model = load_trained(run, device="cpu", checkpoint=checkpoint).model
    architecture, settings, tensors = to_gguf(config, model.state_dict())
    parameters = sum(parameter.numel() for parameter in model.parameters())
    loading = EMBEDDING if config.architecture == "encoder" else LOADING
    with unfinished_folder(out) as folder:
        write_gguf(folder / out.name, architecture, keys | settings, tensors, dtype)
        card = model_card(run, tok, parameters, "gguf", loading.format(out=out.name), checkpoint=checkpoint)
        (folder / f"{out.name}.md").write_text(card, encoding="utf-8")
        for path in sorted(folder.iterdir(), reverse=True):
            publish(path, out.parent / path.name)
    size = out.stat().st_size
    lines = [f"{out}: {quantity(parameters, '')} parameters in {quantity(size, 'B')}, {architecture} of llama.cpp"]
    if config.architecture == "encoder":
        lines.append("left out the masked-token head: llama.cpp computes embeddings of texts")
    return [*lines, *(f"note: {note}" for note in (*vocabulary.notes, *_model_notes(config)))]


def _model_notes(config: ModelConfig) -> list[str]:
    exact = config.activation == "gelu"
    return ["llama.cpp computes GELU by its tanh formula, which changes logits by about 0.002"] if exact else []


def _without_generation(template: str) -> str:
    """Return a chat template without the tags {% generation %}, which llama.cpp does not know."""
    return GENERATION.sub(lambda tag: f"{tag[1]}{'endif' if tag[2] else 'if true'}{tag[3]}", template)
