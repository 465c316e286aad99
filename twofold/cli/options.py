"""Flags of several commands, and their conversion to keywords of ``LLM`` and to ``SamplingParams``.

Annotations are evaluated here: cyclopts would look up the names of postponed ones in the modules of derived classes.
"""

import json
from collections.abc import Sequence
from dataclasses import dataclass, field, fields
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any, Final, Literal, TypeAlias

from cyclopts import Parameter

from twofold.cli.console import note
from twofold.core.errors import ParameterError
from twofold.core.params import SamplingParams, StructuredOutputsParams
from twofold.core.sampling_defaults import FALLBACK, NAMES, SamplingDefaults
from twofold.core.units import GIB, MIB, parse_duration, parse_size
from twofold.formats.fetch.names import DEFAULT_MODEL

if TYPE_CHECKING:
    from cyclopts import Token

MAX_GIB: Final = 1 << 20
FLAG = Parameter(negative=(), show_default=False)
LIST = FLAG
MODEL_HELP: Final = "A path, an alias, hf.co/user/model[:QUANT] or pypi:package."
Json: TypeAlias = Annotated[bool, FLAG, Parameter(help="Print JSON.")]


def _size(unit: int) -> Parameter:
    """A size with a unit, or a number of ``unit`` bytes; the value is in ``unit`` bytes."""

    def convert(_type: object, tokens: "Sequence[Token]") -> float:
        count = parse_size(tokens[0].value, unit)
        return count if unit == 1 else count / unit

    return Parameter(converter=convert)


def _seconds(_type: object, tokens: "Sequence[Token]") -> float:
    return parse_duration(tokens[0].value)


RouterFlag = Literal["predicted", "round-robin", "least-loaded", "longest-match"]
BYTES, IN_MIB, IN_GIB = _size(1), _size(MIB), _size(GIB)
"""Flags that take ``512M``, ``1.5GiB``, or a number of bytes, MiB or GiB."""
DURATION = Parameter(converter=_seconds)
"""Flags that take ``500ms``, ``30s``, ``5m``, ``1h``, or a number of seconds."""


@Parameter(name="*", group="Model")
@dataclass(frozen=True, slots=True, kw_only=True)
class ModelOptions:
    """The model, and how much of the machine it uses."""

    model: Annotated[
        str,
        Parameter(name=("--model", "-m"), help=MODEL_HELP),
    ] = DEFAULT_MODEL
    tokenizer: Annotated[str | None, Parameter(help="Use the tokenizer of this model instead.")] = None
    chat_template: Annotated[
        str | None,
        Parameter(
            help="Chat template: a file, the name of another one in the model's file (tool_use), or chatml, gemma,"
            " llama2, llama3, mistral, phi3 or zephyr (default: the model's)."
        ),
    ] = None
    max_model_len: Annotated[
        int | None,
        Parameter(
            name=("--max-model-len", "--ctx-size", "-c"),
            help="Context length, prompt and output (default: the model's, or what memory holds).",
        ),
    ] = None
    max_num_batched_tokens: Annotated[int, Parameter(help="Max tokens computed in one step.")] = 512
    block_size: Annotated[int, Parameter(help="Tokens per KV-cache block.")] = 16
    kv_cache_dtype: Annotated[str, Parameter(help="auto (bf16), bf16, f16, f32, q8 or k8v4.")] = "auto"
    kv_cache_memory_bytes: Annotated[
        int | None, BYTES, Parameter(help="Size of the KV cache, e.g. 512M or 2G (default: chosen by free memory).")
    ] = None
    enable_prefix_caching: Annotated[bool, Parameter(help="Reuse the KV cache of shared prompt prefixes.")] = True
    kv_store: Annotated[
        str | None,
        Parameter(help="Folder on disk that keeps prefixes across restarts (default: none)."),
    ] = None
    kv_store_bytes: Annotated[
        int, BYTES, Parameter(help="Size of the KV store of each model (default: 8G).", show_default=False)
    ] = 8 << 30
    speculative_config: Annotated[
        str | None,
        Parameter(
            help="Speculative decoding, as JSON: method (auto, suffix, draft_model or off), model (a smaller one, for"
            " draft_model) and num_speculative_tokens (the most in a"
            ' step). It changes no output (default: {"method": "auto"}).'
        ),
    ] = None
    stop_loops: Annotated[
        bool,
        FLAG,
        Parameter(help="End a completion that repeats the same part at least 4 times, with at least 64 tokens."),
    ] = False
    backend: Annotated[str, Parameter(help="cpu, or reference (NumPy; slow, for comparison).")] = "cpu"
    threads: Annotated[
        int | None,
        Parameter(
            name=("--threads", "-t"),
            help="Compute threads, fewer while other processes use their cores (default: one per core).",
        ),
    ] = None
    isa: Annotated[
        str | None,
        Parameter(
            help="Kernel instruction set: amx, avx512_bf16, avx512, avx2 or portable (default: the best available)."
        ),
    ] = None

    def check(self) -> None:
        """Raises ParameterError for an invalid value, before a download. Prints warnings of the backend."""
        from twofold.engine.config import EngineOptions  # noqa: PLC0415 - start-up time

        for warning in EngineOptions(**self.engine_keywords()).open_backend().warnings():
            note(f"warning: {warning}")

    def engine_keywords(self) -> dict[str, Any]:
        """Keywords of ``LLM`` except the model and the tokenizer.

        One sequence runs at a time, without overlap, so that each token is shown at once.
        """
        given = {each.name: getattr(self, each.name) for each in fields(ModelOptions)}
        del given["model"], given["tokenizer"]
        if self.chat_template is not None:
            given["chat_template"] = read_chat_template(self.chat_template)
        if self.speculative_config is not None:
            given["speculative_config"] = _json_object(
                "speculative_config", self.speculative_config, hint='Like {"method": "off"}.'
            )
        return given | {
            "max_num_seqs": 1,
            "swap_space_bytes": 0,
            "token_budget": "fixed",
            "overlap": False,
            "seed": 0,
        }


@Parameter(name="*", group="Model")
@dataclass(frozen=True, slots=True, kw_only=True)
class ConcurrentModelOptions(ModelOptions):
    """The model, and how many sequences share it."""

    max_num_seqs: Annotated[
        int, Parameter(name=("--max-num-seqs", "--parallel", "-np"), help="Max concurrent sequences.")
    ] = 32
    swap_space: Annotated[
        float | None,
        IN_GIB,
        Parameter(
            help="Size of the swap space for preempted sequences, e.g. 2G; 0: recompute them instead (default: half of"
            " the KV cache, at most 1G)."
        ),
    ] = None
    token_budget: Annotated[
        str,
        Parameter(help="live: limit prefill so that decode keeps its TPOT target; fixed: fill every step."),
    ] = "live"
    tpot_target_ms: Annotated[
        float | None,
        Parameter(help="TPOT target in ms; live budget only (default: 50)."),
    ] = None
    itl_limit_ms: Annotated[
        float | None,
        Parameter(help="Max gap between tokens in ms; live budget only (default: 4 × TPOT target)."),
    ] = None
    max_waiting_seqs: Annotated[int, Parameter(help="Max sequences in the waiting queue.")] = 100_000

    def engine_keywords(self) -> dict[str, Any]:
        """Keywords of ``LLM`` except the model and the tokenizer."""
        names = ("max_num_seqs", "token_budget", "tpot_target_ms", "itl_limit_ms", "max_waiting_seqs")
        return ModelOptions.engine_keywords(self) | {
            **{name: getattr(self, name) for name in names},
            "swap_space_bytes": None if self.swap_space is None else _bytes("swap_space", self.swap_space),
            "overlap": True,
        }


@Parameter(name="*", group="Sampling")
@dataclass(frozen=True, slots=True, kw_only=True)
class SamplingOptions:
    """Sampling parameters and stop conditions. With --url, defaults are the server's."""

    max_tokens: Annotated[int, Parameter(name=("--max-tokens", "--n-predict", "-n"), help="Max output tokens.")] = 512
    temperature: Annotated[
        float | None,
        Parameter(
            name=("--temperature", "--temp"),
            help="Sampling temperature; 0 is greedy (default: the model's, else 0.2).",
        ),
    ] = None
    top_p: Annotated[
        float | None,
        Parameter(
            help="Sample from the smallest set of tokens with this total probability (default: the model's, else 0.9)."
        ),
    ] = None
    top_k: Annotated[
        int | None, Parameter(help="Sample from the k most likely tokens; 0: all (default: the model's, else 0).")
    ] = None
    min_p: Annotated[
        float | None,
        Parameter(
            help="Drop tokens less likely than this fraction of the most likely one (default: the model's, else 0)."
        ),
    ] = None
    repetition_penalty: Annotated[
        float | None,
        Parameter(
            name=("--repetition-penalty", "--repeat-penalty"),
            help="Penalty on tokens of the prompt and output; 1: none (default: the model's, else 1).",
        ),
    ] = None
    presence_penalty: Annotated[float, Parameter(help="Penalty on tokens that occur in the output.")] = 0.0
    frequency_penalty: Annotated[float, Parameter(help="Penalty on tokens by their count in the output.")] = 0.0
    logit_bias: Annotated[list[str], LIST, Parameter(help="TOKEN=BIAS, added to that token's logit; repeatable.")] = (
        field(default_factory=list)
    )
    seed: Annotated[
        int | None, Parameter(name=("--seed", "-s"), help="Random seed; the same seed gives the same output.")
    ] = None
    stop: Annotated[list[str], LIST, Parameter(help="Stop string; repeatable.")] = field(default_factory=list)
    stop_token_ids: Annotated[list[int], LIST, Parameter(help="Stop token id; repeatable.")] = field(
        default_factory=list
    )
    min_tokens: Annotated[int, Parameter(help="Min output tokens.")] = 0
    ignore_eos: Annotated[bool, FLAG, Parameter(help="Continue past end-of-sequence tokens.")] = False
    include_stop_str_in_output: Annotated[bool, FLAG, Parameter(help="Include the stop string in the output.")] = False
    skip_special_tokens: Annotated[bool, Parameter(help="Omit special tokens from the text.")] = True

    def params(
        self, structure: StructuredOutputsParams | None = None, defaults: SamplingDefaults = FALLBACK
    ) -> SamplingParams:
        """Sampling parameters with this structured output; ``defaults`` are the model's.

        Raises ParameterError for an invalid value.
        """
        flags = SamplingDefaults(**{name: getattr(self, name) for name in NAMES})
        given = {each.name: getattr(self, each.name) for each in fields(self) if each.name not in NAMES}
        given |= {"logit_bias": dict(map(_bias, self.logit_bias)), "structured_outputs": structure}
        return SamplingParams(**flags.over(defaults).given(), **given)


@Parameter(name="*", group="Structured output")
@dataclass(frozen=True, slots=True, kw_only=True)
class StructuredOutputOptions:
    """Structured output: at most one of these."""

    json_schema: Annotated[str | None, Parameter(help="JSON schema of the output: a file or the text.")] = None
    regex: Annotated[str | None, Parameter(help="Regular expression that the whole output matches.")] = None
    choice: Annotated[list[str], LIST, Parameter(help="Allowed output text; repeatable.")] = field(default_factory=list)
    grammar: Annotated[
        Path | None, Parameter(help="Context-free grammar file, in GBNF or llguidance's Lark syntax.")
    ] = None

    def params(self) -> StructuredOutputsParams | None:
        """The structured output, read from its file. Raises ParameterError for several or invalid ones."""
        given = [each.name for each in fields(self) if getattr(self, each.name) not in (None, [])]
        names = ["--" + name.replace("_", "-") for name in given]
        if not names:
            return None
        if len(names) > 1:
            raise ParameterError(
                f"{' and '.join(names)} exclude each other.", param=names[-1], hint="Give one of them."
            )
        return StructuredOutputsParams(
            json=None if self.json_schema is None else _schema(self.json_schema),
            regex=self.regex,
            choice=self.choice or None,
            grammar=None if self.grammar is None else read_text("grammar", self.grammar),
        )


@Parameter(name="*", group="Output")
@dataclass(frozen=True, slots=True, kw_only=True)
class DisplayOptions:
    """Display of completions and statistics."""

    stats: Annotated[bool, Parameter(help="Print a line of statistics after each completion.")] = True
    quiet: Annotated[bool, FLAG, Parameter(name=("--quiet", "-q"), help="Print only completions and errors.")] = False
    verbose: Annotated[
        bool, FLAG, Parameter(name=("--verbose", "-v"), help="Also print load times, settings and where the time went.")
    ] = False
    markdown: Annotated[
        bool, Parameter(help="Render Markdown on a terminal; pipes and files always get the text as generated.")
    ] = True

    def __post_init__(self) -> None:
        if self.quiet and self.verbose:
            raise ParameterError("--quiet and --verbose exclude each other.", param="verbose", hint="Choose one.")

    @property
    def statistics(self) -> bool:
        return self.stats and not self.quiet


@Parameter(name="*", group="Server")
@dataclass(frozen=True, slots=True, kw_only=True)
class RemoteOptions:
    """A running server, used instead of a model in this process."""

    url: Annotated[
        str | None,
        Parameter(help="Use the server at this URL: Twofold's, or any with OpenAI's API. --model is its name."),
    ] = None
    api_key: Annotated[str | None, Parameter(help="API key of that server.")] = None

    def check(self, model: ModelOptions) -> None:
        """Raises ParameterError for flags of the engine, which would have no effect on a server."""
        if self.url is None:
            return
        for name in changed_fields(model):
            if name != "model":
                flag = "--" + name.replace("_", "-")
                raise ParameterError(
                    f"{flag} has no effect with --url.", param=name, hint=f"Give {flag} to twofold serve."
                )


def flag_of_keyword(name: str) -> str | None:
    """The flag of a keyword of ``LLM`` or ``SamplingParams``; None for other words."""
    name = {"swap_space_bytes": "swap_space"}.get(name, name)
    known = {each.name for kind in (ConcurrentModelOptions, SamplingOptions) for each in fields(kind)}
    return f"--{name.replace('_', '-')}" if name in known else None


def changed_fields(options: Any) -> list[str]:
    """Names of the fields of an options record that differ from their defaults."""
    plain = type(options)()
    return [each.name for each in fields(options) if getattr(options, each.name) != getattr(plain, each.name)]


def read_chat_template(given: str) -> str:
    """The text of the file ``given``; or ``given`` itself if it is no path: Jinja source, or a name that the tokenizer
    knows. Raises ParameterError."""
    path = Path(given)
    is_path = "{" not in given and (path.suffix or len(path.parts) > 1 or path.is_file())
    return read_text("chat_template", path) if is_path else given


def read_text(name: str, path: Path) -> str:
    """The text of the file given by the flag ``name``. Raises ParameterError."""
    try:
        return path.read_text(encoding="utf-8-sig")
    except UnicodeDecodeError as error:
        raise ParameterError(f"{name}: {path} is not UTF-8 text.", param=name) from error
    except (OSError, ValueError) as error:
        reason = getattr(error, "strerror", None) or error
        raise ParameterError(f"{name}: {str(path)[:200]} cannot be read: {reason}.", param=name) from error


def _bytes(name: str, gibibytes: float) -> int:
    if not 0 <= gibibytes <= MAX_GIB:
        raise ParameterError(f"{name} must be from 0 to {MAX_GIB} GiB, not {gibibytes}.", param=name)
    return int(gibibytes * GIB)


def _bias(text: str) -> tuple[int, float]:
    token, _, bias = text.partition("=")
    try:
        return int(token), float(bias)
    except ValueError:
        raise ParameterError(
            f"logit_bias {text!r} is not TOKEN=BIAS.", param="logit_bias", hint="Write --logit-bias 198=-100."
        ) from None


def _schema(given: str) -> dict[str, Any]:
    """The schema in a file, or in the text itself if it begins with a brace."""
    text = given if given.lstrip().startswith("{") else read_text("json_schema", Path(given))
    return _json_object("json_schema", text, hint='Like {"type": "object"}.')


def _json_object(name: str, text: str, hint: str | None = None) -> dict[str, Any]:
    """The object that the flag ``name`` spells. Raises ParameterError."""
    try:
        value = json.loads(text)
    except json.JSONDecodeError as error:
        raise ParameterError(
            f"{name} is not JSON: {error.msg} at line {error.lineno}, column {error.colno}.", param=name, hint=hint
        ) from error
    except (ValueError, RecursionError) as error:
        raise ParameterError(f"{name} cannot be read: {error}.", param=name) from error
    if not isinstance(value, dict):
        raise ParameterError(f"{name} must be an object, not {value!r:.60}.", param=name, hint=hint)
    return value
