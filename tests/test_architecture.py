"""The structure of the code: imports point one way and have no cycles, functions and files are short."""

import ast
import re
import runpy
from collections.abc import Iterator
from graphlib import CycleError, TopologicalSorter
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[1]
PACKAGES = ("tokenizer", "lm", "corpora", "pipelines")
MODULES = {
    ".".join(path.relative_to(ROOT).with_suffix("").parts).removesuffix(".__init__"): path
    for package in PACKAGES
    for path in sorted((ROOT / package).rglob("*.py"))
}
KERNELS = "tokenizer.kernels."
VERBS = {name for name in MODULES if name.startswith("pipelines.verbs.")}


def imports(module: str) -> set[str]:
    """Return the modules of ours that a module imports, at its top or inside functions. Imports for types only do not
    count."""
    tree = ast.parse(MODULES[module].read_text(encoding="utf-8"))
    for node in ast.walk(tree):
        if isinstance(node, ast.If) and "TYPE_CHECKING" in ast.unparse(node.test):
            node.body = []
    found = set()
    for node in ast.walk(tree):
        if isinstance(node, ast.Import):
            found |= {alias.name for alias in node.names}
        elif isinstance(node, ast.ImportFrom) and node.module:
            names = {f"{node.module}.{alias.name}" for alias in node.names}
            found |= names & MODULES.keys() or {node.module}
    return found & MODULES.keys() - {module}


def functions(tree: ast.AST) -> Iterator[tuple[str, int]]:
    """Yield the name of every function and its lines, without signature and docstring."""
    for node in ast.walk(tree):
        if isinstance(node, ast.FunctionDef | ast.AsyncFunctionDef):
            body = node.body[ast.get_docstring(node) is not None :]
            yield node.name, body[-1].end_lineno - body[0].lineno + 1 if body else 0


@pytest.mark.parametrize("package", PACKAGES)
def test_imports_point_one_way(package):
    allowed = set(PACKAGES) if package == "pipelines" else {package}
    for module in MODULES:
        if module.split(".")[0] == package:
            assert {name.split(".")[0] for name in imports(module)} <= allowed, module


def test_only_verbs_import_verbs():
    allowed = VERBS | {"pipelines.cli.dispatch", "pipelines.first_model.steps"}  # `train` runs the other verbs
    for module in MODULES.keys() - allowed:
        assert not imports(module) & VERBS, module


def test_imports_have_no_cycles():
    try:
        TopologicalSorter({module: imports(module) for module in MODULES}).prepare()
    except CycleError as error:
        pytest.fail(" -> ".join(error.args[1]))


@pytest.mark.parametrize("module", [name for name in MODULES if not name.startswith(KERNELS)])
def test_functions_have_at_most_60_lines_and_files_400(module):
    source = MODULES[module].read_text(encoding="utf-8")
    assert source.count("\n") <= 400
    assert not [name for name, lines in functions(ast.parse(source)) if lines > 60]


def test_the_picture_of_the_data_path_is_current_and_names_existing_files():
    drawing = runpy.run_path(str(ROOT / "docs" / "data_path.py"))
    assert drawing["PICTURE"].read_text(encoding="utf-8") == drawing["picture"]()
    assert [module for module, _ in drawing["STOPS"] if not (ROOT / module).exists()] == []


def test_files_named_on_the_page_exist():
    page = (ROOT / "docs" / "architecture.md").read_text(encoding="utf-8")
    names = re.findall(r"`((?:tokenizer|lm|corpora|pipelines|tests|docs)/[\w/.]*)`", page)
    assert len(names) > 20
    assert [name for name in names if not (ROOT / name).exists()] == []
