"""What the server and a worker process say to each other, and how it becomes bytes.

    frame     length of the rest, 4 bytes, least byte first │ msgpack
    msgpack   [tag, field, …]; requests and other records of the engine are maps, errors [class, message, hint, {more}]

    server → worker   Load, once and first; requests, Abort, Hold, Ping, Check
    worker → server   Ready or Unloadable, once and first; then a Step after each step that gave something, Failed,
                      Gone, Pong, Checked

Decoding builds the classes named here and nothing else, whatever the bytes say.
"""

from __future__ import annotations

import struct
from collections.abc import Iterator
from dataclasses import fields
from typing import Any, Final

import msgspec

from twofold.core.errors import TwofoldError
from twofold.core.kv_layout import KVType
from twofold.core.limits import MachineLimits
from twofold.core.params import BeamSearchParams, RequestParams, SamplingParams
from twofold.core.report import EngineSnapshot, StepReport
from twofold.core.request import EngineRequest, PoolingParams, ScoringParams
from twofold.core.step_bytes import from_plain, to_plain
from twofold.engine.outputs import OutputDelta, RequestOutput

MAX_FRAME_BYTES: Final = 1 << 30
PARAMS: Final = (SamplingParams, BeamSearchParams, PoolingParams, ScoringParams)
"""What a request may ask for; each has fields that no other has."""
LENGTH: Final = struct.Struct("<I")


class WorkerMessage(msgspec.Struct, array_like=True):
    """The base of all messages."""


class LoadModel(WorkerMessage, tag="load"):
    """Load the model file ``path`` with these ``EngineKeywords``."""

    path: str
    options: dict[str, Any]


class Abort(WorkerMessage, tag="abort"):
    """End a request. What is told of it until Gone nobody reads."""

    request_id: str


class Hold(WorkerMessage, tag="hold"):
    """Let a request rest, or go on."""

    request_id: str
    hold: bool


class Ping(WorkerMessage, tag="ping"):
    """Answer between two steps."""

    number: int


class Check(WorkerMessage, tag="check"):
    """Say whether an engine without work holds nothing."""


class Ready(WorkerMessage, tag="ready"):
    """The model is loaded and has answered a request of one token.

    bytes       of its weights and its KV cache
    load_s, compile_s   how long reading it and compiling its kernels took
    machine     what this machine can do at most; None where it could not be measured
    kv_type     of a value in the KV cache
    """

    context: int
    hidden_size: int
    bytes: int
    load_s: float
    compile_s: float
    machine: MachineLimits | None
    kv_type: KVType


class Unloadable(WorkerMessage, tag="unloadable"):
    """The model cannot be loaded; the process ends."""

    error: TwofoldError


class StepOutputs(WorkerMessage, tag="step"):
    """What left the engine: deltas of all requests, reports of steps, how it stands."""

    deltas: list[OutputDelta]
    reports: list[StepReport]
    snapshot: EngineSnapshot | None


class Failed(WorkerMessage, tag="failed"):
    """A request ended without an answer."""

    request_id: str
    error: TwofoldError


class Gone(WorkerMessage, tag="gone"):
    """An aborted request holds nothing any more, and its id is free. ``remains`` is what was computed of it, without
    its prompt; None where it had ended before, or never came to the engine."""

    request_id: str
    remains: RequestOutput | None


class Pong(WorkerMessage, tag="pong"):
    """The engine's loop turns."""

    number: int
    snapshot: EngineSnapshot | None


class Checked(WorkerMessage, tag="checked"):
    """``fault`` is what an engine without work still holds; None if it holds nothing."""

    fault: str | None


ToWorker = LoadModel | EngineRequest | Abort | Hold | Ping | Check
FromWorker = Ready | Unloadable | StepOutputs | Failed | Gone | Pong | Checked


def _read(kind: type, value: Any) -> object:
    """What msgspec cannot read by itself."""
    if kind is not RequestParams:
        return from_plain(kind, value)
    known = next(each for each in PARAMS if {field.name for field in fields(each)} == set(value))
    return msgspec.convert(value, known)


class Codec:
    """Writes messages, and reads those of one direction."""

    def __init__(self, reads: Any) -> None:
        self._encoder = msgspec.msgpack.Encoder(enc_hook=to_plain)
        self._decoder: msgspec.msgpack.Decoder[Any] = msgspec.msgpack.Decoder(reads, dec_hook=_read)

    def frame(self, message: WorkerMessage | EngineRequest) -> bytearray:
        """The frame of a message."""
        frame = bytearray(LENGTH.size)
        self._encoder.encode_into(message, frame, LENGTH.size)
        LENGTH.pack_into(frame, 0, len(frame) - LENGTH.size)
        return frame

    def message(self, payload: bytes | bytearray | memoryview) -> Any:
        """The message of a frame's payload. Raises msgspec.DecodeError for anything else."""
        return self._decoder.decode(payload)


def server_codec() -> Codec:
    """What the server reads and writes with."""
    return Codec(FromWorker)


def worker_codec() -> Codec:
    """What a worker reads and writes with."""
    return Codec(ToWorker)


class Unframer:
    """Cuts a stream of bytes into payloads."""

    def __init__(self) -> None:
        self._buffer = bytearray()

    def feed(self, data: bytes) -> Iterator[bytes]:
        """The payloads that ``data`` completes. Raises ValueError for a length that no frame has."""
        self._buffer += data
        start, end = 0, len(self._buffer)
        while end - start >= LENGTH.size:
            (length,) = LENGTH.unpack_from(self._buffer, start)
            if length > MAX_FRAME_BYTES:
                raise ValueError(f"a frame of {length} bytes")
            if end - start - LENGTH.size < length:
                break
            start += LENGTH.size
            yield bytes(memoryview(self._buffer)[start : start + length])
            start += length
        del self._buffer[:start]
