"""Messages between an engine and the processes of its grammars: four bytes of length, then msgpack."""

from __future__ import annotations

import select
import socket
from typing import Final, TypeAlias

import msgspec
from msgspec import Struct

from twofold.core.errors import ParameterError
from twofold.core.params import StructuredOutputsParams
from twofold.text.tokenizers.tokenizer import Tokenizer

FORK: Final = b"F"
STATUS: Final = b"S"
NUMBER: Final = 8
"""Commands to the fork server, and the bytes of their number (``host``)."""
LENGTH: Final = 4
PIECE: Final = 1 << 16


class GrammarMessage(Struct, frozen=True, tag=True):
    """Base of all messages."""


class CompletionMessage(GrammarMessage, frozen=True):
    """A message about one completion, by its number."""

    completion: int


class Describe(GrammarMessage, frozen=True):
    """The vocabulary, once for a server of forks."""

    tokens: tuple[bytes, ...]
    special_ids: frozenset[int]
    end_ids: tuple[int, ...]
    bos_id: int | None
    size: int
    strips_first_space: bool
    encoder: str


class Compile(GrammarMessage, frozen=True):
    """The form to compile. ``compile_s`` limits the processor seconds of compiling, ``step_s`` those of a token and of
    the mask after it. ``ends``: whether a complete output was found when the form was compiled before; None if it was
    not."""

    params: StructuredOutputsParams
    compile_s: float
    step_s: float
    ends: bool | None = None


class Start(CompletionMessage, frozen=True):
    """Starts a completion of at most ``max_tokens`` tokens."""

    max_tokens: int


class Prepare(CompletionMessage, frozen=True):
    """Requests the next mask of a completion, and those after the drafts."""

    drafts: tuple[int, ...]


class Advance(CompletionMessage, frozen=True):
    """Sampled tokens; the reply is ``Advanced``."""

    tokens: tuple[int, ...]


class Drop(CompletionMessage, frozen=True):
    """Forgets a completion."""


class Compiled(GrammarMessage, frozen=True):
    """The form can be used. ``ends``: a valid output of ``min_tokens`` tokens is known."""

    min_tokens: int
    ends: bool


class Found(GrammarMessage, frozen=True):
    """The end of a search: a path of tokens to a complete output, None if the search found none."""

    path: tuple[int, ...] | None


class Advanced(CompletionMessage, frozen=True):
    """Tokens were taken. ``finished``: no token can follow. ``shortened``, ``forced``: as in ``TokenConstraint``."""

    finished: bool
    shortened: bool
    forced: list[int]


class Masks(CompletionMessage, frozen=True):
    """The masks of the tokens that may be sampled next, and after drafts: 32-bit words. ``narrowed`` as in
    ``GrammarConstraint``. ``seconds`` of processor time were needed."""

    words: list[bytes]
    narrowed: list[bool]
    seconds: float


class Refused(GrammarMessage, frozen=True):
    """The error of a form that cannot be compiled, or of a completion (by its number) that cannot go on."""

    message: str
    param: str
    hint: str | None
    completion: int | None = None

    @classmethod
    def of(cls, error: ParameterError, completion: int | None = None) -> Refused:
        """The message that carries an error."""
        return cls(str(error), error.param, error.hint, completion)

    @property
    def error(self) -> ParameterError:
        """The error that the message carries."""
        return ParameterError(self.message, param=self.param, hint=self.hint)


ToHost: TypeAlias = Describe | Compile | Start | Prepare | Advance | Drop
FromHost: TypeAlias = Compiled | Found | Advanced | Masks | Refused
_encode = msgspec.msgpack.Encoder().encode
_decode = msgspec.msgpack.Decoder(ToHost | FromHost).decode


class Pipe:
    """Messages over a connected socket. Not thread-safe."""

    def __init__(self, connection: socket.socket) -> None:
        connection.setblocking(True)
        self._socket = connection
        self._read = bytearray()

    def send(self, message: ToHost | FromHost) -> None:
        """Raises OSError if the other side has ended."""
        data = _encode(message)
        self._socket.sendall(len(data).to_bytes(LENGTH, "little") + data)

    def receive(self, *, block: bool = True) -> ToHost | FromHost | None:
        """Returns the next message. Without ``block``, it returns None if no message has arrived.

        Raises EOFError if the other side has closed the socket.
        """
        while True:
            end = LENGTH + int.from_bytes(self._read[:LENGTH], "little")
            if len(self._read) >= max(end, LENGTH):
                message: ToHost | FromHost = _decode(memoryview(self._read)[LENGTH:end])
                del self._read[:end]
                return message
            try:
                piece = self._socket.recv(PIECE, 0 if block else socket.MSG_DONTWAIT)
            except BlockingIOError:
                return None
            if not piece:
                raise EOFError
            self._read += piece

    def wait(self, seconds: float | None) -> bool:
        """Whether there is something to read within ``seconds`` (None: no limit). Any thread may wait. Raises OSError
        if the pipe was closed."""
        try:
            poll = select.poll()  # takes descriptors beyond 1,023, which select does not
            poll.register(self._socket, select.POLLIN)
            return bool(poll.poll(None if seconds is None else seconds * 1e3))
        except ValueError as error:
            raise ConnectionResetError("the pipe is closed") from error

    def close(self) -> None:
        """Closes the socket, which the other side sees as the end."""
        self._socket.close()


def described(tokenizer: Tokenizer, end_ids: tuple[int, ...], size: int) -> Describe:
    """The message that describes a vocabulary."""
    return Describe(
        tuple(tokenizer.token_bytes(token) for token in range(min(size, tokenizer.vocab_size))),
        tokenizer.special_ids,
        end_ids,
        tokenizer.bos_id,
        size,
        tokenizer.strips_first_space,
        tokenizer.encoder_text,
    )
