"""Types of keys and values: sessions in the same memory, speed after a long prompt, KL against f16, and a fact that is
hidden in a long text. Types of llama.cpp are compared with its own f16.

KL is the mean over positions of KL(f16 ‖ type) in nats over the whole vocabulary, on texts of this project. Linear
layers round activations to 8 bits, so any change of keys or values changes logits: f32 against f16 shows by how
much. The reference backend does not round activations, so its KL is that of the type alone.
"""

from __future__ import annotations

import random
import tempfile
from array import array
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from pathlib import Path
from typing import Any, Final

import numpy as np
from numpy.typing import NDArray

from benchmarks.compare import ROOT, our_command, peer_commands
from benchmarks.figures import median, random_tokens
from benchmarks.setting import Setting
from benchmarks.worker import Worker, WorkerError
from twofold.bench.phases.cases import Decode, Prefill
from twofold.bench.phases.ceilings import read_ceilings
from twofold.core.params import SamplingParams
from twofold.engine.config import EngineOptions, resolve
from twofold.engine.kv.manager import BlockManager
from twofold.engine.llm import LLM
from twofold.models.ops import Batch

TYPES: Final = ("f16", "bf16", "q8", "k8v4")
PEER_TYPES: Final = {"q8": ("q8_0", "q8_0"), "k8v4": ("q8_0", "q4_0")}
"""llama.cpp's types of keys and values with the nearest sizes."""
TEXTS: Final = ("docs/serving.md", "docs/cost.md", "twofold/engine/engine.py")
POSITIONS, CHUNK = 512, 128
SESSION, MEMORY = 1024, 1 << 30
PROMPT, STEPS = 7900, 16
SMALL: Final = 2 << 30
"""Bytes of float32 weights up to which the reference backend is measured."""
NEEDLES: Final = (0.2, 0.7)
Logits = NDArray[np.float32]
Compute = Callable[[list[int]], Logits]


def run(setting: Setting) -> dict[str, Any]:
    print(f"\nkv-types  {setting.name}: types of keys and values beside f16")
    return {
        "sessions": _sessions(setting),
        "speed": _speed(setting),
        "kl": _quality(setting),
        "needle": _needles(setting),
    }


def _sessions(setting: Setting) -> dict[str, int]:
    """Sequences of ``SESSION`` tokens for which the block manager has blocks in the same memory."""
    found = {}
    for kv_type in TYPES:
        options = EngineOptions(kv_cache_dtype=kv_type, kv_cache_memory_bytes=MEMORY, max_num_seqs=CHUNK)
        config = resolve(options, setting.ceilings.spec, MEMORY, options.open_backend().attention_chunk)
        manager, count = BlockManager(config.kv_groups, options.block_size, chunk=config.attention_chunk), 0
        while _admits(manager, str(count)):
            count += 1
        found[kv_type] = count
    for kv_type, count in found.items():
        ratio = count / found["f16"]
        print(
            f"  {kv_type:5s} {count:5d} sessions of {SESSION:,} tokens in {MEMORY >> 30} GiB, {ratio:.2f}×", flush=True
        )
    return found


def _admits(manager: BlockManager, salt: str) -> bool:
    """Whether there are blocks for one more sequence, which is computed in chunks."""
    tables = manager.open(array("i", range(1, 1 + SESSION)), salt, 0.0, most=0)
    return all(manager.grow(tables, first, first + CHUNK, 0.0) for first in range(0, SESSION, CHUNK))


def _speed(setting: Setting) -> dict[str, dict[str, float]]:
    """Seconds of a long prompt and of the steps after it, by type, in turns."""
    size = 256 if setting.quick else min(PROMPT, setting.context - STEPS - 1)
    limits = {}
    for kv_type in TYPES:
        ceilings = read_ceilings(setting.path, setting.ceilings.machine, kv_type, setting.ceilings.step_rows)
        limits[kv_type] = ceilings.limit(Decode(1, size, STEPS)).seconds, ceilings.limit(Prefill(size)).seconds
        tpot = limits[kv_type][0]
        ratio = tpot / limits["f16"][0]
        print(
            f"  {kv_type:5s} limit after {size:,} tokens: TPOT {tpot * 1e3:6.2f} ms, {ratio:.3f}× of f16's", flush=True
        )
    found: dict[str, list[dict[str, Any]]] = {kv_type: [] for kv_type in TYPES}
    prompt = random_tokens(size, setting.vocabulary, 5)
    for turn in range(1 if setting.quick else min(setting.rounds, 3)):
        for kv_type in TYPES if turn % 2 else reversed(TYPES):
            with Worker("twofold", our_command(), ROOT.parent) as worker:
                options = {"kv_cache_dtype": kv_type}
                worker.ask(
                    op="load", path=str(setting.path), threads=setting.threads, context=size + STEPS + 1, streams=1,
                    options=options,
                )  # fmt: skip
                found[kv_type].append(worker.ask(op="long", prompt=prompt, steps=STEPS))
    table = {
        kv_type: {
            "tpot_s": median(median(each["steps"]) for each in rounds),
            "prompt_s": median(each["prompt"] for each in rounds),
            "tpot_limit_s": limits[kv_type][0],
        }
        for kv_type, rounds in found.items()
    }
    for kv_type, row in table.items():
        tpot, speed = row["tpot_s"] / table["f16"]["tpot_s"], table["f16"]["prompt_s"] / row["prompt_s"]
        print(
            f"  {kv_type:5s} TPOT {row['tpot_s'] * 1e3:6.2f} ms, {tpot:.3f}× of f16's; prefill {speed:.3f}×", flush=True
        )
    return table


# -- quality ----------------------------------------------------------------------------------------------------------


def _quality(setting: Setting) -> dict[str, dict[str, float]]:
    texts = _texts(setting, 64 if setting.quick else POSITIONS)
    found = {"twofold": _divergences(texts, "f16", ("f32", *TYPES[1:]), lambda kv: _ours(setting, kv, "cpu"))}
    if not setting.quick and 2 * setting.ceilings.steps.cost.row_flops <= SMALL:
        names = ("q8", "k8v4")
        found["reference"] = _divergences(texts[:1], "f32", names, lambda kv: _ours(setting, kv, "reference"))
    command = peer_commands(ROOT.parent).get("llama.cpp")
    if command is not None:
        try:
            found["llama.cpp"] = _divergences(texts, "f16", tuple(PEER_TYPES), lambda kv: _peer(setting, kv, command))
        except WorkerError as error:
            print(f"  llama.cpp failed: {error}")
    for engine, values in found.items():
        print(f"  KL {engine:9s} " + ", ".join(f"{name} {kl:.5f}" for name, kl in values.items()), flush=True)
    return found


def _texts(setting: Setting, positions: int) -> list[list[int]]:
    with LLM(setting.path, max_model_len=64, threads=1) as llm:
        return [llm.loaded.tokenizer.encode((ROOT.parent / name).read_text("utf-8"))[:positions] for name in TEXTS]


def _divergences(
    texts: list[list[int]], base: str, types: tuple[str, ...], engine: Callable[[str], Any]
) -> dict[str, float]:
    """Mean KL of each type against ``base``; ``engine`` gives a context manager of a ``Compute``."""
    with engine(base) as compute:
        exact = [_log_softmax(compute(text)) for text in texts]
    found = {}
    for name in types:
        with engine(name) as compute:
            kls = [_divergence(one, _log_softmax(compute(text))) for one, text in zip(exact, texts, strict=True)]
        found[name] = float(np.mean(kls))
    return found


def _log_softmax(logits: Logits) -> Logits:
    for index, row in enumerate(logits - logits.max(axis=1, keepdims=True)):
        logits[index] = row - np.log(np.exp(row).sum(dtype=np.float64))
    return logits


def _divergence(exact: Logits, other: Logits) -> float:
    pairs = zip(exact, other, strict=True)
    return float(np.mean([np.sum(np.exp(one) * (one - two), dtype=np.float64) for one, two in pairs]))


@contextmanager
def _ours(setting: Setting, kv_type: str, backend: str) -> Iterator[Compute]:
    """Our logits after each token of a text."""
    options: Mapping[str, Any] = {"threads": setting.threads} if backend == "cpu" else {}
    with LLM(
        setting.path, max_model_len=POSITIONS, max_num_seqs=CHUNK, max_num_batched_tokens=CHUNK, swap_space_bytes=0,
        kv_cache_memory_bytes=SMALL, kv_cache_dtype=kv_type, backend=backend, **options,
    ) as llm:  # fmt: skip
        model: Any = llm.loaded.runner
        groups = len(llm.loaded.config.kv_groups)
        tables = np.tile(np.arange(POSITIONS // 16, dtype=np.int32), (groups, 1, 1))

        def compute(text: list[int]) -> Logits:
            parts = []
            for first in range(0, len(text), CHUNK):
                tokens = np.array(text[first : first + CHUNK], np.int32)
                rows = np.arange(len(tokens), dtype=np.int32)
                batch = Batch(tokens, rows + first, np.array([0, len(rows)], np.int32), tables, rows, rows[:0])
                parts.append(model.forward.run(batch).copy())
            return np.concatenate(parts)

        yield compute


@contextmanager
def _peer(setting: Setting, kv_type: str, command: list[str]) -> Iterator[Compute]:
    with Worker("llama.cpp", command, ROOT.parent) as worker, tempfile.TemporaryDirectory() as folder:
        types = PEER_TYPES.get(kv_type, ("f16", "f16"))
        worker.ask(
            op="load", path=str(setting.path), threads=setting.threads, context=POSITIONS, streams=1, kv_types=types
        )

        def compute(text: list[int]) -> Logits:
            target = str(Path(folder) / "logits.npy")
            worker.ask(op="logits", tokens=text, target=target)
            found: Logits = np.load(target)
            return found

        yield compute


# -- a fact in a long text --------------------------------------------------------------------------------------------


def _needles(setting: Setting) -> dict[str, list[str]]:
    """The answers of each type to a question about a number that one sentence of a long text names."""
    size = 200 if setting.quick else min(4096, setting.context - 256)
    found: dict[str, list[str]] = {}
    for kv_type in ("f16", "q8", "k8v4"):
        with LLM(setting.path, max_model_len=size + 256, threads=setting.threads, kv_cache_dtype=kv_type) as llm:
            found[kv_type] = [_ask(llm, size, place) for place in NEEDLES]
    for kv_type, answers in found.items():
        right = sum("48213" in answer for answer in answers)
        same = sum(map(str.__eq__, answers, found["f16"]))
        print(
            f"  needle in {size:,} tokens, {kv_type:5s} {right} of {len(answers)} found, {same} as with f16", flush=True
        )
    return found


def _ask(llm: LLM, size: int, place: float) -> str:
    chance = random.Random(place)
    things, verbs = ("river", "clerk", "tower", "garden", "train", "letter"), ("crosses", "keeps", "follows", "names")
    sentences = [
        f"The {chance.choice(things)} of the {chance.choice(things)} {chance.choice(verbs)} a {chance.choice(things)}."
        for _ in range(size // 11)
    ]
    sentences.insert(int(place * len(sentences)), "The number of the archive is 48213.")
    question = " ".join(sentences) + "\n\nWhat is the number of the archive? Answer with the number."
    params = SamplingParams(temperature=0, max_tokens=16)
    return llm.chat([{"role": "user", "content": question}], params)[0].outputs[0].text
