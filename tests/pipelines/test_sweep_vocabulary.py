"""`bytelm sweep-vocabulary`: equal compute, equal text, intervals over seeds, and resuming."""

import json
import signal
import subprocess
import time
from dataclasses import replace

import pytest

from lm.analysis.size import flops_per_token, meta_model
from lm.config import ModelConfig
from pipelines.pretrain import pretrain
from pipelines.run.recipe import Recipe, load_recipe, save_config
from pipelines.sweep.plan import Budget, SweepRun, Vocabulary
from pipelines.sweep.summary import tao_size
from pipelines.sweep_vocabulary import sweep_vocabulary
from pipelines.training.config import TrainConfig
from tests.conftest import BYTELM

FLOPS = 5e8
SIZES = (600, 1000)


@pytest.fixture(scope="module")
def tiny(tmp_path_factory, small_recipe):
    """Return a recipe file of a decoder that takes 256 tokens a step."""
    path = tmp_path_factory.mktemp("recipe") / "tiny.toml"
    save_config(path, replace(small_recipe, model=replace(small_recipe.model, dropout=0.0)), {})
    return str(path)


@pytest.fixture(scope="module")
def swept(tmp_path_factory, text_folder, tiny):
    """Return the folder of a sweep of three kinds, two sizes and two seeds, and its summary."""
    out = tmp_path_factory.mktemp("sweep") / "out"
    summary = sweep_vocabulary([str(text_folder)], out=out, sizes=SIZES, seeds=2, flops=FLOPS, recipe=tiny, workers=1)
    return out, summary


def results(folder):
    return [json.loads(path.read_text()) for path in sorted(folder.glob("runs/*/result.json"))]


def test_a_sweep_trains_every_kind_size_and_seed(swept):
    out, summary = swept
    found = {(each["kind"], each["size"], each["seed"]) for each in results(out)}
    assert found == {(k, v, s) for k in ("bpe", "wordpiece", "unigram") for v in SIZES for s in (0, 1)}
    assert json.loads((out / "results.json").read_text()) == json.loads(json.dumps(summary))
    assert [(row["kind"], row["size"]) for row in summary["rows"]][:2] == [("bpe", 600), ("bpe", 1000)]


def test_all_runs_take_the_same_flops_within_one_step(swept, tiny):
    recipe = load_recipe(tiny)
    for each in results(swept[0]):
        model = replace(recipe.model, vocab_size=each["size"])
        step = 256 * flops_per_token(meta_model(model))
        assert each["flops"] == pytest.approx(each["tokens"] * step / 256)
        assert FLOPS - step < each["flops"] <= FLOPS
        assert each["tokens"] == each["steps"] * 256


def test_all_runs_are_measured_on_the_same_bytes(swept):
    found = results(swept[0])
    assert len({each["held_out_sha256"] for each in found}) == 1
    assert len({each["held_out_bytes"] for each in found}) == 1
    assert {each["seed"] for each in found} == {0, 1}


def test_seeds_change_the_weights_and_not_the_work(swept):
    for kind in ("bpe", "wordpiece", "unigram"):
        one, other = (each for each in results(swept[0]) if (each["kind"], each["size"]) == (kind, 600))
        assert one["bits_per_byte"] != other["bits_per_byte"]
        assert one["tokens"] == other["tokens"]
        assert one["bytes_per_token"] == other["bytes_per_token"]


def test_the_code_length_is_that_of_the_verbs(swept, tiny, text_folder, tmp_path):
    """A run of the sweep equals `pretrain` on its dataset; `evaluate` measures the same bits per byte."""
    from corpora import open_corpus
    from pipelines.evaluate import evaluate
    from pipelines.sweep.vocabularies import held_out_documents

    out, _ = swept
    run = SweepRun(Vocabulary("bpe", 600), 1)
    recipe = Budget(load_recipe(tiny), FLOPS).recipe_of(run)
    assert pretrain(recipe, data=out / "vocabularies" / "bpe-600", out=tmp_path / "run") == 0
    held_out = held_out_documents(open_corpus(str(text_folder)))
    (tmp_path / "held-out.jsonl").write_text("".join(json.dumps({"text": each.decode()}) + "\n" for each in held_out))
    numbers = evaluate(tmp_path / "run", corpus=(str(tmp_path / "held-out.jsonl"),))
    measured = next(iter(numbers["splits"].values()))["bits_per_byte"]
    result = json.loads((out / "runs" / run.name / "result.json").read_text())
    assert result["bits_per_byte"] == pytest.approx(measured, rel=1e-5)


def test_a_finished_sweep_is_not_trained_again_and_takes_more_seeds(swept, text_folder, tiny):
    out, before = swept
    times = {path: path.stat().st_mtime_ns for path in out.glob("runs/*/result.json")}
    options = {"out": out, "kinds": ("bpe",), "sizes": (600,), "recipe": tiny, "workers": 1}
    summary = sweep_vocabulary([str(text_folder)], seeds=3, **options)  # without --flops: those of the sweep
    assert {path: path.stat().st_mtime_ns for path in times} == times
    assert summary["rows"][0]["each"][:2] == before["rows"][0]["each"]
    assert summary["rows"][0]["seeds"] == [0, 1, 2]


def test_an_interrupted_sweep_resumes_and_ends_with_the_same_numbers(text_folder, tiny, tmp_path):
    out = tmp_path / "out"
    command = [BYTELM, "sweep-vocabulary", text_folder, "--out", out, "--kinds", "bpe", "--sizes", "600", "--seeds"]
    command += ["1", "--flops", "1e10", "--recipe", tiny, "--workers", "1"]
    process = subprocess.Popen([*map(str, command)], stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True)
    log = out / "runs" / "bpe-600-seed-0" / "metrics.jsonl"
    deadline = time.monotonic() + 300
    while not (log.exists() and '"train"' in log.read_text()):
        assert process.poll() is None, process.communicate()
        assert time.monotonic() < deadline
        time.sleep(0.02)
    process.send_signal(signal.SIGINT)
    _, errors = process.communicate(timeout=120)
    assert process.returncode == 130
    assert "Traceback" not in errors
    assert list(log.parent.glob("checkpoints/step-*"))
    assert not (out / "results.json").exists()
    options = {"kinds": ("bpe",), "sizes": (600,), "flops": 1e10, "recipe": tiny}
    resumed = sweep_vocabulary([str(text_folder)], out=out, seeds=1, workers=1, **options)
    whole = sweep_vocabulary([str(text_folder)], out=tmp_path / "whole", seeds=2, workers=2, **options)
    assert resumed["rows"][0]["each"] == whole["rows"][0]["each"][:1]
    assert not list(out.glob("runs/*/checkpoints"))


def test_a_dry_run_writes_nothing(in_process, tmp_path, text_folder, tiny):
    done = in_process(
        *("sweep-vocabulary", text_folder, "--out", "sweep", "--sizes", "512", "2k", "--recipe", tiny, "--dry-run")
    )
    assert done.returncode == 0, done.stderr
    assert "18 runs" in done.stdout
    assert f"{Budget(load_recipe(tiny), 3600 * 1e11 / 18).tokens(2000):,}" in done.stdout
    assert list(tmp_path.iterdir()) == []


@pytest.mark.parametrize(
    ("options", "words"),
    [
        ("--kinds bytes", "invalid choice 'bytes'"),
        ("--kinds bpe --sizes 100", "--sizes 100 for bpe: vocab_size must be at least 261"),
        ("--kinds wordpiece --sizes 50", "--sizes 50 for wordpiece: vocab_size must be at least"),
        ("--kinds unigram --sizes 300", "--sizes 300 for unigram: there are"),
        ("--kinds bpe --sizes 1M --flops 1e13", "--sizes 1000000 for bpe: the text fills only"),
        ("--flops 1e6", "--flops is 1e+06, but one step with a vocabulary of 512 entries takes"),
        ("--flops -1", "--flops is -1, but must be above 0"),
        ("--sizes 0", "--sizes has 0"),
        ("--seeds 0", "--seeds is 0"),
        ("--workers 0", "--workers is 0"),
        ("--recipe bert-tiny", "--recipe has the objective masked-token"),
        ("--recipe gpt-tinyy", "there is no recipe 'gpt-tinyy'"),
    ],
)
def test_bad_options_are_refused_and_leave_no_files(in_process, tmp_path, text_folder, tiny, options, words):
    chosen = [] if "--recipe" in options else ["--recipe", tiny]
    done = in_process("sweep-vocabulary", text_folder, "--out", "sweep", *chosen, *options.split())
    assert done.returncode in (1, 2)
    assert words in done.stderr
    assert "Traceback" not in done.stderr
    assert not list(tmp_path.glob("sweep/runs/*"))


def test_a_sweep_with_other_settings_is_refused(swept, in_process, text_folder, tiny):
    command = ("sweep-vocabulary", text_folder, "--out", swept[0], "--recipe", tiny, "--sizes", "600")
    for options, words in (
        (("--flops", "1e9"), "another flops: give --flops 5e+08"),
        (("--split", "tail:0.1"), "another split_rule"),
    ):
        done = in_process(*command, *options)
        assert done.returncode == 1
        assert words in done.stderr


def test_small_models_have_the_vocabulary_of_tao_and_others():
    """Tao et al. 2024: with 33M non-embedding parameters, a vocabulary of 3.1M parameters."""
    assert tao_size(33_000_000, 512) == pytest.approx(6144)
    assert tao_size(66_000_000, 512) == pytest.approx(6144 * 2**0.8354)


def test_a_larger_vocabulary_gets_fewer_tokens():
    recipe = Recipe(model=ModelConfig(layers=1, width=32, heads=2, context_length=32), train=TrainConfig())
    budget = Budget(recipe, 1e13)
    tokens = [budget.tokens(2**power) for power in range(9, 17)]
    assert tokens == sorted(tokens, reverse=True)
    warm_up = [budget.recipe_of(SweepRun(Vocabulary("bpe", size), 0)).train for size in (512, 65536)]
    assert warm_up[0].warmup_tokens / warm_up[0].tokens == pytest.approx(
        warm_up[1].warmup_tokens / warm_up[1].tokens, rel=1e-4
    )
