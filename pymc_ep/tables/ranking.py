"""Functions ``recommend``, ``rank_items``, ``similar`` and ``fold_in`` for forms with two matrices of rows."""

from collections.abc import Callable, Mapping
from functools import partial
from typing import Any, NamedTuple

import numpy as np
import pymc as pm
import xarray as xr
from scipy.special import logsumexp

from pymc_ep.compat import Container
from pymc_ep.engines.options import check_flag, check_whole
from pymc_ep.numerics.memory import chunks
from pymc_ep.results.row_labels import numbered_rows, row_dims, row_labels, side_named
from pymc_ep.tables.rows import Ranked, RankedBlock, RowPredictions, Rows, best_first

__all__ = ["row_verbs"]


def row_verbs(predictions: RowPredictions) -> dict[str, Callable[..., xr.Dataset]]:
    """Return the four functions of a form with two matrices of rows, by name, for `pymc_ep.forms.FormEntry.verbs`."""
    verbs = (("recommend", _recommend), ("rank_items", _rank_items), ("similar", _similar), ("fold_in", _fold_in))
    return {name: partial(verb, predictions) for name, verb in verbs}


class _Fitted(NamedTuple):
    """A fit with two matrices of rows: the matrices' names, dims of rows and numbers of rows."""

    predictions: RowPredictions
    posterior: Any
    names: tuple[str, str]
    dims: tuple[str, str]
    sizes: tuple[int, int]

    def other(self, side: int) -> str:
        """Return the name of the other side in results: its dim, or its matrix where both share a dim."""
        return self.dims[1 - side] if self.dims[0] != self.dims[1] else self.names[1 - side]


class _Wanted(NamedTuple):
    """The k rows of one side for which a verb is called: their positions in `rows` and their labels, (k,) each."""

    rows: Rows
    numbers: np.ndarray
    labels: np.ndarray


def _recommend(
    predictions: RowPredictions,
    idata: Container,
    model: pm.Model,
    *,
    n: int,
    by: str | None,
    exclude_observed: bool,
    candidates: Any,
    cells: Mapping[str, Any] | None,
    **rows: Any,
) -> xr.Dataset:
    """Return the highest-ranking rows of one matrix for given rows of the other; see `pymc_ep.recommend`."""
    check_whole("n", n)
    check_flag("exclude_observed", exclude_observed)
    fitted = _fitted(predictions, idata, model)
    side, wanted = _wanted(model, fitted, rows, "recommend", cells)
    by = _score(fitted, side, by)
    other_dim, count = fitted.dims[1 - side], fitted.sizes[1 - side]
    barred = np.full(count, candidates is not None)
    if candidates is not None:
        barred[numbered_rows(model, other_dim, candidates, count, "candidates=")[0]] = False
    chunks, left = zip(*(_best(wanted, places, n, by, exclude_observed, barred) for places in _chunks(wanted)))
    others, lengths = np.concatenate([chunk.others for chunk in chunks]), np.concatenate(left)
    columns = {fitted.other(side): row_labels(model, other_dim, count)[others]}
    columns |= {name: np.concatenate([chunk.values[name] for chunk in chunks]) for name in chunks[0].values}
    dim = fitted.dims[side]
    ranked = xr.Dataset(
        {name: ((dim, "rank"), values) for name, values in columns.items()},
        coords={dim: wanted.labels, "rank": 1 + np.arange(others.shape[1])},
        attrs={"by": by, "probability_is": fitted.predictions.remark(fitted.posterior)},
    ).isel(rank=slice(int(lengths.max())))
    there = ranked["rank"] <= xr.DataArray(lengths, dims=dim)
    return ranked if there.all() else ranked.where(there)


def _rank_items(
    predictions: RowPredictions,
    idata: Container,
    model: pm.Model,
    *,
    by: str | None,
    exclude_observed: bool,
    cells: Mapping[str, Any] | None,
    **pairs: Any,
) -> xr.Dataset:
    """Return the rank of each pair among all pairs of its first row; see `pymc_ep.rank_items`."""
    check_flag("exclude_observed", exclude_observed)
    fitted = _fitted(predictions, idata, model)
    if len(pairs) != 2:
        raise ValueError(f"rank_items takes rows of both matrices, such as {fitted.dims[0]}=[0], {fitted.dims[1]}=[3].")
    (key, given), (other_key, others) = pairs.items()
    same = side_named(model, fitted.names, key) == side_named(model, fitted.names, other_key)
    if same and fitted.names[0] != fitted.names[1]:
        raise ValueError(f"{key!r} and {other_key!r} are rows of the same matrix; name both.")
    side, wanted = _wanted(model, fitted, {key: given}, "rank_items", cells)
    by = _score(fitted, side, by)
    targets, labels = numbered_rows(
        model, fitted.dims[1 - side], others, fitted.sizes[1 - side], f"{fitted.dims[1 - side]}="
    )
    if len(targets) != len(wanted.numbers):
        raise ValueError(f"{key!r} has {len(wanted.numbers)} rows and {other_key!r} {len(targets)}; give pairs.")
    above, equal, candidates, log_p = map(np.concatenate, zip(*_places(wanted, targets, by, exclude_observed)))
    if np.isnan(above).any():
        k = int(np.argmax(np.isnan(above)))
        raise ValueError(
            f"{wanted.labels.tolist()[k]!r} was observed with {labels.tolist()[k]!r}, and observed pairs are left out; "
            f"hold that pair out of the fit, or keep observed ones by exclude_observed=False."
        )
    better = above + 0.5 * equal
    share = 1.0 - better / np.maximum(candidates - 1.0, 1.0)
    columns = {"rank": ("pair", share), "position": ("pair", 1.0 + better)}
    if not np.isnan(log_p).any():
        columns["log_probability"] = ("pair", log_p)
    coords = {key: ("pair", wanted.labels), other_key: ("pair", labels)}
    return xr.Dataset(columns, coords=coords, attrs={"by": by, "ranked_for": key})


def _similar(predictions: RowPredictions, idata: Container, model: pm.Model, *, n: int, **rows: Any) -> xr.Dataset:
    """Return the nearest rows in the same matrix for given rows; see `pymc_ep.similar`."""
    check_whole("n", n)
    fitted = _fitted(predictions, idata, model)
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
    parts = []
    for places in (numbers[chunk] for chunk in chunks(len(numbers), size)):
        cosine = factors[places] @ factors.T
        cosine[np.arange(len(places)), places] = -np.inf
        best = np.argpartition(-cosine, n - 1, axis=1)[:, :n]
        similarity = np.take_along_axis(cosine, best, axis=1)
        parts.append(best_first(best, {"similarity": similarity}, similarity))
    return xr.Dataset(
        {
            "neighbour": (
                (dim, "rank"),
                row_labels(model, dim, size)[np.concatenate([chunk.others for chunk in parts])],
            ),
            "similarity": ((dim, "rank"), np.concatenate([chunk.values["similarity"] for chunk in parts])),
        },
        coords={dim: labels, "rank": 1 + np.arange(n)},
    )


def _fold_in(predictions: RowPredictions, idata: Container, model: pm.Model, *, data: Mapping[str, Any]) -> xr.Dataset:
    """Return the posterior of new rows; see `pymc_ep.fold_in`."""
    fitted = _fitted(predictions, idata, model)
    if not isinstance(data, Mapping) or len(data) != 1:
        raise ValueError("fold_in takes new rows of one matrix at a time, a mapping of its rows' dim to their data.")
    ((key, given),) = data.items()
    side = side_named(model, fitted.names, key)
    return fitted.predictions.fold_in(model, fitted.posterior, side, fitted.dims, given)


def _score(fitted: _Fitted, side: int, by: str | None) -> str:
    """Return the score by which to rank for rows of a side: `by`, or the default; raise for an unknown one."""
    offered = fitted.predictions.by(fitted.posterior, side)
    if by is None:
        return offered[0]
    if by not in offered:
        raise ValueError(f"by={by!r} must be one of {', '.join(map(repr, offered))}.")
    return by


def _fitted(predictions: RowPredictions, idata: Container, model: pm.Model) -> _Fitted:
    posterior = predictions.rebuild(idata, model)
    names = predictions.names(posterior)
    return _Fitted(predictions, posterior, names, row_dims(model, names), predictions.sizes(posterior))


def _one(rows: Mapping[str, Any], caller: str) -> Mapping[str, Any]:
    if len(rows) != 1:
        raise ValueError(f"{caller} takes rows of one matrix, such as user=[0, 1].")
    return rows


def _wanted(
    model: pm.Model, fitted: _Fitted, rows: Mapping[str, Any], caller: str, cells: Mapping[str, Any] | None
) -> tuple[int, _Wanted]:
    """Return the side, 0 or 1, of the rows for which a verb is called, and these rows, fitted or folded in."""
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
    return chunks(len(wanted.numbers), wanted.rows.n_others * wanted.rows.numbers_per_pair)


def _best(
    wanted: _Wanted, places: slice, n: int, by: str, exclude_observed: bool, barred: np.ndarray
) -> tuple[Ranked, np.ndarray]:
    """Return the `n` best rows of the other side for each of k rows, and how many rows are not left out, (k,).

    The k rows are at `places` of `wanted`. Rows where `barred`, (J,), is true are left out, and with `exclude_observed`
    observed pairs: they come last.
    """
    block = _block(wanted, wanted.numbers[places], by, exclude_observed)
    block.scores[:, barred] = -np.inf
    n = min(n, block.scores.shape[1])
    ranked = block.ranked(np.argpartition(-block.scores, n - 1, axis=1)[:, :n])
    # Where fewer are left than were asked for, those that are left out come last.
    left = block.scores > -np.inf
    return best_first(*ranked, np.take_along_axis(left, ranked.others, axis=1).astype(float)), left.sum(axis=1)


def _block(wanted: _Wanted, numbers: np.ndarray, by: str, exclude_observed: bool) -> RankedBlock:
    """Return rows with all rows of the other side; with `exclude_observed`, observed pairs have scores of -inf."""
    block = wanted.rows.block(numbers, by)
    if exclude_observed:
        seen, _ = wanted.rows.seen.of_rows(numbers)
        block.scores[seen.own, seen.others] = -np.inf
    return block


def _places(wanted: _Wanted, targets: np.ndarray, by: str, exclude_observed: bool) -> list[tuple[np.ndarray, ...]]:
    """Return four arrays, (k,), for each chunk of k pairs: numbers of candidates, and log probabilities of the pairs.

    The candidates are the rows with a higher score than the pair's, other rows with the same score, and all rows. The
    first number is NaN for a pair that is itself left out. Log probabilities are NaN where scores are no log weights.
    """
    chunks: list[tuple[np.ndarray, ...]] = []
    for places in _chunks(wanted):
        block = _block(wanted, wanted.numbers[places], by, exclude_observed)
        score = block.scores
        target_score = np.take_along_axis(score, targets[places][:, None], axis=1)
        missing = np.where(target_score[:, 0] > -np.inf, 0.0, np.nan)
        above, equal = (score > target_score).sum(axis=1) + missing, (score == target_score).sum(axis=1) - 1.0
        log_p = (
            target_score[:, 0] - logsumexp(score, axis=1) if block.log_weights else np.full(len(target_score), np.nan)
        )
        chunks.append((above, equal, (score > -np.inf).sum(axis=1).astype(float), log_p))
    return chunks
