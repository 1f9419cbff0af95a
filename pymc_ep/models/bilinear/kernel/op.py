"""Ops of the moments of inner products, with bodies in NumPy, C, Numba and JAX."""

from collections.abc import Sequence
from pathlib import Path
from typing import Any

import numpy as np

from pymc_ep.kernels.array_op import CUBE, FLAT, MATRIX, PLACES, ArrayOp
from pymc_ep.models.bilinear.kernel import body, full_body
from pymc_ep.numerics.pairs import Pairs

__all__ = ["ProductDerivatives", "ProductMoments"]


class _RowsOp(ArrayOp):
    """Op of pairs of Gaussian rows; its inputs are `ends` and `others` of `Pairs`, and moments of own and other rows.

    Parameters
    ----------
    statistic : {"log_mean_exp", "variance"}
        Statistic of the inner products f beside E f: log E e^f or Var f.
    full : bool
        Whether rows have covariances.
    """

    __props__ = ("statistic", "full")
    source = Path(__file__).with_name("body.c")

    def __init__(self, statistic: str, full: bool):
        super().__init__()
        self.statistic, self.full = statistic, full
        spread = CUBE if full else MATRIX
        self.types = (PLACES, PLACES, *(MATRIX, spread) * 2, *self._weights)
        self.outputs = self._results(spread)

    _weights: tuple[tuple[str, int], ...] = ()
    """Types of further inputs, which are weights of the pairs."""

    @staticmethod
    def _results(spread: tuple[str, int]) -> tuple[tuple[str, int], ...]:
        """Return the types of the outputs."""
        raise NotImplementedError

    @property
    def function(self) -> str:
        """Name of the NumPy body."""
        raise NotImplementedError

    @property
    def compiled_function(self) -> str:
        """Name of the Numba body; the name of the C body ends in it."""
        return f"full_{self.function}" if self.full else self.function

    def evaluate(self, inputs: Sequence[np.ndarray]) -> Sequence[np.ndarray]:
        """Return the outputs by the NumPy body."""
        ends, others, m, spread, n, other_spread, *weights = inputs
        bodies: Any = full_body if self.full else body
        kinds = (full_body.FactoredRows, full_body.FullRows) if self.full else (body.Rows, body.Rows)
        pairs = Pairs(ends, others, np.arange(len(others)))
        return getattr(bodies, self.function)(pairs, kinds[0](m, spread), kinds[1](n, other_spread), *weights)

    def c_compile_args(self, **kwargs: object) -> list[str]:
        """Return compiler flags, with the one for vector instructions in sums, which does not need OpenMP."""
        return [*super().c_compile_args(**kwargs), "-fopenmp-simd"]

    def c_sizes(self, arrays: Sequence[str], pointers: Sequence[str]) -> str:
        """Return C declarations of the numbers of own rows, columns and pairs."""
        return (
            f"const npy_intp n_rows = PyArray_DIM({arrays[0]}, 0) - 1, width = PyArray_DIM({arrays[2]}, 1);\n"
            f"const npy_intp n_pairs = PyArray_DIM({arrays[1]}, 0);\n"
        )

    def c_call(self, inputs: Sequence[str], outputs: Sequence[str], fail: str) -> str:
        """Return the C statement that runs the body, which returns nonzero where memory does not suffice."""
        call = f"pymc_ep_{self.compiled_function}(n_rows, width, {', '.join([*inputs, *outputs])})"
        return f"if ({call}) {{ PyErr_NoMemory(); {fail} }}"


class ProductMoments(_RowsOp):
    """Op of `pymc_ep.models.bilinear.kernel.log_mean_exp` or `variance`; outputs are E f and the statistic."""

    @staticmethod
    def _results(spread: tuple[str, int]) -> tuple[tuple[str, int], ...]:
        return FLAT, FLAT

    @property
    def function(self) -> str:
        """Name of the NumPy body."""
        return self.statistic

    def c_shapes(self) -> Sequence[str]:
        """Return the shapes of E f and of the statistic."""
        return ["n_pairs", "n_pairs"]


class ProductDerivatives(_RowsOp):
    """Op of the pullbacks, whose weights are further inputs; outputs are derivatives in moments of own rows."""

    _weights = (FLAT, FLAT)

    @staticmethod
    def _results(spread: tuple[str, int]) -> tuple[tuple[str, int], ...]:
        return MATRIX, spread

    @property
    def function(self) -> str:
        """Name of the NumPy body."""
        return f"{self.statistic}_pullback"

    def c_shapes(self) -> Sequence[str]:
        """Return the shapes of the derivatives."""
        return ["n_rows, width", "n_rows, width, width" if self.full else "n_rows, width"]
