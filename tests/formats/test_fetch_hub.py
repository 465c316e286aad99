"""Fetching from a Hugging Face hub: the real client against a small hub on the loopback interface."""

import json
import subprocess
import sys
import threading
from collections.abc import Iterator
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path

import pytest
from huggingface_hub import close_session, constants

from tests.formats.wheel_maker import tiny_model
from twofold.core.errors import ModelNotFoundError, NetworkError, ResourceError
from twofold.core.sampling_defaults import SamplingDefaults
from twofold.formats.fetch import sources
from twofold.formats.fetch.hub import bar_class, choose_file
from twofold.formats.fetch.names import HubSource

COMMIT = "0123456789abcdef0123456789abcdef01234567"


class Hub(ThreadingHTTPServer):
    """Serves one repository, u/m, with these files; ``refuses`` is a status and error code for everything."""

    daemon_threads = True

    def __init__(self, files: dict[str, bytes]) -> None:
        super().__init__(("127.0.0.1", 0), _Handler)
        self.files = files
        self.fetched: list[str] = []
        self.refuses: tuple[int, str] | None = None


class _Handler(BaseHTTPRequestHandler):
    server: Hub

    def do_HEAD(self) -> None:
        self._answer(body=False)

    def do_GET(self) -> None:
        self._answer(body=True)

    def _answer(self, body: bool) -> None:
        path = self.path.partition("?")[0]
        name = path.removeprefix(f"/u/m/resolve/{COMMIT}/")
        if self.server.refuses is not None:
            status, code = self.server.refuses
            self._send(status, b"", {"X-Error-Code": code, "X-Error-Message": code}, body)
        elif path == "/api/models/u/m":
            self._send(200, self._listing(), {"Content-Type": "application/json"}, body)
        elif name in self.server.files:
            self.server.fetched += [name] if body else []
            self._send(200, self.server.files[name], {"ETag": f'"{name}-tag"', "X-Repo-Commit": COMMIT}, body)
        else:
            self._send(404, b"", {"X-Error-Code": "RepoNotFound"}, body)

    def _listing(self) -> bytes:
        siblings = [{"rfilename": name, "size": len(data)} for name, data in self.server.files.items()]
        card = {"license": "mit"}
        return json.dumps({"id": "u/m", "sha": COMMIT, "siblings": siblings, "cardData": card}).encode()

    def _send(self, status: int, data: bytes, headers: dict[str, str], body: bool) -> None:
        self.send_response(status)
        for name, value in {**headers, "Content-Length": str(len(data))}.items():
            self.send_header(name, value)
        self.end_headers()
        if body:
            self.wfile.write(data)

    def log_message(self, *_: object) -> None:
        return


class Counter:
    def __init__(self) -> None:
        self.total: int | None = None
        self.seen = 0

    def start(self, total_bytes: int | None, what: str, *, follows: bool = False) -> None:  # noqa: ARG002
        assert what
        self.total = total_bytes

    def advance(self, count: int) -> None:
        self.seen += count

    def done(self) -> None:
        return


@pytest.fixture
def hub(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[Hub]:
    model = tiny_model(tmp_path / "m.gguf")
    names = ("m.Q4_K_M.gguf", "m.Q8_0.gguf", "s-Q6_K-00001-of-00002.gguf", "s-Q6_K-00002-of-00002.gguf", "README.md")
    server = Hub(dict.fromkeys(names, model))
    endpoint = f"http://127.0.0.1:{server.server_address[1]}"
    monkeypatch.setattr(constants, "ENDPOINT", endpoint)
    template = constants.HUGGINGFACE_CO_URL_TEMPLATE.replace("https://huggingface.co", endpoint)
    monkeypatch.setattr(constants, "HUGGINGFACE_CO_URL_TEMPLATE", template)
    monkeypatch.setattr(constants, "HF_HUB_CACHE", str(tmp_path / "hub"))
    monkeypatch.setattr(constants, "HF_HUB_DISABLE_XET", True)
    thread = threading.Thread(target=server.serve_forever, kwargs={"poll_interval": 0.02})
    thread.start()
    yield server
    close_session()
    server.shutdown()
    thread.join()
    server.server_close()


def test_a_generation_config_comes_with_the_model(hub: Hub, tmp_path: Path) -> None:
    hub.files["generation_config.json"] = b'{"temperature": 0.6}'
    progress = Counter()
    found = sources.resolve("hf.co/u/m", cache=tmp_path / "cache", progress=progress)
    assert progress.seen == progress.total == found.path.stat().st_size + len(hub.files["generation_config.json"])
    assert [model.size for model in sources.installed(tmp_path / "cache")] == [found.path.stat().st_size]
    assert SamplingDefaults.of_model(found.path, {}).temperature == 0.6


def test_the_usual_file_is_fetched_once(hub: Hub, tmp_path: Path) -> None:
    cache, progress = tmp_path / "cache", Counter()
    found = sources.resolve("hf.co/u/m", cache=cache, progress=progress)
    assert found.path.read_bytes() == hub.files["m.Q4_K_M.gguf"]
    assert (found.source, found.licence) == ("hf.co/u/m/m.Q4_K_M.gguf", "mit")
    assert progress.seen == progress.total == len(hub.files["m.Q4_K_M.gguf"])
    assert sources.resolve("hf.co/u/m", cache=cache) == found
    assert hub.fetched == ["m.Q4_K_M.gguf"]
    assert [model.name for model in sources.installed(cache)] == ["hf.co/u/m"]


def test_a_file_of_the_hubs_cache_is_not_fetched_again(hub: Hub, tmp_path: Path) -> None:
    sources.resolve("hf.co/u/m:q8_0", cache=tmp_path / "cache")
    progress = Counter()
    sources.resolve("hf.co/u/m/m.Q8_0.gguf", cache=tmp_path / "other", progress=progress)
    assert hub.fetched == ["m.Q8_0.gguf"]
    assert progress.seen == progress.total


def test_all_parts_of_a_split_model_come_and_go(hub: Hub, tmp_path: Path) -> None:
    cache = tmp_path / "cache"
    found = sources.resolve("hf.co/u/m:Q6_K", cache=cache)
    assert found.path.name == "s-Q6_K-00001-of-00002.gguf"
    assert found.path.with_name("s-Q6_K-00002-of-00002.gguf").exists()
    assert len(hub.fetched) == 2
    gone = sources.remove("hf.co/u/m:Q6_K", cache=cache)
    assert gone.size == 2 * len(hub.files["README.md"])
    assert not list((tmp_path / "hub").rglob("*.gguf"))
    with pytest.raises(ModelNotFoundError, match="not in the cache"):
        sources.locate("hf.co/u/m:Q6_K", cache=cache)


def test_offline_mode_uses_cached_files(hub: Hub, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    sources.resolve("hf.co/u/m:Q8_0", cache=tmp_path / "cache")
    monkeypatch.setattr(constants, "HF_HUB_OFFLINE", True)
    assert sources.resolve("hf.co/u/m", cache=tmp_path / "other").path.name == "m.Q8_0.gguf"
    with pytest.raises(ModelNotFoundError) as caught:
        sources.resolve("hf.co/u/m:Q4_K_M", cache=tmp_path / "third")
    assert "m.Q8_0.gguf" in str(caught.value.hint)
    with pytest.raises(NetworkError, match="not in the cache"):
        sources.resolve("hf.co/u/other", cache=tmp_path / "third")
    assert hub.fetched == ["m.Q8_0.gguf"]


@pytest.mark.parametrize(
    ("refusal", "kind", "text"),
    [
        ((401, "GatedRepo"), ResourceError, "gated"),
        ((404, "RepoNotFound"), ModelNotFoundError, "no repository"),
        ((500, "Broken"), NetworkError, "cannot be reached"),
    ],
)
def test_refusals(hub: Hub, tmp_path: Path, refusal: tuple[int, str], kind: type[Exception], text: str) -> None:
    hub.refuses = refusal
    with pytest.raises(kind, match=text) as caught:
        sources.resolve("hf.co/u/m", cache=tmp_path / "cache")
    assert getattr(caught.value, "hint", None)
    assert sources.installed(tmp_path / "cache") == []


def test_no_network(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(constants, "ENDPOINT", "http://127.0.0.1:9")
    with pytest.raises(NetworkError) as caught:
        sources.resolve("hf.co/u/m", cache=tmp_path / "cache")
    assert "HF_HUB_OFFLINE" in str(caught.value.hint)


def test_no_room(hub: Hub, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    def full(folder: Path, needed: int) -> None:
        raise ResourceError(f"{folder} lacks {needed} bytes.")

    monkeypatch.setattr("twofold.formats.fetch.hub.check_space", full)
    with pytest.raises(ResourceError, match="lacks"):
        sources.resolve("hf.co/u/m", cache=tmp_path / "cache")
    assert hub.fetched == []


@pytest.mark.parametrize(
    ("quant", "files", "expected"),
    [
        (None, ["only.gguf", "README.md"], "only.gguf"),
        (None, ["m-f16.gguf", "m-q4_0.gguf", "m-q8_0.gguf"], "m-q4_0.gguf"),
        (None, ["m.Q8_0.gguf", "mmproj-m.gguf", "m.imatrix.gguf"], "m.Q8_0.gguf"),
        ("Q4_K_M", ["m-Q4_K_M.gguf", "m-Q4_K_M-tuned-more.gguf"], "m-Q4_K_M.gguf"),
        ("f16", ["m-bf16.gguf", "m-F16.gguf"], "m-F16.gguf"),
        ("Q4_K", ["m-Q4_K_M.gguf", "sub/m.Q4_K.gguf"], "sub/m.Q4_K.gguf"),
        ("Q2_K", ["Q2_K/m-00001-of-00002.gguf", "Q2_K/m-00002-of-00002.gguf"], "Q2_K/m-00001-of-00002.gguf"),
    ],
)
def test_which_file_is_chosen(quant: str | None, files: list[str], expected: str) -> None:
    assert choose_file(HubSource("u/m", quant=quant), files) == expected


@pytest.mark.parametrize(
    ("source", "files", "hint"),
    [
        (HubSource("u/m", quant="Q4_K"), ["m-Q4_K_M.gguf"], "m-Q4_K_M.gguf"),
        (HubSource("u/m", quant="Q5_0"), ["a.Q8_0.gguf", "b.F16.gguf"], "a.Q8_0.gguf, b.F16.gguf"),
        (HubSource("u/m", filename="a.Q8.gguf"), ["a.Q8_0.gguf"], "Did you mean a.Q8_0.gguf?"),
        (HubSource("u/m"), ["a.IQ1_S.gguf", "b.IQ2_M.gguf"], "a.IQ1_S.gguf"),
        (HubSource("u/m"), ["model.safetensors"], "GGUF"),
    ],
)
def test_the_error_of_a_missing_file_lists_the_others(source: HubSource, files: list[str], hint: str) -> None:
    with pytest.raises(ModelNotFoundError) as caught:
        choose_file(source, files)
    assert hint in str(caught.value.hint)


def test_the_hub_client_is_imported_only_when_it_is_needed() -> None:
    check = "import sys; import twofold.formats.fetch.sources; sys.exit('huggingface_hub' in sys.modules)"
    assert subprocess.run([sys.executable, "-c", check], check=False).returncode == 0


def test_of_two_bars_only_written_bytes_count() -> None:
    progress = Counter()
    bars = bar_class(progress)
    written, transferred = bars(name="get", total=100, initial=20), bars(name="get.transfer", total=100)
    for bar in (written, transferred):
        bar.update(80)
        bar.close()
    assert progress.seen == 100
