"""The posterior of a bilinear form, whose entries are independent: moments and draws of its variables."""

from collections.abc import Sequence

import numpy as np
from scipy.special import logsumexp

from pymc_ep.forms.compiled_bilinear import CompiledBilinear
from pymc_ep.forms.posterior import JointDraws, Moments
from pymc_ep.kernels.inner_products import Rows, variance

__all__ = ["BilinearPosterior"]

_NODES = 32
_NUMBERS = 2**22
"""Numbers in the rows of draws that are multiplied at a time."""


class BilinearPosterior:
    """Independent Gaussian entries of both matrices and their biases.

    Parameters
    ----------
    form : CompiledBilinear
    theta : ndarray, (p,)
        Mode of the unconstrained hyperparameters.
    left, right : Rows
        Moments, with a bias as the last column; variances of points are zero.
    """

    def __init__(self, form: CompiledBilinear, theta: np.ndarray, left: Rows, right: Rows):
        self.form, self.theta, self.left, self.right = form, theta, left, right

    def moments(self) -> dict[str, Moments]:
        """Return the moments of matrices and biases."""
        means = self.form.split(self.left.mean, self.right.mean)
        sds = self.form.split(np.sqrt(self.left.variance), np.sqrt(self.right.variance))
        return {name: Moments(mean, sds[name]) for name, mean in means.items()}

    def predictor_moments(self) -> Moments:
        """Return the moments of the predictors of the cells, (n,)."""
        pairs, offset = self.form.cells().by_left, self.form.prior(self.theta).offset
        means = self._with_partners(self.left.mean, self.right.mean, 1.0)
        variances = self._with_partners(self.left.variance, self.right.variance, 0.0)
        out = np.empty((2, len(offset)))
        out[:, pairs.order] = variance(pairs, *map(Rows, means, variances))
        return Moments(out[0] + offset, np.sqrt(out[1]))

    def moments_with_all(self, side: int, which: np.ndarray) -> Moments:
        """Return the moments of predictors without offsets, (k, J): of some rows of a side with all of the other."""
        means = self._with_partners(self.left.mean, self.right.mean, 1.0)
        variances = self._with_partners(self.left.variance, self.right.variance, 0.0)
        m, a, n, b = means[side][which], variances[side][which], means[1 - side], variances[1 - side]
        return Moments(m @ n.T, np.sqrt(a @ (n**2 + b).T + m**2 @ b.T))

    def draws(self, size: int, rng: np.random.Generator, *, log_likelihood: bool = False) -> JointDraws:
        """Return joint draws of all variables of the form, with log likelihoods if asked for."""
        sides = [
            rows.mean + np.sqrt(rows.variance) * rng.standard_normal((size, *rows.mean.shape))
            for rows in (self.left, self.right)
        ]
        values = self.form.split(*sides)
        out = values | self.form.evaluate(np.tile(self.theta, (size, 1)), values)
        if not log_likelihood:
            return JointDraws(out, {})
        cells, prior = self.form.cells(), self.form.prior(self.theta)
        density = np.empty((size, len(cells.y)))
        left, right = self._with_partners(*sides, 1.0)
        pairs, f = cells.by_left, np.empty_like(density)
        step = max(1, _NUMBERS // (left.shape[-1] * len(cells.y)))
        for here in (slice(begin, begin + step) for begin in range(0, size, step)):
            f[here, pairs.order] = np.einsum("scd,scd->sc", left[here][:, pairs.own], right[here][:, pairs.others])
            density[here] = cells.site.log_density(cells.y, f[here] + prior.offset, *prior.parameters)
        return JointDraws(out, {self.form.form.cells.name: density})

    def log_predictive(
        self,
        y: np.ndarray,
        rows: np.ndarray,
        cols: np.ndarray,
        offset: np.ndarray,
        parameters: Sequence[np.ndarray],
        size: int,
        rng: np.random.Generator,
    ) -> np.ndarray:
        """Return log integrals of p(y | f) Q(f), (n,), for new cells, (n,) each.

        Rows of the left matrix are drawn, `size` for each cell. Given one of them f is Gaussian, and the integral over
        it is by Gauss-Hermite quadrature: a mean of f that exists is not needed, as it is for E e^f.
        """
        nodes, weights = np.polynomial.hermite_e.hermegauss(_NODES if self.right.variance.any() else 1)
        log_weights = np.log(weights / weights.sum())
        size = size if self.left.variance.any() else 1
        means = self._with_partners(self.left.mean, self.right.mean, 1.0)
        variances = self._with_partners(self.left.variance, self.right.variance, 0.0)
        site, out = self.form.form.cells.site, np.empty(len(y))
        step = max(1, _NUMBERS // (size * max(len(nodes), means[0].shape[1])))
        for here in (slice(begin, begin + step) for begin in range(0, len(y), step)):
            i, j = rows[here], cols[here]
            z = rng.standard_normal((-(-size // 2), len(i), means[0].shape[1]))
            # Each with its mirror image, which takes the error that is odd in z away.
            v = np.concatenate([z, -z]) * np.sqrt(variances[0][i]) + means[0][i]
            mean = np.einsum("scd,cd->sc", v, means[1][j]) + offset[here]
            sd = np.sqrt(np.einsum("scd,cd->sc", v**2, variances[1][j]))
            f = mean + nodes[:, None, None] * sd
            density = site.log_density(y[here], f, *(p[here] for p in parameters))
            out[here] = logsumexp(density + log_weights[:, None, None], axis=(0, 1)) - np.log(len(v))
        return out

    def _with_partners(self, left: np.ndarray, right: np.ndarray, fill: float) -> tuple[np.ndarray, np.ndarray]:
        """Return both sides, (..., I, K) and (..., J, K), with a column of `fill` beside each bias of the other."""
        d = self.form.n_factors
        sides = [[part[..., :d]] for part in (left, right)]
        for k, part in enumerate((left, right)):
            if part.shape[-1] > d:
                other = sides[1 - k][0]
                sides[k].append(part[..., d:])
                sides[1 - k].append(np.full((*other.shape[:-1], 1), fill))
        first, second = (np.concatenate(parts, axis=-1) for parts in sides)
        return first, second
