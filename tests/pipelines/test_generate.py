"""`bytelm generate` with several prompts, penalties, and an encoder-decoder."""

import json
from dataclasses import replace

import numpy as np
import pytest
import torch

from lm.decoding.beam import beam_search
from lm.decoding.generation import generate as continued
from pipelines.reporting.samples import samples_of
from pipelines.run.folder import Run
from pipelines.run.loaded_run import load_trained
from pipelines.verbs.evaluate import evaluate
from pipelines.verbs.generate import generate
from tests.pipelines.test_cli import assert_refused


@pytest.mark.parametrize(
    ("piped", "prompt"),
    [("a\n", "a"), ("a\r\n", "a"), ("a\r\r\n\n", "a\r\r\n"), ("a\u2028", "a\u2028"), ("a\r", "a\r")],
)
def test_a_prompt_from_standard_input_loses_its_last_line_end_only(trained_gpt, in_process, piped, prompt):
    done = in_process("generate", trained_gpt, "--prompt", "-", "--tokens", "1", "--json", stdin=piped)
    assert json.loads(done.stdout)["prompt"] == prompt


def test_batched_prompts_continue_as_each_does_alone(trained_gpt, printed):
    prompts = ["import ", "def main(arguments):", "x"]
    together = generate(trained_gpt, prompt=prompts, greedy=True, tokens=12)
    shown = printed.readouterr().out
    for prompt, text in zip(prompts, together, strict=True):
        assert generate(trained_gpt, prompt=prompt, greedy=True, tokens=12) == text
        assert prompt + text in shown


def test_several_prompts_are_a_list_in_json(trained_gpt, in_process):
    done = in_process("generate", trained_gpt, "--prompt", "a", "--prompt", "b", "--tokens", "4", "--json")
    assert done.returncode == 0, done.stderr
    assert [answer["prompt"] for answer in json.loads(done.stdout)] == ["a", "b"]


def test_a_model_trained_without_separators_reads_the_prompt_alone(
    tmp_path, small_recipe, text_folder, tokenizer_folder
):
    """It has never read <|endoftext|>, although the tokenizer has this token."""
    from pipelines.run.text_ids import BEFORE_TEXT
    from pipelines.verbs.build_dataset import build_dataset
    from pipelines.verbs.export_hf import export_hf
    from pipelines.verbs.pretrain import pretrain

    tok = tokenizer_folder
    for name, separator in (("separated", True), ("joined", False)):
        options = {"tokenizer": tok, "context_length": 32, "separator": separator}
        build_dataset([str(text_folder)], out=tmp_path / "data" / name, **options)
        recipe = replace(small_recipe, train=replace(small_recipe.train, tokens=256))
        pretrain(recipe, data=tmp_path / "data" / name, out=tmp_path / name)
        run = load_trained(Run(tmp_path / name), device="cpu")
        end = Run(tmp_path / name).tokenizer().special_tokens["<|endoftext|>"]
        ids = [*([end] if separator else []), *Run(tmp_path / name).tokenizer().encode_ordinary("import ")]
        likeliest = int(run.model.logits(run.model(torch.tensor([ids])))[0, -1].argmax())
        written = generate(tmp_path / name, prompt="import ", tokens=1, greedy=True, device="cpu")
        assert written == Run(tmp_path / name).tokenizer().decode([likeliest])
        generation_config = json.loads(
            (export_hf(tmp_path / name, out=tmp_path / f"{name}-hf") / "config.json").read_text()
        )
        assert generation_config[BEFORE_TEXT] == ids[: int(separator)]
        generate(tmp_path / name, tokens=2, greedy=True, device="cpu")  # an empty prompt


def test_repetition_penalty_and_min_p_change_the_text(trained_gpt, printed):
    plain = generate(trained_gpt, prompt="import os\n" * 3, greedy=True, tokens=25)
    penalised = generate(trained_gpt, prompt="import os\n" * 3, greedy=True, tokens=25, repetition_penalty=5.0)
    assert plain != penalised
    # so near to 1 nothing but the likeliest is left
    assert generate(trained_gpt, prompt="import os\n" * 3, min_p=1.0, tokens=25) == plain


def test_top_k_of_one_is_greedy(trained_gpt):
    greedy = generate(trained_gpt, prompt="import ", tokens=20, greedy=True)
    drawn = generate(trained_gpt, prompt="import ", tokens=20, seed=5)
    assert drawn != greedy
    for option in ({"top_k": 1}, {"top_p": 1e-6}, {"min_p": 1.0}):
        assert generate(trained_gpt, prompt="import ", tokens=20, seed=5, **option) == greedy


def test_an_encoder_decoder_answers_sources_with_their_sentinels(trained_t5, printed):
    sources = ["import <|sentinel_0|>\nfrom x", "def <|sentinel_0|>(a, b):"]
    searched = generate(trained_t5, prompt=sources, tokens=20)
    assert len(searched) == 2
    assert all("<|sentinel_0|>" in text for text in searched)
    assert generate(trained_t5, prompt=sources[0], tokens=20) == searched[0]
    assert generate(trained_t5, prompt=sources[0], tokens=20, beams=1) == generate(
        trained_t5, prompt=sources[0], tokens=20, greedy=True
    )
    drawn = [generate(trained_t5, prompt=sources[0], tokens=20, beams=0, seed=seed) for seed in (1, 1, 2)]
    assert drawn[0] == drawn[1] != drawn[2]
    # an option that says how to draw is not lost on a search
    for option in ({"top_k": 500}, {"temperature": 0.8}):
        assert generate(trained_t5, prompt=sources[0], tokens=20, seed=1, **option) == drawn[0]


def test_samples_of_an_encoder_decoder_show_removed_spans_and_guesses(trained_t5):
    run = Run(trained_t5)
    (sample,) = samples_of(run, load_trained(run).model)
    source, hidden = sample.before.strip().split("\n\n")
    assert "<|sentinel_0|>" in source
    assert hidden.startswith("<|sentinel_0|>")


def test_samples_of_a_model_of_pairs_show_source_target_and_answer(trained_translator):
    run = Run(trained_translator)
    samples = samples_of(run, load_trained(run).model)
    assert len(samples) == 4
    for sample in samples:
        source, target = sample.before.strip().split("\n\n")
        assert target == source.replace("the number", "die Zahl")


def test_a_source_longer_than_the_context_is_cut_with_a_warning(trained_translator, printed):
    tok = Run(trained_translator).tokenizer()
    long = "the number 17 " * 30
    start = tok.decode(tok.encode(long)[:31])
    whole = generate(trained_translator, prompt=start, tokens=12)
    for options in ({}, {"greedy": True, "beams": 0}):
        with pytest.warns(UserWarning) as warned:
            cut = generate(trained_translator, prompt=["the number 3", long], tokens=12, **options)[1]
        (warning,) = warned
        rest = " ".join(tok.decode(tok.encode(long)[31:]).split())[:10]
        assert f"source 2 of 2 has {len(tok.encode(long))} tokens, of which the model reads the first 31" in str(
            warning.message
        )
        assert f"the text from '{rest}" in str(warning.message)
    assert cut == generate(trained_translator, prompt=start, tokens=12, greedy=True, beams=0)
    with pytest.warns(UserWarning, match="the source has"):
        assert generate(trained_translator, prompt=long, tokens=12) == whole


def test_relative_positions_read_a_source_of_any_length(trained_t5, recwarn):
    generate(trained_t5, prompt="import os\n" * 50, tokens=4)
    assert not recwarn.list


def test_a_prompt_longer_than_the_context_loses_its_beginning_with_a_warning(trained_gpt):
    tok = Run(trained_gpt).tokenizer()
    long = "import os\nimport sys\n" * 20
    with pytest.warns(
        UserWarning, match=r"the prompt has \d+ tokens, of which the model reads the last 32: .* cut off"
    ):
        text = generate(trained_gpt, prompt=long, tokens=5, greedy=True)
    model = load_trained(Run(trained_gpt)).model
    ids = torch.tensor(tok.encode(long)[-32:])
    assert text == tok.decode(continued(model, ids, 5, temperature=0).tolist())


def test_a_text_with_masks_that_is_too_long_is_refused(trained_bert):
    with pytest.raises(ValueError, match=r"`prompt` has \d+ tokens, and the encoder reads 32 at once: shorten it"):
        generate(trained_bert, prompt="<|mask|>" + " import os" * 50)


def test_evaluate_passes_beams_and_length_penalty_to_the_search(trained_translator):
    def found(**options):
        evaluation = evaluate(trained_translator, device="cpu", **options).to_json()
        pairs = evaluation["splits"]["validation"]["translations"]
        return [pair["hypothesis"] for pair in pairs], [pair["source"] for pair in pairs]

    hypotheses, sources = found(beams=4)
    assert hypotheses == generate(trained_translator, prompt=sources, beams=4, tokens=32)
    assert hypotheses != found(beams=1)[0]
    assert found(beams=4, length_penalty=3.0)[0] != found(beams=4, length_penalty=-3.0)[0]


def test_sources_are_searched_in_batches_with_the_results_of_each_alone(trained_translator, monkeypatch):
    from pipelines.evaluation.measurements import translation

    sources = [f"the number {i}" for i in (3, 14, 159, 2, 65)]
    together = generate(trained_translator, prompt=sources, tokens=10)
    monkeypatch.setattr(translation, "TARGETS", 8)
    assert translation.sources_at_once(4) == 2
    assert generate(trained_translator, prompt=sources, tokens=10) == together
    assert translation.sources_at_once(100) == 1


def test_a_lower_length_penalty_prefers_shorter_targets(trained_translator):
    run = Run(trained_translator)
    model, tok = load_trained(run, "cpu").model, run.tokenizer()
    source = torch.tensor([[*tok.encode("the number 7"), 0]])
    found = {}
    for penalty in (0.0, 1.0, 3.0):
        options = {"start_id": 0, "end_ids": [0], "max_new_tokens": 12, "beams": 4, "length_penalty": penalty}
        best = beam_search(model, source, **options)[0][0].ids
        found[penalty] = tok.decode([token for token in best if token != 0])
        options = {"tokens": 12, "beams": 4, "length_penalty": penalty, "device": "cpu"}
        assert generate(trained_translator, prompt="the number 7", **options) == found[penalty]
    assert len(set(found.values())) > 1
    assert generate(trained_translator, prompt="the number 7", tokens=12, repetition_penalty=1.0) == found[1.0]
    with pytest.raises(ValueError, match="`length_penalty` is for beam search"):
        generate(trained_translator, prompt="the number 7", length_penalty=0.6, greedy=True)


@pytest.mark.parametrize(
    ("options", "words"),
    [
        ({"min_p": 0.0}, "`min_p` is 0.0"),
        ({"repetition_penalty": 0.0}, "`repetition_penalty` is 0.0"),
        ({"beams": -1}, "`beams` is -1"),
        ({"beams": 10**9}, "`beams` is 1,000,000,000, but must be from 1 to 100, or 0 to sample"),
        ({"seed": 2**63}, f"`seed` is {2**63}"),
        ({"beams": 3, "top_k": 5}, "`beams` searches for the likeliest text, without `top_k`"),
        ({"beams": 3, "temperature": 0.8}, "`beams` searches for the likeliest text, without `temp"),
        ({"greedy": True, "temperature": 0.8}, "`greedy` always takes the likeliest token, without `temp"),
        ({"greedy": True, "top_p": 0.8}, "`greedy` always takes the likeliest token, without `top_p`"),
        ({"beams": 3}, "`beams` is for an encoder-decoder, and this run's architecture is decoder"),
        ({"length_penalty": 0.6}, "`length_penalty` is for an encoder-decoder"),
        ({"length_penalty": 36.0}, "`length_penalty` is 36.0, but must be from -35 to 35"),
        ({"tokens": 0}, "`tokens` is 0"),
    ],
)
def test_conflicting_options_are_refused_by_name(trained_gpt, options, words):
    with pytest.raises(ValueError, match=words):
        generate(trained_gpt, prompt="x", **options)


def test_an_encoder_takes_one_text(trained_bert):
    with pytest.raises(ValueError, match="has 2 texts"):
        generate(trained_bert, prompt=["<|mask|>", "a <|mask|>"])
    with pytest.raises(ValueError, match="`greedy` does not apply to an encoder"):
        generate(trained_bert, prompt="<|mask|>", greedy=True)
    with pytest.raises(ValueError, match="`tokens` does not apply to an encoder"):
        generate(trained_bert, prompt="<|mask|>", tokens=5)


def test_nothing_is_printed_before_a_prompt_that_cannot_be_read(trained_gpt, printed):
    with pytest.raises(ValueError, match="`prompt` is not UTF-8 at byte 1"):
        generate(trained_gpt, prompt="x\udcff")
    assert printed.readouterr().out == ""


@pytest.mark.parametrize("options", [{"greedy": True}, {"seed": 3, "temperature": 2.0, "top_k": 50}])
def test_probabilities_of_steps_are_those_of_a_score(trained_gpt, options):
    """The score of the written text has the same tokens, probabilities and candidates."""
    from pipelines.run.loaded_run import load_run
    from pipelines.scoring.texts import score_text

    plain = generate(trained_gpt, prompt="import ", tokens=8, device="cpu", **options)
    made = generate(trained_gpt, prompt="import ", tokens=8, device="cpu", probabilities=True, **options)
    assert (made["prompt"], made["text"]) == ("import ", plain)
    run, steps = load_run(trained_gpt, device="cpu"), made["steps"]
    ids = [step["id"] for step in steps]
    read = run.ids("import ")
    logits = run.model.logits(run.model(torch.tensor([[*read, *ids]])))[0, len(read) - 1 : -1]
    p = torch.softmax(logits, dim=-1)
    assert [step["probability"] for step in steps] == pytest.approx(p[range(len(ids)), ids].tolist(), rel=1e-4)
    for step, row in zip(steps, p, strict=True):
        assert [each["id"] for each in step["candidates"]] == row.topk(5).indices.tolist()
        assert [each["probability"] for each in step["candidates"]] == pytest.approx(
            row.topk(5).values.tolist(), rel=1e-4
        )
        assert not options.get("greedy") or step["id"] == step["candidates"][0]["id"]
    scored = score_text(run, "import " + run.tokenizer.decode(ids))
    if scored.ids.tolist() == [*read[1:], *ids]:  # the text can also be encoded otherwise
        found = scored.predictions.log_probabilities[len(read) - 1 :]
        assert [step["probability"] for step in steps] == pytest.approx(np.exp(found).tolist(), rel=1e-4)


def test_steps_of_several_texts_end_with_each_text(trained_translator, in_process):
    sources = ["the number 3", "the number 17"]
    options = [option for source in sources for option in ("--prompt", source)]
    done = in_process("generate", trained_translator, *options, "--greedy", "--probabilities", "--json")
    assert done.returncode == 0, done.stderr
    end = Run(trained_translator).tokenizer().special_tokens["<|endoftext|>"]
    for made in json.loads(done.stdout):
        ids = [step["id"] for step in made["steps"]]
        assert end not in ids[:-1] and (ids[-1] == end or len(ids) == 32)
        text = "".join(step["text"] for step in made["steps"] if step["id"] != end)
        assert text == made["text"]
    shown = in_process("generate", trained_translator, *options, "--greedy", "--probabilities").stdout
    assert shown.count("likeliest") == 2 and "'<|endoftext|>'" in shown


def test_probabilities_need_steps(trained_translator, trained_bert, in_process):
    done = in_process("generate", trained_translator, "--prompt", "x", "--probabilities")
    assert_refused(done, "--probabilities shows steps of sampling, and this is a beam search: add --greedy")
    done = in_process("generate", trained_bert, "--prompt", "<|mask|>", "--probabilities")
    assert_refused(done, "--probabilities does not apply to an encoder")
