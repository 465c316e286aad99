"""Hugging Face configurations: of every kind, as their makers write them, and damaged."""

from __future__ import annotations

import contextlib
import itertools
import json
from pathlib import Path

import pytest

from tests.planner.shapes.configs import CONFIGS
from twofold.core.errors import FormatError, ModelNotFoundError, TwofoldError, UnsupportedModelError
from twofold.core.model import ExpertFFN, Formats, GroupedAttention, Paged, RecurrentAttention
from twofold.core.values import BF16, FP8, FP8_BLOCK, INT8, NF4, NVFP4, W8A8, ValueFormat
from twofold.models.config import read_config, read_config_file
from twofold.planner.count.memory import parameters, weight_bytes
from twofold.planner.shapes.known import find_shape, resolve_shape

LLAMA = CONFIGS["llama-3.1-8b"]


@pytest.mark.parametrize("name", CONFIGS)
def test_a_configuration_is_the_model_of_the_table(name: str) -> None:
    """Sizes, windows and experts layer by layer, and the formats that are published."""
    read, known = read_config(CONFIGS[name]), find_shape(name)
    assert parameters(read) == parameters(known)
    assert (read.hidden_size, read.vocab_size, read.tied_head) == (known.hidden_size, known.vocab_size, known.tied_head)
    assert [(count, layer.attention, layer.ffn, layer.norms) for count, layer in read.runs] == [
        (count, layer.attention, layer.ffn, layer.norms) for count, layer in known.runs
    ]
    assert weight_bytes(read) == pytest.approx(weight_bytes(known), rel=1e-3)


def test_layers_may_have_heads_of_their_own() -> None:
    kv_heads, head_dims = [8, 4] * 16, [128] * 31 + [64]
    layers = read_config({**LLAMA, "num_key_value_heads": kv_heads, "head_dim": head_dims}).layers
    assert [layer.attention.kept for layer in layers] == [
        Paged(None, *each) for each in zip(kv_heads, head_dims, strict=True)
    ]
    with pytest.raises(FormatError, match=r"'num_key_value_heads' is .* but must be a value for each layer"):
        read_config({**LLAMA, "num_key_value_heads": kv_heads[:-1]})
    with pytest.raises(FormatError, match=r"'hidden_size' is .* but must be a whole number"):
        read_config({**LLAMA, "hidden_size": [4096] * 32})


@pytest.mark.parametrize("field", ["hidden_size", "num_hidden_layers", "vocab_size", "intermediate_size", "model_type"])
def test_a_missing_field_is_named(field: str) -> None:
    values = {key: value for key, value in LLAMA.items() if key not in (field, "architectures")}
    with pytest.raises(FormatError, match=f"lacks the field '{field}'"):
        read_config(values)


@pytest.mark.parametrize(
    ("field", "value"),
    [
        ("hidden_size", "4096"),
        ("hidden_size", 0),
        ("num_attention_heads", True),
        ("num_hidden_layers", 10**6),
        ("num_key_value_heads", 5),
        ("vocab_size", 2**40),
        ("tie_word_embeddings", 1),
        ("torch_dtype", "int5"),
        ("quantization_config", "fp8"),
    ],
)
def test_a_wrong_field_is_named(field: str, value: object) -> None:
    with pytest.raises(FormatError, match=f"'{field}' is .* but must be"):
        read_config({**LLAMA, field: value})


def test_more_active_experts_than_there_are() -> None:
    with pytest.raises(FormatError, match="'num_experts_per_tok' is 9, but must be at most 8"):
        read_config({**CONFIGS["mixtral-8x7b"], "num_experts_per_tok": 9})


def test_an_unknown_kind_gets_the_nearest() -> None:
    with pytest.raises(UnsupportedModelError, match="'qwen33'") as caught:
        read_config({**LLAMA, "model_type": "qwen33"})
    assert caught.value.hint is not None
    assert "'qwen3'" in caught.value.hint


def test_architectures_stand_in_for_the_kind() -> None:
    values = {key: value for key, value in LLAMA.items() if key != "model_type"}
    assert parameters(read_config(values)) == parameters(find_shape("llama-3.1-8b"))


def test_texts_inside_models_that_see() -> None:
    nested = {"model_type": "mistral3", "text_config": {**LLAMA, "model_type": "mistral"}}
    assert parameters(read_config(nested)) == parameters(find_shape("llama-3.1-8b"))


def test_windows_of_the_last_layers() -> None:
    values = {**LLAMA, "model_type": "qwen2", "use_sliding_window": True, "sliding_window": 99, "max_window_layers": 30}
    windows = [(count, layer.attention.window) for count, layer in read_config(values).runs]
    assert windows == [(30, None), (2, 99)]


def test_layer_types_go_before_patterns() -> None:
    kinds = ["full_attention", "sliding_attention"] * 9
    shape = read_config({**CONFIGS["gemma-3-270m"], "layer_types": kinds})
    assert [layer.attention.window for _, layer in shape.runs] == [None, 512] * 9
    with pytest.raises(FormatError, match="'layer_types'"):
        read_config({**CONFIGS["gemma-3-270m"], "layer_types": kinds[1:]})


def test_recurrent_layers() -> None:
    """By ``layer_types`` or by period; a model without any keys and values is refused."""
    values = {**CONFIGS["qwen3-next-80b-a3b"], "num_hidden_layers": 4}
    kinds = ["linear_attention", "full_attention"] * 2
    layers = read_config({**values, "layer_types": kinds}).layers
    assert [isinstance(layer.attention, RecurrentAttention) for layer in layers] == [True, False] * 2
    assert read_config({**values, "full_attention_interval": 2}).layers == layers
    with pytest.raises(FormatError, match="at least one 'full_attention'"):
        read_config({**values, "layer_types": ["linear_attention"] * 4})
    with pytest.raises(FormatError, match="'linear_num_key_heads' is 5, but must be a divisor of 32"):
        read_config({**values, "linear_num_key_heads": 5})


def test_layers_with_and_without_experts() -> None:
    shape = read_config({**CONFIGS["qwen3-30b-a3b"], "mlp_only_layers": [1], "decoder_sparse_step": 2})
    assert [isinstance(layer.ffn, ExpertFFN) for count, layer in shape.runs for _ in range(count)][:6] == [
        *(False, False, False, True, False, True)
    ]


def inner(quantization: dict[str, object], **more: object) -> Formats:
    return read_config({**LLAMA, "quantization_config": quantization, **more}).layers[0].formats


@pytest.mark.parametrize(
    ("quantization", "form"),
    [
        ({"quant_method": "fp8"}, FP8),
        ({"quant_method": "fp8", "weight_block_size": [128, 128]}, FP8_BLOCK),
        ({"quant_method": "gptq", "bits": 4, "group_size": 64}, ValueFormat("int4-g64", 4, "bf16", 64, 1, 2)),
        ({"quant_method": "awq", "bits": 4}, ValueFormat("int4", 4, "bf16", 128, 1, 2)),
        ({"quant_method": "bitsandbytes", "load_in_4bit": True}, NF4),
        ({"quant_method": "bitsandbytes", "load_in_8bit": True}, INT8),
        ({"quant_method": "modelopt", "quant_algo": "NVFP4"}, NVFP4),
        (
            {
                "quant_method": "compressed-tensors",
                "config_groups": {"g": {"weights": {"num_bits": 8, "type": "float"}}},
            },
            FP8,
        ),
        (
            {
                "quant_method": "compressed-tensors",
                "config_groups": {"g": {"weights": {"num_bits": 8}, "input_activations": {"num_bits": 8}}},
            },
            W8A8,
        ),
    ],
    ids=lambda value: value.name if isinstance(value, ValueFormat) else "",
)
def test_quantisations(quantization: dict[str, object], form: ValueFormat) -> None:
    formats = inner(quantization)
    assert formats.of("up") == form
    assert formats.of("router") == BF16
    assert formats.of("attention_norm", vector=True) == BF16


@pytest.mark.parametrize(
    "names",
    [
        ["re:.*self_attn.*"],
        ["model.layers.*.self_attn"],
        ["self_attn"],
        [f"model.layers.{i}.self_attn" for i in range(32)],
    ],
)
def test_modules_that_are_left_alone(names: list[str]) -> None:
    formats = inner({"quant_method": "fp8", "modules_to_not_convert": ["lm_head", *names]})
    assert formats.of("q") == formats.of("o") == BF16
    assert formats.of("down") == FP8


def test_choices_in_patterns() -> None:
    formats = inner({"quant_method": "fp8", "ignore": ["re:.*mlp\\.(gate|up)_proj.*"]})
    assert formats.of("gate") == formats.of("up") == BF16
    assert formats.of("down") == FP8


def test_an_unknown_quantisation_gets_the_nearest() -> None:
    with pytest.raises(UnsupportedModelError, match="'gptqq'"):
        inner({"quant_method": "gptqq"})


def test_files_and_folders(tmp_path: Path) -> None:
    folder = tmp_path / "My-Model"
    folder.mkdir()
    (folder / "config.json").write_text(json.dumps(LLAMA), "utf-8")
    assert read_config_file(folder) == read_config_file(folder / "config.json") == resolve_shape(str(folder))
    assert read_config_file(folder).name == "My-Model"
    quant = {"quantization": {"quant_algo": "FP8", "exclude_modules": ["lm_head"]}}
    (folder / "hf_quant_config.json").write_text(json.dumps(quant), "utf-8")
    assert read_config_file(folder).layers[0].formats.matrices == FP8


@pytest.mark.parametrize("text", ["", "[]", "{", "\x00", "[" * 100_000])
def test_files_that_are_no_configuration(tmp_path: Path, text: str) -> None:
    path = tmp_path / "config.json"
    path.write_text(text, "utf-8")
    with pytest.raises(FormatError, match="is not"):
        resolve_shape(str(path))


def test_no_file(tmp_path: Path) -> None:
    with pytest.raises(ModelNotFoundError, match="There is no file"):
        resolve_shape(str(tmp_path / "config.json"))


@pytest.mark.parametrize("name", CONFIGS)
def test_no_field_of_any_type_breaks_the_reader(name: str) -> None:
    """Each field in turn is of a wrong type: a description, or an error of ours."""
    wrong: tuple[object, ...] = (None, -1, 2**70, "x" * 300, [], {}, [None], True, 0.5)
    for field, value in itertools.product(CONFIGS[name], wrong):
        with contextlib.suppress(TwofoldError):
            read_config({**CONFIGS[name], field: value})


def test_defaults_of_a_class_fill_what_a_file_leaves_out() -> None:
    """The 4B's file says little: heads, head size and vocabulary are those of its class."""
    sparse = {
        "model_type": "gemma3",
        "text_config": {
            "model_type": "gemma3_text",
            "hidden_size": 2560,
            "intermediate_size": 10_240,
            "num_hidden_layers": 34,
            "sliding_window": 1024,
        },
    }
    shape = read_config(sparse)
    assert parameters(shape) == parameters(find_shape("gemma-3-4b"))
    assert isinstance(shape.runs[0][1].attention, GroupedAttention)
