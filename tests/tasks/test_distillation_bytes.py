"""Distillation across vocabularies: next bytes by enumeration, shared positions, the plain loss, and runs."""

import math
import re
import shutil
from collections import defaultdict
from copy import deepcopy
from dataclasses import replace
from itertools import product

import numpy as np
import pytest
import torch
import torch.nn.functional as F  # noqa: N812
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from corpora.rows import Row
from lm.byte_distributions import SYMBOLS, byte_groups, first_byte_log_probabilities
from pipelines.evaluation.results import Evaluation
from pipelines.run.folder import Run
from pipelines.run.loaded_run import load_model
from pipelines.run.teacher_scores import load_byte_teacher, window_scores
from pipelines.tasks.data import reader_of
from pipelines.tasks.distillation import Distillation
from pipelines.tasks.examples import batch_of
from pipelines.training.batch_loss import summed_loss
from pipelines.training.byte_losses import summed_byte_distillation_loss
from pipelines.verbs.build_dataset import build_dataset
from pipelines.verbs.pretrain import pretrain
from pipelines.verbs.train_tokenizer import train_tokenizer

CPU = torch.device("cpu")
TEXTS = ["import os\n\ndef main():\n    return os.getcwd()\n" * 3, "class Ä:\n    pass\n", "x"]


@pytest.fixture(scope="session")
def byte_gpt(tmp_path_factory, text_folder, small_recipe):
    """Return the run folder of a decoder with fewer merges than `trained_gpt`."""
    folder = tmp_path_factory.mktemp("bytes")
    train_tokenizer([str(text_folder)], vocab_size=300, out=folder / "tok")
    build_dataset([str(text_folder)], tokenizer=folder / "tok", context_length=32, out=folder / "data")
    pretrain(small_recipe, data=folder / "data", out=folder / "run")
    return folder / "run"


@pytest.fixture(scope="module", params=["fewer", "more"])
def pair(request, trained_gpt, byte_gpt):
    """Return the folders of a student and of a teacher with fewer or more merges."""
    return (trained_gpt, byte_gpt) if request.param == "fewer" else (byte_gpt, trained_gpt)


def adapted(student, teacher, **options):
    run = Run(student)
    return Distillation(teacher=str(teacher), **options).adapt(run, run.tokenizer()).task


def windows(student, teacher, texts=TEXTS):
    task = adapted(student, teacher)
    return task.encode([task.example(Row("line 1", {"text": text})) for text in texts], reader_of(Run(student), task))


# The next byte


@given(st.lists(st.sampled_from([b"a", b"ab", b"b", b"c", b"ca", b""]), min_size=1, max_size=9), st.integers(0, 99))
def test_a_byte_has_the_probabilities_of_the_tokens_that_begin_with_it(tokens, seed):
    logits = torch.randn(3, len(tokens), dtype=torch.float64, generator=torch.Generator().manual_seed(seed)) * 50
    logits.requires_grad_()
    firsts = torch.tensor([token[0] if token else SYMBOLS - 1 for token in tokens])
    found = first_byte_log_probabilities(logits, byte_groups(firsts))
    log_p = logits.log_softmax(dim=-1)
    for symbol in set(firsts.tolist()):
        expected = log_p[:, firsts == symbol].logsumexp(dim=-1)
        torch.testing.assert_close(found[:, symbol], expected)
        pair = (torch.autograd.grad(part.sum(), logits, retain_graph=True)[0] for part in (found[:, symbol], expected))
        torch.testing.assert_close(*pair)
    absent = [symbol for symbol in range(SYMBOLS) if symbol not in firsts]
    assert (found[:, absent].exp() < 1e-300).all()


def test_the_divergence_of_two_tiny_vocabularies_is_the_closed_form():
    """Teacher: a, b, ab with 1/2, 1/3, 1/6, so P(a) = 2/3. Student: a, b with 1/4, 3/4."""
    vocabularies = [([1 / 2, 1 / 3, 1 / 6], [97, 98, 97]), ([1 / 4, 3 / 4], [97, 98])]
    teacher, student = (
        first_byte_log_probabilities(torch.tensor([chances]).log(), byte_groups(torch.tensor(firsts)))
        for chances, firsts in vocabularies
    )
    expected = 2 / 3 * math.log(2 / 3 * 4) + 1 / 3 * math.log(1 / 3 / (3 / 4))
    assert float((teacher.exp() * (teacher - student)).sum()) == pytest.approx(expected)


@pytest.mark.parametrize("chance", [0.3, 0.8])
def test_a_student_of_a_perfect_teacher_learns_the_true_distribution(chance):
    """All texts of six independent bytes a and b. The teacher's vocabulary is a, b and ab, the student's a and b.

    The teacher knows the distribution of the next byte after its tokens. At each byte of a text the student learns from
    the teacher where a token of the teacher ends, otherwise from the text. The mean target is the true distribution.
    Without the other places it is not.
    """
    texts = ["".join(letters) for letters in product("ab", repeat=6)]
    weight = {text: math.prod(chance if letter == "a" else 1 - chance for letter in text) for text in texts}
    after = defaultdict(lambda: np.zeros(2))  # weights of the next byte after the teacher's tokens
    places = []
    for text in texts:
        ends, tokens = {0: ()}, []
        for token in re.findall("ab|a|b", text):
            tokens.append(token)
            ends[sum(map(len, tokens))] = tuple(tokens)
        for place in range(4):  # the last bytes of the text have no next token
            following = np.array([text[place] == "a", text[place] == "b"], float)
            if place in ends:
                after[ends[place]] += weight[text] * following
            places.append((text[:place], ends.get(place), weight[text], following))
    both, shared_only = (defaultdict(lambda: np.zeros(2)) for _ in range(2))
    for prefix, told, size, following in places:
        target = after[told] / after[told].sum() if told is not None else following
        both[prefix] += size * target
        shared_only[prefix] += size * target * (told is not None)
    for target in both.values():
        assert target / target.sum() == pytest.approx([chance, 1 - chance])
    assert shared_only["a"][0] == pytest.approx(shared_only["a"].sum())  # after "a" alone comes no b


# Positions


@given(st.lists(st.text(min_size=1, max_size=40), min_size=1, max_size=3))
@settings(suppress_health_check=[HealthCheck.function_scoped_fixture], max_examples=40, deadline=None)
def test_shared_positions_have_read_the_same_bytes(pair, texts):
    check_positions(pair, texts)


def test_shared_positions_of_texts_longer_than_a_window(pair):
    check_positions(pair, [*TEXTS, "漢字 naïve\0" * 30])


def check_positions(pair, texts):
    student, teacher = (Run(folder).tokenizer() for folder in pair)
    end = {tok: tok.special_tokens["<|endoftext|>"] for tok in (student, teacher)}
    found = windows(*pair, texts)
    for origin, text in enumerate(texts):
        theirs = [end[teacher], *teacher.encode_ordinary(text), end[teacher]]
        sizes = [len(teacher.decode_bytes(theirs[1 : i + 1])) for i in range(len(theirs) - 1)]
        read = []
        for window in [one for one in found if one.origin == origin]:
            start = len(student.decode_bytes([*read, window.ids[0]][1:]))
            first = max(i for i, size in enumerate(sizes) if size <= start)
            count = len(window.other)
            assert window.other.tolist() == theirs[first : first + count] and count <= 33
            for token, met in zip(window.ids.tolist(), window.places.tolist(), strict=True):
                read.append(token)
                size = len(student.decode_bytes(read[1:]))
                if met >= 0:
                    assert sizes[first + met] == size
                else:  # no token of the teacher ends here, or the teacher reads no further
                    assert size not in sizes or sizes.index(size) >= first + count - 1
            final = int(window.targets[-1])
            stop = len(text.encode()) + 1 if final == end[student] else len(student.decode_bytes([*read, final][1:]))
            assert count == 33 or stop < [*sizes, len(text.encode()) + 1, math.inf][first + count]
        assert read == [end[student], *student.encode_ordinary(text)]


# The loss


def models(pair):
    """Return a student with other weights than its run, and the teacher."""
    student = deepcopy(load_model(Run(pair[0]), "cpu").model)
    generator = torch.Generator().manual_seed(0)
    with torch.no_grad():
        for parameter in student.parameters():
            parameter.add_(0.05 * torch.randn(parameter.shape, generator=generator))
    return student, load_byte_teacher(str(pair[1]), Run(pair[0]).tokenizer(), student.config.vocab_size)


def byte_distribution(tok, logits):
    """Return the probabilities (T, 257) of the next byte, from logits (T, V), one token at a time."""
    columns = torch.zeros(len(logits), 257, dtype=logits.dtype)
    for token, chances in enumerate(logits.softmax(dim=-1).T):
        ordinary = token < tok.vocab_size and tok.ordinary[token]
        symbol = tok.token_bytes(token)[0] if ordinary else 256
        columns = columns.index_add(1, torch.tensor([symbol]), chances.unsqueeze(-1))
    return columns


def doubled(model):
    double = deepcopy(model).double()
    double.compute_dtype = torch.float64
    return double


@pytest.mark.parametrize(("alpha", "temperature"), [(1.0, 1.0), (0.3, 2.5)])
def test_the_loss_and_its_gradient_are_those_of_the_plain_formula(pair, alpha, temperature):
    (student, teacher), examples = models(pair), windows(*pair)
    student_tok, teacher_tok = (Run(folder).tokenizer() for folder in pair)
    options = {"teacher": teacher, "alpha": alpha, "temperature": temperature, "device": CPU}
    loss = summed_byte_distillation_loss(student, student, batch_of(examples), **options)
    parts = sum(
        summed_byte_distillation_loss(student, student, part, **options) for part in batch_of(examples).split(2)
    )
    assert float(parts) == pytest.approx(float(loss), rel=1e-5)
    loss.backward()
    double, wise = doubled(student), doubled(teacher.model)
    expected, bits, nats = 0, [], []
    for one in examples:
        logits = double.logits(double(torch.from_numpy(one.ids)[None]))[0]
        with torch.no_grad():
            theirs = wise.logits(wise(torch.from_numpy(one.other[:-1])[None]))[0]
        targets = torch.from_numpy(one.targets)
        nats.append(float(F.cross_entropy(theirs, torch.from_numpy(one.other[1:]), reduction="sum")))
        here = torch.from_numpy(one.places) >= 0
        q, p = byte_distribution(student_tok, logits[here]), byte_distribution(teacher_tok, theirs)[one.places[here]]
        log_token = logits.log_softmax(dim=-1).gather(-1, targets[:, None])[:, 0]
        symbols = [student_tok.token_bytes(t)[0] if student_tok.ordinary[t] else 256 for t in targets[here].tolist()]
        log_byte = q.log().gather(-1, torch.tensor(symbols)[:, None])[:, 0]
        rest = log_token.clone()
        rest[here] = log_token[here] - log_byte  # ln p of the token given its first byte; elsewhere of the token
        soft_p, soft_q = (
            (part ** (1 / temperature)) / (part ** (1 / temperature)).sum(-1, keepdim=True) for part in (p, q)
        )
        kl = (soft_p * (soft_p / soft_q).log()).sum(dim=-1)
        expected = expected - rest.sum() - (1 - alpha) * log_byte.sum() + alpha * temperature**2 * kl.sum()
        bits.append(float((p * (p / q).log2()).sum()))
    expected.backward()
    assert float(loss) == pytest.approx(float(expected), rel=1e-5)
    for own, plain in zip(student.parameters(), double.parameters(), strict=True):
        torch.testing.assert_close(own.grad.double(), plain.grad, atol=1e-4, rtol=1e-3)
    scores = window_scores(student, teacher, examples, np.ones(student.config.vocab_size))
    assert [one.teacher.kl_bits for one in scores] == pytest.approx(bits, rel=1e-4, abs=1e-5)
    assert [one.teacher.nats for one in scores] == pytest.approx(nats, rel=1e-4)
    read = ([i for i in one.other[1:].tolist() if teacher_tok.ordinary[i]] for one in examples)
    assert [one.teacher.bytes for one in scores] == [len(teacher_tok.decode_bytes(ids)) for ids in read]


def test_without_the_teachers_share_the_loss_is_that_of_plain_training(pair):
    (student, teacher), batch = models(pair), batch_of(windows(*pair))
    options = {"teacher": teacher, "alpha": 0.0, "temperature": 2.0}
    assert summed_byte_distillation_loss(student, student, batch, device=CPU, **options) == summed_loss(
        student, student, batch, device=CPU
    )


def test_the_default_temperature_is_1_across_vocabularies_and_2_otherwise(trained_gpt, byte_gpt):
    used = []
    for teacher in (byte_gpt, trained_gpt):
        task = adapted(trained_gpt, teacher)
        used.append(task.loss(reader_of(Run(trained_gpt), task)).keywords["temperature"])
    assert used == [1.0, 2.0]


def test_rows_without_a_weight_and_rows_without_a_shared_position_do_not_count(pair):
    (student, teacher), examples = models(pair), windows(*pair, TEXTS[:1])
    options = {"teacher": teacher, "alpha": 0.7, "temperature": 1.5, "device": CPU}
    first = summed_byte_distillation_loss(student, student, batch_of(examples[:1]), **options)
    two = batch_of(examples[:2]).weighing_only(np.array([True, False]))
    assert float(summed_byte_distillation_loss(student, student, two, **options)) == pytest.approx(float(first))
    apart = replace(examples[0], places=np.full_like(examples[0].places, -1))
    plain = summed_loss(student, student, batch_of([apart]), device=CPU)
    assert float(summed_byte_distillation_loss(student, student, batch_of([apart]), **options)) == float(plain)


# Runs


@pytest.fixture(scope="module")
def text(tmp_path_factory, text_folder):
    path = tmp_path_factory.mktemp("distillation") / "text.txt"
    path.write_bytes(b"".join(each.read_bytes()[:3000] for each in sorted(text_folder.glob("*.txt"))[:12]))
    return path


def test_a_run_learns_from_a_teacher_with_another_vocabulary(in_process, tmp_path, trained_gpt, byte_gpt, text):
    student, teacher = trained_gpt, shutil.copytree(byte_gpt, tmp_path / "teacher")
    options = ["--teacher", teacher, "--data", text, "--held-out", "0.3", "--out", "run", "--no-compare-scratch"]
    options += ["--device", "cpu", "--dtype", "float32", "--epochs", "1", "--from-scratch", "--alpha", "0.8"]
    done = in_process("finetune", student, "--task", "distillation", *options)
    assert done.returncode == 0, done.stderr
    split = Evaluation.read(tmp_path / "run").validation
    losses = [line["loss"] for line in Run(tmp_path / "run").metrics() if line["split"] == "validation"]
    assert losses[-1] < losses[0]
    assert 0.3 < split.shared_boundaries < 1 and split.teacher_byte_kl_bits > 0
    assert (split.teacher_kl_bits, split.teacher_cross_entropy) == (None, None)
    shutil.rmtree(teacher)
    (tmp_path / "run" / "evaluation.json").unlink()
    done = in_process("evaluate", tmp_path / "run")
    assert done.returncode == 0 and "numbers of the teacher are left out: " in done.stdout + done.stderr
    after = Evaluation.read(tmp_path / "run").validation
    assert (after.bits_per_byte, after.teacher_byte_kl_bits) == (pytest.approx(split.bits_per_byte), None)
