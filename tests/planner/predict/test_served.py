"""Predictions held to measured GPUs: fitted on some of the runs, tested on others."""

from __future__ import annotations

import tomllib
from collections import Counter
from importlib.resources import files
from pathlib import Path

import pytest

from tests.planner.predict.make_errors import groups, table, tpot_error, ttft_error
from tests.planner.predict.served import CACHED, Served, dense_hopper, served_rows
from twofold.planner.calibrate.run import mean_error
from twofold.planner.predict.constants import BARE, EFFICIENT, FITTED, class_of, constants_for, error_words, errors_for

pytestmark = pytest.mark.data


@pytest.fixture(scope="module")
def rows(test_data: Path) -> tuple[Served, ...]:
    return served_rows(test_data)


@pytest.fixture(scope="module")
def dense(test_data: Path) -> tuple[Served, ...]:
    return dense_hopper(test_data)


def test_the_ladder_of_terms(dense: tuple[Served, ...]) -> None:
    """Each term that is added explains more: published 67%, 59%, 39.5%, and 15.9% with one constant."""

    def error(by: object, interference: bool = False) -> float:
        pairs = ((row.predicted_tpot(by, interference=interference), row.tpot) for row in dense)  # type: ignore[arg-type]
        return mean_error(pairs)

    layered = min(error(EFFICIENT.having({"t_layer": us * 1e-6}, "tried"), True) for us in range(40, 100, 5))
    assert error(BARE) == pytest.approx(0.67, abs=0.01)
    assert error(EFFICIENT) == pytest.approx(0.59, abs=0.01)
    assert error(EFFICIENT, True) == pytest.approx(0.395, abs=0.06)
    assert layered == pytest.approx(0.159, abs=0.025)


def test_errors_that_are_printed_are_those_that_are_measured(rows: tuple[Served, ...]) -> None:
    """The table in the package is what the script makes of the data: fitted on some runs, measured on others."""
    text = files("twofold.planner.predict").joinpath("errors.toml").read_text("utf-8")
    printed = {(each["kind"], each["generation"], each["precision"]): each for each in tomllib.loads(text)["class"]}
    measured = table(rows)
    assert printed.keys() == measured.keys()
    for name, entry in measured.items():
        found = printed[name]
        assert (found["rows"], found["models"]) == (entry.rows, list(entry.models)), name
        assert (found["tpot"], found["ttft"]) == pytest.approx((entry.tpot, entry.ttft), abs=0.002), name
        new = (found["new_rows"], found["new_tpot"], found["new_ttft"]) if "new_rows" in found else None
        assert new == (None if entry.new is None else pytest.approx(entry.new, abs=0.002)), name


def test_constants_that_are_built_in_err_as_the_table_says(rows: tuple[Served, ...]) -> None:
    """They were fitted on all runs: at most a little better than what was held out, and much better than without."""
    for name, group in groups(rows).items():
        by = FITTED[name]
        assert tpot_error(group, by) < 0.18, name
        assert ttft_error(group, by) < 0.41, name
        assert ttft_error(group, by) < 0.7 * ttft_error(group, by.having({"ahead": 0.0, "ahead_c": 0.0}, "none")), name
        assert group[0].predictor.machine.name in ("h100", "h200", "b200")
        assert constants_for(group[0].predictor.machine, group[0].predictor.shape) is by


def test_every_class_is_told_its_own_error(rows: tuple[Served, ...]) -> None:
    """Errors of a class's own runs with the constants that are built in are near what is printed for them."""
    classes = Counter(class_of(row.predictor.shape, row.predictor.machine) for row in rows)
    for name, count in classes.items():
        group = [row for row in rows if class_of(row.predictor.shape, row.predictor.machine) == name]
        names = Counter(row.predictor.shape.name for row in group)
        one = next(
            row.predictor for row in group if row.predictor.shape.name == max(names, key=lambda each: names[each])
        )
        by = constants_for(one.machine, one.shape)
        found = errors_for(one.shape, one.machine, by)
        if count < 20:
            assert "not measured" in error_words(found)
            continue
        assert found.tpot == pytest.approx(tpot_error(group, by), abs=0.04), name
        assert found.ttft == pytest.approx(ttft_error(group, by), abs=0.07), name
        assert f"{count} measured runs" in error_words(found)


def test_faults_of_the_data_are_corrected(rows: tuple[Served, ...]) -> None:
    """No label of more devices than were there, no run twice, none whose prompts were cached."""
    assert all(row.predictor.setup.tp <= 8 for row in rows)
    measured = Counter((row.predictor.shape.name, round(row.ttft, 9), round(row.tpot, 9)) for row in rows)
    assert max(measured.values()) == 1
    twice = [
        row for row in rows if row.predictor.setup.ep == row.predictor.setup.tp == 4 and row.generation == "hopper"
    ]
    assert twice
    assert len([row for row in rows if row.key.startswith(CACHED)]) == 0


def test_no_measured_row_is_faster_than_light(dense: tuple[Served, ...]) -> None:
    for row in dense:
        assert row.tpot > row.decode.floor, row.key
        assert row.ttft > row.prefill.floor, row.key


def test_the_predictor_says_what_its_demands_say(rows: tuple[Served, ...]) -> None:
    for row in rows[::40]:
        by = constants_for(row.predictor.machine, row.predictor.shape)
        found = row.prediction(by)
        assert found.batch == row.batch
        assert found.tpot == pytest.approx(row.predicted_tpot(by))
        assert found.ttft == pytest.approx(row.predicted_ttft(by))
        assert found.ttft >= found.ttft_floor
