"""The offline API: forms of prompts, errors, streaming, metrics, closing."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import numpy as np
import pytest

from tests.engine.conftest import VOCAB, MakeLLM
from tests.engine.mock import MockForward, hash_logits
from tests.support.clock import VirtualClock
from twofold.core.errors import ContextLengthError, ParameterError, TwofoldError, UsageError
from twofold.core.params import SamplingParams
from twofold.engine.engine import Engine
from twofold.engine.llm import LLM
from twofold.text.tokenizers.tokenizer import Tokenizer

GREEDY = SamplingParams(temperature=0, max_tokens=4, ignore_eos=True)


def test_forms_of_prompts(make_llm: MakeLLM, tokenizer: Tokenizer) -> None:
    llm = make_llm()
    ids = tokenizer.encode("hello the")
    outputs = llm.generate(["hello the", {"prompt": "hello the"}, {"prompt_token_ids": ids}], GREEDY)
    assert len({output.outputs[0].token_ids for output in outputs}) == 1
    assert [output.prompt for output in outputs] == ["hello the", "hello the", None]
    assert all(output.prompt_token_ids == tuple(ids) and output.finished for output in outputs)
    assert len({output.request_id for output in outputs}) == 3
    assert llm.generate("hello the", GREEDY)[0].outputs == outputs[0].outputs
    assert llm.generate([], GREEDY) == []
    assert llm.get_tokenizer() is tokenizer


@pytest.mark.parametrize(
    "prompt",
    [
        [1, 2, 3],
        5,
        None,
        {"prompt": 5},
        {"prompt_token_ids": "abc"},
        {"prompt_token_ids": [VOCAB]},
        {"prompt_token_ids": [-1]},
        {"prompt_token_ids": [1.5]},
        {"prompt_token_ids": []},
        {"prompt": "a", "prompt_token_ids": [1]},
        {},
        "",
    ],
    ids=str,
)
def test_impossible_prompts(make_llm: MakeLLM, prompt: Any) -> None:
    with pytest.raises(ParameterError):
        make_llm().generate(prompt, GREEDY)


def test_the_error_of_an_unknown_prompt_field_names_the_closest(make_llm: MakeLLM) -> None:
    with pytest.raises(ParameterError) as caught:
        make_llm().generate({"promt": "x"}, GREEDY)  # type: ignore[arg-type]
    assert caught.value.hint == "Did you mean 'prompt'?"


def test_a_prompt_that_fills_the_context(make_llm: MakeLLM) -> None:
    llm = make_llm(context=16)
    with pytest.raises(ContextLengthError, match=r"16 tokens.* context of 16"):
        llm.generate({"prompt_token_ids": [5] * 16}, GREEDY)
    output = llm.generate({"prompt_token_ids": [5] * 15}, GREEDY)[0].outputs[0]
    assert (len(output.token_ids), output.finish_reason) == (1, "length")


@pytest.mark.parametrize("params", [{"logit_bias": {VOCAB: 1}}, {"stop_token_ids": [VOCAB]}])
def test_token_ids_of_parameters_are_checked(make_llm: MakeLLM, params: dict[str, Any]) -> None:
    with pytest.raises(ParameterError, match=f"vocabulary of {VOCAB}"):
        make_llm().generate("x", SamplingParams(**params))


def test_nothing_runs_when_one_prompt_is_impossible(make_llm: MakeLLM) -> None:
    llm = make_llm()
    with pytest.raises(ParameterError):
        llm.generate(["fine", ""], GREEDY)
    assert not llm.engine.has_work
    runner: Any = llm.loaded.runner
    assert runner.forward.batches == 0


def test_one_params_for_each_prompt(make_llm: MakeLLM) -> None:
    llm = make_llm()
    params = [SamplingParams(max_tokens=n, ignore_eos=True) for n in (1, 3)]
    assert [len(o.outputs[0].token_ids) for o in llm.generate(["a", "b"], params)] == [1, 3]
    assert len(llm.generate("a")[0].outputs[0].token_ids) <= 16
    for wrong in ([GREEDY], {"temperature": 0}, [1, 2]):
        with pytest.raises(ParameterError) as caught:
            llm.generate(["a", "b"], wrong)  # type: ignore[arg-type]
        assert caught.value.param == "sampling_params"


def test_chat_uses_the_template(make_llm: MakeLLM, tokenizer: Tokenizer) -> None:
    llm = make_llm()
    messages = [{"role": "user", "content": "hi"}]
    (output,) = llm.chat(messages, GREEDY)
    assert tokenizer.decode(output.prompt_token_ids) == "user: hi\n"
    assert [o.outputs for o in llm.chat([messages, messages], GREEDY)] == [output.outputs] * 2
    with pytest.raises(TwofoldError):
        llm.chat([], GREEDY)


def test_prompt_logprobs(make_llm: MakeLLM) -> None:
    ids = [7, 20, 33, 46]
    output = make_llm(rows=8, logit_rows=8).generate(
        {"prompt_token_ids": ids}, SamplingParams(max_tokens=1, prompt_logprobs=2, temperature=0, n=2)
    )[0]
    assert output.prompt_logprobs is not None
    assert output.prompt_logprobs[0] is None
    assert len(output.prompt_logprobs) == 4
    for place, position in enumerate(output.prompt_logprobs[1:], start=1):
        assert position is not None
        logits = hash_logits(np.array(ids[:place]), VOCAB).astype(np.float64)
        exact = logits - np.log(np.exp(logits).sum())
        order = np.argsort(-logits).tolist()
        assert position[ids[place]].logprob == pytest.approx(exact[ids[place]], abs=1e-5)
        assert position[ids[place]].rank == order.index(ids[place]) + 1
        assert set(position) == {ids[place], *order[:2]}


def test_streams_can_be_interleaved_with_each_other_and_with_batches(make_llm: MakeLLM) -> None:
    llm = make_llm()
    params = SamplingParams(max_tokens=6, seed=1, ignore_eos=True)
    expected = [llm.generate(prompt, params)[0].outputs[0] for prompt in ("a", "b", "c")]
    streams = [llm.stream(prompt, params) for prompt in ("a", "b")]
    first = [next(stream) for stream in streams]
    assert llm.generate("c", params)[0].outputs[0] == expected[2]
    for head, stream, whole in zip(first, streams, expected, strict=False):
        deltas = [head, *stream]
        assert sum((delta.token_ids for delta in deltas), ()) == whole.token_ids
        assert [delta.finish_reason for delta in deltas] == [None] * (len(deltas) - 1) + ["length"]
        assert deltas[-1].request is not None
        assert deltas[-1].request.outputs == (whole,)


def test_a_stream_checks_at_once_and_takes_one_prompt(make_llm: MakeLLM) -> None:
    llm = make_llm()
    with pytest.raises(ParameterError, match="empty"):
        llm.stream("")
    with pytest.raises(ParameterError, match="one prompt"):
        llm.stream(["a", "b"])  # type: ignore[arg-type]
    llm.stream("never started", GREEDY)
    assert not llm.engine.has_work


def test_leaving_a_stream_frees_everything(make_llm: MakeLLM) -> None:
    llm = make_llm()
    stream = llm.stream("hello", SamplingParams(max_tokens=40, n=3, ignore_eos=True))
    next(stream)
    assert llm.engine.has_work
    stream.close()  # type: ignore[attr-defined] # a generator
    assert not llm.engine.has_work
    llm.engine.check_idle()


def queue(engine: Engine, prompt: str, params: SamplingParams) -> str:
    """Queues a request with the id "mine"."""
    return engine.add(replace(engine.request(prompt, params), request_id="mine"))


def test_abort_returns_the_output_of_a_request(make_llm: MakeLLM) -> None:
    engine = make_llm().engine
    request_id = queue(engine, "hello", SamplingParams(max_tokens=40, n=2, ignore_eos=True))
    for _ in range(3):
        engine.step()
    output = engine.abort(request_id)
    assert output is not None
    assert (output.request_id, output.finished) == ("mine", True)
    assert [o.finish_reason for o in output.outputs] == ["abort", "abort"]
    assert [len(o.token_ids) for o in output.outputs] == [3, 2]  # the second shares the first one's prompt
    assert engine.abort(request_id) is None


def test_a_request_id_is_taken_once(make_llm: MakeLLM) -> None:
    engine = make_llm().engine
    queue(engine, "a", GREEDY)
    with pytest.raises(ParameterError, match="in use"):
        queue(engine, "b", GREEDY)
    engine.abort("mine")


def test_after_a_failing_step_the_engine_holds_nothing(make_llm: MakeLLM) -> None:
    mock = MockForward(vocab=VOCAB, blocks=128)
    llm = make_llm(forward=mock)
    expected = llm.generate("hello", GREEDY)[0].outputs
    mock.failing = True
    with pytest.raises(RuntimeError, match="told to fail"):
        llm.generate(["hello", "there"], GREEDY)
    llm.engine.check_idle()
    assert not llm.engine.has_work
    mock.failing = False
    assert llm.generate("hello", GREEDY)[0].outputs == expected


def test_a_request_larger_than_the_cache_is_refused(make_llm: MakeLLM) -> None:
    llm = make_llm(blocks=3)
    with pytest.raises(ContextLengthError, match="holds 12"):
        llm.generate("hello", SamplingParams(max_tokens=30))
    assert len(llm.generate("hello", GREEDY)[0].outputs[0].token_ids) == 4


class TickingForward(MockForward):
    """Takes a second of a virtual clock for each step."""

    def __init__(self, clock: VirtualClock, **sizes: int) -> None:
        super().__init__(**sizes)
        self._clock = clock

    def run(self, batch: Any) -> Any:
        self._clock.advance(1.0)
        return super().run(batch)


def test_metrics_by_phase(make_llm: MakeLLM) -> None:
    clock = VirtualClock(100.0)
    forward = TickingForward(clock, vocab=VOCAB, blocks=128, max_rows=4, max_logit_rows=4)
    llm = make_llm(forward=forward, clock=clock, seqs=1, rows=4)
    params = SamplingParams(max_tokens=3, ignore_eos=True, temperature=0)
    first, second = llm.generate([{"prompt_token_ids": [5] * 10}, {"prompt_token_ids": [6] * 2}], params)
    one, two = first.metrics, second.metrics
    assert (one.queue_s, one.prefill_s, one.decode_s) == (0, 3, 2)
    assert (one.arrival, one.first_scheduled, one.first_token, one.finished) == (100, 100, 103, 105)
    assert one.token_times == ((103, 104, 105),)
    assert (two.queue_s, two.prefill_s, two.decode_s) == (5, 1, 2)
    assert (two.ttft_s, two.tpot_s) == (6, 1)
    assert (one.prompt_tokens, one.cached_tokens, one.fresh_tokens, one.output_tokens) == (10, 0, 10, 3)


def test_metrics_of_a_request_that_never_ran(make_llm: MakeLLM) -> None:
    clock = VirtualClock()
    engine = make_llm(clock=clock).engine
    queue(engine, "a", GREEDY)
    clock.advance(2.0)
    output = engine.abort("mine")
    assert output is not None
    metrics = output.metrics
    assert (metrics.queue_s, metrics.prefill_s, metrics.decode_s) == (2, 0, 0)
    assert (metrics.ttft_s, metrics.tpot_s) == (None, None)


def test_closing(make_llm: MakeLLM) -> None:
    with make_llm() as llm:
        stream = llm.stream("hello", SamplingParams(max_tokens=40, ignore_eos=True))
        next(stream)
    for use in (lambda: llm.generate("a"), lambda: llm.stream("a"), lambda: next(stream)):
        with pytest.raises(UsageError, match="closed"):
            use()
    llm.close()
    llm.engine.check_idle()


def test_keywords_of_the_constructor_are_checked_before_anything_is_loaded() -> None:
    with pytest.raises(ParameterError) as caught:
        LLM(model="x", max_num_seq=3)  # type: ignore[call-arg]
    assert caught.value.hint == "Did you mean 'max_num_seqs'?"
    with pytest.raises(ParameterError, match="true or false"):
        LLM(model="x", enable_prefix_caching="yes")  # type: ignore[arg-type]
    with pytest.raises(ParameterError) as caught:
        LLM(model="x", kv_cache_dtype="f61")
    assert caught.value.hint == "Did you mean 'f16'?"
