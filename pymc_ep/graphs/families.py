"""Sites by PyMC distribution and link: a site is the likelihood of an observation as a function of its predictor.

Links are recognised by value, not by graph pattern: the distribution's parameter is evaluated at several values of the
affine predictor and compared with each known link. PyMC and PyTensor have many graphs for one link, and releases
differ; the values agree.
"""

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any, NamedTuple

import numpy as np
import pytensor.tensor as pt
import scipy.special
from pymc.distributions.continuous import AsymmetricLaplace
from pymc.distributions.distribution import SymbolicRandomVariable
from pytensor.tensor.random.basic import (
    BernoulliRV,
    BetaRV,
    BinomialRV,
    ExponentialRV,
    GammaRV,
    LaplaceRV,
    NegBinomialRV,
    NormalRV,
    PoissonRV,
    StudentTRV,
)
from pytensor.tensor.random.op import RandomVariable
from pytensor.tensor.variable import TensorVariable

from pymc_ep.distributions.rectified_poisson import RectifiedPoisson
from pymc_ep.distributions.softplus_poisson import SoftplusPoisson
from pymc_ep.exceptions import require_instance

__all__ = ["LINKS", "Family", "Link", "family_of", "register_family", "site_names"]


class Link(NamedTuple):
    """Map from the predictor eta to a parameter of a distribution.

    Attributes
    ----------
    inverse : callable
        ``inverse(eta, *site_parameters)``, on arrays: the distribution's parameter.
    forward : callable, optional
        ``forward(parameter, *site_parameters)``, on graphs: eta. It is needed for models whose predictor differs from
        eta by an offset free of latent variables, such as the log of an exposure.
    sign : float
        -1 where the model's predictor is minus the site's, eta: `inverse` then takes -eta, and `forward` returns -eta.
    """

    inverse: Callable[..., np.ndarray]
    forward: Callable[..., TensorVariable] | None = None
    sign: float = 1.0


LINKS: dict[str, Link] = {
    "identity": Link(lambda x, *_: x),
    "exp": Link(lambda x, *_: np.exp(x), lambda p, *_: pt.log(p)),
    "reciprocal exp": Link(lambda x, *_: np.exp(-x), lambda p, *_: -pt.log(p), -1.0),
    "softplus": Link(lambda x, *_: np.logaddexp(0.0, x)),
    "rectified linear": Link(lambda x, *_: np.maximum(x, 0.0)),
    "logistic": Link(lambda x, *_: scipy.special.expit(x), lambda p, *_: pt.log(p) - pt.log1p(-p)),
    "probit": Link(lambda x, *_: scipy.special.ndtr(x)),
    # p = 1 - exp(-exp(eta)), hence eta = log(-log(1 - p)).
    "complementary log-log": Link(lambda x, *_: -np.expm1(-np.exp(x)), lambda p, *_: pt.log(-pt.log1p(-p))),
}
"""Links, by the name of the inverse link, which gives the distribution's parameter as a function of eta."""


@dataclass(frozen=True)
class Family:
    """Map from one PyMC distribution to its sites.

    Attributes
    ----------
    predictor : int
        Position, among the distribution's parameters, of the one that depends on eta by the link.
    links : dict of str to str
        Name of the site, by the name of the link between eta and that parameter.
    parameters : dict of str to int or callable
        Each site parameter, by name and in the site's order: its position among the distribution's parameters, or a
        function that takes all of these, as graphs, and returns it.
    options : callable
        Takes the random variable's Op, returns the static options of the site.
    own_links : dict of str to Link
        Links of this family alone, by name; they take precedence over `LINKS`.
    carriers : tuple of int
        Positions of all parameters that depend on the predictor.
    """

    predictor: int
    links: dict[str, str]
    parameters: dict[str, int | Callable[..., TensorVariable]]
    options: Callable[[Any], dict[str, Any]]
    own_links: dict[str, Link]
    carriers: tuple[int, ...]

    def link(self, name: str) -> Link:
        """Return the link of that name, of this family or else of `LINKS`."""
        return self.own_links.get(name) or LINKS[name]

    def site_parameters(self, parameters: Sequence[TensorVariable]) -> list[TensorVariable]:
        """Return the graphs of the site's parameters from the graphs of the distribution's."""
        return [p(*parameters) if callable(p) else parameters[p] for p in self.parameters.values()]


_FAMILIES: dict[type, Family] = {}
"""Registered families by type of the random variable's Op."""


def register_family(
    op_type: type,
    *,
    predictor: int,
    links: dict[str, str],
    parameters: dict[str, int | Callable[..., TensorVariable]] | None = None,
    options: Callable[[Any], dict[str, Any]] | None = None,
    own_links: dict[str, Link] | None = None,
    carriers: tuple[int, ...] | None = None,
) -> None:
    """Register the sites of a PyMC distribution, one for each link.

    Parameters
    ----------
    op_type : type
        Type of the distribution's random variable Op, such as ``pm.Gumbel.rv_type``. The attribute is None where a
        distribution is made of another, as pm.ChiSquared is of a gamma. Then give the type of the other's Op:
        ``type(pm.ChiSquared.dist(3).owner.op)``.
    predictor : int
        Position, among the distribution's parameters, of the one that depends on the predictor eta by the link.
    links : dict of str to str
        Name of the site, by the name of the link between eta and that parameter, one of `LINKS` or of `own_links`.
    parameters : dict of str to int or callable, optional
        Each site parameter, by name and in the site's order: its position among the distribution's parameters, or a
        function that takes all of these, as graphs, and returns the graph of the site parameter.
    options : callable, optional
        Takes the Op of a random variable, returns the static options of the site.
    own_links : dict of str to Link, optional
        Links of this distribution alone, such as those that depend on site parameters.
    carriers : tuple of int, optional
        Positions of all parameters that depend on the predictor, where there are several. A function in `parameters`
        must then express the constraint between them; its value is checked to be constant in eta.

    Raises
    ------
    TypeError
        Where `op_type` is no type of a random variable's Op, `predictor` no integer, or `links` no dict.
    ValueError
        Where a link is unknown.
    """
    if not (isinstance(op_type, type) and issubclass(op_type, RandomVariable | SymbolicRandomVariable)):
        raise TypeError(
            f"op_type={op_type!r} is no type of a random variable's Op; give the attribute rv_type of the "
            f"distribution, as in pm.Weibull.rv_type. Where that is None, as of pm.ChiSquared, it is made of others, "
            f"and type(pm.ChiSquared.dist(3).owner.op) is the type."
        )
    require_instance("The predictor in register_family", predictor, int, "give the position of a parameter of the Op")
    require_instance("The links in register_family", links, dict, "give names of sites by names of links")
    family_links = own_links or {}
    unknown = sorted(set(links) - set(LINKS) - set(family_links))
    if unknown:
        raise ValueError(f"No link is named {unknown[0]!r}; there are {', '.join(LINKS)}.")
    _FAMILIES[op_type] = Family(
        predictor, links, parameters or {}, options or (lambda op: {}), family_links, carriers or (predictor,)
    )


def family_of(rv: TensorVariable) -> Family | None:
    """Return the family of a random variable, or None where its distribution has no site."""
    return next((_FAMILIES[t] for t in type(rv.owner.op).__mro__ if t in _FAMILIES), None)


def site_names() -> list[tuple[str, str, str]]:
    """Return (distribution, link, name of site) for each link of the registered families, and of other likelihoods."""
    registered = [
        (op_type.__name__.removesuffix("RV"), link, site)
        for op_type, family in _FAMILIES.items()
        for link, site in family.links.items()
    ]
    categories = [("Categorical", f"ordered {noise}", f"ordered_{noise}") for noise in ("logit", "probit")]
    categories += [("Categorical", "softmax", "categorical"), ("Multinomial", "softmax", "multinomial")]
    return [*registered, *categories, ("any other, of scalars", "any, elementwise", "quadrature of its log density")]


register_family(
    PoissonRV,
    predictor=0,
    links={"exp": "poisson", "softplus": "softplus_poisson", "rectified linear": "rectified_poisson"},
)
register_family(
    BernoulliRV, predictor=0, links={"logistic": "logit", "probit": "probit", "complementary log-log": "cloglog"}
)
register_family(
    BinomialRV,
    predictor=1,
    links={
        "logistic": "binomial_logit",
        "probit": "binomial_probit",
        "complementary log-log": "binomial_cloglog",
    },
    parameters={"n": 0},
)
# PyMC's NegativeBinomial(mu, alpha) has the Op's parameters n = alpha and p = alpha / (alpha + mu).
register_family(
    NegBinomialRV,
    predictor=1,
    links={"exp": "negative_binomial"},
    parameters={"alpha": 0},
    own_links={
        "exp": Link(
            lambda x, alpha: alpha / (alpha + np.exp(x)), lambda p, alpha: pt.log(alpha) + pt.log1p(-p) - pt.log(p)
        )
    },
)
# The Ops take the scale: the mean of an exponential, that of a gamma over its shape.
register_family(ExponentialRV, predictor=0, links={"exp": "exponential", "reciprocal exp": "exponential"})
register_family(
    GammaRV,
    predictor=1,
    links={"exp": "gamma", "reciprocal exp": "gamma"},
    parameters={"alpha": 0},
    own_links={
        "exp": Link(lambda x, alpha: np.exp(x) / alpha, lambda p, alpha: pt.log(p * alpha)),
        "reciprocal exp": Link(lambda x, alpha: np.exp(-x) / alpha, lambda p, alpha: -pt.log(p * alpha), -1.0),
    },
)
# PyMC's Beta(mu, nu) has the Op's parameters mu nu and (1 - mu) nu, whose sum is free of the predictor.
register_family(
    BetaRV,
    predictor=0,
    links={"logistic": "beta"},
    parameters={"nu": lambda a, b: a + b},
    own_links={"logistic": Link(lambda x, nu: nu * scipy.special.expit(x), lambda a, nu: pt.log(a) - pt.log(nu - a))},
    carriers=(0, 1),
)
register_family(NormalRV, predictor=0, links={"identity": "normal"}, parameters={"sigma": 1})
register_family(LaplaceRV, predictor=0, links={"identity": "laplace"}, parameters={"b": 1})
register_family(
    AsymmetricLaplace.rv_type, predictor=2, links={"identity": "asymmetric_laplace"}, parameters={"b": 0, "kappa": 1}
)
register_family(StudentTRV, predictor=1, links={"identity": "student_t"}, parameters={"nu": 0, "sigma": 2})
register_family(
    RectifiedPoisson.rv_type,
    predictor=0,
    links={"identity": "rectified_poisson"},
    options=lambda op: {"zero_mass": op.zero_mass},
)
register_family(SoftplusPoisson.rv_type, predictor=0, links={"identity": "softplus_poisson"})
