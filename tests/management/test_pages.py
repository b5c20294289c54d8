"""How pages are served: to whom, with which headers, from where."""

from __future__ import annotations

import re
from importlib.util import find_spec
from pathlib import Path

import pytest

from tests.management.asking import GUEST, Browser
from warrenmq.management import pages

FILES = sorted(pages.UI.iterdir())
PAGES = [path.name for path in FILES if path.suffix == ".html" and path.name != pages.SIGN_IN]


def test_the_front_door_leads_to_the_traces() -> None:
    answer = Browser().get("/")
    assert (answer.status_code, answer.headers["Location"]) == (303, "/ui/traces.html")


@pytest.mark.parametrize("name", PAGES)
def test_pages_redirect_to_the_sign_in_page(name: str) -> None:
    browser = Browser()
    answer = browser.get(f"/ui/{name}?a=b&c=d")
    assert answer.status_code == 303
    assert answer.headers["Location"] == f"/ui/login.html?next=%2Fui%2F{name}%3Fa%3Db%26c%3Dd"
    assert browser.get(f"/ui/{name}", auth=GUEST).status_code == 200
    browser.sign_in()
    assert browser.get(f"/ui/{name}").status_code == 200


@pytest.mark.parametrize("path", FILES, ids=lambda path: path.name)
def test_every_file_has_its_type(path: Path) -> None:
    answer = Browser().get(f"/ui/{path.name}", auth=GUEST)
    assert answer.status_code == 200
    assert answer.headers["Content-Type"].split(";")[0] == pages.TYPES[path.suffix]


@pytest.mark.parametrize("name", ["nothing.html", "../app.py", "..%2Fapp.py", "%2e%2e/app.py", "", "vendor/other.js"])
def test_nothing_else_is_served(name: str) -> None:
    assert Browser().get(f"/ui/{name}", auth=GUEST).status_code == 404


@pytest.mark.parametrize("path", ["/", "/ui/login.html", "/ui/base.css", "/api/session", "/healthz", "/nothing"])
def test_every_answer_carries_the_security_headers(path: str) -> None:
    headers = Browser().get(path).headers
    policy = dict(part.split(" ", 1) for part in headers["Content-Security-Policy"].split("; "))
    assert policy["default-src"] == "'none'"
    assert policy["script-src"] == "'self'"
    assert policy["frame-ancestors"] == "'none'"
    assert headers["X-Content-Type-Options"] == "nosniff"
    assert headers["X-Frame-Options"] == "DENY"
    assert headers["Referrer-Policy"] == "no-referrer"


def test_answers_of_the_api_are_not_stored() -> None:
    assert Browser().get("/api/session", auth=GUEST).headers["Cache-Control"] == "no-store"


def test_plotly_comes_from_its_package() -> None:
    if find_spec("plotly") is None:  # asked here: a lookup of ours that finds nothing has to fail
        pytest.skip("plotly is not installed")
    answer = Browser().get("/ui/vendor/plotly.js")
    assert answer.status_code == 200
    assert b"plotly.js v" in answer.content[:200]


def test_without_plotly_the_error_says_how_to_install_it(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(pages, "find_spec", lambda name: None)
    answer = Browser().get("/ui/vendor/plotly.js")
    assert (answer.status_code, answer.json()["reason"]) == (404, "plotly is not installed: pip install 'warrenmq[ui]'")


# -- the scripts -------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("path", [path for path in FILES if path.suffix == ".js"], ids=lambda path: path.name)
def test_scripts_make_no_html_of_texts(path: Path) -> None:
    assert not re.search(
        r"innerHTML|outerHTML|insertAdjacentHTML|document\.write|\beval\b|new Function", path.read_text()
    )


@pytest.mark.parametrize("name", [*PAGES, pages.SIGN_IN])
def test_a_page_is_one_html_and_one_js_without_script_inside(name: str) -> None:
    text = (pages.UI / name).read_text()
    sources = re.findall(r"<script[^>]* src=\"([^\"]+)\"[^>]*></script>", text)
    assert sources == ["theme.js", name.replace(".html", ".js")]
    assert text.count("<script") == 2
    assert not re.search(r"\son\w+=|style=|javascript:", text)


@pytest.mark.parametrize("path", [path for path in FILES if path.suffix == ".js"], ids=lambda path: path.name)
def test_imported_scripts_exist(path: Path) -> None:
    for name in re.findall(r"from \"\./([^\"]+)\"", path.read_text()):
        assert (pages.UI / name).is_file()
