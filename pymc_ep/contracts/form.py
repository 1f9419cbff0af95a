"""Forms: what a model is, symbolically, and as functions of arrays.

`Form` and `CompiledForm` are what every form offers, so that `pymc_ep.fit` can fit it and store the result. `SiteForm`
and `CompiledSiteForm` are what forms with univariate sites on Gaussian predictors offer beyond: evidence, predictions
and diagnostics are written against these.
"""

from collections.abc import Mapping, Sequence
from typing import Any, Protocol, Self

import numpy as np
from pytensor.graph.basic import Variable
from pytensor.tensor.variable import TensorVariable

from pymc_ep.engines.prior import Prior
from pymc_ep.sites.base import Site
from pymc_ep.sites.compiled import CompiledSite

__all__ = ["CompiledForm", "CompiledSiteForm", "Factor", "Form", "Likelihood", "SiteForm"]


class Factor(Protocol):
    """One observed variable or potential of a form."""

    @property
    def name(self) -> str:
        """The variable of the model."""

    @property
    def site(self) -> Any:
        """What methods are asked whether they can work with; None for whatever has no site."""


class Likelihood(Factor, Protocol):
    """The univariate sites of one variable, with graphs in terms of hyperparameters and latent noise."""

    @property
    def site(self) -> Site:
        """The site of each observation."""

    @property
    def options(self) -> dict[str, Any]:
        """Static options of the site."""

    @property
    def predictor(self) -> TensorVariable:
        """eta, of the shape of the observations."""

    @property
    def parameters(self) -> tuple[TensorVariable, ...]:
        """Site parameters, each (n,)."""

    @property
    def correlated(self) -> bool:
        """Whether the observations are one vector, whose values have no predictive distributions of their own."""


class Form(Protocol):
    """What a model is, symbolically. `pymc_ep.graphs.hyper_functions.Hyperparameters` has the parts named hyper."""

    @property
    def hyper_names(self) -> tuple[str, ...]:
        """Free random variables that are hyperparameters."""

    @property
    def hyper_values(self) -> tuple[Any, ...]:
        """Their value variables."""

    @property
    def gaussian_remark(self) -> str:
        """A remark for the status of the result, or an empty string."""

    @property
    def latent_names(self) -> tuple[str, ...]:
        """Random variables that are integrated out."""

    @property
    def groups(self) -> Sequence[Factor]:
        """The observed variables."""

    @property
    def factors(self) -> Sequence[Factor]:
        """All that a method must be able to work with: the observed variables, and potentials where there are any."""


class SiteForm(Form, Protocol):
    """A form with univariate sites on predictors that are Gaussian given the hyperparameters."""

    @property
    def groups(self) -> Sequence[Likelihood]:
        """The observed variables."""

    @property
    def factors(self) -> Sequence[Likelihood]:
        """The observed variables, and potentials where there are any."""

    @property
    def predictions(self) -> Sequence[Likelihood]:
        """Likelihoods without observations, to predict."""

    @property
    def affine(self) -> Sequence[Any]:
        """Variables of the model that are Gaussian given the hyperparameters, each with a ``name``."""

    @property
    def blocks(self) -> Sequence[Any]:
        """Latent variables, each with a ``name`` and whether its prior is ``flat``."""

    def made_of(self, latent: Sequence[str]) -> tuple[set[Variable], dict[str, set[Variable]]]:
        """Return the variables behind sites and latent variables, and those behind each latent variable named."""


class CompiledForm(Protocol):
    """Functions of arrays that a form has.

    Attributes
    ----------
    form : Form
    start : ndarray, (p,)
        Unconstrained hyperparameters at the model's initial point.
    work : float
        Multiplications of the dearest step of a fit, to an order of magnitude: they decide on threads of BLAS.
    """

    form: Any
    start: np.ndarray

    @property
    def work(self) -> float:
        """Multiplications of the dearest step of a fit."""

    def observed(self) -> Sequence[np.ndarray]:
        """Return the present observations, an array for each of `form.groups`."""

    def constrained(self, theta: np.ndarray) -> dict[str, np.ndarray]:
        """Return the hyperparameters on their own scale at theta, (p,)."""

    def from_values(self, values: np.ndarray) -> np.ndarray:
        """Return theta for rows of PyMC's unconstrained values, (s, p)."""

    def restart(self, hyper_start: Sequence[np.ndarray]) -> None:
        """Take other initial values of the hyperparameters."""

    def describe(self) -> str:
        """Return lines of a name and a text, apart by two spaces or more, for `pymc_ep.explain`."""


class HyperDensity(Protocol):
    """The prior of hyperparameters at many values of them."""

    def log_prior(self, theta: np.ndarray) -> np.ndarray:
        """Return the log density of theta, Jacobian terms included, for rows (s, p)."""

    def log_prior_gradients(self, theta: np.ndarray) -> tuple[np.ndarray, np.ndarray]:
        """Return what `log_prior` returns and its gradients, (s, p)."""


class CompiledSiteForm(CompiledForm, Protocol):
    """What evidence, its maximisation and its integration take of a form.

    Attributes
    ----------
    form : SiteForm
    sites : list of CompiledSite
        Of each of `form.factors`.
    transformed : ndarray of bool, (p,)
        Whether PyMC transforms a coordinate of theta.
    most_draws : int
        Draws of a chain where no number is asked for.
    sweep : float
        Time of a sweep of EP, in that of `work` multiplications.
    """

    form: Any
    sites: list[CompiledSite]
    transformed: np.ndarray
    most_draws: int
    sweep: float

    @property
    def rows(self) -> HyperDensity:
        """Functions of many values of the hyperparameters."""

    @property
    def solver(self) -> Any:
        """The space that priors are held in; ``improper`` says whether it takes flat priors."""

    @property
    def varying_parameters(self) -> tuple[bool, ...]:
        """Whether site parameters of each factor depend on hyperparameters."""

    def solve_in(self, solver: str) -> None:
        """Choose the space that priors are held in, by name or ``"auto"``."""

    def in_values(self) -> Self:
        """Return the same form whose theta is PyMC's unconstrained values alone."""

    def to_values(self, theta: np.ndarray) -> np.ndarray:
        """Return PyMC's unconstrained values for rows of theta, (s, p)."""

    def unpack(self, theta: np.ndarray) -> list[np.ndarray]:
        """Return PyMC's unconstrained values at theta, (p,), in the shapes of `form.hyper_values`."""

    def prior(self, theta: np.ndarray) -> Prior:
        """Return means, covariance and site parameters at theta, (p,)."""

    def first_sites(self, prior: Prior) -> tuple[np.ndarray, np.ndarray] | None:
        """Return shift and precision of all sites, (n,) each, to start from; None where zeros will do."""

    def pullback(
        self, theta: np.ndarray, mean: Any, array: Any, parameters: Sequence[Sequence[Any]], *, density: str
    ) -> np.ndarray:
        """Return the gradient in theta, (p,), of a function of the prior whose own gradients are given."""

    def coefficient_places(self, theta: np.ndarray) -> list[tuple[str, tuple[int, ...]]]:
        """Return the variable behind each coefficient of the solver, and the index in it."""

    def site_at(self, theta: np.ndarray, group: Any) -> tuple[CompiledSite, list[np.ndarray]]:
        """Return the compiled site of any likelihood, one to predict included, and its parameters at theta."""

    def fitted_to(self, data: Mapping[Any, np.ndarray]) -> Self | None:
        """Return the form with the prior of a fit to other data, given by shared variable; None where there is none."""
