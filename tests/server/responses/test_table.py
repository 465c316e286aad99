"""The table of stored responses: tenants, expiry, and eviction."""

from __future__ import annotations

import stat
from pathlib import Path
from typing import Any

import orjson
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from twofold.core.errors import ResourceError
from twofold.server.responses import ENTRY_BYTES, ResponseTable, StoredResponse, StoreLimits


class FakeTime:
    now = 1000.0

    def __call__(self) -> float:
        return self.now


def kept(identity: str, previous: str | None = None, text: str = "") -> StoredResponse:
    return StoredResponse(
        {"id": identity, "previous_response_id": previous, "output": [{"text": text}]}, [{"in": text}]
    )


def size_of(response: StoredResponse) -> int:
    return len(orjson.dumps(response.response)) + len(orjson.dumps(response.items)) + ENTRY_BYTES


def table(path: Path | None = None, clock: Any = None, **limits: Any) -> ResponseTable:
    return ResponseTable(path, StoreLimits(**limits), clock or FakeTime())


def test_responses_are_found_by_their_tenant_only() -> None:
    kept_here = table()
    kept_here.put("a", kept("resp_1", text="ü"))
    assert kept_here.get("a", "resp_1") == kept("resp_1", text="ü")
    assert kept_here.get("b", "resp_1") is None
    assert kept_here.get("a", "resp_2") is None
    assert not kept_here.delete("b", "resp_1")
    assert kept_here.delete("a", "resp_1")
    assert not kept_here.delete("a", "resp_1")
    assert kept_here.get("a", "resp_1") is None


def test_responses_survive_in_a_private_file(tmp_path: Path) -> None:
    path = tmp_path / "data" / "responses.sqlite"
    first = table(path)
    first.put("a", kept("resp_1"))
    for file in path.parent.iterdir():
        assert stat.S_IMODE(file.stat().st_mode) == 0o600
    first.close()
    again = table(path)
    assert again.get("a", "resp_1") is not None
    again.close()


def test_one_process_has_the_file(tmp_path: Path) -> None:
    path = tmp_path / "responses.sqlite"
    first = table(path)
    with pytest.raises(ResourceError, match="used by another process"):
        table(path)
    first.close()


def test_a_bad_file_is_renamed(tmp_path: Path) -> None:
    path = tmp_path / "responses.sqlite"
    path.write_bytes(b"not a database" * 100)
    fresh = table(path)
    fresh.put("a", kept("resp_1"))
    assert fresh.get("a", "resp_1") is not None
    fresh.close()
    assert path.with_name("responses.sqlite.bad").exists()


def test_responses_expire() -> None:
    clock = FakeTime()
    short = table(clock=clock, ttl_s=10)
    short.put("a", kept("resp_1"))
    clock.now += 9.9
    assert short.get("a", "resp_1") is not None
    clock.now += 0.1
    assert short.get("a", "resp_1") is None
    assert not short.delete("a", "resp_1")
    assert short.chain("a", "resp_1").missing == "resp_1"


def test_a_conversation_lives_as_long_as_its_last_response() -> None:
    clock = FakeTime()
    short = table(clock=clock, ttl_s=10)
    short.put("a", kept("resp_1"))
    short.put("a", kept("resp_0"))
    clock.now += 9
    short.put("a", kept("resp_2", "resp_1"))
    clock.now += 9
    assert [one.id for one in short.chain("a", "resp_2").responses] == ["resp_1", "resp_2"]
    assert short.get("a", "resp_0") is None


def test_a_conversation_renews_nothing_through_another_tenant() -> None:
    clock = FakeTime()
    short = table(clock=clock, ttl_s=10)
    for tenant, identity, previous in (("a", "resp_0", None), ("b", "resp_1", "resp_0"), ("a", "resp_2", "resp_1")):
        short.put(tenant, kept(identity, previous))
    clock.now += 9
    short.put("a", kept("resp_3", "resp_2"))
    clock.now += 9
    assert short.get("a", "resp_2") is not None
    assert short.get("a", "resp_0") is None


def test_chains_and_what_is_missing_of_them() -> None:
    kept_here = table()
    for number in range(1, 4):
        kept_here.put("a", kept(f"resp_{number}", f"resp_{number - 1}" if number > 1 else None))
    kept_here.put("b", kept("resp_9", "resp_3"))
    whole = kept_here.chain("a", "resp_3")
    assert ([one.id for one in whole.responses], whole.missing, whole.cut) == (
        ["resp_1", "resp_2", "resp_3"],
        None,
        False,
    )
    assert kept_here.chain("b", "resp_9").missing == "resp_3"
    kept_here.delete("a", "resp_1")
    assert kept_here.chain("a", "resp_3").missing == "resp_1"


def test_a_circular_conversation_ends() -> None:
    kept_here = table(chain_length=5)
    kept_here.put("a", kept("resp_1", "resp_2"))
    kept_here.put("a", kept("resp_2", "resp_1"))
    assert kept_here.chain("a", "resp_1").cut


def test_chains_have_a_limit_of_bytes() -> None:
    one = size_of(kept("resp_1", "resp_0", "x" * 100))
    kept_here = table(chain_bytes=2 * one)
    for number in range(1, 4):
        kept_here.put("a", kept(f"resp_{number}", f"resp_{number - 1}" if number > 1 else None, "x" * 100))
    assert not kept_here.chain("a", "resp_2").cut
    assert kept_here.chain("a", "resp_3").cut


def test_the_largest_tenant_loses_responses() -> None:
    one = size_of(kept("resp_0"))
    clock = FakeTime()
    small = table(clock=clock, max_bytes=5 * one)
    for tenant, number in (("a", 0), ("b", 1), ("a", 2), ("a", 3), ("a", 4)):
        small.put(tenant, kept(f"resp_{number}"))
        clock.now += 1
    small.put("b", kept("resp_5"))
    assert [small.get("a", f"resp_{n}") is not None for n in (0, 2, 3, 4)] == [False, True, True, True]
    assert [small.get("b", f"resp_{n}") is not None for n in (1, 5)] == [True, True]


def test_a_response_larger_than_the_store_is_not_kept() -> None:
    small = table(max_bytes=600)
    small.put("a", kept("resp_1", text="x" * 1000))
    assert small.get("a", "resp_1") is None


@settings(max_examples=60, deadline=None)
@given(
    st.lists(
        st.tuples(
            st.sampled_from(["put", "delete", "wait"]), st.sampled_from("ab"), st.integers(0, 5), st.integers(0, 300)
        ),
        max_size=30,
    )
)
def test_sums_of_sizes_equal_the_stored_entries(steps: list[tuple[str, str, int, int]]) -> None:
    clock = FakeTime()
    small = table(clock=clock, ttl_s=50, max_bytes=3000)
    for step, tenant, number, length in steps:
        if step == "put":
            small.put(tenant, kept(f"resp_{number}", f"resp_{number - 1}" if number else None, "x" * length))
        elif step == "delete":
            small.delete(tenant, f"resp_{number}")
        else:
            clock.now += length / 10
        rows, held = small._file.use(
            lambda sql: (
                sql.execute("SELECT tenant, sum(size) FROM responses GROUP BY tenant ORDER BY tenant").fetchall(),
                sql.execute("SELECT tenant, bytes FROM held ORDER BY tenant").fetchall(),
            )
        )
        assert rows == held
        assert sum(size for _, size in rows) <= 3000
