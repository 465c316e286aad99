"""Every error that Twofold raises on purpose.

    TwofoldError                       exit 1, status 500
    ├── UsageError                     exit 2, status 400   the caller asked for something impossible
    │   ├── ParameterError                                  a value is out of range, or its name is unknown
    │   ├── ContextLengthError                              the prompt does not fit the context
    │   └── TemplateError                                   a chat template rejected the messages
    ├── ModelError                     exit 3, status 422   the model cannot be used
    │   ├── FormatError                                     the file is truncated, corrupt or hostile
    │   ├── UnsupportedModelError                           valid, but holds something Twofold does not implement
    │   └── ModelNotFoundError         status 404           nothing is known under that name
    ├── ResourceError                  exit 4, status 503   memory, disk or another limit of this machine
    └── NetworkError                   exit 5, status 502   a download failed or there is no network

An error carries what happened, and in ``hint`` the way out. The command line prints both and exits with
``exit_code``; the server answers with ``status``.
"""

from __future__ import annotations

import difflib
from collections.abc import Iterable
from typing import ClassVar


class TwofoldError(Exception):
    """Base of the tree. ``str(error)`` is one clear sentence; ``hint`` says what to do about it."""

    exit_code: ClassVar[int] = 1
    status: ClassVar[int] = 500

    def __init__(self, message: str, *, hint: str | None = None) -> None:
        super().__init__(message)
        self.hint = hint


class UsageError(TwofoldError):
    """The caller asked for something impossible."""

    exit_code = 2
    status = 400


class ParameterError(UsageError):
    """A parameter has an impossible value or an unknown name. ``param`` is its name."""

    def __init__(self, message: str, *, param: str, hint: str | None = None) -> None:
        super().__init__(message, hint=hint)
        self.param = param


class ContextLengthError(UsageError):
    """A prompt does not fit into the model's context or the KV cache."""


class TemplateError(UsageError):
    """A chat template is broken, refused the messages, or tried to leave its sandbox."""


class ModelError(TwofoldError):
    """The model cannot be used."""

    exit_code = 3
    status = 422


class FormatError(ModelError):
    """A model file is truncated, corrupt or hostile."""


class UnsupportedModelError(ModelError):
    """A model file is valid, but holds something that Twofold does not implement."""


class ModelNotFoundError(ModelError):
    """Nothing is known under that model name."""

    status = 404


class ResourceError(TwofoldError):
    """The machine has not enough memory, disk or permission."""

    exit_code = 4
    status = 503


class NetworkError(TwofoldError):
    """A download failed, or there is no network."""

    exit_code = 5
    status = 502


def nearest(name: str, known: Iterable[str]) -> str | None:
    """The known name closest to ``name``, or None where none is close."""
    matches = difflib.get_close_matches(name, list(known), n=1, cutoff=0.6)
    return matches[0] if matches else None
