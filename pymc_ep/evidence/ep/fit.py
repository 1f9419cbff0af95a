"""A fit by EP at one value of the hyperparameters, and the parts of it that are kept."""

from typing import NamedTuple

import numpy as np

from pymc_ep.engines.base import Status
from pymc_ep.engines.loop import Run
from pymc_ep.engines.prior import Prior
from pymc_ep.evidence.ep.repeats import Repeats
from pymc_ep.evidence.ep.sweep import Problem

__all__ = ["EvidenceAt", "KeptFit", "Shape"]


class EvidenceAt(NamedTuple):
    """A fit at one value of the hyperparameters.

    Attributes
    ----------
    theta : ndarray, (p,)
    prior : Prior
    problem : Problem
        Of the distinct predictors.
    run : Run
    repeats : Repeats
        Which observations share a predictor.
    """

    theta: np.ndarray
    prior: Prior
    problem: Problem
    run: Run
    repeats: Repeats

    @property
    def status(self) -> Status:
        """How the iteration ended."""
        return self.run.status

    @property
    def state(self) -> tuple[np.ndarray, np.ndarray]:
        """The sites, from which a fit at near hyperparameters starts."""
        return self.sites

    @property
    def log_prior(self) -> float:
        """Log prior of the hyperparameters, by the `density` of `Evidence`."""
        return self.prior.log_prior

    @property
    def sites(self) -> tuple[np.ndarray, np.ndarray]:
        """Shift and precision of the sites of all observations, each (n,)."""
        state = self.run.state
        return self.repeats.sites_of_each(
            self.prior.parameters, state.sweep.posterior.mean, state.shift, state.precision
        )

    @property
    def predictors(self) -> tuple[np.ndarray, np.ndarray]:
        """Posterior mean and variance of the predictor of each observation, each (n,)."""
        posterior = self.run.state.sweep.posterior
        return self.repeats.each(posterior.mean), self.repeats.each(posterior.variance)

    @property
    def log_z(self) -> float:
        """Log evidence under PyMC's densities, without the hyperparameters' prior."""
        return float(self.run.state.sweep.log_z) + self.prior.log_excess

    @property
    def value(self) -> float:
        """Log evidence plus log prior."""
        return self.log_z + self.log_prior


class Shape(NamedTuple):
    """Shape of a posterior beyond EP's Gaussian, by `pymc_ep.evidence.ep.shape`; zero where there is none that is used.

    Attributes
    ----------
    skewness : ndarray, (k,)
        Of the tilted distribution of each site; where observations share a predictor, the first one has their site's.
        With sites of two predictors, along each direction of `pymc_ep.evidence.ep.directions.direction_map`.
    marginal_skewness : ndarray, (k,)
        Of the posterior of each predictor, or direction.
    shift, precision : ndarray, (n,)
        Added to the sites, these correct the width of the posterior.
    """

    skewness: np.ndarray
    marginal_skewness: np.ndarray
    shift: np.ndarray
    precision: np.ndarray


class KeptFit(NamedTuple):
    """Parts of a fit at one of many hyperparameters that results take.

    Attributes
    ----------
    mean, variance : ndarray, (n,)
        Posterior moments of the predictors.
    log_predictive : ndarray, (n,)
        Of each observation given the others.
    skewness : ndarray, (n,), or None
        Of the tilted distributions; None with sites of two predictors, for which the skewness at the centre counts.
    """

    mean: np.ndarray
    variance: np.ndarray
    log_predictive: np.ndarray
    skewness: np.ndarray | None
