"""The files of the page over HTTP: who gets them, how they are cached, and the policy that they carry."""

from __future__ import annotations

import gzip
import re
from pathlib import Path
from typing import Final

import httpx2
import pytest

from tests.server.live import LiveServer, live_server
from tests.structure.sources import ROOT
from tests.support.tiny import TinyModel
from twofold.web.page import COMMENT, POLICY, WebPage

BROWSER: Final = {"accept": "text/html,application/xhtml+xml,application/xml;q=0.9,*/*;q=0.8"}
PAGE: Final = WebPage.read()
SCRIPT: Final = f"/web/{PAGE.version}/app.js"


def test_every_file_that_a_file_names_exists() -> None:
    texts = {name: file.body.decode() for name, file in PAGE.files.items()}
    named = {
        (Path("/") / Path(name).parent / target).resolve().as_posix()[1:]
        for name, text in texts.items()
        for target in re.findall(r'(?:from |import\(|import )"(\.[^"]+)"', text)
    }
    named |= set(re.findall(rf'"/web/{PAGE.version}/([^"]+)"', PAGE.index.body.decode()))
    assert named
    assert named <= set(texts)


def test_a_browser_gets_the_page_and_its_files(server: LiveServer) -> None:
    page = server.get("/", headers=BROWSER)
    assert page.headers["content-type"] == "text/html; charset=utf-8"
    assert page.headers["cache-control"] == "no-cache"
    assert "accept" in page.headers["vary"]
    assert SCRIPT in page.text
    script = server.get(SCRIPT)
    assert script.headers["content-type"] == "text/javascript; charset=utf-8"
    assert "immutable" in script.headers["cache-control"]
    assert script.content == PAGE.files["app.js"].body


def test_files_are_sent_as_gzip_where_it_is_accepted(server: LiveServer) -> None:
    with server.client() as client:
        sent = client.send(client.build_request("GET", SCRIPT, headers={"accept-encoding": "gzip"}), stream=True)
        packed = b"".join(sent.iter_raw())
        assert sent.headers["content-encoding"] == "gzip"
        assert gzip.decompress(packed) == PAGE.files["app.js"].body
        assert "content-encoding" not in client.get(SCRIPT, headers={"accept-encoding": "identity"}).headers


@pytest.mark.parametrize("path", ["/", SCRIPT])
def test_a_file_that_the_browser_has_is_not_sent_again(server: LiveServer, path: str) -> None:
    first = server.get(path, headers=BROWSER)
    again = server.get(path, headers={**BROWSER, "if-none-match": first.headers["etag"]})
    assert (again.status_code, again.content) == (304, b"")
    assert again.headers["etag"] == first.headers["etag"]


def test_the_policy_is_on_the_page_only(server: LiveServer) -> None:
    for path in ("/", SCRIPT):
        headers = server.get(path, headers=BROWSER).headers
        assert headers["content-security-policy"] == POLICY
        assert headers["cross-origin-opener-policy"] == headers["cross-origin-resource-policy"] == "same-origin"
    for path in ("/v1/models", "/health", "/web/none/app.js"):
        policy = server.get(path, headers=BROWSER).headers["content-security-policy"]
        assert policy == "default-src 'none'; frame-ancestors 'none'"


@pytest.mark.parametrize("path", ["/web/", "/web/0/app.js", f"/web/{PAGE.version}/../app.js", SCRIPT + "x"])
def test_other_paths_are_not_found(server: LiveServer, path: str) -> None:
    assert server.get(path).status_code == 404


def test_a_program_gets_json(server: LiveServer) -> None:
    told = server.get("/").json()
    assert [model["id"] for model in told["models"]] == ["tiny", "other"]
    assert told["apis"]["openai"] == f"{server.url}/v1"
    assert server.get("/", headers={"accept": "application/json"}).json() == told
    with httpx2.Client() as client:
        assert client.head(server.url).status_code == 200  # Ollama's command asks so whether the server runs


def test_the_page_needs_no_key_and_data_do(keyed: LiveServer) -> None:
    assert keyed.get("/", headers=BROWSER).status_code == keyed.get(SCRIPT).status_code == 200
    assert keyed.get("/").status_code == keyed.get("/v1/models", headers=BROWSER).status_code == 401
    assert keyed.get("/?a=/web/", headers={"accept": "*/*"}).status_code == 401


def test_a_server_may_have_no_page(keyed: LiveServer, tiny: TinyModel, tmp_path: Path) -> None:
    assert f"open {keyed.url} in a browser" in keyed.log.read_text()
    with live_server(tmp_path, f"tiny={tiny.path}", "--threads", "1", "--no-web", "--api-key", "secret") as plain:
        assert "in a browser" not in plain.log.read_text()
        assert plain.get("/", headers=BROWSER).status_code == plain.get(SCRIPT).status_code == 401
        known = {"authorization": "Bearer secret"}
        assert plain.get("/", headers={**BROWSER, **known}).json()["name"] == "Twofold"
        assert plain.get(SCRIPT, headers=known).status_code == 404


def test_modules_are_sent_without_comments_and_with_all_else() -> None:
    folder = ROOT / "twofold/web/static"
    for name, file in PAGE.files.items():
        source = (folder / name).read_bytes()
        if not name.endswith(".js"):
            assert file.body == source
            continue
        taken = [found[0] for found in COMMENT.finditer(source)]
        assert len(file.body) + sum(map(len, taken)) == len(source)
        for text in taken:
            assert text.lstrip().startswith((b"/** ", b"/**\n", b"// ")), f"{name}: {text!r}"
            assert text.count(b"*/") == text.count(b"/*") <= 1
        assert b"/**" not in file.body
