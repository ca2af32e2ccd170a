"""Tags of words: files, windows, scores as those of conlleval, and runs that predict them."""

import json
import re
import subprocess
import sys
import warnings
from itertools import pairwise
from pathlib import Path

import numpy as np
import pyarrow as pa
import pyarrow.parquet
import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st
from scipy.special import softmax
from seqeval import metrics as seqeval
from seqeval.metrics.sequence_labeling import get_entities
from sklearn.metrics import accuracy_score, f1_score, precision_recall_fscore_support
from transformers import BertConfig, BertForTokenClassification

from corpora.rows import Row
from corpora.squad_files import is_squad_file
from corpora.tagged_files import is_tagged_file, read_tagged, with_tags
from corpora.tagged_text import words_of
from lm.metrics.entities import entities, entity_scores, iob2, marks_entities
from pipelines.run.folder import Run
from pipelines.run.loaded_run import load_model
from pipelines.tasks.data import reader_of
from pipelines.tasks.examples import ABSENT
from pipelines.tasks.tokens import Tokens
from pipelines.verbs.evaluate import evaluate
from pipelines.verbs.finetune import finetune
from pipelines.verbs.predict import predict
from tests.lm.task_peers import BERT, twin
from tests.tasks.files import write

CONLL = """-DOCSTART- -X- -X- O

EU NNP B-NP B-ORG
rejects VBZ B-VP O
German JJ B-NP B-MISC
calls NNS I-NP I-MISC
. . O O

Peter NNP B-NP B-PER
Blackburn NNP I-NP I-PER
"""
UNIVERSAL = """# sent_id = 1
1-2\tdon't\t_\t_\t_\t_\t_\t_\t_\t_
1\tdo\tdo\tAUX\tVB\t_\t0\troot\t_\t_
2\tn't\tnot\tPART\tRB\t_\t1\tadvmod\t_\t_
2.1\t_\t_\t_\t_\t_\t_\t_\t_\t_
3\tgo\tgo\tVERB\tVB\t_\t1\txcomp\t_\tSpaceAfter=No

1\tYes\tyes\tINTJ\tUH\t_\t0\troot\t_\t_
"""
TAGS = ["O", "B-A", "I-A", "B-B", "I-B"]
QUICK = {"epochs": 6, "lr": 3e-3, "batch_size": 8, "device": "cpu", "dtype": "float32", "dropout": 0.0}


def read(path, **options):
    """Return the (words, tags) of a file."""
    task = Tokens(**options)
    rows = list(task.read(path))
    task = task.choose_columns(rows[0].fields)
    return [([word.strip() for word in one.inputs], list(one.target)) for one in task.examples([path])]


# Scores


@given(st.lists(st.lists(st.tuples(*[st.sampled_from([*TAGS, "E-A", "S-B", "I-C"])] * 2), max_size=12), min_size=1))
def test_scores_of_entities_are_those_of_seqeval(sentences):
    gold, said = ([[pair[side] for pair in sentence] for sentence in sentences] for side in (0, 1))
    scores, by_type = entity_scores(gold, said)
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        theirs = [f(gold, said) for f in (seqeval.precision_score, seqeval.recall_score, seqeval.f1_score)]
        report = seqeval.classification_report(gold, said, output_dict=True) if scores.gold else {}
    assert [scores.precision, scores.recall, scores.f1] == pytest.approx(theirs)
    for name, one in by_type.items():
        if one.gold:
            assert [one.precision, one.recall, one.f1, one.gold] == pytest.approx(list(report[name].values()))


@given(st.lists(st.sampled_from([*TAGS, "E-A", "E-B", "S-A", "S-B", "B", "I"]), max_size=20))
def test_iob2_has_the_same_entities_and_changes_nothing_twice(tags):
    converted = iob2(tags)
    found = [(kind, start, end - 1) for kind, start, end in entities(tags)]
    assert found == get_entities(tags) == get_entities(converted)
    assert iob2(converted) == converted
    assert all(before[1:] == tag[1:] for before, tag in pairwise(["O", *converted]) if tag[0] == "I")


def test_only_tags_with_a_position_mark_entities():
    assert marks_entities(["O", "B-PER", "I-PER"]) and marks_entities(["B", "I", "O"])
    assert not marks_entities(["O"]) and not marks_entities(["NOUN", "O"]) and not marks_entities(["B-PER", "DET"])


# The model


@pytest.mark.parametrize("padded", [False, True])
def test_logits_and_loss_are_those_of_bert_for_token_classification(padded):
    peer = BertForTokenClassification(BertConfig(**BERT.to_dict() | {"num_labels": 3}))
    theirs, ours = twin(peer, Tokens(labels=("O", "B", "I")).head("encoder"), "", output=peer.classifier)
    ids, labels = torch.randint(0, 40, (3, 9)), torch.randint(0, 3, (3, 9))
    labels[:, ::2] = -100
    present = torch.ones(3, 9, dtype=torch.bool)
    if padded:
        present[1, 6:] = False
        labels[1, 6:] = -100
    expected = theirs(ids, attention_mask=present.long(), labels=labels)
    logits = ours(ids, present=present)
    torch.testing.assert_close(logits[present], expected.logits[present], atol=1e-5, rtol=1e-5)
    weights = (labels != -100).float().flatten()
    loss = ours.loss(logits.flatten(0, 1), labels.flatten().clamp(min=0), weights) / weights.sum()
    torch.testing.assert_close(loss, expected.loss, atol=1e-5, rtol=1e-5)


# Files


def test_all_formats_of_a_sentence_read_alike(tmp_path):
    (tmp_path / "a.conll").write_text(CONLL)
    (tmp_path / "a.txt").write_text(CONLL.replace("\n", "\r\n"))
    (tmp_path / "two.bio").write_text("\n".join("\t".join(line.split()[::3]) for line in CONLL.splitlines()))
    sentences = [
        (["EU", "rejects", "German", "calls", "."], ["B-ORG", "O", "B-MISC", "I-MISC", "O"]),
        (["Peter", "Blackburn"], ["B-PER", "I-PER"]),
    ]
    names = ["O", "B-PER", "I-PER", "B-ORG", "B-MISC", "I-MISC"]
    texts = [{"tokens": words, "ner_tags": tags} for words, tags in sentences]
    numbers = [row | {"ner_tags": [names.index(tag) for tag in row["ner_tags"]]} for row in texts]
    write(tmp_path / "texts.jsonl", texts)
    write(tmp_path / "numbers.jsonl", numbers)
    datasets = pytest.importorskip("datasets")
    features = datasets.Features(
        {
            "tokens": datasets.Sequence(datasets.Value("string")),
            "ner_tags": datasets.Sequence(datasets.ClassLabel(names=names)),
        }
    )
    hub = datasets.Dataset.from_list(numbers, features=features)
    hub.save_to_disk(tmp_path / "folder")
    hub.to_parquet(tmp_path / "hub.parquet")
    pa.parquet.write_table(pa.Table.from_pylist(texts), tmp_path / "texts.parquet")
    for name in ("a.conll", "a.txt", "two.bio", "texts.jsonl", "folder", "hub.parquet", "texts.parquet"):
        assert read(tmp_path / name) == sentences, name
    assert read(tmp_path / "numbers.jsonl", tag_names=tuple(names)) == sentences
    assert read(tmp_path / "numbers.jsonl")[1] == (["Peter", "Blackburn"], ["1", "2"])
    chunks = read(tmp_path / "a.conll", columns=("tokens", "chunk_tags"))
    assert chunks[0][1] == ["B-NP", "B-VP", "B-NP", "I-NP", "O"]


def test_a_line_of_tags_that_is_not_utf8_is_named(tmp_path):
    (tmp_path / "a.conll").write_bytes("é O\n".encode() * 3 + b"\xff O\n")
    with pytest.raises(ValueError, match=r"line 4 of .*a\.conll is not UTF-8: convert the file"):
        read(tmp_path / "a.conll")


def test_conll_u_has_a_tag_for_each_word_and_none_for_contractions_and_empty_nodes(tmp_path):
    (tmp_path / "a.conllu").write_text(UNIVERSAL)
    assert read(tmp_path / "a.conllu") == [(["do", "n't", "go"], ["AUX", "PART", "VERB"]), (["Yes"], ["INTJ"])]
    by_column = read(tmp_path / "a.conllu", columns=("tokens", "xpos"))
    assert [tags for _, tags in by_column] == [["VB", "RB", "VB"], ["UH"]]


def test_files_come_back_whole_with_the_predicted_column(tmp_path):
    (tmp_path / "a.conllu").write_text(UNIVERSAL)
    rows = list(read_tagged(tmp_path / "a.conllu"))
    assert "".join(with_tags(row, row.fields["upos"], "upos") for row in rows) == UNIVERSAL + "\n"
    tagged = [with_tags(row, ["X"] * len(row.fields["tokens"]), "xpos") for row in rows]
    assert [line.split("\t")[4] for line in tagged[0].splitlines() if "\t" in line] == ["_", "X", "X", "_", "X"]
    (tmp_path / "a.conll").write_text(CONLL)
    [first, _] = read_tagged(tmp_path / "a.conll")
    assert with_tags(first, ["A", "B", "C", "D", "E"], "tags").startswith(
        "-DOCSTART- -X- -X- O O\nEU NNP B-NP B-ORG A\nrejects VBZ B-VP O B\n"
    )


def test_other_schemes_are_read_as_iob2_and_it_is_said(tmp_path):
    rows = [
        {"tokens": ["a", "b", "c"], "tags": ["I-X", "B-X", "O"]},  # IOB1: two entities
        {"tokens": ["a", "b", "c"], "tags": ["S-X", "B-Y", "E-Y"]},
        {"tokens": ["a"], "tags": ["O"]},
    ]
    with pytest.warns(UserWarning, match="2 of 3 sentences of .*rows.jsonl have tags in another scheme than IOB2"):
        found = read(write(tmp_path / "rows.jsonl", rows))
    assert [tags for _, tags in found] == [["B-X", "B-X", "O"], ["B-X", "B-Y", "I-Y"], ["O"]]


@pytest.mark.parametrize("tags", [["I-X", "O", "I-Y"], ["S-X", "B-Y", "E-Y"]])
def test_an_imported_model_reads_tags_of_its_own_scheme(tmp_path, tags):
    data = write(tmp_path / "rows.jsonl", [{"tokens": ["a", "b", "c"], "tags": tags}])
    assert read(data, labels=("O", *sorted({*tags} - {"O"}))) == [(["a", "b", "c"], tags)]


@pytest.mark.parametrize("name", ["a.conll.jsonl", "a.bio.csv", "a.iob.parquet", "a.json.parquet", "a.json.jsonl"])
def test_the_last_suffix_names_the_format(tmp_path, name):
    assert not is_tagged_file(tmp_path / name) and not is_squad_file(tmp_path / name)


def test_files_of_tags_and_of_questions_may_be_compressed(tmp_path):
    assert all(is_tagged_file(tmp_path / name) for name in ("a.conll", "a.b.CONLL.gz", "a.iob2.zst"))
    assert all(is_squad_file(tmp_path / name) for name in ("a.json", "a.b.JSON.xz"))


@pytest.mark.parametrize("name", ["entities", "spans"])
def test_spans_of_characters_become_tags_of_words(tmp_path, name):
    text = "Dr. Who's TARDIS, 東京へ"
    spans = [[0, 9, "PER"], [18, 20, "LOC"], [10, 13, "THING"]]
    if name == "spans":
        spans = [{"start": start, "end": end, "label": label, "token_start": 0} for start, end, label in spans]
    path = write(tmp_path / "rows.jsonl", [{"text": text, name: spans}, {"text": "none", name: []}])
    with pytest.warns(UserWarning, match="1 of 2 texts of .* have spans that begin or end within a word"):
        found = read(path)
    assert found[0] == (
        ["Dr", ".", "Who", "'", "s", "TARDIS", ",", "東", "京", "へ"],
        ["B-PER", "I-PER", "I-PER", "I-PER", "I-PER", "B-THING", "O", "B-LOC", "I-LOC", "O"],
    )
    assert found[1] == (["none"], ["O"])
    nested = write(tmp_path / "nested.jsonl", [{"doc": {"text": text, "marks": [[0, 2, "X"]]}}])
    assert read(nested, columns=("doc.text", "doc.marks"))[0][1][:2] == ["B-X", "O"]


@given(st.text(max_size=50))
def test_words_of_a_text_are_all_its_characters_but_blanks(text):
    words = words_of(text)
    assert "".join(text[start:end] for start, end in words) == "".join(text.split())
    assert all(end <= start for (_, end), (start, _) in pairwise(words))


@pytest.mark.parametrize(
    ("rows", "message"),
    [
        ([{"tokens": ["a", "b"], "tags": ["O"]}], r"line 1 of .*rows.jsonl has 2 words, but 1 tags in \"tags\""),
        ([{"tokens": ["a"], "tags": "O"}], "\"tags\" in line 1 of .* is 'O', not a list of tags"),
        ([{"tokens": ["a", 3], "tags": ["O", "O"]}], '"tokens" in line 1 of .* has 3, not a word'),
        ([{"tokens": ["a"], "tags": [None]}], '"tags" in line 1 of .* has None, not a tag'),
        ([{"tokens": ["a"], "tags": [""]}], "has '', not a tag"),
        ([{"tokens": [], "tags": []}], "holds no example"),
        ([{"tokens": ["a"]}], 'has no field "ner_tags": it has tokens; choose with `columns`'),
        ([{"text": "ab", "entities": [[0, 3, "X"]]}], "has the span 0 to 3 in a text of 2 characters"),
        ([{"text": "ab", "entities": [[0, "X"]]}], r"has \[0, 'X'\], not \[start, end, label\]"),
        ([{"text": "a b c", "entities": [[0, 3, "X"], [2, 5, "Y"]]}], r"spans that overlap, \[0, 3, 'X'\] and \[2, 5,"),
    ],
)
def test_unusable_rows_are_refused_by_name(tmp_path, rows, message):
    with pytest.raises(ValueError, match=message):
        read(write(tmp_path / "rows.jsonl", rows))


def test_unusable_lines_and_numbers_without_names_are_refused(tmp_path):
    (tmp_path / "a.conll").write_text("a O\nb\n")
    with pytest.raises(ValueError, match=r"columns in line 2 of .*a.conll: 1, not 2; give one word a line"):
        read(tmp_path / "a.conll")
    (tmp_path / "a.conllu").write_text("1\ta\n")
    with pytest.raises(ValueError, match=r"columns in line 1 of .*a.conllu: 2, not 10"):
        read(tmp_path / "a.conllu")
    (tmp_path / "a.jsonl").write_text('{"tokens": ["\\ud800"], "tags": ["O"]}')
    with pytest.raises(ValueError, match=r"lone surrogate \\ud800"):
        read(tmp_path / "a.jsonl")
    rows = write(tmp_path / "rows.jsonl", [{"tokens": ["a"], "tags": [2]}])
    with pytest.raises(ValueError, match=r'the tag 2 in "tags" in line 1 of .* has no number in 2 `tag_names`'):
        read(rows, tag_names=("O", "X"))


# Tokens and windows


@pytest.fixture(scope="module")
def readers(trained_bert, trained_gpt):
    return {name: reader_of(Run(run), Tokens()) for name, run in (("bert", trained_bert), ("gpt", trained_gpt))}


def example(words, tags=None):
    return Tokens(columns=("tokens", "tags")).example(Row("row 1", {"tokens": words, "tags": tags}), tags is not None)


def test_words_are_encoded_as_in_a_text_with_a_blank_before_each_but_the_first(readers):
    words = ["def", "forward", "(", "self", ")"]
    [encoded] = Tokens(labels=("O", "X")).encode([example(words)], readers["bert"])
    special = readers["bert"].around.special
    assert encoded.ids.tolist() == [
        special["<|cls|>"], *readers["bert"].tokenizer.encode(" ".join(words)), special["<|sep|>"]
    ]  # fmt: skip


@given(st.lists(st.text("abcdef import", max_size=30), min_size=1, max_size=40), st.sampled_from(["bert", "gpt"]))
def test_each_word_with_a_token_has_its_target_once_and_windows_fit(readers, words, name):
    reader = readers[name]
    tags = [TAGS[len(word) % 5] for word in words]
    windows = Tokens(labels=tuple(TAGS)).encode([example(words, tags)], reader)
    assert all(len(window.ids) <= reader.model.context_length for window in windows)
    pieces = reader.ids(example(words).inputs)
    labelled = [word for window in windows for word in window.places[window.places != ABSENT]]
    assert labelled == [place for place, word in enumerate(pieces) if word]
    for window in windows:
        for position in np.flatnonzero(window.weights):
            word = window.places[position]
            assert TAGS[window.targets[position]] == tags[word]
            end = len(reader.cut(pieces[word], reader.room())) - 1
            assert window.ids[position] == pieces[word][0 if name == "bert" else end]
    assert all(window.cut == (max(map(len, pieces)) > reader.room()) for window in windows)


def test_a_word_without_a_token_has_a_tag_of_the_model():
    """An imported model for parts of speech has no tag O."""
    task, word = Tokens(labels=("DET", "NOUN")), example(["\u200b"], ["NOUN"])
    [predicted] = task.predictions([], [], [word])
    assert predicted["prediction"] == ["DET"]
    assert task.results([], [], [word])[0].tag_accuracy == 0


def test_long_sentences_repeat_words_as_context(readers):
    windows = Tokens(labels=("O", "X")).encode([example(["self"] * 100)], readers["bert"])
    first = [int(window.places[window.places != ABSENT][0]) for window in windows]
    for window, start in zip(windows[1:], first[1:], strict=True):
        context = window.places.tolist().index(start) - 1
        assert 0 < context <= readers["bert"].room() // 4


# Results


@given(st.lists(st.lists(st.tuples(*[st.integers(0, 2)] * 2), min_size=1, max_size=9), min_size=1))
def test_numbers_of_plain_tags_are_those_of_scikit_learn(readers, sentences):
    """The outputs of the model are the second number of each pair; the word "" has no token and gets the usual tag."""
    names = ("NOUN", "O", "VERB")
    task = Tokens(labels=names, usual_tag="NOUN")
    examples = [example(["", *["self"] * len(pairs)], ["O", *(names[a] for a, _ in pairs)]) for pairs in sentences]
    encoded = task.encode(examples, readers["bert"])
    outputs = [np.zeros((len(one.ids), 3), np.float32) for one in encoded]
    for one, logits in zip(encoded, outputs, strict=True):
        for position in np.flatnonzero(one.weights):
            logits[position, sentences[one.origin][one.places[position] - 1][1]] = 5
    numbers, by_type = task.results(outputs, encoded, examples)
    gold = [names[a] for pairs in sentences for a in (1, *(a for a, _ in pairs))]
    said = [names[b] for pairs in sentences for b in (0, *(b for _, b in pairs))]
    assert numbers.tag_accuracy == pytest.approx(accuracy_score(gold, said))
    assert numbers.tag_macro_f1 == pytest.approx(f1_score(gold, said, average="macro"))
    assert (numbers.words, numbers.unread_words, numbers.windows) == (len(gold), len(sentences), len(encoded))
    assert numbers.entity_f1 is None
    precision, recall, f1, support = precision_recall_fscore_support(gold, said, labels=names, zero_division=0)
    expected = zip(names, precision, recall, f1, support.tolist(), strict=True)
    assert by_type.by_type == {name: pytest.approx(tuple(scores)) for name, *scores in expected if scores[3]}


@given(st.lists(st.integers(1, 6), min_size=1, max_size=3), st.integers(0, 2**32 - 1))
def test_probabilities_are_softmaxes_and_the_numbers_follow_their_definitions(readers, lengths, seed):
    names, generator = ["O", "B-X", "I-X"], np.random.default_rng(seed)
    task = Tokens(labels=tuple(names))
    examples = [example(["", *["self"] * n], generator.choice(names, n + 1).tolist()) for n in lengths]
    encoded = task.encode(examples, readers["bert"])
    outputs = [3 * generator.standard_normal((len(one.ids), 3)).astype(np.float32) for one in encoded]
    expected = {}
    for one, logits in zip(encoded, outputs, strict=True):
        for position in np.flatnonzero(one.weights):
            expected[one.origin, one.places[position]] = softmax(logits[position].astype(np.float64))
    predicted = task.predictions(outputs, encoded, examples)
    bins = [[] for _ in range(15)]
    for i, fields in enumerate(predicted):
        assert (fields["probability"][0], fields["probabilities"][0]) == (None, None)  # no token, no probability
        for place in range(1, lengths[i] + 1):
            chances = expected[i, place]
            assert fields["probabilities"][place] == pytest.approx(dict(zip(names, chances, strict=True)))
            assert fields["probability"][place] == pytest.approx(chances.max())
            assert fields["prediction"][place] == names[chances.argmax()]
            bins[int(chances.max() * 15)].append((chances.max(), names[chances.argmax()] == examples[i].target[place]))
    gaps = [abs(sum(right - chance for chance, right in each)) for each in bins]
    numbers = task.results(outputs, encoded, examples)[0]
    tags = [list(one.target) for one in examples], [list(fields["prediction"]) for fields in predicted]
    found = seqeval.precision_score(*tags, zero_division=0), seqeval.recall_score(*tags, zero_division=0)
    assert (numbers.entity_precision, numbers.entity_recall) == pytest.approx(found)
    assert numbers.tag_calibration == pytest.approx(sum(gaps) / sum(lengths), abs=1e-9)
    gold = [expected[i, p][names.index(examples[i].target[p])] for i, n in enumerate(lengths) for p in range(1, n + 1)]
    assert numbers.tag_nats == pytest.approx(-np.log(gold).mean())


# Runs


@pytest.fixture(scope="module")
def brackets(tmp_path_factory):
    """Return training and test sentences in CoNLL, where words between brackets are entities."""
    folder = tmp_path_factory.mktemp("brackets")
    for name, numbers in (("train", range(64)), ("test", range(64, 80))):
        sentences = [f"-DOCSTART- O\n\ndef O\n( O\nself B-ARG\nx{i} I-ARG\n) O\nreturn O\nself O\n" for i in numbers]
        (folder / f"{name}.conll").write_text("\n".join(sentences))
    return folder


@pytest.fixture(scope="module", params=["bert", "gpt"])
def tagger(request, tmp_path_factory, brackets):
    run = request.getfixturevalue(f"trained_{request.param}")
    folder = tmp_path_factory.mktemp("taggers") / request.param
    finetune(
        run, task="tokens", data=[brackets / "train.conll"], test=[brackets / "test.conll"], out=folder,
        compare_scratch=False, train=QUICK,
    )  # fmt: skip
    return folder


def test_a_tagger_learns_entities_and_its_predictions_have_the_f1_of_its_evaluation(tagger, brackets, tmp_path):
    result = evaluate(tagger).validation
    out = tmp_path / "out.conll"
    predict(tagger, file=brackets / "test.conll", out=out)
    lines = [line.split(" ") for line in out.read_text().splitlines()]
    assert [cells[:-1] for cells in lines if cells != [""]] == [
        line.split(" ") for line in (brackets / "test.conll").read_text().splitlines() if line
    ]
    columns = list(zip(*(cells for cells in lines if len(cells) == 3 and cells[0] != "-DOCSTART-"), strict=True))
    sentences = [[list(tags[i : i + 7]) for i in range(0, len(tags), 7)] for tags in columns[1:]]
    assert result.entity_f1 == pytest.approx(seqeval.f1_score(*sentences))
    assert result.entity_precision == pytest.approx(seqeval.precision_score(*sentences))
    assert result.tag_accuracy == pytest.approx(np.mean([gold == said for _, gold, said in zip(*columns, strict=True)]))
    assert result.entity_f1 > 0.9
    assert result.by_type.by_type["ARG"][3] == 16
    assert result.comparison.others["most frequent tag"]["accuracy of tags"] == pytest.approx(5 / 7)
    assert result.comparison.others["most frequent tag of each word"]["entity F1"] == 0.0  # x70 is unknown


@torch.no_grad()
def tag_probabilities(tagger, words):
    """Return the probabilities of the tags of each word by the model itself, at the first or the last token."""
    run = Run(tagger)
    tok, encoder = run.tokenizer(), run.recipe.model.architecture == "encoder"
    special = tok.special_tokens
    ids, places = [special["<|cls|>" if encoder else "<|endoftext|>"]], []
    for word in words:
        pieces = tok.encode(word)
        places.append(len(ids) if encoder else len(ids) + len(pieces) - 1)
        ids += pieces
    ids += [special["<|sep|>"]] if encoder else []
    return load_model(run, "cpu").model(torch.tensor([ids]))[0, places].softmax(dim=-1).tolist()


def test_predictions_have_the_form_of_the_rows(tagger, tmp_path):
    text = "def ( self x3 ) return self"
    given = [{"tokens": text.split(), "id": 7}, {"tokens": text}]
    rows = write(tmp_path / "rows.jsonl", given)
    found = predict(tagger, file=rows)
    chances = tag_probabilities(tagger, ["def", " (", " self", " x3", " )", " return", " self"])
    assert found[0]["prediction"] == ["O", "O", "B-ARG", "I-ARG", "O", "O", "O"]
    assert found[0]["probability"] == pytest.approx([max(row) for row in chances], abs=1e-5)
    named = [pytest.approx(dict(zip(("O", "B-ARG", "I-ARG"), row, strict=True)), abs=1e-5) for row in chances]
    assert found[0]["probabilities"] == named
    assert found[1] == {
        "prediction": [[6, 13, "ARG"]],
        "probability": [pytest.approx(chances[2][1] * chances[3][2], abs=1e-5)],
    }
    predict(tagger, file=rows, out=tmp_path / "out.jsonl")
    assert json.loads((tmp_path / "out.jsonl").read_text().splitlines()[0])["id"] == 7
    with pytest.raises(ValueError, match=r"line 1 of .*rows.jsonl has no lines of tagged words: give an `out`"):
        predict(tagger, file=rows, out=tmp_path / "out.conll")
    assert not (tmp_path / "out.conll").exists()


def test_the_command_shows_entities(tagger, in_process):
    done = in_process("predict", tagger, "def ( self x1 ) return self")
    assert re.fullmatch(r"ARG 'self x1' \d+%: def \( self x1 \) return self\n", done.stdout), done.stderr


def test_tags_of_python_source_are_learned_from_the_command_line(in_process, bytelm, tmp_path, trained_bert):
    script = Path(__file__).parents[2] / "benchmarks" / "tagged_text.py"
    subprocess.run([sys.executable, script, "python", "--out", tmp_path, "--examples", "40"], check=True)
    done = in_process(
        "finetune", trained_bert, "--task", "tokens", "--data", tmp_path / "train.jsonl", "--test",
        tmp_path / "test.jsonl", "--out", "run", "--epochs", "1", "--device", "cpu", "--no-compare-scratch",
    )  # fmt: skip
    assert done.returncode == 0, done.stderr
    for words in ("entity F1", "most frequent tag of each word", "STRING"):
        assert words in done.stdout
    assert in_process("runs", tmp_path).returncode == 0


def test_an_unknown_tag_of_the_test_examples_is_refused(tmp_path, trained_bert, in_process):
    data = write(tmp_path / "a.jsonl", [{"tokens": ["a", "b"], "tags": ["X", "Y"]}] * 2)
    test = write(tmp_path / "b.jsonl", [{"tokens": ["c"], "tags": ["Z"]}])
    done = in_process("finetune", trained_bert, "--task", "tokens", "--data", data, "--test", test, "--out", "run")
    assert done.returncode == 1 and not (tmp_path / "run").exists()
    assert "b.jsonl has the label 'Z', which no training example has" in done.stderr
    one = write(tmp_path / "c.jsonl", [{"tokens": [word], "tags": ["X"]} for word in "abcdefghijklmnop"])
    done = in_process("finetune", trained_bert, "--task", "tokens", "--data", one, "--out", "run", "--held-out", "0.5")
    assert "all words have the tag 'X': give some with another" in done.stderr
