"""Names of models: on the command line, and in requests."""

from __future__ import annotations

import pytest

from twofold.core.errors import ModelNotFoundError, ParameterError, TwofoldError
from twofold.server.models.named_models import NamedModel, read_named_models, unknown_model


def test_names_come_from_what_was_listed() -> None:
    specs = ["smollm2-135m", "./models/tiny.v1.gguf", "fast=hf.co/user/model:Q4_K_M", "pypi:package==1.0"]
    assert read_named_models(specs) == (
        NamedModel(("smollm2-135m",), "smollm2-135m"),
        NamedModel(("tiny.v1",), "./models/tiny.v1.gguf"),
        NamedModel(("fast",), "hf.co/user/model:Q4_K_M"),
        NamedModel(("pypi:package==1.0",), "pypi:package==1.0"),
    )


def test_a_model_may_have_several_names() -> None:
    assert read_named_models(["smollm2-135m", "gpt-4o=smollm2-135m", "org/small=smollm2-135m"]) == (
        NamedModel(("smollm2-135m", "gpt-4o", "org/small"), "smollm2-135m"),
    )
    assert read_named_models(["./a.gguf"], ["one", "two", "one"]) == (NamedModel(("one", "two"), "./a.gguf"),)


@pytest.mark.parametrize(
    ("models", "served"),
    [
        ([], []),
        (["./a.gguf", "./b.gguf"], ["one"]),
        (["./x/a.gguf", "./y/a.gguf"], []),
        (["one=./a.gguf", "one=./b.gguf"], []),
        (["./a.gguf"], [""]),
        (["./a.gguf"], ["n" * 300]),
        (["smollm3-135m"], []),
        (["alias=nothing"], []),
    ],
)
def test_impossible_lists_are_refused(models: list[str], served: list[str]) -> None:
    with pytest.raises(TwofoldError) as caught:
        read_named_models(models, served)
    assert isinstance(caught.value, ParameterError | ModelNotFoundError)


def test_an_unknown_name_gets_the_nearest_one_or_all_of_them() -> None:
    close = unknown_model("smollm2-135n", ["smollm2-135m", "gemma"])
    assert (close.status, close.hint) == (404, "Did you mean 'smollm2-135m'?")
    assert unknown_model("gpt-5", ["smollm2-135m", "gemma"]).hint == "Served here: smollm2-135m, gemma."
    long = unknown_model("n" * 10_000, ["smollm2-135m"])
    assert len(str(long)) < 200
