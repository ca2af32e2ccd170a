"""Conversations as a task: rows, targets, packing, results and resuming."""

import re
import shutil
from dataclasses import replace

import numpy as np
import pytest
import torch

import bytelm
from lm.config import ModelConfig
from lm.lora_config import LoraConfig
from lm.model import LanguageModel
from lm.new_entries import with_new_entries
from pipelines.chat.messages import Message, fitting
from pipelines.chat.template import CHATML
from pipelines.evaluation.results import Evaluation
from pipelines.recipes.finetune_config import FinetuneConfig
from pipelines.run.folder import Run
from pipelines.run.loaded_run import load_model, load_run
from pipelines.run.task_outputs import task_outputs
from pipelines.tasks.chat import Chat, Output, best_fit
from pipelines.tasks.data import ExampleFiles, encode_task
from pipelines.tasks.examples import batch_of
from pipelines.training.batch_loss import summed_loss
from tests.tasks.conversations import TRAIN, dicts, rows, written
from tokenizer import Tokenizer


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


def test_the_run_before_fine_tuning_has_no_random_blocks(chat_run, trained_gpt, data, tmp_path):
    settings = {"task": "chat", "data": data, "out": tmp_path / "run", "compare_scratch": False}
    bytelm.finetune(trained_gpt, **settings, train=TRAIN | {"epochs": 1, "reinit": 1})
    one, other = (Evaluation.read(run).validation.comparison.others for run in (tmp_path / "run", chat_run))
    assert one["the run before fine-tuning"] == other["the run before fine-tuning"]


@pytest.mark.parametrize(("settings", "option"), [({"freeze": 1}, "freeze"), ({}, "lora.rank")])
def test_new_tokens_are_refused_if_their_embeddings_cannot_train(trained_gpt, chat_run, data, settings, option):
    files, lora = ExampleFiles(data=(data,)), LoraConfig(rank=0 if settings else 2)
    with pytest.raises(ValueError, match=rf"`{option}` would freeze the equal embeddings of <\|im_start\|> <\|im_end"):
        encode_task(Run(trained_gpt), files, Chat(), FinetuneConfig(**settings), lora)
    assert encode_task(Run(chat_run), files, Chat(), FinetuneConfig(**settings), lora).encoded_training


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
        options={"pack": False, "write": 3},
        compare_scratch=False,
    )
    said = [run.chat(f"say {word}", greedy=True) == word for word in ("a", "b", "zebra")]
    assert 0 < sum(said) < len(said)
    numbers = Evaluation.read(out).validation.results[0]
    assert numbers.exact == pytest.approx(sum(said) / len(said))
    most = run.config.model.context_length // 2
    whole, cut = (
        [run.chat(f"say {word}", greedy=True, tokens=n) for word in ("a", "b", "zebra")] for n in (99, most - 1)
    )
    assert numbers.ended == pytest.approx(sum(one == other for one, other in zip(whole, cut, strict=True)) / 3)


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


@pytest.mark.parametrize("pattern", ["none", "strided"])
def test_packing_changes_neither_loss_nor_gradient(alone, wide, pattern):
    wide = replace(wide, attention_pattern=pattern, pattern_size=16 if pattern == "none" else 5)
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


@pytest.mark.parametrize("pattern", ["fixed", "global", "random"])
def test_models_whose_sparse_attention_depends_on_the_place_in_a_row_are_not_packed(alone, wide, pattern):
    assert Chat().arrange(alone, replace(wide, attention_pattern=pattern)) == alone


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
    mixed = [{"instruction": "Add 1 to 0.", "output": "1"}, {"instruction": "Add 1.", "input": "0", "output": "1"}]
    for first, second in (mixed, mixed[::-1]):  # any row may lack an input
        path = written(tmp_path / "form.jsonl", [first, second])
        examples = Chat().choose_columns(first).examples([path])
        assert {example.inputs[0].content for example in examples} == {"Add 1 to 0.", "Add 1.\n\n0"}


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
    run = shutil.copytree(chat_run, tmp_path / "run")
    with pytest.warns(UserWarning, match="1 of 25 conversations"):
        assert bytelm.evaluate(run, data=files.data[0]).validation.examples == 24


@pytest.mark.parametrize("option", [{"without": ("layers.0",)}, {"context": 28}])
def test_an_evaluation_on_examples_is_that_of_the_whole_model_and_its_context(chat_run, option):
    saved = (chat_run / "evaluation.json").read_bytes()
    with pytest.raises(ValueError, match=f"is fine-tuned for a task: leave `{next(iter(option))}` out"):
        bytelm.evaluate(chat_run, **option)
    assert (chat_run / "evaluation.json").read_bytes() == saved


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


@pytest.mark.parametrize("truncate", ["left", "right"])
def test_every_answer_whose_end_is_not_cut_is_scored(chat_run, tmp_path, template, truncate):
    turns = [m for n in range(10) for m in (Message("user", f"q{n}"), Message("assistant", f"a{n}"))]
    path = written(tmp_path / "long.jsonl", [{"messages": dicts(turns)}])
    task = Chat(truncate=truncate, template=CHATML.replace("{{ '\\n' }}", ""))  # a conversation ends with its answer
    with pytest.warns(UserWarning, match="too"):
        work = encode_task(Run(chat_run), ExampleFiles(data=(path,), test=(path,)), task, FinetuneConfig())
    (one,) = work.encoded_validation
    text = template.tokenizer.decode([*one.ids.tolist(), int(one.targets[-1])])
    (numbers,) = task.results([Output(np.ones((len(one.ids), 2), np.float32))], [one], work.validation)
    assert numbers.answers == len(re.findall(r"assistant\na\d<\|im_end\|>", text)) > 0
    assert one.cut and text.endswith("a9<|im_end|>") == (truncate == "left")


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
