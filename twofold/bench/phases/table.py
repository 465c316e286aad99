"""The report as lines of text: what bounds the work first, then a line for each case, its limit before what came of it.

tokens        limit                 measured   least – most        tok/s   share  not model
   512      211 ms  arithmetic        402 ms      399 – 410        1,270     52%       0.4%
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator
from typing import Final

from twofold.bench.phases.cases import Case, Decode, Mixed, Phase, Prefill, Prefix, phase_of
from twofold.bench.phases.ceilings import Ceilings
from twofold.bench.phases.rows import DecodeRow, MixedRow, PrefillRow, PrefixRow, Row, SkippedCase, Spread, StartTimes
from twofold.bench.phases.steps import StepTime
from twofold.core.limits import MachineLimits
from twofold.core.units import count
from twofold.planner.predict.phase import PhaseLimit

LABEL: Final = 10
SIZES: Final = 26
TITLES: Final[dict[Phase, str]] = {
    "prefill": "prefill: a prompt alone, to its first token",
    "prefix": "prefix: a prompt alone, all but its end cached, to its first token",
    "decode": "decode: a step in which every sequence gets a token",
    "mixed": "mixed: a step that computes another prompt beside sequences that generate",
}


def head_lines(ceilings: Ceilings, name: str) -> Iterator[str]:
    """Machine and model, before anything is measured."""
    cost = ceilings.steps.cost
    yield from machine_lines(ceilings.machine)
    kv = cost.kv_bytes(dict.fromkeys(cost.windows, 1))
    macs = f"{cost.row_flops / 2e6:,.1f} M multiply-adds a row and {cost.logit_row_flops / 2e6:,.1f} M for its logits"
    yield _line("model", f"{name}: {cost.weight_bytes() / 1e6:,.1f} MB of weights a step, {macs}")
    yield _line("", f"{kv:,} bytes of keys and values a token; steps of {ceilings.step_rows:,} rows at most")


def machine_lines(machine: MachineLimits) -> Iterator[str]:
    """The ceilings of the machine, as they were measured."""
    yield _line("machine", f"{machine.cpu}, {machine.threads} threads, {machine.isa}")
    yield _line("ceilings", ", ".join(f"{r.bytes_per_s / 1e9:.1f} GB/s over {r.size >> 20} MiB" for r in machine.reads))
    int8, floats = machine.int8_macs_per_s / 1e9, machine.float_macs_per_s / 1e9
    yield _line("", f"{int8:,.0f} G multiply-adds/s of 8-bit integers, {floats:,.0f} G of 32-bit floats")


def start_line(start: StartTimes) -> str:
    """What it took to begin."""
    return _line(
        "start",
        f"loaded in {seconds(start.load_s)}, kernels compiled in {seconds(start.compile_s)}, "
        f"first token of the first {start.tokens} tokens after {seconds(start.first_token_s)}",
    )


def heading(phase: Phase) -> Iterator[str]:
    """The title of a phase and the names of its columns."""
    yield ""
    yield TITLES[phase]
    yield (
        f"{'':{SIZES}}{'limit':>9}  {'bound':10}  {'measured':>9}  {'least – most':>19}  {'tok/s':>8}  {'share':>5}  "
        f"{'not model':>9}"
    )


def expected(case: Case, limit: PhaseLimit) -> str:
    """The first part of a case's line: what is known before it is measured."""
    return f"{_sizes(case):{SIZES}}{seconds(limit.seconds):>9}  {limit.bound:10}"


def found(row: Row, limit: PhaseLimit, prompt_s: float | None = None) -> str:
    """The rest of the line, and what more there is to say of the row. ``prompt_s`` is what its prompt took alone."""
    share = limit.share(row.seconds.median) or 0.0
    rate = f"{row.tok_s:,.0f}" if row.tok_s >= 100 else f"{row.tok_s:.1f}"
    text = (
        f"  {seconds(row.seconds.median):>9}  {_range(row.seconds):>19}  {rate:>8}  {share:>5.0%}  "
        f"{row.step.outside:>9.1%}"
    )
    return text + "".join(f"\n{'':4}{note}" for note in _notes(row, prompt_s))


def _notes(row: Row, prompt_s: float | None) -> Iterator[str]:
    match row:
        case PrefillRow():
            return
        case PrefixRow():
            share = row.seconds.median / row.miss.median
            yield f"{row.cached:,} tokens cached; {share:.3f} of a miss, which takes {seconds(row.miss.median)}"
        case DecodeRow():
            yield f"P99 {seconds(row.p99_s)}; {_parts(row.step)}"
        case MixedRow():
            alone = "" if prompt_s is None else f", {row.ttft.median / prompt_s:.2f}× of alone"
            yield (
                f"{row.slower:.2f}× of the {seconds(row.alone.median)} without the prompt; its TTFT "
                f"{seconds(row.ttft.median)} in {count(row.steps, 'step')}{alone}"
            )


def _parts(step: StepTime) -> str:
    parts = (("model", step.model_s), ("host", step.host_s), ("batch", step.batch_s), ("draw", step.draw_s))
    shown = ", ".join(f"{name} {seconds(part)}" for name, part in parts)
    return f"{shown}; beside the model {seconds(step.beside_s)}"


def _sizes(case: Case) -> str:
    match case:
        case Prefill(tokens):
            return f"{tokens:6,} tokens"
        case Prefix():
            return f"{case.tokens:6,} tokens, {case.new} new"
        case Decode():
            return f"{case.batch:4,} × {case.context:,} tokens"
        case Mixed():
            return f"{case.batch:4,} × {case.context:,} + {case.tokens:,} tokens"


def _range(spread: Spread) -> str:
    return f"{seconds(spread.least)} – {seconds(spread.most)}"


def seconds(value: float) -> str:
    """1.23 s, 45.6 ms or 78 µs."""
    if value >= 1:
        return f"{value:.2f} s"
    return f"{value * 1e3:.1f} ms" if value >= 0.9995e-3 else f"{value * 1e6:.0f} µs"


def _line(label: str, text: str) -> str:
    return f"{label:{LABEL}}{text}"


class TablePrinter:
    """Tells a run as it goes. A line stays open between its limit and what came of it."""

    def __init__(self, write: Callable[[str], None]) -> None:
        self._write = write
        self._phase: Phase | None = None
        self._open = False
        self._prompts: dict[int, float] = {}

    def opened(self, ceilings: Ceilings, name: str) -> None:
        """As ``Listener.opened``."""
        self._lines(head_lines(ceilings, name))

    def started(self, start: StartTimes) -> None:
        """As ``Listener.started``."""
        self._lines([start_line(start)])

    def expected(self, case: Case, limit: PhaseLimit) -> None:
        """As ``Listener.expected``."""
        self._end_line()
        if phase_of(case) != self._phase:
            self._phase = phase_of(case)
            self._lines(heading(self._phase))
        self._write(expected(case, limit))
        self._open = True

    def found(self, row: Row, limit: PhaseLimit) -> None:
        """As ``Listener.found``."""
        if isinstance(row, PrefillRow):
            self._prompts[row.case.tokens] = row.seconds.median
        self._write(found(row, limit, self._prompts.get(row.case.tokens) if isinstance(row, MixedRow) else None))
        self._end_line()

    def skipped(self, skipped: SkippedCase) -> None:
        """As ``Listener.skipped``."""
        self._lines([f"{phase_of(skipped.case)} of {_sizes(skipped.case).strip()} was skipped: {skipped.why}."])

    def raised(self, ceilings: Ceilings) -> None:
        """As ``Listener.raised``."""
        self._lines(["The machine can do more than was measured before, so that shares are a little lower:"])
        self._lines(machine_lines(ceilings.machine))

    def busy(self, pace: float) -> None:
        """As ``Listener.busy``."""
        text = f"In the end the machine reached only {pace:.0%} of its ceilings: something else runs on it, "
        self._lines([text + "and may have slowed down what was measured."])

    def close(self) -> None:
        """Ends a line that was left open."""
        self._end_line()

    def _lines(self, lines: Iterable[str]) -> None:
        self._end_line()
        self._write("".join(f"{line.rstrip()}\n" for line in lines))

    def _end_line(self) -> None:
        if self._open:
            self._open = False
            self._write("\n")
