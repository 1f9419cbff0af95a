"""Posterior of a latent Gaussian form given its sites: Gaussian moments, and skewed joint draws of its variables.

The posterior is determined by the sites, by corrections of its width and skewness, and by the mode of the
hyperparameters with a factor of their covariance. No engine is involved, so that a fresh and a saved fit have the same
posterior.
"""

from collections.abc import Iterator, Mapping, Sequence
from functools import cached_property
from typing import NamedTuple, cast

import numpy as np

from pymc_ep.contracts.posterior import JointDraws, Moments
from pymc_ep.engines.prior import Prior
from pymc_ep.evidence.ep.directions import pairs_of
from pymc_ep.evidence.ep.fit import Shape
from pymc_ep.exceptions import NumericalError, at_index, first_index
from pymc_ep.models.latent_gaussian.form import AffineVariable
from pymc_ep.models.latent_gaussian.form_rows import FormRow
from pymc_ep.models.latent_gaussian.hyper_moments import hyper_moments
from pymc_ep.models.latent_gaussian.log_joint import BUDGET, NoisePrior, log_joint, log_standard_normal
from pymc_ep.models.latent_gaussian.site_functions import SiteFunctions
from pymc_ep.models.latent_gaussian.skewed_draws import SkewedDraws
from pymc_ep.models.latent_gaussian.values import NoiseDraws
from pymc_ep.numerics.backend.namespace import on_host
from pymc_ep.numerics.gaussian.protocol import CoordinatePrior, GaussianPosterior, GaussianPrior
from pymc_ep.numerics.gaussian.sparse_precision import PrecisionPosterior

__all__ = ["LatentPosterior"]

_HALF_WIDTH = 0.05
"""Half-width h of the central differences along each direction, in posterior standard deviations.

Their truncation error is h^2 / 6 = 4e-4 times the third derivative, on the scale of a standard deviation. It is traded
off against rounding, which differences amplify by 1 / h."""
_MAX_HALVINGS = 30
"""Largest number of halvings of the half-width, while the sites at its ends give no proper posterior.

The last is 5e-11 standard deviations, where rounding of 2e-16 leaves a difference five digits."""
_MAX_DEFICIT = 1e-8
"""Largest negative posterior variance ascribed to rounding, as a fraction of the prior variance.

It is about the square root of the machine epsilon. A smaller value would refuse ill-conditioned priors, a larger one
would hide covariances that are not positive definite."""
_SPARSE = "latent variables by a sparse precision have no dense covariance, by which their densities are computed"
_JACOBIANS = "a determinant for each draw, by which its skewness changes its density, is too much work"
"""Reasons for missing densities of draws."""
_DETERMINANTS = 8.0
"""Budget of determinants of draws, as a multiple of the budget of factorisations: determinants take products of
matrices, which are faster. With 120 predictors the determinants of 4000 draws take 0.9 s."""


class NoiseAtMode(NamedTuple):
    """Draws of the noise with hyperparameters at their mode.

    Attributes
    ----------
    noise : NoiseDraws
        Noise, (s, d), and, for a block with an origin, the origin, (s, k).
    coordinates : ndarray, (s, c)
        Draws of the solver's coordinates. Where prior draws are shifted instead (Matheron's rule), the coefficients of
        the shifts.
    """

    noise: NoiseDraws
    coordinates: np.ndarray


class SolvedPosterior(NamedTuple):
    """Posterior of the solver's coordinates, at hyperparameters.

    Attributes
    ----------
    prior_mean : ndarray, (n,)
        Prior mean of the predictors.
    prior : GaussianPrior
        Prior distribution of the predictors about their mean.
    posterior : GaussianPosterior
        Posterior; it may lack the variances of the predictors where there is no skewness.
    """

    prior_mean: np.ndarray
    prior: GaussianPrior
    posterior: GaussianPosterior


class LatentPosterior:
    """Posterior of a latent Gaussian form given sites.

    Parameters
    ----------
    form : SiteFunctions
    theta : ndarray, (p,)
        Mode of the unconstrained hyperparameters.
    shift, precision : ndarray, (n,)
        Shifts and precisions of the sites at the mode.
    directions : ndarray, (k, p)
        D, with D^T D the covariance of the unconstrained hyperparameters; k = 0 where they are fixed at the mode.
    d_shift, d_precision : ndarray, (k, n)
        Derivatives of shifts and precisions along each row of D.
    mode : tuple of Prior and the solver's posterior, optional
        Prior and posterior at `theta` and these sites, if they have been computed.
    at : FormRow, optional
        The form at `theta`, if `theta` is one of several rows at which it is evaluated at once.
    shape : Shape, optional
        Corrections of width and skewness at the mode. Without them the posterior given the hyperparameters is the
        Gaussian one of the sites.
    """

    without_sites = ""
    """Reason for missing sites: empty, as there are sites."""

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
        at: FormRow | None = None,
        shape: Shape | None = None,
    ):
        self.form = form
        self.theta = theta
        self.shift, self.precision = shift, precision
        self.directions = directions
        self.d_shift, self.d_precision = d_shift, d_precision
        self.log_concave = all(s.site.log_concave for s in form.sites)
        self._given_mode = mode
        self.shape = shape if shape is not None and shape.skewness.any() else None
        """Corrections of width and skewness; None where no site has skewness."""
        self.at = FormRow.at(form, theta) if at is None else at
        """The form at `theta`."""

    @classmethod
    def at_sites(
        cls,
        form: SiteFunctions,
        theta: np.ndarray,
        shift: np.ndarray,
        precision: np.ndarray,
        at: FormRow | None = None,
        shape: Shape | None = None,
    ) -> "LatentPosterior":
        """Return the posterior with hyperparameters fixed at theta, (p,), for the sites there, (n,) each."""
        none = np.zeros((0, len(shift)))
        return cls(form, theta, shift, precision, np.zeros((0, theta.size)), none, none, at=at, shape=shape)

    def _at_step(self, step: float, direction: int) -> tuple[np.ndarray, Prior, GaussianPosterior]:
        """Return hyperparameters, prior and posterior at mode + step * direction, with sites linear in the step."""
        theta = self.theta + step * self.directions[direction]
        shift = self.shift + step * self.d_shift[direction]
        precision = self.precision + step * self.d_precision[direction]
        # The linear extrapolation may be negative for a precision near zero, even where sites are log-concave.
        return theta, *self._posterior(theta, shift, precision, log_concave=False)

    def _posterior(
        self, theta: np.ndarray, shift: np.ndarray, precision: np.ndarray, *, log_concave: bool
    ) -> tuple[Prior, GaussianPosterior]:
        prior = self.form.prior(theta)
        return prior, prior.posterior(shift, precision, log_concave=log_concave)

    @cached_property
    def mode(self) -> tuple[np.ndarray, Prior, GaussianPosterior]:
        """Hyperparameters, prior and Gaussian posterior at the mode."""
        if self._given_mode is None:
            prior_and_posterior = self._posterior(self.theta, self.shift, self.precision, log_concave=self.log_concave)
            return self.theta, *prior_and_posterior
        prior, posterior = self._given_mode
        return self.theta, prior, on_host(posterior)

    @cached_property
    def _wide_sites(self) -> tuple[np.ndarray, np.ndarray]:
        """Shifts and precisions, (n,) each, of the sites, with the correction of the posterior's width added."""
        if self.shape is None:
            return self.shift, self.precision
        return self.shift + self.shape.shift, self.precision + self.shape.precision

    @cached_property
    def solved(self) -> SolvedPosterior:
        """`SolvedPosterior` of corrected width, with hyperparameters at their mode."""
        if "mode" in self.__dict__ or self._given_mode is not None:
            _, prior, posterior = self.mode
            mean, gaussian = np.asarray(prior.mean), on_host(prior.gaussian)
            if self.shape is None or not self.shape.precision.any():
                return SolvedPosterior(mean, gaussian, posterior)
        else:
            mean, gaussian = self.at.predictors
        shift, precision = self._wide_sites
        posterior = gaussian.posterior(
            mean,
            shift,
            precision,
            log_concave=self.log_concave and bool((precision >= 0.0).all()),
            with_variances=self.shape is not None,
        )
        return SolvedPosterior(mean, gaussian, posterior)

    @cached_property
    def _skewed(self) -> SkewedDraws | None:
        """Moves that give draws their skewness; None where no site has skewness."""
        if self.shape is None:
            return None
        return SkewedDraws(self.shape, self.solved.prior, self.solved.posterior, pairs_of(self.form))

    @cached_property
    def _noise_priors(self) -> list[NoisePrior]:
        """Prior of each noise block."""
        return [NoisePrior(block) for block in self.at.noise]

    @cached_property
    def _differences(self) -> list[tuple[float, tuple, tuple]]:
        """Central difference along each direction: half-width, and the results of `_at_step` at its two ends."""
        return [self._difference(i) for i in range(len(self.directions))]

    def _difference(self, direction: int) -> tuple[float, tuple, tuple]:
        step = _HALF_WIDTH
        for _ in range(_MAX_HALVINGS):
            low, high = self._at_step(-step, direction), self._at_step(step, direction)
            if low[2].proper and high[2].proper:
                return step, low, high
            step /= 2
        raise NumericalError(
            "Near the mode of the hyperparameters the sites give no proper posterior, so that the latent variables "
            "cannot follow the hyperparameters; fix these with hyper='fixed', or use a smaller power."
        )

    @property
    def unknowns(self) -> int:
        """Number of unknowns: coefficients plus hyperparameters."""
        return len(self.form.coefficient_places(self.theta)) + self.theta.size

    @property
    def hyper_draws(self) -> np.ndarray:
        """Draws of a mixture's hyperparameters, (0, p): this is no mixture."""
        return np.zeros((0, self.theta.size))

    @property
    def held(self) -> bool:
        """Whether the hyperparameters are fixed at one value."""
        return not len(self.directions)

    def components(self) -> Iterator[tuple[float, "LatentPosterior"]]:
        """Yield the weight 1 and this posterior: a mixture of one component."""
        yield 1.0, self

    def moments(self, variables: Sequence[AffineVariable] | None = None) -> dict[str, Moments]:
        """Return posterior moments of affine variables by name, with hyperparameter uncertainty to first order."""
        # Asked for first, so that no more is evaluated than these variables take.
        priors = self.at.affine(variables)
        posterior = self.solved.posterior
        if isinstance(posterior, PrecisionPosterior):
            # Entries of the inverse take twice the time of the factor: once for all variables.
            posterior = posterior.with_entries()
        means = {}
        variances = {}
        for name, prior in priors.items():
            shape = prior.mean.shape
            # E[x | y] = E[x] + Cov(x, eta) a, or E[x] + C E[v | y] for x = E[x] + C v.
            means[name] = prior.mean + (prior.cross @ posterior.coordinates).reshape(shape)
            variances[name] = posterior.remaining_variance(prior.cross, prior.variance).reshape(shape)
            self._require_variance(name, variances[name], prior.variance.reshape(shape))
            variances[name] = np.maximum(variances[name], 0.0)
        # Var(x) gains (d E[x] / d t_i)^2 to first order, for each direction mode + t_i D_i with t_i ~ N(0, 1).
        for step, low, high in self._differences:
            ends = [
                {
                    n: (m.mean.ravel(), m.cross @ post.coordinates)
                    for n, m in self.form.affine_moments(at, variables).items()
                }
                for at, _, post in (low, high)
            ]
            for name in means:
                # Prior mean and effect apart: a large mean would leave no digits for the effect.
                slope = sum(after - before for before, after in zip(ends[0][name], ends[1][name])) / (2 * step)
                variances[name] = variances[name] + (slope**2).reshape(means[name].shape)
        return {n: Moments(means[n], np.sqrt(variances[n])) for n in means}

    def skewness(self, variables: Sequence[AffineVariable], sd: Mapping[str, np.ndarray]) -> dict[str, np.ndarray]:
        """Return the posterior skewness of affine variables, by name; `sd` has their standard deviations."""
        if self._skewed is None:
            return {name: np.zeros_like(deviations) for name, deviations in sd.items()}
        return {
            name: self._skewed.skewness_of(prior.cross, sd[name].ravel()).reshape(sd[name].shape)
            for name, prior in self.at.affine(variables).items()
        }

    def hyper_moments(self) -> dict[str, Moments]:
        """Return moments on the natural scale of the hyperparameters, which are Gaussian on the unconstrained scale."""
        return hyper_moments(self.form, self.theta, self.directions)

    def draws(
        self, size: int, rng: np.random.Generator, *, log_likelihood: bool = False, budget: float = BUDGET
    ) -> JointDraws:
        """Return joint draws of all variables of the form, with log likelihoods and densities if requested.

        The hyperparameters are Gaussian about their mode on the unconstrained scale. The latent variables are drawn at
        the mode and shifted with the hyperparameters to first order. Densities are left out for a sparse precision, and
        where factorisations or determinants at each draw exceed the budget.
        """
        theta = self.theta
        spread = rng.standard_normal((size, len(self.directions)))
        thetas = theta + spread @ self.directions
        drawn = self._gaussian_draws(size, rng)
        shifted, steep = self._moved(drawn, slopes=log_likelihood)
        if len(self.directions):
            # The v of w = s v are shifted, as the scale of w is that of its own hyperparameters.
            shifted = self.form.rows.unscaled(theta[None], shifted)
            # v + sum_i z_i d E[v] / d t_i, for hyperparameters mode + sum_i z_i D_i.
            for z, slopes in zip(spread.T[:, :, None], self._noise_slopes()):
                shifted = [tuple(x + z * d for x, d in zip(draw, slope)) for draw, slope in zip(shifted, slopes)]
            shifted = self.form.rows.scaled(thetas, shifted)
        noise = [draw[0] for draw in shifted]
        origins = [draw[1] for draw in shifted if len(draw) == 2]
        values, densities = self.form.rows.evaluate(thetas, noise, origins, log_density=log_likelihood)
        if not log_likelihood:
            return JointDraws(values, {})
        likelihoods = self.form.rows.observed_log_density(thetas, densities)
        if isinstance(self.solved.posterior, PrecisionPosterior):
            return JointDraws(values, likelihoods, left_out=_SPARSE)
        held = not len(self.directions)
        excess = self.mode[1].log_excess if held else self.form.rows.log_excess(thetas)
        log_p, reason = log_joint(
            self.form, self._noise_priors, thetas, shifted, densities, excess, held=held, budget=budget
        )
        if log_p is None:
            return JointDraws(values, likelihoods, left_out=reason)
        log_q = self._log_q(spread, drawn)
        if self._skewed is not None:
            if self._skewed.work(size) > _DETERMINANTS * budget:
                return JointDraws(values, likelihoods, left_out=_JACOBIANS)
            # The map of draws divides their density by its Jacobian, |I + R diag(a')|.
            log_q -= self._skewed.log_jacobian(steep)
        # In the coordinates of the model, v, in which draws are shifted.
        log_p = log_p + self.form.rows.log_stretch(thetas)
        log_q = log_q + self.form.rows.log_stretch(theta[None])
        return JointDraws(values, likelihoods, log_p, log_q)

    def noise_draws(self, size: int, rng: np.random.Generator) -> NoiseDraws:
        """Return draws of the noise of all blocks, with hyperparameters at their mode."""
        return self._moved(self._gaussian_draws(size, rng), slopes=False)[0]

    def _moved(self, drawn: NoiseAtMode, *, slopes: bool) -> tuple[NoiseDraws, np.ndarray]:
        """Return the noise of Gaussian draws, moved to have the skewness of the sites, and the slopes of the moves.

        The slopes are (s, m) for s draws and m sites with skewness; (s, 0) without `slopes`, or without skewness.
        """
        if self._skewed is None:
            return drawn.noise, np.zeros((len(drawn.coordinates), 0))

        def predictors(rows: slice) -> np.ndarray:
            return self.form.rows.predictors(self.theta, [draw[0][rows] for draw in drawn.noise])

        told = not self.solved.posterior.drawn_from_prior
        moves, steep = self._skewed.moves(drawn.coordinates, None if told else predictors, slopes=slopes)
        return [tuple(map(np.add, *pair)) for pair in zip(drawn.noise, self.at.noise_of(moves))], steep

    def _gaussian_draws(self, size: int, rng: np.random.Generator) -> NoiseAtMode:
        """Return draws of the Gaussian posterior of the noise of all blocks, with hyperparameters at their mode."""
        prior_mean, _, posterior = self.solved
        if not posterior.drawn_from_prior:
            coordinates = posterior.draw_coordinates(size, rng)
            return NoiseAtMode(self.at.noise_of(coordinates), coordinates)
        # Matheron's rule: prior draws plus Cov(w, coordinates) times coefficients from the draws' residuals.
        starts = [block.draw(size, rng) for block in self._noise_priors]
        predictors = self.form.rows.predictors(self.theta, [draw[0] for draw in starts])
        coordinates = posterior.draw_coordinates(predictors - prior_mean, rng)
        shifts = self.at.noise_of(coordinates)
        return NoiseAtMode([tuple(map(np.add, *pair)) for pair in zip(starts, shifts)], coordinates)

    def noise_means(self) -> NoiseDraws:
        """Return, for each block, the posterior means of its noise, (d,), and of any origin, (k,), at the mode."""
        posterior = self.solved.posterior
        return [tuple(rows[0] for rows in block) for block in self.at.noise_of(posterior.coordinates[None])]

    def _log_q(self, spread: np.ndarray, at_mode: NoiseAtMode) -> np.ndarray:
        """Return the log density, (s,), of s draws under the Gaussian posterior, in the coordinates of `log_joint`.

        The latent variables are shifted by a function of the hyperparameters, with Jacobian 1, so that draws keep
        their density from before the shift. This density is the product of the Gaussian density of theta = mode + z D,
        the prior density of the noise at the mode, and the ratio of its posterior density to its prior density. If
        coordinates are drawn, the ratio is of their densities. Otherwise it is the product of the sites, normalised.
        With b and Pi the sites' shifts and precisions, m0 and m the prior and posterior means of the predictors eta, V
        their posterior covariance, g = b - Pi m0, and log|B| the posterior's `log_det`,

            g' (eta - m0) - (eta - m0)' Pi (eta - m0) / 2 + log|B| / 2 - g' V g / 2
              = a' (eta - (m + m0) / 2) - (eta - m)' Pi (eta - m) / 2 + log|B| / 2,

        where a = g - Pi V g. The right-hand side has no cancellation for precise sites.
        """
        prior_mean, prior, posterior = self.solved
        if posterior.drawn_from_prior:
            eta = self.form.rows.predictors(self.theta, [draw[0] for draw in at_mode.noise])
            residual = eta - posterior.mean
            ratio = (eta - (posterior.mean + prior_mean) / 2) @ posterior.weights
            ratio += 0.5 * posterior.log_det - 0.5 * residual**2 @ self._wide_sites[1]
        else:
            # A posterior that is not drawn from its prior has a prior on coordinates.
            gaussian = cast(CoordinatePrior, prior)
            ratio = posterior.log_ratio(at_mode.coordinates, np.asarray(gaussian.precision))
        log_q = ratio + sum(block.log_density(*draw) for block, draw in zip(self._noise_priors, at_mode.noise))
        if not len(self.directions):
            return log_q
        # mode + D^T z has the log density log N(z; 0, I) - log|D|.
        return log_q + log_standard_normal(spread) - np.linalg.slogdet(self.directions)[1]

    def _noise_slopes(self) -> list[NoiseDraws]:
        """Return, for each direction and block, the derivatives of the posterior means of unscaled noise and origin."""
        slopes: list[NoiseDraws] = []
        for step, low, high in self._differences:
            ends = [
                self.form.rows.unscaled(theta[None], FormRow.at(self.form, theta).noise_of(posterior.coordinates[None]))
                for theta, _, posterior in (low, high)
            ]
            slopes.append([tuple((y[0] - x[0]) / (2 * step) for x, y in zip(*block)) for block in zip(*ends)])
        return slopes

    def _require_variance(self, name: str, variance: np.ndarray, prior: np.ndarray) -> None:
        """Raise for a posterior variance that is negative by more than rounding."""
        bad = ~(variance >= -_MAX_DEFICIT * prior)
        if not bad.any():
            return
        index = first_index(bad)
        if not np.isfinite(variance[index]):
            raise NumericalError(
                f"The posterior variance of {name!r} is {variance[index]}{at_index(index)}. Check design, offsets and "
                f"the inputs of covariance functions for NaN and infinite values, new ones of pm.set_data among them."
            )
        raise NumericalError(
            f"The posterior variance of {name!r} is {variance[index]:.3g}{at_index(index)}, where the prior has "
            f"{prior[index]:.3g}: the prior covariance is not positive definite. "
            f"{self.form.distance_cure(self.theta).rstrip() or 'Add a multiple of the identity to it.'}"
        )
