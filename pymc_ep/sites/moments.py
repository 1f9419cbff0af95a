"""Tilted moments of single sites, for direct use."""

from collections.abc import Callable, Mapping
from typing import Any

import numpy as np
from numpy.typing import ArrayLike
from pytensor.compile.mode import Mode

from pymc_ep.exceptions import at_index, first_index
from pymc_ep.numerics.backend.namespace import Array
from pymc_ep.sites.base import get_site
from pymc_ep.sites.compiled import check_finite, compile_site

__all__ = ["tilted_moments"]


def tilted_moments(
    family: str,
    y: ArrayLike,
    mean: ArrayLike,
    variance: ArrayLike,
    *,
    power: ArrayLike = 1.0,
    mode: Mode | str | None = None,
    **parameters: ArrayLike,
) -> tuple[Array, Array, Array]:
    """Return the moments of the density proportional to ``N(f; mean, variance) t(f; y, parameters)**power``.

    Parameters
    ----------
    family : str
        Name of a site: ``"rectified_poisson"``, ``"poisson"``, ``"softplus_poisson"``, ``"negative_binomial"``
        (``alpha``), ``"probit"``, ``"logit"``, ``"cloglog"``, ``"binomial_logit"``, ``"binomial_probit"``,
        ``"binomial_cloglog"`` (each ``n``), ``"ordered_logit"``, ``"ordered_probit"`` (``lower``, ``upper``),
        ``"exponential"``, ``"gamma"`` (``alpha``), ``"beta"`` (``nu``),
        ``"laplace"`` (y is the location, ``b`` the scale), ``"asymmetric_laplace"`` (``b``, ``kappa``),
        ``"student_t"`` (``nu``, ``sigma``), ``"normal"`` (``sigma``), or any other registered site.
    y : array_like
        Observations: counts, zeros and ones, or reals.
    mean, variance : array_like
        Moments of the Gaussian factor; variances are positive.
    power : array_like, default 1.0
        Power of the likelihood, in (0, 1].
    mode : PyTensor mode or str, optional
        Compile mode; with ``"JAX"`` the result consists of JAX arrays.
    **parameters
        Parameters of the site, as arrays, and its options such as ``zero_mass``.

    Returns
    -------
    log_z : ndarray
        Log of the integral of the product.
    mean, variance : ndarray
        Moments of the normalised product. All have the broadcast shape of the arguments.

    Raises
    ------
    ValueError
        For an unknown family or parameter, a variance that is not positive, or a power outside (0, 1].
    InvalidDataError
        For an observation or a parameter outside its domain.
    NumericalError
        When a result is not finite.
    """
    site = get_site(family)
    options: dict[str, Any] = {name: parameters.pop(name) for name in site.options if name in parameters}
    _check_names(site.name, site.parameters, parameters)
    values = [parameters[name] for name in site.parameters]
    site.validate(np.asarray(y), "y")
    _check_range("mean", mean, np.isfinite, "finite")
    _check_range("variance", variance, _positive, "positive and finite")
    _check_range("power", power, lambda p: (p > 0) & (p <= 1), "in (0, 1]")
    site.validate_parameters(values, family, y)
    tilted = compile_site(site, mode, **options).moments(y, mean, variance, power, *values)
    check_finite(tilted, y, mean, variance, family)
    return tilted.log_z, tilted.mean, tilted.variance


def _positive(value: np.ndarray) -> np.ndarray:
    return (value > 0) & np.isfinite(value)


def _check_names(family: str, wanted: tuple[str, ...], given: Mapping[str, ArrayLike]) -> None:
    """Raise a ValueError that names the first missing or unknown parameter."""
    takes = ", ".join(wanted) or "none"
    for name in given:
        if name not in wanted:
            raise ValueError(f"The site {family!r} has no parameter {name!r}; its parameters: {takes}.")
    for name in wanted:
        if name not in given:
            raise ValueError(f"The site {family!r} needs the parameter {name!r}: pass {name}=...; it takes: {takes}.")


def _check_range(name: str, value: ArrayLike, check: Callable[[np.ndarray], np.ndarray], wanted: str) -> None:
    """Raise a ValueError that names the first entry of an argument outside its range."""
    value = np.asarray(value, dtype=np.float64)
    good = check(value)
    if not good.all():
        index = first_index(~good)
        raise ValueError(f"{name!r} has the value {value[index]}{at_index(index)}, but it must be {wanted}.")
