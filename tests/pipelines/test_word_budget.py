"""`train.words` trains on a number of words and keeps checkpoints by words; exports of them score every token."""

import re

import numpy as np
import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st
from transformers import AutoModelForCausalLM, AutoTokenizer

from pipelines.dataset.reader import TokenDataset, TokenStream
from pipelines.run.folder import Run
from pipelines.run.retention import checkpoint_folders, checkpoints_of_words, readable_state
from pipelines.training.word_budget import count_words
from pipelines.verbs.export_hf import export_hf
from pipelines.verbs.import_hf import import_hf
from pipelines.verbs.pretrain import pretrain
from pipelines.verbs.score import score
from tests.pipelines.training_cases import with_train
from tokenizer import END_OF_TEXT, Tokenizer

WORDS, KEPT = 3_000, (500, 1_000, 3_000)
TEXTS = st.text(st.sampled_from("ab \t\n\r\v\f\u00a0\u3000é文"), max_size=20)


@pytest.fixture(scope="module")
def tokenizer(tokenizer_folder):
    return Tokenizer.load(tokenizer_folder)


@pytest.fixture(scope="module")
def run(tmp_path_factory, small_recipe, dataset_folder):
    """Return a run of WORDS words that keeps checkpoints at KEPT words."""
    out = tmp_path_factory.mktemp("words") / "gpt"
    recipe = with_train(small_recipe, words=WORDS, keep_words=KEPT, keep_checkpoints=1, warmup_tokens=256)
    pretrain(recipe, data=dataset_folder, out=out)
    return Run(out)


@pytest.fixture(scope="module")
def exported(tmp_path_factory, run):
    return export_hf(run.folder, by_words=True, start_token=True, out=tmp_path_factory.mktemp("exports") / "hf")


@given(documents=st.lists(TEXTS, min_size=1, max_size=5), cuts=st.lists(st.integers(0, 60), max_size=3))
def test_words_of_a_stream_are_those_between_white_space_in_each_document(tokenizer, documents, cuts):
    separator = tokenizer.special_tokens[END_OF_TEXT]
    ids = [token for text in documents for token in (separator, *tokenizer.encode(text))]
    views = np.split(np.array(ids, np.uint16), sorted(cut for cut in cuts if cut < len(ids)))
    expected = sum(len(text.encode().split()) for text in documents)
    assert count_words(TokenStream(views, 8), tokenizer, separator) == expected


def test_a_run_of_words_reads_the_tokens_that_hold_them(run, dataset_folder, tokenizer):
    stream = TokenDataset(dataset_folder).split("train")
    per_word = stream.tokens / count_words(stream, tokenizer, tokenizer.special_tokens[END_OF_TEXT])
    train = run.recipe.train
    assert train.tokens == round(WORDS * per_word)
    assert 0 <= run.metrics()[-1]["tokens"] - train.tokens < train.batch_tokens


def test_the_first_checkpoint_past_each_number_of_words_is_kept(run):
    train, folders = run.recipe.train, checkpoint_folders(run.folder)
    kept = checkpoints_of_words(folders, train)
    assert list(kept) == list(KEPT) and list(kept.values()) == folders
    for words, folder in kept.items():
        reached = words * train.tokens / WORDS
        assert reached <= readable_state(folder)["tokens"] < reached + train.batch_tokens


def test_more_words_extend_a_run_and_fewer_are_refused(tmp_path, small_recipe, dataset_folder):
    def train(words):
        return with_train(small_recipe, words=words, warmup_tokens=256)

    pretrain(train(200), data=dataset_folder, out=tmp_path / "gpt")
    with pytest.raises(ValueError, match=r"its train.words is 200, not 100"):
        pretrain(train(100), data=dataset_folder, out=tmp_path / "gpt")
    pretrain(train(1_500), data=dataset_folder, out=tmp_path / "gpt")
    found = Run(tmp_path / "gpt")
    assert found.recipe.train.words == 1_500 and found.metrics()[-1]["tokens"] >= found.recipe.train.tokens


def test_wrong_numbers_of_words_are_refused(tmp_path, small_recipe, dataset_folder, run, trained_gpt):
    with pytest.raises(ValueError, match=r"train.keep_words is 5 20, but must be above 0 and at most train.words, 10"):
        with_train(small_recipe, words=10, keep_words=(5, 20))
    with pytest.raises(ValueError, match=r"train.words and train.minutes both end the run"):
        with_train(small_recipe, words=10, minutes=1.0)
    with pytest.raises(ValueError, match=r"keeps no checkpoints by words: train with `train.words`"):
        export_hf(trained_gpt, by_words=True, out=tmp_path / "hf")
    with pytest.raises(ValueError, match=r"`checkpoint` names one checkpoint and `by_words` several"):
        export_hf(run.folder, by_words=True, checkpoint="newest", out=tmp_path / "hf")


def test_each_export_is_named_by_its_words_and_has_its_weights(run, exported):
    assert sorted(folder.name for folder in exported.iterdir()) == ["chck_1k", "chck_3k", "chck_500"]
    weights = [AutoModelForCausalLM.from_pretrained(exported / f"chck_{words}") for words in ("500", "1k", "3k")]
    rows = [model.get_output_embeddings().weight for model in weights]
    assert not torch.equal(rows[0], rows[1]) and not torch.equal(rows[1], rows[2])
    tokens = readable_state(checkpoint_folders(run.folder)[0])["tokens"]
    assert f"The model saw {tokens:,} tokens." in (exported / "chck_500" / "README.md").read_text()


def test_an_export_with_a_start_token_scores_every_token_as_we_do(run, exported, tmp_path):
    """BabyLM's pipeline sums the log-probabilities of all tokens that end after the start of the text."""
    tokenizer = AutoTokenizer.from_pretrained(exported / "chck_3k")
    model = AutoModelForCausalLM.from_pretrained(exported / "chck_3k")
    assert tokenizer.is_fast and tokenizer.pad_token and tokenizer.bos_token == END_OF_TEXT
    again = import_hf(exported / "chck_3k", out=tmp_path / "again")
    for text in ("Who has it seen?", " a  b", "文é"):
        read = tokenizer(text, return_offsets_mapping=True, return_tensors="pt")
        ids = read["input_ids"][0]
        with torch.no_grad():
            log_p = model(ids[None]).logits[0].log_softmax(-1)
        scored = [place for place, (_, end) in enumerate(read["offset_mapping"][0].tolist()) if end > 0]
        assert scored == list(range(1, len(ids)))  # the start token alone is not
        nats = sum(float(log_p[place - 1, ids[place]]) for place in scored)
        assert score(run.folder, text).log_probability == pytest.approx(nats, abs=1e-3)
        assert score(again, text).log_probability == pytest.approx(nats, abs=1e-3)


def test_a_start_token_is_refused_where_training_had_none(trained_bert, tmp_path):
    with pytest.raises(ValueError, match=r"`start_token` is for a decoder"):
        export_hf(trained_bert, start_token=True, out=tmp_path / "hf")


def test_the_command_line_takes_numbers_with_units(in_process, dataset_folder, tmp_path):
    words = ["--train.words", "1k", "--train.keep-words", "500", "1k", "--train.device", "cpu"]
    shape = ["--model.context-length", "32", "--model.width", "32", "--model.layers", "1"]
    done = in_process("pretrain", "gpt-tiny", "--data", str(dataset_folder), "--out", "gpt", *words, *shape)
    assert done.returncode == 0, done.stderr
    assert re.search(r"1 k words are [\d.]+ ktok, [\d.]+ tokens a word", done.stderr + done.stdout)
    train = Run(tmp_path / "gpt").recipe.train
    assert (train.words, train.keep_words) == (1_000, (500, 1_000))
