"""Prompt compression: how many planted facts a model still finds in half of a text, and what that saves.

The first model scores, a larger one answers questions about facts in documents (``documents.py``). Each question is
answered from the whole text and from what compression keeps of it, with and without knowing the question, and from two
baselines of the same size: random sentences, and the first ones. An answer is right if it contains the fact's word or
number; ``kept`` counts the facts whose sentence is still in the text. Then predicted savings are compared with measured
ones.
"""

from __future__ import annotations

import random
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from pathlib import Path
from time import perf_counter
from typing import Any, Final

from benchmarks.documents import FILLERS, Document, Fact, Filler, documents
from benchmarks.figures import median
from benchmarks.setting import Setting
from twofold.core.errors import TwofoldError
from twofold.core.params import SamplingParams
from twofold.engine.llm import LLM
from twofold.formats.fetch.sources import resolve
from twofold.host.paths import CacheFolders
from twofold.text.spans import cut, joined

READER: Final = "qwen2.5-coder-0.5b"
KEEP: Final = 0.5
GOAL: Final = 0.9
DOCUMENTS: Final = 10
QUESTIONS: Final = 3
CONTEXT: Final = 4096
CACHE_BYTES: Final = 1 << 29
ANSWER: Final = SamplingParams(temperature=0, max_tokens=24)
WARM_UP_STEPS: Final = 8
"""Documents that are read first, so that both models' step times are known."""

Shorten = Callable[[Document, Fact], str]


@dataclass(frozen=True, slots=True)
class Recall:
    """Of ``asked`` questions, how many had their fact in the text, and how many were answered."""

    asked: int
    kept: int
    found: int

    @property
    def share(self) -> float:
        return self.found / self.asked


def run(setting: Setting) -> dict[str, Any]:
    count, facts = (1, 2) if setting.quick else (DOCUMENTS, QUESTIONS)
    try:
        path = setting.path if setting.quick else resolve(READER, cache=CacheFolders.of().create().models).path
    except TwofoldError as error:
        print(f"\ncompression: skipped, {error}", flush=True)
        return {"skipped": str(error)}
    context = min(CONTEXT, setting.context)
    print(
        f"\ncompression  {count} documents of about 1,000 tokens for each filler, {facts} questions each, keep {KEEP}"
    )
    with _open(setting.path, context, setting) as scorer, _open(path, context, setting) as reader:
        report: dict[str, Any] = {}
        for filler in FILLERS:
            given = documents(count, filler)
            report[filler] = _recalls(scorer, reader, filler, given, facts)
        report["time"] = _times(scorer, reader, documents(WARM_UP_STEPS if not setting.quick else 2, "village", 1))
    return report


def _open(path: Path, context: int, setting: Setting) -> LLM:
    return LLM(path, max_model_len=context, threads=setting.threads, kv_cache_memory_bytes=CACHE_BYTES)


def _recalls(
    scorer: LLM, reader: LLM, filler: Filler, given: Sequence[Document], facts: int
) -> dict[str, dict[str, float]]:
    """Recall of each way to shorten the documents, printed."""
    plain = {document.text: scorer.compress(document.text, KEEP, force=True).text for document in given}
    ways: dict[str, Shorten] = {
        "whole text": lambda document, _: document.text,
        "compressed": lambda document, _: plain[document.text],
        "for the question": lambda document, fact: scorer.compress(document.text, KEEP, fact.question, force=True).text,
        "random sentences": lambda document, _: _some(scorer, document, random.Random(document.text)),
        "first sentences": lambda document, _: _some(scorer, document, None),
    }
    found: dict[str, Recall] = {}
    for name, way in ways.items():
        recall = found[name] = _recall(reader, way, given, facts)
        print(
            f"  {filler:8s}{name:18s}kept {recall.kept:3d} of {recall.asked}, answered {recall.found:3d}, "
            f"{recall.share / (found['whole text'].share or 1):5.2f} of the whole text's",
            flush=True,
        )
    whole = found["whole text"].share or 1.0
    passed = all(found[name].share >= GOAL * whole for name in ("compressed", "for the question"))
    print(f"  {filler:8s}goal ≥ {GOAL}: {'reached' if passed else 'missed'}", flush=True)
    return {
        name: {"asked": each.asked, "kept": each.kept, "answered": each.found, "of_whole": each.share / whole}
        for name, each in found.items()
    }


def _recall(reader: LLM, shorten: Shorten, given: Sequence[Document], facts: int) -> Recall:
    asked = kept = found = 0
    for document in given:
        for fact in document.facts[:facts]:
            text = shorten(document, fact)
            message = {"role": "user", "content": f"{text}\n\nAnswer in a few words. {fact.question}"}
            (output,) = reader.chat([message], ANSWER)
            asked += 1
            kept += fact.sentence in text
            found += fact.answer.lower() in output.outputs[0].text.lower()
    return Recall(asked, kept, found)


def _some(scorer: LLM, document: Document, rng: random.Random | None) -> str:
    """Sentences of KEEP of the tokens: at random, or the first ones."""
    encode, text = scorer.get_tokenizer().encode, document.text
    spans = cut(text)
    sizes = [len(encode(text[span.gap : span.end])) for span in spans]
    order = list(range(len(spans)))
    if rng is not None:
        rng.shuffle(order)
    left, kept = int(KEEP * sum(sizes)), []
    for index in order:
        if sizes[index] > left:
            break
        kept.append(index)
        left -= sizes[index]
    return "".join(text[start:end] for start, end in joined(text, spans, sorted(kept)))


def _times(scorer: LLM, reader: LLM, given: Sequence[Document]) -> dict[str, float]:
    """Predicted and measured seconds of scoring, and of the prompt before and after; medians."""
    one = SamplingParams(temperature=0, max_tokens=1)
    rows: list[tuple[float, float, float, float]] = []
    for document in given:
        done = scorer.compress(document.text, KEEP, target=reader, force=True)
        seconds: list[float] = []
        for text in (document.text, done.text):
            began = perf_counter()
            reader.generate(f"{len(rows)} {len(seconds)} {text}", one)  # another beginning: no hit in the prefix cache
            seconds.append(perf_counter() - began)
        verdict = done.verdict
        if verdict.saving_s is not None and verdict.cost_s is not None:
            rows.append((verdict.saving_s, seconds[0] - seconds[1], verdict.cost_s, done.seconds))
    names = ("saving_predicted_s", "saving_s", "cost_predicted_s", "cost_s")
    table = {name: median(row[index] for row in rows) for index, name in enumerate(names)}
    print(
        f"  scoring {table['cost_s']:.2f} s, predicted {table['cost_predicted_s']:.2f} s; it saves the reader "
        f"{table['saving_s']:.2f} s, predicted {table['saving_predicted_s']:.2f} s ({len(rows)} documents)",
        flush=True,
    )
    own = scorer.compress(given[0].text, KEEP)
    print(f"  read by the scoring model itself: {own.verdict.reason}", flush=True)
    return table
