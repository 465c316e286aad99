"""Well-known models by name, from their published configurations."""

from __future__ import annotations

from collections.abc import Mapping
from functools import lru_cache

from twofold.core.errors import ModelNotFoundError, nearest
from twofold.core.model import ModelSpec
from twofold.planner.shapes.dense import dense_models
from twofold.planner.shapes.sparse import sparse_models

OTHER_NAMES: Mapping[str, str] = {
    "meta-llama-3-8b": "llama-3-8b",
    "meta-llama-3-70b": "llama-3-70b",
    "meta-llama-3.1-8b": "llama-3.1-8b",
    "meta-llama-3.1-70b": "llama-3.1-70b",
    "meta-llama-3.1-405b": "llama-3.1-405b",
    "llama-3.3-70b": "llama-3.1-70b",
    "llama-2-7b-hf": "llama-2-7b",
    "llama-2-13b-hf": "llama-2-13b",
    "llama-2-70b-hf": "llama-2-70b",
    "mistral-7b-v0.1": "mistral-7b",
    "mistral-7b-v0.3": "mistral-7b-v3",
    "mistral-small-24b-2501": "mistral-small-24b",
    "mixtral-8x7b-v0.1": "mixtral-8x7b",
    "mixtral-8x22b-v0.1": "mixtral-8x22b",
    "deepseek-r1": "deepseek-v3",
    "deepseek-v3-0324": "deepseek-v3",
    "phi-3-mini-4k": "phi-3-mini",
    "phi-3-mini-128k": "phi-3-mini",
    "kimi-k2.5": "kimi-k2",
}
"""Names in use for models of the same sizes."""

SUFFIXES = ("-instruct", "-chat", "-it", "-base", "-pt", "-thinking", "-2507")
"""Endings of names that change a model's training and not its sizes."""


@lru_cache(maxsize=1)
def known_shapes() -> Mapping[str, ModelSpec]:
    """All models of the table, by name."""
    return {shape.name: shape for shape in (*dense_models(), *sparse_models())}


def find_shape(name: str) -> ModelSpec:
    """The model of that name: ``llama-3-70b``, ``meta-llama/Llama-3.1-8B-Instruct``.

    Case, the organisation before a slash, and endings such as ``-instruct`` do not matter.
    Raises ModelNotFoundError with the nearest names.
    """
    shapes = known_shapes()
    plain = name.strip().lower().replace("_", "-").rsplit("/", 1)[-1]
    while True:
        plain = OTHER_NAMES.get(plain, plain)
        if plain in shapes:
            return shapes[plain]
        ending = next((suffix for suffix in SUFFIXES if plain.endswith(suffix)), None)
        if ending is None:
            break
        plain = plain.removesuffix(ending)
    close = nearest(plain, (*shapes, *OTHER_NAMES))
    raise ModelNotFoundError(
        f"No model {name!r:.80} is in the table of known models.",
        hint=(f"The nearest is {close!r}. " if close else "")
        + "Name a GGUF file, a config.json or its folder for any other model.",
    )
