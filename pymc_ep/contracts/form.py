"""Interfaces of forms: the symbolic structure of a model, and its compiled functions of arrays.

Every form has `Form` and `CompiledForm`: `pymc_ep.fit` needs no more to fit it and to store the result. Forms with
univariate sites on Gaussian predictors also have `SiteForm` and `CompiledSiteForm`. Evidence, predictions and
diagnostics are written against these two.
"""

from collections.abc import Mapping, Sequence
from typing import Any, Protocol, Self

import numpy as np
from pytensor.graph.basic import Variable
from pytensor.tensor.variable import TensorVariable

from pymc_ep.engines.prior import Prior
from pymc_ep.numerics.backend.namespace import Array
from pymc_ep.sites.base import Site
from pymc_ep.sites.compiled import CompiledSite

__all__ = [
    "Affine",
    "CompiledForm",
    "CompiledSiteForm",
    "Factor",
    "Form",
    "HyperDensity",
    "HyperForm",
    "Likelihood",
    "Representation",
    "SiteForm",
]


class Factor(Protocol):
    """One observed variable or potential of a form."""

    @property
    def name(self) -> str:
        """Name of the variable or potential in the model."""

    @property
    def site(self) -> Site | None:
        """Site of each observation, argument of `Method.takes` and `Method.suits`; None for a factor without a site."""


class Affine(Protocol):
    """A variable of the model that is Gaussian given the hyperparameters."""

    @property
    def name(self) -> str:
        """Name of the variable in the model."""

    @property
    def expression(self) -> TensorVariable:
        """The variable as a graph of hyperparameters and latent noise, affine in the noise."""


class Representation(Protocol):
    """Representation of a Gaussian prior and its posterior."""

    @property
    def name(self) -> str:
        """Value of the option ``solver``."""

    @property
    def sentence(self) -> str:
        """Description in the text of `pymc_ep.explain`."""

    @property
    def improper(self) -> bool:
        """Whether flat priors are allowed."""

    @property
    def exact(self) -> str:
        """Name of a representation that keeps its digits under wide priors, where this one loses them; else empty."""


class Likelihood(Factor, Protocol):
    """Univariate sites of one variable, as graphs of hyperparameters and latent noise."""

    @property
    def site(self) -> Site:
        """Site of each observation."""

    @property
    def options(self) -> dict[str, Any]:
        """Options of the site, by name, which are fixed when it is compiled."""

    @property
    def predictor(self) -> TensorVariable:
        """Predictor eta as a graph, of the shape of the observations."""

    @property
    def affine_predictor(self) -> Affine:
        """The predictor as an affine variable, for `SitePosterior.moments`."""

    @property
    def parameters(self) -> tuple[TensorVariable, ...]:
        """Site parameters, each (n,)."""

    @property
    def correlated(self) -> bool:
        """Whether the observations are one correlated vector, whose elements have no separate predictive densities."""


class Form(Protocol):
    """Symbolic structure of a model.

    `pymc_ep.graphs.hyper_functions.Hyperparameters` provides the attributes whose names start with ``hyper``.
    """

    @property
    def hyper_names(self) -> tuple[str, ...]:
        """Names of the hyperparameters, which are free random variables."""

    @property
    def hyper_values(self) -> tuple[Any, ...]:
        """Value variables of the hyperparameters."""

    @property
    def gaussian_remark(self) -> str:
        """Remark on Gaussian hyperparameters for the status of the result; empty where there is none."""

    @property
    def latent_names(self) -> tuple[str, ...]:
        """Names of the random variables that are integrated out."""

    @property
    def groups(self) -> Sequence[Factor]:
        """Observed variables."""

    @property
    def factors(self) -> Sequence[Factor]:
        """Observed variables, then potentials: `Method.takes` must accept the site of each."""


class SiteForm(Form, Protocol):
    """A form with univariate sites on predictors that are Gaussian given the hyperparameters."""

    @property
    def groups(self) -> Sequence[Likelihood]:
        """Observed variables."""

    @property
    def factors(self) -> Sequence[Likelihood]:
        """Observed variables, then potentials."""

    @property
    def predictions(self) -> Sequence[Likelihood]:
        """Likelihoods without observations, whose variables are predicted."""

    @property
    def affine(self) -> Sequence[Affine]:
        """Variables of the model that are Gaussian given the hyperparameters."""

    @property
    def blocks(self) -> Sequence[Any]:
        """Latent variables, each with a ``name`` and a bool ``flat``, true for a flat prior."""

    def made_of(self, latent: Sequence[str]) -> tuple[set[Variable], dict[str, set[Variable]]]:
        """Return the graph ancestors of all sites and of the latent variables named in `latent`, in one set.

        Also return a dict from the name of each of these latent variables to its own graph ancestors.
        """


class CompiledForm(Protocol):
    """Compiled functions of a form, on arrays.

    Attributes
    ----------
    start : ndarray, (p,)
        Unconstrained hyperparameters at the model's initial point.
    work : float
        Multiplications of the most expensive step of a fit, to an order of magnitude. It decides on threads of BLAS.
    """

    start: np.ndarray

    @property
    def form(self) -> Form:
        """The form, symbolic."""

    @property
    def work(self) -> float:
        """Multiplications of the most expensive step of a fit."""

    def observed(self) -> Sequence[np.ndarray]:
        """Return the current observations, one array for each of `form.groups`."""

    def constrained(self, theta: np.ndarray) -> dict[str, np.ndarray]:
        """Return the hyperparameters on their own scale at theta, (p,)."""

    def from_values(self, values: np.ndarray) -> np.ndarray:
        """Return theta, the form's own coordinates, (s, p), for rows of PyMC's unconstrained values, (s, p)."""

    def restart(self, hyper_start: Sequence[np.ndarray]) -> None:
        """Replace the initial values of the hyperparameters: one array for each of `form.hyper_values`."""

    def describe(self) -> str:
        """Return the text of `pymc_ep.explain`: lines of a name, two or more spaces, and a description."""


class HyperDensity(Protocol):
    """Log prior of the hyperparameters at many values."""

    def log_prior(self, theta: np.ndarray) -> np.ndarray:
        """Return the log density, (s,), of rows of theta, (s, p), Jacobian terms included."""

    def log_prior_gradients(self, theta: np.ndarray, *, jacobian: bool = True) -> tuple[np.ndarray, np.ndarray]:
        """Return the log density, (s,), and its gradients, (s, p), for rows of theta, (s, p).

        Without `jacobian` the density has no Jacobian terms.
        """


class HyperForm(CompiledForm, Protocol):
    """Compiled functions of a form whose hyperparameters are searched, integrated over or sampled.

    Attributes
    ----------
    transformed : ndarray of bool, (p,)
        Whether PyMC transforms each coordinate of theta.
    bounded : ndarray of bool, (p,)
        Whether each coordinate belongs to a variable whose support is an interval.
    """

    transformed: np.ndarray
    bounded: np.ndarray

    @property
    def rows(self) -> HyperDensity:
        """Log prior at many values of the hyperparameters at once, one in each row."""

    @property
    def operations(self) -> float:
        """Floating-point operations of one fit, to an order of magnitude, by which the number of fits is chosen."""

    @property
    def most_draws(self) -> int:
        """Default number of draws of a chain."""

    def in_values(self) -> Self:
        """Return a shallow copy of the form whose theta is the vector of PyMC's unconstrained values."""

    def to_values(self, theta: np.ndarray) -> np.ndarray:
        """Return PyMC's unconstrained values, (s, p), for rows of theta, (s, p)."""

    def unpack(self, theta: np.ndarray) -> list[np.ndarray]:
        """Return PyMC's unconstrained values at theta, (p,), in the shapes of `form.hyper_values`."""


class CompiledSiteForm(HyperForm, Protocol):
    """Compiled functions of a form with univariate sites, as EP's evidence uses them.

    Attributes
    ----------
    sites : list of CompiledSite
        One for each of `form.factors`.
    """

    sites: list[CompiledSite]

    @property
    def form(self) -> SiteForm:
        """The form, symbolic."""

    @property
    def solver(self) -> Representation:
        """Representation of the Gaussian prior."""

    @property
    def varying_parameters(self) -> tuple[bool, ...]:
        """Whether the site parameters of each factor depend on hyperparameters."""

    def solve_in(self, solver: str) -> None:
        """Select the representation of the Gaussian prior, by name or ``"auto"``."""

    def prior(self, theta: np.ndarray) -> Prior:
        """Return the Gaussian prior of all predictors, with site parameters and log prior, at theta, (p,)."""

    def origins(self) -> Sequence[np.ndarray]:
        """Return the origins from which predictors are counted, (n,) for each factor: the observations, or zeros."""

    def residuals(self) -> Sequence[np.ndarray]:
        """Return the observations of each factor, (n,), counted from the origins of their predictors."""

    def typical_sites(self, prior: Prior) -> tuple[np.ndarray, np.ndarray]:
        """Return shift and precision of sites, (n,) each, with a predictor's typical moments under its factor alone."""

    def first_sites(self, prior: Prior) -> tuple[np.ndarray, np.ndarray] | None:
        """Return shift and precision of all sites, (n,) each, where a fit starts; None to let the engine choose."""

    def pullback(
        self,
        theta: np.ndarray,
        mean: Array,
        array: Array | None,
        parameters: Sequence[Sequence[Array]],
        *,
        density: str,
    ) -> np.ndarray:
        """Return the gradient in theta, (p,), of log prior + log excess + f, for a function f of a `Prior`.

        `mean`, `array` and `parameters` are the gradients of f in the prior means, (n,), in the array of the Gaussian
        that its method `cotangent` differentiates in, and in the site parameters. `density` is as in `LogEvidence`.
        """

    def require_distances(self, theta: np.ndarray, at: str) -> None:
        """Raise where squared distances in a covariance function have large rounding errors; `at` is theta in words."""

    def distance_cure(self, theta: np.ndarray) -> str:
        """Return the cure, a sentence for messages, where squared distances lose digits at theta; empty if none do."""

    def coefficient_places(self, theta: np.ndarray) -> list[tuple[str, tuple[int, ...]]]:
        """Return, for each coefficient of the solver, the name of its variable and the index within it."""

    def site_at(self, theta: np.ndarray, group: Likelihood) -> tuple[CompiledSite, list[np.ndarray]]:
        """Return the compiled site of a likelihood, and its parameters at theta; the likelihood may be a prediction."""

    def fitted_to(self, data: Mapping[Any, np.ndarray]) -> Self | None:
        """Return a form whose prior is for `data`, the data of an earlier fit, as values by shared variable.

        Its affine variables are for the present data. None if there is no such form.
        """

    def subset(self, name: str, kept: np.ndarray) -> Self | None:
        """Return the form whose variable `name` has only the observations at the ravelled indices `kept`, (m,).

        None if there is no such form.
        """
