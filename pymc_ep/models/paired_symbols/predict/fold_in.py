"""Posterior of new users or items of paired symbols, given a fit of other ones."""

import warnings
from typing import Any, NamedTuple

import numpy as np
import pymc as pm
import xarray as xr
from scipy import sparse

from pymc_ep.distributions.pair_data import as_counts, labelled_pairs, packed_pairs
from pymc_ep.exceptions import ConvergenceWarning, InvalidDataError, UnsupportedModelError
from pymc_ep.models.paired_symbols.engine.updates import background, censored_logits
from pymc_ep.models.paired_symbols.engine.values import (
    PairCounts,
    Points,
    Popularity,
    Side,
    expected_priors,
    first_symbols,
)
from pymc_ep.models.paired_symbols.form import SideOfPairs
from pymc_ep.models.paired_symbols.kernel import Censored, Symbols, pair_sums, update_rows
from pymc_ep.models.paired_symbols.posterior import PairedSymbolsPosterior
from pymc_ep.results import labelled
from pymc_ep.results.row_labels import numbered_rows

__all__ = ["fold_in"]

_TOL = 1e-6
"""Largest change, in one update, of a mean of a converged row's factors or bias, in posterior standard deviations."""
_ROUNDS = 500
"""Largest number of updates of each row: far more than rows need. A warning counts rows that have not converged."""


class _Folded(NamedTuple):
    """Factors and biases of n new rows, and whether each converged, (n,)."""

    symbols: Symbols
    converged: np.ndarray


def fold_in(
    model: pm.Model, posterior: PairedSymbolsPosterior, side: int, dims: tuple[str, str], given: Any
) -> xr.Dataset:
    """Return the posterior of new rows of a side; see `pymc_ep.fold_in`.

    Parameters
    ----------
    model : pymc.Model
    posterior : PairedSymbolsPosterior
    side : {0, 1}
        Side of the new rows, users or items.
    dims : (str, str)
        Dims of the rows of both matrices.
    given : SciPy sparse, (new rows, fitted rows of the other side), or array_like, (D, 2)
        Counts, or pairs of a new row, numbered from 0, and a fitted row, by position or label.

    Raises
    ------
    InvalidDataError
        For indices out of range and counts that are negative or fractional.
    UnsupportedModelError
        If the prior differs from row to row.
    """
    form = posterior.form.form
    side_form, name = form.sides[side], form.pairs.name
    n_others = len(posterior.symbols[1 - side].bias)
    rows = _new_pairs(model, f"{name}: new {dims[side]}", dims[1 - side], given, n_others)
    n_new = given.shape[0] if sparse.issparse(given) else int(rows[:, 0].max(initial=-1)) + 1
    if not n_new:
        raise InvalidDataError(f"There are no new rows of {side_form.factors.name!r}; give at least one.")
    new, others, counts = as_counts(rows)
    pairs = PairCounts.of(new, others, counts, (n_new, n_others))
    folded = _folded(posterior, side, pairs)
    if not folded.converged.all():
        warnings.warn(
            f"{int((~folded.converged).sum())} of {n_new} new rows of {side_form.factors.name!r} did not converge; "
            f"'{side_form.factors.name}_converged' tells which.",
            ConvergenceWarning,
            stacklevel=5,
        )
    indices = (new, others) if side == 0 else (others, new)
    return _dataset(model, side_form, name, dims[side], folded, pairs.users, (*indices, counts))


def _new_pairs(model: pm.Model, what: str, other: str, given: Any, n_others: int) -> np.ndarray:
    """Return pairs of new row and fitted row by position, (D, 2), or both and a count, (n, 3), from `given`."""
    if isinstance(given, dict):
        raise InvalidDataError(f"{what} are a mapping; give a SciPy sparse matrix of counts, or pairs, (D, 2).")
    if (pairs := labelled_pairs(given)) is not None:
        fitted = numbered_rows(model, other, pairs[:, 1], n_others, f"{what}: {other}")[0]
        try:
            given = np.stack([pairs[:, 0].astype(float), fitted], axis=1)
        except ValueError as error:
            raise InvalidDataError(
                f"{what} have labels ({error}); number them from 0, as pandas.factorize does."
            ) from None
    return packed_pairs(what, given, (None, n_others), ("new row", "fitted row"))


def _folded(posterior: PairedSymbolsPosterior, side: int, pairs: PairCounts) -> _Folded:
    """Return new rows at the maximum of the bound, given the posteriors of the fit.

    The posterior of a censored symbol is normalised by its sum over the fitted rows, since new rows are few.
    """
    prior = posterior.prior
    old_side = (prior.users, prior.items)[side]
    new_side = _prior_of_rows(posterior.form.form.sides[side], old_side, len(pairs.users))
    fitted, other = posterior.symbols[side], posterior.symbols[1 - side]
    t, total = posterior.popularities[1 - side], posterior.popularities[side].concentration.sum()
    moments, n, xi, constant = background(other, t.censored), posterior.n_censored, posterior.xi, posterior.constant
    priors = expected_priors(new_side, posterior.gammas)
    points = Points(not fitted.variance.any(), not fitted.bias_variance.any())
    symbols = points.of(first_symbols(new_side, posterior.gammas, np.random.default_rng(0)))
    censored = np.full(len(pairs.users), 1.0 / len(fitted.bias))
    for _ in range(_ROUNDS):
        sums = pair_sums(pairs.by_user, symbols, other, t.censored)
        concentration = Popularity.of(new_side.concentration, pairs.users, n, censored).concentration
        logits = censored_logits(concentration, total, symbols, moments, sums, xi, constant=constant)
        # s_i = exp(E log pi_i + sum_j t_j Om_ij) / Z, with Z of the fitted rows.
        censored = np.exp(logits - posterior.log_normalisers[side])
        censored_pairs = Censored(n, censored, t.censored, moments, xi)
        after = update_rows(pairs.by_user, symbols, other, priors, censored_pairs)
        moved = np.column_stack([after.mean - symbols.mean, after.bias - symbols.bias])
        sds = np.sqrt(np.column_stack([after.variance, np.where(after.bias_variance > 0, after.bias_variance, 1.0)]))
        symbols, converged = points.of(after), np.abs(moved / sds).max(axis=1) <= _TOL
        if converged.all():
            break
    return _Folded(symbols, converged)


def _prior_of_rows(names: SideOfPairs, side: Side, n: int) -> Side:
    """Return the prior of n new rows, the common prior of the fitted rows; raise if fitted rows' priors differ."""
    for entries, block in ((names.factors, side.factors), (names.bias, side.bias)):
        if (block.mean != block.mean[0]).any() or (block.precision != block.precision[0]).any():
            raise UnsupportedModelError(
                f"The prior of {entries.name or 'a bias that is constant'!r} differs from row to row, so that of new "
                f"rows is not known; fit the model with these rows."
            )
    factors, bias = (
        block._replace(mean=np.repeat(block.mean[:1], n, axis=0), precision=np.repeat(block.precision[:1], n, axis=0))
        for block in (side.factors, side.bias)
    )
    return Side(factors, bias, np.full(n, side.concentration.mean()))


def _dataset(
    model: pm.Model,
    side: SideOfPairs,
    name: str,
    dim: str,
    folded: _Folded,
    counts: np.ndarray,
    rows: tuple[np.ndarray, np.ndarray, np.ndarray],
) -> xr.Dataset:
    matrix, symbols = side.factors.name, folded.symbols
    variables = {
        f"{matrix}_mean": (matrix, symbols.mean),
        f"{matrix}_sd": (matrix, np.sqrt(symbols.variance)),
    }
    if side.bias.name:
        variables |= {
            f"{side.bias.name}_mean": (side.bias.name, symbols.bias),
            f"{side.bias.name}_sd": (side.bias.name, np.sqrt(symbols.bias_variance)),
        }
    numbered = labelled(model, variables, {dim: np.arange(len(counts))})
    empty = counts == 0
    status = (
        f"{int(empty.sum())} of {len(empty)} new rows, the first one {int(np.argmax(empty))}, have no pair; new rows "
        f"are numbered from 0, whatever the fitted ones are"
        if empty.any()
        else "all new rows have pairs"
    )
    of_pairs = zip(("rows", "cols", "observed"), rows)
    return numbered.assign(
        {f"{matrix}_converged": (dim, folded.converged)}
        | {f"{name}_{what}": (f"{name}_pair", values) for what, values in of_pairs}
    ).assign_attrs(matrix=matrix, status=status)
