"""The Explore view in a browser: questions are in the URL, levers stack by keyboard, and each part is accessible."""

from __future__ import annotations

import re
from typing import Final

import pytest
from playwright.sync_api import Page, expect

from tests.server.live import LiveServer
from tests.structure.sources import ROOT
from tests.web.browser import Watch, accessibility_faults
from tests.web.looks import faults_of_looks
from twofold.planner.machines.known import known_machines
from twofold.planner.shapes.known import known_shapes

PARTS: Final = {
    "explain": ("model=llama-3-70b&hardware=h100&tp=4&batch=16&levers=speculation", "Roofline of h100"),
    "pareto": ("part=pareto&model=llama-3-8b&limit=20", "Pace and cost by batch size"),
    "price": ("part=price&input=10000&cached=8000&hardware=h100&own=llama-3-8b", "Savings of a cached prefix"),
    "plan": ("part=plan&model=llama-3-8b&machines=h100&devices=1&simulate=no", "Mean TPOT against cost"),
}


def test_the_lists_have_names_of_the_tables() -> None:
    text = (ROOT / "twofold/web/static/explore/levers.js").read_text()
    machines, models = (re.search(rf'{name} =\s+"([^"]+)"', text)[1].split() for name in ("MACHINES", "MODELS"))  # type: ignore[index]
    assert machines.pop(0) == "this"
    assert sorted(machines) == sorted(known_machines())
    assert set(models) <= set(known_shapes())
    assert len(models) > 20


@pytest.mark.browser
def test_every_part_answers_and_is_accessible(page: Page, server: LiveServer) -> None:
    for part, (state, chart) in PARTS.items():
        page.goto(f"{server.url}/#/explore?{state}")
        if part == "plan":
            page.get_by_role("button", name="Find plans").click()
        expect(page.get_by_role("img", name=chart)).to_be_visible()
        expect(page.locator(".result")).not_to_have_attribute("aria-busy", "true")
        assert faults_of_looks(page, f"explore-{part}") == []


@pytest.mark.browser
def test_levers_stack_by_keyboard_and_the_url_has_all(page: Page, server: LiveServer) -> None:
    page.goto(f"{server.url}/#/explore?model=llama-3-8b&hardware=h100&batch=8")
    page.get_by_role("button", name="weights INT4").focus()
    page.keyboard.press("Enter")
    expect(page.get_by_role("button", name="Take back weights INT4")).to_be_visible()
    page.get_by_role("button", name="speculation", exact=True).press("Enter")
    expect(page.get_by_role("button", name="Take back speculation")).to_be_visible()
    assert "levers=weights+INT4%2Cspeculation" in page.url
    expect(page.get_by_text("llama-3-8b (int4, KV bf16) on h100")).to_be_visible()
    batch = page.get_by_label("Concurrency, slider")
    batch.focus()
    page.keyboard.press("ArrowRight")
    expect(page.get_by_role("heading", name="concurrency")).not_to_contain_text("concurrency 8")
    page.get_by_role("button", name="Take back weights INT4").press("Enter")
    expect(page.get_by_text("llama-3-8b (bf16, KV bf16) on h100")).to_be_visible()
    chart = page.get_by_role("img", name="Roofline of h100")
    before = chart.inner_html()
    chart.press("+")
    assert chart.inner_html() != before
    page.get_by_text("As a table").click()
    expect(page.get_by_role("table", name="Roofline of h100")).to_contain_text("decode")


@pytest.mark.browser
def test_another_address_fills_the_fields_again(page: Page, server: LiveServer) -> None:
    page.goto(f"{server.url}/#/explore?part=price")
    expect(page.get_by_text("Enter the tokens of a shared prefix")).to_be_visible()
    page.goto(f"{server.url}/#/explore?part=price&input=10000&cached=8000")
    expect(page.get_by_label("Prompt tokens", exact=True)).to_have_value("10000")
    expect(page.get_by_role("img", name="Savings of a cached prefix")).to_be_visible()
    page.get_by_label("Output tokens", exact=True).fill("7")
    page.get_by_label("Output tokens", exact=True).press("Tab")
    assert "output=7" in page.url
    page.go_back()
    expect(page.get_by_label("Prompt tokens", exact=True)).to_have_value("1000")


@pytest.mark.browser
def test_refusals_are_said_where_they_happened(watch: tuple[Page, Watch], server: LiveServer) -> None:
    page, seen = watch
    seen.expect("status of 400")  # the browser reports the refusals
    page.goto(f"{server.url}/#/explore?model=llama-3-70b&hardware=l4")
    expect(page.get_by_role("alert")).to_contain_text("does not fit into l4")
    assert accessibility_faults(page) == []
    page.get_by_label("Machine").fill("h1000")
    page.get_by_label("Machine").press("Tab")
    expect(page.get_by_role("alert")).to_contain_text("No machine 'h1000'")
    page.get_by_label("Machine").fill("b200")
    page.get_by_label("Machine").press("Tab")
    expect(page.get_by_role("alert")).to_have_count(0)
    expect(page.get_by_role("heading", name="on b200")).to_be_visible()
