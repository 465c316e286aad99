"""Row kernels: quantised activations, norms, gates, sums, against NumPy and bit for bit across instruction sets."""

from __future__ import annotations

from collections.abc import Callable, Collection

import numpy as np
import pytest

from tests.backends.cpu.kernels.harness import Bytes, Field, Floats, Machine, assert_same_bits, poisoned
from tests.backends.cpu.kernels.matrices import QuantisedRows, act_sums, rows_of
from twofold.backends.cpu.kernels import rows as kernels
from twofold.backends.cpu.kernels.ir import Kernel
from twofold.backends.cpu.kernels.layout import ACT_SUMS, ActRow, ActSum
from twofold.backends.cpu.kernels.signature import StepFields

ROWS, WIDTH, GUARD = 5, 96, 16
EPS = 1e-5

MAKERS: dict[str, Callable[[], Kernel]] = {
    "quantise": kernels.quantise_kernel,
    "norm": kernels.norm_kernel,
    "silu": lambda: kernels.gated_kernel("silu"),
    "gelu_tanh": lambda: kernels.gated_kernel("gelu_tanh"),
    "add": kernels.add_kernel,
    "select": lambda: kernels.select_kernel(StepFields.LOGIT_LIST),
    "select hidden": lambda: kernels.select_kernel(StepFields.HIDDEN_LIST),
    "softcap": kernels.softcap_kernel,
}


class Row:
    """The record of a row kernel for ``x`` [rows, width] and what it wrote."""

    def __init__(
        self,
        x: Floats,
        y: Floats | None = None,
        weight: Floats | None = None,
        eps: float = EPS,
        sums: Collection[ActSum] = ACT_SUMS,
    ) -> None:
        self.rows, self.width = x.shape
        self.out = poisoned(self.rows, self.width + GUARD)
        self.layout = ActRow(self.width, frozenset(sums))
        self.acts: Bytes = np.full((self.rows, self.layout.offset()), 0xA5, np.uint8)
        self.inputs = {"x": x, "y": y, "weight": weight}
        self.eps = eps

    def run(
        self,
        machine: Machine,
        name: str,
        units: tuple[int, int] | None = None,
        *,
        out: bool = True,
        acts: bool = False,
        step: dict[StepFields, Field] | None = None,
    ) -> Floats:
        fields: dict[str, Field] = {n: 0 if v is None else v for n, v in self.inputs.items()}
        fields |= {f"{n}_stride": self.width * 4 for n in ("x", "y")}
        fields |= {"out": self.out if out else 0, "out_stride": self.out.strides[0]}
        fields |= {"acts": self.acts if acts else 0, "act_stride": self.acts.shape[1]}
        fields["sums"] = self.layout.mask
        fields |= {"width": self.width, "eps": self.eps}
        record = [fields[name] for name in kernels.ROW_FIELDS]
        machine.run(machine.kernel(("rows", name), MAKERS[name]), record, units or (0, self.rows), step)
        assert np.isnan(self.out[:, self.width :]).all()
        return self.out[:, : self.width].copy()


@pytest.mark.parametrize("count", [1, 3, len(ACT_SUMS)])
@pytest.mark.parametrize("first", range(len(ACT_SUMS)))
def test_quantised_rows_are_what_the_linear_kernels_read(machines: list[Machine], first: int, count: int) -> None:
    """With ``count`` of the sums from ``first`` on."""
    chosen = [each for i, each in enumerate(ACT_SUMS) if (i - first) % len(ACT_SUMS) < count]
    x = rows_of(ROWS, WIDTH, seed=1) * np.float32(10) ** np.arange(-2, 3, dtype=np.float32)[:, None]
    wanted = QuantisedRows.of(x, chosen)
    for machine in machines:
        row = Row(x, sums=chosen)
        row.run(machine, "quantise", out=False, acts=True)
        codes, scales = row.acts[:, :WIDTH].view(np.int8), row.acts[:, WIDTH : WIDTH + 12].copy().view(np.float32)
        np.testing.assert_allclose(codes, wanted.data[:, :WIDTH].view(np.int8), atol=1)
        np.testing.assert_allclose(scales, wanted.data[:, WIDTH : WIDTH + 12].copy().view(np.float32), rtol=2e-7)
        for each in chosen:
            sums, at = act_sums(codes, scales, *each), row.layout.offset(each)
            assert_same_bits(row.acts[:, at : at + sums.nbytes // ROWS].copy(), sums.view(np.uint8))
        values = codes * scales.repeat(32, axis=1)
        assert (np.abs(values - x) <= 0.5001 * scales.repeat(32, axis=1)).all()


def test_a_row_of_zeros_quantises_to_zeros(machine: Machine) -> None:
    row = Row(np.zeros((1, WIDTH), np.float32))
    row.run(machine, "quantise", out=False, acts=True)
    assert not row.acts.any()


@pytest.mark.parametrize("size", [1e-45, 1e-38, 1e-31])
def test_negligible_rows_quantise_to_zeros(machines: list[Machine], size: float) -> None:
    """127 divided by the smallest numbers is infinite, and infinity times zero is no number."""
    x = rows_of(1, WIDTH, seed=4)
    x = (np.sign(x) * np.float32(size)).astype(np.float32)
    x[:, ::3] = 0
    for machine in machines:
        row = Row(x)
        row.run(machine, "quantise", out=False, acts=True)
        assert not row.acts[:, :WIDTH].any()
        assert np.isfinite(row.acts[:, WIDTH : WIDTH + 12].copy().view(np.float32)).all()
        assert not row.acts[:, WIDTH + 12 :].any()


@pytest.mark.parametrize("residual", [False, True])
def test_norm(machine: Machine, residual: bool) -> None:
    x, y, weight = rows_of(ROWS, WIDTH, 2), rows_of(ROWS, WIDTH, 3), rows_of(1, WIDTH, 4)[0]
    wide = x.astype(np.float64)
    wanted = wide / np.sqrt((wide**2).mean(axis=1, keepdims=True) + EPS) * weight + (y if residual else 0)
    out = Row(x, y if residual else None, weight).run(machine, "norm")
    np.testing.assert_allclose(out, wanted, rtol=1e-6, atol=1e-6)


@pytest.mark.parametrize("name", ["silu", "gelu_tanh"])
def test_gates(machine: Machine, name: str) -> None:
    x, y = rows_of(ROWS, WIDTH, 5) * 4, rows_of(ROWS, WIDTH, 6)
    wide = x.astype(np.float64)
    inner = wide if name == "silu" else 2 * np.sqrt(2 / np.pi) * (wide + 0.044715 * wide**3)
    np.testing.assert_allclose(Row(x, y).run(machine, name), wide / (1 + np.exp(-inner)) * y, rtol=1e-5, atol=1e-6)


def test_add_is_one_addition(machine: Machine) -> None:
    x, y = rows_of(ROWS, WIDTH, 7), rows_of(ROWS, WIDTH, 8)
    assert_same_bits(Row(x, y).run(machine, "add"), x + y)


def test_softcap(machine: Machine) -> None:
    x = rows_of(ROWS, WIDTH, 9) * 40
    wanted = 30 * np.tanh(x.astype(np.float64) / 30)
    np.testing.assert_allclose(Row(x, eps=30.0).run(machine, "softcap"), wanted, rtol=1e-6)


@pytest.mark.parametrize(
    ("name", "listed"), [("select", StepFields.LOGIT_LIST), ("select hidden", StepFields.HIDDEN_LIST)]
)
def test_select_takes_the_wanted_rows(machine: Machine, name: str, listed: StepFields) -> None:
    x = rows_of(ROWS, WIDTH, 10)
    wanted = np.array([1, 4], np.int32)
    out = Row(x).run(machine, name, (0, 2), step={listed: wanted})
    assert_same_bits(out[:2].copy(), x[wanted])
    assert np.isnan(out[2:]).all()


@pytest.mark.parametrize("name", ["norm", "silu", "gelu_tanh"])
def test_the_quantised_form_is_that_of_the_result(machine: Machine, name: str) -> None:
    x, y, weight = rows_of(ROWS, WIDTH, 11), rows_of(ROWS, WIDTH, 12), rows_of(1, WIDTH, 13)[0]
    both = Row(x, y, weight)
    result = both.run(machine, name, acts=True)
    alone, again = Row(x, y, weight), Row(result)
    assert np.isnan(alone.run(machine, name, out=False, acts=True)).all()
    again.run(machine, "quantise", out=False, acts=True)
    assert_same_bits(both.acts, alone.acts)
    assert_same_bits(both.acts, again.acts)


@pytest.mark.parametrize("name", [name for name in MAKERS if not name.startswith("select")])
def test_every_instruction_set_and_split_gives_the_same_bits(machines: list[Machine], name: str) -> None:
    x, y, weight = rows_of(ROWS, WIDTH, 14), rows_of(ROWS, WIDTH, 15), rows_of(1, WIDTH, 16)[0]
    quantised = name not in {"add", "softcap"}
    first = Row(x, y, weight)
    first.run(machines[0], name, acts=quantised)
    for machine in machines:
        other = Row(x, y, weight)
        for units in ((0, 2), (2, 2), (2, ROWS)):
            other.run(machine, name, units, acts=quantised)
        assert_same_bits(other.out, first.out)
        assert_same_bits(other.acts, first.acts)
