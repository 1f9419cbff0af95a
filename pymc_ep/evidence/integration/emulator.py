"""A Gaussian process that interpolates a smooth function from its values and exact gradients.

Its covariance adds functions of one coordinate to a function of all (Duvenaud, Nickisch and Rasmussen 2011):

    k(x, x') = s^2 (exp(-|x - x'|^2 / (2 l^2)) + w sum_i exp(-(x_i - x'_i)^2 / (2 a^2))).

Value and gradient at a point are jointly Gaussian with values and gradients at all others (Rasmussen and Williams 2006,
section 9.4), so that an evaluation with its gradient counts for p + 1 observations, and a few evaluations determine the
functions of one coordinate.
"""

from functools import cached_property
from typing import NamedTuple

import numpy as np
import scipy
import scipy.linalg

__all__ = ["FIRST_KERNEL", "Emulator", "Kernel", "least_known"]

_LENGTHS = np.array([0.7, 1.0, 1.4, 2.0, 3.0, 4.2, 6.0, 8.5, 12.0])
_WEIGHTS = np.array([0.0, 1.0, 10.0, 100.0, 1000.0])
"""Candidates of the lengths l and a, in units of the coordinates, a factor of about sqrt(2) apart, and of the weight w,
a factor of ten apart: with a coarse grid the search takes few factorisations."""
_JITTER = 1e-9
"""Noise variance on the diagonal, in units of s^2 (1 + w), which keeps the matrix positive definite. The emulator then
misses its own points by 3e-5 s. It is multiplied by ten until the factorisation succeeds."""
_COMPARED_ROWS = 600
"""Most observations, values and elements of gradients together, on which kernels are compared: 7e7 operations a
kernel."""
_GAIN = 0.1
"""Least gain of the log likelihood for a step, in nats. Kernels that hardly differ, as both functions of a single
coordinate do, would otherwise be chosen by rounding."""
_KNOTS = 20
"""Knots in one length a of the functions of one coordinate: cubic interpolation is then exact to 1e-7."""
_REACH = 4.0
"""Distance from the outermost observation, in lengths a, beyond which functions of one coordinate are constant: their
kernel is below exp(-8) there."""
_FIRST_BLOCK = 16
"""Number of points in the first block from which `Emulator.sd` bounds standard deviations; each later block has as many
as all before it."""
_MOST_KNOTS = 4000
"""Most knots of a tabulated function, 200 lengths a. Points that span more are few, and the function is evaluated
directly."""


class Kernel(NamedTuple):
    """Shape of the covariance: indices of the lengths l and a and of the weight w among their candidates."""

    joint: int
    single: int
    weight: int

    @property
    def values(self) -> tuple[float, float, float]:
        """Lengths l and a, and the weight w."""
        return float(_LENGTHS[self.joint]), float(_LENGTHS[self.single]), float(_WEIGHTS[self.weight])

    def neighbours(self) -> "list[Kernel]":
        """Return the kernels that differ by a step in one of the three."""
        most = len(_LENGTHS), len(_LENGTHS), len(_WEIGHTS)
        moved = [self._replace(**{field: index + step}) for field, index in self._asdict().items() for step in (-1, 1)]
        return [k for k in moved if all(0 <= index < end for index, end in zip(k, most))]


FIRST_KERNEL = Kernel(joint=4, single=3, weight=2)
"""First kernel of the search: l = 3, a = 2, w = 10, in the middle of the candidates."""


class Emulator:
    """Posterior of a Gaussian process given values and gradients.

    Parameters
    ----------
    points : ndarray, (n, p)
        Coordinates whose origin is the centre of the points at which the emulator is to be evaluated.
    values : ndarray, (n,)
    gradients : ndarray, (n, p)
    kernel : Kernel
        Kernel at which the search for the greatest marginal likelihood starts.
    earlier : Emulator, optional
        Emulator in the same coordinates. Where its points are the first of `points`, and its kernel is the best still,
        its factor is extended.
    """

    def __init__(
        self,
        points: np.ndarray,
        values: np.ndarray,
        gradients: np.ndarray,
        kernel: Kernel = FIRST_KERNEL,
        earlier: "Emulator | None" = None,
    ):
        self.level = float(values.min())
        """Prior mean: the least value observed, so that an unexplored point counts as unlikely."""
        self.kernel = _best_kernel(points, _by_point(values - self.level, gradients), kernel)
        self._order, self._factor = self._extension_of(earlier, points) or self._anew(points)
        self.points = points[self._order]
        observed = _by_point(values[self._order] - self.level, gradients[self._order])
        weights = scipy.linalg.cho_solve((self._factor, True), observed, check_finite=False)
        # s^2 = y^T G^-1 y / m for the m numbers y of covariance s^2 G.
        self.scale = float(np.sqrt(max(observed @ weights, 0.0) / len(observed)))
        """Scale s, at its maximum likelihood."""
        by_point = weights.reshape(len(points), -1)
        self._weights, self._slopes = by_point[:, 0], by_point[:, 1:]

    def _anew(self, points: np.ndarray) -> tuple[np.ndarray, np.ndarray]:
        """Return the order in which points are stored, (n,), and the factor of their covariance."""
        # The first ones tell most of what is near the origin: see `sd`.
        order = np.argsort((points**2).sum(axis=1))
        return order, _factor(points[order], self.kernel)

    def _extension_of(self, earlier: "Emulator | None", points: np.ndarray) -> tuple[np.ndarray, np.ndarray] | None:
        """Return what `_anew` does by more rows of the earlier factor; None where it is no part of the new one."""
        if earlier is None or earlier.kernel != self.kernel:
            return None
        n = len(earlier.points)
        if n > len(points) or not np.array_equal(points[earlier._order], earlier.points):
            return None
        if n == len(points):
            return earlier._order, earlier._factor
        order = np.concatenate([earlier._order, n + np.argsort((points[n:] ** 2).sum(axis=1))])
        factor = _extended(earlier._factor, points[order], self.kernel)
        return None if factor is None else (order, factor)

    def mean(self, points: np.ndarray) -> tuple[np.ndarray, np.ndarray]:
        """Return posterior means of the function, (m,), and of its gradient, (m, p)."""
        length = self.kernel.values[0]
        # sum_j k_j (alpha_j + (x - x_j)^T beta_j / l^2) for weights alpha, slopes beta: dk / dx_j = k (x - x_j) / l^2.
        u, places, slopes = points / length, self.points / length, self._slopes / length
        k = np.exp(-0.5 * scipy.spatial.distance.cdist(u, places, "sqeuclidean"))
        weighted = k * (self._weights + u @ slopes.T - (places * slopes).sum(axis=1))
        value = self.level + weighted.sum(axis=1)
        # By dk / dx = -k (x - x_j) / l^2.
        gradient = (weighted @ places - weighted.sum(axis=1)[:, None] * u + k @ slopes) / length
        for i, curve in enumerate(self._curves):
            if curve is None:
                height, rise = self._single(i, points[:, i])
            else:
                x = np.clip(points[:, i], curve.x[0], curve.x[-1])
                height, rise = curve(x), curve(x, 1)
            value += height
            gradient[:, i] += rise
        return value, gradient

    def _single(self, i: int, x: np.ndarray) -> tuple[np.ndarray, np.ndarray]:
        """Return the posterior mean of the function of coordinate i alone at x, (m,), and its derivative, (m,)."""
        _, length, weight = self.kernel.values
        slopes = self._slopes[:, i]
        u = (x[:, None] - self.points[:, i]) / length
        k = weight * np.exp(-0.5 * u**2)
        # sum_j k_j (alpha_j + u_j beta_j / a), with u_j = (x - x_j) / a and dk_j / dx = -k_j u_j / a.
        inner = self._weights + u * slopes / length
        return (k * inner).sum(axis=1), (k * (slopes / length - u * inner)).sum(axis=1) / length

    @cached_property
    def _curves(self) -> list["scipy.interpolate.CubicHermiteSpline | None"]:
        """Tabulated posterior means of the functions of one coordinate; None for a table of over `_MOST_KNOTS` knots.

        The list is empty if their weight w is zero.
        """
        _, length, weight = self.kernel.values
        curves: list[scipy.interpolate.CubicHermiteSpline | None] = []
        for i, places in enumerate(self.points.T if weight else ()):
            ends = places.min() - _REACH * length, places.max() + _REACH * length
            count = np.ceil((ends[1] - ends[0]) / length * _KNOTS)
            if count > _MOST_KNOTS:
                curves.append(None)
                continue
            knots = np.linspace(*ends, int(count))
            curves.append(scipy.interpolate.CubicHermiteSpline(knots, *self._single(i, knots)))
        return curves

    def sd(self, points: np.ndarray, enough: float = 0.0) -> np.ndarray:
        """Return posterior standard deviations of the function, (m,); those below `enough` are upper bounds.

        With L L^T the covariance of the observations, and k the covariances of a point with them, the variance is the
        prior's minus the squared norm of L^(-1) k. The first elements of L^(-1) k follow from the first observations,
        and give an upper bound. Points whose bound is below `enough` leave out the other observations.
        """
        p = self.points.shape[1]
        sd, left = np.full(len(points), self.prior_sd), np.arange(len(points))
        half = np.empty((len(points), 0))
        for start, end, block in self._diagonal_blocks:
            if not len(left):
                break
            before, rows = slice(start * (p + 1)), slice(start * (p + 1), end * (p + 1))
            # Forward substitution by blocks: L_bb h_b = k_b - L_ba h_a, and the variance falls by s^2 |h_b|^2.
            cross = _covariance(points[left], self.points[start:end], self.kernel) - half @ self._factor[rows, before].T
            new = scipy.linalg.solve_triangular(block, cross.T, lower=True, check_finite=False).T
            sd[left] = np.sqrt(np.maximum(sd[left] ** 2 - self.scale**2 * (new**2).sum(axis=1), 0.0))
            unknown = sd[left] >= enough
            half, left = np.concatenate([half[unknown], new[unknown]], axis=1), left[unknown]
        return sd

    @cached_property
    def _diagonal_blocks(self) -> list[tuple[int, int, np.ndarray]]:
        """First point of each block of points, the next block's, and the block of the factor on its diagonal.

        LAPACK would copy a part of the whole factor at each call.
        """
        (n, p), blocks, start = self.points.shape, [], 0
        while start < n:
            end = min(n, max(2 * start, _FIRST_BLOCK))
            rows = slice(start * (p + 1), end * (p + 1))
            blocks.append((start, end, np.asfortranarray(self._factor[rows, rows])))
            start = end
        return blocks

    @property
    def prior_sd(self) -> float:
        """Standard deviation of the function far from all observations."""
        # k(x, x) = s^2 (1 + w p).
        return self.scale * float(np.sqrt(1.0 + self.kernel.values[2] * self.points.shape[1]))


def _by_point(values: np.ndarray, gradients: np.ndarray) -> np.ndarray:
    """Return values, (n,), and gradients, (n, p), as one vector, (n (1 + p),): each value, then its gradient."""
    return np.concatenate([values[:, None], gradients], axis=1).ravel()


def _best_kernel(points: np.ndarray, observed: np.ndarray, start: Kernel) -> Kernel:
    """Return the kernel with the largest marginal likelihood of the last points, by steps to the best neighbour.

    The steps begin at `start`; `observed` is `_by_point` of all n points, (n, p).
    """
    numbers_per_point = 1 + points.shape[1]
    last_points = points[-(_COMPARED_ROWS // numbers_per_point) :]
    likelihoods: dict[Kernel, float] = {}

    def likelihood(kernel: Kernel) -> float:
        if kernel not in likelihoods:
            likelihoods[kernel] = _log_likelihood(
                _factor(last_points, kernel), observed[-numbers_per_point * len(last_points) :]
            )
        return likelihoods[kernel]

    best = start
    while likelihood(better := max(best.neighbours(), key=likelihood)) > likelihood(best) + _GAIN:
        best = better
    return best


def _parts(a: np.ndarray, b: np.ndarray, kernel: Kernel) -> tuple[np.ndarray, np.ndarray, np.ndarray]:
    """Return differences of rows of a, (m, p), and b, (n, p), and the two parts of the kernel in units of s^2.

    Returns
    -------
    differences : ndarray, (m, n, p)
    joint : ndarray, (m, n)
        Kernel of the function of all coordinates.
    single : ndarray, (m, n, p)
        Kernel of the function of each coordinate, times w.
    """
    length, single_length, weight = kernel.values
    differences = a[:, None, :] - b
    joint = np.exp(-0.5 * (differences**2).sum(axis=-1) / length**2)
    return differences, joint, weight * np.exp(-0.5 * (differences / single_length) ** 2)


def _of_values(differences: np.ndarray, joint: np.ndarray, single: np.ndarray, kernel: Kernel) -> np.ndarray:
    """Return covariances of values with values and gradients, (m, n, 1 + p), from `_parts`."""
    length, single_length, _ = kernel.values
    cross = np.empty((*joint.shape, 1 + differences.shape[2]))
    # Cov(f(a), f(b)) = k(a, b), and Cov(f(a), df(b) / db) = dk(a, b) / db.
    cross[:, :, 0] = joint + single.sum(axis=-1)
    cross[:, :, 1:] = differences * (joint[:, :, None] / length**2 + single / single_length**2)
    return cross


def _covariance(a: np.ndarray, b: np.ndarray, kernel: Kernel) -> np.ndarray:
    """Return covariances in units of s^2 of values at a, (m, p), with values and gradients at b, (m, n (1 + p))."""
    return _of_values(*_parts(a, b, kernel), kernel).reshape(len(a), -1)


def _factor(points: np.ndarray, kernel: Kernel) -> np.ndarray:
    """Return the Cholesky factor, (n (1 + p), n (1 + p)), of the covariance of values and gradients at points, (n, p).

    It is in units of s^2, with as little jitter as the factorisation takes.
    """
    matrix = _gram(points, points, kernel)
    jitter = _JITTER * (1.0 + kernel.values[2])
    while True:
        matrix[np.diag_indices_from(matrix)] += jitter
        try:
            return scipy.linalg.cholesky(matrix, lower=True, check_finite=False)
        except np.linalg.LinAlgError:
            jitter *= 10.0


def _extended(factor: np.ndarray, points: np.ndarray, kernel: Kernel) -> np.ndarray | None:
    """Return `_factor` of points, given that of the first of them; None where it takes more than the least jitter."""
    m, n = len(factor), len(points) * (1 + points.shape[1])
    k = m // (1 + points.shape[1])
    # [[A, B^T], [B, C]] has the factor [[L, 0], [H, M]] with H = B L^-T and M M^T = C - H H^T.
    half = scipy.linalg.solve_triangular(
        factor, _gram(points[:k], points[k:], kernel), lower=True, check_finite=False
    ).T
    rest = _gram(points[k:], points[k:], kernel) - half @ half.T
    rest[np.diag_indices_from(rest)] += _JITTER * (1.0 + kernel.values[2])
    out = np.zeros((n, n), order="F")
    try:
        out[m:, m:] = scipy.linalg.cholesky(rest, lower=True, check_finite=False)
    except np.linalg.LinAlgError:
        return None
    out[:m, :m], out[m:, :m] = factor, half
    return out


def _gram(a: np.ndarray, b: np.ndarray, kernel: Kernel) -> np.ndarray:
    """Return the covariances of values and gradients at a, (m, p), with those at b, (n, p), in units of s^2.

    They are (m (1 + p), n (1 + p)).
    """
    (m, p), n = a.shape, len(b)
    length, single_length, _ = kernel.values
    differences, joint, single = _parts(a, b, kernel)
    # gram[i, q, j, r]: number q of point i with number r of point j, the value (0) or a derivative.
    gram = np.empty((m, 1 + p, n, 1 + p))
    gram[:, 0] = _of_values(differences, joint, single, kernel)
    # dk(a, b) / da = -dk(a, b) / db.
    gram[:, 1:, :, 0] = -gram[:, 0, :, 1:].transpose(0, 2, 1)
    # d^2 k / da db^T = k_l (I - u u^T) / l^2 with u = (a - b) / l, and a diagonal of the functions of one coordinate.
    u = differences / length
    slopes = -(joint / length**2)[:, :, None, None] * u[:, :, :, None] * u[:, :, None, :]
    diagonal = joint[:, :, None] / length**2 + single * (1.0 - (differences / single_length) ** 2) / single_length**2
    slopes[:, :, np.arange(p), np.arange(p)] += diagonal
    gram[:, 1:, :, 1:] = slopes.transpose(0, 2, 1, 3)
    return gram.reshape(m * (1 + p), n * (1 + p))


def _log_likelihood(factor: np.ndarray, observed: np.ndarray) -> float:
    """Return the log marginal likelihood of `observed`, (m,), but for a constant, maximised over the scale s.

    `factor`, (m, m), is the Cholesky factor of the covariance in units of s^2.
    """
    half = scipy.linalg.solve_triangular(factor, observed, lower=True, check_finite=False)
    m = len(observed)
    # A single fit where the density is stationary tells of no scale.
    square = max(half @ half / m, np.finfo(float).tiny)
    # -log|L| - m log(s^2) / 2 with s^2 = |L^-1 y|^2 / m, but for constants.
    return float(-np.log(np.diagonal(factor)).sum() - 0.5 * m * np.log(square))


def least_known(emulator: Emulator, pool: np.ndarray, count: int) -> np.ndarray:
    """Return `count` points of a pool, (m, p), with large standard deviations of the emulator, far from each other."""
    sd = emulator.sd(pool)
    chosen: list[int] = []
    for _ in range(count):
        chosen.append(k := int(np.argmax(sd)))
        # Shrink the sd of the surroundings as a fit there would.
        # A value at distance d leaves 1 - k^2 of the variance, by the joint kernel k = exp(-d^2 / (2 l^2)) alone.
        close = np.exp(
            -(scipy.spatial.distance.cdist(pool, pool[k : k + 1])[:, 0] ** 2) / emulator.kernel.values[0] ** 2
        )
        sd = sd * np.sqrt(np.maximum(1.0 - close, 0.0))
    return pool[chosen]
