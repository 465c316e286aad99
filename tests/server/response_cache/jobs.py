"""Jobs for an engine, and possible outputs for them."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

from twofold.core.params import SamplingParams
from twofold.core.report import RequestMetrics
from twofold.core.request import EngineRequest, PoolingParams, RequestOptions
from twofold.engine.outputs import CompletionOutput, Logprob, RequestOutput

IDS = (5, 7, 11)


def job(*ids: int, salt: str = "", **params: Any) -> EngineRequest:
    sampling = SamplingParams(**({"temperature": 0} | params))
    return EngineRequest(ids or IDS, sampling, RequestOptions(cache_salt=salt))


def vector_job() -> EngineRequest:
    return EngineRequest(IDS, PoolingParams(), RequestOptions())


def output(text: str = "four", *, finish: Any = "stop", **changes: Any) -> RequestOutput:
    """Two completions with log-probabilities; best_of dropped a third one of 7 tokens."""
    words = ({9: Logprob(-0.5, 1, text), 8: Logprob(float("-inf"), 2, "é")},)
    first = CompletionOutput(0, text, (9,), words, -0.5, finish, None)
    second = CompletionOutput(1, text * 2, (9,), words, -0.5, "stop", " stop")
    times = ((1.0,), (1.0,), (1.0,) * 7)
    metrics = RequestMetrics(0.0, 0.5, 1.0, 2.0, times, len(IDS), 2, "r", ("stop", "stop"))
    made = RequestOutput("r", None, IDS, (None, *words), (first, second), metrics, finished=True)
    return replace(made, **changes)


def vector_output() -> RequestOutput:
    return output(outputs=(), prompt_logprobs=None, embedding=(0.6, -0.8))
