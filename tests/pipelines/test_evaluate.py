"""Every number of an evaluation equals an independent computation; a source of known entropy tests the whole chain."""

import inspect
import json
import math
import re
import shutil
from collections import Counter
from dataclasses import fields, replace
from itertools import pairwise

import numpy as np
import pytest
import scipy.stats
import torch

from corpora.synthetic import source_from_description
from pipelines.dataset.reader import TokenDataset, TokenStream
from pipelines.evaluation import scoring
from pipelines.evaluation.decoded_text import stream_text
from pipelines.evaluation.measurements import kinds, options
from pipelines.evaluation.measurements.compressors import compressed_text
from pipelines.evaluation.measurements.source import SourceNumbers
from pipelines.evaluation.planning import EvaluationOptions, plan
from pipelines.evaluation.results import Evaluation
from pipelines.evaluation.windows import decoder_windows
from pipelines.figures.cross_entropy import draw_cross_entropy
from pipelines.recipes.recipe import load_recipe, save_config
from pipelines.run.folder import Run
from pipelines.run.loaded_run import load_run, load_trained
from pipelines.training.batch_objectives import NextToken
from pipelines.verbs.build_dataset import build_dataset
from pipelines.verbs.evaluate import evaluate
from pipelines.verbs.pretrain import pretrain
from tests.pipelines.training_cases import accept_config
from tokenizer import Tokenizer


@pytest.fixture(scope="module")
def gpt_numbers(trained_gpt):
    return evaluate(trained_gpt).to_json()["splits"]["validation"]


@pytest.fixture(scope="module")
def gpt_predictions(trained_gpt, dataset_folder):
    """Return targets (N,), log-probabilities (N, V) in float64 and previous tokens (N,) from plain PyTorch."""
    model = load_trained(Run(trained_gpt)).model
    stream = TokenDataset(dataset_folder).split("validation")
    ids = torch.from_numpy(stream.read(0, stream.tokens).astype(np.int64))
    logs = []
    for start in range(0, stream.tokens - 1, 32):
        block = ids[start : start + 32]
        with torch.no_grad():
            logs.append(torch.log_softmax(model.logits(model(block[None])).double(), dim=-1)[0])
    return ids[1:], torch.cat(logs)[: len(ids) - 1], ids[:-1]


def test_cross_entropy_perplexity_and_bits_per_byte(gpt_numbers, gpt_predictions, dataset_folder, tokenizer_folder):
    targets, logs, _ = gpt_predictions
    nats = -logs.gather(1, targets[:, None]).squeeze(1)
    assert gpt_numbers["tokens"] == len(targets)
    assert gpt_numbers["cross_entropy"] == pytest.approx(float(nats.mean()), rel=1e-5)
    assert gpt_numbers["cross_entropy_bits"] == pytest.approx(float(nats.mean()) / math.log(2), rel=1e-5)
    assert gpt_numbers["perplexity"] == pytest.approx(math.exp(float(nats.mean())), rel=1e-5)
    tok = Tokenizer.load(tokenizer_folder)
    size = sum(len(tok.token_bytes(t)) for t in targets.tolist() if t not in tok.special_tokens.values())
    assert gpt_numbers["bytes"] == size
    assert gpt_numbers["bits_per_byte"] == pytest.approx(float(nats.sum()) / math.log(2) / size, rel=1e-5)


def test_entropy_accuracy_and_divergence_from_the_unigram(gpt_numbers, gpt_predictions):
    targets, logs, _ = gpt_predictions
    p = logs.exp()
    assert gpt_numbers["entropy_bits"] == pytest.approx(
        float(np.mean(scipy.stats.entropy(p.numpy(), base=2, axis=1))), rel=1e-4
    )
    assert gpt_numbers["accuracy"] == pytest.approx(float((logs.argmax(1) == targets).double().mean()))
    counts = np.bincount(targets.numpy(), minlength=512)
    assert gpt_numbers["unigram_entropy_bits"] == pytest.approx(scipy.stats.entropy(counts, base=2))
    assert gpt_numbers["kl_unigram_bits"] == pytest.approx(
        scipy.stats.entropy(counts, p.mean(0).numpy(), base=2), rel=1e-4
    )


def test_calibration_error_and_its_diagram(gpt_numbers, gpt_predictions):
    targets, logs, _ = gpt_predictions
    confidence, predicted = logs.exp().max(dim=1)
    correct = (predicted == targets).double()
    error = 0.0
    for index, shown in enumerate(gpt_numbers["curves"]["reliability"]):
        inside = (confidence > index / 15) & (confidence <= (index + 1) / 15)
        assert shown["count"] == int(inside.sum())
        if shown["count"]:
            gap = float(correct[inside].mean() - confidence[inside].mean())
            error += abs(gap) * shown["count"] / len(targets)
            assert shown["accuracy"] == pytest.approx(float(correct[inside].mean()))
    assert gpt_numbers["calibration_error"] == pytest.approx(error, rel=1e-4)


def test_the_best_temperature_and_its_gain_are_those_of_the_drawn_positions(gpt_numbers, gpt_predictions):
    targets, logs, _ = gpt_predictions
    drawn = np.sort(np.argsort(np.random.default_rng(0).random(len(targets)))[:4096])

    def bits(temperature):
        nats = torch.nn.functional.cross_entropy(logs[drawn] / temperature, targets[drawn])
        return nats.item() / math.log(2)

    best = gpt_numbers["temperature"]
    assert gpt_numbers["temperature_tokens"] == 4096
    assert gpt_numbers["temperature_gain_bits"] == pytest.approx(bits(1) - bits(best), rel=1e-3, abs=1e-5)
    assert bits(best) <= min(bits(0.98 * best), bits(1.02 * best))


def test_loss_by_position_is_the_mean_of_each_column(gpt_numbers, gpt_predictions):
    targets, logs, _ = gpt_predictions
    nats = -logs.gather(1, targets[:, None]).squeeze(1)
    curve = gpt_numbers["curves"]["loss_by_position"]
    assert len(curve) == 32
    for position in (0, 7, 31):
        assert curve[position] == pytest.approx(float(nats[position::32].mean()), rel=1e-4)


def test_baselines_are_fitted_on_train_and_scored_on_the_same_tokens(gpt_numbers, gpt_predictions, dataset_folder):
    targets, _, previous = gpt_predictions
    stream = TokenDataset(dataset_folder).split("train")
    train = stream.read(0, stream.tokens).tolist()
    counts, pairs, contexts = Counter(train), Counter(pairwise(train)), Counter(train[:-1])
    followers = Counter(h for h, _ in pairs)

    def unigram(w):
        return (counts[w] + 1) / (len(train) + 512)

    def bigram(h, w):
        if not contexts[h]:
            return unigram(w)
        return (pairs[h, w] + followers[h] * unigram(w)) / (contexts[h] + followers[h])

    each = list(zip(previous.tolist(), targets.tolist(), strict=True))
    assert gpt_numbers["unigram_cross_entropy_bits"] == pytest.approx(
        np.mean([-math.log2(unigram(w)) for _, w in each])
    )
    assert gpt_numbers["bigram_cross_entropy_bits"] == pytest.approx(
        np.mean([-math.log2(bigram(h, w)) for h, w in each])
    )
    most_common = counts.most_common(1)[0][0]
    assert gpt_numbers["unigram_accuracy"] == pytest.approx(np.mean([w == most_common for _, w in each]))


def test_sliding_windows_score_every_token_once_with_more_context(trained_gpt, gpt_numbers):
    sliding = evaluate(trained_gpt, stride=8).to_json()["splits"]["validation"]
    assert (sliding["window"], sliding["stride"]) == (32, 8)
    assert sliding["tokens"] == gpt_numbers["tokens"]
    assert sliding["bytes"] == gpt_numbers["bytes"]
    assert sliding["cross_entropy"] != gpt_numbers["cross_entropy"]
    assert sliding["unigram_cross_entropy_bits"] == pytest.approx(gpt_numbers["unigram_cross_entropy_bits"])


@pytest.mark.parametrize("stride", [1, 3, 7, 8])
def test_the_windows_partition_the_targets(stride):
    stream = TokenStream([np.arange(80, dtype=np.uint16)], 8)
    seen, contexts = [], []
    for windows in decoder_windows(stream, NextToken(8), stride):
        seen += windows.indices[windows.scored].tolist()
        assert (windows.batch.targets[windows.scored] == windows.indices[windows.scored]).all()
        contexts += (np.nonzero(windows.scored)[1] + 1).tolist()
    assert sorted(seen) == list(range(1, 80))
    assert all(context > 8 - stride for context in contexts[8:])


@pytest.mark.parametrize(
    ("tokens", "window", "shapes"),
    [
        (40_001, 8192, {(2, 8192), (1, 8192)}),
        (40_001, 1024, {(16, 1024), (8, 1024)}),
        (301, 8192, {(1, 300)}),
        (2, 131_072, {(1, 1)}),
    ],
)
def test_long_windows_are_in_small_batches_and_no_longer_than_the_text(tokens, window, shapes):
    stream = TokenStream([np.arange(tokens, dtype=np.uint16)], window)
    found = [windows.batch.inputs.shape for windows in decoder_windows(stream, NextToken(window), window)]
    assert set(found) == shapes


def test_positions_with_too_little_context_are_left_out(trained_gpt, gpt_numbers):
    numbers = evaluate(trained_gpt, min_context=3).to_json()["splits"]["validation"]
    curve = numbers["curves"]["loss_by_position"]
    assert curve[:2] == [None, None]
    assert curve[2:] == pytest.approx(gpt_numbers["curves"]["loss_by_position"][2:])
    assert numbers["min_context"] == 3


def test_a_run_diverges_from_another_but_not_from_itself(tmp_path, trained_gpt, small_recipe, dataset_folder):
    copy = shutil.copytree(trained_gpt, tmp_path / "copy")
    same = evaluate(copy, against=trained_gpt).to_json()["splits"]["validation"]
    assert same["kl_bits"] == same["reverse_kl_bits"] == pytest.approx(0, abs=1e-9)
    other = tmp_path / "other"
    recipe = replace(small_recipe, train=replace(small_recipe.train, seed=5, tokens=2560))
    pretrain(recipe, data=dataset_folder, out=other)
    there, back = evaluate(copy, against=other), evaluate(other, against=copy)
    there, back = (evaluation.to_json()["splits"]["validation"] for evaluation in (there, back))
    assert there["kl_bits"] > 0.01
    assert there["kl_bits"] == pytest.approx(back["reverse_kl_bits"], rel=1e-5)
    assert there["js_bits"] == pytest.approx(back["js_bits"], rel=1e-5)
    assert 0 < there["js_bits"] < 1


def test_an_imported_run_with_another_tokenizer_is_compared_on_a_corpus(trained_gpt, wordpiece_run, text_folder):
    other = Run(wordpiece_run)
    other.sources = {}  # as of an imported run
    with pytest.raises(ValueError, match="was not trained on one dataset: name a text for both with `corpus`"):
        plan(Run(trained_gpt), EvaluationOptions(), against=other)
    chosen = plan(Run(trained_gpt), EvaluationOptions(corpus=(str(text_folder),)), against=other)
    assert chosen.other and chosen.other.run is other


def test_a_run_with_another_objective_is_not_compared(trained_gpt, trained_bert, trained_t5):
    with pytest.raises(ValueError, match="do not predict the same positions"):
        evaluate(trained_gpt, against=trained_bert)
    with pytest.raises(ValueError, match="their objectives are span-corruption and next-token"):
        evaluate(trained_gpt, against=trained_t5)


def test_runs_with_and_without_a_document_mask_are_not_compared(tmp_path, trained_gpt):
    masked = shutil.copytree(trained_gpt, tmp_path / "masked")
    recipe = Run(masked).recipe
    model = replace(recipe.model, document_mask=True)
    save_config(masked / "config.toml", replace(recipe, model=model), Run(masked).facts)
    accept_config(masked)
    for one, other in ((masked, trained_gpt), (trained_gpt, masked)):
        with pytest.raises(ValueError, match=rf"{masked} has model\.document_mask and {trained_gpt} has not"):
            evaluate(one, against=other)
    again = shutil.copytree(masked, tmp_path / "again")
    same = evaluate(masked, against=again).to_json()["splits"]["validation"]
    assert same["document_mask"] and same["kl_bits"] == pytest.approx(0, abs=1e-9)


def test_a_dataset_of_another_tokenizer_is_refused(tmp_path, trained_gpt, text_folder):
    Tokenizer.train(["other text"], vocab_size=265).save(tmp_path / "tok")
    build_dataset([str(text_folder)], tokenizer=tmp_path / "tok", context_length=32, out=tmp_path / "data")
    with pytest.raises(ValueError, match="was built with another tokenizer"):
        evaluate(trained_gpt, data=tmp_path / "data")


@pytest.fixture(scope="module")
def bert_numbers(trained_bert):
    return evaluate(trained_bert).to_json()["splits"]["validation"]


def test_a_masked_model_is_scored_at_its_masks(trained_bert, bert_numbers, dataset_folder, tokenizer_folder):
    numbers = bert_numbers
    stream = TokenDataset(dataset_folder).split("validation")
    tok = Tokenizer.load(tokenizer_folder)
    ids = stream.read(0, stream.tokens)
    ordinary = int((~np.isin(ids, list(tok.special_tokens.values()))).sum())
    assert numbers["tokens"] == pytest.approx(0.15 * ordinary, rel=0.15)
    assert numbers["bits_per_byte"] is None
    assert numbers["window"] == 32
    again = evaluate(trained_bert).to_json()["splits"]["validation"]
    assert again == numbers


def test_the_pseudo_perplexity_is_that_of_tokens_masked_one_by_one(trained_bert, bert_numbers, dataset_folder):
    model, tok = load_trained(Run(trained_bert)).model, Run(trained_bert).tokenizer()
    dataset = TokenDataset(dataset_folder)
    stream, special = dataset.split("validation"), tok.special_tokens
    ids = stream.read(0, stream.blocks * 32).astype(np.int64)
    ordinary = np.flatnonzero(~np.isin(ids, list(special.values())))
    chosen = np.sort(np.random.default_rng(0).choice(ordinary, 2048, replace=False))
    rows, places, targets = ids.reshape(-1, 32)[chosen // 32], (np.arange(2048), chosen % 32), ids[chosen]
    rows[places] = special["<|mask|>"]
    rows = np.pad(rows, ((0, 0), (1, 1)), constant_values=((0, 0), (special["<|cls|>"], special["<|sep|>"])))
    with torch.no_grad():
        hidden = model(torch.from_numpy(rows))[places[0], places[1] + 1]
        nats = torch.nn.functional.cross_entropy(model.logits(hidden).double(), torch.from_numpy(targets)).item()
    train = dataset.split("train")
    counts = np.bincount(train.read(0, train.tokens), minlength=512) + 1
    unigram = -np.log(counts[targets] / counts.sum()).mean()
    assert bert_numbers["pseudo_tokens"] == 2048
    assert bert_numbers["pseudo_cross_entropy"] == pytest.approx(nats, rel=1e-5)
    assert bert_numbers["pseudo_perplexity"] == pytest.approx(math.exp(nats), rel=1e-4)
    assert bert_numbers["unigram_pseudo_perplexity"] == pytest.approx(math.exp(unigram), rel=1e-6)


def test_a_uniform_model_has_a_perplexity_of_the_vocabulary(tmp_path, trained_gpt):
    """With a zero embedding all logits are equal."""
    from safetensors.torch import load_file, save

    from pipelines.run.retention import latest_checkpoint
    from tests.pipelines.training_cases import rewrite

    run = shutil.copytree(trained_gpt, tmp_path / "uniform")
    folder = latest_checkpoint(run)
    weights = load_file(folder / "model.safetensors")
    weights["embedding.weight"].zero_()
    rewrite(folder, model=save(weights))
    numbers = evaluate(run).to_json()["splits"]["validation"]
    assert numbers["perplexity"] == pytest.approx(512, rel=1e-5)
    assert numbers["entropy_bits"] == pytest.approx(9, rel=1e-6)
    # H(P, Q) = H(P) + D_KL(P || Q), where Q does not depend on the context.
    assert numbers["cross_entropy_bits"] == pytest.approx(
        numbers["unigram_entropy_bits"] + numbers["kl_unigram_bits"], rel=1e-6
    )


@pytest.mark.parametrize(
    ("options", "message"),
    [
        ({"stride": 0}, "`stride` is 0, but must be from 1 to the window of 32"),
        ({"stride": 33}, "`stride` is 33"),
        ({"min_context": -1}, "`min_context` is -1"),
        ({"min_context": 100}, "`min_context` is 100"),
        ({"splits": ()}, "`splits` names no split"),
        ({"splits": ("tset",)}, "has no split 'tset'; it has train, validation"),
        ({"device": "cuda"}, "PyTorch sees no GPU"),
    ],
)
def test_conflicting_options_are_refused_by_name(trained_gpt, options, message):
    if "device" in options and torch.cuda.is_available():
        pytest.skip("there is a GPU")
    before = (trained_gpt / "evaluation.json").read_bytes() if (trained_gpt / "evaluation.json").exists() else None
    with pytest.raises(ValueError, match=message):
        evaluate(trained_gpt, **options)
    after = (trained_gpt / "evaluation.json").read_bytes() if (trained_gpt / "evaluation.json").exists() else None
    assert before == after


def test_a_masked_model_has_no_stride(trained_bert):
    with pytest.raises(ValueError, match="was trained on masked-token: it reads whole blocks"):
        evaluate(trained_bert, stride=8)


def test_compressors_are_an_option(tmp_path, trained_gpt):
    run = shutil.copytree(trained_gpt, tmp_path / "gpt")
    numbers = evaluate(run, compressors=True).to_json()["splits"]["validation"]
    assert set(numbers["compressors"]) == {"xz -9", "zstd -19"}


def test_evaluation_json_has_the_returned_contents(trained_gpt):
    result = evaluate(trained_gpt, dtype="bfloat16")
    assert json.loads((trained_gpt / "evaluation.json").read_text()) == result.to_json()
    assert result.validation.dtype == "bfloat16"
    assert result.validation.document_mask is False


def test_compressors_read_the_text_of_the_split(dataset_folder, tokenizer_folder):
    import lzma

    dataset, tok = TokenDataset(dataset_folder), Tokenizer.load(tokenizer_folder)
    text, train = (stream_text(dataset.split(name), tok) for name in ("validation", "train"))
    assert b"<|endoftext|>" not in text
    bits = compressed_text(dataset, tok).to_json()
    alone = len(lzma.compress(text, preset=9))
    given = len(lzma.compress(train + text, preset=9)) - len(lzma.compress(train, preset=9))
    assert bits["xz -9"] == {"alone": alone * 8 / len(text), "given_train": given * 8 / len(text)}
    assert 0 < bits["zstd -19"]["given_train"] < bits["zstd -19"]["alone"] < 8


@pytest.mark.slow
def test_a_small_gpt_on_a_markov_source_comes_within_0_02_bits_of_the_entropy_rate(tmp_path):
    """The whole chain (source, tokenizer, blocks, training, evaluation) against a closed form."""
    (tmp_path / "chain.toml").write_text(
        'reader = "synthetic"\nlength = 200_000\n[documents]\ntrain = 6\nvalidation = 1\n'
        '[source]\nkind = "markov"\norder = 2\nsymbols = 4\nseed = 7\nconcentration = 0.4\n'
    )
    Tokenizer.train(["a"], vocab_size=256, special_tokens=()).save(tmp_path / "tok")
    build_dataset(
        [str(tmp_path / "chain.toml")],
        tokenizer=tmp_path / "tok",
        context_length=16,
        out=tmp_path / "data",
        separator=False,
    )
    recipe = load_recipe("gpt-tiny")
    recipe = replace(
        recipe,
        model=replace(recipe.model, context_length=16, layers=2, width=32, heads=4, mlp_width=128),
        train=replace(
            recipe.train,
            tokens=600_000,
            batch_tokens=1024,
            micro_batch=64,
            optimizer="adamw",
            schedule="cosine",
            lr=8e-3,
            beta2=0.99,
            warmup_tokens=20_000,
            min_lr_ratio=0.02,
            weight_decay=0.0,
            dtype="float32",
            validate_every_tokens=10**9,
            checkpoint_every_tokens=10**9,
        ),
    )
    pretrain(recipe, data=tmp_path / "data", out=tmp_path / "run")
    numbers = evaluate(tmp_path / "run", min_context=2).to_json()["splits"]["validation"]
    rate = numbers["entropy_rate_bits"]
    assert 1 < rate < 3
    assert numbers["cross_entropy_bits"] < rate + 0.02
    assert 0 < numbers["kl_true_bits"] < 0.02
    # The gap equals the divergence, up to the sampling error of a text of this length.
    assert numbers["cross_entropy_bits"] - rate == pytest.approx(numbers["kl_true_bits"], abs=0.005)
    assert numbers["kl_true_tokens"] == numbers["tokens"]


@pytest.fixture(scope="module")
def markov_run(tmp_path_factory, small_recipe):
    """Return a run on a Markov chain of order 2 over the symbols a to d, whose documents begin with a separator."""
    folder = tmp_path_factory.mktemp("markov")
    (folder / "chain.toml").write_text(
        'reader = "synthetic"\nlength = 300\n[documents]\ntrain = 40\nvalidation = 9\n'
        '[source]\nkind = "markov"\norder = 2\nsymbols = 4\nseed = 7\nconcentration = 0.4\n'
    )
    Tokenizer.train(["a"], vocab_size=261).save(folder / "tok")
    build_dataset([str(folder / "chain.toml")], tokenizer=folder / "tok", context_length=32, out=folder / "data")
    pretrain(small_recipe, data=folder / "data", out=folder / "run")
    return folder / "run"


def test_the_cross_entropy_and_its_parts_cover_the_same_tokens(in_process, markov_run):
    """The source says nothing about separators and the two symbols after each: 26 of the 2,708 tokens."""
    done = in_process("evaluate", markov_run)
    assert done.returncode == 0, done.stderr
    numbers = Evaluation.read(markov_run).to_json()["splits"]["validation"]
    dataset = TokenDataset(markov_run.parent / "data")
    source = source_from_description(dataset.info["corpus"]["synthetic"])
    stream = dataset.split("validation")
    ids = stream.read(0, stream.tokens).astype(np.int64)
    symbols = {Tokenizer.load(markov_run).token_bytes(i): i for i in set(ids.tolist())}
    places = [symbols[bytes([byte])] for byte in source.alphabet]
    model = load_trained(Run(markov_run)).model
    entropies, divergences, nats = [], [], []
    for start in range(0, len(ids) - 1, 32):
        block = torch.from_numpy(ids[start : start + 32])
        with torch.no_grad():
            logs = torch.log_softmax(model.logits(model(block[None])).double(), dim=-1)[0].numpy()
        for i, log_q in enumerate(logs[: len(ids) - 1 - start], start + 1):
            window = [places.index(token) if token in places else -1 for token in ids[max(0, i - 2) : i + 1].tolist()]
            if len(window) < 3 or min(window) < 0:
                continue
            p = source.conditional(np.array([window[:2]]))[0]
            entropies.append(scipy.stats.entropy(p, base=2))
            divergences.append(entropies[-1] * -1 - (p @ log_q[places]) / math.log(2))
            nats.append(-log_q[ids[i]])
    assert numbers["kl_true_tokens"] == len(nats) == numbers["tokens"] - 26
    assert numbers["true_entropy_bits"] == pytest.approx(np.mean(entropies), rel=1e-6)
    assert numbers["kl_true_bits"] == pytest.approx(np.mean(divergences), rel=1e-5)
    assert numbers["true_cross_entropy_bits"] == pytest.approx(np.mean(nats) / math.log(2), rel=1e-6)
    entropy, divergence = round(numbers["true_entropy_bits"], 4), round(numbers["kl_true_bits"], 4)
    assert (
        f"At the {len(nats):,} tokens whose distribution is known: {entropy:.4f} (entropy of the source) + "
        f"{divergence:.4f} (divergence) = {entropy + divergence:.4f} bits of expected cross-entropy. This text "
        f"has {numbers['true_cross_entropy_bits']:.4f} bits. The other 26 tokens, such as separators, count only in "
        "the cross-entropy of all tokens."
    ) in " ".join(done.stdout.split())


def test_a_run_whose_tokens_are_several_symbols_is_not_compared_with_the_source(trained_gpt, markov_run):
    numbers = evaluate(trained_gpt, corpus=(str(markov_run.parent / "chain.toml"),)).validation
    assert numbers.bits_per_byte > 0 and numbers.kl_true_bits is None


def test_the_figure_of_a_run_shows_its_cross_entropy_and_both_parts(markov_run):
    numbers = evaluate(markov_run).validation.find(SourceNumbers)
    [axes] = draw_cross_entropy(load_run(markov_run)).axes
    entropy, divergence = (bar.get_width() for bar in axes.patches)
    assert (entropy, divergence) == pytest.approx((numbers.true_entropy_bits, numbers.kl_true_bits))
    total = round(entropy, 4) + round(divergence, 4)
    assert axes.texts[-1].get_text() == f"+ {divergence:.4f} = {total:.4f}\nloss {numbers.true_cross_entropy_bits:.4f}"


def test_the_options_found_in_the_source_of_a_measurement_are_its_fields():
    fields_of_all = {each.name: each.default for kind in kinds() for each in fields(kind)}
    assert {option.name: option.default for option in options()} == fields_of_all
    assert inspect.signature(evaluate).parameters.keys() >= fields_of_all.keys()


def test_a_long_evaluation_says_how_long_it_takes(in_process, trained_gpt, tmp_path, monkeypatch):
    run = shutil.copytree(trained_gpt, tmp_path / "gpt")
    takes = r"scoring validation takes about \d+:\d\d, at [\d.]+ [kM]?tok/s \(measured over the first windows\)"
    assert not re.search(takes, in_process("evaluate", run).stdout)  # it takes less than ten seconds
    monkeypatch.setattr(scoring, "MEASURED_SECONDS", 1e-6)
    monkeypatch.setattr(scoring, "LONG_SECONDS", 0.0)
    assert len(re.findall(takes, in_process("evaluate", run).stdout)) == 1
