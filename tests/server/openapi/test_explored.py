"""Live servers explored by the document that they publish. For a longer look: TWOFOLD_EXPLORE=SECONDS (of each phase).

One server requires a key: there the examples are tried, and each operation without the key and with wrong ones. The
other requires none: there requests that fit the schemas, and requests that do not, are tried.
"""

from __future__ import annotations

import os
from collections import Counter
from collections.abc import Callable, Iterator
from typing import Final

import pytest

from tests.server.live import LiveServer, live_server
from tests.server.openapi.explore import Counts, explore, settings
from tests.support.tiny import TinyModel

KEY: Final = "a-key-that-opens-the-server-of-these-tests"
SECONDS: Final = {"examples": 15.0, "coverage": 14.0, "fuzzing": 10.0, "stateful": 4.0}
LINKED: Final = (
    ("/v1/responses", "/v1/twofold/requests/"),
    ("/v1/files", "/v1/batches"),
    ("/v1/chat", "/v1/twofold/requests/"),
    ("/v1/messages", "/v1/twofold/requests/"),
)
"""Paths whose operations are linked. With all paths together schemathesis would hardly reach those of models."""
USUAL_EXAMPLES: Final = 10
MANY_EXAMPLES: Final = 200
ROUNDS: Final = 5
"""Each is twice as long as the one before: on a busy machine a server answers less in a second."""


@pytest.fixture(scope="module")
def locked(tiny: TinyModel, tmp_path_factory: pytest.TempPathFactory) -> Iterator[LiveServer]:
    """A server that requires a key."""
    folder = tmp_path_factory.mktemp("locked")
    with live_server(folder, f"tiny={tiny.path}", "--threads", "1", "--api-key", KEY) as live:
        yield live


@pytest.fixture(scope="module")
def free(tiny: TinyModel, tmp_path_factory: pytest.TempPathFactory) -> Iterator[LiveServer]:
    """A server that requires no key, without files and batches of other tests."""
    folder = tmp_path_factory.mktemp("free")
    with live_server(folder, f"tiny={tiny.path}", "--threads", "1") as live:
        yield live


def test_examples_are_answered_well_and_never_without_a_key(locked: LiveServer) -> None:
    asked = {"POST /v1/chat/completions", "POST /v1/responses", "POST /v1/messages", "POST /tokenize"}

    def met(counts: Counts) -> bool:
        return asked <= {operation for operation, mode, status in counts if mode == "valid" and status == 200}

    explored_until(met, locked, "examples", KEY)


@pytest.mark.parametrize(("phase", "path"), [("coverage", "/v1/embeddings"), ("fuzzing", "/")])
def test_whatever_is_sent_is_answered_as_documented(free: LiveServer, phase: str, path: str) -> None:
    """Bodies that fit the schemas, and bodies that do not."""

    def met(counts: Counts) -> bool:
        return {("valid", 200), ("invalid", 400)} <= {(mode, status) for _, mode, status in counts}

    explored_until(met, free, phase, paths=(path,))


def test_endpoints_with_many_fields_are_answered_as_documented(free: LiveServer) -> None:
    """On some machines, valid bodies take all the time of the coverage phase."""
    explored_until(lambda counts: {200, 400} <= {status for _, _, status in counts}, free, "coverage")


@pytest.mark.parametrize("paths", LINKED, ids=lambda paths: paths[0])
def test_whatever_follows_is_answered_as_documented(free: LiveServer, paths: tuple[str, ...]) -> None:
    """What a request made is read."""

    def met(counts: Counts) -> bool:
        answered = [operation for operation, _, status in counts if status == 200]
        made = any(operation.startswith(f"POST {paths[0]}") for operation in answered)
        return made and any(operation.startswith("GET ") and "{" in operation for operation in answered)

    explored_until(met, free, "stateful", paths=paths)


def explored_until(
    met: Callable[[Counts], bool],
    server: LiveServer,
    phase: str,
    key: str | None = None,
    paths: tuple[str, ...] = ("/",),
) -> None:
    """Explores until all the replies so far are as they should be; fails if they never are."""
    counts: Counts = Counter()
    for number in range(ROUNDS):
        counts += explored(server, phase, key, paths, seed=number + 1, times=2**number)
        if met(counts):
            return
    pytest.fail(f"Replies are missing: {counts}")


def explored(
    server: LiveServer, phase: str, key: str | None, paths: tuple[str, ...], *, seed: int, times: int
) -> Counts:
    """Counts of statuses in one phase, of ``paths`` and those below them. All checks of replies must pass."""
    longer = os.environ.get("TWOFOLD_EXPLORE")
    document = server.get("/openapi.json", headers={"authorization": f"Bearer {key}"} if key else {}).json()
    document["paths"] = {path: one for path, one in document["paths"].items() if path.startswith(paths)}
    config = settings(
        server.url,
        key,
        examples=MANY_EXAMPLES if longer else USUAL_EXAMPLES,
        seed=seed,
        phases=(phase,),
        seconds=float(longer) if longer else SECONDS[phase] * times,
    )
    counts: Counts = Counter()
    found = list(explore(document, config, counts))
    assert not found, "\n\n".join(map(str, found))
    return counts
