"""The Gaussian posterior that sites give a latent Gaussian form: moments and joint draws of its variables.

It needs no engine: sites, the hyperparameters' mode and the directions in which they spread define it, so it is
the same for a fit just made and for one read back from disk.
"""

from collections.abc import Sequence
from functools import cached_property
from typing import NamedTuple

import numpy as np
import scipy.linalg

from pymc_ep.forms.compiled import CompiledLatentGaussian, NoiseMoments, Prior
from pymc_ep.forms.latent_gaussian import AffineVariable
from pymc_ep.linalg.dense import DensePosterior, dense_posterior, draw_weights

__all__ = ["LatentPosterior", "Moments"]

_EPSILON = 0.05
"""Half-width, in standard deviations, of the differences along the hyperparameters' directions."""
_NODES = 32
_SAMPLES = 20_000


class Moments(NamedTuple):
    """Posterior mean and standard deviation, at the variable's own shape."""

    mean: np.ndarray
    sd: np.ndarray


class LatentPosterior:
    """Posterior of a latent Gaussian form given sites.

    Parameters
    ----------
    form : CompiledLatentGaussian
    theta : ndarray, (p,)
        Mode of the unconstrained hyperparameters.
    shift, precision : ndarray, (n,)
        Sites at the mode.
    directions : ndarray, (k, p)
        Columns of a factor of the hyperparameters' covariance, one a row; k = 0 holds them at the mode.
    d_shift, d_precision : ndarray, (k, n)
        Derivatives of the sites along each direction.
    """

    def __init__(
        self,
        form: CompiledLatentGaussian,
        theta: np.ndarray,
        shift: np.ndarray,
        precision: np.ndarray,
        directions: np.ndarray,
        d_shift: np.ndarray,
        d_precision: np.ndarray,
    ):
        self.form = form
        self.theta = theta
        self.shift, self.precision = shift, precision
        self.directions = directions
        self.d_shift, self.d_precision = d_shift, d_precision
        self.log_concave = all(s.site.log_concave for s in form.sites)

    def _at(self, step: float, direction: int | None) -> tuple[np.ndarray, Prior, DensePosterior]:
        """Return hyperparameters, prior and posterior a step along one direction from the mode."""
        theta, shift, precision = self.theta, self.shift, self.precision
        if direction is not None:
            theta = theta + step * self.directions[direction]
            shift = shift + step * self.d_shift[direction]
            precision = precision + step * self.d_precision[direction]
            if self.log_concave:
                # First-order moved precisions of sites near zero may leave the set of log-concave sites.
                precision = np.maximum(precision, 0.0)
        prior = self.form.prior(theta)
        mean, covariance = np.asarray(prior.mean), np.asarray(prior.covariance)
        posterior = dense_posterior(mean, covariance, shift, precision, log_concave=self.log_concave)
        return theta, prior, posterior

    @cached_property
    def mode(self) -> tuple[np.ndarray, Prior, DensePosterior]:
        """Hyperparameters, prior and posterior at the mode."""
        return self._at(0.0, None)

    @cached_property
    def _moved(self) -> list[tuple[tuple, tuple]]:
        return [(self._at(-_EPSILON, i), self._at(_EPSILON, i)) for i in range(len(self.directions))]

    def moments(self, variables: Sequence[AffineVariable] | None = None) -> dict[str, Moments]:
        """Return the posterior moments of affine variables, hyperparameter uncertainty included to first order."""
        theta, _, posterior = self.mode
        means = {}
        variances = {}
        for name, part in self.form.affine_moments(theta, variables).items():
            shape = part.mean.shape
            means[name] = part.mean + (part.cross @ posterior.weights).reshape(shape)
            variances[name] = (part.variance - posterior.explained_variance(part.cross)).reshape(shape)
        for low, high in self._moved:
            ends = [
                {n: m.mean.ravel() + m.cross @ post.weights for n, m in self.form.affine_moments(at, variables).items()}
                for at, _, post in (low, high)
            ]
            for name in means:
                slope = (ends[1][name] - ends[0][name]) / (2 * _EPSILON)
                variances[name] = variances[name] + (slope**2).reshape(means[name].shape)
        return {n: Moments(means[n], np.sqrt(np.maximum(variances[n], 0.0))) for n in means}

    def hyper_moments(self) -> dict[str, Moments]:
        """Return moments of the hyperparameters on their own scale.

        Where every element follows from its own unconstrained value alone, by quadrature over each marginal, all
        elements walking through the nodes together; otherwise (ordered vectors, simplexes, bounds that depend on
        other hyperparameters) from a fixed sample of the Gaussian.
        """
        sd = np.sqrt((self.directions**2).sum(axis=0))
        if self._acts_by_element(sd):
            nodes, weights = np.polynomial.hermite_e.hermegauss(_NODES)
            rows = self.form.constrained(self.theta + nodes[:, None] * sd)
        else:
            normal = np.random.default_rng(0).standard_normal((_SAMPLES, len(self.directions)))
            weights = np.ones(_SAMPLES)
            rows = self.form.constrained(self.theta + normal @ self.directions)
        weights = weights / weights.sum()
        out = {}
        for name, values in rows.items():
            mean = np.tensordot(weights, values, axes=1)
            out[name] = Moments(mean, np.sqrt(np.tensordot(weights, (values - mean) ** 2, axes=1)))
        return out

    def _acts_by_element(self, sd: np.ndarray) -> bool:
        """Whether each constrained value changes with one unconstrained value, its own, and no other."""
        p = self.theta.size
        steps = np.concatenate([np.zeros((1, p)), np.diag(np.where(sd > 0, 0.1 * sd, 0.1))])
        values = self.form.constrained(self.theta + steps)
        flat = np.concatenate([np.zeros((p + 1, 0)), *(v.reshape(p + 1, -1) for v in values.values())], axis=1)
        changed = flat[1:] != flat[:1]
        return changed.shape == (p, p) and not np.any(changed & ~np.eye(p, dtype=bool))

    def draws(
        self, size: int, rng: np.random.Generator, *, log_likelihood: bool = False
    ) -> tuple[dict[str, np.ndarray], dict[str, np.ndarray]]:
        """Return joint draws, (size, *shape), of all variables of the form, and the log likelihood if asked for.

        The hyperparameters are Gaussian about their mode on the unconstrained scale; the latent variables are
        drawn at the mode and moved with them to first order.
        """
        theta, prior, posterior = self.mode
        spread = rng.standard_normal((size, len(self.directions)))
        thetas = theta + spread @ self.directions
        blocks = self.form.noise_moments(theta)
        starts = [_prior_noise(block, size, rng) for block in blocks]
        predictors = self.form.predictors(theta, [w for w, _ in starts])
        weights = draw_weights(posterior, predictors - np.asarray(prior.mean), rng)
        noise = [w + weights @ block.cross.T for (w, _), block in zip(starts, blocks)]
        origin = [v + weights @ b.origin_cross.T for (_, v), b in zip(starts, blocks) if v is not None]
        for z, (d_noise, d_origin) in zip(spread.T, self._noise_slopes()):
            noise = [w + z[:, None] * slope for w, slope in zip(noise, d_noise)]
            origin = [v + z[:, None] * slope for v, slope in zip(origin, d_origin)]
        values = self.form.evaluate(thetas, noise, origin)
        return values, self.form.log_likelihood(thetas, noise) if log_likelihood else {}

    def _noise_slopes(self) -> list[tuple[list[np.ndarray], list[np.ndarray]]]:
        """Return, for each direction, the derivatives of the posterior means of noise and origins along it."""
        slopes = []
        for ends in self._moved:
            means = []
            for theta, _, posterior in ends:
                blocks = self.form.noise_moments(theta)
                noise = [b.cross @ posterior.weights for b in blocks]
                origin = [b.origin_cross @ posterior.weights for b in blocks if b.origin_cross is not None]
                means.append((noise, origin))
            slopes.append(tuple([(y - x) / (2 * _EPSILON) for x, y in zip(*pair)] for pair in zip(*means)))
        return slopes


def _prior_noise(block: NoiseMoments, size: int, rng: np.random.Generator) -> tuple[np.ndarray, np.ndarray | None]:
    """Draw a noise block and its origin, where it has one, from the prior."""
    if block.factor is not None:
        origin = rng.standard_normal((size, block.factor.shape[1]))
        return origin @ block.factor.T, origin
    covariance = block.covariance
    diagonal = covariance.diagonal()
    if np.count_nonzero(covariance) == np.count_nonzero(diagonal):
        return rng.standard_normal((size, len(diagonal))) * np.sqrt(diagonal), None
    # Pivoted, so that a singular covariance (repeated inputs) needs no jitter.
    factor, pivots, rank, _ = scipy.linalg.lapack.dpstrf(covariance, lower=1, tol=-1.0)
    factor = np.tril(factor)[:, :rank]
    draws = np.empty((size, len(diagonal)))
    draws[:, pivots - 1] = rng.standard_normal((size, rank)) @ factor.T
    return draws, None
