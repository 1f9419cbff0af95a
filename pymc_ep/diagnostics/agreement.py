"""Agreement of an approximation with Markov chains, next to the Monte Carlo error of the chains."""

from collections.abc import Mapping, Sequence
from itertools import product
from typing import Any

import numpy as np
import pandas as pd
import scipy
import xarray as xr

from pymc_ep.compat import Container, group, has_group
from pymc_ep.exceptions import did_you_mean
from pymc_ep.results import posterior_moments, require_dims, selected, selected_names

__all__ = ["compare_to_mcmc", "flat_draws"]

_R_HAT, _LEAST_ESS = 1.01, 400.0
"""Bounds within which chains count as converged (Vehtari, Gelman, Simpson, Carpenter and Buerkner 2021)."""
_SAMPLE = ("chain", "draw")
"""Dims of draws."""


def compare_to_mcmc(
    idata: Container,
    idata_nuts: Container,
    var_names: str | Sequence[str] | None = None,
    *,
    filter_vars: str | None = None,
    coords: Mapping[str, Any] | None = None,
) -> pd.DataFrame:
    """Compare the marginal posteriors of a fit and of Markov chains, element by element.

    Parameters
    ----------
    idata : arviz.InferenceData or xarray.DataTree
        Result of `pymc_ep.fit`.
    idata_nuts : arviz.InferenceData or xarray.DataTree
        Result of `pymc.sample` for the same model, at the same hyperparameters where the fit held them fixed.
    var_names : str or sequence of str, optional
        By default all variables that both have. ``"~x"`` leaves x out.
    filter_vars : {None, "like", "regex"}
        Whether `var_names` are names, parts of names, or regular expressions, as in ArviZ.
    coords : mapping, optional
        Labels of the elements that are compared, by dim.

    Returns
    -------
    pandas.DataFrame
        A row for each element, labelled as in `arviz.summary`, with columns

        ``mean``, ``sd``
            Of the fit: exact moments of the approximation where the fit stored them, otherwise moments of its draws.
        ``mean_mcmc``, ``sd_mcmc``
        ``mean_difference``
            mean - mean_mcmc, over sd_mcmc.
        ``mean_mcse``
            Monte Carlo standard error of mean_mcmc, over sd_mcmc: a smaller difference is noise.
        ``sd_ratio``
            sd / sd_mcmc.
        ``sd_mcse``
            Monte Carlo standard error of sd_mcmc, over sd_mcmc.
        ``wasserstein``
            Wasserstein-1 distance of the draws of both, over sd_mcmc; only where the fit has draws. Two samples of 1000
            independent draws from one normal are on average 0.06 apart.
        ``r_hat``, ``ess_bulk``, ``ess_tail``
            Of the chains.
        ``mcmc_converged``
            Whether r_hat is at most 1.01 and both effective sample sizes are at least 400; False also for a single
            chain, for which r_hat is unknown. Where it is False, the row does not test the fit.

    Raises
    ------
    ValueError
        For a variable that the fit or the chains lack, or whose shapes in the two differ.
    """
    chains = _posterior(idata_nuts, "idata_nuts")
    draws = group(idata, "posterior") if has_group(idata, "posterior") else None
    names = _shared_names(idata, idata_nuts, var_names, filter_vars)
    moments = {name: _moments(idata, draws, name) for name in names}
    for name, (mean, _) in moments.items():
        shape = chains[name].transpose(*_SAMPLE, ...).shape[2:]
        if mean.shape != shape:
            raise ValueError(
                f"{name!r} has the shape {mean.shape} in the fit but {shape} in the chains; compare results of one "
                f"model."
            )
    require_dims(coords, [mean for mean, _ in moments.values()])
    chains = xr.Dataset({name: selected(chains[name], coords) for name in names})
    tables = []
    for name, mean_and_sd in moments.items():
        mean, sd = (selected(moment, coords) for moment in mean_and_sd)
        fit_draws = None if draws is None else selected(draws[name], coords)
        tables.append(_rows(name, (mean, sd), fit_draws, chains[name]))
    statistics = _mcmc_statistics(chains)
    for name, table in zip(names, tables):
        for column, values in statistics.items():
            table[column] = np.ravel(values[name].to_numpy())
        table["mean_mcse"] /= table["sd_mcmc"]
        table["sd_mcse"] /= table["sd_mcmc"]
    summary = pd.concat(tables)
    converged = (summary["r_hat"] <= _R_HAT) & (summary[["ess_bulk", "ess_tail"]].min(axis=1) >= _LEAST_ESS)
    columns = [c for c in _COLUMNS if c in summary]
    return summary[columns].assign(mcmc_converged=converged)


_COLUMNS = (
    *("mean", "mean_mcmc", "sd", "sd_mcmc", "mean_difference", "mean_mcse", "sd_ratio", "sd_mcse", "wasserstein"),
    *("r_hat", "ess_bulk", "ess_tail"),
)
"""Columns of the table, in order."""


def _shared_names(
    idata: Container, idata_nuts: Container, var_names: str | Sequence[str] | None, filter_vars: str | None
) -> list[str]:
    """Return the names of variables in both the fit and the chains; raise for a wanted one that either lacks."""
    chains = _posterior(idata_nuts, "idata_nuts")
    fit_names = set(map(str, posterior_moments(idata, "mean")))
    if has_group(idata, "posterior"):
        fit_names |= set(map(str, group(idata, "posterior").data_vars))
    both = [str(name) for name in chains.data_vars if name in fit_names]
    given = [var_names] if isinstance(var_names, str) else list(var_names or ())
    for name in given if filter_vars is None else ():
        if name.removeprefix("~") not in both and name not in both:
            lacking = "The fit has" if name in chains else "The chains have"
            raise ValueError(
                f"{lacking} no variable {name!r}; both have {', '.join(both) or 'none'}.{did_you_mean(name, both)}"
            )
    wanted = selected_names(both, var_names, filter_vars)
    if not wanted:
        raise ValueError("The fit and the chains have no variable in common; compare results of one model.")
    return wanted


def _posterior(container: Container, argument: str) -> xr.Dataset:
    if not has_group(container, "posterior"):
        raise ValueError(f"{argument}= has no group 'posterior'; pass what pymc.sample returned.")
    return group(container, "posterior")


def _moments(idata: Container, draws: xr.Dataset | None, name: str) -> tuple[xr.DataArray, xr.DataArray]:
    """Return mean and standard deviation under the approximation, as the fit stored them or from its draws."""
    means, sds = (posterior_moments(idata, what) for what in ("mean", "sd"))
    if name in means:
        return means[name], sds[name]
    assert draws is not None, "_shared_names has found the variable in one of the two"
    return draws[name].mean(_SAMPLE), draws[name].std(_SAMPLE)


def _rows(
    name: str, moments: tuple[xr.DataArray, xr.DataArray], draws: xr.DataArray | None, chains: xr.DataArray
) -> pd.DataFrame:
    """Return the table's columns of moments and distances for one variable, a row for each of its elements."""
    mean, sd = (np.ravel(moment.to_numpy()) for moment in moments)
    sample = flat_draws(chains)
    mean_mcmc, sd_mcmc = sample.mean(axis=1), sample.std(axis=1, ddof=1)
    table = pd.DataFrame({"mean": mean, "mean_mcmc": mean_mcmc, "sd": sd, "sd_mcmc": sd_mcmc}, index=_labels(chains))
    table["mean_difference"] = (mean - mean_mcmc) / sd_mcmc
    table["sd_ratio"] = sd / sd_mcmc
    if draws is not None:
        pairs = zip(flat_draws(draws), sample, sd_mcmc)
        table["wasserstein"] = [
            scipy.stats.wasserstein_distance(fit_draws, mcmc_draws) / scale for fit_draws, mcmc_draws, scale in pairs
        ]
    return table


def flat_draws(variable: xr.DataArray) -> np.ndarray:
    """Return the draws of each element of a variable, (elements, chains times draws), elements in C order."""
    values = variable.transpose(..., *_SAMPLE).to_numpy()
    return values.reshape(-1, values.shape[-2] * values.shape[-1])


def _labels(chains: xr.DataArray) -> list[str]:
    """Return labels such as ``f[1851]``, with coordinates where the dims have them."""
    dims = [dim for dim in chains.dims if dim not in _SAMPLE]
    if not dims:
        return [str(chains.name)]
    values = [chains[dim].to_numpy().tolist() for dim in dims]
    return [f"{chains.name}[{', '.join(map(str, index))}]" for index in product(*values)]


def _mcmc_statistics(chains: xr.Dataset) -> dict[str, xr.Dataset]:
    """Return the chains' diagnostics, by column of the table.

    The error of a standard deviation is the error of the mean squared deviation, over twice the standard deviation.
    """
    import arviz as az

    squares = (chains - chains.mean(_SAMPLE)) ** 2
    return {
        "mean_mcse": az.mcse(chains, method="mean"),
        "sd_mcse": az.mcse(squares, method="mean") / (2 * np.sqrt(squares.mean(_SAMPLE))),
        "r_hat": az.rhat(chains),
        "ess_bulk": az.ess(chains, method="bulk"),
        "ess_tail": az.ess(chains, method="tail"),
    }
