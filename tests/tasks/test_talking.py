"""Talking with a run: on the command line, on a terminal, and with other verbs."""

import io
import json
import os
import pty
import select
import signal
import subprocess
import sys

import pytest

import bytelm
from pipelines.chat.messages import conversation_of, fitting
from pipelines.cli.dispatch import main
from pipelines.run.loaded_run import load_run
from tests.conftest import BYTELM


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


def test_on_a_terminal_standard_output_has_only_the_json(chat_run, monkeypatch, capsys):
    own, theirs = pty.openpty()
    with open(own, "wb", buffering=0) as keys, open(theirs, encoding="utf-8") as terminal:  # noqa: PTH123
        monkeypatch.setattr(sys, "stdin", terminal)
        keys.write(b"3 + 1?\n\x04")
        assert main(["chat", str(chat_run), "--tokens", "2", "--json"]) == 0
    said = capsys.readouterr()
    assert [one["role"] for one in json.loads(said.out)] == ["user", "assistant"]
    assert "write a message" in said.err and "> " in said.err


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
