"""The discrete Fourier transform of an image, in real numbers."""

from collections.abc import Sequence
from functools import cached_property
from math import prod

import numpy as np
import scipy.sparse as sp
from numpy.typing import ArrayLike
from scipy import fft

from pymc_ep.exceptions import InvalidDataError
from pymc_ep.operators.base import MATRIX_LIMIT, LinearMap, checked_shape

__all__ = ["Fourier2D"]

AXES = (1, 0)
"""Order of the axes of the real transforms. The last axis, the rows, is halved: of two conjugate frequencies the one
in the upper rows is kept."""


class Fourier2D(LinearMap):
    """Coefficients of an image in the orthonormal basis of cosines and sines, as magnetic resonance measures them.

    Parameters
    ----------
    shape : (int, int)
        Rows and columns of the image.
    keep : array of bool, `shape`, optional
        True for measured frequencies, in the order of `numpy.fft.fft2`; all by default. Coefficients (a, b) and
        (-a, -b) of a real image are complex conjugates, so one of the two is enough.

    Attributes
    ----------
    frequencies : (ndarray of int, ndarray of int), (J,) each
        Row and column of each output in the array that `numpy.fft.fft2` returns; of two conjugates the first in C
        order.
    sines : ndarray of bool, (J,)
        True for outputs that are imaginary parts.
    weights : ndarray, (J,)
        Factors that multiply the real and imaginary parts of the orthonormal transform, `numpy.fft.fft2` with
        ``norm="ortho"``: sqrt(2), or 1 for frequencies that are their own conjugates.

    Notes
    -----
    The output is flat: the real parts at all kept frequencies in C order, one of each conjugate pair, then the
    imaginary parts at the same ones, each times its weight. Imaginary parts at frequencies that are their own
    conjugates are zero, and left out. The matrix W of the map has W W' = I. If the real and the imaginary part of each
    coefficient of the orthonormal transform have noise of standard deviation s, then the outputs have noise of
    ``s * weights``.
    """

    def __init__(self, shape: Sequence[int], keep: ArrayLike | None = None) -> None:
        shape = checked_shape(shape, "Fourier2D", sides=2)
        kept, place = _checked_frequencies(keep, shape), np.arange(prod(shape)).reshape(shape)
        # F(-a, -b) is the conjugate of F(a, b): of each pair the first in C order is kept.
        kept = (kept | _conjugates(kept)) & (place <= _conjugates(place))
        self_conjugate = place == _conjugates(place)
        real, imaginary = np.nonzero(kept), np.nonzero(kept & ~self_conjugate)
        self.frequencies = np.concatenate([real[0], imaginary[0]]), np.concatenate([real[1], imaginary[1]])
        self.sines = np.repeat([False, True], [len(real[0]), len(imaginary[0])])
        # |x|^2 = sum |F|^2 has both members of a pair, 2 (Re F)^2 + 2 (Im F)^2: hence sqrt(2).
        self.weights = np.where(self_conjugate[self.frequencies], 1.0, np.sqrt(2.0))
        super().__init__(shape, self.sines.shape, orthonormal=True)

    def of_spectrum(self, spectrum: np.ndarray) -> np.ndarray:
        """Return the outputs, (J,), for an image whose Fourier transform is `spectrum`.

        Parameters
        ----------
        spectrum : array of complex, `shape`
            As `numpy.fft.fft2` returns it with ``norm="ortho"``. Only its entries at `frequencies` are used.
        """
        values = spectrum[self.frequencies] * self.weights
        return np.where(self.sines, values.imag, values.real)

    def matrix(self) -> sp.csr_array | None:
        """Return the matrix (J, N), which is dense; None above 2^24 entries."""
        if prod(self.input_shape) * prod(self.output_shape) > MATRIX_LIMIT:
            return None
        # F_ab = N^-1/2 sum_st x_st (cos w - i sin w), with w = 2 pi (a s / r + b t / c) and N = r c.
        along = [np.outer(k, np.arange(side)) / side for k, side in zip(self.frequencies, self.input_shape)]
        angle = 2 * np.pi * (along[0][:, :, None] + along[1][:, None, :]).reshape(len(self.weights), -1)
        waves = np.where(self.sines[:, None], -np.sin(angle), np.cos(angle))
        return sp.csr_array(self.weights[:, None] * waves / prod(self.input_shape) ** 0.5)

    def _forward(self, x: np.ndarray) -> np.ndarray:
        return self.of_spectrum(fft.rfft2(x, axes=AXES, norm="ortho"))

    def _adjoint(self, y: np.ndarray) -> np.ndarray:
        # W W^T = I: W^T y is the image with the outputs y and zero for all frequencies that are not kept.
        (real, imaginary, both, conjugates), shape = self._places, self.input_shape
        spectrum, values = np.zeros((shape[0] // 2 + 1) * shape[1], dtype=complex), y / self.weights
        spectrum.real[real], spectrum.imag[imaginary] = np.split(values, [len(real)])
        spectrum[conjugates] = spectrum[both].conj()
        halved = spectrum.reshape(-1, shape[1])
        return fft.irfft2(halved, s=[shape[axis] for axis in AXES], axes=AXES, norm="ortho")

    @cached_property
    def _places(self) -> tuple[np.ndarray, np.ndarray, np.ndarray, np.ndarray]:
        """Four arrays of flat indices into the upper rows of the spectrum, (r // 2 + 1, c) for an image, (r, c).

        The indices are of real parts, of imaginary parts, of kept frequencies whose conjugates are in the same row, and
        of these conjugates.
        """
        (rows, columns), shape = self.frequencies, self.input_shape
        places = rows * shape[1] + columns
        # Rows that are their own mirror images hold both conjugates of a pair.
        both = -rows % shape[0] == rows
        conjugates = rows[both] * shape[1] + -columns[both] % shape[1]
        return places[~self.sines], places[self.sines], places[both], conjugates

    def _rank(self) -> int:
        return self.output_shape[0]


def _conjugates(of_frequencies: np.ndarray) -> np.ndarray:
    """Return the array whose entry (a, b) is the entry (-a, -b) of `of_frequencies`, indices modulo its sides."""
    return np.roll(of_frequencies[::-1, ::-1], (1, 1), axis=(0, 1))


def _checked_frequencies(keep: ArrayLike | None, shape: tuple[int, ...]) -> np.ndarray:
    if keep is None:
        return np.ones(shape, dtype=bool)
    keep = np.asarray(keep)
    if keep.dtype != bool or keep.shape != shape:
        raise InvalidDataError(
            f"Fourier2D: keep must be an array of bool of shape {shape}, in the order of numpy.fft.fft2, not an array "
            f"of {keep.dtype} of shape {keep.shape}; of a mask with the zero frequency in the middle, take ifftshift."
        )
    if not keep.any():
        raise InvalidDataError("Fourier2D: no frequency is kept; at least one must be measured.")
    return keep
