"""A GGUF file as a model file: its metadata describe model and tokenizer, its tensors get our names."""

from __future__ import annotations

from collections.abc import Mapping
from types import MappingProxyType
from typing import Final

from twofold.core.stored import ModelSource
from twofold.core.tensors import EMBEDDING, FINAL_NORM, HEAD, ROPE_FACTORS, ROPE_LONG, ROPE_SHORT, in_layer
from twofold.formats.gguf import GGUFFile, GGUFPart, TensorInfo

OUTER: Final[Mapping[str, str]] = {
    "token_embd": EMBEDDING,
    "output": HEAD,
    "output_norm": FINAL_NORM,
    "position_embd": "positions",
    "rope_freqs": ROPE_FACTORS,
    "rope_factors_long": ROPE_LONG,
    "rope_factors_short": ROPE_SHORT,
}
ROLES: Final[Mapping[str, str]] = {
    "attn_norm": "attention_norm",
    "attn_q": "q",
    "attn_k": "k",
    "attn_v": "v",
    "attn_qkv": "qkv",
    "attn_output": "o",
    "attn_q_norm": "q_norm",
    "attn_k_norm": "k_norm",
    "attn_sinks": "sinks",
    "attn_q_a": "q_a",
    "attn_q_a_norm": "q_a_norm",
    "attn_q_b": "q_b",
    "attn_kv_a_mqa": "kv_a",
    "attn_kv_a_norm": "kv_a_norm",
    "attn_kv_b": "kv_b",
    "attn_k_b": "k_b",
    "attn_v_b": "v_b",
    "post_attention_norm": "post_attention_norm",
    "ffn_norm": "ffn_norm",
    "ffn_gate": "gate",
    "ffn_up": "up",
    "ffn_down": "down",
    "post_ffw_norm": "post_ffn_norm",
    "ffn_gate_inp": "router",
    "exp_probs_b": "router",
    "ffn_gate_exps": "expert_gate",
    "ffn_up_exps": "expert_up",
    "ffn_down_exps": "expert_down",
    "ffn_gate_shexp": "shared_gate",
    "ffn_up_shexp": "shared_up",
    "ffn_down_shexp": "shared_down",
    "ffn_gate_inp_shexp": "shared_router",
}
"""Roles of tensors, by what GGUF files call them inside of ``blk.INDEX.``, without ``.weight`` and ``.bias``."""


def our_name(name: str) -> str:
    """Our name of a tensor of a GGUF file; inside of layers unknown ones keep their own role."""
    plain = name.removesuffix(".weight")
    if not plain.startswith("blk."):
        return OUTER.get(plain, name)
    _, index, role = plain.split(".", 2) if plain.count(".") > 1 else ("", "", "")
    if not (index.isascii() and index.isdecimal()):
        return name
    stem = role.removesuffix(".bias")
    return in_layer(int(index), ROLES.get(stem, stem) + role.removeprefix(stem))


class GGUFModel(GGUFFile):
    """A GGUF file with tensors by our names. Of two tensors with the same one, the second keeps the file's."""

    def __init__(self, parts: tuple[GGUFPart, ...]) -> None:
        super().__init__(parts)
        self.model = self.tokenizer = ModelSource("gguf", self.metadata)
        named: dict[str, TensorInfo] = {}
        for name, info in self.tensors.items():
            ours = our_name(name)
            named[name if ours in named else ours] = info
        self.tensors = MappingProxyType(named)
