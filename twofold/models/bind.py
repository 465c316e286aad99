"""Which tensor of a GGUF file plays which role, checked against the model's description."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass

from twofold.core.errors import FormatError, UnsupportedModelError
from twofold.core.model import ModelSpec
from twofold.models.ops import TensorRef
from twofold.models.rope_keys import ROPE_TENSORS
from twofold.models.tensors import TensorShape


@dataclass(frozen=True, slots=True)
class LayerWeights:
    """The tensors of one layer. Those that an architecture lacks are None."""

    attn_norm: TensorRef
    q: TensorRef
    k: TensorRef
    v: TensorRef
    o: TensorRef
    ffn_norm: TensorRef
    gate: TensorRef
    up: TensorRef
    down: TensorRef
    q_bias: TensorRef | None = None
    k_bias: TensorRef | None = None
    v_bias: TensorRef | None = None
    q_norm: TensorRef | None = None
    k_norm: TensorRef | None = None
    post_attention_norm: TensorRef | None = None
    post_ffn_norm: TensorRef | None = None


@dataclass(frozen=True, slots=True)
class ModelWeights:
    """All tensors of a model. Where ``head`` is tied, it is the embedding."""

    embedding: TensorRef
    layers: tuple[LayerWeights, ...]
    final_norm: TensorRef
    head: TensorRef


def bind(spec: ModelSpec, tensors: Mapping[str, TensorShape], *, fused: bool = False) -> ModelWeights:
    """Finds each tensor that ``spec`` needs.

    Raises FormatError for one that is missing or has another shape, UnsupportedModelError for one nothing asks for.
    """
    binder = _Binder(tensors)
    embedding = binder.matrix("token_embd", spec.vocab_size, spec.hidden_size)
    layers = tuple(_bind_layer(binder, spec, f"blk.{index}.", fused) for index in range(len(spec.layers)))
    final_norm = binder.vector("output_norm", spec.hidden_size)
    head = embedding if spec.tied_head else binder.matrix("output", spec.vocab_size, spec.hidden_size)
    binder.refuse_unused()
    return ModelWeights(embedding, layers, final_norm, head)


def _bind_layer(binder: _Binder, spec: ModelSpec, layer: str, fused: bool) -> LayerWeights:
    attention, hidden, post_norms = spec.attention, spec.hidden_size, spec.layers[0].norms == 4
    queries, kv = attention.query_size, attention.kv_size
    q, k, v = _bind_qkv(binder, spec, layer, fused)
    gate, up = _bind_gate_up(binder, spec, layer, fused)

    def vector(wanted: bool, name: str, size: int) -> TensorRef | None:
        return binder.vector(layer + name, size) if wanted else None

    return LayerWeights(
        attn_norm=binder.vector(layer + "attn_norm", hidden),
        q=q,
        k=k,
        v=v,
        o=binder.matrix(layer + "attn_output", hidden, queries),
        ffn_norm=binder.vector(layer + "ffn_norm", hidden),
        gate=gate,
        up=up,
        down=binder.matrix(layer + "ffn_down", hidden, spec.ffn.size),
        q_bias=vector(attention.qkv_bias, "attn_q.bias", queries),
        k_bias=vector(attention.qkv_bias, "attn_k.bias", kv),
        v_bias=vector(attention.qkv_bias, "attn_v.bias", kv),
        q_norm=vector(attention.qk_norm is not None, "attn_q_norm", attention.head_dim),
        k_norm=vector(attention.qk_norm is not None, "attn_k_norm", attention.head_dim),
        post_attention_norm=vector(post_norms, "post_attention_norm", hidden),
        post_ffn_norm=vector(post_norms, "post_ffw_norm", hidden),
    )


def _bind_qkv(binder: _Binder, spec: ModelSpec, layer: str, fused: bool) -> tuple[TensorRef, ...]:
    attention = spec.attention
    sizes = (attention.query_size, attention.kv_size, attention.kv_size)
    if fused:
        return binder.parts(layer + "attn_qkv", sizes, spec.hidden_size)
    names = ("attn_q", "attn_k", "attn_v")
    return tuple(binder.matrix(layer + name, size, spec.hidden_size) for name, size in zip(names, sizes, strict=True))


def _bind_gate_up(binder: _Binder, spec: ModelSpec, layer: str, fused: bool) -> tuple[TensorRef, ...]:
    if fused:
        return binder.parts(layer + "ffn_up", (spec.ffn.size, spec.ffn.size), spec.hidden_size)
    return tuple(binder.matrix(layer + name, spec.ffn.size, spec.hidden_size) for name in ("ffn_gate", "ffn_up"))


class _Binder:
    """Hands out tensors by name and remembers which."""

    def __init__(self, tensors: Mapping[str, TensorShape]) -> None:
        self._tensors = tensors
        self._unused = dict.fromkeys(tensors)
        for name in ROPE_TENSORS:
            self._unused.pop(name, None)

    def matrix(self, name: str, rows: int, columns: int) -> TensorRef:
        """The tensor ``name``.weight, which must have that shape."""
        return self._take(f"{name}.weight", rows, columns)

    def parts(self, name: str, sizes: tuple[int, ...], columns: int) -> tuple[TensorRef, ...]:
        """Consecutive rows of one tensor, as many for each part as ``sizes`` says."""
        whole = self.matrix(name, sum(sizes), columns)
        starts = [sum(sizes[:index]) for index in range(len(sizes))]
        return tuple(TensorRef(whole.name, size, columns, start) for size, start in zip(sizes, starts, strict=True))

    def vector(self, name: str, size: int) -> TensorRef:
        """The tensor of that name (".weight" unless it says otherwise), which must be one row of floats."""
        full = name if name.endswith(".bias") else f"{name}.weight"
        ref = self._take(full, 1, size)
        found = self._tensors[full].format
        if not found.is_float:
            raise UnsupportedModelError(f"The vector {full!r} is stored as {found.name}, but must be floats.")
        return ref

    def refuse_unused(self) -> None:
        for name in self._unused:
            raise UnsupportedModelError(
                f"The model has a tensor {name!r} that Twofold does not know what to do with.",
                hint="Ignoring it could change the result: use another model, or ask for support of this tensor.",
            )

    def _take(self, name: str, rows: int, columns: int) -> TensorRef:
        tensor = self._tensors.get(name)
        if tensor is None:
            raise FormatError(
                f"The model lacks the tensor {name!r}.", hint="The file is incomplete: convert or download it again."
            )
        if (tensor.rows, tensor.columns) != (rows, columns):
            raise FormatError(
                f"The tensor {name!r} has shape {tensor.rows} × {tensor.columns}, but the metadata ask for "
                f"{rows} × {columns}.",
                hint="The file is damaged or was made by a faulty converter.",
            )
        self._unused.pop(name, None)
        return TensorRef(name, rows, columns)
