"""A session with one server: its inspection, the differences between runs, and signals."""

from __future__ import annotations

import signal

import pytest

from tests.bench.stub.live import LiveStub
from tests.bench.stub.script import Script
from twofold.bench.client.loop import ClientOptions
from twofold.bench.client.target import ServerTarget
from twofold.bench.endpoints.endpoint import EndpointOptions
from twofold.bench.load.lengths import Fixed
from twofold.bench.load.synthetic import LoadPlan
from twofold.bench.study import Setup, connect, stopped_by_signals
from twofold.core.errors import AccessError, ContextLengthError, NotFoundError

PLAN = LoadPlan(concurrency=2, requests=4, input_tokens=Fixed(24), output_tokens=Fixed(4))


def setup(stub: LiveStub, *, model: str | None = None, endpoint: str = "chat", prompts: int = 0) -> Setup:
    options = EndpointOptions(model="", extra=Script(first_s=0.005).fields)
    return Setup(ServerTarget.of(stub.url), endpoint, model, options, ClientOptions(), prompts=prompts)


@pytest.mark.parametrize("endpoint", ["chat", "completions", "messages"])
def test_a_session_reads_the_models_and_sends_one_request(stub: LiveStub, endpoint: str) -> None:
    with connect(setup(stub, endpoint=endpoint)) as session:
        assert session.facts.model == "stub"
        assert session.facts.context == 32768
        assert session.prompter.describe()["exact"]
        assert len(stub.truths()) == 1
        record = session.run(PLAN.load)
    assert [sample.outcome for sample in record.samples] == ["ok"] * 4
    assert {sample.response.prompt_tokens for sample in record.samples} == {24}


def test_errors_come_before_the_first_request(stub: LiveStub) -> None:
    with pytest.raises(NotFoundError), connect(setup(stub, model="other")):
        pass
    with pytest.raises(ContextLengthError), connect(setup(stub), lengths=(32768, 1)):
        pass
    assert stub.truths() == {}
    stub.rules(key="sk")
    with pytest.raises(AccessError), connect(setup(stub)):
        pass


def test_each_run_has_prompts_of_its_own(stub: LiveStub) -> None:
    """Otherwise a run would find the prompts of the previous run in the server's cache. Equal seeds repeat prompts."""

    def prompts(seed: int) -> list[str]:
        with connect(setup(stub, prompts=seed)) as session:
            texts = []
            for _ in range(2):
                record = session.run(PLAN.load)
                texts.append(session.prompt(record.samples[0].ask)[0].text)
            return texts

    first, second = prompts(0)
    assert first.split()[1] != second.split()[1]  # behind the word that all begin with
    assert prompts(0) == [first, second]
    assert prompts(1)[0] not in (first, second)


def test_another_seed_of_a_run_has_other_arrivals(stub: LiveStub) -> None:
    plan = LoadPlan(rate=200, requests=4, input_tokens=Fixed(24), output_tokens=Fixed(2))
    with connect(setup(stub)) as session:
        dues = [
            [sample.ask.due_s for sample in session.run(plan.load, seed=seed).samples] for seed in (None, None, 0, 1)
        ]
    assert dues[0] == dues[1] == dues[2] != dues[3]


@pytest.mark.parametrize("number", [signal.SIGINT, signal.SIGTERM])
def test_the_first_signal_stops_and_the_second_ends(number: signal.Signals) -> None:
    before = signal.signal(number, signal.default_int_handler)
    stopped: list[bool] = []
    try:
        with stopped_by_signals(lambda: stopped.append(True)):
            signal.raise_signal(number)
            assert stopped == [True]
            with pytest.raises(KeyboardInterrupt):
                signal.raise_signal(number)
        assert signal.getsignal(number) is signal.default_int_handler
        assert stopped == [True]
    finally:
        signal.signal(number, before)
