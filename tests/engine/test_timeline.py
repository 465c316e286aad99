"""The timeline of a request: when, in which step and how each token was made, and who else was in the step."""

from __future__ import annotations

from collections import Counter
from itertools import pairwise
from random import Random

import pytest

from tests.engine.conftest import MakeLLM
from tests.engine.drafts import KINDS, Kind, Recorder, Scripted, use
from twofold.core.params import SamplingParams, StructuredOutputsParams
from twofold.core.report import RequestMetrics, StepReport
from twofold.core.request import EngineRequest, RequestOptions
from twofold.core.timeline import origins
from twofold.engine.llm import LLM
from twofold.engine.outputs import OutputDelta

TRACED = RequestOptions(timeline=True)
FORMS = (r"[a-f]{2,5}-\d\d", r"[0-9]{3}:7=[0-9]")


class Log:
    """The reports of an engine's steps, by number."""

    def __init__(self, llm: LLM) -> None:
        self.steps: dict[int, StepReport] = {}
        llm.engine.observe(self)

    def on_step(self, report: StepReport) -> None:
        self.steps[report.number] = report

    def on_request(self, report: RequestMetrics) -> None:
        """Deltas have it."""


def run(llm: LLM, asked: list[EngineRequest]) -> list[list[OutputDelta]]:
    """The deltas of each request; all run at once."""
    names = [llm.engine.add(request) for request in asked]
    deltas: list[OutputDelta] = []
    while llm.engine.has_work:
        deltas += llm.engine.step()
    return [[delta for delta in deltas if delta.request_id == name] for name in names]


def random_request(llm: LLM, chance: Random, *, stops: bool) -> EngineRequest:
    form = StructuredOutputsParams(regex=chance.choice(FORMS)) if chance.random() < 0.3 else None
    params = SamplingParams(
        max_tokens=chance.randint(10, 16),
        n=chance.randint(1, 3),
        seed=chance.randrange(1000),
        stop=chance.choice((["a"], ["e", "t"])) if stops and form is None else [],
        structured_outputs=form,
    )
    return llm.engine.request(tuple(chance.randrange(1, 200) for _ in range(chance.randint(1, 30))), params, TRACED)


@pytest.mark.parametrize("kind", KINDS)
@pytest.mark.parametrize("seed", range(6))
def test_deltas_timeline_and_step_reports_agree(make_llm: MakeLLM, kind: Kind, seed: int) -> None:
    """Whatever runs together, however it is drafted, chunked, preempted or stopped."""
    chance = Random(seed)
    llm = make_llm(seqs=4, rows=12, blocks=chance.choice((24, 64)))
    recorder = Recorder()
    use(llm, recorder)
    stops = seed % 2 == 0
    asked = [random_request(llm, chance, stops=stops) for _ in range(5)]
    expected = [deltas[-1].request for deltas in run(llm, asked)]
    scripted = Scripted(kind, recorder.found, 300, seed=seed)
    use(llm, scripted)
    log = Log(llm)
    rows: Counter[int] = Counter()
    for deltas, before in zip(run(llm, asked), expected, strict=True):
        output = deltas[-1].request
        assert output is not None
        assert before is not None
        assert output.outputs == before.outputs
        report, timeline = output.metrics, output.metrics.timeline
        assert timeline is not None
        for index, completion in enumerate(output.outputs):
            mine = [delta for delta in deltas if delta.index == index and delta.token_ids]
            made = [(delta.made, len(delta.token_ids)) for delta in mine if delta.made is not None]
            assert len(made) == len(mine)
            assert all(len(each.origins) == count for each, count in made)
            assert "".join(each.origins for each, _ in made) == timeline.origins[index]
            assert tuple(each.step for each, count in made for _ in range(count)) == timeline.token_steps[index]
            times = tuple(each.at_s for each, count in made for _ in range(count))
            assert times == tuple(at - report.arrival for at in report.token_times[index])
            assert len(times) == len(completion.token_ids)
        steps, record = timeline.steps, report.record
        assert steps.number == sorted(set(steps.number))
        assert set().union(*timeline.token_steps) <= set(steps.number)
        assert sum(steps.own_prompt_rows) == record.prefill.rows
        assert sum(steps.own_answer_rows) == record.decode.rows
        for place, number in enumerate(steps.number):
            step = log.steps[number]
            assert (steps.prompt_rows[place], steps.answer_rows[place]) == (step.prefill_rows, step.decode_rows)
            assert steps.seconds[place] == step.seconds
            assert steps.ended_s[place] == pytest.approx(step.ended - report.arrival, abs=1e-6)
            rows[number] += steps.own_prompt_rows[place] + steps.own_answer_rows[place]
    computed = Counter({number: step.prefill_rows + step.decode_rows for number, step in log.steps.items()})
    assert rows <= computed
    if not stops:  # a stop string may end a sequence while its rows are computed; no request counts them
        assert rows == computed
    if kind == "right":
        assert scripted.accepted > 10


def test_forced_tokens_are_those_that_the_grammar_left_no_choice_of(make_llm: MakeLLM) -> None:
    llm = make_llm()
    params = SamplingParams(max_tokens=12, structured_outputs=StructuredOutputsParams(regex=FORMS[1]), seed=1)
    request = llm.engine.request((40, 41), params, TRACED)
    (deltas,) = run(llm, [request])
    output = deltas[-1].request
    assert output is not None
    assert output.metrics.timeline is not None
    text, found = output.outputs[0].text, output.metrics.timeline.origins[0]
    assert len(text) == len("123:7=4"), "each character is a token of its own"
    assert found[: len(text)] == "dddgggd"


def test_accepted_drafts_differ_from_sampled_tokens(make_llm: MakeLLM) -> None:
    llm = make_llm()
    recorder = Recorder()
    use(llm, recorder)
    request = llm.engine.request((40, 41), SamplingParams(max_tokens=16, seed=1, ignore_eos=True), TRACED)
    (plain,) = run(llm, [request])
    assert "".join(delta.made.origins for delta in plain if delta.made) == "d" * 16
    scripted = Scripted("right", recorder.found, 300)
    use(llm, scripted)
    (drafted,) = run(llm, [request])
    letters = [delta.made.origins for delta in drafted if delta.made]
    assert all(each == "s" * (len(each) - 1) + "d" for each in letters)
    assert sum(map(len, letters)) == 16
    assert "".join(letters).count("s") == scripted.accepted > 0


def test_letters_follow_the_outcome_of_a_step() -> None:
    assert [origins(1, 1), origins(4, 4), origins(4, 2), origins(3, 3, [0, 2])] == ["d", "sssd", "ss", "gsg"]


def test_nothing_is_noted_unless_the_request_asks(make_llm: MakeLLM) -> None:
    llm = make_llm()
    (deltas,) = run(llm, [llm.engine.request((40, 41), SamplingParams(max_tokens=4), RequestOptions())])
    assert all(delta.made is None for delta in deltas)
    assert deltas[-1].request is not None
    assert deltas[-1].request.metrics.timeline is None


def test_an_engine_reports_the_progress_of_a_prompt(make_llm: MakeLLM) -> None:
    engine = make_llm(seqs=1, rows=8).engine
    names = [
        engine.add(
            engine.request((number, *range(1, 30)), SamplingParams(max_tokens=2, ignore_eos=True), RequestOptions())
        )
        for number in (40, 41, 42)
    ]
    progress = [engine.progress([*names, "unknown"])]
    while engine.has_work:
        engine.step()
        progress.append(engine.progress(names))
    assert {name: one.ahead for name, one in progress[0].items()} == {name: place for place, name in enumerate(names)}
    for name in names:
        mine = [one for each in progress if (one := each.get(name)) is not None]
        assert all(one.of == 30 for one in mine)
        assert all(before.done <= after.done for before, after in pairwise(mine))
        assert len({one.done for one in mine if one.ahead is None}) > 1
    assert progress[-1] == {}
