"""The form "likelihoods of inner products of rows of two Gaussian matrices, at some cells" (Ko and Khan 2014, eq. 1).

    f_c = v_{i(c)}^T u_{j(c)} + b_{i(c)} + c_{j(c)} + offset_c,        y_c ~ p(y | f_c),

with independent Gaussian entries of V, (I, D), U, (J, D), and of the biases b and c where there are any.
"""

from dataclasses import dataclass, field
from typing import Any

from pytensor.tensor.variable import TensorVariable

from pymc_ep.graphs.hyper_functions import Hyperparameters
from pymc_ep.sites.cells.likelihoods import CellSite

__all__ = ["Bilinear", "CellGroup", "Entries"]


@dataclass(frozen=True)
class Entries:
    """A matrix of independent Gaussian rows, or a bias of independent Gaussian entries.

    Attributes
    ----------
    name : str
        The random variable.
    stand_in : TensorVariable
        For its values in all graphs of the form.
    shape : tuple of TensorVariable
    mean, variance : TensorVariable or None
        Of that shape, in terms of hyperparameters; None for a flat prior.
    covariance : TensorVariable, (D, D), optional
        Of each row of a matrix, where its entries are not independent.
    """

    name: str
    stand_in: TensorVariable
    shape: tuple[TensorVariable, ...]
    mean: TensorVariable | None
    variance: TensorVariable | None
    covariance: TensorVariable | None = None

    @property
    def parts(self) -> tuple[TensorVariable, ...]:
        """What of the prior hyperparameters decide."""
        return tuple(part for part in (self.mean, self.variance, self.covariance) if part is not None)

    @property
    def flat(self) -> bool:
        """Whether the prior is flat."""
        return self.mean is None


@dataclass(frozen=True)
class CellGroup:
    """The observed cells.

    Attributes
    ----------
    name : str
        The observed variable.
    site : CellSite
    observed : TensorVariable
        (n,), or (I, J) where all cells of a matrix are observed.
    shape : tuple of TensorVariable
        That the observed variable should have.
    rows, cols : TensorVariable of int, (n,)
    offset : TensorVariable, (n,)
        In terms of hyperparameters.
    parameters : tuple of TensorVariable, (n,)
        Of the likelihood.
    link : str
        For `explain`.
    """

    name: str
    site: CellSite
    observed: TensorVariable
    shape: tuple[TensorVariable, ...]
    rows: TensorVariable
    cols: TensorVariable
    offset: TensorVariable
    parameters: tuple[TensorVariable, ...]
    link: str


@dataclass(frozen=True)
class Bilinear(Hyperparameters):
    """Two Gaussian matrices, maybe with biases, and cells.

    Attributes
    ----------
    matrices : pair of Entries
        The left and the right one, (I, D) and (J, D).
    biases : pair of Entries or None
        (I,) and (J,).
    cells : CellGroup
    nested : dict of str to str
        Hyperparameters whose prior has another one as its scale, and that one.
    deterministics : dict of str to TensorVariable
        In terms of hyperparameters and stand-ins.
    ignored : tuple of str
        Random variables of the model that no observed variable depends on.
    """

    matrices: tuple[Entries, Entries]
    biases: tuple[Entries | None, Entries | None]
    cells: CellGroup
    nested: dict[str, str] = field(default_factory=dict)
    deterministics: dict[str, TensorVariable] = field(default_factory=dict)
    ignored: tuple[str, ...] = ()

    @property
    def entries(self) -> tuple[Entries, ...]:
        """Matrices and biases."""
        return (*self.matrices, *(bias for bias in self.biases if bias is not None))

    @property
    def latent_names(self) -> tuple[str, ...]:
        """Names of the random variables that are integrated out."""
        return tuple(one.name for one in self.entries)

    @property
    def groups(self) -> tuple[Any, ...]:
        """The observed variables."""
        return (self.cells,)

    @property
    def factors(self) -> tuple[Any, ...]:
        """What engines say whether they can work with."""
        return self.groups
