"""What tenants share and hold for long is divided: no tenant keeps another one out."""

from __future__ import annotations

import asyncio
from types import SimpleNamespace
from typing import cast

import pytest

from twofold.core.errors import BusyError
from twofold.observe.live.board import LiveBoard
from twofold.observe.live.lanes import Viewer
from twofold.server.live import MAX_OWN, MAX_WATCHERS, LiveService, LiveWatcher
from twofold.server.models.named_models import NamedModel
from twofold.server.models.registry import ModelRegistry, ServedModel


def test_no_tenant_keeps_the_others_from_watching() -> None:
    """Four keys of a tenant have all streams; another tenant gets one of them, and as many as its share."""
    service = LiveService(cast(ModelRegistry, SimpleNamespace()), cast(LiveBoard, SimpleNamespace()))

    def watcher(tenant: str, source: str) -> LiveWatcher:
        made = LiveWatcher(ServedModel(NamedModel(("m",), "m")), Viewer(None, ""), 1.0, False, tenant, source)
        service._make_room(made)
        service._watchers[made] = None
        return made

    async def watch() -> None:
        first = [watcher("blue", f"key {number // MAX_OWN}") for number in range(MAX_WATCHERS)]
        with pytest.raises(BusyError):
            watcher("blue", "key 9")
        second = [watcher("red", f"another {number // MAX_OWN}") for number in range(MAX_WATCHERS // 2)]
        assert [each.ended for each in first] == [False] * (MAX_WATCHERS // 2) + [True] * len(second)
        with pytest.raises(BusyError):
            watcher("red", "one more")
        assert not any(each.ended for each in second)

    asyncio.run(watch())
