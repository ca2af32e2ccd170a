"""A tokenizer or a run grows, shrinks or gets another vocabulary; rows of tokens that stay are copied exactly."""

import json
import math
import shutil
from dataclasses import replace

import pytest
import torch

from lm.model import LanguageModel
from lm.new_entries import NEW, with_entries
from pipelines.exchange.carried_run import Carried
from pipelines.recipes.recipe import save_config
from pipelines.run.folder import Run
from pipelines.run.loaded_run import load_run
from pipelines.verbs.carry_over import carry_over
from pipelines.verbs.export_hf import export_hf
from pipelines.verbs.grow_vocabulary import grow_vocabulary
from pipelines.verbs.pretrain import pretrain
from pipelines.verbs.trim_vocabulary import trim_vocabulary
from tests.pipelines.training_cases import with_train
from tokenizer import Tokenizer

KINDS = ["trained_gpt", "trained_bert", "trained_t5"]


@pytest.fixture(scope="module")
def code(tmp_path_factory, text_folder):
    """Return a folder of 30 texts, a part of the training text."""
    folder = tmp_path_factory.mktemp("code") / "code"
    folder.mkdir()
    for path in sorted(text_folder.glob("*.txt"))[:30]:
        shutil.copy(path, folder)
    return folder


def weights_of(folder):
    return {name: weight.detach() for name, weight in load_run(folder, device="cpu").model.state_dict().items()}


@pytest.mark.parametrize("kind", KINDS)
def test_a_grown_run_keeps_its_rows_and_composes_the_new_ones(request, code, tmp_path, kind):
    run = request.getfixturevalue(kind)
    old = Run(run).tokenizer()
    new = grow_vocabulary(run, [code], add=64, out=tmp_path / "grown")
    assert new.vocab_size == old.vocab_size + 64 == Run(tmp_path / "grown").recipe.model.vocab_size
    before, after = weights_of(run), weights_of(tmp_path / "grown")
    for name, weight in before.items():
        same = after[name] if after[name].shape == weight.shape else after[name][: old.vocab_size]
        assert torch.equal(same, weight), name
    rows, known = after["embedding.weight"][old.vocab_size :], before["embedding.weight"]
    pieces = [known[old.encode_ordinary(new.token_bytes(i))].mean(0) for i in range(old.vocab_size, new.vocab_size)]
    methods = [share * torch.stack(pieces) + (1 - share) * known.mean(0) for share in (0.5, 0.0, 1.0)]
    assert any(torch.allclose(rows, method, atol=1e-6) for method in methods)


@pytest.mark.parametrize("kind", KINDS)
def test_a_trimmed_run_has_the_rows_of_its_tokens(request, code, tmp_path, kind):
    run = request.getfixturevalue(kind)
    new = trim_vocabulary(run, [code], entries=400, out=tmp_path / "trimmed")
    old = Run(run).tokenizer()
    before, after = weights_of(run)["embedding.weight"], weights_of(tmp_path / "trimmed")["embedding.weight"]
    assert len(after) == new.vocab_size == 400
    for i, token in enumerate(new.vocabulary.tokens):
        if token is not None:
            assert torch.equal(after[i], before[old.vocabulary.find(token)])
    for spelling, i in new.special_tokens.items():
        assert torch.equal(after[i], before[old.special_tokens[spelling]])


def test_logits_of_kept_tokens_stay(trained_gpt, code, tmp_path):
    new = trim_vocabulary(trained_gpt, [code], unused=True, out=tmp_path / "trimmed")
    full, trimmed = load_run(trained_gpt, device="cpu"), load_run(tmp_path / "trimmed", device="cpu")
    text, old = "import os", Run(trained_gpt).tokenizer()
    assert [new.token_bytes(i) for i in new.encode(text)] == [old.token_bytes(i) for i in old.encode(text)]
    kept = [i if token is None else old.vocabulary.find(token) for i, token in enumerate(new.vocabulary.tokens)]
    torch.testing.assert_close(trimmed.logits(text), full.logits(text)[:, kept])


def test_the_output_compares_bits_per_byte_of_one_text(in_process, trained_gpt, code, tmp_path):
    options = [code, "--add", "64", "--out", "grown", "--split", "hash:0.3"]
    done = in_process("grow-vocabulary", trained_gpt, *options, "--json")
    assert done.returncode == 0, done.stderr
    found = json.loads(done.stdout)
    before, old_tokens, new_tokens = found["bits_per_byte"]
    evaluated = load_run(trained_gpt, device="cpu")
    assert found["entries"] == [512, 576]
    assert found["bytes_per_token"][1] > found["bytes_per_token"][0]
    assert new_tokens["tokens"] < old_tokens["tokens"] == before["tokens"]
    carried = Carried(Run(trained_gpt), Tokenizer.load(tmp_path / "grown"))
    texts = [path.read_bytes() for path in sorted(code.glob("*.txt"))[:3]]
    measured = carried.measure_before(texts)
    nats = [-evaluated.score(text.decode(), stride=32).predictions.log_probabilities.sum() for text in texts]
    assert measured.bits_per_byte == pytest.approx(sum(nats) / sum(map(len, texts)) / math.log(2), rel=0.02)
    done = in_process("grow-vocabulary", trained_gpt, *options[:-4], "--out", "again")
    assert done.returncode == 0 and "new model, old tokens" in done.stdout and "576 entries (512 before)" in done.stdout


def test_a_carried_run_trains_further_evaluates_and_exports(trained_gpt, code, tmp_path, in_process):
    grow_vocabulary(trained_gpt, [code], entries=560, out=tmp_path / "grown")
    assert isinstance(load_run(tmp_path / "grown", device="cpu").generate("import", tokens=5), str)
    done = in_process("build-dataset", code, "--tokenizer", "grown", "--context-length", "32", "--out", "data")
    assert done.returncode == 0, done.stderr
    train = {"tokens": 2560, "batch_tokens": 256, "micro_batch": 8, "device": "cpu", "warmup_tokens": 256}
    recipe = Run(tmp_path / "grown").recipe
    pretrain(recipe, data=tmp_path / "data", init_from=tmp_path / "grown", out=tmp_path / "more", train=train)
    assert Run(tmp_path / "more").recipe.model.vocab_size == 560
    export_hf(tmp_path / "grown", out=tmp_path / "hf")
    import transformers

    peer = transformers.AutoModelForCausalLM.from_pretrained(tmp_path / "hf")
    ids = torch.tensor([Tokenizer.load(tmp_path / "grown").encode("import os")])
    ours = load_run(tmp_path / "grown", device="cpu").model
    with torch.no_grad():
        torch.testing.assert_close(peer(ids).logits, ours.logits(ours(ids)), atol=1e-4, rtol=1e-4)


def test_further_training_is_measured_saved_and_equals_pretrain(trained_gpt, code, tmp_path, in_process):
    """Also for a run that ended by time, as those of `bytelm train` do."""
    timed = shutil.copytree(trained_gpt, tmp_path / "timed")
    run = Run(timed)
    save_config(timed / "config.toml", with_train(run.recipe, minutes=0.05), run.facts)
    options = [timed, code, "--add", "48", "--split", "hash:0.3"]
    done = in_process("grow-vocabulary", *options, "--out", "trained", "--steps", "4", "--json")
    assert done.returncode == 0, done.stderr
    rows = {row["what"]: row["bits_per_byte"] for row in json.loads(done.stdout)["bits_per_byte"]}
    assert rows["new model after 4 steps"] < rows["new model, new tokens"]
    assert rows["old model after 4 steps"] < rows["old model"]
    assert Run(tmp_path / "trained").facts["trained_steps"] == 4 and not [*tmp_path.glob("*.training*")]
    assert in_process("grow-vocabulary", *options, "--out", "start").returncode == 0
    done = in_process(
        *("build-dataset", code, "--split", "hash:0.3", "--tokenizer", "trained"),
        *("--context-length", "32", "--out", "data"),
    )
    assert done.returncode == 0, done.stderr
    train = {"tokens": 4 * 256, "minutes": 0.0, "warmup_tokens": 102, "validate_every_tokens": 1024}
    train |= {"device": "auto", "dtype": "auto"}
    recipe = Run(tmp_path / "start").recipe
    pretrain(recipe, data=tmp_path / "data", init_from=tmp_path / "start", out=tmp_path / "more", train=train)
    ours, expected = weights_of(tmp_path / "trained"), weights_of(tmp_path / "more")
    assert ours.keys() == expected.keys() and all(torch.equal(ours[name], expected[name]) for name in expected)


@pytest.mark.parametrize("name", [".", "data"])
def test_a_run_in_the_current_folder_or_a_folder_named_data_trains(name, trained_gpt, code, tmp_path, monkeypatch):
    shutil.copytree(trained_gpt, tmp_path / "data")
    monkeypatch.chdir(tmp_path / "data" if name == "." else tmp_path)
    trim_vocabulary(name, [code], entries=400, steps=1, out=tmp_path / "small")
    assert Run(tmp_path / "small").facts["trained_steps"] == 1


def test_averaged_weights_and_adapters_are_carried_and_trained_whole(trained_gpt, dataset_folder, code, tmp_path):
    recipe = Run(trained_gpt).recipe
    short = {"tokens": 512, "warmup_tokens": 0, "average": 0.5}
    lora = replace(recipe, lora=replace(recipe.lora, rank=2))
    pretrain(lora, data=dataset_folder, init_from=trained_gpt, out=tmp_path / "lora", train=short)
    grow_vocabulary(tmp_path / "lora", [code], add=8, out=tmp_path / "grown")
    before, start = weights_of(tmp_path / "lora"), weights_of(tmp_path / "grown")
    assert all(torch.equal(start[name][: len(weight)], weight) for name, weight in before.items())
    grow_vocabulary(tmp_path / "lora", [code], add=8, steps=2, split="hash:0.3", out=tmp_path / "trained")
    after = weights_of(tmp_path / "trained")
    assert not any(torch.equal(after[name], weight) for name, weight in start.items())


def test_a_run_gets_another_vocabulary(trained_gpt, code, tmp_path):
    other = Tokenizer.train([path.read_text() for path in code.glob("*.txt")], 450, pattern="gpt2")
    other.save(tmp_path / "other")
    carry_over(trained_gpt, [code], tokenizer=tmp_path / "other", out=tmp_path / "carried")
    old, (before, after) = Run(trained_gpt).tokenizer(), map(weights_of, (trained_gpt, tmp_path / "carried"))
    both = [i for i, token in enumerate(other.vocabulary.tokens) if token and old.vocabulary.find(token) is not None]
    assert 256 < len(both) < 445
    for i in both:
        row = old.vocabulary.find(other.vocabulary.tokens[i])
        assert torch.equal(after["embedding.weight"][i], before["embedding.weight"][row])


def test_untied_heads_and_biases_are_carried_too(small_recipe):
    config = replace(small_recipe.model, vocab_size=6, tied_head=False, architecture="encoder", dropout=0.0)
    old, new = LanguageModel(config), LanguageModel(replace(config, vocab_size=4))
    with torch.no_grad():
        old.head.bias.copy_(torch.arange(6.0))
    rows = torch.tensor([5, NEW, 0, NEW])
    found = with_entries(old.state_dict(), new, rows, [[1, 3], []], 0.5)
    assert found["head.bias"].tolist() == [5.0, 0.5 * 2.0 + 0.5 * 2.5, 0.0, 2.5]
    assert torch.equal(found["head.weight"][0], old.head.weight[5])
    new.load_state_dict(found)


def test_tokenizers_grow_and_shrink_on_the_command_line(in_process, tokenizer_folder, code):
    done = in_process("grow-vocabulary", tokenizer_folder, code, "--entries", "600", "--out", "grown")
    assert done.returncode == 0 and "grown: 600 entries (512 before)" in done.stdout
    done = in_process("trim-vocabulary", "grown", code, "--unused", "--out", "small", "--json")
    assert done.returncode == 0 and json.loads(done.stdout)["entries"][1] < 600


def test_held_out_text_may_spell_special_tokens(in_process, tokenizer_folder, tmp_path):
    rows = [json.dumps({"text": f"number {number}: <|endoftext|> is text here"}) for number in range(20)]
    (tmp_path / "rows.jsonl").write_text("\n".join(rows))
    options = ["--add", 2, "--split", "tail:0.2", "--out", "grown", "--json"]
    done = in_process("grow-vocabulary", tokenizer_folder, "rows.jsonl", *options)
    assert done.returncode == 0, done.stderr
    before, after = json.loads(done.stdout)["bytes_per_token"]
    assert before < after


@pytest.mark.parametrize(
    ("verb", "options", "message"),
    [
        ("grow-vocabulary", [], "give either --add or --entries"),
        ("grow-vocabulary", ["--add", "-5"], "--add is -5, but must be at least 1"),
        ("grow-vocabulary", ["--entries", "100"], "entries is 100, but the vocabulary already has 512"),
        ("grow-vocabulary", ["--add", "5", "--steps", "9"], "--steps trains the model of a run, but"),
        ("trim-vocabulary", [], "give either --entries or --unused"),
        ("trim-vocabulary", ["--entries", "512"], "--entries is 512, but the vocabulary has 512"),
        ("trim-vocabulary", ["--entries", "9"], "must stay: give at least 261"),
    ],
)
def test_wrong_options_are_named(in_process, tokenizer_folder, code, verb, options, message):
    done = in_process(verb, tokenizer_folder, code, *options, "--out", "made")
    assert done.returncode != 0 and message in done.stderr


def test_steps_need_a_decoder(trained_bert, code, tmp_path):
    with pytest.raises(ValueError, match="`steps` trains decoders only"):
        grow_vocabulary(trained_bert, [code], add=8, steps=2, out=tmp_path / "made")


def test_nothing_is_replaced_by_accident(in_process, trained_gpt, code, tmp_path):
    (tmp_path / "made").mkdir()
    (tmp_path / "made" / "notes.txt").write_text("mine")
    done = in_process("trim-vocabulary", trained_gpt, code, "--unused", "--out", "made")
    assert done.returncode != 0 and "made exists already: choose another --out" in done.stderr
    assert (tmp_path / "made" / "notes.txt").read_text() == "mine"
    (tmp_path / "empty").mkdir()
    done = in_process("trim-vocabulary", trained_gpt, "no-corpus", "--unused", "--out", ".", cwd=tmp_path / "empty")
    assert done.returncode != 0 and ". exists already: choose another --out" in done.stderr


def test_a_vocabulary_without_the_runs_special_tokens_is_refused(trained_gpt, code, tmp_path):
    Tokenizer.train(["some text"] * 3, 260, special_tokens=()).save(tmp_path / "other")
    with pytest.raises(ValueError, match=r"has no token '<\|endoftext\|>', which .* reads around texts"):
        carry_over(trained_gpt, [code], tokenizer=tmp_path / "other", out=tmp_path / "made")
    assert not (tmp_path / "made").exists()
