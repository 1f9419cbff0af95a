"""Ops of the posteriors of compared utilities, with bodies in NumPy, C, Numba and JAX."""

from collections.abc import Sequence
from pathlib import Path

import numpy as np

from pymc_ep.kernels.array_op import FLAT, INDICES, MATRIX, NUMBER, PLACES, ArrayOp
from pymc_ep.models.preferences.kernel import body
from pymc_ep.models.preferences.kernel.body import Comparisons

__all__ = ["DifferenceMeans", "DifferenceMoments", "PrecisionLosses", "PriorFactors"]

_COMPARISONS = (PLACES, INDICES, PLACES, INDICES, INDICES)
_N_FIELDS = len(_COMPARISONS)


class _UserOp(ArrayOp):
    """An Op that computes arrays for each user; its first inputs are the fields of `Comparisons`."""

    __props__ = ()
    source = Path(__file__).with_name("body.c")

    def c_compile_args(self, **kwargs: object) -> list[str]:
        """Return flags of the compiler, with one for vectorised sums, which need no OpenMP library."""
        return [*super().c_compile_args(**kwargs), "-fopenmp-simd"]

    def c_sizes(self, arrays: Sequence[str], pointers: Sequence[str]) -> str:
        """Return C declarations of the numbers of users, comparisons and entries of n x n matrices."""
        users = f"PyArray_DIM({arrays[0]}, 0) - 1"
        return (
            f"const npy_intp n_users = {users}, n_pairs = PyArray_DIM({arrays[3]}, 0);\n"
            f"npy_intp n_entries = 0;\n"
            f"for (npy_intp u = 0; u < n_users; u++)\n"
            f"n_entries += ({pointers[0]}[u + 1] - {pointers[0]}[u]) * ({pointers[0]}[u + 1] - {pointers[0]}[u]);\n"
            f"const pymc_ep_comparisons given = {{n_users, {', '.join(pointers[:_N_FIELDS])}}};"
        )


class PriorFactors(_UserOp):
    """Op of `pymc_ep.models.preferences.kernel.prior_factors`.

    Inputs are the fields of `Comparisons`, V, K and s2. Outputs are the Cholesky factors, and the first user whose
    covariance is not positive definite, or -1. Factors from this user on are undefined.
    """

    types = (*_COMPARISONS, MATRIX, MATRIX, NUMBER)
    outputs = (FLAT, ("int64", 0))

    def evaluate(self, inputs: Sequence[np.ndarray]) -> Sequence[np.ndarray]:
        """Return the factors by the NumPy body."""
        factors, kernel, scale = inputs[_N_FIELDS:]
        lower, failed = body.prior_factors(Comparisons(*inputs[:_N_FIELDS]), factors, kernel, float(scale))
        return [lower, np.array(failed)]

    def c_sizes(self, arrays: Sequence[str], pointers: Sequence[str]) -> str:
        """Return C declarations of the sizes of comparisons, and of the numbers of items of K and columns of V."""
        of_prior = f"const npy_intp n_items = PyArray_DIM({arrays[6]}, 0), width = PyArray_DIM({arrays[5]}, 1);"
        return f"{super().c_sizes(arrays, pointers)}\n{of_prior}"

    def c_shapes(self) -> Sequence[str]:
        """Return C expressions of the shapes of the two outputs: Cholesky factors and user."""
        return ["n_entries", ""]

    def c_call(self, inputs: Sequence[str], outputs: Sequence[str], fail: str) -> str:
        """Return the C statement that runs the body."""
        factors, kernel, scale = inputs[_N_FIELDS:]
        arguments = f"n_items, width, {factors}, {kernel}, *{scale}, {', '.join(outputs)}"
        return _allocating(f"pymc_ep_prior_factors(&given, {arguments})", fail)


class DifferenceMoments(_UserOp):
    """Op of `pymc_ep.models.preferences.kernel.difference_moments`.

    Inputs are the fields of `Comparisons`, L, prior means, shifts and precisions; outputs the fields of `Differences`.
    """

    types = (*_COMPARISONS, *(FLAT,) * 4)
    outputs = (FLAT,) * 4

    def evaluate(self, inputs: Sequence[np.ndarray]) -> Sequence[np.ndarray]:
        """Return the posterior by the NumPy body."""
        return body.difference_moments(Comparisons(*inputs[:_N_FIELDS]), *inputs[_N_FIELDS:])

    def c_shapes(self) -> Sequence[str]:
        """Return C expressions of the shapes of the fields of `Differences`."""
        return ["n_pairs", "n_pairs", "n_users", "n_entries"]

    def c_call(self, inputs: Sequence[str], outputs: Sequence[str], fail: str) -> str:
        """Return the C statement that runs the body."""
        return _allocating(f"pymc_ep_difference_moments(&given, {', '.join([*inputs[_N_FIELDS:], *outputs])})", fail)


class DifferenceMeans(_UserOp):
    """Op of `pymc_ep.models.preferences.kernel.difference_means`.

    Inputs are the fields of `Comparisons`, W^T, prior means, shifts and precisions; the output is the posterior means.
    """

    types = (*_COMPARISONS, *(FLAT,) * 4)
    outputs = (FLAT,)

    def evaluate(self, inputs: Sequence[np.ndarray]) -> Sequence[np.ndarray]:
        """Return the means by the NumPy body."""
        return [body.difference_means(Comparisons(*inputs[:_N_FIELDS]), *inputs[_N_FIELDS:])]

    def c_shapes(self) -> Sequence[str]:
        """Return the C expression of the shape of the means."""
        return ["n_pairs"]

    def c_call(self, inputs: Sequence[str], outputs: Sequence[str], fail: str) -> str:
        """Return the C statement that runs the body."""
        return _allocating(f"pymc_ep_difference_means(&given, {', '.join([*inputs[_N_FIELDS:], *outputs])})", fail)


class PrecisionLosses(_UserOp):
    """Op of `pymc_ep.models.preferences.kernel.precision_losses`.

    Inputs are the fields of `Comparisons`, W^T and precisions; the output is the matrices H - H cov(f | factors) H.
    """

    types = (*_COMPARISONS, *(FLAT,) * 2)
    outputs = (FLAT,)

    def evaluate(self, inputs: Sequence[np.ndarray]) -> Sequence[np.ndarray]:
        """Return the matrices by the NumPy body."""
        return [body.precision_losses(Comparisons(*inputs[:_N_FIELDS]), *inputs[_N_FIELDS:])]

    def c_shapes(self) -> Sequence[str]:
        """Return the C expression of the shape of all matrices, one after the other."""
        return ["n_entries"]

    def c_call(self, inputs: Sequence[str], outputs: Sequence[str], fail: str) -> str:
        """Return the C statement that runs the body."""
        return _allocating(f"pymc_ep_precision_losses(&given, {', '.join([*inputs[_N_FIELDS:], *outputs])})", fail)


def _allocating(call: str, fail: str) -> str:
    """Return the C statement that makes `call`, and raises MemoryError where the call returns nonzero."""
    return f"if ({call}) {{ PyErr_NoMemory(); {fail} }}"
