"""The files of the page over HTTP: who gets them, how they are cached, and the policy that they carry."""

from __future__ import annotations

import gzip
import os
import re
import subprocess
import sys
from pathlib import Path
from typing import Final

import httpx2
import pytest

from tests.server.live import LiveServer, live_server
from tests.structure.sources import ROOT
from tests.support.tiny import TinyModel
from twofold.web.bundle import COMMENT, EXPORT, IMPORT, LATER, Bundle, shipped
from twofold.web.page import POLICY, WebPage, sources
from twofold.web.single import ENTRY

BROWSER: Final = {"accept": "text/html,application/xhtml+xml,application/xml;q=0.9,*/*;q=0.8"}
PAGE: Final = WebPage.read()
SCRIPT: Final = f"/web/{PAGE.version}/app.js"


def test_the_index_names_files_that_exist() -> None:
    named = set(re.findall(rf'"/web/{PAGE.version}/([^"]+)"', PAGE.index.body.decode()))
    assert named == {"app.css", "app.js"}
    assert named <= set(PAGE.files)


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


def test_the_first_view_needs_one_script() -> None:
    script = PAGE.files["app.js"].body.decode()
    assert not re.search(r"^import ", script, re.MULTILINE)
    assert "mount(root, app)" in script
    views = {"compare.js", "engine.js", "explore.js", "bench.js", "text.js"}
    assert set(PAGE.files) == {"app.css", "app.js", "shared.js", *views}


def test_each_module_is_sent_once_without_comments() -> None:
    modules = {path: text for path, text in sources().items() if path.endswith(".js")}
    scripts = "\n".join(file.body.decode() for name, file in PAGE.files.items() if name.endswith(".js"))
    alone = {path for path in modules if path.endswith("alone.js")}  # only in the file that `bench view` writes
    for path, text in modules.items():
        for found in COMMENT.finditer(text):
            assert found[0].lstrip().startswith(("/** ", "/**\n", "// ")), f"{path}: {found[0]!r}"
            assert found[0].count("*/") == found[0].count("/*") <= 1
        kept = EXPORT.sub(r"\1", IMPORT.sub("", shipped(text)))
        assert "/**" not in kept
        assert not re.search(r"^(?:import|export)\b|import\.meta", kept, re.MULTILINE)
        assert scripts.count(kept) == (path not in alone) or LATER.search(kept)


def test_a_name_of_a_file_is_one_that_exists_and_a_name_of_a_module_is_exported_there() -> None:
    texts = {name: file.body.decode() for name, file in PAGE.files.items()}
    named = [
        (name, file, part.strip())
        for name, text in texts.items()
        for parts, file in re.findall(r'^import \{([^}]+)\} from "\./([^"]+)";', text, re.MULTILINE)
        for part in parts.split(",")
    ]
    for name, text in texts.items():
        named += [(name, file, "mount") for file in re.findall(r'import\("\./([^"]+)"', text)]
    assert len(named) > 10
    exports = {name: re.findall(r"^export \{([^}]+)\};$", text, re.MULTILINE) for name, text in texts.items()}
    for name, file, part in named:
        assert part in [each.strip() for each in exports[file][0].split(",")], f"{name}: {file} has no {part}"


def test_modules_of_a_file_share_no_name_and_lack_none(tmp_path: Path) -> None:
    files = {name: file.body.decode() for name, file in PAGE.files.items() if name.endswith(".js")}
    files["alone.js"] = Bundle(sources()).script(ENTRY)
    for name, text in files.items():
        (tmp_path / name).write_text(f"// @ts-check\n{text}")
    (tmp_path / "deno.json").write_text((ROOT / "deno.json").read_text())
    assert [name for name in files if "SyntaxError" in _deno("run", name, tmp_path)] == []
    said = _deno("check", ".", tmp_path)
    assert "TS7006" in said  # parameters have no types any more: so the files were checked
    assert re.findall(r"TS(?:2304|2552|18004) .*", said) == []  # names that nothing declares


def _deno(command: str, name: str, folder: Path) -> str:
    done = subprocess.run(
        [Path(sys.executable).with_name("deno"), command, "--no-remote", name],
        cwd=folder,
        env={**os.environ, "NO_COLOR": "1"},
        capture_output=True,
        text=True,
        check=False,
        timeout=300,
    )
    return done.stderr
