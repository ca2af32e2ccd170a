"""Preferences of conversations: ids and counted tokens beside transformers, log-probabilities, cuts, and a run."""

import math
from copy import deepcopy
from dataclasses import replace

import pytest
import torch
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

import bytelm
from corpora.rows import Row
from pipelines.chat.messages import Message
from pipelines.evaluation.results import Evaluation
from pipelines.run.answer_scores import answer_scores
from pipelines.run.folder import Run
from pipelines.run.loaded_run import load_model, load_run
from pipelines.tasks.data import reader_of
from pipelines.tasks.preferences import Preferences
from tests.tasks.conversations import SILENT, dicts
from tests.tasks.files import write

SETTINGS = {"lr": 1e-2, "batch_size": 4, "device": "cpu", "dtype": "float32", "epochs": 3}
TEXTS = st.text(st.characters(exclude_categories=["Cs"]), max_size=8).filter(lambda text: not text[:1].isspace())


def conversations(*roles, least=1):
    message = st.builds(Message, st.sampled_from(roles), TEXTS)
    return st.lists(message, min_size=least, max_size=3).map(tuple)


@pytest.fixture(scope="module")
def task(chat_run):
    run = Run(chat_run)
    return Preferences().adapt(run, run.tokenizer()).task


def encoded(run, task, *rows, context=0):
    """Return rows of messages or texts as a model with a longer context reads them."""
    reader = reader_of(Run(run), task)
    if context:
        reader = replace(reader, model=replace(reader.model, context_length=context))
    return task.encode([task.example(Row("line 1", row)) for row in rows], reader)


def tokens(row, ids, targets):
    """Return the ids that a row reads and predicts, without padding."""
    length = int((ids[row] >= 0).sum())
    return [*ids[row, :length].tolist(), int(targets[row, length - 1])]


@given(
    conversations("system", "user", "assistant"),
    st.lists(conversations("user", "assistant", least=0), min_size=2, max_size=2, unique=True),
)
@settings(suppress_health_check=[HealthCheck.function_scoped_fixture], max_examples=60, deadline=None)
def test_the_answers_after_the_prompt_count_as_in_transformers(chat_run, task, peer, prompt, beginnings):
    answers = [(*some, Message("assistant", "x")) for some in beginnings]
    row = dict(zip(("prompt", "chosen", "rejected"), map(dicts, (prompt, *answers)), strict=True))
    [one] = encoded(chat_run, task, row, context=2048)
    options = {"return_assistant_tokens_mask": True, "return_dict": True}
    before = sum(peer.apply_chat_template(dicts(prompt), **options)["assistant_masks"])
    counts = []
    for place, answer in enumerate(answers):
        theirs = peer.apply_chat_template(dicts((*prompt, *answer)), **options)
        mask = theirs["assistant_masks"]
        kept = [i for i, counted in enumerate(mask) if counted]
        assert tokens(place, one.ids, one.targets) == theirs["input_ids"][: kept[-1] + 1]
        counted = (one.weights[place] > 0).nonzero()[0] + 1
        assert counted.tolist() == kept[before:]
        counts.append(len(counted))
    assert one.weights[one.weights > 0] == pytest.approx(1 / sum(counts))


def test_log_probabilities_are_those_of_the_answers_alone(chat_run, task):
    """Oracle: the softmax of the model in float64 at the tokens of each answer, which are written by hand."""
    run = load_run(chat_run)
    tok, model = run.tokenizer, deepcopy(load_model(Run(chat_run), "cpu").model)
    row = {"prompt": [Message("user", "3 + 1?")], "chosen": [Message("assistant", "4")], "rejected": "17"}
    row = {name: dicts(side) if isinstance(side, list) else side for name, side in row.items()}
    [scores] = answer_scores(model, None, encoded(chat_run, task, row))
    model.double().compute_dtype = torch.float64
    start = tok.encode("<|im_start|>user\n3 + 1?<|im_end|>\n<|im_start|>assistant\n", allowed_special="all")
    for found, answer in zip(scores.own, ("4", "17"), strict=True):
        ids = [*start, *tok.encode(answer), tok.special_tokens["<|im_end|>"]]
        with torch.no_grad():
            logs = model.logits(model(torch.tensor([ids])))[0].log_softmax(dim=-1)
        expected = sum(float(logs[place - 1, ids[place]]) for place in range(len(start), len(ids)))
        assert found == pytest.approx(expected, abs=1e-4)


def test_texts_are_messages_and_a_template_without_generation_gives_the_same(chat_run, task):
    user, yes, no = dicts([Message("user", "a"), Message("assistant", "b"), Message("assistant", "c")])
    texts = {"prompt": "a", "chosen": "b", "rejected": "c"}
    found = encoded(chat_run, task, texts, {"prompt": [user], "chosen": [yes], "rejected": "c"})
    found += encoded(chat_run, replace(task, template=SILENT), texts)
    without = replace(task, columns=("chosen", "rejected"))
    found += encoded(chat_run, without, {"chosen": [user, yes], "rejected": [user, no]})
    for one in found[1:]:
        assert (one.ids == found[0].ids).all() and (one.weights == found[0].weights).all()


def test_a_long_prompt_loses_its_oldest_turns_but_not_its_system_message(chat_run, task):
    turns = [Message("user", "first"), Message("assistant", "1"), Message("user", "last")]
    prompt = (Message("system", "s"), *turns)
    short = (prompt[0], prompt[-1])
    rows = [{"prompt": dicts(some), "chosen": "yes", "rejected": "no"} for some in (prompt, short)]
    wide = encoded(chat_run, task, rows[1], context=2048)[0]
    cut = encoded(chat_run, task, rows[0], context=wide.ids.shape[1] + 2)[0]
    assert cut.cut and not wide.cut
    assert (cut.ids == wide.ids).all() and (cut.weights == wide.weights).all()
    narrow = encoded(chat_run, task, {"prompt": "a b c " * 40, "chosen": "yes", "rejected": "no"})[0]
    assert narrow.cut and narrow.ids.shape == (2, 32) and (narrow.weights > 0).any(axis=1).all()


def test_an_answer_needs_the_assistant_and_a_place_in_the_context(task, chat_run):
    user = dicts([Message("user", "a")])
    with pytest.raises(ValueError, match="line 1 has an answer without a message of the assistant"):
        task.example(Row("line 1", {"prompt": "q", "chosen": user, "rejected": "b"}))
    late = [*dicts([Message("user", "x " * 99)]), {"role": "assistant", "content": "b"}]
    with pytest.raises(ValueError, match="line 1 has no answer within the context"):
        encoded(chat_run, task, {"prompt": "q", "chosen": late, "rejected": "b"})


@pytest.mark.parametrize("separator", [False, True])
def test_a_run_that_chats_learns_from_conversations_and_still_chats(tmp_path, chat_run, separator):
    rows = [
        {
            "prompt": [{"role": "user", "content": f"{n} + 1?"}],
            "chosen": [{"role": "assistant", "content": "good"}],
            "rejected": [{"role": "assistant", "content": "bad"}],
        }
        for n in range(24)
    ]
    run = bytelm.finetune(
        chat_run,
        task="preferences",
        data=[write(tmp_path / "rows.jsonl", rows)],
        out=tmp_path / "run",
        held_out=0.3,
        train=SETTINGS,
        options={"separator": separator},
    )
    assert bool(run.config.task.template) != separator
    assert Evaluation.read(tmp_path / "run").validation.preference_accuracy == 1
    first = next(line for line in run.run.metrics() if line["split"] == "validation")
    assert first["loss"] == pytest.approx(math.log(2), abs=1e-6)
    assert run.predict(["7 + 1?", "bad", "good"])[0]["prediction"] == "rejected"
    assert isinstance(run.chat("7 + 1?", greedy=True, tokens=3), str)
