"""The record of a request that has ended, for ``"twofold": {"explain": true}`` and ``GET /v1/twofold/requests/{id}``.

Seconds are wall time, except for ``machine_s``, which is the request's part of the steps it ran in. ``least_s`` is the
shortest time that this machine could take for a phase (``planner/predict/phase.py``), ``bound`` the limit that sets it,
``roofline_share`` that time as a share of the measured one. Rows, steps and bytes count computed work only: tokens from
a cache appear as cached tokens. Money is rounded to floating-point numbers.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Annotated, Final, Literal

from msgspec import UNSET, Meta, UnsetType

from twofold.api.base import TierName
from twofold.api.body import NonNegativeFloat, NonNegativeInt, ReplyObject
from twofold.api.compression import CompressionReply
from twofold.api.timeline import Timeline
from twofold.core.record import PhaseWork, SequenceRecord, WaitReason
from twofold.core.report import RequestMetrics
from twofold.core.request import TTL_SECONDS
from twofold.core.step import FinishReason
from twofold.observe.billing import Bill, LineKind
from twofold.observe.served import FetchedBlocks, MoveCause, ServedHandover, ServedRequest, ServedRoute
from twofold.planner.predict.phase import PhaseCost, phase_floor
from twofold.planner.predict.steps import StepPredictor

PHASES: Final = ["prefill", "decode"]
MAX_PROMPTS_SHOWN: Final = 64
"""Prompts that a record lists; its sums include all."""


class PhaseBytes(ReplyObject):
    """Bytes of a phase."""

    weights: NonNegativeInt
    kv_read: NonNegativeInt
    kv_written: NonNegativeInt


class PhaseRecord(ReplyObject, kw_only=True):
    """Work of a phase. ``rows_share`` is the request's share of the rows of its steps, ``flops`` are operations. The
    fields after ``machine_s`` are absent until the machine was measured."""

    rows: NonNegativeInt
    steps: NonNegativeInt
    rows_share: NonNegativeFloat | None
    machine_s: NonNegativeFloat
    flops: NonNegativeFloat | UnsetType = UNSET
    bytes: PhaseBytes | UnsetType = UNSET
    least_s: NonNegativeFloat | UnsetType = UNSET
    bound: str | UnsetType = UNSET
    roofline_share: NonNegativeFloat | UnsetType | None = UNSET


class SpeculationRecord(ReplyObject, kw_only=True):
    """Draft tokens: those of ``drafted_tokens`` that were right, each of which saved a step; the same of the client's
    prediction; and the seconds saved, by the step-time model: below 0 if drafts cost more than they saved."""

    drafted_tokens: NonNegativeInt
    accepted_tokens: NonNegativeInt
    accepted_prediction_tokens: NonNegativeInt
    rejected_prediction_tokens: NonNegativeInt
    saved_s: float


class PromptRecord(ReplyObject, kw_only=True):
    """A prompt and its completions. ``prediction_error`` is above 0 if the predicted steps took longer than the real
    ones. ``open_ended``: no complete output of its grammar is known, so its token limit may cut a completion."""

    prompt_tokens: NonNegativeInt
    cached_tokens: NonNegativeInt
    loaded_tokens: NonNegativeInt
    output_tokens: NonNegativeInt
    finish_reasons: Sequence[FinishReason]
    queue_s: NonNegativeFloat
    prefill_s: NonNegativeFloat
    decode_s: NonNegativeFloat
    ttft_s: NonNegativeFloat | None
    prefill: PhaseRecord
    decode: PhaseRecord
    stalls_s: Annotated[
        dict[str, NonNegativeFloat],
        Meta(extra_json_schema={"propertyNames": {"enum": [reason.name.lower() for reason in WaitReason]}}),
    ]
    speculation: SpeculationRecord
    preemptions: NonNegativeInt
    recomputed_tokens: NonNegativeInt
    swapped_blocks: NonNegativeInt
    open_ended: bool
    steps_s: NonNegativeFloat
    predicted_s: NonNegativeFloat | None
    prediction_error: float | None


class TokensRecord(ReplyObject):
    """Tokens of all prompts and completions. ``loaded``: those of the cached ones that came from the KV store.
    ``written`` to the cache, by time to live."""

    prompt: NonNegativeInt
    cached: NonNegativeInt
    loaded: NonNegativeInt
    fresh: NonNegativeInt
    written: Annotated[
        dict[str, NonNegativeInt], Meta(extra_json_schema={"propertyNames": {"enum": list(TTL_SECONDS)}})
    ]
    output: NonNegativeInt
    reasoning: NonNegativeInt


class BillLineRecord(ReplyObject):
    """A line of a bill; ``price`` is per million tokens, or per hour."""

    kind: LineKind
    quantity: NonNegativeFloat
    unit: str
    price: NonNegativeFloat
    amount: NonNegativeFloat


class BillData(ReplyObject):
    """The bill of a request."""

    currency: str
    service_tier: TierName
    factor: NonNegativeFloat
    lines: list[BillLineRecord]
    total: NonNegativeFloat


class ReferenceBill(ReplyObject):
    """What the same tokens cost at another provider's prices, if its cache has what ours had."""

    model: str
    currency: str
    total: NonNegativeFloat
    lines: list[BillLineRecord]


class FetchRecord(ReplyObject):
    """Keys and values that a prompt fetched from another replica instead of computing them."""

    replica: NonNegativeInt
    tokens: NonNegativeInt
    bytes: NonNegativeInt
    seconds: NonNegativeFloat

    @classmethod
    def of(cls, fetched: FetchedBlocks) -> FetchRecord:
        return cls(fetched.source, fetched.tokens, fetched.nbytes, fetched.seconds)


class MoveRecord(ReplyObject):
    """The replica that continued a request, and why the one before did not: it was drained, was silent, crashed,
    ended from outside, or handed it over."""

    replica: NonNegativeInt
    cause: MoveCause


class HandoverRecord(ReplyObject):
    """Where a request continued after ``tokens`` tokens; ``replica`` is null if no other one was predicted to end it
    sooner. ``gain_s`` is the predicted gain; blocks of ``bytes`` bytes were transferred, ``early_bytes`` of them before
    the first token, the others in so many seconds."""

    replica: NonNegativeInt | None
    tokens: NonNegativeInt
    gain_s: float
    bytes: NonNegativeInt
    early_bytes: NonNegativeInt
    seconds: NonNegativeFloat

    @classmethod
    def of(cls, handover: ServedHandover) -> HandoverRecord:
        moved = handover.nbytes, handover.early, handover.seconds
        return cls(handover.replica, handover.tokens, handover.gain_s, *moved)


class RouteRecord(ReplyObject):
    """Where a prompt went first, and where it continued. ``error`` is above 0 if its first token was predicted too
    late."""

    replica: NonNegativeInt
    reason: str
    cached_tokens: NonNegativeInt | None
    predicted_ttft_s: NonNegativeFloat | None
    error: float | None
    fetched: FetchRecord | None
    moves: list[MoveRecord]
    handover: HandoverRecord | None

    @classmethod
    def of(cls, route: ServedRoute) -> RouteRecord:
        fetched = None if route.fetched is None else FetchRecord.of(route.fetched)
        moves = [MoveRecord(each.replica, each.cause) for each in route.moves]
        handover = None if route.handover is None else HandoverRecord.of(route.handover)
        return cls(route.replica, route.reason, route.cached, route.predicted_s, route.error, fetched, moves, handover)


class RepetitionRecord(ReplyObject):
    """A part of a completion is ``times`` times the same ``tokens`` tokens."""

    tokens: NonNegativeInt
    times: NonNegativeInt


class RequestRecord(ReplyObject, kw_only=True):
    """The record of a request. ``repeats`` is there if a completion repeats itself, ``routes`` if its model has several
    replicas, ``timeline`` if a chat asked for its tokens, ``at_prices`` if a request asked to compare prices."""

    id: str
    object: Literal["twofold.request"] = "twofold.request"
    endpoint: str
    model: str
    service_tier: TierName
    stream: bool
    status: NonNegativeInt
    error: str | None
    arrived_at: NonNegativeFloat
    seconds: NonNegativeFloat
    first_token_s: NonNegativeFloat | None
    longest_gap_s: NonNegativeFloat | None
    cached_answer: bool
    retries: NonNegativeInt
    tokens: TokensRecord
    prompts: list[PromptRecord]
    prompts_left_out: NonNegativeInt
    cost: BillData | None
    repeats: RepetitionRecord | UnsetType = UNSET
    routes: list[RouteRecord] | UnsetType = UNSET
    compression: CompressionReply | UnsetType = UNSET
    timeline: Timeline | UnsetType = UNSET
    at_prices: list[ReferenceBill] | UnsetType = UNSET


def record_data(served: ServedRequest, steps: StepPredictor | None = None) -> RequestRecord:
    """The record of a request. Its prompts are in order; of many, the first MAX_PROMPTS_SHOWN are shown."""
    return RequestRecord(
        id=served.request_id,
        endpoint=served.endpoint,
        model=served.model,
        service_tier=served.tier,
        stream=served.stream,
        status=served.status,
        error=served.error,
        arrived_at=served.arrived_at,
        seconds=served.duration_s,
        first_token_s=served.first_token_s,
        longest_gap_s=max(served.gaps_s, default=None),
        cached_answer=served.cached_answer,
        retries=served.retries,
        tokens=_tokens(served),
        prompts=[_prompt(report, steps) for report in served.reports[:MAX_PROMPTS_SHOWN]],
        prompts_left_out=max(0, len(served.reports) - MAX_PROMPTS_SHOWN),
        cost=None if served.bill is None else _bill(served.bill),
        repeats=UNSET if served.repeats is None else RepetitionRecord(*served.repeats),
        routes=[RouteRecord.of(each) for each in served.routes[:MAX_PROMPTS_SHOWN]] or UNSET,
        compression=UNSET if served.compression is None else CompressionReply.of(served.compression),
        timeline=Timeline.of(served.reports[0]) if served.reports else UNSET,
        at_prices=[
            ReferenceBill(name, bill.currency, float(bill.total), _lines(bill))
            for name, bill in served.reference_bills.items()
        ]
        or UNSET,
    )


class RequestCost(ReplyObject):
    """The total of a bill."""

    currency: str
    total: NonNegativeFloat


class RequestSummary(ReplyObject, kw_only=True):
    """A request in a list. Seconds and tokens are those of all its prompts; ``shares`` are its phases' shares of this
    machine's limit, for the phases that have one."""

    id: str
    endpoint: str
    model: str
    service_tier: TierName
    status: NonNegativeInt
    error: str | None
    arrived_at: NonNegativeFloat
    seconds: NonNegativeFloat
    prompt_tokens: NonNegativeInt
    cached_tokens: NonNegativeInt
    output_tokens: NonNegativeInt
    queue_s: NonNegativeFloat
    prefill_s: NonNegativeFloat
    decode_s: NonNegativeFloat
    ttft_s: NonNegativeFloat | None
    tpot_s: NonNegativeFloat | None
    shares: Annotated[dict[str, NonNegativeFloat], Meta(extra_json_schema={"propertyNames": {"enum": PHASES}})]
    cost: RequestCost | None


class RecentPage(ReplyObject, kw_only=True):
    """Requests that ended, newest first; the id of the last one is ``before`` of the next page."""

    object: Literal["list"] = "list"
    data: list[RequestSummary]
    has_more: bool


def request_summary(served: ServedRequest) -> RequestSummary:
    """A request in a list."""
    phases, bill = served.phases_s, served.bill
    return RequestSummary(
        id=served.request_id,
        endpoint=served.endpoint,
        model=served.model,
        service_tier=served.tier,
        status=served.status,
        error=served.error,
        arrived_at=served.arrived_at,
        seconds=served.duration_s,
        prompt_tokens=served.prompt_tokens,
        cached_tokens=served.cached_tokens,
        output_tokens=served.output_tokens,
        queue_s=sum(report.queue_s for report in served.reports),
        prefill_s=sum(report.prefill_s for report in served.reports),
        decode_s=sum(report.decode_s for report in served.reports),
        ttft_s=served.ttft_s,
        tpot_s=served.tpot_s,
        shares={phase: served.limits_s[phase] / seconds for phase, seconds in phases.items()},
        cost=None if bill is None else RequestCost(bill.currency, float(bill.total)),
    )


def _bill(bill: Bill) -> BillData:
    """A bill in floating-point numbers."""
    return BillData(bill.currency, bill.tier, float(bill.factor), _lines(bill), float(bill.total))


def _lines(bill: Bill) -> list[BillLineRecord]:
    return [
        BillLineRecord(
            line.kind,
            int(line.quantity) if line.unit == "token" else float(line.quantity),
            line.unit,
            float(line.price),
            float(line.amount),
        )
        for line in bill.lines
    ]


def _tokens(served: ServedRequest) -> TokensRecord:
    written = {ttl: served.written_tokens.get(seconds, 0) for ttl, seconds in TTL_SECONDS.items()}
    return TokensRecord(
        served.prompt_tokens,
        served.cached_tokens,
        sum(report.loaded_tokens for report in served.reports),
        served.prompt_tokens - served.cached_tokens,
        {ttl: tokens for ttl, tokens in written.items() if tokens},
        served.output_tokens,
        served.reasoning_tokens,
    )


def _prompt(report: RequestMetrics, steps: StepPredictor | None) -> PromptRecord:
    record, count = report.record, report.completions
    phases = (record.prefill, record.decode)
    took = sum(work.seconds - work.unpredicted_s for work in phases)
    predicted = sum(work.predicted_s for work in phases)
    known = took > 0 and predicted > 0
    return PromptRecord(
        prompt_tokens=report.prompt_tokens,
        cached_tokens=report.cached_tokens,
        loaded_tokens=report.loaded_tokens,
        output_tokens=report.output_tokens,
        finish_reasons=report.finish_reasons,
        queue_s=report.queue_s,
        prefill_s=report.prefill_s,
        decode_s=report.decode_s,
        ttft_s=report.ttft_s,
        prefill=_phase(record.prefill, report.prefill_s, steps, count),
        decode=_phase(record.decode, report.decode_s, steps, count),
        stalls_s={cause.name.lower(): seconds for cause, seconds in record.stalls.items()},
        speculation=_speculation(record),
        preemptions=record.preemptions,
        recomputed_tokens=record.recomputed,
        swapped_blocks=record.swapped,
        open_ended=report.open_ended,
        steps_s=sum(work.seconds for work in phases),
        predicted_s=predicted if known else None,
        prediction_error=predicted / took - 1 if known else None,
    )


def _speculation(record: SequenceRecord) -> SpeculationRecord:
    return SpeculationRecord(
        drafted_tokens=record.drafted,
        accepted_tokens=record.accepted,
        accepted_prediction_tokens=record.predicted_accepted,
        rejected_prediction_tokens=record.predicted - record.predicted_accepted,
        saved_s=record.saved_s,
    )


def _phase(work: PhaseWork, seconds: float, steps: StepPredictor | None, completions: int) -> PhaseRecord:
    phase = PhaseRecord(
        rows=work.rows,
        steps=work.steps,
        rows_share=work.share / work.steps if work.steps else None,
        machine_s=work.machine_s,
    )
    if steps is None or not work.rows:
        return phase
    done = PhaseCost.of(work, steps.cost)
    floor = phase_floor(work, steps, completions)
    phase.flops = done.flops
    phase.bytes = PhaseBytes(round(done.weight_bytes), done.kv_read_bytes, done.kv_written_bytes)
    phase.least_s, phase.bound, phase.roofline_share = floor.seconds, floor.bound, floor.share(seconds)
    return phase
