"""Twofold as a worker: the whole engine is timed, scheduling and sampling included."""

from __future__ import annotations

import itertools
import time
from typing import Any

from benchmarks.peers.serve import serve
from twofold import LLM, SamplingParams
from twofold.ops.cpu.model import CpuModel


class Ours:
    """The engine under measurement."""

    def load(self, path: str, threads: int, context: int, streams: int) -> float:
        began = time.perf_counter()
        self._llm = LLM(path, max_model_len=context, max_num_seqs=max(streams, 1), threads=threads)
        return time.perf_counter() - began

    def prefill(self, tokens: list[int]) -> float:
        output = self._run([tokens], 1)[0]
        return float(output.metrics.first_token - output.metrics.first_scheduled)

    def decode(self, prompt: list[int], steps: int) -> list[float]:
        times = self._run([prompt], steps + 1)[0].metrics.token_times[0]
        return [b - a for a, b in itertools.pairwise(times)]

    def batch(self, streams: int, prompt: list[int], steps: int) -> list[float]:
        """Seconds of each step in which every stream got a token."""
        outputs = self._run([[prompt[-1], *prompt[s % 7 :]] for s in range(streams)], steps + streams)
        times = [o.metrics.token_times[0] for o in outputs]
        start, end = max(t[0] for t in times), min(t[-1] for t in times)
        last = [t for t in times[-1] if start <= t <= end][: steps + 1]
        return [b - a for a, b in itertools.pairwise(last)]

    def overhead(self, prompt: list[int], steps: int) -> dict[str, float]:
        """Share of a decode step that is not machine code of the step's program: Python, and sampling."""
        model = self._llm.loaded.built.forward
        assert isinstance(model, CpuModel)
        spent, run = [0.0], model.team.run

        def timed(program: Any) -> None:
            began = time.perf_counter()
            run(program)
            spent[0] += time.perf_counter() - began

        self._llm.generate({"prompt_token_ids": prompt}, SamplingParams(temperature=0, max_tokens=1, ignore_eos=True))
        model.team.run = timed  # type: ignore[method-assign]
        try:
            output = self._run([prompt], steps + 1)[0]
        finally:
            model.team.run = run  # type: ignore[method-assign]
        whole = output.metrics.finished - output.metrics.first_scheduled
        return {"whole": whole, "kernels": spent[0]}

    def _run(self, prompts: list[list[int]], tokens: int) -> list[Any]:
        params = SamplingParams(temperature=0, max_tokens=tokens, ignore_eos=True, detokenize=False)
        return self._llm.generate([{"prompt_token_ids": p} for p in prompts], params)


if __name__ == "__main__":
    ours = Ours()
    serve(
        {
            "load": ours.load,
            "prefill": ours.prefill,
            "decode": ours.decode,
            "batch": ours.batch,
            "overhead": ours.overhead,
        }
    )
