"""The ``twofold`` command: parses arguments, runs the subcommand, and prints errors. Exit codes:

0 success · 1 internal error · 2 invalid request · 3 model · 4 this machine's resources · 5 network · 130 Ctrl-C ·
141 the output was closed · 143 SIGTERM. ``TWOFOLD_DEBUG=1`` adds the traceback of an error.
"""

from __future__ import annotations

import errno
import os
import re
import signal
import sys
from collections.abc import Collection, Mapping, Sequence
from types import FrameType
from typing import TYPE_CHECKING, Final, Literal

from twofold.cli.console import INTERRUPTED, print_error, write_out
from twofold.core.errors import ParameterError, TwofoldError, closest_match
from twofold.host.env import FLAG_PREFIX, forget_secrets, read_environment
from twofold.host.signals import handled

if TYPE_CHECKING:
    from cyclopts import App, ArgumentCollection, CycloptsError

INTERNAL: Final = 1
USAGE: Final = 2
RESOURCES: Final = 4
BROKEN_PIPE: Final = 141

CLOSE: Final = 0.8
"""Least similarity of an unknown option to the one that is suggested: one or two letters differ."""

KEYWORD: Final = re.compile(r"(?<![\w./\"'=-])[a-z]+(?:_[a-z]+)+(?![\w/\"'=:-]|\.\w)")
"""A word that may be a keyword: not a part of a path, of quoted text or of an assignment."""

FULL: Final = frozenset({errno.ENOSPC, errno.EDQUOT, errno.EFBIG, errno.EIO})
"""Why an output cannot be written."""

NUMBERS: Final = {int: "a whole number", float: "a number"}

STANDARD_INPUT: Final = "\0-"
"""Replaces a "-" among the words of a prompt, since cyclopts would take it for an unknown option."""

BENCHES: Final = {
    "serve": ("twofold.cli.bench.serve:serve", "Benchmark a server with an OpenAI or Anthropic API."),
    "run": ("twofold.cli.bench.serve:run", "Start a Twofold server with a model and benchmark it."),
    "engine": ("twofold.cli.bench.engine:engine", "Benchmark the engine by phase, without HTTP."),
    "compare": ("twofold.cli.bench.compare:compare", "Compare two results and separate differences from noise."),
    "view": ("twofold.cli.bench.compare:view", "Look at results in a browser."),
    "report": ("twofold.cli.bench.compare:report", "Show a saved result, or convert it to HTML or CSV."),
}

COMMANDS: Final = {
    "run": ("twofold.cli.run:run", "Run one prompt."),
    "chat": ("twofold.cli.chat.command:chat", "Chat with a model in the terminal."),
    "serve": ("twofold.cli.serve:serve", "Serve models over HTTP with OpenAI-, Anthropic- and Ollama-compatible APIs."),
    "node": ("twofold.cli.fleet:node", "Run replicas of a model for servers on other machines."),
    "fleet": ("twofold.cli.fleet:app", "Replicas of a running server's models, and certificates of a fleet."),
    "ps": ("twofold.cli.remote:ps", "List the models of a running server: loaded or not, in use or idle."),
    "load": ("twofold.cli.remote:load", "Load a model of a running server."),
    "unload": ("twofold.cli.remote:unload", "Unload a model of a running server; running requests finish first."),
    "stop": ("twofold.cli.remote:stop", "Stop a model of a running server, or the server itself with --server."),
    "keys": ("twofold.cli.keys:keys", "Create, list and remove API keys."),
    "explain": ("twofold.cli.explain:explain", "Explain where a request's time goes and what would reduce it."),
    "price": ("twofold.cli.price:price", "Price a workload on an API and on your own hardware."),
    "lifetime": ("twofold.cli.price:lifetime", "Find the model size with the lowest training plus serving cost."),
    "crossover": (
        "twofold.cli.price:crossover",
        "Find the context length at which the KV cache outweighs the weights.",
    ),
    "plan": (
        "twofold.cli.plan:app",
        "Find configurations that meet objectives, cheapest first; plan fit: what fits in memory.",
    ),
    "simulate": ("twofold.cli.simulate:simulate", "Simulate traffic through the scheduler on a virtual clock."),
    "batch": ("twofold.cli.batch:batch", "Run a file of requests as a batch."),
    "pull": ("twofold.cli.models:pull", "Download a model."),
    "ls": ("twofold.cli.models:ls", "List downloaded models."),
    "show": ("twofold.cli.models:show", "Show a model's architecture, formats and sizes, and what fits in memory."),
    "rm": ("twofold.cli.models:rm", "Delete a downloaded model."),
    "kv": ("twofold.cli.kv:app", "List, verify and remove KV stores on disk (--kv-store)."),
    "doctor": ("twofold.cli.doctor:doctor", "Measure this machine and report problems."),
    "kernels": ("twofold.cli.doctor:kernels", "Show a kernel's compiled code."),
    "completion": ("twofold.cli.main:completion", "Print a completion script for bash, zsh or fish."),
}


GROUPS: Final[Mapping[str, Collection[str]]] = {"bench": BENCHES, "plan": ("fit",), "kv": ("ls", "verify", "rm")}
"""Commands with subcommands, and the names of the subcommands."""


def app() -> App:
    """The command line. The module of a command is imported when the command is used."""
    from cyclopts import App  # noqa: PLC0415 - start-up time

    root = App(
        name="twofold",
        help="CPU LLM inference engine and server that measures prefill and decode separately.",
        version=_version,
        config=_flags_from_environment,
        result_action="return_value",
        exit_on_error=False,
        print_error=False,
    )
    for name, (target, help_text) in COMMANDS.items():
        root.command(target, name=name, help=help_text)
    bench = App(name="bench", help="Benchmark any server, or the engine, with prefill and decode measured separately.")
    for name, (target, help_text) in BENCHES.items():
        bench.command(target, name=name, help=help_text)
    root.command(bench)
    return root


def completion(shell: Literal["bash", "zsh", "fish"], /) -> None:
    """Print a completion script for a shell.

    bash: twofold completion bash > ~/.local/share/bash-completion/completions/twofold

    zsh: twofold completion zsh > a file named _twofold in a folder of $fpath

    fish: twofold completion fish > ~/.config/fish/completions/twofold.fish

    Parameters
    ----------
    shell
        bash, zsh or fish.
    """
    write_out(app().generate_completion(shell=shell).rstrip("\n") + "\n")


def main(arguments: Sequence[str] | None = None) -> int:
    """Runs a command line. Returns the exit code."""
    for stream in (sys.stdout, sys.stderr):
        if stream is not None and hasattr(stream, "reconfigure"):
            stream.reconfigure(errors="replace")  # for terminals that cannot show a character
    try:
        with handled(_terminate, signal.SIGTERM):
            return _run(sys.argv[1:] if arguments is None else arguments)
    except TwofoldError as error:
        print_error(_with_flags(str(error), error), error.hint and _with_flags(error.hint))
        _traceback()
        return error.exit_code
    except KeyboardInterrupt:
        print(file=sys.stderr)
        return INTERRUPTED
    except BrokenPipeError:
        _forget_output()
        return BROKEN_PIPE
    except MemoryError:
        print_error("Out of memory.", "Use a smaller model or a lower --max-model-len.")
        return RESOURCES
    except Exception as error:
        return _unexpected(error)


def _unexpected(error: Exception) -> int:
    """Prints an error that no command foresees. Returns the exit code."""
    if isinstance(error, OSError) and error.errno in FULL and error.filename is None:
        print_error(f"The output cannot be written: {error.strerror}.", "Free space, or write elsewhere.")
        _forget_output()
        return RESOURCES
    print_error(f"Internal error: {type(error).__name__}: {error}", "Set TWOFOLD_DEBUG=1 to see where, and report it.")
    _traceback()
    return INTERNAL


def _run(arguments: Sequence[str]) -> int:
    from cyclopts import CycloptsError  # noqa: PLC0415

    if arguments[:1] == ["run"]:
        arguments = [STANDARD_INPUT if argument == "-" else argument for argument in arguments]
    try:
        result = app()(arguments)
    except CycloptsError as error:
        error.verbose = False
        print_error(*_usage_error(error, arguments))
        return USAGE
    sys.stdout.flush()
    return result if isinstance(result, int) else 0  # most commands either succeed or raise an error


def _usage_error(error: CycloptsError, arguments: Sequence[str]) -> tuple[str, str]:
    """The sentence and the hint for what cannot be parsed. Cyclopts suggests names that only resemble an unknown one:
    here only close ones are, and flags of other engines say what to do instead."""
    from cyclopts.exceptions import UnknownOptionError  # noqa: PLC0415

    from twofold.cli.foreign_flags import RUNNING, foreign_flag  # noqa: PLC0415

    see = f"See: twofold{_command(arguments)} --help"
    unknown, names = None, []
    if isinstance(error, UnknownOptionError) and error.token.source == "cli":
        unknown = (error.token.keyword or error.token.value).partition("=")[0]
        names = [name for argument in error.argument_collection if argument.parse for name in argument.names]
    if arguments[0] in RUNNING and (known := foreign_flag(unknown, arguments)) is not None:
        return f"There is no option {known[0]}.", known[1]
    if unknown is None:
        return _sentence(error) or str(error), see
    close = closest_match(unknown, names, cutoff=CLOSE)
    return f"There is no option {unknown}.", f"Did you mean {close}? {see}" if close else see


def _sentence(error: CycloptsError) -> str | None:
    """A plainer sentence than cyclopts' for what is missing, left over or not a number; None for other errors."""
    from cyclopts import exceptions  # noqa: PLC0415

    match error:
        case exceptions.MissingArgumentError(keyword=str(flag)):
            return f"{flag} needs a value."
        case exceptions.MissingArgumentError(argument=argument, command_chain=words) if argument:
            return f"{' '.join(['twofold', *(words or ())])} needs {argument.name}."
        case exceptions.UnusedCliTokensError(unused_tokens=tokens) if tokens:
            return f"There is no use for {' '.join(map(repr, tokens))} here."
        case exceptions.CoercionError(target_type=kind, token=token) if token and kind in NUMBERS:
            return f"{token.keyword or 'The value'} must be {NUMBERS[kind]}, not {token.value!r:.60}."
    return None


def _with_flags(text: str, error: TwofoldError | None = None) -> str:
    """An error's text with flags in place of the Python API's keywords: --max-model-len for max_model_len."""
    from twofold.cli.options import flag_of_keyword  # noqa: PLC0415 - start-up time

    if isinstance(error, ParameterError) and re.match(rf"{re.escape(error.param)}\b[ :]", text):
        text = f"--{error.param.replace('_', '-')}{text[len(error.param) :]}"
    return KEYWORD.sub(lambda found: flag_of_keyword(found[0]) or found[0], text)


def _terminate(number: int, _frame: FrameType | None) -> None:
    """Raises SystemExit, so that child processes and temporary folders are removed with the command.

    Background jobs may ignore SIGINT; SIGTERM is then the only way to end them cleanly.
    """
    raise SystemExit(128 + number)


def _command(arguments: Sequence[str]) -> str:
    """The command in ``arguments`` without flags, with a space before each word; empty for an unknown command."""
    if not arguments or arguments[0] not in (*COMMANDS, *GROUPS):
        return ""
    words = 2 if len(arguments) > 1 and arguments[1] in GROUPS.get(arguments[0], ()) else 1
    return "".join(f" {word}" for word in arguments[:words])


def _version() -> str:
    from twofold.host.versions import twofold_version  # noqa: PLC0415

    return twofold_version()


def _traceback() -> None:
    """Prints the traceback of the current error if TWOFOLD_DEBUG is set."""
    import traceback  # noqa: PLC0415

    try:
        is_debug = read_environment().settings.get("debug", "0") not in ("", "0")
    except TwofoldError:
        return
    if is_debug:
        traceback.print_exc()


def _forget_output() -> None:
    """Redirects outputs that cannot be written to the null device, so that closing them at exit cannot fail again."""
    for stream in (sys.stdout, sys.stderr):
        try:
            stream.flush()
        except OSError:
            null = os.open(os.devnull, os.O_WRONLY)
            os.dup2(null, stream.fileno())
            os.close(null)


def _flags_from_environment(_app: App, _commands: tuple[str, ...], arguments: ArgumentCollection) -> None:
    """A configuration source for cyclopts: sets flags that are not on the command line from environment variables."""
    from cyclopts import Token  # noqa: PLC0415 - start-up time

    settings = read_environment().settings
    for argument in arguments:
        flag = argument.name.removeprefix("--")
        if argument.tokens or flag == argument.name or not settings.get(flag):  # empty counts as unset
            continue
        variable = FLAG_PREFIX + flag.upper().replace("-", "_")
        for index, value in enumerate(argument.env_var_split(settings[flag])):
            argument.append(Token(keyword=variable, value=value, source="environment", index=index))
    forget_secrets()
