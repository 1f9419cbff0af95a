"""The contract of a site: one univariate factor t(eta) of a model, and the registry of all sites.

A site is written once, as PyTensor graphs of its log density and, where a stable closed form
exists, of its tilted moments. `pymc_ep.sites.compiled` turns either into a function of arrays,
for the CPU (C or Numba, whichever the stack uses) or for JAX; engines see only that function.
"""

from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from typing import Any, NamedTuple

import numpy as np

from pymc_ep.exceptions import InvalidDataError

__all__ = ["Site", "Tilted", "get_site", "register_site", "sites"]


class Tilted(NamedTuple):
    """Moments of the normalised density proportional to ``N(f; m, v) t(f)**power``.

    All fields have the broadcast shape of the arguments.
    """

    log_z: Any
    """log of the integral of ``N(f; m, v) t(f)**power``."""
    mean: Any
    variance: Any
    gradient: Any
    """d log_z / d m, which is (mean - m) / v computed without that difference."""
    precision: Any
    """1 / variance - 1 / v computed without that difference; negative where t is not log-concave."""

    @property
    def shift(self) -> Any:
        """mean / variance - m / v: the linear natural parameter of the Gaussian that replaces t**power."""
        return self.gradient + self.precision * self.mean


@dataclass(frozen=True)
class Site:
    """One univariate factor t(eta; y, parameters).

    Attributes
    ----------
    name : str
        Name in the registry and in `pymc_ep.tilted_moments`.
    parameters : tuple of str
        Names of the site parameters, in the order in which the functions below take them.
    domain : str
        ``"count"``, ``"binary"`` or ``"real"``: what an observation may be.
    log_concave : bool
        Whether t is log-concave in eta for every y; engines then rely on positive site precisions.
    logp : callable
        ``logp(y, eta, *parameters)``: PyTensor graph of log t.
    tilted : callable, optional
        ``tilted(y, mean, variance, power, *parameters)``: PyTensor graphs, as a `Tilted`, of the closed
        form. Without it the moments come from quadrature of `logp`.
    any_power : bool
        Whether the closed form holds for every power in (0, 1]; otherwise for one only, and quadrature does the rest.
    knots : callable, optional
        ``knots(y, *parameters)``: a sequence of arrays in eta at which quadrature panels must break, because
        the site's own scale lives there however wide the cavity is. Called with arrays, not graphs. Where t is not
        log-concave the first knot is its maximum.
    knots_beyond : float
        Width in eta of an interval of integration up to which panels need not break at the knots.
    nodes : int
        Quadrature nodes in each panel.
    options : dict
        Static keyword options of the functions above with their values, for example ``zero_mass``.
    """

    name: str
    parameters: tuple[str, ...]
    domain: str
    log_concave: bool
    logp: Callable[..., Any]
    tilted: Callable[..., Tilted] | None = None
    any_power: bool = True
    knots: Callable[..., Sequence[Any]] | None = None
    knots_beyond: float = 0.0
    nodes: int = 24
    options: dict[str, Any] = field(default_factory=dict, hash=False)

    def validate(self, y: np.ndarray, name: str) -> None:
        """Raise `InvalidDataError` at the first observation outside the domain.

        Parameters
        ----------
        y : ndarray
            Observations.
        name : str
            Name of the observed variable, for the message.
        """
        check, wanted = _DOMAINS[self.domain]
        with np.errstate(invalid="ignore"):
            bad = ~check(np.asarray(y))
        if bad.any():
            index = tuple(int(i) for i in np.argwhere(bad)[0])
            value = np.asarray(y)[index]
            where = f" at index {index[0] if len(index) == 1 else index}" if index else ""
            raise InvalidDataError(
                f"{name!r} has the value {value}{where}, but a {self.name} site takes {wanted}. "
                f"Correct or remove that observation."
            )

    def validate_parameters(self, values: Sequence[np.ndarray], name: str) -> None:
        """Raise `InvalidDataError` at the first parameter that is not positive and finite.

        Parameters
        ----------
        values : sequence of ndarray
            In the order of `parameters`.
        name : str
            Name of the observed variable, for the message.
        """
        for parameter, value in zip(self.parameters, values, strict=True):
            value = np.asarray(value)
            bad = ~((value > 0) & np.isfinite(value))
            if bad.any():
                index = tuple(int(i) for i in np.argwhere(bad)[0])
                where = f" at index {index[0] if len(index) == 1 else index}" if index else ""
                raise InvalidDataError(
                    f"{name!r} has the parameter {parameter} = {value[index]}{where}, but it must be positive and "
                    f"finite. Correct it."
                )


_DOMAINS: dict[str, tuple[Callable[[np.ndarray], np.ndarray], str]] = {
    "count": (lambda y: np.isfinite(y) & (y >= 0) & (y == np.floor(y)), "non-negative whole counts"),
    "binary": (lambda y: (y == 0) | (y == 1), "zeros and ones"),
    "real": (np.isfinite, "finite numbers"),
}

_REGISTRY: dict[str, Site] = {}


def register_site(site: Site) -> Site:
    """Add a site to the registry, under its own name, and return it.

    Raises
    ------
    ValueError
        When another site has that name.
    """
    if site.name in _REGISTRY:
        raise ValueError(f"A site named {site.name!r} is registered already; choose another name.")
    _REGISTRY[site.name] = site
    return site


def get_site(name: str) -> Site:
    """Return the site registered under `name`; a ValueError lists the names there are."""
    try:
        return _REGISTRY[name]
    except KeyError:
        raise ValueError(f"No site is named {name!r}; there are {', '.join(sorted(_REGISTRY))}.") from None


def sites() -> dict[str, Site]:
    """Return all registered sites by name."""
    return dict(_REGISTRY)
