"""Posterior of a bilinear form with independent Gaussian rows: moments, draws and predictive densities."""

from collections.abc import Iterator, Sequence
from functools import cached_property

import numpy as np
from scipy.special import logsumexp, ndtri

from pymc_ep.contracts.posterior import JointDraws, Moments
from pymc_ep.evidence.fit_mixture import FitMixture
from pymc_ep.evidence.mixtures import mixed_moments
from pymc_ep.models.bilinear.compiled import CompiledBilinear
from pymc_ep.models.bilinear.engine.values import AnyRows, BilinearPrior, NewCells, places_of_ones, with_ones
from pymc_ep.models.bilinear.kernel import FactoredRows, Rows, variance
from pymc_ep.numerics.memory import chunks
from pymc_ep.numerics.quadrature.gauss_hermite import standard_normal_rule
from pymc_ep.sites.cells.base import CellSite
from pymc_ep.sites.cells.integrals import LEAST_NODES, log_integral

__all__ = ["BilinearMixture", "BilinearPosterior"]

_NODES = 32
"""Number of Gauss-Hermite nodes. Probabilities of a Poisson count are then right to 2e-5 for log rates of standard
deviation 1, and to 3e-3 for 2; averages over draws reduce that further."""
_ALLOW_OVERFLOW = np.errstate(over="ignore")
"""Decorator under which rates of draws and nodes may overflow to infinity; their likelihood is then zero."""


class BilinearPosterior:
    """Posterior of a bilinear form at one value of the hyperparameters: independent Gaussian rows of both matrices.

    Parameters
    ----------
    form : CompiledBilinear
    theta : ndarray, (p,)
        Unconstrained hyperparameters.
    left, right : Rows or FactoredRows
        Rows of both matrices, with any bias as the last column; point estimates have variance zero.
    prior_variances : (D,) and (D,), optional
        Learned prior variances of the columns of either matrix, if any, which replace the model's.
    """

    def __init__(
        self,
        form: CompiledBilinear,
        theta: np.ndarray,
        left: AnyRows,
        right: AnyRows,
        prior_variances: Sequence[np.ndarray] | None = None,
    ):
        self.form, self.theta, self.left, self.right = form, theta, left, right
        self.prior_variances = prior_variances
        self._ones = places_of_ones((left.mean.shape[1], right.mean.shape[1]), form.n_factors)

    @property
    def unknowns(self) -> int:
        """Dimension of the posterior, hyperparameters included."""
        return self.left.mean.size + self.right.mean.size + self.theta.size

    @cached_property
    def prior(self) -> BilinearPrior:
        """The prior at `theta`, with any learned variances."""
        prior = self.form.prior(self.theta)
        if self.prior_variances is None:
            return prior
        left, right = (
            matrix_prior._replace(variance=np.broadcast_to(learned, matrix_prior.variance.shape))
            for matrix_prior, learned in zip((prior.left, prior.right), self.prior_variances)
        )
        return prior._replace(left=left, right=right)

    def components(self) -> Iterator[tuple[float, "BilinearPosterior"]]:
        """Yield weight one and the posterior itself, like a mixture of one component."""
        yield 1.0, self

    def hyper_moments(self) -> dict[str, Moments]:
        """Return the constrained hyperparameters at `theta`, by name, with standard deviations of zero."""
        return {name: Moments(v, np.zeros_like(v)) for name, v in self.form.constrained(self.theta).items()}

    def moments(self) -> dict[str, Moments]:
        """Return the moments of matrices and biases, by name."""
        means = self.form.split(self.left.mean, self.right.mean)
        sds = self.form.split(np.sqrt(self.left.variance), np.sqrt(self.right.variance))
        return {name: Moments(mean, sds[name]) for name, mean in means.items()}

    def predictor_moments(self) -> Moments:
        """Return the moments of the predictors of the cells, (n,)."""
        pairs, offset = self.form.cells().by_left, self.prior.offset
        left, right = self._with_partners()
        out = np.empty((2, len(offset)))
        out[:, pairs.order] = variance(pairs, left, right.full if isinstance(right, FactoredRows) else right)
        return Moments(out[0] + offset, np.sqrt(out[1]))

    def moments_with_all(self, side: int, indices: np.ndarray) -> Moments:
        """Return the moments, (k, J), of predictors without offsets: k rows of one side with all rows of the other."""
        both = self._with_partners()
        rows, other = both[side].at(indices), both[1 - side]
        # Var v^T u = tr A (n n^T + B) + m^T B m: inner products of A, m m^T, B and n n^T as vectors.
        (a, of_rows), (b, of_other) = _second_moments(rows), _second_moments(other)
        return Moments(rows.mean @ other.mean.T, np.sqrt(a @ (of_other + b).T + of_rows @ b.T))

    @_ALLOW_OVERFLOW
    def draws(
        self, size: int, rng: np.random.Generator, *, log_likelihood: bool = False, budget: float = 0.0
    ) -> JointDraws:
        """Return joint draws of all variables of the form, optionally with log likelihoods and log densities.

        The log densities, log p of data and draws under the model and log q of draws under the posterior, are
        conditional on the hyperparameters. Point estimates contribute their prior density to log p, and nothing to log
        q.
        """
        both = self.left, self.right
        normals = [rng.standard_normal((size, *rows.mean.shape)) for rows in both]
        sides = [rows.moved(normal) for rows, normal in zip(both, normals)]
        values = self.form.split(*sides)
        out = values | self.form.evaluate(np.tile(self.theta, (size, 1)), values)
        if not log_likelihood:
            return JointDraws(out, {})
        cells, prior = self.form.cells(), self.prior
        density = np.empty((size, len(cells.y)))
        left, right = (
            side if place is None else np.insert(side, place, 1.0, axis=-1) for side, place in zip(sides, self._ones)
        )
        pairs, f = cells.by_left, np.empty_like(density)
        for chunk in chunks(size, left.shape[-1] * len(cells.y)):
            f[chunk, pairs.order] = np.einsum("scd,scd->sc", left[chunk][:, pairs.own], right[chunk][:, pairs.others])
            density[chunk] = cells.site.log_density(cells.y, f[chunk] + prior.offset, *prior.parameters)
        # log p(y | V, U, b, c) + log p(V, b) + log p(U, c), and log q(V, b) + log q(U, c), (s,) each.
        log_p = density.sum(axis=1) + prior.left.log_density(sides[0]) + prior.right.log_density(sides[1])
        log_q = sum((_log_density(rows, normal) for rows, normal in zip(both, normals)), start=np.zeros(size))
        of_cells = density.reshape(size, *self.form.observed()[0].shape)
        return JointDraws(out, {self.form.form.cells.name: of_cells}, log_p, log_q)

    @_ALLOW_OVERFLOW
    def log_predictive(self, new: NewCells, size: int, rng: np.random.Generator) -> np.ndarray:
        """Return log predictive densities of new cells, (n,): log int p(y | f) Q(f) df, with Q the posterior of f.

        Rows of one matrix are drawn, `size` for each cell. Given such a row, f is Gaussian, and the integral over f is
        computed by quadrature. It exists even where E e^f does not. If either matrix is a point estimate, nothing is
        drawn.
        """
        out = np.empty(len(new.y))
        for chunk, mean, spread in self._predictors(new, size, rng):
            # log 1/S sum_s int p(y | f) N(f; m_s, v_s) df, over S draws of a row.
            log_integrals = log_integral(self._site, new.y[chunk], mean, spread, *(p[chunk] for p in new.parameters))
            out[chunk] = logsumexp(log_integrals, axis=0) - np.log(len(log_integrals))
        return out

    @_ALLOW_OVERFLOW
    def transforms(self, new: NewCells, size: int, rng: np.random.Generator) -> tuple[np.ndarray, np.ndarray]:
        """Return P(Y < y) and P(Y <= y), (n,) each, for new cells, computed as in `log_predictive`."""
        site, out = self._site, np.empty((2, len(new.y)))
        for chunk, mean, spread in self._predictors(new, size, rng):
            y, parameters = new.y[chunk], [p[chunk] for p in new.parameters]
            above, equal = np.zeros(len(y)), np.zeros(len(y))
            # P(Y > y) = E P(Y > y | f) and P(Y = y) = E p(y | f), f = m_s + z sqrt(v_s); for real y the latter is zero.
            for z, weight in zip(*_quadrature(len(mean), size)):
                f = mean + z * np.sqrt(spread)
                above += weight * site.above(y, f, *parameters).mean(axis=0)
                if site.domain != "real":
                    equal += weight * np.exp(site.log_density(y, f, *parameters)).mean(axis=0)
            # The weights sum to one up to rounding only, which may make a difference negative.
            out[:, chunk] = np.maximum(1.0 - above - equal, 0.0), np.maximum(1.0 - above, 0.0)
        return out[0], out[1]

    def _predictors(
        self, new: NewCells, size: int, rng: np.random.Generator
    ) -> Iterator[tuple[slice, np.ndarray, np.ndarray]]:
        """Yield chunks of k new cells, with predictor means and variances, (draws, k) each, given draws of a row."""
        sides = [(rows, index) for rows, index in zip(self._with_partners(), (new.rows, new.cols))]
        # Draw the left rows unless the right ones are points: given a point, f is Gaussian without any draw.
        (drawn, drawn_at), (other, other_at) = sides if self.right.variance.any() else sides[::-1]
        size = size if drawn.variance.any() else 1
        for chunk in chunks(len(new.y), size * max(LEAST_NODES, drawn.mean.shape[1])):
            rows, partners = drawn.at(drawn_at[chunk]), other.at(other_at[chunk])
            # Antithetic pairs z and -z, in which errors that are odd in z cancel.
            z = rng.standard_normal((-(-size // 2), *rows.mean.shape))
            # Given v, f = v^T u + offset has the mean v^T n + offset and the variance v^T B v.
            v = rows.moved(np.concatenate([z, -z][:size]))
            yield chunk, np.einsum("scd,cd->sc", v, partners.mean) + new.offset[chunk], partners.variance_along(v)

    @property
    def _site(self) -> CellSite:
        return self.form.form.cells.site

    def _with_partners(self) -> tuple[AnyRows, AnyRows]:
        """Return both sides with a column of ones for the bias of the other."""
        return with_ones(self.left, self._ones[0]), with_ones(self.right, self._ones[1])


class BilinearMixture(FitMixture[BilinearPosterior]):
    """Mixture of the posteriors at draws of the hyperparameters."""

    def predictor_moments(self) -> Moments:
        """Return the moments of the predictors of the cells, (n,)."""
        return mixed_moments((weight, {"": fit.predictor_moments()}) for weight, fit in self.components())[""]


def _quadrature(draws: int, size: int) -> tuple[np.ndarray, np.ndarray]:
    """Return nodes, in standard deviations of a Gaussian, and weights, which sum to one.

    Gauss-Hermite nodes are coarse for functions with narrow steps. Averages over draws smooth these; if there is only
    one draw, equally probable quantiles are used instead.
    """
    if draws < size:
        return ndtri((np.arange(size) + 0.5) / size), np.full(size, 1.0 / size)
    return standard_normal_rule(_NODES)


def _log_density(rows: AnyRows, normal: np.ndarray) -> np.ndarray:
    """Return the log density, (s,), of draws made from standard normals, (s, I, K); points are left out."""
    # log N(m + L z; m, L L^T) = -|z|^2 / 2 - sum_k log L_kk - k / 2 log 2 pi, over the k free entries.
    free = rows.conditional_sd > 0.0
    log_scale = np.log(rows.conditional_sd[free]).sum() + 0.5 * free.sum() * np.log(2 * np.pi)
    return -0.5 * np.einsum("sik,ik->s", normal**2, free.astype(float)) - log_scale


def _second_moments(rows: AnyRows) -> tuple[np.ndarray, np.ndarray]:
    """Return each row's covariance and outer product of means, ravelled; for independent entries the diagonals."""
    if isinstance(rows, Rows):
        return rows.variance, rows.mean**2
    products = rows.mean[:, :, None] * rows.mean[:, None, :]
    return rows.full.covariance.reshape(len(products), -1), products.reshape(len(products), -1)
