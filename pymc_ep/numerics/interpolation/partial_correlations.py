"""Coordinates of a covariance's Cholesky factor in which a prior on scales and correlations is smooth.

Row i of the factor L has a standard deviation s_i and canonical partial correlations z_ij = tanh(y_ij), j < i
(Lewandowski, Kurowicka and Joe 2009): with q_ij = sqrt(1 - z_ij^2),

    L_ij = s_i z_ij prod_{k<j} q_ik,    L_ii = s_i prod_{k<i} q_ik.

As a function of the entries of L the density would be a funnel, since all entries of a row shrink with its scale.
"""

import numpy as np

__all__ = ["PartialCorrelations"]

_LARGEST = 1.0 - 1e-12
"""Largest modulus of a partial correlation in arctanh, which is infinite at one: y is then 14 at most."""


class PartialCorrelations:
    """The map from coordinates (y_ij, log s_i) to PyMC's unconstrained values, L_ij and log L_ii.

    Coordinates and values are arrays of n (n + 1) / 2 elements: the packed rows of an (n, n) triangle. log s_i is in
    the place of log L_ii.

    Parameters
    ----------
    size : int
        n (n + 1) / 2.
    """

    def __init__(self, size: int):
        n = int(np.sqrt(2 * size))
        ends = np.cumsum(np.arange(1, n + 1))
        self._rows = [slice(end - i - 1, end) for i, end in enumerate(ends)]

    def to_values(self, coordinates: np.ndarray) -> np.ndarray:
        """Return PyMC's values, (m, size), for rows of coordinates, (m, size)."""
        out = np.empty_like(coordinates)
        for entries in self._rows:
            y, log_scale = coordinates[:, entries][:, :-1], coordinates[:, entries][:, -1]
            log_rest = _log_rest(y)
            out[:, entries][:, :-1] = np.tanh(y) * np.exp(log_scale[:, None] + log_rest[:, :-1])
            out[:, entries][:, -1] = log_scale + log_rest[:, -1]
        return out

    def from_values(self, values: np.ndarray) -> np.ndarray:
        """Return coordinates, (m, size), for rows of PyMC's values, (m, size)."""
        out = np.empty_like(values, dtype=float)
        for entries in self._rows:
            row = values[:, entries].astype(float)
            row[:, -1] = np.exp(row[:, -1])
            # Euclidean norm of the rest of the row, from each entry on.
            left = np.sqrt(np.cumsum(row[:, ::-1] ** 2, axis=1)[:, ::-1])
            # z_ij = L_ij / sqrt(sum_{k>=j} L_ik^2), as this sum is s_i^2 prod_{k<j} q_ik^2.
            out[:, entries][:, :-1] = np.arctanh(np.clip(row[:, :-1] / left[:, :-1], -_LARGEST, _LARGEST))
            out[:, entries][:, -1] = np.log(left[:, 0])
        return out

    def pull(self, coordinates: np.ndarray, gradient: np.ndarray) -> np.ndarray:
        """Return gradients in the coordinates, (m, size), from gradients in PyMC's values, (m, size)."""
        out = np.empty_like(gradient)
        for entries in self._rows:
            y, log_scale, g = coordinates[:, entries][:, :-1], coordinates[:, entries][:, -1:], gradient[:, entries]
            log_rest = _log_rest(y)
            z, size = np.tanh(y), np.exp(log_scale + log_rest[:, :-1])
            # d L_ij / d y_ij = (1 - z_ij^2) s_i prod_{k<j} q_ik, and d log |L_il| / d y_ij = -z_ij for l > j.
            moved = g[:, :-1] * z * size
            total = moved.sum(axis=1, keepdims=True) + g[:, -1:]
            after = total - np.cumsum(moved, axis=1)
            out[:, entries][:, :-1] = g[:, :-1] * size * (1.0 - z**2) - z * after
            out[:, entries][:, -1:] = total
        return out

    def log_det(self, coordinates: np.ndarray) -> tuple[np.ndarray, np.ndarray]:
        """Return log |d values / d coordinates|, (m,), and its gradient, (m, size), for rows of coordinates."""
        total, gradient = np.zeros(len(coordinates)), np.zeros_like(coordinates)
        for i, entries in enumerate(self._rows):
            y, log_scale = coordinates[:, entries][:, :-1], coordinates[:, entries][:, -1]
            # |d values / d (y_i, log s_i)| = s_i^i prod_{j<i} q_ij^(i - 1 - j) for row i, with q = 1 / cosh y.
            left = i - 1.0 - np.arange(i)
            total += i * log_scale - (left * np.log(np.cosh(y))).sum(axis=1)
            gradient[:, entries][:, :-1], gradient[:, entries][:, -1] = -left * np.tanh(y), i
        return total, gradient


def _log_rest(y: np.ndarray) -> np.ndarray:
    """Return log prod_{k<j} q_k for j = 0, ..., i, (m, i + 1), for rows of y, (m, i), with q_k = 1 / cosh y_k."""
    return np.concatenate([np.zeros((len(y), 1)), -np.cumsum(np.log(np.cosh(y)), axis=1)], axis=1)
