"""What reading a model wants to know of a file's tensors."""

from __future__ import annotations

from typing import Protocol

from twofold.core.quant import QuantFormat


class TensorShape(Protocol):
    """A tensor of ``rows`` × ``columns`` values. A vector has one row."""

    @property
    def rows(self) -> int: ...

    @property
    def columns(self) -> int: ...

    @property
    def format(self) -> QuantFormat: ...
