"""Numba bodies of one level of a wavelet transform: every row passes through the cache once."""

import numpy as np

from pymc_ep.jit_numba import jit

__all__ = ["analyse", "synthesise"]

_jit = jit(nogil=True, fastmath={"contract"})


@_jit
def analyse(
    image: np.ndarray,
    taps: np.ndarray,
    shift: tuple[int, int],
    low: np.ndarray,
    horizontal: np.ndarray,
    vertical: np.ndarray,
    diagonal: np.ndarray,
) -> None:
    """Transform an image, (r, c), by one level, and write its low-pass quarter and its three quarters of details.

    Parameters
    ----------
    image : ndarray, (r, c)
    taps : ndarray, (2, F)
        Low-pass and high-pass filter, reversed, of even length.
    shift : (int, int)
        Rows and columns by which the image is first moved up and to the left.
    low, horizontal, vertical, diagonal : ndarray, (r / 2, c / 2)
        The quarters, which are overwritten.
    """
    rows, columns = image.shape
    length = taps.shape[1]
    smooth, detail = np.empty(columns), np.empty(columns)
    even, odd = np.empty((columns + length) // 2), np.empty((columns + length) // 2)
    start = shift[1] + 1 - length // 2
    # Along columns, output row k is sum_m g[m] x[2k + m + shift + 1 - F/2], row indices modulo r.
    for k in range(rows // 2):
        smooth[:], detail[:] = 0.0, 0.0
        for m in range(length):
            values = image[(2 * k + m + shift[0] + 1 - length // 2) % rows]
            for j in range(columns):
                smooth[j] += taps[0, m] * values[j]
                detail[j] += taps[1, m] * values[j]
        _analyse_row(smooth, taps, start, even, odd, low[k], vertical[k])
        _analyse_row(detail, taps, start, even, odd, horizontal[k], diagonal[k])


@_jit
def synthesise(
    low: np.ndarray,
    horizontal: np.ndarray,
    vertical: np.ndarray,
    diagonal: np.ndarray,
    taps: np.ndarray,
    shift: tuple[int, int],
    image: np.ndarray,
) -> None:
    """Write to `image`, (r, c), the adjoint of `analyse` applied to the four quarters, with the same arguments."""
    rows, columns = image.shape
    length = taps.shape[1]
    smooth, detail = np.empty(columns), np.empty(columns)
    even, odd = np.empty((columns + length) // 2), np.empty((columns + length) // 2)
    start = shift[1] + 1 - length // 2
    image[:] = 0.0
    # The transpose adds g_0[m] smooth_k + g_1[m] detail_k to row 2k + m + shift + 1 - F/2, modulo r.
    for k in range(rows // 2):
        _synthesise_row(low[k], vertical[k], taps, start, even, odd, smooth)
        _synthesise_row(horizontal[k], diagonal[k], taps, start, even, odd, detail)
        for m in range(length):
            values = image[(2 * k + m + shift[0] + 1 - length // 2) % rows]
            for j in range(columns):
                values[j] += taps[0, m] * smooth[j] + taps[1, m] * detail[j]


@_jit
def _analyse_row(
    values: np.ndarray,
    taps: np.ndarray,
    start: int,
    even: np.ndarray,
    odd: np.ndarray,
    low: np.ndarray,
    high: np.ndarray,
) -> None:
    """Write the low-pass and high-pass halves of `values`, (c,), a periodic signal that is read from index `start`.

    `even` and `odd` are work arrays, for the elements at even and at odd distances from `start`.
    """
    n, half = len(values), len(low)
    at = start % n
    for k in range(len(even)):
        even[k] = values[at]
        at = at + 1 if at + 1 < n else 0
        odd[k] = values[at]
        at = at + 1 if at + 1 < n else 0
    low[:], high[:] = 0.0, 0.0
    # sum_j g[j] x[start + 2k + j]: even[k + m] is x at j = 2m, odd[k + m] at j = 2m + 1.
    for m in range(taps.shape[1] // 2):
        for k in range(half):
            even_value, odd_value = even[k + m], odd[k + m]
            low[k] += taps[0, 2 * m] * even_value + taps[0, 2 * m + 1] * odd_value
            high[k] += taps[1, 2 * m] * even_value + taps[1, 2 * m + 1] * odd_value


@_jit
def _synthesise_row(
    low: np.ndarray,
    high: np.ndarray,
    taps: np.ndarray,
    start: int,
    even: np.ndarray,
    odd: np.ndarray,
    values: np.ndarray,
) -> None:
    """Write to `values`, (c,), the adjoint of `_analyse_row` applied to both halves, with the same arguments."""
    n, half = len(values), len(low)
    even[:], odd[:] = 0.0, 0.0
    for m in range(taps.shape[1] // 2):
        for k in range(half):
            even[k + m] += taps[0, 2 * m] * low[k] + taps[1, 2 * m] * high[k]
            odd[k + m] += taps[0, 2 * m + 1] * low[k] + taps[1, 2 * m + 1] * high[k]
    # The row is periodic: entries k and k + c/2 of either parity are the same pixel.
    for k in range(half, len(even)):
        even[k % half] += even[k]
        odd[k % half] += odd[k]
    at = start % n
    for k in range(half):
        values[at] = even[k]
        at = at + 1 if at + 1 < n else 0
        values[at] = odd[k]
        at = at + 1 if at + 1 < n else 0
