"""The marginal model of the hyperparameters, recovery of the latent variables, and hyper="sample", which does both."""

import time
import warnings
from collections.abc import Sequence
from dataclasses import replace
from typing import Any, NamedTuple

import numpy as np
import pymc as pm
import xarray as xr

from pymc_ep import compat
from pymc_ep.calls import (
    check_options,
    check_seed,
    hyper_start,
    warn_unless_converged,
)
from pymc_ep.compat import Container
from pymc_ep.concurrency import one_at_a_time
from pymc_ep.contracts.form import CompiledForm, CompiledSiteForm
from pymc_ep.contracts.method import Call, EvidenceGraph, Method
from pymc_ep.contracts.solution import RandomSeed
from pymc_ep.engines.interrupt import signals_outside_numba
from pymc_ep.engines.progress import progress
from pymc_ep.evidence.mode import endless_sentence
from pymc_ep.exceptions import ConvergenceWarning, UnsupportedModelError
from pymc_ep.forms import compiled_form
from pymc_ep.forms.marginal_model import latents_missing_from, marginal_model, unconstrained
from pymc_ep.forms.registry import able_methods, get_method
from pymc_ep.graphs.context import model_of
from pymc_ep.graphs.lengths import require_lengths
from pymc_ep.numerics.backend.threads import check_cores, limited_threads
from pymc_ep.results import check_dims, write_solution

__all__ = ["marginalize", "recover", "sample"]

_MOST_FITS = 500
"""Default of `max_fits`: number of draws of the hyperparameters at which fits recover latent variables."""
_LEAST_RHAT, _LEAST_DRAWS = 1.05, 100
"""Least R-hat at which chains are reported to disagree, and least number of draws of a chain for which it is computed.
Looser than the 1.01 advised for converged chains, so that the scatter of short chains is not reported."""
_MOST_DIVERGENT = 0.05
"""Share of divergent transitions from which on a fit warns. Scales under proper priors had shares of up to 0.02, a
scale under an improper prior one of 0.5."""
_NO_DRAWS = "Not enough samples"
"""Beginning of the ValueError of `pymc.sample` where Ctrl-C ends it while it tunes."""
_INTERRUPTED = "Sampling was interrupted before its first draw."


def sample(
    model: pm.Model,
    form: CompiledSiteForm,
    chosen: Method,
    start: Container | dict[str, Any] | None,
    arguments: dict[str, Any],
    options: dict[str, Any],
    log_likelihood: bool,
    why: str,
) -> Container:
    """Return a result by `marginalize`, `pymc.sample` with `arguments`, and `recover`; its status contains `why`."""
    theta, initvals = form.start, None
    if start is not None:
        theta = hyper_start(model, form, start)
        initvals = form.constrained(theta)
    op = _evidence_op(form, chosen, options)
    endless = op.endless_directions(form.to_values(theta[None])[0])
    improper = ""
    if endless:
        improper = (
            f"{endless_sentence(endless)}, and chains will not come back from there; give them proper priors that are "
            f"not much wider than the data allow"
        )
        warnings.warn(f"{improper[0].upper()}{improper[1:]}.", ConvergenceWarning, stacklevel=4)
    try:
        with signals_outside_numba():
            sampled = pm.sample(model=_marginal(model, form, chosen, op), initvals=initvals, **arguments)
    except ValueError as error:
        if _NO_DRAWS not in str(error):
            raise
        raise KeyboardInterrupt(_INTERRUPTED) from error
    if not compat.group(sampled, "posterior").sizes["draw"]:
        raise KeyboardInterrupt(_INTERRUPTED)
    with limited_threads(form.work, arguments["blas_cores"]):
        requested = _ChainRequest(arguments["draws"], why, improper)
        seed, progressbar = arguments["random_seed"], arguments["progressbar"]
        return _recover(
            sampled, model, form, chosen, None, _MOST_FITS, seed, progressbar, options, log_likelihood, requested
        )


@one_at_a_time
def marginalize(
    model: pm.Model | None = None,
    latent: Sequence[str] | None = None,
    *,
    method: str | None = None,
    compile_kwargs: dict[str, Any] | None = None,
    **options: Any,
) -> pm.Model:
    """Return the model of the hyperparameters alone, with the log evidence in place of the latent variables.

    Parameters
    ----------
    model : pymc.Model, optional
        By default the one of the ``with`` block.
    latent : sequence of str, optional
        Variables to integrate out, as in `fit`.
    method, compile_kwargs, **options
        As in `fit`.

    Returns
    -------
    pymc.Model
        With the same hyperparameters, transforms, dims, coords and data, the Deterministics that follow from these, and
        the potential ``<method>_log_evidence``, the log density of the data given the hyperparameters, or the method's
        lower bound on it, which has first derivatives. `pymc.sample` and other samplers take it, and `pymc.find_MAP`
        ends where ``fit(hyper="optimize")`` does. The potential is a scalar graph of ``marginal.value_vars``, the
        hyperparameters on PyMC's unconstrained scale, for `pytensor.function` and `pytensor.grad`; ``counts`` of its Op
        (``marginal["ep_log_evidence"].owner.op``) holds the numbers of evaluations and of failed ones.

    Raises
    ------
    UnsupportedModelError
        Where `fit` would raise it, for a model without hyperparameters, for methods without an evidence, and for point
        estimates (``estimate=``, flat priors of matrices), whose maximal density is no density of the hyperparameters.
    ValueError
        For options under which there is no evidence, such as estimated variances.

    Notes
    -----
    By EP each fit starts from the last one, where its result does not depend on the start. A bound (``"vg"``,
    ``"vbmf"``, ``"dsb"``, ``"paired_vb"``) has several maxima, so that each fit starts as with ``hyper="fixed"``,
    whatever came before. As a function of the hyperparameters the bound jumps a little where fits begin to end at
    another maximum.
    """
    model = model_of(model)
    require_lengths(model)
    form = compiled_form(model, latent, compile_kwargs)
    chosen = _sampling_method(method, form, options)
    return _marginal(model, form, chosen, _evidence_op(form, chosen, options))


def _sampling_method(method: str | None, form: CompiledForm, options: dict[str, Any]) -> Method:
    """Return the method of this name, by default the form's; raise if it has no log evidence to sample by."""
    chosen = get_method(method, form.form)
    if "sample" not in chosen.hyper:
        others = " or ".join(repr(other.name) for other in able_methods(form.form) if "sample" in other.hyper)
        cure = f"Use method={others}" if others else "Learn them by fit()"
        raise UnsupportedModelError(
            f"method={chosen.name!r} has no log evidence to sample hyperparameters by. {cure}, or sample the whole "
            f"model by pm.sample."
        )
    check_options(chosen, "sample", options)
    return chosen


def _evidence_op(form: CompiledForm, chosen: Method, options: dict[str, Any]) -> EvidenceGraph:
    assert chosen.evidence_op is not None, "a method that offers hyper='sample' has an evidence Op"
    return chosen.evidence_op(form, options)


def _marginal(model: pm.Model, form: CompiledForm, chosen: Method, op: EvidenceGraph) -> pm.Model:
    return marginal_model(model, form.form, f"{chosen.name}_log_evidence", lambda theta: op(theta)[0])


@one_at_a_time
def recover(
    idata: Container,
    model: pm.Model | None = None,
    *,
    method: str | None = None,
    draws: int | None = None,
    max_fits: int = _MOST_FITS,
    log_likelihood: bool = False,
    random_seed: RandomSeed = None,
    progressbar: bool = True,
    cores: int | str | None = "auto",
    blas_cores: int | str | None = "auto",
    compile_kwargs: dict[str, Any] | None = None,
    **options: Any,
) -> Container:
    """Add draws of the latent variables to draws of the hyperparameters.

    Parameters
    ----------
    idata : arviz.InferenceData or xarray.DataTree
        Result of a sampler for the model that `marginalize` returned.
    model : pymc.Model, optional
        The full model, by default the one of the ``with`` block. Its free variables that the posterior of `idata` lacks
        are the latent ones.
    method, compile_kwargs, **options
        As they were given to `marginalize`.
    draws : int, optional
        Draws of the latent variables for each fit. By default chains are as long as they were, or a little longer by
        rounding up.
    max_fits : int
        Largest number of draws of the hyperparameters at which there are fits; of more draws, evenly spaced ones of
        each chain are taken.
    log_likelihood, random_seed, progressbar, cores, blas_cores
        As in `fit`.

    Returns
    -------
    arviz.InferenceData or xarray.DataTree
        As `fit` returns it, with the hyperparameters' draws at which there were fits, each repeated for its draws of
        the latent variables. Moments are averages over the fits. The other groups of `idata` are kept.

    Raises
    ------
    ValueError
        Where `idata` has no draws, no draws of a hyperparameter, or draws of every variable already.
    UnsupportedModelError, NumericalError
        As in `fit`.
    """
    model = model_of(model)
    check_dims(model)
    if max_fits < 1 or (draws is not None and draws < 1):
        raise ValueError(f"draws={draws!r} and max_fits={max_fits!r} must be whole numbers of at least 1.")
    if not compat.has_group(idata, "posterior"):
        raise ValueError(
            "idata has no group 'posterior': recover() takes what a sampler made of the model of marginalize()."
        )
    check_seed(random_seed)
    cores = check_cores(cores, blas_cores)
    latent = latents_missing_from(model, set(map(str, compat.group(idata, "posterior").data_vars)))
    if not latent:
        raise ValueError(
            "The posterior has draws of every variable that the observations depend on, so that there is nothing to "
            "recover: recover() takes what a sampler made of the model of marginalize()."
        )
    require_lengths(model)
    try:
        form = compiled_form(model, latent, compile_kwargs)
    except UnsupportedModelError as error:
        raise ValueError(
            f"The posterior has no draws of {', '.join(map(repr, latent))}, and these are not what can be integrated "
            f"out: {error}"
        ) from error
    chosen = _sampling_method(method, form, options)
    with limited_threads(form.work, cores):
        return _recover(idata, model, form, chosen, draws, max_fits, random_seed, progressbar, options, log_likelihood)


def _recover(
    idata: Container,
    model: pm.Model,
    form: CompiledForm,
    chosen: Method,
    draws: int | None,
    max_fits: int,
    random_seed: RandomSeed,
    progressbar: bool,
    options: dict[str, Any],
    log_likelihood: bool,
    requested: "_ChainRequest | None" = None,
) -> Container:
    """Return the container of `recover`: fit at draws of the hyperparameters, and draw the latent variables."""
    began = time.perf_counter()
    posterior = compat.group(idata, "posterior")
    chains, length = posterior.sizes["chain"], posterior.sizes["draw"]
    step = -(-chains * length // max_fits)
    names = [v.name for v in model.free_RVs if v.name in posterior]
    kept = {name: posterior[name].transpose("chain", "draw", ...).to_numpy()[:, ::step] for name in names}
    rows = {name: values.reshape(-1, *values.shape[2:]) for name, values in kept.items()}
    thetas = form.from_values(unconstrained(model, form.form, rows))
    assert chosen.condition is not None, "a method that offers hyper='sample' fits at given hyperparameters"
    with progress(chosen.name, progressbar) as report:
        solution = chosen.condition(Call(form, form.start, options=options, report=report), thetas)
    wrong = [*_divergences(idata, names), *_chain_disagreement(posterior, names)]
    if requested is not None and requested.improper:
        wrong = [requested.improper, *wrong]
    if requested is not None and length < requested.draws:
        wrong = [f"interrupted after {length} of {requested.draws} draws a chain", *wrong]
    why = [requested.why] if requested is not None and requested.why else []
    status = "; ".join([*wrong, *why, solution.status])
    solution = replace(solution, converged=solution.converged and not wrong, status=status)
    warn_unless_converged(chosen, solution)
    each = step if draws is None else draws
    settings = {"hyper": "sample", "latent": list(form.form.latent_names), "chains": chains}
    return write_solution(
        model,
        form,
        chosen.name,
        solution,
        settings,
        {"compile_time": 0.0, "run_time": time.perf_counter() - began},
        (chains, each * len(range(0, length, step)), ""),
        random_seed,
        log_likelihood=log_likelihood,
        given={name: np.repeat(values, each, axis=1) for name, values in kept.items()},
        others={name: compat.group(idata, name) for name in compat.group_names(idata)},
    )


class _ChainRequest(NamedTuple):
    """Chains requested by `fit`.

    Attributes
    ----------
    draws : int
        Number of draws of each chain.
    why : str
        Reason why hyperparameters are sampled; empty if the user asked for it.
    improper : str
        Sentence on directions in which the density of the hyperparameters does not fall; empty without any.
    """

    draws: int
    why: str
    improper: str


def _divergences(idata: Container, names: Sequence[str]) -> list[str]:
    """Return a warning about NUTS's divergent transitions, if above `_MOST_DIVERGENT`; empty for other samplers."""
    stats = compat.group(idata, "sample_stats") if compat.has_group(idata, "sample_stats") else {}
    share = float(np.mean(stats["diverging"])) if "diverging" in stats else 0.0
    if share < _MOST_DIVERGENT:
        return []
    warning = (
        f"{share:.0%} of the transitions of {', '.join(names)} diverged, as where a posterior has a narrow end or, "
        f"under flat priors, is improper: give flat ones proper priors first, then sample with "
        f"sample_kwargs={{'target_accept': 0.95}}"
    )
    return [warning]


def _chain_disagreement(posterior: xr.Dataset, names: Sequence[str]) -> list[str]:
    """Return a warning about the hyperparameter of the largest R-hat, if above `_LEAST_RHAT`; empty for few draws."""
    if posterior.sizes["draw"] < _LEAST_DRAWS or posterior.sizes["chain"] < 2:
        return []
    worst = {name: compat.largest_rhat(posterior[name].transpose("chain", "draw", ...).to_numpy()) for name in names}
    name = max(worst, key=worst.__getitem__)
    if worst[name] < _LEAST_RHAT:
        return []
    what = f"disagree (R-hat {worst[name]:.2f})" if np.isfinite(worst[name]) else "do not move"
    warning = (
        f"chains of {name} {what}: sample longer, with hyper='sample', draws= and sample_kwargs=; where its prior is "
        f"flat or very wide, the posterior may be improper: give it a proper one first"
    )
    return [warning]
