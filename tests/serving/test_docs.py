"""The requests in docs/serving.md work as printed, and the page explains every field."""

import json
import re
from pathlib import Path

from pipelines.serving.requests import ChatRequest, CompletionRequest
from pipelines.serving.security import LOCAL_NAMES

PAGE = (Path(__file__).parents[2] / "docs" / "serving.md").read_text(encoding="utf-8")
REQUESTS = re.findall(
    r"curl http://127.0.0.1:8000(/\S+) -H 'Content-Type: application/json' (?:\\\n  )?-d '(.*)'", PAGE
)


def test_the_requests_are_answered(client):
    assert len(REQUESTS) == PAGE.count("\ncurl ") >= 4
    for path, body in REQUESTS:
        response = client.post(path, content=body, headers={"content-type": "application/json"})
        assert response.status_code == 200, response.text
        assert json.loads(body).get("stream", False) == response.text.endswith("data: [DONE]\n\n")


def test_every_field_is_explained():
    fields = CompletionRequest.model_fields | ChatRequest.model_fields
    assert [name for name in fields if f"`{name}`" not in PAGE] == []
    assert [name for name in LOCAL_NAMES if f"`{name}`" not in PAGE] == []
