"""Fine-tuned models of `transformers` keep their tensors and logits under our names, and come back unchanged."""

import pytest
import torch
import torch.nn.functional as F  # noqa: N812

from lm.config import ModelConfig
from lm.exchange import named_format
from lm.exchange.format import Pretrained
from lm.exchange.task_heads import TASK_HEADS, from_task_model, task_head, to_task_model
from lm.layers import ACTIVATIONS
from lm.model import LanguageModel

transformers = pytest.importorskip("transformers")

LABELS = 3
IDS = {"bos_token_id": 2, "eos_token_id": 2, "pad_token_id": 1, "cls_token_id": 2, "sep_token_id": 2}
SHAPE = {"hidden_size": 16, "num_hidden_layers": 2, "num_attention_heads": 2, "intermediate_size": 24}
SHAPES = {
    "gpt2": {"n_embd": 16, "n_layer": 2, "n_head": 2},
    "distilbert": {"dim": 16, "n_layers": 2, "n_heads": 2, "hidden_dim": 24},
    "modernbert": {**SHAPE, "layer_types": ["full_attention"] * 2},
    "t5": {"d_model": 16, "d_kv": 8, "d_ff": 24, "num_layers": 2, "num_heads": 2, "decoder_start_token_id": 1},
}


def published(head, **options):
    """Return a random model of the class in transformers, and our configuration of its body."""
    cls = getattr(transformers, head.auto_class)
    labels = 2 if head.kind == "span" else LABELS
    shape = SHAPES.get(head.format.model_type, SHAPE)
    config = cls.config_class(vocab_size=40, num_labels=labels, **shape, **IDS, **options)
    torch.manual_seed(0)
    peer = cls(config).eval()
    with torch.no_grad():
        for parameter in peer.parameters():
            parameter.add_(torch.randn_like(parameter) * 0.2)
    settings = peer.config.to_dict()
    fmt = named_format(settings)
    assert fmt is head.format
    # The formats look at some tensors to read the settings.
    tensors = {f"{fmt.prefix}{name.removeprefix(head.prefix)}": each for name, each in peer.state_dict().items()}
    return peer, ModelConfig(**fmt.read(Pretrained({**fmt.defaults, **settings}, tensors)))


def our_logits(head, config, weights, ids, pooling):
    """Return the logits by the formulas of the heads, on the hidden states of our model."""
    body = LanguageModel(config).eval()
    own = {name.removeprefix("body."): weight for name, weight in weights.items() if name.startswith("body.")}
    lacking = body.load_state_dict(own, strict=False)
    assert not lacking.unexpected_keys
    assert all(name.startswith("head.") for name in lacking.missing_keys)
    both = config.architecture == "encoder-decoder"
    shifted = torch.cat((torch.ones_like(ids[:, :1]), ids[:, :-1]), dim=1)
    hidden = body(shifted, ids) if both else body(ids)
    if head.kind in ("sequence", "choice"):
        hidden = {"first": hidden[:, 0], "last": hidden[:, -1], "mean": hidden.mean(dim=1)}[pooling]
    if head.activation:
        hidden = F.linear(hidden, weights["head.dense.weight"], weights.get("head.dense.bias"))
        hidden = {"tanh": torch.tanh, **ACTIVATIONS}[head.activation](hidden)
    if head.norm:
        weight, bias = weights["head.norm.weight"], weights.get("head.norm.bias")
        hidden = F.layer_norm(hidden, (config.width,), weight, bias, config.norm_eps)
    return F.linear(hidden, weights["head.output.weight"], weights.get("head.output.bias"))


CASES = [
    (head, pooling)
    for head in TASK_HEADS
    for pooling in (head.poolings or [None])
    if not (head.kind == "choice" and pooling == "mean")  # transformers then needs a mask of padding
]


@pytest.mark.parametrize(("head", "pooling"), CASES, ids=lambda case: getattr(case, "auto_class", case))
@torch.no_grad()
def test_a_fine_tuned_model_keeps_its_logits_and_comes_back_unchanged(head, pooling):
    peer, config = published(head, **head.poolings.get(pooling, {}))
    tensors = peer.state_dict()
    weights = from_task_model(head, config, tensors)

    ids = torch.randint(3, 40, (4, 9), generator=torch.Generator().manual_seed(1))
    ids[:, -1] = IDS["eos_token_id"]  # where T5 reads
    answer = peer(ids[None] if head.kind == "choice" else ids)
    theirs = torch.stack((answer.start_logits, answer.end_logits), -1) if head.kind == "span" else answer.logits
    ours = our_logits(head, config, weights, ids, pooling)
    assert theirs.std() > 0.01
    torch.testing.assert_close(ours.flatten(), theirs.flatten(), atol=1e-5, rtol=1e-5)

    back = to_task_model(head, config, weights)
    left = tensors.keys() - back.keys()
    assert all(name in {head.with_prefix(copy) for copy in head.format.copies(config)} for name in left), left
    for name, tensor in back.items():
        assert torch.equal(tensor, tensors[name]), name


def test_tensors_without_a_place_and_missing_ones_are_refused_by_name():
    head = task_head("bert", "sequence")
    peer, config = published(head)
    tensors = peer.state_dict()
    with pytest.raises(ValueError, match=r"no classifier\.bias, which BertForSequenceClassification has"):
        from_task_model(head, config, {name: each for name, each in tensors.items() if name != "classifier.bias"})
    with pytest.raises(ValueError, match=r"the weights have adapter\.weight, for which a BertForSequence"):
        from_task_model(head, config, {**tensors, "adapter.weight": torch.ones(2)})
    with pytest.raises(ValueError, match=r"no head of the kind 'choice' for 'gpt2': it has sequence, token, span"):
        task_head("gpt2", "choice")


def test_a_pooler_that_a_token_classifier_does_not_use_is_left_out():
    head = task_head("bert", "token")
    peer, config = published(head)
    extra = {"bert.pooler.dense.weight": torch.ones(16, 16), "bert.pooler.dense.bias": torch.ones(16)}
    read = from_task_model(head, config, {**peer.state_dict(), **extra})
    assert not any("pooler" in name or "dense" in name for name in read if name.startswith("head."))
