"""The Bench view: results as one file, on a server of their own, and dropped into the page."""

from __future__ import annotations

import json
import re
import subprocess
from pathlib import Path
from threading import Thread
from typing import Final

import httpx2
import pytest
from playwright.sync_api import Page, expect

from tests.bench.report.runs import HOSTILE, document, failed, mixed, record
from tests.server.live import TWOFOLD, LiveServer
from tests.web.browser import accessibility_faults, fresh, load_views
from tests.web.looks import faults_of_looks
from twofold.bench.compare import compare
from twofold.bench.viewer import page_server
from twofold.web.single import single_page

A: Final = document(mixed(120))
B: Final = document(mixed(120, seed=3), model=HOSTILE)


@pytest.fixture(scope="module")
def files(tmp_path_factory: pytest.TempPathFactory) -> list[Path]:
    folder = tmp_path_factory.mktemp("results")
    for name, each in (("a", A), ("b", B)):
        each.write(folder / f"{name}.json")
    return [folder / "a.json", folder / "b.json"]


def test_the_command_writes_one_file_that_needs_nothing(files: list[Path], tmp_path: Path) -> None:
    output = tmp_path / "run.html"
    subprocess.run([*TWOFOLD, "bench", "view", *files, "--output", output], check=True, timeout=300)
    text = output.read_text()
    assert text.count("<script") == 2
    assert not re.search(r'(?:src|href)="(?!data:)', text)
    assert "import(" not in text
    data = re.search(r'id="data">(.*?)</script>', text, re.DOTALL)
    assert data is not None
    shown = json.loads(data[1])
    assert [each["document"] for each in shown] == [json.loads(path.read_text()) for path in files]


@pytest.mark.parametrize(
    ("arguments", "says"),
    [([], "nothing to show"), (["x.json"], "x.json"), (["a.json", "-o", "a.pdf"], "Name it .html")],
)
def test_bad_input_is_one_error(tmp_path: Path, arguments: list[str], says: str) -> None:
    A.write(tmp_path / "a.json")
    done = subprocess.run(
        [*TWOFOLD, "bench", "view", *arguments], cwd=tmp_path, capture_output=True, text=True, check=False, timeout=300
    )
    assert done.returncode == 2
    assert says in done.stderr


def test_the_server_gives_the_page_to_this_machine_only() -> None:
    with page_server(b"page") as server:
        Thread(target=server.serve_forever, daemon=True).start()
        url = f"http://127.0.0.1:{server.server_address[1]}"
        assert httpx2.get(url).content == b"page"
        assert httpx2.get(f"{url}/x").status_code == 404
        assert httpx2.get(url, headers={"host": "example.org"}).status_code == 403
        server.shutdown()


@pytest.mark.browser
def test_two_results_are_compared_in_a_page_of_their_own(tab: Page) -> None:
    page_bytes = single_page([("a.json", A.to_json()), ("b.json", B.to_json())])
    with page_server(page_bytes) as server:
        Thread(target=server.serve_forever, daemon=True).start()
        url = f"http://127.0.0.1:{server.server_address[1]}/"
        with fresh(tab, url):
            tab.goto(url)
            assert _compared(tab) == [list(row.cells()) for row in compare(A, B).pairs[0].rows]
            expect(tab.get_by_role("table", name="Settings that differ")).to_contain_text("target.model")
            p50 = A.runs[0].summary["latency"]["ttft_s"]["p50"]
            expect(tab.get_by_role("table", name="Latency of a.json")).to_contain_text(f"{p50 * 1e3:.3g} ms")
            expect(tab.get_by_role("table", name="Latency of a.json")).to_contain_text("∞")  # requests failed
            assert faults_of_looks(tab, "bench") == []
            charts = tab.get_by_role("img", name=re.compile("TTFT over the run|Output|Requests"))
            before = [charts.nth(i).inner_html() for i in range(3)]
            charts.first.press("+")
            assert all(charts.nth(i).inner_html() != before[i] for i in range(3))  # they share their zoom
        server.shutdown()


def _compared(page: Page) -> list[list[str]]:
    """The rows of the comparison at the rate of both results."""
    rows = page.get_by_role("table", name="Comparison at rate 2").locator("tbody tr")
    expect(rows.first).to_be_visible()
    return [row.locator("th, td").all_inner_texts() for row in rows.all()]


@pytest.mark.browser
def test_files_are_read_in_the_page_and_never_sent(page: Page, server: LiveServer, files: list[Path]) -> None:
    page.goto(f"{server.url}/#/bench")
    chooser = page.get_by_label("Result files", exact=True)
    expect(page.get_by_role("button", name="Choose result files")).to_be_visible()
    load_views(page)
    sent: list[str] = []
    page.on("request", lambda request: sent.append(f"{request.method} {request.url}"))
    chooser.set_input_files(files)
    assert _compared(page) == [list(row.cells()) for row in compare(A, B).pairs[0].rows]
    page.get_by_role("button", name="Remove").nth(1).click()
    expect(page.get_by_role("img", name="Requests")).to_be_visible()
    bad = {"name": "x.json", "mimeType": "application/json", "buffer": b"{"}
    chooser.set_input_files(bad)  # type: ignore[arg-type]
    expect(page.get_by_role("alert")).to_contain_text("x.json is not a file of twofold bench --output")
    empty = document(record([failed(0, 0.1)])).to_json()
    chooser.set_input_files({"name": "empty.json", "mimeType": "application/json", "buffer": empty})
    expect(page.get_by_role("heading", name="Settings that differ")).to_be_visible()
    expect(page.get_by_text("has 1 measured request;")).to_be_visible()  # so there are no intervals
    page.get_by_role("button", name="Remove").nth(1).click()
    expect(page.get_by_role("heading", name="Settings that differ")).to_have_count(0)
    assert accessibility_faults(page) == []
    assert sent == []
