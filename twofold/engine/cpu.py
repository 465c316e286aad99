"""Model files on this machine's CPU kernels."""

from __future__ import annotations

from functools import partial

from twofold.core.errors import ParameterError
from twofold.core.model import ModelSpec
from twofold.engine.config import EngineConfig
from twofold.engine.load import BuiltForward
from twofold.formats.gguf import GGUFFile
from twofold.host.cpu import read_cpu
from twofold.host.paths import CacheFolders
from twofold.kernels.cache import TILE
from twofold.kernels.isa import choose
from twofold.kernels.jit import CodegenTarget, Compiler, host_features
from twofold.models.bind import ModelWeights
from twofold.models.decoder import forward
from twofold.ops.cpu.model import CpuModel, CpuOptions


def build_cpu(file: GGUFFile, spec: ModelSpec, weights: ModelWeights, config: EngineConfig) -> BuiltForward:
    """The file's weights on kernels for the instruction set and the number of threads that ``config`` names.

    Left open, they are the best of this processor and its usable cores. Machine code is kept in the cache folder.
    Raises ParameterError for an unknown instruction set and for blocks that are no whole tiles of attention.
    """
    if config.block_size % TILE:
        raise ParameterError(
            f"block_size must be a multiple of {TILE} on CPUs, not {config.block_size}.", param="block_size"
        )
    compiler = Compiler(CodegenTarget.of(choose(host_features(), config.isa)), CacheFolders.of().create().kernels)
    options = CpuOptions(
        blocks=tuple(group.blocks for group in config.kv_groups),
        host_slots=tuple(group.host_slots for group in config.kv_groups),
        max_positions=config.context,
        max_rows=config.limits.rows,
        max_logit_rows=config.limits.logit_rows,
        block_size=config.block_size,
        kv_dtype=config.kv_type,
        workers=config.threads or read_cpu().usable_cores,
    )
    model = CpuModel(file, spec, partial(forward, spec=spec, weights=weights), compiler, options)
    return BuiltForward(model, model.rows, compiler.log.seconds, model.close)
