"""A mixture of datasets: blocks in proportion to the weights, each source in its own order, exact resumption."""

import json
import math
import re
import shutil
from dataclasses import replace
from fractions import Fraction
from pathlib import Path

import numpy as np
import pytest
from hypothesis import example, given, settings
from hypothesis import strategies as st

from pipelines.dataset.reader import TokenDataset
from pipelines.exchange.model_card import model_card
from pipelines.recipes.recipe import save_config
from pipelines.run.folder import Run
from pipelines.run.sources import parse_sources, sources_of, spell
from pipelines.training.batch import Shard
from pipelines.training.data import open_training_data
from pipelines.training.mixture import Apportionment, open_sources
from pipelines.verbs.build_dataset import build_dataset
from pipelines.verbs.evaluate import evaluate
from pipelines.verbs.pretrain import pretrain
from pipelines.verbs.report import report
from tests.pipelines.training_cases import assert_same_run, metrics_of, stop_after, with_train
from tokenizer import Tokenizer

WEIGHTS = st.lists(st.integers(1, 9) | st.integers(1, 300), min_size=1, max_size=9)


def prose(folder, tokenizer, context_length=32, **options):
    """Build a dataset of 40 short documents in `folder`, and return it."""
    text, out = folder / "text", folder / "prose"
    text.mkdir(parents=True)
    for number in range(40):
        lines = [f"verse {number * line % 97} of song {line}\n" for line in range(10)]
        (text / f"{number:02}.txt").write_text("".join(lines))
    build_dataset([str(text)], tokenizer=tokenizer, context_length=context_length, out=out, **options)
    return out


@pytest.fixture(scope="module")
def other_dataset(tmp_path_factory, tokenizer_folder):
    """Return a small dataset with the tokenizer and block length of `dataset_folder`."""
    return prose(tmp_path_factory.mktemp("prose") / "text", tokenizer_folder)


@pytest.fixture(scope="module")
def mixture(dataset_folder, other_dataset):
    return {dataset_folder: 0.7, other_dataset: 0.3}


@settings(max_examples=50)
@given(WEIGHTS)
@example([41, 1, 59, 3, 139, 3, 3])  # the largest deficit first would be 1.05 blocks off
@example([997] + [1] * 60)
def test_every_prefix_is_within_one_block_of_the_weights(weights):
    total = sum(weights)
    sources, _ = Apportionment(weights).locate(np.arange(2 * total))
    given_blocks = np.cumsum(sources[:, None] == np.arange(len(weights)), axis=0)
    exact = np.arange(1, 2 * total + 1)[:, None] * np.array(weights)
    assert (given_blocks >= exact // total).all()
    assert (given_blocks <= -(-exact // total)).all()


@settings(max_examples=20)
@given(WEIGHTS)
def test_the_order_is_that_of_the_quota_method_in_exact_fractions(weights):
    total, given_blocks, expected = sum(weights), [0] * len(weights), []
    for block in range(1, total + 1):
        eligible = [s for s, weight in enumerate(weights) if given_blocks[s] < Fraction(weight * block, total)]
        expected.append(min(eligible, key=lambda s: Fraction(given_blocks[s] + 1, weights[s])))
        given_blocks[expected[-1]] += 1
    assert Apportionment(weights).locate(np.arange(total))[0].tolist() == expected


def test_equal_weights_take_turns():
    assert Apportionment([1, 1, 1]).locate(np.arange(7))[0].tolist() == [0, 1, 2, 0, 1, 2, 0]
    assert Apportionment([7, 3]).locate(np.arange(10))[0].tolist() == [0, 0, 1, 0, 0, 1, 0, 0, 0, 1]


@given(WEIGHTS, st.integers(0, 10**12), st.integers(1, 200))
def test_the_blocks_of_each_source_are_numbered_without_gaps_from_any_place(weights, first, count):
    apportionment = Apportionment(weights)
    sources, numbers = apportionment.locate(first + np.arange(count))
    for source in np.unique(sources):
        of_source = numbers[sources == source]
        assert np.array_equal(of_source, of_source[0] + np.arange(len(of_source)))
        before = Fraction(first * weights[source], sum(weights))
        assert abs(of_source[0] - before) < 1


def rows_of(batch):
    """Return the content of each row of a batch."""
    return [
        tuple(part[row].tobytes() for part in vars(batch).values() if part is not None)
        for row in range(len(batch.inputs))
    ]


@pytest.mark.parametrize("objective", ["next-token", "masked-token", "span-corruption", "denoising"])
@pytest.mark.parametrize("sampling", ["permutation", "crops"])
def test_each_source_gives_its_blocks_as_in_a_run_on_it_alone(
    tmp_path, small_recipe, sentinel_dataset, objective, sampling
):
    """The order over several epochs, masks, spans and permutations are the same; batches and ranks cut one sequence."""
    one = prose(tmp_path / "one", sentinel_dataset.with_name("tok"))
    copy = shutil.copytree(one, tmp_path / "copy")
    architectures = {"next-token": "decoder", "masked-token": "encoder"}
    architecture = architectures.get(objective, "encoder-decoder")
    recipe = with_train(small_recipe, batch_tokens=32 * 50, sampling=sampling, seed=3)
    recipe = replace(recipe, objective=objective, model=replace(recipe.model, architecture=architecture))
    sources, tok = open_sources({one: 3, copy: 2}, objective), Tokenizer.load(copy)
    shards = [Shard(rank, 3) for rank in range(3)]
    ranks = [(shard.rows(50)[1], open_training_data(recipe, sources, tok, shard)) for shard in shards]
    alone = open_training_data(recipe, open_sources({copy: 1}, objective), tok)
    steps = range(0, 4 * TokenDataset(copy).split("train").blocks // 50 * 50, 50)
    batches = [(own, data.step(consumed, 0)) for consumed in steps for own, data in ranks]
    mixed = [row for own, batch in batches for row, belongs in zip(rows_of(batch), own, strict=True) if belongs]
    expected = [row for consumed in steps for row in rows_of(alone.step(consumed, 0))]
    order, _ = Apportionment([3, 2]).locate(np.arange(len(expected)))
    for source in (0, 1):
        of_source = [row for row, here in zip(mixed, order == source, strict=True) if here]
        assert of_source == expected[: len(of_source)]
        assert len(of_source) > TokenDataset(copy).split("train").blocks


def test_a_mixture_trains_and_logs_the_loss_of_each_source(tmp_path, small_recipe, mixture, printed):
    out = tmp_path / "run"
    pretrain(small_recipe, data=mixture, out=out)
    validated = [line for line in metrics_of(out) if line["split"] == "validation"]
    assert len(validated) == 6
    for line in validated:
        assert line["loss"] == pytest.approx(0.7 * line["loss/data"] + 0.3 * line["loss/prose"], rel=1e-12)
        assert line["loss/data"] != line["loss/prose"]
    said = printed.readouterr().out
    last = validated[-1]
    assert f"(data {last['loss/data']:.4f}, prose {last['loss/prose']:.4f})" in said
    tokens = TokenDataset(next(iter(mixture))).split("train").tokens
    assert f"data: 70 % of the tokens, 8.96 ktok ({8960 / tokens:.3g} epochs of " in said
    run = Run(out)
    assert run.facts["data"] == [f"{weight}={folder}" for folder, weight in zip(mixture, (7, 3), strict=True)]
    assert list(run.sources.items()) == [
        (folder.resolve(), weight) for folder, weight in zip(mixture, (7, 3), strict=True)
    ]


def test_a_resumed_mixture_ends_with_the_same_weights_also_from_other_paths(
    tmp_path, small_recipe, mixture, monkeypatch
):
    pretrain(small_recipe, data=mixture, out=tmp_path / "whole")
    with monkeypatch.context() as patch:
        stop_after(23, patch)
        with pytest.raises(KeyboardInterrupt):
            pretrain(small_recipe, data=mixture, out=tmp_path / "run")
    moved = {shutil.copytree(folder, tmp_path / "moved" / folder.name): weight for folder, weight in mixture.items()}
    pretrain(small_recipe, data=moved, out=tmp_path / "run")
    assert_same_run(tmp_path / "run", tmp_path / "whole")
    assert [folder.parent for folder in Run(tmp_path / "run").sources] == [tmp_path / "moved"] * 2


def test_a_mixture_of_one_is_the_plain_dataset(tmp_path, small_recipe, trained_gpt, dataset_folder):
    pretrain(small_recipe, data={dataset_folder: 0.3}, out=tmp_path / "run")
    assert_same_run(tmp_path / "run", trained_gpt)
    assert Run(tmp_path / "run").facts["data"] == Run(trained_gpt).facts["data"] == str(dataset_folder)


@pytest.mark.parametrize(
    ("words", "message"),
    [
        (["0.7=a", "b"], "`data='b'`: each source of a mixture needs a weight and a folder, such as 0.5=b"),
        (["0.7=a", "0.3="], "`data='0.3='`: each source of a mixture needs"),
        (["a", "b"], "`data='a'`: each source of a mixture needs"),
        (["0.7=a", "-0.3=b"], "the weight of b is -0.3, but must be above 0"),
        (["0.7=a", "0=b"], "the weight of b is 0, but must be above 0"),
        (["0.7=a", "x=b"], "'x', the weight of b, is not a number: give a weight such as 0.3"),
        (["0.7=a", "=b"], "'', the weight of b, is not a number"),
        (["0.7=a", "nan=b"], "'nan', the weight of b, is not a number"),
        (["0.7=a", "inf=b"], "'inf', the weight of b, is not a number"),
        (["0.7=a", "1e-999999999=b"], "give weights from 1e-12 to 1e12"),
        (["0.7=a", "1e999999999=b"], "give weights from 1e-12 to 1e12"),
        (["0.5=a", "0.5=./a"], "a is named twice: name it once, with the sum of its weights"),
        (
            ["0.12345678=a", "1=b"],
            "add up to 56,172,839, and at most 100,000 is allowed: round them, such as 0.1099=a 0.8901=b",
        ),
        ([], "`data` names no dataset"),
    ],
)
def test_unusable_weights_are_refused_with_a_remedy(words, message):
    with pytest.raises(ValueError, match=re.escape(message)):
        parse_sources(words)


def test_a_mixture_without_a_dataset_is_refused():
    with pytest.raises(ValueError, match="`data` names no dataset: give a folder, or a mixture such as"):
        sources_of({})


@pytest.mark.parametrize(
    ("words", "weights"),
    [
        (["0.7=a", "0.3=b"], {"a": 7, "b": 3}),
        (["0.7=a", "0.2=b", "0.3=c=d"], {"a": 7, "b": 2, "c=d": 3}),  # any sum
        (["2=a", "4=b"], {"a": 1, "b": 2}),
        (["1e-3=a", ".999=b"], {"a": 1, "b": 999}),
        (["0.3=a"], {"a": 1}),
        (["a"], {"a": 1}),
    ],
)
def test_weights_are_exact_whole_numbers_in_lowest_terms(words, weights):
    sources = parse_sources(words)
    assert sources == {Path(folder): weight for folder, weight in weights.items()}
    assert sources_of(sources) == sources
    read_again = spell(sources)
    absolute = {folder.resolve(): weight for folder, weight in sources.items()}
    assert parse_sources([read_again] if isinstance(read_again, str) else read_again) == absolute


def test_a_folder_with_an_equals_sign_in_its_name_is_a_plain_dataset(tmp_path):
    folder = tmp_path / "0.5=a"
    folder.mkdir()
    assert parse_sources([str(folder)]) == {folder: 1}


def test_sources_that_do_not_fit_together_are_refused_by_name(
    tmp_path, in_process, dataset_folder, sentinel_dataset, other_dataset, pair_dataset
):
    others = {
        sentinel_dataset: "have different tokenizers",
        prose(
            tmp_path / "long", other_dataset, 64
        ): "have blocks of 32 and 64 tokens: build both with one --context-length",
        prose(
            tmp_path / "bare", other_dataset, separator=False
        ): "has a separator before each document: build both with the same separator option",
    }
    for other, message in others.items():
        done = in_process("pretrain", "gpt-tiny", "--data", f"1={dataset_folder}", f"1={other}", "--out", "run")
        assert done.returncode == 1
        assert f"{dataset_folder} and {other}" in done.stderr
        assert message in done.stderr
    pairs = in_process(
        "pretrain", "translate-tiny", "--data", f"1={pair_dataset}", f"1={dataset_folder}", "--out", "run"
    )
    assert "sequence-pairs sorts pairs by length: build one dataset of all pairs" in pairs.stderr
    assert not (tmp_path / "run").exists()


def test_a_run_does_not_resume_with_other_weights(tmp_path, small_recipe, mixture):
    recipe = with_train(small_recipe, tokens=256)
    pretrain(recipe, data=mixture, out=tmp_path / "run")
    config = (tmp_path / "run" / "config.toml").read_bytes()
    one, other = mixture
    with pytest.raises(
        ValueError, match=r"was trained on other data: 7=.*/data 3=.*/prose .*, not 3=.*/data 7=.*/prose"
    ):
        pretrain(recipe, data={one: 3, other: 7}, out=tmp_path / "run")
    assert (tmp_path / "run" / "config.toml").read_bytes() == config


def test_the_command_line_plans_and_resumes_a_mixture(tmp_path, in_process, small_recipe, mixture):
    save_config(tmp_path / "recipe.toml", with_train(small_recipe, tokens=2560), {})
    words = [f"{weight}={folder}" for folder, weight in mixture.items()]
    planned = in_process("pretrain", "recipe.toml", "--data", *words, "--out", "run", "--dry-run")
    assert "prose: 30 % of the tokens, 768 tok (" in planned.stdout
    assert not (tmp_path / "run").exists()
    assert in_process("pretrain", "recipe.toml", "--data", *words, "--out", "run").returncode == 0
    extended = in_process("pretrain", "--out", "run", "--train.tokens", "5120")
    assert extended.returncode == 0, extended.stderr
    assert metrics_of(tmp_path / "run")[-1]["tokens"] == 5120


@pytest.fixture(scope="module")
def trained_mixture(tmp_path_factory, small_recipe, mixture):
    """Return the run folder of a small decoder trained on `mixture`."""
    out = tmp_path_factory.mktemp("runs") / "mixed"
    pretrain(small_recipe, data=mixture, out=out)
    return out


def test_evaluate_scores_each_source_and_their_weighted_mean(tmp_path, in_process, trained_mixture, mixture):
    run = shutil.copytree(trained_mixture, tmp_path / "run")
    done = in_process("evaluate", "run", "--breakdown")
    assert done.returncode == 0, done.stderr
    assert "validation/data: In brackets: 95 % intervals" in done.stdout
    short = "validation/prose: No 95 % intervals: they need 30 documents, or 20 contexts"
    assert short in done.stdout
    assert "run, validation/prose: bits by class" in done.stdout
    assert "validation: the mean of the sources, weighted by their shares (70 % data, 30 % prose)" in done.stdout
    result = json.loads((run / "evaluation.json").read_text())
    assert list(result["splits"]) == ["validation", "validation/data", "validation/prose"]
    mean, *sources = result["splits"].values()
    for folder, numbers in zip(mixture, sources, strict=True):
        alone = evaluate(shutil.copytree(trained_mixture, tmp_path / folder.name), data=folder)
        assert numbers == alone.validation.to_json()
    for key in ("cross_entropy", "accuracy", "entropy_bits"):
        assert mean[key] == pytest.approx(0.7 * sources[0][key] + 0.3 * sources[1][key], rel=1e-12)
    assert mean["perplexity"] == pytest.approx(math.exp(mean["cross_entropy"]), rel=1e-12)
    assert mean["tokens"] == sources[0]["tokens"] + sources[1]["tokens"]
    # A text of 700 tokens of one source and 300 of the other:
    bits = sum(weight * each["cross_entropy_bits"] for weight, each in zip((700, 300), sources, strict=True))
    sizes = sum(weight * each["bytes"] / each["tokens"] for weight, each in zip((700, 300), sources, strict=True))
    assert mean["bits_per_byte"] == pytest.approx(bits / sizes, rel=1e-12)
    assert result["data"] == " ".join(Run(run).facts["data"])


def test_the_report_draws_the_loss_of_each_source(tmp_path, trained_mixture):
    run = shutil.copytree(trained_mixture, tmp_path / "run")
    evaluate(run)
    page = report([run], inside=False).read_text()
    for label in ("run, validation", "run, validation/data", "run, validation/prose"):
        assert label in page
    assert "A thin line is the validation loss on one source of a mixture" in page
    assert re.search(r"run needs [\d.]+ bits per byte on the validation split", page)
    assert "bytes per token, train/prose" in page


@pytest.mark.parametrize("damaged", ['["7=a", "b"]', "[]", "[7, 3]", "7"])
def test_a_damaged_list_of_sources_is_refused_by_field(tmp_path, trained_mixture, damaged):
    run = shutil.copytree(trained_mixture, tmp_path / "run")
    config = (run / "config.toml").read_text()
    (run / "config.toml").write_text(re.sub(r"\ndata = \[.*?\n\]", f"\ndata = {damaged}", config, flags=re.DOTALL))
    with pytest.raises(ValueError, match=r"config\.toml: run\.data is (missing or )?damaged"):
        Run(run)


def test_the_model_card_names_the_sources(trained_mixture):
    run = Run(trained_mixture)
    card = model_card(run, run.tokenizer(), 1000, "transformers", "pass")
    assert re.search(
        "A mixture: 0.7 of the tokens from my-text, .*; 0.3 of the tokens from text, split by .* bytes\\.", card
    )


def test_masked_tokens_and_spans_train_and_evaluate_on_a_mixture(tmp_path, small_recipe, sentinel_dataset):
    other = prose(tmp_path / "text", sentinel_dataset.with_name("tok"))
    for objective, architecture, context in (
        ("masked-token", "encoder", 34),
        ("span-corruption", "encoder-decoder", 32),
    ):
        model = replace(small_recipe.model, architecture=architecture, context_length=context)
        recipe = with_train(replace(small_recipe, objective=objective, model=model), tokens=2560)
        pretrain(recipe, data={sentinel_dataset: 1, other: 1}, out=tmp_path / architecture)
        mean, *sources = evaluate(tmp_path / architecture).to_json()["splits"].values()
        assert mean["cross_entropy"] == pytest.approx(sum(each["cross_entropy"] for each in sources) / 2, rel=1e-12)
        assert mean["bits_per_byte"] is None
