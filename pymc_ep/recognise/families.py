"""Which PyMC distribution, under which link, is which site.

Links are told by value, not by pattern: the distribution's parameter is evaluated at several values of the
affine predictor and compared with each known link. PyMC and PyTensor write the same link in many ways, and
differently on either stack; its values stay the same.
"""

from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

import numpy as np
import scipy.special
from pytensor.tensor.random.basic import BernoulliRV, LaplaceRV, NormalRV, PoissonRV, StudentTRV
from pytensor.tensor.variable import TensorVariable

from pymc_ep.distributions.rectified_poisson import RectifiedPoisson
from pymc_ep.distributions.softplus_poisson import SoftplusPoisson

__all__ = ["LINKS", "Family", "family_of", "register_family", "site_names"]

LINKS: dict[str, Callable[[np.ndarray], np.ndarray]] = {
    "identity": lambda x: x,
    "exp": np.exp,
    "softplus": lambda x: np.logaddexp(0.0, x),
    "rectified linear": lambda x: np.maximum(x, 0.0),
    "logistic": scipy.special.expit,
    "probit": scipy.special.ndtr,
}
"""Inverse links: the distribution's parameter as a function of eta."""


@dataclass(frozen=True)
class Family:
    """How one PyMC distribution maps to sites.

    Attributes
    ----------
    predictor : int
        Position, among the distribution's parameters, of the one that carries eta.
    links : dict of str to str
        Site name by the name of the link that leads from eta to that parameter.
    parameters : dict of str to int
        Position of each site parameter among the distribution's parameters.
    options : callable
        Static site options read off the random variable's Op.
    """

    predictor: int
    links: dict[str, str]
    parameters: dict[str, int]
    options: Callable[[Any], dict[str, Any]]


_FAMILIES: dict[type, Family] = {}


def register_family(
    op_type: type,
    *,
    predictor: int,
    links: dict[str, str],
    parameters: dict[str, int] | None = None,
    options: Callable[[Any], dict[str, Any]] | None = None,
) -> None:
    """Say which sites a PyMC distribution has.

    Parameters
    ----------
    op_type : type
        Type of the distribution's random variable Op, ``Distribution.rv_type`` or ``type(Distribution.rv_op)``.
    predictor : int
        Position, among the distribution's parameters, of the one that carries eta.
    links : dict of str to str
        Site name by the name of the link, one of `LINKS`, that leads from eta to that parameter.
    parameters : dict of str to int, optional
        Position of each site parameter among the distribution's parameters, in the site's order.
    options : callable, optional
        Takes the Op, returns static options of the site.
    """
    unknown = sorted(set(links) - set(LINKS))
    if unknown:
        raise ValueError(f"No link is named {unknown[0]!r}; there are {', '.join(LINKS)}.")
    _FAMILIES[op_type] = Family(predictor, links, parameters or {}, options or (lambda op: {}))


def family_of(rv: TensorVariable) -> Family | None:
    """Return the family of a random variable, or None where its distribution has no site."""
    return next((_FAMILIES[t] for t in type(rv.owner.op).__mro__ if t in _FAMILIES), None)


def site_names() -> list[tuple[str, str, str]]:
    """Return (distribution, link, site) for all that is registered."""
    return [
        (op_type.__name__.removesuffix("RV"), link, site)
        for op_type, family in _FAMILIES.items()
        for link, site in family.links.items()
    ]


register_family(
    PoissonRV,
    predictor=0,
    links={"exp": "poisson", "softplus": "softplus_poisson", "rectified linear": "rectified_poisson"},
)
register_family(BernoulliRV, predictor=0, links={"logistic": "logit", "probit": "probit"})
register_family(NormalRV, predictor=0, links={"identity": "normal"}, parameters={"sigma": 1})
register_family(LaplaceRV, predictor=0, links={"identity": "laplace"}, parameters={"b": 1})
register_family(StudentTRV, predictor=1, links={"identity": "student_t"}, parameters={"nu": 0, "sigma": 2})
register_family(
    RectifiedPoisson.rv_type,
    predictor=0,
    links={"identity": "rectified_poisson"},
    options=lambda op: {"zero_mass": op.zero_mass},
)
register_family(SoftplusPoisson.rv_type, predictor=0, links={"identity": "softplus_poisson"})
