from __future__ import annotations

import csv
import io

import pytest

from tests.bench.report.runs import completed, document, failed, mixed, record
from twofold.bench.report.document import COLUMNS, to_csv


def rows(text: str) -> list[dict[str, str]]:
    return list(csv.DictReader(io.StringIO(text)))


def test_there_is_a_row_for_each_request_of_each_run() -> None:
    found = rows(to_csv(document(mixed(20), mixed(10))))
    assert [row["run"] for row in found] == ["0"] * 20 + ["1"] * 10
    assert tuple(found[0]) == COLUMNS
    assert "gaps_us" not in COLUMNS


def test_values_are_as_in_the_document_and_null_is_empty() -> None:
    good, bad = rows(to_csv(document(record([completed(0, 1.5), failed(1, 2.0, error="no")]))))
    assert (good["due_s"], good["ttft_s"], good["outcome"], good["measured"], good["error"]) == (
        "1.5",
        "0.1",
        "ok",
        "1",
        "",
    )
    assert (bad["ttft_s"], bad["outcome"], bad["error"]) == ("", "refused", "no")


@pytest.mark.parametrize("error", ["=1+1", "+1", "-1", "@SUM(A1)", "\t=1", "\r=1", "\n=1", "\x00=1"])
def test_no_text_is_a_formula(error: str) -> None:
    (row,) = rows(to_csv(document(record([failed(0, 0.0, error=error)]))))
    assert row["error"].lstrip()[0] not in "=+-@" or row["error"].startswith("'")
    assert "\n" not in row["error"]
    assert "\r" not in row["error"]


def test_texts_with_commas_quotes_and_lines_stay_one_cell() -> None:
    (row,) = rows(to_csv(document(record([failed(0, 0.0, error='a, "b"\nc')]))))
    assert row["error"] == 'a, "b" c'
