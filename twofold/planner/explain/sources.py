"""Requests in JSON documents: a server's record, a reply with one, ``twofold run --json``, or a bench.

A bench has only the times that its client saw; the rest is inferred:

    queue     the client's lateness, and the wait that the bench estimated
    prefill   the rest of the time to first token
    stalls    the excess over the median of each gap that is longer than 3 times the median
    decode    the rest
    batch     mean number of completions that were streamed at the same time
"""

from __future__ import annotations

import json
import math
import sys
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from math import ceil
from statistics import median
from typing import Final, Literal, Self

from twofold.bench.draw.form import duration
from twofold.core.errors import ParameterError, TwofoldError, closest_match
from twofold.core.record import WaitReason
from twofold.core.typed_fields import TypedFields
from twofold.core.units import count
from twofold.planner.explain.scenario import Goal, Observed, ObservedDrafts, Phase, PhaseName
from twofold.planner.explain.words import EXACT, drafts_note, listed, size, verdict

RECORD: Final = "twofold.request"
BENCH: Final = "twofold.bench/"
HINT: Final = (
    "Give a request's record (GET /v1/twofold/requests/ID), a reply with one, the output of `twofold run --json`, or a "
    "document of `twofold bench`."
)
BEFORE: Final = frozenset(
    {WaitReason.BLOCKS, WaitReason.TURN, WaitReason.GRAMMAR, WaitReason.LOADING, WaitReason.FETCHING}
)
"""Waits before a prompt's steps; seconds of them beyond the queue's were between the prompt's steps."""
BOUNDS: Final[Mapping[str, Literal["memory", "arithmetic"]]] = {"memory": "memory", "arithmetic": "arithmetic"}
MOVES: Final = {
    "drained": "was drained",
    "silent": "did not answer",
    "crashed": "crashed",
    "ended": "ended",
    "handover": "handed it over",
}
"""Why a request continued elsewhere, by the cause in its record."""
MIN_STALL: Final = 0.001
"""Stalls below this share of a request's time are not described."""
LONG_GAP: Final = 3.0
MEASURES: Final[dict[Goal, str]] = {"ttft": "ttft_s", "tpot": "tpot_s"}


@dataclass(frozen=True, slots=True)
class DocumentFields(TypedFields):
    """The fields of one object of a JSON document; a missing or wrong field is an error that names it."""

    def count(self, name: str, default: int | None = None) -> int:
        """A whole number that is not negative."""
        return self.integer(name, default, least=0, most=1 << 63)

    def optional_text(self, name: str) -> str | None:
        """A text, or None if absent."""
        return self.text(name) if name in self else None

    def inner(self, name: str) -> Self:
        """An object inside this one."""
        return self.within(name, self._get(name, None))

    def parts(self, name: str) -> list[Self]:
        """A list of objects."""
        self._get(name, None)
        return [self.within(f"{name}[{i}]", each) for i, each in enumerate(self.items(name))]

    def series(self, name: str) -> list[float]:
        """A list of finite numbers; empty if absent."""
        items = {str(i): each for i, each in enumerate(self.items(name))}
        return list(replace(self, values={name: items}).numbers(name).values())

    def numbers(self, name: str) -> dict[str, float]:
        """An object of numbers; empty if absent."""
        if name not in self:
            return {}
        part = self.inner(name)
        return {key: part.number(key) for key in part.values}

    def within(self, name: str, value: object) -> Self:
        if not isinstance(value, Mapping):
            raise self.wrong(name, value, "an object")
        return replace(self, values=value, label=f"{self.label}: {name}")

    @classmethod
    def parse(cls, text: bytes | str, label: str, hint: str) -> Self:
        """The fields of a JSON object; ``label`` names the text in errors."""
        document = cls({}, label, hint=hint)
        try:
            value = json.loads(text)
        except (ValueError, RecursionError) as error:
            raise document._error(f"{label} is not valid JSON: {error!s:.200}.") from None
        return replace(document.within("document", value), label=label)


class SourceFields(DocumentFields):
    """The fields of a document that a user named as the source of a request."""

    __slots__ = ()

    def _error(self, message: str) -> TwofoldError:
        return ParameterError(message, param="source", hint=self.hint)


def read_observed(text: bytes | str, label: str, pick: str | None = None, goal: Goal = "e2e") -> Observed:
    """The request of a record, a reply with one, a run or a bench; ``label`` names the text in errors.

    ``pick`` is an index or a percentile of a bench's requests (default: p50), or the number of a record's prompt.
    ``goal`` selects the measure of the percentile. Raises ParameterError for other documents.
    """
    document = SourceFields.parse(text, label, HINT)
    inner = document.values.get("twofold")
    if isinstance(inner, dict) and inner.get("object") == RECORD:
        document = replace(document, values=inner)
    if document.values.get("object") == RECORD:
        return _read_record(document, _prompt_number(pick))
    if str(document.values.get("schema")).startswith(BENCH):
        return _read_bench(document, pick or "p50", goal)
    if "timing" in document and "usage" in document:
        return _read_run(document)
    raise ParameterError(f"{label} contains no request.", param="source", hint=HINT)


def _prompt_number(pick: str | None) -> int:
    if pick is None:
        return 0
    if not pick.isdecimal():
        raise ParameterError(
            f"{pick!r:.60} is not a prompt number.", param="request", hint="Prompt numbers start at 0."
        )
    return int(pick)


def _read_record(record: SourceFields, prompt: int) -> Observed:
    """One prompt of a server's record of a request."""
    prompts = record.parts("prompts")
    if prompt >= len(prompts):
        raise ParameterError(
            f"{record.label} holds {count(len(prompts), 'prompt')}, so there is no prompt {prompt}.",
            param="request",
            hint="Numbers start at 0. A refused request has none.",
        )
    own = prompts[prompt]
    share = own.inner("decode").number("rows_share", 1.0)
    several = f", prompt {prompt} of {len(prompts)}" if len(prompts) > 1 else ""
    return Observed(
        title=f"{record.optional_text('id') or 'request'}{several}",
        model=record.optional_text("model"),
        prompt=own.count("prompt_tokens"),
        cached=own.count("cached_tokens"),
        output=own.count("output_tokens"),
        batch=1 / share if share > 0 else 1.0,
        phases=_phases(own, own.numbers("stalls_s"), _recorded("prefill", own), _recorded("decode", own)),
        loaded=own.count("loaded_tokens", 0),
        load_s=own.numbers("stalls_s").get(WaitReason.LOADING.name.lower(), 0.0),
        drafts=_drafts(own),
        notes=(*_unequal(share), *_speculation(own), *_engine_error(own), *_routes(record, prompt, len(prompts))),
    )


def _read_run(run: SourceFields) -> Observed:
    """The output of ``twofold run --json``."""
    usage, timing = run.inner("usage"), run.inner("timing")
    timing = replace(timing, defaults={"queue_s": 0.0, "prefill_s": 0.0, "decode_s": 0.0})
    details = usage.part("prompt_tokens_details")
    prefill = _measured("prefill", timing.number("prefill_s"), run)
    decode = _measured("decode", timing.number("decode_s"), run)
    return Observed(
        title="twofold run",
        model=run.optional_text("model"),
        prompt=usage.count("prompt_tokens"),
        cached=0 if details is None else details.count("cached_tokens", 0),
        output=usage.count("completion_tokens"),
        phases=_phases(timing, run.numbers("stalls"), prefill, decode),
        drafts=_drafts(run),
        notes=_speculation(run),
    )


def _phases(
    times: SourceFields, stalls_s: Mapping[str, float], prefill: Phase, decode: Phase
) -> dict[PhaseName, Phase]:
    """The four phases; stalls are subtracted from the phase in which they occurred, so that all add up."""
    queue_s, prefill_s, decode_s = (times.number(f"{name}_s") for name in ("queue", "prefill", "decode"))
    stalls = {_reason(name): seconds for name, seconds in stalls_s.items()}
    before = sum(seconds for reason, seconds in stalls.items() if reason in BEFORE)
    late = min(max(0.0, before - queue_s), prefill_s)
    after = sum(seconds for reason, seconds in stalls.items() if reason not in BEFORE)
    lost = min(after, decode_s)
    shortest = MIN_STALL * (queue_s + prefill_s + decode_s)
    noticeable = [(reason, seconds) for reason, seconds in stalls.items() if seconds > shortest]
    during = [f"{reason.value} {duration(seconds)}" for reason, seconds in noticeable if reason not in BEFORE]
    if late > shortest:
        during.append(f"between steps of its prompt {duration(late)}")
    return {
        "queue": Phase("queue", queue_s, why=listed([reason.value for reason, _ in noticeable if reason in BEFORE])),
        "prefill": replace(prefill, actual=prefill_s - late),
        "decode": replace(decode, actual=decode_s - lost),
        "stalls": Phase("stalls", late + lost, why=listed(during)),
    }


def _reason(name: str) -> WaitReason:
    """A wait reason by its name in JSON."""
    try:
        return WaitReason[name.upper()]
    except KeyError:
        close = closest_match(name, [reason.name.lower() for reason in WaitReason])
        raise ParameterError(
            f"Unknown cause of a stall: {name!r:.60}.",
            param="source",
            hint=f"The closest cause is {close!r}." if close else "The document may be from another version.",
        ) from None


def _recorded(name: PhaseName, prompt: SourceFields) -> Phase:
    """A phase of a server's record."""
    phase = prompt.inner(name)
    if "least_s" not in phase:
        return Phase(name, why=_steps(phase))
    return Phase(
        name,
        floor=phase.number("least_s"),
        bound=BOUNDS.get(phase.optional_text("bound") or ""),
        flops=phase.number("flops"),
        nbytes=sum(phase.numbers("bytes").values()),
        why=_steps(phase),
    )


def _measured(name: PhaseName, seconds: float, run: SourceFields) -> Phase:
    """A phase of ``twofold run``."""
    work, limit = run.part("work"), run.part("limit")
    if work is None:
        return Phase(name)
    own = work.inner(name)
    reached = None if limit is None else limit.part(name)
    return Phase(
        name,
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
    if not 0 < share <= 1 - EXACT:
        return ()
    equal = f"one of {1 / share:.3g} equal requests"
    return (f"{share:.0%} of the rows in its decode steps were its own: it is explained as {equal}.",)


def _speculation(document: SourceFields) -> tuple[str, ...]:
    """What drafts gained; nothing without drafts."""
    found = _drafts(document)
    return (f"Speculation: {drafts_note(*found, 'drafted tokens')}.",) if found else ()


def _drafts(document: SourceFields) -> ObservedDrafts | None:
    """The drafts of a request; None without any, and for documents from before there were any."""
    found = document.part("speculation")
    if found is None or not (drafted := found.count("drafted_tokens")):
        return None
    saved_s = found.number("saved_s", least=-sys.float_info.max)
    return ObservedDrafts(drafted, found.count("accepted_tokens"), saved_s)


def _engine_error(prompt: SourceFields) -> tuple[str, ...]:
    """The error of the engine's step-time model; nothing if it predicted nothing."""
    predicted, error = prompt.number("predicted_s", 0.0), prompt.values.get("prediction_error")
    if not predicted or not isinstance(error, int | float) or error <= -1:
        return ()
    took = predicted / (1 + error)
    return (
        f"The engine predicted {duration(predicted)} for {duration(took)} of steps: {verdict(predicted / took - 1)}.",
    )


def _routes(record: SourceFields, prompt: int, prompts: int) -> Iterator[str]:
    """Which replica the prompt went to, and where it continued; nothing for a model with one replica."""
    routes = record.parts("routes") if "routes" in record else []
    for route in [routes[prompt]] if len(routes) == prompts else routes:
        yield _route(route)
        before = route.count("replica")
        for move in route.parts("moves") if "moves" in route else []:
            cause, after = move.text("cause"), move.count("replica")
            yield f"It continued on replica {after}: replica {before} {MOVES.get(cause, cause)}."
            before = after
        if (handover := route.part("handover")) is not None:
            yield _handover(handover)


def _handover(handover: SourceFields) -> str:
    """What it brought, or would have brought, that another replica decodes."""
    gain = handover.number("gain_s", least=-math.inf)
    if "replica" not in handover:
        return f"It stayed there: the best replica that decodes was predicted to end it {duration(-gain)} later."
    tokens, moved = count(handover.count("tokens"), "token"), size(handover.number("bytes"))
    early = handover.number("early_bytes") if "early_bytes" in handover else 0.0
    before = f", {size(early)} of them before the first token and the others" if early else ""
    took = f"{moved} were transferred{before} in {duration(handover.number('seconds'))}"
    return f"That was after {tokens}, for a predicted gain of {duration(gain)}; {took}."


def _route(route: SourceFields) -> str:
    """It went to replica 1 (least predicted TTFT); predicted TTFT 120 ms, measured 100 ms: 20% too long."""
    reason = route.text("reason")
    figures = []
    if "predicted_ttft_s" in route:
        predicted = route.number("predicted_ttft_s")
        figures.append(f"predicted TTFT {duration(predicted)}")
        if "error" in route and (error := route.number("error", least=-1.0)) > -1:
            figures[0] += f", measured {duration(predicted / (1 + error))}: {verdict(error)}"
    if "cached_tokens" in route:
        figures.append(f"{count(route.count('cached_tokens'), 'token')} cached there")
    if (fetched := route.part("fetched")) is not None:
        tokens, nbytes = count(fetched.count("tokens"), "token"), size(fetched.number("bytes"))
        source, took = fetched.count("replica"), duration(fetched.number("seconds"))
        figures.append(f"{tokens} ({nbytes}) fetched from replica {source} in {took}")
    return "; ".join([f"It went to replica {route.count('replica')} ({reason})", *figures]) + "."


def _read_bench(document: SourceFields, pick: str, goal: Goal) -> Observed:
    """The request with an index, or at a percentile (``p50``, ``p99``) of the measure that ``goal`` names."""
    runs = document.parts("runs")
    if not runs:
        raise _no_request(document.label)
    requests = runs[-1].parts("requests")
    by_percentile = pick.startswith("p")
    chosen = _by_percentile(requests, pick, MEASURES.get(goal, "e2e_s")) if by_percentile else _by_index(requests, pick)
    return _inferred(chosen, requests, document.inner("target").optional_text("model"), pick)


def _by_index(requests: Sequence[SourceFields], pick: str) -> SourceFields:
    if not pick.isdecimal():
        raise ParameterError(
            f"{pick!r:.60} is neither a request's index nor a percentile.", param="request", hint="Give 17, or p99."
        )
    found = next((each for each in requests if each.count("index") == int(pick)), None)
    if found is None:
        raise ParameterError(
            f"The last run has no request {pick}.",
            param="request",
            hint=f"It holds {len(requests)} requests, from 0 on.",
        )
    return found


def _by_percentile(requests: Sequence[SourceFields], pick: str, measure: str) -> SourceFields:
    """The request at a percentile by nearest rank: the smallest value that this share of requests does not exceed."""
    try:
        share = float(pick[1:]) / 100
    except ValueError:
        share = -1.0
    if not 0 < share <= 1:
        raise ParameterError(f"{pick!r:.60} is not a percentile.", param="request", hint="Give p50, p99 or an index.")
    known = sorted(
        (each for each in requests if measure in each and each.values.get("measured", True)),
        key=lambda each: each.number(measure),
    )
    if not known:
        raise _no_request("The last run")
    return known[ceil(share * len(known)) - 1]


def _no_request(label: str) -> ParameterError:
    return ParameterError(
        f"{label} has no completed request.", param="source", hint="Benchmark again with --output FILE.json."
    )


def _inferred(request: SourceFields, all_requests: Sequence[SourceFields], model: str | None, pick: str) -> Observed:
    for name in ("first_s", "last_s", "prompt_tokens", "output_tokens"):
        if name not in request:
            raise ParameterError(
                f"Request {request.count('index')} has no {name!r}: it was not completed, or the server counts no "
                "tokens.",
                param="request",
                hint="Choose another request; the error of this one is in the document.",
            )
    due, first, last = request.number("due_s"), request.number("first_s"), request.number("last_s")
    late = max(0.0, request.number("started_s", due) - due)
    waited = min(request.number("queue_s", 0.0), first - due - late)
    stalls = _stalls(request.series("gaps_us"), last - first)
    batch = _mean_concurrency(request, all_requests)
    lateness = f"the client sent it {duration(late)} late" if late > 0.001 else ""
    unknown = "" if "queue_s" in request else "includes its queue, which the bench could not measure"
    notes = ["Queue and stalls are inferred from what the client saw."]
    if batch > 1:
        notes.append(f"On average {batch:.3g} completions were streamed at the same time.")
    return Observed(
        title=f"request {request.count('index')}" + (f" ({pick})" if pick.startswith("p") else ""),
        model=model,
        prompt=request.count("prompt_tokens"),
        cached=request.count("cached_tokens", 0),
        output=request.count("output_tokens"),
        batch=batch,
        phases={
            "queue": Phase("queue", late + waited, why=lateness),
            "prefill": Phase("prefill", first - due - late - waited, why=unknown),
            "decode": Phase("decode", last - first - stalls),
            "stalls": Phase("stalls", stalls, why="gaps of more than 3 times the median" if stalls else ""),
        },
        notes=tuple(notes),
    )


def _stalls(gaps_us: Sequence[float], limit_s: float) -> float:
    """Seconds by which long gaps exceed the median gap, at most ``limit_s``."""
    usual = median(gaps_us) if gaps_us else 0.0
    return min(sum(gap - usual for gap in gaps_us if gap > LONG_GAP * usual) / 1e6, limit_s)


def _mean_concurrency(request: SourceFields, others: Iterable[SourceFields]) -> float:
    """Mean number of completions that were streamed at the same time as this one, itself included."""
    start, end = request.number("first_s"), request.number("last_s")
    if end <= start:
        return 1.0
    shared = 0.0
    for each in others:
        if "first_s" in each and "last_s" in each:
            shared += max(0.0, min(end, each.number("last_s")) - max(start, each.number("first_s")))
    return max(1.0, shared / (end - start))
