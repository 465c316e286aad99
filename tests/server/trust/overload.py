"""A server that is soon full, and what is asked of it: for the test of refusals and for the benchmark."""

from __future__ import annotations

from typing import Any, Final

from tests.server.trust.client import CHAT, MESSAGES, chat, message
from tests.support.tiny import TinyOptions

SEQUENCES: Final = 4
QUEUED: Final = 8
TOKENS: Final = 250
SLOW: Final = TinyOptions(layers=8, hidden=128, ffn=512)
ARGUMENTS: Final = ("--threads", "1", "--max-num-seqs", f"{SEQUENCES}", "--max-num-queued-reqs", f"{QUEUED}")
ASKED: Final[tuple[tuple[str, dict[str, Any], int], ...]] = (
    (CHAT, chat(max_tokens=TOKENS, ignore_eos=True), 503),
    (MESSAGES, message(max_tokens=TOKENS), 529),
)
"""Requests of two API protocols, each with its status of a refusal."""
