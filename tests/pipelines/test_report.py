"""Contents and structure of report.html."""

import copy
import json
import math
import re
import shutil
from dataclasses import replace
from html.parser import HTMLParser

import numpy as np
import pytest

from pipelines.cli.display import quantity
from pipelines.evaluation.measurements.predictions import Curves
from pipelines.evaluation.results import Evaluation
from pipelines.reporting.excerpts import Excerpts
from pipelines.reporting.page import verdict
from pipelines.reporting.passage import _pieces, passage_of
from pipelines.reporting.plots import loss_by_position, plots
from pipelines.reporting.subject import subject_of
from pipelines.run.folder import Run
from pipelines.run.loaded_run import load_trained
from pipelines.run.retention import checkpoint_folders
from pipelines.tasks.regression import Regression
from pipelines.verbs.build_dataset import build_dataset
from pipelines.verbs.evaluate import evaluate
from pipelines.verbs.inspect_vocabulary import inspect_vocabulary
from pipelines.verbs.pretrain import pretrain
from pipelines.verbs.report import report
from pipelines.verbs.train_tokenizer import train_tokenizer
from tokenizer import Tokenizer


class Page(HTMLParser):
    """Collects the text of a page by section, its tables, links, drawings, cards and ids.

    A section is the id of a folded part of the page, "" for the rest.
    """

    def __init__(self, path):
        super().__init__()
        self.html = path.read_text(encoding="utf-8")
        self.sections, self.ids, self.tables = {"": ""}, [], []
        self.links, self.svgs, self.cards = [], [], [""]
        self._section, self._row, self._folds = "", None, []
        self.feed(self.html)

    def handle_starttag(self, tag, attributes):
        given = dict(attributes)
        if "id" in given:
            self.ids.append(given["id"])
        if tag == "details":
            self._folds.append(given.get("id"))
            if given.get("id"):
                self._section = given["id"]
                self.sections[self._section] = ""
        if tag == "section":
            self.cards.append("")
        if tag in ("p", "h3"):
            self.cards[-1] += " "
        if tag == "a":
            self.links.append(given["href"])
        if tag == "svg":
            self.svgs.append(given | {"section": self._section})
        if tag == "table":
            self.tables.append((self._section, []))
        if tag == "tr":
            self._row = []
            self.tables[-1][1].append(self._row)
        if tag in ("td", "th"):
            self._row.append("")

    def handle_endtag(self, tag):
        if tag == "details" and self._folds.pop():
            self._section = ""
        if tag == "tr":
            self._row = None

    def handle_data(self, data):
        self.sections[self._section] += data
        if not self._section:
            self.cards[-1] += data
        if self._row:
            self._row[-1] += data

    def rows(self, section):
        """Return the tables of a section as {label: cells}."""
        return [{row[0]: row[1:] for row in rows if row} for where, rows in self.tables if where == section]


def plain(run, out, **options):
    return Page(report(run, out=out, **{"samples": False, "inside": False, **options}))


@pytest.fixture
def gpt(tmp_path, trained_gpt):
    """Return a copy of the run without an evaluation."""
    folder = shutil.copytree(trained_gpt, tmp_path / "gpt")
    (folder / "evaluation.json").unlink(missing_ok=True)
    return folder


@pytest.fixture(scope="module")
def evaluated(tmp_path_factory, trained_gpt):
    """Return a copy of the run, its evaluation with compressors, and its page without samples."""
    folder = tmp_path_factory.mktemp("evaluated")
    run = shutil.copytree(trained_gpt, folder / "gpt", ignore=shutil.ignore_patterns("evaluation.json"))
    found = evaluate(run, compressors=True)
    return run, found, plain([run], folder / "page.html")


@pytest.fixture(scope="module")
def whole_page(tmp_path_factory, trained_gpt, trained_bert):
    folder = tmp_path_factory.mktemp("whole")
    without = shutil.ignore_patterns("evaluation.json")  # other tests evaluate the shared runs on other texts
    runs = [shutil.copytree(run, folder / run.name, ignore=without) for run in (trained_gpt, trained_bert)]
    evaluate(runs)
    return Page(report(runs, out=folder / "page.html"))


def test_the_page_opens_with_a_verdict_against_baselines_and_compressors(tmp_path, gpt):
    numbers = evaluate(gpt, compressors=True).to_json()["splits"]["validation"]
    evaluate(gpt, stride=8)
    verdict = plain([gpt], tmp_path / "page.html").sections[""]
    bits = numbers["compressors"]["xz -9"]
    for name, others in (("xz -9", bits["alone"]), ("xz -9 given the training text", bits["given_train"])):
        verb = "beats" if others > numbers["bits_per_byte"] else "loses to"
        assert re.search(rf"{verb} [^;]*?{re.escape(f'{name} ({others:.3f})')}", verdict), verdict


def test_the_page_opens_with_four_cards_a_run_one_plot_and_one_sample(whole_page, trained_gpt):
    cards = [" ".join(card.split()) for card in whole_page.cards[1:]]
    assert len(cards) == 4 + 4 + 1
    titles = ("Validation perplexity", "Bits per byte", "Trained on", "Training time")
    assert all(card.startswith(title) for card, title in zip(cards, titles, strict=False)), cards
    assert cards[4].startswith("Validation perplexity of masked tokens") and cards[5].startswith("Ranked first")
    assert "temperature 0.8, top-p 0.95, seed 0" in cards[8]
    assert [svg["aria-labelledby"] for svg in whole_page.svgs if not svg["section"]] == ["loss-title"]
    assert not re.search(r"<details[^>]* open[^>]*class=.fold", whole_page.html)


def test_the_cards_have_the_numbers_of_the_evaluation(evaluated):
    gpt, evaluation, page = evaluated
    found = evaluation.validation
    first, second, data, _ = (" ".join(card.split()) for card in page.cards[1:])
    assert f"perplexity {found.perplexity:,.2f} {found.cross_entropy:.4f} nats per token" in first
    assert f"Bits per byte {found.bits_per_byte:.3f} " in second and "xz -9, given train: " in second
    assert f"{Run(gpt).recipe.model.vocab_size:,} entries, context of 32" in data
    info = json.loads((Run(gpt).data / "dataset.json").read_text())
    train = info["splits"]["train"]
    assert f" {info['corpus']['name']}: {train['documents']:,} documents, {quantity(train['bytes'], 'B')} " in data


def test_the_page_opens_with_the_validation_split_that_the_run_has_not_with_the_text_evaluated_last(tmp_path, gpt):
    own = evaluate(gpt).validation
    (tmp_path / "other").mkdir()
    for number in range(30):
        (tmp_path / "other" / f"{number}.txt").write_text(f"Something else entirely, {number} times over.\n" * 20)
    tok = {"tokenizer": gpt, "context_length": 32, "split": "hash:0.3"}
    build_dataset(tmp_path / "other", out=tmp_path / "second" / "data", **tok)
    evaluate(gpt, data=tmp_path / "second" / "data")
    evaluate(gpt, corpus=(str(tmp_path / "other"),), checkpoint=checkpoint_folders(gpt)[0].name[5:])
    page = plain([gpt], tmp_path / "page.html")
    assert page.cards[1].split()[:3] == ["Validation", "perplexity", f"{own.perplexity:,.2f}"]
    assert f"needs {own.bits_per_byte:.3f} bits per byte on the validation split:" in page.sections[""]
    assert page.rows("results")[0]["text"] == ["validation", "other", "validation of second/data"]
    assert "Bits per byte: validation split of second/data" in page.sections["plots"]
    assert "Bits per byte: other " in page.sections["plots"].replace("\n", " ")
    assert "gpt: the curve ends" in page.sections["training"]

    again = str(evaluate(gpt)).splitlines()
    assert again[:3] == ["evaluation of gpt", f"  {own!r}", "also in evaluation.json"]
    assert again[3].startswith("  other: perplexity ") and again[3].endswith(f" ({tmp_path / 'other'})")
    assert again[4].startswith("  validation: perplexity ") and again[4].endswith(f"({tmp_path / 'second' / 'data'})")


def test_no_row_is_in_two_tables(whole_page):
    for shown, more in zip(whole_page.rows("results"), whole_page.rows("numbers"), strict=True):
        assert more and not shown.keys() & (more.keys() - {"Next token", "Masked tokens"})


def test_the_lists_of_tokens_are_those_of_inspect_vocabulary(whole_page, trained_gpt):
    found = inspect_vocabulary(trained_gpt, data=Run(trained_gpt).data)
    shown = whole_page.rows("tokenizer")[2]
    assert shown.pop("Tokens") == ["Number", "Examples"] and len(found["unused"]) > 10
    names = {"unmerged": "that merges never make", "split": "that the split pattern cuts", "unused": "never used"}
    for key, name in {**names, "rare": "used fewer than 10 times"}.items():
        number, examples = shown[name]
        assert number == f"{len(found[key]):,}" and len(examples.split()) == min(5, len(found[key]))
    assert f"counted in the {found['tokens']:,} training tokens" in whole_page.sections["tokenizer"]


def test_text_runs_in_its_own_direction(whole_page):
    assert whole_page.html.count('<pre dir="auto">') >= 4 and '<pre class="passage" dir="auto">' in whole_page.html


def test_an_excerpt_does_not_begin_within_a_character(tmp_path, small_recipe):
    (tmp_path / "text").mkdir()
    for number in range(30):
        (tmp_path / "text" / f"{number}.txt").write_text(
            "今日の朝、私たちは家を出て、川のそばの古い水車小屋まで歩いた。" * 9
        )
    train_tokenizer(tmp_path / "text", vocab_size=270, split="tail:0.2", out=tmp_path / "tok")
    build_dataset(
        tmp_path / "text", split="tail:0.2", tokenizer=tmp_path / "tok", context_length=32, out=tmp_path / "data"
    )
    recipe = replace(small_recipe, train=replace(small_recipe.train, tokens=1024))
    pretrain(recipe, data=tmp_path / "data", out=tmp_path / "run")
    excerpts = Excerpts(Run(tmp_path / "run"))
    for seed in range(40):
        first = excerpts.tokenizer.decode_bytes(excerpts.text(20, seed).tolist())[:1]
        assert first and not 0x80 <= first[0] < 0xC0


def test_every_link_leads_somewhere_and_ids_are_unique(whole_page):
    assert all(link[1:] in whole_page.ids for link in whole_page.links)
    assert len(whole_page.ids) == len(set(whole_page.ids))


def test_every_drawing_has_a_role_a_title_and_real_text(whole_page):
    assert len(whole_page.svgs) == 13
    for svg in whole_page.svgs:
        assert svg["role"] == "img" and svg["aria-labelledby"] in whole_page.ids
    assert "training tokens" in whole_page.sections["plots"]
    assert not re.search(r'<use[^>]*href="#[^"]*DejaVu', whole_page.html)


def test_drawings_follow_light_and_dark_mode(whole_page):
    drawings = "".join(re.findall(r"<svg.*?</svg>", whole_page.html, re.DOTALL))
    assert "var(--ink)" in drawings and "var(--series-1)" in drawings
    assert "#1a202c" not in drawings
    assert "prefers-color-scheme: dark" in whole_page.html


def test_models_of_different_objectives_have_separate_tables(whole_page):
    first, second = whole_page.rows("results")
    assert "bits per byte" in first and "bits per byte" not in second
    assert "pseudo-perplexity" in second and "pseudo-perplexity" not in first


def test_the_numbers_stand_beside_their_settings_and_provenance(tmp_path, gpt):
    measured = evaluate(gpt, stride=8, dtype="bfloat16").to_json()["measured"]["validation"]
    (rows,) = plain([gpt], tmp_path / "page.html").rows("results")
    assert rows["stride, tokens"] == ["8"]
    assert rows["dtype"] == ["bfloat16"]
    assert rows["text"] == ["validation"]
    assert rows["dataset"] == [measured["data"]]
    assert rows["tokenizer"] == [measured["tokenizer_fingerprint"][:16]]
    assert rows["hardware"] == [measured["hardware"]]
    assert rows["bytelm"] == [measured["version"]]
    assert rows["date"][0][:10] == measured["date"][:10]
    assert rows["time"] != ["not recorded"]


def test_facts_that_a_run_lacks_are_shown_as_not_recorded(tmp_path, gpt):
    config = (gpt / "config.toml").read_text()
    (gpt / "config.toml").write_text(
        re.sub(r'^(date|hardware|version|python) = ".*"\n', "", config, flags=re.MULTILINE)
    )
    page = plain([gpt], tmp_path / "page.html")
    assert page.rows("training")[0]["hardware"] == ["not recorded"]


def test_every_evaluated_split_appears_under_its_own_name(tmp_path, gpt):
    evaluate(gpt, splits=("train",))
    page = plain([gpt], tmp_path / "page.html")
    assert "on the train split" in page.sections[""]
    assert "Bits per byte: train split" in page.sections["plots"]
    assert "Bits per byte: validation split" not in page.sections["plots"]
    evaluate(gpt)
    page = plain([gpt], tmp_path / "page.html")
    assert page.rows("results")[0]["text"] == ["validation", "train"]
    assert "Bits per byte: validation split" in page.sections["plots"]
    assert "Bits per byte: train split" in page.sections["plots"]


def test_positions_that_a_stride_scores_once_are_left_out_of_the_loss_by_position(gpt):
    curves = evaluate(gpt, stride=8).validation.curves
    bins = loss_by_position(curves, 32, 8)
    assert min(position for position, _, _ in bins) > 32 - 8
    errors = curves.loss_by_position_error
    assert errors[0] is None  # only the first window scores it
    assert all(error > 0 for _, _, error in bins)


def test_the_loss_by_position_is_binned_with_the_mean_of_each_bin():
    window = 1024
    losses = tuple(math.log(2) * (10 - position / window) for position in range(window))
    bins = loss_by_position(Curves(losses, (0.0,) * window), window, window)
    assert len(bins) <= 24
    assert bins[-1][1] == pytest.approx(10 - (bins[-1][0] - 1) / window)


def test_the_band_is_the_standard_error_of_the_mean(gpt, trained_gpt):
    """Computed from the nats of each target, block by block."""
    import torch

    from pipelines.dataset.reader import TokenDataset

    numbers = evaluate(gpt).to_json()["splits"]["validation"]
    model = load_trained(Run(gpt)).model
    stream = TokenDataset(Run(gpt).data).split("validation")
    count = (stream.tokens - 1) // 32
    ids = torch.from_numpy(stream.read(0, count * 32 + 1).astype(np.int64))
    with torch.no_grad():
        logits = model.logits(model(ids[:-1].view(count, 32)))
    nats = torch.nn.functional.cross_entropy(logits.flatten(0, 1), ids[1:], reduction="none").view(count, 32).double()
    scored = nats[:, 5]
    error = float(scored.std() / math.sqrt(len(scored)))
    assert numbers["curves"]["loss_by_position_error"][5] == pytest.approx(error, rel=0.02)


def test_the_two_validation_losses_are_explained(evaluated):
    gpt, evaluation, page = evaluated
    numbers = evaluation.to_json()["splits"]["validation"]
    last = [line for line in Run(gpt).metrics() if line["split"] == "validation"][-1]
    text = page.sections["training"]
    assert (
        f"the curve ends at {last['loss'] / math.log(2):.3f} bits, a perplexity of {math.exp(last['loss']):,.2f}"
        in text
    )
    assert f"the evaluation has {numbers['cross_entropy_bits']:.3f} bits" in text
    assert "640 tokens of the validation split" in text


def test_two_runs_with_the_same_name_are_labelled_by_their_folders(tmp_path, gpt):
    evaluate(gpt)
    runs = [shutil.copytree(gpt, tmp_path / name / "gpt") for name in ("one", "two")]
    page = plain(runs, tmp_path / "page.html")
    (results,) = page.rows("results")
    assert results["Next token"] == ["one/gpt", "two/gpt"]
    assert "one/gpt, validation" in page.sections["plots"] and "two/gpt, validation" in page.sections["plots"]


def test_an_imported_run_shows_no_training(tmp_path, peers):
    *_, run = peers("gpt2")
    (rows,) = plain([run], tmp_path / "page.html").rows("training")
    assert "tokens seen" not in rows and "tokens per second" not in rows
    assert rows["imported from"] != ["–"]


def test_results_have_intervals_and_name_what_the_bootstrap_drew(evaluated):
    _, evaluation, page = evaluated
    numbers = evaluation.to_json()["splits"]["validation"]
    (results,) = page.rows("results")
    for name, key, digits in (("perplexity", "perplexity", 2), ("bits per byte", "bits_per_byte", 4)):
        low, high = numbers["intervals"][key]
        assert results[name] == [f"{numbers[key]:,.{digits}f} ({low:,.{digits}f} to {high:,.{digits}f})"]
    assert "In brackets: 95 % intervals, by a bootstrap over" in page.sections["results"]
    assert results["best temperature"] == [f"{numbers['temperature']:.3f}"]
    assert "A line at the end of a bar is its 95 % interval." in page.sections["plots"]


def test_the_page_says_which_of_two_runs_is_better(tmp_path, gpt):
    other = shutil.copytree(gpt, tmp_path / "other")
    sentence = evaluate(gpt, against=other).to_json()["splits"]["validation"]["difference"]["sentence"]
    assert sentence in plain([gpt, other], tmp_path / "page.html").sections[""]


def test_the_page_says_what_speaks_against_a_comparison(tmp_path, gpt, text_folder, small_recipe):
    """The other run's tokenizer loses text, which makes its task easier."""
    words = {"kind": "wordpiece", "pattern": "bert-uncased", "vocab_size": 512, "out": tmp_path / "words"}
    train_tokenizer([str(text_folder)], **words)
    build_dataset([str(text_folder)], tokenizer=tmp_path / "words", context_length=32, out=tmp_path / "data")
    recipe = replace(small_recipe, train=replace(small_recipe.train, tokens=256, warmup_tokens=0))
    pretrain(recipe, data=tmp_path / "data", out=tmp_path / "lossy")
    found = evaluate(gpt, against=tmp_path / "lossy").to_json()["splits"]["validation"]["difference"]
    assert any("The tokenizer of lossy loses text" in each for each in found["reservations"])
    sections = plain([gpt, tmp_path / "lossy"], tmp_path / "page.html").sections
    results = sections[""] + sections["results"]
    assert all(each in results for each in (found["sentence"], *found["reservations"], found["divergence"]))


@pytest.mark.parametrize(
    ("bits", "words"),
    [
        (2.0, "beats a unigram model (3.000), matches a bigram model (2.000), and loses to xz -9 (1.900)"),
        (2.0004, "beats a unigram model (3.000), matches a bigram model (2.000), and loses to xz -9 (1.900)"),
        (1.95, "beats a bigram model (2.000) and a unigram model (3.000), and loses to xz -9 (1.900)"),
    ],
)
def test_a_verdict_on_equal_printed_numbers_is_a_match(gpt, bits, words):
    evaluate(gpt)
    path = gpt / "evaluation.json"
    content = json.loads(path.read_text())
    numbers = content["splits"]["validation"]
    numbers |= {"bits_per_byte": bits, "tokens": 100, "bytes": 100, "compressors": {"xz -9": {"alone": 1.9}}}
    numbers |= {"unigram_cross_entropy_bits": 3.0, "bigram_cross_entropy_bits": 2.0}
    numbers["compressors"]["xz -9"]["given_train"] = 1.9
    path.write_text(json.dumps(content))
    said = verdict(subject_of(Run(gpt), samples=False, inside=False))
    assert f"it {words}" in said.replace(" and xz -9 given the training text (1.900)", "")


def test_breakdowns_are_folded_tables_with_a_bar_for_each_share(whole_page):
    tables = whole_page.rows("breakdown")
    assert len(tables) == 2 * 5
    assert tables[0]["Group"] == ["tokens", "bytes", "bits/token", "bits/byte", "share"]
    assert tables[5]["Group"] == ["tokens", "bytes", "bits/token", "share"]  # a masked model has no bits per byte
    for rows in tables:
        assert sum(float(cells[-1].rstrip("%")) for name, cells in rows.items() if name != "Group") == pytest.approx(
            100, abs=0.05 * len(rows)
        )
    assert f'style="--share: {tables[0]["word start"][-1]}"' in whole_page.html
    folded = whole_page.html.partition('id="breakdown"')[2].partition('<details class="fold"')[0]
    assert folded.count("<details open>") == 2 and folded.count("<details>") == 8


def test_memorised_text_has_a_table(tmp_path, gpt):
    found = evaluate(gpt, memorisation=True).to_json()["splits"]["validation"]["memorisation"]
    page = plain([gpt], tmp_path / "page.html")
    (rows,) = page.rows("memorisation")
    assert list(rows)[1:] == [f"{row['length']} bytes" for row in found["curve"]]
    assert rows["25 bytes"][:2] == [f"{found['curve'][0]['begin']:.2%}", f"{found['curve'][0]['inside']:.2%}"]
    assert f"Matches of all {found['bytes']:,} bytes" in page.sections["memorisation"]


def test_the_entropy_of_the_own_texts_has_a_table_for_models_that_have_one(tmp_path, gpt, trained_bert):
    found = evaluate(gpt, entropy_calibration=2).to_json()["splits"]["validation"]["entropy_calibration"]
    bert = shutil.copytree(trained_bert, tmp_path / "bert")
    evaluate(bert, entropy_calibration=2)
    page = plain([gpt, bert], tmp_path / "page.html")
    (rows,) = page.rows("entropy-calibration")
    assert len(rows) == 1 + len(found["positions"])
    assert rows["1 to 32"][:2] == [f"{found['positions'][-1][key][0]:.3f}" for key in ("generated", "validation")]


def test_a_run_evaluated_by_an_earlier_version_has_no_intervals_and_breakdowns(tmp_path, gpt):
    contents = evaluate(gpt).to_json()
    for key in ("intervals", "breakdown", "temperature", "temperature_gain_bits", "temperature_tokens"):
        del contents["splits"]["validation"][key]
    (gpt / "evaluation.json").write_text(json.dumps(contents))
    page = plain([gpt], tmp_path / "page.html")
    assert not {"breakdown", "memorisation", "entropy-calibration"} & page.sections.keys()
    assert "In brackets" not in page.sections["results"]
    assert "95 % interval" not in page.sections["plots"]


def ticks(html, axis):
    """Return the tick labels of an axis of the loss curves; 2: perplexity, 3: tokens, 4: bits."""
    drawing = html.partition('id="plot-loss"')[2].partition("</svg>")[0]
    texts = drawing.partition(f'id="loss-matplotlib.axis_{axis}"')[2].partition('id="loss-patch')[0]
    texts = texts.partition('id="loss-matplotlib.axis')[0]
    return [float(text) for text in re.findall(r"<text[^>]*>([\d.]+)</text>", texts)]


def test_losses_have_an_axis_of_perplexities(evaluated):
    html = evaluated[2].html
    bits, perplexities = ticks(html, 4), ticks(html, 2)
    assert len(bits) > 2
    assert perplexities == pytest.approx([2.0**each for each in bits], rel=0.01)


def test_a_squared_error_does_not_change_the_unit_of_other_losses(gpt):
    """A run of numbers whose squared errors are the bits of another run has the same curves."""
    language = subject_of(Run(gpt), samples=False, inside=False)
    numbers = copy.copy(language.run)
    numbers.recipe = replace(language.run.recipe, task=Regression(columns=("text", "score")))
    in_bits = [line | {"loss": line["loss"] / math.log(2)} for line in language.metrics]
    both = [language, replace(language, run=numbers, metrics=in_bits)]
    loss = next(plot for plot in plots(both) if plot.name == "loss").svg
    curves = re.findall(r'<path d="([^"]*)" clip-path="[^"]*" style="fill: none; [^"]*var\(--series', loss)
    assert len(curves) == 4 and len(set(curves)) == 2
    assert ">loss<" in loss


def test_a_run_with_label_smoothing_is_named_below_the_loss_curves(tmp_path, small_recipe, dataset_folder, gpt):
    train = replace(small_recipe.train, tokens=256, warmup_tokens=256, label_smoothing=0.1)
    pretrain(replace(small_recipe, train=train), data=dataset_folder, out=tmp_path / "smooth")
    text = plain([gpt, tmp_path / "smooth"], tmp_path / "page.html").sections[""]
    assert "The training loss of smooth includes label smoothing or z-loss" in text


def test_rows_without_a_value_are_left_out(whole_page):
    for rows in (*whole_page.rows("results"), *whole_page.rows("training"), *whole_page.rows("numbers")):
        assert not any(cells and set(cells) == {"–"} for cells in rows.values())


def test_control_characters_of_a_text_are_shown_escaped(tmp_path, small_recipe):
    (tmp_path / "text.txt").write_text("".join(f"\x1b[31mred {n}\x00 \u202ebackwards\x9b\n" for n in range(1500)))
    corpus = [str(tmp_path / "text.txt")]
    Tokenizer.train([tmp_path / "text.txt"], vocab_size=300).save(tmp_path / "tok")
    build_dataset(corpus, tokenizer=tmp_path / "tok", context_length=32, out=tmp_path / "data")
    recipe = replace(small_recipe, train=replace(small_recipe.train, tokens=2560))
    pretrain(recipe, data=tmp_path / "data", out=tmp_path / "run")
    html = report([tmp_path / "run"]).read_text(encoding="utf-8")
    assert not re.search("[\x00-\x08\x0b-\x1f\x7f-\x9f\u202e]", html)
    assert "␛[31m" in html and "␀" in html


def test_a_passage_shows_the_bits_of_each_token(gpt):
    run = Run(gpt)
    model = load_trained(run).model
    passage = passage_of(run, model)
    numbers = evaluate(gpt).to_json()["splits"]["validation"]
    assert sum(piece.tokens for piece in passage.pieces) == 32
    text = run.tokenizer().decode(_first_tokens(run, 33)[1:])
    assert "".join(piece.text for piece in passage.pieces) == text
    assert passage.mean_bits == pytest.approx(numbers["cross_entropy_bits"], rel=0.5)


@pytest.mark.parametrize(
    ("bits", "found"), [([3, None], (3, 1)), ([None, 3], (3, 1)), ([3, 5], (8, 2)), ([None] * 2, (None, 0))]
)
def test_a_character_has_the_bits_of_its_scored_tokens(bits, found):
    tok = Tokenizer.train(["x"], vocab_size=261)
    assert _pieces(tok, tok.encode("ü"), bits) == [("ü", *found)]


def test_a_passage_ends_with_a_whole_character(tmp_path, small_recipe):
    (tmp_path / "text.txt").write_text("日本語\n" * 1500)  # three bytes a character, and a token for each byte
    Tokenizer.train(["x"], vocab_size=261).save(tmp_path / "tok")
    build_dataset([str(tmp_path / "text.txt")], tokenizer=tmp_path / "tok", context_length=32, out=tmp_path / "data")
    recipe = replace(small_recipe, train=replace(small_recipe.train, tokens=256, warmup_tokens=256))
    pretrain(recipe, data=tmp_path / "data", out=tmp_path / "run")
    run = Run(tmp_path / "run")
    passage = passage_of(run, load_trained(run).model)
    assert "".join(piece.text for piece in passage.pieces) == "日本語\n" * 3  # 30 of the 32 bytes


def test_no_page_about_hebrew_shows_a_part_of_a_character(tmp_path, small_recipe):
    """Tokens of this vocabulary begin and end inside characters."""
    words, generator = [], np.random.default_rng(0)
    for size in generator.integers(2, 8, 400):
        words.append("".join(chr(0x5D0 + letter) for letter in generator.integers(0, 27, size)))
    documents = [" ".join(generator.choice(words, 80).tolist()) for _ in range(60)]
    (tmp_path / "text.jsonl").write_text("".join(json.dumps({"text": text}) + "\n" for text in documents))
    corpus = {"corpus": [str(tmp_path / "text.jsonl")], "split": "hash:0.3"}
    Tokenizer.train(documents, vocab_size=320).save(tmp_path / "tok")
    build_dataset(**corpus, tokenizer=tmp_path / "tok", context_length=32, out=tmp_path / "data")
    recipe = replace(small_recipe, train=replace(small_recipe.train, tokens=512, warmup_tokens=256))
    run = pretrain(recipe, data=tmp_path / "data", out=tmp_path / "run")
    evaluation = evaluate(run)
    passage = passage_of(run.run, run.model)
    shown = "".join(piece.text for piece in passage.pieces)
    assert any(text.startswith(shown) for text in documents) and max(piece.tokens for piece in passage.pieces) > 4
    labels = [group.text for group in evaluation.validation.breakdown.groupings["document"] if group.text]
    assert labels and all(any(text.startswith(label) for text in documents) for label in labels)
    page = Page(report([run], out=tmp_path / "page.html"))
    assert 'tokens">' in page.html  # a piece of several tokens says so
    assert "\ufffd" not in re.sub("<b>.*?</b>", "", page.html, flags=re.DOTALL)  # the model may write anything


def _first_tokens(run, count):
    from pipelines.dataset.reader import TokenDataset

    return TokenDataset(run.data).split("validation").read(0, count).tolist()


def test_the_bits_of_a_token_are_readable_without_colour(whole_page):
    assert re.search(r'<span class="b\d" title="\d+\.\d\d bits">', whole_page.html)
    assert "border-bottom: 2px dashed" in whole_page.html


def test_a_decoder_shows_several_samples_with_their_settings(whole_page):
    text = whole_page.sections["samples"]
    assert "greedy" in text and "temperature 1.0" in text


def test_encoder_decoders_have_a_page_with_passage_and_samples(tmp_path, trained_t5, trained_translator):
    runs = [shutil.copytree(run, tmp_path / name) for run, name in ((trained_t5, "t5"), (trained_translator, "pairs"))]
    evaluate(runs[1])
    page = Page(report(runs, out=tmp_path / "page.html"))
    assert "Source: the number" in page.sections["passage"]
    assert "<|sentinel_0|>" in page.sections["passage"]
    assert "beam search, 4 beams" in page.sections["samples"]
    assert "die Zahl" in page.sections["translations"]
    assert "bits per target" in page.sections[""]


def test_the_tokenizer_is_described_once_for_runs_that_share_it(whole_page):
    text = whole_page.sections["tokenizer"]
    assert text.count("bytes per token, validation") == 1
    assert "gpt, bert" in text and "Longest tokens" in text


def test_numbers_are_defined_on_the_page(whole_page):
    assert "Total bits of the scored tokens, divided by their bytes." in whole_page.sections["definitions"]


def test_wide_drawings_and_tables_scroll_in_their_own_container(whole_page):
    assert whole_page.html.count('<div class="scroll" tabindex="0" role="region"') >= 7 + len(whole_page.tables)


def test_the_loss_axis_leaves_out_the_start_of_the_training(tmp_path, gpt):
    lines = [
        {"step": n, "tokens": 256 * n, "split": split, "loss": 10.0 if n < 2 else 3.0 + 1 / n, "time_s": float(n)}
        for n in range(101)
        for split in ("train", "validation")
    ]
    (gpt / "metrics.jsonl").write_text("".join(json.dumps(line) + "\n" for line in lines))
    html = plain([gpt], tmp_path / "page.html").html
    bits = ticks(html, 4)
    assert bits and max(bits) < 6


def test_all_evaluations_of_a_run_are_on_the_page(tmp_path, gpt):
    evaluate(gpt)
    evaluate(gpt, stride=8)
    page = plain([gpt], tmp_path / "page.html")
    assert len(Evaluation.read(gpt).all) == 2
    assert page.rows("results")[0]["Next token"] == ["gpt, stride 8", "gpt, stride 32"]
