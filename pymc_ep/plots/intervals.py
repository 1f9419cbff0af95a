"""Intervals of posteriors that bands and forests draw."""

from typing import NamedTuple

import numpy as np
import xarray as xr
from scipy.special import ndtri

from pymc_ep.compat import Container, group, has_group
from pymc_ep.results import hyper_modes, posterior_moments, settings

__all__ = ["LEVELS", "Intervals", "hyper_names", "intervals_of", "labels_of"]

LEVELS = (0.05, 0.25, 0.5, 0.75, 0.95)
"""Ends of the intervals of 90% and 50%, and the median."""


class Intervals(NamedTuple):
    """A centre and the ends of two intervals, each with the variable's dims."""

    low: xr.DataArray
    lower: xr.DataArray
    middle: xr.DataArray
    upper: xr.DataArray
    high: xr.DataArray


def hyper_names(container: Container) -> list[str]:
    """Return the names of the hyperparameters of a fit."""
    return list(hyper_modes(container))


def intervals_of(source: Container | xr.Dataset, name: str) -> Intervals:
    """Return the intervals of a variable of a fit, or of a result of `pymc_ep.predict`.

    Where a posterior is Gaussian given the hyperparameters, they are those of the normal with its moments; otherwise,
    as of hyperparameters, of the draws.

    Raises
    ------
    ValueError
        Where there are neither moments nor draws of the variable.
    """
    if isinstance(source, xr.Dataset):
        return _predicted(source, name)
    drawn = has_group(source, "posterior") and name in group(source, "posterior")
    means, sds = (posterior_moments(source, what) for what in ("mean", "sd"))
    if drawn and (name not in sds or name in hyper_names(source)):
        draws = group(source, "posterior")[name].transpose("chain", "draw", ...)
        return _from_quantiles(
            np.quantile(draws.to_numpy(), LEVELS, axis=(0, 1)), draws.isel(chain=0, draw=0, drop=True)
        )
    if name not in sds:
        raise ValueError(
            f"The fit has neither moments nor draws of {name!r}; it has moments of "
            f"{', '.join(map(repr, settings(source)['latent']))} and what is affine in these."
        )
    return _normal(means[name], sds[name])


def _predicted(found: xr.Dataset, name: str) -> Intervals:
    """Return the intervals of predictions, by their quantiles or else their moments."""
    quantiles = found.get(f"{name}_quantile")
    if quantiles is not None:
        missing = [level for level in LEVELS if not np.isclose(quantiles["quantile"], level).any()]
        if missing:
            raise ValueError(f"The predictions of {name!r} lack the quantile {missing[0]}; ask for {LEVELS}.")
        order = [int(np.argmin(np.abs(quantiles["quantile"].to_numpy() - level))) for level in LEVELS]
        return Intervals(*(quantiles.isel(quantile=k, drop=True) for k in order))
    if f"{name}_mean" not in found:
        raise ValueError(f"There are no predictions of {name!r}, but of {', '.join(map(repr, map(str, found)))}.")
    return _normal(found[f"{name}_mean"], found[f"{name}_sd"])


def _normal(mean: xr.DataArray, sd: xr.DataArray) -> Intervals:
    return Intervals(*(mean + float(ndtri(level)) * sd for level in LEVELS))


def _from_quantiles(values: np.ndarray, like: xr.DataArray) -> Intervals:
    return Intervals(*(like.copy(data=part) for part in values))


def labels_of(values: xr.DataArray, name: str) -> list[str]:
    """Return a label of each element in C order, with its coordinates."""
    if not values.ndim:
        return [name]
    places = [[_short_label(label) for label in values[dim].to_numpy()] for dim in values.dims]
    return [f"{name}[{', '.join(place[i] for place, i in zip(places, index))}]" for index in np.ndindex(values.shape)]


def _short_label(label: object) -> str:
    return f"{label:.6g}" if isinstance(label, float | np.floating) else str(label)
