"""What the names in questions mean, and the types of the fields that questions have.

Bounds are those of bodies of the HTTP API, whose reader holds them; commands take any value that the planner can."""

from __future__ import annotations

from typing import Annotated, Final, NamedTuple, TypeAlias

from msgspec import Meta

from twofold.core.model import ModelSpec
from twofold.planner.count.setting import PLAIN, Setting
from twofold.planner.machines.known import find_machine
from twofold.planner.machines.machine import Machine
from twofold.planner.predict.constants import Constants
from twofold.planner.shapes.known import named_shape

HERE: Final = "this"
"""The name of the machine that the command or the server runs on."""
Name: TypeAlias = Annotated[str, Meta(min_length=1, max_length=80)]
Tokens: TypeAlias = Annotated[int, Meta(ge=1, le=2_000_000)]
MoreTokens: TypeAlias = Annotated[int, Meta(ge=0, le=2_000_000)]
Batch: TypeAlias = Annotated[int, Meta(ge=1, le=4096)]
Devices: TypeAlias = Annotated[int, Meta(ge=1, le=1024)]
Part: TypeAlias = Annotated[float, Meta(gt=0, le=0.99)]
Amount: TypeAlias = Annotated[float, Meta(ge=0, le=1e12)]


class NamedMachine(NamedTuple):
    """A machine, how a model is served there, and the constants that were fitted there; None: the built-in ones."""

    machine: Machine
    setup: Setting = PLAIN
    constants: Constants | None = None


class Names:
    """The models and machines of the tables. Commands also know files and the local machine, a server its own."""

    def spec(self, model: str, weights: str | None = None) -> ModelSpec:
        """The model, with its matrices in the format ``weights``. Raises ModelNotFoundError, and ParameterError for an
        unknown format."""
        return named_shape(model, weights)

    def machine(self, hardware: str, spec: ModelSpec, model: str | None) -> NamedMachine:  # noqa: ARG002 - see the others
        """The machine for a model, which has the name ``model`` in the question. Raises ParameterError."""
        return NamedMachine(find_machine(hardware))
