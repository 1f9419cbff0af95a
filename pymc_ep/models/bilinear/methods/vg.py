"""Variational Gaussian on bilinear models: options, point estimates, fit."""

from collections.abc import Mapping, Sequence
from typing import Any

import numpy as np

from pymc_ep.contracts.cost import Cost
from pymc_ep.contracts.method import Call, Method
from pymc_ep.contracts.solution import Solution
from pymc_ep.engines.base import Status
from pymc_ep.engines.loop import Run, run
from pymc_ep.engines.options import estimate_names
from pymc_ep.evidence.bound import BoundSampling, Maximum
from pymc_ep.exceptions import UnsupportedModelError
from pymc_ep.models.bilinear.compiled import CompiledBilinear
from pymc_ep.models.bilinear.cost import VARIATIONAL, cost_of
from pymc_ep.models.bilinear.engine.bound import BilinearBound, Sides
from pymc_ep.models.bilinear.engine.row_parameters import factored, independent
from pymc_ep.models.bilinear.engine.spectral_start import first_sides, sides_without_factors
from pymc_ep.models.bilinear.engine.values import BilinearPrior
from pymc_ep.models.bilinear.engine.variational_gaussian import State, VariationalGaussian, first_state
from pymc_ep.models.bilinear.form import Bilinear
from pymc_ep.models.bilinear.methods.solution import (
    BOUND,
    bilinear_solution,
    checked,
    conditional_solution,
    rebuild,
    saved,
    started_sides,
    with_unseen_rows,
)
from pymc_ep.sites.cells.base import CellSite

__all__ = ["OPTIONS", "VG", "solve"]

OPTIONS = {"covariance": "diagonal", "estimate": (), "tol": 1e-6, "max_iter": 200, "seed": 0}
"""Options and their defaults."""
_WITH_POINTS = (
    "lower bound on the log density of the data and of the estimated {}, at the hyperparameters of the result"
)
"""Description of the log evidence with point estimates of some variables."""
_COVARIANCES = ("diagonal", "full")
"""Values of the option ``covariance``."""
_PRUNED = 1e-3
"""Root mean square of inner products below which all factors count as pruned: far below any effect on a predictor."""
_SINGULAR = 1e-10
"""Least eigenvalue of a learned covariance, relative to the first covariance's largest, below which it counts as
singular: no prior scale that data suggest is five orders of magnitude below the first guess."""


def solve(call: Call[CompiledBilinear]) -> Solution:
    """Fit a bilinear form by a Gaussian of independent rows.

    Raises
    ------
    InvalidDataError
        For observations outside their domain, and indices out of range.
    ValueError
        For options out of range or in contradiction, such as point estimates whose prior scale is learned.
    """
    form, settings = call.form, _settings(call)
    estimated, points = _points(form.form, settings["estimate"], form.n_factors)
    settings["estimate"] = estimated
    if call.hyper == "optimize" and (scales := form.scales_of(estimated)):
        raise ValueError(
            f"estimate= makes points of {', '.join(map(repr, estimated))}, whose scale {scales[0]!r} is to be learned, "
            f"and the density of both together is largest where scales are zero: hold it by hyper='fixed', at another "
            f"value than the model's initial point by start={{{scales[0]!r}: ...}}, or leave them out of estimate=."
        )
    bound, first, end = _ascended(call, settings, points)
    sentence = with_unseen_rows(end.status.sentence, form, bound.cells)
    if form.n_factors > (least := min(len(rows.mean) for rows in end.state.sides)):
        sentence += f"; of {form.n_factors} factors no more than {least} can matter to a matrix with a side of {least}"
    status = end.status._replace(sentence=sentence)
    if call.hyper == "optimize":
        status = _with_prior_warnings(status, form, first, end.state)
    end = end._replace(status=status)
    log_evidence_is = _WITH_POINTS.format(", ".join(estimated)) if estimated else BOUND
    all_points = bool(np.concatenate(points).all())
    return bilinear_solution(form, end, settings, log_evidence_is, points=all_points, learned=call.hyper == "optimize")


def _ascended(
    call: Call[CompiledBilinear], settings: dict[str, Any], points: tuple[np.ndarray, np.ndarray]
) -> tuple[BilinearBound, BilinearPrior, Run[State]]:
    """Return the bound, the prior at the first hyperparameters, and the end of the ascent."""
    cells, prior = call.form.started(call.theta)
    bound = BilinearBound(cells, call.form.n_factors, points, call.form.backend)
    full = settings["covariance"] == "full"
    if call.start is None:
        sides = first_sides(bound, prior, settings["seed"])
    else:
        sides = _from_start(sides_without_factors(bound, prior), call.start, full=full)
    ascent = VariationalGaussian(bound, learn=call.hyper == "optimize", tol=settings["tol"], full=full)
    first, record = first_state(sides, call.theta), call.checkpoint.record()
    end = run(ascent, call.form, first, max_iter=settings["max_iter"] + 1, report=call.report, record=record)
    if full:
        # A fit that ends with a sweep has no covariances yet.
        left, right = map(factored, end.state.sides)
        end = end._replace(state=end.state._replace(left=left, right=right))
    return bound, prior, end


def maximum_at(settings: dict[str, Any], form: CompiledBilinear, theta: np.ndarray) -> Maximum:
    """Return the maximum of the bound at fixed hyperparameters theta, (p,), with its gradient in theta."""
    _, points = _points(form.form, (), form.n_factors)
    bound, prior, end = _ascended(Call(form, theta, "fixed"), settings, points)
    at = bound.derivatives(prior, end.state.sides)
    slope = form.pullback(theta, at.of_prior, at.of_offset, at.of_parameters, of_log_prior=0.0)
    return Maximum(end.state.log_bound, slope, end.status, saved(end.state))


def _sampling_settings(form: CompiledBilinear, options: dict[str, Any]) -> dict[str, Any]:
    """Return the options for sampling hyperparameters by the bound; raise for point estimates of any variable."""
    settings = _settings(Call(form, form.start, "sample", options=options))
    estimated, _ = _points(form.form, settings["estimate"], form.n_factors)
    if estimated:
        flat = [entry.name for entry in form.form.entries if entry.flat]
        cure = f"give {flat[0]!r} a proper prior" if flat else "leave estimate= out"
        raise UnsupportedModelError(
            f"Of {', '.join(map(repr, estimated))} the bound has points, and at the best points for each value of the "
            f"hyperparameters it is no density of these; {cure}, or use hyper='fixed'."
        )
    return settings | {"estimate": estimated}


def _settings(call: Call[CompiledBilinear]) -> dict[str, Any]:
    """Return the options; raise ValueError for any out of range."""
    settings = checked(OPTIONS | call.options, call.form.form, call.hyper)
    if settings["covariance"] not in _COVARIANCES:
        raise ValueError(f"covariance={settings['covariance']!r} must be one of {', '.join(map(repr, _COVARIANCES))}.")
    return settings


def _cost(call: Call[CompiledBilinear]) -> Cost:
    settings = _settings(call)
    return cost_of(call.form, VARIATIONAL, settings["max_iter"], full=settings["covariance"] == "full")


def _with_prior_warnings(status: Status, form: CompiledBilinear, first: BilinearPrior, state: State) -> Status:
    """Return the status with warnings on learned priors that prune all factors, or run to a singular covariance."""
    sentence, last = status.sentence, form.prior(state.theta)
    squares = [(rows.mean**2 + rows.variance)[:, : form.n_factors].mean(axis=0) for rows in state.sides]
    # Mean square of v^T u without cross terms: sum_d (mean_i E v_id^2) (mean_j E u_jd^2).
    rms = float(np.sqrt(squares[0] @ squares[1]))
    if rms < _PRUNED:
        sentence += (
            f"; every factor is pruned, to inner products of root mean square {rms:.2g}, as the bound is highest "
            f"without any where the data say little of them: new rows have their prior. Hold a scale at the value that "
            f"predicts best, by hyper='fixed', or observe more cells"
        )
    for matrix, first_prior, last_prior in zip(form.form.matrices, (first.left, first.right), (last.left, last.right)):
        if first_prior.covariance is None or last_prior.covariance is None:
            continue
        if np.linalg.eigvalsh(last_prior.covariance)[0] < _SINGULAR * np.linalg.eigvalsh(first_prior.covariance)[-1]:
            # If all factors are pruned the fit has converged all the same.
            status = status._replace(converged=status.converged and rms < _PRUNED)
            sentence += (
                f"; the learned covariance of {matrix.name!r} ran to a singular one, where its prior has no bound: "
                f"give standard deviations a prior without density at zero, as pm.InverseGamma.dist(3, 2), or hold it"
            )
    return status._replace(sentence=sentence)


def _points(form: Bilinear, estimate: Sequence[str], d: int) -> tuple[tuple[str, ...], tuple[np.ndarray, np.ndarray]]:
    """Return the names of the point estimates, and masks of their columns in either matrix, (K,) and (K',)."""
    named = estimate_names(estimate, form.latent_names)
    # Under a flat prior the posterior may be improper.
    estimated = tuple(entry.name for entry in form.entries if entry.flat or entry.name in named)
    columns = []
    for matrix, bias in zip(form.matrices, form.biases):
        mask = [matrix.name in estimated] * d
        columns.append(np.array([*mask, *([] if bias is None else [bias.name in estimated])]))
    return estimated, (columns[0], columns[1])


def _from_start(first: Sides, start: Mapping[str, np.ndarray], *, full: bool) -> Sides:
    """Return the rows of an earlier fit, with covariances if `full`; raise unless they suit the model of `first`."""
    left, right = (factored(rows) if full else independent(rows) for rows in started_sides(first, start))
    for rows, first_rows in zip((left, right), first):
        if ((rows.variance > 0) != (first_rows.variance > 0)).any():
            raise ValueError("start= is a fit with another estimate=; fit without it, or with the same.")
    return left, right


_SAMPLING = BoundSampling(_sampling_settings, maximum_at, conditional_solution)
VG = Method(
    "vg",
    Bilinear,
    solve,
    rebuild,
    OPTIONS,
    ("optimize", "fixed", "sample"),
    evidence_op=_SAMPLING.evidence_op,
    condition=_SAMPLING.condition,
    takes=lambda site: isinstance(site, CellSite),
    cost=_cost,
    jax=True,
)
