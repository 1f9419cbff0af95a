"""Ops of the row updates of the paired-symbol model, with bodies in NumPy, C, Numba and JAX."""

from collections.abc import Sequence
from pathlib import Path

import numpy as np

from pymc_ep.kernels.array_op import FLAT, INDICES, MATRIX, NUMBER, PLACES, ArrayOp
from pymc_ep.models.paired_symbols.kernel import body
from pymc_ep.models.paired_symbols.kernel.body import NOTHING, Background, Cells, Censored, Priors, Statistics, Symbols

__all__ = ["PairSums", "RowStatistics", "SolveRows", "UpdateInTurn", "UpdateRows"]

_CELLS = (PLACES, INDICES, FLAT)
_SYMBOLS = (MATRIX, MATRIX, FLAT, FLAT)
_MOMENTS = (MATRIX, FLAT, FLAT, NUMBER)
"""Types of the first four fields of a `Background`."""
_OWN_SHAPES = ("n_own, width", "n_own, width", "n_own", "n_own")
"""Shapes of the fields of the own symbols."""


class _RowOp(ArrayOp):
    """Base class of Ops whose outputs have a row for each own symbol."""

    source = Path(__file__).with_name("body.c")
    sized_by = 3
    """Index of the input of shape (own symbols, factors)."""

    def c_sizes(self, arrays: Sequence[str], pointers: Sequence[str]) -> str:
        """Return C declarations of the numbers of own symbols and of factors."""
        matrix = arrays[self.sized_by]
        return f"const npy_intp n_own = PyArray_DIM({matrix}, 0), width = PyArray_DIM({matrix}, 1);"


def _symbols(pointers: Sequence[str]) -> str:
    return f"(pymc_ep_symbols){{{', '.join(pointers)}}}"


class PairSums(_RowOp):
    """Op of `pymc_ep.models.paired_symbols.kernel.pair_sums`.

    Inputs are the fields of cells, own symbols and other symbols, then the weights, (J,); outputs are the sums, (I, 4).
    """

    __props__ = ()
    types = (*_CELLS, *_SYMBOLS, *_SYMBOLS, FLAT)
    outputs = (MATRIX,)

    def evaluate(self, inputs: Sequence[np.ndarray]) -> Sequence[np.ndarray]:
        """Return the sums by the NumPy body."""
        return [body.pair_sums(Cells(*inputs[:3]), Symbols(*inputs[3:7]), Symbols(*inputs[7:11]), inputs[11])]

    def c_shapes(self) -> Sequence[str]:
        """Return the shape of the sums."""
        return ["n_own, 4"]

    def c_call(self, inputs: Sequence[str], outputs: Sequence[str], fail: str) -> str:
        """Return the C statement that runs the body."""
        own, other = _symbols(inputs[3:7]), _symbols(inputs[7:11])
        cells = ", ".join(inputs[:3])
        return f"pymc_ep_pair_sums(n_own, width, {cells}, {own}, {other}, {inputs[11]}, {outputs[0]});"


class RowStatistics(_RowOp):
    """Op of `pymc_ep.models.paired_symbols.kernel.row_statistics`.

    Inputs are the fields of cells, own symbols and other symbols, then s, t, D' and xi*; outputs are the fields of the
    statistics.
    """

    __props__ = ()
    types = (*_CELLS, *_SYMBOLS, *_SYMBOLS, FLAT, FLAT, NUMBER, NUMBER)
    outputs = (MATRIX,) * 4

    def evaluate(self, inputs: Sequence[np.ndarray]) -> Sequence[np.ndarray]:
        """Return the statistics by the NumPy body."""
        own, other = Symbols(*inputs[3:7]), Symbols(*inputs[7:11])
        s, t, number, xi = inputs[11:]
        return body.row_statistics(Cells(*inputs[:3]), own, other, Censored(float(number), s, t, NOTHING, float(xi)))

    def c_shapes(self) -> Sequence[str]:
        """Return the shapes of the statistics."""
        return ["n_own, width * (width + 1) / 2", "n_own, width", "n_own, width", "n_own, 2"]

    def c_call(self, inputs: Sequence[str], outputs: Sequence[str], fail: str) -> str:
        """Return the C statement that runs the body."""
        cells, symbols = ", ".join(inputs[:3]), [_symbols(inputs[k : k + 4]) for k in (3, 7)]
        arguments = ", ".join([cells, *symbols, *inputs[11:13], *_numbers(inputs[13:]), *outputs])
        return f"if (pymc_ep_row_statistics(n_own, width, {arguments})) {{ PyErr_NoMemory(); {fail} }}"


class SolveRows(_RowOp):
    """Op of `pymc_ep.models.paired_symbols.kernel.solve_rows`.

    Inputs are the fields of statistics, the own means and the fields of priors, then s, the first four fields of the
    background, D' and xi*; outputs are the fields of the own symbols.
    """

    __props__ = ("sequential",)
    types = (*(MATRIX,) * 5, *_SYMBOLS, FLAT, *_MOMENTS, NUMBER, NUMBER)
    outputs = _SYMBOLS
    sized_by = 4

    def __init__(self, sequential: bool = False) -> None:
        self.sequential = bool(sequential)
        super().__init__()

    def evaluate(self, inputs: Sequence[np.ndarray]) -> Sequence[np.ndarray]:
        """Return the symbols by the NumPy body."""
        mean, priors, (s, *moments, number, xi) = inputs[4], Priors(*inputs[5:9]), inputs[9:]
        own = Symbols(mean, np.zeros_like(mean), np.zeros(len(mean)), np.zeros(len(mean)))
        censored = Censored(float(number), s, np.zeros(0), _background(moments), float(xi))
        return body.solve_rows(Statistics(*inputs[:4]), own, priors, censored, self.sequential)

    def c_shapes(self) -> Sequence[str]:
        """Return the shapes of the own symbols."""
        return _OWN_SHAPES

    def c_call(self, inputs: Sequence[str], outputs: Sequence[str], fail: str) -> str:
        """Return the C statement that runs the body."""
        arrays, numbers = inputs[9:13], _numbers(inputs[13:])
        arguments = ", ".join(
            [*inputs[:5], _symbols(inputs[5:9]), *arrays, *numbers, str(int(self.sequential)), *outputs]
        )
        return f"if (pymc_ep_solve_rows(n_own, width, {arguments})) {{ PyErr_NoMemory(); {fail} }}"


class UpdateRows(_RowOp):
    """Op of `pymc_ep.models.paired_symbols.kernel.update_rows`.

    Inputs are the fields of cells, own symbols, other symbols and priors, then s, t, the first four fields of the
    background, D' and xi*; outputs are the fields of the own symbols.
    """

    __props__ = ("sequential",)
    types = (*_CELLS, *_SYMBOLS, *_SYMBOLS, *_SYMBOLS, FLAT, FLAT, *_MOMENTS, NUMBER, NUMBER)
    outputs = _SYMBOLS

    def __init__(self, sequential: bool = False) -> None:
        self.sequential = bool(sequential)
        super().__init__()

    def evaluate(self, inputs: Sequence[np.ndarray]) -> Sequence[np.ndarray]:
        """Return the symbols by the NumPy body."""
        own, other, priors = Symbols(*inputs[3:7]), Symbols(*inputs[7:11]), Priors(*inputs[11:15])
        s, t, *moments, number, xi = inputs[15:]
        censored = Censored(float(number), s, t, _background(moments), float(xi))
        return body.update_rows(Cells(*inputs[:3]), own, other, priors, censored, self.sequential)

    def c_shapes(self) -> Sequence[str]:
        """Return the shapes of the own symbols."""
        return _OWN_SHAPES

    def c_call(self, inputs: Sequence[str], outputs: Sequence[str], fail: str) -> str:
        """Return the C statement that runs the body."""
        cells, symbols = ", ".join(inputs[:3]), [_symbols(inputs[k : k + 4]) for k in (3, 7, 11)]
        arrays, numbers = inputs[15:20], _numbers(inputs[20:])
        arguments = ", ".join([cells, *symbols, *arrays, *numbers, str(int(self.sequential)), *outputs])
        return f"if (pymc_ep_update_rows(n_own, width, {arguments})) {{ PyErr_NoMemory(); {fail} }}"


class UpdateInTurn(_RowOp):
    """Op of `pymc_ep.models.paired_symbols.kernel.update_in_turn`.

    Inputs are the fields of cells, symbols and priors, then s, the first four fields of the background, 2 D' and xi*;
    outputs are the fields of the symbols.
    """

    __props__ = ("sequential", "point_factors", "point_bias")
    types = (*_CELLS, *_SYMBOLS, *_SYMBOLS, FLAT, *_MOMENTS, NUMBER, NUMBER)
    outputs = _SYMBOLS

    def __init__(self, sequential: bool = False, point_factors: bool = False, point_bias: bool = False) -> None:
        self.sequential = bool(sequential)
        self.point_factors, self.point_bias = bool(point_factors), bool(point_bias)
        super().__init__()

    def evaluate(self, inputs: Sequence[np.ndarray]) -> Sequence[np.ndarray]:
        """Return the symbols by the NumPy body."""
        s, *moments, number, xi = inputs[11:]
        censored = Censored(float(number), s, s, _background(moments), float(xi))
        own, priors, points = Symbols(*inputs[3:7]), Priors(*inputs[7:11]), (self.point_factors, self.point_bias)
        return body.update_in_turn(Cells(*inputs[:3]), own, priors, censored, self.sequential, points)

    def c_shapes(self) -> Sequence[str]:
        """Return the shapes of the symbols."""
        return _OWN_SHAPES

    def c_call(self, inputs: Sequence[str], outputs: Sequence[str], fail: str) -> str:
        """Return the C statement that runs the body."""
        cells, symbols = ", ".join(inputs[:3]), [_symbols(inputs[k : k + 4]) for k in (3, 7)]
        flags = [str(int(flag)) for flag in (self.sequential, self.point_factors, self.point_bias)]
        arguments = ", ".join([cells, *symbols, *inputs[11:15], *_numbers(inputs[15:]), *flags, *outputs])
        return f"if (pymc_ep_update_in_turn(n_own, width, {arguments})) {{ PyErr_NoMemory(); {fail} }}"


def _numbers(pointers: Sequence[str]) -> list[str]:
    return [f"*{pointer}" for pointer in pointers]


def _background(moments: Sequence[np.ndarray]) -> Background:
    """Return a background whose first four fields are `moments`, and whose weights sum to one."""
    outer, mean, mean_bias, bias = moments
    return Background(outer, mean, mean_bias, float(bias), 0.0)
