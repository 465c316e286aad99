"""The architectures, as data. A new one is a row of this table, unless it computes something new.

Conventions of GGUF files that the table relies on: weights of Gemma's norms already hold their +1; the rows of Llama's
Q and K are permuted so that rotated pairs are adjacent; Phi-3 stores Q, K, V in one tensor and gate, up in another.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Final, Literal

from twofold.core.errors import FormatError, UnsupportedModelError, nearest
from twofold.core.model import Activation, RopePairs

Presence = Literal["never", "optional", "always"]
Windows = Literal["none", "all", "pattern"]
"""Which layers see only a sliding window: none, all (where the metadata gives one), or a pattern of them."""


@dataclass(frozen=True, slots=True)
class Architecture:
    """What an architecture computes. ``window_period``: layers i with (i + 1) % period = 0 see everything.

    ``local_rope_base`` is the rope base of windowed layers where they have one of their own. Models whose number of
    layers is in ``hidden_scale_layers`` scale q·k by (hidden / heads)^-½ in place of head_dim^-½.
    """

    name: str
    rope_pairs: RopePairs = "halves"
    activation: Activation = "silu"
    qkv_bias: Presence = "never"
    qk_norm: bool = False
    post_norms: bool = False
    fused: bool = False
    scaled_embedding: bool = False
    windows: Windows = "none"
    window_period: int = 1
    default_window: int | None = None
    local_rope_base: float | None = None
    attention_softcap: float | None = None
    final_softcap: float | None = None
    hidden_scale_layers: frozenset[int] = frozenset()


ARCHITECTURES: Final[tuple[Architecture, ...]] = (
    Architecture("llama", rope_pairs="adjacent", qkv_bias="optional", windows="all"),
    Architecture("mistral", rope_pairs="adjacent", windows="all"),
    Architecture("qwen2", qkv_bias="always"),
    Architecture("qwen3", qk_norm=True),
    Architecture("phi3", fused=True, windows="all"),
    Architecture(
        "gemma2",
        activation="gelu_tanh",
        post_norms=True,
        scaled_embedding=True,
        windows="pattern",
        window_period=2,
        default_window=4096,
        attention_softcap=50.0,
        final_softcap=30.0,
        hidden_scale_layers=frozenset({46}),
    ),
    Architecture(
        "gemma3",
        activation="gelu_tanh",
        qk_norm=True,
        post_norms=True,
        scaled_embedding=True,
        windows="pattern",
        window_period=6,
        local_rope_base=10_000.0,
        hidden_scale_layers=frozenset({62}),
    ),
)

BY_NAME: Final[Mapping[str, Architecture]] = {a.name: a for a in ARCHITECTURES}


def find_architecture(metadata: Mapping[str, object]) -> Architecture:
    """The architecture that ``general.architecture`` names."""
    kind = metadata.get("general.type", "model")
    if kind != "model":
        raise UnsupportedModelError(
            f"The file holds a {kind!r}, not a model.", hint="Name the model's own GGUF file instead."
        )
    name = metadata.get("general.architecture")
    if not isinstance(name, str):
        raise FormatError(
            "The model's metadata lacks 'general.architecture'.",
            hint="The file is incomplete: convert or download it again.",
        )
    if name not in BY_NAME:
        close = nearest(name, BY_NAME)
        known = ", ".join(BY_NAME)
        raise UnsupportedModelError(
            f"Twofold does not support the architecture {name!r}.",
            hint=(f"The nearest known one is {close!r}. " if close else "") + f"Known: {known}.",
        )
    return BY_NAME[name]
