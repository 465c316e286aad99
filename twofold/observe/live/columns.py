"""Steps as columns: the form in which a live view gets many of them.

A row is one step, or several neighbours made one. Times are milliseconds since the zero of the stream.

    n          number of the first step
    t, end     start of the first (with its block moves) and end of the last
    ms         duration of the rows, summed; ``host``: the engine's own time before them
    foreseen   predicted duration; null if one of them was not predicted
    decode     rows of generated tokens, with ``drafts``; ``prefill``: rows of prompts
    logits     rows whose logits were computed
    attended   positions that rows saw; ``read``: that sequences read; in layers without a window
    draft_ms   part of ``ms`` for the draft model
    budget     prompt rows that the budget allowed the last step; null if it bounded nothing
    why        what kept prompts from more rows in the last step (``HeldBy``)
    times      number of steps
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from typing import Any, Final, TypeAlias

from twofold.core.report import StepReport

Row: TypeAlias = tuple[Any, ...]
COLUMNS: Final = (
    *("n", "t", "end", "ms", "host", "foreseen", "decode", "prefill", "drafts", "logits"),
    *("attended", "read", "draft_ms", "budget", "why", "times"),
)
N, T, END, MS, HOST, FORESEEN, DECODE, PREFILL, DRAFTS, LOGITS, ATTENDED, READ, DRAFT_MS, BUDGET, WHY, TIMES = range(16)
DIGITS: Final = 2


def row_of(report: StepReport, zero: float) -> Row:
    """A step as a row."""
    return (
        report.number,
        round((report.started - zero) * 1e3, DIGITS),
        round((report.ended - zero) * 1e3, DIGITS),
        round(report.seconds * 1e3, DIGITS),
        round(report.host_s * 1e3, DIGITS),
        None if report.predicted_s is None else round(report.predicted_s * 1e3, DIGITS),
        report.decode_rows,
        report.prefill_rows,
        report.draft_rows,
        report.logit_rows,
        report.attended,
        report.read,
        round(report.draft_s * 1e3, DIGITS),
        report.budget,
        report.held_by,
        1,
    )


def joined(first: Row, last: Row) -> Row:
    """Two neighbours as one row."""
    unknown = first[FORESEEN] is None or last[FORESEEN] is None
    return (
        first[N],
        first[T],
        last[END],
        round(first[MS] + last[MS], DIGITS),
        round(first[HOST] + last[HOST], DIGITS),
        None if unknown else round(first[FORESEEN] + last[FORESEEN], DIGITS),
        first[DECODE] + last[DECODE],
        first[PREFILL] + last[PREFILL],
        first[DRAFTS] + last[DRAFTS],
        first[LOGITS] + last[LOGITS],
        first[ATTENDED] + last[ATTENDED],
        first[READ] + last[READ],
        round(first[DRAFT_MS] + last[DRAFT_MS], DIGITS),
        last[BUDGET],
        last[WHY],
        first[TIMES] + last[TIMES],
    )


def folded(rows: Sequence[Row], most: int) -> list[Row]:
    """At most ``most`` rows, of which each stands for as many neighbours."""
    each = -(-len(rows) // most)
    found = []
    for start in range(0, len(rows), max(each, 1)):
        row = rows[start]
        for other in rows[start + 1 : start + each]:
            row = joined(row, other)
        found.append(row)
    return found


def columns(rows: Iterable[Row]) -> dict[str, list[Any]]:
    """Rows as columns by name."""
    by_column = list(zip(*rows, strict=True)) or [()] * len(COLUMNS)
    return {name: list(values) for name, values in zip(COLUMNS, by_column, strict=True)}
