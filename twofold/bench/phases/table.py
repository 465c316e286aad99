"""The report as text: the ceilings, then a line for each case, with its limit before its measurement.

tokens        limit                 measured   least – most        tok/s   share  not model
   512      211 ms  arithmetic        402 ms      399 – 410        1,270     52%       0.4%
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator
from typing import Final

from twofold.bench.draw.form import duration
from twofold.bench.phases.cases import Case, Decode, Mixed, Phase, Prefill, Prefix
from twofold.bench.phases.ceilings import Ceilings
from twofold.bench.phases.report import DecodeRow, MixedRow, PrefillRow, PrefixRow, Row, SkippedCase, StartTimes
from twofold.core.limits import MachineLimits
from twofold.core.units import count
from twofold.planner.predict.phase import PhaseLimit

LABEL: Final = 10
SIZES: Final = 26
TITLES: Final[dict[Phase, str]] = {
    "prefill": "prefill: a prompt alone, to its first token",
    "prefix": "prefix: a prompt alone, all but its end cached, to its first token",
    "decode": "decode: a step in which every sequence gets a token",
    "mixed": "mixed: a step that computes another prompt beside sequences that decode",
}


def machine_lines(machine: MachineLimits) -> Iterator[str]:
    """The measured ceilings of the machine."""
    yield _line("machine", f"{machine.cpu}, {count(machine.threads, 'thread')}, {machine.isa}")
    yield _line("ceilings", ", ".join(f"{r.bytes_per_s / 1e9:.1f} GB/s over {r.size >> 20} MiB" for r in machine.reads))
    int8, floats = machine.int8_macs_per_s / 1e9, machine.float_macs_per_s / 1e9
    yield _line("", f"{int8:,.0f} G multiply-adds/s of 8-bit integers, {floats:,.0f} G of 32-bit floats")


class TablePrinter:
    """Prints a run as it proceeds (``run.Listener``). The line of a case stays open until it is measured."""

    def __init__(self, write: Callable[[str], None]) -> None:
        self._write = write
        self._phase: Phase | None = None
        self._open = False
        self._prompts: dict[int, float] = {}

    def opened(self, ceilings: Ceilings, name: str) -> None:
        cost = ceilings.steps.cost
        kv = cost.kv_bytes(dict.fromkeys(cost.windows, 1))
        row, logits = f"{cost.row_flops / 2e6:,.1f} M", f"{cost.logit_row_flops / 2e6:,.1f} M"
        macs = f"{row} multiply-adds a row and {logits} for its logits"
        self._lines(
            (
                *machine_lines(ceilings.machine),
                _line("model", f"{name}: {cost.weight_bytes() / 1e6:,.1f} MB of weights a step, {macs}"),
                _line("", f"{kv:,} bytes of keys and values a token; steps of {ceilings.step_rows:,} rows at most"),
            )
        )

    def started(self, start: StartTimes) -> None:
        times = f"loaded in {duration(start.load_s)}, kernels compiled in {duration(start.compile_s)}"
        first = f"first token of the first {start.tokens} tokens after {duration(start.first_token_s)}"
        self._lines([_line("start", f"{times}, {first}")])

    def expected(self, case: Case, limit: PhaseLimit) -> None:
        self._end_line()
        if case.phase != self._phase:
            self._phase = case.phase
            figures = f"{'measured':>9}  {'least – most':>19}  {'tok/s':>8}  {'share':>5}  {'not model':>9}"
            self._lines(("", TITLES[case.phase], f"{'':{SIZES}}{'limit':>9}  {'bound':10}  {figures}"))
        self._write(f"{_sizes(case):{SIZES}}{duration(limit.seconds):>9}  {limit.bound:10}")
        self._open = True

    def found(self, row: Row, limit: PhaseLimit) -> None:
        if isinstance(row, PrefillRow):
            self._prompts[row.case.tokens] = row.seconds.median
        share = limit.share(row.seconds.median) or 0.0
        rate = f"{row.tok_s:,.0f}" if row.tok_s >= 100 else f"{row.tok_s:.1f}"
        spread = f"{duration(row.seconds.least)} – {duration(row.seconds.most)}"
        figures = f"{duration(row.seconds.median):>9}  {spread:>19}  {rate:>8}  {share:>5.0%}  {row.step.outside:>9.1%}"
        self._write(f"  {figures}" + "".join(f"\n{'':4}{note}" for note in self._notes(row)))
        self._end_line()

    def skipped(self, skipped: SkippedCase) -> None:
        self._lines([f"{skipped.case.phase} of {_sizes(skipped.case).strip()} was skipped: {skipped.why}."])

    def raised(self, ceilings: Ceilings) -> None:
        self._lines(["The machine is faster than measured before, so that shares are a little lower:"])
        self._lines(machine_lines(ceilings.machine))

    def busy(self, pace: float) -> None:
        text = f"At the end the machine reached only {pace:.0%} of its ceilings: other programs run on it, "
        self._lines([text + "and may have slowed down the measurements."])

    def close(self) -> None:
        """Ends an open line."""
        self._end_line()

    def _notes(self, row: Row) -> Iterator[str]:
        match row:
            case PrefixRow():
                share = row.seconds.median / row.miss.median
                yield f"{row.cached:,} tokens cached; {share:.3f} of a miss, which takes {duration(row.miss.median)}"
            case DecodeRow():
                step = row.step
                parts = (("model", step.model_s), ("host", step.host_s), ("batch", step.batch_s), ("draw", step.draw_s))
                shown = ", ".join(f"{name} {duration(part)}" for name, part in parts)
                yield f"P99 {duration(row.p99_s)}; {shown}; beside the model {duration(step.beside_s)}"
            case MixedRow():
                prompt_s = self._prompts.get(row.case.tokens)
                alone = "" if prompt_s is None else f", {row.ttft.median / prompt_s:.2f}× of alone"
                yield (
                    f"{row.slower:.2f}× of the {duration(row.alone.median)} without the prompt; its TTFT "
                    f"{duration(row.ttft.median)} in {count(row.steps, 'step')}{alone}"
                )

    def _lines(self, lines: Iterable[str]) -> None:
        self._end_line()
        self._write("".join(f"{line.rstrip()}\n" for line in lines))

    def _end_line(self) -> None:
        if self._open:
            self._open = False
            self._write("\n")


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


def _line(label: str, text: str) -> str:
    return f"{label:{LABEL}}{text}"
