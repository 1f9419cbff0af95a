"""Write a solution into the container: draws, moments, histories of iterations."""

from collections.abc import Mapping, Sequence
from typing import Any

import numpy as np
import pymc as pm
import xarray as xr
from numpy.typing import ArrayLike
from pymc.pytensorf import compile as compile_with_seed
from pytensor.graph.replace import graph_replace
from pytensor.graph.traversal import ancestors

from pymc_ep.compat import Container
from pymc_ep.contracts.form import CompiledForm
from pymc_ep.contracts.solution import RandomSeed, Solution
from pymc_ep.exceptions import UnsupportedModelError
from pymc_ep.modes import numpy_mode
from pymc_ep.results.container import build_container, model_dims

__all__ = ["STORED_NUMBERS", "drawn_forward", "layout_of", "write_solution"]

STORED_NUMBERS = 5e7
"""Largest number of values in a fit's draws by default, 0.4 GB: a bound on memory and on a saved result's size."""


def layout_of(draws: int | None, chains: int, solution: Solution) -> tuple[int, int, str]:
    """Return the numbers of chains and of draws a chain, and a remark where they are fewer than usual.

    With `draws` None there are `Solution.most_draws` draws a chain, or as many as `STORED_NUMBERS` values allow.
    """
    if solution.draws is None:
        return chains, 0, ""
    if draws is not None:
        return chains, draws, ""
    if solution.most_draws == 1:
        return 1, int(solution.numbers_per_draw <= STORED_NUMBERS), ""
    most = min(solution.most_draws, int(STORED_NUMBERS // max(1, chains * solution.numbers_per_draw)))
    if most == solution.most_draws:
        return chains, most, ""
    usual = f"{most} draws a chain instead of {solution.most_draws}"
    return chains, most, f"{usual}, for {solution.numbers_per_draw} numbers a draw"


def write_solution(
    model: pm.Model,
    form: CompiledForm,
    method: str,
    solution: Solution,
    settings: dict[str, Any],
    timings: dict[str, float],
    layout: tuple[int, int, str],
    random_seed: RandomSeed,
    *,
    log_likelihood: bool = False,
    given: Mapping[str, np.ndarray] | None = None,
    others: Mapping[str, xr.Dataset] | None = None,
) -> Container:
    """Return the container of a solution.

    Parameters
    ----------
    model : pymc.Model
    form : CompiledForm
    method : str
        Name of the method.
    solution : pymc_ep.contracts.solution.Solution
    settings : dict
        Arguments of `pymc_ep.fit`, to which the settings of the solution are added.
    timings : dict
        Seconds by name.
    layout : tuple
        Chains, draws a chain, and a remark on these, from `layout_of`.
    random_seed
        Seed of the draws.
    log_likelihood : bool
        Whether to add log densities of the draws.
    given : mapping of str to ndarray, shape (chain, draw, *shape), optional
        Draws that replace the solution's.
    others : mapping of str to xarray.Dataset, optional
        Further groups.
    """
    chains, draws, remark = layout
    posterior, densities = None, None
    left_out = "log_likelihood, log_p and log_q left out: the method has no draws" if log_likelihood else ""
    variables = _fit_variables(model, solution)
    if draws > 0:
        assert solution.draws is not None, "a layout has draws where the method has"
        rng = np.random.default_rng(random_seed)
        drawn = solution.draws(chains * draws, rng, log_likelihood=log_likelihood)
        values = {name: _by_chain(v, chains) for name, v in drawn.values.items()} | dict(given or {})
        flat = {name: v.reshape(-1, *v.shape[2:]) for name, v in values.items()}
        values |= {name: _by_chain(v, chains) for name, v in drawn_forward(model, flat, rng).items()}
        posterior = {v.name: values[v.name] for v in (*model.free_RVs, *model.deterministics) if v.name in values}
        densities = {name: _by_chain(v, chains) for name, v in drawn.log_likelihood.items()} or None
        for name, density in (("log_p", drawn.log_p), ("log_q", drawn.log_q)):
            if density is not None:
                _add(variables, name, ("chain", "draw"), _by_chain(density, chains))
        left_out = f"log_p and log_q left out: {drawn.left_out}" if drawn.left_out else ""
    moments = solution.moments()
    return build_container(
        model,
        posterior=posterior,
        log_likelihood=densities,
        moments={
            "posterior_mean": {name: mean for name, (mean, _) in moments.items()},
            "posterior_sd": {name: sd for name, (_, sd) in moments.items()},
            "posterior_mode": solution.modes,
        },
        fit=variables,
        fit_attrs={
            "method": method,
            "status": "; ".join(filter(None, [solution.status, form.form.gaussian_remark, remark])),
            **({"left_out": left_out} if left_out else {}),
            "settings": solution.settings | settings,
            **timings,
            **({"log_evidence_is": solution.log_evidence_is} if solution.log_evidence_is else {}),
            "objective_is": solution.objective_is,
            "max_change_is": solution.max_change_is,
        },
        fit_state=solution.state,
        others=others,
    )


def _by_chain(values: np.ndarray, chains: int) -> np.ndarray:
    return values.reshape(chains, -1, *values.shape[1:])


def _fit_variables(model: pm.Model, solution: Solution) -> dict[str, tuple[Sequence[str], Any]]:
    """Return the variables of the group ``fit``: dims and values by name."""
    out: dict[str, tuple[Sequence[str], Any]] = {}
    for name, value in solution.hyper_modes.items():
        _add(out, f"hyper_mode_{name}", model_dims(model, name), value)
    for name, values in solution.design.items():
        _add(out, f"hyper_point_{name}", ("hyper_point", *model_dims(model, name)), values)
    for name, results in solution.sites.items():
        for what, value in results.items():
            # Counts of categories have one result a row.
            _add(out, f"{name}_{what}", model_dims(model, name)[: np.ndim(value)], value)
    for name, results in solution.coefficients.items():
        for what, value in results.items():
            _add(out, f"{name}_{what}", (f"{name}_coefficient",) * np.ndim(value), value)
    for name, values in solution.hyper_traces.items():
        _add(out, f"hyper_trace_{name}", ("iteration", *model_dims(model, name)), values)
    for name, (dim, values) in solution.traces.items():
        _add(out, name, (dim,), values)
    for name, value in solution.scalars.items():
        _add(out, name, (), value)
    _add(out, "converged", (), solution.converged)
    return out


def _add(variables: dict[str, tuple[Sequence[str], Any]], name: str, dims: Sequence[str], value: ArrayLike) -> None:
    if name in variables:
        raise UnsupportedModelError(
            f"Two results would be called {name!r} in the group 'fit'; rename the variable of the model that leads to "
            f"this name."
        )
    variables[name] = (dims, value)


def drawn_forward(model: pm.Model, draws: Mapping[str, np.ndarray], rng: np.random.Generator) -> dict[str, np.ndarray]:
    """Return draws, (s, *shape), of variables without draws in the fit, by forward sampling given the fit's draws.

    Multivariate variables, such as new values of a process, and their descendants are left to `predict`: each draw of
    them would need a factorisation.

    Parameters
    ----------
    model : pymc.Model
    draws : mapping of str to ndarray, (s, *shape)
        Draws of the free variables and Deterministics that observations depend on.
    rng : numpy.random.Generator
    """
    missing = {rv for rv in model.free_RVs if rv.name not in draws}
    wide = {rv for rv in missing if rv.owner.op.ndim_supp}
    behind = {v: set(ancestors([v])) for v in (*model.free_RVs, *model.deterministics)}
    drawn = [rv for rv in model.free_RVs if rv in missing and not behind[rv] & wide]
    if not drawn or not draws:
        return {}
    follow = [d for d in model.deterministics if behind[d] & set(drawn) and not behind[d] & wide]
    wanted = [*drawn, *follow]
    given = [v for v in model.free_RVs if v.name in draws]
    data = {rv: model.rvs_to_values[rv].astype(rv.dtype) for rv in model.observed_RVs}
    outputs = graph_replace(wanted, data, strict=False)
    seed = int(rng.integers(2**31))
    function = compile_with_seed(given, outputs, random_seed=seed, mode=numpy_mode(), on_unused_input="ignore")
    with np.errstate(all="ignore"):
        rows = [function(*row) for row in zip(*(draws[v.name] for v in given))]
    return {v.name: np.array([row[i] for row in rows]) for i, v in enumerate(wanted)}
