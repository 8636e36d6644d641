"""Requests that the page refuses, and the headers of those that it answers."""

import pytest
from starlette.applications import Starlette
from starlette.responses import PlainTextResponse
from starlette.routing import Route
from starlette.testclient import TestClient

from statefx.errors import ConfigError
from statefx.ui.door import HEADERS, Door, given_names

TOKEN = "a-token-of-enough-characters"
HERE = "http://127.0.0.1:4050"


async def answer(request):
    return PlainTextResponse("inside")


async def fail(request):
    raise RuntimeError("broken")


INSIDE = Starlette(
    routes=[Route(path, answer, methods=["GET", "POST"]) for path in ("/", "/healthz", "/v1/topologies")]
    + [Route("/broken", fail)]
)


def client(host="127.0.0.1", token=None, base_url=HERE):
    return TestClient(Door(INSIDE, host, token, 4050), base_url=base_url, follow_redirects=False)


@pytest.mark.parametrize("name", ["127.0.0.1:4050", "localhost:4050", "localhost", "[::1]:4050", "127.9.9.9:4050"])
def test_a_loopback_page_answers_by_its_own_names(name):
    assert client().get("/", headers={"host": name}).text == "inside"


@pytest.mark.parametrize(
    "name",
    [
        "evil.example", "evil.example:4050", "localhost.evil.example", "10.0.0.1:4050", "127.0.0.1.evil.example", "",
        "user@localhost", "localhost/..", "localhost, evil.example", "loc\u0430lhost", "[::1", "localhost:port", "::1",
    ],
)  # fmt: skip
def test_a_loopback_page_refuses_other_names(name):
    """A hostile page may have a name of its own that leads to 127.0.0.1, and would read everything by it."""
    found = client().get("/", headers={"host": name.encode()})
    assert (found.status_code, found.json()["error"][:14]) == (421, "this page is n")


def test_a_page_for_others_answers_by_address_and_name_of_the_machine(monkeypatch):
    monkeypatch.setattr("socket.gethostname", lambda: "Driver-0")
    monkeypatch.setattr("socket.getfqdn", lambda: "driver-0.cluster.local")
    page = client("0.0.0.0", TOKEN)
    allowed = {"authorization": f"Bearer {TOKEN}"}
    names = ["driver-0:4050", "driver-0.cluster.local", "10.1.2.3:4050", "[fd00::1]:4050", "localhost"]
    assert {page.get("/", headers=allowed | {"host": name}).status_code for name in names} == {200}
    assert page.get("/", headers=allowed | {"host": "evil.example"}).status_code == 421


@pytest.mark.parametrize("host", ["127.0.0.1", "0.0.0.0"])
def test_a_page_answers_by_the_names_that_it_was_given_and_no_others(host):
    door = Door(INSIDE, host, None, 4050, given_names("Statefx.example.org , driver.svc"))
    page = TestClient(door, base_url=HERE)
    for name in ("statefx.example.org", "STATEFX.example.org:443", "driver.svc:4050", "localhost"):
        own = f"https://{name}"
        assert page.get("/v1/topologies", headers={"host": name, "origin": own}).text == "inside"
        assert page.get("/v1/topologies", headers={"host": name, "origin": "https://evil.example"}).status_code == 403
    for name in ("example.org", "x.statefx.example.org", "statefx.example.org.evil.example", "evil.example"):
        found = page.get("/", headers={"host": name})
        assert (found.status_code, "STATEFX_UI_HOSTS" in found.json()["error"]) == (421, True)


@pytest.mark.parametrize(
    "text", ["*", "*.example.org", "https://a.org", "a.org:80", "a b", "a.org/x", "user@a.org", "b,*"]
)
def test_what_is_no_name_of_a_host_is_refused(text):
    with pytest.raises(ConfigError, match=r"is no name of a host: give names .*such as statefx\.example\.org"):
        given_names(text)


@pytest.mark.parametrize(
    "origin", ["http://evil.example", "null", "http://127.0.0.1:9999", "http://127.0.0.1", "x", "http://["]
)
def test_another_origin_is_refused(origin):
    assert client().get("/v1/topologies", headers={"origin": origin}).status_code == 403


def test_the_own_origin_is_answered():
    assert client().get("/v1/topologies", headers={"origin": HERE}).status_code == 200


@pytest.mark.parametrize(
    ("path", "site", "mode", "status"),
    [
        ("/v1/topologies", "same-origin", "cors", 200),
        ("/v1/topologies", "none", "navigate", 200),
        ("/v1/topologies", "cross-site", "no-cors", 403),
        ("/v1/topologies", "same-site", "cors", 403),
        ("/v1/topologies", "cross-site", "navigate", 403),
        ("/", "cross-site", "navigate", 200),
        ("/", "cross-site", "no-cors", 403),
    ],
)
def test_requests_of_other_sites_may_only_follow_a_link(path, site, mode, status):
    headers = {"sec-fetch-site": site, "sec-fetch-mode": mode}
    assert client().get(path, headers=headers).status_code == status


@pytest.mark.parametrize("method", ["POST", "PUT", "DELETE", "PATCH", "OPTIONS", "TRACE", "SECRET"])
def test_only_reading_methods_are_answered(method):
    found = client().request(method, "/v1/topologies")
    assert (found.status_code, found.headers["allow"]) == (405, "GET, HEAD")


@pytest.mark.parametrize("path", ["/", "/v1/topologies", "/nothing", "/healthz"])
def test_every_answer_has_the_policy(path):
    found = client().get(path)
    assert {name: found.headers[name] for name in HEADERS} == HEADERS
    assert found.headers["cache-control"] == "no-store"


def test_without_the_token_only_the_form_and_health_are_seen():
    page = client("0.0.0.0", TOKEN)
    assert page.get("/v1/topologies").status_code == 401
    form = page.get("/")
    assert (form.status_code, "inside" in form.text, "<form" in form.text) == (401, False, True)
    assert page.get("/healthz").text == "inside"


@pytest.mark.parametrize(
    "headers",
    [
        {"authorization": "Bearer wrong"},
        {"authorization": f"Basic {TOKEN}"},
        {"authorization": f"Bearer {TOKEN}x"},
        {"authorization": f"Bearer {TOKEN[:-1]}"},
        {"authorization": "Bearer "},
        {"cookie": f"statefx-4051={TOKEN}"},
        {"cookie": "statefx-4050=wrong"},
        {"cookie": "statefx-4050"},
        {"cookie": '=;,"'},
    ],
)
def test_a_wrong_token_is_refused(headers):
    assert client("0.0.0.0", TOKEN).get("/v1/topologies", headers=headers).status_code == 401


@pytest.mark.parametrize("others", ['a={"x":1}', "a=b c", "path=/x", "theme=dark;", "é=1", "x", "", '"', "a=[1,2]"])
def test_the_token_is_found_among_cookies_of_other_pages(others):
    """A browser sends the cookies of all ports of a host."""
    for cookie in (f"{others}; statefx-4050={TOKEN}", f"statefx-4050={TOKEN}; {others}"):
        found = client("0.0.0.0", TOKEN).get("/v1/topologies", headers={"cookie": cookie.encode()})
        assert found.text == "inside"


def test_a_token_in_a_header_is_taken():
    found = client("0.0.0.0", TOKEN).get("/v1/topologies", headers={"authorization": f"Bearer {TOKEN}"})
    assert found.text == "inside"


@pytest.mark.parametrize("token", [TOKEN, "a/token(with)@what:cookies<have>in[quotes]"])
def test_a_token_in_the_address_becomes_a_cookie_and_leaves_the_address(token):
    page = client("0.0.0.0", token)
    moved = page.get(f"/?token={token}&topology=a%26b")
    assert (moved.status_code, moved.headers["location"]) == (303, "/?topology=a%26b")
    kept = moved.headers["set-cookie"].lower()
    assert all(each in kept for each in ("httponly", "samesite=lax", "statefx-4050="))
    assert page.get("/v1/topologies").text == "inside"


@pytest.mark.parametrize("query", ["token=wrong", "token=", f"token={TOKEN}&token={TOKEN}"])
def test_a_wrong_token_in_the_address_is_no_cookie(query):
    found = client("0.0.0.0", TOKEN).get(f"/?{query}")
    assert (found.status_code, "set-cookie" in found.headers) == (401, False)


def test_a_token_in_the_address_counts_on_the_first_page_alone():
    """Elsewhere it would stand in addresses that programs keep and log."""
    assert client("0.0.0.0", TOKEN).get(f"/v1/topologies?token={TOKEN}").status_code == 401


@pytest.mark.slow
def test_an_error_inside_is_logged_once_and_told_without_its_text(caplog):
    page = client()
    found = [page.get("/broken") for _ in range(3)]
    assert [(each.status_code, "broken" in each.text) for each in found] == [(500, False)] * 3
    assert len([each for each in caplog.records if each.name == "statefx"]) == 1
