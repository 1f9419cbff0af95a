"""Posterior of new rows of a matrix, such as new users, without a new fit."""

import warnings
from collections.abc import Mapping
from typing import Any

import numpy as np
import pymc as pm
import xarray as xr

from pymc_ep.exceptions import ConvergenceWarning, InvalidDataError, UnsupportedModelError
from pymc_ep.models.bilinear.compiled import CompiledBilinear
from pymc_ep.models.bilinear.engine.block_ascent import BestRows, best_rows
from pymc_ep.models.bilinear.engine.bound import BilinearBound
from pymc_ep.models.bilinear.engine.row_parameters import FIRST_VARIANCE, factored
from pymc_ep.models.bilinear.engine.values import BilinearPrior, Cells, MatrixPrior, NewCells
from pymc_ep.models.bilinear.kernel import FactoredRows, Rows
from pymc_ep.models.bilinear.posterior import BilinearPosterior
from pymc_ep.models.bilinear.predict.inputs import read_cells
from pymc_ep.results import labelled

__all__ = ["fold_in"]

_FEASIBLE = 0.5
"""Largest sum, over factors, of a new row's first variance times the other matrix's largest variance. E e^f exists for
a sum below one; one half leaves a margin."""
_BOUND = "lower bound on the log density of the cells of each new row given the fit{}"
"""Description of the rows' bounds in the dataset."""


def fold_in(
    model: pm.Model, posterior: BilinearPosterior, side: int, dims: tuple[str, str], given: Mapping[str, Any]
) -> xr.Dataset:
    """Return the posterior of new rows of one matrix, given the fitted rows of the other; see `pymc_ep.fold_in`.

    Parameters
    ----------
    model : pymc.Model
    posterior : BilinearPosterior
    side : {0, 1}
        Matrix of the new rows, 0 left or 1 right.
    dims : (str, str)
        Dims of the rows of both matrices.
    given : mapping of str to array_like
        ``rows``, ``cols`` and ``observed`` as in the distribution. Also ``offset``, without biases, and parameters of
        the likelihood; a value that all cells of the fit share may be left out. The index on this side counts new rows
        from 0; if it is missing or a scalar, all cells are in one new row. The other index is of fitted rows.

    Raises
    ------
    UnsupportedModelError
        If the prior differs from row to row.
    InvalidDataError
        For indices out of range, and observations outside their domain.
    """
    form = posterior.form
    new = read_cells(model, form, posterior.theta, given, side)
    counts = np.bincount((new.rows, new.cols)[side])
    best, name = _best(posterior, new, side, counts), form.form.matrices[side].name
    if not best.converged.all():
        warnings.warn(
            f"{int((~best.converged).sum())} of {len(best.converged)} new rows of {name!r} did not converge; "
            f"'{name}_converged' tells which.",
            ConvergenceWarning,
            stacklevel=5,
        )
    return _dataset(model, posterior, new, best, side, dims[side], counts)


def _best(posterior: BilinearPosterior, new: NewCells, side: int, counts: np.ndarray) -> BestRows:
    """Return the new rows, with `counts` cells each, at the maximum of their bound."""
    form, fitted = posterior.form, (posterior.left, posterior.right)
    priors, sides = [posterior.prior.left, posterior.prior.right], list(fitted)
    priors[side] = _prior_of_rows(form, priors[side], side, counts)
    # Columns of learned prior variance zero are pruned on both sides, and new rows have no effect there.
    pruned = priors[side].variance[0] == 0
    priors[side] = priors[side]._replace(variance=np.where(pruned, 1.0, priors[side].variance))
    points = [rows.variance.max(axis=0) == 0 for rows in fitted]
    points[side] &= ~pruned
    # Any start with finite expected rates will do, as the bound is concave in the rows.
    variance = np.minimum(priors[side].variance, FIRST_VARIANCE)
    widest = np.maximum(fitted[1 - side].variance[:, : form.n_factors].max(axis=0), np.finfo(float).tiny)
    # tr(A B) = sum_d a_d b_d is at most 1/2, and so are the eigenvalues of L^T B L.
    variance[:, : form.n_factors] = np.minimum(variance[:, : form.n_factors], _FEASIBLE / (form.n_factors * widest))
    first = Rows(priors[side].mean, np.where(points[side], 0.0, variance))
    sides[side] = first if isinstance(fitted[side], Rows) else factored(first)
    shape = len(sides[0].mean), len(sides[1].mean)
    cells = Cells.of(new.y, new.rows, new.cols, shape, form.form.cells.site)
    bound = BilinearBound(cells, form.n_factors, (points[0], points[1]))
    prior = BilinearPrior(priors[0], priors[1], new.offset, new.parameters, 0.0)
    best = best_rows(bound, prior, (sides[0], sides[1]), side)
    # With pruned columns entries are independent, so that rows are `Rows`.
    return best._replace(rows=Rows(*(np.where(pruned, 0.0, moment) for moment in best.rows))) if pruned.any() else best


def _prior_of_rows(form: CompiledBilinear, prior: MatrixPrior, side: int, counts: np.ndarray) -> MatrixPrior:
    """Return new rows' prior, the common one of fitted rows; raise without one, or if it is flat and a row is empty."""
    d, matrix, bias = form.n_factors, form.form.matrices[side], form.form.biases[side]
    for entry, columns in ((matrix, slice(None, d)), (bias, slice(d, None))):
        if entry is None:
            continue
        if any((moment[:, columns] != moment[0, columns]).any() for moment in prior[:2]):
            raise UnsupportedModelError(
                f"The prior of {entry.name!r} differs from row to row, so that of new rows is not known; fit the model "
                f"with these rows."
            )
        if entry.flat and not counts.all():
            raise InvalidDataError(
                f"The new row {int(np.argmin(counts))} of {matrix.name!r} has no cell and {entry.name!r} a flat prior, "
                f"so that nothing is known of it; number new rows without a gap."
            )
    return prior.at(np.zeros(len(counts), dtype=np.int64))


def _dataset(
    model: pm.Model,
    posterior: BilinearPosterior,
    new: NewCells,
    best: BestRows,
    side: int,
    dim: str,
    counts: np.ndarray,
) -> xr.Dataset:
    form = posterior.form
    d, matrix, bias, y = form.n_factors, form.form.matrices[side], form.form.biases[side], form.form.cells.name
    mean, sd = best.rows.mean, np.sqrt(best.rows.variance)
    variables = {f"{matrix.name}_mean": (matrix.name, mean[:, :d]), f"{matrix.name}_sd": (matrix.name, sd[:, :d])}
    if bias is not None:
        variables |= {f"{bias.name}_mean": (bias.name, mean[:, d]), f"{bias.name}_sd": (bias.name, sd[:, d])}
    numbered = labelled(model, variables, {dim: np.arange(len(mean))})
    of_rows = {f"{matrix.name}_bound": best.bound, f"{matrix.name}_converged": best.converged}
    if isinstance(best.rows, FactoredRows):
        between = tuple(f"{matrix.name}_{suffix}" for suffix in ("entry", "part"))
        numbered = numbered.assign({f"{matrix.name}_factor": ((dim, *between), best.rows.factor)})
    of_cells = {f"{y}_rows": new.rows, f"{y}_cols": new.cols, f"{y}_observed": new.y}
    points = [
        entry.name
        for entry, entry_sd in ((matrix, sd[:, :d]), (bias, sd[:, d:]))
        if entry is not None and not entry_sd.any()
    ]
    # Columns of learned prior variance zero have no density.
    points = points if posterior.prior_variances is None else []
    empty = counts == 0
    status = (
        f"{int(empty.sum())} of {len(empty)} new rows, the first one {int(np.argmax(empty))}, have no cell and their "
        f"prior as posterior; new rows are numbered from 0, whatever the fitted ones are"
        if empty.any()
        else "all new rows have cells"
    )
    what = f", times the prior density of {' and '.join(points)} at its estimate" if points else ""
    return numbered.assign(
        {name: (dim, values) for name, values in of_rows.items()}
        | {name: (f"{y}_cell", values) for name, values in of_cells.items()}
    ).assign_attrs(matrix=matrix.name, bound_is=_BOUND.format(what), status=status)
