"""One loop for all callers: requests that wait for a grammar, streams that are stopped, checks of prompts."""

from __future__ import annotations

import sys
from concurrent.futures import Future
from types import FrameType
from typing import Any

import pytest

from tests.engine.conftest import MakeLLM
from twofold.core.errors import ParameterError
from twofold.core.params import SamplingParams, StructuredOutputsParams
from twofold.core.record import WaitReason
from twofold.core.request import EngineRequest
from twofold.engine.engine import Engine
from twofold.engine.grammar.compile import GrammarCompiler
from twofold.engine.grammar.form import OutputGrammar

GREEDY = SamplingParams(temperature=0, max_tokens=4, ignore_eos=True)
FORM = SamplingParams(temperature=0, max_tokens=9, structured_outputs=StructuredOutputsParams(choice=["the", "hello"]))


class SlowCompiler:
    """A compiler that finishes only when the test calls it."""

    def __init__(self, monkeypatch: pytest.MonkeyPatch) -> None:
        self._asked: list[tuple[Any, ...]] = []
        self.future: Future[OutputGrammar] = Future()
        self._submit = GrammarCompiler.submit

        def submit(*asked: Any) -> Future[OutputGrammar]:
            self._asked.append(asked)
            return self.future

        monkeypatch.setattr(GrammarCompiler, "submit", submit)

    def compile(self) -> None:
        self.future.set_result(self._submit(*self._asked[0]).result())


@pytest.fixture
def compiler(monkeypatch: pytest.MonkeyPatch) -> SlowCompiler:
    return SlowCompiler(monkeypatch)


def test_others_run_while_a_request_waits_for_its_grammar(make_llm: MakeLLM, compiler: SlowCompiler) -> None:
    llm = make_llm()
    engine, client = llm.engine, llm.client
    request_id = engine.add(engine.request("a", FORM))
    assert engine.waiting == 1
    (other,) = client.run([engine.request("hello", GREEDY)])
    assert other.finished
    assert engine.has_work
    assert engine.scheduler.waiting == 0
    compiler.compile()
    deltas = []
    while engine.has_work:
        deltas += client.turn()
    whole = deltas[-1].request
    assert whole is not None
    assert (whole.request_id, whole.outputs[0].text in ("the", "hello")) == (request_id, True)
    assert whole.metrics.record.stalls[WaitReason.GRAMMAR] > 0
    engine.check_idle()


def test_a_request_is_aborted_while_it_waits_for_its_grammar(make_llm: MakeLLM, compiler: SlowCompiler) -> None:
    llm = make_llm()
    turns = 0

    def stopped() -> bool:
        nonlocal turns
        turns += 1
        return turns > 3

    (delta,) = llm.client.stream(llm.engine.request("a", FORM), stopped)
    assert delta.request is not None
    assert (delta.finish_reason, delta.request.outputs[0].finish_reason) == ("abort", "abort")
    assert not llm.engine.has_work
    compiler.compile()
    llm.engine.step()
    llm.engine.check_idle()


def test_a_grammar_that_fails_ends_its_request_alone(make_llm: MakeLLM, compiler: SlowCompiler) -> None:
    llm = make_llm()
    waiting = llm.engine.add(llm.engine.request("a", FORM))
    running = llm.engine.add(llm.engine.request("hello", GREEDY))
    compiler.future.set_exception(ParameterError("It is no grammar.", param="grammar"))
    deltas = []
    while llm.engine.has_work:
        deltas += llm.client.turn()
    ends = {delta.request_id: delta for delta in deltas if delta.error is not None or delta.request is not None}
    assert isinstance(ends[waiting].error, ParameterError)
    assert ends[waiting].request is None
    assert ends[running].error is None
    llm.engine.check_idle()


def calls_of_check(engine: Engine, tokens: int) -> int:
    """Calls, of Python's own functions too, that a check of a prompt takes."""
    request, calls = EngineRequest((5,) * tokens, GREEDY), 0

    def count(_frame: FrameType, event: str, _argument: object) -> None:
        nonlocal calls
        calls += event in ("call", "c_call")

    sys.setprofile(count)
    engine.check(request)
    sys.setprofile(None)
    return calls


def test_checking_a_prompt_takes_no_call_per_token(make_llm: MakeLLM) -> None:
    engine = make_llm().engine
    few, many = (
        min(calls_of_check(engine, tokens) for _ in range(3)) for tokens in (2, 60)
    )  # garbage collection calls
    assert few == many


@pytest.mark.parametrize(("token", "said"), [(-1, "-1"), (True, "True"), ("5", "'5'"), (1 << 40, "1099511627776")])
def test_a_token_outside_the_vocabulary_is_named(make_llm: MakeLLM, token: Any, said: str) -> None:
    with pytest.raises(ParameterError, match=f"prompt_token_ids contains {said}, which is outside the vocabulary"):
        make_llm().engine.request((5, token, 6), GREEDY)
