"""Batches over the mock: every line gets one result, whatever stops the run: the completion that ``LLM`` gives."""

from __future__ import annotations

import random
from collections.abc import Iterator
from functools import partial
from itertools import count, pairwise
from pathlib import Path
from typing import Any

import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from tests.api.batch.folder import CHAT, EMBEDDINGS, Folder, line, prompts
from tests.engine.conftest import VOCAB, MakeLLM
from tests.engine.mock import MockForward
from twofold.api.batch import runner as runners
from twofold.api.batch.run import BatchProgress
from twofold.core.errors import ResourceError, UsageError
from twofold.core.params import SamplingParams
from twofold.core.request import EngineRequest
from twofold.engine.llm import LLM
from twofold.engine.outputs import OutputDelta


@pytest.fixture
def folder(tmp_path: Path) -> Folder:
    return Folder(tmp_path)


def test_greedy_completions_are_those_of_generate(folder: Folder, make_llm: MakeLLM) -> None:
    folder.give(prompts(30, temperature=0))
    progress = folder.run(make_llm(seqs=4))
    assert (progress.lines, progress.done, progress.failed, progress.found) == (30, 30, 0, 0)
    alone = make_llm(seqs=1)
    for n in range(30):
        params = SamplingParams(temperature=0, ignore_eos=True, max_tokens=1 + n % 7)
        (output,) = alone.generate(f"the {n} " * (1 + n % 3), params)
        response, error = folder.results[f"r{n}"]
        (choice,) = response["body"]["choices"]
        assert error is None
        assert response["status_code"] == 200
        assert choice["token_ids"] == list(output.outputs[0].token_ids)
        assert choice["text"] == output.outputs[0].text
    usage = [response["body"]["usage"] for response, _ in folder.results.values()]
    assert progress.prompt_tokens == sum(one["prompt_tokens"] for one in usage)
    assert progress.completion_tokens == sum(one["completion_tokens"] for one in usage)


def test_a_chat_is_that_of_llm_chat(folder: Folder, make_llm: MakeLLM) -> None:
    messages = [{"role": "user", "content": "hello"}]
    folder.give([line("a", CHAT, messages=messages, temperature=0, max_tokens=5)])
    llm = make_llm()
    folder.run(llm)
    (output,) = llm.chat(messages, SamplingParams(temperature=0, max_tokens=5))
    response, _ = folder.results["a"]
    assert response["body"]["choices"][0]["message"]["content"] == output.outputs[0].text


def test_finished_batches_are_left_alone(folder: Folder, make_llm: MakeLLM) -> None:
    folder.give([*prompts(5), "nonsense", line("r0", prompt="again")])
    first = folder.run(make_llm())
    written = folder.target.read_bytes()
    forward = MockForward(vocab=VOCAB)
    again = folder.run(make_llm(forward=forward))
    assert (first.found, first.done, first.failed) == (0, 7, 2)
    assert (again.found, again.done, again.failed) == (7, 7, 2)
    assert again.finished
    assert folder.target.read_bytes() == written
    assert forward.batches == 0


@settings(max_examples=25, deadline=None, suppress_health_check=[HealthCheck.function_scoped_fixture])
@given(seed=st.integers(0, 1 << 32))
def test_stopped_anywhere_and_taken_up_it_ends_as_if_it_had_not_been(
    make_llm: MakeLLM, tmp_path_factory: pytest.TempPathFactory, seed: int
) -> None:
    whole, parts = Folder(tmp_path_factory.mktemp("whole")), Folder(tmp_path_factory.mktemp("parts"))
    mixed = [*prompts(12), "nonsense", line("bad", zzz=1), *prompts(3), line("two", prompt=["the", "hello"], n=2)]
    for one in (whole, parts):
        one.give(mixed)
    whole.run(make_llm(seqs=8))
    draw = random.Random(seed)
    for patience in count(1):
        steps = iter(range(draw.randint(1, 20 * patience)))
        stopped = partial(_spent, steps)
        if parts.run(make_llm(seqs=draw.randint(1, 8)), stopped=stopped).finished:
            break
        written = parts.target.read_bytes()
        parts.target.write_bytes(written[: max(0, len(written) - draw.randint(0, 30))])

    def by_id(one: Folder) -> list[dict[str, Any]]:
        entries = one.written
        for entry in entries:  # what is found in a cache depends on what ran before
            if entry["response"] is not None:
                entry["response"]["body"].get("usage", {}).pop("prompt_tokens_details", None)
        return sorted(entries, key=lambda entry: str(entry["id"]))

    assert by_id(parts) == by_id(whole)


def _spent(steps: Iterator[int]) -> bool:
    return next(steps, None) is None


def test_a_line_without_a_seed_draws_the_same_in_every_run(folder: Folder, make_llm: MakeLLM) -> None:
    folder.give([*prompts(6), line("other", prompt="the 0 ", max_tokens=1)])
    folder.run(make_llm())
    first = folder.results
    folder.give(["", *reversed(prompts(6))])
    folder.run(make_llm(seqs=2), overwrite=True)
    texts = {one: response["body"]["choices"] for one, (response, _) in folder.results.items()}
    assert texts == {one: first[one][0]["body"]["choices"] for one in texts}


def test_seeds_are_kept_and_differ_between_lines(folder: Folder, make_llm: MakeLLM) -> None:
    same: dict[str, Any] = {"prompt": "the", "max_tokens": 8, "ignore_eos": True}
    folder.give([line(one, **same) for one in "ab"] + [line(one, **same, seed=5) for one in "cd"])
    folder.run(make_llm())
    text = {one: response["body"]["choices"][0]["text"] for one, (response, _) in folder.results.items()}
    assert text["a"] != text["b"] != text["c"] == text["d"]
    (output,) = make_llm().generate("the", SamplingParams(seed=5, max_tokens=8, ignore_eos=True))
    assert text["c"] == output.outputs[0].text


def test_prompts_of_one_line_draw_differently(folder: Folder, make_llm: MakeLLM) -> None:
    folder.give([line("a", prompt=["the", "the"], max_tokens=8, ignore_eos=True)])
    folder.run(make_llm())
    first, second = folder.results["a"][0]["body"]["choices"]
    assert first["text"] != second["text"]


@pytest.mark.parametrize(
    ("text", "custom_id", "status", "said"),
    [
        ("nonsense", None, None, "invalid_json_line: Line 2: "),
        (line("x", "/v1/responses", input="a"), "x", None, "invalid_url: Line 2: A batch has no endpoint"),
        (line("r0", prompt="a"), "r0", None, "duplicate_custom_id: Line 2: "),
        (line("x", prompt="a", temprature=1), "x", 400, "unknown_parameter: temprature is not a known field. Did you"),
        (line("x", prompt="a", n=0), "x", 400, "invalid_value: n must be"),
        (line("x", prompt="a " * 100), "x", 400, "context_length_exceeded: "),
        (line("x", prompt=["a", [VOCAB]]), "x", 400, "invalid_value: prompt_token_ids contains 300"),
        (
            line("x", prompt="a", model="mok"),
            "x",
            404,
            "model_not_found: The model 'mok' is not the batch's model.",
        ),
        (line("x", EMBEDDINGS, input="a", dimensions=4), "x", 400, "invalid_value: dimensions must be the model's 8"),
        (line("x", EMBEDDINGS, input=["a", "a " * 100]), "x", 400, "context_length_exceeded: "),
        (line("x", EMBEDDINGS, input=["a", ""]), "x", 400, "invalid_value: The prompt is empty."),
        (line("x", prompt="a", priority="high"), "x", 400, "invalid_value: priority must be"),
        (line("x", CHAT, messages=[{"role": "usr", "content": "a"}]), "x", 400, "invalid_value: messages[0].role "),
        (line("x", prompt="a\ud800"), "x", 400, "invalid_value: The body holds a lone surrogate"),
    ],
    ids=lambda value: str(value)[:30],
)
def test_a_bad_line_gets_an_error_and_the_others_their_completions(
    folder: Folder, make_llm: MakeLLM, text: str, custom_id: str | None, status: int | None, said: str
) -> None:
    good = prompts(3, temperature=0)
    folder.give([good[0], text, *good[1:]])
    progress = folder.run(make_llm())
    assert (progress.done, progress.failed) == (4, 1)
    (bad,) = [one for one in folder.written if one["error"] is not None]
    assert bad["custom_id"] == custom_id
    assert f"{bad['error']['code']}: {bad['error']['message']}".startswith(said)
    if status is None:
        assert bad["response"] is None
    else:
        assert bad["response"]["status_code"] == status
        assert bad["response"]["body"]["error"]["code"] == bad["error"]["code"]
    folder.give(good)
    seen = [one for one in folder.written if one["error"] is None]
    folder.run(make_llm(), overwrite=True)
    assert {one["id"]: one for one in seen} == {one["id"]: one for one in folder.written}


def test_an_error_of_our_own_stays_with_its_line(
    folder: Folder, make_llm: MakeLLM, monkeypatch: pytest.MonkeyPatch
) -> None:
    llm = make_llm()
    check = llm.engine.check

    def failing(request: EngineRequest) -> None:
        if request.prompt == "boom":
            raise KeyError("a bug")
        check(request)

    monkeypatch.setattr(llm.engine, "check", failing)
    folder.give([line("bad", prompt="boom"), *prompts(2)])
    assert folder.run(llm).failed == 1
    assert folder.message("bad") == "server_error: Internal error: KeyError: 'a bug'"
    assert folder.results["bad"][0]["status_code"] == 500


def test_a_line_whose_second_prompt_is_not_taken_gives_the_first_back(
    folder: Folder, make_llm: MakeLLM, monkeypatch: pytest.MonkeyPatch
) -> None:
    llm = make_llm(seqs=2)
    add = llm.engine.add
    added: list[str] = []

    def full(request: EngineRequest) -> str:
        if request.request_id.endswith("-1"):
            raise ResourceError("The pool is too small.")
        added.append(request.request_id)
        return add(request)

    monkeypatch.setattr(llm.engine, "add", full)
    folder.give([line("bad", prompt=["a", "b", "c"]), *prompts(3)])
    progress = folder.run(llm)
    assert (progress.done, progress.failed) == (4, 1)
    assert folder.message("bad") == "server_error: The pool is too small."
    assert folder.results["bad"][0]["status_code"] == 503
    assert [request_id[-2:] for request_id in added] == ["-0"] * 4, "the third prompt never ran"
    assert llm.engine.abort(added[0]) is None


def test_names_of_the_model(folder: Folder, make_llm: MakeLLM) -> None:
    folder.give([line(str(n), prompt="a", max_tokens=1, model=name) for n, name in enumerate(["mock", "alias", "gpt"])])
    assert folder.run(make_llm(), names=("mock", "alias")).failed == 1
    assert folder.results["1"][0]["body"]["model"] == "mock"
    assert folder.run(make_llm(), names=("mock",), any_model=True, overwrite=True).failed == 0


def test_results_of_another_model_are_not_mixed_in(folder: Folder, make_llm: MakeLLM) -> None:
    folder.give(prompts(2))
    folder.run(make_llm())
    with pytest.raises(UsageError, match="of the model 'mock', not of 'other'"):
        folder.run(make_llm(), names=("other",))


def test_the_engine_is_kept_full_and_never_flooded(
    folder: Folder, make_llm: MakeLLM, monkeypatch: pytest.MonkeyPatch
) -> None:
    llm = make_llm(seqs=4)
    add, step = llm.engine.add, llm.engine.step
    inside: dict[str, int] = {}
    seen: list[int] = []

    def adding(request: EngineRequest) -> str:
        inside[request.request_id] = request.completions
        return add(request)

    def stepping() -> list[OutputDelta]:
        seen.append(sum(inside.values()))
        deltas = step()
        for delta in deltas:
            if delta.request is not None:
                del inside[delta.request_id]
        return deltas

    monkeypatch.setattr(llm.engine, "add", adding)
    monkeypatch.setattr(llm.engine, "step", stepping)
    folder.give([*prompts(30), line("many", prompt=["the"] * 20, n=3, max_tokens=2)])
    folder.run(llm)
    window = runners.WINDOW_PER_SLOT * 4
    assert max(seen) <= window + 2
    assert min(seen[: len(seen) // 2]) >= window


def test_the_watcher_hears_of_everything(folder: Folder, make_llm: MakeLLM) -> None:
    heard: list[BatchProgress] = []
    folder.give(prompts(8))
    last = folder.run(make_llm(seqs=2), watch=heard.append)
    assert last == heard[-1]
    assert {one.done for one in heard} >= set(range(1, 9))
    assert all(early.completion_tokens <= late.completion_tokens for early, late in pairwise(heard))


def test_a_failing_model_ends_the_run_and_keeps_what_is_finished(folder: Folder, make_llm: MakeLLM) -> None:
    forward = MockForward(vocab=VOCAB, blocks=128)
    folder.give(prompts(20))
    heard: list[BatchProgress] = []

    def watch(progress: BatchProgress) -> None:
        heard.append(progress)
        forward.failing = progress.done >= 5

    with pytest.raises(RuntimeError):
        folder.run(make_llm(seqs=2, forward=forward), watch=watch)
    assert heard[-1].done == len(folder.written) < 20
    assert folder.run(make_llm()).finished
    assert len(folder.results) == 20


@pytest.mark.parametrize("case", ["missing", "folder", "same"])
def test_files_that_cannot_be(folder: Folder, make_llm: MakeLLM, case: str) -> None:
    if case == "folder":
        folder.source.mkdir()
    if case == "same":
        folder.give(prompts(1))
        folder.target = folder.source
    said = {"missing": "does not exist", "folder": "no regular file", "same": "same file"}[case]
    with pytest.raises(UsageError, match=said):
        folder.run(make_llm(), overwrite=True)


def test_an_empty_input(folder: Folder, make_llm: MakeLLM) -> None:
    folder.give([])
    assert folder.run(make_llm()).finished
    assert folder.written == []


@pytest.mark.model
def test_greedy_completions_of_a_real_model(folder: Folder, default_model: Path) -> None:
    questions = ["The capital of France is", "1, 2, 3, 4,", "Once upon a time"]
    folder.give([line(q, prompt=q, temperature=0, max_tokens=8, return_token_ids=True) for q in questions])
    with LLM(default_model, max_model_len=128, max_num_seqs=4) as llm:
        assert folder.run(llm).failed == 0
        outputs = llm.generate(questions, SamplingParams(temperature=0, max_tokens=8))
    for question, output in zip(questions, outputs, strict=True):
        choice = folder.results[question][0]["body"]["choices"][0]
        assert choice["token_ids"] == list(output.outputs[0].token_ids)
