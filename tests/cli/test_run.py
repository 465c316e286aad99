"""``twofold run`` with tiny models: output, errors and exit codes."""

from __future__ import annotations

import io
import json
from collections.abc import Callable
from pathlib import Path

import pytest

from tests.cli.conftest import LONG_CONTEXT, Command
from tests.support.tiny import TinyModel, TinyOptions
from twofold.core.errors import ResourceError
from twofold.engine.engine import Engine
from twofold.engine.outputs import OutputDelta


def test_the_completion_goes_to_output_and_the_rest_to_errors(twofold: Command, tiny: Path) -> None:
    result = twofold("run", "in the", "-m", tiny, "-n", 5, "--ignore-eos")
    assert result.code == 0
    assert result.out.endswith("\n")
    line = result.err.strip().splitlines()[-1]
    assert "prompt tokens: TTFT " in line
    assert "5 output tokens: TPOT " in line
    assert " of the " in line


def test_json_has_all_figures(twofold: Command, tiny: Path) -> None:
    result = twofold("run", "in the", "-m", tiny, "-n", 5, "--ignore-eos", "--json")
    document = json.loads(result.out)
    assert document["finish_reason"] == "length"
    assert len(document["token_ids"]) == 5
    usage = document["usage"]
    assert usage["completion_tokens"] == 5
    assert usage["total_tokens"] == usage["prompt_tokens"] + 5
    assert usage["prompt_tokens_details"] == {"cached_tokens": 0}
    timing = document["timing"]
    spans = {"load_s", "compile_s", "queue_s", "ttft_s", "prefill_s", "decode_s", "prefill_tok_s", "decode_tok_s"}
    assert timing.keys() == spans
    assert all(value >= 0 for value in timing.values())
    assert document["limit"].keys() == document["work"].keys() == {"prefill", "decode"}
    work = document["work"]["decode"]
    assert (work["rows"], work["steps"]) == (4, 4)
    assert all(work[name] > 0 for name in ("flops", "weight_bytes", "kv_read_bytes", "kv_written_bytes", "steps_s"))
    assert all(seconds > 0 for seconds in document["stalls"].values())


def test_figures_of_phases_that_did_not_run_are_null(twofold: Command, tiny: Path) -> None:
    document = json.loads(twofold("run", "in the", "-m", tiny, "-n", 1, "--json").out)
    assert document["timing"]["decode_tok_s"] is None
    assert document["limit"]["decode"] is None


def test_a_completion_that_ends_early_is_explained(
    twofold: Command, tiny: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    def ended(engine: Engine) -> list[OutputDelta]:
        whole = engine.abort("request-0")
        error = ResourceError("The constraint gave up.")
        return [OutputDelta("request-0", 0, "", (), None, "abort", request=whole, error=error)]

    monkeypatch.setattr(Engine, "step", ended)
    result = twofold("run", "in the", "-m", tiny)
    assert (result.code, result.out) == (4, "")
    assert "The constraint gave up." in result.err


def test_seeds_repeat_completions(twofold: Command, tiny: Path) -> None:
    def ids(seed: int) -> list[int]:
        flags = ("-n", 12, "--ignore-eos", "--json", "--temperature", 5, "--top-p", 1, "--seed", seed)
        found: list[int] = json.loads(twofold("run", "in the", "-m", tiny, *flags).out)["token_ids"]
        return found

    assert ids(1) == ids(1) != ids(2)


def test_raw_and_chat_differ_by_the_template(twofold: Command, tiny: Path) -> None:
    counts = [
        json.loads(twofold("run", "in the", "-m", tiny, "-n", 1, "--json", *flags).out)["usage"]["prompt_tokens"]
        for flags in (("--raw",), (), ("--system", "is"))
    ]
    assert counts == sorted(set(counts))


def test_a_base_model_completes_the_prompt(twofold: Command, base: Path) -> None:
    result = twofold("run", "in the", "-m", base, "-n", 1, "--json")
    raw = twofold("run", "in the", "-m", base, "-n", 1, "--json", "--raw")
    assert "no chat template" in result.err
    assert "no chat template" not in raw.err
    assert json.loads(result.out)["usage"] == json.loads(raw.out)["usage"]
    refused = twofold("run", "in the", "-m", base, "--system", "is")
    assert refused.code == 2
    assert "--chat-template" in refused.err


def test_a_chat_template_is_chosen(twofold: Command, base: Path, tmp_path: Path) -> None:
    file = tmp_path / "own.jinja"
    file.write_text("{{ messages[0].content }}in the")

    def tokens(*flags: object) -> int:
        result = twofold("run", "in the", "-m", base, "-n", 1, "--json", *flags)
        assert "no chat template" not in result.err or not flags
        return int(json.loads(result.out)["usage"]["prompt_tokens"])

    assert tokens("--chat-template", file) == 2 * tokens()
    assert tokens("--chat-template", "chatml") > tokens()
    assert tokens("--chat-template", "{{ messages[0].content }}in the") == 2 * tokens()


def test_a_chat_template_of_the_file_is_chosen_by_name(
    twofold: Command, tiny_gguf: Callable[[TinyOptions], TinyModel]
) -> None:
    extra = (("tokenizer.chat_template.rag", "{{ messages[0].content }}in the"),)
    path = tiny_gguf(TinyOptions(context=LONG_CONTEXT, extra=extra)).path
    result = twofold("run", "in the", "-m", path, "-n", 1, "--json", "--chat-template", "rag")
    raw = twofold("run", "in the", "-m", path, "-n", 1, "--json", "--raw")
    counts = [json.loads(each.out)["usage"]["prompt_tokens"] for each in (result, raw)]
    assert counts[0] == 2 * counts[1]
    assert "rag" in twofold("run", "in the", "-m", path, "--chat-template", "rga").err


def test_a_stop_text_ends_the_completion(twofold: Command, tiny: Path) -> None:
    flags = ("-m", tiny, "-n", 40, "--ignore-eos", "--json", "--temperature", 0)
    whole = json.loads(twofold("run", "in the", *flags).out)["text"]
    stop = whole[5:7]
    cut = json.loads(twofold("run", "in the", *flags, "--stop", stop).out)
    assert cut["text"] == whole[: whole.index(stop)]
    assert cut["finish_reason"] == "stop"


def test_timeline(twofold: Command, tiny: Path) -> None:
    lines = twofold("run", "in the", "-m", tiny, "-n", 5, "--ignore-eos", "--timeline").err.splitlines()
    lines = [line for line in lines if not line.startswith("stalled")]  # how long it waits is the machine's to say
    labels = [line.split()[0] for line in lines]
    first = labels.index("queue")
    assert labels[first : first + 3] == ["queue", "prefill", "decode"]
    ruler = labels.index("0")
    assert labels[ruler : ruler + 5] == ["0", "queue", "prefill", "decode", "work"]
    assert "4 rows in 4 steps; at least " in lines[ruler + 3]


def test_a_piped_prompt(twofold: Command, tiny: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("sys.stdin", io.StringIO("in the"))
    piped = twofold("run", "-m", tiny, "-n", 3, "--json")
    given = twofold("run", "--prompt", "in the", "-m", tiny, "-n", 3, "--json")
    assert json.loads(piped.out)["token_ids"] == json.loads(given.out)["token_ids"]


@pytest.mark.parametrize(
    ("words", "piped", "prompt"),
    [
        (["in", "the"], "", "in the"),
        (["in"], "the\n", "in\n\nthe"),
        (["in", "-"], "the\n", "in\n\nthe"),
        (["-", "in"], "the\n", "the\n\nin"),
        (["is", "-", "in", "it"], "the", "is\n\nthe\n\nin it"),
        (["--prompt", "is", "in"], "the", "is in\n\nthe"),
        (["--prompt", "-"], "the\n", "the\n"),
        (["-"], "the", "the"),
        ([], "the", "the"),
        ([""], "the", "the"),
    ],
)
def test_the_position_of_piped_text(
    words: list[str], piped: str, prompt: str, twofold: Command, tiny: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    seen: list[str] = []

    def given(_model: object, text: str, *_: object, **__: object) -> str:
        seen.append(text)
        return text

    monkeypatch.setattr("twofold.cli.run.prompt_for", given)
    monkeypatch.setattr("sys.stdin", io.StringIO(piped))
    assert twofold("run", *words, "-m", tiny, "-n", 1).code == 0
    assert seen == [prompt]


def test_completions_that_repeat_themselves_are_named(twofold: Command, tiny: Path) -> None:
    flags = ("run", "in the", "-m", tiny, "--temperature", 0, "--logit-bias", "40=100", "-n", 90)
    plain, stopped = twofold(*flags), twofold(*flags, "--stop-loops")
    assert "Stopped at 90 tokens" in plain.err
    assert "The answer repeats itself: 1 token, 90 times; --stop-loops ends that.\n" in plain.err
    assert "The answer repeats itself: 1 token, 64 times.\n" in stopped.err
    assert "Stopped" not in stopped.err
    assert plain.out.startswith(stopped.out.rstrip("\n"))
    found = json.loads(twofold(*flags, "--stop-loops", "--json").out)
    assert (found["finish_reason"], found["repeats"]) == ("repetition", {"tokens": 1, "times": 64})
    assert json.loads(twofold("run", "in the", "-m", tiny, "-n", 3, "--json").out)["repeats"] is None


def test_cut_completions_are_marked(twofold: Command, tiny: Path) -> None:
    flags = ("run", "in the", "-m", tiny, "--ignore-eos")
    assert "Stopped at 3 tokens; -n raises the limit.\n" in twofold(*flags, "-n", 3).err
    assert "Stopped: the context of 32 tokens is full.\n" in twofold(*flags, "-n", 99, "-c", 32).err


def test_verbose_output_beside_the_completion(twofold: Command, tiny: Path, base: Path) -> None:
    flags = ("run", "in the", "-m", tiny, "-n", 3)
    assert twofold(*flags, "--quiet").err == twofold("run", "in the", "-m", base, "-n", 3, "-q").err == ""
    assert "TTFT" not in twofold(*flags, "--no-stats").err
    assert "loaded in" in twofold(*flags, "--verbose").err
    assert twofold(*flags, "--verbose", "--quiet").code == 2


@pytest.mark.parametrize("text", [None, "", " \n"])
def test_no_prompt(text: str | None, twofold: Command, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("sys.stdin", None if text is None else io.StringIO(text))
    result = twofold("run")
    assert result.code == 2
    assert "prompt" in result.err
    assert 'twofold run "' in result.err
    assert twofold("run", "").code == twofold("run", "-").code == 2


def test_settings_come_from_the_environment(twofold: Command, tiny: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("TWOFOLD_MODEL", str(tiny))
    monkeypatch.setenv("TWOFOLD_MAX_TOKENS", "3")
    monkeypatch.setenv("TWOFOLD_IGNORE_EOS", "1")
    monkeypatch.setenv("TWOFOLD_JSON", "true")
    assert json.loads(twofold("run", "in the").out)["usage"]["completion_tokens"] == 3
    assert json.loads(twofold("run", "in the", "-n", "4").out)["usage"]["completion_tokens"] == 4


def test_a_wrong_setting_is_named(twofold: Command, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("TWOFOLD_MAX_TOKENS", "many")
    result = twofold("run", "x")
    assert result.code == 2
    assert "TWOFOLD_MAX_TOKENS" in result.err


@pytest.mark.parametrize(
    ("flags", "said"),
    [
        (["--temprature", "1"], "--temperature"),
        (["-n", "abc"], "abc"),
        (["-n", "0"], "--max-tokens"),
        (["--temperature", "-1"], "temperature"),
        (["--top-p", "-0.1"], "--top-p"),
        (["--min-tokens", "9", "-n", "3"], "--min-tokens"),
        (["--logit-bias", "7"], "TOKEN=BIAS"),
        (["--logit-bias", "999999=1"], "--logit-bias"),
        (["--kv-cache-dtype", "f61"], "f16"),
        (["--isa", "avx51"], "avx512"),
        (["--threads", "0"], "threads"),
        (["--block-size", "0"], "--block-size"),
        (["--max-model-len", "20000"], "--max-model-len"),
        (["--raw", "--system", "x"], "system"),
        (["--raw", "--chat-template", "chatml"], "--chat-template"),
        (["--chat-template", "chatlm"], "did you mean 'chatml'?"),
        (["--chat-template", "gone.jinja"], "gone.jinja cannot be read: No such file"),
    ],
)
def test_impossible_requests(flags: list[str], said: str, twofold: Command, tiny: Path) -> None:
    result = twofold("run", "in the", "-m", tiny, *flags)
    assert result.code == 2
    assert result.out == ""
    assert said in result.err
    assert "\nerror: " in f"\n{result.err}"  # kernels may have been compiled before
    assert "Traceback" not in result.err


def test_a_prompt_longer_than_the_context(twofold: Command, tiny: Path) -> None:
    result = twofold("run", "in the " * 50, "-m", tiny, "-c", 16)
    assert result.code == 2
    assert "does not fit the context of 16" in result.err
    assert "hint: " in result.err


def test_a_missing_model(twofold: Command, tmp_path: Path) -> None:
    result = twofold("run", "x", "-m", tmp_path / "gone.gguf")
    assert (result.code, result.out) == (3, "")
    assert "gone.gguf" in result.err


def test_a_misspelt_model(twofold: Command) -> None:
    result = twofold("run", "x", "-m", "smolm2-135m")
    assert result.code == 3
    assert "smollm2-135m" in result.err


@pytest.mark.parametrize("part", [0.0, 0.001, 0.5, 0.999])
def test_a_truncated_model(part: float, twofold: Command, tiny: Path, tmp_path: Path) -> None:
    cut = tmp_path / "cut.gguf"
    whole = tiny.read_bytes()
    cut.write_bytes(whole[: int(part * len(whole))])
    result = twofold("run", "x", "-m", cut)
    assert (result.code, result.out) == (3, "")
    assert "Traceback" not in result.err


def test_an_unknown_architecture(twofold: Command, tiny_gguf: Callable[[TinyOptions], TinyModel]) -> None:
    model = tiny_gguf(TinyOptions(extra=(("general.architecture", "lama"),)))
    result = twofold("run", "x", "-m", model.path)
    assert result.code == 3
    assert "lama" in result.err


@pytest.mark.model
def test_the_default_model_completes(twofold: Command, default_model: Path) -> None:
    flags = ("-m", default_model, "-n", 4, "--temperature", 0, "--raw", "--json")
    document = json.loads(twofold("run", "The capital of France is", *flags).out)
    assert document["text"].startswith(" Paris")
    assert document["usage"]["prompt_tokens"] == 5


@pytest.mark.model
def test_the_default_model_says_once_what_it_is(
    twofold: Command, default_model: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Only where no other one was chosen, and not into what is piped on."""
    (tmp_path / "models").symlink_to(default_model.parent)
    (tmp_path / "kernels").symlink_to(default_model.parents[1] / "kernels")
    monkeypatch.setenv("TWOFOLD_CACHE", str(tmp_path))
    flags = ("run", "What is 2 + 2?", "-n", 4, "--temperature", 0)
    hint = "hint:  smollm2-135m is a 135M model for trying out; better: twofold run -m qwen2.5-coder-1.5b (1.1 GB)"
    quiet, chosen = twofold(*flags, "-q"), twofold(*flags, "-m", default_model)
    assert "hint" not in quiet.err + chosen.err
    first, second = twofold(*flags), twofold(*flags)
    assert (first.code, second.code) == (0, 0)
    assert first.err.splitlines()[-1].startswith(hint)
    assert "hint" not in first.out + second.out + second.err
