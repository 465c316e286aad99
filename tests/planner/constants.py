"""Constants for published measurements that no server took."""

from __future__ import annotations

from typing import Final

from twofold.planner.predict.constants import BARE, Constants

LOOP: Final[Constants] = BARE.having(
    {"eta_m": 0.85, "eta_c": 0.72, "eta_k": 0.85, "eta_l": 0.78}
    | {"t_layer": 62e-6, "t_step": 126e-6, "t_req": 4e-6, "t_ar": 7e-6},
    "picked within the ranges published for tight loops, in sight of gpt-fast; not fitted",
)
"""A bare generation loop on a GPU without a server, as papers and blogs of 2022 to 2024 measured it."""
