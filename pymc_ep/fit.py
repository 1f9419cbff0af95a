"""Fit a model: look up the form and the method, call it, write the result. No mathematics here."""

import inspect
import os
import re
import time
from collections.abc import Sequence
from dataclasses import replace
from functools import partial
from typing import Any, cast

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
    progress,
    require_room,
    warn_unless_converged,
)
from pymc_ep.compat import Container
from pymc_ep.concurrency import one_at_a_time
from pymc_ep.contracts.form import CompiledForm, CompiledSiteForm
from pymc_ep.contracts.method import Call, Method
from pymc_ep.contracts.solution import RandomSeed
from pymc_ep.engines.checkpoint import Checkpoint
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
"""Chains by default."""
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
    **options: Any,
) -> Container:
    """Fit a model by a deterministic approximation of its posterior.

    Parameters
    ----------
    method : str, optional
        ``"ep"``; for models with a `SparseField` or `WaveletTree` also ``"dsb"``, the double loop, and ``"map"``, the
        mode of the density; for inner products of rows of two matrices, as of `BilinearPoisson`, ``"vg"`` and, where
        log densities of cells have a largest curvature, ``"vbmf"``. None picks the first that takes all sites of the
        model; for `PairedSymbols` ``"paired_vb"``; for `CollaborativeRNN` ``"ml"``; for `PreferenceUtility` also
        ``"laplace"`` and, of `PairwiseLogit`, ``"jaakkola"``. `pymc_ep.supported` lists all.
    model : pymc.Model or bambi.Model, optional
        By default that of the ``with`` block.
    latent : sequence of str, optional
        Variables to integrate out; by default the largest jointly Gaussian set in which every predictor is affine.
        A Deterministic, such as the ``f`` of ``gp.prior("f")``, stands for the free variables that it depends on.
        All other free variables are hyperparameters.
    hyper : {"auto", "integrate", "optimize", "sample", "fixed"}
        Hyperparameters integrated over, by draws from an emulator of the evidence that is tested by exact fits; at
        the maximum of log evidence plus log prior, by EP with Gaussian draws about it on PyMC's unconstrained scale, by
        other methods as points; sampled, by `marginalize`, `pymc.sample` and `recover`; or held at `start` or the
        initial point. ``"auto"`` integrates where the method can and fits are cheap enough, samples more than 25
        hyperparameters by 250 draws a chain, and optimizes elsewhere. Of `PreferenceUtility` up to 25 single numbers
        with proper priors are integrated over, three of them by a lattice of fits; fixed at an earlier fit `start` that
        integrated them, they have the posterior that it found.
    draws : int, optional
        Draws for each chain; by default 1000 (25 of a `SparseField` or a `WaveletTree`), or fewer where more than 5e7
        numbers would be stored (the status says so), or none where there are too many for a draw a chain. 0 stores
        moments only.
    chains : int
        Independent draws are laid out in so many chains.
    log_likelihood : bool
        Whether to store log likelihoods of the draws, which `pymc.compute_log_likelihood` adds to any result, and
        their joint log densities under the model and under the approximation.
    random_seed : optional
        Of the draws; anything that `numpy.random.default_rng` takes.
    progressbar : bool
        Shown once two seconds have passed.
    start : optional
        Result of an earlier fit of the same model, or a dict of hyperparameter values by name. For `PairedSymbols` and
        `CollaborativeRNN` the model may have other rows, which are known by their labels, and other data. For
        `PreferenceUtility` it may have other users, items and comparisons: b and V at new items are predicted by the
        kernel, see `pymc_ep.models.preferences.new_items`.
    checkpoint : path, optional
        File from which a fit that was ended, by Ctrl-C, an error or the end of its process, goes on: make the same call
        again, and its result is that of a fit that was not ended. It is written at the start, after each iteration that
        takes longer than a write does, and at the end. A file of another model, other data or other options is refused,
        except that the limit of iterations, ``max_iter``, ``outer`` or ``epochs``, may be another. One process uses it
        at a time.
    keep_checkpoint : bool
        Whether the file stays when the fit has converged; by default it is removed then. From a file that was kept the
        same call returns at once, with other draws if ``random_seed`` is another.
    cores : int, "auto" or None
        Threads of compiled kernels and of BLAS. ``"auto"`` is as many as are idle, since threads that wait for each
        other on a busy machine take many times as long; of BLAS it is one, unless matrices have about 2000 rows. None
        leaves them as they are. With ``hyper="sample"`` it is `blas_cores` of `pymc.sample` as well.
    blas_cores : int, "auto" or None
        Another name of `cores`.
    compile_kwargs : dict, optional
        For `pytensor.function`; ``{"mode": "JAX"}`` runs the algorithm under JAX, on the device that JAX chooses.
    device : {"cpu", "gpu", "tpu"}, optional
        Runs the algorithm under JAX on that device, in double precision.
    sample_kwargs : dict, optional
        With ``hyper="sample"``, other arguments of `pymc.sample`, such as ``{"target_accept": 0.95}``.
    **options
        Of the method. EP: ``power=1.0`` in (0, 1], ``damping="auto"`` or in (0, 1], ``tol=1e-8``,
        ``max_iter=200``, ``schedule="parallel"`` or ``"sequential"``, ``solver="auto"``, ``"observations"``,
        ``"coefficients"`` or ``"precision"``.
        The double loop: ``variance="auto"``, ``"exact"``, ``"perturb-and-map"`` or ``"lanczos"``,
        ``n_samples=30``, ``seed=0``, ``outer=50`` loops at most, ``tol``, by default 1e-4 with exact variances and 1e-3
        with others, ``inner="irls"``, ``"lbfgs"`` or ``"newton-cg"``, ``cg_tol=1e-4``, ``cg_max_iter=1000``. It and EP
        for models of wavelet coefficients: ``translations=1`` grids to average over.
        EP, Laplace and Jaakkola for comparisons of items: ``learn="evidence"`` or ``"em"``, ``held_out=0``, a
        share of comparisons, ``max_pairs=None``, a largest number of comparisons of a user, ``partitions``, a number of
        parts of the users, ``client``, a `distributed.Client` whose workers hold these, ``evidence_tol=1e-5`` nats a
        comparison, ``tol=1e-8``, ``max_iter=200``, ``seed=0``.
        The variational Gaussian: ``covariance="diagonal"`` or ``"full"``, ``estimate``, names of matrices and biases
        that are points without a posterior (one matrix: EM; all: the mode), ``tol=1e-6`` nats a cell and step,
        ``max_iter=200``, ``seed=0``.
        Paired symbols: ``estimate``, names of matrices and biases that are points, ``constant_messages=False``,
        ``calibrate=True``, by pairs left out one at a time, ``partitions``, Parquet files of pairs such as
        ``"pairs/*.parquet"``, ``client``, a `distributed.Client` whose workers hold these, none of the three where both
        sides are the same symbols,
        ``update="bulk"`` or ``"sequential"``, ``dtype="float64"`` or ``"float32"``, ``tol=1e-6`` nats a pair and sweep,
        ``max_iter=200``, ``seed=0``.
        A recurrent network: ``epochs=25``, ``batch=128``, the length of the windows that gradients go back through,
        ``users_per_batch=32``, ``patience=3`` epochs, ``held_out=0.05``, a share of each user's events at their end,
        ``optimizer="yogi"``, ``"rmsprop"`` or ``"adam"``, ``learning_rate=0.01``, ``clip=1.0``, ``ridge=1.0``,
        ``sampled=None`` for all items in a softmax, ``dropout=0.0``, ``dtype="float64"`` or ``"float32"``, ``seed=0``.
        Shrinkage of singular values: ``rank``, by default all columns, ``shrinkage="vb"`` or ``"map"``, ``ard=False``,
        ``init="modes"`` or ``"zeros"``, ``tol=1e-6``, ``max_iter=1000``, ``seed=0``.

    Returns
    -------
    arviz.InferenceData or xarray.DataTree
        Whatever `pymc.sample` returns, with the groups ``posterior``, ``observed_data``, ``constant_data``, ``fit``
        and ``fit_state``.

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
        Where the iteration stopped before its tolerance, or was interrupted: Ctrl-C returns the state reached, once
        there is one. The status of the result holds the reason.
    """
    began = time.perf_counter()
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
    check_options(chosen, hyper, options, inspect.signature(fit).parameters)
    why = None
    if hyper == "auto":
        hyper, why = chosen_hyper(chosen, form, options, chains=draws != 0 and checkpoint is None)
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
        foresee(cost_of(chosen, Call(form, form.start, hyper, options=options), arguments))
        # A method that samples has an evidence of the hyperparameters, which forms with sites have.
        site_form = cast(CompiledSiteForm, form)
        with placed:
            return sample(model, site_form, chosen, start, arguments, options, log_likelihood, sentence)
    state = None if start is None or isinstance(start, dict) else fit_state(start)
    theta = hyper_start(model, form, start)
    call = Call(form, theta, hyper, state, options)
    foresee(cost_of(chosen, call, {}))
    of_fit = {}
    if checkpoint is not None:
        of_fit = identity(model, form, chosen, hyper, options, (theta, state), compile_kwargs)
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


@one_at_a_time
def explain(model: pm.Model | None = None, *, latent: Sequence[str] | None = None) -> str:
    """Describe how `fit` would treat a model: latent variables, sites, hyperparameters, ignored variables, solver.

    Parameters
    ----------
    model : pymc.Model or bambi.Model, optional
        By default that of the ``with`` block.
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
    # Forms share likelihoods; a method that solves several forms has one row.
    table: dict[tuple[str, str, str], dict[str, tuple[str, str]]] = {}
    for entry in forms():
        for distribution, link, name, site in entry.rows():
            known = table.setdefault((distribution, link, name), {})
            for method in methods():
                if method.form is entry.form and method.takes(site):
                    known.setdefault(method.name, (", ".join(method.hyper), ", ".join(entry.verbs)))
    rows = [("distribution", "link", "site", "method", "hyper", "verbs")]
    rows += [(*what, method, *more) for what, known in table.items() for method, more in known.items()]
    return printed(rows, header=True)
