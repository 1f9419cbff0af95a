"""Interfaces of posteriors: moments and joint draws of the variables of a model."""

from collections.abc import Iterator, Mapping, Sequence
from typing import Any, NamedTuple, Protocol

import numpy as np

from pymc_ep.contracts.form import CompiledForm, CompiledSiteForm
from pymc_ep.engines.prior import Prior
from pymc_ep.numerics.gaussian.protocol import GaussianPosterior

__all__ = [
    "AffinePosterior",
    "JointDraws",
    "Moments",
    "Posterior",
    "SitePosterior",
]


class Moments(NamedTuple):
    """Posterior mean and standard deviation, at the variable's own shape."""

    mean: np.ndarray
    sd: np.ndarray


class JointDraws(NamedTuple):
    """Joint draws of all variables of a form.

    Attributes
    ----------
    values : dict of str to ndarray, (s, *shape)
    log_likelihood : dict of str to ndarray, (s, *shape)
        Empty where not requested.
    log_p, log_q : ndarray, (s,), or None
        Log joint density of each draw and the observations under the model, and log density of each draw under the
        approximate posterior. Both are densities of the model's free variables on PyMC's unconstrained scale. Where
        the hyperparameters are fixed, both are conditional on them.
    left_out : str
        Reason for missing densities, where they were requested.
    """

    values: dict[str, np.ndarray]
    log_likelihood: dict[str, np.ndarray]
    log_p: np.ndarray | None = None
    log_q: np.ndarray | None = None
    left_out: str = ""


class Posterior(Protocol):
    """Posterior of a fitted form, as `Method.rebuild` returns it, from a new or a saved fit."""

    @property
    def form(self) -> CompiledForm:
        """The form, compiled."""

    @property
    def unknowns(self) -> int:
        """Number of unknowns: coefficients plus hyperparameters."""

    @property
    def theta(self) -> np.ndarray:
        """Mode of the unconstrained hyperparameters, (p,)."""

    def hyper_moments(self) -> dict[str, Moments]:
        """Return the moments of the hyperparameters on their own scale."""

    def draws(
        self, size: int, rng: np.random.Generator, *, log_likelihood: bool = False, budget: float = 0.0
    ) -> JointDraws:
        """Return `size` joint draws of all variables.

        With `log_likelihood`, the densities of `JointDraws` are evaluated too. They are left out where they take more
        than `budget` multiplications and the draws themselves do not need them.
        """


class AffinePosterior(Posterior, Protocol):
    """Posterior with moments of all affine variables of a `SiteForm`."""

    def moments(self, variables: Sequence[Any] | None = None) -> dict[str, Moments]:
        """Return the moments of the given affine variables, by default of all."""


class SitePosterior(AffinePosterior, Protocol):
    """Posterior of a `SiteForm`: Gaussian given hyperparameters, with Gaussian sites in place of the factors."""

    @property
    def form(self) -> CompiledSiteForm:
        """The form, compiled."""

    @property
    def shift(self) -> np.ndarray:
        """Shifts of the sites, (n,), at the mode of the hyperparameters."""

    @property
    def precision(self) -> np.ndarray:
        """Precisions of the sites, (n,), at the mode of the hyperparameters."""

    @property
    def directions(self) -> np.ndarray:
        """D, (k, p), with D^T D the covariance of the unconstrained hyperparameters; k = 0 where they are fixed."""

    @property
    def hyper_draws(self) -> np.ndarray:
        """Unconstrained hyperparameters, (s, p), of a mixture's draws; (0, p) without a mixture."""

    @property
    def held(self) -> bool:
        """Whether the hyperparameters are fixed at one value."""

    @property
    def mode(self) -> tuple[np.ndarray, Prior, GaussianPosterior]:
        """Hyperparameters, prior and Gaussian posterior at the mode of the hyperparameters."""

    @property
    def without_sites(self) -> str:
        """Reason for missing `shift` and `precision`; empty where they exist."""

    def skewness(self, variables: Sequence[Any], sd: Mapping[str, np.ndarray]) -> dict[str, np.ndarray]:
        """Return the posterior skewness of affine variables by name, to first order in the skewness of the sites.

        `sd` has their posterior standard deviations, by name.
        """

    def components(self) -> "Iterator[tuple[float, SitePosterior]]":
        """Yield the weight and posterior of each component of a mixture, or weight one and the posterior itself."""
