"""Arrow arrays are encoded document by document."""

import pyarrow as pa
import pytest


@pytest.mark.parametrize("kind", [pa.string(), pa.large_string(), pa.binary(), pa.large_binary(), pa.string_view()])
def test_arrow_arrays_encode_document_by_document(kind, trained, stdlib_texts):
    tok = trained["cl100k"]
    documents = ["", "hello", "", "", "a\n  ", "<|endoftext|>", *stdlib_texts[:20], ""]
    encoded = tok.encode_arrow(pa.array(documents, kind))
    assert encoded.type == pa.large_list(pa.uint32())
    assert encoded.to_pylist() == [tok.encode_ordinary(document) for document in documents]
    assert tok.encode_arrow(pa.array(documents, kind)[2:5]).to_pylist() == encoded.to_pylist()[2:5]
    chunked = pa.chunked_array([pa.array(documents, kind)[:3], pa.array(documents, kind)[3:]])
    assert tok.encode_arrow(chunked).to_pylist() == encoded.to_pylist()
    assert tok.encode_arrow(pa.array([], kind)).to_pylist() == []
    assert tok.encode_arrow(pa.array(["", ""], kind)).to_pylist() == [[], []]


def test_arrow_documents_cut_over_threads_keep_their_ids(trained, stdlib_texts):
    tok = trained["gpt2"]
    large = "".join(stdlib_texts)
    documents = ["", large, "x", "", large[:2_000_000], ""]
    assert tok.encode_arrow(pa.array(documents), threads=2).to_pylist() == [tok.encode_ordinary(d) for d in documents]


def test_invalid_arrow_input_is_a_value_error(trained):
    tok = trained["gpt2"]
    with pytest.raises(ValueError, match=r"1 null document.*number 1"):
        tok.encode_arrow(pa.array(["a", None]))
    with pytest.raises(ValueError, match="int64"):
        tok.encode_arrow(pa.array([1]))
    with pytest.raises(ValueError, match="pyarrow"):
        tok.encode_arrow(["a"])
