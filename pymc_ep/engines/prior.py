"""A Gaussian prior of predictors under sites, at one value of the hyperparameters, as arrays."""

from typing import Any, NamedTuple

import numpy as np

from pymc_ep.numerics.backend.namespace import Array, on_host
from pymc_ep.numerics.gaussian.protocol import GaussianPosterior, GaussianPrior

__all__ = ["FactorValues", "Prior", "perturbed"]


class Prior(NamedTuple):
    """Gaussian prior and site parameters of a form at one value of the hyperparameters.

    Attributes
    ----------
    mean : ndarray, (n,)
        Prior mean of all predictors.
    gaussian : GaussianPrior
        Distribution of the predictors about their mean.
    parameters : tuple of tuple of ndarray
        Site parameters of each factor, arrays of one value for each of its observations.
    log_prior : float
        Log density of the hyperparameters.
    log_excess : float
        log of the factor by which PyMC's joint density exceeds the density of normalised Gaussians and sites.
    """

    mean: Array
    gaussian: GaussianPrior
    parameters: tuple[tuple[Any, ...], ...]
    log_prior: float
    log_excess: float

    def posterior(self, shift: np.ndarray, precision: np.ndarray, *, log_concave: bool) -> GaussianPosterior:
        """Return the predictors' posterior, on the host, under Gaussian sites with shifts and precisions, (n,) each."""
        return on_host(self.gaussian).posterior(np.asarray(self.mean), shift, precision, log_concave=log_concave)


class FactorValues(NamedTuple):
    """A `Prior` without its field `gaussian`, which may be expensive or impossible to compute."""

    mean: Array
    parameters: tuple[tuple[Any, ...], ...]
    log_prior: float
    log_excess: float


def perturbed(theta: np.ndarray) -> np.ndarray:
    """Return nearby hyperparameters, (p,): theta plus 0.1 times standard normal draws, the same in each call.

    A property that holds at both points holds by the structure of the model and not by chance.
    """
    return theta + 0.1 * np.random.default_rng(0).standard_normal(theta.shape)
