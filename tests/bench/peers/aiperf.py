"""NVIDIA's aiperf as a second opinion: one run of it, request by request.

What it calls by other names: its ITL is our TPOT, its ICL our gaps, its request latency our E2E from the send.
"""

from __future__ import annotations

import json
import os
import subprocess
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Final

import pytest
from tokenizers import Tokenizer, decoders, models, pre_tokenizers

from tests.bench.stub.live import ROOT

PATIENCE_S: Final = 120.0


@dataclass(frozen=True, slots=True)
class Found:
    """Seconds of each request that was answered, in any order; rates as aiperf tells them."""

    ttft: list[float]
    tpot: list[float]
    gaps: list[float]
    e2e: list[float]
    requests_per_s: float
    output_tokens_per_s: float

    @classmethod
    def of(cls, folder: Path) -> Found:
        """Reads the files of a run."""
        rows = [json.loads(line)["metrics"] for line in (folder / "profile_export.jsonl").read_text().splitlines()]
        total = json.loads((folder / "profile_export_aiperf.json").read_text())
        return cls(
            ttft=[_seconds(row["time_to_first_token"]) for row in rows],
            tpot=[_seconds(row["inter_token_latency"]) for row in rows],
            gaps=[gap / 1e3 for row in rows for gap in row["inter_chunk_latency"]["value"]],
            e2e=[_seconds(row["request_latency"]) for row in rows],
            requests_per_s=total["request_throughput"]["avg"],
            output_tokens_per_s=total["output_token_throughput"]["avg"],
        )


def executable() -> str:
    """Skips the test if aiperf is missing."""
    named = os.environ.get("TWOFOLD_AIPERF", str(ROOT / ".venv-aiperf/bin/aiperf"))
    if not Path(named).is_file():
        pytest.skip("needs aiperf: make peers-aiperf, or its path in TWOFOLD_AIPERF")
    return named


def run(url: str, folder: Path, load: Sequence[object], fields: dict[str, Any]) -> Found:
    """Measures the stub with chat streaming; ``load`` are aiperf's flags, ``fields`` are added to each body."""
    tokenizer = folder / "tokenizer"
    _write_tokenizer(tokenizer)
    flags = {
        "--model": "stub",
        "--url": url,
        "--endpoint-type": "chat",
        "--tokenizer": tokenizer,
        "--extra-inputs": json.dumps(fields),
        "--ui": "none",
        "--random-seed": 1,
        "--output-artifact-dir": folder,
    }
    switches = ["--streaming", "--use-legacy-max-tokens", "--use-server-token-count"]
    quiet = ["--no-gpu-telemetry", "--no-server-metrics"]
    given = [str(part) for pair in flags.items() for part in pair]
    command = [executable(), "profile", *given, *switches, *quiet, *map(str, load)]
    # A folder's name is taken for one of the hub's where HF_HUB_OFFLINE is set.
    kept = {name: value for name, value in os.environ.items() if name != "HF_HUB_OFFLINE"}
    done = subprocess.run(
        command, capture_output=True, text=True, timeout=PATIENCE_S, check=False, env=kept, cwd=folder
    )
    assert done.returncode == 0, done.stdout[-3000:] + done.stderr[-3000:]
    return Found.of(folder)


def _write_tokenizer(folder: Path) -> None:
    """One token for each byte: aiperf makes its prompts with it, and the server counts them anew."""
    folder.mkdir()
    alphabet = sorted(pre_tokenizers.ByteLevel.alphabet())
    tokenizer = Tokenizer(models.BPE(vocab={letter: place for place, letter in enumerate(alphabet)}, merges=[]))
    tokenizer.pre_tokenizer = pre_tokenizers.ByteLevel(add_prefix_space=False)
    tokenizer.decoder = decoders.ByteLevel()
    tokenizer.save(str(folder / "tokenizer.json"))
    (folder / "tokenizer_config.json").write_text('{"tokenizer_class": "PreTrainedTokenizerFast"}')


def _seconds(metric: dict[str, Any]) -> float:
    assert metric["unit"] == "ms"
    return float(metric["value"]) / 1e3
