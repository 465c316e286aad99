"""What the engine tells of a request: a server's record of it, or ``twofold run --json``."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import replace
from typing import Final, Literal

from twofold.bench.draw.form import duration
from twofold.core.errors import ParameterError, closest_match
from twofold.core.record import WaitReason
from twofold.core.units import count
from twofold.planner.explain.observed import Observed, Spent
from twofold.planner.explain.sources.fields import SourceFields
from twofold.planner.explain.words import listed

BEFORE: Final = frozenset({WaitReason.BLOCKS, WaitReason.TURN, WaitReason.GRAMMAR})
"""What a request waits for before its prompt is computed; only what exceeds the queue came later."""
BOUNDS: Final[Mapping[str, Literal["memory", "arithmetic"]]] = {"memory": "memory", "arithmetic": "arithmetic"}
MIN_STALL: Final = 0.001
"""Stalls below that share of a request are not told."""
EXACT: Final = 0.005


def read_record(record: SourceFields, prompt: int = 0) -> Observed:
    """One prompt of a server's record of a request."""
    prompts = record.parts("prompts")
    if prompt >= len(prompts):
        raise ParameterError(
            f"{record.label} holds {count(len(prompts), 'prompt')}, so there is no prompt {prompt}.",
            param="request",
            hint="Numbers start at 0. A refused request has none.",
        )
    own = prompts[prompt]
    phases = _phases(
        own.number("queue_s"), own.number("prefill_s"), own.number("decode_s"), own.numbers("stalls_s"),
        _of_record(own.inner("prefill")), _of_record(own.inner("decode")),
    )  # fmt: skip
    share = own.inner("decode").number("rows_share", 1.0)
    several = f", prompt {prompt} of {len(prompts)}" if len(prompts) > 1 else ""
    return Observed(
        title=f"{record.optional_text('id') or 'request'}{several}",
        model=record.optional_text("model"),
        prompt=own.count("prompt_tokens"),
        cached=own.count("cached_tokens"),
        output=own.count("output_tokens"),
        batch=1 / share if share > 0 else 1.0,
        phases=phases,
        notes=(*_unequal(share), *_engine_said(own)),
    )


def read_run(run: SourceFields) -> Observed:
    """The output of ``twofold run --json``."""
    usage, timing = run.inner("usage"), run.inner("timing")
    work = run.part("work")
    limit = run.part("limit")
    prefill, decode = (_of_run(name, timing.number(f"{name}_s", 0.0), work, limit) for name in ("prefill", "decode"))
    stalls = run.numbers("stalls")
    details = usage.part("prompt_tokens_details") or SourceFields({}, usage.label)
    return Observed(
        title="twofold run",
        model=run.optional_text("model"),
        prompt=usage.count("prompt_tokens"),
        cached=details.count("cached_tokens", 0),
        output=usage.count("completion_tokens"),
        phases=_phases(timing.number("queue_s", 0.0), timing.number("prefill_s", 0.0), timing.number("decode_s", 0.0),
                       stalls, prefill, decode),
    )  # fmt: skip


def _phases(
    queue_s: float, prefill_s: float, decode_s: float, stalls_s: Mapping[str, float], prefill: Spent, decode: Spent
) -> dict[str, Spent]:
    """Stalls are taken out of the phases that they fell into, so that all four add up."""
    stalls = {_cause(name): seconds for name, seconds in stalls_s.items()}
    before = sum(seconds for cause, seconds in stalls.items() if cause in BEFORE)
    after = sum(seconds for cause, seconds in stalls.items() if cause not in BEFORE)
    late = min(max(0.0, before - queue_s), prefill_s)
    lost = min(after, decode_s)
    least = MIN_STALL * (queue_s + prefill_s + decode_s)
    told = [(cause, seconds) for cause, seconds in stalls.items() if seconds > least]
    behind = [cause.value for cause, _ in told if cause in BEFORE]
    during = [f"{cause.value} {duration(seconds)}" for cause, seconds in told if cause not in BEFORE]
    if late > least:
        during.append(f"in its prompt {duration(late)}")
    return {
        "queue": Spent(queue_s, why=listed(behind)),
        "prefill": replace(prefill, seconds=prefill_s - late),
        "decode": replace(decode, seconds=decode_s - lost),
        "stalls": Spent(late + lost, why=listed(during)),
    }


def _cause(name: str) -> WaitReason:
    """A cause of stalls by its name in JSON."""
    try:
        return WaitReason[name.upper()]
    except KeyError:
        close = closest_match(name, [cause.name.lower() for cause in WaitReason])
        raise ParameterError(
            f"Nothing is known of stalls by {name!r:.60}.",
            param="source",
            hint=f"The nearest cause is {close!r}." if close else "The document is of another version.",
        ) from None


def _of_record(phase: SourceFields) -> Spent:
    if "least_s" not in phase:
        return Spent(why=_steps(phase))
    return Spent(
        floor=phase.number("least_s"),
        bound=BOUNDS.get(phase.optional_text("bound") or ""),
        flops=phase.number("flops"),
        nbytes=sum(phase.numbers("bytes").values()),
        why=_steps(phase),
    )


def _of_run(name: str, seconds: float, work: SourceFields | None, limit: SourceFields | None) -> Spent:
    if work is None:
        return Spent()
    own = work.inner(name)
    reached = None if limit is None else limit.part(name)
    return Spent(
        predicted=own.number("predicted_s", 0.0) or None,
        floor=reached.number("share") * seconds if reached else None,
        bound=BOUNDS.get(reached.optional_text("bound") or "") if reached else None,
        flops=own.number("flops"),
        nbytes=sum(own.number(kind) for kind in ("weight_bytes", "kv_read_bytes", "kv_written_bytes")),
        why=_steps(own),
    )


def _steps(phase: SourceFields) -> str:
    rows, steps = phase.count("rows", 0), phase.count("steps", 0)
    return f"{count(rows, 'row')} in {count(steps, 'step')}" if steps else ""


def _unequal(share: float) -> tuple[str, ...]:
    if share > 1 - EXACT:
        return ()
    return (
        f"{share:.0%} of the rows in its decode steps were its own: it is explained as one of {1 / share:.3g} equal.",
    )


def _engine_said(prompt: SourceFields) -> tuple[str, ...]:
    """How right the engine's own step-time model was; nothing where it said nothing."""
    predicted, error = prompt.number("predicted_s", 0.0), prompt.values.get("prediction_error")
    if not predicted or not isinstance(error, int | float) or error <= -1:
        return ()
    return (_verdict(predicted, predicted / (1 + error)),)


def _verdict(predicted: float, took: float) -> str:
    error = predicted / took - 1
    verdict = "right" if abs(error) < EXACT else f"{abs(error):.0%} too {'long' if error > 0 else 'short'}"
    return f"The engine foresaw {duration(predicted)} for {duration(took)} of steps: {verdict}."
