"""Verbs and trained runs, used from Python as in a notebook."""

import ast
import inspect
import re
import shutil
import subprocess
import sys
from contextlib import nullcontext
from dataclasses import fields, replace
from pathlib import Path
from typing import Annotated, Literal, get_args, get_origin, get_type_hints

import numpy as np
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

import bytelm
from lm.config import ModelConfig
from pipelines.cli.dispatch import main, verbs
from pipelines.cli.escapes import as_options
from pipelines.recipes.config import TrainConfig
from pipelines.recipes.finetune_config import FinetuneConfig
from pipelines.recipes.recipe import Recipe

ROOT = Path(__file__).parents[2]
# The functions of verbs. `bytelm corpus` has none: corpora are opened by the package `corpora`.
FUNCTIONS = {verb: verb.replace("-", "_") for verb in verbs() if verb != "corpus"} | {"dataset": "verify_dataset"}


def test_importing_bytelm_imports_nothing_else():
    code = "import sys; before = set(sys.modules); import bytelm; print(*(set(sys.modules) - before))"
    done = subprocess.run([sys.executable, "-S", "-c", code], cwd=ROOT, capture_output=True, text=True, check=True)
    assert set(done.stdout.split()) <= {"bytelm"}


@pytest.mark.parametrize("name", ["tokenizer/__init__.py", "lm.py"])
def test_another_package_of_the_same_name_is_named_at_the_import(tmp_path, name):
    (tmp_path / name).parent.mkdir(exist_ok=True)
    (tmp_path / name).touch()
    (tmp_path / "corpora").mkdir()  # a folder without code does not stand in the way
    code = f"import sys; sys.path.append({str(ROOT)!r}); import bytelm"
    done = subprocess.run([sys.executable, "-c", code], cwd=tmp_path, capture_output=True, text=True, check=False)
    package = name.partition("/")[0].removesuffix(".py")
    said = f"ImportError: bytelm has a package {package}, but Python finds {tmp_path / name} first: rename that"
    assert done.stderr.splitlines()[-1] == f"{said} {package}, or start Python in another folder"


def test_warnings_name_the_line_of_the_caller(trained_gpt, tmp_path):
    (tmp_path / "texts").mkdir()
    (tmp_path / "texts" / "gone.txt").symlink_to(tmp_path / "nowhere")
    (tmp_path / "texts" / "a.txt").write_text("one text\n" * 20)
    run, long = bytelm.load_run(trained_gpt), "a b c " * 200
    calls = {
        "was cut off": lambda: run.generate(long, tokens=1),
        "cut off": lambda: bytelm.rank_choices(run, long, ["x", "y"]),
        "left out 1 broken": lambda: bytelm.evaluate(trained_gpt, corpus=[str(tmp_path / "texts")]),
        "the vocabulary has": lambda: bytelm.Tokenizer.train(["aaa"], vocab_size=9999),
        "entries, not 9999": lambda: bytelm.train_tokenizer(tmp_path / "texts", vocab_size=9999, out=tmp_path / "tok"),
    }
    for words, call in calls.items():
        with pytest.warns(UserWarning, match=words) as caught:
            call()
        assert {warning.filename for warning in caught} == {__file__}, words


def test_every_verb_is_a_function_of_bytelm():
    for name in FUNCTIONS.values():
        assert callable(getattr(bytelm, name)), name
        assert name in bytelm.__all__
    assert set(bytelm.__all__) | {"__version__"} <= set(dir(bytelm))
    assert bytelm.__version__
    with pytest.raises(AttributeError, match="no attribute 'pretrian'"):
        _ = bytelm.pretrian


def test_signatures_of_verbs_are_plain():
    for name in bytelm.__all__:
        signature = str(inspect.signature(getattr(bytelm, name)))
        assert "tyro" not in signature and "Annotated" not in signature and "_ArgConfig" not in signature, name
        assert getattr(bytelm, name).__doc__, name
    assert "out: pathlib.Path | str" in str(inspect.signature(bytelm.train_tokenizer))


def test_strings_stand_for_paths_recipes_and_models(text_folder, tmp_path):
    tok, data = str(tmp_path / "tok"), str(tmp_path / "data")
    trained = bytelm.train_tokenizer(str(text_folder), vocab_size=300, out=tok)
    assert bytelm.tokenize("some text", tokenizer=tok).tolist() == trained.encode("some text")
    facts = bytelm.build_dataset(str(text_folder), tokenizer=tok, context_length=32, out=data)
    assert facts.context_length == 32 and facts.splits["train"].tokens == 32 * facts.splits["train"].blocks
    assert str(facts).startswith(f"{facts.corpus.name}: train {facts.splits['train'].tokens:,} tokens in ")
    with pytest.raises(ValueError, match=str(tmp_path)):
        bytelm.pretrain("gpt-tiny", data=str(tmp_path), out=str(tmp_path / "run"))
    assert bytelm.params("gpt2")["parameters"]["total"] == 124_439_808
    assert bytelm.runs(str(tmp_path)) == []


def is_path(annotation):
    """Return whether an argument with this annotation takes local paths, and no URIs."""
    members = set(get_args(annotation)) if get_origin(annotation) is Annotated else set()
    kinds = {annotation, *members, *(kind for each in {annotation, *members} for kind in get_args(each))}
    return any(kind is Path or Path in get_args(kind) for kind in kinds) and str not in kinds


REQUIRED = {
    "build-dataset": ["c", "--tokenizer", "tok", "--out", "o"],
    "carry-over": ["o", "c", "--tokenizer", "tok", "--out", "o"],
    "chat": ["o"],
    "demo": [],
    "embed": ["o", "c", "--out", "o"],
    "entropy": ["c"],
    "evaluate": ["o"],
    "export-gguf": ["o", "--out", "o"],
    "export-hf": ["o", "--out", "o"],
    "export-onnx": ["o", "--out", "o"],
    "figures": ["--out", "o"],
    "finetune": ["o", "--data", "d", "--out", "o"],
    "generate": ["o"],
    "grow-vocabulary": ["o", "c", "--add", "9", "--out", "o"],
    "import-gguf": ["o", "--out", "o"],
    "import-hf": ["o", "--out", "o"],
    "inspect": ["o"],
    "inspect-vocabulary": ["o"],
    "predict": ["o", "text"],
    "pretrain": ["gpt-tiny", "--data", "d", "--out", "o", "--dry-run"],
    "report": ["o"],
    "runs": [],
    "scale": ["c", "--budget", "2h", "--out", "o", "--dry-run"],
    "score": ["o", "text"],
    "serve": ["o"],
    "sweep-vocabulary": ["c", "--out", "o", "--dry-run"],
    "tokenize": ["text", "--tokenizer", "tok"],
    "train": ["c"],
    "train-tokenizer": ["c", "--vocab-size", "300", "--out", "o"],
    "trim-vocabulary": ["o", "c", "--unused", "--out", "o"],
}


def path_options(verb):
    """Return the parameters of a verb that are local paths. The value is true for a positional one."""
    parameters = inspect.signature(inspect.unwrap(getattr(bytelm, FUNCTIONS[verb]))).parameters.values()
    return {each.name: "Positional" in str(each.annotation) for each in parameters if is_path(each.annotation)}


@pytest.mark.parametrize("verb", FUNCTIONS)
def test_a_uri_is_refused_by_name_where_only_a_local_path_is_read_or_written(verb, tmp_path, monkeypatch, capsys):
    monkeypatch.chdir(tmp_path)
    assert bool(path_options(verb)) == (verb in REQUIRED), verb
    for name, positional in path_options(verb).items():
        if positional:
            arguments, option = ["s3://bucket/folder", *REQUIRED[verb][1:]], "(TOKENIZER|RUN|DIR|FOLDER|FILE)"
        else:
            option = f"--{name.replace('_', '-')}"
            arguments = [*REQUIRED[verb], option, "s3://bucket/folder"]
        assert main([verb, *arguments]) == 2
        refused = r"{} is s3://bucket/folder, but must be a local path: only a corpus"
        assert re.search(refused.format(option), capsys.readouterr().err), (verb, option)
        signature = inspect.signature(getattr(bytelm, FUNCTIONS[verb]))
        required = {p.name: "c" for p in signature.parameters.values() if p.default is p.empty}
        required |= {"vocab_size": 300} if "vocab_size" in required else {}
        required = {key: value for key, value in required.items() if key not in ("recipe", "reading", "settings")}
        for uri in ("s3://bucket/folder", Path("s3://bucket/folder")):
            with pytest.raises(ValueError, match=refused.format(f"`{name}`")):
                named = {"recipe": "gpt-tiny"} if verb == "pretrain" else {}
                getattr(bytelm, FUNCTIONS[verb])(**required | named | {name: uri})
    assert not list(tmp_path.iterdir())


# Functions whose arguments are checked, and a value that fits each of their required arguments.
CHECKED = [*FUNCTIONS.values(), "load_run", "score_text", "score_pairs", "score_questions", "rank_choices"]


def required_arguments(name, run):
    """Return a valid value for each required argument of a function of bytelm."""
    values = {"recipe": "gpt-tiny", "model": "gpt2", "vocab_size": 300, "run": "r"}
    if name in ("score_text", "score_pairs", "score_questions", "rank_choices"):
        values |= {"run": run, "choices": ["a", "b"], "paths": ["pairs.jsonl"]}
    parameters = inspect.signature(getattr(bytelm, name)).parameters.values()
    wanted = [each.name for each in parameters if each.default is each.empty and each.kind is not each.VAR_KEYWORD]
    return {key: values.get(key, "c") for key in wanted}


def typed_arguments(name):
    """Return the type of each argument of a function of bytelm, with those of its further options."""
    found = {}
    for each in inspect.signature(inspect.unwrap(getattr(bytelm, name))).parameters.values():
        if each.kind is each.VAR_KEYWORD:
            found |= get_type_hints(get_args(each.annotation)[0], include_extras=True)
        else:
            found[each.name] = each.annotation
    plain = {key: get_args(kind)[0] if get_origin(kind) is Annotated else kind for key, kind in found.items()}
    return {key: [kind, *get_args(kind)] for key, kind in plain.items()}


@pytest.mark.parametrize("name", CHECKED)
def test_every_argument_of_another_type_is_refused_by_name_and_value(name, trained_gpt):
    """The refusal comes before any work, so the other arguments need not name existing files."""
    required = required_arguments(name, bytelm.load_run(trained_gpt, device="cpu"))
    for argument, kinds in typed_arguments(name).items():
        wrong = [object(), b"x", {1: 2}]
        wrong += [] if bool in kinds else [True]
        wrong += [2.5] if int in kinds and float not in kinds else []
        wrong += ["two"] if {int, float, bool} & {*kinds} and str not in kinds else []
        wrong += ["gpu"] if any(get_origin(kind) is Literal for kind in kinds) else []
        wrong += [3] if {str, Path} & {*kinds} and int not in kinds else []
        for value in wrong:
            with pytest.raises(ValueError, match=rf"^`{argument}` is .*, but must be ") as refusal:
                getattr(bytelm, name)(**required | {argument: value})
            assert len(str(refusal.value)) < 400, str(refusal.value)


@pytest.mark.parametrize(
    ("call", "words"),
    [
        (lambda: bytelm.params("gpt2", dtype="fp16"), "`dtype` is 'fp16', but must be one of 'float32', 'bfloat16'"),
        (
            lambda: bytelm.load_run("r", device="gpu"),
            "`device` is 'gpu', but must be one of 'auto', 'cpu', 'cuda', 'mps'",
        ),
        (lambda: bytelm.load_run("r", checkpoint=2.5), "`checkpoint` is 2.5, but must be a string or a whole number"),
        (
            lambda: bytelm.train_tokenizer("c", vocab_size="8k", out="o"),
            "`vocab_size` is '8k', but must be a whole number",
        ),
        (
            lambda: bytelm.train_tokenizer("c", vocab_size=1e4, out="o"),
            "`vocab_size` is 10000.0, but must be a whole numb",
        ),
        (lambda: bytelm.build_dataset("c", tokenizer=3, out="o"), "`tokenizer` is 3, but must be a path or a string"),
        (
            lambda: bytelm.build_dataset("c", tokenizer="t", out="o", pairs=["en"]),
            "`pairs` is .*must be 2 strings or None",
        ),
        (
            lambda: bytelm.build_dataset("c", tokenizer="t", out="o", invalid="drop"),
            "`invalid` is 'drop', but must be one",
        ),
        (lambda: bytelm.pretrain(3, data="d", out="o"), "`recipe` is 3, but must be a Recipe or a string"),
        (
            lambda: bytelm.pretrain("gpt-tiny", data={"d": "half"}, out="o"),
            "`data` is .* from strings or paths to numbers",
        ),
        (
            lambda: bytelm.sweep_vocabulary("c", out="o", kinds=["bpe", "gpt"]),
            "`kinds` is .*each one of 'bpe', 'wordpiece'",
        ),
        (lambda: bytelm.report([3]), r"`runs` is \[3\], but must be a path or a list of paths"),
        (lambda: bytelm.show(quiet="no"), "quiet is 'no', but must be true or false"),
        (lambda: ModelConfig(layers="two"), "model.layers is 'two', but must be a whole number"),
        (lambda: ModelConfig(bias=0), "model.bias is 0, but must be true or false"),
        (lambda: TrainConfig(tokens="2M"), "train.tokens is '2M', but must be a whole number"),
        (
            lambda: TrainConfig(dtype="fp16"),
            "train.dtype is 'fp16', but must be one of 'auto', 'float32', 'bfloat16', 'f",
        ),
        (lambda: FinetuneConfig(device="gpu"), "device is 'gpu', but must be one of 'auto', 'cpu', 'cuda', 'mps'"),
        (lambda: Recipe(objective="masked"), "objective is 'masked', but must be one of 'next-token', 'masked-token'"),
        (lambda: Recipe(model="gpt2"), "model is 'gpt2', but must be a ModelConfig"),
    ],
)
def test_a_wrong_value_is_named_with_what_is_allowed(call, words):
    with pytest.raises(ValueError, match=f"^{words}"):
        call()


def test_an_unknown_argument_is_named_with_the_nearest_one():
    with pytest.raises(TypeError, match=r"build_dataset\(\) has no argument `sufix`: did you mean `suffix`\?"):
        bytelm.build_dataset("c", tokenizer="t", out="o", sufix=".md")


@given(value=st.one_of(st.none(), st.booleans(), st.integers(), st.floats(), st.text(), st.lists(st.integers())))
@pytest.mark.parametrize("field", [field.name for config in (ModelConfig, TrainConfig) for field in fields(config)])
@settings(max_examples=20)
def test_any_value_of_a_setting_is_accepted_or_refused_by_name(field, value):
    config, prefix = (
        (ModelConfig, "model") if field in {each.name for each in fields(ModelConfig)} else (TrainConfig, "train")
    )
    try:
        config(**{field: value})
    except ValueError as refusal:
        assert f"{prefix}.{field}" in str(refusal)


def test_numbers_of_numpy_are_numbers():
    config = ModelConfig(layers=np.int64(3), norm_eps=np.float32(0.5))
    assert (type(config.layers), type(config.norm_eps)) == (int, float)


def test_a_uri_must_be_a_string_because_a_path_drops_a_slash():
    path = Path("s3://bucket/data")
    with pytest.raises(ValueError, match=r"`out` is a URI in a Path \(s3:/bucket/data\): give the URI as a string"):
        bytelm.build_dataset("c", tokenizer="tok", context_length=32, out=path)
    for data in (path, {path: 1, "other": 2}):
        with pytest.raises(ValueError, match="`data` is a URI in a Path"):
            bytelm.pretrain("gpt-tiny", data=data, out="run")


def test_a_uri_is_refused_for_compare_and_for_runs_of_pretrain(capsys):
    compared = ["c", "--vocab-size", "300", "--out", "o", "--compare", "gpt2=s3://bucket/tok"]
    for arguments, option in (
        (["train-tokenizer", *compared], "--compare"),
        (["pretrain", "--out", "s3://bucket/run"], "--out"),
        (["pretrain", "--init-from", "s3://bucket/run", "--data", "d", "--out", "o"], "--init-from"),
    ):
        assert main(arguments) == 2
        assert f"{option} is s3://bucket/" in capsys.readouterr().err


def test_a_report_and_an_evaluation_take_a_run_as_a_string(trained_gpt, tmp_path):
    run = shutil.copytree(trained_gpt, tmp_path / "gpt")
    assert bytelm.evaluate(str(run)).validation.tokens > 0
    page = bytelm.report(str(run), out=str(tmp_path / "page.html"), samples=False, inside=False)
    assert page == tmp_path / "page.html" and page.exists()


def test_functions_print_nothing_unless_asked(text_folder, tmp_path, capfd):
    for name in ("quiet", "shown"):
        with bytelm.show() if name == "shown" else nullcontext():
            bytelm.train_tokenizer(str(text_folder), vocab_size=300, out=tmp_path / name)
            bytelm.params("gpt2")
        output, errors = capfd.readouterr()
        assert ("124,439,808" in output) == (name == "shown")
        assert name == "shown" or not output + errors


def test_logits_of_a_decoder_predict_the_next_token(trained_gpt):
    run = bytelm.load_run(str(trained_gpt))
    text = "def main(self):"
    ids, logits = run.ids(text), run.logits(text)
    assert ids == [run.tokenizer.special_tokens["<|endoftext|>"], *run.tokenizer.encode(text)]
    assert logits.shape == (len(ids), run.config.model.vocab_size) and logits.dtype == torch.float32
    # A decoder does not look ahead: a prefix of the text has the same rows.
    shorter = run.logits("def")
    assert torch.allclose(logits[: len(shorter)], shorter, atol=1e-4)
    assert run.logits("").shape[0] == 1
    with pytest.raises(ValueError, match="only an encoder-decoder takes a target"):
        run.logits(text, "target")
    with pytest.raises(ValueError, match="context"):
        run.logits("word " * 2000)


def test_logits_of_an_encoder_have_a_row_for_each_position(trained_bert):
    run = bytelm.load_run(trained_bert)
    text, special = "def <|mask|>(", run.tokenizer.special_tokens
    ids = run.ids(text)
    assert (ids[0], ids[-1]) == (special["<|cls|>"], special["<|sep|>"]) and special["<|mask|>"] in ids
    assert run.logits(text).shape == (len(ids), run.config.model.vocab_size)


def test_logits_of_an_encoder_decoder_need_a_source_and_a_target(tmp_path):
    (tmp_path / "train.jsonl").write_text('{"en": "a b c", "de": "c b a"}\n' * 200)
    (tmp_path / "validation.jsonl").write_text('{"en": "a c", "de": "c a"}\n')
    pairs, corpus = ("en", "de"), str(tmp_path / "*.jsonl")
    with pytest.warns(UserWarning, match="ran out of pairs"):
        bytelm.train_tokenizer(corpus, pairs=pairs, vocab_size=270, out=tmp_path / "tok")
    bytelm.build_dataset(corpus, pairs=pairs, tokenizer=tmp_path / "tok", out=tmp_path / "data")
    recipe = bytelm.load_recipe("translate-tiny")
    model = {"layers": 1, "decoder_layers": 1, "width": 32, "heads": 2, "mlp_width": 64, "context_length": 16}
    train = {"tokens": 512, "batch_tokens": 256, "warmup_tokens": 256, "dtype": "float32", "device": "cpu"}
    recipe = replace(recipe, model=replace(recipe.model, **model), train=replace(recipe.train, **train))
    run = bytelm.pretrain(recipe, data=tmp_path / "data", out=tmp_path / "run")
    target = run.target_ids("c b a")
    assert run.logits("a b c", "c b a").shape == (len(target), run.config.model.vocab_size)
    with pytest.raises(ValueError, match="needs a target"):
        run.logits("a b c")


def strings_of(module):
    """Yield the text of each string of a module, with `{}` for the expressions of f-strings, and its line."""
    tree = ast.parse(module.read_text(encoding="utf-8"))
    parts = {id(part) for node in ast.walk(tree) if isinstance(node, ast.JoinedStr) for part in node.values}
    for node in ast.walk(tree):
        if isinstance(node, ast.JoinedStr):
            yield "".join(part.value if isinstance(part, ast.Constant) else "{}" for part in node.values), node.lineno
        elif isinstance(node, ast.Constant) and isinstance(node.value, str) and id(node) not in parts:
            yield node.value, node.lineno


def test_no_sentence_of_a_function_names_an_option_of_the_command_line():
    """Sentences name arguments, and the command line shows them as options. A whole command may have options."""
    of_command_line = {"dispatch", "parsing", "completion", "corpus_arguments", "svg", "escapes"}
    for package in ("bytelm", "tokenizer", "lm", "corpora", "pipelines"):
        for module in sorted((ROOT / package).rglob("*.py")):
            if module.stem in of_command_line:
                continue
            for text, line in strings_of(module):
                if re.search(r"^--|\b(bytelm|pretrain|torchrun|ray|usage)\b.* \[?--", text, re.DOTALL):
                    continue  # a word that `main` compares with arguments, or a command
                assert not re.search(r"(?<![\w(-])--[a-z]", text.replace("--help", "")), f"{module}:{line}: {text}"


def test_docstrings_of_functions_speak_python_and_help_speaks_the_command_line(capsys):
    for name in bytelm.__all__:
        assert not re.search(r"(?<!\w)--\w", inspect.getdoc(getattr(bytelm, name))), name
    for verb in FUNCTIONS:
        words = {"pretrain": ["gpt-tiny"], "dataset": ["verify"]}.get(verb, [])
        with pytest.raises(SystemExit):
            main([verb, *words, "--help"])
        assert not re.search(r"`\w+(=[^`]*)?`", capsys.readouterr().out), verb


@pytest.mark.parametrize(
    ("sentence", "shown"),
    [
        ("`top_k` is 0", "--top-k is 0"),
        ("leave out `separator=False`", "leave out --no-separator"),
        ("replace it with `overwrite=True`", "replace it with --overwrite"),
        ("give `train.lr=0.1` or `split='tail:0.1'`", "give --train.lr 0.1 or --split tail:0.1"),
        ("`as_json` has all: see `bytelm --help` and `top_k`", "--json has all: see `bytelm --help` and --top-k"),
    ],
)
def test_the_command_line_shows_arguments_as_options(sentence, shown):
    assert as_options(sentence) == shown


def test_a_message_names_an_argument_in_python_and_an_option_on_the_command_line(tmp_path, monkeypatch, capsys):
    monkeypatch.chdir(tmp_path)
    (tmp_path / "page").mkdir()
    with pytest.raises(ValueError, match=r"^`out='page'` is a folder: name the file to write$"):
        bytelm.report(tmp_path, out="page")
    assert main(["report", str(tmp_path), "--out", "page"]) == 1
    assert capsys.readouterr().err == "bytelm report: --out page is a folder: name the file to write\n"
    corpus = tmp_path / "a.txt"
    corpus.write_text("some text " * 100)
    with bytelm.show():
        bytelm.entropy(str(corpus))
    assert "`explain` defines the numbers" in capsys.readouterr().out
    assert main(["entropy", str(corpus)]) == 0
    assert "--explain defines the numbers" in capsys.readouterr().out
