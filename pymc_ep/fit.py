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
from pymc_ep.recognise import compiled_form, latents_missing_from, marginal_model, site_names, unconstrained
from pymc_ep.results import check_dims, fit_state, layout_of, write_solution

__all__ = ["explain", "fit", "marginalize", "recover", "supported"]

_SILENT_SECONDS = 2.0
_MOST_FITS = 500


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
    hyper : {"optimize", "integrate", "sample", "fixed"}
        Hyperparameters at the maximum of log evidence plus log prior, with Gaussian draws about it on PyMC's
        unconstrained scale; integrated over, by fits on a grid (up to three) or a central composite design; sampled, by
        `marginalize`, `pymc.sample` and `recover`; or held at `start` or the initial point.
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
        ``max_iter=200``, ``schedule="parallel"`` or ``"sequential"``, ``solver="auto"``, ``"observations"`` or
        ``"coefficients"``.

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
    if hyper == "sample":
        return _sample(model, form, engine, draws, chains, random_seed, progressbar, start, checkpoint, options)
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
    _warn(engine, solution)
    settings = {"hyper": hyper, "latent": list(form.form.latent_names), "chains": chains}
    timings = {"compile_time": compiled - began, "run_time": time.perf_counter() - compiled}
    layout = layout_of(draws, chains, solution)
    return write_solution(model, form, engine.name, solution, settings, timings, layout, random_seed)


def _warn(engine: EngineEntry, solution: Solution) -> None:
    if not solution.converged:
        warnings.warn(f"{engine.name} did not converge: {solution.status}.", ConvergenceWarning, stacklevel=3)


def _sample(
    model: pm.Model,
    form: CompiledLatentGaussian,
    engine: EngineEntry,
    draws: int | None,
    chains: int,
    random_seed: Any,
    progressbar: bool,
    start: Any,
    checkpoint: Any,
    options: dict[str, Any],
) -> Any:
    """Marginalise, sample, recover."""
    if draws == 0 or checkpoint is not None:
        raise ValueError("hyper='sample' needs draws of at least 1, and takes no checkpoint=.")
    theta, initvals = form.start, None
    if start is not None:
        values, state = (start, None) if isinstance(start, dict) else (None, fit_state(start))
        theta = _hyper_start(model, form, values, state)
        initvals = form.constrained(theta)
    op = _evidence_op(form, engine, options)
    endless = op.endless_directions(theta)
    if endless:
        warnings.warn(
            f"The density of the hyperparameters does not fall on the way to {', '.join(endless)}, so that their "
            f"posterior is improper, or as good as that, and chains will not come back from there. Give them proper "
            f"priors that are not much wider than the data allow.",
            ConvergenceWarning,
            stacklevel=3,
        )
    marginal = _marginal(model, form, engine, op)
    sampled = pm.sample(
        draws or 1000,
        chains=chains,
        model=marginal,
        initvals=initvals,
        random_seed=random_seed,
        progressbar=progressbar,
    )
    return _recover(sampled, model, form, engine, None, _MOST_FITS, random_seed, progressbar, options)


def marginalize(
    model: pm.Model | None = None,
    latent: Sequence[str] | None = None,
    *,
    method: str | None = None,
    compile_kwargs: dict[str, Any] | None = None,
    **options: Any,
) -> pm.Model:
    """Return the model of the hyperparameters alone, with the log evidence in place of what is integrated out.

    Parameters
    ----------
    model : pymc.Model, optional
        By default that of the ``with`` block.
    latent : sequence of str, optional
        Variables to integrate out, as in `fit`.
    method, compile_kwargs, **options
        As in `fit`.

    Returns
    -------
    pymc.Model
        With the same hyperparameters, transforms, dims, coords and data, the Deterministics that follow from these, and
        the potential ``<method>_log_evidence``, the log density of the data given the hyperparameters, which has
        first derivatives. `pymc.sample` and other samplers take it; ``counts`` of the potential's Op
        (``marginal["ep_log_evidence"].owner.op``) says how many evaluations there were, and how many failed.

    Raises
    ------
    UnsupportedModelError
        Where `fit` would raise it, and for a model without hyperparameters.
    """
    model = pm.modelcontext(model)
    form = compiled_form(model, latent, compile_kwargs)
    engine = get_engine(method, type(form.form))
    _check_options(engine, "sample", options)
    return _marginal(model, form, engine, _evidence_op(form, engine, options))


def _evidence_op(form: CompiledLatentGaussian, engine: EngineEntry, options: dict[str, Any]) -> Any:
    assert engine.evidence_op is not None, "an engine that offers hyper='sample' has an evidence Op"
    return engine.evidence_op(form, options)


def _marginal(model: pm.Model, form: CompiledLatentGaussian, engine: EngineEntry, op: Any) -> pm.Model:
    return marginal_model(model, form.form, f"{engine.name}_log_evidence", lambda theta: op(theta)[0])


def recover(
    idata: Any,
    model: pm.Model | None = None,
    *,
    method: str | None = None,
    draws: int | None = None,
    max_fits: int = _MOST_FITS,
    random_seed: Any = None,
    progressbar: bool = True,
    compile_kwargs: dict[str, Any] | None = None,
    **options: Any,
) -> Any:
    """Add what was integrated out to draws of the hyperparameters.

    Parameters
    ----------
    idata : arviz.InferenceData or xarray.DataTree
        What a sampler made of the model that `marginalize` returned.
    model : pymc.Model, optional
        The full model, by default that of the ``with`` block. Its free variables that the posterior of `idata` lacks
        are the latent ones.
    method, compile_kwargs, **options
        As they were given to `marginalize`.
    draws : int, optional
        Draws of the latent variables for each fit; by default as many as give each chain its length again, to within
        rounding up.
    max_fits : int
        Most draws of the hyperparameters that are fitted at; with more of them, evenly spaced ones of each chain.
    random_seed, progressbar
        As in `fit`.

    Returns
    -------
    arviz.InferenceData or xarray.DataTree
        As `fit` returns it, with the hyperparameters' draws at which there were fits, each repeated for its draws of
        the latent variables. Moments are averages over the fits. The other groups of `idata` are kept.

    Raises
    ------
    ValueError
        Where draws of a hyperparameter are missing.
    UnsupportedModelError, NumericalError
        As in `fit`.
    """
    model = pm.modelcontext(model)
    check_dims(model)
    if max_fits < 1 or (draws is not None and draws < 1):
        raise ValueError(f"draws={draws!r} and max_fits={max_fits!r} must be whole numbers of at least 1.")
    latent = latents_missing_from(model, set(map(str, compat.group(idata, "posterior").data_vars)))
    try:
        form = compiled_form(model, latent, compile_kwargs)
    except UnsupportedModelError as error:
        raise ValueError(
            f"The posterior has no draws of {', '.join(map(repr, latent))}, and these are not what can be integrated "
            f"out: {error}"
        ) from error
    engine = get_engine(method, type(form.form))
    _check_options(engine, "sample", options)
    return _recover(idata, model, form, engine, draws, max_fits, random_seed, progressbar, options)


def _recover(
    idata: Any,
    model: pm.Model,
    form: CompiledLatentGaussian,
    engine: EngineEntry,
    draws: int | None,
    max_fits: int,
    random_seed: Any,
    progressbar: bool,
    options: dict[str, Any],
) -> Any:
    began = time.perf_counter()
    posterior = compat.group(idata, "posterior")
    chains, length = posterior.sizes["chain"], posterior.sizes["draw"]
    step = -(-chains * length // max_fits)
    names = [v.name for v in model.free_RVs if v.name in posterior]
    kept = {name: posterior[name].transpose("chain", "draw", ...).to_numpy()[:, ::step] for name in names}
    rows = {name: values.reshape(-1, *values.shape[2:]) for name, values in kept.items()}
    thetas = unconstrained(model, form.form, rows)
    assert engine.condition is not None, "an engine that offers hyper='sample' fits at given hyperparameters"
    with _progress(engine.name, progressbar) as report:
        solution = engine.condition(form, thetas=thetas, options=options, report=report)
    _warn(engine, solution)
    each = step if draws is None else draws
    settings = {"hyper": "sample", "latent": list(form.form.latent_names), "chains": chains}
    return write_solution(
        model,
        form,
        engine.name,
        solution,
        settings,
        {"compile_time": 0.0, "run_time": time.perf_counter() - began},
        (chains, each * len(range(0, length, step)), ""),
        random_seed,
        given={name: np.repeat(values, each, axis=1) for name, values in kept.items()},
        others={name: compat.group(idata, name) for name in compat.group_names(idata)},
    )


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
