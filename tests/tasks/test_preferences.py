"""Preferences: the loss and its gradient beside plain formulas in float64, runs, the reference, and errors."""

import json
import math
import shutil
import warnings
from copy import deepcopy
from functools import partial

import numpy as np
import pytest
import torch
import torch.nn.functional as F  # noqa: N812

import bytelm
from pipelines.evaluation.results import Evaluation
from pipelines.reporting.plots import plots
from pipelines.reporting.subject import subject_of
from pipelines.run.answer_scores import answer_scores, with_reference
from pipelines.run.folder import Run
from pipelines.run.loaded_run import load_model
from pipelines.tasks.data import reader_of
from pipelines.tasks.examples import batch_of
from pipelines.tasks.preferences import Preferences
from pipelines.tasks.task import Example
from pipelines.training.batch import Shard
from pipelines.training.finetuning import starting_weights
from pipelines.training.init_from import Source
from pipelines.training.logit_losses import summed_preference_loss
from pipelines.verbs.grow_vocabulary import grow_vocabulary
from tests.tasks.files import write

CPU = torch.device("cpu")
PAIRS = [
    ("import", " os", " the system"),
    ("def f", "(x): return x", "()"),
    ("", "class A:", "cl"),
    ("x = ", "1", "two"),
]
SETTINGS = {"lr": 1e-2, "batch_size": 4, "device": "cpu", "dtype": "float32"}


@pytest.fixture(scope="module")
def models(trained_gpt):
    """Return a trained model, and a copy with other weights."""
    model = load_model(Run(trained_gpt), "cpu").model
    other = deepcopy(model)
    generator = torch.Generator().manual_seed(0)
    with torch.no_grad():
        for parameter in other.parameters():
            parameter.add_(0.05 * torch.randn(parameter.shape, generator=generator))
    return model, other


def encoded(run, task, pairs=PAIRS):
    return task.encode([Example(None, pair) for pair in pairs], reader_of(Run(run), task))


def plain_log_probabilities(model, run, pairs=PAIRS):
    """Return log-softmax of each answer's tokens in float64, one text at a time: lists of (tokens, V) and targets."""
    tok = Run(run).tokenizer()
    end = tok.special_tokens["<|endoftext|>"]
    double = deepcopy(model).double()
    double.compute_dtype = torch.float64
    for parameter, own in zip(double.parameters(), model.parameters(), strict=True):
        parameter.requires_grad_(own.requires_grad)
    found = []
    for prompt, *answers in pairs:
        start = [end, *tok.encode(prompt)]
        for answer in answers:
            targets = [*tok.encode(answer), end]
            ids = torch.tensor([[*start, *targets[:-1]]])
            logits = double.logits(double(ids))[0, len(start) - 1 :]
            found.append((F.log_softmax(logits, dim=-1), torch.tensor(targets)))
    return double, found


def plain_sums(found):
    sums = [log_p.gather(-1, targets.unsqueeze(-1)).sum() for log_p, targets in found]
    return torch.stack(sums).view(-1, 2)


@pytest.mark.parametrize("smoothing", [0.0, 0.2])
def test_the_loss_and_its_gradient_are_those_of_the_plain_formula(models, trained_gpt, smoothing):
    reference, policy = models
    task = Preferences(beta=0.3)
    batch = batch_of(with_reference(encoded(trained_gpt, task), reference))
    policy.zero_grad()
    loss = summed_preference_loss(policy, policy, batch, beta=0.3, device=CPU, label_smoothing=smoothing)
    loss.backward()
    double, found = plain_log_probabilities(policy, trained_gpt)
    with torch.no_grad():
        _, theirs = plain_log_probabilities(reference, trained_gpt)
    ratios = plain_sums(found) - plain_sums(theirs)
    margins = 0.3 * (ratios[:, 0] - ratios[:, 1])
    flipped = smoothing / 2
    expected = -((1 - flipped) * F.logsigmoid(margins) + flipped * F.logsigmoid(-margins)).sum()
    expected.backward()
    assert float(loss) == pytest.approx(float(expected), abs=1e-5)
    for ours, plain in zip(policy.parameters(), double.parameters(), strict=True):
        torch.testing.assert_close(ours.grad.double(), plain.grad, atol=1e-5, rtol=1e-4)


def test_log_probabilities_and_kl_are_those_of_the_plain_formula(models, trained_gpt):
    reference, policy = models
    scores = answer_scores(policy, reference, encoded(trained_gpt, Preferences()))
    with torch.no_grad():
        _, ours = plain_log_probabilities(policy, trained_gpt)
        _, theirs = plain_log_probabilities(reference, trained_gpt)
    np.testing.assert_allclose([one.own for one in scores], plain_sums(ours), atol=1e-4)
    np.testing.assert_allclose([one.reference for one in scores], plain_sums(theirs), atol=1e-4)
    kl = [float((p.exp() * (p - q)).sum()) / math.log(2) for (p, _), (q, _) in zip(ours, theirs, strict=True)]
    assert [one.kl_bits for one in scores] == pytest.approx(np.reshape(kl, (-1, 2)).sum(axis=1), rel=1e-4)
    assert [one.tokens for one in scores] == [
        len(a) + len(b) for (_, a), (_, b) in zip(ours[::2], ours[1::2], strict=True)
    ]


def test_a_model_that_is_its_reference_has_ln_2_and_ties(models, trained_gpt):
    model, task = models[0], Preferences()
    pairs = encoded(trained_gpt, task)
    batch = batch_of(with_reference(pairs, model))
    loss = summed_preference_loss(model, model, batch, beta=0.1, device=CPU)
    assert float(loss) / len(pairs) == pytest.approx(math.log(2), abs=1e-6)
    [numbers] = task.results(answer_scores(model, model, pairs), pairs, [])
    assert (numbers.preference_accuracy, numbers.reward_margin, numbers.reference_kl_bits) == (0.5, 0, 0)
    assert numbers.preference_loss == pytest.approx(math.log(2), abs=1e-12)
    assert numbers.chosen_nats == numbers.chosen_nats_before


def test_micro_batches_and_ranks_keep_pairs(models, trained_gpt):
    reference, policy = models
    loss = partial(summed_preference_loss, policy, policy, beta=0.1, device=CPU)
    pairs = with_reference(encoded(trained_gpt, Preferences(), PAIRS[:3]), reference)
    whole = batch_of(pairs)
    assert float(sum(loss(part) for part in whole.split(2))) == pytest.approx(float(loss(whole)), abs=1e-5)
    assert float(whole.weights.sum()) == pytest.approx(3)
    ranks = 0.0
    for rank in (0, 1):
        rows, belongs = Shard(rank, 2).rows(3)
        ranks += float(loss(batch_of([pairs[i] for i in rows]).weighing_only(belongs)))
    assert ranks == pytest.approx(float(loss(whole)), abs=1e-5)


# Reading


def example(row, **options):
    from corpora.rows import Row

    task = Preferences(**options)
    return task.choose_columns(row).example(Row("line 1", row))


def test_the_prompt_is_what_both_answers_begin_with():
    assert example({"chosen": "Q? Yes.", "rejected": "Q? No."}).inputs == ("Q?", " Yes.", " No.")
    assert example({"chosen": "A: Yes", "rejected": "A: Yesterday"}).inputs == ("A:", " Yes", " Yesterday")
    assert example({"chosen": "Yes", "rejected": "No"}).inputs == ("", "Yes", "No")
    user, yes, no = (
        {"role": role, "content": text} for role, text in (("user", "Q?"), ("assistant", "Yes"), ("assistant", "No"))
    )
    expected = ("user: Q?\n\n", "assistant: Yes\n\n", "assistant: No\n\n")
    assert example({"chosen": [user, yes], "rejected": [user, no]}).inputs == expected
    assert example({"prompt": [user], "chosen": [yes], "rejected": [no]}).inputs == expected


def test_a_prompt_that_both_conversations_repeat_is_read_once():
    user, yes, no = (
        {"role": role, "content": text} for role, text in (("user", "Q?"), ("assistant", "Yes"), ("assistant", "No"))
    )
    answers = {"chosen": [user, yes], "rejected": [user, no]}
    for options in ({}, {"template": "any"}):
        for prompt in ("Q?", [user]):
            assert example({"prompt": prompt, **answers}, **options).inputs == example(answers, **options).inputs
        asked_again = {"prompt": "Q?", "chosen": [yes, user, no], "rejected": [no, user, yes]}
        assert "Q?" in str(example(asked_again, **options).inputs[0])


def test_rows_without_two_different_answers_are_left_out():
    assert example({"prompt": "a", "chosen": "b", "rejected": "b"}) is None
    assert example({"prompt": "a", "chosen": "b", "rejected": None}) is None
    assert example({"chosen": "a", "rejected": "a b"}) is not None


def test_long_prompts_are_cut_before_answers(trained_gpt):
    [one] = encoded(trained_gpt, Preferences(), [("a b c " * 40, " yes", " no")])
    tok = Run(trained_gpt).tokenizer()
    assert one.cut and one.ids.shape == (2, 32)
    kept = one.targets[0][one.weights[0] > 0].tolist()
    assert kept == [*tok.encode(" yes"), tok.special_tokens["<|endoftext|>"]]
    [long] = encoded(trained_gpt, Preferences(), [("a b c " * 40, "x y " * 60, " no")])
    assert long.cut and 16 <= (long.weights[0] > 0).sum() < 32


# Runs


@pytest.fixture(scope="module")
def rows():
    return [{"prompt": f"number {i}", "chosen": " good", "rejected": " terribly bad"} for i in range(24)]


@pytest.fixture(scope="module")
def preferring(tmp_path_factory, trained_gpt, rows):
    """Return a copy of the starting run, and the folder of the run trained from it."""
    folder = tmp_path_factory.mktemp("preferences")
    start = shutil.copytree(trained_gpt, folder / "start")
    data = write(folder / "rows.jsonl", rows)
    bytelm.finetune(
        start, task="preferences", data=[data], held_out=0.3, out=folder / "run", train=SETTINGS | {"epochs": 2}
    )
    return start, folder / "run"


def test_random_blocks_are_refused_because_the_reference_has_none(trained_gpt, rows, tmp_path):
    data = write(tmp_path / "rows.jsonl", rows)
    with pytest.raises(ValueError, match="`reinit` is 1, but the task preferences compares the model with the run"):
        bytelm.finetune(trained_gpt, task="preferences", data=[data], out=tmp_path / "run", train={"reinit": 1})


def test_training_raises_the_chosen_answers(preferring):
    split = Evaluation.read(preferring[1]).validation
    assert split.preference_accuracy == 1 and split.reward_margin > 0
    assert split.preference_loss < math.log(2)
    assert split.reference_kl_bits > 0
    gained = split.chosen_nats - split.chosen_nats_before, split.rejected_nats - split.rejected_nats_before
    assert split.reward_margin == pytest.approx(0.1 * (gained[0] - gained[1]), abs=1e-6)
    assert split.comparison.others["the shorter answer"]["right pairs"] == 1
    first = next(line for line in Run(preferring[1]).metrics() if line["split"] == "validation")
    assert first["loss"] == pytest.approx(math.log(2), abs=1e-6)  # before the first step the model is its reference


def test_the_command_resumes_with_the_same_reference_and_predicts(in_process, preferring, tmp_path, rows):
    start, run = preferring
    out = shutil.copytree(run, tmp_path / "run")
    source = Source.open(start).weights
    assert all(torch.equal(weights, source[name]) for name, weights in starting_weights(out, start).items())
    data = Run(run).facts["data"][0]
    options = ["--data", data, "--held-out", "0.3", "--out", out, "--lr", "1e-2", "--batch-size", "4"]
    options += ["--device", "cpu", "--dtype", "float32"]
    done = in_process("finetune", start, "--task", "preferences", *options, "--epochs", 3)
    assert done.returncode == 0, done.stderr
    assert "resuming from step" in done.stdout + done.stderr and "perplexity" not in done.stdout + done.stderr
    said = in_process("predict", out, "number 7", " good", " terribly bad", "--json")
    assert json.loads(said.stdout)["prediction"] == "chosen"
    assert in_process("predict", out, "one", "two").returncode != 0
    assert in_process("generate", out, "--prompt", "one", "--tokens", 3).returncode == 0
    assert in_process("report", out).returncode == 0


def test_a_run_resumes_with_a_reference_that_has_moved(preferring, tmp_path):
    start, run = preferring
    out, moved = shutil.copytree(run, tmp_path / "run"), tmp_path / "moved"
    start.rename(moved)
    try:
        call = {"task": "preferences", "data": Run(run).facts["data"], "held_out": 0.3, "out": out}
        made = bytelm.finetune(moved, **call, train=SETTINGS | {"epochs": 3})
        assert made.run.facts["init_from"] == str(moved)
        trained = made.metrics("validation")["loss"].tolist()[-1]
        assert Evaluation.read(out).validation.preference_loss == pytest.approx(trained, rel=1e-5)
    finally:
        moved.rename(start)


def test_without_the_reference_its_numbers_are_left_out(in_process, preferring, tmp_path):
    start, run = preferring
    start.rename(tmp_path / "moved")
    try:
        done = in_process("evaluate", shutil.copytree(run, tmp_path / "run"))
        assert done.returncode == 0, done.stderr
        assert "numbers that need the reference are left out: " in done.stdout + done.stderr
        assert "ln p of chosen" in done.stdout
        refused = in_process("predict", run, "a", "b", "c")
        assert refused.returncode != 0 and "needs the run that the model started from" in refused.stderr
    finally:
        (tmp_path / "moved").rename(start)


def test_a_run_with_another_vocabulary_has_no_reference(preferring, text_folder, rows, tmp_path):
    text, grown = sorted(text_folder.glob("*.txt"))[0], tmp_path / "grown"
    grow_vocabulary(preferring[1], [text], add=8, out=grown)
    with pytest.raises(ValueError, match=r"needs the run that the model started from: .*has another vocabulary"):
        bytelm.predict(grown, text=("number 7", " good", " terribly bad"))
    found = bytelm.evaluate(grown, data=write(tmp_path / "rows.jsonl", rows[:4])).validation
    assert found.chosen_nats and found.preference_accuracy is None


@pytest.mark.parametrize("answers", [(" good", " good"), (" good", "")])
def test_texts_to_prefer_need_two_different_answers(preferring, answers):
    with pytest.raises(ValueError, match="text 1 begins an example without two different answers"):
        bytelm.predict(preferring[1], text=("number 7", *answers))


@pytest.mark.parametrize(
    ("row", "options", "message"),
    [
        ({"prompt": "a", "chosen": 1, "rejected": "b"}, {}, '"chosen" in line 1 of .* is 1, not a text, or a list'),
        ({"prompt": "a", "chosen": ["b"], "rejected": "c"}, {}, "is 'b', not an object with role"),
        ({"prompt": "a", "chosen": [{"role": "x"}], "rejected": "c"}, {}, "has the role 'x', but"),
        ({"chosen": [{"role": "user", "content": "b"}], "rejected": "c"}, {}, "has a text and a list of messages"),
        ({"prompt": "a", "answer": "b"}, {}, 'has no field "chosen"'),
        ({"prompt": "a", "chosen": "b", "rejected": "b"}, {}, "holds no example"),
        ({"prompt": "a", "chosen": "b", "rejected": "c"}, {"beta": 0.0}, "`beta` is 0.0, but must be above 0"),
        ({"prompt": "a", "chosen": "b", "rejected": "c"}, {"columns": ("a",)}, "`columns` names 1"),
    ],
)
def test_unusable_pairs_and_options_are_refused(tmp_path, trained_gpt, row, options, message):
    data = write(tmp_path / "rows.jsonl", [row] * 3)
    with pytest.raises(ValueError, match=message), warnings.catch_warnings(action="ignore"):
        bytelm.finetune(
            trained_gpt, task="preferences", data=[data], test=[data], out=tmp_path / "run", options=options
        )
    assert not (tmp_path / "run").exists()


def test_the_loss_of_pairs_has_no_perplexity(preferring):
    shown = repr(bytelm.load_run(preferring[1]))
    assert "perplexity" not in shown and "(preferences)" in shown
    [loss] = [plot for plot in plots([subject_of(Run(preferring[1]))]) if plot.name == "loss"]
    assert "perplexity" not in loss.svg and "logarithm of the vocabulary size" not in loss.text
    assert "perplexity" in repr(bytelm.load_run(preferring[0]))
