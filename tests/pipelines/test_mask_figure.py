"""Pictures of masks show the keys that a model of the same configuration sees."""

import numpy as np
import pytest
import torch

from lm.config import ModelConfig
from lm.model import LanguageModel
from pipelines.figures.masks import MASKS, draw_masks


def test_the_pictures_show_which_tokens_move_the_output_of_a_model():
    figure = draw_masks(positions=16)
    assert [axes.get_title() for axes in figure.axes] == list(MASKS)
    for axes, fields in zip(figure.axes, MASKS.values(), strict=True):
        shape = {"context_length": 16, "vocab_size": 20, "layers": 1, "width": 16, "heads": 1, "mlp": False}
        model = LanguageModel(ModelConfig(**shape, positions="none", initialization="xavier", **fields)).eval().double()
        model.compute_dtype = torch.float64
        ids = torch.arange(16)[None]
        with torch.no_grad():
            before, moved = model(ids)[0], []
            for key in range(16):
                changed = ids.clone()
                changed[0, key] = 19
                moved.append((model(changed)[0] != before).any(dim=-1).numpy())
        [image] = axes.get_images()
        assert np.array_equal(np.asarray(image.get_array()).astype(bool), np.stack(moved, axis=1))


def test_own_masks_are_drawn_under_their_titles():
    figure = draw_masks({"mine": {"window": 2}}, positions=3)
    [image] = figure.axes[0].get_images()
    assert np.asarray(image.get_array()).astype(int).tolist() == [[1, 0, 0], [1, 1, 0], [0, 1, 1]]
    with pytest.raises(ValueError, match=r"model\.pattern_size is 0"):
        draw_masks({"none": {"attention_pattern": "strided", "pattern_size": 0}})
