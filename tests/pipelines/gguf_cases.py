"""Runs with random weights in the shapes that llama.cpp has, for tests of GGUF files."""

import random
import unicodedata

import torch

from lm.config import ModelConfig
from lm.model import LanguageModel
from pipelines.exchange.imported_run import write_imported_run
from pipelines.recipes.recipe import Recipe
from pipelines.run.folder import Run
from pipelines.run.loaded_run import load_trained

SMALL = {"context_length": 64, "layers": 2, "width": 64, "heads": 4, "mlp_width": 96}
LLAMA = {"norm": "rmsnorm", "activation": "swiglu", "bias": False, "kv_heads": 2}
LEARNED = {"positions": "learned", "activation": "gelu_tanh"}
LINEAR = {"rotary_scaling": "linear", "rotary_factor": 2.0, "rotary_base": 5000.0}
DECODERS = {
    "gptneox": {"bias": False},
    "gptneox, parallel": {"tied_head": False, "residual": "parallel", "rotary_width": 8, "activation": "gelu_tanh"},
    "gptneox, scaled": LINEAR,
    "gpt2": LEARNED,
    "gpt2, no bias": LEARNED | {"bias": False, "tied_head": False, "activation": "gelu"},
    "llama": LLAMA,
    "llama, bias and wide heads": LLAMA | LINEAR | {"bias": True, "tied_head": False, "head_width": 32},
    "qwen3": LLAMA | {"qk_norm": True},
    "qwen3, wide heads": LLAMA | LINEAR | {"qk_norm": True, "tied_head": False, "head_width": 32, "kv_heads": 1},
}
ENCODER = {
    "architecture": "encoder",
    "positions": "learned",
    "norm_position": "post",
    "embedding_norm": True,
}
ALPHABETS = ("abcXYZ", "'sStTlLreRE' ", "0123456789²½", " \t\n\r\xa0\u2003\u3000", "éÀßΑωЖж漢字🙂́̈ʰ", "!?.,-_/\\()<>|")


def random_run(out, tok, facts=None, rows=None, **fields):
    """Make a run with random weights and a tokenizer, of which the model has more `rows` by default, and return it."""
    config = ModelConfig(**SMALL | {"vocab_size": rows or tok.vocab_size + 8} | fields)
    torch.manual_seed(0)
    weights = LanguageModel(config, seed=0).state_dict()
    weights = {name: weight + 0.1 * torch.randn_like(weight) for name, weight in weights.items()}
    objective = "masked-token" if config.architecture == "encoder" else "next-token"
    out.mkdir(parents=True)
    write_imported_run(out, Recipe(objective=objective, model=config), weights, tok, facts or {})
    return out


def model_of(run):
    return load_trained(Run(run), device="cpu").model


def nasty_strings(count, seed, any_script=True):
    """Return random strings of assigned characters, many of them at the edges of split patterns."""
    draw = random.Random(seed)

    def character():
        if draw.random() < 0.9 or not any_script:
            return draw.choice(draw.choice(ALPHABETS))
        return chr(draw.choice([draw.randrange(0xA0, 0x2FFF), draw.randrange(0x10000, 0x1F000)]))

    found = []
    while len(found) < count:
        text = "".join(character() for _ in range(draw.randrange(24)))
        # llama.cpp has older Unicode tables, and reads U+0085 differently.
        if all(unicodedata.category(c) not in ("Cn", "Cc") or c in "\t\n\r" for c in text):
            found.append(text)
    return found
