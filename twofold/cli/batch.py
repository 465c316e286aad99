"""``twofold batch``: runs a file of requests in OpenAI's batch format."""

from __future__ import annotations

import sys
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import asdict, dataclass, field
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any, Final

from cyclopts import Parameter

from twofold.cli.console import INTERRUPTED, interrupts, is_terminal, note, print_json, rich_console
from twofold.cli.options import FLAG, LIST, ConcurrentModelOptions
from twofold.core.errors import UsageError

if TYPE_CHECKING:
    from twofold.api.batch.run import BatchProgress, BatchRun

LONG: Final = 4
"""Minimum number of open lines for a note at half of them in a log."""


@Parameter(name="*", group="Model")
@dataclass(frozen=True, slots=True, kw_only=True)
class BatchOptions(ConcurrentModelOptions):
    """The model and its concurrency, which is high because a batch needs throughput, not low latency."""

    max_num_seqs: Annotated[
        int, Parameter(name=("--max-num-seqs", "--parallel", "-np"), help="Max concurrent sequences.")
    ] = 64
    max_num_batched_tokens: Annotated[int, Parameter(help="Max tokens computed in one step.")] = 1024
    token_budget: Annotated[
        str,
        Parameter(help="fixed: fill every step; live: limit prefill so that decode keeps its TPOT target."),
    ] = "fixed"
    served_model_name: Annotated[
        list[str], LIST, Parameter(help="Name of the model in requests; repeatable, the first is used in responses.")
    ] = field(default_factory=list)
    accept_any_model: Annotated[bool, FLAG, Parameter(help="Run requests for any other model name too.")] = False


def batch(
    input: Annotated[Path, Parameter(name=("--input-file", "-i"))],
    output: Annotated[Path, Parameter(name=("--output-file", "-o"))],
    *,
    overwrite: Annotated[bool, FLAG] = False,
    json: Annotated[bool, FLAG] = False,
    trace: Path | None = None,
    model: BatchOptions = BatchOptions(),
) -> int:
    """Run every line of a file of requests as a batch. After an interruption, run it again to resume.

    Parameters
    ----------
    input
        JSON Lines in OpenAI's batch format: custom_id, method, url, body.
    output
        One line per request, in order of completion.
    overwrite
        Empty the output file and start over.
    json
        Print a summary as JSON.
    trace
        Write a trace of every step for ui.perfetto.dev.
    """
    model.check()
    _check_trace(trace, input, output)
    # These imports load the engine, so flags are checked before.
    from twofold.api.batch.lines import ENDPOINTS  # noqa: PLC0415
    from twofold.api.batch.run import open_batch  # noqa: PLC0415
    from twofold.core.clock import MonotonicClock  # noqa: PLC0415

    with open_batch(input, output, MonotonicClock(), ENDPOINTS, overwrite=overwrite) as run:
        progress = run.progress if run.progress.finished else _completed(run, model, trace)
    print_json(_as_json(progress)) if json else note(_summary(progress, output))
    if progress.failed:
        note("Failed lines are not retried. To retry them, remove them from the output and run the command again.")
    if progress.finished:
        return 0
    note("Stopped. Finished lines are in the output; run the same command again to resume.")
    return INTERRUPTED


def _check_trace(trace: Path | None, *others: Path) -> None:
    """Raises UsageError for a trace that would overwrite a file of the batch."""
    if trace is not None and trace.resolve() in [other.resolve() for other in others]:
        raise UsageError("The trace is the batch's input or output.", hint="Name another file for the trace.")


def _completed(batch: BatchRun, options: BatchOptions, trace: Path | None) -> BatchProgress:
    """Loads the model and runs the batch to its end, or until Ctrl-C stops it between two steps."""
    from twofold.api.batch.runner import BatchRunner  # noqa: PLC0415
    from twofold.cli.loading import loaded_model  # noqa: PLC0415
    from twofold.core.clock import MonotonicClock  # noqa: PLC0415
    from twofold.fleet.reading import system_fingerprint  # noqa: PLC0415
    from twofold.formats.identity import model_parts  # noqa: PLC0415

    with (
        loaded_model(options, trace) as (llm, found),
        interrupts() as interrupted,
        _show_progress(batch.progress) as watch,
    ):
        runner = BatchRunner(
            llm,
            batch,
            names=options.served_model_name or [found.name, options.model],
            any_model=options.accept_any_model,
            fingerprint=system_fingerprint(model_parts(found.path), llm.config.options.kv_type),
            clock=MonotonicClock(),
            watch=watch,
            stopped=interrupted.is_set,
        )
        return runner.run()


@contextmanager
def _show_progress(before: BatchProgress) -> Iterator[Callable[[BatchProgress], None]]:
    """Shows progress on standard error until the batch ends: a bar on a terminal, at most two lines elsewhere."""
    terminal = is_terminal(sys.stderr)
    if before.found:
        note(f"{before.found} of {before.lines} lines were finished before.")
    elif not terminal:
        note(f"{before.lines} lines")
    if not terminal:
        half, noted = before.done + (before.lines - before.done) // 2, before.lines - before.done < LONG

        def note_half(progress: BatchProgress) -> None:
            nonlocal noted
            if not noted and progress.done >= half:
                noted = True
                note(f"{progress.done} of {progress.lines} lines, {_speeds(progress)}")

        yield note_half
        return
    from rich.progress import BarColumn, MofNCompleteColumn, TextColumn, TimeRemainingColumn  # noqa: PLC0415
    from rich.progress import Progress as Bars  # noqa: PLC0415

    columns = (BarColumn(), MofNCompleteColumn(), TextColumn("{task.description}"), TimeRemainingColumn())
    with Bars(*columns, console=rich_console(stderr=True), transient=True) as bars:
        task = bars.add_task("", total=before.lines, completed=before.done)

        def draw(progress: BatchProgress) -> None:
            bars.update(task, completed=progress.done, description=_speeds(progress))

        yield draw


def _speeds(progress: BatchProgress) -> str:
    failed = f"{progress.failed} failed, " if progress.failed else ""
    return f"{failed}{progress.prompt_tok_s:,.0f} tok/s in, {progress.completion_tok_s:,.0f} tok/s out"


def _summary(progress: BatchProgress, output: Path) -> str:
    """12 of 12 lines in out.jsonl, 1 of them failed · 340 prompt tokens, 96 output tokens in 1.2 s: 283 tok/s in, …"""
    failed = f", {progress.failed} of them failed" if progress.failed else ""
    lines = f"{progress.done} of {progress.lines} lines in {output}{failed}"
    if not progress.seconds:
        return f"{lines}. There was nothing to do."
    return (
        f"{lines} · {progress.prompt_tokens:,} prompt tokens, {progress.completion_tokens:,} output tokens "
        f"in {progress.seconds:,.1f} s: {progress.prompt_tok_s:,.0f} tok/s in, {progress.completion_tok_s:,.0f} out"
    )


def _as_json(progress: BatchProgress) -> dict[str, Any]:
    """The progress as JSON; tokens and seconds are those of this run, without earlier interrupted ones."""
    speeds = {"prompt_tok_s": progress.prompt_tok_s, "completion_tok_s": progress.completion_tok_s}
    return asdict(progress) | speeds | {"finished": progress.finished}
