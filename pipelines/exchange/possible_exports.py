"""The formats that can express a model, and the changes that the other formats would need."""

from collections.abc import Callable, Iterator

from lm.config import ModelConfig
from lm.exchange import format_of
from lm.exchange.conversion import NotExpressedError
from lm.exchange.gguf import gguf_format
from lm.mixers.attention import require_attention
from tokenizer import Tokenizer
from tokenizer.formats.gguf_fields import gguf_tokenizer


def possible_exports(config: ModelConfig, tok: Tokenizer, model_type: str | None = None) -> Iterator[str]:
    """Yield a sentence about each verb that exports a language model.

    It names the class of the export, or the changes that the nearest format needs. `model_type`: see `format_of`.
    """

    def hf() -> str:
        return f"as {format_of(config, model_type).auto_class}"

    def gguf() -> str:
        chosen = gguf_format(config)
        gguf_tokenizer(tok.vocabulary, config.vocab_size)
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
