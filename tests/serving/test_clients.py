"""lm-evaluation-harness and the openai package get bytelm's numbers from a real server, offline.

Both live in an environment of their own. `make test-serve` makes it and sets BYTELM_CLIENTS to its Python.
"""

import json
import os
import subprocess
from pathlib import Path

import numpy as np
import pytest
import torch

import bytelm
from tests.serving.test_serve import served

CLIENTS = os.environ.get("BYTELM_CLIENTS")
pytestmark = pytest.mark.skipif(CLIENTS is None, reason="lm_eval and openai are in no environment: run make test-serve")
SCRIPTS = Path(__file__).with_name("clients")
CONTEXT = 32
QUESTIONS = [
    {"context": "import", "choices": [" os", " sys\n", "lib"]},
    {"context": "def f(x):\n    return ", "choices": ["x", "None\n\n", "é€"]},  # the space moves to the choices
    {"context": "a = '", "choices": ["😀'", "\N{CJK UNIFIED IDEOGRAPH-4E2D}\u0301", "b'"]},  # tokens that are not UTF-8
    {"context": "", "choices": ["import os\n", "class"]},
    {"context": "x = <|sep|>", "choices": ["\n", " <|pad|>"]},  # text, but not for the exported tokenizer
]
TEXTS = ["import os\n", "é", "", "def main():\n    return 0\n" * 12]
PROMPTS = ["import", "def f(x):\n", "é€ = "]


def task(name, kind, rows, folder, **fields):
    """Write a task of the harness over local rows."""
    (folder / f"{name}.jsonl").write_text("".join(json.dumps(row) + "\n" for row in rows))
    fields |= {"task": name, "output_type": kind, "dataset_path": "json", "test_split": "test"}
    fields |= {"dataset_kwargs": {"data_files": {"test": str(folder / f"{name}.jsonl")}}, "target_delimiter": ""}
    (folder / f"{name}.yaml").write_text(json.dumps(fields))  # JSON is YAML


@pytest.fixture(scope="module")
def address(trained_gpt):
    with served(trained_gpt) as (_, (_, address)):
        yield address


@pytest.fixture(scope="module")
def harness(address, trained_gpt, tmp_path_factory):
    """Return what the harness read, by run and task."""
    folder = tmp_path_factory.mktemp("harness")
    tasks = folder / "tasks"
    tasks.mkdir()
    task(
        "choices",
        "multiple_choice",
        QUESTIONS,
        tasks,
        doc_to_text="{{context}}",
        doc_to_choice="choices",
        doc_to_target=0,
    )
    rolling = [{"text": text} for text in TEXTS]
    task("rolling", "loglikelihood_rolling", rolling, tasks, doc_to_text="", doc_to_target="{{text}}")
    until = {"until": ["\n", "zz"], "max_gen_toks": 12}
    prompts = [{"text": text} for text in PROMPTS]
    task("until", "generate_until", prompts, tasks, doc_to_text="{{text}}", doc_to_target="", generation_kwargs=until)
    exported = folder / "exported"
    bytelm.export_hf(trained_gpt, out=exported)
    server = {"base_url": address + "v1/completions", "model": "gpt", "max_length": CONTEXT}
    exact = server | {"tokenizer": str(exported), "tokenizer_backend": "huggingface"}
    every = ["choices", "rolling", "until"]
    runs = {
        "remote": (every, server),
        "remote, batches of 8": (["choices", "rolling"], server | {"batch_size": 8}),
        "remote, 4 at once": (["choices"], server | {"batch_size": 2, "num_concurrent": 4}),
        "remote, text": (["choices"], server | {"tokenized_requests": False}),
        "exported": (every, exact),
        "exported, batches of 8": (["choices", "rolling"], exact | {"batch_size": 8}),
    }
    (folder / "wanted.json").write_text(json.dumps({"tasks": str(tasks), "runs": runs}))
    return client("harness.py", folder / "wanted.json", folder)


def client(script, argument, home):
    """Return the JSON object that a script of the clients' environment prints."""
    offline = {"HF_HUB_OFFLINE": "1", "HF_DATASETS_OFFLINE": "1", "HF_HOME": str(home)}
    words = [CLIENTS, str(SCRIPTS / script), str(argument)]
    done = subprocess.run(words, capture_output=True, text=True, env=os.environ | offline, check=False)
    assert done.returncode == 0, done.stderr[-3000:]
    return json.loads(done.stdout.splitlines()[-1])


RUNS = [("remote", 1e-6), ("exported", 1e-6), ("remote, text", 1e-6)]
BATCHED_RUNS = [("remote, batches of 8", 1e-4), ("remote, 4 at once", 1e-4), ("exported, batches of 8", 1e-4)]


@pytest.mark.parametrize(("run", "tolerance"), [*RUNS, *BATCHED_RUNS])
def test_choices_have_the_scores_of_bytelm(gpt, harness, run, tolerance):
    for question, answers in zip(QUESTIONS, harness[run]["choices"], strict=True):
        if "exported" in run and "<|" in question["context"]:
            continue
        # For an empty context, the harness starts with the end token, which is also a decoder's start token.
        start = not question["context"]
        ranked = bytelm.rank_choices(gpt, question["context"], question["choices"], start=start)
        for number, answer in enumerate(answers):
            value, greedy = answer[0]
            expected = ranked.log_probabilities[number]
            print(f"{run:24} {question['choices'][number]!r:16} harness {value:.9f}  bytelm {expected:.9f}")
            assert value == pytest.approx(expected, abs=tolerance * ranked.tokens[number])
            assert bool(greedy) == ranked.greedy[number]


def rolling_log_likelihood(run, text):
    """Return ln p of a text in the windows of local-completions, each with one token of context, or more for the last.

    The windows are two tokens shorter than the context: one for the generated token, one for the context.
    """
    ids = [run.around.start, *run.tokenizer.encode(text, disallowed_special=())]
    size, total = CONTEXT - 2, 0.0
    for begin in range(1, len(ids), size):
        end = min(begin + size, len(ids))
        first = max(0, end - size - 1) if begin > 1 else 0
        with torch.inference_mode():
            window = torch.tensor([ids[first:end]])
            log_p = run.model.logits(run.model(window[:, :-1]))[0].log_softmax(-1).double()
        total += log_p.gather(-1, window[0, 1:, None])[begin - first - 1 :].sum().item()
    return total


@pytest.mark.parametrize(
    ("run", "tolerance"), [each for each in RUNS + BATCHED_RUNS if "," not in each[0] or "8" in each[0]]
)
def test_texts_have_the_scores_of_bytelm(gpt, harness, run, tolerance):
    for text, ((value,),) in zip(TEXTS, harness[run]["rolling"], strict=True):
        count = len(gpt.tokenizer.encode(text, disallowed_special=()))
        expected = rolling_log_likelihood(gpt, text) if text else 0.0
        print(f"{run:24} {text[:12]!r:16} harness {value:.9f}  bytelm {expected:.9f}")
        assert value == pytest.approx(expected, abs=tolerance * max(1, count))
        if 0 < count < CONTEXT - 1:
            own = bytelm.score_text(gpt, text).log_probability
            assert value == pytest.approx(own, abs=tolerance * count)


@pytest.mark.parametrize("run", ["remote", "exported"])
def test_generated_texts_end_before_the_stop_string(gpt, trained_gpt, harness, run):
    texts = [answers[0][0] for answers in harness[run]["until"]]
    for prompt, text in zip(PROMPTS, texts, strict=True):
        assert "\n" not in text
        ids = torch.tensor(gpt.tokenizer.encode(prompt))
        with torch.inference_mode():
            from lm.decoding.generation import generate

            new = generate(gpt.model, ids, 12, temperature=0, stop_ids=gpt.around.stops).tolist()
        whole = gpt.tokenizer.decode([i for i in new if i not in gpt.around.stops])
        assert text == whole.split("\n")[0]


def test_the_openai_package_reads_every_answer(address, gpt, tmp_path):
    found = client("openai_package.py", address, tmp_path)
    assert found["models"] == ["gpt"]
    (choice,) = found["whole"]["choices"]
    assert choice["text"] == "import os" + found["streamed"] == "import os" + found["sampled"]
    logprobs = choice["logprobs"]
    count = len(gpt.tokenizer.encode("import os"))
    assert {len(values) for values in logprobs.values()} == {count + 12}
    expected = bytelm.score_text(gpt, "import os", start=False).predictions.log_probabilities[1:]
    np.testing.assert_allclose(logprobs["token_logprobs"][1:count], expected, atol=1e-6)
    assert found["usage"] == {
        **found["usage"], "prompt_tokens": count, "completion_tokens": 12, "total_tokens": count + 12
    }  # fmt: skip
    assert found["several"] == [0, 1, 2, 3]
    errors = found["errors"]
    assert errors["model"][:3] == ["NotFoundError", "model_not_found", "model"]
    assert errors["long"][:3] == ["BadRequestError", "context_length_exceeded", "prompt"]
    assert errors["field"][:3] == ["BadRequestError", None, "suffix"]
    assert errors["chat"][0] == "NotFoundError" and "not chat models" in errors["chat"][3]
