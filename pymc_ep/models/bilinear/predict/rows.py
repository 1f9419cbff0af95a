"""Rankings of rows of bilinear models, and new rows, for `pymc_ep.recommend` and its siblings."""

from collections.abc import Callable, Mapping
from typing import Any

import numpy as np
import pymc as pm
import xarray as xr
from scipy.special import logsumexp

from pymc_ep.compat import Container
from pymc_ep.exceptions import UnsupportedModelError
from pymc_ep.models.bilinear.compiled import CompiledBilinear
from pymc_ep.models.bilinear.kernel import FactoredRows, Rows
from pymc_ep.models.bilinear.posterior import BilinearPosterior
from pymc_ep.models.bilinear.predict.fold_in import fold_in
from pymc_ep.models.bilinear.predict.inputs import matrix_names, offsets_and_parameters
from pymc_ep.models.bilinear.predict.rebuild import bilinear_posterior
from pymc_ep.numerics.pairs import Pairs
from pymc_ep.numerics.quadrature.gauss_hermite import standard_normal_rule
from pymc_ep.sites.cells.integrals import log_integral
from pymc_ep.tables.rows import Ranked, at_one_value, best_first

__all__ = ["BilinearRows"]

_NODES = 32
"""Number of Gauss-Hermite nodes. Probabilities of a Poisson count are then right to 2e-5 for log rates of standard
deviation 1, and to 3e-3 for 2."""


class BilinearRows:
    """Rankings and new rows of bilinear models; see `pymc_ep.tables.rows.RowPredictions`."""

    @staticmethod
    def names(posterior: BilinearPosterior) -> tuple[str, str]:
        """Return the names of the two matrices."""
        return matrix_names(posterior.form)

    @staticmethod
    def sizes(posterior: BilinearPosterior) -> tuple[int, int]:
        """Return the numbers of rows of the two matrices."""
        return posterior.form.shapes[0][0], posterior.form.shapes[1][0]

    @staticmethod
    def rebuild(idata: Container, model: pm.Model) -> BilinearPosterior:
        """Return the posterior of a fit; raise for a fit with sampled hyperparameters."""
        return at_one_value(bilinear_posterior(idata, model))

    @staticmethod
    def factors(posterior: BilinearPosterior, side: int) -> np.ndarray:
        """Return the posterior means of a matrix, (I, D), without its bias."""
        return (posterior.left, posterior.right)[side].mean[:, : posterior.form.n_factors]

    @staticmethod
    def by(posterior: BilinearPosterior, side: int) -> tuple[str, ...]:
        """Return the scores that rows are ranked by, the default first."""
        return "probability", "predictor_mean"

    @staticmethod
    def remark(posterior: BilinearPosterior) -> str:
        """Return the definition of the probability by which rows are ranked."""
        cells = posterior.form.form.cells
        if cells.site.domain == "real":
            raise UnsupportedModelError(
                f"Rows are ranked by the probability of a count or bit, and {cells.name!r} is Gaussian; rank by the "
                f"means of its matrices in the group 'fit'."
            )
        return f"P(y > {_least(posterior.form)})"

    @staticmethod
    def rows(posterior: BilinearPosterior, side: int, cells: Mapping[str, Any]) -> "CellRows":
        """Return the fitted rows of a side."""
        fitted_cells = posterior.form.cells()
        return CellRows(posterior, side, (fitted_cells.by_left, fitted_cells.by_right)[side], cells)

    @staticmethod
    def folded(posterior: BilinearPosterior, side: int, new: xr.Dataset, cells: Mapping[str, Any]) -> "CellRows":
        """Return folded-in rows of a side, in a posterior where they replace the fitted rows."""
        form = posterior.form
        matrix, bias, y = matrix_names(form)[side], form.form.biases[side], form.form.cells.name
        labels = new[new[f"{matrix}_mean"].dims[0]].to_numpy()

        def joined(what: str) -> np.ndarray:
            columns = [new[f"{matrix}_{what}"].to_numpy()]
            return np.hstack([*columns, *([] if bias is None else [new[f"{bias.name}_{what}"].to_numpy()[:, None]])])

        sides = [posterior.left, posterior.right]
        full = f"{matrix}_factor" in new
        mean = joined("mean")
        sides[side] = FactoredRows(mean, new[f"{matrix}_factor"].to_numpy()) if full else Rows(mean, joined("sd") ** 2)
        indices = [new[f"{y}_{axis}"].to_numpy() for axis in ("rows", "cols")]
        seen = Pairs.of_labels(labels, indices[side], indices[1 - side])
        return CellRows(BilinearPosterior(form, posterior.theta, sides[0], sides[1]), side, seen, cells)

    @staticmethod
    def fold_in(
        model: pm.Model, posterior: BilinearPosterior, side: int, dims: tuple[str, str], given: Any
    ) -> xr.Dataset:
        """Return the posterior of new rows of a side, given their cells."""
        return fold_in(model, posterior, side, dims, given)


class CellRows:
    """Rows of one matrix, which are ranked by their cells; see `pymc_ep.tables.rows.Rows`."""

    numbers_per_pair = _NODES

    def __init__(self, posterior: BilinearPosterior, side: int, seen: Pairs, cells: Mapping[str, Any]):
        self._posterior, self._side, self.seen = posterior, side, seen
        self._site, self._least = posterior.form.form.cells.site, _least(posterior.form)
        self._offset, self._parameters = offsets_and_parameters(posterior.form, posterior.theta, cells)
        self.n_others = len((posterior.right, posterior.left)[side].mean)

    def block(self, indices: np.ndarray, by: str) -> "CellBlock":
        """Return the block of the k rows `indices` with all rows of the other matrix, scored by `by`."""
        mean, sd = self._posterior.moments_with_all(self._side, indices)
        return CellBlock(self._log_least, mean + self._offset, sd, by)

    def _log_least(self, mean: np.ndarray, sd: np.ndarray, *, fixed_nodes: bool) -> np.ndarray:
        """Return log P(y = least), with y at its least value, for Gaussian predictors with these moments.

        Fixed nodes err by 3e-3 where log rates have a standard deviation of 2, and other nodes by 4e-5.
        """
        # Rates at nodes may overflow to infinity; the likelihood is then zero.
        with np.errstate(over="ignore", invalid="ignore"):
            parameters = [np.asarray(parameter) for parameter in self._parameters]
            if not fixed_nodes:
                return log_integral(self._site, np.full(mean.shape, float(self._least)), mean, sd**2, *parameters)
            # log sum_k w_k p(least | mean + z_k sd).
            nodes, weights = standard_normal_rule(_NODES)
            f = mean + nodes[:, None, None] * sd
            density = self._site.log_density(np.asarray(self._least), f, *parameters)
            return logsumexp(density + np.log(weights)[:, None, None], axis=0)


class CellBlock:
    """Some rows with all rows of the other matrix; see `pymc_ep.tables.rows.RankedBlock`."""

    log_weights = False

    def __init__(self, log_least: Callable[..., np.ndarray], mean: np.ndarray, sd: np.ndarray, by: str):
        self._log_least, self._mean, self._sd, self._by = log_least, mean, sd, by
        self.scores = mean.copy() if by == "predictor_mean" else -log_least(mean, sd, fixed_nodes=True)

    def ranked(self, others: np.ndarray) -> Ranked:
        """Return the rows `others` of the other matrix, for each own row the best first."""
        mean, sd = (np.take_along_axis(moment, others, axis=1) for moment in (self._mean, self._sd))
        log_least = self._log_least(mean, sd, fixed_nodes=False)
        # P(y > least) = 1 - P(y = least), without cancellation where it is small.
        values = {"probability": -np.expm1(log_least), "predictor_mean": mean, "predictor_sd": sd}
        return best_first(others, values, mean if self._by == "predictor_mean" else -log_least)


def _least(form: CompiledBilinear) -> int:
    """Return the least value in the domain of the observations: 0, or 1 if zeros are truncated."""
    return int(form.form.cells.site.truncated)
