"""Twofold as a worker. Times include scheduling and sampling."""

from __future__ import annotations

import itertools
import time
from typing import Any

from benchmarks import traffic
from benchmarks.peers.serve import serve
from benchmarks.traffic import StepWatch
from twofold import LLM, SamplingParams


class Ours:
    """The measured engine. ``options`` of ``load`` are arguments of ``LLM``; loading again replaces the engine."""

    def __init__(self) -> None:
        self._llm: LLM | None = None
        self._watch: StepWatch | None = None

    @property
    def llm(self) -> LLM:
        assert self._llm is not None, "nothing is loaded"
        return self._llm

    def load(self, path: str, threads: int, context: int, streams: int, options: dict[str, Any] | None = None) -> float:
        if self._llm is not None:
            self._llm.close()
        began = time.perf_counter()
        self._llm = LLM(
            path,
            max_model_len=context,
            max_num_seqs=max(streams, 1),
            threads=threads,
            **{**PLAIN, **(options or {})},
        )
        seconds = time.perf_counter() - began
        self._watch = StepWatch(self._llm)
        return seconds

    def prefill(self, tokens: list[int]) -> float:
        output = self._run([tokens], 1)[0]
        return float(output.metrics.first_token - output.metrics.first_scheduled)

    def decode(self, prompt: list[int], steps: int) -> list[float]:
        times = self._run([prompt], steps + 1)[0].metrics.token_times[0]
        return [b - a for a, b in itertools.pairwise(times)]

    def long(self, prompt: list[int], steps: int) -> dict[str, Any]:
        """Seconds of the prompt until its first token, and of each step after it."""
        metrics = self._run([prompt], steps + 1)[0].metrics
        gaps = [b - a for a, b in itertools.pairwise(metrics.token_times[0])]
        return {"prompt": metrics.first_token - metrics.first_scheduled, "steps": gaps}

    def batch(self, streams: int, prompt: list[int], steps: int) -> list[float]:
        """Seconds of each step in which every stream received a token."""
        outputs = self._run([[prompt[-1], *prompt[s % 7 :]] for s in range(streams)], steps + streams)
        times = [o.metrics.token_times[0] for o in outputs]
        start, end = max(t[0] for t in times), min(t[-1] for t in times)
        last = [t for t in times[-1] if start <= t <= end][: steps + 1]
        return [b - a for a, b in itertools.pairwise(last)]

    def generate(self, prompts: list[list[int]], count: int) -> float:
        """Seconds until the last token of the last prompt."""
        began = time.perf_counter()
        self._run(prompts, count)
        return time.perf_counter() - began

    def steps(self, prompts: list[list[int]], count: int, text: bool = False) -> dict[str, Any]:
        assert self._watch is not None, "nothing is loaded"
        return traffic.steps(self.llm.engine, self._watch, prompts, count, text=text)

    def interfere(self, prompts: list[list[int]], late: list[int], steps: int) -> dict[str, Any]:
        return traffic.interfere(self.llm.engine, prompts, late, steps)

    def drive(self, arrivals: list[dict[str, Any]]) -> list[dict[str, Any]]:
        return traffic.drive(self.llm.engine, arrivals)

    def _run(self, prompts: list[list[int]], tokens: int) -> list[Any]:
        params = SamplingParams(temperature=0, max_tokens=tokens, ignore_eos=True, detokenize=False)
        return self.llm.generate([{"prompt_token_ids": p} for p in prompts], params)


PLAIN = {"enable_prefix_caching": False, "speculative_config": {"method": "off"}}
"""Rounds repeat their prompts, which must be computed each time, and their completions, which drafts would know."""


if __name__ == "__main__":
    ours = Ours()
    operations = ("load", "prefill", "decode", "long", "batch", "generate", "steps", "interfere", "drive")
    serve({name: getattr(ours, name) for name in operations})
