"""Distillation: the loss and its gradient beside plain formulas in float64, windows, runs of each kind, and errors."""

import math
import shutil
import warnings
from copy import deepcopy

import numpy as np
import pytest
import torch
import torch.nn.functional as F  # noqa: N812

import bytelm
from corpora.rows import read_text_rows
from pipelines.evaluation.results import Evaluation
from pipelines.run.folder import Run
from pipelines.run.loaded_run import load_model
from pipelines.run.retention import latest_checkpoint
from pipelines.tasks.data import reader_of
from pipelines.tasks.distillation import Distillation
from pipelines.tasks.examples import batch_of
from pipelines.tasks.task import Example
from pipelines.training.batch_loss import summed_loss
from pipelines.training.logit_losses import summed_distillation_loss
from pipelines.verbs.grow_vocabulary import grow_vocabulary
from tests.tasks.files import write

CPU = torch.device("cpu")
KINDS = ["trained_gpt", "trained_bert", "trained_t5"]
TEXTS = ["import os\n\ndef main():\n    return os.getcwd()\n" * 3, "class A:\n    pass\n"]
SETTINGS = {"epochs": 1, "batch_size": 8, "device": "cpu", "dtype": "float32"}


def models(run):
    """Return the model of a run as the teacher, and a student with other weights."""
    teacher = load_model(Run(run), "cpu").model.requires_grad_(False)
    student = deepcopy(teacher).requires_grad_(True)
    generator = torch.Generator().manual_seed(0)
    with torch.no_grad():
        for parameter in student.parameters():
            parameter.add_(0.05 * torch.randn(parameter.shape, generator=generator))
    return teacher, student


def windows(run, texts=TEXTS):
    return Distillation().encode([Example(None, text) for text in texts], reader_of(Run(run), Distillation()))


def plain_logits(model, windows):
    """Return the logits of the targets of each window by itself, in float64, and the targets."""
    double = deepcopy(model).double()
    double.compute_dtype = torch.float64
    logits, targets = [], []
    for one in windows:
        source = {} if one.source is None else {"source": torch.from_numpy(one.source)[None]}
        here = slice(None) if one.weights is None else one.weights > 0
        logits.append(double.logits(double(torch.from_numpy(one.ids)[None], **source))[0, here])
        targets.append(torch.from_numpy(one.targets[here]))
    return double, torch.cat(logits), torch.cat(targets)


@pytest.mark.parametrize(("alpha", "temperature"), [(1.0, 1.0), (0.3, 2.5)])
@pytest.mark.parametrize("kind", KINDS)
def test_the_loss_and_its_gradient_are_those_of_the_plain_formula(request, kind, alpha, temperature):
    run = request.getfixturevalue(kind)
    (teacher, student), examples = models(run), windows(run)
    options = {"teacher": teacher, "alpha": alpha, "temperature": temperature, "device": CPU}
    loss = summed_distillation_loss(student, student, batch_of(examples), **options)
    loss.backward()
    double, ours, targets = plain_logits(student, examples)
    _, theirs, _ = plain_logits(teacher, examples)
    soft = F.kl_div(F.log_softmax(ours / temperature, dim=-1), F.softmax(theirs / temperature, dim=-1), reduction="sum")
    expected = (1 - alpha) * F.cross_entropy(ours, targets, reduction="sum") + alpha * temperature**2 * soft
    expected.backward()
    assert float(loss) == pytest.approx(float(expected), rel=1e-5)
    for own, plain in zip(student.parameters(), double.parameters(), strict=True):
        if plain.grad is not None:
            torch.testing.assert_close(own.grad.double(), plain.grad, atol=1e-4, rtol=1e-3)
    assert all(parameter.grad is None for parameter in teacher.parameters())


@pytest.mark.parametrize("kind", KINDS)
def test_without_the_teachers_share_the_loss_is_that_of_plain_training(request, kind):
    run = request.getfixturevalue(kind)
    (teacher, student), batch = models(run), batch_of(windows(run))
    options = {"teacher": teacher, "alpha": 0.0, "temperature": 2.0}
    plain = summed_loss(student, student, batch, device=CPU, label_smoothing=0.1)
    own = summed_distillation_loss(student, student, batch, device=CPU, label_smoothing=0.1, **options)
    found = []
    for loss in (plain, own):
        student.zero_grad()
        loss.backward()
        found.append((loss.item(), [p.grad.clone() for p in student.parameters() if p.grad is not None]))
    assert found[0][0] == found[1][0]
    assert all(torch.equal(one, other) for one, other in zip(found[0][1], found[1][1], strict=True))


def test_a_student_that_is_its_teacher_has_no_divergence(trained_gpt):
    teacher, _ = models(trained_gpt)
    options = {"teacher": teacher, "alpha": 1.0, "temperature": 2.0, "device": CPU}
    assert float(summed_distillation_loss(teacher, teacher, batch_of(windows(trained_gpt)), **options)) < 1e-4


# Windows


def test_every_token_of_a_text_is_a_target_of_a_decoder_once(trained_gpt):
    tok = Run(trained_gpt).tokenizer()
    end = tok.special_tokens["<|endoftext|>"]
    targets = [token for one in windows(trained_gpt, TEXTS[:1]) for token in one.targets.tolist()]
    assert targets == [*tok.encode(TEXTS[0]), end]
    assert max(len(one.ids) for one in windows(trained_gpt)) == 32


@pytest.mark.parametrize("kind", ["trained_bert", "trained_t5"])
def test_masks_and_spans_of_a_text_are_the_same_in_training_and_evaluation(request, kind):
    run = request.getfixturevalue(kind)
    first, again = windows(run), windows(run)
    assert all(np.array_equal(one.ids, other.ids) for one, other in zip(first, again, strict=True))
    assert all(one.weights is None or one.weights.any() for one in first)


def test_a_text_file_is_read_in_pieces_of_whole_lines(tmp_path):
    text = "".join(f"line {i}\n" for i in range(3000))
    (tmp_path / "a.txt").write_text(text)
    rows = list(read_text_rows(tmp_path / "a.txt"))
    assert "".join(row.fields["text"] for row in rows) == text
    assert all(4000 <= len(row.fields["text"]) < 4020 for row in rows[:-1])
    second = 1 + rows[0].fields["text"].count("\n")
    assert rows[1].place == f"the text from line {second} of {tmp_path / 'a.txt'}"


# Runs


@pytest.fixture(scope="module")
def text(tmp_path_factory, text_folder):
    path = tmp_path_factory.mktemp("distillation") / "text.txt"
    path.write_bytes(b"".join(each.read_bytes()[:3000] for each in sorted(text_folder.glob("*.txt"))[:12]))
    return path


@pytest.mark.parametrize("kind", KINDS)
def test_a_run_of_each_kind_learns_from_a_teacher(request, tmp_path, kind, text):
    """The student has the shape of its teacher and random weights."""
    teacher = request.getfixturevalue(kind)
    bytelm.finetune(
        teacher,
        task="distillation",
        data=[text],
        held_out=0.3,
        out=tmp_path / "run",
        from_scratch=True,
        options={"teacher": str(teacher), "alpha": 1.0, "temperature": 1.0},
        train=SETTINGS,
    )
    split = Evaluation.read(tmp_path / "run").validation
    losses = [line["loss"] for line in Run(tmp_path / "run").metrics() if line["split"] == "validation"]
    assert losses[-1] < losses[0]
    assert split.teacher_kl_bits == pytest.approx(losses[-1] / math.log(2), rel=1e-3)  # the loss is this divergence
    assert (split.bits_per_byte is not None) == (kind == "trained_gpt")
    assert split.teacher_cross_entropy < split.cross_entropy


def test_the_command_starts_from_the_teacher_itself(in_process, tmp_path, trained_gpt, text):
    """With a tiny learning rate the student stays its teacher, and has its numbers."""
    options = ["--data", text, "--held-out", "0.3", "--out", "run", "--no-compare-scratch", "--device", "cpu"]
    options += ["--lr", "1e-12", "--epochs", "1", "--dropout", "0", "--dtype", "float32"]
    done = in_process("finetune", trained_gpt, "--task", "distillation", "--teacher", trained_gpt, *options)
    assert done.returncode == 0, done.stderr
    assert "bytelm generate run" in done.stdout + done.stderr
    split = Evaluation.read(tmp_path / "run").validation
    assert split.cross_entropy == pytest.approx(split.teacher_cross_entropy, abs=1e-5)
    assert split.bits_per_byte == pytest.approx(split.teacher_bits_per_byte, abs=1e-5)
    assert split.teacher_kl_bits == pytest.approx(0, abs=1e-6)
    assert split.bits_per_byte == pytest.approx(split.cross_entropy * split.tokens / math.log(2) / split.bytes)
    assert in_process("generate", "run", "--prompt", "import", "--tokens", 3).returncode == 0
    assert in_process("report", "run").returncode == 0
    refused = in_process("predict", "run", "a text")
    assert refused.returncode != 0 and "use bytelm generate" in refused.stderr


def test_without_the_teacher_its_numbers_are_left_out(in_process, tmp_path, trained_gpt, text):
    teacher = shutil.copytree(trained_gpt, tmp_path / "teacher")
    options = {"data": [text], "held_out": 0.3, "out": tmp_path / "run", "compare_scratch": False}
    bytelm.finetune(trained_gpt, task="distillation", options={"teacher": str(teacher)}, train=SETTINGS, **options)
    before = Evaluation.read(tmp_path / "run").validation
    shutil.rmtree(teacher)
    (tmp_path / "run" / "evaluation.json").unlink()
    done = in_process("evaluate", tmp_path / "run")
    assert done.returncode == 0 and "numbers of the teacher are left out: " in done.stdout + done.stderr
    after = Evaluation.read(tmp_path / "run").validation
    assert (after.cross_entropy, after.teacher_kl_bits) == (pytest.approx(before.cross_entropy, rel=1e-6), None)


def test_a_student_with_another_vocabulary_is_measured_without_its_teacher(tmp_path, trained_gpt, text, printed):
    run, grown = tmp_path / "run", tmp_path / "grown"
    options = {"data": [text], "held_out": 0.3, "out": run, "compare_scratch": False}
    bytelm.finetune(trained_gpt, task="distillation", options={"teacher": str(trained_gpt)}, train=SETTINGS, **options)
    grow_vocabulary(run, [text], add=8, out=grown)
    found = bytelm.evaluate(grown, data=text).validation
    assert found.cross_entropy > 0 and found.teacher_cross_entropy is None
    assert f"{trained_gpt} has another vocabulary" in printed.readouterr().out


@pytest.mark.parametrize(
    ("options", "message"),
    [
        ({}, "`teacher` is missing"),
        ({"teacher": "nowhere"}, "nowhere is not a run"),
        ({"teacher": "wordpiece_run"}, "have different vocabularies. .*bytelm generate, and train on it"),
        ({"teacher": "trained_bert"}, "of .* is 'decoder' and that of .* 'encoder'"),
        ({"teacher": "trained_gpt", "alpha": 1.5}, "`alpha` is 1.5: give a share from 0 to 1"),
        ({"teacher": "trained_gpt", "temperature": 0.05}, "`temperature` is 0.05"),
    ],
)
def test_unusable_teachers_and_options_are_refused(request, tmp_path, trained_gpt, text, options, message):
    if options.get("teacher") in (*KINDS, "wordpiece_run"):
        options = {**options, "teacher": str(request.getfixturevalue(options["teacher"]))}
    with pytest.raises(ValueError, match=message):
        bytelm.finetune(trained_gpt, task="distillation", data=[text], out=tmp_path / "run", options=options)
    assert not (tmp_path / "run").exists()


@pytest.mark.parametrize(
    ("row", "message"),
    [
        ({"text": 3}, '"text" in line 1 of .* is 3, not a text'),
        ({"body": "a"}, 'has no field "text"'),
        ({"text": ""}, "no example"),
    ],
)
def test_unusable_texts_are_refused(tmp_path, trained_gpt, row, message):
    data = write(tmp_path / "rows.jsonl", [row])
    options = {"data": [data], "test": [data], "out": tmp_path / "run", "options": {"teacher": str(trained_gpt)}}
    with pytest.raises(ValueError, match=message), warnings.catch_warnings(action="ignore"):
        bytelm.finetune(trained_gpt, task="distillation", **options)


def test_a_student_resumes_only_with_the_teacher_weights_that_it_learned_from(tmp_path, trained_gpt, text):
    teacher = shutil.copytree(trained_gpt, tmp_path / "teacher")
    call = {"task": "distillation", "data": [text], "held_out": 0.3, "out": tmp_path / "run", "compare_scratch": False}
    call["options"] = {"teacher": str(teacher)}
    bytelm.finetune(trained_gpt, **call, train=SETTINGS)
    newest = latest_checkpoint(teacher)
    newest.rename(tmp_path / "kept")  # the teacher now has the weights of an older checkpoint
    with pytest.raises(ValueError, match="learned from other weights of a teacher: give the same teacher"):
        bytelm.finetune(trained_gpt, **call, train=SETTINGS | {"epochs": 2})
    (tmp_path / "kept").rename(newest)
    bytelm.finetune(trained_gpt, **call, train=SETTINGS | {"epochs": 2})
