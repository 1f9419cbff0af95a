"""The Gaussian posterior that sites give a latent Gaussian form: moments and joint draws of its variables.

It needs no engine: sites, the hyperparameters' mode and the directions in which they spread define it, so it is
the same for a fit just made and for one read back from disk.
"""

from collections.abc import Iterator, Sequence
from functools import cached_property
from typing import NamedTuple, cast

import numpy as np

from pymc_ep.contracts.form import Likelihood
from pymc_ep.contracts.posterior import JointDraws, Moments, weighted_moments
from pymc_ep.engines.prior import Prior
from pymc_ep.exceptions import NumericalError, at_index, first_index
from pymc_ep.forms.latent_gaussian.form import AffineVariable
from pymc_ep.forms.latent_gaussian.log_joint import BUDGET, NoiseDraws, NoisePrior, log_joint, log_standard_normal
from pymc_ep.forms.latent_gaussian.site_functions import SiteFunctions
from pymc_ep.forms.latent_gaussian.values import NoiseMoments
from pymc_ep.numerics.backend.namespace import on_host
from pymc_ep.numerics.gaussian.protocol import CoordinatePrior, GaussianPosterior

__all__ = ["LatentPosterior"]

_EPSILON = 0.05
"""Half-width, in standard deviations, of the differences along the hyperparameters' directions."""
_HALVINGS = 30
"""How often that width is halved where the sites at its ends give no posterior."""
_ROUNDING = 1e-8
"""Most that rounding takes a posterior variance below zero, as a fraction of the prior variance."""
_NODES = 32
_SAMPLES = 20_000


class StillDraws(NamedTuple):
    """Draws of the noise at the mode of the hyperparameters.

    Attributes
    ----------
    priors : list of NoisePrior
        Of each block.
    noise : list
        (s, d) and, for a block with an origin, (s, k).
    coordinates : ndarray, (s, c)
        What was drawn in the solver's space: the coordinates, or by how much of each a draw of the prior is moved.
    """

    priors: list[NoisePrior]
    noise: NoiseDraws
    coordinates: np.ndarray


class LatentPosterior:
    """Posterior of a latent Gaussian form given sites.

    Parameters
    ----------
    form : SiteFunctions
    theta : ndarray, (p,)
        Mode of the unconstrained hyperparameters.
    shift, precision : ndarray, (n,)
        Sites at the mode.
    directions : ndarray, (k, p)
        Columns of a factor of the hyperparameters' covariance, one a row; k = 0 holds them at the mode.
    d_shift, d_precision : ndarray, (k, n)
        Derivatives of the sites along each direction.
    mode : tuple of Prior and the solver's posterior, optional
        At `theta` and these sites, where they are known already.
    """

    without_sites = ""
    """Why there are no sites: there are."""

    def __init__(
        self,
        form: SiteFunctions,
        theta: np.ndarray,
        shift: np.ndarray,
        precision: np.ndarray,
        directions: np.ndarray,
        d_shift: np.ndarray,
        d_precision: np.ndarray,
        mode: tuple[Prior, GaussianPosterior] | None = None,
    ):
        self.form = form
        self.theta = theta
        self.shift, self.precision = shift, precision
        self.directions = directions
        self.d_shift, self.d_precision = d_shift, d_precision
        self.log_concave = all(s.site.log_concave for s in form.sites)
        self._known = mode

    @classmethod
    def at_sites(
        cls, form: SiteFunctions, theta: np.ndarray, shift: np.ndarray, precision: np.ndarray
    ) -> "LatentPosterior":
        """Return the posterior with hyperparameters at one value, (p,), by sites there, (n,)."""
        none = np.zeros((0, len(shift)))
        return cls(form, theta, shift, precision, np.zeros((0, theta.size)), none, none)

    def _at(self, step: float, direction: int) -> tuple[np.ndarray, Prior, GaussianPosterior]:
        """Return hyperparameters, prior and posterior a step along one direction from the mode."""
        theta = self.theta + step * self.directions[direction]
        shift = self.shift + step * self.d_shift[direction]
        precision = self.precision + step * self.d_precision[direction]
        # To first order a precision near zero may become negative also where the sites are log-concave.
        return theta, *self._posterior(theta, shift, precision, log_concave=False)

    def _posterior(
        self, theta: np.ndarray, shift: np.ndarray, precision: np.ndarray, *, log_concave: bool
    ) -> tuple[Prior, GaussianPosterior]:
        prior = self.form.prior(theta)
        return prior, prior.posterior(shift, precision, log_concave=log_concave)

    @cached_property
    def mode(self) -> tuple[np.ndarray, Prior, GaussianPosterior]:
        """Hyperparameters, prior and posterior at the mode."""
        if self._known is None:
            known = self._posterior(self.theta, self.shift, self.precision, log_concave=self.log_concave)
            return self.theta, *known
        prior, posterior = self._known
        return self.theta, prior, on_host(posterior)

    @cached_property
    def _moved(self) -> list[tuple[float, tuple, tuple]]:
        """Half-width of the difference along each direction, and what is at its two ends."""
        return [self._ends(i) for i in range(len(self.directions))]

    def _ends(self, direction: int) -> tuple[float, tuple, tuple]:
        step = _EPSILON
        for _ in range(_HALVINGS):
            low, high = self._at(-step, direction), self._at(step, direction)
            if low[2].proper and high[2].proper:
                return step, low, high
            step /= 2
        raise NumericalError(
            "Next to the mode of the hyperparameters the sites give no posterior, so that the latent variables cannot "
            "follow the hyperparameters; hold these with hyper='fixed', or use a smaller power."
        )

    @property
    def unknowns(self) -> int:
        """How many numbers the posterior is of, hyperparameters included."""
        return len(self.form.coefficient_places(self.theta)) + self.theta.size

    @property
    def held(self) -> bool:
        """Whether hyperparameters are at one value."""
        return not len(self.directions)

    def components(self) -> Iterator[tuple[float, "LatentPosterior"]]:
        """Yield the weight 1 and this posterior, as a `PosteriorMixture` yields its own."""
        yield 1.0, self

    def moments(self, variables: Sequence[AffineVariable] | None = None) -> dict[str, Moments]:
        """Return the posterior moments of affine variables, hyperparameter uncertainty included to first order."""
        theta, _, posterior = self.mode
        means = {}
        variances = {}
        for name, part in self.form.affine_moments(theta, variables).items():
            shape = part.mean.shape
            means[name] = part.mean + (part.cross @ posterior.coordinates).reshape(shape)
            variances[name] = posterior.remaining_variance(part.cross, part.variance).reshape(shape)
            _require_variance(name, variances[name], part.variance.reshape(shape))
            variances[name] = np.maximum(variances[name], 0.0)
        for step, low, high in self._moved:
            ends = [
                {
                    n: m.mean.ravel() + m.cross @ post.coordinates
                    for n, m in self.form.affine_moments(at, variables).items()
                }
                for at, _, post in (low, high)
            ]
            for name in means:
                slope = (ends[1][name] - ends[0][name]) / (2 * step)
                variances[name] = variances[name] + (slope**2).reshape(means[name].shape)
        return {n: Moments(means[n], np.sqrt(variances[n])) for n in means}

    def predictor_moments(self, likelihood: Likelihood) -> Moments:
        """Return the moments of a likelihood's predictors, one to predict included."""
        return self.moments([AffineVariable(likelihood.name, likelihood.predictor)])[likelihood.name]

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
        return weighted_moments(rows, weights / weights.sum())

    def _acts_by_element(self, sd: np.ndarray) -> bool:
        """Whether each constrained value changes with one unconstrained value, its own, and no other."""
        p = self.theta.size
        steps = np.concatenate([np.zeros((1, p)), np.diag(np.where(sd > 0, 0.1 * sd, 0.1))])
        values = self.form.constrained(self.theta + steps)
        flat = np.concatenate([np.zeros((p + 1, 0)), *(v.reshape(p + 1, -1) for v in values.values())], axis=1)
        changed = flat[1:] != flat[:1]
        return changed.shape == (p, p) and not np.any(changed & ~np.eye(p, dtype=bool))

    def draws(
        self, size: int, rng: np.random.Generator, *, log_likelihood: bool = False, budget: float = BUDGET
    ) -> JointDraws:
        """Return joint draws of all variables of the form, with log likelihoods and densities if asked for.

        The densities are left out where each draw needs factorisations that come to more than the budget.

        The hyperparameters are Gaussian about their mode on the unconstrained scale; the latent variables are
        drawn at the mode and moved with them to first order.
        """
        theta = self.theta
        spread = rng.standard_normal((size, len(self.directions)))
        thetas = theta + spread @ self.directions
        still = self.noise_draws(size, rng)
        moved = still.noise
        for z, slopes in zip(spread.T[:, :, None], self._noise_slopes()):
            moved = [tuple(x + z * d for x, d in zip(draw, slope)) for draw, slope in zip(moved, slopes)]
        noise = [draw[0] for draw in moved]
        origins = [draw[1] for draw in moved if len(draw) == 2]
        values, densities = self.form.rows.evaluate(thetas, noise, origins, log_density=log_likelihood)
        if not log_likelihood:
            return JointDraws(values, {})
        held = not len(self.directions)
        excess = self.mode[1].log_excess if held else self.form.rows.log_excess(thetas)
        log_p, reason = log_joint(self.form, still.priors, thetas, moved, densities, excess, held=held, budget=budget)
        log_q = None if log_p is None else self._log_q(spread, still)
        return JointDraws(values, self.form.rows.of_observed(thetas, densities), log_p, log_q, reason)

    def noise_draws(self, size: int, rng: np.random.Generator) -> StillDraws:
        """Draw the noise of all blocks at the mode of the hyperparameters."""
        theta, prior, posterior = self.mode
        blocks = self.form.noise_moments(theta)
        priors = [NoisePrior(block) for block in blocks]
        starts = [tuple(np.zeros((size, cross.shape[0])) for cross in _crosses(block)) for block in blocks]
        if posterior.drawn_from_prior:
            # Matheron's rule: prior draws, moved by what their predictors lack.
            starts = [block.draw(size, rng) for block in priors]
            predictors = self.form.rows.predictors(theta, [draw[0] for draw in starts])
            coordinates = posterior.draw_coordinates(predictors - np.asarray(prior.mean), rng)
        else:
            coordinates = posterior.draw_coordinates(size, rng)
        still = [
            tuple(x + coordinates @ cross.T for x, cross in zip(draw, _crosses(block)))
            for draw, block in zip(starts, blocks)
        ]
        return StillDraws(priors, still, coordinates)

    def noise_means(self) -> NoiseDraws:
        """Return the posterior means of what `noise_draws` draws, (d,) and (k,) each, at the mode."""
        theta, _, posterior = self.mode
        return [tuple(c @ posterior.coordinates for c in _crosses(block)) for block in self.form.noise_moments(theta)]

    def _log_q(self, spread: np.ndarray, still: StillDraws) -> np.ndarray:
        """Return the log density of draws, (s,), under this posterior, in the coordinates of `log_joint`.

        Moving the latent variables with the hyperparameters is a shift by a function of these, with Jacobian 1, so
        the density is that of the draws before it: the Gaussian of theta = mode + z L times, at the mode, the noise's
        prior and the ratio of posterior and prior, which is that of the coordinates where these are drawn. Otherwise
        it is the sites over their normaliser. With g = b - Pi m0 and V the posterior covariance,

            g' (eta - m0) - (eta - m0)' Pi (eta - m0) / 2 + log|B| / 2 - g' V g / 2
              = a' (eta - (m + m0) / 2) - (eta - m)' Pi (eta - m) / 2 + log|B| / 2,

        where a = g - Pi V g: the right-hand side does not cancel where sites are precise.
        """
        theta, prior, posterior = self.mode
        if posterior.drawn_from_prior:
            eta = self.form.rows.predictors(theta, [draw[0] for draw in still.noise])
            residual = eta - posterior.mean
            ratio = (eta - (posterior.mean + np.asarray(prior.mean)) / 2) @ posterior.weights
            ratio += 0.5 * posterior.log_det - 0.5 * residual**2 @ self.precision
        else:
            # The posterior has told of which kind the prior is.
            gaussian = cast(CoordinatePrior, prior.gaussian)
            ratio = posterior.log_ratio(still.coordinates, np.asarray(gaussian.precision))
        log_q = ratio + sum(block.log_density(*draw) for block, draw in zip(still.priors, still.noise))
        if not len(self.directions):
            return log_q
        return log_q + log_standard_normal(spread) - np.linalg.slogdet(self.directions)[1]

    def _noise_slopes(self) -> list[NoiseDraws]:
        """Return, for each direction and block, the derivatives of the posterior means of its draws."""
        slopes: list[NoiseDraws] = []
        for step, low, high in self._moved:
            ends = [
                [[c @ posterior.coordinates for c in _crosses(block)] for block in self.form.noise_moments(theta)]
                for theta, _, posterior in (low, high)
            ]
            slopes.append([tuple((y - x) / (2 * step) for x, y in zip(*block)) for block in zip(*ends)])
        return slopes


def _crosses(block: NoiseMoments) -> list[np.ndarray]:
    """Return the covariances with the solver's coordinates of a block's noise and, where it has one, of its origin."""
    return [cross for cross in (block.cross, block.origin_cross) if cross is not None]


def _require_variance(name: str, variance: np.ndarray, prior: np.ndarray) -> None:
    """Raise where the sites take more from a variance than there is, by more than rounding."""
    bad = ~(variance >= -_ROUNDING * prior)
    if bad.any():
        index = first_index(bad)
        raise NumericalError(
            f"The posterior variance of {name!r} is {variance[index]:.3g}{at_index(index)}, where the prior has "
            f"{prior[index]:.3g}: the prior covariance is not positive definite. Add a multiple of the identity to it."
        )
