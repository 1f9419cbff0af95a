"""Arrays of the paired-symbol model: pairs, priors and posterior factors."""

from typing import Any, NamedTuple

import numpy as np
from scipy.sparse import coo_array

from pymc_ep.models.paired_symbols.kernel import Cells, Priors, Symbols

__all__ = [
    "Block",
    "GammaFactor",
    "PairCounts",
    "PairedPrior",
    "Points",
    "Popularity",
    "Rows",
    "Side",
    "expected_priors",
    "first_symbols",
    "rows_of",
]


_FIRST_SCALE = 0.1
"""Standard deviation of the first means about the prior means, in prior standard deviations."""


class PairCounts(NamedTuple):
    """Observed pairs as cells of a count matrix.

    Attributes
    ----------
    by_user, by_item : Cells
        The same cells, with users and with items as own symbols.
    users, items : ndarray, (I,) and (J,)
        Number of pairs of each user and of each item.
    rows : ndarray or slice
        Positions of the users among the users of all parts.
    """

    by_user: Cells
    by_item: Cells
    users: np.ndarray
    items: np.ndarray
    rows: Any = slice(None)

    @property
    def total(self) -> float:
        """Number of pairs D."""
        return float(self.users.sum())

    @classmethod
    def of(cls, users: np.ndarray, items: np.ndarray, counts: np.ndarray, shape: tuple[int, int]) -> "PairCounts":
        """Return the cells of users, items and counts, (n,) each; cells that are listed twice are added up."""
        table = coo_array((counts.astype(float, copy=False), (users, items)), shape=shape).tocsr()
        table.eliminate_zeros()
        # Of either order rows are the own symbols, and the others ascend within a row.
        by_user, by_item = (
            Cells(matrix.indptr.astype(np.int64), matrix.indices.astype(np.int32, copy=False), matrix.data)
            for matrix in (table, table.tocsc())
        )
        return cls(by_user, by_item, table.sum(axis=1), table.sum(axis=0))


class GammaFactor(NamedTuple):
    """Gamma density of a precision, scalar or one for each column.

    Attributes
    ----------
    shape, rate : ndarray, () or (K,)
    """

    shape: np.ndarray
    rate: np.ndarray


class Block(NamedTuple):
    """Prior of the factors or the biases of one side.

    Attributes
    ----------
    mean, precision : ndarray, (I, K) or (I,)
        Prior means and precisions. A learned precision is `precision` times a variable with a Gamma density.
    learned : int
        Index of this Gamma density in `PairedPrior.gammas`; -1 without one.
    """

    mean: np.ndarray
    precision: np.ndarray
    learned: int = -1


class Side(NamedTuple):
    """Prior of the users, or of the items.

    Attributes
    ----------
    factors, bias : Block
    concentration : ndarray, (I,)
        Concentrations of the Dirichlet prior of the popularities.
    """

    factors: Block
    bias: Block
    concentration: np.ndarray


class PairedPrior(NamedTuple):
    """Prior of all unknowns.

    Attributes
    ----------
    users, items : Side
    gammas : tuple of GammaFactor
        Priors of the precisions that are learned.
    censored_ratio : float
        Number of censored pairs per observed pair, D' / D.
    log_prior : float
        Log density of the hyperparameters.
    """

    users: Side
    items: Side
    gammas: tuple[GammaFactor, ...]
    censored_ratio: float
    log_prior: float = 0.0


class Popularity(NamedTuple):
    """Posterior of the popularities of one side.

    Attributes
    ----------
    concentration : ndarray, (I,)
        Concentrations of the Dirichlet posterior.
    censored : ndarray, (I,)
        Posterior probabilities, s or t, of each symbol to be the one in a censored pair; they sum to one over the side.
    """

    concentration: np.ndarray
    censored: np.ndarray

    @classmethod
    def of(cls, prior: np.ndarray, counts: np.ndarray, number: float, censored: np.ndarray) -> "Popularity":
        """Return the posterior, given the posterior `censored` of a censored symbol; all arrays are (I,)."""
        # alpha_i = alpha0_i + c_i + D' s_i.
        return cls(prior + counts + number * censored, censored)


class Rows(NamedTuple):
    """Posterior factors of the users, or of the items.

    Attributes
    ----------
    symbols : Symbols
    popularity : Popularity
    """

    symbols: Symbols
    popularity: Popularity


class Points(NamedTuple):
    """Whether the factors, and the biases, of one side are points, of variance zero, instead of Gaussians."""

    factors: bool = False
    bias: bool = False

    def of(self, symbols: Symbols) -> Symbols:
        """Return symbols with variances of zero where they are points."""
        if self.factors:
            symbols = symbols._replace(variance=np.zeros_like(symbols.variance))
        return symbols._replace(bias_variance=np.zeros_like(symbols.bias_variance)) if self.bias else symbols


def rows_of(values: Any, rows: Any) -> Any:
    """Return some rows of an array, or of the arrays in nested tuples; other values are returned unchanged."""
    if isinstance(values, np.ndarray):
        return values[rows]
    if isinstance(values, tuple):
        return type(values)(*(rows_of(field, rows) for field in values))
    return values


def expected_priors(side: Side, gammas: tuple[GammaFactor, ...]) -> Priors:
    """Return prior means and the expected prior precisions of one side, given the posteriors of learned precisions."""
    factors, bias = (
        # E tau = shape / rate.
        block.precision * (1.0 if block.learned < 0 else gammas[block.learned].shape / gammas[block.learned].rate)
        for block in (side.factors, side.bias)
    )
    return Priors(side.factors.mean, factors, side.bias.mean, bias)


def first_symbols(side: Side, gammas: tuple[GammaFactor, ...], rng: np.random.Generator) -> Symbols:
    """Return symbols with prior variances and random means near prior means: zero means are a saddle of the bound."""
    priors = expected_priors(side, gammas)
    sd = 1.0 / np.sqrt(priors.precision)
    mean = priors.mean + _FIRST_SCALE * sd * rng.standard_normal(sd.shape)
    return Symbols(mean, sd**2, priors.bias.copy(), 1.0 / priors.bias_precision)
