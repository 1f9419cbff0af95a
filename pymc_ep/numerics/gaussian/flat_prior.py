"""Gaussian posteriors of N unknowns x under a flat prior, with Gaussian sites on the n predictors m0 + D x.

With sites exp(b f - pi f^2 / 2) the posterior of x has precision A = D^T diag(pi) D, and

    E x = A^{-1} D^T (b - pi m0),      V_i = d_i^T A^{-1} d_i,

where d_i is a row of D. These are the formulas of `coefficient_space` for flat priors of all coefficients. D is sparse
or known by its products, and `pymc_ep.numerics.precision` factors A. Potentials of the model, such as
sparsity-inducing ones, are sites like the observations.
"""

from collections.abc import Callable
from typing import Literal, NamedTuple

import numpy as np
import scipy.sparse
from scipy.sparse.linalg import LinearOperator

from pymc_ep.numerics.backend.namespace import Array
from pymc_ep.numerics.gaussian.protocol import ROUNDING
from pymc_ep.numerics.precision.plan import Algebra, PrecisionFactor

__all__ = ["FlatPosterior", "FlatPrior", "null_unknowns"]

_CLEAN = 1e-12
"""Residual of the normal equations, relative to their right-hand side, above which a solution is refined once: a
smaller limit costs solutions, a larger one digits."""
_FLAT = 1e-9
"""Least remainder 1 - pi V, the share of a predictor's precision that is not its own site's. A smaller remainder has no
digits left, and the cavity counts as flat: its variance is 1e9 times the posterior's. So wide a cavity changes evidence
and moments of a site by about 1e-9, except at Gaussian sites."""
_DRAWS = 200
"""Number of draws from which variances are estimated where a map is known by its products only: the relative standard
error is sqrt(2 / 200) = 0.1."""
_RIDGE = 1e-10
"""Ridge added to each unknown, relative to its own diagonal element, to find the null space: a larger one blurs it, a
smaller one is lost in rounding."""


class FlatPosterior(NamedTuple):
    """Posterior of n predictors and of the N unknowns behind them.

    Attributes
    ----------
    mean, variance : ndarray, (n,)
        Marginal moments of the predictors.
    remainder : ndarray, (n,)
        1 - pi_i V_i.
    weights : ndarray, (n,)
        b - pi E[f]: the derivative of log Z in m0.
    log_det : float
        log |A|: the flat prior's density counts as (2 pi)^{-1/2} for each unknown.
    proper : bool
        Whether A is positive definite; the other fields are nan or meaningless where it is not.
    coordinates : ndarray, (N,)
        E x.
    precision : ndarray, (n,)
        pi + w, the precisions of the sites and of the prior, see `FlatPrior`.
    design : csr_array or LinearOperator, (n, N)
        D.
    factor : PrecisionFactor
        Factor of A.
    """

    mean: np.ndarray
    variance: np.ndarray
    remainder: np.ndarray
    weights: np.ndarray
    log_det: float
    proper: bool
    coordinates: np.ndarray
    precision: np.ndarray
    design: scipy.sparse.csr_array | LinearOperator
    factor: PrecisionFactor

    @property
    def drawn_from_prior(self) -> Literal[False]:
        """False: the unknowns are drawn directly."""
        return False

    def solve(self, b: np.ndarray) -> np.ndarray:
        """Return A^{-1} b, for b of shape (N,) or (N, m)."""
        return self.factor.solve(b)

    def remaining_variance(self, cross: Array, prior_variance: np.ndarray) -> np.ndarray:
        """Return the posterior variances, (d,), of C x, for C = `cross`, (d, N), sparse or dense.

        For a LinearOperator, whose rows are not known, the variances are estimated from draws with a fixed seed, with a
        relative standard error of 0.1 (0.05 of a standard deviation).
        """
        if isinstance(cross, LinearOperator):
            rng = np.random.default_rng(0)
            return sum((cross @ self.factor.draw(1, rng)[0]) ** 2 for _ in range(_DRAWS)) / _DRAWS
        return self.factor.variances(scipy.sparse.csr_array(cross))

    def draw_coordinates(self, size: int, rng: np.random.Generator) -> np.ndarray:
        """Return posterior draws of x, (size, N)."""
        return self.coordinates + self.factor.draw(size, rng)

    def log_ratio(self, draws: np.ndarray, prior_precision: np.ndarray) -> np.ndarray:
        """Return the log ratio, (s,), of posterior to prior density at draws of x, (s, N).

        The density of a flat prior counts as (2 pi)^{-1/2}.
        """
        residual = self.design @ (draws - self.coordinates).T
        # (x - E x)^T A (x - E x) = sum_i (pi_i + w_i) r_i^2 for r = D (x - E x).
        squares = prior_precision @ draws.T**2 - self.precision @ residual**2
        return 0.5 * squares + 0.5 * self.log_det


class FlatPrior(NamedTuple):
    """The predictors m0 + D x of unknowns x with a flat prior, or with a prior of mean 0 and precision D^T diag(w) D.

    Attributes
    ----------
    start : ndarray, (n,)
        Precisions w of the proper prior that `regular` returns for a first iterate.
    algebra : Algebra
        Factors precisions D^T diag(pi) D.
    added : ndarray, (n,)
        w; 0 for a flat prior.
    """

    start: np.ndarray
    algebra: Algebra
    added: np.ndarray

    @classmethod
    def of(cls, algebra: Algebra, start: np.ndarray) -> "FlatPrior":
        """Return the flat prior, w = 0, of the unknowns of `algebra`'s design; for `start`, (n,), see the class."""
        return cls(start, algebra, np.zeros_like(start))

    @property
    def design(self) -> scipy.sparse.csr_array | LinearOperator:
        """D, (n, N)."""
        return self.algebra.design

    @property
    def precision(self) -> np.ndarray:
        """Precisions of independent priors of the unknowns, (N,): zero."""
        return np.zeros(self.algebra.design.shape[1])

    def variances(self) -> np.ndarray:
        """Return the prior variances, (n,), with unknowns counted as standard normal."""
        return self.algebra.row_squares

    def covariance_matrix(self) -> np.ndarray:
        """Return the prior covariance of predictors, (n, n), with unknowns counted as standard normal."""
        design = self.algebra.design
        return design @ (design.T @ np.eye(design.shape[0]))

    def is_positive_semidefinite(self) -> bool:
        """Return True: the covariance of a Gram precision D^T diag(w) D has no negative eigenvalue."""
        return True

    def regular(self) -> "FlatPrior":
        """Return the proper prior of precision D^T diag(start) D, for a first iterate."""
        return self._replace(added=self.start)

    def signatures(self) -> None:
        """Return None: there is no `subset`, as D may be known by its products alone."""
        return

    def subset(self, index: np.ndarray) -> "FlatPrior":
        """Raise NotImplementedError: subsets are not used where there are no `signatures`."""
        raise NotImplementedError

    def cotangent_of_subset(self, index: np.ndarray, cotangent: np.ndarray) -> np.ndarray:
        """Raise NotImplementedError: subsets are not used where there are no `signatures`."""
        raise NotImplementedError

    def undetermined(self) -> np.ndarray:
        """Return the indices of unknowns, one for each dimension of the null space of D; empty if there is none."""
        return null_unknowns(self.algebra)

    def not_finite(self) -> tuple[float, int, int] | None:
        """Return the first element of D that is not finite, its unknown and its predictor; None if all are finite."""
        design = self.algebra.design
        if isinstance(design, LinearOperator):
            # Its parts were tested when this algebra was chosen.
            return None
        bad = np.flatnonzero(~np.isfinite(design.data))
        if not bad.size:
            return None
        predictor = int(np.searchsorted(design.indptr, bad[0], side="right")) - 1
        return float(design.data[bad[0]]), int(design.indices[bad[0]]), predictor

    def posterior(
        self, mean: Array, shift: Array, precision: Array, *, log_concave: bool = False, with_variances: bool = True
    ) -> FlatPosterior:
        """Return the posterior under Gaussian sites.

        For arguments see `pymc_ep.numerics.gaussian.observation_space.DensePrior.posterior`.
        """
        design, total = self.algebra.design, self.added + precision
        factor = self.algebra.factor(total)
        zeros, undefined = np.zeros(design.shape[1]), np.full(len(total), np.nan)
        if not factor.proper:
            return FlatPosterior(
                undefined, undefined, undefined, undefined, np.nan, False, zeros, total, design, factor
            )
        variance = factor.predictor_variances()
        zero = FlatPosterior(
            mean,
            variance,
            _remainder(precision * variance),
            zeros,
            factor.log_det,
            True,
            zeros,
            total,
            design,
            factor,
        )
        return self.shifted(zero, mean, shift, precision)

    def shifted(self, posterior: FlatPosterior, mean: Array, shift: Array, precision: Array) -> FlatPosterior:
        """Return the posterior for another `shift` and the same `precision`, without a new factorisation.

        Iterative refinement begins at the unknowns of the given posterior. A second step removes the rounding of the
        first, where its residual is not negligible.
        """
        if not posterior.proper:
            return posterior
        design, factor, coordinates = posterior.design, posterior.factor, posterior.coordinates
        scale = np.abs(design.T @ (shift - precision * mean)).max(initial=0.0)
        effect = design @ coordinates
        for attempt in range(2):
            # Residual D^T (b - pi (m0 + D x) - w D x) of A x = D^T (b - pi m0).
            residual = design.T @ (shift - precision * (mean + effect) - self.added * effect)
            if attempt and np.abs(residual).max(initial=0.0) <= _CLEAN * scale:
                break
            coordinates = coordinates + factor.solve(residual)
            effect = design @ coordinates
        fitted = mean + effect
        return posterior._replace(mean=fitted, weights=shift - precision * fitted, coordinates=coordinates)

    def energy(self, posterior: FlatPosterior, mean: np.ndarray) -> float:
        """Return the sum of w (m - m0)^2: zero for a flat prior."""
        return float((self.added * (posterior.mean - mean) ** 2).sum())

    def rounding(self, posterior: FlatPosterior) -> float:
        """Return the rounding error of posterior means, in standard deviations: under a flat prior no digits cancel."""
        return ROUNDING

    def posterior_rows(self, posterior: FlatPosterior) -> Callable[..., np.ndarray]:
        """Return a function ``block(rows, columns)`` of D A^{-1} D^T, solving for each row; see the protocol."""
        design = self.algebra.design
        units = scipy.sparse.eye_array(design.shape[0], format="csr")

        def block(rows: Array, columns: Array = slice(None)) -> np.ndarray:
            return (design @ posterior.factor.solve(design.T @ units[rows].T.toarray()))[columns].T

        return block

    def cotangent(self, posterior: FlatPosterior, precision: Array) -> None:
        """Return None: D is constant."""
        return


def _remainder(explained: np.ndarray) -> np.ndarray:
    """Return 1 - pi V, (n,), for `explained` = pi V: at least `_FLAT`, unless it is negative beyond rounding."""
    left = 1.0 - explained
    return np.where(left > -_FLAT, np.maximum(left, _FLAT), left)


def null_unknowns(algebra: Algebra) -> np.ndarray:
    """Return the indices of unknowns, one for each dimension of the null space of D; empty for full column rank.

    With a small diagonal ridge R, the diagonal of R (D^T D + R)^{-1} is the share of each unknown in the null space.
    Its sum is the dimension of that space, and the unknowns of the largest shares are returned.
    """
    design = algebra.design
    unit_weights = np.ones(design.shape[0])
    if algebra.factor(unit_weights).proper:
        return np.zeros(0, dtype=int)
    squares = np.bincount(design.indices, design.data**2, minlength=design.shape[1])
    # An unknown that no row has is flat: with any ridge its share is 1.
    ridge = np.where(squares > 0, _RIDGE * squares, 1.0)
    share = ridge * algebra.factor(unit_weights, ridge).variances(scipy.sparse.eye_array(design.shape[1], format="csr"))
    return np.sort(np.argsort(-share, kind="stable")[: max(1, round(float(share.sum())))])
