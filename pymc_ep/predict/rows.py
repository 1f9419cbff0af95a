"""Rankings of the rows of two matrices, such as items for users, and new rows."""

from collections.abc import Callable, Mapping
from typing import Any, NamedTuple

import numpy as np
import pymc as pm
import xarray as xr

from pymc_ep.compat import Container
from pymc_ep.concurrency import one_at_a_time
from pymc_ep.contracts.rows import Ranked, RankedBlock, RowPredictions, Rows, best_first
from pymc_ep.engines.options import check_flag, check_whole
from pymc_ep.exceptions import UnsupportedModelError
from pymc_ep.forms import compiled_form
from pymc_ep.forms.registry import FormEntry
from pymc_ep.graphs.context import model_of
from pymc_ep.predict.rebuild import registered
from pymc_ep.predict.utilities import fitted_utilities, ranked_users
from pymc_ep.results import fit_method, latent_of
from pymc_ep.results.row_labels import numbered_rows, row_dims, row_labels, side_named

__all__ = ["fold_in", "rank_items", "recommend", "similar"]

_NUMBERS = 2**22
"""Largest number of array elements in a chunk of rows, 32 MiB: trades off memory against calls of NumPy."""
_ELSEWHERE: tuple[tuple[str, Callable[[FormEntry], Any]], ...] = (
    ("next_items", lambda entry: entry.sequence_predictions),
    ("rank_items", lambda entry: entry.utility_predictions),
)
"""What ranks items in fits without two matrices."""


class _Fitted(NamedTuple):
    """A fit with two matrices of rows."""

    predictions: RowPredictions
    posterior: Any
    names: tuple[str, str]
    dims: tuple[str, str]
    sizes: tuple[int, int]

    def other(self, side: int) -> str:
        """Return the name of the other side in results: its dim, or its matrix where both share a dim."""
        return self.dims[1 - side] if self.dims[0] != self.dims[1] else self.names[1 - side]


class _Wanted(NamedTuple):
    """Rows of one side: positions within `rows`, and labels, (k,) each."""

    rows: Rows
    numbers: np.ndarray
    labels: np.ndarray


@one_at_a_time
def recommend(
    idata: Container,
    model: pm.Model | None = None,
    *,
    n: int = 20,
    by: str | None = None,
    exclude_observed: bool = True,
    cells: Mapping[str, Any] | None = None,
    **rows: Any,
) -> xr.Dataset:
    """Return the rows of one matrix that rank highest for given rows of the other one, such as items for users.

    Parameters
    ----------
    idata : arviz.InferenceData or xarray.DataTree
        Result of `pymc_ep.fit` of a bilinear model or of `PairedSymbols`, also one read back from disk.
    model : pymc.Model, optional
        The fitted model; by default that of the context.
    n : int
        Most recommendations for each row.
    by : {"calibrated_probability", "probability", "predictor_mean"}, optional
        Score of the ranking, by default the first one that the fit has. ``"calibrated_probability"`` is that of the
        item of a user's next pair, for fits of `PairedSymbols` that were calibrated by pairs left out.
        ``"probability"`` is that of an observation above the least possible one: P(y > 0), and P(y > 1) if zeros are
        truncated; with `PairedSymbols` it is that of the next observed pair under the posterior, given its row.
        ``"predictor_mean"`` is the mean of the predictor: for counts that of the log rate, which also separates counts
        that are almost surely positive, and for pairs that of the preference, without the popularity. The mean of a
        rate itself need not exist.
    exclude_observed : bool
        Whether pairs that are in the data of the model, or among those of a folded-in row, are left out.
    cells : mapping of str to float, optional
        For bilinear models, ``offset``, without biases, and parameters of the likelihood where they differ from cell to
        cell in the fit.
    **rows
        One matrix: the dim of its rows or its name, as in ``user=["ann", "bob"]``. Labels where that dim has
        coordinates, or positions where it has none or these are no numbers; or what `fold_in` returned, for new rows.

    Returns
    -------
    xarray.Dataset
        By row and ``rank``, the best first: labels of the other matrix's rows, under the name of their dim, or of the
        matrix where both sides have one dim, and NaN where fewer than others are left;
        ``probability``, ``predictor_mean`` and ``predictor_sd``, and ``calibrated_probability`` if ranked by it, which
        sums to one over the rows that are left. Hyperparameters are at their mode. Probabilities of
        bilinear models are those of Gaussian predictors with these moments, which sums of products nearly are: off by
        0.002 for two factors that few cells tell of, and by 0.005 for a single one with nothing but its prior.

    Raises
    ------
    UnsupportedModelError
        If the model has no two matrices of rows.
    ValueError
        For unknown rows.
    """
    check_whole("n", n)
    check_flag("exclude_observed", exclude_observed)
    model, fitted = _fitted(idata, model, "recommend")
    side, wanted = _wanted(model, fitted, rows, "recommend", cells)
    by = _score(fitted, side, by)
    parts, left = zip(*(_best(wanted, here, n, by, exclude_observed) for here in _chunks(wanted)))
    others, lengths = np.concatenate([part.others for part in parts]), np.concatenate(left)
    found = {fitted.other(side): row_labels(model, fitted.dims[1 - side], fitted.sizes[1 - side])[others]}
    found |= {name: np.concatenate([part.values[name] for part in parts]) for name in parts[0].values}
    dim = fitted.dims[side]
    ranked = xr.Dataset(
        {name: ((dim, "rank"), values) for name, values in found.items()},
        coords={dim: wanted.labels, "rank": 1 + np.arange(others.shape[1])},
        attrs={"by": by, "probability_is": fitted.predictions.remark(fitted.posterior)},
    ).isel(rank=slice(int(lengths.max())))
    there = ranked["rank"] <= xr.DataArray(lengths, dims=dim)
    return ranked if there.all() else ranked.where(there)


@one_at_a_time
def rank_items(
    idata: Container,
    model: pm.Model | None = None,
    *,
    by: str | None = None,
    exclude_observed: bool = True,
    cells: Mapping[str, Any] | None = None,
    **pairs: Any,
) -> xr.Dataset:
    """Return how high given pairs rank among all that their rows have not been observed with, such as held-out items.

    For utilities of items it returns the distribution of the ranks of all items for given users.

    Parameters
    ----------
    idata, model, by, exclude_observed, cells
        As in `recommend`; for utilities there are no other than the defaults.
    **pairs
        Both dims or names of matrices, with as many labels or positions, as in ``user=["ann"], item=["heat"]``. The
        first is ranked for. Of a model with a `PreferenceUtility` users alone, as in ``user=["ann"]``, and none if
        there is one user.

    Returns
    -------
    xarray.Dataset
        For utilities, by user and item: ``rank_probability`` of the first 100 ranks, ``mean_rank``, and
        ``probability_best``, by 4000 draws of the posterior, with standard errors of 0.008 at most. Otherwise ``rank``,
        the share of the other candidates that a pair ranks above, those of equal score counted half: 1 for the best,
        1/2 on average by chance [1]_. ``position``, from 1, is the mean of those it could have among equals.

    Raises
    ------
    UnsupportedModelError
        If the model has no two matrices of rows.
    ValueError
        For unknown rows, lists of unequal length, and pairs that were observed themselves if those are left out.

    References
    ----------
    .. [1] U. Paquet, N. Koenigstein and O. Winther (2014), Scalable Bayesian modelling of paired symbols,
       arXiv:1409.2824, equation 12.
    """
    check_flag("exclude_observed", exclude_observed)
    model = model_of(model)
    if (utilities := fitted_utilities(idata, model)) is not None:
        if by is not None or not exclude_observed or cells is not None:
            raise ValueError("rank_items of utilities takes none of by=, exclude_observed= and cells=.")
        return ranked_users(model, utilities, pairs)
    model, fitted = _fitted(idata, model, "rank_items")
    if len(pairs) != 2:
        raise ValueError(f"rank_items takes rows of both matrices, such as {fitted.dims[0]}=[0], {fitted.dims[1]}=[3].")
    (key, own), (other_key, others) = pairs.items()
    same = side_named(model, fitted.names, key) == side_named(model, fitted.names, other_key)
    if same and fitted.names[0] != fitted.names[1]:
        raise ValueError(f"{key!r} and {other_key!r} are rows of the same matrix; name both.")
    side, wanted = _wanted(model, fitted, {key: own}, "rank_items", cells)
    by = _score(fitted, side, by)
    targets, labels = numbered_rows(
        model, fitted.dims[1 - side], others, fitted.sizes[1 - side], f"{fitted.dims[1 - side]}="
    )
    if len(targets) != len(wanted.numbers):
        raise ValueError(f"{key!r} has {len(wanted.numbers)} rows and {other_key!r} {len(targets)}; give pairs.")
    above, equal, candidates = (np.concatenate(part) for part in zip(*_places(wanted, targets, by, exclude_observed)))
    if np.isnan(above).any():
        k = int(np.argmax(np.isnan(above)))
        raise ValueError(
            f"{wanted.labels.tolist()[k]!r} was observed with {labels.tolist()[k]!r}, and observed pairs are left out; "
            f"hold that pair out of the fit, or keep observed ones by exclude_observed=False."
        )
    better = above + 0.5 * equal
    share = 1.0 - better / np.maximum(candidates - 1.0, 1.0)
    return xr.Dataset(
        {"rank": ("pair", share), "position": ("pair", 1.0 + better)},
        coords={key: ("pair", wanted.labels), other_key: ("pair", labels)},
        attrs={"by": by},
    )


@one_at_a_time
def similar(idata: Container, model: pm.Model | None = None, *, n: int = 20, **rows: Any) -> xr.Dataset:
    """Return the nearest rows of the same matrix, such as items that the same users view.

    Parameters
    ----------
    idata, model
        As in `recommend`.
    n : int
        Neighbours of each row, or as many as there are.
    **rows
        One matrix: the dim of its rows or its name, as in ``item=["heat"]``, with labels or positions.

    Returns
    -------
    xarray.Dataset
        By row and ``rank``, the nearest first: labels as ``neighbour``, and ``similarity``, the cosine of the posterior
        means of both rows, without biases. Rows without factors have a similarity of zero to all.

    Raises
    ------
    UnsupportedModelError
        If the model has no two matrices of rows.
    ValueError
        For unknown rows, and for a matrix of one row.
    """
    check_whole("n", n)
    model, fitted = _fitted(idata, model, "similar")
    ((key, given),) = _one(rows, "similar").items()
    side = side_named(model, fitted.names, key)
    dim, size = fitted.dims[side], fitted.sizes[side]
    if size == 1:
        raise ValueError(f"{fitted.names[side]!r} has one row, to which no other is similar.")
    n = min(n, size - 1)
    numbers, labels = numbered_rows(model, dim, given, size, f"{dim}=")
    factors = fitted.predictions.factors(fitted.posterior, side).astype(float)
    length = np.linalg.norm(factors, axis=1, keepdims=True)
    factors = factors / np.where(length > 0, length, 1.0)
    step = max(1, _NUMBERS // size)
    parts = []
    for own in (numbers[begin : begin + step] for begin in range(0, len(numbers), step)):
        cosine = factors[own] @ factors.T
        cosine[np.arange(len(own)), own] = -np.inf
        best = np.argpartition(-cosine, n - 1, axis=1)[:, :n]
        found = np.take_along_axis(cosine, best, axis=1)
        parts.append(best_first(best, {"similarity": found}, found))
    return xr.Dataset(
        {
            "neighbour": ((dim, "rank"), row_labels(model, dim, size)[np.concatenate([part.others for part in parts])]),
            "similarity": ((dim, "rank"), np.concatenate([part.values["similarity"] for part in parts])),
        },
        coords={dim: labels, "rank": 1 + np.arange(n)},
    )


@one_at_a_time
def fold_in(idata: Container, model: pm.Model | None, data: Mapping[str, Any]) -> xr.Dataset:
    """Return the posterior of new rows of one matrix, such as new users, given the fitted rows of the other one.

    New rows have the prior of the fitted ones. Hyperparameters are at their mode, and the fit does not change.

    Parameters
    ----------
    idata : arviz.InferenceData or xarray.DataTree
        Result of `pymc_ep.fit` of a bilinear model or of `PairedSymbols`, also one read back from disk.
    model : pymc.Model or None
        The fitted model; None takes that of the context.
    data : mapping
        Maps the dim of the matrix's rows, such as ``"user"``, or its name to what was observed of the new rows.
        Bilinear models take a mapping of ``rows``, ``cols`` and ``observed`` as in the distribution, and ``offset``,
        without biases, or parameters of the likelihood, unless these are the same for all cells of the fit. The
        matrix's own index counts new rows from 0; if it is missing or a scalar, all cells are in one row. The other
        index is that of fitted rows. `PairedSymbols` takes a SciPy sparse matrix of counts with the new rows as its
        rows, or pairs, (D, 2), of a new row, counted from 0, and a fitted row of the other side.

    Returns
    -------
    xarray.Dataset
        ``<matrix>_mean`` and ``<matrix>_sd``, and with a bias ``<bias>_mean`` and ``<bias>_sd``, for new rows numbered
        from 0. Point estimates have a standard deviation of zero. ``<matrix>_converged`` is a flag for each row.
        ``<y>_rows``, ``<y>_cols`` and ``<y>_observed`` are the new observations. The attribute ``status`` has the
        number of rows without any. For bilinear models ``<matrix>_bound`` is each row's bound, and after a fit with
        ``covariance="full"`` ``<matrix>_factor``, (rows, K, K), has the Cholesky factors of the rows' covariances, a
        bias last. `recommend` accepts this dataset.

    Raises
    ------
    UnsupportedModelError
        If the model has no two matrices of rows, or the prior differs from row to row.
    InvalidDataError
        For indices out of range, and observations outside their domain.

    Warns
    -----
    ConvergenceWarning
        Says how many rows stopped short of their maximum.
    """
    model, fitted = _fitted(idata, model, "fold_in")
    if not isinstance(data, Mapping) or len(data) != 1:
        raise ValueError("fold_in takes new rows of one matrix at a time, a mapping of its rows' dim to their data.")
    ((key, given),) = data.items()
    side = side_named(model, fitted.names, key)
    return fitted.predictions.fold_in(model, fitted.posterior, side, fitted.dims, given)


def _score(fitted: _Fitted, side: int, by: str | None) -> str:
    """Return the score that rows of a side are ranked by."""
    offered = fitted.predictions.by(fitted.posterior, side)
    if by is None:
        return offered[0]
    if by not in offered:
        raise ValueError(f"by={by!r} must be one of {', '.join(map(repr, offered))}.")
    return by


def _fitted(idata: Container, model: pm.Model | None, caller: str) -> tuple[pm.Model, _Fitted]:
    """Return the model and its fit; raise unless it has two matrices of rows."""
    model = model_of(model)
    predictions = registered(idata, model, lambda entry: entry.row_predictions)
    if predictions is None:
        instead = next((verb for verb, pick in _ELSEWHERE if registered(idata, model, pick) is not None), "predict")
        raise UnsupportedModelError(
            f"{caller} takes fits of models with two matrices of rows, such as those with a BilinearPoisson or "
            f"PairedSymbols, but this is a fit by {fit_method(idata)!r} of another model; use {instead}."
        )
    form = compiled_form(model, latent_of(idata, model))
    names = predictions.names(form)
    posterior = predictions.rebuild(idata, model)
    return model, _Fitted(predictions, posterior, names, row_dims(model, names), predictions.sizes(form))


def _one(rows: Mapping[str, Any], caller: str) -> Mapping[str, Any]:
    if len(rows) != 1:
        raise ValueError(f"{caller} takes rows of one matrix, such as user=[0, 1].")
    return rows


def _wanted(
    model: pm.Model, fitted: _Fitted, rows: Mapping[str, Any], caller: str, cells: Mapping[str, Any] | None
) -> tuple[int, _Wanted]:
    """Return the side and the rows that are ranked for."""
    ((key, given),) = _one(rows, caller).items()
    side = side_named(model, fitted.names, key)
    dim = fitted.dims[side]
    fitted.predictions.remark(fitted.posterior)
    if not isinstance(given, xr.Dataset):
        numbers, labels = numbered_rows(model, dim, given, fitted.sizes[side], f"{dim}=")
        return side, _Wanted(fitted.predictions.rows(fitted.posterior, side, cells or {}), numbers, labels)
    if given.attrs.get("matrix") != fitted.names[side]:
        raise ValueError(
            f"{dim}= is a dataset that fold_in did not return for rows of {fitted.names[side]!r}; pass that."
        )
    labels = given[dim].to_numpy()
    if not np.issubdtype(labels.dtype, np.integer):
        raise ValueError(f"{dim}= is a dataset whose {dim!r} has other labels than fold_in gave it; keep its numbers.")
    folded = fitted.predictions.folded(fitted.posterior, side, given, cells or {})
    return side, _Wanted(folded, np.arange(len(labels)), labels)


def _chunks(wanted: _Wanted) -> list[slice]:
    step = max(1, _NUMBERS // (wanted.rows.n_others * wanted.rows.numbers_per_pair))
    return [slice(begin, begin + step) for begin in range(0, len(wanted.numbers), step)]


def _best(wanted: _Wanted, here: slice, n: int, by: str, exclude_observed: bool) -> tuple[Ranked, np.ndarray]:
    """Return the best `n` others of some of the rows, or as many as there are, and how many of each row are left."""
    block = _block(wanted, wanted.numbers[here], by, exclude_observed)
    n = min(n, block.scores.shape[1])
    return block.ranked(np.argpartition(-block.scores, n - 1, axis=1)[:, :n]), (block.scores > -np.inf).sum(axis=1)


def _block(wanted: _Wanted, numbers: np.ndarray, by: str, exclude_observed: bool) -> RankedBlock:
    """Return rows with all others, with scores of -inf for pairs that are left out."""
    block = wanted.rows.block(numbers, by)
    if exclude_observed:
        seen, _ = wanted.rows.seen.of_rows(numbers)
        block.scores[seen.own, seen.others] = -np.inf
    return block


def _places(
    wanted: _Wanted, targets: np.ndarray, by: str, exclude_observed: bool
) -> list[tuple[np.ndarray, np.ndarray, np.ndarray]]:
    """Return for chunks of pairs the numbers of candidates above and beside each, and that of all candidates.

    Numbers are NaN for a pair that was left out itself.
    """
    found = []
    for here in _chunks(wanted):
        score = _block(wanted, wanted.numbers[here], by, exclude_observed).scores
        own = np.take_along_axis(score, targets[here][:, None], axis=1)
        missing = np.where(own[:, 0] > -np.inf, 0.0, np.nan)
        above, equal = (score > own).sum(axis=1) + missing, (score == own).sum(axis=1) - 1.0
        found.append((above, equal, (score > -np.inf).sum(axis=1).astype(float)))
    return found
