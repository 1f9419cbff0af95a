"""Gaussian posteriors of predictors f = m0 + A x, (n,), whose unknowns x, (p,), have a sparse prior precision Q.

Examples are fields and walks. The prior mean of x is 0. With sites exp(b f - pi f^2 / 2) and Pi = diag(pi) the
posterior precision is P = Q + A^T Pi A, whose pattern is the same for all values. With S = P^{-1},

    E x = S A^T (b - Pi m0),        V_i = Var f_i = (A S A^T)_ii,
    d log Z / d Q_jk = [Q^{-1} - S - E x (E x)^T]_jk / 2    in the pattern of Q.

Two unknowns of one predictor are a pair in the pattern of P, so that a sparse factor gives all entries of S that V
needs (Rue and Held 2005). log |Q| comes from the structure of the prior where a factor of Q fails: for an intrinsic
prior, whose Q is singular, and for a long walk of second order, whose Q is singular in doubles.

A constraint on a sum, e^T x ~ N(0, s^2), or e^T x = 0 for s = 0, would add the dense e e^T / s^2 to Q. It is applied
afterwards instead, as a correction of rank one. P_0 is P without it. Where P_0 is not positive definite, c is first
added to one diagonal element (d is its unit vector), and taken out last:

    S_0 = (P_0 + c d d^T)^{-1},    S_1 = S_0 - Z M^{-1} Z^T,  Z = S_0 e,  M = s^2 + e^T Z,
    S = S_1 + H N^{-1} H^T,  H = S_1 d,  N = 1 / c - d^T H.

For s = 0 and |e| = 1, log |P| is taken on the subspace e^T x = 0: log |P_0| + log (e^T P_0^{-1} e).
"""

from collections.abc import Callable
from typing import Any, NamedTuple

import numpy as np
import scipy.sparse

from pymc_ep.numerics.backend.namespace import Array
from pymc_ep.numerics.gaussian.coefficient_space import CoefficientPosterior, widened
from pymc_ep.numerics.gaussian.precision_pattern import PrecisionPattern
from pymc_ep.numerics.gaussian.protocol import ROUNDING
from pymc_ep.numerics.sparse.factor import SparseFactor
from pymc_ep.numerics.sparse.row_pairs import row_pairs

__all__ = ["PrecisionPosterior", "SparsePrecisionPrior"]

_COLUMNS = 64
"""Number of right-hand sides that are solved for at a time, which bounds the memory."""
_WIDE = 64
"""Largest number of entries of a row whose variance is summed over pairs of entries; for a longer row a linear system
is solved."""
_LOST = 1e8
"""Ratio of a diagonal element to its pivot from which P_0 counts as singular: half of the digits are lost."""
_NEAR = 1e-3
"""Precision added to the diagonal of an intrinsic prior for a first iterate, relative to the diagonal's mean."""


class SumCorrection(NamedTuple):
    """Correction of S_0 by k constraints on sums: S = S_0 - Z M^{-1} Z^T + G G^T, with G = H N^{-1/2}.

    Attributes
    ----------
    z : ndarray, (p, k)
        Z.
    g : ndarray, (p, k) or (p, 0)
        G; it has no columns where P_0 is positive definite.
    inverse : ndarray, (k, k)
        M^{-1}.
    sd : ndarray, (k,)
        s.
    """

    z: np.ndarray
    g: np.ndarray
    inverse: np.ndarray
    sd: np.ndarray

    def applied(self, b: np.ndarray) -> np.ndarray:
        """Return (S - S_0) b, for b of shape (p,) or (p, m)."""
        return self.g @ (self.g.T @ b) - self.z @ (self.inverse @ (self.z.T @ b))

    def entries(self, i: np.ndarray, j: np.ndarray) -> np.ndarray:
        """Return the entries of S - S_0, (e,), at rows i, (e,), and columns j, (e,)."""
        return np.einsum("ek,ek->e", self.g[i], self.g[j]) - np.einsum(
            "ek,kl,el->e", self.z[i], self.inverse, self.z[j]
        )

    def moved(self, draws: np.ndarray, sums: np.ndarray, rng: np.random.Generator) -> np.ndarray:
        """Return draws of N(0, S), (m, p), from draws of N(0, S_0), (m, p), for `sums`, (p, k), with columns e.

        Matheron's rule gives draws of N(0, S_1), and noise of covariance G G^T is added.
        """
        normal = rng.standard_normal((2, len(draws), sums.shape[1]))
        # e^T x + s nu has the covariance M, and x - Z M^-1 (e^T x + s nu) has S_1; G zeta adds G G^T.
        seen = draws @ sums + self.sd * normal[0]
        return draws - seen @ self.inverse @ self.z.T + normal[1][:, : self.g.shape[1]] @ self.g.T


class PosteriorFactor(NamedTuple):
    """S, (p, p), as a factor of the sparse matrix S_0^{-1} and a correction of low rank.

    Attributes
    ----------
    pattern : PrecisionPattern
    factor : SparseFactor
        Factor of S_0^{-1}.
    sums : SumCorrection, optional
    entries : ndarray, optional
        S at the pattern's `keys`.
    """

    pattern: PrecisionPattern
    factor: SparseFactor
    sums: SumCorrection | None = None
    entries: np.ndarray | None = None

    def solve(self, b: np.ndarray) -> np.ndarray:
        """Return S b, for b of shape (p,) or (p, m)."""
        out = self.factor.solve(b)
        return out if self.sums is None else out + self.sums.applied(b)

    def inverse_entries(self) -> np.ndarray:
        """Return S at the pattern's `keys`."""
        if self.entries is not None:
            return self.entries
        entries, p = self.factor.inverse_entries(), self.pattern.analysis.n
        if self.sums is not None:
            entries += self.sums.entries(self.pattern.keys // p, self.pattern.keys % p)
        return entries

    def variances_of(self, cross: scipy.sparse.csr_array) -> np.ndarray:
        """Return diag(C S C^T), (d,), for C = `cross`, (d, p).

        A short row whose pairs of unknowns are all in the pattern takes entries of S; for any other a system is solved.
        """
        counts = np.diff(cross.indptr)
        first, second = row_pairs(cross.indptr, _WIDE)
        p, row = self.pattern.analysis.n, np.repeat(np.arange(cross.shape[0]), counts)[first]
        low, high = np.sort([cross.indices[first], cross.indices[second]], axis=0).astype(np.int64)
        places = np.minimum(np.searchsorted(self.pattern.keys, high * p + low), len(self.pattern.keys) - 1)
        stored = self.pattern.keys[places] == high * p + low
        # Row i: sum over pairs j <= k of C_ij C_ik S_jk, twice off the diagonal.
        both = np.where(first == second, 1.0, 2.0) * cross.data[first] * cross.data[second]
        entries = self.inverse_entries()
        # Of no weights the counts are whole numbers.
        out = np.bincount(row, both * np.where(stored, entries[places], 0.0), minlength=cross.shape[0]).astype(float)
        others = np.union1d(row[~stored], np.flatnonzero(counts > _WIDE))
        for begin in range(0, len(others), _COLUMNS):
            rows = others[begin : begin + _COLUMNS]
            columns = cross[rows].toarray().T
            out[rows] = np.einsum("pm,pm->m", columns, self.solve(columns))
        return out

    def draw(self, size: int, rng: np.random.Generator) -> np.ndarray:
        """Return draws of N(0, S), (size, p)."""
        out = self.factor.draw(size, rng)
        return out if self.sums is None else self.sums.moved(out, self.pattern.sums, rng)


class PrecisionPosterior(CoefficientPosterior):
    """`CoefficientPosterior` of unknowns x, with a `PosteriorFactor` as its whitener."""

    whitener: PosteriorFactor

    def solve(self, b: np.ndarray) -> np.ndarray:
        """Return S b, for b of shape (p,) or (p, m)."""
        return self.whitener.solve(b)

    def with_entries(self) -> "PrecisionPosterior":
        """Return the posterior with the entries of S stored, so that variances do not compute them again."""
        return self._replace(whitener=self.whitener._replace(entries=self.whitener.inverse_entries()))

    def remaining_variance(self, cross: Any, prior_variance: np.ndarray) -> np.ndarray:
        """Return the posterior variances, (d,), of C x, for C = `cross`, (d, p), dense or sparse."""
        return self.whitener.variances_of(scipy.sparse.csr_array(cross))

    def draw_coordinates(self, size: int, rng: np.random.Generator) -> np.ndarray:
        """Return posterior draws of x, (size, p)."""
        return self.coordinates + self.whitener.draw(size, rng)

    def log_ratio(self, draws: np.ndarray, prior_precision: np.ndarray) -> np.ndarray:
        """Raise NotImplementedError: the unknowns are not independent under the prior."""
        raise NotImplementedError("densities of draws are not computed with a sparse precision")


class SparsePrecisionPrior(NamedTuple):
    """The predictors m0 + A x, where x has the precision Q, and constraints on sums.

    Attributes
    ----------
    values : ndarray, (e,)
        Entries of Q at the pattern's `rows` and `columns`.
    log_det : float
        log |Q| of the blocks that are not factored, known by structure; it includes the constraints.
    sum_sd : ndarray, (k,)
        Standard deviation s of each sum; zero where the sum is constrained to be zero.
    pattern : PrecisionPattern
    """

    values: np.ndarray
    log_det: float
    sum_sd: np.ndarray
    pattern: PrecisionPattern

    @property
    def precision(self) -> np.ndarray:
        """Diagonal of Q, (p,): zero where the prior of an unknown is flat."""
        return self.values[self.pattern.diagonal]

    @property
    def design(self) -> scipy.sparse.csr_array:
        """A, (n, p)."""
        return self.pattern.design

    def variances(self) -> np.ndarray:
        """Return ``sum_j A_ij^2 / Q_jj``, (n,), in place of prior variances: zero for the same predictors.

        1 / Q_jj is the variance of unknown j given all others; flat unknowns count as standard normal. Prior variances
        would take a factor of Q, which may be singular.
        """
        given = np.where(self.precision > 0.0, self.precision, 1.0)
        design = self.pattern.design
        row = np.repeat(np.arange(design.shape[0]), np.diff(design.indptr))
        return np.bincount(row, design.data**2 / given[design.indices], minlength=design.shape[0])

    def covariance_matrix(self) -> np.ndarray:
        """Return K, (n, n), dense, for messages."""
        dense = self.pattern.symmetric(self.values).toarray()
        design = self.pattern.design.toarray()
        return design @ np.linalg.solve(dense, design.T)

    def is_positive_semidefinite(self) -> bool:
        """Whether `log_det` is finite and all factored blocks of Q are positive definite."""
        blocks = self.pattern.block_factors(self.values)
        return bool(np.isfinite(self.log_det)) and all(block.proper for block in blocks)

    def regular(self) -> "SparsePrecisionPrior":
        """Return this prior for a first iterate, with a ridge at unknowns that are flat or in a constrained sum."""
        diagonal = self.precision
        ridge = np.zeros_like(diagonal)
        squares = np.bincount(self.pattern.design.indices, self.pattern.design.data**2, minlength=len(diagonal))
        flat = diagonal == 0.0
        ridge[flat] = widened(squares[flat], self.pattern.design.shape[0], diagonal[flat]) ** -2.0
        for weights in self.pattern.sums.T:
            ridge[weights != 0.0] += _NEAR * diagonal[weights != 0.0].mean()
        if not ridge.any():
            return self
        values = self.values.copy()
        values[self.pattern.diagonal] += ridge
        return self._replace(values=values)

    def signatures(self) -> np.ndarray:
        """Return two numbers for each predictor, (n, 2), equal for identical predictors."""
        weights = np.random.default_rng(0).standard_normal((self.pattern.design.shape[1], 2))
        return self.pattern.design @ weights

    def subset(self, index: np.ndarray) -> "SparsePrecisionPrior":
        """Return the prior of the m predictors at `index`, (m,)."""
        return self._replace(pattern=self.pattern.subset(index))

    def cotangent_of_subset(self, index: np.ndarray, cotangent: np.ndarray) -> np.ndarray:
        """Return `cotangent` as it is: the prior of ``subset(index)`` has the same Q."""
        return cotangent

    def undetermined(self) -> np.ndarray:
        """Return the first unknown that neither prior nor predictors determine, (1,); empty if there is none."""
        if self.precision.all() and not self.sum_sd.size:
            return np.zeros(0, dtype=np.int64)
        factor = self._factor(np.ones(self.pattern.design.shape[0]), self._pins)
        return np.zeros(0, dtype=np.int64) if factor.proper else np.array([factor.failed])

    def not_finite(self) -> tuple[float, int, int] | None:
        """Return the first entry of Q that is not finite, its unknown, and a predictor with this unknown, or 0.

        The result is None if all entries are finite.
        """
        bad = np.flatnonzero(~np.isfinite(self.values))
        if not bad.size:
            return None
        unknown = int(self.pattern.rows[bad[0]])
        predictors = self.pattern.adjoint[[unknown]].indices
        return float(self.values[bad[0]]), unknown, int(predictors[0]) if len(predictors) else 0

    def posterior(
        self, mean: Array, shift: Array, precision: Array, *, log_concave: bool = False, with_variances: bool = True
    ) -> PrecisionPosterior:
        """Return the posterior under Gaussian sites.

        For arguments see `pymc_ep.numerics.gaussian.observation_space.DensePrior.posterior`.
        """
        pins = np.zeros(0)
        factor = self._factor(precision, pins)
        if self.sum_sd.size and not (factor.proper and factor.loss < _LOST):
            pins = self._pins
            factor = self._factor(precision, pins)
        n, p = self.pattern.design.shape
        # log |I + K Pi| = log |P| - log |Q|, for K = A Q^-1 A^T.
        log_det, proper, whitener = factor.log_det - self.log_det, factor.proper, PosteriorFactor(self.pattern, factor)
        variance = np.full(n, np.nan)
        if proper and self.sum_sd.size:
            whitener, of_sums, proper = self._with_sums(factor, pins)
            log_det += of_sums
        if proper:
            log_det -= sum(block.log_det for block in self.pattern.block_factors(self.values))
            if with_variances:
                entries = whitener.inverse_entries()
                whitener = whitener._replace(entries=entries)
                variance = self.pattern.predictor_variances(entries)
        zero = np.zeros(n)
        rounding = ROUNDING * factor.loss if proper else np.nan
        at_prior = PrecisionPosterior(
            mean, variance, 1.0 - precision * variance, zero, log_det, proper, np.zeros(p), whitener, rounding
        )
        return self.shifted(at_prior, mean, shift, precision) if proper else at_prior

    def shifted(self, posterior: PrecisionPosterior, mean: Array, shift: Array, precision: Array) -> PrecisionPosterior:
        """Return the posterior for another `shift` and the same `precision`, refined once by its residual."""
        x = posterior.coordinates
        for _ in range(2):
            # Residual A^T (b - Pi (m0 + A x)) - Q x of P x = A^T (b - Pi m0).
            weights = shift - precision * (mean + self.pattern.design @ x)
            x = x + posterior.solve(self.pattern.adjoint @ weights - self._times(x))
        fitted = mean + self.pattern.design @ x
        return posterior._replace(mean=fitted, weights=shift - precision * fitted, coordinates=x)

    def energy(self, posterior: PrecisionPosterior, mean: Array) -> float:
        """Return x^T Q x at the posterior mean."""
        return float(posterior.coordinates @ self._times(posterior.coordinates))

    def rounding(self, posterior: PrecisionPosterior) -> float:
        """Return the relative rounding error of posterior standard deviations: ROUNDING times the factor's `loss`."""
        return posterior.rounding

    def posterior_rows(self, posterior: PrecisionPosterior) -> Callable[..., np.ndarray]:
        """Return a function ``block(rows, columns)`` of A S A^T; see the protocol."""
        design = self.pattern.design

        def of(rows: Any, columns: Any = slice(None)) -> np.ndarray:
            return (design[columns] @ posterior.solve(design[rows].toarray().T)).T

        return of

    def cotangent(self, posterior: PrecisionPosterior, precision: Array) -> np.ndarray:
        """Return the derivatives of log Z in `values`, `log_det` and `sum_sd`, joined, (e + 1 + k,)."""
        pattern, x = self.pattern, posterior.coordinates
        entries = posterior.whitener.inverse_entries()[pattern.prior_places]
        twice = np.where(pattern.rows == pattern.columns, 1.0, 2.0)
        # -[S + E x (E x)^T]_jk / 2, twice for j != k; Q^-1 / 2 is added below, in blocks that are factored.
        of_values = -0.5 * twice * (entries + x[pattern.rows] * x[pattern.columns])
        for block, factor in zip(pattern.blocks, pattern.block_factors(self.values)):
            of_values[block.entries] += 0.5 * block.twice * factor.inverse_entries()
        of_sums = []
        for weights, sd in zip(pattern.sums.T, self.sum_sd):
            # That of 1 / s^2 is -(e^T S e + (e^T x)^2) / 2; a sum of zero has no parameter.
            of_sums.append((weights @ posterior.solve(weights) + (weights @ x) ** 2) / sd**3 if sd else 0.0)
        return np.concatenate([of_values, [0.5], of_sums])

    def _factor(self, precision: np.ndarray, pins: np.ndarray) -> SparseFactor:
        """Return the factor of P_0, with c = `pins`, (k,), added to one diagonal element for each sum.

        Empty `pins` add nothing.
        """
        entries = self.pattern.posterior_values(self.values, precision)
        entries[self.pattern.prior_places[self.pattern.diagonal[self.pattern.pins[: len(pins)]]]] += pins
        return self.pattern.analysis.factor(entries)

    @property
    def _pins(self) -> np.ndarray:
        """c of each sum, (k,): the mean of the diagonal of Q over the sum's unknowns."""
        return np.array([self.precision[weights != 0.0].mean() for weights in self.pattern.sums.T])

    def _with_sums(self, factor: SparseFactor, pins: np.ndarray) -> tuple[PosteriorFactor, float, bool]:
        """Return S with the sums' correction, the correction's term of log |P|, and whether P is positive definite."""
        sums = self.pattern.sums
        first = np.zeros((len(sums), len(pins)))
        first[self.pattern.pins[: len(pins)], np.arange(len(pins))] = 1.0
        z, first_solved = np.hsplit(factor.solve(np.concatenate([sums, first], axis=1)), [sums.shape[1]])
        # M = s^2 + e^T Z, H = S_1 d and N = 1 / c - d^T H.
        m = np.diag(self.sum_sd**2) + sums.T @ z
        inverse = np.linalg.inv(m)
        h = first_solved - z @ (inverse @ (z.T @ first))
        n = np.diag(1.0 / pins) - first.T @ h
        try:
            root = np.linalg.cholesky(n)
        except np.linalg.LinAlgError:
            return PosteriorFactor(self.pattern, factor), np.nan, False
        # N = R R^T and G = H R^-T, so that G G^T = H N^-1 H^T.
        g = np.linalg.solve(root, h.T).T
        # |P| = |S_0^-1| |M| |N| prod c / prod s^2 by the determinant lemma, without s^2 for sums of zero.
        soft = self.sum_sd[self.sum_sd > 0.0]
        log_det = np.linalg.slogdet(m)[1] - 2.0 * np.log(soft).sum()
        log_det += 2.0 * np.log(np.diagonal(root)).sum() + np.log(pins).sum()
        return PosteriorFactor(self.pattern, factor, SumCorrection(z, g, inverse, self.sum_sd)), float(log_det), True

    def _times(self, x: np.ndarray) -> np.ndarray:
        """Return Q x, (p,), with e e^T / s^2 added to Q for each constraint with s > 0."""
        soft = self.sum_sd > 0.0
        sums = self.pattern.sums[:, soft]
        return self.pattern.symmetric(self.values) @ x + sums @ (sums.T @ x / self.sum_sd[soft] ** 2)
