"""Messages arrive unchanged, and invalid bytes are refused."""

from __future__ import annotations

from inspect import signature
from typing import Any

import msgspec
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from tests.support.basis import PRIOR
from twofold.core import errors
from twofold.core.errors import MethodError, ParameterError, QuotaError, TwofoldError
from twofold.core.lanes import LaneEvent, LaneKind
from twofold.core.limits import MachineLimits, ReadSpeed
from twofold.core.params import BeamSearchParams, SamplingParams, StructuredOutputsParams, ThinkingParams
from twofold.core.record import Repetition, SequenceRecord, WaitReason
from twofold.core.report import (
    BlockCounts,
    EngineFacts,
    EngineSnapshot,
    GroupFacts,
    KVPicture,
    PinCounts,
    PoolPicture,
    RequestMetrics,
    StepReport,
    TreeNode,
    TreeOutline,
)
from twofold.core.request import CachePin, EngineRequest, PoolingParams, RequestOptions, ScoringParams
from twofold.core.step_basis import StepBasis
from twofold.core.step_bytes import ERRORS
from twofold.engine.outputs import CompletionOutput, Logprob, OutputDelta, RequestOutput
from twofold.fleet.messages import (
    Abort,
    Codec,
    Failed,
    FromWorker,
    Gone,
    LoadModel,
    Look,
    Ping,
    Pong,
    Ready,
    Seen,
    SetPaused,
    StepOutputs,
    ToWorker,
    Unframer,
    Unloadable,
    Watch,
    WorkerMessage,
)

PARAMS = SamplingParams(
    n=2,
    logit_bias={7: -1.5},
    stop=["a", "é"],
    stop_token_ids=[3],
    structured_outputs=StructuredOutputsParams(json={"type": "object", "properties": {"a": {"enum": [1, None]}}}),
    thinking=ThinkingParams(start=[1], end=[2], budget=5),
)
OPTIONS = RequestOptions(tenant="t", deadline_s=1.5, queue_limit_s=2, cache_pins=(CachePin(tokens=4, ttl="1h"),))
COMMANDS = (
    LoadModel("/models/a.gguf", {"max_num_seqs": 4, "kv_cache_dtype": "auto", "tpot_target_ms": None}),
    EngineRequest((1, 2, 3), PARAMS, OPTIONS, request_id="g", arrival=12.5),
    EngineRequest((1,), SamplingParams(), prompt="a text", arrival=0.0, stream=False),
    EngineRequest((1, 2), PoolingParams("last", normalize=False), OPTIONS, request_id="e"),
    EngineRequest((1, 2), BeamSearchParams(beam_width=3, max_tokens=4)),
    EngineRequest((1, 2), ScoringParams(2)),
    Abort("a"),
    SetPaused("h", True),
    Ping(),
    Watch(True),
    Look(),
)


def a_report() -> RequestMetrics:
    record = SequenceRecord(cached=3)
    record.stall(WaitReason.PREFILL, 1.0, 3.0)
    record.prefill.add_step(0, 5, step_rows=6, logit_rows=1, seconds=0.1, windows=[3])
    return RequestMetrics(
        0.0, 1.0, None, 3.5, ((2.0, 3.0), ()), 5, 3, "r", ("stop", "length"), record, None, Repetition(9, 30)
    )


def an_output() -> RequestOutput:
    logprobs = ({5: Logprob(-0.25, 1, "x"), 6: Logprob(-3.0, 2, "\ufffd")},)
    answers = (
        CompletionOutput(0, "x", (5,), logprobs, -0.25, "stop", "x"),
        CompletionOutput(1, "", (), None, None, "abort", 9),
    )
    return RequestOutput("r", None, (), (None, {4: Logprob(-1.0, 1, "y")}), answers, a_report(), True, (0.5, -1.0))


STEP = StepReport(3, 1.0, 2, 0, 2, 2, 1, None, 0.1, 0.01, 0.0, 5, 2, BlockCounts(1, 2, 3))
SNAPSHOT = EngineSnapshot(1, 2, BlockCounts(1, 2, 3), 4, 16, 100, 50, 2, {300.0: PinCounts(1, 2, 3, 4)}, 1, 0, None)
GROUPS = (GroupFacts(None, 64, 4096), GroupFacts(1024, 32, 2048))
FACTS = EngineFacts(4, 512, 16, "live", 0.05, GROUPS, 64, StepBasis(32, PRIOR, ((2, 8, 2),)))
POOL = PoolPicture(64, 30, 20, 4, 2, 0, ((7, 5), (9, 3)))
PICTURE = KVPicture((POOL,), (TreeOutline("key:a", (TreeNode(-1, 0, 2, 1, None), TreeNode(0, 2, 4, 0, 0.5)), True),))
LANES = [LaneEvent(7, LaneKind.ADMIT, 2.5, (0, 16, 0)), LaneEvent(7, LaneKind.END, 3.0, (5,), "stop")]
ANSWERS = (
    Ready(512, 1 << 33, MachineLimits("cpu", "avx2", 2, (ReadSpeed(1, 2.0),), 1e9, 1e8, "2026-01-01"), "f16", FACTS),
    Ready(512, 1 << 33, None, "f16", FACTS),
    Seen(2.0, PICTURE),
    StepOutputs(
        [OutputDelta("r", 0, "x", (5,)), OutputDelta("r", 0, "", (), None, "stop", 7, an_output())], [STEP], SNAPSHOT
    ),
    StepOutputs([], [], None, LANES),
    Gone("r", None),
    Pong(None),
)


@pytest.mark.parametrize("message", COMMANDS, ids=lambda message: type(message).__name__)
def test_messages_to_a_worker_arrive_unchanged(message: WorkerMessage) -> None:
    (payload,) = Unframer().feed(bytes(Codec(FromWorker).frame(message)))
    assert Codec(ToWorker).message(payload) == message


@pytest.mark.parametrize("message", ANSWERS, ids=lambda message: type(message).__name__)
def test_messages_from_a_worker_arrive_unchanged(message: WorkerMessage) -> None:
    (payload,) = Unframer().feed(bytes(Codec(ToWorker).frame(message)))
    assert Codec(FromWorker).message(payload) == message


def an_error(kind: type[TwofoldError]) -> TwofoldError:
    more: dict[str, Any] = {"param": "p"} if issubclass(kind, ParameterError) else {}
    more |= {"allowed": ("GET", "PUT")} if issubclass(kind, MethodError) else {}
    more |= {"retry_after_s": 2.5} if "retry_after_s" in signature(kind).parameters else {}
    return kind("What happened.", hint="The way out.", **more)


@pytest.mark.parametrize("kind", ERRORS.values(), ids=lambda kind: kind.__name__)
def test_every_error_arrives_with_its_fields(kind: type[TwofoldError]) -> None:
    error = an_error(kind)
    (payload,) = Unframer().feed(bytes(Codec(ToWorker).frame(Failed("r", error))))
    arrived = Codec(FromWorker).message(payload).error
    assert type(arrived) is kind
    assert (str(arrived), vars(arrived)) == (str(error), vars(error))


def test_an_error_outside_of_the_tree_arrives_as_its_nearest_base() -> None:
    class OwnError(QuotaError):
        pass

    (payload,) = Unframer().feed(bytes(Codec(ToWorker).frame(Unloadable(OwnError("No.", retry_after_s=1)))))
    assert type(Codec(FromWorker).message(payload).error) is errors.QuotaError


@given(st.lists(st.binary(max_size=40), max_size=6), st.data())
@settings(max_examples=80, deadline=None)
def test_frames_are_found_in_any_pieces(payloads: list[bytes], data: st.DataObject) -> None:
    stream = b"".join(len(payload).to_bytes(4, "little") + payload for payload in payloads)
    cuts = sorted(data.draw(st.lists(st.integers(0, len(stream)), max_size=8)))
    unframer, found = Unframer(), []
    for start, end in zip([0, *cuts], [*cuts, len(stream)], strict=True):
        found += list(unframer.feed(stream[start:end]))
    assert found == payloads


def test_an_invalid_frame_length_is_refused() -> None:
    with pytest.raises(ValueError, match="a frame of"):
        list(Unframer().feed(b"\xff\xff\xff\xff"))


@given(st.binary(max_size=60))
@settings(max_examples=150, deadline=None)
def test_invalid_bytes_are_no_message(payload: bytes) -> None:
    with pytest.raises((msgspec.MsgspecError, ValueError)):
        Codec(FromWorker).message(payload + b"\xc1")


@pytest.mark.parametrize(
    "error", [["OSError", "m", None, {}], ["Exception", "m", None, {}], ["__builtins__", "", None, {}]]
)
def test_only_errors_of_the_tree_are_built(error: list[object]) -> None:
    payload = msgspec.msgpack.encode(["failed", "r", error])
    with pytest.raises((KeyError, msgspec.MsgspecError)):
        Codec(FromWorker).message(payload)
