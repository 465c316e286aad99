"""The worker's end of the socket: order of messages, a server that reads slowly, and a server that is gone."""

from __future__ import annotations

import socket
import threading

import pytest

from twofold.engine.outputs import OutputDelta
from twofold.fleet import channel
from twofold.fleet.channel import Channel
from twofold.fleet.messages import Abort, Codec, FromWorker, Ping, Pong, StepOutputs, Unframer


def a_step(text: str) -> StepOutputs:
    return StepOutputs([OutputDelta("r", 0, text, ())], [], None)


def read_texts(ours: socket.socket, count: int) -> list[str]:
    codec, unframer = Codec(FromWorker), Unframer()
    texts: list[str] = []
    while len(texts) < count:
        texts += [codec.message(payload).deltas[0].text for payload in unframer.feed(ours.recv(1 << 16))]
    return texts


def send_all(end: Channel, texts: list[str]) -> None:
    for text in texts:
        end.send(a_step(text))


def test_messages_arrive_in_order_however_slowly_they_are_read() -> None:
    ours, theirs = socket.socketpair()
    sent = ["x" * (number * 3000) for number in range(60)]
    with ours:
        end = Channel(theirs)
        send_all(end, sent)  # does not wait for a reader
        assert read_texts(ours, len(sent)) == sent
        end.drain()


def test_a_server_that_reads_nothing_makes_senders_wait(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(channel, "MAX_UNSENT", 1 << 20)
    ours, theirs = socket.socketpair()
    with ours:
        end = Channel(theirs)
        sender = threading.Thread(target=send_all, args=(end, ["x" * (1 << 20)] * 4))
        sender.start()
        sender.join(0.05)
        assert sender.is_alive()
        assert len(read_texts(ours, 4)) == 4
        sender.join(5)
        assert not sender.is_alive()


def test_a_channel_receives_until_the_server_is_gone() -> None:
    ours, theirs = socket.socketpair()
    end = Channel(theirs)
    codec = Codec(FromWorker)
    ours.sendall(codec.frame(Ping()) + codec.frame(Abort("r")) + codec.frame(Ping())[:7])
    ours.close()
    assert end.receive() == Ping()
    assert end.receive() == Abort("r")
    assert end.receive() is None
    end.send(Pong(None))
    end.drain()


def test_a_large_message_disconnects_no_hub_that_reads(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(channel, "MAX_UNSENT", 1 << 20)
    ours, theirs = socket.socketpair()
    sent = ["x" * (4 << 20), "beat", "beat"]
    with ours:
        end = Channel(theirs, patient=False)
        send_all(end, sent)
        assert read_texts(ours, len(sent)) == sent
        end.close()


def test_a_hub_that_reads_nothing_is_disconnected_where_others_wait(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(channel, "MAX_UNSENT", 1 << 20)
    ours, theirs = socket.socketpair()
    with ours:
        end = Channel(theirs, patient=False)
        send_all(end, ["x" * (1 << 20)] * 4)  # does not wait for a reader
        assert end.receive() is None
        end.close()
