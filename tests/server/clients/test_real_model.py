"""OpenAI's and Anthropic's clients with the default model of a server that is started without options."""

from __future__ import annotations

import json
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any, Final

import pytest

from tests.server.clients.conftest import Guarded
from tests.server.live import live_server

pytestmark = pytest.mark.model

NAME: Final = "smollm2"
SAY: Final[Any] = [{"role": "user", "content": "What is the capital of France? Answer in one sentence."}]
SCHEMA: Final = {
    "type": "object",
    "properties": {"city": {"type": "string", "maxLength": 20}},
    "required": ["city"],
    "additionalProperties": False,
}


@pytest.fixture(scope="module")
def real(default_model: Path, tmp_path_factory: pytest.TempPathFactory) -> Iterator[Guarded]:
    with live_server(tmp_path_factory.mktemp("real"), f"{NAME}={default_model}", "--max-model-len", "2048") as live:
        yield Guarded(live, {})


def test_openai(real: Guarded) -> None:
    with real.openai() as client:
        asked: Any = {"model": NAME, "messages": SAY, "temperature": 0, "max_completion_tokens": 40}
        whole = client.chat.completions.create(**asked).choices[0]
        assert "Paris" in whole.message.content
        with client.chat.completions.create(**asked, stream=True) as stream:
            told = "".join(chunk.choices[0].delta.content or "" for chunk in stream if chunk.choices)
        assert told == whole.message.content


def test_openais_tools_and_forms(real: Guarded) -> None:
    tool: Any = {"type": "function", "function": {"name": "weather", "parameters": SCHEMA}}
    form: Any = {"type": "json_schema", "json_schema": {"name": "place", "schema": SCHEMA, "strict": True}}
    with real.openai() as client:
        asked: Any = {"model": NAME, "messages": SAY, "temperature": 0, "max_completion_tokens": 120}
        (call,) = (
            client.chat.completions.create(**asked, tools=[tool], tool_choice="required", parallel_tool_calls=False)
            .choices[0]
            .message.tool_calls
        )
        assert list(json.loads(call.function.arguments)) == ["city"]
        content = client.chat.completions.create(**asked, response_format=form).choices[0].message.content
        assert list(json.loads(content)) == ["city"]
        response = client.responses.create(model=NAME, input=SAY, temperature=0, max_output_tokens=40)
        assert "Paris" in response.output_text


def test_anthropic(real: Guarded) -> None:
    tool: Any = {"name": "weather", "input_schema": SCHEMA}
    with real.anthropic() as claude:
        asked: Any = {"model": NAME, "messages": SAY, "max_tokens": 120, "extra_body": {"temperature": 0}}
        whole = claude.messages.create(**asked)
        assert whole.stop_reason == "end_turn"
        assert "Paris" in whole.content[0].text
        with claude.messages.stream(**asked) as stream:
            assert "".join(stream.text_stream) == whole.content[0].text
        call = claude.messages.create(**asked, tools=[tool], tool_choice={"type": "any"}).content[0]
        assert list(call.input) == ["city"]


def test_the_clients_agree(real: Guarded) -> None:
    """The same question in both API protocols has the same prompt and the same completion."""
    with real.openai() as client, real.anthropic() as claude:
        said = client.chat.completions.create(model=NAME, messages=SAY, temperature=0, max_completion_tokens=30)
        again = claude.messages.create(model=NAME, messages=SAY, max_tokens=30, extra_body={"temperature": 0})
        usage = again.usage
        assert again.content[0].text == said.choices[0].message.content
        assert usage.input_tokens + usage.cache_read_input_tokens == said.usage.prompt_tokens


def test_a_model_with_tools_decides_to_call_one(model_path: Callable[[str], Path], tmp_path: Path) -> None:
    """Qwen's template renders tools; both clients get the model's call, one of them as a stream."""
    asked: Any = [{"role": "user", "content": "What is the weather in Paris? Use the tool."}]
    described: Any = {"name": "get_weather", "description": "Tells the weather of a city."}
    tool: Any = {"type": "function", "function": {**described, "parameters": SCHEMA}}
    with live_server(tmp_path, f"{NAME}={model_path('qwen2.5-coder-1.5b')}", "--max-model-len", "1024") as live:
        real = Guarded(live, {})
        with real.openai(timeout=90) as client, real.anthropic(timeout=90) as claude:
            with client.chat.completions.stream(
                model=NAME, messages=asked, tools=[tool], temperature=0, max_completion_tokens=80
            ) as stream:
                (choice,) = stream.get_final_completion().choices
            message = claude.messages.create(
                model=NAME,
                messages=asked,
                max_tokens=80,
                tools=[{**described, "input_schema": SCHEMA}],
                extra_body={"temperature": 0},
            )
    assert (choice.finish_reason, message.stop_reason) == ("tool_calls", "tool_use")
    assert json.loads(choice.message.tool_calls[0].function.arguments) == {"city": "Paris"}
    assert message.content[-1].input == {"city": "Paris"}
