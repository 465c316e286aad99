"""The table of hardware by name."""

from __future__ import annotations

from collections.abc import Mapping
from functools import lru_cache
from typing import Final

from twofold.core.errors import ParameterError, closest_match
from twofold.planner.machines.cpus import processors
from twofold.planner.machines.gpus import accelerators
from twofold.planner.machines.machine import Machine

MAKERS: Final = frozenset({"nvidia", "amd", "google", "intel", "apple", "aws", "geforce"})


@lru_cache(maxsize=1)
def known_machines() -> Mapping[str, Machine]:
    """Every machine of the table, by name."""
    return {each.name: each for each in (*accelerators(), *processors())}


def find_machine(name: str) -> Machine:
    """The machine of that name in any case, with or without its maker: ``h100``, ``NVIDIA A100-80GB``.

    Raises ParameterError with the nearest name.
    """
    machines = known_machines()
    wanted = _plain(name)
    names = {_plain(each): machine for machine in machines.values() for each in (machine.name, *machine.other_names)}
    if wanted in names:
        return names[wanted]
    close = closest_match(wanted, names)
    raise ParameterError(
        f"No machine {name!r:.60} is in the table of known hardware.",
        param="hardware",
        hint=(f"The nearest is {names[close].name!r}. " if close else "") + f"Known: {', '.join(sorted(machines))}.",
    )


def _plain(name: str) -> str:
    words = name.strip().lower().replace("_", "-").replace(" ", "-").split("-")
    return "-".join(word for word in words if word not in MAKERS)
