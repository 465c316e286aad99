"""A fleet of several machines on one: network namespaces joined by cables (veth pairs) that can be pulled."""

from __future__ import annotations

import ctypes
import os
import shutil
import subprocess
import threading
from collections.abc import Callable, Iterator
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass
from typing import Final, TypeVar

CLONE_NEWNET: Final = 0x40000000
NODE_PORT: Final = 7000
Result = TypeVar("Result")


@dataclass(frozen=True, slots=True)
class Machine:
    """A network namespace. ``address`` is that of the hub, as this machine sees it; ``cable`` the hub's end of it."""

    name: str
    address: str = ""
    cable: str = ""

    @property
    def prefix(self) -> tuple[str, ...]:
        """The command that runs another one on the machine."""
        return "ip", "netns", "exec", self.name

    def run(self, work: Callable[[], Result]) -> Result:
        """Calls ``work`` on a thread of the machine; threads that it starts are there, too."""
        results: list[Result] = []
        errors: list[BaseException] = []

        def call() -> None:
            try:
                with open(f"/run/netns/{self.name}") as space:
                    if ctypes.CDLL(None, use_errno=True).setns(space.fileno(), CLONE_NEWNET):
                        raise OSError(ctypes.get_errno(), "the namespace cannot be entered")
                results.append(work())
            except BaseException as error:  # raised where the caller waits
                errors.append(error)

        thread = threading.Thread(target=call)
        thread.start()
        thread.join()
        if errors:
            raise errors[0]
        return results[0]


def reason_without_namespaces() -> str | None:
    """Why this process can make no network namespaces; None if it can."""
    if os.geteuid():
        return "network namespaces require root"
    if shutil.which("ip") is None:
        return "the command ip is missing"
    name = f"twofold-{os.getpid()}-try"
    tried = subprocess.run(["ip", "netns", "add", name], capture_output=True, check=False)
    if tried.returncode:
        return f"no network namespace can be made: {tried.stderr.decode().strip()}"
    subprocess.run(["ip", "netns", "delete", name], check=True)
    return None


@contextmanager
def machines(nodes: int) -> Iterator[tuple[Machine, list[Machine]]]:
    """A hub's machine and those of nodes, each with a cable to the hub."""
    hub, made = Machine(f"twofold-{os.getpid()}-hub"), []
    with ExitStack() as stack:
        _machine(stack, hub)
        for number in range(nodes):
            node = Machine(f"twofold-{os.getpid()}-n{number}", f"10.77.{number}.1", f"cable{number}")
            _machine(stack, node)
            _ip("-n", hub.name, "link", "add", node.cable, "type", "veth", "peer", "name", "up0", "netns", node.name)
            for machine, end, host in ((hub, node.cable, 1), (node, "up0", 2)):
                _ip("-n", machine.name, "address", "add", f"10.77.{number}.{host}/24", "dev", end)
                _ip("-n", machine.name, "link", "set", end, "up")
            made.append(node)
        yield hub, made


def _machine(stack: ExitStack, machine: Machine) -> None:
    _ip("netns", "add", machine.name)
    stack.callback(_ip, "netns", "delete", machine.name)
    _ip("-n", machine.name, "link", "set", "lo", "up")


def pull(hub: Machine, node: Machine) -> None:
    """Pulls a node's cable."""
    _ip("-n", hub.name, "link", "set", node.cable, "down")


def plug(hub: Machine, node: Machine) -> None:
    """Plugs a node's cable in again."""
    _ip("-n", hub.name, "link", "set", node.cable, "up")


def _ip(*arguments: str) -> None:
    subprocess.run(["ip", *arguments], check=True)
