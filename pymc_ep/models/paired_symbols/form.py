"""The form "pairs of symbols, drawn by popularity and censored by preference" (Paquet, Koenigstein and Winther 2014).

    p(i, j observed) = pi_i psi_j sig(a_ij),        a_ij = u_i^T v_j + b_i + c_j,

with independent Gaussian entries of U, (I, K), V, (J, K), and optional biases, Dirichlet popularities pi and psi, and
precisions that are numbers, functions of hyperparameters, or have Gamma priors. Where both sides are the same symbols
pairs have no order, and no symbol is paired with itself.
"""

from dataclasses import dataclass, field
from typing import NamedTuple

from pytensor.tensor.variable import TensorVariable

from pymc_ep.graphs.hyper_functions import LatentForm

__all__ = ["GammaPrecision", "GaussianEntries", "PairGroup", "PairedSymbolsForm", "SideOfPairs"]


class GaussianEntries(NamedTuple):
    """Independent Gaussian entries of a matrix, (I, K), or of biases, (I,).

    Attributes
    ----------
    name : str
        The random variable; empty for biases that are constants.
    stand_in : TensorVariable or None
        Placeholder of its values in all graphs of the form.
    mean, precision : TensorVariable
        Prior moments at the variable's shape, as functions of hyperparameters. A learned precision is divided by its
        Gamma variable.
    learned : int
        Index of that variable among the form's precisions; -1 without one.
    """

    name: str
    stand_in: TensorVariable | None
    mean: TensorVariable
    precision: TensorVariable
    learned: int = -1


class SideOfPairs(NamedTuple):
    """Users, or items.

    Attributes
    ----------
    factors, bias : GaussianEntries
    popularity : str
        The Dirichlet variable of the popularities.
    popularity_stand_in : TensorVariable
    concentration : TensorVariable, (I,)
    """

    factors: GaussianEntries
    bias: GaussianEntries
    popularity: str
    popularity_stand_in: TensorVariable
    concentration: TensorVariable


class GammaPrecision(NamedTuple):
    """A precision with a Gamma prior, scalar or one value for each column.

    Attributes
    ----------
    name : str
    stand_in : TensorVariable
    shape, rate : TensorVariable
        Constants of the shape of the variable.
    """

    name: str
    stand_in: TensorVariable
    shape: TensorVariable
    rate: TensorVariable


class PairGroup(NamedTuple):
    """The observed pairs.

    Attributes
    ----------
    name : str
        The observed variable.
    observed : TensorVariable of int, (D, 2) or (n, 3)
        Pairs, or rows of user, item and count.
    censored_ratio : TensorVariable, ()
        Number of censored pairs for each observed one, D' / D.
    site : None
        Pairs have no univariate site.
    """

    name: str
    observed: TensorVariable
    censored_ratio: TensorVariable
    site: None = None


@dataclass(frozen=True)
class PairedSymbolsForm(LatentForm):
    """Users, items and the pairs observed of them.

    Attributes
    ----------
    users, items : SideOfPairs
        The same object where both sides are the same symbols.
    precisions : tuple of GammaPrecision
    pairs : PairGroup
    deterministics : dict of str to TensorVariable
        Functions of hyperparameters and stand-ins.
    ignored : tuple of str
        Random variables of the model that no observed variable depends on.
    """

    users: SideOfPairs
    items: SideOfPairs
    precisions: tuple[GammaPrecision, ...]
    pairs: PairGroup
    deterministics: dict[str, TensorVariable] = field(default_factory=dict)
    ignored: tuple[str, ...] = ()

    @property
    def alike(self) -> bool:
        """Whether both sides are the same symbols."""
        return self.users is self.items

    @property
    def sides(self) -> tuple[SideOfPairs, ...]:
        """Users and items, once where they are the same."""
        return (self.users,) if self.alike else (self.users, self.items)

    @property
    def entries(self) -> tuple[GaussianEntries, ...]:
        """Matrices and biases of all sides, constant biases included."""
        return tuple(variable for side in self.sides for variable in (side.factors, side.bias))

    @property
    def stand_ins(self) -> dict[str, TensorVariable]:
        """Placeholders of all latent variables, by name."""
        out = {variable.name: variable.stand_in for variable in self.entries if variable.stand_in is not None}
        out |= {side.popularity: side.popularity_stand_in for side in self.sides}
        return out | {variable.name: variable.stand_in for variable in self.precisions}

    @property
    def latent_names(self) -> tuple[str, ...]:
        """Names of the random variables that have a posterior in closed form."""
        return tuple(self.stand_ins)

    @property
    def groups(self) -> tuple[PairGroup]:
        """The observed variables."""
        return (self.pairs,)

    @property
    def factors(self) -> tuple[PairGroup]:
        """The factors of the model: the group of pairs."""
        return self.groups
