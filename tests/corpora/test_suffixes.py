"""Text in files with other suffixes and encodings, and the files that are skipped."""

import codecs
import gzip
import json

import pytest

from corpora import open_corpus, open_pairs
from tests.corpora.helpers import everything


def texts(*specs, **options):
    """Return all documents; a hash rule cuts none."""
    found = everything(open_corpus([str(spec) for spec in specs], split="hash:0.5", **options))
    return sorted(text for part in found.values() for text in part)


def test_suffixes_choose_the_files_of_a_folder_and_the_others_are_counted(tmp_path):
    for name in ("a.md", "b.MD.gz", "sub/c.rst", "d.py", "e.png", "f.png", "g.pdf", "h.txt", "Makefile", ".hidden.png"):
        (tmp_path / name).parent.mkdir(exist_ok=True)
        content = (name + "\n").encode()
        (tmp_path / name).write_bytes(gzip.compress(content) if name.endswith("gz") else content)
    corpus = open_corpus(str(tmp_path), suffix=[".md", "rst"])
    assert "".join(t for part in everything(corpus).values() for t in part) == "a.md\nb.MD.gz\nsub/c.rst\n"
    assert corpus.skipped_files == {".png": 2, ".pdf": 1, ".py": 1, ".txt": 1, "": 1}
    assert texts(tmp_path, suffix="*.py") == ["d.py\n"]
    assert texts(tmp_path) == ["h.txt\n"]
    assert texts(tmp_path / "**" / "*.rst", suffix=".rst") == ["sub/c.rst\n"]
    assert texts(tmp_path / "**", suffix=".rst") == ["sub/c.rst\n"]
    with pytest.raises(ValueError, match=r"sub holds no .* file, but 1 \.rst; if they are text, add `suffix`, such as"):
        open_corpus(str(tmp_path / "sub"))
    with pytest.raises(ValueError, match=r"a\.md is not a .* file: if it is text, add `suffix='\.md'`"):
        open_corpus(str(tmp_path / "a.md"))


@pytest.mark.parametrize("suffix", [".", "", "a/b", ".tar.gz", ".gz"])
def test_an_invalid_suffix_is_refused(tmp_path, suffix):
    with pytest.raises(ValueError, match=r"the suffix .* is not one such as \.md|name the suffix before it"):
        open_corpus(str(tmp_path), suffix=[suffix])


def test_rows_of_csv_are_documents_with_their_line_ends_quotes_and_empty_cells(tmp_path):
    rows = 'id,text\r\n1,"a, ""b""\r\nc"\r\n2,\r\n3,été\r\n'
    (tmp_path / "a.csv").write_bytes(codecs.BOM_UTF8 + rows.encode())
    assert texts(tmp_path, suffix=".csv") == ['a, "b"\r\nc', "été"]
    assert texts(tmp_path, suffix=".csv", text_column="id") == ["1", "2", "3"]
    with pytest.raises(ValueError, match=r'a\.csv has no column "body": choose one of its columns \(id, text\)'):
        texts(tmp_path, suffix=".csv", text_column="body")
    (tmp_path / "a.csv").write_text("id;text\n1;x, y\n")
    assert texts(tmp_path, suffix=".csv") == ["x, y"]
    (tmp_path / "a.csv").write_text("id,text\n1,a\n2\n")
    with pytest.raises(ValueError, match=r"row 2 of .*a\.csv has 1 cells, but the first row names 2"):
        texts(tmp_path, suffix=".csv")
    (tmp_path / "a.csv").write_text("text\nHello, world\ntea\n")
    with pytest.raises(ValueError, match=r"row 1 of .*a\.csv has 2 cells, but the first row names 1"):
        texts(tmp_path, suffix=".csv")
    assert texts(tmp_path, suffix=".csv", invalid="skip") == ["tea"]
    (tmp_path / "a.csv").write_text('id,text\n1,"a\n')
    with pytest.raises(ValueError, match=r"row 1 of .*a\.csv is not CSV \(unexpected end of data\)"):
        texts(tmp_path, suffix=".csv")
    (tmp_path / "a.csv").write_bytes(b"text\ncaf\xe9\ntea\n")
    with pytest.raises(ValueError, match=r"row 1 of .*a\.csv is not UTF-8 at byte 3"):
        texts(tmp_path, suffix=".csv")
    assert texts(tmp_path, suffix=".csv", invalid="skip") == ["tea"]


@pytest.mark.parametrize("separator", [";", "\t", ","])
@pytest.mark.parametrize("before", ["\n", "\n\n", "\r\n"])
def test_blank_lines_before_the_first_row_of_csv_are_left_out(tmp_path, before, separator):
    rows = [("id", "text"), ("1", "hello"), ("2", "world")]
    (tmp_path / "a.csv").write_text(before + "".join(separator.join(row) + "\n" for row in rows), newline="")
    assert texts(tmp_path, suffix=".csv") == ["hello", "world"]


def test_rows_of_csv_end_at_lf_and_cr_lf_only(tmp_path):
    cells = ["a\rb", "\rc", "d\x0b\x0c\x1c\x1d\x1e\x85\u2028\u2029e", "f\r"]
    for end in ("\n", "\r\n"):
        rows = "".join(f"{cell},{i}{end}" for i, cell in enumerate(cells))
        (tmp_path / "a.csv").write_bytes(f'text,id{end}{rows}"quoted\r",5{end}"two\r\nlines",6{end}'.encode())
        assert texts(tmp_path, suffix=".csv") == sorted([*cells, "quoted\r", "two\r\nlines"])
    (tmp_path / "a.csv").write_bytes(b"text\ra\rb\r")
    with pytest.raises(ValueError, match=r"first row of .*a\.csv holds a carriage return, but rows end at LF or CR LF"):
        texts(tmp_path, suffix=".csv")


def test_pairs_in_another_encoding_name_the_file(tmp_path):
    word = "Der Rückzug über die Brücke war schön aber die Straße führte später zu großen Häusern"
    (tmp_path / "a.csv").write_bytes(("de,en\n" + f"{word},bridge\n" * 20).encode("cp1252"))
    pairs = open_pairs(str(tmp_path), ("de", "en"), suffix=".csv")
    rows = [row for _, batch in pairs.routed_batches() for row in batch.to_pylist()]
    assert rows[0]["source"] == word
    assert pairs.dropped.encodings == {str(tmp_path / "a.csv"): "cp1252"}


def test_two_columns_of_csv_are_pairs(tmp_path):
    (tmp_path / "a.csv").write_text("de,en\n" + "".join(f"wort {i},word {i}\n" for i in range(1000)))
    pairs = open_pairs(str(tmp_path), ("de", "en"), suffix=".csv")
    rows = [row for _, batch in pairs.routed_batches() for row in batch.to_pylist()]
    assert {"source": "wort 7", "target": "word 7"} in rows
    assert len(rows) == 1000


def test_a_json_file_is_an_array_of_texts_or_objects(tmp_path):
    def read(content, **options):
        (tmp_path / "a.json").write_text(json.dumps(content))
        return texts(tmp_path, suffix=".json", **options)

    assert read(["a", None, "é", ""]) == ["a", "é"]
    assert read([{"text": "a", "id": 1}, {"text": "b"}, {"id": 3}]) == ["a", "b"]
    assert read([{"body": "a", "id": "x"}], text_column="body") == ["a"]
    with pytest.raises(ValueError, match=r"a\.json holds an object, not an array.*JSON lines"):
        read({"text": "a"})
    with pytest.raises(ValueError, match=r"element 2 of .*a\.json is a number, not a string"):
        read(["a", 1])
    with pytest.raises(ValueError, match=r'a\.json has no column "body"'):
        read([{"text": "a"}], text_column="body")
    (tmp_path / "a.json").write_text("[" * 100_000)
    with pytest.raises(ValueError, match=r"a\.json is not JSON"):
        texts(tmp_path, suffix=".json")


def test_texts_in_another_encoding_are_decoded_as_a_stream(tmp_path):
    text = "déjà vu\n" * 100_000
    (tmp_path / "a.txt.gz").write_bytes(gzip.compress(text.encode("latin-1")))
    assert texts(tmp_path, encoding="latin-1") == [text]
    (tmp_path / "b.txt").write_bytes(b"\x00\xd8x")  # half a surrogate pair
    with pytest.raises(ValueError, match=r"b\.txt is not utf-16-le after byte 3 .*name another `encoding`"):
        texts(tmp_path / "b.txt", encoding="utf-16-le")
    (tmp_path / "c.txt").write_text("read\n", encoding="utf-16-le")
    assert texts(tmp_path / "?.txt", encoding="utf-16-le", invalid="skip") == ["read\n"]
    with pytest.raises(ValueError, match=r'"klingon" is not a text encoding'):
        texts(tmp_path, encoding="klingon")
    with pytest.raises(ValueError, match=r'"rot13" is not a text encoding'):
        texts(tmp_path, encoding="rot13")
    with pytest.raises(ValueError, match="leave one out"):
        texts(tmp_path, encoding="latin-1", invalid="bytes")


def test_a_byte_order_mark_is_not_part_of_a_text(tmp_path):
    (tmp_path / "a.txt").write_bytes(codecs.BOM_UTF8 + b"text \xef\xbb\xbf within\n")
    (tmp_path / "b.txt.gz").write_bytes(gzip.compress(codecs.BOM_UTF8 + b"text"))
    (tmp_path / "c.txt").write_bytes(codecs.BOM_UTF8 + b"x" * (20 << 20))  # mapped into memory
    assert texts(tmp_path) == ["text", "text \ufeff within\n", "x" * (20 << 20)]
    assert texts(tmp_path / "a.txt", invalid="bytes") == [codecs.BOM_UTF8 + b"text \xef\xbb\xbf within\n"]
    assert texts(tmp_path / "b.txt.gz", invalid="bytes") == [codecs.BOM_UTF8 + b"text"]


@pytest.mark.parametrize(
    ("name", "content"),
    [("a.jsonl", b'{"text": "a"}\n{"text": "b"}\n'), ("a.csv", b"text,x\na,1\nb,2\n"), ("a.json", b'["a", "b"]')],
)
@pytest.mark.parametrize("invalid", ["error", "replace", "skip", "bytes"])
def test_a_byte_order_mark_before_rows_is_in_none_of_them(tmp_path, name, content, invalid):
    (tmp_path / name).write_bytes(codecs.BOM_UTF8 + content)
    expected = [b"a", b"b"] if invalid == "bytes" else ["a", "b"]
    assert texts(tmp_path / name, suffix=(tmp_path / name).suffix, invalid=invalid) == expected


def test_a_binary_file_among_texts_is_an_invalid_document(tmp_path):
    (tmp_path / "a.txt").write_text("text")
    (tmp_path / "b.txt").write_bytes(b"\x89PNG\r\n\x1a\n\x00\x00\x00\rIHDR" + bytes(range(256)) * 40)
    with pytest.raises(ValueError, match=r"b\.txt is not UTF-8 at byte 0 \(0x89\).*`invalid='replace'`, skip or bytes"):
        texts(tmp_path)
    corpus = open_corpus(str(tmp_path), split="hash:0.5", invalid="skip")
    assert [text for part in everything(corpus).values() for text in part] == ["text"]
    assert corpus.dropped.invalid_documents == 1
