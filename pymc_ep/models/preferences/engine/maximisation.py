"""Updates of the prior of utilities: probabilistic PCA in the metric of the kernel (Khan, Ko and Seeger 2014).

The prior of a user's utilities is N(b, S), S = V V^T + s2 K, with the kernel K = L L^T. An update maximises the
expected log density of utilities under the users' posteriors. C is the mean over users of second posterior moments
about the new mean, and C = L Cb L^T. The maximum over V and s2 is the one by Tipping and Bishop (1999) for a sample
covariance Cb. With V = L Vb and Sb = Vb Vb^T + s2 I,

    Cb = Sb - Sb (L^T T L) Sb.

T is `Statistics.curvature`; where the mean is learned, the outer product of `Statistics.slope` with itself is added.
"""

from collections.abc import Callable
from typing import NamedTuple

import numpy as np
import scipy.linalg
import scipy.sparse.linalg

from pymc_ep.models.preferences.engine.kernels import Curvature, Kernel
from pymc_ep.models.preferences.engine.values import Learned, UtilityPrior

__all__ = ["Statistics", "first_factors", "maximised"]

_DENSE = 400
"""Largest number of items for a dense eigensolver: up to it, iterations for the leading eigenpairs are slower."""


class Statistics(NamedTuple):
    """Means over users from which the prior is updated.

    Attributes
    ----------
    slope : ndarray, (I,)
        Mean over users of w, where the posterior mean is b + S w.
    curvature : ndarray or csr_array, (I, I)
        Mean over users of Q - w w^T, where the posterior covariance is S - S Q S.
    """

    slope: np.ndarray
    curvature: Curvature


def maximised(prior: UtilityPrior, kernel: Kernel, statistics: Statistics, learned: Learned) -> UtilityPrior:
    """Return the prior of the largest expected log density of utilities, under the users' posteriors given `prior`.

    Parameters
    ----------
    prior : UtilityPrior
    kernel : Kernel
    statistics : Statistics
        Statistics of the posteriors under `prior`.
    learned : Learned
        Parts that are updated. The scale of a prior with factors can be learned only together with the factors.
    """
    (mean, factors, scale), (slope, curvature) = prior, statistics
    if learned.mean:
        # b + S w, with the mean w over users and S = V V^T + s2 K.
        mean = mean + factors @ (factors.T @ slope) + scale * kernel.product(slope)
    if not (learned.factors or learned.scale):
        return prior._replace(mean=mean)
    white = kernel.solve(factors)
    size, width = len(slope), factors.shape[1]
    # The trace takes no more than products with V.
    at = curvature @ factors + (np.outer(slope, slope @ factors) if learned.mean else 0.0)
    squares = kernel.inner(curvature) + (float(slope @ kernel.product(slope)) if learned.mean else 0.0)
    small = white.T @ white
    # tr Cb = |Vb|^2 + I s2 - tr[V^T T V (Vb^T Vb + 2 s2 I_D)] - s2^2 <K, T>, for I items.
    trace = float(np.trace(small)) + size * scale
    trace -= float(((factors.T @ at) * (small + 2.0 * scale * np.eye(width))).sum()) + scale**2 * squares
    values, vectors = _leading(_expected_covariance(white, scale, kernel, statistics, learned), statistics, width)
    # s2 = (tr Cb - sum_k c_k) / (I - D), then V = L E (diag(c) - s2 I)^1/2, of the D leading eigenpairs (c, E) of Cb.
    if learned.scale:
        scale = max((trace - float(values.sum())) / (size - width), np.finfo(float).tiny)
    lengths = np.sqrt(np.maximum(values - scale, 0.0))
    return UtilityPrior(mean, kernel.times(vectors * lengths), scale)


def first_factors(prior: UtilityPrior, kernel: Kernel, statistics: Statistics, learned: Learned) -> np.ndarray:
    """Return factors V, (I, D), to start a search from V = 0, where the gradient in V is zero.

    Column k is sqrt(|c_k - s2|) L e_k, with the k-th largest eigenvalue c_k of Cb and its eigenvector e_k. Where
    c_k > s2, the evidence rises along the column, which is the one that `maximised` gives for this s2. For c_k < s2 the
    evidence falls along the column.
    The factors of an item do not depend on the order of the items.
    """
    size, width = prior.factors.shape
    times = _expected_covariance(prior.factors, prior.scale, kernel, statistics, learned)
    values, vectors = _leading(times, statistics, min(size, width))
    out = np.zeros((size, width))
    out[:, : len(values)] = kernel.times(vectors * np.sqrt(np.abs(values - prior.scale)))
    return out


def _expected_covariance(
    white: np.ndarray, scale: float, kernel: Kernel, statistics: Statistics, learned: Learned
) -> Callable[[np.ndarray], np.ndarray]:
    """Return a function that multiplies a vector, (I,), or columns, (I, n), by Cb, given `white` = L^{-1} V, (I, D)."""
    slope, curvature = statistics

    def weighted(x: np.ndarray) -> np.ndarray:
        # Sb x = Vb Vb^T x + s2 x.
        return white @ (white.T @ x) + scale * x

    def times(x: np.ndarray) -> np.ndarray:
        # Cb x = Sb x - Sb L^T T L Sb x.
        through = weighted(x)
        at = kernel.times(through)
        moved = curvature @ at
        if learned.mean:
            moved = moved + slope * (slope @ at) if at.ndim == 1 else moved + np.outer(slope, slope @ at)
        return through - weighted(kernel.transposed(moved))

    return times


def _leading(
    times: Callable[[np.ndarray], np.ndarray], statistics: Statistics, width: int
) -> tuple[np.ndarray, np.ndarray]:
    """Return the `width` largest eigenvalues of the operator `times`, descending, and eigenvectors as columns."""
    size = len(statistics.slope)
    if not width:
        return np.zeros(0), np.zeros((size, 0))
    if size <= max(_DENSE, 3 * width):
        values, vectors = scipy.linalg.eigh(times(np.eye(size)), subset_by_index=(size - width, size - 1))
    else:
        operator = scipy.sparse.linalg.LinearOperator((size, size), matvec=times, dtype=float)
        # A start that follows the items, as the same of renamed ones is asked for. Ones would be an eigenvector.
        v0 = statistics.curvature.diagonal()
        values, vectors = scipy.sparse.linalg.eigsh(operator, width, which="LA", v0=v0)
    return values[::-1], vectors[:, ::-1]
