"""GGUF files of models that the engine does not run: described from metadata and tensors, to the byte."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from pathlib import Path

import numpy as np
import pytest

from tests.support.gguf_writer import MetadataItem, RawTensor, write_gguf
from tests.support.tiny import TinyModel, TinyOptions, tiny_metadata, tiny_tensors
from twofold.core.errors import FormatError, ModelNotFoundError, UnsupportedModelError
from twofold.core.model import ExpertFFN, GatedFFN, GroupedAttention, LatentAttention, ModelSpec
from twofold.core.values import BY_NAME
from twofold.planner.count.memory import kv_bytes_per_token, parameters, streamed_bytes, weight_bytes
from twofold.planner.shapes.known import resolve_shape

HIDDEN, VOCAB = 64, 96
Sizes = Mapping[str, tuple[int, ...]]


def write(path: Path, architecture: str, own: Mapping[str, MetadataItem], layers: Sequence[Sizes], form: str) -> int:
    """Writes a model of zeros; vectors and routers in F32. Returns the bytes of its tensors."""
    outer = {"token_embd.weight": (VOCAB, HIDDEN), "output_norm.weight": (HIDDEN,), "output.weight": (VOCAB, HIDDEN)}
    sizes = outer | {f"blk.{i}.{name}": size for i, layer in enumerate(layers) for name, size in layer.items()}
    plain = {name for name, size in sizes.items() if len(size) == 1 or "gate_inp" in name}
    tensors = {name: zeros(size, "F32" if name in plain else form) for name, size in sizes.items()}
    common = {"embedding_length": HIDDEN, "block_count": len(layers), "context_length": 256}
    metadata: dict[str, MetadataItem] = {"general.architecture": architecture}
    metadata |= {f"{architecture}.{key}": value for key, value in {**common, **own}.items()}
    write_gguf(path, metadata, tensors)
    return sum(tensor.data.nbytes for tensor in tensors.values())


def zeros(size: tuple[int, ...], form: str) -> RawTensor:
    rows = int(np.prod(size[:-1]))
    return RawTensor(BY_NAME[form], size, np.zeros(rows * BY_NAME[form].row_bytes(size[-1]), np.uint8))


NORMS = {"attn_norm.weight": (HIDDEN,), "ffn_norm.weight": (HIDDEN,)}
ATTENTION = {
    "attn_q.weight": (64, HIDDEN),
    "attn_k.weight": (32, HIDDEN),
    "attn_v.weight": (32, HIDDEN),
    "attn_output.weight": (HIDDEN, 64),
}
DENSE = {"ffn_gate.weight": (96, HIDDEN), "ffn_up.weight": (96, HIDDEN), "ffn_down.weight": (HIDDEN, 96)}
EXPERTS = {
    "ffn_gate_inp.weight": (8, HIDDEN),
    "ffn_gate_exps.weight": (8, 32, HIDDEN),
    "ffn_up_exps.weight": (8, 32, HIDDEN),
    "ffn_down_exps.weight": (8, HIDDEN, 32),
}
SHARED = {
    "ffn_gate_shexp.weight": (64, HIDDEN),
    "ffn_up_shexp.weight": (64, HIDDEN),
    "ffn_down_shexp.weight": (HIDDEN, 64),
    "exp_probs_b.bias": (8,),
}
LATENT = {
    "attn_q_a.weight": (32, HIDDEN),
    "attn_q_a_norm.weight": (32,),
    "attn_q_b.weight": (4 * 48, 32),
    "attn_kv_a_mqa.weight": (64 + 16, HIDDEN),
    "attn_kv_a_norm.weight": (64,),
    "attn_k_b.weight": (4, 64, 32),
    "attn_v_b.weight": (4, 32, 64),
    "attn_output.weight": (HIDDEN, 4 * 32),
}
HEADS = {"attention.head_count": 4, "attention.head_count_kv": 2, "feed_forward_length": 96}
ROUTED = {"expert_count": 8, "expert_used_count": 2, "expert_feed_forward_length": 32}


def every_byte(shape: ModelSpec, stored: int) -> None:
    assert weight_bytes(shape) == stored
    assert streamed_bytes(shape) < stored


@pytest.mark.parametrize("form", ["F16", "Q8_0", "Q4_0"])
def test_experts(tmp_path: Path, form: str) -> None:
    path = tmp_path / "moe.gguf"
    norms = {"attn_q_norm.weight": (16,), "attn_k_norm.weight": (16,)}
    stored = write(path, "qwen3moe", {**HEADS, **ROUTED}, [{**NORMS, **ATTENTION, **norms, **EXPERTS}] * 3, form)
    shape = resolve_shape(str(path))
    every_byte(shape, stored)
    ((count, layer),) = shape.runs
    assert (count, layer.ffn) == (3, ExpertFFN(8, 2, 32))
    assert layer.attention == GroupedAttention(4, 2, 16, qk_norm="head")
    assert parameters(shape).layers - parameters(shape).active == 3 * 6 * 3 * 32 * 64


def test_experts_under_a_name_that_the_engine_knows(tmp_path: Path) -> None:
    """Mixtral's files call themselves llama; the engine does not run them, and yet they are described."""
    path = tmp_path / "mixtral.gguf"
    own: dict[str, MetadataItem] = {**HEADS, "expert_count": 8, "expert_used_count": 2, "feed_forward_length": 32}
    own |= {"attention.layer_norm_rms_epsilon": 1e-5, "rope.dimension_count": 16}
    stored = write(path, "llama", own, [{**NORMS, **ATTENTION, **EXPERTS}] * 2, "F16")
    shape = resolve_shape(str(path))
    every_byte(shape, stored)
    assert shape.runs[0][1].ffn == ExpertFFN(8, 2, 32)


def test_latent_attention_and_shared_experts(tmp_path: Path) -> None:
    path = tmp_path / "mla.gguf"
    own = {
        **HEADS,
        **ROUTED,
        "attention.kv_lora_rank": 64,
        "attention.q_lora_rank": 32,
        "attention.key_length": 80,
        "attention.value_length": 64,
        "attention.key_length_mla": 48,
        "attention.value_length_mla": 32,
        "rope.dimension_count": 16,
    }
    layers = [{**NORMS, **LATENT, **DENSE}, {**NORMS, **LATENT, **EXPERTS, **SHARED}]
    stored = write(path, "deepseek2", own, layers, "Q8_0")
    shape = resolve_shape(str(path))
    every_byte(shape, stored)
    assert [layer.ffn for _, layer in shape.runs] == [GatedFFN(96), ExpertFFN(8, 2, 32, shared=64, router_bias=True)]
    assert shape.runs[0][1].attention == LatentAttention(4, 32, 64, rope_dim=16, nope_dim=32, v_dim=32)
    assert kv_bytes_per_token(shape) == 2 * (64 + 16) * 2


def test_windows_and_sinks(tmp_path: Path) -> None:
    path = tmp_path / "oss.gguf"
    extra = {"attn_sinks.weight": (4,), "attn_output.bias": (HIDDEN,)}
    extra |= {f"attn_{part}.bias": (size,) for part, size in (("q", 64), ("k", 32), ("v", 32))}
    own = {**HEADS, "attention.sliding_window": 32}
    stored = write(path, "gpt-oss", own, [{**NORMS, **ATTENTION, **extra, **DENSE}] * 4, "F16")
    shape = resolve_shape(str(path))
    every_byte(shape, stored)
    assert [layer.attention.window for _, layer in shape.runs] == [32, None, 32, None]
    assert isinstance(shape.runs[0][1].attention, GroupedAttention)
    assert shape.runs[0][1].attention.sinks


@pytest.mark.parametrize("missing", ["embedding_length", "attention.head_count", "expert_used_count"])
def test_a_missing_key_is_named(tmp_path: Path, missing: str) -> None:
    path = tmp_path / "moe.gguf"
    write(path, "qwen3moe", {**HEADS, **ROUTED}, [{**NORMS, **ATTENTION, **EXPERTS}], "F16")
    whole = path.read_bytes()
    path.write_bytes(whole.replace(f"qwen3moe.{missing}".encode(), f"qwen3moe.{missing[:-1]}X".encode()))
    with pytest.raises(FormatError, match=f"lacks the field 'qwen3moe.{missing}'"):
        resolve_shape(str(path))


def test_layers_without_tensors(tmp_path: Path) -> None:
    path = tmp_path / "short.gguf"
    layers: list[Sizes] = [{**NORMS, **ATTENTION, **DENSE}, {}]
    write(path, "other", HEADS, layers, "F16")
    with pytest.raises(FormatError, match="layer 1 has no tensors"):
        resolve_shape(str(path))


def test_a_tensor_that_no_count_would_see(tmp_path: Path) -> None:
    path = tmp_path / "extra.gguf"
    write(path, "other", HEADS, [{**NORMS, **ATTENTION, **DENSE, "attn_extra.weight": (8, HIDDEN)}], "F16")
    with pytest.raises(UnsupportedModelError, match=r"'blk\.0\.attn_extra\.weight'"):
        resolve_shape(str(path))
    write(path, "other", HEADS, [{**NORMS, **ATTENTION, **DENSE, "ffn_up.weight": (80, HIDDEN)}], "F16")
    with pytest.raises(FormatError, match="values"):
        resolve_shape(str(path))


def test_no_file(tmp_path: Path) -> None:
    with pytest.raises(ModelNotFoundError):
        resolve_shape(str(tmp_path / "none.gguf"))


def test_formats_that_differ_from_layer_to_layer(tmp_path: Path, tiny_gguf: Callable[[TinyOptions], TinyModel]) -> None:
    """As mixtures such as Q4_K_M have them: each layer counts in its own formats."""
    options = TinyOptions("qwen2", format="F16", layers=3)
    path, tensors = tmp_path / "mixed.gguf", tiny_tensors(options)
    name = "blk.1.ffn_down.weight"
    tensors[name] = zeros(tensors[name].shape, "Q8_0")
    write_gguf(path, tiny_metadata(options), tensors)
    shape = resolve_shape(str(path))
    assert len(shape.runs) == 3
    assert weight_bytes(shape) == sum(tensor.data.nbytes for tensor in tensors.values())
    assert parameters(shape) == parameters(resolve_shape(str(tiny_gguf(options).path)))
