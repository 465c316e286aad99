"""Defaults for sampling parameters that a request leaves out. ``serve``, ``run``, ``chat`` and ``batch`` share this
order of precedence:

    request → flags (``--temperature`` …) → the model file (``general.sampling.*``) → GENERATION_CONFIG → FALLBACK

vLLM reads the same keys of a generation config, whatever its ``do_sample`` is. A client (``run --url``, ``chat --url``)
sends only what its user gave: the defaults are the server's. ``SamplingParams`` themselves keep vLLM's defaults.
"""

from __future__ import annotations

import json
from collections.abc import Collection, Mapping
from dataclasses import dataclass, fields, replace
from pathlib import Path
from typing import Any, Final, Self

from twofold.core.errors import ParameterError
from twofold.core.params import SamplingParams

METADATA: Final = {
    "temperature": "general.sampling.temp",
    "top_p": "general.sampling.top_p",
    "top_k": "general.sampling.top_k",
    "min_p": "general.sampling.min_p",
    "repetition_penalty": "general.sampling.penalty_repeat",
}
"""Keys of GGUF files, by parameter: ``Keys.General.SAMPLING_*`` in llama.cpp's gguf-py/gguf/constants.py."""
NAMES: Final = tuple(METADATA)
GENERATION_CONFIG: Final = "generation_config.json"
"""Hugging Face's file of a model's defaults, beside the model file; its keys are NAMES."""
MAX_CONFIG_BYTES: Final = 65_536


@dataclass(frozen=True, slots=True, kw_only=True)
class SamplingDefaults:
    """Defaults of the parameters in NAMES and of ``max_tokens``, which no file has; None: the next source decides.

    Raises ParameterError for an impossible value.
    """

    temperature: float | None = None
    top_p: float | None = None
    top_k: int | None = None
    min_p: float | None = None
    repetition_penalty: float | None = None
    max_tokens: int | None = None

    def __post_init__(self) -> None:
        SamplingParams(**self.given())

    @classmethod
    def of_metadata(cls, metadata: Mapping[str, Any]) -> Self:
        """The defaults in a GGUF file's metadata; impossible values are ignored."""
        return cls._possible({name: metadata.get(key) for name, key in METADATA.items()})

    @classmethod
    def of_model(cls, path: Path, metadata: Mapping[str, Any]) -> Self:
        """The defaults in a model file's metadata, else in the generation config beside it, else FALLBACK."""
        return cls.of_metadata(metadata).over(cls._of_config(path.with_name(GENERATION_CONFIG))).over(FALLBACK)

    @classmethod
    def _of_config(cls, path: Path) -> Self:
        try:
            with path.open("rb") as file:
                found = json.loads(file.read(MAX_CONFIG_BYTES))
        except (OSError, ValueError, RecursionError):
            return cls()
        return cls._possible({name: found.get(name) for name in NAMES}) if isinstance(found, dict) else cls()

    @classmethod
    def _possible(cls, values: Mapping[str, Any]) -> Self:
        found = cls()
        for name, value in values.items():
            if value is not None:
                try:
                    found = replace(found, **{name: value})
                except ParameterError:
                    continue
        return found

    def given(self) -> dict[str, Any]:
        """Those that are not None, by name."""
        return {each.name: value for each in fields(self) if (value := getattr(self, each.name)) is not None}

    def over(self, other: SamplingDefaults) -> Self:
        """These defaults, and where they are None those of ``other``."""
        return replace(self, **{**other.given(), **self.given()})

    def fill(self, params: SamplingParams, asked: Collection[str]) -> SamplingParams:
        """``params`` with these defaults for all names but ``asked``, which the request has set itself, and at least
        its ``min_tokens``."""
        missing = {name: value for name, value in self.given().items() if name not in asked}
        if "max_tokens" in missing:
            missing["max_tokens"] = max(missing["max_tokens"], params.min_tokens)
        return replace(params, **missing) if missing else params

    def __str__(self) -> str:
        """temperature 0.2, top_p 0.9"""
        return ", ".join(
            f"{name} {value:g}" if isinstance(value, float) else f"{name} {value:,}"
            for name, value in self.given().items()
        )


NONE: Final = SamplingDefaults()
FALLBACK: Final = SamplingDefaults(temperature=0.2, top_p=0.9)
"""For models without defaults of their own: small models write nonsense at OpenAI's default, temperature 1."""
