"""From a model file to an engine: description, tokenizer, runner and scheduler."""

from __future__ import annotations

import functools
import time
from collections.abc import Sequence
from contextlib import ExitStack
from dataclasses import dataclass, replace
from pathlib import Path

from twofold.backends.base import Backend, LoadableModel, ModelRunner
from twofold.core.clock import Clock
from twofold.core.errors import ParameterError
from twofold.core.model import ModelSpec
from twofold.core.sampling_defaults import NONE, SamplingDefaults
from twofold.core.step_basis import PLAIN, StepBasis
from twofold.engine.config import EngineConfig, EngineOptions, resolve, runner_sizes
from twofold.engine.draft_source import find_draft, open_draft
from twofold.engine.engine import Engine
from twofold.engine.kv.manager import BlockManager
from twofold.engine.kv.segments import SEGMENT_TOKENS
from twofold.engine.kv.store import FIRST_RATE, KVStore
from twofold.engine.kv_files import KVFiles, read_rate
from twofold.engine.kv_folder import StoreFolder, open_folder, store_identity
from twofold.engine.scheduler.budget import Budget, FixedBudget, LiveBudget, StepLimits
from twofold.engine.scheduler.draft_model import ModelDrafts
from twofold.engine.scheduler.feature import StepFeature
from twofold.engine.scheduler.loading import PrefixLoading
from twofold.engine.scheduler.scheduler import Scheduler
from twofold.engine.scheduler.speculation import Speculator
from twofold.engine.scheduler.step_time import StepTimeModel
from twofold.engine.step_samples import StepSample, read_step_samples
from twofold.formats.base import open_model
from twofold.host.versions import NUMERICS
from twofold.models.read import read_model
from twofold.text.tokenizers.metadata import read_vocabulary
from twofold.text.tokenizers.tokenizer import Tokenizer


@dataclass(frozen=True, slots=True)
class LoadedModel:
    """A model with all that an engine needs of it. ``load_s`` does not include ``compile_s``; both are seconds.

    ``sampling`` are the defaults of commands and servers; ``SamplingParams`` have defaults of their own. ``store`` is
    the folder of the KV store, None without one. ``nbytes`` are the bytes of the weights, with those of a draft model;
    ``draft_ratio`` compares its bytes with the target's. ``basis`` is that of the step-time model.
    """

    runner: ModelRunner
    tokenizer: Tokenizer
    spec: ModelSpec
    config: EngineConfig
    load_s: float = 0.0
    samples: tuple[StepSample, ...] = ()
    sampling: SamplingDefaults = NONE
    store: StoreFolder | None = None
    nbytes: int = 0
    draft_ratio: float = 0.0
    basis: StepBasis = PLAIN

    @property
    def compile_s(self) -> float:
        return self.runner.compile_s

    def close(self) -> None:
        """Frees the model, closes its KV store, and ends the process that renders its chats."""
        self.runner.close()
        if self.store is not None:
            self.store.close()
        self.tokenizer.stop_rendering()


def load_model(
    path: Path,
    options: EngineOptions,
    *,
    backend: Backend | None = None,
    tokenizer_path: Path | None = None,
    tokenizer_cache: Path | None = None,
    cache: Path | None = None,
    chats: bool = False,
) -> LoadedModel:
    """Reads a GGUF file, and prepares the model to run.

    ``backend`` is used instead of the one that ``options`` name. ``tokenizer_path`` is another GGUF file, with the
    tokenizer to use. ``tokenizer_cache`` is a folder for data that is slow to derive from a vocabulary, ``cache`` the
    folder with calibrations. ``chats``: the process that renders chats starts while the weights load. Raises the errors
    of ``read_model``, ``resolve`` and ``Backend.load``.
    """
    start = time.perf_counter()
    backend = backend or options.open_backend()
    draft_path = find_draft(options)
    with ExitStack() as files:
        file = files.enter_context(open_model(path))
        spec, weights = read_model(file, options.max_model_len)
        draft = None
        if draft_path is not None:
            draft = files.enter_context(open_draft(draft_path, path, file, options.max_model_len))
        source = LoadableModel(file, spec, weights)
        nbytes = file.nbytes + (0 if draft is None else draft.file.nbytes)
        ratio = 0.0 if draft is None else draft.read_bytes / source.read_bytes

        @functools.cache
        def tokenizer_of_model() -> Tokenizer:
            if tokenizer_path is None:
                vocabulary = read_vocabulary(file.tokenizer)
                made = Tokenizer.of(vocabulary, cache_dir=tokenizer_cache, chat_template=options.chat_template)
            else:
                made = _other_tokenizer(tokenizer_path, tokenizer_cache, options.chat_template, spec)
            if chats:
                made.start_rendering()
            return made

        others = None if draft is None else draft.spec
        config = resolve(options, spec, backend.free_memory(), backend.attention_chunk, others, weights=nbytes)
        store = _open_store(file.parts, backend, config, spec)
        try:
            runner = backend.load(source, runner_sizes(config), tokenizer_of_model, draft)
            tokenizer = tokenizer_of_model()
        except BaseException:
            if store is not None:
                store.close()
            raise
        sampling = SamplingDefaults.of_model(path, file.model.values)
    samples = () if cache is None else read_step_samples(path, backend, cache)
    load_s = time.perf_counter() - start - runner.compile_s
    basis = backend.step_basis(spec)
    return LoadedModel(runner, tokenizer, spec, config, load_s, samples, sampling, store, nbytes, ratio, basis)


def _open_store(parts: Sequence[Path], backend: Backend, config: EngineConfig, spec: ModelSpec) -> StoreFolder | None:
    """The folder of the model in the KV store; None without a store, and if the disk refuses one.

    Keys and values depend on the model's file, on how it is read (``spec`` has the rotations of this context), on the
    layout of blocks, and on the version of the arithmetic, but not on instruction set, threads or batches.
    """
    options = config.options
    if options.kv_store is None:
        return None
    windows = [(group.window, group.layers) for group in spec.kv_groups(config.context)]
    (widest, *_) = options.kv_layout(spec).window_bytes(config.context).values()
    segment = SEGMENT_TOKENS // options.block_size * widest
    if options.kv_store_bytes < segment:
        raise ParameterError(
            f"{SEGMENT_TOKENS} tokens of {spec.name} take {segment:,} bytes of a KV store, which may have "
            f"{options.kv_store_bytes:,}.",
            param="kv_store_bytes",
            hint="Raise kv_store_bytes to hold the prefixes that return, or remove kv_store.",
        )
    settings = (NUMERICS, backend.name, options.kv_type, options.block_size, windows, spec.layers)
    store = Path(options.kv_store)
    made = backend.universal_hash()  # before there is a lock, which processes that test the machine would share
    return open_folder(store, lambda: store_identity(parts, store, settings), parts[0].stem, made)


def _other_tokenizer(path: Path, cache: Path | None, chat_template: str | None, spec: ModelSpec) -> Tokenizer:
    with open_model(path) as file:
        tokenizer = Tokenizer.of(read_vocabulary(file.tokenizer), cache_dir=cache, chat_template=chat_template)
    if tokenizer.vocab_size > spec.vocab_size:
        raise ParameterError(
            f"The tokenizer of {path} has {tokenizer.vocab_size} tokens, but the model has only {spec.vocab_size}.",
            param="tokenizer",
            hint="Use the tokenizer that comes with the model.",
        )
    return tokenizer


def assemble(loaded: LoadedModel, clock: Clock) -> Engine:
    """An engine over the model. Where the runner takes fewer rows than configured, its own limits apply."""
    config, runner = loaded.config, loaded.runner
    limits = replace(
        config.limits,
        rows=min(config.limits.rows, runner.max_rows),
        logit_rows=min(config.limits.logit_rows, runner.max_logit_rows),
    )
    store = files = None
    manager = BlockManager(
        config.kv_groups,
        config.options.block_size,
        prefix_caching=config.options.enable_prefix_caching,
        chunk=config.attention_chunk,
    )
    if loaded.store is not None:
        groups = range(len(config.kv_groups))
        sizes = [runner.block_nbytes(group) for group in groups]
        index = loaded.store.index(config.options.kv_store_bytes, clock.now())
        store = KVStore(manager, loaded.store.keys, index, sizes, read_rate(loaded.store) or FIRST_RATE)
        store.counts.bad += loaded.store.lost
        store.counts.evicted += loaded.store.evicted
        files = KVFiles(loaded.store, runner)
        blocks = [index.bytes // sum(sizes)] * len(sizes)
        files.prepare(lambda: runner.provide_blocks(blocks))
    return Engine(
        runner,
        _scheduler(loaded, limits, manager, store),
        loaded.tokenizer,
        clock,
        vocab_size=runner.vocab_size,
        context=config.context,
        seed=config.options.seed,
        overlap=config.options.overlap,
        keeps_targets=config.options.token_budget == "live",
        files=files,
        stop_loops=config.options.stop_loops,
    )


def _speculation(loaded: LoadedModel, limits: StepLimits, step_time: StepTimeModel) -> list[StepFeature]:
    config, draft, model = loaded.config.options.speculation, loaded.config.draft, None
    if config.method == "off" or any(group.state for group in loaded.config.kv_groups):
        return []  # a state that has seen a rejected draft would have to be kept from before
    if draft is not None:
        size = loaded.config.options.block_size
        model = ModelDrafts(
            step_time, loaded.draft_ratio, context=draft.context_length, rows=limits.rows, block_size=size
        )
    speculator = Speculator(step_time, config.num_speculative_tokens, model)
    return [speculator] if model is None else [model, speculator]


def _scheduler(loaded: LoadedModel, limits: StepLimits, manager: BlockManager, store: KVStore | None) -> Scheduler:
    step_time, options = StepTimeModel(loaded.basis, loaded.samples), loaded.config.options
    budget: Budget = FixedBudget(limits.rows)
    if options.token_budget == "live":
        budget = LiveBudget(step_time, options.tpot_target_s, options.itl_limit_s)
    loading = [] if store is None else [PrefixLoading(store, step_time)]
    return Scheduler(
        manager,
        limits,
        budget=budget,
        step_time=step_time,
        features=[*loading, *_speculation(loaded, limits, step_time)],
        store=store,
        max_waiting=options.max_waiting_seqs,
    )
