"""`bytelm sweep-vocabulary`: equal compute, equal text, intervals over seeds, and resuming."""

import json
import os
import shutil
import signal
import subprocess
import time
from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest
from scipy import stats

from corpora import open_corpus
from lm.config import ModelConfig
from lm.costs import flops_per_token, meta_model
from pipelines.recipes.config import TrainConfig
from pipelines.recipes.recipe import Recipe, load_recipe, save_config
from pipelines.run.folder import lock
from pipelines.sweep.lost_text import lost_bits
from pipelines.sweep.picture import figure_of
from pipelines.sweep.plan import Budget, SweepRun, Vocabulary
from pipelines.sweep.sweep_runs import Work, finish
from pipelines.sweep.sweep_summary import sentences, summarize, tao_size
from pipelines.sweep.vocabularies import HELD_OUT_BYTES, LONGEST_DOCUMENT, held_out_documents
from pipelines.verbs.evaluate import evaluate
from pipelines.verbs.pretrain import pretrain
from pipelines.verbs.sweep_vocabulary import sweep_vocabulary
from tests.conftest import BYTELM, is_running
from tokenizer import Tokenizer

FLOPS = 3e8
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
    summary = sweep_vocabulary([str(text_folder)], out=out, sizes=SIZES, seeds=2, flops=FLOPS, recipe=tiny, workers=2)
    return out, summary


def results(folder):
    return [json.loads(path.read_text()) for path in sorted(folder.glob("results/*.json"))]


def test_a_sweep_trains_every_kind_size_and_seed(swept):
    out, summary = swept
    found = {(each["kind"], each["size"], each["seed"]) for each in results(out)}
    assert found == {(k, v, s) for k in ("bpe", "wordpiece", "unigram") for v in SIZES for s in (0, 1)}
    assert json.loads((out / "results.json").read_text()) == json.loads(json.dumps(summary.to_json()))
    assert [(row.kind, row.size) for row in summary.rows][:2] == [("bpe", 600), ("bpe", 1000)]


def test_the_picture_is_a_png(swept):
    picture = (swept[0] / "bits-per-byte.png").read_bytes()
    assert picture.startswith(b"\x89PNG")
    assert len(picture) > 10_000
    assert not list(swept[0].glob("*.partial"))


def test_the_summary_has_the_interval_over_seeds(swept):
    _, summary = swept
    pooled = np.mean([np.var(list(row.runs.values()), ddof=1) for row in summary.rows])
    assert summary.degrees_of_freedom == 6
    for row in summary.rows:
        assert row.bits_per_byte == pytest.approx(np.mean(list(row.runs.values())))
        assert row.margin == pytest.approx(stats.t.ppf(0.975, 6) * np.sqrt(pooled / 2))
        assert row.embedding_share == row.size * 32 / row.parameters
    best = summary.best["all"]
    assert best.size == min(summary.rows, key=lambda row: row.bits_per_byte).size
    assert str(summary).splitlines()[0].startswith("bpe: ")


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
    out, _ = swept
    run = SweepRun(Vocabulary("bpe", 600), 1)
    recipe = Budget(load_recipe(tiny), FLOPS).recipe_of(run)
    pretrain(recipe, data=out / "vocabularies" / "bpe-600", out=tmp_path / "run")
    held_out = held_out_documents(open_corpus(str(text_folder)))
    (tmp_path / "held-out.jsonl").write_text("".join(json.dumps({"text": each.decode()}) + "\n" for each in held_out))
    numbers = evaluate(tmp_path / "run", corpus=(str(tmp_path / "held-out.jsonl"),))
    measured = next(iter(numbers.splits.values())).bits_per_byte
    result = json.loads((out / "results" / f"{run.name}.json").read_text())
    assert result["bits_per_byte"] == pytest.approx(measured, rel=1e-5)


def test_a_finished_sweep_is_not_trained_again_and_takes_more_seeds(swept, text_folder, tiny):
    out, before = swept
    times = {path: path.stat().st_mtime_ns for path in out.glob("results/*.json")}
    options = {"out": out, "kinds": ("bpe",), "sizes": (600,), "recipe": tiny, "workers": 1}
    summary = sweep_vocabulary([str(text_folder)], seeds=3, **options)  # without --flops: those of the sweep
    assert {path: path.stat().st_mtime_ns for path in times} == times
    runs = summary.rows[0].runs
    assert runs == before.rows[0].runs | {"2": runs["2"]}


def whole_work(swept, folder, recipe, flops, text_folder):
    """Return the work of a sweep in `folder` with the vocabularies of another."""
    folder.mkdir()
    (folder / "vocabularies").symlink_to(swept / "vocabularies")
    settings = json.loads((swept / "sweep.json").read_text())["recipe"]["train"]
    budget = Budget(load_recipe(recipe), flops)
    train = replace(budget.recipe.train, device=settings["device"], dtype=settings["dtype"])
    budget = replace(budget, recipe=replace(budget.recipe, train=train))
    return Work(folder, budget, held_out_documents(open_corpus(str(text_folder))))


@pytest.mark.slow
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
    assert errors.endswith(
        f": {out} keeps the finished vocabularies and runs, and the same command resumes from them\n"
    )
    assert "Traceback" not in errors
    assert list(log.parent.glob("checkpoints/step-*"))
    assert not (out / "results.json").exists()
    options = {"kinds": ("bpe",), "sizes": (600,), "flops": 1e10, "recipe": tiny}
    resumed = sweep_vocabulary([str(text_folder)], out=out, seeds=1, **options)
    work, run = whole_work(out, tmp_path / "whole", tiny, 1e10, text_folder), SweepRun(Vocabulary("bpe", 600), 0)
    assert finish(work, run)
    assert resumed.rows[0].runs == {"0": work.result(run)["bits_per_byte"]}
    assert not list(out.glob("runs/*"))


@pytest.mark.slow
@pytest.mark.skipif(not Path("/proc/self/task").is_dir(), reason="children are listed in /proc")
def test_the_processes_of_a_killed_sweep_end_with_it_and_leave_its_folder_free(text_folder, tiny, tmp_path):
    command = [BYTELM, "sweep-vocabulary", text_folder, "--kinds", "bpe", "--sizes", "600", "--seeds", "2"]
    command = [*map(str, [*command, "--recipe", tiny, "--workers", "2", "--out", tmp_path / "out", "--flops"])]
    process = subprocess.Popen([*command, "1e14"], stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL)
    deadline = time.monotonic() + 300
    while len(list(tmp_path.glob("out/runs/*/metrics.jsonl"))) < 2:
        assert process.poll() is None and time.monotonic() < deadline
        time.sleep(0.05)
    children = [int(pid) for pid in Path(f"/proc/{process.pid}/task/{process.pid}/children").read_text().split()]
    assert len(children) >= 2
    process.kill()
    process.wait()
    deadline = time.monotonic() + 60
    while any(map(is_running, children)) and time.monotonic() < deadline:
        time.sleep(0.05)
    left = list(filter(is_running, children))
    for pid in left:
        os.kill(pid, signal.SIGKILL)
    assert not left
    for run in tmp_path.glob("out/runs/*"):
        with lock(run):
            pass


def test_a_dry_run_writes_nothing(in_process, tmp_path, text_folder, tiny):
    done = in_process(
        *("sweep-vocabulary", text_folder, "--out", "sweep", "--sizes", "512", "2k", "--recipe", tiny, "--dry-run")
    )
    assert done.returncode == 0, done.stderr
    assert "18 runs" in done.stdout
    assert f"{Budget(load_recipe(tiny), 3600 * 1e11 / 18).tokens(2000):,}" in done.stdout
    assert "a size too small for the alphabet or too large for the text is an error" in done.stdout
    assert list(tmp_path.iterdir()) == []


def test_a_dry_run_with_default_sizes_says_that_some_may_be_left_out(in_process, text_folder, tiny):
    options = ("--recipe", tiny, "--kinds", "bpe", "--dry-run")
    done = in_process("sweep-vocabulary", text_folder, "--out", "sweep", *options)
    assert "would train at most 24 runs" in done.stdout
    assert "too large for the text is left out" in done.stdout
    done = in_process("sweep-vocabulary", text_folder, "--out", "sweep", *options, "--sizes", "512")
    assert "would train 3 runs" in done.stdout
    assert "1 vocabulary, 3 seeds each" in done.stdout


@pytest.mark.parametrize(
    ("options", "words"),
    [
        ("--dry-run --json", "--json prints the summary, but --dry-run makes none"),
        ("--kinds bytes", "--kinds is bytes, but must be "),
        ("--kinds bpe --sizes 100", "--sizes 100 for bpe: vocab_size must be at least 261"),
        ("--kinds wordpiece --sizes 50", "--sizes 50 for wordpiece: vocab_size must be at least"),
        ("--kinds unigram --sizes 300", "--sizes 300 for unigram: there are"),
        ("--kinds bpe --sizes 1M --flops 1e13", "--sizes 1000000 for bpe: the text fills only"),
        ("--flops 1e6", "--flops is 1e+06, but one step with a vocabulary of 512 entries takes"),
        ("--flops -1", "--flops is -1, but must be above 0"),
        ("--flops inf", "--flops is inf, but must be above 0 and finite"),
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
    assert list(tmp_path.iterdir()) == []


@pytest.mark.parametrize("dry", [False, True])
def test_a_sweep_with_other_settings_is_refused(swept, in_process, text_folder, tiny, tmp_path, dry):
    recipe = load_recipe(tiny)
    save_config(tmp_path / "other.toml", replace(recipe, train=replace(recipe.train, lr=0.5)), {})
    command = ("sweep-vocabulary", text_folder, "--out", swept[0], "--sizes", "600", *["--dry-run"] * dry)
    for options, words in (
        (("--recipe", tiny, "--flops", "1e9"), "another flops: give --flops 300000000.0"),
        (("--recipe", tiny, "--split", "tail:0.1"), "another split_rule"),
        (("--recipe", "other.toml"), "another recipe: give the same --recipe"),
    ):
        done = in_process(*command, *options)
        assert done.returncode == 1
        assert words in done.stderr


def test_a_damaged_file_is_named(swept, in_process, text_folder, tiny, tmp_path):
    out = tmp_path / "out"
    shutil.copytree(swept[0], out)
    command = ("sweep-vocabulary", text_folder, "--out", out, "--recipe", tiny, "--sizes", *SIZES, "--seeds", "2")
    result = out / "results" / "bpe-600-seed-0.json"
    result.write_text('{"kind": "bpe"}')
    done = in_process(*command)
    assert done.returncode == 1
    assert f"{result} is damaged (it has no number bits_per_byte): remove the file" in done.stderr
    for content in ("{", '{"format": 1, "flops": 1e9, "recipe": []}'):
        (out / "sweep.json").write_text(content)
        done = in_process(*command)
        assert done.returncode == 1
        assert f"{out / 'sweep.json'} is damaged" in done.stderr
        assert "Traceback" not in done.stderr


def test_a_folder_with_other_files_is_refused(in_process, tmp_path, text_folder, tiny):
    (tmp_path / "sweep").mkdir()
    (tmp_path / "sweep" / "notes.txt").write_text("mine")
    done = in_process("sweep-vocabulary", text_folder, "--out", "sweep", "--recipe", tiny)
    assert done.returncode == 1
    assert "sweep is not empty and holds no sweep: choose another --out" in done.stderr
    assert [path.name for path in (tmp_path / "sweep").iterdir()] == ["notes.txt"]


def test_the_recommended_size_follows_the_power_law_of_tao_and_others():
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


def test_a_warm_up_as_long_as_the_runs_is_named_by_the_plan(in_process, text_folder, small_recipe, tmp_path):
    for warm_up, warned in ((12_800, True), (1000, False)):
        train = replace(small_recipe.train, warmup_tokens=warm_up)
        save_config(tmp_path / "recipe.toml", replace(small_recipe, train=train), {})
        options = ("--recipe", "recipe.toml", "--kinds", "bpe", "--sizes", "512", "--flops", "1e10", "--dry-run")
        done = in_process("sweep-vocabulary", text_folder, "--out", "sweep", *options)
        assert done.returncode == 0, done.stderr
        assert ("bpe-512-seed-0: the warm-up of" in done.stderr) == warned
        assert ("the learning rate ends at its peak: lower train.warmup_tokens" in done.stderr) == warned


def test_the_table_marks_the_best_and_json_has_every_number(swept, in_process, text_folder, tiny):
    command = ("sweep-vocabulary", text_folder, "--out", swept[0], "--recipe", tiny, "--sizes", *SIZES, "--seeds", "2")
    shown = in_process(*command)
    rows = {tuple(line.split()[:2]): line for line in shown.stdout.splitlines()}
    summary = json.loads(in_process(*command, "--json").stdout)
    assert summary == json.loads((swept[0] / "results.json").read_text())
    for row in summary["rows"]:
        line = rows[row["kind"], f"{row['size']:,}"]
        good = {each["size"] for each in summary["best"][row["kind"]]["not_significantly_worse"]}
        assert ("*" in line) == (row["size"] in good)
        assert f"{row['bits_per_byte']:.4f}" in line
        assert len(line) <= 80
    assert "extrapolated below their 33M" in shown.stdout
    assert "not corrected for many comparisons" in shown.stdout


def test_one_seed_claims_no_difference(swept, in_process, text_folder, tiny, tmp_path):
    """The first seed of a sweep of two: a size and a kind have the lowest bits, and nothing more is known."""
    out = shutil.copytree(swept[0], tmp_path / "out")
    command = ("sweep-vocabulary", text_folder, "--out", out, "--recipe", tiny, "--sizes", *SIZES, "--seeds", "1")
    done = in_process(*command)
    assert done.returncode == 0, done.stderr
    assert "signific" not in done.stdout and "±" not in done.stdout
    assert (
        "One seed gives no intervals and no test, and other seeds may rank the vocabularies differently" in done.stdout
    )
    summary = json.loads((out / "results.json").read_text())
    lowest = {kind: best["size"] for kind, best in summary["best"].items()}
    assert f"bpe: {lowest['bpe']:,} entries in one run" in done.stdout
    assert {best["not_significantly_worse"] for best in summary["best"].values()} == {None}
    starred = {tuple(line.split()[:2]) for line in done.stdout.splitlines() if "* " in line and line[0] != "*"}
    assert starred == {(kind, f"{size:,}") for kind, size in lowest.items() if kind != "all"}
    assert "one seed gives no intervals and no test of differences" in in_process(*command, "--dry-run").stdout


@pytest.mark.parametrize(("seeds", "label"), [(1, "lowest of its kind in one run"), (2, "not significantly worse")])
def test_the_picture_of_one_seed_has_no_intervals_and_names_its_rings(swept, text_folder, tiny, tmp_path, seeds, label):
    out = shutil.copytree(swept[0], tmp_path / "out")
    summary = sweep_vocabulary([str(text_folder)], out=out, sizes=SIZES, seeds=seeds, recipe=tiny)
    axes = figure_of(summary, "title").axes[0]
    assert any(label in each.get_text() for each in axes.get_legend().get_texts())
    assert len([each for each in axes.containers if each.has_yerr]) == (0 if seeds == 1 else 3)


def test_a_lowest_size_at_the_end_of_the_tried_sizes_is_marked_as_such():
    """Sizes beyond the last one may be better still."""
    budget = Budget(Recipe(model=ModelConfig(layers=1, width=32, heads=2, context_length=32)), 1e13)
    keys = ("lost_bits_per_byte", "bytes_per_token", "tokens", "bytes_seen", "epochs", "flops", "embedding_parameters")
    run = dict.fromkeys(keys, 0.0) | {"parameters": 1, "seed": 0}
    for bits, words in (((1, 2, 3), ", the smallest tried"), ((3, 2, 1), ", the largest tried"), ((2, 1, 3), "")):
        runs = {Vocabulary("bpe", 2**i): [run | {"bits_per_byte": float(b)}] for i, b in enumerate(bits, 9)}
        lowest = 2 ** (9 + bits.index(1))
        assert sentences(summarize(budget, runs))[0] == f"bpe: {lowest:,} entries in one run{words}"
    alone = {Vocabulary("bpe", 512): [run | {"bits_per_byte": 1.0}]}
    assert sentences(summarize(budget, alone))[0] == "bpe: 512 entries in one run"


@pytest.mark.filterwarnings("ignore:the corpus ran out")
def test_lost_white_space_costs_its_entropy_and_unknown_words_their_bytes():
    text = ["a b a b\na b"]
    unigram = Tokenizer.train(["a b " * 50], 30, kind="unigram", special_tokens=())
    entropy = -4 * np.log2(4 / 5) - np.log2(1 / 5)
    once = 8 * 2  # the two kinds of gap
    assert lost_bits([text[0].encode()], unigram) == pytest.approx(entropy + once)
    wordpiece = Tokenizer.train(["a b " * 50], 30, "bert-cased", kind="wordpiece", special_tokens=())
    assert lost_bits([text[0].encode()], wordpiece) == pytest.approx(entropy + once)
    assert lost_bits(["☃".encode()], wordpiece) == 8 * 3
    bpe = Tokenizer.train(["a b " * 50], 260, special_tokens=())
    assert lost_bits([text[0].encode(), b"\xff \xe2"], bpe) == 0
    words = Tokenizer.train(["a b " * 50], 3, kind="words", special_tokens=())
    assert lost_bits([text[0].encode()], words) == pytest.approx(entropy + once)
    assert lost_bits(["a ☃☃".encode()], words) == 8 * (1 + 2 * 3)  # one gap, and an unknown word
    characters = Tokenizer.train(["a b\n" * 50], 5, kind="characters", special_tokens=())
    assert lost_bits(["a b\n☃".encode()], characters) == 8 * 3  # all white space is kept


def test_the_held_out_text_comes_from_all_parts_of_the_corpus_and_is_not_all_of_one_document(tmp_path):
    documents = [f"{number} " + "tête-à-tête " * 200 for number in range(2000)] + ["ü" * 200_000]
    (tmp_path / "text.jsonl").write_text("".join(json.dumps({"text": each}) + "\n" for each in documents))
    found = held_out_documents(open_corpus(str(tmp_path / "text.jsonl"), split="hash:0.9"))
    numbers = [int(each.split()[0]) for each in found if each[:1].isdigit()]
    assert numbers == sorted(numbers)
    assert min(numbers) < 200
    assert max(numbers) > 1800
    assert HELD_OUT_BYTES <= sum(map(len, found)) < HELD_OUT_BYTES + LONGEST_DOCUMENT
    assert max(map(len, found)) <= LONGEST_DOCUMENT
    for each in found:
        each.decode()  # no character is cut
