"""What the engine is asked for by each case, counted on the mock model."""

from __future__ import annotations

import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from tests.bench.phases.conftest import MakeBed
from twofold.bench.phases.cases import Case, Decode, Mixed, Prefill, Prefix
from twofold.bench.phases.report import DecodeRow, MixedRow, PrefillRow, PrefixRow
from twofold.core.errors import ResourceError


def test_a_prompt_is_computed_whole_in_every_round(make_bed: MakeBed) -> None:
    bed = make_bed(rounds=3)
    row = bed.bench.measure(Prefill(150))
    assert isinstance(row, PrefillRow)
    assert bed.forward.rows == [64, 64, 22] * 3
    assert (row.steps, row.seconds.rounds) == (3, 3)
    assert row.seconds.least <= row.seconds.median <= row.seconds.most
    assert row.step.prefill_rows == 50
    assert row.tok_s == 150 / row.seconds.median
    assert bed.idle


def test_a_prefix_is_found_but_for_its_end(make_bed: MakeBed) -> None:
    bed = make_bed(rounds=2)
    row = bed.bench.measure(Prefix(60, 10))
    assert isinstance(row, PrefixRow)
    assert bed.forward.rows == [60, 60 - row.cached] * 2
    assert 50 - 3 <= row.cached <= 50  # whole blocks of four
    assert row.miss.rounds == row.seconds.rounds == 2
    assert bed.idle


def test_every_sequence_gets_a_token_in_every_step_that_counts(make_bed: MakeBed) -> None:
    bed = make_bed(rounds=3)
    row = bed.bench.measure(Decode(5, 40, 12))
    assert isinstance(row, DecodeRow)
    assert row.steps == 36
    assert (row.step.decode_rows, row.step.prefill_rows) == (5, 0)
    assert row.seconds.rounds == 3
    assert row.p99_s >= row.seconds.median
    assert row.tok_s == 5 / row.seconds.median
    assert bed.idle


def test_all_begin_together(make_bed: MakeBed) -> None:
    bed = make_bed(rounds=1)
    bed.bench.measure(Decode(4, 60, 3))
    prompts, ends, first, counted = [64, 64, 64, 48], [4], [4], [4, 4, 4]
    assert bed.forward.rows == [*prompts, *ends, *first, *counted]


def test_prompts_of_those_who_generate_are_computed_once(make_bed: MakeBed) -> None:
    bed = make_bed(rounds=3)
    bed.bench.measure(Decode(4, 40, 4))
    bed.bench.measure(Decode(4, 80, 4))
    computed = sum(bed.forward.rows)
    decoded = 2 * 3 * 4 * (4 + 3)  # rounds of steps, each with a few more at its beginning
    assert computed < 4 * 80 + decoded + 2 * 4 * 4 * 4  # and what is left of a block, again in each round


def test_without_a_prefix_cache_they_are_computed_in_every_round(make_bed: MakeBed) -> None:
    bed = make_bed(rounds=2, caching=False)
    row = bed.bench.measure(Decode(4, 40, 6))
    assert isinstance(row, DecodeRow)
    assert row.steps == 12
    assert sum(bed.forward.rows) >= 2 * 4 * (40 + 6)


def test_prompts_come_in_beside_those_who_generate(make_bed: MakeBed) -> None:
    bed = make_bed(rounds=3)
    row = bed.bench.measure(Mixed(4, 20, 100))
    assert isinstance(row, MixedRow)
    assert row.steps == 2
    assert row.step.decode_rows == 4
    assert row.step.prefill_rows == 50
    assert bed.forward.rows.count(64) >= 3  # a full step of each round's prompt
    assert row.ttft.rounds == row.alone.rounds == row.seconds.rounds == 3
    assert row.slower == row.seconds.median / row.alone.median
    assert bed.idle


def test_a_start_is_the_first_token_of_all(make_bed: MakeBed) -> None:
    bed = make_bed()
    start = bed.bench.start()
    assert start is not None
    assert start.tokens == bed.forward.rows[0] == 32
    assert start.first_token_s > 0
    assert bed.idle


@pytest.mark.parametrize(
    "case", [Prefill(20), Prefix(70), Decode(3, 20, 5), Mixed(3, 20, 30)], ids=lambda case: case.phase
)
def test_whole_rounds_survive_a_stop(make_bed: MakeBed, case: Case) -> None:
    rounds: list[int] = []
    while 3 not in rounds:
        bed = make_bed(rounds=3, turns=len(rounds))
        row = bed.bench.measure(case)
        rounds.append(0 if row is None else row.seconds.rounds)
        assert bed.idle
        assert len(rounds) < 200
    assert rounds == sorted(rounds)
    assert set(rounds) == {0, 1, 2, 3}


def test_nothing_starts_once_it_is_stopped(make_bed: MakeBed) -> None:
    bed = make_bed(turns=0)
    assert bed.bench.start() is None
    assert bed.forward.rows == []


@pytest.mark.parametrize(
    ("case", "why"),
    [
        (Prefill(256), "it takes 257 tokens of context, and the model has 256"),
        (Decode(9, 20, 4), "it takes 9 sequences at once, and a step has room for 8"),
        (Mixed(8, 20, 4), "it takes 9 sequences at once, and a step has room for 8"),
        (Decode(8, 60, 100), "the KV cache does not hold its 1,368 tokens"),
    ],
)
def test_what_stands_in_the_way_is_said(make_bed: MakeBed, case: Case, why: str) -> None:
    bed = make_bed(blocks=300)
    assert bed.bench.obstacle(case) == why


def test_sequences_that_never_run_at_once_are_an_error(make_bed: MakeBed) -> None:
    bed = make_bed(seqs=3)
    with pytest.raises(ResourceError, match="4 sequences did not run at once"):
        bed.bench.measure(Decode(4, 20, 4))
    assert bed.idle


CASES = st.one_of(
    st.builds(Prefill, st.integers(1, 255)),
    st.integers(2, 255).flatmap(lambda tokens: st.builds(Prefix, st.just(tokens), st.integers(1, tokens - 1))),
    st.builds(Decode, st.integers(1, 8), st.integers(1, 120), st.integers(1, 12)),
    st.builds(Mixed, st.integers(1, 8), st.integers(1, 120), st.integers(1, 200)),
)


@settings(max_examples=40, deadline=None, suppress_health_check=[HealthCheck.function_scoped_fixture])
@given(case=CASES, rows=st.sampled_from([8, 12, 64]), blocks=st.sampled_from([80, 200, 800]), caching=st.booleans())
def test_what_has_no_obstacle_is_measured(
    make_bed: MakeBed, case: Case, rows: int, blocks: int, *, caching: bool
) -> None:
    bed = make_bed(rounds=2, rows=rows, blocks=blocks, caching=caching)
    if bed.bench.obstacle(case) is None:
        row = bed.bench.measure(case)
        assert row is not None
        assert row.seconds.rounds == 2
        assert row.case == case
    assert bed.idle
