"""Fit a model: look up the form and the engine, run it, write the result. No mathematics here."""

import os
import time
import warnings
from collections.abc import Callable, Iterator, Sequence
from contextlib import ExitStack, contextmanager
from typing import Any

import numpy as np
import pymc as pm
from pymc.initial_point import make_initial_point_fn

from pymc_ep import compat
from pymc_ep.engines import Checkpoint, EngineEntry, engines, get_engine
from pymc_ep.engines.solution import Solution
from pymc_ep.exceptions import ConvergenceWarning, UnsupportedModelError
from pymc_ep.forms.compiled import CompiledLatentGaussian
from pymc_ep.recognise import compiled_form, site_names
from pymc_ep.results import build_container, check_dims, fit_state, model_dims

__all__ = ["explain", "fit", "supported"]

_SILENT_SECONDS = 2.0
_STORED_NUMBERS = 5e7
_STORED_LOG_LIKELIHOODS = 1e7


def fit(
    method: str | None = None,
    *,
    model: pm.Model | None = None,
    latent: Sequence[str] | None = None,
    hyper: str = "optimize",
    draws: int | None = None,
    chains: int = 4,
    random_seed: Any = None,
    progressbar: bool = True,
    start: Any = None,
    checkpoint: str | os.PathLike | None = None,
    compile_kwargs: dict[str, Any] | None = None,
    **options: Any,
) -> Any:
    """Fit a model by a deterministic approximation of its posterior.

    Parameters
    ----------
    method : str, optional
        ``"ep"``; None picks the default of the model's form. `pymc_ep.supported` lists all.
    model : pymc.Model, optional
        By default that of the ``with`` block.
    latent : sequence of str, optional
        Variables to integrate out; by default the largest jointly Gaussian set in which every predictor is affine.
        A Deterministic, such as the ``f`` of ``gp.prior("f")``, stands for what it is made of. All other free
        variables are hyperparameters.
    hyper : {"optimize", "fixed"}
        Hyperparameters at the maximum of log evidence plus log prior, with Gaussian draws about it on PyMC's
        unconstrained scale, or held at `start` or the initial point.
    draws : int, optional
        Draws for each chain; by default 1000, or fewer where more than 5e7 numbers would be stored (the status
        says so). 0 stores moments only.
    chains : int
        Independent draws are laid out in so many chains.
    random_seed : optional
        Of the draws; anything that `numpy.random.default_rng` takes.
    progressbar : bool
        Shown once two seconds have passed.
    start : optional
        Result of an earlier fit of the same model, or a dict of hyperparameter values by name.
    checkpoint : path, optional
        File to which the state of a long fit is written at intervals, and from which the fit resumes where it exists.
    compile_kwargs : dict, optional
        For `pytensor.function`; ``{"mode": "JAX"}`` runs the algorithm under JAX.
    **options
        Of the method. EP: ``power=1.0`` in (0, 1], ``damping="auto"`` or in (0, 1], ``tol=1e-8``,
        ``max_iter=200``, ``schedule="parallel"`` or ``"sequential"``.

    Returns
    -------
    arviz.InferenceData or xarray.DataTree
        Whatever `pymc.sample` returns, with the groups ``posterior``, ``log_likelihood``, ``observed_data``,
        ``constant_data``, ``fit`` and ``fit_state``.

    Raises
    ------
    UnsupportedModelError
        Where the model is not of a form that a method solves; names the variable and a cure.
    InvalidDataError
        For observations outside their likelihood's domain.
    NumericalError
        Where a computation left the finite numbers.

    Warns
    -----
    ConvergenceWarning
        Where the iteration stopped before its tolerance; the result's status says how.
    """
    began = time.perf_counter()
    model = pm.modelcontext(model)
    check_dims(model)
    _check_numbers(draws, chains)
    form = compiled_form(model, latent, compile_kwargs)
    engine = get_engine(method, type(form.form))
    _check_options(engine, hyper, options)
    saved = Checkpoint(checkpoint)
    state = saved.load()
    if state is None and start is not None and not isinstance(start, dict):
        state = fit_state(start)
    theta = _hyper_start(model, form, start if isinstance(start, dict) else None, state)
    compiled = time.perf_counter()
    with _progress(engine.name, progressbar) as report:
        solution = engine.solve(
            form, hyper=hyper, theta=theta, start=state, options=options, report=report, checkpoint=saved
        )
    if not solution.converged:
        warnings.warn(f"{engine.name} did not converge: {solution.status}.", ConvergenceWarning, stacklevel=2)
    settings = solution.settings | {"hyper": hyper, "latent": list(form.form.latent_names), "chains": chains}
    timings = {"compile_time": compiled - began, "run_time": time.perf_counter() - compiled}
    return _container(model, form, engine, solution, settings, timings, _layout(draws, chains, solution), random_seed)


def _check_numbers(draws: int | None, chains: int) -> None:
    if draws is not None and (not isinstance(draws, int | np.integer) or draws < 0):
        raise ValueError(f"draws={draws!r} must be a whole number of at least 0, or None.")
    if not isinstance(chains, int | np.integer) or chains < 1:
        raise ValueError(f"chains={chains!r} must be a whole number of at least 1.")


def _check_options(engine: EngineEntry, hyper: str, options: dict[str, Any]) -> None:
    if hyper not in engine.hyper:
        raise ValueError(f"hyper={hyper!r} is not offered by method={engine.name!r}; use one of {engine.hyper}.")
    unknown = sorted(set(options) - set(engine.options))
    if unknown:
        raise ValueError(
            f"method={engine.name!r} has no option {unknown[0]!r}; its options are {', '.join(engine.options)}."
        )


def _hyper_start(
    model: pm.Model, form: CompiledLatentGaussian, values: dict[str, Any] | None, state: dict[str, np.ndarray] | None
) -> np.ndarray:
    """Return the unconstrained hyperparameters to start from."""
    if state is not None:
        if state["theta"].shape != form.start.shape:
            raise ValueError(
                f"start= holds {state['theta'].size} unconstrained hyperparameters, but the model has "
                f"{form.start.size} ({', '.join(form.form.hyper_names)}); it is a fit of another model."
            )
        return state["theta"]
    if not values:
        return form.start
    unknown = sorted(set(values) - set(form.form.hyper_names))
    if unknown:
        raise ValueError(
            f"start= gives {unknown[0]!r}, which is not a hyperparameter; these are {', '.join(form.form.hyper_names)}."
        )
    shapes = {name: value.shape for name, value in form.constrained(form.start).items()}
    for name, value in values.items():
        if np.shape(value) != shapes[name]:
            raise ValueError(
                f"start= gives {name!r} a value of shape {np.shape(value)}, but its shape is {shapes[name]}."
            )
    overrides = {model[name]: np.asarray(value, dtype=float) for name, value in values.items()}
    with np.errstate(invalid="ignore", divide="ignore"):
        point = make_initial_point_fn(model=model, overrides=overrides)(0)
    for name, variable in zip(form.form.hyper_names, form.form.hyper_values):
        if name in values and not np.all(np.isfinite(point[variable.name])):
            raise ValueError(f"start= gives {name!r} the value {values[name]}, which lies outside its support.")
    return np.concatenate([np.zeros(0), *(np.ravel(point[v.name]) for v in form.form.hyper_values)])


@contextmanager
def _progress(name: str, enabled: bool) -> Iterator[Callable[[float, float], None]]:
    """Yield a reporter that shows a bar once the fit has taken longer than anyone wants to wait in the dark."""
    began = time.perf_counter()
    with ExitStack() as stack:
        shown: list[Callable[[float, float], None]] = []

        def report(evidence: float, change: float) -> None:
            if enabled and not shown and time.perf_counter() - began > _SILENT_SECONDS:
                shown.append(stack.enter_context(compat.progress(name.upper(), None)))
            for advance in shown:
                advance(evidence, change)

        yield report


def _layout(draws: int | None, chains: int, solution: Solution) -> tuple[int, int, str]:
    """Return chains, draws a chain, and what to say of their number."""
    if draws is not None:
        return chains, draws, ""
    most = int(_STORED_NUMBERS // max(1, chains * solution.numbers_per_draw))
    if most >= 1000:
        return chains, 1000, ""
    most = max(most, 1)
    return chains, most, f"{most} draws a chain instead of 1000, for {solution.numbers_per_draw} numbers a draw"


def _container(
    model: pm.Model,
    form: CompiledLatentGaussian,
    engine: EngineEntry,
    solution: Solution,
    settings: dict[str, Any],
    timings: dict[str, float],
    layout: tuple[int, int, str],
    random_seed: Any,
) -> Any:
    chains, draws, remark = layout
    posterior, log_likelihood, left_out = None, None, ""
    variables = _fit_variables(model, solution)
    if draws > 0:
        n = sum(y.size for y in form.observed())
        keep = n * chains * draws <= _STORED_LOG_LIKELIHOODS
        rng = np.random.default_rng(random_seed)
        drawn = solution.draws(chains * draws, rng, log_likelihood=keep)
        order = [v.name for v in (*model.free_RVs, *model.deterministics) if v.name in drawn.values]
        posterior = {name: _by_chain(drawn.values[name], chains) for name in order}
        log_likelihood = {name: _by_chain(v, chains) for name, v in drawn.log_likelihood.items()} or None
        for name, density in (("log_p", drawn.log_p), ("log_q", drawn.log_q)):
            if density is not None:
                _put(variables, name, ("chain", "draw"), _by_chain(density, chains))
        left_out = f"log_p and log_q left out: {drawn.left_out}" if drawn.left_out else ""
        if not keep:
            left_out = "log_likelihood, log_p and log_q left out: over 1e7 numbers"
    return build_container(
        model,
        posterior=posterior,
        log_likelihood=log_likelihood,
        fit=variables,
        fit_attrs={
            "method": engine.name,
            "status": "; ".join(filter(None, [solution.status, remark])),
            **({"left_out": left_out} if left_out else {}),
            "settings": settings,
            **timings,
        },
        fit_state=solution.state,
    )


def _by_chain(values: np.ndarray, chains: int) -> np.ndarray:
    return values.reshape(chains, -1, *values.shape[1:])


def _fit_variables(model: pm.Model, solution: Solution) -> dict[str, tuple[Sequence[str], Any]]:
    """Lay out the ``fit`` group: names and dims."""
    out: dict[str, tuple[Sequence[str], Any]] = {}
    for name, (mean, sd) in solution.moments.items():
        dims = model_dims(model, name)
        _put(out, f"{name}_mean", dims, mean)
        _put(out, f"{name}_sd", dims, sd)
    for name, value in solution.hyper_modes.items():
        _put(out, f"hyper_mode_{name}", model_dims(model, name), value)
    for name, results in solution.sites.items():
        for what, value in results.items():
            _put(out, f"{name}_{what}", model_dims(model, name), value)
    for name, (dim, values) in solution.traces.items():
        _put(out, name, (dim,), values)
    for name, value in solution.scalars.items():
        _put(out, name, (), value)
    _put(out, "converged", (), solution.converged)
    return out


def _put(variables: dict[str, tuple[Sequence[str], Any]], name: str, dims: Sequence[str], value: Any) -> None:
    if name in variables:
        raise UnsupportedModelError(
            f"Two results would be called {name!r} in the group 'fit'; rename the variable of the model that leads to "
            f"this name."
        )
    variables[name] = (dims, value)


def explain(model: pm.Model | None = None, *, latent: Sequence[str] | None = None) -> str:
    """Say what `fit` would make of a model: latent variables, sites, hyperparameters, ignored variables, solver.

    Parameters
    ----------
    model : pymc.Model, optional
        By default that of the ``with`` block.
    latent : sequence of str, optional
        As in `fit`.

    Returns
    -------
    str
        For printing.

    Raises
    ------
    UnsupportedModelError
        Where `fit` would raise it.
    """
    compiled = compiled_form(pm.modelcontext(model), latent)
    methods = [e.name for e in engines() if e.form is type(compiled.form)]
    return f"{compiled.describe()}\nmethods          {', '.join(methods)}"


def supported() -> str:
    """Return the table of distributions, links, sites, methods and treatments of hyperparameters, for printing."""
    rows = [("distribution", "link", "site", "method", "hyper")]
    for distribution, link, site in site_names():
        rows += [(distribution, link, site, e.name, ", ".join(e.hyper)) for e in engines()]
    widths = [max(len(row[k]) for row in rows) for k in range(len(rows[0]))]
    return "\n".join("  ".join(cell.ljust(w) for cell, w in zip(row, widths)).rstrip() for row in rows)
