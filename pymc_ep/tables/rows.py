"""Interface of fits with two matrices of rows, such as users and items: rankings of one side for the other."""

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
    """Rows of the other side, the best of each row first.

    Attributes
    ----------
    others : ndarray of int, (k, n)
    values : dict of str to ndarray, (k, n)
        Values of each pair, under the names of the result.
    """

    others: np.ndarray
    values: dict[str, np.ndarray]


def best_first(others: np.ndarray, values: Mapping[str, np.ndarray], scores: np.ndarray) -> Ranked:
    """Return rows of the other side and their values, (k, n) each, in the order of falling scores, (k, n)."""
    order = np.argsort(-scores, axis=1, kind="stable")
    ordered = {name: np.take_along_axis(array, order, axis=1) for name, array in values.items()}
    return Ranked(np.take_along_axis(others, order, axis=1), ordered)


def at_one_value(posterior: Own | FitMixture[Own]) -> Own:
    """Return the posterior; raise where hyperparameters were sampled."""
    if not isinstance(posterior, FitMixture):
        return posterior
    names = ", ".join(posterior.form.form.hyper_names)
    raise UnsupportedModelError(
        f"Rows are ranked, compared and folded in at one value of the hyperparameters, and this fit has draws of "
        f"{names}; fit with hyper='fixed' and start={{...}}, such as the posterior means, or use log_predictive."
    )


class RankedBlock(Protocol):
    """Some rows of one matrix with all rows of the other.

    Attributes
    ----------
    scores : ndarray, (k, J)
        The largest is the best.
    log_weights : bool
        Whether the scores are logarithms of probabilities over the others, up to a constant of each row.
    """

    scores: np.ndarray
    log_weights: bool

    def ranked(self, others: np.ndarray) -> Ranked:
        """Return given others, (k, n), the best first, with the result's values of each pair."""


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
        """Array elements that a block takes for each pair."""

    def block(self, indices: np.ndarray, by: str) -> RankedBlock:
        """Return k rows with all others, scored by one of `RowPredictions.by`."""


class RowPredictions(Protocol):
    """Predictions of the rows of two matrices, from which `row_verbs` makes `pymc_ep.recommend` and its siblings."""

    def rebuild(self, idata: Any, model: pm.Model) -> Any:
        """Return the posterior of a fit; raise a ValueError unless it is one of the present model."""

    def names(self, posterior: Any) -> tuple[str, str]:
        """Return the names of the two matrices."""

    def sizes(self, posterior: Any) -> tuple[int, int]:
        """Return their numbers of rows."""

    def factors(self, posterior: Any, side: int) -> np.ndarray:
        """Return the posterior means of a matrix, (I, K)."""

    def rows(self, posterior: Any, side: int, cells: Mapping[str, Any]) -> Rows:
        """Return the fitted rows of a side; `cells` are values that differ from pair to pair."""

    def folded(self, posterior: Any, side: int, new: xr.Dataset, cells: Mapping[str, Any]) -> Rows:
        """Return rows that `fold_in` returned."""

    def fold_in(self, model: pm.Model, posterior: Any, side: int, dims: tuple[str, str], given: Any) -> xr.Dataset:
        """Return the posterior of new rows of a side, given their observations."""

    def by(self, posterior: Any, side: int) -> tuple[str, ...]:
        """Return the scores that rows of a side are ranked by, the default first."""

    def remark(self, posterior: Any) -> str:
        """Return the definition of the probability by which rows are ranked; raise where there is none."""
