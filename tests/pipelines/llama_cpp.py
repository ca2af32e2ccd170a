"""llama.cpp as a peer: runs a GGUF file in a separate process, because a failed assertion ends the process.

`python llama_cpp.py FILE` reads {"path": request} lines from standard input and answers each with a line.
"""

import json
import subprocess
import sys
import urllib.request
from pathlib import Path


class LlamaCpp:
    """A GGUF file in llama.cpp; a context manager. exact: keep the KV cache in float32, without flash attention."""

    def __init__(self, file, *, exact=True, embedding=False):
        options = json.dumps({"file": str(file), "exact": exact, "embedding": embedding})
        self.process = subprocess.Popen(
            [sys.executable, str(Path(__file__)), options],
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            stderr=subprocess.PIPE,
            text=True,
        )

    def __enter__(self):
        return self

    def __exit__(self, *_):
        self.process.stdin.close()
        self.process.wait(30)
        self.process.stdout.close()
        self.process.stderr.close()

    def ask(self, path, **request):
        try:
            print(json.dumps([path, request]), file=self.process.stdin, flush=True)
            line = self.process.stdout.readline()
        except BrokenPipeError:
            line = ""
        if not line:
            raise AssertionError(f"llama.cpp ended: {self.process.stderr.read()[-3000:]}")
        answer = json.loads(line)
        if "error" in answer:
            raise AssertionError(f"llama.cpp answers {answer['error']}")
        return answer

    def ids(self, text, *, special=False, around=False):
        return self.ask("/tokenize", content=text, add_special=around, parse_special=special)["tokens"]

    def log_probabilities(self, ids, top=50):
        """Return the log-probabilities of the `top` tokens that may follow `ids`, by id.

        The result is empty if the likeliest token ends the text or is part of a character.
        """
        answer = self.ask("/completion", prompt=ids, n_predict=1, n_probs=top, temperature=0, cache_prompt=False)
        places = answer.get("completion_probabilities", [])
        return {each["id"]: each["logprob"] for place in places[:1] for each in place["top_logprobs"]}

    def greedy(self, ids, tokens):
        answer = self.ask(
            "/completion", prompt=ids, n_predict=tokens, temperature=0, return_tokens=True, cache_prompt=False
        )
        return answer["tokens"]


def main(options):
    import xllamacpp

    params = xllamacpp.CommonParams()
    params.model.path = options["file"]
    params.verbosity = 0
    params.warmup = False
    params.use_jinja = True
    params.n_ctx = 0
    params.n_parallel = 1
    params.cpuparams.n_threads = 1
    params.embedding = options["embedding"]
    if options["exact"]:
        params.cache_type_k = params.cache_type_v = xllamacpp.ggml_type.GGML_TYPE_F32
        params.flash_attn_type = xllamacpp.llama_flash_attn_type.LLAMA_FLASH_ATTN_TYPE_DISABLED
    server = xllamacpp.Server(params)
    out = sys.stdout
    for line in sys.stdin:
        path, request = json.loads(line)
        url = urllib.request.Request(
            server.listening_address + path, json.dumps(request).encode(), {"Content-Type": "application/json"}
        )
        try:
            with urllib.request.urlopen(url) as answer:
                content = json.load(answer)
        except urllib.error.HTTPError as error:
            content = {"error": error.read().decode()}
        print(json.dumps(content), file=out, flush=True)


if __name__ == "__main__":
    main(json.loads(sys.argv[1]))
