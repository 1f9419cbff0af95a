"""First differences of an image: the operator of anisotropic total variation."""

from collections.abc import Callable, Sequence
from importlib import import_module
from math import prod

import numpy as np
import scipy.sparse as sp

from pymc_ep.exceptions import InvalidDataError
from pymc_ep.operators.base import LinearMap, checked_shape

__all__ = ["Gradient2D"]

_FEW = 2**15
"""Largest number of pixels for which `Gradient2D.normal` uses NumPy. The Numba body is several times as fast, but takes
a second to compile at first, more than it saves in a fit of a small image."""


class Gradient2D(LinearMap):
    """Horizontal and vertical first differences of an image: x[i, j+1] - x[i, j] and x[i+1, j] - x[i, j].

    Parameters
    ----------
    shape : (int, int)
        Rows r and columns c of the image; not (1, 1), which has no differences.
    boundary : {"reflect", "periodic"}
        ``"reflect"``: differences across the border, zero for an image that is mirrored there, are left out. The
        output is flat, (r (c-1) + (r-1) c,): the horizontal differences, (r, c-1), then the vertical ones, (r-1, c),
        each in C order. ``"periodic"``: the last column is followed by the first and the last row by the first. The
        output is (2, r, c): the horizontal differences, then the vertical ones; a side of length 1 has none, and the
        output is then (1, r, c).

    Notes
    -----
    Only constant images have differences of zero: the rank is r c - 1.
    """

    few_entries = True

    def __init__(self, shape: Sequence[int], boundary: str = "reflect") -> None:
        r, c = rows, columns = checked_shape(shape, "Gradient2D", sides=2)
        if boundary not in ("reflect", "periodic"):
            raise InvalidDataError(f"Gradient2D: boundary must be 'reflect' or 'periodic', not {boundary!r}.")
        if rows == columns == 1:
            raise InvalidDataError("Gradient2D: an image of shape (1, 1) has no differences; give it more pixels.")
        self.boundary = boundary
        reflect = boundary == "reflect"
        super().__init__((r, c), (r * (c - 1) + (r - 1) * c,) if reflect else ((r > 1) + (c > 1), r, c))

    @property
    def axes(self) -> tuple[int, ...]:
        """Axes along which there are differences, in the order of the output: 1 is horizontal."""
        return tuple(axis for axis in (1, 0) if self.input_shape[axis] > 1)

    def matrix(self) -> sp.csr_array:
        """Return the matrix (J, r c), with two non-zeros in each row."""
        blocks = []
        for axis in self.axes:
            n = self.input_shape[axis]
            difference = sp.diags_array([-np.ones(n), np.ones(n - 1)], offsets=[0, 1], shape=(n, n), format="lil")
            if self.boundary == "reflect":
                difference = difference[:-1]
            else:
                difference[n - 1, 0] += 1.0
            # X D^T is kron(I, D) x in C order, and D X is kron(D, I) x.
            other = sp.eye_array(self.input_shape[1 - axis])
            blocks.append(sp.kron(*((other, difference) if axis == 1 else (difference, other)), format="csr"))
        return sp.csr_array(sp.vstack(blocks, format="csr"))

    def normal(self, weights: np.ndarray) -> Callable[[np.ndarray, np.ndarray], None]:
        """Return a function ``add(x, out)`` that adds D' diag(weights) D x to `out`, (r, c), for this map D."""
        if prod(self.input_shape) <= _FEW:
            return super().normal(weights)
        body, views = import_module("pymc_ep.operators.gradient_numba").normal, dict.fromkeys((1, 0), np.zeros((0, 0)))
        views |= dict(zip(self.axes, self._parts(np.ascontiguousarray(weights))))

        return lambda x, out: body(self._checked(x), views[1], views[0], out)

    def _forward(self, x: np.ndarray) -> np.ndarray:
        out = np.empty(self.output_shape)
        for d, x_axis in self._views(out, x):
            np.subtract(x_axis[:, 1:], x_axis[:, :-1], out=d[:, : x_axis.shape[1] - 1])
            if self.boundary == "periodic":
                np.subtract(x_axis[:, 0], x_axis[:, -1], out=d[:, -1])
        return out

    def _adjoint(self, y: np.ndarray) -> np.ndarray:
        out = np.zeros(self.input_shape)
        for d, x_axis in self._views(y, out):
            # (D^T d)_j = d_{j-1} - d_j, with d_{-1} = d_{n-1} if periodic, else with d = 0 beyond the ends.
            inner = d[:, : x_axis.shape[1] - 1]
            x_axis[:, 1:] += inner
            x_axis[:, :-1] -= inner
            if self.boundary == "periodic":
                x_axis[:, 0] += d[:, -1]
                x_axis[:, -1] -= d[:, -1]
        return out

    def _views(self, differences: np.ndarray, image: np.ndarray) -> list[tuple[np.ndarray, np.ndarray]]:
        """Return, for each of `axes`, views of its differences and of the image, transposed to have that axis last."""
        by_axis = zip(self.axes, self._parts(differences))
        return [(view, image) if axis == 1 else (view.T, image.T) for axis, view in by_axis]

    def _parts(self, differences: np.ndarray) -> list[np.ndarray]:
        """Return the differences along each of `axes`, as two-dimensional arrays."""
        if self.boundary == "periodic":
            return list(differences)
        rows, columns = self.input_shape
        split = rows * (columns - 1)
        by_axis = {1: differences[:split].reshape(rows, -1), 0: differences[split:].reshape(-1, columns)}
        return [by_axis[axis] for axis in self.axes]

    def _rank(self) -> int:
        return self.input_shape[0] * self.input_shape[1] - 1
