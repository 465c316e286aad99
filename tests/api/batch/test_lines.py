"""What lines of a batch may ask of the engine: vectors, a treatment; and what becomes of one that the engine ends."""

from __future__ import annotations

from concurrent.futures import Future
from pathlib import Path
from typing import Any

import pytest

from tests.api.batch.folder import COMPLETIONS, EMBEDDINGS, Folder, line, prompts
from tests.engine.conftest import MakeLLM
from twofold.core.errors import ParameterError, ResourceError, TwofoldError
from twofold.engine.grammar.compile import GrammarCompiler
from twofold.engine.grammar.form import OutputGrammar
from twofold.engine.outputs import OutputDelta


@pytest.fixture
def folder(tmp_path: Path) -> Folder:
    return Folder(tmp_path)


@pytest.mark.parametrize("pooling", ["mean", "last"])
def test_embeddings_are_those_of_embed_whatever_runs_beside_them(
    folder: Folder, make_llm: MakeLLM, pooling: Any
) -> None:
    texts = ["the hello", "the", "hello " * 6]
    folder.give([*prompts(6), line("e", EMBEDDINGS, input=texts, pooling=pooling), *prompts(9)[6:]])
    llm = make_llm(seqs=4, rows=16)
    assert folder.run(llm).failed == 0
    data = folder.results["e"][0]["body"]["data"]
    outputs = make_llm(seqs=1).embed(texts, pooling=pooling)
    assert [one["embedding"] for one in data] == [list(output.embedding or ()) for output in outputs]


def test_a_batch_of_embeddings_counts_its_tokens(folder: Folder, make_llm: MakeLLM) -> None:
    folder.give([line(str(n), EMBEDDINGS, input=["the", "hello"], model="mock", dimensions=8) for n in range(20)])
    progress = folder.run(make_llm(seqs=2))
    assert (progress.done, progress.failed, progress.completion_tokens) == (20, 0, 0)
    assert progress.prompt_tokens == sum(
        response["body"]["usage"]["prompt_tokens"] for response, _ in folder.results.values()
    )
    assert folder.run(make_llm()).found == 20


def test_what_lines_say_about_their_treatment_reaches_the_engine(folder: Folder, make_llm: MakeLLM) -> None:
    same: dict[str, Any] = {"temperature": 0, "max_tokens": 2, "ignore_eos": True, "prompt": "the hello " * 4}
    salts = {"a": "one", "b": "one", "c": "two"}
    folder.give([line(name, **same, cache_salt=salt) for name, salt in salts.items()])
    folder.run(make_llm(seqs=1))
    usage = {name: response["body"]["usage"] for name, (response, _) in folder.results.items()}
    cached = {name: one["prompt_tokens_details"]["cached_tokens"] for name, one in usage.items()}
    assert cached["a"] == cached["c"] == 0 < cached["b"]


@pytest.mark.parametrize(
    ("url", "body"),
    [(COMPLETIONS, {"prompt": "the", "max_tokens": 2, "ignore_eos": True}), (EMBEDDINGS, {"input": "the"})],
    ids=["completions", "embeddings"],
)
def test_lines_of_a_lower_priority_go_first(folder: Folder, make_llm: MakeLLM, url: str, body: dict[str, Any]) -> None:
    folder.give([line(str(n), url, **body, priority=n) for n in (3, -1, 2, 0)])
    folder.run(make_llm(seqs=2))
    assert [one["custom_id"] for one in folder.written][:2] == ["-1", "0"]


@pytest.mark.parametrize(
    ("error", "status", "code"),
    [
        (TwofoldError("A bug."), 500, "server_error"),
        (ResourceError("The constraint gave up."), 503, "server_error"),
        (ParameterError("No.", param="grammar"), 400, "invalid_value"),
    ],
)
def test_a_request_that_the_engine_ends_is_its_lines_error(
    folder: Folder, make_llm: MakeLLM, monkeypatch: pytest.MonkeyPatch, error: TwofoldError, status: int, code: str
) -> None:
    good = prompts(5, temperature=0)
    folder.give([good[0], line("bad", prompt=["the", "hello", "the hello"], max_tokens=30, ignore_eos=True), *good[1:]])
    llm = make_llm(seqs=8)
    step = llm.engine.step

    def failing() -> list[OutputDelta]:
        deltas = step()
        second = next((delta.request_id for delta in deltas if delta.request_id.endswith("-1")), None)
        if second is None:
            return deltas
        whole = llm.engine.abort(second)
        return [*deltas, OutputDelta(second, 0, "", (), None, "abort", request=whole, error=error)]

    monkeypatch.setattr(llm.engine, "step", failing)
    progress = folder.run(llm)
    assert (progress.done, progress.failed) == (6, 1)
    response, failure = folder.results["bad"]
    assert (response["status_code"], failure["code"]) == (status, code)
    assert str(error) in failure["message"]
    seen = {one["id"]: one for one in folder.written if one["error"] is None}
    folder.give(good)
    folder.run(make_llm(), overwrite=True)
    assert seen == {one["id"]: one for one in folder.written}


def test_lines_wait_where_the_queue_is_small(folder: Folder, make_llm: MakeLLM) -> None:
    folder.give([*prompts(6), line("many", prompt=["the"] * 5, n=3, max_tokens=2), *prompts(9)[6:]])
    assert folder.run(make_llm(seqs=8, max_waiting=3)).failed == 0
    folder.give([line("most", prompt="the", n=4, max_tokens=2), *prompts(2)])
    assert folder.run(make_llm(seqs=8, max_waiting=3), overwrite=True).failed == 1
    assert folder.results["most"][0]["status_code"] == 503


def test_others_run_while_a_form_is_compiled(
    folder: Folder, make_llm: MakeLLM, monkeypatch: pytest.MonkeyPatch
) -> None:
    form: dict[str, Any] = {"structured_outputs": {"choice": ["the", "hello"]}}
    folder.give([*prompts(3), line("form", prompt="a", max_tokens=9, **form), *prompts(9)[3:]])
    llm = make_llm(seqs=2)
    submit, step = GrammarCompiler.submit, llm.engine.step
    slow: Future[OutputGrammar] = Future()
    waiting: list[tuple[Any, ...]] = []

    def submitting(*asked: Any) -> Future[OutputGrammar]:
        waiting.append(asked)
        return slow

    def stepping() -> list[OutputDelta]:
        deltas = step()
        if waiting and len(folder.written) == 2:
            slow.set_result(submit(*waiting.pop()).result())
        return deltas

    monkeypatch.setattr(GrammarCompiler, "submit", submitting)
    monkeypatch.setattr(llm.engine, "step", stepping)
    assert folder.run(llm).failed == 0
    assert not waiting
    (choice,) = folder.results["form"][0]["body"]["choices"]
    assert (choice["text"] in ("the", "hello"), choice["finish_reason"]) == (True, "stop")


def test_a_form_that_cannot_be_is_its_lines_error(folder: Folder, make_llm: MakeLLM) -> None:
    folder.give([*prompts(3), line("bad", prompt=["a", "b"], structured_outputs={"regex": "("}), *prompts(6)[3:]])
    assert folder.run(make_llm(seqs=2)).failed == 1
    assert folder.results["bad"][0]["status_code"] == 400
    assert "regex cannot be compiled" in folder.message("bad")
