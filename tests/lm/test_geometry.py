"""Embedding geometry agrees with numpy and scipy."""

import numpy as np
import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st
from scipy.spatial.distance import cdist

from lm.introspection.geometry import nearest_tokens, principal_components


@given(seed=st.integers(0, 2**32), entries=st.integers(5, 40), width=st.integers(3, 12))
def test_the_nearest_tokens_have_the_smallest_cosine_distance(seed, entries, width):
    embedding = torch.randn(entries, width, generator=torch.Generator().manual_seed(seed))
    found = nearest_tokens(embedding, torch.arange(entries), 4)
    distances = cdist(embedding.double().numpy(), embedding.double().numpy(), "cosine")
    np.fill_diagonal(distances, np.inf)
    expected = np.sort(distances, axis=1)[:, :4]
    np.testing.assert_allclose(1 - found.cosines.numpy(), expected, atol=1e-12)
    np.testing.assert_allclose(np.take_along_axis(distances, found.ids.numpy(), 1), expected, atol=1e-12)


def test_no_token_is_its_own_neighbour_even_with_a_twin():
    embedding = torch.tensor([[1.0, 0.0], [2.0, 0.0], [0.0, 1.0]])
    found = nearest_tokens(embedding, torch.tensor([0, 1]), 1)
    assert found.ids.tolist() == [[1], [0]]
    assert found.cosines.tolist() == [[1.0], [1.0]]


def test_a_zero_embedding_has_cosine_zero_to_all():
    embedding = torch.tensor([[0.0, 0.0], [2.0, 0.0], [0.0, 1.0]])
    assert nearest_tokens(embedding, torch.tensor([0]), 2).cosines.tolist() == [[0.0, 0.0]]


@given(seed=st.integers(0, 2**32), entries=st.integers(4, 40), width=st.integers(3, 12))
def test_principal_components_are_the_singular_vectors_of_the_centred_matrix(seed, entries, width):
    embedding = torch.randn(entries, width, generator=torch.Generator().manual_seed(seed), dtype=torch.float64)
    found = principal_components(embedding, 2)
    centred = embedding.numpy() - embedding.numpy().mean(axis=0)
    left, lengths, _ = np.linalg.svd(centred, full_matrices=False)
    np.testing.assert_allclose(found.shares.numpy(), lengths[:2] ** 2 / np.sum(lengths**2), atol=1e-10)
    np.testing.assert_allclose(np.abs(found.coordinates.numpy()), np.abs(left * lengths)[:, :2], atol=1e-6)
    np.testing.assert_allclose(found.directions @ found.directions.T, np.eye(2), atol=1e-10)
    assert all(direction[direction.abs().argmax()] > 0 for direction in found.directions)


def test_all_components_reconstruct_the_embedding():
    embedding = torch.randn(9, 4, generator=torch.Generator().manual_seed(0), dtype=torch.float64)
    found = principal_components(embedding, 4)
    torch.testing.assert_close(found.coordinates @ found.directions + embedding.mean(dim=0), embedding)
    assert found.shares.sum().item() == pytest.approx(1.0)


def test_too_large_counts_are_refused():
    embedding = torch.eye(3)
    with pytest.raises(ValueError, match="from 1 to 2 neighbours"):
        nearest_tokens(embedding, torch.tensor([0]), 3)
    with pytest.raises(ValueError, match="from 1 to 3 principal components"):
        principal_components(embedding, 4)
