"""What is proposed for one sequence, and what is learned from the tokens that were sampled."""

from __future__ import annotations

from array import array
from collections.abc import Sequence

import pytest

from twofold.engine.draft.drafter import SURE_MATCH, SequenceDrafter
from twofold.engine.draft.index import PastTexts
from twofold.engine.draft.odds import CLASSES, FORCED, OWN, PAST, PREDICTED, PRIOR, REALIGNED, Odds, class_of

PROMPT = array("i", range(100, 140))


def drafter_of(tokens: array[int], prediction: Sequence[int] = (), past: PastTexts | None = None) -> SequenceDrafter:
    drafter = SequenceDrafter(prediction, past or PastTexts(100), Odds())
    drafter.feed(tokens, len(tokens))
    return drafter


def run(drafter: SequenceDrafter, tokens: array[int], completion: Sequence[int], most: int) -> tuple[int, int]:
    """Generates a completion with at most ``most`` drafts in a step. Returns the steps and the drafts."""
    done = steps = drafted = 0
    while done < len(completion):
        proposal = drafter.propose(tokens)
        drafts = [] if proposal is None else list(proposal.tokens(min(most, len(completion) - done - 1)))
        sampled = []
        for index in range(len(drafts) + 1):
            sampled.append(completion[done + index])
            if index == len(drafts) or drafts[index] != sampled[-1]:
                break
        if proposal is None:
            drafter.lose()
        else:
            drafter.learn(proposal, sampled)
        tokens.extend(sampled)
        drafter.feed(tokens, len(sampled))
        done += len(sampled)
        drafted += len(drafts)
        steps += 1
    return steps, drafted


def test_a_true_prediction_needs_one_step_for_all_its_drafts() -> None:
    completion = list(range(1, 65))
    assert run(drafter_of(PROMPT[:], completion), PROMPT[:], completion, 15) == (4, 60)


def test_a_prediction_is_resumed_after_a_replaced_token() -> None:
    prediction = list(range(1, 65))
    completion = [*prediction[:20], 999, *prediction[21:]]
    assert run(drafter_of(PROMPT[:], prediction), PROMPT[:], completion, 15)[0] == 5


def test_a_prediction_is_found_again_after_other_tokens() -> None:
    prediction = list(range(1, 65))
    completion = [*prediction[:20], 990, 991, 992, 993, *prediction[24:]]
    steps, _ = run(drafter_of(PROMPT[:], prediction), PROMPT[:], completion, 15)
    assert steps <= 11


def test_a_text_of_the_prompt_is_followed_once_two_tokens_agree() -> None:
    tokens = PROMPT[:]
    steps, _ = run(drafter_of(tokens), tokens, [7, *PROMPT[10:30], 8], 31)
    assert steps <= 6


def test_past_completions_are_proposed_and_own_text_of_the_same_length_goes_first() -> None:
    past = PastTexts(100)
    past.add([1, 2, 3, 4, 5])
    tokens = array("i", [9, 9, 1, 2, 3])
    proposal = drafter_of(tokens, past=past).propose(tokens)
    assert proposal is not None
    assert (list(proposal.tokens(5)), proposal.kind, proposal.length) == ([4, 5], PAST, 3)
    tokens = array("i", [1, 2, 3, 8, 9, 1, 2, 3])
    proposal = drafter_of(tokens, past=past).propose(tokens)
    assert proposal is not None
    assert (proposal.tokens(1)[0], proposal.kind) == (8, OWN)


def test_forced_tokens_go_before_weak_matches_and_after_strong_ones() -> None:
    tokens = array("i", [1, 2, 5, 6, 1, 2])
    drafter = drafter_of(tokens)
    proposal = drafter.propose(tokens, [7, 8])
    assert proposal is not None
    assert (list(proposal.tokens(9)), proposal.kind) == ([7, 8], FORCED)
    long = array("i", [*range(20), 77, *range(20)])
    drafter = drafter_of(long)
    for _ in range(30):
        drafter.odds.learn(class_of(OWN, SURE_MATCH), 1, 0)
        drafter.odds.learn(class_of(OWN, 20), 1, 0)
    proposal = drafter.propose(long, [7])
    assert proposal is not None
    assert proposal.tokens(1)[0] == 77


def test_odds_follow_what_was_sampled_whether_or_not_it_was_drafted() -> None:
    tokens = array("i", [*range(20), 77, 78, *range(20)])
    drafter = drafter_of(tokens)
    proposal = drafter.propose(tokens)
    assert proposal is not None
    kind = proposal.kind_at(0)
    before = drafter.odds.chances[kind]
    drafter.learn(proposal, [77])
    assert drafter.odds.chances[kind] > before
    proposal = drafter.propose(array("i", [*tokens, 77]))
    assert proposal is not None
    assert proposal.tokens(1)[0] == 78
    drafter.learn(proposal, [5])
    assert drafter.odds.chances[kind] < before


def test_odds_are_inherited_as_little_evidence() -> None:
    salt = Odds()
    for _ in range(200):
        salt.learn(PREDICTED, 0, 1)
    own = Odds(salt)
    assert own.chances == pytest.approx(salt.chances)
    for _ in range(8):
        own.learn(PREDICTED, 1, 0)
        salt.learn(PREDICTED, 1, 0)
    assert own.chances[PREDICTED] > 0.5 > salt.chances[PREDICTED]


def test_every_class_has_its_place() -> None:
    assert len(PRIOR) == CLASSES
    classes = [class_of(kind, length) for kind in (OWN, PAST) for length in (2, 3, 4, 5, 8, 9, 50)]
    assert sorted({FORCED, PREDICTED, REALIGNED, *classes}) == [0, 1, 2, *range(OWN, CLASSES)]
