"""A small BERT of transformers with the head of a task, and ours with the same weights."""

import torch
from transformers import BertConfig

from lm.config import ModelConfig
from lm.exchange.bert import BERT, FIXED
from lm.task_model import TaskModel

PEER = BertConfig(
    vocab_size=40,
    hidden_size=16,
    num_hidden_layers=2,
    num_attention_heads=2,
    intermediate_size=64,
    max_position_embeddings=12,
    num_labels=3,
)
OURS = ModelConfig(
    **FIXED,
    vocab_size=40,
    context_length=12,
    layers=2,
    width=16,
    heads=2,
    mlp_width=64,
    norm_eps=1e-12,
    token_types=2,
    dropout=0.0,
)


def bert_pair(peer, head, head_name, **config):
    """Return (theirs, ours) in evaluation mode with the same random weights; `head_name`: their output layer."""
    torch.manual_seed(1)
    theirs = peer(BertConfig(**PEER.to_dict() | config)).eval()
    for parameter in theirs.parameters():
        torch.nn.init.normal_(parameter, std=0.2)
    ours = TaskModel(OURS, head).eval()
    given, body = theirs.state_dict(), ours.body.state_dict()
    for entry in BERT.entries(OURS):
        for name in entry.ours:
            if not name.startswith("head."):
                body[name].copy_(given[entry.theirs])
    ours.head.output.load_state_dict(getattr(theirs, head_name).state_dict())
    return theirs, ours
