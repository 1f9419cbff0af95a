"""The form "pairs of symbols, drawn by popularity and censored by preference" (Paquet, Koenigstein and Winther 2014).

    p(i, j observed) = pi_i psi_j sig(a_ij),        a_ij = u_i^T v_j + b_i + c_j,

with the logistic function sig, rows u_i of U, (I, K), and v_j of V, (J, K), biases b and c, and popularities pi and
psi. Entries of U and V are independent Gaussians. Biases are too, or are constants, and popularities are Dirichlet.
Prior precisions are constants, functions of hyperparameters, or have Gamma priors. Where both sides are the same
symbols, pairs have no order, and no symbol is paired with itself.
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
        Name of the random variable; empty for biases that are constants.
    stand_in : TensorVariable or None
        Placeholder of the variable's values in all graphs of the form; None for constants.
    mean, precision : TensorVariable
        Prior mean and precision in the variable's shape, as functions of hyperparameters. If the precision is a factor
        times a variable with a Gamma prior, only the factor.
    learned : int
        Index of that Gamma variable among the form's precisions; -1 without one.
    """

    name: str
    stand_in: TensorVariable | None
    mean: TensorVariable
    precision: TensorVariable
    learned: int = -1


class SideOfPairs(NamedTuple):
    """Variables of the users, or of the items.

    Attributes
    ----------
    factors, bias : GaussianEntries
    popularity : str
        Name of the Dirichlet variable of the popularities.
    popularity_stand_in : TensorVariable
        Placeholder of the popularities in all graphs of the form.
    concentration : TensorVariable, (I,)
        Concentrations of the Dirichlet prior.
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
        Parameters of the Gamma prior, constants in the shape of the variable.
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
        Name of the observed variable.
    observed : TensorVariable of int, (D, 2) or (n, 3)
        Pairs, or rows of user, item and count.
    censored_ratio : TensorVariable, ()
        Number of censored pairs per observed pair, D' / D.
    site : None
        Pairs have no univariate site.
    """

    name: str
    observed: TensorVariable
    censored_ratio: TensorVariable
    site: None = None


@dataclass(frozen=True)
class PairedSymbolsForm(LatentForm):
    """A model of pairs: users, items, precisions with Gamma priors, and the observed pairs.

    Attributes
    ----------
    users, items : SideOfPairs
        The same object where both sides are the same symbols.
    precisions : tuple of GammaPrecision
        Variables with Gamma priors to which prior precisions are proportional.
    pairs : PairGroup
    deterministics : dict of str to TensorVariable
        Deterministic variables by name, as functions of hyperparameters and stand-ins.
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
        """Users and items, or one entry where both are the same symbols."""
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
