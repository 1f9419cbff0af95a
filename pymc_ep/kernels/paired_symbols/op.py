"""Ops of the row updates of the paired-symbol model, with bodies in NumPy, C, Numba and JAX."""

import zlib
from collections.abc import Sequence
from functools import cache
from pathlib import Path
from typing import Any

import numpy as np
import pytensor
import pytensor.tensor as pt
from pytensor.graph.basic import Apply
from pytensor.link.c.op import OpenMPOp

from pymc_ep.compat import c_mode
from pymc_ep.kernels.paired_symbols import body
from pymc_ep.kernels.paired_symbols.body import NOTHING, Background, Cells, Censored, Priors, Statistics, Symbols

__all__ = ["PairSums", "RowStatistics", "SolveRows", "UpdateInTurn", "UpdateRows", "compiled_in_c"]

_SOURCE = Path(__file__).with_name("body.c")
_CELLS = (("int64", 1), ("int32", 1), ("float64", 1))
_SYMBOLS = (("float64", 2), ("float64", 2), ("float64", 1), ("float64", 1))
_NUMBER = ("float64", 0)
_OWN_SHAPES = ("n_own, width", "n_own, width", "n_own", "n_own")
"""Shapes of the fields of the own symbols."""
_C_TYPES = {"int64": "npy_int64", "int32": "npy_int32", "float64": "double"}


class _RowOp(OpenMPOp):
    """An Op of contiguous arrays, whose types and numbers of dimensions are fixed."""

    types: tuple[tuple[str, int], ...]
    """Type and number of dimensions of each input."""
    outputs: tuple[int, ...]
    """Number of dimensions of each output, all float64."""
    sized_by = 3
    """The input of shape (own symbols, factors)."""

    def make_node(self, *inputs: Any) -> Apply:
        """Return the node; inputs are cast to their types."""
        cast = []
        for value, (dtype, ndim) in zip(map(pt.as_tensor_variable, inputs), self.types, strict=True):
            if value.ndim != ndim:
                raise TypeError(f"{type(self).__name__} takes an input of {ndim} dimensions, and got {value.ndim}.")
            cast.append(value if value.dtype == dtype else value.astype(dtype))
        return Apply(self, cast, [pt.tensor(dtype="float64", shape=(None,) * ndim) for ndim in self.outputs])

    def perform(self, node: Apply, inputs: Sequence[np.ndarray], output_storage: Sequence[list[Any]]) -> None:
        """Run the NumPy body."""
        for storage, value in zip(output_storage, self.evaluate(inputs)):
            storage[0] = value

    def evaluate(self, inputs: Sequence[np.ndarray]) -> Sequence[np.ndarray]:
        """Return the outputs by the NumPy body."""
        raise NotImplementedError

    def c_headers(self, **kwargs: object) -> list[str]:
        """Return the headers of the body and of OpenMP."""
        return ["<math.h>", "<stdlib.h>", "<string.h>", *super().c_headers(**kwargs)]

    def c_support_code(self, **kwargs: object) -> str:
        """Return the C bodies."""
        return _SOURCE.read_text()

    def c_code_cache_version(self) -> tuple[int, ...]:
        """Return a version computed from the text of the body, so that no edit can use an old binary."""
        return (1, zlib.crc32(self.c_support_code().encode()))

    def c_call(self, inputs: Sequence[str], outputs: Sequence[str], fail: str) -> str:
        """Return the C statement that runs the body on pointers."""
        raise NotImplementedError

    def c_shapes(self) -> Sequence[str]:
        """Return the shape of each output, in terms of n_own and width."""
        raise NotImplementedError

    def c_code(self, node: Apply, name: str, inputs: Sequence[str], outputs: Sequence[str], sub: dict[str, str]) -> str:
        """Return C code that makes inputs contiguous, allocates outputs and runs the body."""
        fail, lines, held = sub["fail"], [], []
        for k, (value, (dtype, _)) in enumerate(zip(inputs, self.types)):
            held.append(f"{name}_{k}")
            lines.append(f"PyArrayObject *{name}_{k} = PyArray_GETCONTIGUOUS({value});")
            lines.append(f"const {_C_TYPES[dtype]} *{name}_p{k} = (const {_C_TYPES[dtype]} *)PyArray_DATA({name}_{k});")
        own = f"{name}_{self.sized_by}"
        lines.append(f"const npy_intp n_own = PyArray_DIM({own}, 0), width = PyArray_DIM({own}, 1);")
        for out, shape, ndim in zip(outputs, self.c_shapes(), self.outputs):
            lines.append(f"npy_intp {out}_shape[] = {{{shape}}}; Py_XDECREF({out});")
            lines.append(f"{out} = (PyArrayObject *)PyArray_EMPTY({ndim}, {out}_shape, NPY_DOUBLE, 0);")
            lines.append(f"if (!{out}) {{ {fail} }}")
        pointers = [f"{name}_p{k}" for k in range(len(inputs))]
        lines.append(self.c_call(pointers, [f"(double *)PyArray_DATA({out})" for out in outputs], fail))
        lines += [f"Py_DECREF({one});" for one in held]
        return "{ " + "\n".join(lines) + " }"


def _symbols(pointers: Sequence[str]) -> str:
    return f"(pymc_ep_symbols){{{', '.join(pointers)}}}"


class PairSums(_RowOp):
    """Op of `pymc_ep.kernels.paired_symbols.pair_sums`: cells, own and other symbols and weights, to sums (I, 4)."""

    __props__ = ()
    types = (*_CELLS, *_SYMBOLS, *_SYMBOLS, ("float64", 1))
    outputs = (2,)

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
    """Op of `pymc_ep.kernels.paired_symbols.row_statistics`.

    Inputs are the fields of cells, own symbols and other symbols, then s, t, D' and xi*; outputs are the fields of the
    statistics.
    """

    __props__ = ()
    types = (*_CELLS, *_SYMBOLS, *_SYMBOLS, *(("float64", 1),) * 2, *(_NUMBER,) * 2)
    outputs = (2, 2, 2, 2)

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
    """Op of `pymc_ep.kernels.paired_symbols.solve_rows`.

    Inputs are the fields of statistics, the own means and the fields of priors, then s, the first four fields of the
    background, D' and xi*; outputs are the fields of the own symbols.
    """

    __props__ = ("sequential",)
    types = (*(("float64", 2),) * 5, *_SYMBOLS, *(("float64", ndim) for ndim in (1, 2, 1, 1)), *(_NUMBER,) * 3)
    outputs = (2, 2, 1, 1)
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
    """Op of `pymc_ep.kernels.paired_symbols.update_rows`.

    Inputs are the fields of cells, own symbols, other symbols and priors, then s, t, the first four fields of the
    background, D' and xi*; outputs are the fields of the own symbols.
    """

    __props__ = ("sequential",)
    types = (
        *_CELLS,
        *_SYMBOLS,
        *_SYMBOLS,
        *_SYMBOLS,
        *(("float64", ndim) for ndim in (1, 1, 2, 1, 1)),
        *(_NUMBER,) * 3,
    )
    outputs = (2, 2, 1, 1)

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
    """Op of `pymc_ep.kernels.paired_symbols.update_in_turn`.

    Inputs are the fields of cells, symbols and priors, then s, the first four fields of the background, 2 D' and xi*;
    outputs are the fields of the symbols.
    """

    __props__ = ("sequential", "point_factors", "point_bias")
    types = (
        *_CELLS,
        *_SYMBOLS,
        *_SYMBOLS,
        *(("float64", ndim) for ndim in (1, 2, 1, 1)),
        *(_NUMBER,) * 3,
    )
    outputs = (2, 2, 1, 1)

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
    """Return the background with its first four fields."""
    outer, mean, mean_bias, bias = moments
    return Background(outer, mean, mean_bias, float(bias), 0.0)


@cache
def compiled_in_c(op: _RowOp) -> Any:
    """Return an Op as a function of arrays that runs its C body."""
    inputs = [pt.tensor(dtype=dtype, shape=(None,) * ndim) for dtype, ndim in op.types]
    return pytensor.function(inputs, op(*inputs), mode=c_mode(), trust_input=False)
