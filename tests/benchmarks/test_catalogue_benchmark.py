"""The benchmark of published vocabularies compares ids with the library of each file, and says what is not read."""

import base64
import json

from benchmarks import catalogue
from tokenizer import Tokenizer

TEXTS = ["the cat sat", "on the mat", "Naïve 字\n\n", "12345's"] * 75


def test_ids_are_compared_with_the_library_of_each_file(tmp_path):
    for name in ("json", "ranks", "pieces", "refused", "wrong"):
        (tmp_path / name).mkdir()
    tok = Tokenizer.train(TEXTS, 300, pattern="gpt2", special_tokens=["<|end|>"])
    tok.save(tmp_path / "json")
    regex = r"'(?:[sdmt]|ll|ve|re)| ?\p{L}+| ?\p{N}+| ?[^\s\p{L}\p{N}]+|\s+(?!\S)|\s+"
    lines = [b"%s %d\n" % (base64.b64encode(tok.token_bytes(i)), i - 1) for i in range(1, tok.vocab_size)]
    (tmp_path / "ranks" / "ours.tiktoken").write_bytes(b"".join(lines))
    about = {"pattern": regex, "special_tokens": {"<|end|>": tok.vocab_size}}
    (tmp_path / "ranks" / "about.json").write_text(json.dumps(about))
    unigram = Tokenizer.train(TEXTS, 40, kind="unigram", special_tokens=[])
    unigram.as_sentencepiece().save(tmp_path / "pieces")
    (tmp_path / "refused" / "x.txt.gz").write_bytes(b"")
    content = json.loads((tmp_path / "json" / "tokenizer.json").read_text(encoding="utf-8"))
    content["model"]["dropout"] = 0.5
    (tmp_path / "wrong" / "tokenizer.json").write_text(json.dumps(content))

    rows = {
        folder.name: {"name": folder.name, "file": file.name} | catalogue.measure(file, TEXTS)
        for folder in tmp_path.iterdir()
        if (file := catalogue.file_in(folder))
    }
    for name, peer in (("json", "tokenizers"), ("ranks", "tiktoken"), ("pieces", "sentencepiece")):
        row = rows[name]
        assert (row["peer"], row["differ"], row["refused"]) == (peer, 0, 0)
        assert row["texts"] == 200 and row["ids"] > 200 and row["megabytes_per_second"] > 0
    assert "no peer: no library reads x.txt.gz" in rows["refused"]["error"]
    assert "model.dropout" in rows["wrong"]["error"]
    page = catalogue.catalogue_page([*rows.values()], "command")
    assert "5 vocabularies: 3 with equal ids, 0 with other ids, 2 not read." in page
