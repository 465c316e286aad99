"""The model of a command: one in this process, or one behind a server."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

from twofold.cli.chat.base import ChatModel
from twofold.cli.options import ModelOptions, RemoteOptions
from twofold.core.errors import ParameterError
from twofold.formats.fetch.names import DEFAULT_MODEL


@contextmanager
def opened(
    model: ModelOptions, server: RemoteOptions, trace: Path | None = None, *, limits: bool = False
) -> Iterator[ChatModel]:
    """Loads a model or finds a server. ``trace`` and ``limits`` are those of ``LocalModel``.

    Raises ParameterError for flags that only one of them knows.
    """
    server.check(model)
    if server.url is not None and trace is not None:
        raise ParameterError("--trace has no effect with --url.", param="trace", hint="The server runs the steps.")
    if server.url is None:
        from twofold.cli.chat.local import LocalModel  # noqa: PLC0415 - brings in the engine

        with LocalModel.opened(model, trace, limits=limits) as loaded:
            yield loaded
        return
    from twofold.cli.chat.remote import RemoteModel  # noqa: PLC0415

    yield RemoteModel(server, None if model.model == DEFAULT_MODEL else model.model)
