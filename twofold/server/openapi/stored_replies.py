"""Replies about files, batches, and what was written down of requests."""

from __future__ import annotations

from collections.abc import Iterable
from typing import Any, Final, get_args

from twofold.api.base import ServiceTier
from twofold.api.body import nullable
from twofold.core.record import WaitReason
from twofold.core.request import TTL_SECONDS
from twofold.core.step import FinishReason
from twofold.observe.accounting.bill import LineKind
from twofold.server.accounting import COUNTS, PARTS
from twofold.server.batches.record import MOMENTS, TRANSITIONS
from twofold.server.openapi.openai_replies import COUNT
from twofold.server.openapi.shapes import (
    FLAG,
    NULL,
    Schema,
    listed,
    mapped,
    number,
    only,
    ref,
    text,
    told,
    word,
)

ROOT: Final = told(
    {
        "name": only("Twofold"),
        "version": text(1),
        "models": listed(
            told({"id": text(1), "state": word("unloaded", "loading", "ready", "failed"), "context": nullable(COUNT)})
        ),
        "apis": mapped(text(1)),
        "links": mapped(text(1)),
    }
)
SECONDS: Final = number(0)
TIER: Final = word(*get_args(ServiceTier))


def paged(name: str) -> Schema:
    """A page of these."""
    ends = {"first_id": nullable(text()), "last_id": nullable(text())}
    return told({"object": only("list"), "data": listed(ref(name)), **ends, "has_more": FLAG})


FILE: Final = told(
    {
        "id": text(),
        "object": only("file"),
        "filename": text(),
        "purpose": word("batch", "batch_output"),
        "bytes": COUNT,
        "created_at": COUNT,
        "expires_at": nullable(COUNT),
        "status": word("processed"),
        "status_details": NULL,
    }
)
FILE_DELETED: Final = told({"id": text(), "object": only("file"), "deleted": only(True)})
LINE_ERROR: Final = told(
    {"code": text(), "message": text(), "param": nullable(text()), "line": nullable(COUNT)},
)
BATCH_USAGE: Final = told(
    {
        "input_tokens": COUNT,
        "input_tokens_details": told({"cached_tokens": COUNT}),
        "output_tokens": COUNT,
        "output_tokens_details": told({"reasoning_tokens": COUNT}),
        "total_tokens": COUNT,
    }
)


def batch(endpoints: Iterable[str]) -> Schema:
    """OpenAI's batch object."""
    errors = told({"object": only("list"), "data": listed(LINE_ERROR)})
    always: dict[str, Any] = {
        "id": text(),
        "object": only("batch"),
        "endpoint": word(*endpoints),
        "model": nullable(text()),
        "errors": nullable(errors),
        "input_file_id": text(),
        "completion_window": only("24h"),
        "status": word(*TRANSITIONS),
        "output_file_id": nullable(text()),
        "error_file_id": nullable(text()),
        "created_at": COUNT,
        "expires_at": COUNT,
        **{f"{moment}_at": nullable(COUNT) for moment in MOMENTS},
        "request_counts": told({"total": COUNT, "completed": COUNT, "failed": COUNT}),
        "usage": BATCH_USAGE,
        "metadata": nullable(mapped(text())),
    }
    return told(always)


PHASE: Final = told(
    {"rows": COUNT, "steps": COUNT, "rows_share": nullable(number(0)), "machine_s": SECONDS},
    flops=number(0),
    bytes=told({"weights": COUNT, "kv_read": COUNT, "kv_written": COUNT}),
    least_s=SECONDS,
    bound=text(),
    roofline_share=nullable(number(0)),
)
PROMPT: Final = told(
    {
        "prompt_tokens": COUNT,
        "cached_tokens": COUNT,
        "output_tokens": COUNT,
        "finish_reasons": listed(word(*get_args(FinishReason))),
        "queue_s": SECONDS,
        "prefill_s": SECONDS,
        "decode_s": SECONDS,
        "ttft_s": nullable(SECONDS),
        "prefill": PHASE,
        "decode": PHASE,
        "stalls_s": told(**{cause.name.lower(): SECONDS for cause in WaitReason}),
        "preemptions": COUNT,
        "recomputed_tokens": COUNT,
        "swapped_blocks": COUNT,
        "steps_s": SECONDS,
        "predicted_s": nullable(SECONDS),
        "prediction_error": nullable(number()),
    }
)
BILL: Final = told(
    {
        "currency": text(),
        "service_tier": TIER,
        "factor": number(0),
        "lines": listed(
            told(
                {
                    "kind": word(*get_args(LineKind)),
                    "quantity": number(0),
                    "unit": text(),
                    "price": number(0),
                    "amount": number(0),
                }
            )
        ),
        "total": number(0),
    }
)
TOKENS: Final = told(
    {
        "prompt": COUNT,
        "cached": COUNT,
        "fresh": COUNT,
        "written": told(**dict.fromkeys(TTL_SECONDS, COUNT)),
        "output": COUNT,
        "reasoning": COUNT,
    }
)
REQUEST: Final = told(
    {
        "id": text(),
        "object": only("twofold.request"),
        "endpoint": text(),
        "model": text(),
        "service_tier": TIER,
        "stream": FLAG,
        "status": COUNT,
        "error": nullable(text()),
        "arrived_at": number(0),
        "seconds": SECONDS,
        "first_token_s": nullable(SECONDS),
        "longest_gap_s": nullable(SECONDS),
        "cached_answer": FLAG,
        "retries": COUNT,
        "tokens": TOKENS,
        "prompts": listed(PROMPT),
        "prompts_left_out": COUNT,
        "cost": nullable(BILL),
    }
)
USED: Final = told(
    {
        "object": only("twofold.usage"),
        "since": nullable(text()),
        "data": listed(
            told(
                {
                    "currency": text(),
                    **dict.fromkeys(COUNTS, COUNT),
                    "machine_s": SECONDS,
                    "cost": number(0),
                },
                **dict.fromkeys(PARTS, text()),
            )
        ),
    }
)
