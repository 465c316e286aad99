"""OpenAI's client and /v1/completions, /v1/embeddings."""

from __future__ import annotations

import asyncio
import base64
import math
import struct
from typing import Any, Final

import openai
import pytest

from tests.server.clients.conftest import CODER, TINY, async_openai
from tests.server.live import LiveServer

ASK: Final[dict[str, Any]] = {"model": TINY, "prompt": "the river", "max_tokens": 8, "temperature": 0}


def test_a_completion(lenient: Any) -> None:
    completion = lenient.completions.create(**ASK)
    (choice,) = completion.choices
    assert (completion.object, choice.finish_reason) == ("text_completion", "length")
    assert completion.usage.completion_tokens == 8
    with lenient.completions.create(**ASK, stream=True, stream_options={"include_usage": True}) as stream:
        *chunks, last = stream
    assert "".join(chunk.choices[0].text for chunk in chunks) == choice.text
    assert last.usage == completion.usage or last.usage.completion_tokens == 8


def test_the_asynchronous_client(server: LiveServer, client: Any) -> None:
    async def told() -> str:
        async with async_openai(server, _strict_response_validation=False) as remote:
            stream = await remote.completions.create(**ASK, stream=True)
            return "".join([chunk.choices[0].text async for chunk in stream])

    assert asyncio.run(told()) == client.completions.create(**ASK).choices[0].text


def test_echo_and_logprobs_score_a_prompt(lenient: Any) -> None:
    """What evaluation harnesses do: nothing drawn, the prompt's own log-probabilities told."""
    scored = lenient.completions.create(**ASK | {"max_tokens": 0}, echo=True, logprobs=2).choices[0]
    logprobs = scored.logprobs
    assert scored.text == "the river" == "".join(logprobs.tokens)
    first, *rest = logprobs.token_logprobs
    assert first is None
    assert all(value <= 0 for value in rest)
    assert logprobs.text_offset == [0, *_ends(logprobs.tokens)[:-1]]
    echoed = lenient.completions.create(**ASK, echo=True, logprobs=2).choices[0]
    assert echoed.logprobs.token_logprobs[: len(rest) + 1] == logprobs.token_logprobs
    assert echoed.text == "the river" + lenient.completions.create(**ASK).choices[0].text


@pytest.mark.parametrize("most", [0, 8])
def test_a_streamed_echo_scores_a_prompt_too(lenient: Any, most: int) -> None:
    prompt = "the river and the sea " * 12  # in several steps, so in several chunks
    fields = ASK | {"prompt": [prompt, "a"], "max_tokens": most, "echo": True, "logprobs": 2, "n": 2}
    whole = lenient.completions.create(**fields)
    with lenient.completions.create(**fields, stream=True, extra_headers={"x-twofold-cache": "skip"}) as stream:
        parts = [choice for chunk in stream for choice in chunk.choices]
    for choice in whole.choices:
        mine = [part for part in parts if part.index == choice.index]
        assert "".join(part.text for part in mine) == choice.text
        for name in ("tokens", "token_logprobs", "top_logprobs", "text_offset"):
            columns = [getattr(part.logprobs, name) for part in mine if part.logprobs is not None]
            assert [value for column in columns for value in column] == getattr(choice.logprobs, name)


def _ends(tokens: list[str]) -> list[int]:
    return [sum(map(len, tokens[: index + 1])) for index in range(len(tokens))]


def test_token_ids_are_a_prompt_too(lenient: Any) -> None:
    ids = lenient.post("../tokenize", body={"model": TINY, "prompt": "the river"}, cast_to=object)["tokens"]
    whole = lenient.completions.create(**ASK)
    assert lenient.completions.create(**ASK | {"prompt": ids}).choices[0].text == whole.choices[0].text
    told = lenient.completions.create(**ASK, extra_body={"return_token_ids": True}).choices[0]
    assert told.model_extra["prompt_token_ids"] == ids
    assert len(told.model_extra["token_ids"]) == 8


def test_a_list_of_prompts(lenient: Any) -> None:
    completion = lenient.completions.create(**ASK | {"prompt": ["the river", "a sea", [70, 71]]}, n=2)
    assert [choice.index for choice in completion.choices] == list(range(6))
    texts = [choice.text for choice in completion.choices]
    assert texts[0] == texts[1] == lenient.completions.create(**ASK).choices[0].text
    assert completion.usage.completion_tokens == 6 * 8
    with lenient.completions.create(**ASK | {"prompt": ["the river", "a sea"]}, stream=True) as stream:
        parts = [choice for chunk in stream for choice in chunk.choices]
    joined = ["".join(part.text for part in parts if part.index == index) for index in range(2)]
    assert joined == [texts[0], texts[2]]


def test_the_best_of_several(client: Any) -> None:
    completion = client.completions.create(**ASK | {"temperature": 1}, best_of=3, n=1, seed=3)
    assert len(completion.choices) == 1
    assert completion.usage.completion_tokens > 8, "those that were dropped were drawn too"


def test_a_suffix_is_refused_by_name_where_the_model_has_no_tokens_for_it(client: Any) -> None:
    with pytest.raises(openai.BadRequestError, match="cannot fill in the middle") as caught:
        client.completions.create(**ASK, suffix="end")
    assert caught.value.param == "suffix"


def test_the_middle_between_a_prompt_and_a_suffix(client: Any, lenient: Any) -> None:
    asked = {"model": CODER, "prompt": "def f(", "suffix": "):", "max_tokens": 8, "temperature": 0}
    whole = client.completions.create(**asked, extra_body={"return_token_ids": True})
    ids = whole.choices[0].prompt_token_ids
    assert [token for token in ids if token in (290, 291, 292)] == [290, 291, 292]
    assert (ids[0], ids[-1]) == (290, 292)
    streamed = lenient.completions.create(**asked, stream=True)
    assert "".join(chunk.choices[0].text for chunk in streamed) == whole.choices[0].text
    by_ids = client.completions.create(model=CODER, prompt=ids, max_tokens=8, temperature=0)
    assert by_ids.choices[0].text == whole.choices[0].text


@pytest.mark.parametrize("encoding", ["float", "base64", None])
def test_embeddings(client: Any, lenient: Any, encoding: Any) -> None:
    """By default the client requests base64 and decodes it."""
    asked = {} if encoding is None else {"encoding_format": encoding}
    found = (client if encoding == "float" else lenient).embeddings.create(
        model=TINY, input=["the river", "a sea", "the river"], **asked
    )
    vectors = [_vector(each.embedding) for each in found.data]
    assert [each.index for each in found.data] == [0, 1, 2]
    assert vectors[0] == vectors[2] != vectors[1]
    assert math.isclose(sum(value * value for value in vectors[0]), 1.0, abs_tol=1e-5)
    assert found.usage.prompt_tokens == found.usage.total_tokens > 0


def _vector(given: Any) -> list[float]:
    if not isinstance(given, str):
        return [struct.unpack("<f", struct.pack("<f", value))[0] for value in given]
    raw = base64.b64decode(given)
    return list(struct.unpack(f"<{len(raw) // 4}f", raw))


def test_vectors_have_the_models_length_alone(lenient: Any) -> None:
    assert len(lenient.embeddings.create(model=TINY, input="sea", dimensions=64).data[0].embedding) == 64
    with pytest.raises(openai.BadRequestError, match="dimensions must be the model's 64"):
        lenient.embeddings.create(model=TINY, input="sea", dimensions=32)
