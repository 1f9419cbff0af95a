"""The contract of a site: one univariate factor t(eta) of a model, and the registry of all sites.

A site is written once, as PyTensor graphs of its log density and, where a stable closed form
exists, of its tilted moments. `pymc_ep.sites.compiled` compiles these graphs to functions of
arrays, for the CPU (C or Numba, by PyTensor's default) or for JAX. Engines call only these functions.
"""

from collections.abc import Callable, Sequence
from dataclasses import dataclass, field, fields
from typing import Any, NamedTuple

import numpy as np
from numpy.typing import ArrayLike

from pymc_ep.exceptions import InvalidDataError, at_index, did_you_mean, first_index, require_instance

__all__ = [
    "Relation",
    "Response",
    "Site",
    "SuperGaussian",
    "Tilted",
    "first_outside",
    "get_site",
    "register_site",
    "require_domain",
    "sites",
]


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
    """1 / variance - 1 / v computed without that difference; it may be negative if t is not log-concave."""

    @property
    def shift(self) -> Any:
        """mean / variance - m / v: the linear natural parameter of the Gaussian that replaces t**power."""
        # With V the variance: mean / V - m / v = (mean - m) / v + (1 / V - 1 / v) mean.
        return self.gradient + self.precision * self.mean


class Relation(NamedTuple):
    """Joint condition on an observation and the parameters of its site."""

    holds: Callable[..., np.ndarray]
    """``holds(y, *parameters)``: True where the constraint is met."""
    wanted: str
    """The condition in words, for the message."""


class Response(NamedTuple):
    """Mean and variance of an observation given its predictor."""

    mean: Callable[..., np.ndarray]
    """``mean(eta, *parameters)``, for arrays: non-decreasing in eta, and independent of estimated parameters."""
    variance: Callable[..., np.ndarray]
    """``variance(eta, *parameters)``, for arrays; infinite where the observation has no finite variance."""


@dataclass(frozen=True)
class SuperGaussian:
    """Super-Gaussian form of a site: ``log t(eta) = slope * eta + g((eta - centre)**2)``, a maximum over Gaussians.

    With g convex and decreasing, its tangent at any x > 0 gives a Gaussian that lies below t everywhere and touches t
    where ``(eta - centre)**2 = x`` (Palmer et al. 2006). All functions return PyTensor graphs, with the constants of t
    included.

    Attributes
    ----------
    centre, slope : callable
        Functions of ``(y, *parameters)``.
    log_at : callable
        ``log_at(y, x, *parameters)``: g(x).
    precision : callable
        ``precision(y, x, *parameters)``: ``-2 g'(x)``, the precision of the Gaussian at x > 0.
    """

    centre: Callable[..., Any]
    slope: Callable[..., Any]
    log_at: Callable[..., Any]
    precision: Callable[..., Any]


def _standard_normal(y: Any, *parameters: Any) -> tuple[float, float]:
    return 0.0, 1.0


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
        Domain of the observations: ``"count"``, ``"positive count"``, ``"integer"``, ``"ordinal"``, ``"binary"``,
        ``"real"``, ``"non-negative"``, ``"positive"`` or ``"unit interval"`` (open at both ends).
    parameter_domains : tuple of str
        Domain of each parameter: one of the domains of observations, or ``"extended real"`` (infinities included).
        Empty if all are positive.
    relation : Relation, optional
        Joint constraint on an observation and the parameters.
    check : callable, optional
        ``check(name, y, values)``, which raises `InvalidDataError` for parameters outside a range that depends on more
        than one of them; `name` is the observed variable.
    holds_observations : bool
        True if t contains the model's observations, in its graph or in parameters, so that t is no density of new ones.
    interpreted : bool
        True if NumPy runs the graphs op by op unless a mode is given. For densities that occur in one model only, where
        compilation would take longer than the fit.
    gaussian : bool
        True if t is Gaussian in eta for every y: its Gaussian replacement is then t itself, for any cavity.
    located : bool
        True if t depends on ``y - eta`` and parameters alone, so that y and eta may be shifted by the same constant.
    additive : tuple of str, optional
        Names of parameters. Log t, but for a term free of eta, is affine in y and these parameters, so that several
        observations of one predictor that agree in all other parameters can be replaced by their number and averages.
        None where log t is not affine; for observations of zeros and ones it always is.
    takes_averages : bool
        True if the functions of an additive site for whole numbers also accept their averages as observations.
    log_concave : bool
        True if t is log-concave in eta for every y; engines then rely on positive site precisions.
    analytic : bool
        True if log t is analytic in eta: it has neither kinks nor jumps, nor pieces joined by derivatives alone. Fewer
        quadrature nodes are then enough for the same accuracy.
    kinked : bool
        True if log t has a kink or jump in eta for some y, so that its second derivative need not exist at a mode.
    vanishes : bool
        True if t is zero at some eta for some y, so that its expected log is minus infinity under a Gaussian eta.
    logp : callable
        ``logp(y, eta, *parameters)``: PyTensor graph of log t.
    tilted : callable, optional
        ``tilted(y, mean, variance, power, *parameters)``: PyTensor graphs, as a `Tilted`, of the closed
        form. Without it the moments come from quadrature of `logp`.
    any_power : bool
        True if the closed form holds for every power in (0, 1]; False if for power one only, with quadrature for the
        others.
    knots : callable, optional
        ``knots(y, *parameters)``: a sequence of arrays, values of eta at which quadrature panels must break because t
        has a scale of its own there, however wide the cavity is. Called with arrays, not graphs. Where t is not
        log-concave the first knot is its maximum; without knots, peaks and scales are searched for, at some cost.
    peaks : callable, optional
        ``peaks(y, mean, variance, power, *parameters)``: location and width, as arrays, of each maximum of the tilted
        density, for a t with knots that is not log-concave. Panels break about maxima that the knots do not resolve.
    outermost_peaks : callable, optional
        ``outermost_peaks(y, mean, variance, power, *parameters)``, for a t with `peaks`: five arrays, the least and the
        largest stationary point of the tilted density, the widths of both peaks, and the distance of the nearest
        poles of t from the real axis.
    knots_beyond : float
        Largest width in eta of an interval of integration whose panels need not break at the knots.
    nodes : int
        Quadrature nodes in each panel.
    super_gaussian : SuperGaussian, optional
        Super-Gaussian form of t, for bounds by Gaussians of varying precision.
    curvature_bound : callable, optional
        ``curvature_bound(y, *parameters)``: graph of an upper bound on ``-d^2 log t / d eta^2`` over all eta, for
        bounds by Gaussians of that precision.
    typical : callable
        ``typical(y, *parameters)``: mean and variance, as arrays, of a rough Gaussian approximation of t in eta: the
        start of a fit without a Gaussian prior. Standard normal by default.
    intensity : callable, optional
        ``intensity(mean, variance)``, for arrays: the expected rate under a Gaussian eta. Only for rates that are
        neither affine nor exponential in an eta that may be negative.
    response : Response, optional
        Mean and variance of an observation given eta, for predictions on the scale of the observations.
    options : dict
        Static keyword options of the functions above and their values, for example ``zero_mass``.
    """

    name: str
    parameters: tuple[str, ...]
    domain: str
    log_concave: bool
    logp: Callable[..., Any]
    tilted: Callable[..., Tilted] | None = None
    any_power: bool = True
    knots: Callable[..., Sequence[Any]] | None = None
    peaks: Callable[..., Sequence[tuple[Any, Any]]] | None = None
    outermost_peaks: Callable[..., Sequence[Any]] | None = None
    knots_beyond: float = 0.0
    nodes: int = 24
    super_gaussian: SuperGaussian | None = None
    curvature_bound: Callable[..., Any] | None = None
    typical: Callable[..., tuple[Any, Any]] = _standard_normal
    intensity: Callable[[Any, Any], Any] | None = None
    parameter_domains: tuple[str, ...] = ()
    relation: Relation | None = None
    check: Callable[[str, ArrayLike, Sequence[ArrayLike]], None] | None = None
    holds_observations: bool = False
    interpreted: bool = False
    gaussian: bool = False
    located: bool = False
    additive: tuple[str, ...] | None = None
    takes_averages: bool = False
    analytic: bool = False
    kinked: bool = False
    vanishes: bool = False
    response: Response | None = None
    options: dict[str, Any] = field(default_factory=dict, hash=False)

    def __reduce__(self) -> tuple[Any, ...]:
        """Pickle a registered site by its name, so that its functions need not be picklable."""
        if _REGISTRY.get(self.name) is self:
            return get_site, (self.name,)
        return _site_of, (type(self), {f.name: getattr(self, f.name) for f in fields(self)})

    @property
    def scanned(self) -> bool:
        """True if quadrature must search for the peaks and scales of t: it is not log-concave and has no knots."""
        return not self.log_concave and self.knots is None

    @property
    def has_bound(self) -> bool:
        """True if a Gaussian lower bound on t is known."""
        return self.super_gaussian is not None or self.curvature_bound is not None

    @property
    def predictors(self) -> int:
        """Number of predictors of an observation."""
        return 1

    @property
    def coupled(self) -> bool:
        """True if the moments of one predictor depend on the cavities of others; such sites are updated together."""
        return False

    def validate(self, y: np.ndarray, name: str) -> None:
        """Raise `InvalidDataError` at the first observation outside the domain.

        Parameters
        ----------
        y : ndarray
            Observations.
        name : str
            Name of the observed variable, for the message.
        """
        require_domain(np.asarray(y), self.domain, name, self.name)

    def validate_parameters(self, values: Sequence[ArrayLike], name: str, y: ArrayLike | None = None) -> None:
        """Raise `InvalidDataError` at the first parameter outside its domain, or in conflict with its observation.

        Parameters
        ----------
        values : sequence of array_like
            Parameters, in the order of `parameters`.
        name : str
            Name of the observed variable, for the message.
        y : array_like, optional
            Observations, of a shape that the parameters broadcast against; without them `relation` is not checked.
        """
        domains = self.parameter_domains or ("positive",) * len(self.parameters)
        for parameter, domain, value in zip(self.parameters, domains, values, strict=True):
            outside = first_outside(value, domain)
            if outside is not None:
                number, where, wanted = outside
                raise InvalidDataError(
                    f"{name!r} has the parameter {parameter} = {number}{where}, but it must be {wanted}. Correct it."
                )
        if y is None:
            return
        if self.check is not None:
            self.check(name, y, values)
        if self.relation is None:
            return
        holds = np.asarray(self.relation.holds(np.asarray(y), *(np.asarray(value) for value in values)))
        if not holds.all():
            index = first_index(~holds)
            of = [f"{k} = {np.broadcast_to(v, holds.shape)[index]}" for k, v in zip(self.parameters, values)]
            beside = f" with {', '.join(of)}" if of else ""
            raise InvalidDataError(
                f"{name!r} has the value {np.broadcast_to(y, holds.shape)[index]}{at_index(index)}{beside}, but a "
                f"{self.name} site takes {self.relation.wanted}. Correct {'one of them' if of else 'it'}."
            )


def _site_of(kind: type[Site], values: dict[str, Any]) -> Site:
    """Return the site of class `kind` with the pickled attributes `values`."""
    return kind(**values)


def require_domain(y: np.ndarray, domain: str, name: str, site: str) -> None:
    """Raise `InvalidDataError` at the first observation of a variable outside the domain of its site."""
    check, wanted, _ = _DOMAINS[domain]
    if (outside := _first_bad(y, check)) is not None:
        value, where = outside
        raise InvalidDataError(
            f"{name!r} has the value {value}{where}, but a {site} site takes {wanted}. Correct or remove that "
            f"observation."
        )


def first_outside(value: ArrayLike, domain: str) -> tuple[float, str, str] | None:
    """Return the first value outside a domain, with words for its index and for the domain; None without one."""
    check, _, wanted = _DOMAINS[domain]
    outside = _first_bad(np.asarray(value), check)
    return None if outside is None else (*outside, wanted)


def _first_bad(value: np.ndarray, check: Callable[[np.ndarray], np.ndarray]) -> tuple[float, str] | None:
    """Return the first value that fails a check and the words for its index; None if all pass."""
    with np.errstate(invalid="ignore"):
        bad = ~check(value)
    if not bad.any():
        return None
    index = first_index(bad)
    return value[index], at_index(index)


def _whole(y: np.ndarray) -> np.ndarray:
    return np.isfinite(y) & (y >= 0) & (y == np.floor(y))


_DOMAINS: dict[str, tuple[Callable[[np.ndarray], np.ndarray], str, str]] = {
    "count": (_whole, "non-negative whole counts", "a non-negative whole number"),
    "positive count": (
        lambda y: _whole(y) & (y >= 1),
        "whole counts of at least one, as zeros are cut off",
        "a positive whole number",
    ),
    "integer": (lambda y: np.isfinite(y) & (y == np.floor(y)), "whole numbers", "a whole number"),
    "ordinal": (_whole, "numbers of categories, counted from 0", "the number of a category"),
    "binary": (lambda y: (y == 0) | (y == 1), "zeros and ones", "zero or one"),
    "real": (np.isfinite, "finite numbers", "finite"),
    "extended real": (lambda y: ~np.isnan(y), "numbers, infinite ones included", "a number, finite or not"),
    "non-negative": (lambda y: np.isfinite(y) & (y >= 0), "finite numbers from 0 upwards", "finite and not negative"),
    "positive": (lambda y: np.isfinite(y) & (y > 0), "positive finite numbers", "positive and finite"),
    "unit interval": (lambda y: (y > 0) & (y < 1), "numbers between 0 and 1, without the ends", "between 0 and 1"),
}
"""Domains of observations and parameters, by name: a check, and the accepted values in words, for observations and for
one parameter."""

_REGISTRY: dict[str, Site] = {}


def register_site(site: Site) -> Site:
    """Add a site to the registry, under its own name, and return it.

    Raises
    ------
    TypeError
        If `site` is no `Site`, or its parameters are no tuple.
    ValueError
        When another site has that name, or a domain is unknown.
    """
    require_instance("The argument of register_site", site, Site, "give pymc_ep.sites.Site(name=..., logp=...)")
    require_instance(f"The parameters of {site.name!r}", site.parameters, tuple, "give a tuple of names, as ('nu',)")
    for domain in (site.domain, *site.parameter_domains):
        if domain not in _DOMAINS:
            raise ValueError(
                f"The site {site.name!r} has the domain {domain!r}; there are {', '.join(_DOMAINS)}."
                f"{did_you_mean(domain, _DOMAINS)}"
            )
    if site.name in _REGISTRY:
        raise ValueError(f"A site named {site.name!r} is registered already; choose another name.")
    _REGISTRY[site.name] = site
    return site


def get_site(name: str) -> Site:
    """Return the site registered under `name`; raise a ValueError that lists all names if there is none."""
    try:
        return _REGISTRY[name]
    except KeyError:
        raise ValueError(f"No site is named {name!r}; there are {', '.join(sorted(_REGISTRY))}.") from None


def sites() -> dict[str, Site]:
    """Return all registered sites by name."""
    return dict(_REGISTRY)
