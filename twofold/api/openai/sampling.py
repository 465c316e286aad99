"""The fields of chats and completions that say how an answer is drawn, as keywords of ``SamplingParams``."""

from __future__ import annotations

from typing import Any, Final

from twofold.api.fields import FieldError, Fields, impossible
from twofold.core.params import MAX_SEED, StructuredOutputsParams

LEAST_SEED: Final = -(1 << 63)

SAME_NAME: Final = (
    "n",
    "temperature",
    "top_p",
    "top_k",
    "min_p",
    "repetition_penalty",
    "presence_penalty",
    "frequency_penalty",
    "stop",
    "stop_token_ids",
    "min_tokens",
    "ignore_eos",
    "skip_special_tokens",
    "include_stop_str_in_output",
)
"""Fields that ``SamplingParams`` knows by the same name and checks itself."""


def sampling_keywords(fields: Fields) -> dict[str, Any]:
    """Keywords of ``SamplingParams`` that both endpoints have."""
    keywords = {name: value for name in SAME_NAME if (value := fields.take(name)) is not None}
    return keywords | {
        "seed": _seed(fields),
        "logit_bias": _logit_bias(fields),
        "structured_outputs": _structured_outputs(fields),
    }


def json_schema_form(described: Fields) -> StructuredOutputsParams:
    """A schema with its labels. ``strict`` may be off: the answer keeps to the schema all the same."""
    for label in ("name", "description"):
        described.text(label)
    described.flag("strict")
    schema = described.take("schema")
    described.close()
    if schema is None:
        return StructuredOutputsParams(json_object=True)
    if not isinstance(schema, dict):
        raise impossible(described.name("schema"), schema, "a JSON schema")
    return StructuredOutputsParams(json=schema)


def _seed(fields: Fields) -> int | None:
    """OpenAI's seeds are signed; one below 0 stands for the unsigned number of the same bits."""
    seed = fields.whole("seed", LEAST_SEED, MAX_SEED)
    return None if seed is None else seed & MAX_SEED


def _logit_bias(fields: Fields) -> dict[int, float] | None:
    """Keys of JSON objects are text; here they are the digits of token ids."""
    biases = fields.take("logit_bias")
    if biases is None:
        return None
    if not isinstance(biases, dict) or not all(key.isascii() and key.isdigit() and len(key) < 10 for key in biases):
        raise impossible("logit_bias", biases, "an object from token ids to numbers")
    return {int(key): value for key, value in biases.items()}


def _structured_outputs(fields: Fields) -> StructuredOutputsParams | None:
    """The form of the answer, as OpenAI's response_format says it or as vLLM's structured_outputs."""
    formatted, extra = _response_format(fields), fields.take("structured_outputs")
    if extra is None:
        return formatted
    if formatted is not None:
        raise FieldError(
            "response_format and structured_outputs both set the output format.",
            param="structured_outputs",
            hint="Remove one of them.",
        )
    if not isinstance(extra, dict):
        raise impossible("structured_outputs", extra, "an object")
    return StructuredOutputsParams(**{name: value for name, value in extra.items() if value is not None})


def _response_format(fields: Fields) -> StructuredOutputsParams | None:
    chosen = fields.inner("response_format")
    if chosen is None:
        return None
    kind = chosen.choice("type", ("text", "json_object", "json_schema"))
    form = None
    if kind == "json_object":
        form = StructuredOutputsParams(json_object=True)
    elif kind == "json_schema":
        form = json_schema_form(Fields(chosen.require("json_schema"), "response_format.json_schema"))
    chosen.close()
    return form
