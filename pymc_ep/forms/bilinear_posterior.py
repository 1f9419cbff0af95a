"""The posterior of a bilinear form, whose entries are independent: moments and draws of its variables."""

from collections.abc import Iterator

import numpy as np

from pymc_ep.forms.compiled_bilinear import CompiledBilinear
from pymc_ep.forms.posterior import JointDraws, Moments
from pymc_ep.kernels.inner_products import Pairs, Rows, variance

__all__ = ["BilinearPosterior"]

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
        cells, prior, d = self.form.cells(), self.form.prior(self.theta), self.form.n_factors
        pairs = cells.by_left
        own, other = (Rows(*(np.ascontiguousarray(part[:, :d]) for part in rows)) for rows in (self.left, self.right))
        mean, spread = variance(pairs, own, other)
        for rows, index in ((self.left, pairs.own), (self.right, pairs.others)):
            if rows.mean.shape[1] > d:
                mean, spread = mean + rows.mean[index, d], spread + rows.variance[index, d]
        out = np.empty((2, len(mean)))
        out[:, pairs.order] = mean, spread
        return Moments(out[0] + prior.offset, np.sqrt(out[1]))

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
        for here, f in self._predictors(cells.by_left, sides, prior.offset):
            density[here] = cells.site.log_density(cells.y, f, *prior.parameters)
        return JointDraws(out, {self.form.form.cells.name: density})

    def _predictors(
        self, pairs: Pairs, sides: list[np.ndarray], offset: np.ndarray
    ) -> Iterator[tuple[slice, np.ndarray]]:
        """Yield predictors of some draws at a time, in the order in which cells were given."""
        d, (left, right) = self.form.n_factors, sides
        step = max(1, _NUMBERS // max(1, d * len(pairs.others)))
        for begin in range(0, len(left), step):
            here = slice(begin, begin + step)
            f = np.einsum("scd,scd->sc", left[here][:, pairs.own, :d], right[here][:, pairs.others, :d])
            for part, index in ((left, pairs.own), (right, pairs.others)):
                if part.shape[2] > d:
                    f += part[here][:, index, d]
            out = np.empty_like(f)
            out[:, pairs.order] = f
            yield here, out + offset
