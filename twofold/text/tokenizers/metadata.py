"""The ``tokenizer.*`` keys of a GGUF file, read with type and range into one frozen description.

Keys and token types: https://github.com/ggml-org/ggml/blob/master/docs/gguf.md. Every key is either used, known not
to affect the ids of a text, or an error: a tokenizer that is almost right is worse than none.
"""

from __future__ import annotations

import logging
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from enum import IntEnum
from typing import Any, Final

import numpy as np
from numpy.typing import NDArray

from twofold.core.errors import FormatError, UnsupportedModelError
from twofold.core.tensors import ModelSource, SourceKind
from twofold.text.tokenizers.special import names

PREFIX = "tokenizer.ggml."
CHAT_TEMPLATE: Final = "tokenizer.chat_template"
NO_TOKEN: Final = (-1, 2**32 - 1)
"""Ids that mean that there is no such token."""
log = logging.getLogger(__name__)
MAX_TOKENS = 4_000_000

_USED = names(
    "model pre tokens scores token_type merges bos_token_id eos_token_id eot_token_id eom_token_id unknown_token_id "
    "padding_token_id add_bos_token add_eos_token add_space_prefix prefix_token_id suffix_token_id middle_token_id "
    "fim_pre_token_id fim_suf_token_id fim_mid_token_id"
)
_HARMLESS = names(
    "token_type_count seperator_token_id separator_token_id cls_token_id mask_token_id fim_pad_token_id "
    "fim_rep_token_id fim_sep_token_id added_tokens"
)
"""Keys of tokens for other uses (classification), or repetitions of ``token_type``."""

_OFF = names(
    "add_sep_token remove_extra_whitespaces precompiled_charsmap normalizer.lowercase normalizer.strip_accents "
    "suppress_tokens"
)
"""Keys that are not implemented: accepted only if false or empty."""


class TokenType(IntEnum):
    """Kinds of tokens. Merges produce only the first kind."""

    NORMAL = 1
    UNKNOWN = 2
    CONTROL = 3
    USER_DEFINED = 4
    UNUSED = 5
    BYTE = 6


@dataclass(frozen=True, slots=True)
class Vocabulary:
    """A tokenizer as its file describes it.

    texts   one for each id, as stored: byte-level text (``gpt2``) or text with ``▁`` for a space (``llama``)
    types   uint8 [vocab]: values of ``TokenType``
    scores  float32 [vocab], only for ``llama``: the higher, the earlier two pieces merge into this one
    merges  ``left right`` pairs, best first, only for ``gpt2``

    Texts may be equal; a text is then encoded as the last of their ids, as llama.cpp does. ``named_templates`` are chat
    templates for a purpose, such as ``tool_use``.
    """

    model: str
    pre: str
    architecture: str
    texts: tuple[str, ...]
    types: NDArray[np.uint8]
    scores: NDArray[np.float32] | None
    merges: tuple[str, ...]
    bos_id: int | None
    eos_id: int | None
    eot_id: int | None
    eom_id: int | None
    unknown_id: int | None
    padding_id: int | None
    add_bos: bool | None
    add_eos: bool | None
    add_space_prefix: bool | None
    chat_template: str | None
    named_templates: Mapping[str, str] = field(default_factory=dict)
    infill_ids: Mapping[str, int | None] = field(default_factory=dict)

    def ids_of(self, *kinds: TokenType) -> list[int]:
        """Ids whose type is one of ``kinds``, ascending."""
        found: list[int] = np.flatnonzero(np.isin(self.types, [int(kind) for kind in kinds])).tolist()
        return found


def read_vocabulary(source: ModelSource) -> Vocabulary:
    """The vocabulary that a model file describes.

    Raises errors of the reader; UnsupportedModelError if this kind of source has no reader.
    """
    if source.kind not in READERS:
        raise UnsupportedModelError(
            f"Twofold does not read tokenizers of the kind {source.kind!r}.", hint=f"Known: {', '.join(READERS)}."
        )
    return READERS[source.kind](source.values)


def read_gguf_vocabulary(metadata: Mapping[str, object]) -> Vocabulary:
    """Checks and gathers the tokenizer keys of GGUF metadata.

    Raises FormatError, naming the key, for a missing or impossible value; UnsupportedModelError for a key that would
    change the ids and is not implemented.
    """
    _refuse_unknown_keys(metadata)
    model = _string(metadata, PREFIX + "model")
    if model is None:
        raise _bad(PREFIX + "model", "is missing", hint="The file holds no tokenizer; use one that does.")
    texts = _texts(metadata)
    if (warning := pre_warning(metadata)) is not None:
        log.warning("%s", warning)
    kinds = ("bos", "eos", "eot", "eom", "unknown", "padding")
    return Vocabulary(
        model=model,
        pre=_string(metadata, PREFIX + "pre") or "default",
        architecture=_string(metadata, "general.architecture") or "",
        texts=texts,
        types=_types(metadata, len(texts)),
        scores=_scores(metadata, len(texts)) if model == "llama" else None,
        merges=_strings(metadata, PREFIX + "merges") if model == "gpt2" else (),
        **{f"{name}_id": _token_id(metadata, name, len(texts)) for name in kinds},
        add_bos=_flag(metadata, PREFIX + "add_bos_token"),
        add_eos=_flag(metadata, PREFIX + "add_eos_token"),
        add_space_prefix=_flag(metadata, PREFIX + "add_space_prefix"),
        chat_template=_string(metadata, CHAT_TEMPLATE),
        named_templates={
            key.removeprefix(f"{CHAT_TEMPLATE}."): _string(metadata, key) or ""
            for key in metadata
            if key.startswith(f"{CHAT_TEMPLATE}.")
        },
        infill_ids={part: _infill_id(metadata, part, len(texts)) for part in ("prefix", "suffix", "middle")},
    )


def pre_warning(metadata: Mapping[str, object]) -> str | None:
    """A warning for a byte-level tokenizer whose file does not say how text is split into words; else None."""
    if PREFIX + "pre" in metadata or _string(metadata, PREFIX + "model") != "gpt2":
        return None
    return (
        f"The file does not name its pre-tokenizer ({PREFIX}pre): text is split by llama.cpp's default rule, so "
        "numbers, spaces and marks may become other tokens than in training. A newer conversion has the name."
    )


READERS: Final[Mapping[SourceKind, Callable[[Mapping[str, object]], Vocabulary]]] = {"gguf": read_gguf_vocabulary}


def _infill_id(metadata: Mapping[str, object], part: str, count: int) -> int | None:
    """The token that marks a part of an infilling prompt, under its newer key or its older one. An impossible id counts
    as missing, because only infilling needs it."""
    for name in (f"fim_{part[:3]}", part):
        value = metadata.get(f"{PREFIX}{name}_token_id")
        if isinstance(value, int | np.integer) and 0 <= value < count:
            return int(value)
    return None


def _refuse_unknown_keys(metadata: Mapping[str, object]) -> None:
    for key in metadata:
        if not key.startswith(PREFIX):
            continue
        name = key.removeprefix(PREFIX)
        if name in _USED or name in _HARMLESS or (name in _OFF and _is_off(metadata[key])):
            continue
        raise UnsupportedModelError(
            f"The tokenizer uses {key!r}, which Twofold does not support.",
            hint="Another conversion of the same model may not need it.",
        )


def _is_off(value: object) -> bool:
    return len(value) == 0 if isinstance(value, (list, tuple, str, np.ndarray)) else not value


def _texts(metadata: Mapping[str, object]) -> tuple[str, ...]:
    key = PREFIX + "tokens"
    texts = _strings(metadata, key)
    if not texts:
        raise _bad(key, "is empty")
    if len(texts) > MAX_TOKENS:
        raise _bad(key, f"has {len(texts)} entries; at most {MAX_TOKENS} are allowed")
    return texts if all(texts) else tuple(text or f"[EMPTY_{index}]" for index, text in enumerate(texts))


def _types(metadata: Mapping[str, object], count: int) -> NDArray[np.uint8]:
    key = PREFIX + "token_type"
    if key not in metadata:
        return np.full(count, int(TokenType.NORMAL), np.uint8)
    values = _numbers(metadata, key, count)
    if values.dtype.kind not in "iu" or values.min() < 0 or values.max() > max(TokenType):
        raise _bad(key, "holds values that are not token types")
    types: NDArray[np.uint8] = np.maximum(values, TokenType.NORMAL).astype(np.uint8)
    return types


def _scores(metadata: Mapping[str, object], count: int) -> NDArray[np.float32]:
    key = PREFIX + "scores"
    values = _numbers(metadata, key, count)
    if values.dtype.kind not in "fiu" or not np.isfinite(values).all():
        raise _bad(key, "holds values that are not numbers")
    return values.astype(np.float32)


def _numbers(metadata: Mapping[str, object], key: str, count: int) -> NDArray[Any]:
    value = metadata.get(key)
    if not isinstance(value, (list, tuple, np.ndarray)):
        raise _bad(key, "is missing" if value is None else "is not an array")
    if len(value) != count:
        raise _bad(key, f"has {len(value)} entries for {count} tokens")
    try:
        values = np.asarray(value)
    except ValueError as error:
        raise _bad(key, "is not an array of numbers") from error
    if values.ndim != 1:
        raise _bad(key, "is not an array of numbers")
    return values


def _strings(metadata: Mapping[str, object], key: str) -> tuple[str, ...]:
    value = metadata.get(key)
    if not isinstance(value, (list, tuple)):
        raise _bad(key, "is missing" if value is None else "is not an array of strings")
    if set(map(type, value)) - {str}:
        value = [_decoded(item, key) for item in value]
    return tuple(value)


def _string(metadata: Mapping[str, object], key: str) -> str | None:
    return _decoded(metadata[key], key) if key in metadata else None


def _decoded(value: object, key: str) -> str:
    if isinstance(value, str):
        return value
    if not isinstance(value, bytes):
        raise _bad(key, f"holds a value of type {type(value).__name__} where a string belongs")
    try:
        return value.decode()
    except UnicodeDecodeError as error:
        raise _bad(key, "is not valid UTF-8") from error


def _token_id(metadata: Mapping[str, object], name: str, count: int) -> int | None:
    key = f"{PREFIX}{name}_token_id"
    value = metadata.get(key)
    if value is None:
        return None
    if isinstance(value, bool) or not isinstance(value, (int, np.integer)):
        raise _bad(key, "is not an integer")
    if value in NO_TOKEN:
        return None
    if not 0 <= value < count:
        raise _bad(key, f"is {value}, but there are {count} tokens")
    return int(value)


def _flag(metadata: Mapping[str, object], key: str) -> bool | None:
    value = metadata.get(key)
    if value is None:
        return None
    if not isinstance(value, (bool, np.bool_)):
        raise _bad(key, "is not a boolean")
    return bool(value)


def _bad(key: str, fault: str, *, hint: str = "The file is corrupt, or was made by a faulty converter.") -> FormatError:
    return FormatError(f"The tokenizer metadata {key!r} {fault}.", hint=hint)
