"""The shortest prefix that a provider keeps in its prompt cache. A shorter one is fresh input every time."""

from __future__ import annotations

from typing import Final

MINIMUMS: Final[tuple[tuple[str, int], ...]] = (
    # Anthropic, prompt caching, "Cache limitations" (platform.claude.com), as of 2026-11. Sonnet 4.6: its page said
    # 1,024, and the service caches from 2,048 on (anthropics/anthropic-sdk-python, issue 1194).
    ("anthropic/claude-3-haiku", 2048),
    ("anthropic/claude-3-5-haiku", 2048),
    ("anthropic/claude-haiku-4-5", 4096),
    ("anthropic/claude-opus-4-5", 4096),
    ("anthropic/claude-opus-4-6", 4096),
    ("anthropic/claude-opus-4-7", 2048),
    ("anthropic/claude-opus-5", 512),
    ("anthropic/claude-fable-5", 512),
    ("anthropic/claude-mythos-5", 512),
    ("anthropic/claude-sonnet-4-6", 2048),
    ("anthropic/", 1024),
    # OpenAI, prompt caching (developers.openai.com), as of 2026-11: every model that caches.
    ("openai/", 1024),
    # Google, context caching (ai.google.dev), as of 2026-05.
    ("google/gemini-2.5-pro", 4096),
    ("google/gemini-3-pro", 4096),
    ("google/gemini-3.1-pro", 4096),
    ("google/", 1024),
)
"""By the beginning of a model's name; the longest that fits counts. A successor has its predecessor's until told."""


def min_cached(name: str) -> int:
    """Tokens that a prefix must have to be kept by the model called ``provider/id``; 0 where none is known."""
    fitting = [(len(start), least) for start, least in MINIMUMS if name.startswith(start)]
    return max(fitting)[1] if fitting else 0
