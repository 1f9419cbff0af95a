"""Sites of any likelihood with one scalar predictor: PyMC's log density, rebuilt for single observations.

Between the affine predictor and the log density a model computes with arrays. Where these operations are elementwise or
select elements, the density of every observation is the same function of its predictor, its value and its site
parameters. That function is rebuilt with these as free variables, and compared with PyMC's density by value.
"""

from collections.abc import Callable, Sequence
from typing import Any

import numpy as np
import pytensor
import pytensor.tensor as pt
from pymc.distributions.mixture import MixtureRV
from pymc.distributions.transforms import _default_transform
from pymc.logprob.basic import logp as pymc_logp
from pymc.logprob.transforms import LogOddsTransform, LogTransform
from pytensor.gradient import NullTypeGradError
from pytensor.graph.basic import Apply
from pytensor.graph.traversal import explicit_graph_inputs
from pytensor.tensor.variable import TensorVariable

from pymc_ep.exceptions import UnsupportedModelError
from pymc_ep.graphs.densities import log_density
from pymc_ep.graphs.predictor import (
    AffineTest,
    Found,
    NotAffineError,
    at_zero_noise,
    names_of,
    not_affine_message,
    require_latent,
)
from pymc_ep.graphs.queries import dominators, value_dependent
from pymc_ep.graphs.random_nodes import (
    density_of,
    distribution_name,
    is_random,
    rebuilds,
    with_parameters,
)
from pymc_ep.models.latent_gaussian.recognise.conditions import ParameterConditions, within_conditions
from pymc_ep.models.latent_gaussian.recognise.log_scale import is_log_scale, log_scale_density
from pymc_ep.models.latent_gaussian.recognise.rebuilder import Rebuilder
from pymc_ep.sites.base import Site

__all__ = ["affine_dominator", "find_generic", "interpreted_site", "leaf_name", "verify"]

_CHECK_DRAWS = 3
"""Number of random values of the latent variables at which the rebuilt density is compared with PyMC's.

Different functions differ at almost every point, so that one would do; more guard against points at which neither
density is finite, and cost two evaluations each."""


def find_generic(
    name: str, node: Apply, parameters: Sequence[TensorVariable], observed: TensorVariable | None, affine: AffineTest
) -> Found:
    """Return the predictor of a likelihood, and a site with PyMC's log density.

    Parameters
    ----------
    name : str
        Name of the observed variable.
    node : Apply
        Node of its random variable.
    parameters : sequence of TensorVariable
        Parameters of the distribution, as graphs of hyperparameters and noise.
    observed : TensorVariable, optional
        Observations, at which the rebuilt density is compared with PyMC's.
    affine : AffineTest

    Raises
    ------
    NotAffineError
        Where the parameters do not depend on one affine predictor alone.
    UnsupportedModelError
        Where an operation between predictor and parameters is not elementwise, or PyMC has no log density.
    """
    require_latent(name, parameters, affine)
    eta = affine_dominator(name, parameters, affine)
    whole = None if rebuilds(node) or observed is None else density_of(node, parameters, observed)
    rebuilder, holds = _rebuilder_of(name, eta, parameters, whole, observed, affine)
    discrete = node.default_output().dtype.startswith(("int", "uint", "bool"))
    log_scale = whole is None and is_log_scale(node, parameters, eta, rebuilder.dependent, affine)

    def rebuilt(eta: Any, values: Sequence[Any] | None, y: Any = None) -> TensorVariable:
        if whole is not None:
            return rebuilder.density(whole, eta, values, y)
        return rebuilder(node, parameters, eta, values)

    def unbounded(y: Any, eta: Any, *values: Any) -> Any:
        if whole is not None:
            return rebuilt(eta, values, y) + pt.zeros_like(y)
        if log_scale:
            at_zero, at_one = (rebuilt(at(eta), values) for at in (pt.zeros_like, pt.ones_like))
            return log_scale_density(at_zero, at_one, y, eta)
        y = pt.as_tensor(y).astype("int64") if discrete else y
        return log_density(rebuilt(eta, values), y)

    def logp(y: Any, eta: Any, *values: Any) -> Any:
        return within_conditions(unbounded(y, eta, *values), eta)

    def with_checks(y: Any, eta: Any, *values: Any) -> TensorVariable:
        if whole is not None:
            return pt.zeros_like(y)
        return pymc_logp(rebuilt(eta, values), y.astype("int64") if discrete else y, warn_rvs=False)

    try:
        rebuilt(pt.dscalar(), None, pt.dscalar())
        match = interpreted_site(
            f"generic {distribution_name(node)}",
            rebuilder,
            affine,
            with_checks,
            domain="integer" if discrete else _line_of(node),
            log_concave=log_scale,
            logp=logp,
            holds_observations=holds,
        )
        if observed is not None:
            density = log_density(with_parameters(node, parameters), observed) if whole is None else whole
            verify(name, density, observed, match, unbounded, affine)
    except UnsupportedModelError:
        raise
    except (NotImplementedError, NullTypeGradError, TypeError, ValueError, AttributeError) as error:
        if isinstance(node.op, MixtureRV):
            raise UnsupportedModelError(
                f"{name!r} is a {distribution_name(node)} with latent variables in several components, each with a "
                f"predictor of its own, and a site takes one. Its posterior has several modes: use pm.sample, or name "
                f"all but these variables in latent=[...]."
            ) from error
        raise UnsupportedModelError(
            f"{name!r} has the distribution {distribution_name(node)}, whose log density PyMC cannot give or "
            f"differentiate for single observations ({type(error).__name__}: {error}). Use a distribution that "
            f"pymc_ep.supported() lists."
        ) from error
    return match


def _line_of(node: Apply) -> str:
    """Return the domain of continuous observations, by the transform with which PyMC would sample them."""
    if type(node.op).__module__ == MixtureRV.__module__:
        # Components of a mixture or hurdle may have different domains, of which PyMC would warn.
        return "real"
    transform = _default_transform(node.op, node.default_output())
    if isinstance(transform, LogTransform):
        return "non-negative"
    return "unit interval" if isinstance(transform, LogOddsTransform) else "real"


def interpreted_site(
    name: str, rebuilder: Rebuilder, affine: AffineTest, with_checks: Callable[..., TensorVariable], **fields: Any
) -> Found:
    """Return the predictor and a site whose parameters are the leaves of a rebuilder.

    `fields` are further fields of the site. `with_checks(y, eta, *parameters)` returns the log density with PyMC's
    conditions on parameters.
    """
    leaves = [at_zero_noise(leaf, affine) for leaf in rebuilder.leaves]
    names = tuple(leaf_name(leaf, k) for k, leaf in enumerate(rebuilder.leaves))
    site = Site(
        name=name,
        parameters=names,
        parameter_domains=("extended real",) * len(leaves),
        check=ParameterConditions(with_checks, names),
        interpreted=True,
        **fields,
    )
    link = "as written, by quadrature of the distribution's own log density"
    return Found(site, {}, rebuilder.predictor, link, leaves)


def _rebuilder_of(
    name: str,
    eta: TensorVariable,
    parameters: Sequence[TensorVariable],
    whole: TensorVariable | None,
    observed: TensorVariable | None,
    affine: AffineTest,
) -> tuple[Rebuilder, bool]:
    """Return the rebuilder of a distribution, or of the density `whole`, and whether `whole` keeps its observations.

    It does where observations enter by operations that are not elementwise, such as their sum: a single observation
    cannot then be put in their place.
    """
    if whole is None or observed is None:
        return Rebuilder(name, eta, value_dependent(parameters, affine.noise), affine), False
    free = Rebuilder(name, eta, value_dependent([whole], [*affine.noise, observed]), affine, observed)
    try:
        free.density(whole, pt.dscalar(), None, pt.dscalar())
    except UnsupportedModelError:
        return Rebuilder(name, eta, value_dependent([whole], affine.noise), affine), True
    return free, False


def leaf_name(leaf: TensorVariable, k: int) -> str:
    """Return the name of a site parameter: the name of its only named input, else one with the position k."""
    named = {v.name for v in explicit_graph_inputs([leaf]) if v.name}
    return named.pop() if len(named) == 1 else f"parameter_{k}"


def affine_dominator(name: str, parameters: Sequence[TensorVariable], affine: AffineTest) -> TensorVariable:
    """Return the predictor: of the affine graphs through which all parameters depend on the noise, the nearest one."""
    noise = list(affine.noise)
    behind = dominators(parameters, noise)
    for current in behind:
        # A random variable inside a censored distribution or a mixture is no function of its parameters.
        if not any(is_random(v) for v in value_dependent([current], noise)) and affine(current):
            return current
    carriers = [p for p in parameters if p in value_dependent(parameters, noise)]
    if not behind:
        depend = " and on ".join(sorted({names_of(p, noise) for p in carriers}))
        raise NotAffineError(
            f"{name!r} has more than one predictor: its parameters depend on {depend}, each in its own way, and a site "
            f"takes one, or two of different parameters. Name only some of these in latent=[...], so that the others "
            f"become hyperparameters."
        )
    raise NotAffineError(not_affine_message(name, carriers[0], affine))


def verify(
    name: str,
    whole: TensorVariable,
    observed: TensorVariable,
    match: Found,
    logp: Callable[..., TensorVariable],
    affine: AffineTest,
) -> None:
    """Raise where the rebuilt density, `logp`, and PyMC's differ at random values of the latent variables."""
    flat = [pt.broadcast_to(v, observed.shape).ravel().astype("float64") for v in (match.predictor, *match.parameters)]
    single = logp(observed.ravel().astype("float64"), *flat)
    # Raises where there is no derivative.
    vectors = [pt.dvector() for _ in (observed, *flat)]
    pytensor.grad(match.site.logp(*vectors).sum(), vectors[1:], disconnected_inputs="ignore")
    noise = list(affine.noise)
    functions = [affine.compile(graph, noise, without_checks=True) for graph in (whole, single)]
    rng = np.random.default_rng(0)
    for _ in range(_CHECK_DRAWS):
        draw = [rng.standard_normal(affine.noise[v]).astype(v.dtype) for v in noise]
        with np.errstate(all="ignore"):
            expected, rebuilt = (np.asarray(function(*draw)) for function in functions)
        # PyMC has some constants in single precision, and their reciprocals are rounded in one of the two graphs.
        if expected.size != rebuilt.size or not np.allclose(
            expected.ravel(), rebuilt, rtol=1e-6, atol=1e-9, equal_nan=True
        ):
            raise UnsupportedModelError(
                f"The observations of {name!r} do not depend on one predictor value each: its log density is no "
                f"elementwise function of the predictor. Use a distribution that pymc_ep.supported() lists."
            )
