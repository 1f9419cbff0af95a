"""The form "pairwise comparisons by users whose utilities share a Gaussian prior" (Khan, Ko and Seeger 2014).

User u has the utilities f_u, (I,), of I items, and prefers item i to item j with a probability t, probit or logit:

    f_u ~ N(b, V V^T + sigma^2 K),        P(i beats j | u) = t(f_ui - f_uj).
"""

from dataclasses import dataclass, field
from typing import NamedTuple

from pytensor.tensor.variable import TensorVariable

from pymc_ep.graphs.hyper_functions import LatentForm
from pymc_ep.sites.base import Site

__all__ = ["ComparisonGroup", "Preferences", "PriorGraphs"]


class PriorGraphs(NamedTuple):
    """Graphs of the parameters of a user's prior N(b, V V^T + sigma^2 K), with hyperparameters as inputs.

    Attributes
    ----------
    mean : TensorVariable, (I,)
        b.
    factors : TensorVariable, (I, D)
        V.
    kernel : tuple of TensorVariable
        K, (I, I); or R, (I, r), and j of a kernel R R^T + j I.
    sigma : TensorVariable, ()
    """

    mean: TensorVariable
    factors: TensorVariable
    kernel: tuple[TensorVariable, ...]
    sigma: TensorVariable


class ComparisonGroup(NamedTuple):
    """The observed comparisons.

    Attributes
    ----------
    name : str
        Name of the observed variable.
    site : Site
        Likelihood of an outcome, given the difference of the two utilities.
    observed : TensorVariable, (P,)
        One where the first item won, zero where the second did.
    users : TensorVariable, (P,), optional
        Positions of the users; None for utilities of one user.
    firsts, seconds : TensorVariable, (P,)
        Positions of the two items of each comparison.
    """

    name: str
    site: Site
    observed: TensorVariable
    users: TensorVariable | None
    firsts: TensorVariable
    seconds: TensorVariable


@dataclass(frozen=True)
class Preferences(LatentForm):
    """Utilities of users, and the comparisons made by them.

    Attributes
    ----------
    utilities : str
        Name of the random variable of the utilities.
    stand_in : TensorVariable, (U, I) or (I,)
        Placeholder for the values of the utilities in `deterministics`.
    shape : tuple of TensorVariable
        Shape of the utilities: (U, I) for U users and I items, or (I,) for one user.
    prior : PriorGraphs
    variables : dict of str to str
        Names of the hyperparameters that are b, V or sigma themselves, under the keys "mean", "factors" and "sigma".
    flat : frozenset of str
        Keys of `variables` whose hyperparameter has a flat prior.
    comparisons : ComparisonGroup
    deterministics : dict of str to TensorVariable
        Functions of hyperparameters and utilities, by name.
    ignored : tuple of str
        Random variables of the model that no observed variable depends on.
    """

    utilities: str
    stand_in: TensorVariable
    shape: tuple[TensorVariable, ...]
    prior: PriorGraphs
    variables: dict[str, str]
    flat: frozenset[str]
    comparisons: ComparisonGroup
    deterministics: dict[str, TensorVariable] = field(default_factory=dict)
    ignored: tuple[str, ...] = ()

    @property
    def stand_ins(self) -> dict[str, TensorVariable]:
        """Placeholder for the values of the utilities, by their name."""
        return {self.utilities: self.stand_in}

    @property
    def latent_names(self) -> tuple[str, ...]:
        """Name of the utilities, in a tuple: they have a Gaussian posterior."""
        return tuple(self.stand_ins)

    @property
    def groups(self) -> tuple[ComparisonGroup]:
        """The observed variables."""
        return (self.comparisons,)

    @property
    def factors(self) -> tuple[ComparisonGroup]:
        """The factors of the model: the comparisons."""
        return self.groups
