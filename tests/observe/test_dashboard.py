"""The files in ``deploy``: dashboard and alerts use exported metrics only, and the table of metrics lists all."""

from __future__ import annotations

import asyncio
import json
import re
from collections.abc import Iterator
from itertools import combinations
from typing import Any

import pytest
from prometheus_client.parser import text_string_to_metric_families

from tests.observe.served import failed, served, snapshot, step
from tests.structure.sources import ROOT
from twofold.fleet.scale import ScaleRange
from twofold.observe.metrics.replicas import ReplicaFigures
from twofold.observe.metrics.server import ServerMetrics
from twofold.observe.served import FetchedBlocks, ServedRoute
from twofold.server.models.autoscaler import Autoscaler

DASHBOARD: dict[str, Any] = json.loads((ROOT / "deploy" / "grafana" / "twofold.json").read_text("utf-8"))
ALERTS = (ROOT / "deploy" / "alerts.yml").read_text("utf-8")
SERIES = re.compile(r"((?:vllm|twofold):\w+)(?:\{([^}]*)\})?")
MATCHER = re.compile(r'(\w+)\s*(?:=~|!~|!=|=)\s*"[^"]*"')
GROUPING = re.compile(r"\bby \(([^)]*)\)")
LEGEND = re.compile(r"\{\{(\w+)\}\}")
ALERT = re.compile(r"expr: (?:>-)?((?:.|\n)*?)\n\s+(?:for|labels):")
WIDTH = 24


def panels() -> list[dict[str, Any]]:
    """Those that show something."""
    return [panel for panel in DASHBOARD["panels"] if panel["type"] != "row"]


def expressions() -> Iterator[str]:
    for panel in panels():
        yield from (target["expr"] for target in panel["targets"])
    yield from (
        re.sub(r"\s+", " ", text) for text in re.findall(r"expr: (?:>-)?((?:.|\n)*?)\n\s+(?:for|labels):", ALERTS)
    )


def _autoscaler(metrics: ServerMetrics) -> tuple[Any, Any]:
    """The gauges of a server that scales."""
    registry: Any = None
    ask: Any = None
    scaler = Autoscaler(registry, ScaleRange(1, 2, 0.9), {}, ask, metrics.instruments)
    return scaler._wanted, scaler._share


@pytest.fixture(scope="module")
def exported() -> dict[str, set[str]]:
    """The labels of every series of a server that has seen everything, by the series' name."""
    metrics = ServerMetrics()
    metrics.on_step("small", step())
    metrics.on_snapshot("small", snapshot())
    route = ServedRoute(0, "its turn", None, 0.2, 0.1, FetchedBlocks(1, 2, 32, 4096, 0.1))
    metrics.on_served(served(cache_asked=True, routes=(route,)))
    metrics.on_served(failed(503, "BusyError"))
    metrics.replicas.read = lambda: [ReplicaFigures("small", 1, "attic", "ready", 3)]
    wanted, share = _autoscaler(metrics)
    wanted.set(2, "small")
    share.set(0.9, "small", "2")
    body = asyncio.run(metrics.read()).body.decode()
    samples = [sample for family in text_string_to_metric_families(body) for sample in family.samples]
    return {sample.name: set(sample.labels) for sample in samples}


@pytest.mark.parametrize("expression", list(expressions()))
def test_every_expression_uses_exported_series(exported: dict[str, set[str]], expression: str) -> None:
    found = SERIES.findall(expression)
    assert found
    for name, matchers in found:
        assert name in exported
        assert set(MATCHER.findall(matchers)) <= exported[name]
        assert not MATCHER.sub("", matchers).strip(", ")
    labels = {label.strip() for group in GROUPING.findall(expression) for label in group.split(",")}
    assert labels <= set.intersection(*(exported[name] for name, _ in found))
    assert expression.count("(") == expression.count(")")
    assert expression.count("{") == expression.count("}")


def test_both_files_were_read() -> None:
    found = list(expressions())
    assert len(found) > 60
    assert sum("15m" in each or "10m" in each for each in found) == 2


def test_legends_name_labels_that_are_kept() -> None:
    for panel in panels():
        for target in panel["targets"]:
            kept = {label.strip() for group in GROUPING.findall(target["expr"]) for label in group.split(",")}
            assert set(LEGEND.findall(target["legendFormat"])) <= kept, panel["title"]


def test_panels_say_what_they_show() -> None:
    for panel in panels():
        assert panel["title"]
        assert panel["description"].endswith(".")
        assert panel["fieldConfig"]["defaults"]["unit"]
        assert panel["datasource"] == {"type": "prometheus", "uid": "${datasource}"}
        assert all(target["datasource"] == panel["datasource"] for target in panel["targets"])
        references = [target["refId"] for target in panel["targets"]]
        assert len(references) == len(set(references))
    titles = [panel["title"] for panel in panels()]
    assert {"TTFT", "TPOT", "Goodput", "Prefix cache hits", "KV cache in use"} <= set(titles)


def test_panels_do_not_overlap() -> None:
    everything = DASHBOARD["panels"]
    assert len({panel["id"] for panel in everything}) == len(everything)
    cells = [
        {(x, y) for x in range(p["x"], p["x"] + p["w"]) for y in range(p["y"], p["y"] + p["h"])}
        for p in (panel["gridPos"] for panel in everything)
    ]
    assert all(x < WIDTH for each in cells for x, _ in each)
    assert not any(one & other for one, other in combinations(cells, 2))


def test_the_data_source_and_the_model_are_chosen_above() -> None:
    variables = {variable["name"]: variable for variable in DASHBOARD["templating"]["list"]}
    assert variables["datasource"]["type"] == "datasource"
    assert variables["model_name"]["definition"] == "label_values(vllm:num_requests_running, model_name)"
    assert DASHBOARD["uid"] == "twofold"
    assert DASHBOARD["id"] is None
    assert DASHBOARD["schemaVersion"] >= 39


def own_families() -> set[str]:
    metrics = ServerMetrics()
    _autoscaler(metrics)
    names = {snapshot.family().name for snapshot in metrics.instruments.snapshots()}
    return {name for name in names if name.startswith("twofold:")}


def test_every_family_of_ours_is_shown() -> None:
    names = {name for text in expressions() for name, _ in SERIES.findall(text)}
    shown = names | {re.sub(r"_(total|bucket|sum|count)$", "", name) for name in names}
    assert own_families() <= shown


def test_every_family_of_ours_is_in_the_table() -> None:
    listed = set(re.findall(r"`(twofold:\w+?)(?:_total)?`", (ROOT / "deploy" / "README.md").read_text("utf-8")))
    assert listed == own_families()
