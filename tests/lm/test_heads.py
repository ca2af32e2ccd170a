"""Heads equal those of transformers with the same weights, and ignore padding."""

from dataclasses import replace

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from lm.classification import build_classifier
from torch import nn
from transformers import BertConfig
from transformers.models.bert.modeling_bert import (
    BertForSequenceClassification,
    BertForTokenClassification,
    BertLMPredictionHead,
)

from lm.config import ModelConfig
from lm.heads import MaskedTokenHead, NextTokenHead, SequenceClassificationHead, TokenClassificationHead
from lm.layers import Embedding
from lm.model import LanguageModel

ENCODER = ModelConfig(architecture="encoder", vocab_size=50, context_length=12, layers=2, width=16, heads=2)
EMBEDDING = Embedding(50, 16)
BERT = BertConfig(
    vocab_size=50,
    hidden_size=16,
    num_hidden_layers=1,
    num_attention_heads=2,
    intermediate_size=32,
    num_labels=5,
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


def test_the_sequence_classification_head_equals_that_of_bert(hidden):
    theirs, ours = BertForSequenceClassification(BERT).eval(), SequenceClassificationHead(ENCODER, 5)
    copied(ours.dense, theirs.bert.pooler.dense)
    copied(ours.output, theirs.classifier)
    torch.testing.assert_close(ours(hidden), theirs.classifier(theirs.bert.pooler(hidden)))


def test_the_token_classification_head_equals_that_of_bert(hidden):
    theirs, ours = BertForTokenClassification(BERT).eval(), TokenClassificationHead(ENCODER, 5)
    copied(ours.output, theirs.classifier)
    logits = ours(hidden)
    assert logits.shape == (3, 7, 5)
    torch.testing.assert_close(logits, theirs.classifier(hidden))


def test_a_scaled_head_divides_by_the_root_of_the_width(hidden):
    decoder = replace(ENCODER, architecture="decoder")
    torch.testing.assert_close(NextTokenHead(replace(decoder, scaled_head=True), EMBEDDING)(hidden), hidden / 4)
    assert NextTokenHead(decoder, EMBEDDING)(hidden) is hidden


def test_heads_drop_only_in_training(hidden):
    for head in (SequenceClassificationHead, TokenClassificationHead):
        model = head(replace(ENCODER, dropout=0.5), 5)
        for parameter in model.parameters():
            nn.init.normal_(parameter)
        assert not torch.equal(model(hidden), model(hidden))
        model.eval()
        assert torch.equal(model(hidden), model(hidden))


@pytest.mark.parametrize("pooling", ["first", "mean"])
@settings(max_examples=20, deadline=None)
@given(lengths=st.lists(st.integers(1, 12), min_size=1, max_size=4), seed=st.integers(0, 2**16))
def test_padding_does_not_change_the_logits_of_a_classifier(pooling, lengths, seed):
    model = build_classifier(ENCODER, 5, seed, pooling).eval()
    generator = torch.Generator().manual_seed(seed)
    longest = max(lengths)
    ids = torch.randint(50, (len(lengths), longest), generator=generator)
    present = torch.arange(longest) < torch.tensor(lengths)[:, None]
    together = model(ids, present)
    alone = torch.cat([model(row[None, :length]) for row, length in zip(ids, lengths, strict=True)])
    torch.testing.assert_close(together, alone, atol=1e-5, rtol=1e-4)


def test_a_classifier_starts_with_the_weights_of_the_pretrained_encoder():
    pretrained = LanguageModel(ENCODER, seed=1)
    model = build_classifier(ENCODER, 5, seed=2, pretrained=pretrained)
    ids = torch.randint(50, (2, 9), generator=torch.Generator().manual_seed(0))
    assert torch.equal(model.body(ids), pretrained(ids))
    assert not torch.equal(build_classifier(ENCODER, 5, seed=2).body(ids), pretrained(ids))


def test_the_same_seed_builds_the_same_classifier():
    first, second, other = (build_classifier(ENCODER, 5, seed) for seed in (3, 3, 4))
    weights = [torch.cat([p.flatten() for p in model.parameters()]) for model in (first, second, other)]
    assert torch.equal(weights[0], weights[1])
    assert not torch.equal(weights[0], weights[2])


def test_every_parameter_of_a_classifier_is_trained():
    model = build_classifier(ENCODER, 5, seed=0)
    model(torch.tensor([[1, 2, 3]])).logsumexp(dim=-1).sum().backward()
    assert [name for name, parameter in model.named_parameters() if parameter.grad is None] == []
