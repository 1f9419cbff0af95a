"""Posteriors: moments and joint draws of the variables of a model."""

from collections.abc import Iterator, Mapping, Sequence
from typing import Any, NamedTuple, Protocol

import numpy as np
from scipy.special import logsumexp

from pymc_ep.contracts.form import CompiledForm, CompiledSiteForm, Likelihood
from pymc_ep.engines.prior import Prior
from pymc_ep.numerics.gaussian.protocol import GaussianPosterior

__all__ = ["JointDraws", "Moments", "Posterior", "SitePosterior", "left_out_of_all", "weighted_moments"]


class Moments(NamedTuple):
    """Posterior mean and standard deviation, at the variable's own shape."""

    mean: np.ndarray
    sd: np.ndarray


def weighted_moments(rows: Mapping[str, np.ndarray], weights: np.ndarray) -> dict[str, Moments]:
    """Return the moments of values, (s, *shape), with weights, (s,), that add up to one."""
    out = {}
    for name, values in rows.items():
        mean = np.tensordot(weights, values, axes=1)
        out[name] = Moments(mean, np.sqrt(np.tensordot(weights, (values - mean) ** 2, axes=1)))
    return out


def left_out_of_all(weights: np.ndarray, log_predictives: np.ndarray) -> np.ndarray:
    """Return log p(y_i | y_-i), (n,), from that given the hyperparameters, (k, n), and weights given all data.

    p(y_i | y_-i)^-1 is the posterior mean of p(y_i | y_-i, theta)^-1 (Gelfand, Dey and Chang 1992).
    """
    return -logsumexp(-log_predictives, axis=0, b=weights[:, None])


class JointDraws(NamedTuple):
    """Draws of all variables of a form.

    Attributes
    ----------
    values : dict of str to ndarray, (s, *shape)
    log_likelihood : dict of str to ndarray, (s, *shape)
        Empty where it was not asked for.
    log_p, log_q : ndarray, (s,), or None
        Log density of each draw and the observations under the model, and of the draw under the approximation,
        in the model's free variables on PyMC's unconstrained scale. With hyperparameters held at one value,
        both are given the hyperparameters.
    left_out : str
        Why there are no densities, where they were asked for.
    """

    values: dict[str, np.ndarray]
    log_likelihood: dict[str, np.ndarray]
    log_p: np.ndarray | None = None
    log_q: np.ndarray | None = None
    left_out: str = ""


class Posterior(Protocol):
    """What a method's ``rebuild`` returns for a fit just made, and for one read back from disk."""

    @property
    def form(self) -> CompiledForm:
        """The form, compiled."""

    @property
    def unknowns(self) -> int:
        """How many numbers the posterior is of, hyperparameters included."""

    @property
    def theta(self) -> np.ndarray:
        """Unconstrained hyperparameters at their mode, (p,)."""

    def hyper_moments(self) -> dict[str, Moments]:
        """Return the moments of the hyperparameters on their own scale."""

    def draws(
        self, size: int, rng: np.random.Generator, *, log_likelihood: bool = False, budget: float = 0.0
    ) -> JointDraws:
        """Return joint draws of all variables.

        Densities of the draws are evaluated where log likelihoods are, unless that takes more than `budget`
        multiplications and is not needed for the draws themselves.
        """


class SitePosterior(Posterior, Protocol):
    """The posterior of a `SiteForm`: Gaussian given hyperparameters, by Gaussian sites in place of the factors."""

    @property
    def form(self) -> CompiledSiteForm:
        """The form, compiled."""

    @property
    def shift(self) -> np.ndarray:
        """Shifts of the sites at the mode of the hyperparameters, (n,)."""

    @property
    def precision(self) -> np.ndarray:
        """Precisions of the sites there, (n,)."""

    @property
    def directions(self) -> np.ndarray:
        """Columns of a factor of the hyperparameters' covariance, one a row, (k, p); k = 0 where they are held."""

    @property
    def held(self) -> bool:
        """Whether hyperparameters are at one value."""

    @property
    def mode(self) -> tuple[np.ndarray, Prior, GaussianPosterior]:
        """Hyperparameters, prior and posterior at the mode."""

    @property
    def without_sites(self) -> str:
        """Why `shift` and `precision` are not there; empty where they are."""

    def components(self) -> "Iterator[tuple[float, SitePosterior]]":
        """Yield each weight and posterior of a mixture, or the posterior itself."""

    def moments(self, variables: Sequence[Any] | None = None) -> dict[str, Moments]:
        """Return the moments of some of the form's affine variables, by default of all."""

    def predictor_moments(self, likelihood: Likelihood) -> Moments:
        """Return the moments of a likelihood's predictors, one to predict included."""
