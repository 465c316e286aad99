"""Tasks of asyncio that run on their own."""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Callable, Coroutine
from typing import Any, TypeVar

T = TypeVar("T")


def start_task(
    work: Coroutine[Any, Any, T], name: str, failed: Callable[[BaseException], object] | None = None
) -> asyncio.Task[T]:
    """Starts a task for whose result its owner may never ask: an exception that ends it is logged with its ``name``,
    and passed to ``failed``. The caller keeps the task, since asyncio does not."""

    def done(task: asyncio.Task[T]) -> None:
        if not task.cancelled() and (error := task.exception()) is not None:
            logging.getLogger("twofold").error("the task %r failed", name, exc_info=error)
            if failed is not None:
                failed(error)

    task = asyncio.create_task(work, name=name)
    task.add_done_callback(done)
    return task
