"""API keys: which are accepted, and the file that has them."""

from __future__ import annotations

import hmac
import os
import stat
import threading
from datetime import UTC, datetime, timedelta
from pathlib import Path

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from starlette.datastructures import Headers

from twofold.core.errors import (
    AccessError,
    ForbiddenError,
    NotFoundError,
    ParameterError,
    TwofoldError,
    UsageError,
)
from twofold.server.admission import Tiers
from twofold.server.edge.keys import (
    ApiKey,
    Caller,
    KeyFile,
    KeyRing,
    add_key,
    hash_key,
    key_of,
    new_key,
    presented_key,
    read_keys,
    remove_key,
    single_keys,
)
from twofold.server.edge.quotas import Quota

NOW = datetime(2026, 6, 1, tzinfo=UTC)
DIGITS = "0" * 64


def test_new_keys_are_long_and_unique() -> None:
    keys = {new_key() for _ in range(100)}
    assert len(keys) == 100
    assert all(key.startswith("tf-") and len(key) == 46 for key in keys)


def test_a_known_key_is_accepted() -> None:
    ring = KeyRing(single_keys(["first", "second"]))
    second = ring.find("second", NOW)
    assert second.id.startswith("api-key:")
    assert second.id == second.tenant
    caller = ring.caller(Headers({"authorization": "Bearer first"}), NOW)
    assert caller.id != second.id
    assert (caller.tenant, caller.cache_salt) == (caller.id, f"key:{caller.id}")
    assert single_keys(["second", "first"]) == tuple(reversed(single_keys(["first", "second", "first"])))


@pytest.mark.parametrize("text", ["", None, "firs", "firstt", "FIRST", "é", "first\x00", "x" * 10_000])
def test_an_unknown_key_is_refused(text: str | None) -> None:
    with pytest.raises(AccessError) as refusal:
        KeyRing(single_keys(["first"])).find(text, NOW)
    assert refusal.value.status == 401
    assert "first" not in str(refusal.value)


def test_keys_with_the_same_id_are_refused() -> None:
    with pytest.raises(ParameterError, match="same id"):
        KeyRing([ApiKey(id="a", hash=hash_key(text), tenant="a") for text in ("x", "y")])


def test_every_hash_is_compared(monkeypatch: pytest.MonkeyPatch) -> None:
    compared: list[bytes] = []
    compare = hmac.compare_digest

    def counting(one: bytes, other: bytes) -> bool:
        compared.append(other)
        return compare(one, other)

    monkeypatch.setattr(hmac, "compare_digest", counting)
    ring = KeyRing(single_keys(["a", "b", "c"]))
    ring.find("a", NOW)
    assert len(compared) == 3


def test_an_expired_key_is_refused() -> None:
    key = ApiKey(id="a", hash=hash_key("a"), tenant="a", expires=NOW)
    KeyRing([key]).find("a", NOW - timedelta(seconds=1))
    with pytest.raises(AccessError, match="expired"):
        KeyRing([key]).find("a", NOW)


def test_a_batch_needs_a_valid_key_until_its_last_line() -> None:
    key = ApiKey(id="a", hash=hash_key("a"), tenant="t", quota=Quota(tokens_per_minute=300), expires=NOW)
    ring = KeyRing([key])
    assert ring.named("t", "a", NOW - timedelta(seconds=1)).quota == key.quota
    for tenant, key_id, ended in (("t", "a", "has expired"), ("t", "b", "was removed"), ("u", "a", "was removed")):
        with pytest.raises(AccessError, match=ended):
            ring.named(tenant, key_id, NOW)
    assert KeyRing(required=False).named("t", "b", NOW).id == "b"


@pytest.mark.parametrize(
    ("headers", "key"),
    [
        ({"authorization": "Bearer abc"}, "abc"),
        ({"authorization": "bearer  abc "}, "abc"),
        ({"x-api-key": "abc"}, "abc"),
        ({"authorization": "Bearer one", "x-api-key": "two"}, "one"),
        ({"authorization": "Basic YTpi", "x-api-key": "two"}, "two"),
        ({"authorization": "Basic YTpi"}, None),
        ({"authorization": "Bearer"}, None),
        ({}, None),
    ],
)
def test_a_key_is_shown_in_two_ways(headers: dict[str, str], key: str | None) -> None:
    assert presented_key(Headers(headers)) == key


def test_without_keys_all_requests_are_accepted_unless_keys_are_required() -> None:
    assert KeyRing(required=False).caller(Headers({}), NOW) == Caller(sees="all", admin=True)
    with pytest.raises(AccessError):
        KeyRing().caller(Headers({}), NOW)
    with pytest.raises(AccessError):
        KeyRing(single_keys(["a"]), required=False).caller(Headers({}), NOW)


@pytest.mark.parametrize("text", ["", "two words", "line\n", "ü", "x" * 600])
def test_a_key_that_does_not_fit_a_header_is_refused(text: str) -> None:
    with pytest.raises(ParameterError, match="API key"):
        single_keys([text])


def test_tiers_are_checked() -> None:
    caller = Caller(tiers=("default", "flex"))
    tiers = Tiers.standard()
    assert tiers.choose("flex", caller.tiers).name == "flex"
    with pytest.raises(ForbiddenError, match="priority"):
        tiers.choose("priority", caller.tiers)


def test_a_key_is_added_and_removed(tmp_path: Path) -> None:
    path = tmp_path / "inner" / "keys.toml"
    expires = NOW + timedelta(days=30)
    quota = Quota(requests_per_minute=60, kv_tokens=1000)
    key, text = add_key(
        path, "laptop", now=NOW, tenant="research", tiers=("flex", "batch"), quota=quota, expires=expires
    )
    other, _ = add_key(path, "phone", now=NOW, share_cache=True)
    assert read_keys(path) == (key, other)
    assert KeyRing(read_keys(path)).find(text, NOW) == key
    assert (other.tenant, other.cache_salt) == ("phone", "tenant:phone")
    assert text not in path.read_text()
    assert stat.S_IMODE(path.stat().st_mode) == 0o600
    assert remove_key(path, "laptop") == key
    assert read_keys(path) == (other,)
    assert sorted(os.listdir(path.parent)) == [".keys.toml.lock", "keys.toml"]


def test_ids_of_keys_are_unique(tmp_path: Path) -> None:
    path = tmp_path / "keys.toml"
    add_key(path, "laptop", now=NOW)
    with pytest.raises(ParameterError, match="already"):
        add_key(path, "laptop", now=NOW)
    with pytest.raises(NotFoundError) as refusal:
        remove_key(path, "labtop")
    assert refusal.value.hint == "Did you mean 'laptop'?"
    with pytest.raises(ParameterError, match="letters"):
        add_key(path, 'quo"ted', now=NOW)
    assert [key.id for key in read_keys(path)] == ["laptop"]


def test_many_may_add_at_once(tmp_path: Path) -> None:
    path = tmp_path / "keys.toml"
    threads = [threading.Thread(target=add_key, args=(path, f"key{n}"), kwargs={"now": NOW}) for n in range(8)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert {key.id for key in read_keys(path)} == {f"key{n}" for n in range(8)}


@pytest.mark.parametrize(
    ("text", "message"),
    [
        ("key = 1", "tables"),
        ("[[keys]]", "only"),
        ("[[key]]\nid = 'a'\n", "hash"),
        (f"[[key]]\nid = 'a'\nhash = 'sha256:{DIGITS}'\n", "tenant"),
        (f"[[key]]\nid = 'a'\nhash = 'sha256:{DIGITS[2:]}'\ntenant = 'a'", "64 hex"),
        (f"[[key]]\nid = 'a'\nhash = '{DIGITS}'\ntenant = 'a'", "sha256:"),
        (f"[[key]]\nid = 'a'\nhash = 'sha256:{DIGITS}'\ntenant = 'a'\ntiers = ['best']", "tiers"),
        (f"[[key]]\nid = 'a'\nhash = 'sha256:{DIGITS}'\ntenant = 'a'\ntiers = []", "tiers"),
        (f"[[key]]\nid = 'a'\nhash = 'sha256:{DIGITS}'\ntenant = 'a'\nexpires = 2027-01-01", "expires"),
        (f"[[key]]\nid = 'a'\nhash = 'sha256:{DIGITS}'\ntenant = 'a'\nconcurrent = 0", "concurrent"),
        (f"[[key]]\nid = 'a'\nhash = 'sha256:{DIGITS}'\ntenant = 'a'\nconcurent = 1", "concurent"),
        (f"[[key]]\nid = 'a'\nhash = 'sha256:{DIGITS}'\ntenant = 'a'\n" * 2, "same id"),
        ("[[key]", "TOML"),
        ("\udcff", "TOML"),
    ],
)
def test_a_wrong_file_says_what_is_wrong(tmp_path: Path, text: str, message: str) -> None:
    path = tmp_path / "keys.toml"
    path.write_bytes(text.encode("utf-8", "surrogateescape"))
    with pytest.raises(UsageError, match=message):
        read_keys(path)


def test_a_missing_file_is_an_error(tmp_path: Path) -> None:
    with pytest.raises(UsageError, match="cannot be read"):
        KeyFile(tmp_path / "keys.toml", warn=print)


def test_a_changed_file_is_read_again_within_a_second(tmp_path: Path) -> None:
    path, warnings = tmp_path / "keys.toml", list[str]()
    key, text = add_key(path, "first", now=NOW)
    fixed = single_keys(["fixed"])
    file = KeyFile(path, fixed, warn=warnings.append)
    assert file.ring(0.0).find(text, NOW) == key
    assert file.ring(0.0).find("fixed", NOW) == fixed[0]
    remove_key(path, "first")
    assert len(file.ring(0.5)._keys) == 2
    assert len(file.ring(1.0)._keys) == 1
    path.write_text("[[key")
    assert len(file.ring(3.0)._keys) == 1
    path.unlink()
    assert len(file.ring(5.0)._keys) == 1
    assert len(file.ring(7.0)._keys) == 1
    assert len(warnings) == 2
    _, later = add_key(path, "later", now=NOW)
    assert file.ring(9.0).find(later, NOW).id == "later"


def test_a_file_without_keys_refuses_all_requests(tmp_path: Path) -> None:
    path = tmp_path / "keys.toml"
    path.write_text("")
    with pytest.raises(AccessError):
        KeyFile(path, warn=print).ring(0.0).caller(Headers({}), NOW)


@settings(max_examples=60, deadline=None)
@given(
    st.dictionaries(
        st.sampled_from(["id", "hash", "tenant", "tiers", "created", "expires", "concurrent", "share_cache", "x"]),
        st.none() | st.booleans() | st.integers() | st.text(max_size=5) | st.lists(st.text(max_size=5), max_size=3),
    )
)
def test_any_table_is_a_key_or_an_error(table: dict[str, object]) -> None:
    with pytest.raises(TwofoldError):
        key_of(table, "the key")  # none of these has a hash
