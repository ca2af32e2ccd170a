"""Which ids the texts of a run may hold."""

import torch
from torch import Tensor

from lm.model import LanguageModel
from tokenizer import Tokenizer


def known_ids(tok: Tokenizer, model: LanguageModel) -> Tensor | None:
    """bool (V,) on the model's device: True for the ids that stand for something; None where all of them do.

    The vocabulary of an imported model may be padded beyond its tokenizer, and a tokenizer may leave ids unused.
    """
    known = torch.zeros(model.config.vocab_size, dtype=torch.bool)
    known[: tok.vocab_size] = torch.tensor(tok.token_byte_lengths > 0)
    known[list(tok.special_tokens.values())] = True
    return None if known.all() else known.to(model.embedding.weight.device)
