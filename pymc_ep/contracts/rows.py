"""Interface of fits with two matrices of rows, such as users and items: rankings of one side for the other."""

from collections.abc import Mapping
from typing import Any, NamedTuple, Protocol

import numpy as np
import pymc as pm
import xarray as xr

from pymc_ep.kernels.inner_products import Pairs

__all__ = ["Ranked", "RowPredictions", "Rows"]


class Ranked(NamedTuple):
    """Rows of the other side, the best of each row first.

    Attributes
    ----------
    others : ndarray of int, (k, n)
    values : dict of str to ndarray, (k, n)
        What is known of each pair, under the names of the result.
    """

    others: np.ndarray
    values: dict[str, np.ndarray]


class Rows(Protocol):
    """Rows of one matrix, fitted or folded in, which are ranked against all rows of the other."""

    @property
    def seen(self) -> Pairs:
        """Pairs that were observed, in the order of these rows."""

    @property
    def n_others(self) -> int:
        """Number of rows of the other side."""

    @property
    def numbers_per_pair(self) -> int:
        """Array elements that `scores` takes for each pair."""

    def scores(self, which: np.ndarray, by: str) -> np.ndarray:
        """Return scores, (k, J), of pairs of k rows with all others; the largest is the best."""

    def ranked(self, which: np.ndarray, others: np.ndarray, by: str) -> Ranked:
        """Return given others, (k, n), of k rows in their order, with what the result holds of each pair."""


class RowPredictions(Protocol):
    """Predictions of rows that a form registers, for `pymc_ep.recommend` and its siblings."""

    def names(self, form: Any) -> tuple[str, str]:
        """Return the names of the two matrices."""

    def sizes(self, form: Any) -> tuple[int, int]:
        """Return their numbers of rows."""

    def rebuild(self, idata: Any, model: pm.Model) -> Any:
        """Return the posterior of a fit; raise a ValueError unless it is one of the present model."""

    def factors(self, posterior: Any, side: int) -> np.ndarray:
        """Return the posterior means of a matrix, (I, K)."""

    def rows(self, posterior: Any, side: int, cells: Mapping[str, Any]) -> Rows:
        """Return the fitted rows of a side; `cells` are values that differ from pair to pair."""

    def folded(self, posterior: Any, side: int, new: xr.Dataset, cells: Mapping[str, Any]) -> Rows:
        """Return rows that `fold_in` returned."""

    def fold_in(self, model: pm.Model, posterior: Any, side: int, dims: tuple[str, str], given: Any) -> xr.Dataset:
        """Return the posterior of new rows of a side, given their observations."""

    def remark(self, posterior: Any) -> str:
        """Return the definition of the probability by which rows are ranked; raise where there is none."""
