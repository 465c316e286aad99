"""What may be asked of a text's vector."""

from __future__ import annotations

from dataclasses import dataclass

from twofold.core.errors import ParameterError
from twofold.core.step import Pooling


@dataclass(frozen=True, slots=True)
class PoolingParams:
    """How a text becomes one vector of length 1; ``dimensions`` is how many numbers the caller counts on."""

    pooling: Pooling = "mean"
    dimensions: int | None = None

    def check(self, hidden_size: int) -> None:
        """Raises ParameterError where the model's vectors are of another length."""
        if self.dimensions not in (None, hidden_size):
            raise ParameterError(
                f"dimensions must be the model's {hidden_size}, not {self.dimensions}: embeddings cannot be truncated.",
                param="dimensions",
                hint="Remove it.",
            )
