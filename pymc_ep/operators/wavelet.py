"""Orthonormal wavelet transforms of an image."""

from collections.abc import Sequence
from functools import cached_property
from importlib import import_module
from math import prod
from operator import index
from types import ModuleType
from typing import TYPE_CHECKING, Any

import numpy as np
import scipy.sparse as sp
from numpy.typing import ArrayLike

from pymc_ep.exceptions import InvalidDataError
from pymc_ep.operators.base import MATRIX_LIMIT, LinearMap, checked_shape

if TYPE_CHECKING:
    import pywt

__all__ = ["Wavelet2D"]

_BLOCK = 16
"""Number of rows that are transposed at a time: two cache lines, so that columns a power of two apart do not evict each
other."""
_FEW = 2**15
"""Largest number of pixels for the NumPy body. The Numba body takes half of its time, a tenth from 512 x 512 on, but a
few seconds to compile at first, more than it saves in a fit of a small image."""

Filters = tuple[sp.csr_array, sp.csr_array]
"""Matrices R and C for the columns and the rows of an image X, which they take to R X C'."""


class Wavelet2D(LinearMap):
    """Coefficients of an image in an orthonormal wavelet basis, periodic at the border.

    Parameters
    ----------
    shape : (int, int)
        Rows and columns of the image; both must be multiples of ``2**levels``.
    wavelet : str or pywt.Wavelet
        An orthonormal one: ``"haar"``, ``"db2"``, ``"sym4"``, ``"coif1"`` and others of these families.
    levels : int
        Number of times that the low-pass image is halved; at least 1.
    scaling : bool
        True if the output contains the scaling coefficients, the low-pass image that remains after all levels. Without
        them a potential on the output leaves the prior of that low-pass image flat.
    shift : (int, int)
        Rows and columns by which the image is moved up and to the left, cyclically, before the transform.

    Attributes
    ----------
    groups : ndarray of int, (J,)
        Level of each coefficient, 0 the finest; scaling coefficients, if any, form the last group, `levels`.

    Notes
    -----
    The output is flat: level by level, the finest first; within a level the horizontal, vertical and diagonal details
    as in `pywt.dwt2` with mode "periodization", each in C order; the scaling coefficients last. The matrix W of the map
    has W W' = I, so that the adjoint is the inverse transform; scaling coefficients that are left out count as zero.

    In NumPy a level is two products with sparse matrices, of whole rows at a time: 0.38 ms for five levels of a
    256 x 256 image with db2, where PyWavelets, which filters the columns one by one, needs 0.9 ms. Images of more than
    2^15 pixels are transformed by Numba, which takes at most half of the time.
    """

    def __init__(
        self,
        shape: Sequence[int],
        wavelet: "str | pywt.Wavelet",
        levels: int,
        *,
        scaling: bool = False,
        shift: Sequence[int] = (0, 0),
    ) -> None:
        shape = checked_shape(shape, "Wavelet2D", sides=2)
        self.wavelet = _orthonormal_wavelet(wavelet)
        self.levels = _checked_levels(shape, levels)
        self.scaling = bool(scaling)
        self.shift = _checked_shift(shift)
        self.band_shapes = tuple((shape[0] >> level, shape[1] >> level) for level in range(1, self.levels + 1))
        sizes = [3 * prod(band) for band in self.band_shapes]
        if scaling:
            sizes.append(prod(self.band_shapes[-1]))
        groups = np.repeat(np.arange(len(sizes)), sizes)
        super().__init__(shape, (sum(sizes),), groups=groups, orthonormal=True)
        self.period = 2**self.levels

    def translated(self, shift: Sequence[int]) -> "Wavelet2D":
        """Return the transform with `shift` in place of its own."""
        return Wavelet2D(self.input_shape, self.wavelet, self.levels, scaling=self.scaling, shift=shift)

    def bands(self, y: Any) -> list[tuple[Any, ...]]:
        """Return coefficients as a list of tuples of images, one for each level, the finest first.

        Each is (horizontal, vertical, diagonal). With `scaling` the list ends with the tuple (scaling coefficients,).

        Parameters
        ----------
        y : array, (J,)
            NumPy, JAX or symbolic.
        """
        out, start = [], 0
        for shape, count in [(s, 3) for s in self.band_shapes] + [(self.band_shapes[-1], 1)] * self.scaling:
            size = prod(shape)
            out.append(tuple(y[start + i * size : start + (i + 1) * size].reshape(shape) for i in range(count)))
            start += count * size
        return out

    def matrix(self) -> sp.csr_array | None:
        """Return the matrix (J, N); None above 2^24 non-zeros, which long filters soon reach."""
        pairs = [pair for level in self._factors() for pair in level]
        if sum(rows.nnz * columns.nnz for rows, columns in pairs) > MATRIX_LIMIT:
            return None
        # A band is R X C^T, which is kron(R, C) x in C order.
        return sp.csr_array(sp.vstack([sp.kron(*pair, format="csr") for pair in pairs], format="csr"))

    def squared_adjoint(self, y: ArrayLike) -> np.ndarray:
        """Return sum_j W_ji^2 y_j, an image, for y of `output_shape`.

        Each band of an image X is R X C'. The part Y of y in that band adds (R^2)' Y C^2 to the result, with
        elementwise squares. This takes about 3 F products for each pixel and level, for filters of F taps.
        """
        out = np.zeros(self.input_shape)
        for images, pairs in zip(self.bands(self.T._checked(y)), self._squares):
            for image, (rows, columns) in zip(images, pairs):
                out += rows @ (image @ columns)
        return out

    @cached_property
    def _squares(self) -> list[list[Filters]]:
        return [[(r.power(2).T.tocsr(), c.power(2)) for r, c in pairs] for pairs in self._factors()]

    def _factors(self) -> list[list[Filters]]:
        """Return, in the structure of `bands`, the matrices R and C of each band, which is R X C' for an image X."""
        # With low-pass L_l and high-pass H_l of level l: H_l L_{l-1} ... L_1 for details, L_l ... L_1 for what remains.
        low = [sp.eye_array(side, format="csr") for side in self.input_shape]
        factors: list[list[Filters]] = []
        for pair, _ in self._steps:
            halves = [(step[: step.shape[0] // 2], step[step.shape[0] // 2 :]) for step in pair]
            high = [detail @ previous for (_, detail), previous in zip(halves, low)]
            low = [smooth @ previous for (smooth, _), previous in zip(halves, low)]
            factors.append([(high[0], low[1]), (low[0], high[1]), (high[0], high[1])])
        if self.scaling:
            factors.append([(low[0], low[1])])
        return factors

    @cached_property
    def _steps(self) -> list[tuple[Filters, Filters]]:
        """For each level the matrices (R, C) of one step, with low-pass rows first, and their transposes."""
        steps = []
        for level in range(self.levels):
            pair = [_filter_matrix(side >> level, self.wavelet) for side in self.input_shape]
            if level == 0:
                pair = [step @ _moved(side, by) for step, side, by in zip(pair, self.input_shape, self.shift)]
            steps.append(((pair[0], pair[1]), (pair[0].T.tocsr(), pair[1].T.tocsr())))
        return steps

    @property
    def _fused(self) -> bool:
        """Whether the Numba body transforms the image."""
        return prod(self.input_shape) > _FEW

    @cached_property
    def _taps(self) -> np.ndarray:
        """Low-pass and high-pass filter, (2, F), reversed for the Numba body."""
        # Reversed, g[m] = h[F - 1 - m], so that output k is sum_m g[m] x[2k + m + 1 - F/2].
        return np.array([self.wavelet.dec_lo[::-1], self.wavelet.dec_hi[::-1]])

    def _shift_at(self, level: int) -> tuple[int, int]:
        """Return the shift at a level, counted from 0: only the given image, at level 0, is moved."""
        return self.shift if level == 0 else (0, 0)

    def _forward(self, x: np.ndarray) -> np.ndarray:
        out = np.empty(self.output_shape)
        bands = self.bands(out)
        for level, images in enumerate(bands[: self.levels]):
            if self._fused:
                low = np.empty(images[0].shape)
                _body().analyse(x, self._taps, self._shift_at(level), low, *images)
            else:
                low, *details = _quarters(_along_both(self._steps[level][0], x))
                for detail, values in zip(details, images):
                    values[...] = detail
            x = low
        if self.scaling:
            bands[-1][0][...] = x
        return out

    def _adjoint(self, y: np.ndarray) -> np.ndarray:
        bands = self.bands(y)
        low = bands.pop()[0] if self.scaling else np.zeros(self.band_shapes[-1])
        for level, details in reversed(list(enumerate(bands))):
            image = np.empty([2 * side for side in details[0].shape])
            if self._fused:
                _body().synthesise(low, *details, self._taps, self._shift_at(level), image)
                low = image
                continue
            for quarter, values in zip(_quarters(image), (low, *details)):
                quarter[...] = values
            low = _along_both(self._steps[level][1], image)
        return low

    def _rank(self) -> int:
        return self.output_shape[0]


def _body() -> ModuleType:
    return import_module("pymc_ep.operators.wavelet_numba")


def _along_both(filters: Filters, image: np.ndarray) -> np.ndarray:
    """Return R X C' for filter matrices R and C and an image X."""
    rows, columns = filters
    return _transposed(columns @ _transposed(rows @ image))


def _transposed(image: np.ndarray) -> np.ndarray:
    """Return a transposed copy in C order."""
    out = np.empty(image.shape[::-1])
    for start in range(0, len(image), _BLOCK):
        out[:, start : start + _BLOCK] = image[start : start + _BLOCK].T
    return out


def _quarters(image: np.ndarray) -> list[np.ndarray]:
    """Return views of a transformed image: the low-pass quarter, the horizontal, vertical and diagonal details."""
    half, middle = (side // 2 for side in image.shape)
    return [image[:half, :middle], image[half:, :middle], image[:half, middle:], image[half:, middle:]]


def _moved(n: int, by: int) -> sp.csr_array:
    """Return the matrix, (n, n), that moves a periodic signal of n elements to the left by `by` elements."""
    # (M x)_i = x_{i + by}, indices modulo n.
    return sp.csr_array((np.ones(n), (np.arange(n) + by) % n, np.arange(n + 1)), shape=(n, n))


def _filter_matrix(n: int, wavelet: "pywt.Wavelet") -> sp.csr_array:
    """Return the matrix, (n, n), of one step on a periodic signal x, (n,); its first n/2 rows are the low-pass half.

    Output k of a half is sum_m h[m] x[2k + F/2 - m] with its filter h of F taps, indices modulo n: PyWavelets'
    alignment.
    """
    length = wavelet.dec_len
    rows = np.repeat(np.arange(n // 2), length)
    columns = (2 * np.arange(n // 2)[:, None] + length // 2 - np.arange(length)).ravel() % n
    taps = np.concatenate([np.tile(taps, n // 2) for taps in (wavelet.dec_lo, wavelet.dec_hi)])
    places = np.concatenate([rows, rows + n // 2]), np.tile(columns, 2)
    return sp.coo_array((taps, places), shape=(n, n)).tocsr()


def _orthonormal_wavelet(wavelet: "str | pywt.Wavelet") -> "pywt.Wavelet":
    import pywt

    if not isinstance(wavelet, pywt.Wavelet):
        if wavelet not in pywt.wavelist(kind="discrete"):
            raise InvalidDataError(
                f"Wavelet2D: there is no discrete wavelet {wavelet!r}; orthonormal ones are {_orthonormal_names()}."
            )
        wavelet = pywt.Wavelet(wavelet)
    taps = np.array(wavelet.dec_lo)
    # Orthonormal: sum_m h[m] h[m + 2 j] is 1 for j = 0 and 0 for all other j.
    overlaps = [taps[: len(taps) - shift] @ taps[shift:] for shift in range(0, len(taps), 2)]
    # The discrete Meyer wavelet is flagged orthogonal, but it is cut to finite length: its overlaps are off by 0.002.
    if not wavelet.orthogonal or not np.allclose(overlaps, np.eye(1, len(overlaps))[0], rtol=0.0, atol=1e-10):
        raise InvalidDataError(
            f"Wavelet2D: the wavelet {wavelet.name!r} is not orthonormal; take one of {_orthonormal_names()}."
        )
    return wavelet


def _orthonormal_names() -> str:
    import pywt

    by_family = {name: pywt.wavelist(name, kind="discrete") for name in ("db", "sym", "coif")}
    return ", ".join(["haar", *(f"{names[0]}, ..., {names[-1]}" for names in by_family.values())])


def _checked_shift(shift: Sequence[int]) -> tuple[int, int]:
    try:
        rows, columns = map(index, shift)
    except (TypeError, ValueError):
        raise InvalidDataError(f"Wavelet2D: shift must be two integers, not {shift!r}.") from None
    return rows, columns


def _checked_levels(shape: tuple[int, ...], levels: int) -> int:
    # A side can be halved as often as it has trailing zero bits.
    most = min((side & -side).bit_length() - 1 for side in shape)
    try:
        wanted = 0 if isinstance(levels, bool) else index(levels)
    except TypeError:
        wanted = 0
    if 1 <= wanted <= most:
        return wanted
    if wanted < 1:
        raise InvalidDataError(f"Wavelet2D: levels must be an integer of at least 1, not {levels!r}.")
    step = 2**wanted
    larger = tuple(-(-side // step) * step for side in shape)
    widths = tuple((0, new - old) for new, old in zip(larger, shape))
    cure = f"levels={most} is the most that works here" if most else "no level works here, since a side is odd"
    raise InvalidDataError(
        f"Wavelet2D: {wanted} levels need sides that are multiples of {step}, and the shape is {shape}; {cure}, or pad "
        f"the image by np.pad(image, {widths}, mode='symmetric') to shape {larger}, or cut it."
    )
