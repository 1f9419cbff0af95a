"""Posteriors represented by draws, for covariances of the unknowns that are too large to form."""

from collections.abc import Callable, Iterator, Mapping, Sequence
from functools import cached_property

import numpy as np

from pymc_ep.contracts.posterior import JointDraws, Moments
from pymc_ep.engines.prior import FactorValues
from pymc_ep.models.latent_gaussian.form import AffineVariable
from pymc_ep.models.sparse_linear.compiled import CompiledSparseLinear

__all__ = ["SampledPosterior"]


class SampledPosterior:
    """Gaussian posterior of the unknowns of a sparse linear form, at fixed hyperparameters.

    Parameters
    ----------
    form : CompiledSparseLinear
    theta : ndarray, (p,)
        Unconstrained hyperparameters.
    mean : ndarray, (N,)
        Posterior mean of the unknowns.
    draw : callable
        ``draw(size, rng)`` returns draws of the unknowns minus their mean, (size, N).
    samples : ndarray, (k, N)
        k such draws, from which standard deviations are estimated.
    """

    without_sites = (
        "The result knows its variances by draws alone, and so no distributions without one of its sites; fit with "
        "variance='exact' to look at these."
    )
    """Reason why diagnostics of single sites are unavailable."""

    def __init__(
        self,
        form: CompiledSparseLinear,
        theta: np.ndarray,
        mean: np.ndarray,
        draw: Callable[[int, np.random.Generator], np.ndarray],
        samples: np.ndarray,
    ):
        self.form, self.theta, self.mean = form, theta, mean
        self._draw, self._samples = draw, samples

    @property
    def held(self) -> bool:
        """True: hyperparameters have one value, and are not integrated over."""
        return True

    @property
    def unknowns(self) -> int:
        """Dimension of the posterior, hyperparameters included."""
        return self.mean.size + self.theta.size

    @cached_property
    def mode(self) -> tuple[np.ndarray, FactorValues, None]:
        """Hyperparameters, the form evaluated at these, and None for the posterior."""
        return self.theta, self.form.factors_at(self.theta), None

    def components(self) -> Iterator[tuple[float, "SampledPosterior"]]:
        """Yield the weight 1 and this posterior, the only component."""
        yield 1.0, self

    def moments(self, variables: Sequence[AffineVariable] | None = None) -> dict[str, Moments]:
        """Return the posterior means of affine variables, and standard deviations estimated from the samples."""
        wanted = self.form.form.affine if variables is None else tuple(variables)
        out = {}
        for variable in wanted:
            # f(x) = f(0) + M x: Var f(x) is estimated by the mean of (M c)^2 for draws c about zero, M c = f(c) - f(0).
            points = [np.zeros_like(self.mean), self.mean, *self._samples]
            base, mean, *samples = self.form.affine_values(self.theta, variable, points)
            out[variable.name] = Moments(mean, np.sqrt(np.mean([(s - base) ** 2 for s in samples], axis=0)))
        return out

    def skewness(self, variables: Sequence[AffineVariable], sd: Mapping[str, np.ndarray]) -> dict[str, np.ndarray]:
        """Return zeros: this posterior is Gaussian."""
        return {name: np.zeros_like(values) for name, values in sd.items()}

    def hyper_moments(self) -> dict[str, Moments]:
        """Return the fixed hyperparameters, with standard deviations of zero."""
        return {name: Moments(v, np.zeros_like(v)) for name, v in self.form.constrained(self.theta).items()}

    def draws(
        self, size: int, rng: np.random.Generator, *, log_likelihood: bool = False, budget: float = 0.0
    ) -> JointDraws:
        """Return joint draws of the form's variables, and with `log_likelihood` the observations' log densities.

        Log densities of the draws are left out, as the determinant of the posterior precision is unknown.
        """
        rows = self.mean + self._draw(size, rng)
        noise = np.split(rows, self.form.linear.ends[:-1], axis=1)
        thetas = np.tile(self.theta, (size, 1))
        values, densities = self.form.rows.evaluate(thetas, noise, [], log_density=log_likelihood)
        left_out = "no determinant of the posterior precision is known" if log_likelihood else ""
        return JointDraws(values, self.form.rows.observed_log_density(thetas, densities), left_out=left_out)
