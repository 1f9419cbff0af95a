"""Posterior of new rows of a matrix, such as new users, without a new fit."""

import warnings
from collections.abc import Mapping
from typing import Any

import numpy as np
import pymc as pm
import xarray as xr

from pymc_ep.compat import Container
from pymc_ep.engines.bilinear.block_ascent import BestRows, best_rows
from pymc_ep.engines.bilinear.bound import BilinearBound
from pymc_ep.engines.bilinear.row_parameters import FIRST_VARIANCE, factored
from pymc_ep.engines.bilinear.values import BilinearPrior, Cells, MatrixPrior, NewCells
from pymc_ep.exceptions import ConvergenceWarning, InvalidDataError, UnsupportedModelError
from pymc_ep.forms.bilinear.compiled import CompiledBilinear
from pymc_ep.forms.bilinear.posterior import BilinearPosterior
from pymc_ep.forms.bilinear.predict.inputs import read_cells, row_dims, side_named
from pymc_ep.forms.bilinear.predict.rebuild import require_bilinear
from pymc_ep.kernels.inner_products import FactoredRows, Rows
from pymc_ep.results import labelled

__all__ = ["fold_in"]

_FEASIBLE = 0.5
"""Largest sum over factors of a new row's first variances times the other matrix's. Below one E e^f exists; the half is
a margin."""
_BOUND = "lower bound on the log density of the cells of each new row given the fit{}"
"""Description of the rows' bounds in the dataset."""


def fold_in(idata: Container, model: pm.Model | None, data: Mapping[str, Mapping[str, Any]]) -> xr.Dataset:
    """Return the posterior of new rows of one matrix of a bilinear model, given the fitted rows of the other one.

    New rows have the prior of the fitted ones. Hyperparameters are at their mode, and the fit does not change.

    Parameters
    ----------
    idata : arviz.InferenceData or xarray.DataTree
        Result of `pymc_ep.fit`, also one read back from disk.
    model : pymc.Model or None
        The fitted model; None takes that of the context.
    data : mapping of str to mapping
        Maps the dim of the matrix's rows, such as ``"user"``, or its name to the new cells. These are ``rows``,
        ``cols`` and ``observed`` as in the distribution, and ``offset``, without biases, or parameters of the
        likelihood, unless these are the same for all cells of the fit. The matrix's own index counts new rows from 0;
        if it is missing or a scalar, all cells are in one row. The other index is that of fitted rows.

    Returns
    -------
    xarray.Dataset
        ``<matrix>_mean`` and ``<matrix>_sd``, and with a bias ``<bias>_mean`` and ``<bias>_sd``, for new rows numbered
        from 0. Point estimates have a standard deviation of zero. A new row without a cell has its prior.
        ``<matrix>_bound`` is each row's bound, and ``<matrix>_converged`` a flag. ``<y>_rows``, ``<y>_cols`` and
        ``<y>_observed`` are the new cells. After a fit with ``covariance="full"``, ``<matrix>_factor``, (rows, K, K),
        has the Cholesky factors of the rows' covariances, a bias last. The attribute ``status`` has the number of rows
        without a cell, which gaps in the row numbers lead to. `recommend` accepts this dataset.

    Raises
    ------
    UnsupportedModelError
        If the fit is not of a bilinear model, or the prior differs from row to row.
    InvalidDataError
        For indices out of range, and observations outside their domain.

    Warns
    -----
    ConvergenceWarning
        Says how many rows stopped short of their maximum.
    """
    model = pm.modelcontext(model)
    posterior = require_bilinear(idata, model, "fold_in")
    form = posterior.form
    if not isinstance(data, Mapping) or len(data) != 1:
        raise ValueError("fold_in takes new rows of one matrix at a time, a mapping of its rows' dim to their cells.")
    ((key, given),) = data.items()
    own = side_named(model, form, key)
    new = read_cells(model, form, posterior.theta, given, own)
    counts = np.bincount((new.rows, new.cols)[own])
    best, name = _best(posterior, new, own, counts), form.form.matrices[own].name
    if not best.converged.all():
        warnings.warn(
            f"{int((~best.converged).sum())} of {len(best.converged)} new rows of {name!r} did not converge; "
            f"'{name}_converged' tells which.",
            ConvergenceWarning,
            stacklevel=2,
        )
    return _dataset(model, posterior, new, best, own, counts)


def _best(posterior: BilinearPosterior, new: NewCells, own: int, counts: np.ndarray) -> BestRows:
    """Return the new rows, with `counts` cells each, at the maximum of their bound."""
    form, fitted = posterior.form, (posterior.left, posterior.right)
    priors, sides = [posterior.prior.left, posterior.prior.right], list(fitted)
    priors[own] = _prior_of_rows(form, priors[own], own, counts)
    # Columns of learned prior variance zero are pruned on both sides, and new rows have no effect there.
    pruned = priors[own].variance[0] == 0
    priors[own] = priors[own]._replace(variance=np.where(pruned, 1.0, priors[own].variance))
    points = [rows.variance.max(axis=0) == 0 for rows in fitted]
    points[own] &= ~pruned
    # Any start with finite expected rates will do, as the bound is concave in the rows.
    variance = np.minimum(priors[own].variance, FIRST_VARIANCE)
    widest = np.maximum(fitted[1 - own].variance[:, : form.n_factors].max(axis=0), np.finfo(float).tiny)
    variance[:, : form.n_factors] = np.minimum(variance[:, : form.n_factors], _FEASIBLE / (form.n_factors * widest))
    first = Rows(priors[own].mean, np.where(points[own], 0.0, variance))
    sides[own] = first if isinstance(fitted[own], Rows) else factored(first)
    shape = len(sides[0].mean), len(sides[1].mean)
    cells = Cells.of(new.y, new.rows, new.cols, shape, form.form.cells.site)
    bound = BilinearBound(cells, form.n_factors, (points[0], points[1]))
    prior = BilinearPrior(priors[0], priors[1], new.offset, new.parameters, 0.0)
    best = best_rows(bound, prior, (sides[0], sides[1]), own)
    # With pruned columns entries are independent, so that rows are `Rows`.
    return best._replace(rows=Rows(*(np.where(pruned, 0.0, part) for part in best.rows))) if pruned.any() else best


def _prior_of_rows(form: CompiledBilinear, prior: MatrixPrior, own: int, counts: np.ndarray) -> MatrixPrior:
    """Return the prior of new rows, that of any fitted row; raise if rows differ, or lack cells under a flat prior."""
    d, matrix, bias = form.n_factors, form.form.matrices[own], form.form.biases[own]
    for one, columns in ((matrix, slice(None, d)), (bias, slice(d, None))):
        if one is None:
            continue
        if any((part[:, columns] != part[0, columns]).any() for part in prior[:2]):
            raise UnsupportedModelError(
                f"The prior of {one.name!r} differs from row to row, so that of new rows is not known; fit the model "
                f"with these rows."
            )
        if one.flat and not counts.all():
            raise InvalidDataError(
                f"The new row {int(np.argmin(counts))} of {matrix.name!r} has no cell and {one.name!r} a flat prior, "
                f"so that nothing is known of it; number new rows without a gap."
            )
    return prior.at(np.zeros(len(counts), dtype=np.int64))


def _dataset(
    model: pm.Model, posterior: BilinearPosterior, new: NewCells, best: BestRows, own: int, counts: np.ndarray
) -> xr.Dataset:
    form = posterior.form
    d, matrix, bias, y = form.n_factors, form.form.matrices[own], form.form.biases[own], form.form.cells.name
    mean, sd = best.rows.mean, np.sqrt(best.rows.variance)
    variables = {f"{matrix.name}_mean": (matrix.name, mean[:, :d]), f"{matrix.name}_sd": (matrix.name, sd[:, :d])}
    if bias is not None:
        variables |= {f"{bias.name}_mean": (bias.name, mean[:, d]), f"{bias.name}_sd": (bias.name, sd[:, d])}
    dim = row_dims(model, form)[own]
    numbered = labelled(model, variables, {dim: np.arange(len(mean))})
    of_rows = {f"{matrix.name}_bound": best.bound, f"{matrix.name}_converged": best.converged}
    if isinstance(best.rows, FactoredRows):
        between = tuple(f"{matrix.name}_{which}" for which in ("entry", "part"))
        numbered = numbered.assign({f"{matrix.name}_factor": ((dim, *between), best.rows.factor)})
    of_cells = {f"{y}_rows": new.rows, f"{y}_cols": new.cols, f"{y}_observed": new.y}
    points = [one.name for one, part in ((matrix, sd[:, :d]), (bias, sd[:, d:])) if one is not None and not part.any()]
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
