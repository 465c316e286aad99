"""Finds the tensor of a model file for each role, and checks it against the model's description."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field

from twofold.core.errors import FormatError, UnsupportedModelError
from twofold.core.model import ModelSpec
from twofold.core.tensors import (
    EMBEDDING,
    FINAL_NORM,
    HEAD,
    ROPE_TENSORS,
    TOGETHER,
    StoredTensor,
    Weight,
    in_layer,
    layer_weights,
    outer_weights,
)
from twofold.core.typed_fields import FILE_HINT, INCOMPLETE_HINT
from twofold.models.ops import TensorRef

LayerWeights = Mapping[str, TensorRef]
"""The tensors of one layer by role (``core.tensors``); those that an architecture lacks are absent."""


@dataclass(frozen=True, slots=True)
class ModelWeights:
    """All tensors of a model. A tied ``head`` is the embedding."""

    embedding: TensorRef
    layers: tuple[LayerWeights, ...]
    final_norm: TensorRef
    head: TensorRef


def bind(spec: ModelSpec, tensors: Mapping[str, StoredTensor]) -> ModelWeights:
    """Finds each tensor that ``spec`` needs.

    Raises FormatError for a tensor that is missing or has another shape, UnsupportedModelError for an unused one.
    """
    binder = _Binder(tensors)
    outer = {weight.name: binder.find(weight.name, weight) for weight in outer_weights(spec)}
    layers = tuple(
        {weight.name: binder.find_in_layer(index, weight, needed) for weight in needed}
        for index, layer in enumerate(spec.layers)
        for needed in [layer_weights(layer, spec.hidden_size)]
    )
    binder.refuse_unused()
    return ModelWeights(outer[EMBEDDING], layers, outer[FINAL_NORM], outer[EMBEDDING if spec.tied_head else HEAD])


@dataclass(slots=True)
class _Binder:
    """Finds tensors by name, and remembers which were ``used``."""

    tensors: Mapping[str, StoredTensor]
    used: set[str] = field(default_factory=lambda: set(ROPE_TENSORS))

    def find_in_layer(self, index: int, weight: Weight, needed: tuple[Weight, ...]) -> TensorRef:
        """The tensor of a role, or its rows in a tensor that holds several roles."""
        for whole, roles in TOGETHER.items():
            stored = in_layer(index, whole)
            if weight.name in roles and stored in self.tensors and in_layer(index, roles[0]) not in self.tensors:
                parts = [each for role in roles for each in needed if each.name == role]
                before = sum(each.rows for each in parts[: roles.index(weight.name)])
                self._check(stored, sum(each.rows for each in parts), weight.columns)
                return TensorRef(stored, weight.rows, weight.columns, before)
        return self.find(in_layer(index, weight.name), weight)

    def find(self, name: str, weight: Weight) -> TensorRef:
        """The tensor of that name, which must have the weight's shape, and be floats if it is a vector."""
        found = self._check(name, weight.rows, weight.columns)
        if weight.vector and not found.format.is_float:
            raise UnsupportedModelError(
                f"The vector {found.name!r} is stored as {found.format.name}, but must be floats."
            )
        return TensorRef(name, weight.rows, weight.columns)

    def refuse_unused(self) -> None:
        for name, tensor in self.tensors.items():
            if name not in self.used:
                raise UnsupportedModelError(
                    f"The model has a tensor {tensor.name!r} that Twofold does not support.",
                    hint="Ignoring it could change the result: use another model, or ask for support of this tensor.",
                )

    def _check(self, name: str, rows: int, columns: int) -> StoredTensor:
        tensor = self.tensors.get(name)
        if tensor is None:
            raise FormatError(f"The model lacks the tensor {name!r}.", hint=INCOMPLETE_HINT)
        if (tensor.rows, tensor.columns) != (rows, columns):
            raise FormatError(
                f"The tensor {tensor.name!r} has shape {tensor.rows} × {tensor.columns}, but the metadata ask for "
                f"{rows} × {columns}.",
                hint=FILE_HINT,
            )
        self.used.add(name)
        return tensor
