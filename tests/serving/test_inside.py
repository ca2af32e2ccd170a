"""`/api/inspect`: the pictures and tables of `bytelm inspect`, with a limit on the work of a request."""

import threading
import xml.etree.ElementTree as ElementTree

import pytest
import torch
from starlette.applications import Starlette
from starlette.routing import Route
from starlette.testclient import TestClient

import bytelm
from pipelines.reporting.inspection_page import section_of
from pipelines.reporting.svg import as_image
from pipelines.serving.engine import Engine
from pipelines.serving.errors import RequestError, answer_request_error
from pipelines.serving.inside import Inspections
from pipelines.serving.models import ServedModel, Service
from tests.loaded_runs import induction_run
from tests.serving.conftest import client_of

TEXT, CORRUPT = "c h m q d h", "c h r q d h"


@pytest.fixture(scope="module")
def runs(gpt, trained_bert, trained_t5):
    runs = {
        name: bytelm.load_run(folder, device="cpu") for name, folder in (("bert", trained_bert), ("t5", trained_t5))
    }
    return {"gpt": gpt, "induction": induction_run(gpt), **runs}


@pytest.fixture(scope="module")
def ask(runs):
    """Return ask(**fields), which returns the JSON object or, for an error, its status, field and message."""
    with client_of(runs) as client:

        def ask(**fields):
            response = client.post("/api/inspect", json={"model": "gpt", "text": TEXT, **fields})
            if response.status_code != 200:
                return response.status_code, *map(response.json()["error"].get, ("param", "message"))
            return response.json()

        ask.client = client
        yield ask


@pytest.mark.parametrize(
    ("model", "name", "options"),
    [
        ("gpt", "lens", {}),
        ("gpt", "attribution", {"against": "a"}),
        ("gpt", "heads", {}),
        ("induction", "patching", {"corrupt": CORRUPT}),
        ("induction", "patching", {"corrupt": CORRUPT, "target": "m", "against": "r", "quick": True}),
        ("bert", "lens", {}),
        ("bert", "heads", {}),
    ],
)
def test_the_answer_has_the_pictures_and_tables_of_the_page_of_inspect(model, name, options, ask, runs):
    answer = ask(model=model, instrument=name, **options)
    found = bytelm.inspect(runs[model], TEXT, instruments=name, **options)[name]
    expected = section_of(name, found)
    (of_text,) = expected["results"]
    assert answer["heading"] == expected["heading"] and answer["note"] == expected["note"]
    assert [(each["title"], each["svg"]) for each in answer["pictures"]] == [
        (plot.title, as_image(plot.svg)) for plot in of_text["plots"]
    ]
    tables = [part for part in of_text["parts"] if not isinstance(part, str)]
    assert [part for part in answer["parts"] if isinstance(part, dict)] == [
        {**part._asdict(), "rows": [[label, cells] for label, cells in part.rows]} for part in tables
    ]


def test_a_picture_is_a_whole_svg_with_the_colours_of_light_and_dark(ask):
    for picture in ask(instrument="attribution")["pictures"]:
        root = ElementTree.fromstring(picture["svg"])
        assert root.tag == "{http://www.w3.org/2000/svg}svg"
        assert "prefers-color-scheme: dark" in root[0].text and "--ink" in root[0].text


def test_each_run_lists_the_instruments_that_suit_it_and_their_fields(ask):
    listed = {model["name"]: model for model in ask.client.get("/api/models").json()["models"]}
    names = {name: [one["name"] for one in model["instruments"]] for name, model in listed.items()}
    decoder, encoder = ["lens", "attribution", "heads", "patching"], ["lens", "heads"]
    assert names == {"gpt": decoder, "induction": decoder, "bert": encoder, "t5": []}
    assert [name for name, model in listed.items() if "inside" not in model["views"]] == ["t5"]
    assert {one["name"]: one["fields"] for one in listed["gpt"]["instruments"]} == {
        "lens": ["text"],
        "attribution": ["text", "target", "against"],
        "heads": [],
        "patching": ["text", "corrupt", "target", "against", "quick"],
    }


@pytest.mark.parametrize(
    ("fields", "param", "message"),
    [
        ({"instrument": "none"}, "instrument", "its instruments are lens, attribution, heads, patching"),
        ({"instrument": "tuned_lens"}, "instrument", "gpt has no instrument 'tuned_lens' here"),
        ({"instrument": "attribution", "model": "bert"}, "instrument", "its instruments are lens, heads"),
        ({"instrument": "lens", "model": "t5"}, "instrument", "no instrument suits it"),
        ({"instrument": None}, "instrument", "instrument is null, but must be a string"),
        ({"instrument": "lens", "text": "a " * 200}, "text", "looks into at most 64: shorten it"),
        ({"instrument": "patching", "corrupt": "a " * 200}, "corrupt", "looks into at most 64: shorten it"),
        ({"instrument": "patching"}, "corrupt", "patching needs a second prompt"),
        ({"instrument": "patching", "corrupt": "b", "target": "a", "against": "b"}, "text", "need the same number"),
        ({"instrument": "attribution", "target": "import os"}, "target", "`target` is 'import os', which is"),
        ({"instrument": "attribution", "target": ""}, "target", "target is empty"),
        ({"instrument": "attribution", "position": 1}, "position", "position is not a field"),
        ({"instrument": "patching", "quick": 1}, "quick", "quick is 1, but must be true or false"),
    ],
)
def test_a_wrong_field_is_named_in_the_error(fields, param, message, ask):
    status, named, said = ask(**fields)
    assert (status, named) == (400, param)
    assert message in said


@pytest.fixture
def inspections(gpt):
    """Return what inspects `gpt` for no longer than 0 s, and its client."""
    with Engine({"gpt": gpt}) as engine:
        made = Inspections(Service({"gpt": ServedModel("gpt", gpt)}, engine, created=0), seconds=0.0)
        routes = [Route("/api/inspect", made.inspect, methods=["POST"])]
        app = Starlette(routes=routes, exception_handlers={RequestError: answer_request_error})
        with TestClient(app) as client:
            yield made, client


@pytest.mark.parametrize(
    ("instrument", "more", "advice"),
    [
        ("lens", {}, "shorten the text"),
        ("patching", {"corrupt": TEXT, "target": "m", "against": "r"}, "shorten the text, or set `quick`"),
    ],
)
def test_an_instrument_that_reads_for_too_long_is_ended_with_an_error(inspections, instrument, more, advice):
    response = inspections[1].post("/api/inspect", json={"instrument": instrument, "text": TEXT, **more})
    assert response.status_code == 400
    assert response.json()["error"]["message"].endswith(f"the model reads for more than 0 s: {advice}")


def test_the_copy_that_is_read_shares_the_weights_and_leaves_the_served_model_without_hooks(inspections, gpt):
    copy = inspections[0]._copy(gpt, threading.Event(), "")
    pairs = zip(copy.model.parameters(), gpt.model.parameters(), strict=True)
    assert all(own is other for own, other in pairs) and copy.model is not gpt.model
    with torch.no_grad(), copy.edit({"blocks.0.hook_resid_post": torch.zeros(())}) as edited:
        assert not any(module._forward_pre_hooks or module._forward_hooks for module in gpt.model.modules())
        assert edited.edits and gpt.logits(TEXT).std() > 0
