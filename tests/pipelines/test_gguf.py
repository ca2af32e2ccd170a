"""GGUF files in llama.cpp, in the package `gguf`, and back."""

import itertools
import json
import struct
from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest
import torch

from pipelines.exchange.possible_exports import possible_exports
from pipelines.recipes.recipe import load_recipe
from pipelines.run.folder import Run
from pipelines.run.text_ids import text_ids
from pipelines.verbs.embed import embed
from pipelines.verbs.export_gguf import export_gguf
from pipelines.verbs.generate import generate
from pipelines.verbs.import_gguf import import_gguf
from tests.pipelines.gguf_cases import DECODERS, ENCODER, LLAMA, model_of, nasty_strings, random_run
from tests.pipelines.llama_cpp import LlamaCpp
from tokenizer import CLS, END_OF_TEXT, MASK, SEP, Tokenizer
from tokenizer.byte_level import spell
from tokenizer.formats.gguf_fields import gguf_vocabulary

gguf = pytest.importorskip("gguf")
TEXTS = (
    "import os\n\n\ndef main() -> int:\n    return 0\n",
    "naïve — 漢字 🙂\r\n\t x",
    "  ",
    "",
    "a\0b",
    "<|endoftext|>",
)
DTYPES = ("f32", "f16", "bf16", "q8_0")


@pytest.fixture(scope="session")
def tok(tokenizer_folder):
    return Tokenizer.load(tokenizer_folder)


@pytest.fixture(scope="module")
def files(tmp_path_factory, tok):
    """Return get(case, dtype), which returns a run of `DECODERS` and its file."""
    made = {}

    def get(case, dtype="f32"):
        folder = tmp_path_factory.getbasetemp() / "gguf"
        if case not in made:
            made[case] = random_run(folder / case, tok, **DECODERS[case])
        out = folder / f"{case}-{dtype}.gguf"
        return made[case], out if out.exists() else export_gguf(made[case], out=out, dtype=dtype)

    return get


@torch.no_grad()
def largest_difference(model, peer, prefixes):
    """Return the largest difference of log-probabilities of the peer's 50 likeliest tokens after some prefixes."""
    largest, compared = 0.0, 0
    for ids in prefixes:
        ours = model.logits(model(ids[None]))[0, -1].log_softmax(-1)
        theirs = peer.log_probabilities(ids.tolist())
        compared += len(theirs)
        largest = max([largest, *(abs(float(ours[i]) - value) for i, value in theirs.items())])
    assert compared >= 50
    return largest


def prefixes(count=6, length=20):
    return torch.randint(5, 512, (count, length), generator=torch.Generator().manual_seed(1))


@pytest.mark.parametrize("case", DECODERS)
def test_llama_cpp_gives_the_log_probabilities_of_an_exported_model(case, files):
    pytest.importorskip("xllamacpp")
    run, file = files(case)
    with LlamaCpp(file) as peer:
        assert largest_difference(model_of(run), peer, prefixes()) < 0.01


@pytest.mark.parametrize("kind", ["gpt2", "gpt_neox", "llama"])
def test_llama_cpp_gives_the_log_probabilities_of_a_model_of_transformers(kind, peers, tmp_path):
    pytest.importorskip("xllamacpp")
    _, theirs, run = peers(kind)
    with LlamaCpp(export_gguf(run, out=tmp_path / "model.gguf")) as peer, torch.no_grad():
        for ids in prefixes():
            expected = theirs(ids[None]).logits[0, -1].log_softmax(-1)
            for i, value in peer.log_probabilities(ids.tolist()).items():
                assert abs(float(expected[i]) - value) < 0.01


@pytest.mark.parametrize("dtype", DTYPES[1:])
def test_llama_cpp_gives_the_log_probabilities_of_an_imported_file_in_each_dtype(dtype, files, tmp_path):
    """The imported run has the dequantized weights. llama.cpp also rounds activations, to 8 bits beside Q8_0."""
    pytest.importorskip("xllamacpp")
    _, file = files("qwen3", dtype)
    again = import_gguf(file, out=tmp_path / "run")
    with LlamaCpp(file) as peer:
        difference = largest_difference(model_of(again), peer, prefixes())
    assert difference < {"f16": 0.01, "bf16": 0.05, "q8_0": 0.15}[dtype]


@pytest.mark.parametrize("case", DECODERS)
def test_an_imported_file_is_the_same_model(case, files, tmp_path):
    run, file = files(case)
    card = file.with_name(f"{file.name}.md").read_text(encoding="utf-8")
    assert f"- export-gguf could write the run as {case.split(',')[0]} of llama.cpp" in card
    again = import_gguf(file, out=tmp_path / "run")
    assert Run(again).recipe.model == Run(run).recipe.model
    assert Run(again).tokenizer().fingerprint == Run(run).tokenizer().fingerprint
    restored = model_of(again).state_dict()
    for name, weight in model_of(run).state_dict().items():
        assert torch.equal(restored[name], weight), name
    assert generate(again, prompt="import ", tokens=5, greedy=True) == generate(
        run, prompt="import ", tokens=5, greedy=True
    )


@pytest.mark.parametrize("dtype", DTYPES)
def test_the_package_gguf_reads_the_same_weights(dtype, files, tmp_path):
    run, file = files("qwen3", dtype)
    again = model_of(import_gguf(file, out=tmp_path / "run")).state_dict()
    theirs = {each.name: each for each in gguf.GGUFReader(file).tensors}
    for peer, mine in (("blk.1.ffn_gate", "blocks.1.mlp.gate"), ("blk.0.attn_q_norm", "blocks.0.attention.query_norm")):
        tensor = theirs[f"{peer}.weight"]
        expected = gguf.dequantize(tensor.data, tensor.tensor_type)
        np.testing.assert_array_equal(again[f"decoder.{mine}.weight"].numpy(), expected)
        exact = model_of(run).state_dict()[f"decoder.{mine}.weight"].numpy()
        np.testing.assert_allclose(expected, exact, rtol=0.01, atol=0.005)
        kind = "F32" if tensor.data.ndim == 1 else dtype.upper()
        assert tensor.tensor_type.name == kind


def test_rows_that_no_block_divides_are_float16(tok, tmp_path):
    run = random_run(tmp_path / "run", tok, width=40, rotary_width=2)
    file = export_gguf(run, out=tmp_path / "odd.gguf", dtype="q8_0")
    kinds = {each.name: each.tensor_type.name for each in gguf.GGUFReader(file).tensors}
    assert kinds["token_embd.weight"] == "F16"
    assert kinds["blk.0.ffn_down.weight"] == "Q8_0"  # rows of 96
    assert model_of(import_gguf(file, out=tmp_path / "again"))


def test_llama_cpp_writes_the_same_text_and_reads_the_start_token(trained_gpt, tmp_path):
    pytest.importorskip("xllamacpp")
    file = export_gguf(trained_gpt, out=tmp_path / "gpt.gguf")
    ours, prompts = Run(trained_gpt).tokenizer(), [f"{text} " for text in ("import", "def", "class", "return", "#")]
    start = [ours.special_tokens[END_OF_TEXT]]
    with LlamaCpp(file) as peer:
        for text in (*TEXTS, *prompts):
            assert peer.ids(text) == ours.encode_ordinary(text)
            assert peer.ids(text, around=True) == start + ours.encode_ordinary(text)
        assert peer.ids(END_OF_TEXT, special=True) == start
        for prompt in prompts:
            written = peer.greedy(peer.ids(prompt, around=True), 12)
            expected = generate(trained_gpt, prompt=prompt, tokens=12, greedy=True, device="cpu")
            assert ours.decode([i for i in written if i not in start]) == expected


@pytest.mark.parametrize("kind", ["wordpiece", "bpe"])
def test_llama_cpp_gives_the_vectors_of_embed(kind, tok, wordpiece_run, tmp_path):
    pytest.importorskip("xllamacpp")
    tok = Run(wordpiece_run).tokenizer() if kind == "wordpiece" else tok
    run = random_run(tmp_path / "run", tok, **ENCODER)
    texts = ["It was a dark night.", "def main(x): return 1", " Hello wörld again"]
    (tmp_path / "texts.jsonl").write_text("".join(json.dumps({"text": text}) + "\n" for text in texts))
    ours = np.load(embed(run, tmp_path / "texts.jsonl", out=tmp_path / "vectors.npy"))
    with LlamaCpp(export_gguf(run, out=tmp_path / "bert.gguf"), embedding=True) as peer:
        for text, vector in zip(texts, ours, strict=True):
            ((theirs,),) = [each["embedding"] for each in peer.ask("/embedding", content=text)]
            np.testing.assert_allclose(theirs, vector / np.linalg.norm(vector), atol=1e-3)


def test_an_imported_encoder_reads_texts_between_the_same_tokens(tok, tmp_path):
    run = random_run(tmp_path / "run", tok, **ENCODER, bias=True, token_types=2)
    file = export_gguf(run, out=tmp_path / "bert.gguf", dtype="f32")
    with pytest.warns(UserWarning, match="no masked-token head"):
        again = import_gguf(file, out=tmp_path / "again")
    assert Run(again).recipe.model == Run(run).recipe.model
    (tmp_path / "text.txt").write_text("It was a dark night.")
    vectors = [np.load(embed(each, tmp_path / "text.txt", out=tmp_path / f"{each.name}.npy")) for each in (run, again)]
    np.testing.assert_array_equal(*vectors)


# Tokenizers


BYTES = b" \t\n\r'sStTlLrReEvVmMdDabXYZ0129!?.,-_/" + bytes(range(0x80, 0xC0)) + b"\xc2\xc3\xce\xcf\xd0\xe2\xe3\xe6\xf0"


def every_pair(pattern):
    """Return a vocabulary of the bytes and all pairs of many bytes, in which differences of splits show."""
    single = [bytes([byte]) for byte in range(256)]
    merges = [(bytes([left]), bytes([right])) for left, right in itertools.product(BYTES, BYTES)]
    ids = {token: i for i, token in enumerate([*single, *map(b"".join, merges)])}
    return Tokenizer.from_merges(ids, merges, pattern, {END_OF_TEXT: len(ids)})


def in_llama_cpp(tok, tmp_path, **options):
    """Return llama.cpp with a tokenizer in the smallest of models."""
    run = random_run(tmp_path / "small", tok, width=8, layers=1, heads=1, mlp_width=8)
    return LlamaCpp(export_gguf(run, out=tmp_path / "small.gguf", dtype="f16", **options))


@pytest.mark.parametrize("pattern", ["gpt2", "llama3", "qwen2"])
def test_llama_cpp_splits_as_the_patterns_that_are_written(pattern, tmp_path):
    pytest.importorskip("xllamacpp")
    ours = every_pair(pattern)
    with in_llama_cpp(ours, tmp_path) as peer:
        for text in nasty_strings(300, seed=2):
            assert peer.ids(text) == ours.encode_ordinary(text), text


def superwords(tok, folder):
    """Return a vocabulary whose pretokens are whole texts, but for groups of three digits."""
    tok.save(folder)
    content = json.loads((folder / "tokenizer.json").read_text(encoding="utf-8"))
    steps = [
        {"type": "Split", "pattern": {"Regex": regex}, "behavior": "Isolated", "invert": False}
        for regex in (r"\p{N}+", r"(?=(\d{3})+(?!\d))")
    ]
    content["pre_tokenizer"]["pretokenizers"] = [*steps, content["pre_tokenizer"]["pretokenizers"][-1]]
    (folder / "tokenizer.json").write_text(json.dumps(content), encoding="utf-8")
    return Tokenizer.load(folder)


@pytest.mark.filterwarnings("ignore:the split pattern")
@pytest.mark.parametrize("kind", ["superwords", "bytes"])
def test_llama_cpp_gives_the_ids_of_superwords_and_of_bytes(kind, tok, text_folder, tmp_path):
    pytest.importorskip("xllamacpp")
    ours = superwords(tok, tmp_path) if kind == "superwords" else Tokenizer.train(sorted(text_folder.iterdir()), 261)
    with in_llama_cpp(ours, tmp_path) as peer:
        for text in (*nasty_strings(100, seed=3), *TEXTS, "1234567 12 1234"):
            assert peer.ids(text) == ours.encode_ordinary(text), text


def test_llama_cpp_gives_the_ids_of_word_pieces(wordpiece_run, tmp_path):
    pytest.importorskip("xllamacpp")
    ours = Run(wordpiece_run).tokenizer()
    run = random_run(tmp_path / "run", ours, **ENCODER)
    with LlamaCpp(export_gguf(run, out=tmp_path / "bert.gguf")) as peer:
        for text in (*nasty_strings(200, seed=4, any_script=False), *TEXTS):
            assert peer.ids(text) == ours.encode_ordinary(text), text


def test_llama_cpp_gives_the_ids_of_bpe_over_characters(text_folder, tmp_path):
    pytest.importorskip("xllamacpp")
    ours = Tokenizer.train(sorted(text_folder.iterdir()), 600, "llama2", kind="character-bpe")
    with in_llama_cpp(ours, tmp_path) as peer:
        for text in (*nasty_strings(300, seed=5), *TEXTS, "<unk>", "<0x41>", "\u2581 a ", "x" * 3000):
            assert peer.ids(text) == ours.encode_ordinary(text), text
    again = import_gguf(tmp_path / "small.gguf", out=tmp_path / "again")
    assert Run(again).tokenizer().fingerprint == ours.fingerprint


# Refusals


@pytest.mark.parametrize(
    ("fields", "words"),
    [
        ({"activation": "relu2"}, "model.activation = 'gelu' or 'gelu_tanh', not 'relu2'"),
        (LLAMA | {"qk_norm": True, "activation": "relu2"}, "qwen3 would need model.activation = 'swiglu', not 'relu2'"),
        ({"window": 8}, "model.window = 0, not 8"),
        ({"soft_cap": 30.0}, "model.soft_cap"),
        ({"rotary_scaling": "yarn", "rotary_factor": 2.0, "rotary_original_length": 32}, "model.rotary_scaling"),
        ({"architecture": "encoder"}, "bert would need model.positions = 'learned', not 'rotary'"),
    ],
)
def test_a_model_that_llama_cpp_cannot_express_is_refused_by_field(fields, words, tok, tmp_path):
    run = random_run(tmp_path / "run", tok, **fields)
    with pytest.raises(ValueError, match=r"no architecture of llama\.cpp") as refusal:
        export_gguf(run, out=tmp_path / "out.gguf")
    assert words in str(refusal.value)
    assert [path.name for path in tmp_path.iterdir()] == ["run"]


def test_an_encoder_decoder_is_refused(trained_t5, tmp_path):
    with pytest.raises(ValueError, match=r"none has model\.architecture = 'encoder-decoder'"):
        export_gguf(trained_t5, out=tmp_path / "t5.gguf")


def test_o200k_is_written_only_as_an_approximation_with_a_note(tmp_path, text_folder, in_process):
    run = random_run(tmp_path / "run", Tokenizer.train(sorted(text_folder.iterdir()), 300, "o200k"))
    with pytest.raises(ValueError, match=r"o200k: llama\.cpp splits accents.*add `approximate`"):
        export_gguf(run, out=tmp_path / "out.gguf")
    done = in_process("export-gguf", run, "--out", "out.gguf", "--approximate")
    assert done.returncode == 0, done.stderr
    assert "note: llama.cpp splits accents" in done.stdout


def test_a_normalizer_and_a_regex_are_refused(text_folder, tmp_path):
    for name, tok in {
        "regex": Tokenizer.train(sorted(text_folder.iterdir()), 300, r"\w+|\W"),
        "normalizer": Tokenizer.from_merges(
            {bytes([byte]): byte for byte in range(256)}, [], "gpt2", {END_OF_TEXT: 256}, normalizer="NFC"
        ),
    }.items():
        run = random_run(tmp_path / name, tok)
        with pytest.raises(ValueError, match=r"llama\.cpp") as refusal:
            export_gguf(run, out=tmp_path / "out.gguf", approximate=True)
        assert name in str(refusal.value) or "pre-tokenizer" in str(refusal.value)


def test_bpe_over_characters_that_llama_cpp_would_read_otherwise_is_refused(text_folder, tmp_path):
    texts = sorted(text_folder.iterdir())
    for number, (tok, words) in enumerate(
        [
            (Tokenizer.train(texts, 600, "nmt_nfkc", kind="character-bpe"), "train one with the pattern llama2"),
            (
                Tokenizer.train(texts, 600, "llama2", kind="character-bpe", special_tokens=(END_OF_TEXT, "es")),
                "the text 'es'",
            ),
        ]
    ):
        run = random_run(tmp_path / str(number), tok)
        with pytest.raises(ValueError, match=r"llama\.cpp") as refusal:
            export_gguf(run, out=tmp_path / "out.gguf")
        assert words in str(refusal.value)


def test_existing_files_are_kept(tok, tmp_path):
    run = random_run(tmp_path / "run", tok)
    out = export_gguf(run, out=tmp_path / "out.gguf")
    for existing in (out, Path()):
        with pytest.raises(ValueError, match="exists already"):
            export_gguf(run, out=existing)
    export_gguf(run, out=out, overwrite=True, dtype="f16")
    import_gguf(out, out=tmp_path / "again")
    with pytest.raises(ValueError, match="exists already"):
        import_gguf(out, out=run)
    import_gguf(out, out=tmp_path / "again", overwrite=True)


# Files of others


def rewritten(file, out, drop=(), dtypes=None, architecture="qwen3", **changed):
    """Write a file again with the package `gguf`, without some keys and with others changed."""
    reader = gguf.GGUFReader(file)
    writer = gguf.GGUFWriter(out, architecture)
    for name, field in reader.fields.items():
        if name.startswith("GGUF.") or name in (*drop, "general.architecture", *changed):
            continue
        writer.add_key_value(name, field.contents(), field.types[0], field.types[-1] if len(field.types) > 1 else None)
    for name, value in changed.items():
        kinds = {bool: writer.add_bool, int: writer.add_uint32, str: writer.add_string}
        kinds.get(type(value), writer.add_array)(name, value)
    for tensor in reader.tensors:
        writer.add_tensor(tensor.name, tensor.data, raw_dtype=(dtypes or {}).get(tensor.name, tensor.tensor_type))
    writer.write_header_to_file()
    writer.write_kv_data_to_file()
    writer.write_tensors_to_file()
    writer.close()
    return out


def test_a_file_without_our_keys_is_the_same_model(files, tmp_path):
    run, file = files("qwen3")
    foreign = rewritten(file, tmp_path / "foreign.gguf", drop=("tokenizer.huggingface.json", "qwen3.vocab_size"))
    again = import_gguf(foreign, out=tmp_path / "run")
    assert Run(again).recipe.model == Run(run).recipe.model
    ours, theirs = (Run(each).tokenizer() for each in (run, again))
    assert theirs.special_tokens == ours.special_tokens
    for text in (*TEXTS, *nasty_strings(50, seed=5)):
        assert theirs.encode_ordinary(text) == ours.encode_ordinary(text)


GGML, HF = "tokenizer.ggml.", "tokenizer.huggingface.json"


@pytest.mark.filterwarnings("ignore:.*no masked-token head")
def test_an_encoder_that_llama_cpp_converted_until_2025_reads_its_start_token(tmp_path):
    special = ("[PAD]", "[UNK]", "[CLS]", "[SEP]", "[MASK]")
    tok = Tokenizer.train(["it was a dark and stormy night"] * 9, 60, kind="wordpiece", special_tokens=special)
    facts = {"imported_from": "a folder", "roles": {CLS: 2, SEP: 3, MASK: 4}}
    run = random_run(tmp_path / "run", tok, facts, **ENCODER, token_types=2)
    file = export_gguf(run, out=tmp_path / "bert.gguf")
    later = [f"{GGML}{name}" for name in ("bos_token_id", "eos_token_id", "add_bos_token", "add_eos_token")]
    old = rewritten(file, tmp_path / "old.gguf", drop=(*later, HF), architecture="bert")
    again = import_gguf(old, out=tmp_path / "again")
    (tmp_path / "text.txt").write_text("it was a dark night")
    vectors = [np.load(embed(each, tmp_path / "text.txt", out=tmp_path / f"{each.name}.npy")) for each in (run, again)]
    np.testing.assert_array_equal(*vectors)
    damaged = rewritten(old, tmp_path / "damaged.gguf", drop=(f"{GGML}cls_token_id",), architecture="bert")
    with pytest.raises(ValueError, match=r"damaged\.gguf has no tokenizer\.ggml\.bos_token_id"):
        import_gguf(damaged, out=tmp_path / "none")


def test_up_to_three_ids_that_end_a_text_survive_export_and_import(tok, tmp_path):
    for number, stops in enumerate([(0,), (0, 2), (0, 2, 1)]):
        run = random_run(tmp_path / f"run-{number}", tok, {"special_ids": {"eos_token_id": [*stops]}})
        again = import_gguf(export_gguf(run, out=tmp_path / f"{number}.gguf"), out=tmp_path / f"again-{number}")
        assert text_ids(Run(again), tok).stops == stops
    run = random_run(tmp_path / "run", tok, {"special_ids": {"eos_token_id": [0, 1, 2, 3]}})
    with pytest.raises(ValueError, match="the run stops at any of 4 ids"):
        export_gguf(run, out=tmp_path / "out.gguf")


@pytest.mark.parametrize("name", ["llama-bpe", "llama3", "llama-v3", "falcon3", "pixtral", "lfm2"])
def test_whole_tokens_are_found_first_with_the_pre_tokenizers_of_llama_3(name):
    tokens = [*map(spell, map(bytes, zip(range(256), strict=True))), "ab", "abc"]
    keys = {"model": "gpt2", "pre": name, "tokens": tokens, "token_type": [1] * 258, "merges": ["a b"]}
    tok = Tokenizer(gguf_vocabulary({f"{GGML}{key}": value for key, value in keys.items()}))
    assert tok.encode("abc") == [257]


@pytest.mark.parametrize(
    ("changes", "words"),
    [
        ({"qwen3.expert_count": 4}, "qwen3.expert_count = 4, which is not supported"),
        ({"drop": ("qwen3.block_count",)}, "has no qwen3.block_count"),
        ({"qwen3.block_count": 3}, "the weights have no blk.2"),
        ({"qwen3.attention.head_count": 8}, "has the shape"),
        ({"qwen3.rope.scaling.type": "yarn"}, "qwen3.rope.scaling.type = 'yarn', which is not supported"),
        ({"qwen3.rope.dimension_count": 8}, "qwen3.rope.dimension_count = 8"),
        ({"general.architecture": "mamba"}, "general.architecture = 'mamba': bytelm reads"),
        ({"split.count": 2}, "one of 2 parts"),
        ({"split.count": "2"}, "damaged (split.count is '2')"),
        ({"split.count": [2]}, "damaged (split.count is [2])"),
        ({f"{GGML}tokens": ["a"]}, "tokens"),
        ({"drop": (HF,), f"{GGML}pre": "tekken"}, f"{GGML}pre = 'tekken', which is not supported"),
        ({"drop": (HF,), f"{GGML}model": "llama"}, "only byte-level BPE"),
        ({f"{GGML}bos_token_id": 99999}, "bos_token_id = 99999, which is no id"),
        ({"drop": (f"{GGML}bos_token_id",)}, f"puts a start token before texts, but has no {GGML}bos_token_id"),
        ({HF: "{"}, f"{HF} that is not JSON"),
    ],
)
def test_a_file_that_cannot_be_imported_is_refused_by_key(changes, words, files, tmp_path, in_process):
    _, file = files("qwen3")
    options = {"drop": ()} | changes
    architecture = options.pop("general.architecture", None)
    rewritten(file, tmp_path / "bad.gguf", **options)
    if architecture:
        data = (tmp_path / "bad.gguf").read_bytes()
        (tmp_path / "bad.gguf").write_bytes(data.replace(b"qwen3", architecture.encode()))
    done = in_process("import-gguf", "bad.gguf", "--out", "run")
    assert done.returncode == 1
    assert words in done.stderr
    assert "bad.gguf" in done.stderr or "the weights" in done.stderr or "the file" in done.stderr
    assert "Traceback" not in done.stderr
    assert not (tmp_path / "run").exists()


def test_a_tensor_in_another_quantization_is_named(files, tmp_path):
    _, file = files("qwen3")
    data = file.read_bytes()
    place = data.index(b"blk.0.attn_q.weight") + len(b"blk.0.attn_q.weight") + 4 + 16
    damaged = tmp_path / "q4.gguf"
    damaged.write_bytes(data[:place] + struct.pack("<I", 12) + data[place + 4 :])
    with pytest.raises(ValueError, match=r"blk\.0\.attn_q\.weight in Q4_K: take a file of the same model in F32"):
        import_gguf(damaged, out=tmp_path / "run")


def test_a_file_that_names_huge_lengths_is_refused_at_once(tmp_path):
    key = struct.pack("<Q", 1) + b"k"
    cases = {
        "array": struct.pack("<QQ", 0, 1) + key + struct.pack("<IIQ", 9, 0, 1 << 60),
        "strings": struct.pack("<QQ", 0, 1) + key + struct.pack("<IIQ", 9, 8, 1 << 60),
        "nested": struct.pack("<QQ", 0, 1) + key + struct.pack("<IIQ", 9, 9, 1),
        "keys": struct.pack("<QQ", 0, 1 << 60),
        "tensors": struct.pack("<QQ", 1 << 60, 0),
        "text": struct.pack("<QQ", 0, 1) + struct.pack("<Q", 1 << 60),
        "rows": struct.pack("<QQ", 1, 0) + key + struct.pack("<IQQIQ", 2, 1 << 40, 1 << 40, 0, 0),
        "no gguf": b"",
    }
    for name, body in cases.items():
        path = tmp_path / name
        path.write_bytes((b"GGUF" + struct.pack("<I", 3) + body) if body else b"PK")
        with pytest.raises(ValueError, match=r"damaged|not a GGUF file"):
            import_gguf(path, out=tmp_path / "run")


@pytest.mark.parametrize(
    ("recipe", "sentence"),
    [
        ("gpt-tiny", "export-gguf could write the run as gptneox of llama.cpp"),
        ("gpt-small", "export-gguf could not write the run: qwen3 would need model.activation = 'swiglu', not 'relu2'"),
        ("gpt-small-portable", "export-gguf could write the run as qwen3 of llama.cpp"),
        ("t5-tiny", "export-gguf could not write the run: none has model.architecture = 'encoder-decoder'"),
    ],
)
def test_a_plan_names_the_options_that_close_an_export(recipe, sentence, tok):
    config = replace(load_recipe(recipe).model, vocab_size=512)
    assert sentence in possible_exports(config, tok, {})


def test_a_plan_names_a_tokenizer_that_closes_an_export(tmp_path, text_folder):
    tok = Tokenizer.train(sorted(text_folder.iterdir()), 300, "o200k")
    sentences = list(possible_exports(replace(load_recipe("gpt-tiny").model, vocab_size=300), tok, {}))
    assert "export-gguf could not write the run: llama.cpp has no pre-tokenizer" in sentences[1]


def test_a_dry_run_names_the_special_tokens_that_prevent_an_export(tok, tmp_path):
    endless = Tokenizer.train(["import os"], 258, special_tokens=("<s>",))
    for number, (vocabulary, facts, words) in enumerate(
        [
            (tok, {"around_text": {"before": [1, 2], "after": []}}, "the run reads 2 ids before a text"),
            (endless, {}, "the tokenizer has no token that ends a text"),
        ]
    ):
        run = Run(random_run(tmp_path / str(number), vocabulary, facts))
        with pytest.raises(ValueError, match=words) as refusal:
            export_gguf(run.folder, out=tmp_path / "out.gguf")
        sentences = possible_exports(run.recipe.model, vocabulary, run.facts)
        assert f"export-gguf could not write the run: {refusal.value}" in sentences


@pytest.mark.slow
def test_the_card_says_how_to_run_the_file(tok, tmp_path):
    pytest.importorskip("xllamacpp")
    import subprocess
    import sys

    run = random_run(tmp_path / "run", tok)
    export_gguf(run, out=tmp_path / "out.gguf")
    card = (tmp_path / "out.gguf.md").read_text(encoding="utf-8")
    code = card.split("```python\n")[1].split("```")[0]
    done = subprocess.run([sys.executable, "-c", code], cwd=tmp_path, capture_output=True, text=True, timeout=60)
    assert done.stdout.strip(), done.stderr[-500:]
