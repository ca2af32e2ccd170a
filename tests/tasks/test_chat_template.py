"""Chat templates: ids and masks as in transformers, foreign templates, exports and imports."""

import json
import os
import shutil
import signal
import subprocess
import sys
from dataclasses import replace

import pytest
import transformers
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

import bytelm
from pipelines.chat.messages import Message
from pipelines.chat.rendering import render_apart
from pipelines.chat.template import CHATML
from pipelines.run.loaded_run import load_run
from tests.pipelines.llama_cpp import LlamaCpp
from tests.tasks.conversations import SILENT, TRAIN, dicts, rows, written
from tokenizer import Tokenizer

SPECIAL = ("<|im_start|>", "<|im_end|>", "<|endoftext|>")


TEXTS = st.text(st.characters(exclude_categories=["Cs"]), max_size=12)


SPELLINGS = st.lists(st.one_of(TEXTS, st.sampled_from([*SPECIAL, "<|im_", "end|>", "<", "|>"])), max_size=4).map(
    "".join
)


def conversations(texts):
    message = st.builds(Message, st.sampled_from(["system", "user", "assistant"]), texts)
    return st.lists(message, min_size=1, max_size=5).map(lambda found: (*found, Message("assistant", "x")))


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


@pytest.fixture(scope="module")
def unigram(tmp_path_factory):
    """Return a Unigram tokenizer of ours and of transformers."""
    folder = tmp_path_factory.mktemp("unigram")
    texts = ["the cat sat on the mat", "1 + 2 = 3, said the user to the assistant of the system"] * 20
    tok = Tokenizer.train(texts, 60, kind="unigram", special_tokens=list(SPECIAL))
    tok.save(folder)
    return tok, transformers.PreTrainedTokenizerFast(tokenizer_file=str(folder / "tokenizer.json"))


@given(conversations(TEXTS | st.text("the cat12+ ", max_size=20)))
@settings(suppress_health_check=[HealthCheck.function_scoped_fixture], max_examples=60)
def test_ids_and_answers_of_a_unigram_tokenizer_equal_those_of_transformers(template, unigram, messages):
    tok, peer = unigram
    peer.chat_template = template.text
    theirs = peer.apply_chat_template(dicts(messages), return_assistant_tokens_mask=True, return_dict=True)
    ours = replace(template, tokenizer=tok).encode(messages)
    assert ours.ids.tolist() == theirs["input_ids"]
    assert ours.answers.astype(int).tolist() == theirs["assistant_masks"]


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
    with pytest.raises(ValueError, match="writes earlier messages differently"):
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


def template_process():
    """Return the id of the process that runs templates."""
    found = subprocess.run(["pgrep", "-P", str(os.getpid()), "-f", "chat/rendering.py"], stdout=subprocess.PIPE)
    return int(found.stdout)


def test_the_process_that_runs_templates_restarts_after_it_was_killed(monkeypatch):
    variables = {"messages": ["works"]}
    for _ in range(2):
        assert render_apart("{{ messages[0] }}", variables) == "works"
        process = template_process()
        os.kill(process, signal.SIGKILL)
        os.waitid(os.P_PID, process, os.WEXITED | os.WNOWAIT)
    for python, message in (("false", "ended with status 1"), ("no-such-python", "No such file")):
        monkeypatch.setattr(sys, "executable", shutil.which(python) or python)
        with pytest.raises(ValueError, match=f"^the process that runs templates did not start: .*{message}"):
            render_apart("{{ messages[0] }}", variables)
    monkeypatch.undo()
    assert render_apart("{{ messages[0] }}", variables) == "works"


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


def test_llama_cpp_formats_conversations_with_the_template_of_a_gguf_file(chat_run, template, tmp_path):
    pytest.importorskip("xllamacpp")
    ours, messages = template.tokenizer, [Message("system", "s"), Message("user", "a\n b"), Message("assistant", "c")]
    with LlamaCpp(bytelm.export_gguf(chat_run, out=tmp_path / "chat.gguf")) as peer:
        for said in (messages[:2], messages[1:2], [*messages, Message("user", "Wörter?")]):
            prompt = peer.ask("/apply-template", messages=dicts(said))["prompt"]
            assert peer.ids(prompt, special=True) == template.prompt(tuple(said))
        answer = peer.ask("/v1/chat/completions", messages=dicts(messages[1:2]), temperature=0, max_tokens=40)
    assert answer["choices"][0]["message"]["content"] is not None
    again = load_run(bytelm.import_gguf(tmp_path / "chat.gguf", out=tmp_path / "again"))
    assert again.template.prompt(tuple(messages[:2])) == template.prompt(tuple(messages[:2]))
    assert again.template.end_of_turn() == template.end_of_turn()
    assert ours.fingerprint == again.tokenizer.fingerprint
