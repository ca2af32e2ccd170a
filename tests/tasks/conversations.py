"""Conversations that the tests of chat train on."""

import json

from pipelines.chat.template import CHATML

TRAIN = {"epochs": 2, "batch_size": 4, "lr": 5e-3, "device": "cpu", "dtype": "float32"}
SILENT = CHATML.replace("{% generation %}", "").replace("{% endgeneration %}", "")


def rows(count=24):
    """Return rows with a question and its answer."""
    return [
        {"messages": [{"role": "user", "content": f"{n} + 1?"}, {"role": "assistant", "content": str(n + 1)}]}
        for n in range(count)
    ]


def written(path, content):
    """Write rows, or lines, to a file, and return its path."""
    path.write_text("\n".join(row if isinstance(row, str) else json.dumps(row) for row in content))
    return path


def dicts(messages):
    """Return messages as rows have them."""
    return [message._asdict() for message in messages]
