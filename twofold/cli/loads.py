"""Flags of a load become a load: made up, or a trace."""

from __future__ import annotations

from collections.abc import Callable
from typing import TYPE_CHECKING, TypeAlias

from twofold.cli.bench.options import LoadOptions, TraceOptions
from twofold.core.errors import ParameterError

if TYPE_CHECKING:
    from twofold.bench.load.base import Load, Prompt
    from twofold.bench.load.plan import LoadPlan
    from twofold.bench.load.traces.replay import TraceReplay

    MakeReplay: TypeAlias = Callable[[Prompt], TraceReplay]


def load_plan(flags: LoadOptions) -> LoadPlan:
    """The made-up load of the flags. ParameterError for what is impossible."""
    from twofold.bench.load.lengths import parse_lengths, parse_pauses  # noqa: PLC0415 - start-up time
    from twofold.bench.load.plan import LoadPlan  # noqa: PLC0415
    from twofold.bench.load.requests import SharedPrefix  # noqa: PLC0415

    shared = SharedPrefix(flags.shared_prefix, groups=flags.prefix_groups) if flags.shared_prefix else None
    if shared is None and flags.prefix_groups != 1:
        raise ParameterError("prefix-groups are for prompts with a --shared-prefix.", param="prefix-groups")
    kind = "gamma" if flags.burstiness is not None and flags.arrivals == "poisson" else flags.arrivals
    return LoadPlan(
        rate=flags.rate,
        concurrency=flags.concurrency,
        duration_s=flags.duration,
        requests=flags.requests,
        kind=kind,
        burstiness=1.0 if flags.burstiness is None else flags.burstiness,
        ramp_s=flags.ramp,
        input_tokens=parse_lengths(flags.input_tokens, "input-tokens"),
        output_tokens=parse_lengths(flags.output_tokens, "output-tokens"),
        shared=shared,
        turns=parse_lengths(flags.turns, "turns"),
        pauses=parse_pauses(flags.think_time, "think-time"),
    )


def replay_of(flags: TraceOptions, load: LoadOptions) -> MakeReplay:
    """The trace of the flags as a load; the file is read here, so that a hole in it is told at once."""
    from twofold.bench.load.traces.read import read_trace  # noqa: PLC0415 - start-up time
    from twofold.bench.load.traces.replay import Part, TraceReplay, TraceScale  # noqa: PLC0415

    assert flags.trace is not None, "there is a trace"
    trace = read_trace(flags.trace, form=flags.trace_format, skip_bad=flags.skip_bad, block_tokens=flags.block_tokens)
    part = Part(flags.trace_from, flags.trace_until, load.requests)
    scale = TraceScale(flags.time_scale, load.rate, flags.input_scale, flags.output_scale)
    return lambda prompt: TraceReplay(trace, prompt, part=part, scale=scale, max_open=load.concurrency)


def load_of(trace: TraceOptions, load: LoadOptions, prompt: Prompt) -> Load:
    """Whichever the flags ask for. ``prompt`` says what a request sent, for the turns after it."""
    if trace.trace is not None:
        return replay_of(trace, load)(prompt)
    return load_plan(load).load(prompt, load.seed or 0)
