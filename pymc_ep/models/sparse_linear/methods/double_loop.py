"""Double loop and posterior mode on sparse linear models: options, start, fit."""

from collections.abc import Mapping
from typing import Any, NamedTuple

import numpy as np

from pymc_ep.contracts.cost import Cost
from pymc_ep.contracts.method import Call
from pymc_ep.engines.base import Report, Status
from pymc_ep.engines.checkpoint import Record
from pymc_ep.engines.loop import run
from pymc_ep.engines.options import check_whole
from pymc_ep.evidence.bound import Maximum
from pymc_ep.evidence.ep.sweep import group_slices
from pymc_ep.exceptions import InvalidDataError, UnsupportedModelError
from pymc_ep.models.sparse_linear.compiled import CompiledSparseLinear
from pymc_ep.models.sparse_linear.cost import cost_of_factors, cost_of_products
from pymc_ep.models.sparse_linear.engine.bounded_sites import BoundedSites
from pymc_ep.models.sparse_linear.engine.inner_loop import INNER
from pymc_ep.models.sparse_linear.engine.outer_loop import DoubleLoop, Start, State
from pymc_ep.models.sparse_linear.engine.precision_solvers import Exact, Iterative, PrecisionSolver
from pymc_ep.models.sparse_linear.engine.tree_start import fitted_start
from pymc_ep.models.sparse_linear.engine.tree_states import has_mixtures, require_two_states, state_warnings
from pymc_ep.models.sparse_linear.posterior_average import averaged_evidence, averaged_status, translations_of

__all__ = [
    "MODE_OPTIONS",
    "OPTIONS",
    "BoundFit",
    "cost_of_bounds",
    "cost_of_mode",
    "find_mode",
    "maximum_at",
    "sampling_settings",
    "solve_by_bounds",
]

OPTIONS = {
    "variance": "auto",
    "n_samples": 30,
    "lanczos_steps": 100,
    "outer": 50,
    "tol": None,
    "inner": "irls",
    "inner_max_iter": 50,
    "cg_tol": 1e-4,
    "cg_max_iter": 1000,
    "seed": 0,
    "translations": 1,
}
"""Options of the double loop and their defaults; ``tol=None`` is 1e-4 with exact variances and 1e-3 with estimated
ones."""
MODE_OPTIONS = {
    "smoothing": 1e-8,
    "outer": 50,
    "tol": 1e-4,
    "inner": "irls",
    "inner_max_iter": 1000,
    "cg_tol": 1e-4,
    "cg_max_iter": 1000,
}
"""Options of the posterior mode and their defaults."""

_VARIANCES = ("auto", "exact", "perturb-and-map", "lanczos")
"""Values of the option ``variance``."""
_TOL_EXACT, _TOL_ESTIMATED = 1e-4, 1e-3
"""Change at which the outer loop stops, with exact and with estimated variances. The error of estimates is a hundred
times as large, so that a smaller change means nothing."""
_MODE_TOL = 1e-8
"""Rise of the objective, nats per site, at which an inner loop towards a mode ends. Flat pieces of a picture are then
flat up to the smoothing."""
_AFFORDABLE = 2e10
"""Largest cost of a factorisation, floating-point operations, for which ``variance="auto"`` is exact: some seconds."""
_LOOPS, _INNER_STEPS = 30, 8
"""Mean number of outer loops, and of steps of the inner loop in each."""
_LEAST = dict.fromkeys(("n_samples", "lanczos_steps", "outer", "inner_max_iter", "cg_max_iter", "translations"), 1)
_LEAST["seed"] = 0
"""Options that are whole numbers, and their least values."""
_POSITIVE = ("tol", "cg_tol", "smoothing")
"""Options that are positive numbers."""


class BoundFit(NamedTuple):
    """Fit of the double loop.

    Attributes
    ----------
    state : State
        Last state.
    observed : tuple of ndarray
        Observations of each group, ravelled.
    objective, change : ndarray, (iterations,)
        Objective and size of the move after each outer loop.
    thetas : ndarray, (iterations, p)
        Unconstrained hyperparameters after each outer loop.
    status : Status
    log_evidence : float, optional
        Lower bound on the log density of the data, without the hyperparameters' prior; None if unknown.
    scalars : dict
        Further scalars of the result.
    settings : dict
        Options in force.
    translated : tuple of BoundFit
        Fits on translated grids, at the same hyperparameters.
    """

    state: State
    observed: tuple[np.ndarray, ...]
    objective: np.ndarray
    change: np.ndarray
    thetas: np.ndarray
    status: Status
    log_evidence: float | None
    scalars: dict[str, float]
    settings: dict[str, Any]
    translated: tuple["BoundFit", ...] = ()


def solve_by_bounds(call: Call[CompiledSparseLinear]) -> BoundFit:
    """Fit a sparse linear form by the double loop.

    Raises
    ------
    UnsupportedModelError
        If a site has no Gaussian lower bound.
    InvalidDataError
        For observations outside their domain, and if the factors leave unknowns undetermined.
    NumericalError
        If a bound is not finite, or the precision is singular, as when a scale ran to zero.
    """
    form, theta = call.form, call.theta
    settings = _loop_settings(call)
    learn = call.hyper == "optimize" and theta.size > 0
    if learn and settings["variance"] == "lanczos":
        raise ValueError(
            "variance='lanczos' finds variances that are too small, with which scales run to zero; use "
            "variance='perturb-and-map' or 'exact', or hyper='fixed'."
        )
    solver = _solver(form, settings, truncate=_is_multimodal(form))
    settings.setdefault("tol", _TOL_EXACT if solver.exact else _TOL_ESTIMATED)
    settings["variance"] = "exact" if solver.exact else settings["variance"]
    sites = BoundedSites(form)
    require_two_states(sites, theta, learn=learn)
    start_state = _start(form, sites, solver, theta, call.start, learn=learn)
    fit = _run(form, sites, solver, start_state, settings, call.report, call.checkpoint.record(), learn=learn)
    if settings["translations"] > 1 and not fit.status.interrupted:
        fit = _averaged(form, fit, call)
    notes = state_warnings(sites, fit.state.theta) if learn else ""
    if not solver.exact:
        notes += f"; variances by {settings['variance']}"
        if settings["variance"] == "perturb-and-map":
            notes += f", with a relative standard error of {fit.state.error:.2g}; raise n_samples to lower it"
        fit = fit._replace(scalars=fit.scalars | {"variance_error": fit.state.error})
    return fit._replace(status=fit.status._replace(sentence=fit.status.sentence + notes))


def maximum_at(settings: dict[str, Any], form: CompiledSparseLinear, theta: np.ndarray) -> Maximum:
    """Return the maximum of the bound at fixed hyperparameters theta, (p,), with its gradient in theta.

    The maximum is at the fixed point z = diag(D A^{-1} D^T). There B is stationary in z and x, so that its gradient in
    theta is the derivative at fixed z and x.
    """
    fit = solve_by_bounds(Call(form, theta, "fixed", options=settings))
    state, sites = fit.state, BoundedSites(form)
    objective = sites.hyper_objective(form.linear.forward(state.unknowns), state.variance, density="none")
    # The history of the extrapolation is as large as ten states.
    none = state.points[:0]
    kept = fit._replace(state=state._replace(points=none, moves=none))
    return Maximum(state.log_bound, objective(theta)[1], fit.status, kept)


def sampling_settings(form: CompiledSparseLinear, options: dict[str, Any]) -> dict[str, Any]:
    """Return the options for sampling hyperparameters; raise for estimated variances and averages over grids."""
    settings = _checked(OPTIONS | options | {"tol": options.get("tol") or _TOL_EXACT})
    if settings["translations"] > 1:
        raise ValueError(
            f"translations={settings['translations']} needs hyperparameters at one value: use hyper='optimize' or "
            f"'fixed' instead of sampling them."
        )
    if not _is_exact(form, settings["variance"]):
        raise ValueError(
            f"variance={settings['variance']!r} estimates variances here, so that the bound is not known and the "
            f"hyperparameters have no density: give variance='exact', which factorises precisions of "
            f"{form.linear.size} unknowns, or learn them by hyper='optimize'."
        )
    return settings | {"variance": "exact"}


def _loop_settings(call: Call[CompiledSparseLinear]) -> dict[str, Any]:
    given = OPTIONS | call.options
    if given["tol"] is None:
        del given["tol"]
    return _checked(given)


def cost_of_bounds(call: Call[CompiledSparseLinear]) -> Cost:
    """Return the cost of `solve_by_bounds`; translated grids are fitted one after the other."""
    settings = _loop_settings(call)
    draws = settings["n_samples"] if settings["variance"] != "lanczos" else settings["lanczos_steps"]
    return _cost(call.form, settings, settings["translations"], draws)


def cost_of_mode(call: Call[CompiledSparseLinear]) -> Cost:
    """Return the cost of `find_mode`."""
    return _cost(call.form, _checked(MODE_OPTIONS | call.options) | {"variance": "auto"}, 1, 0)


def _cost(form: CompiledSparseLinear, settings: dict[str, Any], grids: int, draws: int) -> Cost:
    loops = grids * min(settings["outer"], _LOOPS)
    if _is_exact(form, settings["variance"]):
        return cost_of_factors(form, loops, _INNER_STEPS, "outer loops")
    return cost_of_products(form, loops, draws + _INNER_STEPS, draws)


def find_mode(call: Call[CompiledSparseLinear]) -> BoundFit:
    """Find the mode of the posterior density of a sparse linear form; the fit has no evidence and no variances.

    Sites may have a kink at their centre. The kink is smoothed: ``smoothing`` times the predictor's variance under its
    site alone is added to the squared distance of the predictor from the centre. By default a Laplace potential of
    scale b is rounded over 1e-4 b. The added variance starts at the predictor's variance under its site alone, or at
    the variance of a given start, and decreases with each outer loop (graduated non-convexity; Blake and Zisserman
    1987).

    Raises
    ------
    ValueError
        If hyperparameters are to be optimised: the joint density of scales and unknowns has its maximum at scales of
        zero.
    """
    form, theta = call.form, call.theta
    settings = _checked(MODE_OPTIONS | call.options)
    if call.hyper == "optimize" and theta.size:
        raise ValueError(
            "method='map' holds hyperparameters, as the joint density of these and the unknowns is largest at the "
            "edge, such as where scales are zero: pass hyper='fixed', with start={...} for other values than the "
            "model's initial point, or the fit of a method that learns them, such as start=pymc_ep.fit('dsb')."
        )
    solver = _solver(form, settings | {"variance": "auto"}, truncate=True)
    sites = BoundedSites(form)
    require_two_states(sites, theta, learn=False)
    start_state = _start(form, sites, solver, theta, call.start, learn=False)
    choices = {"smoothing": settings["smoothing"], "inner_tol": _MODE_TOL}
    fit = _run(form, sites, solver, start_state, settings, call.report, call.checkpoint.record(), **choices)
    return fit._replace(log_evidence=None)


def _averaged(form: CompiledSparseLinear, fit: BoundFit, call: Call[CompiledSparseLinear]) -> BoundFit:
    """Return the fit together with fits on translated grids, all at the first fit's hyperparameters."""
    count, others = fit.settings["translations"], []
    start_state = Start(fit.state.theta, fit.state.unknowns, _by_level(form, fit))
    for k, grid_form in enumerate(translations_of(form, count)):
        solver, sites = (
            _solver(grid_form, dict(fit.settings), truncate=_is_multimodal(grid_form)),
            BoundedSites(grid_form),
        )
        record = call.checkpoint.record(f"translated {k}")
        others.append(_run(grid_form, sites, solver, start_state, fit.settings, call.report, record))
        if others[-1].status.interrupted:
            return fit._replace(status=Status(False, f"{fit.status.sentence}; interrupted on the translated grids"))
    evidence = fit.log_evidence
    if evidence is not None:
        evidences = [grid_fit.log_evidence for grid_fit in (fit, *others) if grid_fit.log_evidence is not None]
        evidence = averaged_evidence(evidences)
    status = averaged_status(fit.status, [other.status for other in others])
    return fit._replace(status=status, log_evidence=evidence, translated=tuple(others))


def _by_level(form: CompiledSparseLinear, fit: BoundFit) -> np.ndarray:
    """Return a fit's variances, (n,), as a start on other grids: medians of each level for potentials on a grid."""
    out = fit.state.variance.copy()
    for block_map, places in zip(form.form.maps, group_slices(fit.observed)[len(form.form.groups) :]):
        if block_map is not None and block_map[1].period is not None:
            variance = out[places]
            # Without groups all coefficients form one level.
            groups = np.zeros(len(variance)) if block_map[1].groups is None else block_map[1].groups
            for level in np.unique(groups):
                variance[groups == level] = np.median(variance[groups == level])
    return out


def _run(
    form: CompiledSparseLinear,
    sites: BoundedSites,
    solver: PrecisionSolver,
    start_state: Start,
    settings: dict[str, Any],
    report: Report,
    record: Record,
    **choices: Any,
) -> BoundFit:
    loop = DoubleLoop(
        form.linear,
        solver,
        inner=settings["inner"],
        inner_max_iter=settings["inner_max_iter"],
        tol=settings["tol"],
        **choices,
    )
    history = run(loop, sites, start_state, max_iter=settings["outer"] + 1, report=report, record=record)
    return BoundFit(
        history.state,
        sites.observed,
        history.objective,
        history.change,
        history.thetas,
        history.status,
        history.state.log_bound if solver.exact else None,
        {"n_iter": history.state.loop},
        settings,
    )


def _start(
    form: CompiledSparseLinear,
    sites: BoundedSites,
    solver: PrecisionSolver,
    theta: np.ndarray,
    start: Mapping[str, np.ndarray] | None,
    *,
    learn: bool,
) -> Start:
    """Return the start: the end of an earlier fit, else `fitted_start` for tree mixtures, else the default."""
    if start is None or "unknowns" not in start:
        return fitted_start(sites, form.linear, solver, theta, learn=learn) if has_mixtures(form) else Start(theta)
    n, unknowns = sum(y.size for y in form.observed()), form.linear.size
    if len(start["unknowns"]) != unknowns or len(start["variance"]) != n:
        raise ValueError(
            f"start= holds {len(start['unknowns'])} unknowns and {len(start['variance'])} factors, but the model now "
            f"has {unknowns} and {n}; fit without start=, or pass the hyperparameters alone as a dict."
        )
    return Start(theta, start["unknowns"], start["variance"])


def _is_multimodal(form: CompiledSparseLinear) -> bool:
    """Return whether the inner objective may have several maxima, as some site is not log-concave."""
    return not all(site.site.log_concave for site in form.sites)


def _solver(form: CompiledSparseLinear, settings: dict[str, Any], *, truncate: bool) -> PrecisionSolver:
    """Return the exact solver if requested or affordable, else the iterative one; for `truncate` see `Iterative`."""
    if _is_exact(form, settings["variance"]):
        return Exact(form.linear)
    if form.on_jax:
        raise UnsupportedModelError(
            f"variance={settings['variance']!r} takes products with operators, which run on NumPy and Numba alone: "
            f"leave compile_kwargs={{'mode': 'JAX'}} and device= out, or use variance='exact'."
        )
    if settings["variance"] == "auto":
        settings["variance"] = "perturb-and-map"
    names = ("variance", "n_samples", "lanczos_steps", "seed", "cg_tol", "cg_max_iter")
    return Iterative(form.linear, truncate=truncate, **{name: settings[name] for name in names if name in settings})


def _is_exact(form: CompiledSparseLinear, wanted: str) -> bool:
    """Return whether precisions are factored."""
    return wanted == "exact" or (wanted == "auto" and (form.on_jax or _affordable(form)))


def _affordable(form: CompiledSparseLinear) -> bool:
    try:
        return form.linear.algebra.flops <= _AFFORDABLE
    except (InvalidDataError, UnsupportedModelError):
        # A factor does not fit into memory, or a map has no entries.
        return False


def _checked(options: dict[str, Any]) -> dict[str, Any]:
    """Return the options; raise ValueError for any outside its range."""
    for name, kinds in (("variance", _VARIANCES), ("inner", tuple(INNER))):
        if name in options and options[name] not in kinds:
            raise ValueError(f"{name}={options[name]!r} must be one of {', '.join(map(repr, kinds))}.")
    for name, least in _LEAST.items():
        if name in options:
            check_whole(name, options[name], least=least)
    for name in _POSITIVE:
        if name in options and not (isinstance(options[name], int | float) and options[name] > 0):
            raise ValueError(f"{name}={options[name]!r} must be positive.")
    if options["cg_tol"] >= 1:
        raise ValueError(f"cg_tol={options['cg_tol']!r} must be below 1, at which nothing is solved.")
    return options
