"""Ordered categories: a Categorical whose cumulative or stopping probabilities are F(cutpoints - predictor).

The stopping probability of a category is its probability given that no lower category is taken (Tutz 1991).
"""

from collections.abc import Callable, Sequence
from functools import lru_cache
from itertools import pairwise, permutations
from typing import Any

import numpy as np
import pytensor.tensor as pt
import scipy.special
from pytensor.graph.basic import Apply
from pytensor.graph.replace import graph_replace
from pytensor.graph.traversal import ancestors
from pytensor.scalar.basic import sub
from pytensor.tensor.elemwise import DimShuffle
from pytensor.tensor.subtensor import AdvancedSubtensor
from pytensor.tensor.variable import TensorVariable

from pymc_ep.exceptions import InvalidDataError
from pymc_ep.graphs.predictor import (
    AffineTest,
    Found,
    NotAffineError,
    at_zero_noise,
    at_zero_noise_and_shape,
    require_latent,
)
from pymc_ep.graphs.queries import apply_path, depends_on, dominators, value_depends_on
from pymc_ep.numerics.backend.namespace import namespace
from pymc_ep.sites.base import Relation, Site, get_site

__all__ = ["before_selection", "find_ordered", "ordered_site"]

_NOISE: dict[str, tuple[str, Callable[[np.ndarray], np.ndarray]]] = {
    "ordered logit": ("ordered_logit", scipy.special.expit),
    "ordered probit": ("ordered_probit", scipy.special.ndtr),
}
"""Registered site and distribution function F of the noise, by link."""
_ROUNDING = 1e-6
"""Largest relative difference from F that counts as rounding."""


@lru_cache
def ordered_site(name: str, cutpoints: int) -> Site:
    """Return the site of categories 0 to `cutpoints`, with all cutpoints as parameters.

    It is made of the registered site `name`, whose parameters are only the two cutpoints next to the observed category.
    """
    two = get_site(name)

    def adjacent_cutpoints(y: Any, cuts: Sequence[Any], where: Callable[..., Any]) -> tuple[Any, Any]:
        lower, upper = -np.inf, np.inf
        for k, cut in enumerate(cuts):
            lower = where(y > k, cut, lower)
        for k, cut in reversed(list(enumerate(cuts))):
            upper = where(y <= k, cut, upper)
        return lower, upper

    def logp(y: Any, eta: Any, *cuts: Any) -> Any:
        # P(y = k) = F(c_k - eta) - F(c_{k-1} - eta), with -inf below the first cutpoint and inf above the last.
        return two.logp(y, eta, *adjacent_cutpoints(y, cuts, pt.switch))

    def knots(y: Any, *cuts: Any) -> Sequence[Any]:
        assert two.knots is not None, "ordered sites have knots"
        return two.knots(y, *adjacent_cutpoints(y, cuts, namespace(y).where))

    def in_order(y: np.ndarray, *cuts: np.ndarray) -> np.ndarray:
        steps = [below < above for below, above in pairwise(cuts)]
        return np.logical_and.reduce([y <= cutpoints, *steps])

    return Site(
        name=name,
        parameters=tuple(f"cutpoint_{k}" for k in range(cutpoints)),
        parameter_domains=("real",) * cutpoints,
        relation=Relation(in_order, f"categories from 0 to {cutpoints} and cutpoints that increase"),
        domain=two.domain,
        log_concave=True,
        logp=logp,
        knots=knots,
        knots_beyond=two.knots_beyond,
    )


@lru_cache
def stopping_site(name: str, cutpoints: int) -> Site:
    """Return the site of categories 0 to `cutpoints`, each with the stopping probability F(cutpoint - eta).

    Its parameters are all cutpoints, in any order. log F and log(1 - F) come from the registered site `name`.
    """
    two = get_site(name)

    def logp(y: Any, eta: Any, *cuts: Any) -> Any:
        # log P(y) = log F(c_y - eta) + sum_{k < y} log[1 - F(c_k - eta)]; the last category has the sum alone.
        stops = (pt.switch(pt.eq(y, k), two.logp(y, eta, -np.inf, cut), 0.0) for k, cut in enumerate(cuts))
        goes_on = (pt.switch(y > k, two.logp(y, eta, cut, np.inf), 0.0) for k, cut in enumerate(cuts))
        return pt.add(*stops, *goes_on)

    return Site(
        name=f"stopping {name.removeprefix('ordered_')}",
        parameters=tuple(f"cutpoint_{k}" for k in range(cutpoints)),
        parameter_domains=("real",) * cutpoints,
        relation=Relation(lambda y, *cuts: y <= cutpoints, f"categories from 0 to {cutpoints}"),
        domain=two.domain,
        log_concave=True,
        logp=logp,
    )


def find_ordered(name: str, parameters: Sequence[TensorVariable], affine: AffineTest) -> Found | None:
    """Return predictor and site of ordered categories, from the probabilities of a Categorical; else None.

    `parameters` are these probabilities. Cumulative and stopping probabilities are tried. An affine graph through which
    all of them depend on the noise must be cutpoints minus predictor, or the negative, along its last axis. The first
    graph that is written as such a difference is used, else the one nearest to the probabilities. Its part that depends
    on noise must be the same in all columns.
    """
    probabilities, path = before_selection(parameters[0])
    require_latent(name, parameters, affine)
    candidates = [
        candidate
        for candidate in dominators([probabilities], affine.noise)
        if candidate.ndim == probabilities.ndim and affine(candidate)
    ]
    written = [candidate for candidate in candidates if _written_apart(candidate, affine) is not None]
    matched = _match_ordered(name, probabilities, (written or candidates)[0], affine) if candidates else None
    if matched is None or not path:
        return matched
    predictor, *columns = (
        apply_path(path, graph[..., None])[..., 0] for graph in (matched.predictor, *matched.parameters)
    )
    return matched._replace(predictor=predictor, parameters=columns)


def before_selection(graph: TensorVariable) -> tuple[TensorVariable, list[Apply]]:
    """Return the graph of probabilities from which `graph` selects observations, such as the ones that are present.

    The second result is the nodes of the selection, in the order of their application.
    """
    path: list[Apply] = []
    while isinstance(getattr(graph.owner, "op", None), AdvancedSubtensor | DimShuffle):
        inner = graph.owner.inputs[0]
        if inner.ndim < 2 or inner.type.shape[-1] in (None, 1) or inner.type.shape[-1] != graph.type.shape[-1]:
            break
        path.insert(0, graph.owner)
        graph = inner
    return graph, path


def _match_ordered(
    name: str, probabilities: TensorVariable, current: TensorVariable, affine: AffineTest
) -> Found | None:
    free = current.type("free")
    replaced = graph_replace([probabilities], {current: free}, strict=False)[0]
    if value_depends_on(replaced, list(affine.noise)) or not affine.point.keys().isdisjoint(ancestors([replaced])):
        # A hyperparameter between predictor and probabilities, such as the scale of the noise, is not supported.
        return None
    function = affine.compile(at_zero_noise_and_shape(replaced, affine), [free])
    shape = np.shape(affine.compile(at_zero_noise_and_shape(current, affine), [])())
    ascending = np.sort(np.random.default_rng(0).uniform(-2.5, 2.5, shape), axis=-1)
    for sign in (1.0, -1.0):
        with np.errstate(invalid="ignore", divide="ignore"):
            each = np.asarray(function((sign * ascending).astype(current.dtype)))
            # P(y <= k), and P(y = k | y >= k) = p_k / [1 - P(y <= k) + p_k].
            up_to = np.cumsum(each, axis=-1)
            stopping = each / (1.0 - up_to + each)
        if each.shape != (*shape[:-1], shape[-1] + 1):
            return None
        for link, (site, distribution) in _NOISE.items():
            for how, make, values in (("", ordered_site, up_to), ("stopping ", stopping_site, stopping)):
                scale = _scale(distribution, ascending, values[..., :-1])
                if scale is not None:
                    full_site = make(site, shape[-1])
                    _require_positive_scale(name, sign, current, affine)
                    return _found(full_site, f"{how}{link}", current, sign * scale, shape[-1], affine)
    return None


def _require_positive_scale(name: str, sign: float, current: TensorVariable, affine: AffineTest) -> None:
    """Raise where the cutpoints increase but the scale of the noise is negative, so that thresholds decrease."""
    if _written_apart(current, affine) is None:
        return
    first, second = current.owner.inputs
    cutpoints, written = (first, 1.0) if second.type.shape[-1] == 1 else (second, -1.0)
    if sign == written or depends_on([cutpoints], affine.point):
        return
    if np.all(np.diff(affine.compile(at_zero_noise_and_shape(cutpoints, affine), [])()) > 0):
        raise InvalidDataError(
            f"The cutpoints of {name!r} increase, but the scale of its noise, such as sigma of pm.OrderedProbit, is "
            f"negative; give a positive one."
        )


def _scale(distribution: Callable, argument: np.ndarray, values: np.ndarray) -> float | None:
    """Return s for ``values = distribution(s * argument)``, else None; 1 / s is the scale of the noise."""
    if not np.all((values > 0) & (values < 1)):
        return None
    inverse = scipy.special.logit if distribution is scipy.special.expit else scipy.special.ndtri
    # s = F^-1(value) / argument, the same for all.
    ratio = float(np.median(inverse(values) / argument))
    # Without a scale the rest is rounding of the probabilities.
    ratio = 1.0 if abs(ratio - 1.0) < _ROUNDING else ratio
    return (
        ratio if ratio > 0 and np.allclose(distribution(ratio * argument), values, rtol=_ROUNDING, atol=1e-9) else None
    )


def _found(site: Site, link: str, current: TensorVariable, factor: float, count: int, affine: AffineTest) -> Found:
    """Return the site with predictor and cutpoints, the parts of the thresholds ``factor * current``.

    Raise NotAffineError where the cutpoints depend on the noise.
    """
    # Differences c_k - c_0 of the columns c_k - eta are free of eta.
    spread = factor * (current - current[..., 0][..., None])
    rng = np.random.default_rng(1)
    noise = list(affine.noise)
    function = affine.compile(spread, noise)
    first, second = ([rng.standard_normal(affine.noise[v]).astype(v.dtype) for v in noise] for _ in range(2))
    if not np.allclose(function(*first), function(*second), rtol=1e-9, atol=1e-9):
        raise NotAffineError(
            "The cutpoints of ordered categories depend on the latent variables, as well as the predictor. Name all "
            "but those of the cutpoints in latent=[...], so that these become hyperparameters."
        )
    # Where c - eta is not written apart, c - eta_0 at zero noise stands for c, and eta - eta_0 for eta.
    at_zero = at_zero_noise(current, affine)
    predictor, cutpoints = _written_apart(current, affine) or ((at_zero - current)[..., 0], at_zero)
    columns = [factor * cutpoints[..., k] for k in range(count)]
    return Found(site, {}, factor * predictor, link, columns)


def _written_apart(current: TensorVariable, affine: AffineTest) -> tuple[TensorVariable, TensorVariable] | None:
    """Return predictor and cutpoints where the graph of `current` is a difference of the two, else None.

    Their signs are such that `current` is cutpoints minus predictor. Offsets and prior means thus stay in the
    predictor, to which the sites of the result belong. For a graph that is no such difference, they are counted with
    the cutpoints, which leaves all densities the same.
    """
    if current.owner is None or getattr(current.owner.op, "scalar_op", None) != sub:
        return None
    for (cutpoints, predictor), sign in zip(permutations(current.owner.inputs), (1.0, -1.0)):
        one_for_all = predictor.type.shape[-1] == 1
        if one_for_all and not value_depends_on(cutpoints, list(affine.noise)):
            cutpoints = sign * (cutpoints + pt.zeros(current.shape[:-1])[..., None])
            return sign * predictor[..., 0], at_zero_noise(cutpoints, affine)
    return None
