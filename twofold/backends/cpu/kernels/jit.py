"""From kernel text to machine code, and the cache of machine code.

An entry of the cache is an object file, preceded by its SHA-256. Its name is a digest of everything that decides its
content: the kernel's LLVM text (or its name and the source of all generators), the processor and its features, the
passes, and the version of LLVM. So no entry is ever stale. LLVM's loader does not survive damaged code: an entry that
does not match its digest is compiled again. A folder that other users may write to is refused, because entries are
executed. If the folder cannot be written, as on a read-only disk, nothing is kept.
"""

from __future__ import annotations

import contextlib
import ctypes
import hashlib
import os
import stat
import time
from collections.abc import Callable
from dataclasses import dataclass, field
from pathlib import Path

import llvmlite.binding as llvm

from twofold.backends.cpu.kernels.ir import Kernel
from twofold.backends.cpu.kernels.isa import TILE_FEATURES, Isa, tuned
from twofold.core.errors import ResourceError
from twofold.host.machine import read_cpu, request_tiles
from twofold.host.paths import write_whole

PASSES = ("sroa", "instruction_combine", "simplify_cfg", "dead_code_elimination")
"""They turn stack slots into registers and fold constants; loops stay as the generators write them."""

DIGEST_BYTES = hashlib.sha256().digest_size


def host_features() -> frozenset[str]:
    """LLVM's names of what this processor can do and this process may use."""
    return _processor_features() - refused_features().keys()


def refused_features() -> dict[str, str]:
    """Features of this processor that this process may not use, each with the reason.

    Asks for the permission to use tiles. A process needs it before it starts the threads that compute.
    """
    tiles = _processor_features() & TILE_FEATURES
    if tiles == TILE_FEATURES and (reason := request_tiles()) is not None:
        return dict.fromkeys(sorted(tiles), reason)
    return {}


def _processor_features() -> frozenset[str]:
    return frozenset(name for name, present in llvm.get_host_cpu_features().items() if present)


@dataclass(frozen=True, slots=True)
class CodegenTarget:
    """A processor that code is generated for."""

    isa: Isa
    cpu: str
    features: str

    @staticmethod
    def of(isa: Isa) -> CodegenTarget:
        """This machine's processor, limited to the features of ``isa``, and ``isa`` tuned for it."""
        if isa.cpu == "":
            cpu = llvm.get_host_cpu_name()
            return CodegenTarget(tuned(isa, cpu), cpu, llvm.get_host_cpu_features().flatten())
        return CodegenTarget(isa, isa.cpu, "")


@dataclass(slots=True)
class Compiler:
    """Compiles kernels for one target and loads them, through the folder ``cache`` if it is given.

    compiled, loaded   kernels that were compiled here, and those that were in the cache
    seconds            the time that both took
    """

    target: CodegenTarget
    cache: Path | None = None
    compiled: int = field(init=False, default=0)
    loaded: int = field(init=False, default=0)
    seconds: float = field(init=False, default=0.0)
    _jit: llvm.LLJIT = field(init=False)
    _machine: llvm.TargetMachine = field(init=False)
    _loaded: dict[str, int] = field(init=False, default_factory=dict)
    _trackers: list[llvm.ResourceTracker] = field(init=False, default_factory=list)
    _generators: str = field(init=False, default="")
    _target_key: str = field(init=False, default="")

    def __post_init__(self) -> None:
        llvm.initialize_native_target()
        llvm.initialize_native_asmprinter()
        self._generators = _fingerprint()
        self._target_key = _target_key(self.target)
        self._machine = _target_machine(self.target)
        # JITLink keeps a kernel's code and constants in one piece of memory. The older linker may place them more than
        # 2 GiB apart, and then their 32-bit offsets crash the process.
        self._jit = llvm.create_lljit_compiler(_target_machine(self.target), use_jit_link=True)
        if self.cache is not None:
            self.cache = _secured(self.cache)

    def address(self, kernel: Kernel) -> int:
        """The address of ``kernel``'s machine code; compiled at most once for each text."""
        text = kernel.text()
        return self._address(kernel.name, self._key(text), lambda: text)

    def named(self, name: str, make: Callable[[], Kernel]) -> int:
        """The address of the kernel that ``make`` generates; its ``name`` alone identifies it.

        It is generated only if the cache has no machine code of that name from the same generators.
        """
        return self._address(name, self._key(name, self._generators), lambda: _text_of(name, make()))

    def assembly(self, kernel: Kernel) -> str:
        """The machine code as assembly, for people and for the tests that count spills."""
        return str(self._machine.emit_assembly(self._optimised(kernel.text())))

    def _address(self, name: str, key: str, text: Callable[[], str]) -> int:
        if key not in self._loaded:
            began = time.perf_counter()
            self._loaded[key] = self._load(name, key, self._object(key, text))
            self.seconds += time.perf_counter() - began
        return self._loaded[key]

    def _key(self, *identity: str) -> str:
        return _digest(*identity, self._target_key)

    def _object(self, key: str, text: Callable[[], str]) -> bytes:
        path = self.cache / f"{key}.o" if self.cache is not None else None
        if path is not None and (kept := _read_entry(path)) is not None:
            self.loaded += 1
            return kept
        self.compiled += 1
        code = bytes(self._machine.emit_object(self._optimised(text())))
        if path is not None:
            _write_entry(path, code)
        return code

    def _optimised(self, text: str) -> llvm.ModuleRef:
        module = llvm.parse_assembly(text)
        module.verify()
        module.triple = self._machine.triple
        module.data_layout = str(self._machine.target_data)
        builder = llvm.create_pass_builder(self._machine, llvm.create_pipeline_tuning_options(speed_level=2))
        passes = llvm.create_new_module_pass_manager()
        for name in PASSES:
            getattr(passes, f"add_{name}_pass")()
        passes.run(module, builder)
        return module

    def _load(self, name: str, key: str, code: bytes) -> int:
        library = llvm.JITLibraryBuilder().add_object_img(code).export_symbol(name).add_current_process()
        tracker = library.link(self._jit, f"{name}-{key}")
        self._trackers.append(tracker)
        return int(tracker[name])


def machine_key(target: CodegenTarget) -> str:
    """A key for what machine code depends on: the target, the source of all generators, the processor's name."""
    return _digest(_target_key(target), _fingerprint(), read_cpu().name)


def _target_key(target: CodegenTarget) -> str:
    return _digest(target.cpu, target.features, repr(PASSES), repr(llvm.llvm_version_info), target.isa.name)


def _digest(*parts: str) -> str:
    return hashlib.sha256("\0".join(parts).encode()).hexdigest()[:40]


def _text_of(name: str, kernel: Kernel) -> str:
    assert kernel.name == name, f"{kernel.name} was asked for as {name}"
    return kernel.text()


def _fingerprint() -> str:
    """A digest of the source of all generators: machine code of other sources is not reused by name."""
    digest = hashlib.sha256()
    for path in sorted(Path(__file__).parent.glob("*.py")):
        digest.update(path.read_bytes())
    return digest.hexdigest()


def _target_machine(target: CodegenTarget) -> llvm.TargetMachine:
    return llvm.Target.from_default_triple().create_target_machine(
        cpu=target.cpu, features=target.features, opt=2, reloc="pic", codemodel="small", jit=True
    )


def _secured(folder: Path) -> Path | None:
    """Creates ``folder`` for its owner only; refuses a folder that another user can write to.

    None where it cannot be created: kernels are then compiled in every process.
    """
    try:
        folder.mkdir(mode=0o700, parents=True, exist_ok=True)
        info = folder.stat()
    except OSError:
        return None
    if info.st_uid != os.getuid() or stat.S_IMODE(info.st_mode) & 0o022:
        raise ResourceError(
            f"The kernel cache {folder} can be written by other users, so its machine code is not trusted.",
            hint=f"Run: chmod 700 {folder} (or choose another folder with TWOFOLD_CACHE).",
        )
    return folder


def _read_entry(path: Path) -> bytes | None:
    """Returns the code of an entry, or None if the entry is missing or damaged."""
    try:
        entry = path.read_bytes()
    except OSError:
        return None
    digest, code = entry[:DIGEST_BYTES], entry[DIGEST_BYTES:]
    return code if hashlib.sha256(code).digest() == digest else None


def _write_entry(path: Path, code: bytes) -> None:
    """Writes an entry, or nothing if the disk is full or read-only."""
    with contextlib.suppress(OSError):
        write_whole(path, hashlib.sha256(code).digest() + code)


def as_function(address: int, arguments: int) -> ctypes._CFunctionType:
    """A Python callable for machine code that takes 8-byte integers; the interpreter lock is released inside."""
    return ctypes.CFUNCTYPE(None, *[ctypes.c_int64] * arguments)(address)
