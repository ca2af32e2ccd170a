"""Composition of heads: against whole matrices, and in a hand-written induction head."""

from dataclasses import replace
from itertools import product

import pytest
import torch

from lm.introspection.attention_maps import attention_maps, head_scores
from lm.introspection.circuits import ov_circuit, qk_circuit
from lm.introspection.composition import composition_scores
from lm.introspection.repetition import repeated_tokens
from tests.lm.introspection_cases import OPTIONS, TINY, copying_induction_model, randomised


@pytest.mark.parametrize("kind", ["rotary", "learned", "rmsnorm without biases", "grouped heads", "post-norm"])
def test_scores_are_those_of_whole_matrices(kind):
    model = randomised(replace(TINY, layers=3, **OPTIONS[kind]))
    found = composition_scores(model, distance=2)
    writing = {}  # the OV circuits of earlier heads, as the layer `later` reads them
    for later, block in enumerate(model.stack.blocks):
        for head, (earlier, first) in product(range(4), writing.items()):
            qk, ov = qk_circuit(model, later, head, 2), ov_circuit(model, later, head)
            for got, matrix in ((found.query, qk.T), (found.key, qk), (found.value, ov)):
                expected = (matrix @ first).norm() / matrix.norm() / first.norm() - 0.25
                assert got[4 * later + head, earlier].item() == pytest.approx(expected.item(), abs=1e-12)
        writing |= {4 * later + head: ov_circuit(model, later, head) for head in range(4)}
        if kind == "post-norm":
            for norm in (block.attention_norm, block.mlp_norm):
                linear = norm.weight.detach()[:, None] * (torch.eye(16) - 1 / 16)
                writing = {earlier: linear @ first for earlier, first in writing.items()}
    assert found.key[:4].isnan().all() and found.key[4:8, 4:].isnan().all()


def test_the_induction_head_has_key_composition_with_the_head_of_the_previous_token_only():
    model = copying_induction_model(20)
    found = composition_scores(model)
    chance = model.config.width**-0.5
    scores = torch.stack((found.query, found.key, found.value))[:, 2:, :2] + chance
    expected = torch.zeros(3, 2, 2, dtype=torch.float64)
    expected[1, 0, 0] = 20**-0.5  # 20 equal singular values
    torch.testing.assert_close(scores, expected)


def test_heads_that_attend_to_similar_tokens_are_found():
    """Tokens 2n and 2n + 1 have nearly the same embedding, and head 0.1 attends to the other one."""
    model = copying_induction_model(20)
    with torch.no_grad():
        for token in range(0, 20, 2):
            model.embedding.weight[token, token + 1] = model.embedding.weight[token + 1, token] = 0.9
        width = model.config.width // 2
        query = model.stack.blocks[0].mixer.query.weight[width : width + 20, :20]
        query.copy_(query[torch.arange(20) ^ 1])
    generator = torch.Generator().manual_seed(0)
    similar = head_scores(model, generator, length=18, sequences=8).similar
    assert similar.argmax() == 1 and similar[0, 1] > 0.1 > similar[0, 0].abs()
    read = repeated_tokens(torch.arange(20), torch.Generator().manual_seed(0), length=18, sequences=8)
    maps = attention_maps(model, read).own.double()
    total = 0.0
    for sequence in range(8):
        for i in range(1, 18):
            x = model.embedding.weight.detach().double()[read[sequence, : i + 1]]
            cosines = torch.cosine_similarity(x[:-1], x[-1:])
            total += (maps[0, sequence, 1, i, :i] * (cosines - cosines.mean())).sum().item()
    assert similar[0, 1].item() == pytest.approx(total / 8 / 18, rel=1e-9)
