"""`bytelm inspect`: what its instruments find in random runs, and in a hand-written induction head."""

import copy
import json
from dataclasses import replace

import pytest
import torch

import bytelm
from lm.introspection.attribution import attribute
from lm.introspection.norms import linear_part
from lm.introspection.patching import patching_maps
from lm.model import LanguageModel
from pipelines.evaluation.measurement import Table
from pipelines.exchange.imported_run import write_imported_run
from pipelines.inspection.instruments import NAMES, descriptions, instrument, options
from pipelines.recipes.config import TrainConfig
from pipelines.run.folder import Run
from pipelines.training.checkpoints import take_snapshot, write_checkpoint
from pipelines.training.progress import Progress
from tests.lm.introspection_cases import copying_induction_model
from tests.loaded_runs import induction_run, variant

TEXT = "import os\n\ndef path():"


@pytest.fixture(scope="module")
def gpt(trained_gpt):
    return bytelm.load_run(trained_gpt)


@pytest.fixture(scope="module")
def induction(gpt):
    return induction_run(gpt)


def test_the_lens_of_the_last_layer_is_the_models_prediction(gpt):
    found, logits = gpt.lens(TEXT, top=3), gpt.logits(TEXT).double()
    last, probabilities = found.layers[-1], logits.softmax(dim=-1)
    assert [layer.name for layer in found.layers] == ["embedding", "0"]
    assert last.probabilities == pytest.approx(probabilities.max(dim=-1).values.tolist(), rel=1e-4)
    assert last.kl_bits == 0 and set(last.final_ranks) == {1}
    targets = torch.tensor(gpt.ids(TEXT)[1:])
    bits = torch.nn.functional.cross_entropy(logits[:-1], targets).item() / torch.log(torch.tensor(2.0)).item()
    assert last.next_bits == pytest.approx(bits, rel=1e-4)
    assert [share for _, share in last.last] == pytest.approx(probabilities[-1].topk(3).values.tolist(), rel=1e-4)
    first, stream = found.layers[0], gpt.trace(TEXT)["blocks.0.hook_resid_pre"]
    with torch.no_grad():
        lens = gpt.model.logits(gpt.model.stack.final_norm(stream))[0].double().log_softmax(dim=-1)
    final = probabilities.argmax(dim=-1)
    assert first.final_probabilities == pytest.approx(lens.exp()[range(len(final)), final].tolist(), rel=1e-4)
    ranks = 1 + (lens > lens[range(len(final)), final][:, None]).sum(dim=-1)
    assert list(first.final_ranks) == ranks.tolist()


def test_the_attribution_of_a_run_adds_up_to_its_logit(gpt):
    target, against = gpt.tokenizer.decode([270]), gpt.tokenizer.decode([280])
    found = gpt.attribute(TEXT, target, against, position=3)
    logits = gpt.logits(TEXT)[3]
    assert found.logit == pytest.approx((logits[270] - logits[280]).item(), abs=1e-5)
    assert sum(found.terms.values()) == pytest.approx(found.logit, abs=1e-5)
    likeliest = gpt.attribute(TEXT)
    assert likeliest.logit == pytest.approx(gpt.logits(TEXT)[-1].max().item(), abs=1e-5)
    with pytest.raises(ValueError, match=r"`target` is 'import os', which is \d tokens"):
        gpt.attribute(TEXT, "import os")
    with pytest.raises(ValueError, match="`position` is 99, but the text has"):
        gpt.attribute(TEXT, position=99)


def test_every_instrument_finds_the_induction_head(induction):
    text = "c h m q d h"  # after h, the head predicts m
    repeated = induction.lens(text)
    assert [layer.words[-1] for layer in repeated.layers] == ["h", "h", "m"]
    assert repeated.layers[-1].final_probabilities[-1] > 0.5
    found = induction.attribute(text)
    assert found.target == "m" and max(found.terms, key=found.terms.get) == "head 1.0"
    scores = induction.head_scores(repeat_length=9)
    best = {name: max(scores.heads, key=lambda row: getattr(row, name)) for name in ("induction", "previous")}
    assert (best["induction"].layer, best["induction"].head) == (1, 0) and best["induction"].induction > 0.9
    assert (best["previous"].layer, best["previous"].head) == (0, 0) and best["previous"].previous > 0.9
    assert scores.repetition.second_mass > 0.5 > 2 * scores.repetition.chance
    assert scores.repetition.second_bits < 1 < scores.repetition.first_bits


def test_a_uniform_model_repeats_by_chance(induction):
    model = copying_induction_model(induction.tokenizer.vocab_size)
    with torch.no_grad():
        model.embedding.weight.zero_()
    found = variant(induction, model=model).head_scores(repeat_length=9).repetition
    entries = torch.tensor(float(induction.tokenizer.vocab_size))
    assert found.second_mass == pytest.approx(1 / entries.item())
    assert found.first_bits == pytest.approx(entries.log2().item())


def test_scores_of_heads_need_a_context_in_which_two_tokens_are_repeated(gpt):
    heads = instrument("heads", {})
    heads.check(replace(gpt.config.model, context_length=4))
    with pytest.raises(ValueError, match=r"model\.context_length is 3, but heads needs at least 4 tokens"):
        heads.check(replace(gpt.config.model, context_length=3))


def test_the_command_prints_tables_and_json(gpt, trained_gpt, in_process):
    said = in_process("inspect", trained_gpt, TEXT, "second text", "--explain").stdout
    for words in ("Logit lens, text 2: prediction after the last token", "Attribution of a logit, text 1", "Heads"):
        assert words in said
    assert "cannot tell" in said
    as_json = json.loads(in_process("inspect", trained_gpt, TEXT, "--json").stdout)
    assert as_json.keys() == {"lens", "attribution", "heads"}
    assert as_json["lens"][0]["layers"][-1]["words"] == list(gpt.lens(TEXT).layers[-1].words)
    without = json.loads(in_process("inspect", trained_gpt, "--json").stdout)
    assert without.keys() == {"heads"}
    found = bytelm.inspect(gpt, TEXT, instruments=("attribution",), against=gpt.tokenizer.decode([280]))
    assert found["attribution"][0].against is not None and found.keys() == {"attribution"}


def test_runs_and_options_that_do_not_fit_are_named(trained_gpt, trained_bert, in_process):
    said = in_process("inspect", trained_bert, "import sys")
    assert "without attribution: model.architecture is 'encoder'" in said.stdout + said.stderr
    for words, arguments in {
        "attribution needs a decoder": (trained_bert, "x", "--instruments", "attribution"),
        "lens needs a text": (trained_gpt, "--instruments", "lens"),
        "choose from lens": (trained_gpt, "x", "--instruments", "microscope"),
        "--target is an option of attribution": (trained_gpt, "x", "--instruments", "lens", "--target", "y"),
        "--top is 0, but must be at least 1": (trained_gpt, "x", "--top", "0"),
    }.items():
        failed = in_process("inspect", *arguments)
        assert failed.returncode == 1 and words in failed.stderr and "Traceback" not in failed.stderr


def test_an_apple_gpu_leaves_instruments_to_the_cpu(trained_gpt, gpt, monkeypatch):
    """Instruments compute in float64, which Apple GPUs lack."""
    monkeypatch.setattr(torch.cuda, "is_available", lambda: False)
    monkeypatch.setattr(torch.backends.mps, "is_available", lambda: True)
    found = bytelm.inspect(trained_gpt, TEXT, instruments=("lens",))
    assert found == bytelm.inspect(gpt, TEXT, instruments=("lens",))
    with pytest.raises(ValueError, match="device is 'mps', but this needs float64"):
        bytelm.inspect(trained_gpt, TEXT, device="mps")


def test_instruments_have_descriptions_and_definitions():
    assert set(descriptions()) == set(NAMES) and all(descriptions().values())
    names = [option.name for option in options()]
    assert len(names) == len(set(names))
    for name in NAMES:
        section = instrument(name, {}).result.section
        assert (section is not None and section.heading and "cannot tell" in section.note) or "only" in section.note


def test_tables_of_deep_models_and_long_texts_are_short(gpt):
    found = gpt.lens("import os\n" * 4)
    deep = replace(found, layers=tuple(replace(found.layers[0], name=str(i)) for i in range(13)))
    last, words, said = deep.parts()
    assert isinstance(last, Table) and len(last.rows) == 13
    assert isinstance(words, Table) and words.heads == ["0", "3", "6", "9", "12"] and len(words.rows) == 16
    assert said.startswith("shown: the last 16 of ") and "4 of 12 layers" in said


def test_patching_finds_where_two_prompts_part(induction):
    found = bytelm.inspect(induction, "c h m q d h", instruments=("patching",), corrupt="c h r q d h")["patching"][0]
    assert (found.target, found.against) == ("m", "r")
    assert [round(effect, 1) for effect in found.stream[1]] == [0, 0, 1, 0, 0, 0]
    assert [[round(effect, 1) for effect in row] for row in found.heads] == [[0, 0], [1, 0]]
    stream, heads, agreement, said = found.parts()
    assert [label for label, _ in agreement.rows] == ["stream", "attention", "heads"]
    assert {one.map: one for one in found.agreement}["heads"].correlation > 0.9
    quick = bytelm.inspect(induction, "c h m q d h", instruments="patching", corrupt="c h r q d h", quick=True)
    assert quick["patching"][0].quick and not quick["patching"][0].agreement and len(quick["patching"][0].parts()) == 4
    assert [label for label, _ in stream.rows] == ["c", "h", "r → m", "q", "d", "h"]
    assert heads.rows[1] == ("1", ["1.00", "0.00"]) and said.startswith("logit difference: +")
    for words, given in {
        "give `corrupt`": {},
        "the prompts have 6 and 5 tokens": {"corrupt": "c h r q d"},
        "are the same token, m": {"corrupt": "c h m q d h"},
    }.items():
        with pytest.raises(ValueError, match=words):
            bytelm.inspect(induction, "c h m q d h", instruments=("patching",), **given)


@pytest.mark.parametrize("mixers", [("attention", "gru"), ("gru", "attention")])
def test_only_layers_of_attention_have_heads_and_scores(gpt, mixers):
    model = LanguageModel(replace(gpt.config.model, layers=2, mixers=mixers), seed=0).eval()
    hybrid = variant(gpt, model=model, config=replace(gpt.config, model=model.config))
    options = {"corrupt": "b c", "target": gpt.tokenizer.decode([270]), "against": gpt.tokenizer.decode([280])}
    options |= {"deletion_tokens": 64, "validation_tokens": 64}
    found = bytelm.inspect(hybrid, "b a", instruments=("deletions", "diagnosis", "patching"), **options)
    deletions, diagnosis, patching = (results[0] for results in found.values())
    own, other = mixers.index("attention"), mixers.index("gru")
    by_layer, by_health, by_head = deletions.parts()[0], diagnosis.parts()[0], patching.parts()[1]
    assert by_layer.heads[-2:] == by_head.heads == ["head 0", "head 1"]
    for table, cells, above in ((by_layer, slice(-2, None), 0), (by_head, slice(None), 0), (by_health, slice(2), 1)):
        assert all(table.rows[own + above][1][cells]) and not any(table.rows[other + above][1][cells])
    assert by_health.heads[:2] == ["score sd", "saturated"] and patching.heads[other] is None
    assert {one.map for one in patching.agreement} == {"stream", "attention", "mlp", "heads"}
    for result in (deletions, diagnosis, patching):
        json.dumps(result.to_json(), allow_nan=False)
        assert all(picture.figure().axes for picture in result.pictures())


@pytest.mark.parametrize("kind", ["gpt2", "llama"])
def test_patching_maps_are_those_of_transformer_lens(kind, peers):
    """TransformerLens is heavy, and no dependency of the tests: they run where it is installed."""
    bridges = pytest.importorskip("transformer_lens.model_bridge")
    from transformer_lens import patching

    folder, _, run = peers(kind)
    loaded = bytelm.load_run(run)
    clean_ids = torch.tensor([loaded.ids(TEXT)])
    corrupt_ids = clean_ids.where(torch.arange(clean_ids.shape[1]) != 3, 300)
    bridge = bridges.TransformerBridge.boot_transformers(str(folder), device="cpu")
    cache = bridge.run_with_cache(clean_ids)[1]
    maps = patching_maps(loaded.model, clean_ids[0], corrupt_ids[0], 270, 280)

    def effect(logits):
        difference = logits[0, -1, 270] - logits[0, -1, 280]
        return (difference - maps.corrupt) / (maps.clean - maps.corrupt)

    for ours, map_of in {
        maps.stream: patching.get_act_patch_resid_pre,
        maps.attention: patching.get_act_patch_attn_out,
        maps.mlp: patching.get_act_patch_mlp_out,
        maps.heads: patching.get_act_patch_attn_head_out_all_pos,
    }.items():
        theirs = map_of(bridge, corrupt_ids, cache, effect)
        torch.testing.assert_close(ours.float(), theirs.float(), rtol=1e-3, atol=1e-4)


@pytest.mark.parametrize("kind", ["gpt2", "llama"])
def test_attributions_are_those_of_transformer_lens(kind, peers):
    bridges = pytest.importorskip("transformer_lens.model_bridge")
    folder, _, run = peers(kind)
    loaded = bytelm.load_run(run)
    bridge = bridges.TransformerBridge.boot_transformers(str(folder), device="cpu")
    cache = bridge.run_with_cache(torch.tensor([loaded.ids(TEXT)]))[1]
    scale = cache["ln_final.hook_scale"][0, -1]
    norm, weight = loaded.model.stack.final_norm, loaded.model.head.output_weight.detach()
    found = attribute(loaded.model, torch.tensor(loaded.ids(TEXT)), 270, 280)
    for layer in range(2):
        written = cache[f"blocks.{layer}.hook_mlp_out"][0, -1]
        with torch.no_grad():
            expected = (weight[270] - weight[280]) @ (linear_part(norm, written) / scale)
        assert found.terms[f"mlp {layer}"] == pytest.approx(expected.item(), abs=1e-4)


def test_the_diagnosis_at_initialisation_refuses_a_run_that_started_from_weights(tmp_path, dataset_folder, trained_gpt):
    recipe = Run(trained_gpt).recipe
    tokens = {"tokens": recipe.train.batch_tokens, "warmup_tokens": 0}
    bytelm.pretrain(recipe, data=dataset_folder, out=tmp_path / "further", train=tokens, init_from=trained_gpt)
    with pytest.raises(ValueError, match=r"further started from the weights of .*: leave out `initial`, or diagnose /"):
        bytelm.inspect(tmp_path / "further", instruments="diagnosis", initial=True)


def test_the_diagnosis_at_initialisation_is_that_of_random_weights(gpt):
    trained, fresh = (
        bytelm.inspect(gpt, instruments="diagnosis", validation_tokens=512, initial=initial)["diagnosis"][0]
        for initial in (False, True)
    )
    assert fresh.state == "initialisation" and trained.state.startswith("step-")
    assert trained.tokens == fresh.tokens >= 512 and trained.loss_bits < fresh.loss_bits
    assert fresh.loss_bits == pytest.approx(torch.tensor(float(gpt.tokenizer.vocab_size)).log2().item(), rel=0.1)
    assert trained.embedding_rank <= trained.largest_rank == gpt.config.model.width
    table, said = trained.parts()
    assert [label for label, _ in table.rows] == ["embedding", "0"] and said.startswith("effective rank of the embed")
    assert trained.pictures()[0].figure().axes


def test_the_development_of_heads_has_the_scores_and_losses_of_the_checkpoints(gpt):
    found = bytelm.inspect(gpt, instruments="development", repeat_length=8)["development"][0]
    newest, scores = found.checkpoints[-1], gpt.head_scores(repeat_length=8)
    assert newest.heads == scores.heads and newest.repetition == scores.repetition
    folders = sorted((gpt.path / "checkpoints").iterdir())
    assert [one.name for one in found.checkpoints] == [folder.name for folder in folders]
    losses = gpt.metrics("validation")
    known = dict(zip(losses["tokens"].tolist(), losses["loss"].tolist(), strict=True))
    assert newest.loss_bits == pytest.approx(known[newest.tokens] / torch.log(torch.tensor(2.0)).item(), rel=1e-5)
    one = bytelm.inspect(gpt, instruments="development", repeat_length=8, checkpoints=1)["development"][0]
    assert one.checkpoints == (newest,)
    table, said = found.parts()
    assert len(table.rows) == len(folders) and said.startswith(("induction appears by", "no head's induction score"))
    assert found.pictures()[0].figure().axes


def test_the_development_says_when_induction_appears(gpt):
    found = bytelm.inspect(gpt, instruments="development", repeat_length=8)["development"][0]
    before = replace(found.checkpoints[-1], tokens=1000)
    head = replace(before.heads[1], induction=0.3)
    after = replace(before, tokens=2000, heads=(*before.heads[:1], head, *before.heads[2:]))
    assert replace(found, checkpoints=(before, after)).parts()[1] == "induction appears by 2 ktok, in head 0.1"
    assert replace(found, checkpoints=(before,)).parts()[1] == "no head's induction score reaches 0.2 by 1 ktok"


def test_the_development_of_the_hand_written_circuit_is_its_history(induction, tmp_path):
    """The head of the previous token comes first, and induction when the second layer reads what it notes."""
    model, folder = induction.model, tmp_path / "run"
    whole = {name: tensor.clone() for name, tensor in model.state_dict().items()}
    queries = [f"decoder.blocks.{layer}.attention.query.weight" for layer in (0, 1)]
    nothing = whole | {name: torch.zeros_like(whole[name]) for name in queries}
    history = [nothing, nothing | {queries[0]: whole[queries[0]]}, whole]
    write_imported_run(folder, induction.config, nothing, induction.tokenizer, {})
    for step, weights in enumerate(history[1:], 1):
        other = copy.deepcopy(model)
        other.load_state_dict(weights)
        state = replace(Progress(), step=step, tokens=1000 * step).as_state()
        keep = TrainConfig(keep_checkpoints=3)
        write_checkpoint(folder, take_snapshot(other), state, keep, Run(folder).settings)
    found = bytelm.inspect(folder, instruments="development", repeat_length=9)["development"][0]
    assert [one.tokens for one in found.checkpoints] == [0, 1000, 2000]
    previous, induction_scores = ([one.best(name) for one in found.checkpoints] for name in ("previous", "induction"))
    assert [(row.layer, row.head) for row in previous[1:]] == [(0, 0)] * 2
    assert previous[0].previous < 0.5 and previous[1].previous == pytest.approx(1, abs=0.01)
    assert [row.induction > 0.9 for row in induction_scores] == [False, False, True]
    assert (induction_scores[2].layer, induction_scores[2].head) == (1, 0)
    assert found.appearance() == found.checkpoints[2]
    assert found.parts()[1] == "induction appears by 2 ktok, in head 1.0"
    masses = [one.repetition.second_mass for one in found.checkpoints]
    assert max(masses[:2]) < 0.2 and masses[2] > 0.5


def test_composition_finds_the_induction_head(induction):
    found = bytelm.inspect(induction, instruments="composition")["composition"][0]
    best = max(found.pairs, key=lambda pair: pair.key)
    assert (best.earlier, best.later) == ("0.0", "1.0") and best.key > 0.1 > max(best.query, best.value)
    assert len(found.pairs) == 4 and found.parts()[1].rows[0][0] == "0.0 → 1.0"
    assert found.pictures()[0].maps["K"][0, 0] == best.key
