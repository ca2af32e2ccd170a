"""Generated text, filled masks, and the report."""

import json
import re
import shutil
from html.parser import HTMLParser

import pytest

from pipelines.reporting.samples import Sample
from pipelines.verbs.evaluate import evaluate
from pipelines.verbs.generate import generate
from pipelines.verbs.report import report

PLAIN = {"samples": False, "inside": False}


def test_the_same_seed_writes_the_same_text(trained_gpt, printed):
    texts = [generate(trained_gpt, prompt="import ", tokens=20, seed=seed) for seed in (3, 3, 4)]
    assert texts[0] == texts[1] != texts[2]
    assert printed.readouterr().out.startswith("import " + texts[0])


def test_greedy_needs_no_seed(trained_gpt, printed):
    assert generate(trained_gpt, prompt="def ", greedy=True, tokens=12, seed=1) == generate(
        trained_gpt, prompt="def ", greedy=True, tokens=12, seed=2
    )


def test_generation_continues_past_the_context(trained_gpt, printed):
    generate(trained_gpt, prompt="import os\n" * 20, tokens=80, as_json=True)
    assert json.loads(printed.readouterr().out)["text"]


def test_an_encoder_fills_each_mask(trained_bert, printed):
    guesses = generate(trained_bert, prompt="import <|mask|> and <|mask|>", as_json=True)
    assert len(guesses) == 2
    for guess in guesses:
        assert guess["probabilities"] == sorted(guess["probabilities"], reverse=True)
        assert len(guess["tokens"]) == len(guess["probabilities"])
    assert json.loads(printed.readouterr().out) == guesses


def test_an_encoder_without_a_mask_says_what_to_do(trained_bert):
    with pytest.raises(ValueError, match=r"has no <\|mask\|>"):
        generate(trained_bert, prompt="nothing hidden")


@pytest.mark.parametrize(
    "options",
    [{"temperature": 0.0}, {"temperature": 1e-300}, {"top_k": 0}, {"top_p": 0.0}, {"top_p": 1.5}, {"tokens": 0}],
)
def test_conflicting_options_are_refused_by_name(trained_gpt, options):
    with pytest.raises(ValueError, match=f"`{next(iter(options))}`"):
        generate(trained_gpt, prompt="x", **options)


class Page(HTMLParser):
    """Collects the addresses that a browser would fetch, and the nesting of tags."""

    VOID = ("meta", "br", "hr", "link", "img", "input")

    def __init__(self):
        super().__init__()
        self.fetched, self.open, self.text = [], [], []

    def handle_starttag(self, tag, attributes):
        for name, value in attributes:
            if name in ("src", "href", "xlink:href") and value and not value.startswith(("#", "data:image/png")):
                self.fetched.append(value)
        if tag not in self.VOID:
            self.open.append(tag)

    def handle_endtag(self, tag):
        assert self.open.pop() == tag

    def handle_data(self, data):
        self.text.append(data)


def test_the_report_is_one_file_that_needs_nothing_else(trained_gpt, trained_bert, tmp_path):
    fresh = shutil.ignore_patterns("evaluation.json")  # other tests evaluate the runs on other texts
    trained_gpt, trained_bert = (
        shutil.copytree(run, tmp_path / run.name, ignore=fresh) for run in (trained_gpt, trained_bert)
    )
    evaluate(trained_gpt)
    evaluate(trained_bert)
    path = report([trained_gpt, trained_bert], out=tmp_path / "report.html")
    text = path.read_text(encoding="utf-8")
    page = Page()
    page.feed(text)
    assert page.fetched == []
    assert page.open == []
    assert not re.search(r"url\((?!#)", text)
    shown = " ".join(page.text)
    for words in ("Loss by position", "Reliability", "Learning rate", "Bits per byte", "masked-token", "perplexity"):
        assert words in shown
    assert text.count("<svg") == 6 + 4 + 3  # only the decoder also has circuits


def test_the_report_shows_the_numbers_of_evaluation_json(trained_gpt, tmp_path):
    numbers = evaluate(trained_gpt).to_json()["splits"]["validation"]
    text = report([trained_gpt], out=tmp_path / "report.html", **PLAIN).read_text(encoding="utf-8")
    assert f"{numbers['perplexity']:,.2f}" in text
    assert f"{numbers['bits_per_byte']:,.3f}" in text
    assert "[train]" in text


def test_text_from_the_corpus_cannot_break_the_page(trained_gpt, tmp_path, monkeypatch):
    monkeypatch.setattr(
        "pipelines.reporting.subject.samples_of",
        lambda run, model: [Sample("t", "", "<script>alert(1)</script>", "</pre>&amp;")],
    )
    text = report([trained_gpt], out=tmp_path / "report.html", inside=False).read_text(encoding="utf-8")
    assert "<script>" not in text
    assert "&lt;/pre&gt;&amp;amp;" in text


def test_a_dataset_built_again_with_another_tokenizer_is_not_sampled(tmp_path, trained_gpt, text_folder):
    import shutil

    from pipelines.verbs.build_dataset import build_dataset
    from tokenizer import Tokenizer

    Tokenizer.train([str(text_folder / "abc.txt")], vocab_size=700).save(tmp_path / "tok")
    build_dataset([str(text_folder)], tokenizer=tmp_path / "tok", context_length=32, out=tmp_path / "data")
    run = shutil.copytree(trained_gpt, tmp_path / "run")
    config = (run / "config.toml").read_text()
    from pipelines.run.folder import Run

    (run / "config.toml").write_text(config.replace(str(Run(run).data), str(tmp_path / "data")))
    text = report([run], out=tmp_path / "report.html", inside=False).read_text(encoding="utf-8")
    assert "without a prompt" in text
    assert "validation text, continued" not in text


def test_runs_of_one_name_have_a_bar_each(tmp_path, trained_gpt):
    import shutil

    evaluate(trained_gpt)
    runs = [shutil.copytree(trained_gpt, tmp_path / name / "gpt") for name in ("one", "two")]
    single = report(runs[:1], **PLAIN).read_text(encoding="utf-8")
    both = report(runs, out=tmp_path / "both.html", **PLAIN).read_text(encoding="utf-8")
    bars = [text.partition("Bits per byte")[2].partition("</svg>")[0].count("clip-path") for text in (single, both)]
    assert bars[1] > bars[0]


def test_a_run_of_any_name_is_drawn(tmp_path, trained_gpt):
    """matplotlib omits labels that begin with "_", and reads text between two "$" as a formula."""
    import shutil

    evaluate(trained_gpt)
    names = ("plain", "_small", r"lr$\alpha$_$\q$", "a$b")
    runs = [shutil.copytree(trained_gpt, tmp_path / name) for name in names]
    pages = [report([run], **PLAIN).read_text(encoding="utf-8") for run in runs]
    assert {page.count("<svg") for page in pages} == {pages[0].count("<svg")}
    assert pages[0].count("<svg") > 3


def test_a_run_without_evaluation_gets_a_report_of_its_training(tmp_path, small_recipe, dataset_folder):
    from dataclasses import replace

    from pipelines.verbs.pretrain import pretrain

    recipe = replace(small_recipe, train=replace(small_recipe.train, tokens=2560))
    pretrain(recipe, data=dataset_folder, out=tmp_path / "young")
    text = report([tmp_path / "young"], **PLAIN).read_text(encoding="utf-8")
    assert "Not evaluated yet" in text
    assert text.count("<svg") == 3


def test_a_report_of_a_folder_shows_the_runs_in_it(tmp_path, trained_gpt):
    for name in ("first", "second"):
        shutil.copytree(trained_gpt, tmp_path / "runs" / name)
    path = report(tmp_path / "runs", **PLAIN)
    assert path == tmp_path / "runs" / "report.html"
    assert all(name in path.read_text() for name in ("first", "second"))
