"""Recommendations: rows of one matrix that rank highest for rows of the other, such as items for users."""

from collections.abc import Mapping
from typing import Any, NamedTuple

import numpy as np
import pymc as pm
import xarray as xr
from numpy.typing import ArrayLike
from scipy.special import logsumexp

from pymc_ep.compat import Container
from pymc_ep.engines.options import check_flag, check_whole
from pymc_ep.exceptions import UnsupportedModelError
from pymc_ep.forms.bilinear.compiled import CompiledBilinear
from pymc_ep.forms.bilinear.posterior import BilinearPosterior
from pymc_ep.forms.bilinear.predict.inputs import (
    numbered_rows,
    offsets_and_parameters,
    row_dims,
    row_labels,
    side_named,
)
from pymc_ep.forms.bilinear.predict.rebuild import require_bilinear
from pymc_ep.kernels.inner_products import FactoredRows, Pairs, Rows
from pymc_ep.sites.cells.integrals import log_integral

__all__ = ["recommend"]

_BY = ("probability", "predictor_mean")
"""Values of the argument ``by``."""
_NODES = 32
"""Number of Gauss-Hermite nodes. Probabilities of a Poisson count are then right to 2e-5 for log rates of standard
deviation 1, and to 3e-3 for 2."""
_NUMBERS = 2**22
"""Largest number of log densities in a chunk, 32 MiB: trades off memory against calls of NumPy."""


class _Wanted(NamedTuple):
    """Rows to make recommendations for: positions and labels, (k,) each, and their observed cells."""

    side: int
    numbers: np.ndarray
    labels: np.ndarray
    seen: Pairs


class _Ranked(NamedTuple):
    """The best rows of the other side, with predictor moments and log P(y = least) of their cells, (k, n) each."""

    others: np.ndarray
    mean: np.ndarray
    sd: np.ndarray
    log_least: np.ndarray


def recommend(
    idata: Container,
    model: pm.Model | None = None,
    *,
    n: int = 20,
    by: str = "probability",
    exclude_observed: bool = True,
    cells: Mapping[str, Any] | None = None,
    **rows: ArrayLike,
) -> xr.Dataset:
    """Return the rows of one matrix of a bilinear model that rank highest for given rows of the other one.

    Parameters
    ----------
    idata : arviz.InferenceData or xarray.DataTree
        Result of `pymc_ep.fit`, also one read back from disk.
    model : pymc.Model, optional
        The fitted model; by default that of the context.
    n : int
        Recommendations for each row.
    by : {"probability", "predictor_mean"}
        Score of the ranking. ``"probability"`` is that of an observation above the least possible one: P(y > 0), and
        P(y > 1) if zeros are truncated. ``"predictor_mean"`` is the mean of the predictor, for counts that of the log
        rate; it also separates counts that are almost surely positive. The mean of the rate itself need not exist.
    exclude_observed : bool
        Whether cells that are in the data of the model, or among those of a folded-in row, are left out.
    cells : mapping of str to float, optional
        ``offset``, without biases, and parameters of the likelihood where they differ from cell to cell in the fit.
    **rows
        One matrix: the dim of its rows or its name, as in ``user=["ann", "bob"]``. Labels where that dim has
        coordinates, or positions where it has none or these are no numbers; or what `fold_in` returned, for new rows.

    Returns
    -------
    xarray.Dataset
        By row and ``rank``, the best first: labels of the other matrix's rows, under the name of their dim;
        ``probability``, ``predictor_mean`` and ``predictor_sd``. Hyperparameters are at their mode. Probabilities are
        those of Gaussian predictors with these moments, which sums of products nearly are: off by 0.002 for two
        factors that few cells tell of, and by 0.005 for a single one with nothing but its prior.

    Raises
    ------
    ValueError
        For unknown rows, and if fewer than `n` are left for one of them.
    """
    model = pm.modelcontext(model)
    check_whole("n", n)
    check_flag("exclude_observed", exclude_observed)
    if by not in _BY:
        raise ValueError(f"by={by!r} must be one of {', '.join(map(repr, _BY))}.")
    if len(rows) != 1:
        raise ValueError("recommend takes rows of one matrix, such as user=[0, 1].")
    posterior = require_bilinear(idata, model, "recommend")
    form = posterior.form
    if form.form.cells.site.domain == "real":
        raise UnsupportedModelError(
            f"recommend ranks by the probability of a count or bit, and {form.form.cells.name!r} is Gaussian; rank by "
            f"the means of its matrices in the group 'fit'."
        )
    ((key, value),) = rows.items()
    side = side_named(model, form, key)
    dims, names = row_dims(model, form), [one.name for one in form.form.matrices]
    if isinstance(value, xr.Dataset):
        wanted, posterior = _folded(form, posterior, side, value, dims[side])
    else:
        numbers, labels = numbered_rows(model, dims[side], value, form.shapes[side][0], f"{dims[side]}=")
        wanted = _Wanted(side, numbers, labels, _seen(form, side))
    if not exclude_observed:
        nothing = np.zeros(0, dtype=np.int64)
        wanted = wanted._replace(seen=Pairs.of(nothing, nothing, len(wanted.seen.ends) - 1))
    best = _Search(form, posterior, wanted, by, cells or {}).best(n)
    other = dims[1 - side] if dims[0] != dims[1] else names[1 - side]
    found = {
        other: row_labels(model, dims[1 - side], form.shapes[1 - side][0])[best.others],
        "probability": -np.expm1(best.log_least),
        "predictor_mean": best.mean,
        "predictor_sd": best.sd,
    }
    return xr.Dataset(
        {name: ((dims[side], "rank"), values) for name, values in found.items()},
        coords={dims[side]: wanted.labels, "rank": 1 + np.arange(n)},
        attrs={"by": by, "probability_is": f"P(y > {_least(form)})"},
    )


class _Search:
    """Search for the best cells of rows, in chunks of rows."""

    def __init__(
        self, form: CompiledBilinear, posterior: BilinearPosterior, wanted: _Wanted, by: str, cells: Mapping[str, Any]
    ):
        self._site, self._posterior, self._wanted, self._by = form.form.cells.site, posterior, wanted, by
        self._least = _least(form)
        self._offset, self._parameters = offsets_and_parameters(form, posterior.theta, cells)
        self._size = len((posterior.right, posterior.left)[wanted.side].mean)

    def best(self, n: int) -> _Ranked:
        """Return the `n` best cells of each row."""
        step = max(1, _NUMBERS // (self._size * _NODES))
        with np.errstate(over="ignore", invalid="ignore"):
            # Rates at nodes may overflow to infinity; the likelihood is then zero.
            chunks = (slice(begin, begin + step) for begin in range(0, len(self._wanted.numbers), step))
            parts = [self._best(here, n) for here in chunks]
        return _Ranked(*(np.concatenate(part) for part in zip(*parts)))

    def _best(self, here: slice, n: int) -> _Ranked:
        numbers = self._wanted.numbers[here]
        mean, sd = self._posterior.moments_with_all(self._wanted.side, numbers)
        mean += self._offset
        score = mean.copy() if self._by == "predictor_mean" else -self._log_least(mean, sd)
        seen, _ = self._wanted.seen.of_rows(numbers)
        score[seen.own, seen.others] = -np.inf
        left = (score > -np.inf).sum(axis=1)
        if (left < n).any():
            k = int(np.argmax(left < n))
            raise ValueError(
                f"n={n}, but only {left[k]} rows are left for {self._wanted.labels[here].tolist()[k]!r}; lower n, or "
                f"keep those that it has an observation with by exclude_observed=False."
            )
        others = np.argpartition(-score, n - 1, axis=1)[:, :n]
        mean, sd = (np.take_along_axis(part, others, axis=1) for part in (mean, sd))
        # The fixed rule that scores all cells errs by 3e-3 where log rates have an sd of 2; that of the best by 4e-5.
        least = np.full(mean.shape, float(self._least))
        log_least = log_integral(self._site, least, mean, sd**2, *map(np.asarray, self._parameters))
        order = np.argsort(-mean if self._by == "predictor_mean" else log_least, axis=1, kind="stable")
        return _Ranked(*(np.take_along_axis(part, order, axis=1) for part in (others, mean, sd, log_least)))

    def _log_least(self, mean: np.ndarray, sd: np.ndarray) -> np.ndarray:
        """Return log P(y = least), (k, m), of Gaussian predictors with these moments."""
        nodes, weights = np.polynomial.hermite_e.hermegauss(_NODES)
        density = self._site.log_density(
            np.asarray(self._least), mean + nodes[:, None, None] * sd, *map(np.asarray, self._parameters)
        )
        return logsumexp(density + np.log(weights / weights.sum())[:, None, None], axis=0)


def _least(form: CompiledBilinear) -> int:
    """Return the least value in the domain of the observations: 0, or 1 if zeros are truncated."""
    return int(form.form.cells.site.truncated)


def _seen(form: CompiledBilinear, side: int) -> Pairs:
    cells = form.cells()
    return (cells.by_left, cells.by_right)[side]


def _folded(
    form: CompiledBilinear, posterior: BilinearPosterior, side: int, new: xr.Dataset, dim: str
) -> tuple[_Wanted, BilinearPosterior]:
    """Return folded-in rows as the wanted ones, and the posterior with these in place of the fitted rows."""
    matrix, bias, y = form.form.matrices[side].name, form.form.biases[side], form.form.cells.name
    if new.attrs.get("matrix") != matrix:
        raise ValueError(f"{dim}= is a dataset that fold_in did not return for rows of {matrix!r}; pass that.")

    labels = new[dim].to_numpy()
    if not np.issubdtype(labels.dtype, np.integer):
        raise ValueError(f"{dim}= is a dataset whose {dim!r} has other labels than fold_in gave it; keep its numbers.")

    def joined(what: str) -> np.ndarray:
        own = [new[f"{matrix}_{what}"].to_numpy()]
        return np.hstack([*own, *([] if bias is None else [new[f"{bias.name}_{what}"].to_numpy()[:, None]])])

    sides = [posterior.left, posterior.right]
    full = f"{matrix}_factor" in new
    mean = joined("mean")
    sides[side] = FactoredRows(mean, new[f"{matrix}_factor"].to_numpy()) if full else Rows(mean, joined("sd") ** 2)
    indices = [new[f"{y}_{which}"].to_numpy() for which in ("rows", "cols")]
    # If the dataset is a selection, cells still have the row numbers of the whole.
    here = np.isin(indices[side], labels)
    place = {label: k for k, label in enumerate(labels.tolist())}
    own = np.array([place[label] for label in indices[side][here].tolist()], dtype=np.int64)
    seen = Pairs.of(own, indices[1 - side][here], len(labels))
    wanted = _Wanted(side, np.arange(len(labels)), labels, seen)
    return wanted, BilinearPosterior(form, posterior.theta, sides[0], sides[1])
