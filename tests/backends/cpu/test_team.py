"""The size of the team on simulated machines: alone, beside busy processes, and where a smaller team does not help."""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable

import numpy as np
import pytest

from tests.backends.cpu.conftest import ISAS
from tests.models.test_decoder import TABLE, TOKENS
from tests.support.cpu import cpu_model, cpu_sizes
from tests.support.reference import one_sequence
from tests.support.tiny import TinyModel, TinyOptions
from twofold.backends.cpu.kernels.jit import Compiler
from twofold.backends.cpu.team import LAST_RETRY_S, WINDOW_S, TeamSize

ROWS = 8
Costs = Callable[[int], tuple[float, float]]
"""A machine: size of the team → seconds of a step, and seconds that its workers wait in sum."""


def alone(size: int) -> tuple[float, float]:
    return 0.02 / size, 0.05 * 0.02


def beside_one_process(cores: int) -> Costs:
    """A team that needs all cores shares one of them, and all its workers wait for the one that is there."""

    def costs(size: int) -> tuple[float, float]:
        seconds = 0.02 / size
        return (seconds, 0.02 * seconds) if size < cores else (2.4 * seconds, 2.4 * seconds * 0.45 * size)

    return costs


def run(team: TeamSize, costs: Costs, seconds: float) -> Counter[int]:
    """Steps of ``ROWS`` rows for a time. Returns the seconds of each size."""
    spent: Counter[int] = Counter()
    while sum(spent.values()) < seconds:
        size = team.size
        cost, waited = costs(size)
        team.observe(size, ROWS, cost, waited)
        spent[size] += cost  # type: ignore[assignment]
    return spent


@pytest.mark.parametrize("most", [1, 2, 8])
def test_alone_all_workers_compute(most: int) -> None:
    assert set(run(TeamSize(most), alone, 60)) == {most}


@pytest.mark.parametrize("most", [2, 4, 8])
def test_beside_a_busy_process_the_team_is_smaller_by_one(most: int) -> None:
    team = TeamSize(most)
    run(team, beside_one_process(most), 1)
    spent = run(team, beside_one_process(most), 60)
    assert set(spent) <= {most - 2, most - 1, most} - {0}
    assert spent[most - 1] > 0.95 * 60


@pytest.mark.parametrize("most", [2, 4])
def test_the_team_is_whole_again_when_the_other_process_has_ended(most: int) -> None:
    team = TeamSize(most)
    run(team, beside_one_process(most), 30)
    run(team, alone, LAST_RETRY_S + 4 * WINDOW_S)
    assert team.size == most
    assert set(run(team, alone, 30)) == {most}


def test_one_pause_of_the_machine_changes_nothing() -> None:
    team, spent = TeamSize(2), Counter[int]()
    for index in range(1000):
        seconds, waited = (0.3, 0.29) if index % 20 == 0 else alone(2)
        spent[team.size] += 1
        team.observe(team.size, ROWS, seconds, waited)
    assert set(spent) == {2}


def test_waits_that_a_smaller_team_does_not_end_leave_it_as_it_is() -> None:
    """As where one operation has too few units for all."""
    spent = run(TeamSize(4), lambda size: (0.02 / size, 0.4 * 0.02), 60)
    assert spent[4] > 0.95 * 60
    assert set(spent) == {3, 4}


def test_steps_of_many_and_of_few_rows_are_compared_by_their_rows() -> None:
    """A trial with prompts in it is not mistaken for a slow one."""
    team, spent = TeamSize(2), Counter[int]()
    for index in range(3000):
        rows = 512 if index % 7 == 3 else 1
        size = team.size
        seconds = (rows + 8) * 0.5e-3 * (1.0 if size == 1 else 1.3)
        team.observe(size, rows, seconds, seconds * 0.9 if size == 2 else 0.0)
        spent[size] += 1
    assert spent[1] > 0.9 * 3000


def test_a_step_of_another_size_does_not_count() -> None:
    """Workers that left may not be back yet, so a step may have fewer than were asked for."""
    team = TeamSize(2)
    for _ in range(100):
        team.observe(1, ROWS, 1.0, 1.0)
    assert team.size == 2


def test_results_do_not_depend_on_the_size(
    tiny_gguf: Callable[[TinyOptions], TinyModel], compiler_for: Callable[[str], Compiler]
) -> None:
    tiny = tiny_gguf(TinyOptions.wide(format="Q4_K"))
    with cpu_model(tiny.path, compiler_for(ISAS[0]), cpu_sizes(64, 512, 64, 64), workers=3) as model:
        whole = model.run(one_sequence(TOKENS, TABLE)).copy()
        for size in (2, 1, 3, 1):
            model.pool.resize(size)
            assert model._team is not None
            model._team.size = model.pool.size
            np.testing.assert_array_equal(model.run(one_sequence(TOKENS, TABLE)), whole)
