"""Prompts have the requested lengths and shared prefixes, and otherwise differ as early as possible."""

from __future__ import annotations

import time

from hypothesis import given, settings
from hypothesis import strategies as st

from tests.bench.prompts.counters import AROUND, END, CharacterCounter, PairCounter, ToyCounter
from twofold.bench.load.base import Ask, PromptMessage, Shared
from twofold.bench.prompts.prompter import MAX_CALLS, START, WORDS, Prompter, find_units, make_prompter

TOY = make_prompter(ToyCounter().counter(), chat=True, seed=1)


def own_words(prompter: Prompter, ask: Ask) -> list[str]:
    return prompter(ask)[-1].text.removeprefix(START).split()


@settings(max_examples=60, deadline=None)
@given(
    index=st.integers(0, 1 << 40),
    tokens=st.integers(9, 3000),
    shares=st.lists(st.integers(0, 300), max_size=5),
    turns=st.integers(0, 3),
)
def test_prompts_have_the_requested_tokens(index: int, tokens: int, shares: list[int], turns: int) -> None:
    counter = ToyCounter()
    shared = tuple(Shared(key, share) for key, share in enumerate(shares))
    history: tuple[PromptMessage, ...] = ()
    before = 0
    for turn in range(turns + 1):
        ask = Ask(index + turn, 0.0, tokens, 1, shared=shared, history=history, turn=turn)
        messages = TOY(ask)
        assert counter.count(messages) == before + tokens
        history = (*messages, PromptMessage("assistant", "the answer said this"))
        before += tokens + 4


def test_the_same_request_is_the_same_prompt_in_any_order() -> None:
    asks = [Ask(index, 0.0, 50, 1, shared=(Shared(3, 10),)) for index in range(20)]
    again = make_prompter(ToyCounter().counter(), chat=True, seed=1)
    assert [TOY(ask) for ask in asks] == [again(ask) for ask in reversed(asks)][::-1]


def test_shared_pieces_are_equal_and_shorter_ones_begin_them() -> None:
    first = own_words(TOY, Ask(0, 0.0, 200, 1, shared=(Shared(5, 80), Shared(6, 20))))
    second = own_words(TOY, Ask(1, 0.0, 300, 1, shared=(Shared(5, 80), Shared(6, 15))))
    other = own_words(TOY, Ask(2, 0.0, 200, 1, shared=(Shared(7, 80),)))
    assert first[:95] == second[:95]
    assert first[95:110] != second[95:110]
    assert first[:80] != other[:80]


def test_own_parts_differ_from_the_first_unit_on_and_at_the_latest_from_the_second() -> None:
    starts = [own_words(TOY, Ask(index, 0.0, 40, 1))[:2] for index in range(2 * len(WORDS))]
    assert len({first for first, _ in starts[: len(WORDS)]}) == len(WORDS)
    assert len({tuple(start) for start in starts}) == len(starts)


def test_another_seed_makes_other_prompts() -> None:
    ask = Ask(0, 0.0, 60, 1, shared=(Shared(1, 20),))
    other = TOY.with_seed(2)
    assert own_words(TOY, ask)[:20] != own_words(other, ask)[:20]
    assert own_words(TOY, ask)[20:] != own_words(other, ask)[20:]
    assert TOY.with_seed(-1)(ask) == TOY.with_seed(-1)(ask)


def test_texts_of_a_trace_are_sent_unchanged() -> None:
    given_messages = (PromptMessage("system", "a"), PromptMessage("user", "b"))
    history = (PromptMessage("user", "before"),)
    assert TOY(Ask(0, 0.0, 999, 1, messages=given_messages, history=history)) == (*history, *given_messages)


def test_a_prompt_too_short_for_the_template_is_the_shortest() -> None:
    assert TOY.min_tokens == AROUND + END + 2
    assert TOY(Ask(0, 0.0, 1, 1, shared=(Shared(0, 1),))) == (PromptMessage("user", START),)


def test_a_plain_text_goes_on_without_a_template() -> None:
    counter = ToyCounter(chat=False)
    prompter = make_prompter(counter.counter(), chat=False, seed=0)
    first = prompter(Ask(0, 0.0, 30, 1))
    later = prompter(Ask(1, 0.0, 20, 1, history=(*first, PromptMessage("assistant", " so it is")), turn=1))
    assert counter.count(first) == 30
    assert counter.count(later) == 30 + 3 + 20
    assert later[-1].text[0] == " "
    assert prompter.recipe.exact


def test_words_of_several_tokens_are_left_out() -> None:
    counter = ToyCounter(split=frozenset(WORDS[3:600:50]))
    units = find_units(counter.counter())
    assert units.exact
    assert len(units.texts) > len(WORDS) // 2
    assert not {text.strip() for text in units.texts} & counter.split
    assert len(counter.asked) <= MAX_CALLS + 1


def test_a_vocabulary_without_words_is_served_with_characters() -> None:
    counter = CharacterCounter()
    prompter = make_prompter(counter.counter(), chat=True, seed=0)
    assert prompter.recipe.exact
    assert len(counter.asked) < 20  # it is soon clear that words will not do
    assert counter.count(prompter(Ask(5, 0.0, 77, 1))) == 77


def test_where_nothing_has_one_token_prompts_are_about_as_long() -> None:
    counter = PairCounter()
    prompter = make_prompter(counter.counter(), chat=True, seed=0)
    assert not prompter.recipe.exact
    count = counter.count(prompter(Ask(5, 0.0, 1000, 1)))
    assert count is not None
    assert abs(count - 1000) < 50


def test_without_a_counter_a_word_is_a_token() -> None:
    prompter = make_prompter(None, chat=True, seed=0)
    assert not prompter.recipe.exact
    assert prompter.describe()["exact"] is False
    assert len(prompter(Ask(0, 0.0, 40, 1))[0].text.split()) == 40


def test_a_counter_that_fails_for_long_prompts_is_still_believed() -> None:
    assert make_prompter(ToyCounter(most=400).counter(), chat=True, seed=0).recipe.exact


def test_trials_that_are_not_as_long_as_asked_are_said() -> None:
    class Odd(ToyCounter):
        def of(self, text: str) -> int:
            return super().of(text) + (len(text) > 4000)

    assert not make_prompter(Odd().counter(), chat=True, seed=0).recipe.exact


def test_a_prompt_is_made_in_little_time() -> None:
    TOY(Ask(0, 0.0, 1000, 1))
    spent = []
    for index in range(1, 30):
        begun = time.thread_time()
        TOY(Ask(index, 0.0, 1000, 1))
        spent.append(time.thread_time() - begun)
    assert min(spent) < 0.003  # ten times what it takes
