"""The form "pairwise comparisons by users whose utilities share a Gaussian prior" (Khan, Ko and Seeger 2014).

f_u ~ N(b, V V^T + sigma^2 K),        P(i beats j | u) = t(f_ui - f_uj).
"""

from dataclasses import dataclass, field
from typing import NamedTuple

from pytensor.tensor.variable import TensorVariable

from pymc_ep.graphs.hyper_functions import LatentForm
from pymc_ep.sites.base import Site

__all__ = ["ComparisonGroup", "Preferences", "PriorGraphs"]


class PriorGraphs(NamedTuple):
    """Parameters of the prior of utilities, as functions of hyperparameters.

    Attributes
    ----------
    mean : TensorVariable, (I,)
    factors : TensorVariable, (I, D)
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
        The observed variable.
    site : Site
    observed : TensorVariable, (P,)
        One where the first item won, zero where the second did.
    users : TensorVariable, (P,), optional
        None for utilities of one user.
    firsts, seconds : TensorVariable, (P,)
        Items.
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
        The random variable of the utilities.
    stand_in : TensorVariable, (U, I) or (I,)
        Placeholder of its values in `deterministics`.
    shape : tuple of TensorVariable
        Numbers of users, unless there is one, and of items.
    prior : PriorGraphs
    variables : dict of str to str
        Hyperparameters that are parameters of the prior by themselves, by these ("mean", "factors", "sigma").
    flat : frozenset of str
        The parameters among these that have a flat prior.
    comparisons : ComparisonGroup
    deterministics : dict of str to TensorVariable
        Functions of hyperparameters and utilities.
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
        """Placeholder of the utilities, by name."""
        return {self.utilities: self.stand_in}

    @property
    def latent_names(self) -> tuple[str, ...]:
        """Name of the utilities, which have a Gaussian posterior."""
        return tuple(self.stand_ins)

    @property
    def groups(self) -> tuple[ComparisonGroup]:
        """The observed variables."""
        return (self.comparisons,)

    @property
    def factors(self) -> tuple[ComparisonGroup]:
        """The factors of the model: the comparisons."""
        return self.groups
