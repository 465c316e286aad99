"""Twofold: CPU LLM inference engine and server that measures prefill and decode separately.

    from twofold import LLM, SamplingParams

    with LLM(model="smollm2-135m") as llm:
        print(llm.generate("Once upon a time", SamplingParams(temperature=0, max_tokens=32))[0].outputs[0].text)

The names are imported when they are first used, so ``import twofold`` itself costs nothing, and the command can handle
Ctrl-C from its start: not even ``typing`` is imported.
"""

from __future__ import annotations

TYPE_CHECKING = False
if TYPE_CHECKING:
    from twofold.core.params import BeamSearchParams, SamplingParams, StructuredOutputsParams
    from twofold.core.request import CachePin, RequestOptions
    from twofold.engine.async_llm import AsyncLLM
    from twofold.engine.llm import LLM

__all__ = [
    "LLM",
    "AsyncLLM",
    "BeamSearchParams",
    "CachePin",
    "RequestOptions",
    "SamplingParams",
    "StructuredOutputsParams",
]

_HOMES = {
    "LLM": "twofold.engine.llm",
    "AsyncLLM": "twofold.engine.async_llm",
    "BeamSearchParams": "twofold.core.params",
    "CachePin": "twofold.core.request",
    "RequestOptions": "twofold.core.request",
    "SamplingParams": "twofold.core.params",
    "StructuredOutputsParams": "twofold.core.params",
}


def __getattr__(name: str) -> object:
    if name in _HOMES:
        from importlib import import_module  # noqa: PLC0415 - imports more

        return getattr(import_module(_HOMES[name]), name)
    raise AttributeError(f"module 'twofold' has no attribute {name!r}")
