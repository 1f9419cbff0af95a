"""Diagnostics of a fit in one dataset: importance weights, tilted cumulants, verdict."""

import html
from collections.abc import Callable, Mapping
from functools import partial

import numpy as np
import pymc as pm
import xarray as xr
from scipy.special import ndtr

from pymc_ep.compat import Container
from pymc_ep.concurrency import one_at_a_time
from pymc_ep.contracts.posterior import JointDraws, Posterior, SitePosterior
from pymc_ep.diagnostics.verdict import verdict
from pymc_ep.diagnostics.weights import LEAST_DRAWS, importance
from pymc_ep.evidence.ep.cavities import cavities
from pymc_ep.evidence.ep.cumulants import all_cumulants, evidence_correction, non_gaussianity, why_no_correction
from pymc_ep.evidence.ep.repeats import repeats_at
from pymc_ep.evidence.ep.sweep import KNOWN, Kinds, group_slices
from pymc_ep.graphs.context import model_of
from pymc_ep.numerics.backend.namespace import on_host
from pymc_ep.predict.rebuild import own_predictions, single_posterior_of
from pymc_ep.results import fit_group, labelled, settings

__all__ = ["diagnose"]

_WORST = 10
"""Number of the least Gaussian sites that are listed."""
_DARK_SHARE = 0.5
"""Share of rectified counts with a predictor more likely below zero than above, beyond which there is a warning."""
_MANY, _FEW = 4000, 1000
"""Numbers of draws made here if the fit stored no densities: the default number of a whole fit where draws are cheap,
else of one chain. Only many draws show the tail of heavy weights: in a media-mix model the relative effective sample
size of the weights is 0.01 to 0.09 by 4000 draws, and 0.14 by 1000."""
_CHEAP, _BUDGET = 5e8, 5e10
"""Largest numbers of operations in factorisations for many draws, and for few: for 4000 draws of 50 values in one
block, a fifth of a second, or 1000 draws of 368, some five seconds."""
_CHEAP_LIKELIHOODS, _LIKELIHOODS = 1e7, 5e7
"""Most log likelihoods of many draws, 80 MB, and of few draws for cells of a matrix, 0.4 GB."""

Absent = dict[str, str]
"""Maps names of absent results to the reason."""


class Diagnosis(xr.Dataset):
    """Diagnostics of a fit, whose verdict is printed before its numbers."""

    __slots__ = ()

    def __repr__(self) -> str:
        """Return the verdict, then the text of the dataset."""
        return "\n\n".join(filter(None, [self.attrs.get("verdict"), super().__repr__()]))

    def _repr_html_(self) -> str:
        return f"<pre>{html.escape(self.attrs.get('verdict', ''))}</pre>{super()._repr_html_()}"


@one_at_a_time
def diagnose(idata: Container, model: pm.Model | None = None) -> xr.Dataset:
    """Return diagnostics of an approximation, with a verdict in words.

    There are two independent checks. Importance weights, of the exact joint density over the approximation at draws of
    the latter, test the whole approximation but fail in high dimension. Third and fourth cumulants of each site's
    tilted distribution show where the posterior is not Gaussian, and correct the evidence.

    Parameters
    ----------
    idata : arviz.InferenceData or xarray.DataTree
        Result of `pymc_ep.fit`, also one read back from disk.
    model : pymc.Model, optional
        The fitted model; by default the model of the context.

    Returns
    -------
    xarray.Dataset
        ``converged``, ``n_iter``, ``max_change``
            How EP ended.
        ``log_evidence``
            EP's, given the hyperparameters at their mode.
        ``log_weight`` (chain, draw), or (weighted_draw)
            log p - log q of each draw of the fit, or of draws made here where it stored no densities.
        ``pareto_k``
            Tail of the weights: below 0.7 they can be used, and the approximation is near; above, it is not, or the
            dimension is too high for the check (Vehtari, Simpson, Gelman, Yao and Gabry 2024). Absent where the weights
            are nearly equal, with an effective number of over nine tenths of the draws: the approximation is near.
        ``weights_ess``
            Effective number of draws behind a weighted mean.
        ``log_evidence_importance``, ``log_evidence_importance_mcse``
            Log of the mean weight, and its Monte Carlo standard error. Where the draws vary the hyperparameters, these
            are integrated out, prior included.
        ``log_evidence_gaussian``
            Only where the draws vary the hyperparameters: EP's evidence integrated over their Gaussian.
        ``importance_correction``
            ``log_evidence_importance`` minus EP's: ``log_evidence_gaussian`` if there is one, else ``log_evidence``.
        ``log_evidence_cumulant``, ``cumulant_correction``
            Log evidence corrected to second order in the tilted cumulants (Opper, Paquet and Winther 2013), and the
            correction: at the mode; or at all hyperparameters where these are integrated over, and then
            ``log_evidence`` is corrected as well.
        ``cumulant_shift``
            Only where hyperparameters are integrated over: largest shift of the mean of one by the correction, in
            standard deviations.
        ``<y>_skewness``, ``<y>_kurtosis``
            Standardised third and fourth cumulants of each site's tilted distribution; zero for a Gaussian.
        ``<y>_non_gaussianity``
            Divergence of the tilted distribution from the Gaussian that replaces it, in nats, to leading order in these
            cumulants.
        ``<y>_evidence_share``
            Share of each site in ``cumulant_correction``; with over 2000 predictors, NaN outside of a sample of 1000.
        ``<y>_dark``
            Only of rectified counts: posterior probability that the predictor is below zero, where all of its values
            explain a count of zero equally well.
        ``worst_variable``, ``worst_index``, ``worst_observed``, ``worst_non_gaussianity`` (worst_site)
            The least Gaussian sites: observed variable (or the variable whose potential it is), position in it in C
            order, observation, and divergence.

        Bilinear models have the weights alone: their predictors are not Gaussian, so that there are no cumulants.

        Results that cannot be computed, or would be meaningless, are absent; the attribute ``absent`` gives the
        reasons. The attribute ``verdict``, which is printed first, interprets the numbers, one line each, the worst
        first, with cures; ``status`` is EP's own sentence, and ``warning`` names variables about which the data are
        nearly uninformative, if any.

    Raises
    ------
    ValueError
        Where result and model do not belong together.
    UnsupportedModelError
        For averages over translated grids.
    """
    model = model_of(model)
    fit = fit_group(idata)
    predictions = own_predictions(idata, model)
    scalars = {name: fit[name] for name in ("converged", "n_iter", "log_evidence") if name in fit}
    if fit.sizes.get("iteration"):
        scalars["max_change"] = fit["max_change"].isel(iteration=-1, drop=True)
    if predictions is not None:
        posterior = predictions.rebuild(idata, model)
        form = posterior.form.form
        weights, absent = _weights(fit, partial(_drawn, posterior, _LIKELIHOODS))
        absent |= {"cumulants": predictions.no_cumulants(form)}
        attrs = {"status": str(fit.attrs["status"]), "absent": _sentence(absent), "warning": ""}
        how = settings(idata)["hyper"]
        attrs["verdict"] = verdict(weights, fit, how, form.hyper_names, posterior.unknowns, held=False)
        return Diagnosis({**scalars, **weights}, attrs=attrs)
    posterior = single_posterior_of(idata, model)
    weights, absent = _weights(
        fit, partial(_drawn, posterior), _log_volume(posterior) if len(posterior.directions) else None
    )
    sites, correction, absent_pairs = _sites(idata, model, fit, posterior)
    dark, warning = _dark(model, posterior)
    if "cumulant_correction" in fit:
        # An integration over the hyperparameters has corrected the evidence at each fit.
        scalars |= {name: fit[name] for name in ("cumulant_correction", "cumulant_shift")}
        scalars["log_evidence_cumulant"] = fit["log_evidence"]
    elif correction is not None:
        scalars["cumulant_correction"] = xr.DataArray(correction)
        if "log_evidence" in fit:
            scalars["log_evidence_cumulant"] = fit["log_evidence"] + correction
    attrs = {"status": str(fit.attrs["status"]), "absent": _sentence(absent | absent_pairs), "warning": warning}
    diagnostics = xr.merge([xr.Dataset({**scalars, **weights}), sites, dark], combine_attrs="drop")
    how, names = settings(idata)["hyper"], posterior.form.form.hyper_names
    attrs["verdict"] = verdict(diagnostics, fit, how, names, posterior.unknowns, held=posterior.held, warning=warning)
    return Diagnosis(diagnostics.data_vars, diagnostics.coords, attrs)


def _drawn(posterior: Posterior, most: float = np.inf) -> JointDraws:
    """Return draws with their densities; without any where `_FEW` draws have more than `most` log likelihoods."""
    n = sum(y.size for y in posterior.form.observed())
    if n * _FEW > most:
        reason = f"{_FEW} log likelihoods of every cell are too many; fit with log_likelihood=True"
        return JointDraws({}, {}, left_out=reason)
    draws = partial(posterior.draws, rng=np.random.default_rng(0), log_likelihood=True)
    # One draw tells whether the posterior has a density at all.
    if (single := draws(1, budget=_BUDGET)).log_p is None:
        return single
    if n * _MANY <= _CHEAP_LIKELIHOODS and (many := draws(_MANY, budget=_CHEAP)).log_p is not None:
        return many
    return draws(_FEW, budget=_BUDGET)


def _sentence(absent: Mapping[str, str]) -> str:
    """Return one text with the names of the absent results, grouped by reason."""
    names: dict[str, list[str]] = {}
    for name, reason in absent.items():
        names.setdefault(reason, []).append(name)
    return "; ".join(f"{', '.join(those)}: {reason}" for reason, those in names.items())


def _weights(
    fit: xr.Dataset, drawn: Callable[[], JointDraws], log_volume: float | None = None
) -> tuple[dict[str, xr.DataArray], Absent]:
    """Return summaries of the importance weights of the fit's draws, or else of `drawn()`, and the absent summaries.

    `log_volume` is `_log_volume` of the posterior if the draws vary the hyperparameters.
    """
    names = ("pareto_k", "weights_ess", "log_evidence_importance", "importance_correction")
    if "log_p" in fit and "log_q" in fit:
        log_weight = fit["log_p"] - fit["log_q"]
    else:
        draws = drawn()
        if draws.log_p is None or draws.log_q is None:
            return {}, dict.fromkeys(names, draws.left_out)
        log_weight = xr.DataArray(draws.log_p - draws.log_q, dims="weighted_draw")
    values = log_weight.to_numpy().ravel()
    if values.size < LEAST_DRAWS:
        return {"log_weight": log_weight}, dict.fromkeys(names, f"fewer than {LEAST_DRAWS} draws")
    if not np.isfinite(values).any():
        return {"log_weight": log_weight}, dict.fromkeys(names, "the model gives every draw the density zero")
    summary = importance(values)
    out = {
        "log_weight": log_weight,
        "weights_ess": summary.ess,
        "log_evidence_importance": summary.log_mean,
        "log_evidence_importance_mcse": summary.mcse,
    }
    log_evidence = float(fit["log_evidence"])
    if log_volume is not None:
        log_evidence += log_volume
        out["log_evidence_gaussian"] = log_evidence
    out["importance_correction"] = summary.log_mean - log_evidence
    absent = {}
    if summary.pareto_k is None:
        relative = summary.ess / values.size
        absent["pareto_k"] = (
            f"weights are nearly equal (relative effective sample size {relative:.2f}): no tail to look at"
        )
    else:
        out["pareto_k"] = summary.pareto_k
    return {name: xr.DataArray(value) for name, value in out.items()}, absent


def _log_volume(posterior: SitePosterior) -> float:
    """Return the log of the hyperparameters' prior density at the mode times the volume (2 pi)^(p/2) |Sigma|^(1/2)."""
    log_prior = float(posterior.form.rows.log_prior(posterior.theta[None])[0])
    p = len(posterior.directions)
    # Sigma = D^T D with D the directions, so that |Sigma|^1/2 = |D|.
    return log_prior + 0.5 * p * np.log(2 * np.pi) + float(np.linalg.slogdet(posterior.directions)[1])


def _sites(
    idata: Container, model: pm.Model, fit: xr.Dataset, posterior: SitePosterior
) -> tuple[xr.Dataset, float | None, Absent]:
    """Return each site's cumulants and divergence, the correction of the log evidence they give, and absent results."""
    theta, prior, gaussian = posterior.mode
    repeats = repeats_at(posterior.form, theta, prior)
    problem = repeats.problem(prior)
    sites = repeats.together(posterior.shift), repeats.together(posterior.precision)
    if repeats.any:
        gaussian = on_host(problem.prior).posterior(np.asarray(problem.mean), *sites)
    mean, variance, *_ = cavities(gaussian, sites[1], 1.0, joint=Kinds.of(repeats.sites).joint(problem.observed))
    observed = posterior.form.observed()
    slices = group_slices([y.ravel() for y in observed])
    skewness, kurtosis = all_cumulants(repeats.sites, problem.observed, problem.parameters, mean, variance)
    information = non_gaussianity(skewness, kurtosis)
    indicators = {
        "skewness": repeats.each(skewness),
        "kurtosis": repeats.each(kurtosis),
        "non_gaussianity": repeats.each(information),
    }
    power = settings(idata).get("power", 1.0) if fit.attrs["method"] == "ep" else 0.0
    reason = why_no_correction(posterior.form, float(power), len(mean))
    if of_several := [factor.name for factor in posterior.form.form.factors if factor.site.predictors > 1]:
        reason = f"{of_several[0]!r} has several predictors, whose sites have no indicators of their own"
    if not bool(fit["converged"]):
        reason = "the fit did not converge, and the expansion is about what it converges to"
    correction = None
    if not reason:
        rows = problem.prior.posterior_rows(gaussian)
        expansion = evidence_correction(skewness, kurtosis, np.asarray(gaussian.variance), rows)
        reason = expansion.diverges
        if not reason:
            indicators["evidence_share"], correction = repeats.shared(expansion.shares), expansion.total
    first_rows = _first_rows(posterior)
    indicators = {what: values[first_rows] for what, values in indicators.items()}
    names = [group.name for group in posterior.form.form.groups]
    variables = {
        f"{name}_{what}": (name, values[group_slice].reshape(y.shape))
        for name, y, group_slice in zip(names, observed, slices)
        for what, values in indicators.items()
    }
    factors = [factor.name for factor in posterior.form.form.factors]
    worst = _worst_sites(dict(zip(factors, observed)), indicators["non_gaussianity"])
    absent = dict.fromkeys(("cumulant_correction", "log_evidence_cumulant"), reason) if reason else {}
    return xr.merge([labelled(model, variables), worst], combine_attrs="drop"), correction, absent


def _first_rows(posterior: SitePosterior) -> np.ndarray:
    """Return the row of each observation's first predictor, (n,)."""
    slices = group_slices(posterior.form.residuals())
    return np.concatenate(
        [group_slice.start + np.arange(y.size) for group_slice, y in zip(slices, posterior.form.observed())]
    )


def _dark(model: pm.Model, posterior: SitePosterior) -> tuple[xr.Dataset, str]:
    """Return P(predictor < 0) of each rectified count, and a warning if most of these are above 1/2.

    Below zero the rate of the count is zero.
    """
    form, (_, _, gaussian) = posterior.form, posterior.mode
    # The variance of a known predictor is zero, or negative by rounding.
    sd = np.sqrt(np.maximum(np.asarray(gaussian.variance), KNOWN))
    # P(eta < 0) = Phi(-m / V^1/2).
    below = ndtr(-np.asarray(gaussian.mean) / sd)[_first_rows(posterior)]
    observed = form.observed()
    variables, sentences = {}, []
    for group, y, group_slice in zip(form.form.groups, observed, group_slices([y.ravel() for y in observed])):
        if group.options.get("zero_mass"):
            variables[f"{group.name}_dark"] = group.name, below[group_slice].reshape(y.shape)
            count = int(np.count_nonzero(below[group_slice] > 0.5))
            if count > _DARK_SHARE * y.size:
                sentences.append(
                    f"the predictor of {group.name!r} is more likely below zero than above at {count} of {y.size} "
                    f"observations, where any such value explains a count of zero: what is said of "
                    f"{', '.join(map(repr, form.form.latent_names))} there, of its level and of its scales, is mostly "
                    f"the prior. Look at {group.name}_intensity, use zero_mass=False, add a known background, or give "
                    f"level and scales informative priors"
                )
    return labelled(model, variables), "; ".join(sentences)


def _worst_sites(observed: Mapping[str, np.ndarray], values: np.ndarray) -> xr.Dataset:
    """Return the `_WORST` sites with the largest `values`, (n,), largest first; `observed` is by variable name."""
    names = np.repeat(list(observed), [y.size for y in observed.values()])
    index = np.concatenate([np.arange(y.size) for y in observed.values()])
    data = np.concatenate([np.ravel(y) for y in observed.values()])
    order = np.argsort(-values, kind="stable")[:_WORST]
    columns = {"variable": names, "index": index, "observed": data, "non_gaussianity": values}
    return xr.Dataset({f"worst_{name}": ("worst_site", column[order]) for name, column in columns.items()})
