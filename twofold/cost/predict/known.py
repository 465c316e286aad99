"""Constants for machines of the table, where nobody calibrated one."""

from __future__ import annotations

from typing import Final

from twofold.cost.hardware.machine import Cited, Machine
from twofold.cost.predict.constants import BARE, EFFICIENT, Constants

_RANGE: Final = "middle of the published range 0.8–0.95 for GPUs; not fitted"
_LINKS: Final = "fitted on Vidur's all-reduce profile of an H100 server with 2, 4 and 8 devices; mean error 9%"
_SERVED: Final = (
    "fitted on TPOT of 545 served runs: Llama 3.1 8B and 70B, Qwen3-32B in bf16 and fp8 on H100 and H200, under vLLM, "
    "SGLang and TensorRT-LLM (aiconfigurator-core 0.12.0)"
)
_FIRST: Final = "fitted on TTFT of the 166 of those runs whose outputs have at least 1,000 tokens"
_HELD_OUT: Final = "mean error of TPOT on the half of those runs that was not fitted on; of TTFT 28% (all outputs: 46%)"

GPU: Final[Constants] = Constants(
    eta_m=Cited(0.9, _RANGE),
    eta_c=Cited(0.824, _SERVED),
    eta_k=Cited(0.900, _SERVED),
    eta_l=Cited(0.78, _LINKS),
    t_layer=Cited(50.1e-6, _SERVED),
    t_req=Cited(26.4e-6, _SERVED),
    t_ar=Cited(9.05e-6, _SERVED),
    t_first=Cited(30e-3, _FIRST),
    error=Cited(0.153, _HELD_OUT),
)
"""Of serving software on NVIDIA GPUs in 2026. ``t_step`` is inside ``t_layer``: the data cannot tell them apart."""

BURST: Final = Cited(0.145, _FIRST)
"""Share of requests that arrived all at once in those runs: the first of about seven for each place."""

_TYPICAL: Final = "picked within the ranges published for tight loops, in sight of gpt-fast; not fitted"
LOOP: Final[Constants] = BARE.having(
    {"eta_m": 0.85, "eta_c": 0.72, "eta_k": 0.85, "eta_l": 0.78}
    | {"t_layer": 62e-6, "t_step": 126e-6, "t_req": 4e-6, "t_ar": 7e-6},
    _TYPICAL,
)
"""Of a bare generation loop on a GPU, without a server around it: what papers and blogs of 2022 to 2024 measured."""

CPU: Final[Constants] = BARE.having(
    {"eta_m": 0.8, "eta_c": 0.6, "eta_k": 0.6}, "assumed for processors; `twofold doctor --calibrate` measures this one"
).having({"t_step": 0.5e-3}, "assumed: one start of a pool of threads for each operator")


def constants_for(machine: Machine) -> Constants:
    """What is assumed of a machine by its kind: fitted for GPUs, rules of thumb for others."""
    return {"gpu": GPU, "cpu": CPU}.get(machine.kind, EFFICIENT)
