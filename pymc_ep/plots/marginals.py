"""Marginal posteriors of elements of variables, by one fit or several, for plots of bands, forests and densities."""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
import scipy
import xarray as xr
from scipy.special import ndtri

from pymc_ep.compat import Container, density_of_draws, group, has_group
from pymc_ep.results import (
    hyper_modes,
    posterior_moments,
    require_dims,
    selected,
    selected_names,
    settings,
)

__all__ = ["Levels", "Marginal", "fits_of", "hyper_names", "labels_of", "levels_of", "marginals_of", "percent"]

_ENOUGH = 1000
"""Number of draws from which on quantiles come from draws: the ends of a 90% interval then have an error of 0.07
standard deviations. By the normal, their error is 0.28 standard deviations times the skewness of the posterior."""
_REACH = 4.0
"""Standard deviations on either side of the mean of a normal density."""
_POINTS = 201
"""Points of the line of a normal density."""
_CI_PROBS = (0.5, 0.9)
"""Probabilities of intervals by default."""


@dataclass(frozen=True)
class Levels:
    """Intervals that are drawn: their probabilities, the widest first, and ``"eti"`` or ``"hdi"``."""

    probs: tuple[float, ...]
    kind: str

    def __str__(self) -> str:
        return f"intervals of {' and '.join(map(percent, self.probs[::-1]))}"


def percent(prob: float) -> str:
    """Return a probability in per cent."""
    return f"{100 * prob:.3g}%"


def levels_of(ci_probs: Sequence[float] | None, ci_kind: str | None, hdi_prob: float | None = None) -> Levels:
    """Return the intervals for the arguments `ci_probs` and `ci_kind` of ArviZ 1, or `hdi_prob` of ArviZ 0.x.

    Raises
    ------
    ValueError
        For an unknown kind, and for probabilities not between zero and one.
    """
    if hdi_prob is not None:
        if ci_probs is not None or ci_kind not in (None, "hdi"):
            raise ValueError("hdi_prob= is ArviZ 0.x's name of ci_probs= and ci_kind='hdi'; give either.")
        ci_probs, ci_kind = sorted({0.5, hdi_prob}), "hdi"
    kind = "eti" if ci_kind is None else ci_kind
    if kind not in ("eti", "hdi"):
        raise ValueError(f"ci_kind={ci_kind!r} must be 'eti', with equal tails, or 'hdi', of the highest density.")
    probs = np.atleast_1d(np.asarray(_CI_PROBS if ci_probs is None else ci_probs, dtype=float))
    if not probs.size or not ((probs > 0) & (probs < 1)).all():
        raise ValueError(f"ci_probs={ci_probs} must be probabilities between 0 and 1, such as (0.5, 0.9).")
    return Levels(tuple(sorted(map(float, probs), reverse=True)), kind)


@dataclass(frozen=True)
class Marginal:
    """Marginal posteriors of the elements of a variable.

    Attributes
    ----------
    name : str
        Name of the variable.
    like : xarray.DataArray
        An array with the dims and coordinates of the elements.
    places : ndarray, (elements,)
        Positions of the elements among all elements of the variable, in C order.
    draws : xarray.DataArray, optional
        Draws, (chain, draw, *dims), from which intervals and densities are computed. Without draws, they are computed
        from the normal with `mean` and `sd`.
    mean, sd : xarray.DataArray, optional
        Posterior moments, (*dims).
    quantiles : xarray.DataArray, optional
        Quantiles of predictions, (quantile, *dims), which are used instead of draws and moments.
    """

    name: str
    like: xr.DataArray
    places: np.ndarray
    draws: xr.DataArray | None = None
    mean: xr.DataArray | None = None
    sd: xr.DataArray | None = None
    quantiles: xr.DataArray | None = None

    @property
    def labels(self) -> list[str]:
        """Labels of the elements, in C order."""
        return labels_of(self.like, self.name)

    @property
    def middle(self) -> np.ndarray:
        """Medians, with the variable's shape."""
        return self._at(0.5)

    def interval(self, prob: float, kind: str) -> tuple[np.ndarray, np.ndarray]:
        """Return the ends of the intervals of a probability, each with the variable's shape.

        Parameters
        ----------
        prob : float
        kind : {"eti", "hdi"}
            With equal tails, or the narrowest. For a normal these are the same.

        Raises
        ------
        ValueError
            For predictions that lack the quantiles at the ends, and for ``"hdi"`` of predictions with quantiles.
        """
        if kind == "eti" or (self.draws is None and self.quantiles is None):
            return self._at(0.5 - prob / 2), self._at(0.5 + prob / 2)
        if self.draws is None:
            raise ValueError(f"The predictions of {self.name!r} have quantiles, which make no ci_kind='hdi'.")
        ordered = np.sort(_flat(self.draws), axis=0)
        inside = min(int(prob * len(ordered)), len(ordered) - 1)
        first = np.argmin(ordered[inside:] - ordered[: len(ordered) - inside], axis=0)
        ends = (np.take_along_axis(ordered, (first + k)[None], axis=0)[0] for k in (0, inside))
        low, high = (end.reshape(self.like.shape) for end in ends)
        return low, high

    def _at(self, level: float) -> np.ndarray:
        """Return the quantiles of a level, with the variable's shape."""
        if self.quantiles is not None:
            levels = self.quantiles["quantile"].to_numpy()
            if not np.isclose(levels, level).any():
                raise ValueError(
                    f"The predictions of {self.name!r} lack the quantile {level:.6g}; ask for it by quantiles=."
                )
            return self.quantiles.isel(quantile=int(np.argmin(np.abs(levels - level)))).to_numpy()
        if self.draws is not None:
            return np.quantile(_flat(self.draws), level, axis=0).reshape(self.like.shape)
        assert self.mean is not None and self.sd is not None, "a marginal without draws has moments"
        return self.mean.to_numpy() + float(ndtri(level)) * self.sd.to_numpy()

    def densities(self) -> list[tuple[np.ndarray, np.ndarray]]:
        """Return, for each element, points and densities there, (m,) each: ArviZ's kernel estimate, or the normal.

        An element without variance has one point, its value, and an empty density, (0,).
        """
        if self.draws is not None:
            return [_density(element) for element in _flat(self.draws).T]
        assert self.mean is not None and self.sd is not None, "densities are asked of fits"
        steps = np.linspace(-_REACH, _REACH, _POINTS)
        return [
            (mean + sd * steps, scipy.stats.norm.pdf(steps) / sd) if sd > 0 else (np.array([mean]), np.zeros(0))
            for mean, sd in zip(np.ravel(self.mean), np.ravel(self.sd))
        ]


def _flat(draws: xr.DataArray) -> np.ndarray:
    """Return draws as (chains times draws, elements)."""
    values = draws.transpose("chain", "draw", ...).to_numpy()
    return values.reshape(values.shape[0] * values.shape[1], -1)


def _density(draws: np.ndarray) -> tuple[np.ndarray, np.ndarray]:
    return (draws[:1], np.zeros(0)) if np.ptp(draws) == 0 else density_of_draws(draws)


def fits_of(idata: Any, model_names: Sequence[str] | None = None) -> dict[str, Any]:
    """Return fits by name: a dict as it is; a list under `model_names` or "fit 1", "fit 2" and so on; one fit under "".

    Raises
    ------
    ValueError
        For no fits, and for another number of names than of fits.
    """
    if isinstance(idata, dict):
        fits = dict(idata)
    else:
        given = list(idata) if isinstance(idata, list | tuple) else [idata]
        usual = [""] if len(given) == 1 else [f"fit {k + 1}" for k in range(len(given))]
        names = usual if model_names is None else [model_names] if isinstance(model_names, str) else list(model_names)
        if len(names) != len(given):
            raise ValueError(f"model_names= has {len(names)} names, and there are {len(given)} fits.")
        fits = dict(zip(names, given))
    if not fits:
        raise ValueError("There is no fit to draw; give one, or a dict of several by name.")
    return fits


def marginals_of(
    fits: Mapping[str, Any],
    var_names: str | Sequence[str] | None,
    filter_vars: str | None = None,
    coords: Mapping[str, Any] | None = None,
    *,
    default: str = "latent",
) -> dict[str, dict[str, Marginal]]:
    """Return the marginals of variables, by name of the variable and name of the fit, for all fits that have them.

    Intervals and densities come from draws where there are at least 1000 of these, or no moments, and always for
    hyperparameters; otherwise from the normal with the moments.

    Parameters
    ----------
    fits : mapping
        Results of `pymc_ep.fit`, `pymc_ep.predict` or `pymc.sample` by name.
    var_names, filter_vars, coords
        Selection of variables and elements, as in ArviZ.
    default : {"latent", "hyper"}
        Variables that are selected without `var_names` and `filter_vars`.

    Raises
    ------
    ValueError
        Where no fit has a variable that `var_names` selects.
    """
    if var_names is None and filter_vars is None:
        first = next((fit for fit in fits.values() if _fitted(fit)), None)
        if first is not None:
            var_names = settings(first)["latent"] if default == "latent" else hyper_names(first)
    names = [name for fit in fits.values() for name in _known(fit)]
    marginals: dict[str, dict[str, Marginal]] = {}
    for name in selected_names(names, var_names, filter_vars):
        marginals[name] = {label: _marginal(fit, name, coords) for label, fit in fits.items() if name in _known(fit)}
    require_dims(coords, (marginal.like for several in marginals.values() for marginal in several.values()))
    return marginals


def _fitted(source: Any) -> bool:
    return not isinstance(source, xr.Dataset) and hasattr(source, "groups") and has_group(source, "fit")


def _known(source: Any) -> list[str]:
    """Return the names of variables with draws, moments or predictions."""
    if isinstance(source, xr.Dataset):
        of_quantiles = [str(name).removesuffix("_quantile") for name in source if str(name).endswith("_quantile")]
        return [*(str(name).removesuffix("_mean") for name in source if str(name).endswith("_mean")), *of_quantiles]
    drawn = group(source, "posterior") if hasattr(source, "groups") and has_group(source, "posterior") else {}
    if drawn and not _fitted(source):
        return list(map(str, drawn))
    return [*map(str, drawn), *map(str, posterior_moments(source, "sd"))]


def _marginal(source: Any, name: str, coords: Mapping[str, Any] | None) -> Marginal:
    if isinstance(source, xr.Dataset):
        quantiles = source.get(f"{name}_quantile")
        if quantiles is None:
            return _of_elements(name, coords, mean=source[f"{name}_mean"], sd=source[f"{name}_sd"])
        return _of_elements(name, coords, quantiles=quantiles.transpose("quantile", ...))
    drawn = group(source, "posterior") if has_group(source, "posterior") else xr.Dataset()
    means, sds = (posterior_moments(source, what) if _fitted(source) else {} for what in ("mean", "sd"))
    if name in drawn:
        draws = drawn[name].transpose("chain", "draw", ...)
        enough = draws.sizes["chain"] * draws.sizes["draw"] >= _ENOUGH
        if enough or name not in sds or name in hyper_names(source):
            return _of_elements(name, coords, draws=draws)
    return _of_elements(name, coords, mean=means[name], sd=sds[name])


def _of_elements(name: str, coords: Mapping[str, Any] | None, **values: xr.DataArray) -> Marginal:
    """Return the marginals of the elements that `coords` select."""
    first = next(iter(values.values()))
    like = first.isel({dim: 0 for dim in ("chain", "draw", "quantile") if dim in first.dims}, drop=True)
    every = like.copy(data=np.arange(like.size).reshape(like.shape))
    chosen = {what: selected(array, coords) for what, array in values.items()}
    places = selected(every, coords)
    return Marginal(name, places, np.ravel(places.to_numpy()), **chosen)


def hyper_names(container: Container) -> list[str]:
    """Return the names of the hyperparameters of a fit."""
    return list(hyper_modes(container))


def labels_of(values: xr.DataArray, name: str) -> list[str]:
    """Return a label of each element in C order, the name with the element's coordinates, such as "f[3, a]"."""
    if not values.ndim:
        return [name]
    places = [[_short_label(label) for label in values[dim].to_numpy()] for dim in values.dims]
    return [f"{name}[{', '.join(place[i] for place, i in zip(places, index))}]" for index in np.ndindex(values.shape)]


def _short_label(label: object) -> str:
    return f"{label:.6g}" if isinstance(label, float | np.floating) else str(label)
