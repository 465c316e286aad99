"""Work on another thread: its value, its error, and a signal that interrupts waiting."""

from __future__ import annotations

import os
import signal
import sys
import threading
import time
from concurrent.futures import wait

import pytest

from twofold.core.background import in_background


def test_the_value_of_work_on_another_thread() -> None:
    caller = threading.get_ident()
    work = in_background(threading.get_ident)
    assert work.result() != caller
    assert work.result() == work.result()


def test_its_error_is_raised_where_the_result_is_wanted() -> None:
    work = in_background(lambda: 1 // 0)
    wait([work])
    with pytest.raises(ZeroDivisionError):
        work.result()


def test_a_signal_interrupts_waiting() -> None:
    began, go = threading.Event(), threading.Event()
    main = threading.get_ident()

    def interrupt() -> bool:
        began.wait(60)
        while sys._current_frames()[main].f_code.co_name != "wait":
            time.sleep(0.01)
        time.sleep(0.2)  # the main thread is in its lock by then: a signal just before would interrupt nothing
        os.kill(os.getpid(), signal.SIGINT)
        return go.wait(60)

    def begin_and_wait() -> None:
        began.set()
        wait([work])

    work = in_background(interrupt)
    with pytest.raises(KeyboardInterrupt):
        begin_and_wait()
    go.set()
    assert work.result(), "waiting can be repeated"
