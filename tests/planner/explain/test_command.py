"""``twofold explain``: its sources, output, errors and start-up."""

from __future__ import annotations

import json
import subprocess
import sys
from collections.abc import Callable
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path
from threading import Thread
from typing import Any

import pytest

from tests.bench.report.runs import document, mixed
from tests.planner.explain.test_sources import RUN, record
from tests.support.tiny import TinyModel, TinyOptions
from twofold.cli.explain import LeverOptions, ScenarioOptions, explain
from twofold.cli.main import main
from twofold.core.errors import AccessError, FormatError, ModelNotFoundError, NotFoundError, ParameterError

ROOT = Path(__file__).parents[3]
H100 = ScenarioOptions(model="llama-3-8b", hardware="h100", input_tokens=1000, output_tokens=100, batch=4)
HEAVY = (
    "numpy",
    "llvmlite",
    "tokenizers",
    "rich",
    "twofold.engine",
    "twofold.backends",
    "twofold.bench",
)
CHARTS = ("twofold.bench", "twofold.bench.draw")
"""What explanations are drawn with."""
START = """
import sys
from twofold.cli.explain import ScenarioOptions, explain
explain(scenario=ScenarioOptions(model="llama-3-8b", hardware="h100"), json=sys.argv[1] == "json")
print(*sys.modules, file=sys.stderr)
"""


def explained(capsys: pytest.CaptureFixture[str], *arguments: Any, **options: Any) -> dict[str, Any]:
    """What is printed as JSON."""
    explain(*arguments, **options, json=True)
    found: dict[str, Any] = json.loads(capsys.readouterr().out)
    return found


def test_a_hypothetical(capsys: pytest.CaptureFixture[str]) -> None:
    explain(scenario=H100)
    out = capsys.readouterr().out
    assert out.startswith("llama-3-8b (bf16, KV bf16) on h100: 1,000 prompt tokens, 100 output tokens, concurrency 4\n")
    assert "Roofline of h100" in out


def test_flags_of_a_hypothetical(capsys: pytest.CaptureFixture[str]) -> None:
    scenario = ScenarioOptions(
        model="meta-llama/Llama-3-70B-Instruct", hardware="H200", input_tokens=4000, cached=1000, output_tokens=9,
        batch=2, chunk=512, tp=2, weights="int4", kv="fp8",
    )  # fmt: skip
    found = explained(capsys, scenario=scenario, levers=LeverOptions(goal="ttft", acceptance=0.9))
    assert found["goal"] == "ttft"
    scenario = found["scenario"]
    assert scenario["words"] == (
        "llama-3-70b (int4, KV fp8) on 2 × h200: 4,000 prompt tokens (1,000 cached), 9 output tokens, concurrency 2, "
        "chunks of 512"
    )
    assert (scenario["tp"], scenario["batch"], scenario["chunk"]) == (2, 2, 512)
    speculation = next(each for each in found["levers"] if each["lever"] == "speculation")
    assert "90% accepted" in speculation["what"]


def test_a_config_of_another_model(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    config = {
        "model_type": "llama", "hidden_size": 1024, "num_hidden_layers": 4, "num_attention_heads": 16,
        "num_key_value_heads": 4, "intermediate_size": 4096, "vocab_size": 32000, "max_position_embeddings": 4096,
    }  # fmt: skip
    path = tmp_path / "config.json"
    path.write_text(json.dumps(config))
    scenario = ScenarioOptions(model=str(path), hardware="l4")
    assert explained(capsys, scenario=scenario)["scenario"]["hardware"] == "l4"
    del config["intermediate_size"]
    path.write_text(json.dumps(config))
    with pytest.raises(FormatError, match="'intermediate_size'"):
        explain(scenario=scenario)


def test_a_run_a_record_and_a_bench(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    path = tmp_path / "source.json"
    path.write_text(json.dumps(RUN))
    assert explained(capsys, str(path))["scenario"] is None
    both = explained(capsys, str(path), scenario=ScenarioOptions(model="llama-3-8b", hardware="h100"))
    assert both["scenario"]["input_tokens"] == 41
    assert both["phases"][2]["actual_s"] == 0.75
    assert both["phases"][2]["predicted_s"] != 0.75
    path.write_text(json.dumps(record()))
    assert explained(capsys, str(path))["title"].startswith("req_1: 41 prompt tokens")
    path.write_bytes(document(mixed(40), model="llama-3-8b").to_json())
    bench = explained(capsys, str(path), request="p99", scenario=ScenarioOptions(hardware="h100"))
    assert bench["title"].startswith("request ")
    assert bench["scenario"]["model"] == "llama-3-8b"


def test_a_picture(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    path = tmp_path / "roofline.svg"
    explain(scenario=H100, svg=path)
    assert path.read_text("utf-8").startswith("<svg ")
    assert f"Wrote {path}." in capsys.readouterr().err
    with pytest.raises(ParameterError, match="SVG"):
        explain(scenario=H100, svg=tmp_path / "roofline.png")


@pytest.mark.parametrize(
    ("scenario", "error", "hint"),
    [
        (ScenarioOptions(), ParameterError, "--model"),
        (ScenarioOptions(model="lama-3-8b", hardware="h100"), ModelNotFoundError, "'llama-3-8b'"),
        (ScenarioOptions(model="llama-3-8b", hardware="h10"), ParameterError, "'h100'"),
        (ScenarioOptions(model="llama-3-8b", hardware="h100", weights="int5"), ParameterError, "'int"),
        (ScenarioOptions(model="llama-3-8b", hardware="h100", kv="f8"), ParameterError, "'fp8'"),
        (ScenarioOptions(model="llama-3-70b", hardware="h100"), ParameterError, "--tp 2"),
        (ScenarioOptions(model="smollm2-135m", hardware="h100", tp=2), ParameterError, "divides 9"),
        (ScenarioOptions(model="llama-3-8b", hardware="h100", cached=512), ParameterError, None),
        (ScenarioOptions(model="llama-3-8b", hardware="h100", chunk=0), ParameterError, None),
    ],
)
def test_what_is_refused(scenario: ScenarioOptions, error: type[Exception], hint: str | None) -> None:
    with pytest.raises(error) as caught:
        explain(scenario=scenario)
    if hint is not None:
        assert hint in str(getattr(caught.value, "hint", ""))


def test_sources_that_are_none(tmp_path: Path) -> None:
    with pytest.raises(ParameterError, match="cannot be read"):
        explain(str(tmp_path / "nothing.json"))
    strange = tmp_path / "strange.json"
    strange.write_text(json.dumps({**RUN, "model": "mine"}))
    with pytest.raises(ModelNotFoundError, match="'mine'") as caught:
        explain(str(strange), scenario=ScenarioOptions(hardware="h100"))
    assert "--model" in (caught.value.hint or "")
    with pytest.raises(ParameterError, match="needs a model and a machine"):
        explain(str(strange), svg=tmp_path / "r.svg")


LAST = [
    {"id": "req_1", "seconds": 0.5, "prompt_tokens": 12, "output_tokens": 3, "model": "tiny"},
    {"id": "req_2", "seconds": 4.0, "prompt_tokens": 1200, "output_tokens": 30, "model": "tiny"},
]
VIEW = {"id": "req_3", "seconds": 9.0, "prompt_tokens": 0, "output_tokens": 0, "model": "tiny"}
"""A stream of the live view."""


class Records(BaseHTTPRequestHandler):
    """A server with one record, for one key."""

    def do_GET(self) -> None:
        known = self.path in {"/v1/twofold/requests/req_1", "/v1/twofold/requests?limit=10"}
        allowed = self.headers.get("authorization") == "Bearer k"
        body = json.dumps({"data": [*LAST, VIEW]} if "limit" in self.path else record()).encode()
        self.send_response(401 if not allowed else 200 if known else 404)
        self.send_header("content-length", str(len(body)))
        self.end_headers()
        self.wfile.write(body)

    def log_message(self, format: str, *args: Any) -> None:
        """Logs nothing."""


def test_a_record_from_a_server(capsys: pytest.CaptureFixture[str]) -> None:
    with ThreadingHTTPServer(("127.0.0.1", 0), Records) as server:
        Thread(target=server.serve_forever, args=(0.01,), daemon=True).start()
        url = f"http://127.0.0.1:{server.server_port}"
        by_id = explained(capsys, url, request="req_1", api_key="k")
        assert by_id == explained(capsys, f"{url}/v1/twofold/requests/req_1", api_key="k")
        assert by_id["title"].startswith("req_1")
        with pytest.raises(AccessError, match="denies access"):
            explain(url, request="req_1")
        with pytest.raises(NotFoundError, match="no record of 'req_2'"):
            explain(url, request="req_2", api_key="k")
        with pytest.raises(NotFoundError, match=r"no record of 'requests' \(status 404\)"):
            explain(f"{url}/other", api_key="k")
        explain(url, api_key="k")
        shown = capsys.readouterr()
        assert [line.split()[0] for line in shown.out.splitlines()] == ["req_2", "req_1"], "the slowest first"
        assert "1,200 → 30 tokens" in shown.out
        assert f"twofold explain {url} --request ID" in shown.err
        explain(url, api_key="k", json=True)
        assert json.loads(capsys.readouterr().out) == LAST[::-1]
        server.shutdown()


def test_this_machine(
    tmp_path: Path,
    tiny_gguf: Callable[[TinyOptions], TinyModel],
    monkeypatch: pytest.MonkeyPatch,
    capsys: pytest.CaptureFixture[str],
) -> None:
    """A run of a small model here, and what this machine was thought to need for it."""
    monkeypatch.setenv("TWOFOLD_CACHE", str(tmp_path / "cache"))
    model = str(tiny_gguf(TinyOptions()).path)
    assert main(["run", "in the", "-m", model, "-n", "8", "--ignore-eos", "--json"]) == 0
    path = tmp_path / "run.json"
    path.write_text(capsys.readouterr().out)
    assert main(["explain", str(path), "-m", model, "--for", "ttft", "--json"]) == 0
    found = json.loads(capsys.readouterr().out)
    assert found["scenario"]["hardware"] == "this machine"
    assert found["scenario"]["kv"] == "bf16"
    assert found["goal"] == "ttft"
    phases = {each["name"]: each for each in found["phases"]}
    assert phases["decode"]["actual_s"] > phases["decode"]["floor_s"] > 0
    assert phases["prefill"]["predicted_s"] > 0


@pytest.mark.parametrize("form", ["json", "text"])
def test_a_hypothetical_loads_little(form: str) -> None:
    """Start-up is modules: what paper machines need none of is not loaded, and the rest are not many."""
    done = subprocess.run([sys.executable, "-c", START, form], cwd=ROOT, capture_output=True, text=True, check=True)
    loaded = done.stderr.split()
    others = [each for each in loaded if each not in CHARTS and not each.startswith(f"{CHARTS[1]}.")]
    for name in HEAVY:
        assert not [each for each in others if each == name or each.startswith(f"{name}.")], name
    assert sum(each.startswith("twofold") for each in loaded) < 80
    assert len(loaded) < 420
