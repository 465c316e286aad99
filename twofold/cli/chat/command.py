"""``twofold chat``: a conversation in the terminal."""

from __future__ import annotations

import sys
from collections.abc import Iterator
from contextlib import ExitStack, closing, contextmanager
from pathlib import Path
from typing import Annotated, Final

from cyclopts import Parameter

from twofold.cli.chat.base import ChatModel
from twofold.cli.chat.loop import Chat, Reader, StandardInputReader
from twofold.cli.chat.state import ChatSettings, Transcript
from twofold.cli.console import is_terminal, note, quiet_keys
from twofold.cli.options import DisplayOptions, ModelOptions, RemoteOptions, SamplingOptions
from twofold.core.errors import ParameterError, UsageError
from twofold.formats.fetch.names import DEFAULT_MODEL
from twofold.host.env import read_environment
from twofold.host.paths import state_folder

HISTORY_FILE: Final = "chat_history"


def chat(
    *,
    system: Annotated[str | None, Parameter(name=("--system", "-sys"))] = None,
    load: Path | None = None,
    history: bool = True,
    trace: Path | None = None,
    model: ModelOptions = ModelOptions(),  # noqa: B008 - frozen
    sampling: SamplingOptions = SamplingOptions(),  # noqa: B008 - frozen
    output: DisplayOptions = DisplayOptions(),  # noqa: B008 - frozen
    server: RemoteOptions = RemoteOptions(),  # noqa: B008 - frozen
) -> None:
    """Talk to a model. /help lists the commands.

    Parameters
    ----------
    system
        System message.
    load
        Continue a conversation that /save wrote to this file.
    history
        Keep typed messages between chats, in a file that only you can read.
    trace
        Write a trace of every step to this file; ui.perfetto.dev shows it.
    """
    sampling.params()
    settings, transcript = ChatSettings(sampling, output), Transcript(system)
    if load is not None:
        settings.restore(transcript.load(load))
        transcript.system = transcript.system if system is None else system
    with ExitStack() as stack:
        with quiet_keys():
            loaded = stack.enter_context(open_chat_model(model, server, trace))
        if transcript.system is not None and not loaded.has_template:
            raise UsageError(
                "The model has no chat template, which a system message needs.",
                hint="Remove --system, or choose a template with --chat-template.",
            )
        if output.verbose:
            note(loaded.loading())
        conversation = Chat(loaded, settings, transcript)
        reader = _reader(conversation, history)
        if is_terminal(sys.stdin):
            conversation.greet()
            if server.url is None and not output.quiet:
                from twofold.cli.loading import hint_at_better_models  # noqa: PLC0415 - imports the engine

                hint_at_better_models(model.model)
        else:
            conversation.mention_template()
        conversation.run(reader)


def _reader(chat: Chat, history: bool) -> Reader:
    environment = read_environment()
    terminal = is_terminal(sys.stdin) and (is_terminal(sys.stdout) or is_terminal(sys.stderr))
    if not terminal or environment.dumb_terminal:
        return StandardInputReader(prompts=terminal)
    from twofold.cli.chat.terminal import TerminalReader  # noqa: PLC0415 - start-up time

    path = state_folder(environment) / HISTORY_FILE if history else None
    return TerminalReader(path, chat.model.models, colour=not environment.no_color)


@contextmanager
def open_chat_model(
    model: ModelOptions, server: RemoteOptions, trace: Path | None = None, *, limits: bool = False
) -> Iterator[ChatModel]:
    """Loads a model, or connects to the server of ``server``. ``trace`` and ``limits`` are those of ``LocalModel``.

    Raises ParameterError for flags that do not apply.
    """
    server.check(model)
    if server.url is None:
        from twofold.cli.chat.local import LocalModel  # noqa: PLC0415 - imports the engine, after flags are checked

        with closing(LocalModel(model, trace, limits=limits)) as loaded:
            yield loaded
        return
    if trace is not None:
        raise ParameterError("--trace has no effect with --url.", param="trace", hint="The server runs the steps.")
    from twofold.cli.chat.remote import RemoteModel  # noqa: PLC0415

    yield RemoteModel(server, None if model.model == DEFAULT_MODEL else model.model)
