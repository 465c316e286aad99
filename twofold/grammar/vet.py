"""Compiles grammars from strangers in a process of its own, which may hang, run out of memory or crash instead of us.

llguidance 1.9 overflows its stack, and so ends the process, on a chain of some thousand rules or ``$ref``, and needs
seconds for some thousand optional properties: both fit into a schema of moderate size. Run as a script, this reads
grammars and writes what is wrong with each. A message is its length, four bytes, little-endian, and UTF-8 text; the
first one written is empty and says that grammars may come. Imports nothing of Twofold, so that it starts quickly.
"""

from __future__ import annotations

import resource
import signal
import sys
import threading
from typing import BinaryIO

from llguidance import LLMatcher, LLParserLimits, LLTokenizer, TokenizerWrapper

MEMORY = 256 * 1024 * 1024
STACK = 4 * 1024 * 1024
"""Half of what the threads of the process that asks have: what does not overflow here does not overflow there."""
SAMPLE_TOKENS = 4


def parser_limits() -> LLParserLimits:
    """The limits for grammars from strangers. States of the lexer take 1 to 2 KB each."""
    return LLParserLimits(max_lexer_states=50_000, verbose_errors=False)


def fault(grammar: str, tokenizer: LLTokenizer) -> str:
    """What is wrong with a grammar, or an empty text. Also tries a first mask."""
    matcher = LLMatcher(tokenizer, grammar, log_level=0, limits=parser_limits())
    if not matcher.is_error():
        matcher.compute_bitmask()
        matcher.compute_ff_bytes()
    return matcher.get_error()


def read_message(stream: BinaryIO) -> str | None:
    """The next message, or None at the end of the stream."""
    head = stream.read(4)
    return stream.read(int.from_bytes(head, "little")).decode() if len(head) == 4 else None


def message(text: str) -> bytes:
    """A text as it is sent."""
    data = text.encode()
    return len(data).to_bytes(4, "little") + data


class _Bytes:
    """A tokenizer with a token for each byte, and one to end."""

    eos_token_id = 256
    bos_token_id = None
    tokens = (*(bytes([value]) for value in range(256)), b"<end>")
    special_token_ids = (256,)

    def __call__(self, data: bytes) -> list[int]:
        return list(data)


def _serve() -> None:
    tokenizer = LLTokenizer(TokenizerWrapper(_Bytes()))
    answer = ""
    while True:
        sys.stdout.buffer.write(message(answer))
        sys.stdout.buffer.flush()
        grammar = read_message(sys.stdin.buffer)
        if grammar is None:
            return
        answer = fault(grammar, tokenizer)[:2_000]


def main() -> None:
    """Serves until standard input ends."""
    signal.signal(signal.SIGINT, signal.SIG_IGN)  # the process that asks ends this one
    resource.setrlimit(resource.RLIMIT_CORE, (0, 0))
    resource.setrlimit(resource.RLIMIT_DATA, (MEMORY, MEMORY))
    threading.stack_size(STACK)
    server = threading.Thread(target=_serve)
    server.start()
    server.join()


if __name__ == "__main__":
    main()
