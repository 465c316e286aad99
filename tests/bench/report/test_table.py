from __future__ import annotations

import io

import pytest
from rich.console import Console

from tests.bench.report.runs import completed, document, failed, mixed, record
from twofold.bench.report.document import Document
from twofold.bench.report.words import print_report


def printed(made: Document, width: int = 120, *, terminal: bool = False) -> str:
    file = io.StringIO()
    print_report(made, Console(file=file, width=width, force_terminal=terminal, color_system=None))
    return file.getvalue()


def test_the_table_has_every_measure_and_percentile() -> None:
    text = printed(document(mixed(40)))
    for words in (
        "TTFT",
        "TTFT from send",
        "schedule delay",
        "TPOT",
        "ITL, gaps",
        "E2E",
        "P99.9",
        "achieved",
        "failed",
    ):
        assert words in text
    assert "36 of 40 requests succeeded (4 refused)." in text


@pytest.mark.parametrize("width", [30, 44, 72, 80, 120])
def test_no_line_is_wider_than_the_terminal(width: int) -> None:
    for made in (document(mixed(40)), document(mixed(40), mixed(40, rate=8.0))):
        assert max(len(line) for line in printed(made, width).splitlines()) <= width


def test_a_narrow_table_keeps_the_middle_and_the_slow_end() -> None:
    text = printed(document(mixed(40)), 44)
    assert "P50" in text
    assert "P99" in text
    assert "P90" not in text


def test_without_a_terminal_there_are_no_control_characters() -> None:
    text = printed(document(mixed(40)))
    assert not [sign for sign in text if ord(sign) < 32 and sign != "\n"]


def test_markup_in_errors_and_names_is_plain_text() -> None:
    text = printed(document(record([completed(0, 0.0), failed(1, 1.0, error="[red]no[/red]")]), model="[bold]m"))
    assert "[red]no[/red]" in text
    assert "[bold]m" in text


def test_several_runs_are_rows_and_curves() -> None:
    text = printed(document(mixed(40), mixed(40, rate=8.0)), 80)
    assert "offered/s" in text
    assert "TTFT against rate" in text


@pytest.mark.parametrize("made", [document(), document(record([])), document(record([failed(0, 0.0)]))])
def test_every_document_has_a_table(made: Document) -> None:
    assert "a/model" in printed(made)
