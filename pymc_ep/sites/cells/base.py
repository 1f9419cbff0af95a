"""The interface of likelihoods of the cells of a matrix, and the registry of these likelihoods."""

from typing import Any, NamedTuple, Protocol, runtime_checkable

import numpy as np

from pymc_ep.exceptions import require_instance
from pymc_ep.sites.base import require_domain

__all__ = [
    "Anchor",
    "CellBound",
    "CellSite",
    "CurvedCellSite",
    "cell_site",
    "cell_site_names",
    "register_cell_site",
    "require_observations",
]

Anchor = tuple[np.ndarray, np.ndarray]
"""Mean and second statistic, see `CellSite`, of f, (n,) each, for which tangents and parabolas of the bound are best;
by default the ones at which the bound is evaluated."""


class CellBound(NamedTuple):
    """Terms of cells in a lower bound on the log evidence, with their derivatives.

    Attributes
    ----------
    value : ndarray, (n,)
        A lower bound on E log p(y | f), all constants included.
    of_mean, of_spread : ndarray, (n,)
        Its derivatives in E f and in the site's second statistic.
    of_parameters : tuple of ndarray, (n,)
        Its derivatives in the parameters, for the default anchor.
    """

    value: np.ndarray
    of_mean: np.ndarray
    of_spread: np.ndarray
    of_parameters: tuple[np.ndarray, ...] = ()


@runtime_checkable
class CellSite(Protocol):
    """A likelihood of cells: bounds on its expectation, its density, derivatives and tails.

    Attributes
    ----------
    parameters : tuple of str
        Names of the likelihood's parameters besides the predictor f.
    spread : {"log_mean_exp", "variance"}
        The second statistic of f: log E e^f or Var f.
    domain : {"count", "binary", "real"}
        Domain of the observations, as of a `pymc_ep.sites.Site`.
    """

    parameters: tuple[str, ...]
    spread: str
    domain: str

    @property
    def name(self) -> str:
        """Name of the likelihood."""

    @property
    def truncated(self) -> bool:
        """True if the likelihood is truncated to y > 0."""

    def bounded(
        self, y: np.ndarray, mean: np.ndarray, spread: np.ndarray, *parameters: np.ndarray, anchor: Anchor | None = None
    ) -> CellBound:
        """Return the bound at the mean and second statistic of f, (n,) each, with the anchor's tangents and parabolas.

        These give the best bound at the anchor's statistics.
        """

    def log_density(self, y: np.ndarray, f: np.ndarray, *parameters: np.ndarray) -> np.ndarray:
        """Return log p(y | f), of the common shape of all arguments."""

    def peak(self, y: np.ndarray, *parameters: np.ndarray) -> np.ndarray:
        """Return the f that maximises p(y | f) without truncation; it may be infinite."""

    def slopes(self, y: np.ndarray, f: np.ndarray, *parameters: np.ndarray) -> tuple[np.ndarray, np.ndarray]:
        """Return d log p / df, and -d^2 log p / df^2 without truncation, which is an upper bound with truncation."""

    def above(self, y: np.ndarray, f: np.ndarray, *parameters: np.ndarray) -> np.ndarray:
        """Return P(Y > y | f), of the common shape of all arguments."""


@runtime_checkable
class CurvedCellSite(CellSite, Protocol):
    """A likelihood of cells with the second statistic Var f, and a bounded curvature of the log density."""

    def curvature(self, y: np.ndarray, *parameters: np.ndarray) -> tuple[np.ndarray, ...]:
        """Return the largest -d^2 log p(y | f) / df^2 over all f, (n,), and its derivatives in the parameters."""


class _Registered(NamedTuple):
    # A likelihood takes as many parameters as it has: a type of functions of any number would be unlike all of them.
    plain: Any
    truncated: Any


_SITES: dict[str, _Registered] = {}


def register_cell_site(name: str, plain: Any, truncated: Any = None) -> None:
    """Register a likelihood of cells under the name of a site, so that bilinear models can have this likelihood.

    Parameters
    ----------
    name : str
        Name of the site with the same likelihood; `pymc_ep.register_family` maps distributions and links to sites.
    plain : CellSite
        The likelihood without truncation.
    truncated : CellSite, optional
        The same likelihood truncated to y > 0, for `pymc.Truncated`.

    Raises
    ------
    TypeError
        For a name that is no string, a likelihood that lacks a part of `CellSite`, or a class in place of an instance.
    ValueError
        If the site has a likelihood of cells already.
    """
    require_instance("The name in register_cell_site", name, str, "give that of a site with the same likelihood")
    for likelihood in (plain,) if truncated is None else (plain, truncated):
        members = [member for member in (*CellSite.__annotations__, *vars(CellSite)) if member[0] != "_"]
        missing = [member for member in members if not hasattr(likelihood, member)]
        if missing or isinstance(likelihood, type):
            what = f"without {missing[0]!r}" if missing else "but a class; give an instance of it"
            raise TypeError(f"The likelihood of cells of {name!r} is {likelihood!r}, no CellSite {what}.")
    if name in _SITES:
        raise ValueError(f"The site {name!r} has a likelihood of cells already.")
    _SITES[name] = _Registered(plain, truncated)


def require_observations(site: CellSite, y: np.ndarray, name: str) -> None:
    """Raise `InvalidDataError` at the first observation of a variable outside the domain of its likelihood."""
    require_domain(y, "positive count" if site.truncated else site.domain, name, site.name)


def cell_site(name: str, *, truncated: bool) -> CellSite | None:
    """Return the likelihood of cells of a site, with zeros cut off if `truncated`; None where none is registered."""
    registered = _SITES.get(name)
    if registered is None:
        return None
    return registered.truncated if truncated else registered.plain


def cell_site_names() -> tuple[str, ...]:
    """Return the names of the sites with a likelihood of cells."""
    return tuple(_SITES)
