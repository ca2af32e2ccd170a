"""The command: its server on a free port, its refusals, and its end."""

import asyncio
import json
import shutil
import signal
import socket
import subprocess
import threading
import time
from contextlib import contextmanager
from dataclasses import replace
from urllib.request import Request, urlopen

import pytest
from starlette.applications import Starlette
from starlette.routing import Route

from pipelines.recipes.recipe import save_config
from pipelines.run.folder import Run
from pipelines.serving.lifetime import Lifetime, Limits
from pipelines.serving.server import serve_until_interrupted
from tests.conftest import BYTELM, without_waiting


@contextmanager
def served(*arguments):
    """Start the command on a free port; return its process and the lines that it printed."""
    words = [str(BYTELM), "serve", *map(str, arguments), "--port", "0", "--device", "cpu"]
    process = subprocess.Popen(words, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True)
    try:
        lines = [process.stdout.readline().rstrip() for _ in range(2)]
        assert lines[1], process.communicate()
        yield process, lines
    finally:
        process.kill()
        process.wait()


def post(address, path, body, **headers):
    data = json.dumps(body).encode()
    return urlopen(Request(address + path, data, {"Content-Type": "application/json", **headers}), timeout=300)


def test_ctrl_c_ends_open_streams_and_the_server(trained_gpt):
    with served(trained_gpt) as (process, (names, address)):
        assert names == "serving gpt" and address.startswith("http://127.0.0.1:")
        body = {"prompt": "import", "max_tokens": 20, "n": 1024, "stream": True}
        stream = post(address, "v1/completions", body)
        assert stream.readline().startswith(b'data: {"id":"cmpl-')
        process.send_signal(signal.SIGINT)
        rest = stream.read().decode().strip()
        _, errors = process.communicate(timeout=300)
    assert "shutting down" in json.loads(rest.split("\n\n")[-1].removeprefix("data: "))["error"]["message"]
    assert process.returncode == 130
    assert without_waiting(errors) == "bytelm serve: interrupted\n"


def test_ctrl_c_does_not_wait_for_a_thread_that_works_for_a_request():
    release, errors = threading.Event(), []

    async def work(request):
        threading.Timer(0.1, signal.raise_signal, [signal.SIGINT]).start()
        await asyncio.to_thread(release.wait, 20)

    def ask(port):
        with pytest.raises(OSError, match="503") as error:
            post(f"http://127.0.0.1:{port}/", "work", {})
        errors.append(error.value)

    stopping = asyncio.Event()
    app = Lifetime(Starlette(routes=[Route("/work", work, methods=["POST"])]), Limits(), stopping)
    with socket.create_server(("127.0.0.1", 0)) as bound:
        client = threading.Thread(target=ask, args=[bound.getsockname()[1]])
        client.start()
        begun = time.monotonic()
        with pytest.raises(KeyboardInterrupt):
            serve_until_interrupted(app, bound, stopping)
        took = time.monotonic() - begun
    release.set()
    client.join()
    assert took < 10 and b"shutting down" in errors[0].read()


def test_a_server_for_other_machines_prints_its_token_after_the_hash(trained_gpt):
    with served(trained_gpt, "--allow-host", "box.lan") as (_, (_, address)):
        page, token = address.split("#token=")
        port = page.rsplit(":", 1)[1].rstrip("/")
        assert page == f"http://box.lan:{port}/" and len(token) >= 40
        request = {"prompt": "import", "max_tokens": 1}
        here = f"http://127.0.0.1:{port}/"
        with pytest.raises(OSError, match="401"):
            post(here, "v1/completions", request)
        headers = {"Host": f"box.lan:{port}", "Authorization": f"Bearer {token}"}
        assert post(here, "v1/completions", request, **headers).status == 200


def test_a_token_from_a_file_opens_the_server_and_is_not_printed(trained_gpt, tmp_path):
    (file := tmp_path / "token").write_text("0123456789abcdef\n")
    file.chmod(0o600)
    with served(trained_gpt, "--token-file", file, "--allow-origin", "http://app.example") as (_, (_, address)):
        page, _, rest = address.partition("#token=")
        assert page.startswith("http://127.0.0.1:") and rest == f"TOKEN with the TOKEN in {file}"
        with pytest.raises(OSError, match="401"):
            urlopen(page + "v1/models", timeout=300)
        headers = {"Authorization": "Bearer 0123456789abcdef", "Origin": "http://app.example"}
        answer = urlopen(Request(page + "v1/models", headers=headers), timeout=300)
        assert [model["id"] for model in json.load(answer)["data"]] == ["gpt"]
        assert answer.headers["access-control-allow-origin"] == "http://app.example"


def test_a_port_in_use_is_refused_in_one_sentence(trained_gpt, in_process):
    with socket.create_server(("127.0.0.1", 0)) as taken:
        done = in_process("serve", trained_gpt, "--port", taken.getsockname()[1])
    assert done.returncode == 1 and "choose another --port" in done.stderr


@pytest.mark.parametrize(
    ("options", "words"),
    [
        ((), "RUN"),
        (("RUN", "--port", "65536"), "from 0 to 65535"),
        (("RUN", "--host", "no.such.name.invalid"), "--host no.such.name.invalid is not an address"),
        (("RUN", "--host", "192.0.2.1"), "cannot listen on 192.0.2.1"),
        (("RUN", "--port", "0", "--allow-host", "http://box"), "--allow-host http://box is not a host name"),
        (("RUN", "--port", "0", "--allow-origin", "*"), "--allow-origin * is not an origin"),
        (("RUN", "--port", "0", "--token-file", "no-such-file"), "--token-file no-such-file cannot be read"),
        (("nowhere",), "nowhere is not a run"),
    ],
)
def test_mistakes_are_explained_in_one_line(trained_gpt, in_process, options, words):
    done = in_process("serve", *(trained_gpt if each == "RUN" else each for each in options))
    assert done.returncode in (1, 2) and words in done.stderr and done.stderr.count("\n") == 1


def test_a_decoder_with_another_mixer_is_refused_before_it_is_loaded(trained_gpt, tmp_path, in_process):
    folder = shutil.copytree(trained_gpt, tmp_path / "run")
    run = Run(folder)
    recipe = replace(run.recipe, model=replace(run.recipe.model, mixer="gated-linear"))
    save_config(folder / "config.toml", recipe, run.facts)
    done = in_process("serve", folder)
    assert done.returncode == 1 and done.stderr.count("\n") == 1
    assert "is a decoder with the mixer gated-linear, but bytelm serve needs" in done.stderr


def test_two_runs_of_one_name_are_refused(trained_gpt, tmp_path, in_process):
    shutil.copytree(trained_gpt, tmp_path / trained_gpt.name)
    done = in_process("serve", trained_gpt, tmp_path / trained_gpt.name)
    assert done.returncode == 1 and "are both named gpt: rename one of the folders" in done.stderr
