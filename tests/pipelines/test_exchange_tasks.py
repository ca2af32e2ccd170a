"""Fine-tuned runs and fine-tuned models of `transformers` predict the same after an export or an import."""

import json
import shutil
from dataclasses import replace

import pytest
import torch
from safetensors.torch import load_file, save_file

import bytelm
from lm.exchange.task_heads import TASK_HEADS
from pipelines.recipes.recipe import load_recipe
from pipelines.run.checkpoint_reader import load_weights
from pipelines.run.folder import Run
from pipelines.verbs.pretrain import pretrain
from tests.pipelines.exchange_cases import SHAPES, save_peer
from tests.tasks.files import write

transformers = pytest.importorskip("transformers")
tokenizers = pytest.importorskip("tokenizers")

SETTINGS = {"epochs": 1, "lr": 3e-3, "batch_size": 8, "device": "cpu", "dtype": "float32"}
TEXTS = ["import os", "def main():", "naïve 漢", "x = [1]\n"]
ROWS = [
    {
        "text": f"{word} number {i}",
        "second": f"{i} {word[::-1]}",
        "label": label,
        "score": i / 3,
        "tags": [label] * (i % 3),
    }
    for i in range(16)
    for word, label in (("def", "code"), ("the", "prose"), ("12", "digits"))
]


def small(recipe, **changes):
    """Return a recipe with a small model of random weights that differ enough from each other."""
    model = replace(recipe.model, width=32, dropout=0.0, **changes)
    train = replace(recipe.train, tokens=512, batch_tokens=256, device="cpu", dtype="float32")
    return replace(recipe, model=model, train=train)


@pytest.fixture(scope="module")
def modernbert(tmp_path_factory, dataset_folder):
    """Return the run of a small encoder of the default recipe."""
    out = tmp_path_factory.mktemp("modernbert") / "run"
    pretrain(small(load_recipe("bert-tiny"), context_length=34, mlp_width=48), data=dataset_folder, out=out)
    return out


@pytest.fixture(scope="module")
def bert(tmp_path_factory, dataset_folder):
    """Return the run of a small encoder in the shape of BERT."""
    out = tmp_path_factory.mktemp("bert") / "run"
    recipe = small(load_recipe("bert-tiny-published"), context_length=34, initialization="xavier")
    pretrain(recipe, data=dataset_folder, out=out)
    return out


@pytest.fixture(scope="module")
def t5(tmp_path_factory, sentinel_dataset):
    """Return the run of a small encoder-decoder in the shape of T5."""
    out = tmp_path_factory.mktemp("t5") / "run"
    pretrain(small(load_recipe("t5-tiny"), context_length=32), data=sentinel_dataset, out=out)
    return out


@pytest.fixture(scope="module")
def tuned(tmp_path_factory):
    """Return tune(run, **options), which fine-tunes a run on ROWS for a few steps."""
    folder = tmp_path_factory.mktemp("tuned")
    data = write(folder / "rows.jsonl", ROWS)
    made = {}

    def tune(run, task="classes", **options):
        key = (run, task, repr(options))
        if key not in made:
            out = folder / str(len(made))
            made[key] = bytelm.finetune(
                run, task=task, data=[data], out=out, train=SETTINGS, options=options, compare_scratch=False
            )
        return made[key]

    return tune


@torch.no_grad()
def theirs(folder, *texts, auto=transformers.AutoModelForSequenceClassification):
    """Return the logits of a class for texts, or pairs, that the tokenizer of its folder pads to one batch."""
    tok, model = transformers.AutoTokenizer.from_pretrained(folder), auto.from_pretrained(folder).eval()
    return model(**tok(*texts, padding=True, return_tensors="pt")).logits


def ours(run, texts, labels):
    """Return the probabilities of the labels of each text, (N, L)."""
    predicted = bytelm.predict(run, texts)
    return torch.tensor([[one["probabilities"][str(label)] for label in labels] for one in predicted])


def equal(first, second):
    torch.testing.assert_close(first.double(), second.double(), atol=1e-5, rtol=1e-5)


@pytest.mark.parametrize(
    ("fixture", "options", "name"),
    [
        ("modernbert", {}, "ModernBertForSequenceClassification"),
        ("modernbert", {"pooling": "first"}, "ModernBertForSequenceClassification"),
        ("bert", {"pooling": "first"}, "BertForSequenceClassification"),
        ("trained_gpt", {}, "GPTNeoXForSequenceClassification"),
        ("t5", {}, "T5ForSequenceClassification"),
    ],
)
@pytest.mark.parametrize("columns", [("text", "label"), ("text", "second", "label")])
def test_an_exported_run_gives_the_same_probabilities_for_texts_and_pairs(
    fixture, options, name, columns, request, tuned, tmp_path
):
    run = tuned(request.getfixturevalue(fixture), columns=columns, **options)
    out = bytelm.export_hf(run, out=tmp_path / "out")
    config = json.loads((out / "config.json").read_text())
    assert config["architectures"] == [name] and config["problem_type"] == "single_label_classification"
    assert config["id2label"] == {"0": "code", "1": "digits", "2": "prose"}
    sides = [TEXTS, TEXTS[::-1]][: len(columns) - 1]
    given = [text for row in zip(*sides, strict=True) for text in row]
    expected = ours(run, given, ["code", "digits", "prose"])
    assert expected.std(dim=0).max() > 1e-3
    equal(theirs(out, *sides).softmax(dim=-1), expected)

    classify = transformers.pipeline("text-classification", str(out), device="cpu")
    inputs = [dict(zip(("text", "text_pair"), row, strict=False)) for row in zip(*sides, strict=True)]
    for row, chances in zip(classify(inputs, top_k=None, batch_size=4), expected.tolist(), strict=True):
        assert {one["label"]: one["score"] for one in row} == pytest.approx(
            dict(zip(["code", "digits", "prose"], chances, strict=True)), abs=1e-5
        )


@pytest.mark.parametrize("fixture", ["modernbert", "trained_gpt", "t5"])
def test_an_exported_run_comes_back_as_it_was(fixture, request, tuned, tmp_path):
    run = tuned(request.getfixturevalue(fixture), columns=("text", "label"))
    again = Run(bytelm.import_hf(str(bytelm.export_hf(run, out=tmp_path / "out")), out=tmp_path / "again"))
    was, now = (load_weights(one.folder, one.settings)[1] for one in (run.run, again))
    assert was.keys() == now.keys() and all(torch.equal(was[name], now[name]) for name in was)
    assert again.recipe.head == run.config.head
    assert again.recipe.task.labels == run.config.task.labels
    assert bytelm.predict(again.folder, TEXTS) == bytelm.predict(run, TEXTS)
    out = bytelm.export_hf(again.folder, out=tmp_path / "twice")
    tensors = [load_file(folder / "model.safetensors") for folder in (tmp_path / "out", out)]
    assert all(torch.equal(tensors[0][name], tensors[1][name]) for name in tensors[0].keys() | tensors[1].keys())
    for name in ("config.json", "tokenizer.json"):
        first, second = (json.loads((folder / name).read_text()) for folder in (tmp_path / "out", out))
        assert first == second, name


def published(folder, head, tokenizer_folder, **options):
    """Save a random model of a class with the head of a task, and a tokenizer, in the layout of the hub."""
    kind, cls = head.format.model_type, getattr(transformers, head.auto_class)
    tok = tokenizers.Tokenizer.from_file(str(tokenizer_folder / "tokenizer.json"))
    special = {name: tok.token_to_id(name) for name in ("<|endoftext|>", "<|pad|>", "<|cls|>", "<|sep|>")}
    ids = dict(zip(("eos_token_id", "pad_token_id", "cls_token_id", "sep_token_id"), special.values(), strict=True))
    if kind == "roberta":
        options["max_position_embeddings"] = 34 + ids["pad_token_id"] + 1
    labels = {"id2label": {0: "bad", 1: "fair", 2: "good"}, "label2id": {"bad": 0, "fair": 1, "good": 2}}
    settings = {**SHAPES[kind], **ids, **({} if head.kind in ("span", "choice") else labels), **options}
    config = cls.config_class(vocab_size=512, decoder_start_token_id=ids["pad_token_id"], **settings)
    torch.manual_seed(1)
    peer = cls(config).eval()
    with torch.no_grad():
        for parameter in peer.parameters():
            parameter.add_(torch.randn_like(parameter) * 0.2)
    peer.save_pretrained(folder)
    first, second = ("<|cls|>", "<|sep|>") if "bert" in kind else ("", "<|endoftext|>" if kind == "t5" else "")
    if second:
        between = f"{second} {second}" if kind == "roberta" else second
        tok.post_processor = tokenizers.processors.TemplateProcessing(
            single=f"{first} $A {second}".strip(),
            pair=f"{first} $A {between} $B:1 {second}:1".strip(),
            special_tokens=[(name, special[name]) for name in (first, second) if name],
        )
    inputs = ["input_ids", "attention_mask", *(["token_type_ids"] if kind == "bert" else [])]
    transformers.PreTrainedTokenizerFast(
        tokenizer_object=tok, pad_token="<|pad|>", cls_token="<|cls|>", sep_token="<|sep|>", mask_token="<|mask|>",
        model_input_names=inputs,
    ).save_pretrained(folder)  # fmt: skip
    return folder


CLASSIFIERS = [head for head in TASK_HEADS if head.kind == "sequence"]


@pytest.mark.parametrize("head", CLASSIFIERS, ids=lambda head: head.auto_class)
def test_an_imported_classifier_gives_the_same_probabilities_and_goes_back_unchanged(head, tokenizer_folder, tmp_path):
    folder = published(tmp_path / "theirs", head, tokenizer_folder)
    run = bytelm.import_hf(str(folder), out=tmp_path / "run")
    expected = theirs(folder, TEXTS).softmax(dim=-1)
    assert expected.std(dim=0).max() > 1e-3
    equal(ours(run, TEXTS, ["bad", "fair", "good"]), expected)
    pairs = bytelm.import_hf(str(folder), out=tmp_path / "pairs", columns=("premise", "hypothesis", "label"))
    given = [text for row in zip(TEXTS, TEXTS[::-1], strict=True) for text in row]
    expected = theirs(folder, TEXTS, TEXTS[::-1]).softmax(dim=-1)
    equal(ours(pairs, given, ["bad", "fair", "good"]), expected)

    out = bytelm.export_hf(run, out=tmp_path / "out")
    tensors = [load_file(each / "model.safetensors") for each in (folder, out)]
    assert all(torch.equal(tensors[0][name], tensor) for name, tensor in tensors[1].items())
    equal(theirs(out, TEXTS, TEXTS[::-1]).softmax(dim=-1), expected)
    again = bytelm.import_hf(str(out), out=tmp_path / "again")
    was, now = (load_weights(each, Run(each).settings)[1] for each in (run, again))
    assert was.keys() == now.keys() and all(torch.equal(was[name], now[name]) for name in was)
    assert Run(again).recipe == Run(run).recipe


def test_labels_that_are_numbers_stay_numbers(modernbert, tmp_path):
    rows = write(tmp_path / "rows.jsonl", [row | {"label": len(row["label"])} for row in ROWS])
    run = bytelm.finetune(modernbert, data=[rows], out=tmp_path / "run", train=SETTINGS, compare_scratch=False)
    out = bytelm.export_hf(run, out=tmp_path / "out")
    assert json.loads((out / "config.json").read_text())["id2label"] == {"0": "4", "1": "5", "2": "6"}
    again = bytelm.import_hf(str(out), out=tmp_path / "again")
    assert [one["prediction"] for one in bytelm.predict(again, TEXTS)] == [
        one["prediction"] for one in run.predict(TEXTS)
    ]
    measured = bytelm.evaluate(again, data=rows).validation
    assert measured.examples == len(ROWS)
    said = run.predict([row["text"] for row in ROWS])
    right = [one["prediction"] == len(row["label"]) for row, one in zip(ROWS, said, strict=True)]
    assert measured.accuracy == pytest.approx(sum(right) / len(ROWS))


def test_several_labels_each_give_the_same_probabilities(modernbert, tuned, tmp_path):
    run = tuned(modernbert, columns=("text", "tags"))
    out = bytelm.export_hf(run, out=tmp_path / "out")
    expected = ours(run, TEXTS, ["code", "digits", "prose"])
    assert expected.std(dim=0).max() > 1e-3
    equal(theirs(out, TEXTS).sigmoid(), expected)
    classify = transformers.pipeline("text-classification", str(out), device="cpu")
    scores = {one["label"]: one["score"] for one in classify(TEXTS[:1], top_k=None)[0]}
    equal(torch.tensor([scores[label] for label in ("code", "digits", "prose")]), expected[0])
    again = bytelm.import_hf(str(out), out=tmp_path / "again")
    assert bytelm.predict(again, TEXTS) == run.predict(TEXTS)


def test_numbers_are_exported_in_the_unit_of_the_targets(modernbert, tuned, tmp_path):
    run = tuned(modernbert, "regression", columns=("text", "score"))
    assert run.config.task.deviation > 1.2  # not 1 already
    out = bytelm.export_hf(run, out=tmp_path / "out")
    expected = torch.tensor([one["prediction"] for one in run.predict(TEXTS)])
    equal(theirs(out, TEXTS)[:, 0], expected)
    [said] = transformers.pipeline("text-classification", str(out), device="cpu")(TEXTS[:1])
    assert said["score"] == pytest.approx(float(expected[0]), abs=1e-5)
    again = bytelm.import_hf(str(out), out=tmp_path / "again")
    equal(torch.tensor([one["prediction"] for one in bytelm.predict(again, TEXTS)]), expected)


@pytest.fixture(scope="module")
def decoders(tmp_path_factory, tokenizer_folder):
    """Return decoder(kind): the run of an imported random decoder."""
    folder = tmp_path_factory.mktemp("decoders")

    def decoder(kind):
        if not (folder / f"{kind}-run").exists():
            save_peer(folder / kind, kind, tokenizer_folder)
            bytelm.import_hf(str(folder / kind), out=folder / f"{kind}-run")
        return folder / f"{kind}-run"

    return decoder


@pytest.mark.parametrize("columns", [("text", "score"), ("text", "second", "score")])
@pytest.mark.parametrize(
    ("kind", "center", "name"),
    [("gpt2", True, "GPT2"), ("gpt_neox", True, "GPTNeoX"), ("llama", False, "Llama"), ("gpt2", False, "GPT2")],
)
def test_numbers_of_a_decoder_are_exported_in_the_unit_of_the_targets(
    decoders, tuned, tmp_path, kind, center, name, columns
):
    run = tuned(decoders(kind), "regression", columns=columns, center=center)
    assert (run.config.task.mean > 1) == center
    out = bytelm.export_hf(run, out=tmp_path / "out")
    config = json.loads((out / "config.json").read_text())
    assert config["architectures"] == [f"{name}ForSequenceClassification"] and config["problem_type"] == "regression"
    sides = [TEXTS, TEXTS[::-1]][: len(columns) - 1]
    given = [text for row in zip(*sides, strict=True) for text in row]
    expected = torch.tensor([one["prediction"] for one in bytelm.predict(run, given)])
    assert expected.std() > 1e-3
    equal(theirs(out, *sides)[:, 0], expected)
    again = bytelm.import_hf(str(out), out=tmp_path / "again", columns=columns)
    equal(torch.tensor([one["prediction"] for one in bytelm.predict(again, given)]), expected)


@pytest.mark.parametrize(("kind", "name"), [("gpt2", "GPT2"), ("llama", "Llama")])
@pytest.mark.parametrize("columns", [("text", "label"), ("text", "second", "label"), ("text", "tags")])
def test_classes_of_a_decoder_keep_their_probabilities(decoders, tuned, tmp_path, kind, name, columns):
    run = tuned(decoders(kind), columns=columns)
    out = bytelm.export_hf(run, out=tmp_path / "out")
    assert json.loads((out / "config.json").read_text())["architectures"] == [f"{name}ForSequenceClassification"]
    sides = [TEXTS, TEXTS[::-1]][: len(columns) - 1]
    expected = ours(run, [text for row in zip(*sides, strict=True) for text in row], ["code", "digits", "prose"])
    logits = theirs(out, *sides)
    equal(logits.sigmoid() if run.config.task.several else logits.softmax(dim=-1), expected)


def test_a_decoder_without_a_bias_cannot_hold_the_mean_of_numbers(decoders, tuned, tmp_path):
    run = tuned(decoders("llama"), "regression", columns=("text", "score"))
    with pytest.raises(ValueError, match=r"LlamaForSequenceClassification has no bias in its head .* `center=False`"):
        bytelm.export_hf(run, out=tmp_path / "out")
    assert not (tmp_path / "out").exists()


@pytest.mark.parametrize("fixture", ["modernbert", "bert", "trained_gpt"])
def test_tags_of_words_keep_their_logits(fixture, request, tuned, tmp_path):
    rows = [{"tokens": row["text"].split(), "tags": ["B-X", "O", "I-X"]} for row in ROWS]
    data = write(tmp_path / "rows.jsonl", rows)
    run = bytelm.finetune(
        request.getfixturevalue(fixture), task="tokens", data=[data], out=tmp_path / "run", train=SETTINGS,
        compare_scratch=False,
    )  # fmt: skip
    out = bytelm.export_hf(run, out=tmp_path / "out")
    same_logits(run, out, transformers.AutoModelForTokenClassification)
    assert set(json.loads((out / "config.json").read_text())["label2id"]) == {"O", "B-X", "I-X"}
    again = bytelm.import_hf(str(out), out=tmp_path / "again")
    assert bytelm.predict(again, file=data) == bytelm.predict(run, file=data)
    assert Run(again).recipe.model.bias == run.config.model.bias
    assert transformers.pipeline("token-classification", str(out), device="cpu")(TEXTS[0]) is not None


@pytest.mark.parametrize("fixture", ["modernbert", "bert"])
def test_answers_to_questions_keep_their_logits(fixture, request, tmp_path):
    texts = [row["text"] for row in ROWS]
    answers = [{"text": ["number"], "answer_start": [text.index("number")]} for text in texts]
    rows = [
        {"question": "which", "context": text, "answers": answer} for text, answer in zip(texts, answers, strict=True)
    ]
    data = write(tmp_path / "rows.jsonl", rows)
    run = bytelm.finetune(
        request.getfixturevalue(fixture), task="spans", data=[data], out=tmp_path / "run", train=SETTINGS,
        compare_scratch=False, options={"stride": 4},
    )  # fmt: skip
    out = bytelm.export_hf(run, out=tmp_path / "out")
    same_logits(run, out, transformers.AutoModelForQuestionAnswering)
    again = bytelm.import_hf(str(out), out=tmp_path / "again")
    assert bytelm.predict(again, file=data) == bytelm.predict(run, file=data)


def test_questions_without_an_answer_stay_without_one(modernbert, tmp_path):
    rows = [{"question": "which", "context": row["text"], "answers": {"text": [], "answer_start": []}} for row in ROWS]
    for row in rows[::2]:
        row["answers"] = {"text": ["number"], "answer_start": [row["context"].index("number")]}
    data = write(tmp_path / "rows.jsonl", rows)
    run = bytelm.finetune(
        modernbert, task="spans", data=[data], out=tmp_path / "run", train=SETTINGS, compare_scratch=False,
        options={"threshold": 1000.0},
    )  # fmt: skip
    out = bytelm.export_hf(run, out=tmp_path / "out")
    again = bytelm.import_hf(str(out), out=tmp_path / "again")
    found = bytelm.predict(again, file=data)
    assert found == bytelm.predict(run, file=data)
    assert {one["prediction"] for one in found} == {""}


@pytest.mark.parametrize(("fixture", "pooling"), [("modernbert", "mean"), ("bert", "first")])
def test_choices_keep_their_probabilities(fixture, pooling, request, tmp_path):
    rows = [{"question": row["text"], "choices": ["one", row["second"], "x y"], "answer": 1} for row in ROWS]
    data = write(tmp_path / "rows.jsonl", rows)
    run = bytelm.finetune(
        request.getfixturevalue(fixture), task="choices", data=[data], out=tmp_path / "run", train=SETTINGS,
        compare_scratch=False, options={"pooling": pooling},
    )  # fmt: skip
    out = bytelm.export_hf(run, out=tmp_path / "out")
    model = transformers.AutoModelForMultipleChoice.from_pretrained(out).eval()
    tok = transformers.AutoTokenizer.from_pretrained(out)
    for row, said in zip(rows[:3], bytelm.predict(run, file=data), strict=False):
        read = tok([row["question"]] * 3, row["choices"], padding=True, return_tensors="pt")
        logits = model(**{name: ids[None] for name, ids in read.items()}).logits[0].detach()
        equal(logits.softmax(dim=-1), torch.tensor(said["probabilities"]))
    again = bytelm.import_hf(str(out), out=tmp_path / "again")
    assert bytelm.predict(again, file=data) == bytelm.predict(run, file=data)


@torch.no_grad()
def same_logits(run, folder, auto):
    """Compare the outputs of every position."""
    ids = torch.randint(10, 500, (2, 20), generator=torch.Generator().manual_seed(0))
    answer = auto.from_pretrained(folder).eval()(ids)
    spans = "start_logits" in answer
    logits = torch.stack((answer.start_logits, answer.end_logits), dim=1) if spans else answer.logits
    assert logits.std() > 1e-3
    equal(run.loaded.model(ids), logits)


def test_a_fine_tuned_distilbert_has_the_head_of_its_family(peers, tuned, tmp_path):
    _, _, run = peers("distilbert")
    made = tuned(run, pooling="first")
    out = bytelm.export_hf(made, out=tmp_path / "out")
    assert json.loads((out / "config.json").read_text())["architectures"] == ["DistilBertForSequenceClassification"]
    equal(theirs(out, TEXTS).softmax(dim=-1), ours(made, TEXTS, ["code", "digits", "prose"]))


def test_a_fine_tuned_roberta_is_exported_with_two_separators(tokenizer_folder, tuned, tmp_path):
    head = next(head for head in CLASSIFIERS if head.format.model_type == "roberta")
    folder = published(tmp_path / "theirs", head, tokenizer_folder)
    run = bytelm.import_hf(str(folder), out=tmp_path / "run", without_head=True)
    made = tuned(run, pooling="first", columns=("text", "second", "label"))
    given = [text for row in zip(TEXTS, TEXTS[::-1], strict=True) for text in row]
    out = bytelm.export_hf(made, out=tmp_path / "out")
    equal(theirs(out, TEXTS, TEXTS[::-1]).softmax(dim=-1), ours(made, given, ["code", "digits", "prose"]))


def test_a_head_that_no_class_has_is_refused_with_the_remedy_and_a_dry_run_says_it(bert, tuned, in_process, tmp_path):
    with pytest.raises(ValueError, match=r"BertForSequence.* cannot express `pooling='mean'`: .* `pooling='first'`"):
        bytelm.export_hf(tuned(bert), out=tmp_path / "out")
    assert not (tmp_path / "out").exists()
    rows = write(tmp_path / "rows.jsonl", ROWS)
    words = ("finetune", bert, "--data", rows, "--out", "run", "--dry-run", "--device", "cpu")
    done = in_process(*words)
    assert done.returncode == 0, done.stderr
    assert (
        "export-hf could not write the run: BertForSequenceClassification cannot express --pooling mean" in done.stdout
    )
    assert "export-hf could write the run as BertForSequence" in in_process(*words, "--pooling", "first").stdout


def test_without_its_head_a_classifier_can_be_trained_further(tokenizer_folder, tuned, tmp_path):
    for kind in ("bert", "gpt2", "t5"):
        head = next(head for head in CLASSIFIERS if head.format.model_type == kind)
        folder = published(tmp_path / kind, head, tokenizer_folder)
        run = Run(bytelm.import_hf(str(folder), out=tmp_path / f"{kind}-run", without_head=True))
        assert run.recipe.task is None and run.recipe.head is None
        assert tuned(run.folder).config.task.labels == ("code", "digits", "prose")
    head = next(head for head in CLASSIFIERS if head.format.model_type == "gpt_neox")
    folder = published(tmp_path / "untied", head, tokenizer_folder, tie_word_embeddings=False)
    with pytest.raises(
        ValueError, match=r"GPTNeoXForSequenceClassification has no output matrix, .* `without_head` out"
    ):
        bytelm.import_hf(str(folder), out=tmp_path / "run", without_head=True)


@pytest.fixture(scope="module")
def imported(tmp_path_factory, tokenizer_folder):
    """Return the folder of a published classifier, and the run imported from it."""
    folder = tmp_path_factory.mktemp("imported")
    published(folder / "theirs", CLASSIFIERS[0], tokenizer_folder)
    return folder / "theirs", bytelm.import_hf(str(folder / "theirs"), out=folder / "run")


def test_an_imported_classifier_is_measured_on_a_file_and_reported(imported, in_process, tmp_path):
    _, run = imported
    rows = [{"sentence": row["text"], "label": "bad"} for row in ROWS]
    data = write(tmp_path / "rows.jsonl", rows)
    refused = in_process("evaluate", run)
    assert refused.returncode == 1
    assert "was imported and has no examples: name a file to measure it on with --data" in refused.stderr
    said = bytelm.predict(run, [row["sentence"] for row in rows])
    measured = bytelm.evaluate(run, data=data).validation
    assert measured.accuracy == pytest.approx(sum(one["prediction"] == "bad" for one in said) / len(rows))
    unknown = write(tmp_path / "unknown.jsonl", [{"text": "a", "label": "awful"}])
    with pytest.raises(ValueError, match="has the label 'awful', which"):
        bytelm.evaluate(run, data=unknown)
    page = bytelm.report(run, out=tmp_path / "page.html").read_text()
    assert "accuracy" in page
    [listed] = bytelm.runs([run])
    assert (listed.state, listed.objective) == ("imported", "classes")
    assert "imported" in in_process("runs", run).stdout
    for verb in (("params", run), ("generate", run, "--prompt", "x"), ("finetune", run, "--data", data, "--out", "o")):
        done = in_process(*verb)
        assert done.returncode == 1 and "Traceback" not in done.stderr
        assert (
            "is fine-tuned for the task classes and predicts no tokens: use bytelm predict, or import it" in done.stderr
        )


def test_the_card_says_what_the_model_reads_and_how_to_use_it(modernbert, tuned, tmp_path):
    out = bytelm.export_hf(tuned(modernbert, columns=("text", "label")), out=tmp_path / "out")
    card = (out / "README.md").read_text()
    for line in (
        "pipeline_tag: text-classification",
        "It reads the columns `text`, `label`; the last is learned.",
        "Labels: `code`, `digits`, `prose`.",
        "Trained on `rows.jsonl`, tested on 10% of it.",
        'predict = pipeline("text-classification", "out")',
    ):
        assert line in card
    assert "| accuracy |" in card
    code = card.split("```python\n")[1].split("```")[0].replace('"out"', repr(str(out))).replace("print(", "said = (")
    scope = {}
    exec(code, scope)
    assert {one["label"] for one in scope["said"]} == {"code", "digits", "prose"}


def spoiled(folder, target, **settings):
    shutil.copytree(folder, target)
    config = json.loads((target / "config.json").read_text())
    (target / "config.json").write_text(json.dumps({**config, **settings}))
    return target


@pytest.mark.parametrize(
    ("settings", "message"),
    [
        ({"id2label": {"0": "a", "1": "b"}}, "id2label that does not name the 3 outputs"),
        ({"id2label": {"0": "a", "1": "b", "2": "a"}}, "has the label 'a' twice in id2label"),
        ({"id2label": ["a", "b", "c"]}, "id2label that does not name the 3 outputs"),
        ({"id2label": 3}, "id2label that does not name the 3 outputs"),
        ({"problem_type": "regression"}, "3 outputs, but that of the task regression has 1: import it `without_head`"),
        ({"problem_type": "ranking"}, "problem_type = 'ranking': known are single_label_classification"),
        ({"hidden_size": 64}, "has the shape .*, but config.json makes it"),
    ],
)
def test_a_config_that_does_not_fit_its_head_is_refused_by_name(imported, settings, message, tmp_path):
    folder = spoiled(imported[0], tmp_path / "theirs", **settings)
    with pytest.raises(ValueError, match=message):
        bytelm.import_hf(str(folder), out=tmp_path / "run")
    assert not (tmp_path / "run").exists()


def test_a_head_with_missing_or_spoiled_tensors_is_refused_by_name(imported, tmp_path):
    folder = spoiled(imported[0], tmp_path / "theirs")
    tensors = load_file(folder / "model.safetensors")
    for change, message in (
        ({"classifier.weight": None}, r"the weights have no classifier\.weight, which BertForSequence"),
        ({"classifier.bias": torch.full((3,), torch.nan)}, r"classifier\.bias holds values that are NaN"),
        ({"adapter.weight": torch.ones(2)}, r"the weights have adapter\.weight, for which"),
    ):
        changed = {name: tensor for name, tensor in {**tensors, **change}.items() if tensor is not None}
        save_file(changed, folder / "model.safetensors", metadata={"format": "pt"})
        with pytest.raises(ValueError, match=message):
            bytelm.import_hf(str(folder), out=tmp_path / "run")
    with pytest.raises(ValueError, match="`columns` is for a model with the head of a task"):
        bytelm.import_hf(str(imported[0]), out=tmp_path / "run", without_head=True, columns=("text", "label"))
