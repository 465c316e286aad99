"""Constants for machines of the table, where nobody calibrated one. ``errors`` says how wrong they were."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Final

from twofold.core.model import ModelSpec
from twofold.planner.machines.machine import Cited, Machine
from twofold.planner.predict.constants import BARE, EFFICIENT, Constants
from twofold.planner.predict.errors import GENERATIONS

_RANGE: Final = "middle of the published range 0.8–0.95 for GPUs; not fitted"
_LINKS: Final = "fitted on Vidur's all-reduce profile of an H100 server with 2, 4 and 8 devices; mean error 9%"
_UNDER: Final = "under vLLM, SGLang and TensorRT-LLM (aiconfigurator-core 0.12.0)"
_SERVED: Final = (
    f"fitted on TPOT of 545 served runs: Llama 3.1 8B and 70B, Qwen3-32B in bf16 and fp8 on H100 and H200, {_UNDER}"
)
_FIRST: Final = "fitted on TTFT of 166 of those runs, whose outputs have at least 1,000 tokens"
_AHEAD: Final = "fitted on TTFT of 528 of those runs"
_EXPERTS_HOPPER: Final = f"fitted on 427 served runs of five models with experts on H100 and H200, {_UNDER}"
_DENSE_BLACKWELL: Final = f"fitted on 184 served runs of Llama 3.1 70B and Qwen3-32B in fp8 and fp4 on B200, {_UNDER}"
_EXPERTS_BLACKWELL: Final = f"fitted on 406 served runs of four models with experts on B200, {_UNDER}"

GPU: Final[Constants] = Constants(
    eta_m=Cited(0.9, _RANGE),
    eta_c=Cited(0.824, _SERVED),
    eta_k=Cited(0.900, _SERVED),
    eta_l=Cited(0.78, _LINKS),
    t_layer=Cited(50.1e-6, _SERVED),
    t_req=Cited(26.4e-6, _SERVED),
    t_ar=Cited(9.05e-6, _SERVED),
    t_first=Cited(30e-3, _FIRST),
    ahead=Cited(0.0, _AHEAD),
    ahead_c=Cited(0.121, _AHEAD),
)
"""Of serving software and dense models on NVIDIA GPUs in 2026. ``t_step`` is inside ``t_layer``: the data cannot tell
them apart."""

EXPERTS_HOPPER: Final = GPU.having(
    {"eta_c": 0.249, "eta_k": 0.437, "t_layer": 90e-6, "t_req": 12.9e-6, "t_ar": 2.14e-6}
    | {"ahead": 0.4, "ahead_c": 0.073},
    _EXPERTS_HOPPER,
)
DENSE_BLACKWELL: Final = GPU.having(
    {"eta_c": 0.473, "eta_k": 0.987, "t_layer": 65.7e-6, "t_req": 25.2e-6, "t_ar": 0.0} | {"ahead_c": 0.0611},
    _DENSE_BLACKWELL,
)
EXPERTS_BLACKWELL: Final = GPU.having(
    {"eta_c": 0.413, "eta_k": 0.476, "t_layer": 89.8e-6, "t_req": 0.0, "t_ar": 1.92e-6}
    | {"ahead": 1.06, "ahead_c": 0.0887},
    _EXPERTS_BLACKWELL,
)

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

FITTED: Final[Mapping[tuple[str, bool], Constants]] = {
    ("hopper", False): GPU,
    ("hopper", True): EXPERTS_HOPPER,
    ("blackwell", False): DENSE_BLACKWELL,
    ("blackwell", True): EXPERTS_BLACKWELL,
}
"""By the machine's generation, and whether the model has experts."""


def constants_for(machine: Machine, shape: ModelSpec) -> Constants:
    """What is assumed of a machine that runs such a model: fitted for GPUs, rules of thumb for others.

    GPUs of other generations get what Hopper's were fitted to.
    """
    if machine.kind != "gpu":
        return CPU if machine.kind == "cpu" else EFFICIENT
    return FITTED[GENERATIONS.get(machine.name, "hopper"), shape.has_experts]
