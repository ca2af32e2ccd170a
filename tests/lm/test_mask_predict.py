"""Mask-predict (Ghazvininejad et al. 2019) beside a plain loop over whole sequences."""

import pytest
import torch

from lm.config import ModelConfig
from lm.decoding.generation import fill_masks
from lm.model import LanguageModel

MASK = 2


@pytest.fixture(scope="module")
def model():
    shape = {"vocab_size": 53, "context_length": 24, "layers": 2, "width": 16, "heads": 2}
    model = LanguageModel(ModelConfig(architecture="encoder", **shape), seed=0).eval()
    generator = torch.Generator().manual_seed(1)
    with torch.no_grad():
        for weights in model.parameters():
            weights.add_(0.3 * torch.randn(weights.shape, generator=generator))
    return model


def refined(model, ids, steps):
    """Return the filled ids and the probability of each, by Algorithm 1 of the paper: no rows, no stopping early."""
    masked = [place for place, token in enumerate(ids.tolist()) if token == MASK]
    ids, probability = ids.clone(), dict.fromkeys(masked, 0.0)
    counts = []
    for step in range(steps):
        count = int(len(masked) * (steps - step) / steps)
        least_certain = sorted(masked, key=probability.__getitem__)[:count]
        for place in least_certain:
            ids[place] = MASK
        with torch.no_grad():
            p = torch.softmax(model.logits(model(ids[None])).double(), dim=-1)[0]
        for place in least_certain:
            probability[place], ids[place] = float(p[place].max()), int(p[place].argmax())
        counts.append(count)
    return ids, probability, counts


@pytest.mark.parametrize("steps", [1, 2, 3, 8, 20])
def test_steps_equal_the_published_algorithm(model, steps):
    ids = torch.randint(5, 53, (22,), generator=torch.Generator().manual_seed(steps))
    ids[torch.tensor([1, 2, 3, 7, 8, 12, 13, 14, 15, 20])] = MASK
    before = ids.clone()
    expected, probability, counts = refined(model, ids, steps)
    filled = fill_masks(model, ids, MASK, top=3, steps=steps)
    assert [mask.ids[0] for mask in filled] == [int(expected[mask.position]) for mask in filled]
    for mask in filled:
        assert mask.probabilities[0] == pytest.approx(probability[mask.position], rel=1e-5)
    assert torch.equal(ids, before)
    assert counts[0] == 10 and counts == sorted(counts, reverse=True)


def test_refinement_changes_some_tokens_and_keeps_the_certain_ones(model):
    ids = torch.full((22,), MASK)
    ids[::3] = 7
    once, often = fill_masks(model, ids, MASK), fill_masks(model, ids, MASK, steps=2)
    changed = [a.ids[0] != b.ids[0] for a, b in zip(once, often, strict=True)]
    assert any(changed)
    certain = sorted(range(len(once)), key=lambda mask: -once[mask].probabilities[0])[: (len(once) + 1) // 2]
    assert all(once[mask] == often[mask] for mask in certain)


def test_no_steps_are_refused(model):
    with pytest.raises(ValueError, match="steps is 0"):
        fill_masks(model, torch.tensor([MASK]), MASK, steps=0)
