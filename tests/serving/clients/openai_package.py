"""Use a server through the openai package. `make test-serve` runs this file in .venv-serve.

The argument is the server's address. Prints what the package read, as JSON.
"""

import json
import sys

import openai


def main() -> None:
    client = openai.OpenAI(base_url=sys.argv[1] + "v1", api_key="unused", max_retries=0)
    request = {"model": "gpt", "prompt": "import os", "max_tokens": 12, "temperature": 0}
    whole = client.completions.create(**request, logprobs=2, echo=True)
    chunks = list(client.completions.create(**request, stream=True, stream_options={"include_usage": True}))
    several = client.completions.create(**request | {"prompt": ["import", "def"], "temperature": 1}, n=2, seed=1)
    sampled = client.completions.create(**request, extra_body={"top_k": 1, "min_p": 0.1})
    found = {
        "models": [model.id for model in client.models.list()],
        "whole": whole.model_dump(),
        "streamed": "".join(chunk.choices[0].text for chunk in chunks if chunk.choices),
        "usage": chunks[-1].usage.model_dump(),
        "several": [choice.index for choice in several.choices],
        "sampled": sampled.choices[0].text,
        "errors": {},
    }
    failing = {
        "model": lambda: client.completions.create(**request | {"model": "gpt-4"}),
        "long": lambda: client.completions.create(**request | {"prompt": "import os\n" * 50}),
        "field": lambda: client.completions.create(**request, suffix="b"),
        "chat": lambda: client.chat.completions.create(model="gpt", messages=[{"role": "user", "content": "a"}]),
    }
    for name, call in failing.items():
        try:
            call()
        except openai.APIStatusError as error:
            found["errors"][name] = [type(error).__name__, error.code, error.param, error.message]
    print(json.dumps(found))


main()
