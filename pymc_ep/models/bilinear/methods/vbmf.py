"""Shrinkage of singular values on bilinear models: required priors, options, fit."""

import warnings
from collections.abc import Mapping
from typing import Any

import numpy as np

from pymc_ep.contracts.cost import Cost
from pymc_ep.contracts.method import Call, Method
from pymc_ep.contracts.solution import Solution
from pymc_ep.engines.loop import Run, run
from pymc_ep.engines.options import check_flag, check_whole
from pymc_ep.engines.prior import perturbed
from pymc_ep.evidence.bound import BoundSampling, Maximum
from pymc_ep.exceptions import UnsupportedModelError
from pymc_ep.models.bilinear.compiled import CompiledBilinear
from pymc_ep.models.bilinear.cost import SHRINKAGE, cost_of
from pymc_ep.models.bilinear.engine.row_parameters import independent
from pymc_ep.models.bilinear.engine.singular_value_shrinkage import SingularValueShrinkage, State
from pymc_ep.models.bilinear.engine.values import BilinearPrior
from pymc_ep.models.bilinear.form import Bilinear
from pymc_ep.models.bilinear.kernel import Rows
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
from pymc_ep.numerics.factorisation.singular_value_shrinkage import threshold
from pymc_ep.sites.cells.base import CurvedCellSite

__all__ = ["OPTIONS", "VBMF", "solve"]

OPTIONS = {"rank": None, "ard": False, "shrinkage": "vb", "init": "modes", "tol": 1e-6, "max_iter": 1000, "seed": 0}
"""Options and their defaults."""
_JOINT = "log density of the data and of both matrices at the result"
"""Description of the log evidence for point estimates."""
_UNLIKE = "{!r} has a {}, and singular values are shrunk alike in all rows and towards zero; {}"
"""Error message for a matrix with an unsuitable prior: its name, the unsuitable property, the remedy."""
_LOOSE_RATIO = 10.0
"""Ratio of the bound's curvature to the cells' typical curvature above which the status warns: steps are shorter by
this ratio, and the bound is looser."""


def solve(call: Call[CompiledBilinear]) -> Solution:
    """Fit a bilinear form by shrinkage of singular values.

    Raises
    ------
    UnsupportedModelError
        For likelihoods of unbounded curvature, biases, and priors that differ from row to row.
    InvalidDataError
        For observations outside their domain, and indices out of range.
    ValueError
        For options out of range, or in contradiction.

    Warns
    -----
    UserWarning
        If one cell makes the bound of most others loose, although the fit converged.
    """
    form = call.form
    settings = _settings(form, call.options, call.hyper)
    ascent, end = _ascended(call, settings)
    last = form.prior(end.state.theta)
    kappa, prior = ascent.curvature(last)[0], ascent.priors(last, end.state)
    variances = np.array([side.variance[0] for side in (prior.left, prior.right)])
    settings |= {"kappa": kappa, "prior_variances": variances.tolist()}
    loose = _curvature_warning(form, ascent, kappa, last)
    if loose and end.status.converged:
        # If it has not, the convergence warning quotes the status, which has this note.
        warnings.warn(f"{form.form.cells.name!r} is hard for vbmf{loose}.", stacklevel=3)
    notes = _pruning_warning(ascent, end.state, kappa, variances) + loose
    if not end.status.converged:
        notes += (
            f"; steps are short where the likelihood curves much (here by {kappa:.3g}), and method='vg' needs fewer"
        )
    sentence = with_unseen_rows(end.status.sentence + notes, form, ascent.cells, "have means of zero")
    end = end._replace(status=end.status._replace(sentence=sentence))
    learned = list(variances) if settings["ard"] else None
    log_evidence_is = _JOINT if ascent.points else BOUND
    return bilinear_solution(
        form,
        end,
        settings,
        log_evidence_is,
        points=ascent.points,
        learned=call.hyper == "optimize",
        prior_variances=learned,
    )


def _settings(form: CompiledBilinear, options: dict[str, Any], hyper: str) -> dict[str, Any]:
    """Return all options; raise for unsuitable forms, and for options out of range or in contradiction."""
    _require_form(form)
    settings = checked(OPTIONS | options, form.form, hyper)
    settings["rank"] = _rank(form, settings["rank"])
    _require_options(form, hyper, settings)
    return settings


def _ascended(call: Call[CompiledBilinear], settings: dict[str, Any]) -> tuple[SingularValueShrinkage, Run[State]]:
    """Return the engine and the end of the ascent."""
    form, theta = call.form, call.theta
    cells, prior = form.started(theta)
    # Rows whose scales are hyperparameters of their own may be equal at the start, hence a second value.
    for at in (theta, perturbed(theta)):
        _require_columns(form, form.prior(at))
    ascent = SingularValueShrinkage(
        cells,
        (len(prior.left.mean), len(prior.right.mean)),
        learn=call.hyper == "optimize",
        backend=form.backend,
        **{name: settings[name] for name in ("rank", "ard", "shrinkage", "tol")},
    )
    first = ascent.first(prior, theta, settings["seed"])
    if call.start is not None:
        first = _from_start(ascent, first, call.start)
    elif not ascent.points and settings["init"] == "modes":
        first = ascent.from_modes(form, first, call.checkpoint.record("modes"))
    record = call.checkpoint.record()
    end = run(ascent, form, first, max_iter=settings["max_iter"] + 1, report=call.report, record=record)
    return ascent, end


def maximum_at(settings: dict[str, Any], form: CompiledBilinear, theta: np.ndarray) -> Maximum:
    """Return the maximum of the bound at fixed hyperparameters theta, (p,), with its gradient in theta."""
    ascent, end = _ascended(Call(form, theta, "fixed"), settings)
    prior = form.prior(theta)
    at, effective_prior = ascent.derivatives(prior, end.state), ascent.priors(prior, end.state)
    slope = form.pullback(theta, at.of_prior, at.of_offset, at.of_parameters, of_log_prior=0.0)
    variances = [effective_prior.left.variance[0], effective_prior.right.variance[0]] if settings["ard"] else None
    return Maximum(end.state.log_bound, slope, end.status, saved(end.state, variances))


def _sampling_settings(form: CompiledBilinear, options: dict[str, Any]) -> dict[str, Any]:
    """Return the options for sampling hyperparameters by the bound; raise for point estimates of matrices."""
    settings = _settings(form, options, "sample")
    if settings["shrinkage"] == "map":
        raise UnsupportedModelError(
            "shrinkage='map' makes points of the matrices, and at the best points for each value of the "
            "hyperparameters the bound is no density of these; use shrinkage='vb', or hyper='fixed'."
        )
    return settings


def _cost(call: Call[CompiledBilinear]) -> Cost:
    settings = checked(OPTIONS | call.options, call.form.form, call.hyper)
    return cost_of(call.form, SHRINKAGE, settings["max_iter"])


def _require_form(form: CompiledBilinear) -> None:
    """Raise for likelihoods of unbounded curvature, biases, and unsuitable priors."""
    group = form.form.cells
    if not isinstance(group.site, CurvedCellSite):
        cut = " with zeros cut off" if getattr(group.site, "truncated", False) else ""
        raise UnsupportedModelError(
            f"{group.name!r} has a {group.site.name} likelihood{cut} and link {group.link}, whose log density curves "
            f"without a limit, so that no pseudo-data bound it; use link='softplus', or method='vg'."
        )
    if (refusal := _unsupported_reason(form.form)) is not None:
        raise UnsupportedModelError(refusal)


def _unsupported_reason(form: Bilinear) -> str | None:
    """Return the reason why a form is unsupported at any hyperparameters; None if it is supported."""
    for bias in form.biases:
        if bias is not None:
            return (
                f"{bias.name!r} is a bias with a Gaussian prior, which shrinkage of singular values has no place for; "
                f"use method='vg', or give numbers that are known as offset=."
            )
    for matrix in form.matrices:
        if matrix.flat:
            return _UNLIKE.format(matrix.name, "flat prior", "give it a pm.Normal, or use method='vg'.")
        if matrix.covariance is not None:
            what = "covariance of the entries of a row"
            return _UNLIKE.format(matrix.name, what, "give it a pm.Normal, or use method='vg'.")
    return None


def _require_columns(form: CompiledBilinear, prior: BilinearPrior) -> None:
    """Raise unless all prior means are zero and prior variances are the same in all rows."""
    for matrix, matrix_prior in zip(form.form.matrices, (prior.left, prior.right)):
        if matrix_prior.mean.any():
            k, d = (int(indices[0]) for indices in np.nonzero(matrix_prior.mean))
            what = f"prior mean of {matrix_prior.mean[k, d]:.3g} in row {k} and column {d}"
            raise UnsupportedModelError(
                _UNLIKE.format(matrix.name, what, "give it a mean of zero, or use method='vg'.")
            )
        if (matrix_prior.variance != matrix_prior.variance[0]).any():
            k = int(np.nonzero((matrix_prior.variance != matrix_prior.variance[0]).any(axis=1))[0][0])
            what = f"prior variance in row {k} that is not that in row 0"
            raise UnsupportedModelError(
                _UNLIKE.format(matrix.name, what, "give it one scale, or one for each column, or use method='vg'.")
            )


def _rank(form: CompiledBilinear, rank: int | None) -> int:
    (n_rows, d), (n_cols, _) = form.shapes[:2]
    if rank is None:
        return min(d, n_rows, n_cols)
    check_whole("rank", rank)
    left, right = (matrix.name for matrix in form.form.matrices)
    if rank > d:
        raise ValueError(f"rank={rank} is more than the {d} columns of {left!r} and {right!r}.")
    if rank > min(n_rows, n_cols):
        raise ValueError(
            f"rank={rank} is more than a matrix of {n_rows} rows ({left!r}) and {n_cols} columns ({right!r}) can have."
        )
    return int(rank)


def _require_options(form: CompiledBilinear, hyper: str, settings: dict[str, Any]) -> None:
    """Raise for options out of range, or in contradiction."""
    if settings["shrinkage"] not in ("vb", "map"):
        raise ValueError(f"shrinkage={settings['shrinkage']!r} must be 'vb' or 'map'.")
    if settings["init"] not in ("modes", "zeros"):
        raise ValueError(f"init={settings['init']!r} must be 'modes' or 'zeros'.")
    check_flag("ard", settings["ard"])
    if settings["ard"] and settings["shrinkage"] == "map":
        raise ValueError("ard=True needs shrinkage='vb': modes are higher the less columns vary, without an end.")
    scales = form.scales_of([matrix.name for matrix in form.form.matrices]) if hyper != "fixed" else ()
    if scales and settings["ard"]:
        raise ValueError(
            f"ard=True learns prior variances of columns in place of those that {scales[0]!r} decides; hold it by "
            f"hyper='fixed', give the matrices scales that are numbers, or leave out ard=True."
        )
    if scales and settings["shrinkage"] == "map":
        raise ValueError(
            f"shrinkage='map' makes points of the matrices, whose scale {scales[0]!r} is to be learned, and the "
            f"density of both together is largest where scales are zero: hold it by hyper='fixed', at another value "
            f"than the model's initial point by start={{{scales[0]!r}: ...}}, or use shrinkage='vb'."
        )


def _from_start(engine: SingularValueShrinkage, first: State, start: Mapping[str, np.ndarray]) -> State:
    """Return a state near an earlier fit, which may be of another method or rank, or have point estimates."""
    sides = [independent(rows) for rows in started_sides(first.sides, start)]
    sizes = np.prod([np.linalg.norm(rows.mean, axis=0) for rows in sides], axis=0)
    columns = np.argsort(-sizes, kind="stable")[: min(engine.rank, int(np.count_nonzero(sizes)))]
    moments = []
    for rows, first_rows in zip(sides, first.sides):
        mean = np.zeros(rows.mean.shape)
        mean[:, columns] = rows.mean[:, columns]
        variance = np.broadcast_to(rows.variance.mean(axis=0), mean.shape)
        moments.append(Rows(mean, np.where((first_rows.variance > 0) & (variance > 0), variance, first_rows.variance)))
    left, right = moments
    # With the means in the span of the basis no step lowers the bound.
    basis = np.hstack([right.mean[:, columns], first.basis])[:, : first.basis.shape[1]]
    first = first.with_sides(left, right)
    return first._replace(learning=True, left_before=left.mean, right_before=right.mean, basis=basis)


def _pruning_warning(engine: SingularValueShrinkage, state: State, kappa: float, variances: np.ndarray) -> str:
    """Return the warning that all columns are shrunk to zero, else an empty string."""
    if state.left_mean.any() or not state.values.size:
        return ""
    # Least singular values with means: s2 / sqrt(c) for points, sqrt(s2) (sqrt(I) + sqrt(J)) for learned c, where it is
    # necessary and not sufficient.
    noise, product = 1 / kappa, variances.prod(axis=0)
    if engine.points:
        least = noise / np.sqrt(product.max())
    elif engine.ard:
        least = np.sqrt(noise) * np.sqrt(engine.shape).sum()
    else:
        least = threshold(engine.shape, noise, product).min()
    return (
        f"; all columns are shrunk to zero, as the largest singular value of the pseudo-data, {state.values[0]:.3g}, "
        f"is below what it takes, at least {least:.3g}: the bound charges the variance of every cell, observed or not, "
        f"and of few cells it makes nothing. Hold wider priors by hyper='fixed', observe more cells, or use "
        f"method='vg'"
    )


def _curvature_warning(
    form: CompiledBilinear, engine: SingularValueShrinkage, kappa: float, prior: BilinearPrior
) -> str:
    """Return the warning that the bound curves far more than the likelihood of most cells, else an empty string."""
    site, given = engine.site, (engine.cells.y, *prior.parameters)
    peak = site.peak(*given)
    has_peak = np.isfinite(peak)
    typical = float(site.curvature(*given)[0].mean())
    if has_peak.any():
        curved = site.slopes(engine.cells.y, np.where(has_peak, peak, 0.0), *prior.parameters)[1]
        typical = min(typical, float(np.broadcast_to(curved, has_peak.shape)[has_peak].mean()))
    if kappa <= _LOOSE_RATIO * typical:
        return ""
    name = form.form.cells.name
    return (
        f"; the bound takes all cells to curve by {kappa:.3g}, the most that one does anywhere, where {typical:.3g} is "
        f"typical, and is loose and slow to rise for it: transform or clip the largest of {name!r}, or use "
        f"method='vg', with link='exp' for counts"
    )


_SAMPLING = BoundSampling(_sampling_settings, maximum_at, conditional_solution)
VBMF = Method(
    "vbmf",
    Bilinear,
    solve,
    rebuild,
    OPTIONS,
    ("optimize", "fixed", "sample"),
    evidence_op=_SAMPLING.evidence_op,
    condition=_SAMPLING.condition,
    takes=lambda site: isinstance(site, CurvedCellSite),
    suits=lambda site: False,
    takes_form=lambda form: _unsupported_reason(form) is None,
    cost=_cost,
    jax=True,
)
