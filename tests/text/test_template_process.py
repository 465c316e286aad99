"""Processes that render: replaced when they end, gone with the one that asks, and never in each other's way."""

from __future__ import annotations

import gc
import os
import select
import signal
import subprocess
import sys
import threading
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager
from pathlib import Path

import pytest

from twofold.core import child
from twofold.core.child import ChildProcess
from twofold.core.errors import ParameterError, ResourceError, TemplateLimitError
from twofold.core.params import SamplingParams
from twofold.engine.llm import LLM
from twofold.text.templates import chat
from twofold.text.templates.chat import ChatTemplate

MESSAGES = [{"role": "user", "content": "Hi"}]
HELLO = "{{ messages[0].content }}"
ON_DEMAND = (
    "{% if slow %}{% for a in range(99999) %}{% for b in range(99999) %}{% endfor %}{% endfor %}{% endif %}" + HELLO
)


@pytest.fixture
def started(monkeypatch: pytest.MonkeyPatch) -> list[subprocess.Popen[bytes]]:
    """The processes that were started."""
    processes: list[subprocess.Popen[bytes]] = []

    class Noted(subprocess.Popen[bytes]):
        def __init__(self, *arguments: object, **named: object) -> None:
            super().__init__(*arguments, **named)  # type: ignore[call-overload]
            processes.append(self)

    monkeypatch.setattr(subprocess, "Popen", Noted)
    return processes


def test_nothing_starts_before_it_is_needed(started: list[subprocess.Popen[bytes]]) -> None:
    template = ChatTemplate(HELLO)
    assert not started
    template.start()
    template.start()
    assert template.render(MESSAGES) == template.render(MESSAGES) == "Hi"
    assert len(started) == 1


@pytest.mark.model
def test_a_model_has_its_process_while_it_is_open(default_model: Path, started: list[subprocess.Popen[bytes]]) -> None:
    with LLM(default_model, max_model_len=256, kv_cache_memory_bytes=32 << 20) as llm:
        assert len(started) == 1
        assert len(llm.chat(MESSAGES, SamplingParams(max_tokens=1))) == 1
        with pytest.raises(ParameterError, match="'self' is reserved"):
            llm.chat(MESSAGES, SamplingParams(max_tokens=1), chat_template_kwargs={"self": 1})
    assert len(started) == 1
    assert started[0].returncode is not None


def test_a_killed_process_is_replaced(started: list[subprocess.Popen[bytes]]) -> None:
    template = ChatTemplate(HELLO)
    for count in range(1, 4):
        assert template.render(MESSAGES) == "Hi"
        assert len(started) == count
        os.kill(started[-1].pid, signal.SIGKILL)
    assert template.render(MESSAGES) == "Hi"


def test_a_process_that_is_killed_while_it_renders_is_replaced_once(started: list[subprocess.Popen[bytes]]) -> None:
    template = ChatTemplate(ON_DEMAND, seconds=60)
    assert template.render(MESSAGES) == "Hi"
    with ThreadPoolExecutor(1) as pool:
        rendering = pool.submit(template.render, MESSAGES, variables={"slow": True})
        for count in (1, 2):
            while len(started) < count or processor_time(started[-1].pid) < 0.2:
                assert not rendering.done()
            os.kill(started[-1].pid, signal.SIGKILL)
        with pytest.raises(TemplateLimitError, match="its process was ended from outside"):
            rendering.result()
    assert len(started) == 2
    assert template.render(MESSAGES) == "Hi"


def test_a_stopped_process_is_replaced(started: list[subprocess.Popen[bytes]], monkeypatch: pytest.MonkeyPatch) -> None:
    template = ChatTemplate(HELLO)
    template.render(MESSAGES)
    monkeypatch.setattr(child, "WALL_S", 0.2)
    os.kill(started[0].pid, signal.SIGSTOP)
    with pytest.raises(TemplateLimitError, match="takes more than"):
        template.render([{"role": "user", "content": "x" * 1_000_000}])
    monkeypatch.undo()
    assert template.render(MESSAGES) == "Hi"


def test_one_rendering_that_is_stopped_harms_no_other(started: list[subprocess.Popen[bytes]]) -> None:
    template = ChatTemplate(ON_DEMAND, seconds=0.5)
    with ThreadPoolExecutor(8) as pool:
        slow = [pool.submit(template.render, MESSAGES, variables={"slow": True}) for _ in range(2)]
        quick = [pool.submit(template.render, MESSAGES) for _ in range(6)]
        assert [future.result() for future in quick] == ["Hi"] * 6
        for future in slow:
            with pytest.raises(TemplateLimitError, match=r"more than 0.5 s of processor time"):
                future.result()
    assert len(started) <= 2 + chat.MAX_PROCESSES
    assert sum(process.poll() is None for process in started) == 1


def test_templates_have_processes_of_their_own(started: list[subprocess.Popen[bytes]]) -> None:
    slow, quick = ChatTemplate(ON_DEMAND, seconds=60), ChatTemplate(HELLO)
    with ThreadPoolExecutor(1) as pool:
        rendering = pool.submit(slow.render, MESSAGES, variables={"slow": True})
        while not started or processor_time(started[0].pid) < 0.1:
            assert not rendering.done()
        assert quick.render(MESSAGES) == "Hi"
        assert not rendering.done()
        started[0].kill()
        while len(started) < 3:
            assert not rendering.done()
        started[2].kill()
        assert rendering.exception() is not None


def test_there_are_never_more_than_some(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(chat, "START_ANOTHER_S", 0.0)
    template = ChatTemplate(HELLO)
    most = 0
    barrier = threading.Barrier(12)

    def render() -> str:
        nonlocal most
        barrier.wait()
        text = template.render(MESSAGES)
        most = max(most, template.processes)
        return text

    with ThreadPoolExecutor(12) as pool:
        assert [future.result() for future in [pool.submit(render) for _ in range(12)]] == ["Hi"] * 12
    assert 1 <= most <= chat.MAX_PROCESSES
    assert template.processes == 1


def test_what_cannot_be_compiled_is_tried_once(started: list[subprocess.Popen[bytes]]) -> None:
    template = ChatTemplate("{{ 10 ** (10 ** 10) }}", seconds=0.1)
    for _ in range(3):
        with pytest.raises(TemplateLimitError, match="processor time"):
            template.render(MESSAGES)
    assert len(started) == 1


def test_an_interrupted_rendering_leaves_nothing_behind(
    started: list[subprocess.Popen[bytes]], monkeypatch: pytest.MonkeyPatch
) -> None:
    """As Ctrl-C may do it: the next prompt must not be the reply to the request before."""
    template = ChatTemplate(HELLO)
    template.render(MESSAGES)

    def interrupt(*_: object) -> None:
        raise KeyboardInterrupt

    with monkeypatch.context() as patch:
        patch.setattr(ChildProcess, "_receive", interrupt)
        with pytest.raises(KeyboardInterrupt):
            template.render([{"role": "user", "content": "interrupted"}])
    assert template.render(MESSAGES) == "Hi"
    assert len(started) == 2


def test_it_has_a_process_group_of_its_own(started: list[subprocess.Popen[bytes]]) -> None:
    template = ChatTemplate(HELLO)
    template.render(MESSAGES)
    assert os.getpgid(started[0].pid) != os.getpgrp()
    os.kill(started[0].pid, signal.SIGINT)
    assert template.render(MESSAGES) == "Hi"
    assert len(started) == 1


def test_it_ends_with_its_template(started: list[subprocess.Popen[bytes]]) -> None:
    template = ChatTemplate(HELLO)
    template.render(MESSAGES)
    template.close()
    assert started[0].returncode is not None
    assert template.render(MESSAGES) == "Hi"
    del template
    gc.collect()
    assert started[1].returncode is not None


def test_a_fork_has_processes_of_its_own(started: list[subprocess.Popen[bytes]]) -> None:
    template = ChatTemplate(HELLO)
    template.render(MESSAGES)
    with pytest.MonkeyPatch.context() as patch:  # as a fork would leave it, without its dangers where there are threads
        patch.setattr(os, "getpid", lambda: -1)
        assert template.render(MESSAGES) == "Hi"
        assert len(started) == 2
        os.kill(started[0].pid, 0)  # it lives: it is the parent's
        template.close()
    started[0].returncode = None
    started[0].kill()
    started[0].wait()


PARENT = """
import sys, os
from twofold.text.templates.chat import ChatTemplate
loops = "{% for a in range(99999) %}" * 2 + "{% endfor %}" * 2
quick, busy = ChatTemplate("x"), ChatTemplate(loops, seconds=2)
quick.render([]), busy.check()
print(*(process.popen.pid for template in (quick, busy) for process in template._idle), flush=True)
busy.render([])
"""


def test_it_ends_with_its_parent() -> None:
    """Also when the parent is killed: one that waits at once, one that renders when its time is over."""
    with subprocess.Popen([sys.executable, "-c", PARENT], stdout=subprocess.PIPE, text=True) as parent:
        assert parent.stdout is not None
        pids = [int(pid) for pid in parent.stdout.readline().split()]
        with ended(pids[0]) as first, ended(pids[1]) as second:
            while processor_time(pids[1]) < 0.2:
                assert parent.poll() is None
            parent.kill()
            assert select.select([first], [], [], 60)[0]
            assert select.select([second], [], [], 60)[0]


def test_no_process_can_be_started(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(sys, "executable", "/nonexistent/python")
    template = ChatTemplate(HELLO)
    for _ in range(2 * chat.MAX_PROCESSES):
        with pytest.raises(ResourceError, match="could not be started"):
            template.render(MESSAGES)
    monkeypatch.undo()
    assert template.render(MESSAGES) == "Hi"


def test_the_current_folder_may_be_gone(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    tmp_path.rmdir()
    assert ChatTemplate(HELLO).render(MESSAGES) == "Hi"


def test_modules_of_the_current_folder_are_not_imported(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    (tmp_path / "jinja2.py").write_text("raise SystemExit")
    monkeypatch.chdir(tmp_path)
    assert ChatTemplate(HELLO).render(MESSAGES) == "Hi"


@contextmanager
def ended(pid: int) -> Iterator[int]:
    """A descriptor that can be read once a process, which need not be a child, has ended."""
    descriptor = os.pidfd_open(pid)
    try:
        yield descriptor
    finally:
        os.close(descriptor)


def processor_time(pid: int) -> float:
    """Seconds of processor time that a process has taken."""
    try:
        fields = Path(f"/proc/{pid}/stat").read_text().rsplit(")", 1)[1].split()
    except FileNotFoundError:
        return 0.0
    return (int(fields[11]) + int(fields[12])) / os.sysconf("SC_CLK_TCK")
