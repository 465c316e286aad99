"""Tells a service manager how the server stands: the protocol of sd_notify(3), one datagram to a Unix socket."""

from __future__ import annotations

import socket
from contextlib import suppress
from typing import Literal

from twofold.host.env import read_environment


def notify(state: Literal["READY=1", "STOPPING=1"]) -> None:
    """Sends ``state`` to the socket that NOTIFY_SOCKET names; does nothing without one, or if nobody listens."""
    address = read_environment().notify_socket
    if not address:
        return
    path = "\0" + address[1:] if address.startswith("@") else address  # @ stands for the abstract name space
    with suppress(OSError), socket.socket(socket.AF_UNIX, socket.SOCK_DGRAM) as sender:
        sender.sendto(state.encode(), path)
