"""What `bytelm train` chooses for a text and a budget."""

import json
import re
import shlex
from dataclasses import replace
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st

from corpora import open_corpus
from pipelines.cli.shell import command
from pipelines.first_model.choices import (
    BYTE_VOCABULARY,
    GPU_BATCHES,
    LEAST_BYTES,
    MOST_DECAY,
    PARAMETERS_PER_TOKEN,
    SIZES,
    Budget,
    Setting,
    bytes_per_token,
    check_enough,
    choice_of,
    choose,
    measured_budget,
    recipe_for,
    tokens_for,
    with_batch,
    with_decay,
    with_length,
    with_rates,
)
from pipelines.first_model.fit import HIGHEST_RATE, equal_tokens
from pipelines.first_model.steps import pretrain_command
from pipelines.first_model.text_facts import TextFacts, facts_of
from pipelines.recipes.recipe import Recipe

LAPTOP = Budget(seconds=600, flops_per_second=1e11)
GPU = Budget(seconds=600, flops_per_second=1e14)
budgets = st.builds(Budget, seconds=st.floats(1, 1e5), flops_per_second=st.floats(1e9, 1e15)) | st.builds(
    Budget, seconds=st.just(600.0), flops_per_second=st.just(1e11), tokens=st.integers(1, 10**12)
)


def text_of(size, typical=4096, scripts=None, shortest=None):
    """Return the facts of a text of `size` bytes, whose shortest split has `shortest` bytes."""
    held_out = size // 20
    return TextFacts(
        fingerprint="",
        split_rule="hash:0.05",
        documents={"train": 10, "validation": 1},
        bytes=size,
        train_bytes=size - held_out,
        validation_bytes=held_out,
        least_bytes=held_out if shortest is None else shortest,
        characters=size,
        typical_bytes=typical,
        scripts=scripts or {"Latin": 1.0},
    )


@given(size=st.integers(LEAST_BYTES * 2, 10**13), typical=st.integers(0, 40).map(lambda n: 2**n), budget=budgets)
def test_every_text_and_budget_gives_a_valid_recipe(size, typical, budget):
    text = text_of(size, typical)
    choice = choose(text, budget)
    assert BYTE_VOCABULARY <= choice.vocab_size <= 65_536
    assert 32 <= choice.context_length <= choice.size.context
    assert tokens_for(choice, text, budget) > 0
    for kind in ("gpt", "bert"):
        recipe = with_length(recipe_for(kind, choice), int(tokens_for(choice, text, budget)))
        assert recipe == Recipe(objective=recipe.objective, model=recipe.model, train=recipe.train)  # is checked
        assert recipe.model.context_length == choice.context_length + 2 * (kind == "bert")
        assert not recipe.train.unfinished_schedules()


@given(small=st.integers(LEAST_BYTES * 2, 10**11), more=st.integers(0, 10**11), budget=budgets)
def test_more_text_never_gives_a_model_of_the_same_size_fewer_entries(small, more, budget):
    less, choice = choose(text_of(small), budget), choose(text_of(small + more), budget)
    if choice.size == less.size:
        assert choice.vocab_size >= less.vocab_size


@pytest.mark.parametrize(
    ("size", "budget", "least", "most"),
    [
        (50_000, LAPTOP, 261, 1024),
        (1_000_000, LAPTOP, 2048, 4096),
        (30_000_000, LAPTOP, 4096, 8192),
        (2_000_000_000, GPU, 16_384, 32_768),
    ],
)
def test_the_vocabulary_grows_with_the_text_that_is_read(size, budget, least, most):
    assert least <= choose(text_of(size), budget).vocab_size <= most


def test_scripts_of_thousands_of_letters_get_twice_the_entries():
    chinese, english = (choose(text_of(5_000_000, scripts={script: 0.9}), LAPTOP) for script in ("Han", "Latin"))
    assert chinese.vocab_size == 2 * english.vocab_size


def test_every_split_has_room_for_a_block():
    assert choose(text_of(10**6), LAPTOP).context_length == 256
    assert choose(text_of(10**6, shortest=1000), LAPTOP).context_length == 128
    check_enough(text_of(10**6, shortest=256), "text")
    with pytest.raises(ValueError, match="the smallest split of text has only 255 bytes of text"):
        check_enough(text_of(10**6, shortest=255), "text")


def test_a_short_training_reads_no_more_text_than_its_tokens_have():
    assert choose(text_of(10**6), replace(LAPTOP, tokens=2000)).read_bytes == 2000


def test_a_gpu_gets_a_larger_model_than_a_laptop():
    text = text_of(2_000_000_000)
    assert choose(text, LAPTOP).size in SIZES[:3]
    assert choose(text, GPU).size in SIZES[-3:]


def test_a_small_text_gets_the_largest_model_that_does_not_overfit_it():
    """Up to 24 parameters for each token were best on 300 kB of English books (benchmarks/recipes.md)."""
    assert choose(text_of(320_000), GPU).size == SIZES[2]
    assert choose(text_of(1_000_000), GPU).size == SIZES[3]
    assert choose(text_of(1_000_000), replace(GPU, tokens=10**9)).size == SIZES[1]


@pytest.mark.parametrize("seconds", [60, 600, 3600])
def test_no_time_gives_a_tiny_text_a_large_model(seconds):
    """Also if the time ends the training of the large model before the text is repeated 8 times."""
    assert choose(text_of(40_000), replace(LAPTOP, seconds=seconds)).size == SIZES[1]


@given(size=st.integers(LEAST_BYTES * 2, 10**9), more=st.floats(1, 100))
def test_a_larger_text_never_gets_a_smaller_model_without_a_limit_of_time(size, more):
    smaller, larger = (choose(text_of(bytes_), replace(GPU, seconds=1e9)).size for bytes_ in (size, int(more * size)))
    assert SIZES.index(smaller) <= SIZES.index(larger)


def test_an_encoder_of_a_small_text_is_smaller_than_a_decoder():
    """In the same time, 32 epochs of 1 MB with width 128 were better than 10 with width 192 (benchmarks/recipes.md)."""
    text, encoders = text_of(1_000_000), replace(GPU, parameters_per_token=PARAMETERS_PER_TOKEN["bert"])
    assert choose(text, encoders).size == SIZES[1]
    assert choose(text_of(10**8), encoders).size == choose(text_of(10**8), GPU).size


def test_seconds_on_a_slow_machine_get_a_smaller_model_than_hours():
    text = text_of(10**9)
    widths = [choose(text, replace(LAPTOP, seconds=seconds)).size.width for seconds in (20, 300, 20_000)]
    assert widths == sorted(set(widths)) and widths[0] == 64


@given(tokens=st.integers(2048, 10**10), more=st.integers(0, 10**10))
def test_learning_rates_fall_with_the_tokens_to_those_of_the_recipe(tokens, more):
    recipe = recipe_for("gpt", choose(text_of(10**6), LAPTOP))
    short, long = (with_rates(with_length(recipe, n), "gpt-tiny").train for n in (tokens, tokens + more))
    assert HIGHEST_RATE >= short.muon_lr >= long.muon_lr >= recipe.train.muon_lr
    assert short.lr / short.muon_lr == pytest.approx(recipe.train.lr / recipe.train.muon_lr, rel=0.05)
    others = replace(with_length(recipe, tokens).train, lr=short.lr, muon_lr=short.muon_lr)
    assert others == short


def test_recipes_whose_rates_were_not_measured_keep_theirs():
    recipe = with_length(recipe_for("bert", choose(text_of(10**6), LAPTOP)), 10_000)
    assert with_rates(recipe, "bert-tiny") == recipe


@given(flops=st.floats(1e10, 1e19), more=st.floats(1, 100))
def test_more_flops_never_give_a_smaller_model_or_fewer_tokens(flops, more):
    text, budget = text_of(10**12), replace(LAPTOP, flops=flops)
    less, choice = choose(text, budget), choose(text, replace(budget, flops=more * flops))
    assert choice.size.width >= less.size.width
    if choice.size == less.size and choice.vocab_size == less.vocab_size:
        assert tokens_for(choice, text, replace(budget, flops=more * flops)) >= tokens_for(less, text, budget)


def test_a_machine_that_trains_large_models_as_fast_gets_a_larger_one():
    text, sizes = text_of(10**9), SIZES[:3]
    settings = [Setting(size) for size in sizes]
    equal = replace(LAPTOP, seconds=300, measured=dict.fromkeys(settings, 1e11))
    tokens = equal.tokens_of(settings[0], 4096)
    as_fast = {each: 6 * each.size.parameters(4096) * tokens / equal.seconds for each in settings}
    assert choose(text, replace(LAPTOP, measured=as_fast)).size.width > choose(text, equal).size.width


def launch_bound(choice):
    """Return the FLOP/s on a GPU whose every step takes at least 3 ms per layer, and which computes at 2e14 FLOP/s."""
    flops = 6 * choice.parameters * choice.setting.batch_tokens
    return flops / (3e-3 * choice.size.layers + flops / 2e14)


@pytest.mark.parametrize("seconds", [60, 600, 6000])
def test_a_gpu_that_waits_for_launches_gets_larger_batches(seconds):
    text, gpu = text_of(10**10), replace(GPU, seconds=seconds)
    budget = measured_budget(text, replace(gpu, batch_factors=GPU_BATCHES), launch_bound)
    alone = {Setting(size): launch_bound(choice_of(text, gpu, Setting(size))) for size in SIZES}
    single, choice = replace(gpu, measured=alone), choose(text, budget)
    assert choice.setting in budget.measured and choice.setting.batch_factor > 1
    assert tokens_for(choice, text, budget) > 2 * tokens_for(choose(text, single), text, single)
    assert len(budget.measured) <= 10  # each measurement takes seconds


@pytest.mark.parametrize("seconds", [60, 6000])
def test_the_choice_is_the_best_of_all_settings_that_were_not_measured(seconds):
    text, gpu = text_of(10**10), replace(GPU, seconds=seconds, flops_per_second=2e14, batch_factors=GPU_BATCHES)
    few = measured_budget(text, gpu, launch_bound)
    settings = [Setting(size, factor) for size in SIZES for factor in GPU_BATCHES]
    speeds = {each: launch_bound(choice_of(text, few, each)) for each in settings}
    assert choose(text, replace(gpu, measured=speeds)).setting == choose(text, few).setting


def test_a_model_that_does_not_fit_the_memory_is_not_chosen():
    text = text_of(10**10)
    budget = measured_budget(text, replace(GPU, seconds=6000), lambda choice: 1e14 * (choice.size.width < 512))
    assert choose(text, budget).size.width == 384


@given(tokens=st.integers(10**5, 10**12), factor=st.integers(1, 64), more=st.integers(1, 64))
def test_larger_batches_never_teach_more_with_the_same_tokens(tokens, factor, more):
    equal, less = (equal_tokens(tokens, 1024 * n, 1024) for n in (factor, factor + more))
    rounding = 1 + 1e-9
    assert rounding * tokens >= equal > less and rounding * less >= tokens / (factor + more)
    assert equal_tokens(tokens, 1024, 1024) == pytest.approx(tokens)
    longer = equal_tokens(10 * tokens, 1024 * factor, 1024)
    assert rounding * longer >= 10 * equal  # large batches cost a long training less


@pytest.mark.parametrize("kind", ["gpt", "bert"])
@pytest.mark.parametrize("factor", GPU_BATCHES)
def test_a_larger_batch_keeps_the_memory_of_the_second_moment_in_tokens(kind, factor):
    recipe = recipe_for(kind, choose(text_of(10**6), LAPTOP))
    larger = with_batch(recipe, factor).train
    assert larger.batch_tokens == factor * recipe.train.batch_tokens
    assert larger.beta2 == pytest.approx(max(0.95, 1 - factor * (1 - recipe.train.beta2)))
    assert (larger == recipe.train) == (factor == 1)


def test_short_documents_get_a_short_context():
    assert choose(text_of(10_000_000, typical=64), LAPTOP).context_length < 128
    assert choose(text_of(10_000_000), LAPTOP).context_length == 256


@given(size=st.integers(LEAST_BYTES * 2, 10**12))
def test_a_time_never_means_more_than_8_epochs_of_a_gpt_and_32_of_a_bert(size):
    text = text_of(size)
    choice = choose(text, GPU)
    for kind, most in (("gpt", 8), ("bert", 32)):
        assert tokens_for(choice, text, GPU, kind) <= most * text.train_bytes / bytes_per_token(choice.vocab_size) + 1


def test_only_a_small_text_that_is_read_several_times_gets_a_strong_weight_decay():
    choice = choose(text_of(10**6), LAPTOP)
    gpt, bert = (with_length(recipe_for(kind, choice), 2_400_000) for kind in ("gpt", "bert"))
    assert with_decay(gpt, 2_400_000) == gpt  # read once
    assert with_decay(bert, 300_000) == bert
    often = with_decay(gpt, 300_000)
    assert often.train.weight_decay == pytest.approx(0.61)
    assert replace(often, train=replace(often.train, weight_decay=gpt.train.weight_decay)) == gpt


@given(text_tokens=st.integers(1000, 10**10), epochs=st.floats(4.1, 100))
def test_a_smaller_text_never_gets_a_weaker_weight_decay(text_tokens, epochs):
    recipe = recipe_for("gpt", choose(text_of(10**6), LAPTOP))
    small, large = (
        with_decay(with_length(recipe, int(epochs * tokens)), tokens).train.weight_decay
        for tokens in (text_tokens, 2 * text_tokens)
    )
    assert recipe.train.weight_decay <= large <= small <= MOST_DECAY


def test_too_little_text_is_refused_with_both_numbers():
    with pytest.raises(ValueError, match=r"my-text has 950 bytes of text to train on, .* at least 10,000"):
        check_enough(text_of(1000), "my-text")


def test_a_text_without_validation_text_is_refused_before_the_first_step():
    text = replace(text_of(10**6), validation_bytes=0)
    with pytest.raises(ValueError, match=r"split validation of my-text is empty under the rule hash:0.05: use `split="):
        check_enough(text, "my-text")


@pytest.mark.parametrize("split", [None, "tail:0.2", "hash:0.3"])
def test_the_facts_of_a_text_are_those_of_its_dataset(text_folder, tokenizer_folder, tmp_path, split):
    from pipelines.verbs.build_dataset import build_dataset

    (tmp_path / "text").mkdir()
    (tmp_path / "text" / "a.jsonl").write_text(
        "".join(
            json.dumps({"text": text}) + "\n" for text in ["Привет, мир! " * 40, "γειά σου " * 9, "中文字符" * 300] * 9
        )
    )
    specs = [str(text_folder), str(tmp_path / "text")]
    facts = facts_of(open_corpus(specs, split=split), lambda done: None)
    info = build_dataset(specs, tokenizer=tokenizer_folder, context_length=32, out=tmp_path / "data", split=split)
    assert facts.fingerprint == info.corpus.fingerprint
    assert facts.split_rule == info.corpus.split_rule
    for name, entry in info.splits.items():
        assert facts.documents[name] == entry.documents
    assert facts.train_bytes == info.splits["train"].bytes
    assert facts.bytes == sum(entry.bytes for entry in info.splits.values())
    assert facts.characters == sum(
        len(text) for _, texts in open_corpus(specs).documents() for text in map(bytes.decode, texts.to_pylist())
    )
    assert facts.typical_bytes == 8192
    assert next(iter(facts.scripts)) == "Latin" and {"Han", "Cyrillic", "Greek"} <= facts.scripts.keys()
    assert sum(facts.scripts.values()) == pytest.approx(1)


def test_scripts_have_their_shares_of_the_letters_wherever_they_are(tmp_path):
    texts = {"a": "plain words " * 4000, "b": "שלום לכולם " * 2000, "c": "مرحبا بالعالم " * 1000, "d": "и так " * 9000}
    for name, text in texts.items():
        (tmp_path / f"{name}.txt").write_text(text, encoding="utf-8")
    (tmp_path / "e.jsonl").write_text("".join(json.dumps({"text": "short"}) + "\n" for _ in range(500)))
    letters = {name: sum(map(str.isalpha, text)) for name, text in texts.items()}
    letters["a"] += 500 * 5
    shares = facts_of(open_corpus(str(tmp_path), split="hash:0.05"), lambda done: None).scripts
    for name, script in zip("abcd", ("Latin", "Hebrew", "Arabic", "Cyrillic"), strict=True):
        assert shares[script] == pytest.approx(letters[name] / sum(letters.values()), abs=0.06), (script, shares)


def test_a_command_reads_back_as_its_words():
    line = command("build-dataset", "my text", suffix=(".md", ".py"), encoding=None, separator=False, out="it's")
    assert shlex.split(line) == [
        *("bytelm", "build-dataset", "my text", "--suffix", ".md", ".py", "--no-separator", "--out", "it's")
    ]


def test_a_pretrain_command_names_every_changed_field():
    recipe = recipe_for("gpt", replace(choose(text_of(10**6), LAPTOP), setting=Setting(SIZES[2]), context_length=128))
    words = shlex.split(pretrain_command("gpt-tiny", with_length(recipe, 5000), data=Path("d"), out=Path("o")))
    assert words[:7] == ["bytelm", "pretrain", "gpt-tiny", "--data", "d", "--out", "o"]
    changed = dict(zip(words[7:-1:2], words[8::2], strict=True))
    assert changed == {
        "--model.context-length": "128",
        "--model.layers": "3",
        "--model.width": "192",
        "--model.heads": "3",
        "--train.tokens": "5000",
        "--train.warmup-tokens": "250",
        "--train.validate-every-tokens": "500",
        "--train.checkpoint-every-tokens": "1000",
    }
    assert words[-1] == "--train.keep-best"


def test_each_next_command_leads_from_a_text_to_a_report(text_folder, tmp_path, in_process):
    words = ["train-tokenizer", str(text_folder), "--vocab-size", "400", "--split", "tail:0.2", "--out", "my own/tok"]
    verbs = []
    while words:
        verbs.append(words[0])
        few = ["--train.tokens", "2k", "--train.warmup-tokens", "100", "--model.layers", "1"]
        done = in_process(*words, *(few if words[0] == "pretrain" else ()))
        assert done.returncode == 0, done.stderr
        following = [line for line in done.stdout.splitlines() if line.startswith("next: bytelm ")]
        words = shlex.split(following[0])[2:] if following else []
    assert verbs == ["train-tokenizer", "build-dataset", "pretrain", "evaluate", "report"]
    assert (tmp_path / "my own" / "gpt" / "report.html").exists()


def test_a_dry_run_and_json_have_no_next_command(text_folder, in_process):
    words = ["train-tokenizer", text_folder, "--vocab-size", "300", "--out", "tok"]
    for more in ("--dry-run", "--json"):
        assert "next:" not in in_process(*words, more).stdout


@pytest.mark.parametrize(
    ("recipe", "how"),
    [("gpt-tiny", "measured over a few steps"), ("gpt2-124m", "estimated from the speed of matrix products")],
)
def test_a_dry_run_tells_the_time_of_a_training(dataset_folder, tmp_path, in_process, recipe, how):
    options = ("--model.context-length", "32", "--out", "run", "--dry-run")
    done = in_process("pretrain", recipe, "--data", dataset_folder, *options)
    assert done.returncode == 0, done.stderr
    assert re.search(rf"; training takes about [\d:]+, at [\d.]+ k?tok/s \({how}\)$", done.stdout, re.M), done.stdout
    assert not list(tmp_path.iterdir())


def test_a_dry_run_tells_the_time_of_counting_and_encoding(text_folder, tokenizer_folder, in_process):
    counting = in_process("train-tokenizer", text_folder, "--vocab-size", "300", "--out", "tok", "--dry-run")
    options = ("--tokenizer", tokenizer_folder, "--context-length", "32", "--out", "data", "--dry-run")
    for done in (counting, in_process("build-dataset", text_folder, *options)):
        assert re.search(r"^would take about 0:0\d, at [13]0 MB/s on each of \d+ cores?$", done.stdout, re.M), done
    counting = in_process(
        "train-tokenizer", text_folder, "--vocab-size", "300", "--threads", "1", "--out", "tok", "--dry-run"
    )
    for done in (counting, in_process("build-dataset", text_folder, *options, "--threads", "1")):
        assert re.search(r"at [13]0 MB/s on each of 1 core$", done.stdout, re.M), done
