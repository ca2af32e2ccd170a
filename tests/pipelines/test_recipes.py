"""Recipes: their fields, and the errors of wrong ones."""

import tomllib
from dataclasses import asdict, replace

import pytest
from hypothesis import given
from hypothesis import strategies as st

from pipelines.cli.arguments import parse_count, parse_number
from pipelines.recipes.recipe import RECIPES, load_recipe, recipe_names, save_config


@pytest.mark.parametrize("name", recipe_names())
def test_every_recipe_survives_being_saved_with_a_run(name, tmp_path):
    recipe = load_recipe(name)
    save_config(tmp_path / "config.toml", recipe, {"data": "somewhere"})
    assert load_recipe(tmp_path / "config.toml") == recipe
    assert tomllib.loads((tmp_path / "config.toml").read_text())["run"] == {"data": "somewhere"}


def test_the_named_recipes_exist():
    assert {"gpt-tiny", "gpt-small", "gpt2-124m", "bert-tiny", "bert-base"} <= set(recipe_names())


@pytest.mark.parametrize(
    ("change", "message"),
    [
        ("[train]\nlearning_rat = 1", "there is no field train.learning_rat"),
        ("[train]\ntoken = 1", "did you mean train.tokens?"),
        ("[model]\nlayer = 1", "did you mean model.layers?"),
        ("[model]\nlayers = 'many'", "model.layers: 'many' is not a whole number"),
        ("[model]\nlayers = true", "model.layers is True, but must be a whole number"),
        ("[model]\nnorm = 'batchnorm'", "model.norm is 'batchnorm', but must be one of"),
        ("[model]\nwidth = 255\nheads = 4", "model.width is 255"),
        ("[train]\ntokens = 0", "train.tokens is 0, but must be above 0"),
        ("objective = 'masked-token'", "needs model.architecture = 'encoder'"),
        ("objective = ", "not a TOML file"),
        ("model = 3", "model must be a table"),
    ],
)
def test_a_wrong_field_is_named_with_the_file(tmp_path, change, message):
    path = tmp_path / "mine.toml"
    path.write_text(change)
    with pytest.raises(ValueError) as error:
        load_recipe(path)
    assert message in str(error.value)
    assert str(path) in str(error.value)


@pytest.mark.parametrize("line", ["objective = '{}'", "{} = 1", "[train]\ntokens = '{}'", "[train]\nlr = '{}'"])
def test_the_message_about_a_very_long_value_is_short(tmp_path, line):
    path = tmp_path / "mine.toml"
    path.write_text(line.format("a" * 5000))
    with pytest.raises(ValueError) as error:
        load_recipe(path)
    assert len(str(error.value)) < 500


def test_an_error_for_an_unknown_recipe_suggests_the_nearest_name():
    with pytest.raises(ValueError, match="did you mean 'gpt-tiny'"):
        load_recipe("gpt-tny")


def test_counts_in_toml_may_have_units(tmp_path):
    path = tmp_path / "mine.toml"
    path.write_text("[train]\ntokens = '2.5M'")
    assert load_recipe(path).train.tokens == 2_500_000


@given(st.integers(0, 10**15))
def test_a_plain_number_is_a_count(number):
    assert parse_count(str(number)) == number
    assert parse_count(f"{number}k") == 1000 * number


@pytest.mark.parametrize(
    ("text", "number"), [("300k", 300_000), ("50M", 50_000_000), ("2G", 2 * 10**9), ("1.5k", 1500), ("1_000", 1000)]
)
def test_counts_with_units_are_read(text, number):
    assert parse_count(text) == number


@pytest.mark.parametrize(
    "text", ["", "k", "1.2345k", "ten", "5T", "1e6", "--3", "1e400", "1\u0301", "\u0663", "\ufeff1"]
)
def test_a_value_that_is_no_count_is_refused(text):
    with pytest.raises(ValueError, match="is not a whole number"):
        parse_count(text)


@pytest.mark.parametrize("text", ["9223372036854775808", "-9300000000G", "1" + "0" * 90])
def test_a_count_of_more_than_64_bits_is_refused(text):
    with pytest.raises(ValueError, match="is too large: the largest number is 9,223,372,036,854,775,807"):
        parse_count(text)


def test_a_number_beyond_floats_is_refused_and_infinity_is_read():
    with pytest.raises(ValueError, match=r"'1e400' is too large: the largest number is 1\.798e\+308"):
        parse_number("1e400")
    assert parse_number("inf") == float("inf")


def test_every_recipe_has_a_description():
    for path in RECIPES.glob("*.toml"):
        assert tomllib.loads(path.read_text())["description"]


def test_a_resolved_recipe_is_only_its_fields():
    recipe = load_recipe("gpt-tiny")
    changed = replace(recipe, train=replace(recipe.train, lr=0.5))
    assert asdict(changed)["train"]["lr"] == 0.5
