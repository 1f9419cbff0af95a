"""Rankings of users and items of paired symbols, for `pymc_ep.recommend` and its siblings."""

from collections.abc import Callable, Mapping
from functools import cached_property
from typing import Any

import numpy as np
import pymc as pm
import xarray as xr
from scipy.special import logsumexp

from pymc_ep.compat import Container
from pymc_ep.exceptions import InvalidDataError, UnsupportedModelError
from pymc_ep.models.paired_symbols.kernel import Symbols
from pymc_ep.models.paired_symbols.posterior import PairedSymbolsPosterior
from pymc_ep.models.paired_symbols.predict.fold_in import fold_in
from pymc_ep.models.paired_symbols.predict.rebuild import paired_symbols_posterior
from pymc_ep.numerics.pairs import Pairs
from pymc_ep.tables.rows import Ranked, at_one_value, best_first

__all__ = ["PairRows"]

_CALIBRATED = "calibrated_probability"
"""Name of the score of a user's items in calibrated fits, also in results."""


class PairRows:
    """Rankings and new rows of paired symbols; see `pymc_ep.tables.rows.RowPredictions`."""

    @staticmethod
    def names(posterior: PairedSymbolsPosterior) -> tuple[str, str]:
        """Return the names of the two matrices."""
        form = posterior.form.form
        return form.users.factors.name, form.items.factors.name

    @staticmethod
    def sizes(posterior: PairedSymbolsPosterior) -> tuple[int, int]:
        """Return the numbers of rows of the two matrices."""
        return posterior.form.shapes[:2]

    @staticmethod
    def rebuild(idata: Container, model: pm.Model) -> PairedSymbolsPosterior:
        """Return the posterior of a fit; raise UnsupportedModelError if its hyperparameters were sampled."""
        return at_one_value(paired_symbols_posterior(idata, model))

    @staticmethod
    def factors(posterior: PairedSymbolsPosterior, side: int) -> np.ndarray:
        """Return the posterior means of a matrix, (I, K)."""
        return posterior.symbols[side].mean

    @staticmethod
    def by(posterior: PairedSymbolsPosterior, side: int) -> tuple[str, ...]:
        """Return the names of scores by which rows can be ranked for rows of `side`, the default first."""
        scores = ("probability", "predictor_mean")
        return scores if posterior.calibration is None or side else (_CALIBRATED, *scores)

    @staticmethod
    def remark(posterior: PairedSymbolsPosterior) -> str:
        """Return the definition of the probability by which rows are ranked."""
        return "probability of the next observed pair, given its row"

    @staticmethod
    def rows(posterior: PairedSymbolsPosterior, side: int, cells: Mapping[str, Any]) -> "RankedPairs":
        """Return the fitted rows of a side."""
        _require_no_cells(posterior, cells)
        return RankedPairs(posterior, side, lambda: _observed(posterior, side))

    @staticmethod
    def folded(
        posterior: PairedSymbolsPosterior, side: int, new: xr.Dataset, cells: Mapping[str, Any]
    ) -> "RankedPairs":
        """Return the folded-in rows `new` of a side, in a posterior where they replace the fitted rows."""
        _require_no_cells(posterior, cells)
        form = posterior.form.form
        side_form, y = form.sides[side], form.pairs.name
        mean, sd = (new[f"{side_form.factors.name}_{what}"] for what in ("mean", "sd"))
        labels = new[mean.dims[0]].to_numpy()
        bias = np.full(len(labels), posterior.symbols[side].bias[0]), np.zeros(len(labels))
        if side_form.bias.name:
            bias = new[f"{side_form.bias.name}_mean"].to_numpy(), new[f"{side_form.bias.name}_sd"].to_numpy() ** 2
        symbols = Symbols(mean.to_numpy(), sd.to_numpy() ** 2, *bias)
        indices = [new[f"{y}_{axis}"].to_numpy() for axis in ("rows", "cols")]
        seen = Pairs.of_labels(labels, indices[side], indices[1 - side])
        return RankedPairs(posterior.with_symbols(side, symbols), side, lambda: seen)

    @staticmethod
    def fold_in(
        model: pm.Model, posterior: PairedSymbolsPosterior, side: int, dims: tuple[str, str], given: Any
    ) -> xr.Dataset:
        """Return the posterior of new rows of a side, given their pairs."""
        form = posterior.form.form
        if form.alike:
            raise UnsupportedModelError(
                f"{form.pairs.name!r} pairs the rows of {form.users.factors.name!r} with each other, and fold_in takes "
                f"rows of one of two matrices; fit anew with these rows, by start= from the present fit."
            )
        return fold_in(model, posterior, side, dims, given)


class RankedPairs:
    """Rows of one side, for which rows of the other are ranked by the next pair; see `pymc_ep.tables.rows.Rows`."""

    numbers_per_pair = 8

    def __init__(self, posterior: PairedSymbolsPosterior, side: int, seen: Callable[[], Pairs]):
        self._posterior, self._side, self._seen = posterior, side, seen
        self.n_others = len(posterior.symbols[1 - side].bias)

    @cached_property
    def seen(self) -> Pairs:
        """Observed pairs, with these rows as own rows; raise InvalidDataError if the pairs are in files."""
        return self._seen()

    def block(self, indices: np.ndarray, by: str) -> "PairBlock":
        """Return k rows, at positions `indices`, with all rows of the other side, to be ranked by the score `by`."""
        posterior, side = self._posterior, self._side
        mean, sd = posterior.preferences(side, indices)
        log_p = posterior.log_probabilities_of(side, indices, mean, sd)
        scores = {"probability": log_p, "predictor_mean": mean}
        if by == _CALIBRATED:
            scores[by] = posterior.calibrated_scores(mean)
        posterior.leave_out_own(indices, scores[by])
        return PairBlock(mean, sd, log_p, by, scores[by])


class PairBlock:
    """k rows of one side with all J rows of the other side; see `pymc_ep.tables.rows.RankedBlock`."""

    def __init__(self, mean: np.ndarray, sd: np.ndarray, log_p: np.ndarray, by: str, scores: np.ndarray):
        self._mean, self._sd, self._log_p, self._by = mean, sd, log_p, by
        self.scores, self.log_weights = scores.copy(), by != "predictor_mean"

    def ranked(self, others: np.ndarray) -> Ranked:
        """Return the given rows of the other side, `others`, (k, n), the best first, with their values."""
        mean, sd, log_p = (np.take_along_axis(array, others, axis=1) for array in (self._mean, self._sd, self._log_p))
        values = {"probability": np.exp(log_p), "predictor_mean": mean, "predictor_sd": sd}
        scores = np.take_along_axis(self.scores, others, axis=1)
        if self._by == _CALIBRATED:
            # Among the rows that are left, if any are.
            total = np.maximum(logsumexp(self.scores, axis=1, keepdims=True), np.finfo(float).min)
            values = {self._by: np.exp(scores - total)} | values
        return best_first(others, values, scores)


def _observed(posterior: PairedSymbolsPosterior, side: int) -> Pairs:
    """Return the observed pairs of the model, with rows of `side` as own rows; raise if the pairs are in files."""
    form = posterior.form
    if not form.observed()[0].size:
        raise InvalidDataError(
            f"The pairs of {form.form.pairs.name!r} are in files, so that observed ones can't be left out: keep them "
            f"by exclude_observed=False, or fold these rows in with their pairs, which are then left out."
        )
    pairs = form.pairs()
    cells = (pairs.by_user, pairs.by_item)[side]
    return Pairs(cells.ends, cells.others, np.arange(len(cells.others)))


def _require_no_cells(posterior: PairedSymbolsPosterior, cells: Mapping[str, Any]) -> None:
    if cells:
        raise InvalidDataError(
            f"cells= is for likelihoods with an offset or parameters, and {posterior.form.form.pairs.name!r} has none; "
            f"leave it out."
        )
