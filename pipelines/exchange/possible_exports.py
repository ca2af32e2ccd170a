"""The formats that can express a model, and the changes that the other formats would need."""

from collections.abc import Callable, Iterator, Mapping
from typing import Any

from lm.config import ModelConfig
from lm.exchange import format_of
from lm.exchange.conversion import NotExpressedError
from lm.exchange.gguf import gguf_format
from lm.mixers.attention import require_attention
from pipelines.exchange.gguf_ids import special_keys
from pipelines.run.text_ids import ids_of, is_known
from tokenizer import Tokenizer
from tokenizer.formats.gguf_fields import gguf_tokenizer


def possible_exports(config: ModelConfig, tok: Tokenizer, facts: Mapping[str, Any]) -> Iterator[str]:
    """Yield a sentence about each verb that exports a language model.

    It names the class of the export, or the changes that the nearest format needs. `facts`: the table [run] of
    config.toml.
    """

    def hf() -> str:
        chosen = format_of(config, facts.get("model_type"))
        check_padding(config, tok, facts)
        check_tokenizer(tok)
        return f"as {chosen.auto_class}"

    def gguf() -> str:
        chosen = gguf_format(config)
        gguf_tokenizer(tok.vocabulary, config.vocab_size)
        special_keys(config.architecture, facts, tok)
        return f"as {chosen.name} of llama.cpp"

    def onnx() -> str:
        check_onnx(config)
        return "as a file"

    found: dict[str, Callable[[], str]] = {"export-hf": hf, "export-gguf": gguf, "export-onnx": onnx}
    for verb, express in found.items():
        try:
            yield f"{verb} could write the run {express()}"
        except NotExpressedError as error:
            yield f"{verb} could not write the run: {error.nearest}"
        except ValueError as error:
            yield f"{verb} could not write the run: {error}"


def check_padding(config: ModelConfig, tok: Tokenizer, facts: Mapping[str, Any]) -> None:
    """Raise ValueError if RoBERTa would number the positions of texts differently from our model.

    RoBERTa numbers positions from its padding id + 1, and skips this id. `facts`: see `ids_of`.
    """
    skipped, pad = config.position_offset - 1, ids_of(config.architecture, facts, tok).pad
    if config.position_offset and skipped != pad and is_known(tok, skipped):
        raise ValueError(
            f"the padding id of the run is {pad}, but RoBERTa needs {skipped}: use a vocabulary with this padding id, "
            "or train with model.position_offset=0"
        )


def check_tokenizer(tok: Tokenizer) -> None:
    """Raise ValueError for a SentencePiece model, which transformers reads with other ids."""
    if getattr(tok.vocabulary, "source", None) is not None:
        raise ValueError(
            "the tokenizer is a SentencePiece model, which transformers reads with other ids: save the result of "
            "Tokenizer.as_tokenizers(), give it to `bytelm carry-over`, and export the new run"
        )


def check_onnx(config: ModelConfig) -> None:
    """Raise ValueError, which names the field, for a model whose export is not tested or that is tied to one length."""
    require_attention(config, "export-onnx")
    if config.cross != "dot":
        raise ValueError(f"model.cross is {config.cross!r}, but export-onnx needs a model with model.cross='dot'")
    if config.attention_pattern != "none":
        raise ValueError(
            f"model.attention_pattern is {config.attention_pattern!r}, but export-onnx needs dense attention"
        )
    if config.context_length < 4 or config.window == config.context_length - 1:
        raise ValueError(
            f"model.context_length is {config.context_length} and model.window {config.window}: export-onnx needs a "
            "context of at least 4, and a window other than the context minus 1"
        )
