"""Training with 8-bit products in the output layer."""

import pytest

from pipelines.verbs.pretrain import pretrain
from tests.pipelines.training_cases import metrics_of, with_train


def test_a_run_with_8_bit_products_learns_as_much_and_validates_exactly(tmp_path, small_recipe, dataset_folder):
    runs = {}
    for fp8 in (False, True):
        recipe = with_train(small_recipe, dtype="bfloat16", fp8_head=fp8, tokens=2560)
        pretrain(recipe, data=dataset_folder, out=tmp_path / str(fp8))
        runs[fp8] = [line["loss"] for line in metrics_of(tmp_path / str(fp8))]
    assert runs[True][0] == runs[False][0]  # validation before the first step
    assert runs[True] != runs[False]
    assert runs[True] == pytest.approx(runs[False], rel=1e-2)


def test_8_bit_products_in_float32_are_refused_before_anything_is_written(tmp_path, small_recipe, dataset_folder):
    recipe = with_train(small_recipe, dtype="float32", fp8_head=True)
    with pytest.raises(ValueError, match=r"train\.fp8_head is true, but the dtype is float32"):
        pretrain(recipe, data=dataset_folder, out=tmp_path / "run")
    assert not (tmp_path / "run").exists()
