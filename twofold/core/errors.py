"""Every error that Twofold raises on purpose.

    TwofoldError                       exit 1, status 500
    ├── UsageError                     exit 2, status 400   the caller asked for something impossible
    │   ├── ParameterError                                  a value is out of range, or its name is unknown
    │   ├── ContextLengthError                              the prompt does not fit the context
    │   ├── TemplateError                                   a chat template rejected the messages
    │   │   └── TemplateLimitError                          it takes too much time or memory, or makes too much text
    │   ├── AccessError                status 401           the request has no key, or an unknown one
    │   │   └── ForbiddenError         status 403           the key, or the address of the request, may not do this
    │   ├── NotFoundError              status 404           nothing has that name
    │   │   └── MethodError            status 405           the path exists, but not with this HTTP method
    │   ├── ConflictError              status 409           the state of the named object forbids the request
    │   ├── TooLargeError              status 413           a body is longer than the server accepts
    │   ├── SlowClientError            status 408           a body did not arrive in time
    │   └── QuotaError                 status 429           the caller's quota is used up for now
    ├── ModelError                     exit 3, status 422   the model cannot be used
    │   ├── FormatError                                     the file is truncated, corrupt or hostile
    │   ├── UnsupportedModelError                           valid, but holds something Twofold does not implement
    │   └── ModelNotFoundError         status 404           no model of that name is known
    ├── ResourceError                  exit 4, status 503   memory, disk or another limit of this machine
    │   ├── BusyError                                       too many requests now; a later one can succeed
    │   └── WorkerError                                     the process that runs a model ended
    ├── TimeLimitError                 exit 4, status 504   a request took longer than it may
    └── NetworkError                   exit 5, status 502   a download failed or there is no network

An error says what happened, and ``hint`` what to do about it. The command line prints both and exits with
``exit_code``; the server answers with ``status``.
"""

from __future__ import annotations

import difflib
import re
from collections.abc import Iterable, Mapping
from itertools import islice
from typing import ClassVar, Final, Self

MAX_QUOTED: Final = 64
"""Maximum number of characters of a caller's text that an error repeats."""
MAX_COMPARED: Final = 4096
PLAIN_NAME: Final = re.compile(r"[\w./\[\]-]{1,64}", re.ASCII)
"""Names that are safe to repeat anywhere, logs included: those of fields and files, without blanks or quotes."""


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
    """A prompt does not fit into the model's context or the KV cache. Each API protocol says so in its own words, by
    which clients recognise it and shorten their conversation.

    text      what the caller sent: "prompt" or another text
    tokens    its tokens; 0 if they are not known. ``at_least``: it has these or more
    output    output tokens that are needed beside it
    limit     maximum tokens of both together
    """

    def __init__(
        self,
        message: str,
        *,
        hint: str | None = None,
        text: str = "prompt",
        tokens: int = 0,
        at_least: bool = False,
        output: int = 0,
        limit: int = 0,
    ) -> None:
        super().__init__(message, hint=hint)
        self.text, self.tokens, self.at_least, self.output, self.limit = text, tokens, at_least, output, limit

    @classmethod
    def of_cache(cls, tokens: int, needed: int, limit: int) -> Self:
        """A prompt of so many tokens that, with its completion, needs more of the KV cache than it holds."""
        return cls(
            f"The sequence may need {needed} tokens of KV cache, which holds {limit}.",
            hint="Lower max_tokens, shorten the prompt, or enlarge the KV cache.",
            tokens=tokens,
            output=needed - tokens,
            limit=limit,
        )


class TemplateError(UsageError):
    """A chat template is broken, refused the messages, or tried to leave its sandbox."""


class TemplateLimitError(TemplateError):
    """Rendering a chat template exceeded a limit on processor time, memory or the length of its text."""


class AccessError(UsageError):
    """The request has no key, or an unknown one."""

    status = 401


class ForbiddenError(AccessError):
    """The key, or the address that a request was sent from, may not do this."""

    status = 403


class NotFoundError(UsageError):
    """Nothing has that name."""

    status = 404


class MethodError(NotFoundError):
    """The path exists, but not with this HTTP method. ``allowed`` are its methods."""

    status = 405

    def __init__(self, message: str, *, allowed: tuple[str, ...], hint: str | None = None) -> None:
        super().__init__(message, hint=hint)
        self.allowed = allowed


class ConflictError(UsageError):
    """The state of the object that a request names forbids the request."""

    status = 409


class TooLargeError(UsageError):
    """A body is longer than the server accepts."""

    status = 413


class SlowClientError(UsageError):
    """A body did not arrive in time."""

    status = 408


class _RetryError(TwofoldError):
    """A retry after about ``retry_after_s`` seconds can succeed."""

    def __init__(self, message: str, *, retry_after_s: float, hint: str | None = None) -> None:
        super().__init__(message, hint=hint)
        self.retry_after_s = retry_after_s


class QuotaError(_RetryError, UsageError):
    """The caller's quota is used up; after ``retry_after_s`` seconds a part of it is free again."""

    status = 429


class ModelError(TwofoldError):
    """The model cannot be used."""

    exit_code = 3
    status = 422


class FormatError(ModelError):
    """A model file is truncated, corrupt or hostile."""


class UnsupportedModelError(ModelError):
    """A model file is valid, but holds something that Twofold does not implement."""


class ModelNotFoundError(ModelError):
    """No model of that name is known."""

    status = 404


class ResourceError(TwofoldError):
    """The machine lacks memory, disk space or a permission."""

    exit_code = 4
    status = 503


class BusyError(_RetryError, ResourceError):
    """The engine or the server is overloaded; a retry after about ``retry_after_s`` seconds can succeed."""


class WorkerError(ResourceError):
    """The process that runs a model ended while it had the request."""


class TimeLimitError(TwofoldError):
    """A request took longer than it may."""

    exit_code = 4
    status = 504


class NetworkError(TwofoldError):
    """A download failed, or there is no network."""

    exit_code = 5
    status = 502


def unreadable(path: object, error: OSError) -> TwofoldError:
    """The error for an unreadable file that the caller named: UsageError, or ResourceError if the disk failed."""
    caller = isinstance(error, FileNotFoundError | NotADirectoryError | IsADirectoryError | PermissionError)
    kind = UsageError if caller else ResourceError
    return kind(f"{path} cannot be read: {error.strerror or error}.", hint="Check the path and its permissions.")


def describe(value: object) -> str:
    """A wrong value for an error: a number as it is, of other values only type and length, since callers wrote them."""
    match value:
        case None | bool() | int() | float():
            return f"{value!r:.60}"
        case str():
            return f"a text of {len(value)} characters"
        case list() | tuple():
            return f"a list of {len(value)}"
        case _:
            return "an object" if isinstance(value, Mapping) else f"a {type(value).__name__}"


def quoted(text: str) -> str:
    """A name that a caller wrote, as an error quotes it: escaped, and at most MAX_QUOTED characters of it."""
    return repr(text) if len(text) <= MAX_QUOTED else f"{text[:MAX_QUOTED]!r}…"


def spelled(name: str) -> str:
    """The name of a field or path that a caller wrote: as it is if it is short and plain, else quoted."""
    return name if PLAIN_NAME.fullmatch(name) else quoted(name)


def describe_name(value: object) -> str:
    """A wrong name for an error, such as that of a choice: text is quoted, other values are described."""
    return quoted(value) if isinstance(value, str) else describe(value)


def closest_match(name: str, known: Iterable[str], *, cutoff: float = 0.6) -> str | None:
    """The known name closest to ``name``, or None where none has a similarity of ``cutoff`` (1: equal).

    The work is bounded for any input: names of more than MAX_QUOTED characters have no match, and only the first
    MAX_COMPARED known names are compared.
    """
    if len(name) > MAX_QUOTED:
        return None
    candidates = [other for other in islice(known, MAX_COMPARED) if len(other) <= 2 * MAX_QUOTED]
    matches = difflib.get_close_matches(name, candidates, n=1, cutoff=cutoff)
    return matches[0] if matches else None


def did_you_mean(name: str, known: Iterable[str]) -> str:
    """The hint for an unknown name: the closest of the known names, or all of them in their order."""
    names = tuple(known)
    close = closest_match(name, names)
    return f"Did you mean {close!r}?" if close else f"Known: {', '.join(names)}."
