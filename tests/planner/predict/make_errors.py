"""Makes ``twofold/planner/predict/errors.toml`` from measured runs.

    TWOFOLD_TEST_DATA=… python -m tests.planner.predict.make_errors > twofold/planner/predict/errors.toml

For each kind of model on each generation of machines the constants are fitted twice over: on either half of the runs,
to predict the other one, and on all models but one, to predict that one. What is predicted is what ``Predictor`` says.
The constants that are built in are fitted on all runs of a class, and printed to standard error.
"""

from __future__ import annotations

import json
import os
import sys
from collections import Counter, defaultdict
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from datetime import UTC, datetime
from pathlib import Path
from statistics import fmean

from tests.planner.predict.served import Served, half, served_rows
from twofold.planner.calibrate.run import search
from twofold.planner.predict.constants import FITTED, GPU, Class, Constants, class_of

DENSE = {"eta_c": 0.7, "eta_k": 0.8, "t_layer": 5e-5, "t_ar": 8e-6, "t_req": 2e-5}
EXPERTS = {**DENSE, "eta_c": 0.4, "t_layer": 9e-5}
"""Where the fit of TPOT begins. The shares of memory and links are not fitted: they come from elsewhere."""
FIRST = {"ahead": 0.5, "ahead_c": 0.07}
"""Where that of TTFT does, which comes after. ``t_first`` is not fitted again: all classes agree with 30 ms."""
LEAST = 20
"""Runs that a class, a model that is left out, and what is left of a class must have at least."""
HEADER = """\
# Mean errors of predictions of TPOT and TTFT, by class of model and machine: tests/planner/predict/make_errors.py makes
# this from measured runs, and twofold/planner/predict/constants.py says how to read it.
"""


@dataclass(frozen=True, slots=True)
class Entry:
    """A class of the table. ``new`` are errors on models that were excluded from the fit."""

    rows: int
    models: tuple[str, ...]
    tpot: float
    ttft: float
    new: tuple[int, float, float] | None


def tpot_error(rows: Iterable[Served], by: Constants) -> float:
    return fmean(abs(row.predicted_tpot(by) / row.tpot - 1) for row in rows)


def ttft_error(rows: Iterable[Served], by: Constants) -> float:
    return fmean(abs(row.predicted_ttft(by) / row.ttft - 1) for row in rows)


def fitted(rows: Sequence[Served]) -> Constants:
    """Five constants by TPOT, then two by TTFT."""
    start = EXPERTS if rows[0].experts else DENSE
    values = search(lambda values: tpot_error(rows, GPU.having(values, "fitted")), start)
    by = GPU.having(values, "fitted")
    values = search(lambda values: ttft_error(rows, by.having(values, "fitted")), FIRST)
    return by.having(values, "fitted")


def groups(rows: Iterable[Served]) -> Mapping[tuple[str, bool], list[Served]]:
    """Runs by what constants are fitted for."""
    found: dict[tuple[str, bool], list[Served]] = defaultdict(list)
    for row in rows:
        found[row.generation, row.experts].append(row)
    return found


def held_out(rows: Sequence[Served]) -> Iterator[tuple[Served, float, float]]:
    """Each run with the errors of constants that were fitted on the other half."""
    for side in (False, True):
        by = fitted([row for row in rows if half(row.key) is side])
        yield from _errors((row for row in rows if half(row.key) is not side), by)


def new_models(rows: Sequence[Served]) -> Iterator[tuple[Served, float, float]]:
    """Runs with the errors of constants that were fitted on other models."""
    for name in sorted({row.predictor.shape.name for row in rows}):
        own = [row for row in rows if row.predictor.shape.name == name]
        others = [row for row in rows if row.predictor.shape.name != name]
        if len(own) >= LEAST and len(others) >= LEAST:
            yield from _errors(own, fitted(others))


def table(rows: Iterable[Served]) -> Mapping[Class, Entry]:
    """The errors of every class that has enough runs."""
    found = {}
    for group in groups(rows).values():
        known, new = _by_class(held_out(group)), _by_class(new_models(group))
        for name, errors in known.items():
            if len(errors) >= LEAST:
                counts = Counter(row.predictor.shape.name for row, _, _ in errors)
                models = sorted(name for name, count in counts.items() if count >= LEAST)
                found[name] = Entry(len(errors), tuple(models), *_means(errors), _new(new.get(name, ())))
    return found


def _errors(rows: Iterable[Served], by: Constants) -> Iterator[tuple[Served, float, float]]:
    return ((row, tpot_error([row], by), ttft_error([row], by)) for row in rows)


def _by_class(
    errors: Iterable[tuple[Served, float, float]],
) -> Mapping[Class, list[tuple[Served, float, float]]]:
    found: dict[Class, list[tuple[Served, float, float]]] = defaultdict(list)
    for each in errors:
        found[class_of(each[0].predictor.shape, each[0].predictor.machine)].append(each)
    return found


def _means(errors: Sequence[tuple[Served, float, float]]) -> tuple[float, float]:
    return round(fmean(each[1] for each in errors), 3), round(fmean(each[2] for each in errors), 3)


def _new(errors: Sequence[tuple[Served, float, float]]) -> tuple[int, float, float] | None:
    return (len(errors), *_means(errors)) if len(errors) >= LEAST else None


def main() -> None:
    rows = served_rows(Path(os.environ["TWOFOLD_TEST_DATA"]))
    print(HEADER + f"measured = {datetime.now(UTC).date()}")
    print('source = "aiconfigurator-core 0.12.0: closed-loop load tests of vLLM, SGLang and TensorRT-LLM"')
    for (kind, generation, precision), entry in sorted(table(rows).items()):
        print(f'\n[[class]]\nkind = "{kind}"\ngeneration = "{generation}"\nprecision = "{precision}"')
        print(f"rows = {entry.rows}\nmodels = {json.dumps(entry.models)}\ntpot = {entry.tpot}\nttft = {entry.ttft}")
        if entry.new:
            print("new_rows = {}\nnew_tpot = {}\nnew_ttft = {}".format(*entry.new))
    for name, group in groups(rows).items():
        by, built_in = fitted(group), FITTED[name]
        values = {key: f"{float(value):.3g}" for key, value in by.values().items()}
        print(name, len(group), values, file=sys.stderr)
        for constants in (by, built_in):
            print(f"  TPOT {tpot_error(group, constants):.3f} TTFT {ttft_error(group, constants):.3f}", file=sys.stderr)


if __name__ == "__main__":
    main()
