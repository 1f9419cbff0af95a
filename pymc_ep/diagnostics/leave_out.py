"""Leave-one-out and leave-group-out cross-validation by EP's cavities, in the form that `arviz.compare` takes."""

import warnings
from collections.abc import Sequence

import numpy as np
import pymc as pm
import xarray as xr
from numpy.typing import ArrayLike
from scipy.special import logsumexp

from pymc_ep.compat import Container, ElpdData, elpd_data, group, has_group
from pymc_ep.concurrency import one_at_a_time
from pymc_ep.contracts.posterior import SitePosterior
from pymc_ep.diagnostics.refits import log_densities_by_refits
from pymc_ep.engines.loop import run
from pymc_ep.engines.prior import Prior
from pymc_ep.evidence.ep.engine import EP
from pymc_ep.evidence.ep.repeats import RepeatedGroup, Repeats, repeats_at
from pymc_ep.evidence.ep.sweep import group_slices
from pymc_ep.evidence.mixtures import FEW, left_out_between, left_out_of_all
from pymc_ep.exceptions import ConvergenceWarning, at_index, first_index
from pymc_ep.graphs.context import model_of
from pymc_ep.numerics.gaussian.observation_space import DensePrior
from pymc_ep.predict.rebuild import posterior_of, require_fitted_data, single_posterior_of
from pymc_ep.results import fit_group
from pymc_ep.sites.rows_of_many import number_of_rows

__all__ = ["loo", "only_name", "weights_without"]

_LOO = "_loo"
"""Suffix of leave-one-out densities in the group ``fit``."""
_DRAWS = 1000
"""Draws made here if the fit stored no log likelihoods: the default number of draws a chain."""
_MAX_ITER = 200
"""Most iterations of EP on the observations of one group: the default of ``max_iter``."""
_DETERMINED = 1e-9
"""Ratio of the variance with a group's sites to the variance without them, in any direction of the predictors, up to
which the latter counts as infinite: it is then rounding of a difference of precisions."""


@one_at_a_time
def loo(
    idata: Container,
    model: pm.Model | None = None,
    *,
    var_name: str | None = None,
    groups: ArrayLike | None = None,
    refit: bool = True,
    progressbar: bool = True,
) -> ElpdData:
    """Return the expected log predictive density of left-out observations, for `arviz.compare`.

    EP's cavity is the posterior without one observation, so log p(y_i | y_-i) comes with the fit, without importance
    weights and their Pareto k, and also where draws have no density, as under a rectified likelihood.

    Parameters
    ----------
    idata : arviz.InferenceData or xarray.DataTree
        Result of `pymc_ep.fit`.
    model : pymc.Model, optional
        The fitted model. `groups` need one, by default the model of the context.
    var_name : str, optional
        The observed variable; may be left out where there is one only.
    groups : str or array_like, optional
        Leave out whole groups, as of all observations of a county: a label for each observation, or the name of a dim
        of the observed variable or of a `pymc.Data` with these labels. The log density of a group's observations given
        all others is by EP on the group alone, with the posterior without its sites as the prior. It is exact
        under Gaussian noise; otherwise the sites of other predictors stay as they were fitted with the group.
    refit : bool
        Whether, if there is a `model`, to fit it without each observation or group without which hyperparameters would
        be beyond their draws, such as an outlier. Its log density is then the difference of log evidences. Ctrl-C ends
        these fits, and what they did not reach is warned of.
    progressbar : bool
        Shown once these fits have taken two seconds.

    Returns
    -------
    arviz.ELPDData
        With pointwise values (``loo_i`` of ArviZ 0.x, ``elpd_i`` of ArviZ 1), one for each observation or group;
        ``se``, the standard error of their sum; and ``p_loo`` (``p``), the excess over their sum of the log predictive
        density of the same observations under draws of the posterior. These are the fit's draws, or 1000 made here if
        the fit has no log likelihoods and `model` is given; else ``p_loo`` is NaN. Where the fit mixes over
        hyperparameters, so do the pointwise values; with ``hyper="optimize"`` hyperparameters are at their mode.

    Warns
    -----
    ConvergenceWarning
        Where hyperparameters without an observation or a group would be beyond their draws, and there was no fit
        without it. The density can then be off by several nats.

    Raises
    ------
    ValueError
        Where there is no such variable, the data of `model` have changed since the fit, labels are not one for each
        observation, or an observation or group is all that determines its predictor, so that nothing predicts it.
    UnsupportedModelError
        With `groups`, for averages over translated grids and bilinear models.
    """
    fit = fit_group(idata)
    name = only_name(_loo_names(fit), var_name)
    pointwise, reached = fit[f"{name}{_LOO}"].rename(name), True
    model = None if groups is None and model is None else model_of(model)
    if model is not None:
        require_fitted_data(idata, model)
    in_sample = _draws_of_log_likelihood(idata, model, name)
    if groups is None:
        group_index, what = np.arange(pointwise.size), ("an observation", "observations")
        has_ess = (ess := f"{name}{_LOO}_ess") in fit
        few = (fit[ess] if has_ess else xr.ones_like(pointwise)).to_numpy().ravel() < FEW
    else:
        labels, group_index, dim = _grouped(idata, pointwise, groups)
        posterior, what = single_posterior_of(idata, model), ("a group", "groups")
        values, few, reached = _group_densities(posterior, name, group_index, len(labels))
        pointwise = xr.DataArray(values, dims=dim, coords={dim: labels}, name=name)
        in_sample = None if in_sample is None else _group_sums(in_sample, group_index, len(labels))
    if refit and model is not None:
        pointwise, few = _by_refits(idata, model, pointwise, few, group_index, progressbar=progressbar)
    if few.any():
        places = np.argwhere(few.reshape(pointwise.shape)) if groups is None else labels[few][:, None]
        _warn_of_few([", ".join(map(str, place)) for place in places], what[1])
    _require_predicted(pointwise, what[0])
    draws = 0 if in_sample is None else len(in_sample)
    excess = np.nan
    if in_sample is not None:
        # p_loo = sum_i (log mean_s p(y_i | draw s) - log p(y_i | y_-i)).
        excess = float((logsumexp(in_sample, axis=0) - np.log(draws)).sum() - pointwise.sum())
    return elpd_data(pointwise, excess, draws, warning=bool(few.any()) or not (reached and bool(fit["converged"])))


def only_name(names: Sequence[str], var_name: str | None) -> str:
    """Return the name of the one observed variable, or `var_name` if it is one; otherwise raise."""
    if not names:
        raise ValueError("The model has no observed variable, and terms of potentials have no scores of their own.")
    if var_name is None and len(names) > 1:
        raise ValueError(f"The model has several observed variables; pass var_name= as one of {', '.join(names)}.")
    name = names[0] if var_name is None else var_name
    if name not in names:
        raise ValueError(f"{name!r} is no observed variable with a site; these are {', '.join(names)}.")
    return name


def weights_without(log_weights: np.ndarray, log_predictives: np.ndarray) -> np.ndarray:
    """Return the weights of k components given all data but one of n parts, (k, n).

    The likelihood of the part is divided out: p(theta | y_-i) is proportional to p(theta | y) / p(y_i | y_-i, theta).

    Parameters
    ----------
    log_weights : ndarray, (k,)
        Log weights given all data.
    log_predictives : ndarray, (k, n)
        log p(y_i | y_-i, theta).
    """
    ratio = log_weights[:, None] - log_predictives
    return np.exp(ratio - logsumexp(ratio, axis=0))


def _loo_names(fit: xr.Dataset) -> list[str]:
    """Return the names of observed variables with leave-one-out densities in the fit; raise if there are none."""
    names = [name.removesuffix(_LOO) for name in map(str, fit) if name.endswith(_LOO)]
    if not names:
        raise ValueError(
            f"A fit by {fit.attrs['method']!r} has no cavities of observed variables in its result, and so no "
            f"leave-one-out densities; give az.loo a fit with draws, or compare log_predictive of observations that "
            f"were held out."
        )
    return names


def _draws_of_log_likelihood(idata: Container, model: pm.Model | None, name: str) -> np.ndarray | None:
    """Return log likelihoods, (s, n), of the fit's draws, or else of new draws if a model is given; else None."""
    if has_group(idata, "log_likelihood") and name in (kept := group(idata, "log_likelihood")):
        values = kept[name].transpose("chain", "draw", ...).to_numpy()
        return values.reshape(values.shape[0] * values.shape[1], -1)
    if model is None:
        return None
    posterior = posterior_of(idata, model, ())
    drawn = posterior.draws(_DRAWS, np.random.default_rng(0), log_likelihood=True).log_likelihood
    # A vector of correlated observations has no log likelihoods of its own.
    return drawn[name].reshape(_DRAWS, -1) if name in drawn else None


def _grouped(idata: Container, pointwise: xr.DataArray, groups: ArrayLike) -> tuple[np.ndarray, np.ndarray, str]:
    """Return the labels of the groups, the index of each observation's group, (n,), and the name of their dim."""
    name, shape = pointwise.name, pointwise.shape
    dim = groups if isinstance(groups, str) else f"{name}_group"
    if isinstance(groups, str) and groups in pointwise.dims:
        axis = pointwise.dims.index(groups)
        group_index = np.broadcast_to(
            np.expand_dims(np.arange(shape[axis]), [k for k in range(len(shape)) if k != axis]), shape
        )
        return pointwise[groups].to_numpy(), group_index.ravel(), groups
    if isinstance(groups, str):
        constants = group(idata, "constant_data") if has_group(idata, "constant_data") else {}
        if groups not in constants:
            raise ValueError(
                f"groups={groups!r} is neither a dim of {name!r} ({', '.join(map(str, pointwise.dims)) or 'none'}) nor "
                f"a pm.Data of the model; pass an array of labels, one for each observation, such as the index by "
                f"which observations take their effect."
            )
        groups = constants[groups].to_numpy()
    labels = np.asarray(groups)
    if labels.shape != shape:
        raise ValueError(
            f"groups= has labels of shape {labels.shape}, but {name!r} has observations of shape {shape}; pass one "
            f"label for each observation."
        )
    unique_labels, group_index = np.unique(labels.ravel(), return_inverse=True)
    return unique_labels, group_index, dim


def _group_sums(values: np.ndarray, group_index: np.ndarray, count: int) -> np.ndarray:
    """Return the sums over each group, (s, groups), of values (s, n)."""
    out = np.zeros((count, len(values)))
    np.add.at(out, group_index, values.T)
    return out.T


def _group_densities(
    posterior: SitePosterior, name: str, group_index: np.ndarray, count: int
) -> tuple[np.ndarray, np.ndarray, bool]:
    """Return log p(y_g | y_-g), (groups,), NaN for an improper cavity, and whether EP converged on all groups.

    The second result says, for each group, whether its value rests on few draws of the hyperparameters.
    """
    log_densities, weights, thetas, converged = [], [], [], True
    repeats = repeats_at(posterior.form, *posterior.mode[:2])
    k = [likelihood.name for likelihood in posterior.form.form.groups].index(name)
    for weight, component in posterior.components():
        values, all_converged = _given_hyperparameters(component, repeats.groups[k], k, group_index, count)
        log_densities.append(values)
        weights.append(weight)
        thetas.append(component.mode[0])
        converged &= all_converged
    by_component, draws = np.array(log_densities), posterior.hyper_draws
    out, few = np.full(count, np.nan), np.zeros(count, dtype=bool)
    proper = np.isfinite(by_component).all(axis=0)
    if len(draws):
        even = np.full(len(draws), 1.0 / len(draws))
        out[proper], ess = left_out_between(np.array(thetas), by_component[:, proper], draws, even)
    else:
        out[proper], ess = left_out_of_all(np.array(weights), by_component[:, proper])
    few[proper] = ess < FEW
    return out, few, converged


def _given_hyperparameters(
    posterior: SitePosterior, observations: RepeatedGroup, k: int, group_index: np.ndarray, count: int
) -> tuple[np.ndarray, bool]:
    """Return the result of `_group_densities` for one component of the posterior and observed variable number k."""
    _, prior, gaussian = posterior.mode
    observed = posterior.form.residuals()
    places = np.arange(sum(y.size for y in observed))[group_slices(observed)[k]]
    # Sites of several predictors have rows, (r n,), and parameters of each observation.
    each = number_of_rows(observations.single.site.predictors)
    first_rows = len(places) // each * np.arange(each)[:, None]
    covariance_of, converged, out = prior.gaussian.posterior_rows(gaussian), True, np.full(count, np.nan)
    for j in range(count):
        members = (first_rows + np.flatnonzero(group_index == j)).ravel()
        # Others with the same predictors share sites with the group: these are left out whole, and the others fitted
        # again, unless they alone make the cavity proper.
        sharing = np.flatnonzero(np.isin(observations.owner, observations.owner[members]))
        for subsets in ([sharing, np.setdiff1d(sharing, members)], [members]):
            at = places[subsets[0]]
            sites = posterior.shift[at], posterior.precision[at]
            cavity = _cavity(np.asarray(gaussian.mean)[at], covariance_of(at, at), *sites)
            if cavity is not None:
                break
        else:
            continue
        log_z = []
        for subset in filter(len, subsets):
            kept = np.searchsorted(subsets[0], subset)
            values = tuple(np.asarray(value)[subset[: len(subset) // each]] for value in prior.parameters[k])
            left_out = Repeats((observations.subset(subset),))
            fitted = Prior(cavity[0][kept], DensePrior(cavity[1][np.ix_(kept, kept)]), (values,), 0.0, 0.0)
            start = left_out.together(sites[0][kept]), left_out.together(sites[1][kept])
            ended = run(EP(left_out.sites), left_out.problem(fitted), start, max_iter=_MAX_ITER)
            log_z.append(ended.state.sweep.log_z)
            converged &= ended.status.converged
        # log Z of all that share sites, less log Z of these without the group.
        out[j] = log_z[0] - sum(log_z[1:])
    return out, converged


def _cavity(
    mean: np.ndarray, covariance: np.ndarray, shift: np.ndarray, precision: np.ndarray
) -> tuple[np.ndarray, np.ndarray] | None:
    """Return mean and covariance of a Gaussian divided by its Gaussian sites; None if the quotient is improper.

    With V = L L^T, possibly singular, (V^-1 - Pi)^-1 = L (I - L^T Pi L)^-1 L^T.
    """
    values, vectors = np.linalg.eigh(covariance)
    root = vectors * np.sqrt(np.maximum(values, 0.0))
    # I - L^T Pi L = Q Lambda Q^T, so that C = (L Q Lambda^-1/2) (L Q Lambda^-1/2)^T.
    left, axes = np.linalg.eigh(np.eye(len(mean)) - (root.T * precision) @ root)
    if left[0] <= _DETERMINED:
        return None
    wide = (root @ axes) / np.sqrt(left)
    covariance = wide @ wide.T
    # C (V^-1 m - b) = m + C (Pi m - b), as V^-1 = C^-1 + Pi.
    return mean + covariance @ (precision * mean - shift), covariance


def _by_refits(
    idata: Container,
    model: pm.Model,
    pointwise: xr.DataArray,
    few: np.ndarray,
    group_index: np.ndarray,
    *,
    progressbar: bool,
) -> tuple[xr.DataArray, np.ndarray]:
    """Return the log densities, by refits where parts rest on `few` draws, and which parts still rest on these."""
    parts = [np.flatnonzero(group_index == k) for k in np.flatnonzero(few)]
    by_refits, values = np.full(few.shape, np.nan), pointwise.to_numpy()
    by_refits[few] = log_densities_by_refits(idata, model, str(pointwise.name), parts, progressbar=progressbar)
    refitted = np.isfinite(by_refits)
    return pointwise.copy(data=np.where(refitted, by_refits, values.ravel()).reshape(values.shape)), few & ~refitted


def _warn_of_few(named: list[str], what: str) -> None:
    """Warn of the `named` observations, or groups, whose densities rest on few draws of the hyperparameters."""
    first = "; ".join(named[:3]) + ("; ..." if len(named) > 3 else "")
    warnings.warn(
        f"Without some {what} ({first}) the hyperparameters are elsewhere, where few of their draws are: the log "
        f"densities of these {what} may be off by whole nats. Give loo the model of a fit with hyper='integrate', "
        f"which it then fits without each of them; or do that yourself, and take the difference of log_evidence.",
        ConvergenceWarning,
        stacklevel=4,
    )


def _require_predicted(pointwise: xr.DataArray, what: str) -> None:
    """Raise ValueError for the first value that is not finite; `what` says whether it is an observation or a group."""
    bad = ~np.isfinite(pointwise.to_numpy())
    if bad.any():
        index = first_index(bad)
        labels = [pointwise[dim].to_numpy()[i] for dim, i in zip(pointwise.dims, index)]
        raise ValueError(
            f"Nothing predicts {what} of {pointwise.name!r}, that{at_index(index)} (labelled "
            f"{', '.join(map(str, labels))}): without it the posterior of its predictor is not proper. Give what it "
            f"alone determines a proper prior, or leave it out."
        )
