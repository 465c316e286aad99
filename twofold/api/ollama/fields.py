"""Fields that Ollama's requests have in common: the model, ``options``, ``format``, ``think`` and ``keep_alive``.

Options set when Ollama loads a model (threads, batch, GPU layers) are settings of the server here: they are accepted
and change nothing, because they change no answer. Options that would change an answer and are not implemented are
refused.
"""

from __future__ import annotations

import re
from collections.abc import Mapping
from dataclasses import dataclass, replace
from typing import Any, Final

from twofold.api.base import Job, ModelFacts
from twofold.api.conversation import AS_BEFORE, Thinking
from twofold.api.fields import FieldError, Fields, impossible, unsupported
from twofold.api.openai.bodies import MAX_MODEL_CHARS
from twofold.api.openai.chat import EFFORTS
from twofold.core.errors import ContextLengthError, ParameterError
from twofold.core.params import MAX_LOGPROBS, MAX_SEED, MAX_TOKEN_ID, SamplingParams, StructuredOutputsParams

NUMBERS: Final = ("temperature", "top_k", "top_p", "min_p", "presence_penalty", "frequency_penalty", "stop")
"""Options that ``SamplingParams`` knows by the same name and checks itself."""
UNUSED: Final = (
    "numa",
    "num_batch",
    "num_gpu",
    "main_gpu",
    "low_vram",
    "f16_kv",
    "use_mmap",
    "use_mlock",
    "num_thread",
    "num_keep",
    "draft_num_predict",
    "mirostat_tau",
    "mirostat_eta",
)
"""Options of loading a model, of shifting a full context, which never happens here, and of mirostat, which is off."""
NEUTRAL: Final[Mapping[str, tuple[object, ...]]] = {
    "tfs_z": (1,),
    "typical_p": (1,),
    "mirostat": (0,),
    "penalize_newline": (True,),
    "logits_all": (False,),
    "vocab_only": (False,),
    "embedding_only": (False,),
}
"""Options that are refused but for the values that say what is done anyway."""
EFFORT_WORDS: Final = ("low", "medium", "high", "max")
MAX_DURATION_CHARS: Final = 32
_UNITS: Final = r"(?:ns|us|µs|ms|s|m|h)"
DURATION: Final = rf"^[+-]?(?:0|(?:(?:[0-9]+\.?[0-9]*|\.[0-9]+){_UNITS})+)$"
"""A duration as Go writes it: 5m, 1h30m, -1s."""
_UNIT: Final = re.compile(rf"([0-9]+\.?[0-9]*|\.[0-9]+)({_UNITS})")
_SECONDS: Final = {"ns": 1e-9, "us": 1e-6, "µs": 1e-6, "ms": 1e-3, "s": 1.0, "m": 60.0, "h": 3600.0}


@dataclass(frozen=True, slots=True)
class Sampling:
    """How an answer is sampled. ``asked``: parameters that the request gave itself. ``window`` is num_ctx: the most
    tokens of prompt and answer; the model's context is the upper bound."""

    params: SamplingParams
    asked: frozenset[str]
    window: int | None

    def filled(self, model: ModelFacts) -> SamplingParams:
        """The parameters, with the server's defaults where the request says nothing."""
        return model.sampling.fill(self.params, self.asked)

    def within(self, job: Job) -> Job:
        """The job with no more output tokens than the window leaves. Raises ContextLengthError."""
        if self.window is None or not isinstance(job.params, SamplingParams):
            return job
        prompt = len(job.prompt.token_ids or ())
        room = self.window - prompt
        if room < 1:
            raise ContextLengthError(
                f"The prompt has {prompt} tokens; with one output token  it does not fit num_ctx {self.window}.",
                hint="Shorten the prompt, or raise options.num_ctx.",
            )
        asked = job.params.max_tokens
        return replace(job, params=replace(job.params, max_tokens=room if asked is None else min(asked, room)))


def read_model(fields: Fields) -> str:
    """The model's name, which Ollama requires."""
    model = fields.require("model")
    if not isinstance(model, str) or not 0 < len(model) <= MAX_MODEL_CHARS:
        raise impossible("model", model, f"a name of 1 to {MAX_MODEL_CHARS} characters")
    return model


def read_sampling(fields: Fields, form: StructuredOutputsParams | None = None, logprobs: int | None = None) -> Sampling:
    """``options``. Raises FieldError."""
    options = fields.inner("options") or Fields({}, "options")
    given = {name: value for name in NUMBERS if (value := options.take(name)) is not None}
    repeat = options.take("repeat_penalty")
    if repeat is not None:
        given["repetition_penalty"] = repeat
    window = options.whole("num_ctx", 1, MAX_TOKEN_ID)
    limit = options.whole("num_predict", -2, MAX_TOKEN_ID)
    seed = options.whole("seed", -1, MAX_SEED)
    _check_others(options, given)
    try:
        params = SamplingParams(
            **given,
            max_tokens=limit if limit is not None and limit > 0 else None,
            seed=None if seed == -1 else seed,
            logprobs=logprobs,
            structured_outputs=form,
        )
    except ParameterError as error:
        name = "repeat_penalty" if error.param == "repetition_penalty" else error.param
        raise FieldError(str(error), param=f"options.{name}", hint=error.hint) from error
    return Sampling(params, frozenset(given), window)


def read_form(fields: Fields) -> StructuredOutputsParams | None:
    """``format``: "json", or a JSON schema."""
    given = fields.take("format")
    if given is None or given == "":
        return None
    if given == "json":
        return StructuredOutputsParams(json_object=True)
    if not isinstance(given, dict):
        raise impossible("format", given, '"json" or a JSON schema')
    return StructuredOutputsParams(json=given)


def read_think(fields: Fields) -> Thinking:
    """``think``: true, false, or how much."""
    given = fields.take("think")
    if given is None:
        return AS_BEFORE
    if isinstance(given, bool):
        return Thinking("on", needed_by="think") if given else Thinking("off")
    return replace(EFFORTS[fields.choice("think", EFFORT_WORDS)], needed_by="think")


def read_keep_alive(fields: Fields) -> float | None:
    """Seconds for which the model stays loaded after the request; below 0 for as long as there is memory."""
    given = fields.take("keep_alive")
    if given is None:
        return None
    if isinstance(given, int | float) and not isinstance(given, bool):
        return float(given)
    if not isinstance(given, str) or len(given) > MAX_DURATION_CHARS or not re.search(DURATION, given):
        raise impossible("keep_alive", given, 'a number of seconds, or a duration such as "5m"')
    seconds = sum(float(count) * _SECONDS[unit] for count, unit in _UNIT.findall(given))
    return -seconds if given.startswith("-") else seconds


def refuse_others(fields: Fields) -> None:
    """Raises FieldError for what both kinds of answers have and Twofold does not offer."""
    fields.only("truncate", False)
    fields.only("shift", False)
    fields.only("_debug_render_only", False)


def read_logprobs(fields: Fields) -> int | None:
    """How many of the most likely tokens are told with each; None where no log-probabilities are."""
    wanted, count = fields.flag("logprobs"), fields.whole("top_logprobs", 0, MAX_LOGPROBS)
    if count and not wanted:
        raise FieldError("top_logprobs needs logprobs.", param="top_logprobs", hint='Set "logprobs": true.')
    return (count or 0) if wanted else None


def _check_others(options: Fields, given: Mapping[str, Any]) -> None:
    """Raises FieldError for options that cannot be honoured."""
    for name in UNUSED:
        options.take(name)
    for name, possible in NEUTRAL.items():
        options.only(name, *possible)
    last = options.whole("repeat_last_n", -1, MAX_TOKEN_ID)
    penalties = ("repetition_penalty", "presence_penalty", "frequency_penalty")
    if last not in (None, -1) and any(name in given for name in penalties):
        raise unsupported("options.repeat_last_n", "Leave it out, or set it to -1: penalties see the whole context.")
    options.close()
