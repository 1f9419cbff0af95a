"""A fit by EP at one value of the hyperparameters, and the parts of a fit that are kept."""

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
        Prior and likelihood of the distinct predictors.
    run : Run
        The iteration on `problem`, with its last state.
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
        """The same as `sites`, from which a fit at near hyperparameters starts."""
        return self.sites

    @property
    def log_prior(self) -> float:
        """Log prior of the hyperparameters, of the kind that `Evidence.density` names."""
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
    """Skewness and width of a posterior beyond EP's Gaussian, see `pymc_ep.evidence.ep.shape`; all zero for a Gaussian.

    Attributes
    ----------
    skewness : ndarray, (k,)
        Skewness of the tilted distribution of each site, k = n. Where observations share a site, its skewness is at
        the first of them, and the rest have zero. With sites of two predictors, k > n: the skewness along each
        direction of `pymc_ep.evidence.ep.directions.direction_map`.
    marginal_skewness : ndarray, (k,)
        Skewness of the posterior of each predictor, or along each direction, in the same places.
    shift, precision : ndarray, (n,)
        Added to the shifts and precisions of the sites, these correct the width of the posterior.
    """

    skewness: np.ndarray
    marginal_skewness: np.ndarray
    shift: np.ndarray
    precision: np.ndarray


class KeptFit(NamedTuple):
    """Parts of a fit that results need of each of many values of the hyperparameters.

    Attributes
    ----------
    mean, variance : ndarray, (n,)
        Posterior moments of the predictors.
    log_predictive : ndarray, (n,)
        log p(y_i | y_-i) of each observation given all others.
    skewness : ndarray, (n,), or None
        Skewness of the tilted distributions, as in `Shape`. None with sites of two predictors: the skewness at the
        central fit then stands for all.
    """

    mean: np.ndarray
    variance: np.ndarray
    log_predictive: np.ndarray
    skewness: np.ndarray | None
