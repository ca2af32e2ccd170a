"""Requests from other sites, to unknown hosts or without the token are refused; all others are answered."""

import pytest

from pipelines.serving.security import HEADERS, access_to, read_token
from pipelines.serving.server import PAGE_FOLDER
from tests.serving.conftest import client_of

MODELS = "/v1/models"


@pytest.fixture(scope="module")
def elsewhere(gpt):
    """Return a client of a server that other machines can reach as `box.lan`, and its token."""
    access = access_to("0.0.0.0", 8000, ["box.lan"])
    with client_of({"gpt": gpt}, access=access, host="box.lan:8000") as client:
        yield client, access.token


@pytest.mark.parametrize("host", ["localhost:8000", "127.0.0.1:8000", "[::1]:8000", "LocalHost:8000"])
def test_names_of_this_machine_with_the_port_are_answered(client, host):
    assert client.get(MODELS, headers={"host": host}).status_code == 200


EVIL_HOSTS = ["evil.example:8000", "evil.example", "localhost.evil.example:8000", "localhost:8000,evil.example"]
OTHER_HOSTS = [
    "localhost",
    "localhost:8001",
    "localhost.:8000",
    "127.0.0.1",
    "127.0.0.2:8000",
    "::1:8000",
    "",
    "0.0.0.0",
]


@pytest.mark.parametrize("host", [*EVIL_HOSTS, *OTHER_HOSTS])
def test_every_other_host_is_refused(client, host):
    """A page whose name resolves to this machine sends its own name."""
    response = client.get(MODELS, headers={"host": host})
    assert response.status_code == 403
    assert "--allow-host" in response.json()["error"]["message"]


def test_two_host_headers_are_refused(client):
    assert client.get(MODELS, headers=[("host", "localhost:8000"), ("host", "localhost:8000")]).status_code == 403


def test_port_80_may_be_left_out(gpt):
    with client_of({"gpt": gpt}, access=access_to("127.0.0.1", 80), host="localhost") as client:
        assert client.get(MODELS).status_code == 200


@pytest.mark.parametrize("site", ["cross-site", "same-site", "Cross-Site"])
@pytest.mark.parametrize("method", ["GET", "POST"])
def test_fetches_of_other_sites_are_refused(client, site, method):
    response = client.request(method, MODELS, json={}, headers={"sec-fetch-site": site})
    assert response.status_code == 403
    assert "other sites" in response.json()["error"]["message"]


@pytest.mark.parametrize("site", ["same-origin", "none"])
def test_fetches_of_the_page_and_of_the_address_bar_are_answered(client, site):
    assert client.get(MODELS, headers={"sec-fetch-site": site}).status_code == 200


@pytest.mark.parametrize(
    "kind", [None, "text/plain", "application/x-www-form-urlencoded", "multipart/form-data", "text/json"]
)
@pytest.mark.parametrize("path", ["/v1/completions", "/tokenize", "/detokenize"])
def test_bodies_that_are_not_json_are_refused(client, kind, path):
    """Pages of other sites can send these content types without a preflight."""
    headers = {} if kind is None else {"content-type": kind}
    assert client.post(path, content=b'{"prompt": "a"}', headers=headers).status_code == 415


def test_json_with_a_charset_is_answered(client):
    headers = {"content-type": "Application/JSON; charset=utf-8"}
    assert client.post("/tokenize", content=b'{"prompt": "a"}', headers=headers).status_code == 200


@pytest.mark.parametrize(
    ("method", "path", "status"),
    [("GET", "/", 200), ("GET", "/nowhere", 404), ("PUT", "/tokenize", 405), ("POST", "/v1/completions", 400)],
)
def test_every_response_has_the_headers_and_none_of_cors(client, method, path, status):
    response = client.request(method, path, json={"prompt": ""}, headers={"origin": "http://localhost:8000"})
    assert response.status_code == status
    assert {name: response.headers[name] for name in HEADERS} == HEADERS
    assert not [name for name in response.headers if name.startswith("access-control-")]


def test_a_refusal_has_the_headers_too(client):
    response = client.get(MODELS, headers={"host": "evil.example"})
    assert {name: response.headers[name] for name in HEADERS} == HEADERS


def test_the_content_security_policy_limits_the_page_to_this_server():
    policy = dict(each.strip().split(" ", 1) for each in HEADERS["Content-Security-Policy"].split(";"))
    assert policy["default-src"] == "'none'"
    assert {policy[name] for name in ("script-src", "style-src", "connect-src")} == {"'self'"}
    assert {policy[name] for name in ("base-uri", "form-action", "frame-ancestors", "trusted-types")} == {"'none'"}
    assert "unsafe" not in HEADERS["Content-Security-Policy"]


def test_a_preflight_of_another_origin_is_not_allowed(client):
    headers = {"origin": "http://evil.example", "access-control-request-method": "POST"}
    response = client.options("/v1/completions", headers=headers)
    assert response.status_code == 403
    assert "`bytelm serve --allow-origin ORIGIN` lets those of ORIGIN in" in response.json()["error"]["message"]
    assert not [name for name in response.headers if name.startswith("access-control-")]


def test_a_server_for_this_machine_needs_no_token():
    for address in ("127.0.0.1", "127.8.9.1", "::1", "localhost"):
        assert access_to(address, 8000).token is None


def test_a_server_for_others_makes_a_new_token():
    every = [access_to(*each).token for each in (("0.0.0.0", 1), ("0.0.0.0", 1), ("::", 1), ("192.168.1.5", 1))]
    every += [access_to("127.0.0.1", 1, ["box.lan"]).token]
    assert len(set(every)) == 5 and all(len(token) >= 40 for token in every)


@pytest.mark.parametrize("value", [None, "", "Bearer ", "Bearer wrong", "Bearer {}x", "bearer {}", "{}", "Basic {}"])
@pytest.mark.parametrize("path", [MODELS, "/tokenizer_info", "/nowhere", "/pages", "/page"])
def test_without_the_token_only_the_page_is_served(elsewhere, value, path):
    client, token = elsewhere
    headers = {} if value is None else {"authorization": value.format(token)}
    response = client.get(path, headers=headers)
    assert response.status_code == 401
    assert response.headers["www-authenticate"] == "Bearer"
    assert token not in response.text


def test_the_token_opens_everything(elsewhere):
    client, token = elsewhere
    assert client.get("/").status_code == client.get("/page/index.html").status_code == 200
    assert client.post("/", json={}).status_code == 401
    headers = {"authorization": f"Bearer {token}"}
    assert client.get(MODELS, headers=headers).status_code == 200
    assert client.post("/tokenize", json={"prompt": "a"}, headers=headers).status_code == 200


def test_the_token_does_not_open_other_hosts(elsewhere):
    client, token = elsewhere
    assert client.get(MODELS, headers={"authorization": f"Bearer {token}", "host": "evil.example"}).status_code == 403


def test_an_address_to_listen_on_is_a_name_of_the_server():
    assert "192.168.1.5:8000" in access_to("192.168.1.5", 8000).hosts
    assert "[fe80::1]:8000" in access_to("fe80::1", 8000).hosts
    assert not [host for host in access_to("0.0.0.0", 8000).hosts if "0.0.0.0" in host]


@pytest.mark.parametrize("name", ["http://box.lan", "box.lan:8000", "box.lan/x", "", "a b", "user@box"])
def test_a_name_with_more_than_a_host_is_refused(name):
    with pytest.raises(ValueError, match="`allow_host="):
        access_to("127.0.0.1", 8000, [name])


@pytest.mark.parametrize("path", ["/page/%2e%2e/server.py", "/page/..%2fserver.py", "/page//etc/passwd"])
def test_only_files_of_the_page_are_served(client, path):
    assert (PAGE_FOLDER.parent / "server.py").is_file()  # a server that leaves the folder would find it
    assert client.get(path).status_code == 404


APP = "http://app.example:3000"


@pytest.fixture(scope="module")
def with_origin(gpt):
    """Return a client of a server with a token that pages of APP may use."""
    access = access_to("127.0.0.1", 8000, origins=[APP], token="a-token-of-some-length")
    with client_of({"gpt": gpt}, access=access) as client:
        yield client


def cors(response):
    return {name: value for name, value in response.headers.items() if name.startswith("access-control-")}


def preflight(client, origin, method="POST", headers="authorization,content-type"):
    asked = {"origin": origin, "access-control-request-method": method, "access-control-request-headers": headers}
    return client.options("/v1/completions", headers=asked)


def test_a_page_of_an_allowed_origin_can_ask_and_read(with_origin):
    response = preflight(with_origin, APP)
    assert response.status_code == 200
    assert cors(response)["access-control-allow-origin"] == APP
    headers = {"origin": APP, "sec-fetch-site": "cross-site", "authorization": "Bearer a-token-of-some-length"}
    response = with_origin.post("/v1/completions", json={"prompt": "a", "max_tokens": 1}, headers=headers)
    assert response.status_code == 200
    assert cors(response) == {"access-control-allow-origin": APP} and "Origin" in response.headers["vary"]


def test_a_page_of_an_allowed_origin_can_read_why_it_is_refused(with_origin):
    response = with_origin.get(MODELS, headers={"origin": APP, "sec-fetch-site": "cross-site"})
    assert response.status_code == 401
    assert cors(response) == {"access-control-allow-origin": APP}


@pytest.mark.parametrize("origin", ["http://evil.example", "null", "*", f"{APP}0", APP.replace("http", "https")])
def test_pages_of_other_origins_are_refused_beside_an_allowed_one(with_origin, origin):
    response = preflight(with_origin, origin)
    assert response.status_code == 403 and cors(response) == {}
    assert "--allow-origin" in response.json()["error"]["message"]
    assert {name: response.headers[name] for name in HEADERS} == HEADERS
    headers = {"origin": origin, "sec-fetch-site": "cross-site", "authorization": "Bearer a-token-of-some-length"}
    response = with_origin.get(MODELS, headers=headers)
    assert response.status_code == 403 and cors(response) == {}
    assert with_origin.get(MODELS, headers={**headers, "origin": ""}).status_code == 403


def test_an_allowed_origin_does_not_open_other_methods_or_headers(with_origin):
    for response in (preflight(with_origin, APP, method="DELETE"), preflight(with_origin, APP, headers="x-other")):
        assert response.status_code == 400 and cors(response)["access-control-allow-origin"] == APP
        assert "may send GET and POST requests" in response.json()["error"]["message"]


@pytest.mark.parametrize(
    "origin", ["*", "null", "", "app.example", "http://", "http://*.example", "http://a/b", "http://a//"]
)
def test_what_is_not_an_origin_is_refused(origin):
    with pytest.raises(ValueError, match="is not an origin: give scheme, host and port"):
        access_to("127.0.0.1", 8000, origins=[origin])


@pytest.mark.parametrize("origin", ["http://user@a", "http://a:x", "http://a?b", "http://a#b", "http://a b", "//a"])
def test_an_origin_with_more_than_scheme_host_and_port_is_refused(origin):
    with pytest.raises(ValueError, match="`allow_origin="):
        access_to("127.0.0.1", 8000, origins=[origin])


def test_origins_are_compared_as_browsers_send_them():
    given = ["HTTPS://App.Example:443", "http://a:80", "http://a:8080", "http://[::1]:3000", "http://b/"]
    expected = {"https://app.example", "http://a", "http://a:8080", "http://[::1]:3000", "http://b"}
    assert access_to("127.0.0.1", 8000, origins=given).origins == expected


def test_a_given_token_is_needed_on_this_machine_too(with_origin):
    assert with_origin.get("/").status_code == 200
    assert with_origin.get(MODELS).status_code == 401
    headers = {"authorization": "Bearer a-token-of-some-length"}
    assert with_origin.get(MODELS, headers=headers).status_code == 200


def test_a_load_balancer_needs_neither_the_token_nor_a_name_to_ask_for_health(elsewhere):
    client, _ = elsewhere
    for host in ("box.lan:8000", "10.0.0.5:8000"):
        response = client.get("/health", headers={"host": host})
        assert response.status_code == 200 and response.json() == {"status": "ok"}
    assert client.post("/health", json={}).status_code == 401


def test_a_token_is_read_from_a_file_of_its_owner(tmp_path):
    (file := tmp_path / "token").write_text("0123456789abcdef+/=\n")
    file.chmod(0o600)
    assert read_token(file) == "0123456789abcdef+/="


@pytest.mark.parametrize("mode", [0o640, 0o604, 0o620, 0o644])
def test_a_token_file_that_others_may_read_or_change_is_refused(mode, tmp_path):
    (file := tmp_path / "token").write_text("0123456789abcdef\n")
    file.chmod(mode)
    with pytest.raises(ValueError, match=f"run chmod 600 {file}"):
        read_token(file)


@pytest.mark.parametrize(
    "text", ["", "\n", "short", "0123456789 abcdef", "0123456789abcdef\nb", "0123456789abcdefé", "a\0" * 9]
)
def test_a_weak_token_or_one_that_is_no_header_is_refused(text, tmp_path):
    (file := tmp_path / "token").write_text(text)
    file.chmod(0o600)
    with pytest.raises(ValueError, match="must hold one line of at least 16"):
        read_token(file)


def test_a_token_file_that_cannot_be_read_is_named(tmp_path):
    for path in (tmp_path, tmp_path / "missing"):
        with pytest.raises(ValueError, match=f"`token_file='{path}'` cannot be read"):
            read_token(path)
