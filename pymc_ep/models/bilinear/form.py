"""The form "likelihoods of inner products of rows of two Gaussian matrices, at some cells" (Ko and Khan 2014, eq. 1).

    f_c = v_{i(c)}^T u_{j(c)} + b_{i(c)} + c_{j(c)} + offset_c,        y_c ~ p(y | f_c),

with independent Gaussian rows of V, (I, D), and U, (J, D), and optional biases b, (I,), and c, (J,).
"""

from dataclasses import dataclass, field
from typing import Any

from pytensor.tensor.variable import TensorVariable

from pymc_ep.graphs.hyper_functions import LatentForm
from pymc_ep.sites.cells.base import CellSite

__all__ = ["Bilinear", "CellGroup", "Entries"]


@dataclass(frozen=True)
class Entries:
    """A matrix of independent Gaussian rows, or a bias of independent Gaussian entries.

    Attributes
    ----------
    name : str
        Name of the random variable.
    stand_in : TensorVariable
        Placeholder of the random variable's values in all graphs of the form.
    shape : tuple of TensorVariable
        (I, D) of a matrix, (I,) of a bias.
    mean, variance : TensorVariable or None
        Prior moments of each entry as functions of hyperparameters; None for a flat prior.
    covariance : TensorVariable, (D, D), optional
        Covariance of each row of a matrix, if its entries are dependent.
    """

    name: str
    stand_in: TensorVariable
    shape: tuple[TensorVariable, ...]
    mean: TensorVariable | None
    variance: TensorVariable | None
    covariance: TensorVariable | None = None

    @property
    def moments(self) -> tuple[TensorVariable, ...]:
        """Prior moments as functions of hyperparameters: mean, variance and covariance, as far as they are not None."""
        return tuple(moment for moment in (self.mean, self.variance, self.covariance) if moment is not None)

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
        Name of the observed variable.
    site : CellSite
        Likelihood.
    observed : TensorVariable
        Observations, (n,), or (I, J) where all cells of a matrix are observed.
    shape : tuple of TensorVariable
        Shape that the observed variable must have.
    rows, cols : TensorVariable of int, (n,)
        Row of V and row of U of each cell.
    offset : TensorVariable, (n,)
        Constant of each predictor, a function of hyperparameters.
    parameters : tuple of TensorVariable, (n,)
        Parameters of the likelihood.
    link : str
        Name of the link, for `explain`.
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
class Bilinear(LatentForm):
    """Two Gaussian matrices, optional biases, and cells.

    Attributes
    ----------
    matrices : pair of Entries
        The left matrix V, (I, D), and the right matrix U, (J, D).
    biases : pair of Entries or None
        Biases of the rows of V, (I,), and of U, (J,).
    cells : CellGroup
    nested : dict of str to str
        Maps each hyperparameter whose prior scale is another hyperparameter to the other one.
    deterministics : dict of str to TensorVariable
        Functions of hyperparameters and stand-ins.
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
    def stand_ins(self) -> dict[str, TensorVariable]:
        """Placeholders of matrices and biases, by name."""
        return {entry.name: entry.stand_in for entry in self.entries}

    @property
    def latent_names(self) -> tuple[str, ...]:
        """Names of the random variables that are integrated out."""
        return tuple(self.stand_ins)

    @property
    def groups(self) -> tuple[Any, ...]:
        """The observed variables."""
        return (self.cells,)

    @property
    def factors(self) -> tuple[Any, ...]:
        """Factors whose sites a method must support: the cells."""
        return self.groups
