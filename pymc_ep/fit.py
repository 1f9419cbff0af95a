"""Fit a model: look up the form and the method, call it, write the result. No mathematics here."""

import inspect
import os
import re
import time
from collections.abc import Sequence
from dataclasses import replace
from functools import partial
from typing import Any, Unpack, cast

import pymc as pm

from pymc_ep.calls import (
    check_mode,
    check_numbers,
    check_options,
    check_sample_kwargs,
    chosen_hyper,
    cost_line,
    cost_of,
    foresee,
    hyper_start,
    identity,
    on_device,
    printed,
    require_room,
    warn_unless_converged,
)
from pymc_ep.compat import Container
from pymc_ep.concurrency import one_at_a_time
from pymc_ep.contracts.form import CompiledForm, CompiledSiteForm
from pymc_ep.contracts.method import Call, Method
from pymc_ep.contracts.options import MethodOptions
from pymc_ep.contracts.solution import RandomSeed
from pymc_ep.engines.checkpoint import Checkpoint
from pymc_ep.engines.progress import progress
from pymc_ep.exceptions import InvalidDataError, UnsupportedModelError
from pymc_ep.forms import able_methods, compiled_form, forms, get_method, methods
from pymc_ep.graphs.context import model_of, warn_of_centring
from pymc_ep.graphs.lengths import require_lengths
from pymc_ep.marginal import sample
from pymc_ep.numerics.backend.threads import check_cores, limited_threads
from pymc_ep.results import check_dims, fit_state, layout_of, write_solution
from pymc_ep.results.row_labels import earlier_rows, labelled_rows

__all__ = ["explain", "fit", "supported"]

_CHAINS = 4
"""Default number of chains."""
_FEW_DRAWS = {"draws": 250, "tune": 500}
"""Draws and tuning steps of each chain where ``hyper="auto"`` chooses sampling: some minutes, and enough effective
draws for means."""


@one_at_a_time
def fit(
    method: str | None = None,
    *,
    model: pm.Model | None = None,
    latent: Sequence[str] | None = None,
    hyper: str = "auto",
    draws: int | None = None,
    chains: int = _CHAINS,
    log_likelihood: bool = False,
    random_seed: RandomSeed = None,
    progressbar: bool = True,
    start: Container | dict[str, Any] | None = None,
    checkpoint: str | os.PathLike | None = None,
    keep_checkpoint: bool = False,
    cores: int | str | None = "auto",
    blas_cores: int | str | None = "auto",
    compile_kwargs: dict[str, Any] | None = None,
    device: str | None = None,
    sample_kwargs: dict[str, Any] | None = None,
    **options: Unpack[MethodOptions],
) -> Container:
    """Fit a model by a deterministic approximation of its posterior.

    Parameters
    ----------
    method : str, optional
        By default the first that takes all sites of the model, ``"ep"`` for most. `pymc_ep.supported` lists all.
    model : pymc.Model or bambi.Model, optional
        By default the one of the ``with`` block.
    latent : sequence of str, optional
        Variables to integrate out; by default the largest jointly Gaussian set in which every predictor is affine.
        A Deterministic, such as the ``f`` of ``gp.prior("f")``, stands for the free variables that it depends on.
        All other free variables are hyperparameters.
    hyper : {"auto", "integrate", "optimize", "sample", "fixed"}
        ``"integrate"``: hyperparameters are integrated over, by draws from an emulator of the evidence that exact fits
        test. ``"optimize"``: they are at the maximum of log evidence plus log prior; EP draws them from a Gaussian
        about it, on PyMC's unconstrained scale. ``"sample"``: they are sampled, by `marginalize`, `pymc.sample` and
        `recover`. ``"fixed"``: they have the values of `start` or of the initial point. ``"auto"`` integrates where the
        method can and fits are cheap enough, samples more than 25 hyperparameters by 250 draws a chain, and optimizes
        elsewhere.
    draws : int, optional
        Draws for each chain, 0 for moments only; by default 1000 (25 of a `SparseField` or a `WaveletTree`), or fewer
        where more than 5e7 numbers would be stored, which the status says.
    chains : int
        Number of chains in which the independent draws are laid out.
    log_likelihood : bool
        Whether to store log likelihoods of the draws, and their log densities under the model and the approximation.
    random_seed : optional
        Seed of the draws: anything that `numpy.random.default_rng` takes.
    progressbar : bool
        Shown once two seconds have passed.
    start : optional
        Result of an earlier fit of the same model, or a dict of hyperparameter values by name. For `PairedSymbols`,
        `CollaborativeRNN` and `PreferenceUtility` the model may have other rows, known by their labels, and other data.
    checkpoint : path, optional
        File from which a fit that was ended, by Ctrl-C, an error or the end of its process, goes on: make the same call
        again. It is written at the start, after iterations that take longer than a write, and at the end. A file of
        another model, other data or other options is refused; the limit of iterations may be another.
    keep_checkpoint : bool
        Whether the file stays when the fit has converged: from it the same call returns at once, with other draws for
        another `random_seed`.
    cores : int, "auto" or None
        Threads of compiled kernels and of BLAS; None leaves their numbers as they are. ``"auto"`` takes as many as
        there are idle processors, but one for BLAS unless matrices have about 2000 rows or more.
    blas_cores : int, "auto" or None
        Another name of `cores`.
    compile_kwargs : dict, optional
        Keywords of `pytensor.function`. ``{"mode": "JAX"}`` runs the algorithm under JAX, on the device that it
        chooses.
    device : {"cpu", "gpu", "tpu"}, optional
        Runs the algorithm under JAX on that device, in double precision.
    sample_kwargs : dict, optional
        With ``hyper="sample"``, other arguments of `pymc.sample`, such as ``{"target_accept": 0.95}``.
    **options
        Options of the method, such as ``tol`` and ``max_iter``: see `pymc_ep.MethodOptions`.

    Returns
    -------
    arviz.InferenceData or xarray.DataTree
        The type that `pymc.sample` returns, with the groups ``posterior``, ``observed_data``, ``constant_data``,
        ``fit`` and ``fit_state``.

    Raises
    ------
    UnsupportedModelError
        Where the model is not of a form that a method solves; names the variable and a cure.
    InvalidDataError
        For observations outside their likelihood's domain.
    NumericalError
        Where a computation gave a value that is not finite.

    Warns
    -----
    ConvergenceWarning
        Where the iteration stopped before its tolerance, or was interrupted: Ctrl-C returns the state reached, once
        there is one. The status of the result holds the reason.
    """
    began = time.perf_counter()
    given = cast(dict[str, Any], options)
    if not isinstance(method, str | None):
        whole = isinstance(method, int)
        instead = "a model by keyword: fit(model=model), or by its `with` block"
        raise TypeError(
            f"method= is the name of a method, such as 'ep', and no {type(method).__name__}; give "
            f"{f'draws by keyword: fit(draws={method})' if whole else instead}."
        )
    warn_of_centring(model)
    model = model_of(model)
    check_dims(model)
    check_numbers(draws, chains, random_seed, log_likelihood)
    cores = check_cores(cores, blas_cores)
    require_lengths(model)
    compile_kwargs, placed = on_device(device, compile_kwargs)
    form = compiled_form(model, latent, compile_kwargs)
    chosen = get_method(method, form.form)
    check_mode(chosen, compile_kwargs)
    check_options(chosen, hyper, given, _ARGUMENTS)
    why = None
    if hyper == "auto":
        hyper, why = chosen_hyper(chosen, form, given, chains=draws != 0 and checkpoint is None)
    check_sample_kwargs(hyper, sample_kwargs)
    if hyper == "sample":
        if draws == 0 or checkpoint is not None:
            raise ValueError("hyper='sample' needs draws of at least 1, and takes no checkpoint=.")
        arguments: dict[str, Any] = {"draws": 1000} if why is None else dict(_FEW_DRAWS)
        arguments |= ({} if draws is None else {"draws": draws}) | (sample_kwargs or {})
        arguments |= {
            "chains": chains,
            "random_seed": random_seed,
            "progressbar": progressbar,
            "blas_cores": cores,
        }
        sentence = "" if why is None else why.sentence
        with placed:
            foresee(cost_of(chosen, Call(form, form.start, hyper, options=given), arguments))
        # A method that samples has an evidence of the hyperparameters, which forms with sites have.
        site_form = cast(CompiledSiteForm, form)
        with placed:
            return sample(model, site_form, chosen, start, arguments, given, log_likelihood, sentence)
    state = None if start is None or isinstance(start, dict) else fit_state(start)
    theta = hyper_start(model, form, start)
    call = Call(form, theta, hyper, state, given)
    with placed:
        foresee(cost_of(chosen, call, {}))
    of_fit = {}
    if checkpoint is not None:
        of_fit = identity(model, form, chosen, hyper, given, (theta, state), compile_kwargs)
    compiled = time.perf_counter()
    with Checkpoint(checkpoint, of_fit, keep=keep_checkpoint) as saved, limited_threads(form.work, cores), placed:
        with progress(chosen.name, progressbar) as report:
            call = replace(call, report=report, checkpoint=saved, row_labels=partial(labelled_rows, model))
            if start is not None and not isinstance(start, dict):
                call = replace(call, start_rows=partial(earlier_rows, start, model))
            solution = chosen.solve(call)
        saved.done = solution.converged
        if why is not None and why.sentence:
            converged = solution.converged and why.converged
            solution = replace(solution, status=f"{why.sentence}; {solution.status}", converged=converged)
        if saved.failure:
            solution = replace(solution, status=f"{solution.status}; {saved.failure}")
        warn_unless_converged(chosen, solution)
        settings = {"hyper": hyper, "latent": list(form.form.latent_names), "chains": chains}
        timings = {"compile_time": compiled - began, "run_time": time.perf_counter() - compiled}
        layout = layout_of(draws, chains, solution)
        return write_solution(
            model, form, chosen.name, solution, settings, timings, layout, random_seed, log_likelihood=log_likelihood
        )


class _OwnDefault:
    """Default of an option, which each method sets."""

    def __repr__(self) -> str:
        return "..."


def _with_options(signature: inspect.Signature) -> inspect.Signature:
    """Return a signature with the options of all methods by name, which completion offers and `help` shows."""
    *arguments, rest = signature.parameters.values()
    hints, kind = MethodOptions.__annotations__, inspect.Parameter.KEYWORD_ONLY
    parameters = [inspect.Parameter(name, kind, default=_OwnDefault(), annotation=hint) for name, hint in hints.items()]
    return signature.replace(parameters=[*arguments, *parameters, rest])


_ARGUMENTS = tuple(inspect.signature(fit).parameters)
"""Names of arguments that all methods share."""
vars(fit)["__signature__"] = _with_options(inspect.signature(fit))


@one_at_a_time
def explain(model: pm.Model | None = None, *, latent: Sequence[str] | None = None) -> str:
    """Describe how `fit` would treat a model: latent variables, sites, hyperparameters, ignored variables, solver.

    Parameters
    ----------
    model : pymc.Model or bambi.Model, optional
        By default the one of the ``with`` block.
    latent : sequence of str, optional
        As in `fit`.

    Returns
    -------
    str
        Shown in lines, and by notebooks as a table.

    Raises
    ------
    UnsupportedModelError
        Where `fit` would raise it.
    """
    model = model_of(model)
    require_lengths(model)
    compiled = compiled_form(model, latent)
    able = able_methods(compiled.form)
    lines = [re.split(r"\s{2,}", line, maxsplit=1) for line in compiled.describe().splitlines()]
    if able and (cost := _default_cost(able[0], compiled)):
        lines.append(["cost", cost])
    lines.append(["methods", ", ".join(e.name for e in able) or "none that takes all of these sites"])
    return printed(lines)


def _default_cost(method: Method, form: CompiledForm) -> str:
    """Return the cost of a fit without options, or why it would be refused; empty where nothing is known."""
    try:
        hyper, _ = chosen_hyper(method, form, {}, chains=True)
        cost = cost_of(method, Call(form, form.start, hyper), {"chains": _CHAINS} | _FEW_DRAWS)
        require_room(cost)
    except (InvalidDataError, UnsupportedModelError) as error:
        return str(error)
    return cost_line(cost)


def supported() -> str:
    """Return the table of distributions, links, sites, methods, treatments of hyperparameters and verbs, as text."""
    # What most people fit comes first. Forms share likelihoods; a method that solves several forms has one row.
    table: dict[tuple[str, str, str], dict[str, tuple[str, str]]] = {}
    for entry in sorted(forms(), key=lambda entry: not entry.fallback):
        for distribution, link, name, site in entry.rows():
            by_method = table.setdefault((distribution, link, name), {})
            for method in methods():
                if method.form is entry.form and method.takes(site):
                    by_method.setdefault(method.name, (", ".join(method.hyper), ", ".join(entry.verbs)))
    rows = [("distribution", "link", "site", "method", "hyper", "verbs")]
    rows += [
        (*leading, method, *trailing) for leading, by_method in table.items() for method, trailing in by_method.items()
    ]
    return printed(rows, header=True)
