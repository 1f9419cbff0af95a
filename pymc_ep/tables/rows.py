"""Interface of fits with two matrices of rows, such as users and items: rows of one are ranked for the other's."""

from collections.abc import Mapping
from typing import Any, NamedTuple, Protocol, TypeVar

import numpy as np
import pymc as pm
import xarray as xr

from pymc_ep.evidence.fit_mixture import FitMixture, FullPosterior
from pymc_ep.exceptions import UnsupportedModelError
from pymc_ep.numerics.pairs import Pairs

__all__ = ["Ranked", "RankedBlock", "RowPredictions", "Rows", "at_one_value", "best_first"]

Own = TypeVar("Own", bound=FullPosterior)
"""Posterior of a form at one value of the hyperparameters."""


class Ranked(NamedTuple):
    """Rankings of n rows of the other side for each of k rows, the best first.

    Attributes
    ----------
    others : ndarray of int, (k, n)
        Positions of the ranked rows.
    values : dict of str to ndarray, (k, n)
        Values of each pair, by their names in the result.
    """

    others: np.ndarray
    values: dict[str, np.ndarray]


def best_first(others: np.ndarray, values: Mapping[str, np.ndarray], scores: np.ndarray) -> Ranked:
    """Return rows of the other side and their values, (k, n) each, sorted in each row by falling scores, (k, n)."""
    order = np.argsort(-scores, axis=1, kind="stable")
    ordered = {name: np.take_along_axis(array, order, axis=1) for name, array in values.items()}
    return Ranked(np.take_along_axis(others, order, axis=1), ordered)


def at_one_value(posterior: Own | FitMixture[Own]) -> Own:
    """Return the posterior; raise UnsupportedModelError if hyperparameters were sampled."""
    if not isinstance(posterior, FitMixture):
        return posterior
    names = ", ".join(posterior.form.form.hyper_names)
    raise UnsupportedModelError(
        f"Rows are ranked, compared and folded in at one value of the hyperparameters, and this fit has draws of "
        f"{names}; fit with hyper='fixed' and start={{...}}, such as the posterior means, or use log_predictive."
    )


class RankedBlock(Protocol):
    """k rows of one matrix with all J rows of the other.

    Attributes
    ----------
    scores : ndarray, (k, J)
        Score of each pair; larger is better.
    log_weights : bool
        Whether each row of scores holds log probabilities of the J rows, up to a constant.
    """

    scores: np.ndarray
    log_weights: bool

    def ranked(self, others: np.ndarray) -> Ranked:
        """Return the given rows of the other matrix, `others`, (k, n), the best first, with each pair's values."""


class Rows(Protocol):
    """Rows of one matrix, fitted or folded in, for which all rows of the other matrix are ranked."""

    @property
    def seen(self) -> Pairs:
        """Observed pairs, whose own rows are these rows and are numbered in the same order."""

    @property
    def n_others(self) -> int:
        """Number of rows of the other side."""

    @property
    def numbers_per_pair(self) -> int:
        """Number of array elements that `block` takes for each pair."""

    def block(self, indices: np.ndarray, by: str) -> RankedBlock:
        """Return k rows, at `indices`, with all rows of the other matrix; `by` is one of `RowPredictions.by`."""


class RowPredictions(Protocol):
    """Predictions of the rows of two matrices, from which `row_verbs` makes `pymc_ep.recommend` and its siblings."""

    def rebuild(self, idata: Any, model: pm.Model) -> Any:
        """Return the posterior of a fit; raise a ValueError unless the fit is of the present model."""

    def names(self, posterior: Any) -> tuple[str, str]:
        """Return the names of the two matrices."""

    def sizes(self, posterior: Any) -> tuple[int, int]:
        """Return the numbers of rows of the two matrices."""

    def factors(self, posterior: Any, side: int) -> np.ndarray:
        """Return the posterior means of a matrix, (I, K)."""

    def rows(self, posterior: Any, side: int, cells: Mapping[str, Any]) -> Rows:
        """Return the fitted rows of a side; `cells` are further values of each pair, such as an offset."""

    def folded(self, posterior: Any, side: int, new: xr.Dataset, cells: Mapping[str, Any]) -> Rows:
        """Return the rows of a side in `new`, which `fold_in` returned; `cells` as in `rows`."""

    def fold_in(self, model: pm.Model, posterior: Any, side: int, dims: tuple[str, str], given: Any) -> xr.Dataset:
        """Return the posterior of new rows of a side, given their observations."""

    def by(self, posterior: Any, side: int) -> tuple[str, ...]:
        """Return the names of scores by which rows can be ranked for rows of `side`, the default first."""

    def remark(self, posterior: Any) -> str:
        """Return the definition of the probability by which rows are ranked; raise where there is none."""
