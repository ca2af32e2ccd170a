"""The GPU benchmark measures every part with tiny shapes on a CPU, and continues when a part fails."""

import json
import os
import re
import shutil
import subprocess
import sys
from pathlib import Path

import pytest

from benchmarks import gpu
from benchmarks.gpu import STAGES, first_bits, main
from benchmarks.gpu_session import Finding, Part, Session
from benchmarks.harness import ROOT


@pytest.fixture
def texts(tmp_path):
    """Return a folder with a text that stands in for tinyshakespeare: ASCII of some size."""
    folder = tmp_path / "texts"
    folder.mkdir()
    sources = "".join(path.read_text(encoding="utf-8") for path in sorted(Path(json.__file__).parent.glob("*.py")))
    (folder / "tinyshakespeare.txt").write_text(re.sub(r"[^\x00-\x7f]", "", sources), encoding="utf-8")
    return folder


@pytest.mark.slow
@pytest.mark.parametrize("stage", STAGES)
def test_every_part_of_a_stage_measures_tiny_shapes_on_a_cpu(stage, tmp_path, texts):
    """The script runs with this Python and writes to the folder of a variable."""
    settings = os.environ | {"PYTHON": sys.executable, "BYTELM_RESULTS": str(tmp_path / "out"), "BYTELM_WHEELS": ""}
    words = [ROOT / "benchmarks" / "gpu.sh", stage, "--device", "cpu", "--tiny", "--texts", texts]
    ran = subprocess.run([*map(str, words)], cwd=tmp_path, env=settings, capture_output=True, text=True, check=False)
    assert ran.returncode == 0, ran.stderr
    result = json.loads((tmp_path / "out" / "gpu.json").read_text(encoding="utf-8"))
    assert [part["part"] for part in result["parts"]] == [part.name for part in STAGES[stage]]
    for part in result["parts"]:
        assert all(finding["met"] is None for finding in part["findings"])  # tiny shapes are not judged
        assert all(finding["target"] != "-" for finding in part["findings"])  # nothing failed or was skipped
    assert ran.stdout.strip() == (tmp_path / "out" / "gpu.md").read_text(encoding="utf-8").strip()
    files = [path for path in (tmp_path / "out").rglob("*") if path.is_file()]
    assert len(files) <= 8  # as many as some machines give back


def test_a_part_that_fails_or_is_skipped_does_not_stop_the_others(tmp_path, monkeypatch, capsys):
    def fails(session: Session) -> list[Finding]:
        return session.run("no_such_module") and []

    def skips(session: Session) -> list[Finding]:
        return session.require("no_such_package") or []

    def sleeps(session: Session) -> list[Finding]:
        return session.run("timeit", "-n", 1, "-r", 1, "import time; time.sleep(60)") and []

    def counts(session: Session) -> list[Finding]:
        return [session.judged("one", "1", True)]

    parts = (("fails", 9, fails), ("skips", 9, skips), ("sleeps", 0.4, sleeps), ("counts", 9, counts))
    monkeypatch.setattr(gpu, "STAGES", {"check": [Part(*each) for each in parts]})
    assert main(["check", "--device", "cpu", "--out", str(tmp_path)]) == 1
    page = capsys.readouterr().out
    assert "| check | fails | - | failed: ended with status 1: " in page and "No module named no_such_module" in page
    assert "| check | skips | - | skipped: no_such_package is not installed |" in page
    assert "| check | sleeps | - | failed: took more than 2 s |" in page
    assert "| check | counts | one | 1 |" in page
    monkeypatch.setattr(gpu, "STAGES", {"check": [], "speed": [Part("counts", 9, counts)]})
    assert main(["speed", "--device", "cpu", "--out", str(tmp_path)]) == 0
    parts = json.loads((tmp_path / "gpu.json").read_text(encoding="utf-8"))["parts"]
    assert [part["stage"] for part in parts] == ["check"] * 4 + ["speed"]  # stages may run one by one


def test_a_part_that_runs_again_replaces_its_own_result_and_no_other(tmp_path, monkeypatch, capsys):
    found: list[str] = []

    def counts(session: Session) -> list[Finding]:
        found.append("")
        return [session.judged("target", f"run {len(found)}", True)]

    monkeypatch.setattr(gpu, "STAGES", {"check": [Part("one", 9, counts), Part("two", 9, counts)]})
    where = ["--device", "cpu", "--out", str(tmp_path)]
    assert main(["check", *where]) == 0
    assert main(["check", "--parts", "one", *where]) == 0
    page = (tmp_path / "gpu.md").read_text(encoding="utf-8")
    assert "| one | target | run 3 |" in page and "| two | target | run 2 |" in page and "run 1 |" not in page
    assert "check --parts one" in page  # the command of the last run, and of the run that part two is from:
    assert re.search(r"earlier run, `python -m benchmarks.gpu check --device .*: two\.", page)
    assert main(["check", "--parts", "two", *where]) == 0
    assert re.search(r"earlier run, `python -m benchmarks.gpu check --parts one .*: one\.", capsys.readouterr().out)


@pytest.mark.parametrize("stage", STAGES)
def test_the_limits_of_a_stage_add_up_to_less_than_nine_minutes(stage):
    assert sum(part.limit for part in STAGES[stage]) <= 540 - 5


def test_an_h100_is_judged_by_nine_tenths_and_a_cpu_not_at_all(tmp_path):
    def session(device: str, name: str, tiny: bool = False) -> Session:
        return Session(device, tiny, tmp_path, tmp_path, tmp_path, name)

    assert session("cuda", "NVIDIA H100 80GB HBM3").scaled(550_000) == 495_000
    assert session("cuda", "NVIDIA H200").scaled(550_000) == 550_000
    assert session("cuda", "NVIDIA H200").judged("", "", False).met is False
    assert session("cuda", "NVIDIA H200", tiny=True).judged("", "", True).met is None
    assert session("cpu", "2 cores").judged("", "", True).met is None


def test_bits_per_byte_are_judged_on_books_only(tmp_path):
    session = Session("cuda", False, tmp_path, tmp_path, tmp_path, "NVIDIA H200")
    books, code = (first_bits(session, tmp_path / name, 1.4, "facts") for name in ("books.jsonl.xz", "code-2000.txt"))
    assert (books.met, books.target) == (True, "1.5 bits per byte of books")
    assert (code.met, code.target) == (None, "bits per byte of Python's own sources")


def test_the_script_runs_elsewhere_and_names_what_is_missing(tmp_path):
    script = shutil.which(str(ROOT / "benchmarks" / "gpu.sh"))
    settings = os.environ | {"PYTHON": "/no/such/python"}
    ran = subprocess.run([script, "check"], cwd=tmp_path, env=settings, capture_output=True, text=True, check=False)
    assert ran.returncode == 1 and "no Python with torch" in ran.stderr
