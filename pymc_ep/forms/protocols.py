"""What every form offers, whoever has written it, so that `pymc_ep.fit` can fit it and store the result."""

from collections.abc import Sequence
from typing import Any, Protocol

import numpy as np

__all__ = ["CompiledForm", "Factor", "Form"]


class Factor(Protocol):
    """One observed variable or potential of a form."""

    @property
    def name(self) -> str:
        """The variable of the model."""

    @property
    def site(self) -> Any:
        """What engines are asked whether they can work with; None for whatever has no site."""


class Form(Protocol):
    """What a model is, symbolically. `pymc_ep.forms.hyperparameters.Hyperparameters` has the parts named hyper."""

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
        """All that engines must be able to work with: the observed variables, and potentials where there are any."""


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
