"""Writes a GGUF file, dequantised and with its tokenizer, to FOLDER, then runs vLLM's server for it.

vllm_server.py FILE FOLDER PORT THREADS CONTEXT NAME
"""

# mypy: ignore-errors
import os
import sys
from pathlib import Path

from gguf_to_hf import convert, own_dtype
from transformers import AutoTokenizer

path, folder, port, threads, context, name = sys.argv[1:]
Path(folder).mkdir()
convert(path, folder)
AutoTokenizer.from_pretrained(str(Path(path).parent), gguf_file=Path(path).name).save_pretrained(folder)
os.environ.update(
    VLLM_CPU_KVCACHE_SPACE="4",
    VLLM_CPU_OMP_THREADS_BIND=f"0-{int(threads) - 1}",
    VLLM_NO_USAGE_STATS="1",
)
command = [sys.executable, "-m", "vllm.entrypoints.openai.api_server", "--model", folder, "--served-model-name", name]
command += ["--host", "127.0.0.1", "--port", port, "--dtype", own_dtype()]
command += ["--max-model-len", context, "--max-num-seqs", "32"]
os.execv(command[0], command)
