"""EP on sparse linear models: as on latent Gaussian ones, plus tree mixtures and averages over translated grids."""

from collections.abc import Mapping, Sequence
from dataclasses import replace
from typing import Any

import numpy as np

from pymc_ep.contracts.cost import Cost
from pymc_ep.contracts.method import Call, Method
from pymc_ep.contracts.posterior import AffinePosterior
from pymc_ep.contracts.solution import Solution
from pymc_ep.engines.base import Status
from pymc_ep.engines.options import check_whole
from pymc_ep.evidence.budget import fits_of
from pymc_ep.evidence.ep.evidence import Evidence, evidence_of
from pymc_ep.evidence.ep.fit import EvidenceAt
from pymc_ep.evidence.ep.op import EPEvidenceOp
from pymc_ep.evidence.ep.sweep import group_slices
from pymc_ep.evidence.mixtures import left_out_of_all
from pymc_ep.evidence.mode import Hyper
from pymc_ep.models.latent_gaussian.methods import ep as latent
from pymc_ep.models.latent_gaussian.methods.solution import (
    AT_VALUES,
    at_mode,
    combined_status,
    integral_solution,
    mode_solution,
    mode_state,
    mode_traces,
    rebuild,
    site_state,
    solution_at,
)
from pymc_ep.models.latent_gaussian.posterior import LatentPosterior
from pymc_ep.models.latent_gaussian.posterior_mixture import PosteriorMixture
from pymc_ep.models.sparse_linear.compiled import CompiledSparseLinear
from pymc_ep.models.sparse_linear.cost import cost_of_factors
from pymc_ep.models.sparse_linear.engine.bounded_sites import FactorSites
from pymc_ep.models.sparse_linear.engine.tree_start import first_hyperparameters
from pymc_ep.models.sparse_linear.engine.tree_states import (
    doubt_warning,
    has_mixtures,
    require_two_states,
    state_warnings,
)
from pymc_ep.models.sparse_linear.form import SparseLinear
from pymc_ep.models.sparse_linear.posterior_average import (
    averaged_evidence,
    averaged_status,
    grid_state,
    rebuild_average,
    translations_of,
)
from pymc_ep.sites.base import Site
from pymc_ep.sites.tree_mixture import TreeMixture

__all__ = ["EP", "OPTIONS", "condition", "evidence_op", "solve"]

OPTIONS = latent.OPTIONS | {"translations": 1}
"""Options of EP on sparse linear models, and their defaults."""
_SWEEPS, _NUMBERS = 12, 190
"""Mean number of sweeps of a fit, and doubles in memory at a time for each site, besides factors."""


def solve(call: Call[CompiledSparseLinear]) -> Solution:
    """Fit a sparse linear form by expectation propagation."""
    form, asked = call.form, _checked(call.options)
    grids = asked["translations"]
    translated_forms = translations_of(form, grids) if grids > 1 else []
    if translated_forms and call.hyper == "integrate" and call.theta.size:
        raise ValueError(f"translations={grids} holds hyperparameters at their mode: use hyper='optimize' or 'fixed'.")
    trees = FactorSites(form) if has_mixtures(form) else None
    if trees is not None:
        require_two_states(trees, call.theta, learn=call.hyper != "fixed")
        if call.hyper != "fixed" and call.start is None:
            call = replace(call, theta=first_hyperparameters(trees, call.theta))
    evidence, optimum, integral, settings = latent.fitted(call, asked, spread=not translated_forms)
    if integral is not None:
        solution = integral_solution(form, evidence, integral, settings)
        return latent.warned_of_power(solution, asked, settings, _doubt(evidence, solution, optimum.at))
    if translated_forms:
        others = [
            evidence_of(grid, settings, report=call.report, checkpoint=call.checkpoint, grid=f"translated {k}")
            for k, grid in enumerate(translated_forms)
        ]
        fits = [(grid_evidence, grid_evidence.at(optimum.at.theta)) for grid_evidence in others]
        solution = _averaged_solution(form, evidence, optimum, settings, fits)
    else:
        solution = mode_solution(form, evidence, optimum, settings)
    solution = latent.warned_of_power(solution, asked, settings, _doubt(evidence, solution, optimum.at))
    if call.hyper == "fixed" or trees is None:
        return solution
    return replace(solution, status=solution.status + state_warnings(trees, optimum.at.theta))


def _doubt(evidence: Evidence, solution: Solution, at: EvidenceAt) -> str:
    """Return a warning of correlated coefficients with uncertain states, at which EP errs; empty without such."""
    groups = zip(evidence.form.form.factors, group_slices(evidence.observed))
    mixtures = {
        group.name: (rows, solution.coefficients[group.name]["indicator"])
        for group, rows in groups
        if isinstance(group.site, TreeMixture) and group.site.independent
    }
    return doubt_warning(at, mixtures)


def _on_trees(site: Site) -> bool:
    """Return whether coefficients have parents, so that their states depend on the parents' states."""
    return isinstance(site, TreeMixture) and not site.independent


def _averaged_solution(
    form: CompiledSparseLinear,
    evidence: Evidence,
    optimum: Hyper[EvidenceAt],
    settings: dict[str, Any],
    translated: Sequence[tuple[Evidence, EvidenceAt]],
) -> Solution:
    """Return the solution that averages the fit and the fits on translated grids."""
    fits = [(evidence, optimum.at), *translated]
    even = np.full(len(fits), 1.0 / len(fits))
    state = mode_state(evidence, optimum)
    state |= grid_state([site_state(on_grid, at) for on_grid, at in translated])
    status = averaged_status(combined_status(optimum.at, optimum), [at.run.status for _, at in translated])

    def rebuilt(
        grid_form: CompiledSparseLinear, on_grid: Mapping[str, np.ndarray]
    ) -> LatentPosterior | PosteriorMixture:
        return rebuild(grid_form, on_grid, at_mode(optimum.at) if grid_form is form else None)

    return solution_at(
        form,
        evidence,
        optimum.at,
        state,
        settings,
        posterior=rebuild_average(form, state, rebuilt),
        left_out={"loo": left_out_of_all(even, np.array([on_grid.leave_one_out(at) for on_grid, at in fits])).loo},
        scalars={
            "log_evidence": averaged_evidence([at.log_z for _, at in fits]),
            "n_iter": len(optimum.at.run.objective),
        },
        traces=mode_traces(optimum),
        status=status,
        log_evidence_is=AT_VALUES,
    )


def cost(call: Call[CompiledSparseLinear]) -> Cost:
    """Return the cost of a fit together with one more fit for each translated grid.

    Raises
    ------
    UnsupportedModelError
        If a linear map has no matrix, see `LinearPredictors.matrix`.
    InvalidDataError
        If a factor does not fit into memory.
    """
    settings = _checked(call.options)
    call.form.solve_in(settings["solver"])
    fits = fits_of(call.form, call.hyper) + settings["translations"] - 1
    return cost_of_factors(call.form, _SWEEPS * fits, 1, f"sweeps, in {fits} fits", _NUMBERS)


def choose_hyper(form: CompiledSparseLinear, options: dict[str, Any], *, chains: bool) -> tuple[str, Status]:
    """Return the treatment for ``hyper="auto"``, and a status with the reason.

    It is maximisation with trees or averages over grids, else integration where that is possible.
    """
    if options.get("translations", 1) > 1 or any(_on_trees(site.site) for site in form.sites):
        return "optimize", Status(True, "")
    return latent.choose_hyper(form, options, chains=chains)


def _checked(options: dict[str, Any]) -> dict[str, Any]:
    check_whole("translations", options.get("translations", 1))
    return latent.checked(OPTIONS | options)


def evidence_op(form: CompiledSparseLinear, options: dict[str, Any]) -> EPEvidenceOp:
    """Return the log evidence as an Op of the unconstrained hyperparameters."""
    return EPEvidenceOp(form, _one_grid(options))


def condition(call: Call[CompiledSparseLinear], thetas: np.ndarray) -> Solution:
    """Fit at each of k draws of the hyperparameters, (k, p); the solution draws from the fits in turn."""
    return latent.condition(replace(call, options=_one_grid(call.options)), thetas)


def _one_grid(options: dict[str, Any]) -> dict[str, Any]:
    settings = _checked(options)
    if settings["translations"] > 1:
        raise ValueError(
            f"translations={settings['translations']} needs hyperparameters at one value: use hyper='optimize' or "
            f"'fixed' instead of sampling them."
        )
    return settings


def _rebuild(form: CompiledSparseLinear, state: Mapping[str, np.ndarray]) -> AffinePosterior:
    return rebuild_average(form, state, rebuild)


EP = Method(
    "ep",
    SparseLinear,
    solve,
    _rebuild,
    OPTIONS,
    latent.TREATMENTS,
    evidence_op=evidence_op,
    condition=condition,
    # With missing data the cavities of trees are wide, and EP stalls; the double loop does not.
    suits=lambda site: site is None or not _on_trees(site),
    choose_hyper=choose_hyper,
    cost=cost,
    jax=True,
)
