"""Models with the head of a task equal those of transformers with the same weights, and ignore padding."""

from dataclasses import replace

import pytest
import torch
import torch.nn.functional as F  # noqa: N812
from hypothesis import given, settings
from hypothesis import strategies as st
from transformers import (
    BertConfig,
    BertForMultipleChoice,
    BertForQuestionAnswering,
    BertForSequenceClassification,
    BertForTokenClassification,
    GPT2Config,
    GPT2ForSequenceClassification,
    T5Config,
    T5ForSequenceClassification,
)

from lm.config import ModelConfig
from lm.head_config import HeadConfig
from lm.model import LanguageModel
from lm.task_heads import NEVER, task_loss
from lm.task_model import TaskModel
from tests.lm.task_peers import BERT, twin

ENCODER = ModelConfig(architecture="encoder", vocab_size=50, context_length=12, layers=2, width=16, heads=2)
DECODER = replace(ENCODER, architecture="decoder")
GPT2 = GPT2Config(vocab_size=50, n_embd=16, n_layer=2, n_head=2, n_positions=12, num_labels=5, pad_token_id=0)
T5 = T5Config(
    vocab_size=50, d_model=16, d_kv=8, d_ff=32, num_layers=2, num_heads=2, num_labels=5, decoder_start_token_id=0
)
LENGTHS = torch.tensor([12, 7, 3])
PRESENT = torch.arange(12) < LENGTHS[:, None]
IDS = torch.randint(3, 50, (3, 12), generator=torch.Generator().manual_seed(0)).where(PRESENT, 0)


def equal(ours, theirs):
    torch.testing.assert_close(ours, theirs, atol=1e-5, rtol=1e-5)


def test_classes_of_an_encoder_equal_those_of_bert():
    model = BertForSequenceClassification(BERT)
    head = HeadConfig(kind="sequence", outputs=5, pooling="first")
    theirs, ours = twin(model, head, "", dense=model.bert.pooler.dense, output=model.classifier)
    types = (torch.arange(12) > 4).long().expand(3, 12)
    expected = theirs(IDS, PRESENT.long(), types, labels=torch.tensor([0, 4, 2]))
    logits = ours(IDS, present=PRESENT, types=types)
    equal(logits[:, 0], expected.logits)
    equal(task_loss(head, logits[:, 0], torch.tensor([0, 4, 2]), None, 0.0) / 3, expected.loss)


def test_numbers_of_an_encoder_and_their_loss_equal_those_of_bert():
    config = BertConfig(**{**BERT.to_dict(), "num_labels": 1, "problem_type": "regression"})
    model = BertForSequenceClassification(config)
    head = HeadConfig(kind="sequence", pooling="first", loss="squared")
    theirs, ours = twin(model, head, "", dense=model.bert.pooler.dense, output=model.classifier)
    targets = torch.tensor([0.5, -2.0, 1.0])
    expected, outputs = theirs(IDS, PRESENT.long(), labels=targets), ours(IDS, present=PRESENT)
    equal(outputs[:, 0], expected.logits)
    equal(task_loss(head, outputs.flatten(0, -2), targets, None, 0.0) / 3, expected.loss)


def test_classes_of_a_decoder_equal_those_of_gpt2():
    theirs, ours = twin(
        model := GPT2ForSequenceClassification(GPT2),
        HeadConfig(kind="sequence", outputs=5, pooling="last"),
        "",
        output=model.score,
    )
    equal(ours(IDS, present=PRESENT)[:, 0], theirs(IDS, attention_mask=PRESENT.long()).logits)


def test_classes_of_an_encoder_decoder_equal_those_of_t5():
    """T5 reads the source as its own target, shifted, and pools its last end token."""
    source = IDS.clone()
    source[torch.arange(3), LENGTHS - 1] = T5.eos_token_id
    source = source[LENGTHS == 12].repeat(2, 1)  # T5 needs equally many end tokens in all texts
    model = T5ForSequenceClassification(T5)
    head = HeadConfig(kind="sequence", outputs=5, pooling="last")
    parts = {"dense": model.classification_head.dense, "output": model.classification_head.out_proj}
    theirs, ours = twin(model, head, "transformer.", **parts)
    shifted = torch.cat([torch.zeros(2, 1, dtype=torch.int64), source[:, :-1]], dim=1)
    equal(ours(shifted, source)[:, 0], theirs(source).logits)


def test_tags_equal_those_of_bert_at_every_position():
    theirs, ours = twin(
        model := BertForTokenClassification(BERT), HeadConfig(kind="token", outputs=5), "", output=model.classifier
    )
    expected = theirs(IDS, PRESENT.long()).logits
    equal(ours(IDS, present=PRESENT)[PRESENT], expected[PRESENT])
    rows = torch.tensor([0, 13, 5])
    equal(ours(IDS, present=PRESENT, rows=rows), expected.flatten(0, 1)[rows])


def test_spans_equal_those_of_bert_and_are_never_in_padding():
    theirs, ours = twin(
        model := BertForQuestionAnswering(BertConfig(**{**BERT.to_dict(), "num_labels": 2})),
        HeadConfig(kind="span"),
        "",
        output=model.qa_outputs,
    )
    expected, logits = theirs(IDS, PRESENT.long()), ours(IDS, present=PRESENT)
    equal(logits[:, 0][PRESENT], expected.start_logits[PRESENT])
    equal(logits[:, 1][PRESENT], expected.end_logits[PRESENT])
    assert PRESENT.gather(1, logits.argmax(dim=-1)).all()


def test_choices_equal_those_of_bert_and_an_absent_choice_has_no_chance():
    model = BertForMultipleChoice(BERT)
    head = HeadConfig(kind="choice", pooling="first")
    theirs, ours = twin(model, head, "", dense=model.bert.pooler.dense, output=model.classifier)
    ids, present = IDS[None], PRESENT[None]
    equal(ours(ids, present=present)[:, 0], theirs(ids, present.long()).logits)
    without = torch.cat([present[:, :2], torch.zeros_like(present[:, :1])], dim=1)
    chances = ours(ids, present=without)[0, 0].softmax(dim=-1)
    assert chances[2] == 0 and chances.isfinite().all()


@pytest.mark.parametrize("config", [ENCODER, DECODER])
@pytest.mark.parametrize("pooling", ["first", "mean", "last"])
@settings(max_examples=10, deadline=None)
@given(lengths=st.lists(st.integers(1, 12), min_size=1, max_size=4), seed=st.integers(0, 2**16))
def test_padding_does_not_change_the_logits(config, pooling, lengths, seed):
    model = TaskModel(config, HeadConfig(kind="sequence", outputs=5, pooling=pooling), seed).eval()
    longest = max(lengths)
    ids = torch.randint(50, (len(lengths), longest), generator=torch.Generator().manual_seed(seed))
    present = torch.arange(longest) < torch.tensor(lengths)[:, None]
    alone = torch.cat([model(row[None, :length]) for row, length in zip(ids, lengths, strict=True)])
    equal(model(ids, present=present), alone)


@pytest.mark.parametrize("kind", ["sequence", "token", "span"])
def test_rows_are_the_outputs_of_these_targets(kind):
    model = TaskModel(ENCODER, HeadConfig(kind=kind, outputs=4)).eval()
    outputs = model(IDS, present=PRESENT).flatten(0, -2)
    rows = torch.tensor([0, 2, 1])
    equal(model(IDS, present=PRESENT, rows=rows), outputs[rows])


def test_losses_are_sums_of_weighted_nats_or_squares():
    generator = torch.Generator().manual_seed(1)
    logits, weights = torch.randn(6, 4, generator=generator), torch.rand(6, generator=generator)
    targets = torch.randint(4, (6,), generator=generator)
    nats = -logits.log_softmax(dim=-1)
    chosen = nats.gather(1, targets[:, None])[:, 0]
    head = HeadConfig(kind="sequence", outputs=4)
    equal(task_loss(head, logits, targets, weights, 0.0), (chosen * weights).sum())
    equal(task_loss(head, logits, targets, None, 0.2), (0.8 * chosen + 0.2 * nats.mean(dim=-1)).sum())
    balanced = replace(head, class_weights=(1.0, 2.0, 3.0, 4.0))
    equal(task_loss(balanced, logits, targets, None, 0.0), (chosen * (targets + 1)).sum())
    yes = (targets > 1).float()
    binary = task_loss(replace(head, loss="binary"), logits[:, :1], yes, None, 0.0)
    equal(binary, F.softplus(torch.where(yes > 0, -logits[:, 0], logits[:, 0])).sum())
    squared = task_loss(replace(head, loss="squared"), logits[:, :1], yes, weights, 0.0)
    equal(squared, ((logits[:, 0] - yes) ** 2 * weights).sum())


def test_smoothing_spreads_over_the_choices_that_there_are():
    logits = torch.tensor([[1.0, 2.0, -1.0], [0.5, 0.0, NEVER]])
    targets, head = torch.tensor([2, 0]), HeadConfig(kind="choice")
    expected = sum(
        F.cross_entropy(row, target, label_smoothing=0.1)
        for row, target in ((logits[0], targets[0]), (logits[1, :2], targets[1]))
    )
    equal(task_loss(head, logits, targets, None, 0.1), expected)


def test_a_model_of_a_task_starts_with_the_weights_of_the_pretrained_model():
    pretrained, head = LanguageModel(ENCODER, seed=1), HeadConfig(kind="sequence", outputs=5)
    model = TaskModel(ENCODER, head, seed=2)
    model.load_body(pretrained.state_dict())
    assert torch.equal(model.body(IDS), pretrained(IDS))
    other = TaskModel(ENCODER, head, seed=2)
    assert torch.equal(other.head.output.weight, model.head.output.weight)
    assert not torch.equal(other.body(IDS), pretrained(IDS))


def test_heads_drop_only_in_training():
    model = TaskModel(replace(ENCODER, dropout=0.5), HeadConfig(kind="token", outputs=5))
    assert not torch.equal(model(IDS), model(IDS))
    model.eval()
    assert torch.equal(model(IDS), model(IDS))


@pytest.mark.parametrize("kind", ["sequence", "token", "span"])
def test_every_parameter_is_trained(kind):
    model = TaskModel(ENCODER, HeadConfig(kind=kind, outputs=3))
    model(IDS).logsumexp(dim=-1).sum().backward()
    assert [name for name, parameter in model.named_parameters() if parameter.grad is None] == []
