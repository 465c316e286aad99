"""How many workers compute a step: chosen by what steps cost while other processes use the same cores.

Workers meet at barriers, so one worker that has lost its core to another process delays all of them: beside one busy
process, two workers on two cores are slower than one. Such delays are visible as time that workers wait for each other.
Where it is a large part of steps twice in succession, a team smaller by one is tried, and kept if its steps are
cheaper. A larger one is tried again from time to time, more rarely each time that it was no better.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Final

WINDOW_S: Final = 0.05
"""Seconds of steps that one judgement is made of."""
WINDOW_STEPS: Final = 2
LARGE_WAIT: Final = 0.25
"""Share of the workers' time from which a smaller team is tried: 0.02 to 0.15 alone on the machine, and 0.4 to 0.5
beside one busy process, for two workers on two cores."""
FIRST_RETRY_S: Final = 0.1
LAST_RETRY_S: Final = 3.2
FIXED_ROWS: Final = 8
"""A step of no rows would cost as much as these: reading the weights takes about as long as computing eight rows."""


@dataclass(slots=True)
class _Window:
    """Steps of one size: their rows, seconds, and seconds that workers waited."""

    steps: int = 0
    rows: int = 0
    seconds: float = 0.0
    waited: float = 0.0

    @property
    def full(self) -> bool:
        return self.steps >= WINDOW_STEPS and self.seconds >= WINDOW_S

    @property
    def rate(self) -> float:
        """Rows a second, with the fixed rows of each step."""
        return (self.rows + FIXED_ROWS * self.steps) / self.seconds


class TeamSize:
    """The number of workers, at most ``most``, from the costs of the steps so far. Seconds are of computing."""

    def __init__(self, most: int) -> None:
        self.size = most
        self._most = most
        self._window = _Window()
        self._tried_from: tuple[int, float] | None = None
        """The size and rate before the trial that runs now."""
        self._retry_s = FIRST_RETRY_S
        self._crowded = False
        """Whether the last judged window was: one alone may be a first step, or a pause of the machine."""
        self._rest_s = 0.0
        """Seconds until the next trial may begin."""

    def observe(self, size: int, rows: int, seconds: float, waited: float) -> None:
        """Takes the costs of a step that ``size`` workers ran, and chooses the size of the next one.

        waited  seconds that these workers waited for each other, in sum
        """
        if self._most == 1 or size != self.size:
            return
        window = self._window
        window.steps += 1
        window.rows += rows
        window.seconds += seconds
        window.waited += waited
        self._rest_s -= seconds
        if window.full:
            self._window = _Window()
            self._judge(window)

    def _judge(self, window: _Window) -> None:
        if self._tried_from is not None:
            before, rate = self._tried_from
            self._tried_from = None
            better = window.rate > rate
            self._retry_s = FIRST_RETRY_S if better else min(2 * self._retry_s, LAST_RETRY_S)
            self._rest_s = self._retry_s
            if not better:
                self.size = before
            return
        crowded = self.size > 1 and window.waited > LARGE_WAIT * self.size * window.seconds
        again, self._crowded = crowded and self._crowded, crowded
        change = -1 if again else int(not crowded and self.size < self._most)
        if change and self._rest_s <= 0.0:
            self._tried_from = (self.size, window.rate)
            self.size += change
