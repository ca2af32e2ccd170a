"""The examples and the page of the benchmark of few labels."""

from benchmarks.few_labels import CASES, SCRATCH, drawn, page

BOOK = "The sun rose over the hills. Who has seen my old black hat, Mary? Oh, what a long walk home that was! " * 9
MODULE = 'cut here"\ndef first(a):\n    return a + 1\n\nclass Second:\n    name = "x"\n\ndef third(): return "cut'


def test_sentences_lose_their_mark_and_labels_are_equally_frequent():
    rows = drawn(CASES["ending"], [BOOK], 9)
    assert {row["label"] for row in rows} == {"statement", "question", "exclamation"}
    assert len(rows) == 9 and all(not row["text"].endswith((".", "?", "!")) for row in rows)
    labels = [row["label"] for row in rows]
    assert {labels.count(label) for label in labels} == {3}


def test_tags_of_restored_text_are_the_six_that_every_text_has():
    tags = {tag for row in CASES["restore"].examples(BOOK) for tag in row["tags"]}
    assert (
        tags <= {"O", "Upper", "comma", "period", "Upper+comma", "Upper+period"}
        and "Upper+period" in tags
        and "comma" in tags
    )


def test_python_that_is_cut_within_a_string_gives_its_whole_definitions():
    rows = list(CASES["python"].examples(MODULE))
    text = "".join(row["text"] for row in rows)
    assert text.startswith("def first") and text.rstrip().endswith('name = "x"')
    kinds = {row["text"][start:end]: kind for row in rows for start, end, kind in row["entities"]}
    assert kinds["def"] == "KEYWORD" and kinds['"x"'] == "STRING" and kinds["first"] == "NAME"


def test_a_start_that_was_not_measured_has_a_dash():
    def row(task, start, value):
        return {"task": task, "labels": 9, "start": start, "nats": 4.0, "by_seed": [value], "others": {"guess": 0.1}}

    rows = [row("a", SCRATCH, 0.2), row("a", "10 tokens", 0.3), row("b", SCRATCH, 0.4)]
    lines = page({"command": "command", "machine": {"processor": "a processor"}, "rows": rows}).splitlines()
    assert lines[-1].startswith("| b | 9 | guess 0.100 | 0.400 (0.400) | –")
    assert "0.300 (0.300)<br>4.00 nats" in lines[-2]
