"""A KV store: what it writes and loads, that it changes no completion, and what it does with damaged files."""

from __future__ import annotations

import os
import resource
import shutil
import time
from pathlib import Path
from random import Random
from typing import Any

import pytest

from tests.engine.conftest import VOCAB, MakeLLM
from tests.support.tiny import TinyOptions
from twofold.cli.chat.phases import phase_line
from twofold.core.errors import ParameterError, ResourceError
from twofold.core.params import SamplingParams
from twofold.core.record import WaitReason
from twofold.core.report import StoreCounts
from twofold.core.request import CachePin, RequestOptions
from twofold.engine.kv.segments import SEGMENT_TOKENS, SegmentIndex
from twofold.engine.kv_folder import STAGED
from twofold.engine.llm import LLM
from twofold.engine.outputs import RequestOutput
from twofold.engine.prompts import TokensPrompt
from twofold.engine.scheduler.loading import PrefixLoading
from twofold.host.settings import parse_toml
from twofold.observe.billing import PriceSheet, TokenUsage, make_bill

GREEDY = SamplingParams(temperature=0, max_tokens=6, ignore_eos=True, logprobs=1)
SHAPE: dict[str, Any] = {"block_size": 16, "blocks": 160, "context": 2048, "rows": 512}


@pytest.fixture(autouse=True)
def always_loads(monkeypatch: pytest.MonkeyPatch) -> None:
    """Whether a load pays depends on measured times, which these tests do not."""
    monkeypatch.setattr(PrefixLoading, "_compute_s", lambda *_: None)


def prompt(seed: int, tokens: int) -> TokensPrompt:
    chance = Random(seed)
    return {"prompt_token_ids": [chance.randrange(3, VOCAB) for _ in range(tokens)]}


def ask(llm: LLM, seed: int, tokens: int, salt: str = "", params: SamplingParams = GREEDY) -> RequestOutput:
    return llm.generate(prompt(seed, tokens), params, options=RequestOptions(cache_salt=salt))[0]


def said(output: RequestOutput) -> object:
    return [(each.token_ids, each.logprobs) for each in output.outputs]


def counts(llm: LLM) -> StoreCounts:
    assert llm.engine.scheduler.store is not None
    return llm.engine.scheduler.store.snapshot()


def segments(store: Path) -> list[Path]:
    return sorted(store.rglob("*.kv"))


def turn(llm: LLM) -> None:
    """Lets saves end."""
    while llm.engine.has_work:
        llm.client.turn()


# -- what is written and loaded --------------------------------------------------------------------------------------


def test_a_restart_loads_what_the_last_process_computed(make_llm: MakeLLM, tmp_path: Path) -> None:
    first = make_llm(store=tmp_path / "kv", **SHAPE)
    cold = ask(first, 1, 1000)
    assert (cold.metrics.cached_tokens, cold.metrics.record.loaded) == (0, 0)
    first.close()
    assert len(segments(tmp_path / "kv")) == 3
    second = make_llm(store=tmp_path / "kv", **SHAPE)
    warm = ask(second, 1, 1000)
    assert said(warm) == said(cold)
    assert (warm.metrics.cached_tokens, warm.metrics.record.loaded) == (768, 768)
    assert warm.metrics.record.stalls[WaitReason.LOADING] > 0
    again = ask(second, 1, 1000)
    assert said(again) == said(cold)
    assert (again.metrics.cached_tokens, again.metrics.record.loaded) == (992, 0)
    assert (counts(second).loads, counts(second).loaded, counts(second).bad) == (1, 768, 0)


def test_a_prompt_of_whole_segments_computes_one_token(make_llm: MakeLLM, tmp_path: Path) -> None:
    first = make_llm(store=tmp_path, **SHAPE)
    cold = ask(first, 1, 1024)
    first.close()
    second = make_llm(store=tmp_path, **SHAPE)
    warm = ask(second, 1, 1024)
    assert said(warm) == said(cold)
    assert warm.metrics.record.loaded == 1023


def test_a_prompt_is_written_when_its_request_ends(make_llm: MakeLLM, tmp_path: Path) -> None:
    llm = make_llm(store=tmp_path / "kv", **SHAPE)
    cold = ask(llm, 1, 600)
    turn(llm)
    assert len(segments(tmp_path / "kv")) == counts(llm).written == 2
    ask(llm, 1, 600)
    turn(llm)
    assert counts(llm).written == 2, "each segment is written once"
    shutil.copytree(tmp_path / "kv", tmp_path / "killed")  # what a process leaves that is killed now
    again = ask(make_llm(store=tmp_path / "killed", **SHAPE), 1, 600)
    assert (said(again), again.metrics.record.loaded) == (said(cold), 512)


def test_prompts_without_a_hit_fill_half_of_the_store_in_a_day(make_llm: MakeLLM, tmp_path: Path) -> None:
    llm = make_llm(store=tmp_path, store_bytes=8 * (SEGMENT_TOKENS * 8 + 2000), **SHAPE)
    written = []
    for seed in (1, 2, 3, 3, 4):
        ask(llm, seed, 600)
        turn(llm)
        written.append(counts(llm).written)
    assert written == [2, 4, 4, 6, 6], "a hit is written beyond that"
    llm.close()
    assert len(segments(tmp_path)) == 8, "and all at the end"


def test_prompts_below_a_segment_are_never_written(make_llm: MakeLLM, tmp_path: Path) -> None:
    llm = make_llm(store=tmp_path, **SHAPE)
    for _ in range(2):
        ask(llm, 1, SEGMENT_TOKENS - 8)
    llm.close()
    assert segments(tmp_path) == []


def test_without_a_store_nothing_is_written(make_llm: MakeLLM, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    llm = make_llm(**SHAPE)
    ask(llm, 1, 600)
    llm.close()
    assert list(tmp_path.iterdir()) == []


def test_another_salt_finds_nothing(make_llm: MakeLLM, tmp_path: Path) -> None:
    first = make_llm(store=tmp_path, **SHAPE)
    ask(first, 1, 600, "mine")
    first.close()
    second = make_llm(store=tmp_path, **SHAPE)
    other = ask(second, 1, 600, "yours")
    assert (other.metrics.cached_tokens, counts(second).loads) == (0, 0)
    assert WaitReason.LOADING not in other.metrics.record.stalls
    assert ask(second, 1, 600, "mine").metrics.record.loaded == 512


def test_what_others_stored_changes_no_step_of_a_miss(
    make_llm: MakeLLM, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Of the same prompt under another salt, of another prompt, and of an empty store: the caller's lookups, the files
    that are opened and the steps are the same, so the time does not show what others stored."""
    events: list[object] = []
    get, opened = SegmentIndex.get, os.open

    def look_up(index: SegmentIndex, name: bytes) -> object:
        found = get(index, name)
        events.append(("lookup", found))
        return found

    def open_file(path: Any, *more: Any, **named: Any) -> int:
        if STAGED not in str(path):  # what it writes of its own prompt, on a thread
            events.append(("open", path))
        return opened(path, *more, **named)

    seen = []
    for number, others in enumerate(([1], [2], [])):
        store = tmp_path / str(number)
        first = make_llm(store=store, **SHAPE)
        for seed in others:
            ask(first, seed, 600, "theirs")
        first.close()
        assert len(segments(store)) == 2 * len(others)
        second = make_llm(store=store, **SHAPE)
        second.engine.watch_plans(lambda plan: events.append([len(each.tokens) for each in plan.steps]))
        events.clear()
        with monkeypatch.context() as patched:
            patched.setattr(SegmentIndex, "get", look_up)
            patched.setattr(os, "open", open_file)
            output = ask(second, 1, 600, "mine")
        seen.append((list(events), output.metrics.cached_tokens, set(output.metrics.record.stalls), said(output)))
    assert seen[0] == seen[1] == seen[2]
    assert [event for event in seen[0][0] if isinstance(event, tuple)] == [("lookup", None)]


def test_several_completions_share_one_load(make_llm: MakeLLM, tmp_path: Path) -> None:
    params = SamplingParams(seed=3, max_tokens=6, n=3, ignore_eos=True)
    first = make_llm(store=tmp_path, **SHAPE)
    cold = ask(first, 1, 600, params=params)
    first.close()
    second = make_llm(store=tmp_path, **SHAPE)
    assert said(ask(second, 1, 600, params=params)) == said(cold)
    assert counts(second).loads == 1


def test_requests_that_begin_alike_share_one_load(make_llm: MakeLLM, tmp_path: Path) -> None:
    first = make_llm(store=tmp_path, **SHAPE)
    cold = ask(first, 1, 600)
    first.close()
    second = make_llm(store=tmp_path, **SHAPE)
    found = second.generate([prompt(1, 600)] * 3, GREEDY)
    assert [said(each) for each in found] == [said(cold)] * 3
    assert [each.metrics.record.loaded for each in found] == [512] * 3
    assert counts(second).loads == 1


def test_prompt_logprobs_load_nothing(make_llm: MakeLLM, tmp_path: Path) -> None:
    params = SamplingParams(temperature=0, max_tokens=2, prompt_logprobs=1, ignore_eos=True)
    first = make_llm(store=tmp_path, **SHAPE)
    cold = ask(first, 1, 600, params=params)
    first.close()
    second = make_llm(store=tmp_path, **SHAPE)
    warm = ask(second, 1, 600, params=params)
    assert (said(warm), warm.prompt_logprobs) == (said(cold), cold.prompt_logprobs)
    assert counts(second).loads == 0


def test_a_request_that_leaves_while_loading_frees_everything(make_llm: MakeLLM, tmp_path: Path) -> None:
    first = make_llm(store=tmp_path, **SHAPE)
    ask(first, 1, 600)
    first.close()
    second = make_llm(store=tmp_path, **SHAPE)
    engine = second.engine
    request_id = engine.add(engine.request(tuple(prompt(1, 600)["prompt_token_ids"]), GREEDY))
    engine.step()
    assert counts(second).loads == 0, "it is being loaded"
    engine.abort(request_id)
    turn(second)
    engine.check_idle()
    assert counts(second).loads == 1
    assert ask(second, 1, 600).metrics.cached_tokens == 512


def test_the_store_stays_within_its_bytes(make_llm: MakeLLM, tmp_path: Path) -> None:
    budget = 3 * (SEGMENT_TOKENS * 8 + 2000)
    llm = make_llm(store=tmp_path, store_bytes=budget, **SHAPE)
    for seed in (1, 2, 3, 1, 2, 3):
        ask(llm, seed, 600)
        turn(llm)
        assert sum(path.stat().st_size for path in segments(tmp_path)) == counts(llm).bytes <= budget
    llm.close()
    assert sum(path.stat().st_size for path in segments(tmp_path)) <= budget
    again = make_llm(store=tmp_path, store_bytes=budget // 3, **SHAPE)
    assert counts(again).segments == len(segments(tmp_path)) == 1


def test_traffic_over_a_small_cache_with_restarts_says_what_it_says_without_a_store(
    make_llm: MakeLLM, tmp_path: Path
) -> None:
    chance = Random(7)
    shape = {**SHAPE, "blocks": 110, "seqs": 4, "host_slots": 40}
    bases = [prompt(seed, 900)["prompt_token_ids"] for seed in range(4)]
    rounds = []
    for _ in range(4):
        asked = []
        for number in range(12):
            ids = [
                *chance.choice(bases)[: chance.randrange(1, 900)],
                *prompt(chance.randrange(3), 40)["prompt_token_ids"],
            ]
            asked.append((ids, SamplingParams(seed=number, max_tokens=chance.randrange(1, 30), logprobs=0)))
        rounds.append(asked)
    plain = make_llm(**SHAPE)
    loaded = 0
    for asked in rounds:
        llm = make_llm(store=tmp_path, store_bytes=40_000, **shape)
        prompts: list[TokensPrompt] = [{"prompt_token_ids": ids} for ids, _ in asked]
        params = [each for _, each in asked]
        found = llm.generate(prompts, params)
        assert [said(each) for each in found] == [said(each) for each in plain.generate(prompts, params)]
        loaded += sum(each.metrics.record.loaded for each in found)
        turn(llm)
        llm.engine.check_idle()
        llm.close()
        assert counts(llm).bad == 0
        assert sum(path.stat().st_size for path in segments(tmp_path)) == counts(llm).bytes <= 40_000
    assert loaded > 1000


# -- pins ------------------------------------------------------------------------------------------------------------


def pinned(llm: LLM, seed: int, tokens: int, ttl: Any = "24h") -> RequestOutput:
    options = RequestOptions(cache_pins=(CachePin(tokens=tokens, ttl=ttl),))
    return llm.generate(prompt(seed, tokens + 5), GREEDY, options=options)[0]


def test_a_pin_of_a_day_is_written_at_once_and_outlives_restarts(make_llm: MakeLLM, tmp_path: Path) -> None:
    size = SEGMENT_TOKENS * 8 + 2000
    shape = {**SHAPE, "store": tmp_path, "store_bytes": 4 * size}
    llm = make_llm(**shape)
    output = pinned(llm, 1, 600)
    assert [(pin.tokens, pin.ttl_s) for pin in output.metrics.record.pins] == [(512, 86400.0)]
    turn(llm)
    kept = segments(tmp_path)
    assert len(kept) == 2
    assert sum(llm.engine.scheduler.manager.pinned) == 0, "it is kept on the disk, not in memory"
    for round_ in range(2):
        for seed in range(2, 6):
            for _ in range(2):
                ask(llm, 10 * round_ + seed, 600)
                turn(llm)
        llm.close()
        assert set(kept) <= set(segments(tmp_path)), "others are evicted first"
        llm = make_llm(**shape)
    assert ask(llm, 1, 600).metrics.record.loaded == 512


def test_a_pin_below_a_segment_or_beyond_half_of_the_store_is_refused(make_llm: MakeLLM, tmp_path: Path) -> None:
    llm = make_llm(store=tmp_path, store_bytes=4 * (SEGMENT_TOKENS * 8 + 2000), **SHAPE)
    assert pinned(llm, 1, SEGMENT_TOKENS - 1).metrics.record.pins == []
    for seed in (2, 3):
        pinned(llm, seed, 600)
        turn(llm)
    soon = [path.stat().st_mtime > time.time() + 1000 for path in segments(tmp_path)]
    assert sorted(soon) == [False, False, True, True]


def test_a_pin_of_a_day_without_a_store_is_an_error(make_llm: MakeLLM) -> None:
    llm = make_llm(**SHAPE)
    with pytest.raises(ParameterError, match="requires a KV store"):
        pinned(llm, 1, 600)
    assert pinned(llm, 1, 600, "1h").metrics.record.pins


# -- damage ----------------------------------------------------------------------------------------------------------


def filled(make_llm: MakeLLM, store: Path) -> object:
    """A store of two segments, and what the model says."""
    llm = make_llm(store=store, **SHAPE)
    answer = said(ask(llm, 1, 600))
    llm.close()
    assert len(segments(store)) == 2
    return answer


@pytest.mark.parametrize("place", [0, 9, 40, 100, 1200, 1300, -2048, -700, -1])
@pytest.mark.parametrize("number", [0, 1])
def test_a_flipped_bit_is_found_and_computed_again(place: int, number: int, make_llm: MakeLLM, tmp_path: Path) -> None:
    answer = filled(make_llm, tmp_path)
    path = segments(tmp_path)[number]
    raw = bytearray(path.read_bytes())
    raw[place] ^= 4
    path.write_bytes(raw)
    llm = make_llm(store=tmp_path, **SHAPE)
    assert said(ask(llm, 1, 600)) == answer
    assert counts(llm).bad >= 1
    turn(llm)
    llm.close()
    assert len(segments(tmp_path)) == 2, "it was written again"
    healed = make_llm(store=tmp_path, **SHAPE)
    assert ask(healed, 1, 600).metrics.record.loaded == 512


@pytest.mark.parametrize("size", [0, 10, 1300, -1])
def test_a_cut_or_swapped_file_is_not_accepted(size: int, make_llm: MakeLLM, tmp_path: Path) -> None:
    answer = filled(make_llm, tmp_path)
    one, two = segments(tmp_path)
    raw = one.read_bytes()
    one.write_bytes(two.read_bytes() if size == 0 else raw[:size])
    llm = make_llm(store=tmp_path, **SHAPE)
    assert said(ask(llm, 1, 600)) == answer
    assert counts(llm).bad >= 1


def test_files_that_vanish_are_computed_again(make_llm: MakeLLM, tmp_path: Path) -> None:
    answer = filled(make_llm, tmp_path)
    llm = make_llm(store=tmp_path, **SHAPE)
    for path in segments(tmp_path):
        path.unlink()
    assert said(ask(llm, 1, 600)) == answer
    assert (counts(llm).loads, counts(llm).bad) == (0, 1), "a load that brings no tokens is not counted"
    assert (counts(llm).bad, counts(llm).loaded) == (1, 0)


def test_a_planted_segment_of_another_store_is_refused(make_llm: MakeLLM, tmp_path: Path) -> None:
    filled(make_llm, tmp_path / "a")
    answer = filled(make_llm, tmp_path / "b")
    for path in segments(tmp_path / "b"):
        path.unlink()
    (folder,) = {path.parent for path in (tmp_path / "b").rglob("lock")}
    for path in segments(tmp_path / "a"):
        (folder / path.name).write_bytes(path.read_bytes())
    llm = make_llm(store=tmp_path / "b", **SHAPE)
    assert said(ask(llm, 1, 600)) == answer
    assert (counts(llm).bad, counts(llm).loads) == (2, 0)


def test_foreign_files_stay_and_drafts_go(make_llm: MakeLLM, tmp_path: Path) -> None:
    answer = filled(make_llm, tmp_path)
    folder = segments(tmp_path)[0].parent
    foreign = [folder / "notes.txt", folder / "abc.kv", folder / f"{'g' * 64}.kv"]
    for path in foreign:
        path.write_text("mine")
    (folder / f"{'a' * 64}.kv").mkdir()
    (folder / ".writing-abc").write_text("half")
    llm = make_llm(store=tmp_path, **SHAPE)
    assert said(ask(llm, 1, 600)) == answer
    assert counts(llm).loaded == 512
    assert all(path.read_text() == "mine" for path in foreign)
    assert not list(folder.glob(".writing-*"))


# -- refusals --------------------------------------------------------------------------------------------------------


def test_a_second_process_is_refused(make_llm: MakeLLM, tmp_path: Path) -> None:
    first = make_llm(store=tmp_path, **SHAPE)
    with pytest.raises(ResourceError, match=f"Process {os.getpid()} serves mock from the KV store"):
        make_llm(store=tmp_path, **SHAPE)
    first.close()
    make_llm(store=tmp_path, **SHAPE).close()


def test_a_folder_that_others_can_write_to_is_refused(make_llm: MakeLLM, tmp_path: Path) -> None:
    make_llm(store=tmp_path / "kv", **SHAPE).close()
    assert (tmp_path / "kv").stat().st_mode & 0o777 == 0o700
    assert (tmp_path / "kv" / "secret").stat().st_mode & 0o777 == 0o600
    (tmp_path / "kv").chmod(0o770)
    with pytest.raises(ParameterError, match="can be written by other users"):
        make_llm(store=tmp_path / "kv", **SHAPE)


def test_a_path_that_is_no_folder_is_refused(make_llm: MakeLLM, tmp_path: Path) -> None:
    (tmp_path / "file").write_text("")
    for path in (tmp_path / "file", tmp_path / "file" / "below"):
        with pytest.raises(ParameterError, match="is not a folder"):
            make_llm(store=path, **SHAPE)


def test_a_damaged_secret_is_refused(make_llm: MakeLLM, tmp_path: Path) -> None:
    make_llm(store=tmp_path, **SHAPE).close()
    (tmp_path / "secret").write_bytes(b"short")
    with pytest.raises(ParameterError, match="secret is damaged"):
        make_llm(store=tmp_path, **SHAPE)


def test_options_that_exclude_a_store(tmp_path: Path) -> None:
    cases: list[tuple[dict[str, Any], str]] = [
        ({"enable_prefix_caching": False}, "prefix cache, which is off"),
        ({"block_size": 48}, "does not divide"),
        ({"kv_store_bytes": 0}, "kv_store_bytes"),
        ({"kv_store": ""}, "kv_store"),
        ({"kv_store": None, "kv_store_bytes": 1 << 30}, "size of a KV store, which is not given"),
    ]
    for options, reason in cases:
        with pytest.raises(ParameterError, match=reason):
            LLM("none", **{"kv_store": str(tmp_path), **options})


def test_a_store_holds_at_least_a_segment(tiny_gguf: Any, tmp_path: Path) -> None:
    path = tiny_gguf(TinyOptions()).path
    with pytest.raises(ParameterError, match=r"256 tokens of .* take 65,536 bytes of a KV store, .* 65,535"):
        LLM(path, kv_store=tmp_path, kv_store_bytes=65_535)
    assert not list(tmp_path.iterdir())
    LLM(path, kv_store=tmp_path, kv_store_bytes=65_536).close()


# -- disks that refuse -----------------------------------------------------------------------------------------------


def test_a_full_disk_is_reported_once_and_serving_goes_on(
    make_llm: MakeLLM, tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    llm = make_llm(store=tmp_path, **SHAPE)
    soft, hard = resource.getrlimit(resource.RLIMIT_FSIZE)
    resource.setrlimit(resource.RLIMIT_FSIZE, (1500, hard))
    try:
        answer = said(ask(llm, 1, 600))
        turn(llm)
        assert said(ask(llm, 1, 600)) == answer
        turn(llm)
        llm.close()
    finally:
        resource.setrlimit(resource.RLIMIT_FSIZE, (soft, hard))
    assert (counts(llm).failed_writes, counts(llm).written) == (1, 0)
    assert [record for record in caplog.messages if "cannot be written (File too large)" in record] == caplog.messages
    assert len(caplog.messages) == 1
    assert segments(tmp_path) == list(tmp_path.rglob(".writing-*")) == []


def refusing(monkeypatch: pytest.MonkeyPatch, name: str) -> None:
    """Files of this name cannot be opened for writing, as on a read-only disk."""
    opened = os.open

    def refuse(path: Any, flags: int, *more: Any, **named: Any) -> int:
        if name in os.fspath(path) and flags & (os.O_WRONLY | os.O_RDWR):
            raise OSError(30, "Read-only file system")
        return opened(path, flags, *more, **named)

    monkeypatch.setattr(os, "open", refuse)


def test_a_read_only_disk_is_read(
    make_llm: MakeLLM, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    answer = filled(make_llm, tmp_path)
    refusing(monkeypatch, "lock")
    llm = make_llm(store=tmp_path, **SHAPE)
    found = ask(llm, 1, 600)
    assert (said(found), found.metrics.record.loaded) == (answer, 512)
    for _ in range(2):
        ask(llm, 2, 600)
    turn(llm)
    llm.close()
    assert len(segments(tmp_path)) == 2
    assert counts(llm).failed_writes >= 1
    assert "cannot be written (Read-only file system)" in caplog.messages[0]


def test_a_new_store_on_a_read_only_disk_is_no_store(
    make_llm: MakeLLM, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    refusing(monkeypatch, ".writing-")
    llm = make_llm(store=tmp_path, **SHAPE)
    assert llm.engine.scheduler.store is None
    ask(llm, 1, 600)
    assert len(caplog.messages) == 1


# -- models ----------------------------------------------------------------------------------------------------------


SLIDING = TinyOptions("gemma3", context=1024, layers=4, window=64, head_dim=32)


@pytest.mark.parametrize(
    ("options", "backend", "kv_type"),
    [
        *(
            (options, backend, "bf16")
            for options in (TinyOptions("llama", context=1024), TinyOptions("qwen2", context=1024), SLIDING)
            for backend in ("cpu", "reference")
        ),
        (SLIDING, "cpu", "q8"),
        (SLIDING, "cpu", "k8v4"),
        (TinyOptions("qwen2", context=1024, head_dim=32), "cpu", "k8v4"),
    ],
    ids=lambda value: value.architecture if isinstance(value, TinyOptions) else value,
)
def test_a_restart_says_the_same_bits(
    options: TinyOptions, backend: str, kv_type: str, tiny_gguf: Any, tmp_path: Path
) -> None:
    """Prompts that load what an earlier process computed, bit-equal to computing: with quantised keys and values, too,
    and with windows, whose old blocks are absent."""
    model = tiny_gguf(options).path

    def run(**more: Any) -> tuple[list[object], list[int], StoreCounts]:
        more = {"kv_store": tmp_path, "kv_cache_dtype": kv_type, **more}
        with LLM(str(model), backend=backend, max_num_seqs=2, seed=1, **more) as llm:
            outputs = [ask(llm, seed, tokens) for seed, tokens in ((1, 900), (1, 600), (2, 300), (1, 900))]
            return [said(each) for each in outputs], [each.metrics.record.loaded for each in outputs], counts(llm)

    cold, none, _ = run()
    warm, loaded, after = run()
    assert warm == cold
    assert not any(none)
    assert loaded[0] == 768
    assert after.bad == 0
    _, loaded, _ = run(kv_cache_dtype="f32")
    assert not any(loaded), "keys and values of another type are another store"
    assert len(list(tmp_path.glob("*/lock"))) == 2


def test_another_model_is_another_store(tiny_gguf: Any, tmp_path: Path) -> None:
    for seed in (0, 1):
        with LLM(str(tiny_gguf(TinyOptions("llama", context=1024, seed=seed)).path), kv_store=tmp_path) as llm:
            assert ask(llm, 1, 600).metrics.record.loaded == 0
    assert len(list(tmp_path.glob("*/lock"))) == 2


# -- when a load pays ------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(("compute_s", "loads"), [(1e-9, 0), (1e9, 1), (None, 1)])
def test_a_prefix_is_loaded_if_that_is_predicted_to_be_faster(
    compute_s: float | None, loads: int, make_llm: MakeLLM, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    answer = filled(make_llm, tmp_path)
    monkeypatch.setattr(PrefixLoading, "_compute_s", lambda *_: compute_s)
    llm = make_llm(store=tmp_path, **SHAPE)
    assert said(ask(llm, 1, 600)) == answer
    assert (counts(llm).loads, counts(llm).declined) == (loads, 1 - loads)


def test_usage_bill_and_timeline_have_a_line_of_their_own(make_llm: MakeLLM, tmp_path: Path) -> None:
    filled(make_llm, tmp_path)
    metrics = ask(make_llm(store=tmp_path, **SHAPE), 1, 600).metrics
    usage = TokenUsage.of([metrics], {})
    assert (usage.loaded, usage.cached, usage.fresh) == (512, 0, 88)
    bill = make_bill([metrics], {}, PriceSheet.of(parse_toml("[default]\ninput = 10\noutput = 0")), "any", "default")
    assert bill is not None
    assert {line.kind: str(line.price) for line in bill.lines}["cache_load"] == "1.0"
    assert "600 prompt tokens (512 cached, 512 of them from the KV store)" in phase_line(metrics, None)
