"""Heads of language models equal those of transformers with the same weights."""

from dataclasses import replace

import pytest
import torch
from torch import nn
from transformers import BertConfig
from transformers.models.bert.modeling_bert import BertLMPredictionHead

from lm.config import ModelConfig
from lm.heads import MaskedTokenHead, NextTokenHead
from lm.layers import Embedding

ENCODER = ModelConfig(architecture="encoder", vocab_size=50, context_length=12, layers=2, width=16, heads=2)
EMBEDDING = Embedding(50, 16)
BERT = BertConfig(
    vocab_size=50,
    hidden_size=16,
    num_hidden_layers=1,
    num_attention_heads=2,
    intermediate_size=32,
    layer_norm_eps=ENCODER.norm_eps,
)


@pytest.fixture
def hidden():
    return torch.randn(3, 7, 16, generator=torch.Generator().manual_seed(0))


def copied(ours: nn.Module, theirs: nn.Module) -> None:
    ours.load_state_dict(theirs.state_dict())


def test_the_masked_token_head_equals_that_of_bert(hidden):
    theirs, ours = BertLMPredictionHead(BERT).eval(), MaskedTokenHead(ENCODER, EMBEDDING)
    copied(ours.dense, theirs.transform.dense)
    copied(ours.norm, theirs.transform.LayerNorm)
    torch.testing.assert_close(ours(hidden), theirs.transform(hidden))


def test_a_scaled_head_divides_by_the_root_of_the_width(hidden):
    decoder = replace(ENCODER, architecture="decoder")
    torch.testing.assert_close(NextTokenHead(replace(decoder, scaled_head=True), EMBEDDING)(hidden), hidden / 4)
    assert NextTokenHead(decoder, EMBEDDING)(hidden) is hidden
    theirs, ours = BertLMPredictionHead(BERT).eval(), MaskedTokenHead(replace(ENCODER, scaled_head=True), EMBEDDING)
    copied(ours.dense, theirs.transform.dense)
    copied(ours.norm, theirs.transform.LayerNorm)
    torch.testing.assert_close(ours(hidden), theirs.transform(hidden) / 4)
