"""Blurring: the convolution of an image with a kernel."""

from collections.abc import Callable, Sequence
from functools import cached_property
from math import prod
from typing import Any

import numpy as np
import scipy
import scipy.sparse as sp
from numpy.typing import ArrayLike
from scipy import fft

from pymc_ep.exceptions import InvalidDataError
from pymc_ep.operators.base import MATRIX_LIMIT, LinearMap, checked_shape

__all__ = ["Convolution2D"]

NDIMAGE_MODES = {"periodic": "wrap", "reflect": "reflect", "constant": "constant"}
PAD_MODES: dict[str, Any] = {"periodic": "wrap", "reflect": "symmetric", "constant": "constant"}

DIRECT_TAPS = 25
"""Largest number of taps, non-zero elements of the kernel, that are summed one by one: 25 take as long as two Fourier
transforms, from 256 x 256 pixels on."""


class Convolution2D(LinearMap):
    """Convolution of an image with a kernel; the output has the shape of the image.

    y[i, j] = sum_{s, t} kernel[s, t] x[i + a - s, j + b - t], for the image x. The centre of the kernel is (a, b) =
    (k // 2, m // 2), as in `scipy.ndimage.convolve`: the middle of an odd side, the second of the two middle elements
    of an even side.

    Parameters
    ----------
    shape : (int, int)
        Rows and columns of the image.
    kernel : array, (k, m)
        Finite, with no side longer than the image's. The kernel is used as given, without normalisation.
    boundary : {"periodic", "reflect", "constant"}
        Values beyond the border: the image repeated, the image mirrored about the edges of its outermost pixels
        (b a | a b c | c b), or zeros.

    Notes
    -----
    A kernel of at most 25 non-zero elements is summed element by element, a larger one by fast Fourier transforms. The
    rank of a periodic convolution is the number of frequencies at which the kernel's Fourier transform is above
    rounding. A smooth kernel removes high frequencies, so that its rank is far below the number of pixels.
    """

    few_entries = True

    def __init__(self, shape: Sequence[int], kernel: ArrayLike, boundary: str = "periodic") -> None:
        shape = checked_shape(shape, "Convolution2D", sides=2)
        if boundary not in NDIMAGE_MODES:
            raise InvalidDataError(
                f"Convolution2D: boundary must be 'periodic', 'reflect' or 'constant', not {boundary!r}."
            )
        super().__init__(shape, shape)
        self.kernel = _checked_kernel(kernel, shape)
        self.boundary = boundary
        self.direct = np.count_nonzero(self.kernel) <= DIRECT_TAPS

    @property
    def padding(self) -> tuple[tuple[int, int], tuple[int, int]]:
        """Numbers of pixels beyond the border that the outermost outputs need: (before, after) for each axis."""
        (k, m), (a, b) = self.kernel.shape, self._centre
        return (k - 1 - a, a), (m - 1 - b, b)

    @cached_property
    def cyclic(self) -> bool:
        """True if the boundary is periodic and the Fourier transforms are taken of the image without padding.

        An image with a large prime factor in a side is padded: the transform is then several times faster.
        """
        return self.boundary == "periodic" and all(fft.next_fast_len(n, real=True) == n for n in self.input_shape)

    @cached_property
    def fft_shape(self) -> tuple[int, ...]:
        """Shape of the arrays that are Fourier transformed: the image's if cyclic, else at least the padded image's."""
        if self.cyclic:
            return self.input_shape
        sides = (n + k - 1 for n, k in zip(self.input_shape, self.kernel.shape))
        return tuple(fft.next_fast_len(side, real=True) for side in sides)

    @cached_property
    def spectrum(self) -> np.ndarray:
        """Fourier transform, by `rfft2`, of the kernel padded to `fft_shape`; if cyclic, its centre is the origin."""
        padded = np.zeros(self.fft_shape)
        padded[: self.kernel.shape[0], : self.kernel.shape[1]] = self.kernel
        # With k'[s - a, t - b] = kernel[s, t], indices modulo the sides, y is the cyclic convolution of k' and x.
        if self.cyclic:
            padded = np.roll(padded, [-side for side in self._centre], axis=(0, 1))
        return fft.rfft2(padded)

    def matrix(self) -> sp.csr_array | None:
        """Return the matrix (N, N); None above 2^24 non-zeros."""
        size = prod(self.input_shape)
        taps = np.argwhere(self.kernel)
        if len(taps) * size > MATRIX_LIMIT:
            return None
        (k, m), (r, c) = self.kernel.shape, self.input_shape
        # Index in the image of each element of the padded image; -1 for zeros beyond the border.
        row_of, column_of = (self._pad_indices(axis) for axis in (0, 1))
        output = np.arange(size)
        rows, columns, values = [], [], []
        # Padding by k - 1 - a rows puts x[i + a - s] of y[i] at row i + k - 1 - s, and columns alike.
        for s, t in taps:
            from_row, from_column = row_of[k - 1 - s :][:r], column_of[m - 1 - t :][:c]
            inside = ((from_row[:, None] >= 0) & (from_column >= 0)).ravel()
            rows.append(output[inside])
            columns.append((from_row[:, None] * c + from_column).ravel()[inside])
            values.append(np.full(len(rows[-1]), self.kernel[s, t]))
        entries = tuple(
            np.concatenate(arrays) if arrays else np.empty(0, dtype=int) for arrays in (values, rows, columns)
        )
        return sp.coo_array((entries[0], entries[1:]), shape=(size, size), dtype=float).tocsr()

    def function_of_normal(
        self, weights: np.ndarray, function: Callable[[Any], Any]
    ) -> Callable[[np.ndarray], np.ndarray]:
        """Return x -> f(w K'K) x for f = `function`, an approximation that is accurate for similar weights.

        w is the mean of the weights, and K the convolution with a periodic boundary.
        """
        # K^T K = F^-1 |k|^2 F with the Fourier transform F and transfer k, so that f(w K^T K) = F^-1 f(w |k|^2) F.
        values = function(np.mean(weights) * np.abs(self._transfer) ** 2)
        return lambda x: fft.irfft2(fft.rfft2(x) * values, self.input_shape)

    @cached_property
    def _transfer(self) -> np.ndarray:
        """Fourier transform, by `rfft2`, of the kernel padded to the image's shape, with its centre at the origin."""
        padded = np.zeros(self.input_shape)
        padded[: self.kernel.shape[0], : self.kernel.shape[1]] = self.kernel
        return fft.rfft2(np.roll(padded, [-side for side in self._centre], axis=(0, 1)))

    @property
    def _centre(self) -> tuple[int, int]:
        return self.kernel.shape[0] // 2, self.kernel.shape[1] // 2

    def _pad_indices(self, axis: int) -> np.ndarray:
        indices = np.arange(self.input_shape[axis])
        outside: dict[str, Any] = {"constant_values": -1} if self.boundary == "constant" else {}
        return np.pad(indices, self.padding[axis], mode=PAD_MODES[self.boundary], **outside)

    def _forward(self, x: np.ndarray) -> np.ndarray:
        if self.direct:
            return scipy.ndimage.convolve(x, self.kernel, mode=NDIMAGE_MODES[self.boundary])
        if not self.cyclic:
            x = np.pad(x, self.padding, mode=PAD_MODES[self.boundary])
        out = fft.irfft2(fft.rfft2(x, self.fft_shape) * self.spectrum, self.fft_shape)
        if self.cyclic:
            return out
        # Outputs affected by the wrap-around of the transforms come first; those after them see the whole kernel.
        (k, m), (r, c) = self.kernel.shape, self.input_shape
        return out[k - 1 :][:r, m - 1 :][:, :c]

    def _adjoint(self, y: np.ndarray) -> np.ndarray:
        # (A^T y)[i, j] = sum_{s, t} kernel[s, t] y[i - a + s, j - b + t], with y continued by zeros or periodically.
        if self.direct and self.boundary != "reflect":
            return scipy.ndimage.correlate(y, self.kernel, mode=NDIMAGE_MODES[self.boundary])
        # A = C P, with P the padding: A^T = P^T C^T, where C^T is the correlation with y continued by zeros.
        if self.direct:
            return self._fold(scipy.ndimage.correlate(np.pad(y, self.padding), self.kernel, mode="constant"))
        if not self.cyclic:
            (k, m), (r, c) = self.kernel.shape, self.input_shape
            # C leaves out the first k - 1 rows and m - 1 columns, so that C^T begins with zeros there.
            placed = np.zeros(self.fft_shape)
            placed[k - 1 :, m - 1 :][:r, :c] = y
            y = placed
        out = fft.irfft2(fft.rfft2(y) * self.spectrum.conj(), self.fft_shape)
        return out if self.cyclic else self._fold(out)

    def _fold(self, padded: np.ndarray) -> np.ndarray:
        """Return the adjoint of padding an image, applied to `padded`; elements past the padded image are ignored.

        `padded` is overwritten.
        """
        for axis, (before, after) in enumerate(self.padding):
            n = self.input_shape[axis]
            along = np.moveaxis(padded, axis, 0)
            image = along[before : before + n]
            head, tail = along[:before], along[before + n :][:after]
            # Transpose of x[-1 - i] = x[i] and x[n + i] = x[n - 1 - i], or, if periodic, of x[i] = x[i modulo n].
            if self.boundary == "reflect":
                image[:before] += head[::-1]
                image[n - after :] += tail[::-1]
            elif self.boundary == "periodic":
                image[n - before :] += head
                image[:after] += tail
            padded = np.moveaxis(image, 0, axis)
        return padded

    def _rank(self) -> int | None:
        if self.boundary != "periodic":
            return super()._rank()
        # The matrix is normal with the spectrum as eigenvalues; the absolute values of these are its singular values.
        sizes = np.abs(fft.fft2(self.kernel, self.input_shape))
        return int(np.count_nonzero(sizes > sizes.max() * sizes.size * np.finfo(float).eps))


def _checked_kernel(kernel: ArrayLike, shape: tuple[int, ...]) -> np.ndarray:
    """Return a copy of the kernel as float64; raise if it is not valid."""
    given = np.asarray(kernel)
    if given.dtype.kind not in "biuf":
        raise InvalidDataError(f"Convolution2D: the kernel must be an array of real numbers, not {kernel!r}.")
    values = np.array(given, dtype=np.float64)
    if values.ndim != 2 or not values.size:
        raise InvalidDataError(f"Convolution2D: the kernel must be a matrix, not an array of shape {values.shape}.")
    if any(k > n for k, n in zip(values.shape, shape)):
        raise InvalidDataError(
            f"Convolution2D: the kernel, of shape {values.shape}, is larger than the image, of shape {shape}; cut the "
            "kernel where it is negligible."
        )
    bad = np.argwhere(~np.isfinite(values))
    if len(bad):
        where = tuple(bad[0].tolist())
        raise InvalidDataError(f"Convolution2D: the kernel is {values[where]} at {where}; all taps must be finite.")
    return values
