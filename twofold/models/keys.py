"""Typed reads from GGUF metadata that remember what was read, so that no key is silently ignored."""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from typing import Final

import numpy as np

from twofold.core.errors import FormatError, UnsupportedModelError

LARGEST: Final = 2**31 - 1

HARMLESS: Final[frozenset[str]] = frozenset(
    {
        "attention.layer_norm_epsilon",
        "rope.scaling.finetuned",
        "tensor_data_layout",
        "vocab_size",
    }
)
"""Keys that say nothing about the result: other keys or the tensors' shapes already do."""

NEUTRAL: Final[Mapping[str, object]] = {
    "attention.causal": True,
    "attention.clamp_kqv": 0.0,
    "attention.max_alibi_bias": 0.0,
    "expert_count": 0,
    "expert_used_count": 0,
    "pooling_type": 0,
    "rope.scaling.yarn_log_multiplier": 0.0,
    "use_parallel_residual": False,
}
"""Keys that Twofold does not implement, and the value with which they change nothing."""


class Keys:
    """The metadata under ``<architecture>.``. A key of the wrong type or out of range is a FormatError naming it."""

    def __init__(self, metadata: Mapping[str, object], prefix: str) -> None:
        self._metadata = metadata
        self._prefix = prefix + "."
        self._read: set[str] = set()

    def __contains__(self, key: str) -> bool:
        return self._prefix + key in self._metadata

    def integer(self, key: str, default: int | None = None, *, least: int = 1, most: int = LARGEST) -> int:
        """A whole number in least … most. A list of equal numbers, one for each layer, counts as that number."""
        value = self._get(key, default)
        if isinstance(value, bool) or not isinstance(value, int | np.integer):
            raise self._wrong(key, value, "a whole number")
        if not least <= value <= most:
            raise self._wrong(key, value, f"between {least} and {most}")
        return int(value)

    def number(self, key: str, default: float | None = None, *, least: float = 0.0) -> float:
        """A finite number of at least ``least``."""
        value = self._get(key, default)
        if isinstance(value, bool) or not isinstance(value, int | float | np.integer | np.floating):
            raise self._wrong(key, value, "a number")
        if not math.isfinite(value) or value < least:
            raise self._wrong(key, value, f"finite and at least {least}")
        return float(value)

    def positive(self, key: str, default: float | None = None) -> float:
        """A finite number above zero."""
        value = self.number(key, default)
        if value == 0:
            raise self._wrong(key, value, "above zero")
        return value

    def text(self, key: str, default: str) -> str:
        value = self._get(key, default)
        if not isinstance(value, str):
            raise self._wrong(key, value, "text")
        return value

    def pattern(self, key: str, layers: int) -> int | tuple[bool, ...] | None:
        """A period, one flag for each layer, or None where the key is absent."""
        if key not in self:
            return None
        value = self._metadata[self._prefix + key]
        if not _is_list(value):
            return self.integer(key)
        self._read.add(key)
        flags = _items(value)
        if len(flags) != layers or not all(isinstance(flag, bool | np.bool_) for flag in flags):
            raise self._wrong(key, value, f"a list of {layers} flags")
        return tuple(bool(flag) for flag in flags)

    def refuse_unread(self) -> None:
        """Raises UnsupportedModelError for the first key that was not read and could change the result."""
        for full in self._metadata:
            key = full.removeprefix(self._prefix)
            if key == full or key in self._read or key in HARMLESS:
                continue
            value = self._metadata[full]
            if _is_neutral(key, value):
                continue
            raise UnsupportedModelError(
                f"The model's metadata {full!r} = {_shown(value)} would change the result, and Twofold does not "
                "implement it.",
                hint="Use another model, or ask for this feature with the key's name.",
            )

    def _get(self, key: str, default: object) -> object:
        self._read.add(key)
        if key not in self:
            if default is None:
                raise FormatError(
                    f"The model's metadata lacks {self._prefix + key!r}.",
                    hint="The file is incomplete: convert or download it again.",
                )
            return default
        value = self._metadata[self._prefix + key]
        return self._common(key, _items(value)) if _is_list(value) else value

    def _common(self, key: str, items: Sequence[object]) -> object:
        if not items:
            raise self._wrong(key, [], "not empty")
        if any(item != items[0] for item in items):
            raise UnsupportedModelError(
                f"The model's metadata {self._prefix + key!r} differs from layer to layer ({_shown(items)}).",
                hint="Twofold runs models whose layers have equal sizes.",
            )
        return items[0]

    def _wrong(self, key: str, value: object, wanted: str) -> FormatError:
        return FormatError(
            f"The model's metadata {self._prefix + key!r} is {_shown(value)}, but must be {wanted}.",
            hint="The file is damaged or was made by a faulty converter.",
        )


def _is_list(value: object) -> bool:
    return isinstance(value, list | tuple | np.ndarray)


def _items(value: object) -> Sequence[object]:
    return value.tolist() if isinstance(value, np.ndarray) else value  # type: ignore[return-value]


def _is_neutral(key: str, value: object) -> bool:
    return key in NEUTRAL and bool(NEUTRAL[key] == value)


def _shown(value: object) -> str:
    text = repr(value)
    return text if len(text) <= 80 else text[:77] + "..."
