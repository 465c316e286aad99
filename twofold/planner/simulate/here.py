"""The scenario of this machine: its engine as `twofold serve` configures it, with its calibrated step times."""

from __future__ import annotations

from pathlib import Path

from twofold.core.errors import ResourceError
from twofold.engine.config import EngineOptions, resolve
from twofold.engine.kv.manager import GroupSize
from twofold.engine.step_samples import read_step_samples
from twofold.formats.base import open_model
from twofold.host.paths import CacheFolders
from twofold.models.read import read_model
from twofold.planner.calibrate.run import calibrated
from twofold.planner.simulate.scenario import Scenario
from twofold.planner.simulate.setting import EngineSetting


def this_machine(path: Path, options: EngineOptions) -> Scenario:
    """An exact scenario of a model file. Raises ResourceError if this machine is not calibrated for the model."""
    backend, predictor = options.open_backend(), calibrated(path, options.backend_options)
    if predictor is None:
        raise ResourceError(
            f"This machine is not calibrated for {path.name}.",
            hint=f"Run once: twofold doctor --calibrate --model {path}. Or name a machine with --hardware.",
        )
    with open_model(path) as file:
        spec, _ = read_model(file, options.max_model_len)
        config = resolve(options, spec, backend.free_memory(), backend.attention_chunk, weights=file.nbytes)
    used = config.options
    live = used.token_budget == "live"
    setting = EngineSetting(  # without host slots: no sequence is swapped
        tuple(dict.fromkeys(GroupSize(each.window, each.blocks) for each in config.kv_groups if not each.state)),
        sequences=config.limits.sequences,
        rows=config.limits.rows,
        block_size=used.block_size,
        context=config.context,
        prefix_caching=used.enable_prefix_caching,
        tpot_target_s=used.tpot_target_s if live else None,
        itl_limit_s=used.itl_limit_s if live else None,
        attention_chunk=config.attention_chunk,
        step_basis=backend.step_basis(spec),
        step_samples=read_step_samples(path, backend, CacheFolders.of().root) if live else (),
    )
    return Scenario(
        shape=predictor.shape,
        machine=predictor.machine,
        setting=setting,
        setup=predictor.setup,
        constants=predictor.constants,
        exact=True,
    )
