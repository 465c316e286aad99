"""Twofold: LLM inference that keeps prefill and decode apart.

    from twofold import LLM, SamplingParams

    with LLM(model="smollm2-135m") as llm:
        print(llm.generate("Once upon a time", SamplingParams(temperature=0, max_tokens=32))[0].outputs[0].text)

The names are imported when they are first used, so ``import twofold`` itself costs nothing.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from twofold.core.params import SamplingParams
    from twofold.engine.llm import LLM

__all__ = ["LLM", "SamplingParams"]


def __getattr__(name: str) -> object:
    if name == "LLM":
        from twofold.engine.llm import LLM  # noqa: PLC0415 - lazy on purpose: it brings NumPy and the engine

        return LLM
    if name == "SamplingParams":
        from twofold.core.params import SamplingParams  # noqa: PLC0415

        return SamplingParams
    raise AttributeError(f"module 'twofold' has no attribute {name!r}")
