"""The kernel of ``kernels.digest`` as a Python function."""

from __future__ import annotations

import functools
from collections.abc import Callable
from typing import Any, cast

from twofold.backends.cpu.kernels.digest import CHUNK, KEY_BYTES, SUM_BYTES, universal_hash_kernel
from twofold.backends.cpu.kernels.jit import as_function
from twofold.backends.cpu.tables import select_table
from twofold.host.paths import CacheFolders

__all__ = ["CHUNK", "KEY_BYTES", "SUM_BYTES", "universal_hash"]


@functools.cache
def universal_hash() -> Callable[[int, int, int, int], None]:
    """The function of addresses (data, number of chunks, key, sums), compiled for this machine's processor."""
    _, compiler = select_table(None, CacheFolders.of())
    function: Any = as_function(compiler.named("universal_hash", universal_hash_kernel), 4)
    function.owner = compiler  # its code lasts as long as the compiler
    return cast(Callable[[int, int, int, int], None], function)
