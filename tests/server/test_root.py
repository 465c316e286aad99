"""GET / from a browser and from a program."""

from __future__ import annotations

import re
from base64 import b64encode
from hashlib import sha256

import httpx2

from tests.server.live import LiveServer

BROWSER = {"accept": "text/html,application/xhtml+xml,application/xml;q=0.9,*/*;q=0.8"}


def test_a_browser_gets_a_page_whose_links_lead_somewhere(server: LiveServer) -> None:
    page = server.get("/", headers=BROWSER)
    assert page.headers["content-type"] == "text/html; charset=utf-8"
    assert "<code>tiny</code>" in page.text
    assert f"OPENAI_BASE_URL={server.url}/v1" in page.text
    assert f"OLLAMA_HOST={server.url}</pre>" in page.text
    links = re.findall(r'href="([^"]+)"', page.text)
    assert len(links) >= 4
    assert {server.get(link).status_code for link in links} == {200}


def test_the_page_may_run_and_load_nothing(server: LiveServer) -> None:
    page = server.get("/", headers=BROWSER)
    policy = page.headers["content-security-policy"]
    assert policy.startswith("default-src 'none'; style-src 'sha256-")
    (style,) = re.findall(r"<style>(.*?)</style>", page.text)
    assert b64encode(sha256(style.encode()).digest()).decode() in policy
    assert "<script" not in page.text


def test_a_program_gets_json(server: LiveServer) -> None:
    told = server.get("/").json()
    assert [model["id"] for model in told["models"]] == ["tiny"]
    assert told["apis"]["openai"] == f"{server.url}/v1"
    assert server.get("/", headers={"accept": "application/json"}).json() == told
    with httpx2.Client() as client:
        assert client.head(server.url).status_code == 200  # Ollama's command asks so whether the server runs


def test_the_host_header_is_quoted(server: LiveServer) -> None:
    page = server.get("/", headers={**BROWSER, "host": 'localhost"><script>'})
    assert "<script" not in page.text
