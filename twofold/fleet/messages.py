"""Messages between the server and a worker process, and their bytes.

    frame     length of the payload (4 bytes, little endian) │ payload
    payload   msgpack: [tag, field, …]; requests and other records of the engine are maps, errors [class, message, hint,
              {more}]. The first one of a node has at most HELLO_BYTES

    node → server     Hello first; WorkerCrashed last, if its worker did. The server replies LoadModel or JoinRefused.
                      Leave, to which it replies Drained once the node's requests go on elsewhere
    server → worker   LoadModel first; then requests, Abort, SetPaused, Ping, Watch, Look, Foresee, ListBlocks
    worker → server   Ready or Unloadable first; then StepOutputs after each step with output, Failed, Gone, Pong, Seen,
                      Blocks. Beat at any time
    between workers   SendBlocks … BlocksFetched, relayed by the server (fleet.transfer)
Decoding creates only the classes of these messages and their fields, whatever the bytes are.
"""

from __future__ import annotations

import struct
from collections.abc import Callable, Generator, Iterator
from dataclasses import fields
from functools import cache
from typing import Any, Final, get_args

import msgspec

from twofold.core.errors import TwofoldError
from twofold.core.forecast import Forecast, RequestProgress
from twofold.core.kv_layout import KVType
from twofold.core.lanes import LaneEvent
from twofold.core.limits import MachineLimits
from twofold.core.params import BeamSearchParams, RequestParams, SamplingParams
from twofold.core.report import EngineFacts, EngineSnapshot, KVPicture, StepReport
from twofold.core.request import EngineRequest, PoolingParams, RequestOptions, ScoringParams
from twofold.core.step_bytes import from_plain, to_plain
from twofold.engine.kv.names import BlockKeys
from twofold.engine.outputs import OutputDelta, RequestOutput
from twofold.engine.scheduler.forecast import EngineWork
from twofold.fleet.checks import PeerError
from twofold.fleet.parts import PartReader
from twofold.fleet.routing.router import Role

MAX_FRAME_BYTES: Final = 1 << 30
MAX_NAMES: Final = 1 << 14
"""Maximum number of names of blocks in a message."""
HELLO_BYTES: Final = 4096
"""Maximum length of a node's first frame."""
PARAMS: Final = (SamplingParams, BeamSearchParams, PoolingParams, ScoringParams)
"""Parameters of requests; each class has fields that no other has."""
LENGTH: Final = struct.Struct("<I")
TAG_BYTES: Final = 33
SHORT_BYTES: Final = 64 << 10
"""Messages up to this length may be of any kind."""


class WorkerMessage(msgspec.Struct, array_like=True):
    """The base of all messages."""


class Hello(WorkerMessage, tag="hello"):
    """What a node offers: one replica of a model.

    version, numerics   of its program, which must be the server's
    node                its name in logs
    model               the name under which the server knows the model
    digest              of the model's file (``formats.identity.file_digest``), which must be the server's
    role                what its replica is for
    """

    version: str
    numerics: int
    node: str
    model: str
    digest: str
    role: Role = "both"


class WorkerCrashed(WorkerMessage, tag="crashed"):
    """A node's last message: its worker ended by itself, or for lack of memory, and how."""

    cause: str


class JoinRefused(WorkerMessage, tag="refused"):
    """The server does not take the node."""

    error: TwofoldError


class Leave(WorkerMessage, tag="leave"):
    """A node wants to end: its requests shall go on elsewhere."""


class Drained(WorkerMessage, tag="drained"):
    """The node has no requests any more and may end; it shall not join again."""


class LoadModel(WorkerMessage, tag="load"):
    """Loads the model file ``path`` with these ``EngineKeywords``. A node fills in the path of its own file.

    shares_clock   whether the server's clock is this machine's; otherwise ``arrival`` of a request is its age
    keys           names its cached blocks, which it then reports, with its work; None: it reports neither
    """

    path: str
    options: dict[str, Any]
    shares_clock: bool = True
    keys: BlockKeys | None = None


class Abort(WorkerMessage, tag="abort"):
    """Ends a request. Its deltas until Gone are ignored."""

    request_id: str


class SetPaused(WorkerMessage, tag="pause"):
    """Pauses a request, or resumes it."""

    request_id: str
    paused: bool


class Ping(WorkerMessage, tag="ping"):
    """Asks for a Pong between two steps."""


class Watch(WorkerMessage, tag="watch"):
    """Starts or ends the events of lanes."""

    on: bool


class Look(WorkerMessage, tag="look"):
    """Asks for a picture of the KV cache between two steps."""


class ListBlocks(WorkerMessage, tag="list"):
    """Asks for the names of all blocks."""


class Foresee(WorkerMessage, tag="foresee"):
    """Asks what a request would meet if it arrived now. The response has the same number."""

    number: int
    token_ids: tuple[int, ...]
    options: RequestOptions


class Ready(WorkerMessage, tag="ready"):
    """The model is loaded and has generated a token.

    bytes     bytes of its weights and its KV cache
    machine   limits of this machine; None if they were not measured
    kv_type   type of the values in the KV cache
    engine    the limits of its engine
    read_s, compile_s, test_s   seconds that it took to read the file, to compile kernels, and to generate the token
    """

    context: int
    bytes: int
    machine: MachineLimits | None
    kv_type: KVType
    engine: EngineFacts
    read_s: float = 0.0
    compile_s: float = 0.0
    test_s: float = 0.0


class Unloadable(WorkerMessage, tag="unloadable"):
    """The model cannot be loaded; the process ends."""

    error: TwofoldError


class WorkReport(WorkerMessage):
    """What routing needs of a worker, as of its last step.

    received    requests that have reached the engine since it started
    event       number of the last change of its cached blocks; ``added`` and ``removed`` are the names of that one, or
                nothing
    """

    received: int
    work: EngineWork
    event: int = 0
    added: list[bytes] = []
    removed: list[bytes] = []


class StepOutputs(WorkerMessage, tag="step"):
    """Output of the engine: deltas of all requests, reports of steps, a snapshot, events of lanes if it is
    watched, the progress of requests that ask for it, and the work of a worker of several."""

    deltas: list[OutputDelta]
    reports: list[StepReport]
    snapshot: EngineSnapshot | None
    lanes: list[LaneEvent] = []
    progress: list[RequestProgress] = []
    work: WorkReport | None = None


class Failed(WorkerMessage, tag="failed"):
    """A request failed without output."""

    request_id: str
    error: TwofoldError


class Gone(WorkerMessage, tag="gone"):
    """An aborted request is gone and its id is free. ``output`` is its output without the prompt; None if it had ended
    before, or never reached the engine."""

    request_id: str
    output: RequestOutput | None


class Blocks(WorkerMessage, tag="blocks"):
    """The response to ListBlocks: the names of all blocks after the change ``event``, in parts of MAX_NAMES. This one
    begins with name number ``first``; ``more`` follow at once."""

    event: int
    names: list[bytes]
    first: int = 0
    more: bool = False


class SendBlocks(WorkerMessage, tag="send_blocks"):
    """Holds the cached blocks of these tokens of a cache salt, to be sent for transfer ``number``. Of KV groups with
    windows, those that the row after ``goal`` blocks reads."""

    number: int
    salt: str
    token_ids: tuple[int, ...]
    goal: int


class FetchBlocks(WorkerMessage, tag="fetch_blocks"):
    """The next request of this id waits until the first ``blocks`` blocks of its prompt are fetched."""

    number: int
    request_id: str
    blocks: int


class PrefetchBlocks(WorkerMessage, tag="prefetch_blocks"):
    """Fetches the blocks of these tokens of a cache salt, for a request that may come, and whose prompt has ``goal``
    blocks."""

    number: int
    salt: str
    token_ids: tuple[int, ...]
    goal: int


class PullBlocks(WorkerMessage, tag="pull_blocks"):
    """Asks for blocks ``first`` … ``upto`` − 1 of a transfer; ``first`` stays the same in later ones."""

    number: int
    first: int
    upto: int


class BlockData(WorkerMessage, tag="block_data"):
    """Block ``place`` of a prompt, of each KV group that needs it."""

    number: int
    place: int
    digest: bytes
    payload: bytes


class BlocksGone(WorkerMessage, tag="blocks_gone"):
    """The source has no further block of a transfer."""

    number: int


class BlocksFetched(WorkerMessage, tag="blocks_fetched"):
    """A transfer has ended at its target, which has so many more blocks after so many seconds. For ``publish_s`` more
    it waited until they were in its prefix cache."""

    number: int
    blocks: int
    bytes: int
    seconds: float
    publish_s: float = 0.0


class EndTransfer(WorkerMessage, tag="end_transfer"):
    """Nothing of a transfer is sent any more; what it holds is released."""

    number: int


class Foreseen(WorkerMessage, tag="foreseen"):
    """The response to Foresee."""

    number: int
    forecast: Forecast


class Pong(WorkerMessage, tag="pong"):
    """The response to Ping: the engine's loop is alive."""

    snapshot: EngineSnapshot | None


class Beat(WorkerMessage, tag="beat"):
    """The process runs: sent by a thread of its own, also during a long step."""


class Seen(WorkerMessage, tag="seen"):
    """The response to Look, with the engine's time."""

    at: float
    picture: KVPicture


ToTransfer = SendBlocks | PrefetchBlocks | PullBlocks | BlockData | EndTransfer
ToService = EngineRequest | Abort | SetPaused | Ping | Watch | Look | Foresee | ListBlocks | FetchBlocks
ToWorker = LoadModel | ToService | ToTransfer
FromHub = LoadModel | JoinRefused | Drained
FromTransfer = PullBlocks | BlockData | BlocksGone | BlocksFetched
FromWorker = Ready | Unloadable | StepOutputs | Failed | Gone | Pong | Beat | Seen | Blocks | Foreseen | FromTransfer
FromNode = FromWorker | WorkerCrashed | Leave


def _read(kind: type, value: Any) -> object:
    """Reads types that msgspec does not know."""
    if kind is not RequestParams:
        return from_plain(kind, value)
    known = next(each for each in PARAMS if {field.name for field in fields(each)} == set(value))
    return msgspec.convert(value, known)


class Codec:
    """Writes messages, and reads those of the union ``reads``. ``check`` is called with everything that is read, and
    raises ValueError for what cannot be true."""

    def __init__(self, reads: Any, check: Callable[..., None] | None = None) -> None:
        self._encoder = msgspec.msgpack.Encoder(enc_hook=to_plain)
        self._decoder: msgspec.msgpack.Decoder[Any] = msgspec.msgpack.Decoder(reads, dec_hook=_read)
        self._kinds = {_tag(each): each for each in get_args(reads) or (reads,)}
        self._check = check

    def frame(self, message: WorkerMessage | EngineRequest) -> bytearray:
        """The frame of a message."""
        frame = bytearray(LENGTH.size)
        self._encoder.encode_into(message, frame, LENGTH.size)
        LENGTH.pack_into(frame, 0, len(frame) - LENGTH.size)
        return frame

    def message(self, payload: bytes | bytearray | memoryview) -> Any:
        """The message of a frame's payload. Raises msgspec.DecodeError for anything else."""
        message = self._decoder.decode(payload)
        if self._check is not None:
            self._check(message)
        return message

    def in_parts(self, payload: bytes) -> Generator[None, None, Any]:
        """The same for a long payload; pauses after each PART_BYTES that are decoded. Raises ValueError, too, for what
        cannot be decoded in parts."""
        kind = self._kinds[tag_of(payload)]
        return (yield from PartReader(_decoder, self._check).record(kind, payload, skip=1))


@cache
def _decoder(kind: Any) -> msgspec.msgpack.Decoder[Any]:
    """Decodes a part of a message."""
    return msgspec.msgpack.Decoder(kind, dec_hook=_read)


def tag_of(payload: bytes | bytearray) -> bytes:
    """The tag of a message, by its first TAG_BYTES; nothing if they do not have one."""
    if len(payload) < 2 or payload[0] & 0xF0 != 0x90 or payload[1] & 0xE0 != 0xA0:  # an array of up to 15, a short text
        return b""
    return bytes(payload[2 : 2 + (payload[1] & 0x1F)])


def _tag(kind: type) -> bytes:
    """The tag of a class of messages; a request is not one."""
    tag = kind.__struct_config__.tag if issubclass(kind, WorkerMessage) else ""
    return str(tag).encode()


class Unframer:
    """Splits a stream of bytes into payloads."""

    def __init__(self, limit: int = MAX_FRAME_BYTES, kinds: Callable[[bytes], int] | None = None) -> None:
        """``limit`` is the maximum length of a payload, and ``kinds`` gives that of a message with this tag, if it is
        longer than SHORT_BYTES. Both may be changed later."""
        self.limit, self.kinds = limit, kinds
        self._buffer = bytearray()

    def feed(self, data: bytes) -> Iterator[bytes]:
        """The payloads that ``data`` completes, with those that are added meanwhile. Raises PeerError for an invalid
        length, as soon as the message's tag is there."""
        self._buffer += data
        start = 0
        while (left := len(self._buffer) - start - LENGTH.size) >= 0:
            (length,) = LENGTH.unpack_from(self._buffer, start)
            if length > self.limit:
                raise PeerError(f"a frame of {length} bytes")
            start += LENGTH.size
            if self.kinds is not None and length > SHORT_BYTES and left >= TAG_BYTES:
                tag = tag_of(self._buffer[start : start + TAG_BYTES])
                if length > self.kinds(tag):
                    raise PeerError(f"a message of {length} bytes")
            if left < length:
                start -= LENGTH.size
                break
            payload = bytes(memoryview(self._buffer)[start : start + length])
            start += length
            if length > SHORT_BYTES:  # it would be held twice
                del self._buffer[:start]
                start = 0
            yield payload
        del self._buffer[:start]

    def add(self, data: bytes) -> None:
        """More bytes, while ``feed`` has not ended."""
        self._buffer += data
