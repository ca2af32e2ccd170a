"""Measure `bytelm serve` over HTTP: tokens/s with several clients, and an endurance run with many clients.

    python -m benchmarks.serve [--run RUN] [--clients 1 4 16] [--seconds 30] [--rounds 3] [--crowd 50] [--endurance 120]

Each client streams completions of prompts of unequal lengths, one request after another. The numbers of clients are
measured in alternation. In the endurance run, clients mix streams, whole answers, scores of prompts, and streams that
they leave early. Results go to `benchmarks/results/serve/`.
"""

import json
import os
import random
import statistics
import subprocess
import sys
import tempfile
import time
from collections import Counter
from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import closing, contextmanager
from dataclasses import dataclass, replace
from http.client import HTTPConnection, HTTPException
from importlib.metadata import version
from pathlib import Path
from urllib.parse import urlsplit

import tyro

from benchmarks.generate import SHAPE
from benchmarks.harness import RESULTS, command_line, heading, machine, met, record, resident_bytes, table, turns
from pipelines.recipes.recipe import load_recipe
from pipelines.run.folder import Run
from pipelines.verbs.build_dataset import build_dataset
from pipelines.verbs.pretrain import pretrain
from pipelines.verbs.train_tokenizer import train_tokenizer

BYTELM = Path(sys.executable).with_name("bytelm")
SPEED_UP = 4.0  # target speed-up of 16 clients over one
GROWTH = 0.05  # largest growth of memory between the second and the last quarter of the endurance run
IN_PROMPT, IN_ANSWER = (8, 128), (16, 128)  # shortest and longest, in tokens
STAGGER_S = 0.5  # the longest time between the starts of clients
KINDS = {"stream": 6, "whole": 2, "score": 1, "left": 1}  # kinds of requests of the endurance run, and their weights


@dataclass(frozen=True, kw_only=True)
class Options:
    """Measure bytelm serve."""

    run: Path | None = None
    """Run folder of a decoder; by default one is trained for 2 steps (6 layers of width 384, 8,192 entries)."""
    clients: tuple[int, ...] = (1, 4, 16)
    """Numbers of clients to measure."""
    seconds: float = 30.0
    """Length of a turn in seconds."""
    rounds: int = 3
    """Turns for each number of clients."""
    crowd: int = 50
    """Number of clients in the endurance run."""
    endurance: float = 120.0
    """Length of the endurance run in seconds."""
    threads: int = 2
    """CPU threads of the server."""
    out: Path = RESULTS / "serve"
    """Results folder."""


@dataclass(frozen=True)
class Served:
    """An answered request: its start, its end and its number of new tokens."""

    begun: float
    ended: float
    tokens: int


class Server:
    """A `bytelm serve` process and its address."""

    def __init__(self, process: subprocess.Popen, run: Path) -> None:
        self.process, self.model = process, run.resolve().name
        process.stdout.readline()
        self.host = urlsplit(process.stdout.readline().strip()).netloc
        if not self.host:
            raise SystemExit(f"bytelm serve did not start: {process.communicate()[1]}")

    def memory(self) -> int:
        """Return the resident memory in bytes."""
        return resident_bytes(process=self.process.pid)

    def cpu_seconds(self) -> float:
        fields = Path(f"/proc/{self.process.pid}/stat").read_text().rpartition(")")[2].split()
        return (int(fields[11]) + int(fields[12])) / os.sysconf("SC_CLK_TCK")

    def complete(self, body: dict, leave: bool = False) -> int:
        """Return the number of new tokens of a completion; 0 if the client leaves after the first event.

        Raises RuntimeError for an error or an incomplete answer.
        """
        with closing(HTTPConnection(self.host, timeout=600)) as connection:
            content = json.dumps(body | {"model": self.model})
            connection.request("POST", "/v1/completions", content, {"Content-Type": "application/json"})
            response = connection.getresponse()
            if response.status != 200:
                raise RuntimeError(f"status {response.status}: {response.read(300).decode()}")
            if not body.get("stream"):
                return json.load(response)["usage"]["completion_tokens"]
            events = [line[6:] for line in _until(response, leave) if line.startswith(b"data: ")]
            if leave:
                return 0
            if events[-1].strip() != b"[DONE]":
                raise RuntimeError(f"the stream ended early: {events[-1][:300].decode()}")
            return json.loads(events[-2])["usage"]["completion_tokens"]


def _until(response: Iterator[bytes], leave: bool) -> Iterator[bytes]:
    """Yield the lines of an answer; with `leave`, only the first."""
    for line in response:
        yield line
        if leave:
            return


@contextmanager
def serving(run: Path, threads: int) -> Iterator[Server]:
    process = subprocess.Popen(
        [BYTELM, "serve", run, "--port", "0", "--device", "cpu"],
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        text=True,
        env=os.environ | {"OMP_NUM_THREADS": str(threads)},
    )
    try:
        yield Server(process, run)
    finally:
        process.terminate()
        process.communicate()


def small_run(folder: Path) -> Path:
    """Return a run of SHAPE, trained for 2 steps on the built-in corpus because its weights do not matter here."""
    tok, data, run = folder / "tokenizer", folder / "data", folder / "decoder"
    train_tokenizer(["stdlib"], vocab_size=SHAPE.vocab_size, out=tok)
    build_dataset(["stdlib"], tokenizer=tok, context_length=SHAPE.context_length, out=data)
    recipe = load_recipe("gpt-tiny")
    train = replace(recipe.train, tokens=2 * recipe.train.batch_tokens, warmup_tokens=0, micro_batch=2, device="cpu")
    if pretrain(replace(recipe, model=SHAPE, train=train), data=data, out=run):
        raise SystemExit("the run was interrupted")
    return run


def request(draws: random.Random, entries: int) -> dict:
    """Return a request with a random prompt, both of random length."""
    prompt = [draws.randrange(5, entries) for _ in range(draws.randint(*IN_PROMPT))]
    tokens, seed = draws.randint(*IN_ANSWER), draws.randrange(2**31)
    return {"prompt": prompt, "max_tokens": tokens, "seed": seed, "temperature": 1.0}


def streamed(draws: random.Random, entries: int) -> dict:
    return request(draws, entries) | {"stream": True, "stream_options": {"include_usage": True}}


def turn(server: Server, clients: int, seconds: float, entries: int, seed: int) -> dict:
    """Return the tokens per second, and per CPU second of the server, of clients that stream one text after another.

    A request that crosses the start or the end of the turn counts in proportion.
    """
    begin = time.perf_counter() + 2 * STAGGER_S
    end = begin + seconds

    def client(number: int) -> list[Served]:
        draws, served = random.Random(f"{seed} {number}"), []
        time.sleep(draws.uniform(0, STAGGER_S))
        while (begun := time.perf_counter()) < end:
            tokens = server.complete(streamed(draws, entries))
            served.append(Served(begun, time.perf_counter(), tokens))
        return served

    with ThreadPoolExecutor(clients + 1) as pool:
        working = [pool.submit(client, number) for number in range(clients)]
        time.sleep(max(0.0, begin - time.perf_counter()))
        used = server.cpu_seconds()
        time.sleep(max(0.0, end - time.perf_counter()))
        used = server.cpu_seconds() - used
        served = [each for client in working for each in client.result()]
    tokens = sum(
        each.tokens * max(0.0, min(each.ended, end) - max(each.begun, begin)) / (each.ended - each.begun)
        for each in served
    )
    return {"clients": clients, "tokens_per_s": tokens / seconds, "tokens_per_cpu_s": tokens / used}


def endure(server: Server, clients: int, seconds: float, entries: int) -> dict:
    """Return the counts of requests and errors of many clients, and the server's memory over time.

    A request is lost if it has no answer or an incomplete one.
    """
    before, end = server.memory(), time.perf_counter() + seconds
    asked, answered, errors = Counter(), Counter(), []

    def client(number: int) -> None:
        draws = random.Random(number)
        time.sleep(draws.uniform(0, STAGGER_S))
        while time.perf_counter() < end:
            kind = draws.choices([*KINDS], [*KINDS.values()])[0]
            asked[kind] += 1
            try:
                ACTIONS[kind](server, draws, entries)
                answered[kind] += 1
            except (OSError, RuntimeError, HTTPException, ValueError) as error:
                errors.append(f"{kind}: {type(error).__name__}: {error}")

    memory = []
    with ThreadPoolExecutor(clients) as pool:
        working = [pool.submit(client, number) for number in range(clients)]
        while time.perf_counter() < end:
            time.sleep(min(1.0, seconds / 20))
            memory.append(server.memory())
        for each in working:
            each.result()
    quarter = max(1, len(memory) // 4)
    return {
        "clients": clients,
        "seconds": seconds,
        "asked": dict(asked),
        "answered": dict(answered),
        "errors": errors[:20],
        "lost": asked.total() - answered.total(),
        "memory_before": before,
        "memory": memory,
        "memory_first": statistics.median(memory[quarter : 2 * quarter] or memory),
        "memory_last": statistics.median(memory[-quarter:]),
    }


def _score(server: Server, draws: random.Random, entries: int) -> None:
    server.complete(request(draws, entries) | {"max_tokens": 1, "echo": True, "logprobs": 1, "temperature": 0.0})


ACTIONS: dict[str, Callable[[Server, random.Random, int], object]] = {
    "stream": lambda server, draws, entries: server.complete(streamed(draws, entries)),
    "whole": lambda server, draws, entries: server.complete(request(draws, entries)),
    "score": _score,
    "left": lambda server, draws, entries: server.complete(streamed(draws, entries), leave=True),
}


def measure(run: Path, options: Options) -> dict:
    entries = 256 + 5  # ids that every tokenizer of ours has
    measured = []
    with serving(run, options.threads) as server:
        server.complete(streamed(random.Random(0), entries))
        for number, clients in turns(options.clients, options.rounds):
            measured.append(turn(server, clients, options.seconds, entries, number))
            print(json.dumps(measured[-1]), flush=True)
        crowd = endure(server, options.crowd, options.endurance, entries)
    return {"turns": measured, "crowd": crowd}


def main(arguments: list[str]) -> None:
    options = tyro.cli(Options, args=arguments, prog="python -m benchmarks.serve")
    with tempfile.TemporaryDirectory() as folder:
        run = options.run or small_run(Path(folder))
        model = Run(run).recipe.model
        measured = measure(run, options)
    result = {
        "command": command_line("benchmarks.serve", arguments),
        "device": machine() | {"threads": options.threads, "load": os.getloadavg()[1]},
        "versions": {name: version(name) for name in ("torch", "pydantic", "starlette", "uvicorn")},
        "model": {name: getattr(model, name) for name in ("layers", "width", "vocab_size", "context_length")},
        **measured,
    }
    record(options.out, "cpu", result, markdown(result))


def markdown(result: dict) -> str:
    device, crowd, model = result["device"], result["crowd"], result["model"]
    versions = ", ".join(f"{name} {number}" for name, number in result["versions"].items())
    facts = f"{device['processor']}, {device['threads']} threads; {versions}; load average {device['load']:.0f}"
    answered, asked = (sum(crowd[name].values()) for name in ("answered", "asked"))
    growth = crowd["memory_last"] / crowd["memory_first"] - 1
    kinds = ", ".join(f"{number:,} {kind}" for kind, number in sorted(crowd["asked"].items()))
    return "\n".join(
        [
            *heading("Serving several clients", result["command"], facts),
            f"Clients stream completions of a decoder ({model['layers']} layers of width {model['width']}, "
            f"{model['vocab_size']:,} entries) over HTTP, one after another. A prompt has "
            f"{IN_PROMPT[0]} to {IN_PROMPT[1]} tokens and a completion {IN_ANSWER[0]} to {IN_ANSWER[1]}. Clients share "
            "the machine with the server. The numbers of clients alternate; rates are medians. Other processes slow "
            "all turns, some more than others; the ratio per CPU second is the steadier one.",
            "",
            *table(
                (
                    "clients",
                    "tokens/s",
                    "ratio",
                    "tokens per CPU second of the server",
                    "ratio",
                    "target (tokens/s)",
                    "",
                ),
                _rates(result),
            ),
            "",
            f"In {crowd['seconds']:g} s, {crowd['clients']} clients sent {asked:,} requests ({kinds}): "
            f"{answered:,} were answered, {crowd['lost']} lost ({met(crowd['lost'] == 0)}). The server's memory was "
            f"{crowd['memory_before'] / 1e6:,.0f} MB before, {crowd['memory_first'] / 1e6:,.0f} MB in the second "
            f"quarter and {crowd['memory_last'] / 1e6:,.0f} MB in the last: {growth:+.1%} ({met(growth <= GROWTH)}).",
            "",
        ]
    )


def _rates(result: dict) -> Iterator[list[str]]:
    def rate(clients: int, unit: str) -> float:
        return statistics.median(each[unit] for each in result["turns"] if each["clients"] == clients)

    numbers = sorted({each["clients"] for each in result["turns"]})
    for clients in numbers:
        ratio = rate(clients, "tokens_per_s") / rate(numbers[0], "tokens_per_s")
        cpu_ratio = rate(clients, "tokens_per_cpu_s") / rate(numbers[0], "tokens_per_cpu_s")
        targeted = clients == 16 and numbers[0] == 1
        yield [
            str(clients),
            f"{rate(clients, 'tokens_per_s'):,.0f}",
            f"{ratio:.2f}",
            f"{rate(clients, 'tokens_per_cpu_s'):,.0f}",
            f"{cpu_ratio:.2f}",
            str(SPEED_UP) if targeted else "",
            met(ratio >= SPEED_UP) if targeted else "",
        ]


if __name__ == "__main__":
    main(sys.argv[1:])
