"""Draws and affine variables of a Gaussian posterior, with the skewness of the sites' tilted distributions.

With m_j and s_j the posterior mean and standard deviation of predictor eta_j, and u_j = (eta_j - m_j) / s_j, a draw x
of the Gaussian posterior is moved by

    sum_j Cov(x, u_j) a_j(u_j),      a_j(u) = g_j (u^2 - 1) / 6 to first order,

where g_j is the skewness of the tilted distribution of site j. To first order the move gives any affine variable y the
skewness sum_j Corr(y, u_j)^3 g_j, as `pymc_ep.evidence.ep.shape` derives it from pairs of sites, and leaves its mean
and variance. The functions a_j are in `pymc_ep.numerics.skewed_normal`: a single site, or several with the same
predictor, move a draw by a monotone cubic that gives their skewness exactly. A site of two predictors has four u, in
the directions of `pymc_ep.evidence.ep.directions`. The map of the predictors has the Jacobian I + R diag(a'), with R
the correlations of u and a' the slopes.
"""

from collections.abc import Callable, Sequence
from functools import cached_property
from typing import cast

import numpy as np
import scipy.linalg

from pymc_ep.evidence.ep.directions import direction_map
from pymc_ep.evidence.ep.fit import Shape
from pymc_ep.numerics.gaussian.protocol import CoordinatePrior, GaussianPosterior, GaussianPrior, PredictorPrior
from pymc_ep.numerics.memory import chunks
from pymc_ep.numerics.skewed_normal import limited, skewed_moves

__all__ = ["SkewedDraws"]

_CACHED = 2**17
"""Doubles in a batch of draws, 1 MB: larger batches do not fit the processor's cache."""
_PAIRS = 2**24
"""Most pairs of a site and a value of a variable for which the variable's skewness is computed, in a tenth of a second
and bounded memory. A variable with more pairs counts as Gaussian."""
_FULL = 4000
"""Most sites whose matrix of correlations is stored in full, 128 MB."""
_RANK = 1e-12
"""Largest pivot of a correlation matrix that counts as rounding."""


class SkewedDraws:
    """Moves that give draws of one Gaussian posterior their skewness.

    Parameters
    ----------
    shape : Shape
        Skewness of the sites, of which at least one is not zero.
    gaussian : GaussianPrior
        Prior of the predictors.
    posterior : GaussianPosterior
        Posterior of corrected width, with the variances of the predictors.
    pairs : sequence of slice
        Rows of the sites of two predictors.
    """

    def __init__(
        self, shape: Shape, gaussian: GaussianPrior, posterior: GaussianPosterior, pairs: Sequence[slice] = ()
    ):
        self._gaussian, self._posterior = gaussian, posterior
        standard = direction_map(np.asarray(posterior.variance), pairs)
        # Each direction has entries, which are zero where it has no variance.
        size = np.add.reduceat(np.abs(standard.data), standard.indptr[:-1])
        used = np.flatnonzero((shape.skewness != 0.0) & (size > 0.0))
        self._standard = standard if len(used) == len(size) else standard[:, used]
        """S, (n, m), sparse: with eta the n predictors and E eta their posterior mean, u = S^T (eta - E eta) are the m
        standardised ones with skewness."""
        self._own, total = limited(shape.skewness[used], shape.marginal_skewness[used])
        self._cubics = skewed_moves(self._own, total)

    @cached_property
    def _root(self) -> np.ndarray:
        """L, (m, r), with L L^T = R, the correlations of the m variables u; R may be singular, of rank r."""
        # u = S^T (eta - m) has the covariance R = S^T V S, with V of the predictors.
        rows = np.unique(self._standard.indices)
        covariance = np.asarray(self._gaussian.posterior_rows(self._posterior)(rows, rows))
        standard = self._standard[rows]
        correlation = standard.T @ (standard.T @ covariance).T
        factor, pivots, rank, _ = scipy.linalg.lapack.dpstrf(correlation, lower=1, tol=_RANK)
        out = np.empty((len(pivots), rank))
        # P^T R P = F F^T with the pivots' permutation P, and L = P F.
        out[pivots - 1] = np.tril(factor)[:, :rank]
        return out

    def work(self, size: int) -> float:
        """Return the multiplications for the log Jacobians of `size` draws; infinite for more than `_FULL` sites."""
        if len(self._own) > _FULL:
            return np.inf
        sites, rank = self._root.shape
        return 0.5 * size * sites * rank**2

    def moves(
        self, coordinates: np.ndarray, predictors: Callable[[slice], np.ndarray] | None, *, slopes: bool
    ) -> tuple[np.ndarray, np.ndarray]:
        """Return the moves of the coordinates, (s, c), and the slopes a'(u), (s, m), or (s, 0) without `slopes`.

        Parameters
        ----------
        coordinates : ndarray, (s, c)
            Draws of the solver's coordinates.
        predictors : callable, optional
            ``predictors(rows)`` returns the predictors, (k, n), of a slice of the draws. It is given where the
            coordinates do not determine the predictors.
        slopes : bool
            Whether to compute the slopes.
        """
        size, n = len(coordinates), len(np.asarray(self._posterior.mean))
        out, steep = np.empty_like(coordinates), np.empty((size, len(self._own) if slopes else 0))
        constant, first, second, third = self._cubics
        for rows in chunks(size, n, _CACHED):
            if predictors is not None:
                effect = predictors(rows) - self._posterior.mean
            else:
                design = cast(CoordinatePrior, self._gaussian).design
                effect = (design @ (coordinates[rows] - self._posterior.coordinates).T).T
            # a(u) = c_0 + c_1 u + c_2 u^2 + c_3 u^3, by Horner's rule.
            u = effect @ self._standard
            moves = third * u
            moves += second
            if slopes:
                # a'(u) = c_1 + 2 c_2 u + 3 c_3 u^2, where `moves` is still c_2 + c_3 u.
                steep[rows] = first + u * (2.0 * moves + third * u)
            moves *= u
            moves += first
            moves *= u
            moves += constant
            # sum_j Cov(x, u_j) a_j = Cov(x, eta) S a.
            out[rows] = self._covariance_times(moves @ self._standard.T)
        return out, steep

    def log_jacobian(self, slopes: np.ndarray) -> np.ndarray:
        """Return log |I + R diag(a')| = log |I + L^T diag(a') L|, (s,), at slopes, (s, m)."""
        root, out = self._root, np.empty(len(slopes))
        for rows in chunks(len(out), root.size):
            inner = root.T @ (slopes[rows, :, None] * root)
            out[rows] = np.linalg.slogdet(np.eye(root.shape[1]) + inner)[1]
        return out

    def skewness_of(self, cross: np.ndarray, sd: np.ndarray) -> np.ndarray:
        """Return the skewness, (d,), of x with Cov(x, coordinates) = `cross`, (d, c), and standard deviations `sd`.

        `sd` may include the spread of hyperparameters, which adds no third cumulant to first order. The skewness is set
        to zero where x and the sites have more than `_PAIRS` pairs.
        """
        out, d = np.zeros(len(sd)), len(sd)
        if d * len(self._own) > _PAIRS:
            return out
        n, c = len(np.asarray(self._posterior.mean)), cross.shape[1]
        for sites in chunks(len(self._own), max(n, c)):
            # Var(u_j) = 1, so that Corr(x, u_j) = Cov(x, eta) S_j / sd(x); x has the skewness sum_j Corr(x, u_j)^3 g_j.
            weights = self._standard[:, sites].T.toarray()
            with np.errstate(divide="ignore", invalid="ignore"):
                correlation = (cross @ self._covariance_times(weights).T) / sd[:, None]
            # A known value has no correlations; rounding gives others more than one.
            correlation = np.clip(np.nan_to_num(correlation), -1.0, 1.0)
            out += correlation**3 @ self._own[sites]
        return out

    def _covariance_times(self, weights: np.ndarray) -> np.ndarray:
        """Return shifts of coordinates, (s, c), for rows w, (s, n): they move any x by its posterior Cov(x, eta) w."""
        # Cov(x, eta | y) w = C (I + Pi K)^-1 w, with C = Cov(x, eta) of the prior.
        if self._posterior.drawn_from_prior:
            return cast(PredictorPrior, self._gaussian).conditioned(self._posterior, weights)
        # With x = E[x] + C v and eta = m0 + A v, Cov(x, eta | y) w = C Cov(v | y) A^T w.
        design = cast(CoordinatePrior, self._gaussian).design
        return self._posterior.solve(design.T @ weights.T).T
