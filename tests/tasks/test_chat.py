"""Conversations: ids and masks as in transformers, packing without effect on the loss, and runs that answer."""

import io
import json
import os
import pty
import select
import signal
import subprocess
import sys
from dataclasses import replace

import numpy as np
import pytest
import torch
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

import bytelm
from lm.config import ModelConfig
from lm.model import LanguageModel
from lm.new_entries import with_new_entries
from pipelines.chat.messages import Message, conversation_of, fitting
from pipelines.chat.rendering import render_apart
from pipelines.chat.template import CHATML
from pipelines.evaluation.results import Evaluation
from pipelines.recipes.config import FinetuneConfig
from pipelines.run.folder import Run
from pipelines.run.loaded_run import load_model, load_run
from pipelines.run.predictor import task_outputs
from pipelines.tasks.chat import Chat, best_fit
from pipelines.tasks.data import ExampleFiles, encode_task
from pipelines.tasks.examples import batch_of
from pipelines.training.batch_loss import summed_loss
from tests.conftest import BYTELM
from tokenizer import Tokenizer

TRAIN = {"epochs": 2, "batch_size": 4, "lr": 5e-3, "device": "cpu", "dtype": "float32"}
SPECIAL = ("<|im_start|>", "<|im_end|>", "<|endoftext|>")
SILENT = CHATML.replace("{% generation %}", "").replace("{% endgeneration %}", "")


def rows(count=24):
    return [
        {"messages": [{"role": "user", "content": f"{n} + 1?"}, {"role": "assistant", "content": str(n + 1)}]}
        for n in range(count)
    ]


def written(path, content):
    path.write_text("\n".join(row if isinstance(row, str) else json.dumps(row) for row in content))
    return path


@pytest.fixture(scope="module")
def data(tmp_path_factory):
    return written(tmp_path_factory.mktemp("chat") / "chat.jsonl", rows())


@pytest.fixture(scope="module")
def chat_run(trained_gpt, data, tmp_path_factory):
    """Return the folder of a run of two epochs."""
    out = tmp_path_factory.mktemp("runs") / "chat"
    bytelm.finetune(trained_gpt, task="chat", data=data, out=out, train=TRAIN, compare_scratch=False)
    return out


@pytest.fixture(scope="module")
def template(chat_run):
    return load_run(chat_run).template


@pytest.fixture(scope="module")
def peer(chat_run, tmp_path_factory):
    """Return the tokenizer of the exported run in transformers."""
    transformers = pytest.importorskip("transformers")
    out = bytelm.export_hf(chat_run, out=tmp_path_factory.mktemp("export") / "hf")
    return transformers.AutoTokenizer.from_pretrained(out)


TEXTS = st.text(st.characters(exclude_categories=["Cs"]), max_size=12)
SPELLINGS = st.lists(st.one_of(TEXTS, st.sampled_from([*SPECIAL, "<|im_", "end|>", "<", "|>"])), max_size=4).map(
    "".join
)


def conversations(texts):
    message = st.builds(Message, st.sampled_from(["system", "user", "assistant"]), texts)
    return st.lists(message, min_size=1, max_size=5).map(lambda found: (*found, Message("assistant", "x")))


def dicts(messages):
    return [message._asdict() for message in messages]


@given(conversations(TEXTS))
@settings(suppress_health_check=[HealthCheck.function_scoped_fixture], max_examples=60)
def test_ids_and_answers_equal_those_of_transformers(template, peer, messages):
    theirs = peer.apply_chat_template(dicts(messages), return_assistant_tokens_mask=True, return_dict=True)
    ours = template.encode(messages)
    assert ours.ids.tolist() == theirs["input_ids"]
    if not any(message.content[:1].isspace() for message in messages if message.role == "assistant"):
        # It has no offset for white space that begins an answer, and then masks nothing.
        assert ours.answers.astype(int).tolist() == theirs["assistant_masks"]
    theirs = peer.apply_chat_template(dicts(messages), add_generation_prompt=True, return_dict=True)
    assert template.prompt(messages) == theirs["input_ids"]


@given(conversations(SPELLINGS))
@settings(suppress_health_check=[HealthCheck.function_scoped_fixture], max_examples=100)
def test_special_tokens_in_messages_are_text(template, peer, messages):
    tok, made = template.tokenizer, template.encode(messages)
    whole = peer.apply_chat_template(dicts(messages), tokenize=False)
    assert tok.decode(made.ids.tolist()) == whole
    special = set(tok.special_tokens.values())
    assert sum(i in special for i in made.ids.tolist()) == 2 * len(messages)
    said = [message.content for message in messages if message.role == "assistant"]
    answers = tok.decode(made.ids[made.answers].tolist())
    assert answers.replace("\n", "") == "".join(f"{text}<|im_end|>" for text in said).replace("\n", "")
    assert made.sizes.sum() == sum(len(text.encode()) for text in said)


def test_the_answers_of_a_template_without_generation_are_the_same(template):
    messages = (
        Message("system", "s"),
        Message("user", "a"),
        Message("assistant", "b\nc"),
        *[Message("assistant", "d")],
    )
    silent = replace(template, text=SILENT)
    assert (silent.encode(messages).answers == template.encode(messages).answers).all()
    assert silent.end_of_turn() == "<|im_end|>"
    changing = "{{ messages | length }}" + SILENT
    with pytest.raises(ValueError, match="does not write earlier messages the same"):
        replace(template, text=changing).encode(messages)


@pytest.mark.parametrize(
    ("text", "message"),
    [
        ("{{ x", "not valid Jinja: line 1"),
        ("{{ raise_exception('no system\nmessage') }}", "the chat template fails: no system message"),
        ("{{ ''.__class__.__mro__ }}", "unsafe"),
        ("{{ messages.append(1) }}", "the chat template fails"),
        (
            "{% set r = range(99999) %}{% for a in r %}{% for b in r %}{% endfor %}{% endfor %}",
            "more than 2 s or 1 GiB",
        ),
        ("{{ 'a' * 99999999999 }}", "MemoryError"),
        ("{% for a in range(99999) %}{{ 'a' * 99999 }}{% endfor %}", "more than 4,194,304 characters"),
    ],
)
def test_a_foreign_template_cannot_do_harm(text, message):
    with pytest.raises(ValueError, match=message):
        render_apart(text, {"messages": []})
    assert render_apart("{{ messages[0] }}", {"messages": ["still works"]}) == "still works"


def test_new_entries_are_the_mean_of_the_others_and_old_ones_stay():
    config = ModelConfig(layers=1, width=32, heads=2, context_length=16, tied_head=False)
    small, large = (LanguageModel(replace(config, vocab_size=size)) for size in (32, 35))
    weights = small.state_dict()
    grown = with_new_entries(weights, large, 30)
    for name in ("embedding.weight", "head.weight"):
        assert torch.equal(grown[name][:30], weights[name][:30])
        torch.testing.assert_close(grown[name][30:], weights[name][:30].mean(dim=0).expand(5, -1))
    large.load_state_dict(grown)
    ids = torch.arange(10)[None]
    torch.testing.assert_close(large.logits(large(ids))[..., :30], small.logits(small(ids))[..., :30])


def test_a_run_keeps_its_ids_and_gets_the_tokens_of_the_template(chat_run, trained_gpt):
    run, base = Run(chat_run), Run(trained_gpt)
    special, old = run.tokenizer().special_tokens, base.tokenizer()
    assert special == {**old.special_tokens, "<|im_start|>": old.vocab_size, "<|im_end|>": old.vocab_size + 1}
    assert run.recipe.head is None and run.recipe.model.vocab_size == old.vocab_size + 2
    assert load_run(chat_run).around.stops == (special["<|im_end|>"], special["<|endoftext|>"])


def test_the_evaluation_has_the_answers_beside_the_run_before_fine_tuning(chat_run, data):
    found = Evaluation.read(chat_run).validation
    numbers = found.results[0]
    work = encode_task(Run(chat_run), ExampleFiles(data=(data,)), Chat(), FinetuneConfig())
    held_out = [rows()[int(e.inputs[0].content.split()[0])]["messages"][1]["content"] for e in work.validation]
    assert numbers.answers == len(held_out) > 0 and numbers.bytes == sum(map(len, held_out))
    outputs = task_outputs(load_model(Run(chat_run)).model, work.encoded_validation)
    nats = sum(float(o[e.weights > 0, 0].sum()) for o, e in zip(outputs, work.encoded_validation, strict=True))
    assert numbers.bits_per_byte == pytest.approx(nats / np.log(2) / numbers.bytes, rel=1e-6)
    before = found.results[1].others["the run before fine-tuning"]
    assert before["bits per byte of answers"] > numbers.bits_per_byte


def test_exact_answers_are_those_that_greedy_decoding_gives(trained_gpt, tmp_path):
    content = [{"prompt": f"say {word}", "completion": word} for word in ("a", "b")] * 20
    out = tmp_path / "run"
    run = bytelm.finetune(
        trained_gpt,
        task="chat",
        data=written(tmp_path / "train.jsonl", content),
        test=written(tmp_path / "test.jsonl", [*content[:2], {"prompt": "say zebra", "completion": "zebra"}]),
        out=out,
        train=TRAIN | {"epochs": 25, "lr": 2e-2, "dropout": 0.0},
        options={"pack": False},
        compare_scratch=False,
    )
    said = [run.chat(f"say {word}", greedy=True) == word for word in ("a", "b", "zebra")]
    assert 0 < sum(said) < len(said)
    assert Evaluation.read(out).validation.results[0].exact == pytest.approx(sum(said) / len(said))


@pytest.mark.parametrize("lengths", [[5, 1, 4, 4, 2], [8], [3] * 7])
def test_rows_are_filled_with_whole_conversations(lengths):
    found = best_fit(lengths, 8)
    assert sorted(i for row in found for i in row) == list(range(len(lengths)))
    assert max(sum(lengths[i] for i in row) for row in found) <= 8
    assert len(found) == -(-sum(lengths) // 8) or lengths == [3] * 7


@pytest.fixture(scope="module")
def wide(chat_run):
    """Return the configuration of a model whose context has room for several conversations."""
    return replace(Run(chat_run).recipe.model, context_length=128, dropout=0.0)


@pytest.fixture(scope="module")
def alone(chat_run, data):
    """Return encoded conversations, each in a row of its own."""
    return encode_task(Run(chat_run), ExampleFiles(data=(data,)), Chat(pack=False), FinetuneConfig()).encoded_training


def test_packing_changes_neither_loss_nor_gradient(alone, wide):
    together, found = Chat().arrange(alone, wide), []
    assert 4 * len(together) < len(alone)
    for examples in (together, alone):
        model = LanguageModel(wide)
        loss = summed_loss(model, model, batch_of(examples), device=torch.device("cpu"))
        loss.backward()
        found.append((float(loss), [parameter.grad for parameter in model.parameters()]))
    (loss, gradients), (other_loss, other_gradients) = found
    assert loss == pytest.approx(other_loss, rel=1e-5)
    for one, other in zip(gradients, other_gradients, strict=True):
        torch.testing.assert_close(one, other, rtol=1e-4, atol=1e-5 * float(other.abs().max()))


@pytest.mark.parametrize("positions", ["learned", "sinusoidal"])
def test_models_with_absolute_positions_are_not_packed(alone, wide, positions):
    assert Chat().arrange(alone, replace(wide, positions=positions)) == alone
    assert len(Chat().arrange(alone, wide)) < len(alone)


def test_rows_of_every_form_are_read(chat_run, tmp_path):
    forms = [
        rows(1),
        [{"conversations": [{"from": "human", "value": "0 + 1?"}, {"from": "gpt", "value": "1"}]}],
        [{"prompt": "0 + 1?", "completion": "1"}],
        [{"prompt": [{"role": "user", "content": "0 + 1?"}], "completion": [{"role": "assistant", "content": "1"}]}],
        [{"instruction": "0 + 1?", "input": "", "output": "1"}],
        [{"instruction": "0 + 1?", "output": "1"}],
        [{"messages": [{"role": "user", "content": [{"type": "text", "text": "0 + 1?"}]}, rows(1)[0]["messages"][1]]}],
    ]
    for form in forms:
        path = written(tmp_path / "form.jsonl", form)
        task = Chat().choose_columns(form[0])
        (example,) = task.examples([path])
        assert example.inputs == (Message("user", "0 + 1?"), Message("assistant", "1"))
    task = Chat().choose_columns({"instruction", "input", "output"})
    path = written(tmp_path / "form.jsonl", [{"instruction": "Add 1.", "input": "0", "output": "1"}])
    assert task.examples([path])[0].inputs[0].content == "Add 1.\n\n0"


@pytest.mark.parametrize(
    ("row", "message"),
    [
        ({"text": "a"}, 'line 1 of bad.jsonl has no field "messages"'),
        ({"messages": "a"}, "\"messages\" in line 1 of bad.jsonl is 'a', not a list of messages"),
        ({"messages": ["a"]}, "message 1 of \"messages\" in line 1 of bad.jsonl is 'a', not an object"),
        ({"messages": [{"role": "robot", "content": "a"}]}, "has the role 'robot', but roles are system"),
        ({"messages": [{"role": ["user"], "content": "a"}]}, "has the role ['user'], but roles are system"),
        ({"messages": [{"role": "user", "content": 5}]}, "has the content 5, which is no text"),
        ({"messages": [{"role": "user", "content": [{"type": "image"}]}]}, "which is no text"),
        ({"messages": [{"role": "user", "content": "a"}]}, "line 1 of bad.jsonl has no answer"),
        ({"prompt": "a", "completion": 3}, '"completion" in line 1 of bad.jsonl is 3'),
        ('{"messages": [{"role": "assistant", "content": "\\ud800"}]}', "has a lone surrogate"),
        ({"messages": []}, "bad.jsonl holds no example"),
        (
            {"messages": [{"role": "user", "content": "long " * 100}, {"role": "assistant", "content": "b"}]},
            "no conversation has an answer within the context of 32 tokens: shorten them, or give --truncate left",
        ),
    ],
)
def test_a_row_that_is_no_conversation_is_refused_in_a_sentence(chat_run, in_process, tmp_path, row, message):
    good = written(tmp_path / "good.jsonl", rows())
    written(tmp_path / "bad.jsonl", [row])
    command = ["finetune", chat_run, "--task", "chat", "--data", "bad.jsonl", "--test", good, "--out", "new"]
    done = in_process(*command)
    assert done.returncode == 1 and message in done.stderr and done.stderr.count("\n") == 1, done.stderr
    assert not (tmp_path / "new").exists()


def test_conversations_without_an_answer_in_the_context_are_counted(chat_run, tmp_path):
    long = {"messages": [{"role": "user", "content": "long " * 100}, {"role": "assistant", "content": "b"}]}
    files = ExampleFiles(
        data=(written(tmp_path / "a.jsonl", [*rows(), long]),), test=(written(tmp_path / "b.jsonl", rows()),)
    )
    with pytest.warns(UserWarning, match="1 of 25 conversations have no answer within the context of 32 tokens"):
        work = encode_task(Run(chat_run), files, Chat(pack=False), FinetuneConfig())
    assert len(work.encoded_training) == 24


def test_left_keeps_the_system_message_and_the_last_turns(chat_run, tmp_path, template):
    turns = [m for n in range(10) for m in (Message("user", f"q{n}"), Message("assistant", f"a{n}"))]
    messages = (Message("system", "s"), *turns)
    kept = fitting(messages, lambda some: len(some) <= 6)
    assert kept == (messages[0], *messages[-4:])
    assert fitting(messages, lambda some: False) == (messages[0], *messages[-2:])
    path = written(tmp_path / "long.jsonl", [{"messages": dicts(messages)}])
    files = ExampleFiles(data=(path,), test=(path,))
    with pytest.warns(UserWarning, match="too"):
        left = encode_task(Run(chat_run), files, Chat(truncate="left", pack=False), FinetuneConfig())
        right = encode_task(Run(chat_run), files, Chat(pack=False), FinetuneConfig())
    tok = template.tokenizer
    said = [tok.decode(work.encoded_training[0].ids.tolist()) for work in (left, right)]
    assert "a9" in said[0] and "q0" not in said[0] and said[0].startswith("<|im_start|>system\ns<|im_end|>")
    assert "q0" in said[1] and "a9" not in said[1]
    assert left.encoded_training[0].cut and right.encoded_training[0].cut


def test_a_template_of_ones_own_is_used_everywhere(trained_gpt, data, tmp_path):
    text = "{% for m in messages %}{{ '<|' ~ m.role ~ '|>' ~ (m.content | trim) ~ eos_token }}{% endfor %}"
    text += "{% if add_generation_prompt %}<|assistant|>{% endif %}"
    (tmp_path / "own.jinja").write_text(text)
    run = bytelm.finetune(
        trained_gpt,
        task="chat",
        data=data,
        out=tmp_path / "run",
        train=TRAIN,
        options={"template": str(tmp_path / "own.jinja")},
        compare_scratch=False,
    )
    assert set(run.tokenizer.special_tokens) > {"<|user|>", "<|assistant|>"}
    out = bytelm.export_hf(run, out=tmp_path / "hf")
    config, generation = (
        json.loads((out / n).read_text()) for n in ("tokenizer_config.json", "generation_config.json")
    )
    assert config["chat_template"] == text and config["eos_token"] == "<|endoftext|>"
    assert generation["eos_token_id"] == [run.tokenizer.special_tokens["<|endoftext|>"]]
    again = load_run(bytelm.import_hf(str(out), out=tmp_path / "again"))
    assert again.template.text == text
    messages = [{"role": "user", "content": " hi "}]
    assert again.chat(messages, greedy=True, tokens=5) == run.chat(messages, greedy=True, tokens=5)


@pytest.mark.parametrize(
    ("template", "message"),
    [
        ("missing.jinja", "--template is missing.jinja, which cannot be read"),
        ("{{ messages[0].content }}", "ends answers with no special token"),
        ("{% for", "the chat template is not valid Jinja"),
        ("{{ 1 }}" * 40_000, "the chat template has 280,000 characters"),
    ],
)
def test_a_wrong_template_is_refused_before_training(chat_run, data, in_process, tmp_path, template, message):
    done = in_process("finetune", chat_run, "--task", "chat", "--data", data, "--out", "new", "--template", template)
    assert done.returncode == 1 and message in done.stderr and done.stderr.count("\n") == 1, done.stderr
    assert not (tmp_path / "new").exists()


def test_the_export_ends_answers_with_the_end_of_the_turn(chat_run, peer):
    assert peer.eos_token == "<|im_end|>" and peer.chat_template == CHATML


def test_a_conversation_on_the_command_line_streams_answers(chat_run, in_process):
    done = in_process("chat", chat_run, "--greedy", "--tokens", 6, stdin="3 + 1?\n\n4 + 1?")
    run = load_run(chat_run)
    first = run.chat("3 + 1?", greedy=True, tokens=6)
    said = [{"role": "user", "content": "3 + 1?"}, {"role": "assistant", "content": first}]
    second = run.chat([*said, {"role": "user", "content": "4 + 1?"}], greedy=True, tokens=6)
    assert (done.returncode, done.stdout) == (0, f"{first}\n{second}\n")
    shown = in_process("chat", chat_run, "--greedy", "--tokens", 6, "--message", "3 + 1?", "--system", "s", "--json")
    assert [one["role"] for one in json.loads(shown.stdout)] == ["system", "user", "assistant"]


def test_ctrl_c_ends_an_answer_and_the_conversation_goes_on(chat_run, monkeypatch):
    run = load_run(chat_run)
    run.model  # noqa: B018 - loads it
    written = []

    class Interrupted(io.StringIO):
        def write(self, text):
            written.append(text)
            if len(written) == 3:
                raise KeyboardInterrupt
            return len(text)

    monkeypatch.setattr(sys, "stdout", Interrupted())
    with bytelm.show():
        said = bytelm.chat(run, message=["1 + 1?", "2 + 1?"], tokens=8)
    assert [one["role"] for one in said] == ["user", "assistant", "user", "assistant"]


def test_a_run_without_a_template_is_refused_in_a_sentence(trained_gpt, chat_run, in_process):
    done = in_process("chat", trained_gpt)
    assert done.returncode == 1 and done.stderr.count("\n") == 1
    assert "has no chat template" in done.stderr and "--task chat" in done.stderr
    done = in_process("predict", chat_run, "a")
    assert done.returncode == 1 and "use bytelm chat" in done.stderr
    with pytest.raises(ValueError, match="has no chat template"):
        load_run(trained_gpt).chat("a")


def test_an_encoder_does_not_chat(trained_bert, data, in_process):
    done = in_process("finetune", trained_bert, "--task", "chat", "--data", data, "--out", "new")
    assert done.returncode == 1 and "the task chat is for decoder" in done.stderr


def test_a_conversation_that_outgrows_the_context_keeps_its_system_message(chat_run):
    run = load_run(chat_run)
    long = [{"role": "system", "content": "s"}]
    long += [{"role": role, "content": f"{n}"} for n in range(20) for role in ("user", "assistant")]
    asked = [*long, {"role": "user", "content": "1?"}]
    assert isinstance(run.chat(asked, tokens=4), str)
    short = run.template.prompt(fitting(conversation_of(asked, "m"), lambda kept: len(run.template.prompt(kept)) <= 28))
    assert len(short) <= 28 and run.tokenizer.decode(short).startswith("<|im_start|>system\ns")
    with pytest.warns(UserWarning, match="the last message has"):
        run.chat("long " * 100, tokens=2)


def test_a_chat_run_resumes_and_learns_more(chat_run, trained_gpt, data, tmp_path, in_process):
    options = ["--task", "chat", "--lr", "5e-3", "--batch-size", 4, "--device", "cpu", "--dtype", "float32"]
    command = ["finetune", trained_gpt, *options, "--data", data, "--no-compare-scratch", "--out", "run", "--epochs"]
    first = in_process(*command, 1)
    assert first.returncode == 0, first.stderr
    assert "new special tokens <|im_start|> <|im_end|>: their weights begin as the mean of the others" in first.stdout
    second = in_process(*command, 2)
    assert second.returncode == 0 and "resuming from step" in second.stdout, second.stderr
    other = written(tmp_path / "other.jinja", [CHATML + " "])
    third = in_process(*command, 2, "--template", other)
    assert third.returncode == 1 and "task.template" in third.stderr
    assert Tokenizer.load(tmp_path / "run").special_tokens["<|im_end|>"]


@pytest.fixture(scope="module")
def untrained(trained_gpt, data, tmp_path_factory):
    """Return the folder of a run that chats but has learned nothing, so its answers do not end."""
    out = tmp_path_factory.mktemp("runs") / "untrained"
    train = TRAIN | {"lr": 1e-12, "epochs": 1}
    bytelm.finetune(trained_gpt, task="chat", data=data, out=out, train=train, compare_scratch=False)
    return out


@pytest.mark.slow
def test_on_a_terminal_ctrl_c_ends_an_answer_and_ctrl_d_the_conversation(untrained):
    own, theirs = pty.openpty()
    command = [str(BYTELM), "chat", str(untrained), "--greedy", "--tokens", "1000000"]
    with subprocess.Popen(command, stdin=theirs, stdout=theirs, stderr=subprocess.DEVNULL) as process:
        os.close(theirs)
        seen = b""

        def read_until(text, more=0):
            nonlocal seen
            while text not in seen or len(seen) - seen.index(text) < more:
                assert select.select([own], [], [], 300)[0], seen
                seen += os.read(own, 4096)
            seen = seen[seen.index(text) + len(text) :]

        try:
            read_until(b"> ")
            os.write(own, b"1 + 1?\n")
            read_until(b"1 + 1?", more=40)
            process.send_signal(signal.SIGINT)
            read_until(b"> ")
            os.write(own, b"2 + 1?\n")
            read_until(b"2 + 1?", more=40)
            process.send_signal(signal.SIGINT)
            read_until(b"> ")
            os.write(own, b"\x04")
            assert process.wait(300) == 0
        finally:
            process.kill()
            os.close(own)


def test_generate_of_transformers_gives_the_same_answer(chat_run, untrained, peer, tmp_path):
    transformers = pytest.importorskip("transformers")
    for folder in (chat_run, untrained):
        run, out = load_run(folder), bytelm.export_hf(folder, out=tmp_path / folder.name)
        model = transformers.AutoModelForCausalLM.from_pretrained(out)
        asked = [{"role": "user", "content": "4"}]
        ids = peer.apply_chat_template(asked, add_generation_prompt=True, return_tensors="pt", return_dict=True)
        made = model.generate(**ids, max_new_tokens=10, do_sample=False)[0, ids["input_ids"].shape[1] :].tolist()
        stops = model.generation_config.eos_token_id
        assert stops == list(run.around.stops)
        text = run.tokenizer.decode([i for i in made if i not in stops])
        assert run.chat(asked, greedy=True, tokens=10) == text


@pytest.mark.parametrize("form", ["a file", "several with names", "none"])
def test_an_import_keeps_the_template_of_its_files(chat_run, tmp_path, form):
    out = bytelm.export_hf(chat_run, out=tmp_path / "hf")
    config = json.loads((out / "tokenizer_config.json").read_text())
    text = config.pop("chat_template")
    if form == "a file":
        (out / "chat_template.jinja").write_text(text)
    elif form == "several with names":
        config["chat_template"] = [{"name": "tool_use", "template": "x"}, {"name": "default", "template": text}]
    (out / "tokenizer_config.json").write_text(json.dumps(config))
    run = load_run(bytelm.import_hf(str(out), out=tmp_path / "run"))
    assert (run.template.text if run.template else None) == (None if form == "none" else text)
    again = bytelm.finetune(
        run,
        task="chat",
        data=written(tmp_path / "chat.jsonl", rows()),
        out=tmp_path / "more",
        train=TRAIN | {"epochs": 1},
        compare_scratch=False,
    )
    assert again.template.text == CHATML
    assert again.tokenizer.vocab_size == run.tokenizer.vocab_size


def test_a_chat_run_is_a_language_model_for_other_verbs(chat_run, data, in_process, tmp_path):
    for words in (
        ["generate", chat_run, "--prompt", "import", "--tokens", 3],
        ["score", chat_run, "import os"],
        ["evaluate", chat_run, "--data", data],
        ["runs", chat_run.parent],
        ["report", chat_run, "--out", "report.html"],
        ["finetune", chat_run, "--task", "chat", "--data", data, "--out", "new", "--dry-run"],
    ):
        done = in_process(*words)
        assert done.returncode == 0, f"{words}: {done.stderr}"
    assert "exact answers" in (tmp_path / "report.html").read_text()
    assert not (tmp_path / "new").exists()
