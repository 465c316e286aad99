"""Converts a llama GGUF file to a Hugging Face folder in bfloat16, for engines that read no GGUF.

Runs in the environment of such an engine, which has ``gguf``, ``numpy``, ``torch`` and ``safetensors``. Writes no
tokenizer.
"""

# mypy: ignore-errors
import json
from pathlib import Path

import gguf
import numpy as np
import torch
from safetensors.torch import save_file

NAMES = {
    "token_embd.weight": "model.embed_tokens.weight",
    "output_norm.weight": "model.norm.weight",
    "output.weight": "lm_head.weight",
}
LAYER_NAMES = {
    "attn_norm": "input_layernorm",
    "ffn_norm": "post_attention_layernorm",
    "attn_q": "self_attn.q_proj",
    "attn_k": "self_attn.k_proj",
    "attn_v": "self_attn.v_proj",
    "attn_output": "self_attn.o_proj",
    "ffn_gate": "mlp.gate_proj",
    "ffn_up": "mlp.up_proj",
    "ffn_down": "mlp.down_proj",
}


def convert(source, folder):
    """Writes config.json and model.safetensors; weights are dequantised, then rounded to bfloat16."""
    reader = gguf.GGUFReader(source)
    known = {name: field.contents() for name, field in reader.fields.items()}
    if known["general.architecture"] != "llama":
        raise ValueError(f"only llama files are converted, not {known['general.architecture']}")
    heads = {"attn_q": known["llama.attention.head_count"], "attn_k": known["llama.attention.head_count_kv"]}
    tensors = {}
    for tensor in reader.tensors:
        values = gguf.quants.dequantize(tensor.data, tensor.tensor_type)
        part = tensor.name.split(".")[-2]
        if part in heads:
            values = halves(values, heads[part])
        tensors[hf_name(tensor.name)] = torch.from_numpy(np.array(values, np.float32)).to(torch.bfloat16)
    folder = Path(folder)
    save_file(tensors, folder / "model.safetensors", metadata={"format": "pt"})
    tied = "lm_head.weight" not in tensors
    (folder / "config.json").write_text(json.dumps(config(known, tied)), "utf-8")


def halves(matrix, heads):
    """Reorders the rows of each head from adjacent rotary pairs to pairs half a head apart, the Hugging Face order."""
    rows, columns = matrix.shape
    pairs = matrix.reshape(heads, rows // heads // 2, 2, columns)
    return pairs.swapaxes(1, 2).reshape(rows, columns)


def hf_name(name):
    if name in NAMES:
        return NAMES[name]
    _, layer, part, _ = name.split(".")
    return f"model.layers.{layer}.{LAYER_NAMES[part]}.weight"


def config(known, tied):
    return {
        "architectures": ["LlamaForCausalLM"],
        "model_type": "llama",
        "hidden_act": "silu",
        "hidden_size": known["llama.embedding_length"],
        "intermediate_size": known["llama.feed_forward_length"],
        "max_position_embeddings": known["llama.context_length"],
        "num_attention_heads": known["llama.attention.head_count"],
        "num_hidden_layers": known["llama.block_count"],
        "num_key_value_heads": known["llama.attention.head_count_kv"],
        "rms_norm_eps": known["llama.attention.layer_norm_rms_epsilon"],
        "rope_theta": known["llama.rope.freq_base"],
        "tie_word_embeddings": tied,
        "torch_dtype": "bfloat16",
        "vocab_size": known["llama.vocab_size"],
        "bos_token_id": 1,
        "eos_token_id": 2,
    }


def own_dtype():
    """The dtype with native multiplication on this processor."""
    flags = Path("/proc/cpuinfo").read_text("utf-8")
    return "bfloat16" if "avx512_bf16" in flags or "amx_bf16" in flags else "float32"
