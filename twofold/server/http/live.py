"""GET /v1/twofold/live, and the data of its events."""

from __future__ import annotations

from typing import Annotated, Any, Final, Literal

from msgspec import Meta

from twofold.api.body import NonEmptyText, NonNegativeFloat, NonNegativeInt, ReplyObject
from twofold.core.errors import ParameterError
from twofold.core.lanes import LaneKind
from twofold.observe.live.lanes import Viewer
from twofold.server.edge.keys import MetricsView
from twofold.server.http.endpoints import UNBUFFERED, EndpointRequest, EndpointResponse
from twofold.server.live import LiveWatcher
from twofold.server.models.registry import ModelState
from twofold.server.openapi.route import get, in_query

MAX_HZ: Final = 10

Milliseconds = Annotated[float, Meta(description="Since the zero of the stream.")]
Pair = Annotated[list[NonNegativeInt], Meta(min_length=2, max_length=2)]
Blocks = Annotated[
    list[NonNegativeInt], Meta(min_length=4, max_length=4, description="Free, cached, held; and pinned ones of these.")
]
LaneEvents = Annotated[
    list[list[Any]],
    Meta(
        description="[number of the sequence, kind, milliseconds, …]. + arrived, with an object; a runs in a slot, "
        "cached, loaded from the KV store; p computed tokens so far; f first token; o tokens so far; s drafted, "
        "accepted so far; x preempted: for blocks, or for a tenant, swapped blocks; r runs again in a slot, computed "
        "tokens; h paused, its client does not read; l loads tokens from the KV store; u waits in the queue again; "
        ". ended: finish reason, tokens. Other tenants' sequences have neither ids nor sizes, unless the key sees all.",
        extra_json_schema={
            "items": {
                "type": "array",
                "prefixItems": [
                    {"type": "integer", "minimum": 0},
                    {"enum": [str(kind) for kind in LaneKind]},
                    {"type": "number"},
                ],
                "minItems": 3,
                "maxItems": 6,
            }
        },
    ),
]
Latencies = Annotated[
    dict[str, list[NonNegativeFloat]],
    Meta(description="Of ttft, tpot, itl, e2e and queue: P50 and P99 in seconds, and the number of values."),
]


class LiveState(ReplyObject):
    """The model is not ready. ``error``: why it failed to load."""

    state: ModelState
    error: str | None


class LiveSteps(ReplyObject, kw_only=True):
    """Steps as columns of equal length. An entry is one step, or the sum of ``times`` neighbours. ``t``, ``end``: of
    the first and the last, ``ms``: of their rows, ``host``: of the engine before them, ``foreseen``: predicted.
    ``attended``, ``read``: positions that rows saw and sequences read in layers without a window. ``budget``: prompt
    rows that the token budget allowed, ``why``: what kept prompts from more rows."""

    n: list[NonNegativeInt]
    t: list[float]
    end: list[float]
    ms: list[NonNegativeFloat]
    host: list[NonNegativeFloat]
    foreseen: list[float | None]
    decode: list[NonNegativeInt]
    prefill: list[NonNegativeInt]
    drafts: list[NonNegativeInt]
    logits: list[NonNegativeInt]
    attended: list[NonNegativeInt]
    read: list[NonNegativeInt]
    draft_ms: list[NonNegativeFloat]
    budget: list[NonNegativeInt | None]
    why: list[Literal["nothing", "budget", "rows", "blocks", "slots", "loading"]]
    times: list[Annotated[int, Meta(ge=1)]]


class LiveGroup(ReplyObject):
    """A KV group: its window in positions, its blocks, and the bytes of a block."""

    window: NonNegativeInt | None
    blocks: NonNegativeInt
    block_bytes: NonNegativeInt


class LiveEngine(ReplyObject, kw_only=True):
    """The limits of the engine: sequences that run, rows of a step, and its KV cache."""

    slots: NonNegativeInt
    rows: NonNegativeInt
    block_size: NonNegativeInt
    budget: Literal["live", "fixed"]
    tpot_target_ms: NonNegativeFloat | None
    groups: list[LiveGroup]


class LiveMachine(ReplyObject):
    """Measured peaks of the machine for this model: bytes read, and operations of matrices and of attention."""

    bytes_per_s: NonNegativeFloat
    flops_per_s: NonNegativeFloat
    attention_flops_per_s: NonNegativeFloat


class LiveWork(ReplyObject, kw_only=True):
    """Work of a step, by the columns of ``LiveSteps``: bytes = weights (and head, with logits) + kv · (read + rows),
    operations = row · rows + logit · logits + pair · attended. ``windows``: layers have windows, so both are upper
    bounds."""

    weight_bytes: NonNegativeFloat
    head_bytes: NonNegativeFloat
    row_flops: NonNegativeFloat
    logit_flops: NonNegativeFloat
    pair_flops: NonNegativeFloat
    kv_bytes: NonNegativeFloat
    windows: bool


class LiveHello(ReplyObject, kw_only=True):
    """The first event, and again after a restart or a pause of the reader. ``zero``: 0 ms of the stream, in seconds of
    the server's clock, ``unix``: the same since 1970. ``steps`` are those of the last minute, ``lanes`` all events of
    sequences that live or ended in it; of computed tokens, tokens and drafts only the last."""

    schema: Literal["twofold.live/1"]
    zero: float
    unix: float
    t: Milliseconds
    model: NonEmptyText
    sees: MetricsView
    engine: LiveEngine | None
    machine: LiveMachine | None
    work: LiveWork | None
    queue: Pair
    kv: Blocks | None
    steps: LiveSteps
    lanes: LaneEvents


class LiveTick(ReplyObject, kw_only=True):
    """What is new: ``queue``: sequences that wait and run."""

    t: Milliseconds
    queue: Pair
    kv: Blocks | None
    steps: LiveSteps
    lanes: LaneEvents


class LiveCounts(ReplyObject, kw_only=True):
    """Counts since the engine's process started: prompt tokens looked up and found in the prefix cache, evicted blocks,
    preemptions, swaps, draft tokens, and tokens from the KV store."""

    queries: NonNegativeInt
    hits: NonNegativeInt
    evicted: NonNegativeInt
    preemptions: NonNegativeInt
    swaps: NonNegativeInt
    drafted: NonNegativeInt
    accepted: NonNegativeInt
    loaded: NonNegativeInt


class LiveLately(ReplyObject, kw_only=True):
    """The last five minutes, as in /metrics. ``met``: by tier, requests that met and missed its objective. ``stalls``:
    seconds by cause. ``share``: the least possible seconds / seconds, by phase. ``error``: recent error of predicted
    step times. Tenants are the caller's own, unless its key sees all."""

    t: Milliseconds
    all: Latencies
    tiers: dict[str, Latencies]
    tenants: dict[str, Latencies]
    met: dict[str, Pair]
    stalls: dict[str, NonNegativeFloat]
    share: dict[str, NonNegativeFloat]
    error: NonNegativeFloat | None
    counts: LiveCounts | None
    queue: Pair


class LiveBlockGroup(ReplyObject, kw_only=True):
    """Blocks of a KV group by what they are; the numbers add up to ``blocks``. ``cached``: unused, findable;
    ``pinned``: the same with a pin; ``shared``: held several times; ``store``: held for the KV store; ``held``:
    [sequence, blocks that it alone holds]; ``others``: the same of sequences that the caller may not see."""

    blocks: NonNegativeInt
    free: NonNegativeInt
    cached: NonNegativeInt
    pinned: NonNegativeInt
    shared: NonNegativeInt
    store: NonNegativeInt
    held: list[Pair]
    others: NonNegativeInt


class LiveTree(ReplyObject):
    """The prefix tree of one salt: its longest runs, parents first, each [index of its parent or -1, first block,
    blocks, sequences that hold its end, share of unused blocks used before it or null]. ``whole``: all are there."""

    whole: bool
    nodes: list[Annotated[list[float | None], Meta(min_length=5, max_length=5)]]


class LiveBlocks(ReplyObject):
    """The KV cache at a moment."""

    t: Milliseconds
    groups: list[LiveBlockGroup]
    trees: list[LiveTree]


EVENTS: Final[dict[str, type[ReplyObject]]] = {
    "state": LiveState,
    "hello": LiveHello,
    "tick": LiveTick,
    "lately": LiveLately,
    "blocks": LiveBlocks,
}


@get(
    "/v1/twofold/live",
    events=EVENTS,
    failures=(404,),
    parameters=(
        in_query("model", {"$ref": "#/components/schemas/ModelName"}, "The model; the first one by default."),
        in_query("hz", Annotated[int, Meta(ge=1, le=MAX_HZ)], "Ticks a second at most; 10 by default."),
        in_query("blocks", Annotated[int, Meta(ge=0, le=1)], "1: also the blocks of the KV cache."),
    ),
)
async def watch_engine(asked: EndpointRequest) -> EndpointResponse:
    """Streams what a model's engine does: steps, sequences, latencies, and blocks of the KV cache.

    Raises ParameterError, ModelNotFoundError, and BusyError for too many streams."""
    query, caller = asked.query, asked.caller
    hz = _number(query.get("hz"), "hz", 1, MAX_HZ, MAX_HZ)
    blocks = bool(_number(query.get("blocks"), "blocks", 0, 1, 0))
    model = asked.services.registry.find(query.get("model"), exactly=True)
    asked.record.model = model.names[0]
    viewer = Viewer(None if caller.sees == "all" else caller.tenant, caller.cache_salt)
    watcher = LiveWatcher(model, viewer, 1 / hz, blocks, caller.tenant, asked.source)
    stream = asked.services.live.open(watcher, asked.receive)
    pieces = stream if asked.scope["method"] == "GET" else None
    return EndpointResponse(pieces=pieces, content_type=b"text/event-stream", headers=UNBUFFERED)


def _number(text: str | None, name: str, least: int, most: int, default: int) -> int:
    if text is None:
        return default
    if not text.isascii() or not text.isdigit() or len(text) > 3 or not least <= int(text) <= most:
        raise ParameterError(f"{name} must be a whole number from {least} to {most}.", param=name)
    return int(text)
