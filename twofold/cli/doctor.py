"""``twofold doctor`` and ``twofold kernels``: this machine, its limits and problems, and the code made for it."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import asdict, dataclass
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

from cyclopts import Parameter

from twofold.backends.cpu.backend import CpuBackend
from twofold.backends.cpu.kernels.inspect import build, inspect
from twofold.backends.cpu.kernels.isa import TABLES, choose
from twofold.backends.cpu.kernels.jit import CodegenTarget, Compiler, host_features, refused_features
from twofold.backends.cpu.tables import Rejection, SelfTests, TableChoice, choose_table
from twofold.cli.console import DownloadProgress, interrupts, print_json, print_lines, status
from twofold.cli.options import FLAG, Json
from twofold.core.limits import MachineLimits
from twofold.core.units import format_bytes
from twofold.formats.fetch import sources
from twofold.host.machine import CPU, Memory, read_cpu, read_memory
from twofold.host.paths import CacheFolders
from twofold.host.versions import versions

if TYPE_CHECKING:
    from twofold.planner.calibrate.run import Calibration

SMALL_MEMORY = 2 << 30


@dataclass(frozen=True, slots=True)
class Folder:
    """A part of the cache, and the bytes of the files in it."""

    path: str
    files: int
    bytes: int


@dataclass(frozen=True, slots=True)
class Problem:
    """Something that is missing or slow, and what to do about it."""

    message: str
    hint: str


@dataclass(frozen=True, slots=True)
class Diagnosis:
    """The result of doctor. ``features`` are those of the processor that the kernels use, in LLVM's names.

    ``isa_reason`` says why that instruction set is used, ``rejected`` which faster ones are not.
    """

    versions: dict[str, str]
    cpu: CPU
    isa: str
    isa_reason: str
    rejected: tuple[Rejection, ...]
    features: tuple[str, ...]
    threads: int
    memory: Memory
    limits: MachineLimits
    folders: dict[str, Folder]
    models: tuple[str, ...]
    problems: tuple[Problem, ...]


def doctor(
    *,
    threads: Annotated[int | None, Parameter(name=("--threads", "-t"))] = None,
    isa: str | None = None,
    calibrate: Annotated[bool, FLAG] = False,
    force: Annotated[bool, FLAG] = False,
    model: Annotated[str | None, Parameter(name=("--model", "-m"))] = None,
    json: Json = False,
) -> None:
    """Measure this machine and report problems.

    Parameters
    ----------
    threads
        Number of threads (default: one per core).
    isa
        Instruction set: amx, avx512_bf16, avx512, avx2 or portable (default: the best of this machine).
    calibrate
        Run a model for less than a minute and save its step times, for predictions.
    force
        Save them although the machine was busy.
    model
        Model to calibrate with (default: smollm2-135m).
    """
    if calibrate:
        _calibrate(model or sources.DEFAULT_MODEL, isa, threads, force=force, json=json)
        return
    found = diagnose(CpuBackend(isa, threads))
    if json:
        print_json(asdict(found) | {"cpu": asdict(found.cpu) | {"features": sorted(found.cpu.features)}})
    else:
        print_lines(_lines(found))


def diagnose(backend: CpuBackend) -> Diagnosis:
    """Inspects and measures the machine. Raises ResourceError if the cache folder cannot be used."""
    folders, cpu, memory = CacheFolders.of().create(), read_cpu(), read_memory()
    with status("Measuring …"):
        choice = choose_table(backend.isa, partial(SelfTests(folders).fault, again=True))
        limits = backend.probe().best()
    parts = {"models": folders.models, "kernels": folders.kernels, "tokenizers": folders.tokenizers}
    models = tuple(model.name for model in sources.installed(folders.models))
    return Diagnosis(
        versions=versions(),
        cpu=cpu,
        isa=choice.isa.name,
        isa_reason=choice.reason,
        rejected=choice.rejected,
        features=tuple(sorted(choice.isa.needs)),
        threads=backend.workers,
        memory=memory,
        limits=limits,
        folders={name: _folder(path) for name, path in parts.items()},
        models=models,
        problems=tuple(_problems(choice, memory, models)),
    )


def _folder(path: Path) -> Folder:
    sizes = [file.stat().st_size for file in path.rglob("*") if file.is_file()]
    return Folder(str(path), len(sizes), sum(sizes))


def _problems(choice: TableChoice, memory: Memory, models: Sequence[str]) -> Iterator[Problem]:
    if not models:
        yield Problem("No model has been downloaded.", f"twofold pull {sources.DEFAULT_MODEL}")
    for rejection in choice.rejected:
        if rejection.fault:
            hint = f"Results are the same with {choice.isa.name}. A virtual machine must show the whole processor."
            yield Problem(f"{rejection}.", hint)
    if choice.isa.name == TABLES[-1].name:
        yield Problem("The kernels use no vector instructions of this processor.", "A processor with AVX2 is faster.")
    if memory.available < SMALL_MEMORY:
        free = format_bytes(memory.available)
        yield Problem(f"Only {free} of memory are free.", "Choose a small model and a low --max-model-len.")


def _lines(found: Diagnosis) -> Iterator[str]:
    rows = [
        ("versions", ", ".join(f"{name} {text}" for name, text in found.versions.items())),
        ("processor", f"{found.cpu.name}, {found.cpu.usable_cores} of {found.cpu.cores} cores usable"),
        ("kernels for", f"{found.isa}: {found.isa_reason}"),
        ("features", ", ".join(found.features) or "none: any processor"),
        ("threads", str(found.threads)),
        ("memory", f"{format_bytes(found.memory.available)} of {format_bytes(found.memory.usable)} available"),
        *_limit_rows(found.limits),
        *(
            (f"{name} folder", f"{folder.path} ({folder.files} files, {format_bytes(folder.bytes)})")
            for name, folder in found.folders.items()
        ),
        ("models", ", ".join(found.models) or "none"),
    ]
    yield from (f"{label:<20}{text}" for label, text in rows)
    yield from ("", "No problems found.") if not found.problems else ("",)
    yield from (f"{problem.message} → {problem.hint}" for problem in found.problems)


def _calibrate(model: str, isa: str | None, threads: int | None, *, force: bool, json: bool) -> None:
    """Measures a model's steps, and prints the fitted constants with their error on held-out probes."""
    from twofold.planner.calibrate.run import calibrate, write_constants  # noqa: PLC0415

    path = sources.resolve(model, cache=CacheFolders.of().create().models, progress=DownloadProgress()).path
    with status(f"Calibrating with {path.name} …"), interrupts() as stop:
        found = calibrate(path, {"isa": isa, "threads": threads}, stop=stop.is_set, force=force)
    stored = force or found.reliable
    if json:
        print_json(asdict(found) | {"constants": write_constants(found.constants), "stored": stored})
    else:
        print_lines(_calibration_lines(path.stem, found, stored=stored))


def _calibration_lines(model: str, found: Calibration, *, stored: bool) -> Iterator[str]:
    by = found.constants
    peaks = (f"{peak / 1e9:,.0f} GFLOP/s in {name}" for name, peak in found.peaks.items())
    rows = [
        ("model", model),
        ("weights read at", _share(by.eta_m, found.bandwidth)),
        ("arithmetic at", f"{by.eta_c:.0%} of peak: {', '.join(peaks)}"),
        ("KV cache read at", _share(by.eta_k, found.bandwidth)),
        ("overlap", f"{by.overlap:.0%} of the shorter of memory reads and arithmetic passes during the longer one"),
        ("fixed cost of a step", f"{1e3 * by.t_step:.2f} ms, plus {1e6 * by.t_req:.0f} µs per sequence"),
        ("error", f"{found.error:.1%} on held-out probes"),
        ("measured", f"{found.steps} steps of {found.probes} probes in {found.took_s:.0f} s"),
        ("other programs", f"{found.others:.0%} of the processor time meanwhile"),
    ]
    yield from (f"{label:<21}{text}" for label, text in rows)
    if not found.reliable:
        kept = "Stored all the same" if stored else "Not stored, earlier figures stay"
        yield f"\nThe machine was busy, or its speed changed. {kept}. → Calibrate again on an idle machine."
        yield from () if stored else ("To store it all the same, add --force.",)


def _share(share: float, of: float) -> str:
    return f"{share:.0%} of the memory bandwidth of {of / 1e9:.1f} GB/s"


def _limit_rows(limits: MachineLimits) -> list[tuple[str, str]]:
    reads = ", ".join(f"{read.bytes_per_s / 1e9:.1f} GB/s over {read.size >> 20} MiB" for read in limits.reads)
    pairs = limits.bf16_macs_per_s
    return [
        ("memory bandwidth", reads),
        ("8-bit integers", f"{limits.int8_macs_per_s / 1e9:,.0f} G multiply-adds/s"),
        ("32-bit floats", f"{limits.float_macs_per_s / 1e9:,.0f} G multiply-adds/s"),
        *([] if pairs is None else [("bfloat16", f"{pairs / 1e9:,.0f} G multiply-adds/s")]),
    ]


def kernels(
    kernel: Annotated[str, Parameter(help="Kernel name, e.g. linear, pack, argmax.")],
    format: Annotated[str | None, Parameter(help="Tensor format, e.g. Q4_K, for kernels that take one.")] = None,
    /,
    *,
    isa: Annotated[
        str | None, Parameter(help="amx, avx512_bf16, avx512, avx2 or portable (default: the best available).")
    ] = None,
    ir: Annotated[bool, FLAG, Parameter(help="Print the LLVM IR.")] = False,
    asm: Annotated[bool, FLAG, Parameter(help="Print the assembly.")] = False,
) -> None:
    """Show a kernel's compiled code, and count its instructions."""
    table = choose(host_features(), isa, refused_features())
    result = inspect(build(kernel, format, table), Compiler(CodegenTarget.of(table)))
    print_lines([*[result.ir] * ir, *[result.assembly] * asm, result.report()])
