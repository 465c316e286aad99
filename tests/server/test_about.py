"""GET /v1/twofold/server: what the server offers a caller, and what it answers without a key."""

from __future__ import annotations

from pathlib import Path

from tests.server.live import LiveServer, live_server
from tests.support.tiny import TinyModel
from twofold.host.versions import twofold_version

PATH = "/v1/twofold/server"


def test_the_server_says_what_it_can(server: LiveServer) -> None:
    about = server.get(PATH).json()
    assert about["schema"] == "twofold.server/1"
    assert (about["version"], about["keyed"], about["sees"]) == (twofold_version(), False, "all")
    (model,) = about["models"]
    assert (model["id"], model["state"], model["context"], model["thinking"]) == ("tiny", "ready", 512, False)
    assert (model["quantization"], model["parameters"] > 0, model["sampling"]["temperature"]) == ("F32", True, 0.2)
    assert model["bytes"] > 0
    assert set(model["load"]) == {"read_s", "compile_s", "test_s"}
    assert model["load"]["read_s"] > 0
    assert model["load"]["test_s"] > 0
    assert about["tiers"]["default"] == {
        "tpot_target_s": 0.05,
        "queue_limit_s": 60.0,
        "ttft_s": 3600.0,
        "tpot_s": 0.2,
        "e2e_s": None,
    }
    assert about["limits"]["body_bytes"] == 2 << 20
    assert about["prices"]["currency"] is None
    assert {"requests", "usage", "models"} <= set(about["can"])
    paths = server.get("/openapi.json").json()["paths"]
    assert all(any(path.startswith(f"/v1/twofold/{name}") for path in paths) for name in about["can"])


def test_without_a_key_a_server_says_only_that_it_wants_one(tiny: TinyModel, tmp_path: Path) -> None:
    with live_server(tmp_path, f"tiny={tiny.path}", "--threads", "1", "--api-key", "secret") as server:
        asked = server.get(PATH)
        assert (asked.status_code, asked.json()) == (200, {"schema": "twofold.server/1", "keyed": True})
        assert server.get(PATH, headers={"x-api-key": "wrong"}).status_code == 401
        assert server.get("/v1/models").status_code == 401
        about = server.get(PATH, headers={"x-api-key": "secret"}).json()
        assert about["keyed"]
        assert about["models"][0]["id"] == "tiny"
