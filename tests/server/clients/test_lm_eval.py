"""lm-eval's local-completions client gets exactly the offline API's log-likelihoods. Needs the package lm-eval."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any, Final

import pytest

from tests.server.clients.conftest import LONG, TINY
from tests.server.live import LiveServer, live_server
from tests.support.tiny import TinyModel, TinyOptions
from twofold import LLM

clients = pytest.importorskip("lm_eval.models.openai_completions", reason="the package lm-eval is not installed")
instances = pytest.importorskip("lm_eval.api.instance", reason="the package lm-eval is not installed")

PAIRS: Final = [
    ("The river", " runs to the sea"),
    ("The river", " stands still"),
    ("Once upon a time there was a", " king"),
    ("2 + 2 =", " 4"),
    ("", "A text of its own"),
]


def likelihoods(url: str, model: str, pairs: Sequence[tuple[str, str]], **options: Any) -> list[tuple[float, bool]]:
    """What lm-eval computes from our echoed log-probabilities."""
    client = clients.LocalCompletionsAPI(base_url=f"{url}/v1/completions", model=model, **options)
    asked = [
        instances.Instance(request_type="loglikelihood", doc={}, arguments=pair, idx=index)
        for index, pair in enumerate(pairs)
    ]
    return [(float(value), bool(greedy)) for value, greedy in client.loglikelihood(asked, disable_tqdm=True)]


def offline(path: Path, pairs: Sequence[tuple[str, str]]) -> list[float]:
    """The same from ``LLM.score``: tokens after the context; an empty context is a begin or end token."""
    with LLM(model=str(path)) as llm:
        return [_offline(llm, *pair) for pair in pairs]


def _offline(llm: LLM, context: str, continuation: str) -> float:
    tokenizer = llm.get_tokenizer()
    if context:
        whole = tokenizer.encode(context + continuation, add_special_tokens=False)
        before = len(tokenizer.encode(context, add_special_tokens=False))
    else:
        first = tokenizer.bos_id if tokenizer.bos_id is not None else tokenizer.eos_id
        assert first is not None
        whole, before = [first, *tokenizer.encode(continuation, add_special_tokens=False)], 1
    (output,) = llm.score([{"prompt_token_ids": whole}])
    assert output.prompt_logprobs is not None
    places = zip(whole[before:], output.prompt_logprobs[before:], strict=True)
    return sum(place[token].logprob for token, place in places if place is not None)


@pytest.mark.parametrize("batch", [1, 4])
def test_log_likelihoods(server: LiveServer, tiny_gguf: Callable[[TinyOptions], TinyModel], batch: int) -> None:
    found = likelihoods(server.url, TINY, PAIRS, batch_size=batch, tokenizer_backend="remote")
    assert [value for value, _ in found] == offline(tiny_gguf(LONG).path, PAIRS)


def test_generation(server: LiveServer) -> None:
    client = clients.LocalCompletionsAPI(
        base_url=f"{server.url}/v1/completions", model=TINY, tokenizer_backend="remote"
    )
    asked = instances.Instance(
        request_type="generate_until", doc={}, arguments=("the river", {"until": ["\n"], "max_gen_toks": 8}), idx=0
    )
    (told,) = client.generate_until([asked], disable_tqdm=True)
    assert told


@pytest.mark.model
def test_log_likelihoods_of_the_default_model(default_model: Path, tmp_path: Path) -> None:
    with live_server(tmp_path, f"real={default_model}") as live:
        found = likelihoods(live.url, "real", PAIRS, tokenizer_backend="remote")
    assert [value for value, _ in found] == offline(default_model, PAIRS)
