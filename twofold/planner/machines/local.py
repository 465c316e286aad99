"""This machine as one of the table: ceilings that were measured, in the words of data sheets."""

from __future__ import annotations

from typing import TYPE_CHECKING

from twofold.core.kv_layout import KV_FORMATS, KVType
from twofold.core.model import ModelSpec
from twofold.core.values import FP32
from twofold.host.memory import read_memory
from twofold.planner.count.memory import streamed_bytes
from twofold.planner.count.setting import Setting
from twofold.planner.machines.machine import Cited, Machine

if TYPE_CHECKING:  # measuring needs the kernels' compiler; a description does not
    from twofold.core.limits import MachineLimits


def engine_setting(dtype: KVType = "f16") -> Setting:
    """How the engine keeps values on a CPU, keys and values in that type."""
    return Setting(kv=KV_FORMATS[dtype], activations=FP32)


def local_machine(limits: MachineLimits, memory_bytes: int, working_set: int) -> Machine:
    """The machine that ``limits`` were measured on, reading a working set of that size (a model's weights).

    Integer codes are multiplied at the peak for ``int8``, everything else at that for ``fp32``.
    """
    source = f"measured {limits.measured} with {limits.threads} threads ({limits.isa})"
    return Machine(
        "this machine",
        "cpu",
        memory=Cited(memory_bytes, "the operating system"),
        bandwidth=Cited(limits.read_speed(working_set), source),
        peaks={
            "fp32": Cited(2 * limits.float_macs_per_s, source),
            "int8": Cited(2 * limits.int8_macs_per_s, source),
        },
        other_names=(limits.cpu,),
    )


def machine_of(shape: ModelSpec, limits: MachineLimits) -> Machine:
    """This machine, reading that model's weights."""
    return local_machine(limits, read_memory().usable, streamed_bytes(shape, engine_setting()))
