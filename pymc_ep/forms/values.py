"""What a latent Gaussian form is at one value of its hyperparameters, as arrays."""

from typing import Any, NamedTuple

import numpy as np

from pymc_ep.linalg.gaussian import GaussianPrior

__all__ = ["AffineMoments", "FactorValues", "NoiseMoments", "Prior"]


class Prior(NamedTuple):
    """The form at one value of the hyperparameters.

    Attributes
    ----------
    mean : ndarray, (n,)
        Prior mean of all predictors.
    gaussian : GaussianPrior
        Of the predictors about that mean.
    parameters : tuple of tuple of ndarray
        Site parameters, for each group, each (n of the group,).
    log_prior : float
        Log density of the hyperparameters.
    log_excess : float
        log of the factor by which PyMC's joint density exceeds that of normalised Gaussians and sites.
    """

    mean: Any
    gaussian: GaussianPrior
    parameters: tuple[tuple[Any, ...], ...]
    log_prior: float
    log_excess: float


class FactorValues(NamedTuple):
    """The fields of a `Prior` but for its `gaussian`, which may be costly to form, or impossible."""

    mean: Any
    parameters: tuple[tuple[Any, ...], ...]
    log_prior: float
    log_excess: float


class AffineMoments(NamedTuple):
    """Prior moments of an affine variable x of size d, with c coordinates of the solver.

    Attributes
    ----------
    mean : ndarray
        At its own shape.
    cross : ndarray, (d, c)
        Covariance with the coordinates.
    variance : ndarray, (d,)
    """

    mean: np.ndarray
    cross: np.ndarray
    variance: np.ndarray


class NoiseMoments(NamedTuple):
    """What draws of a noise block w need.

    Attributes
    ----------
    cross : ndarray, (d, c)
        Covariance of w with the solver's coordinates.
    covariance : ndarray, (d, d)
        Cov(w).
    flat : bool
        Whether the prior is flat.
    factor : ndarray, (d, k), optional
        L of an absorbed block w = L v.
    origin_cross : ndarray, (k, c), optional
        The same for v of an absorbed block.
    """

    cross: np.ndarray
    covariance: np.ndarray
    flat: bool = False
    factor: np.ndarray | None = None
    origin_cross: np.ndarray | None = None
