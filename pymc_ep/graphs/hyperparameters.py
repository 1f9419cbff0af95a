"""Unknown variables of a model, and the fields of a form that its hyperparameters determine."""

from collections.abc import Mapping, Sequence
from typing import Any

import numpy as np
import pytensor.tensor as pt
from pymc import Model
from pymc.distributions.transforms import CholeskyCovPacked, ZeroSumTransform
from pymc.initial_point import make_initial_point_expression
from pymc.logprob.basic import transformed_conditional_logp
from pymc.logprob.transforms import IntervalTransform, LogOddsTransform
from pymc.pytensorf import compile as compile_with_seed
from pymc.pytensorf import replace_rng_nodes
from pytensor.graph.basic import Variable
from pytensor.graph.replace import graph_replace
from pytensor.graph.traversal import ancestors
from pytensor.tensor.variable import TensorVariable

from pymc_ep.concurrency import compiling
from pymc_ep.distributions.gaussian_markov import NullSpaceTransform
from pymc_ep.exceptions import InvalidDataError, UnsupportedModelError
from pymc_ep.graphs.densities import outside_support
from pymc_ep.graphs.gaussian_variables import gaussian_of
from pymc_ep.graphs.hyper_functions import Coordinates
from pymc_ep.graphs.queries import depends_on, evaluated
from pymc_ep.graphs.random_nodes import is_random
from pymc_ep.numerics.interpolation.heavy_tails import HeavyTails
from pymc_ep.numerics.interpolation.partial_correlations import PartialCorrelations

__all__ = [
    "coordinates_of",
    "follows_from",
    "hyper_fields",
    "initial_values",
    "keeps_gaussian",
    "kind_of",
    "relevant_variables",
    "require_all_latent",
]


def require_all_latent(names: Sequence[str], latent: str | Sequence[str] | None, why: str) -> None:
    """Raise where the argument ``latent=`` of a fit leaves out one of the latent variables of a form.

    `why` is the reason in the message. When a saved result is read, `latent` has the names of its latent variables.
    """
    named = names if latent is None else [latent] if isinstance(latent, str) else latent
    if missing := [name for name in names if name not in named]:
        raise UnsupportedModelError(
            f"latent= leaves out {missing[0]!r}, but {why}; leave out latent=, or read a result with the model of its "
            f"fit."
        )


def relevant_variables(model: Model) -> list[TensorVariable]:
    """Return the free random variables that an observed variable or potential depends on, in the model's order."""
    if not model.observed_RVs and not model.potentials:
        raise UnsupportedModelError(
            "The model has no observed variable, so there is nothing to fit; pass observed= to a distribution."
        )
    roots = [*model.observed_RVs, *model.potentials]
    relevant = [rv for rv in model.free_RVs if depends_on(roots, [rv])]
    for rv in relevant:
        if not rv.dtype.startswith("float"):
            raise UnsupportedModelError(
                f"{rv.name!r} is discrete; Gaussian approximations need continuous unknowns. Sum it out or replace it "
                f"by a continuous variable."
            )
    return relevant


def initial_values(
    model: Model,
    variables: Sequence[Variable],
    overrides: Mapping[TensorVariable, np.ndarray] | None = None,
    *,
    random_seed: int | None = None,
) -> list[np.ndarray]:
    """Return the initial values of hyperparameters on PyMC's unconstrained scale.

    They agree with `pymc.Model.initial_point`, which would form the values of all other variables too, such as
    gigabytes of utilities of many users and items.

    Parameters
    ----------
    model : pymc.Model
    variables : sequence of Variable
        Value variables of the hyperparameters.
    overrides : mapping of TensorVariable to ndarray, optional
        Initial values that replace the model's, by random variable and on its own scale.
    random_seed : int, optional
        Seed for variables whose initial value is drawn.

    Raises
    ------
    InvalidDataError
        For an ``initval`` outside the support of its variable.
    """
    hyper = [model.values_to_rvs[v] for v in variables]
    behind = _behind(model, hyper)
    graphs = make_initial_point_expression(
        free_rvs=behind,
        rvs_to_transforms=model.rvs_to_transforms,
        initval_strategies=model.rvs_to_initial_values | dict(overrides or {}),
        return_transformed=True,
    )
    with np.errstate(all="ignore"):
        values = dict(zip(behind, _drawn(graphs, random_seed) if _is_drawn(graphs) else evaluated(graphs)))
    for rv, value in values.items():
        given = model.rvs_to_initial_values.get(rv)
        if isinstance(given, np.ndarray | float | int) and not np.all(np.isfinite(value)):
            raise InvalidDataError(
                f"The initial value of {rv.name!r}, initval={given}, lies outside the support of its prior, "
                f"{kind_of(rv)}. Give one inside it, or none."
            )
    return [values[rv] for rv in hyper]


def _is_drawn(graphs: Sequence[TensorVariable]) -> bool:
    return any(is_random(v) for v in ancestors(graphs))


def _drawn(graphs: Sequence[TensorVariable], random_seed: int | None) -> list[np.ndarray]:
    """Return values of graphs that contain random variables, which are drawn."""
    with compiling():
        return compile_with_seed([], replace_rng_nodes(graphs), random_seed=random_seed, mode="FAST_COMPILE")()


def _behind(model: Model, hyper: Sequence[TensorVariable]) -> list[TensorVariable]:
    """Return the model's free variables on which `hyper` depend, and the free ones among `hyper` themselves."""
    return [rv for rv in model.free_RVs if depends_on(hyper, [rv])]


def kind_of(rv: TensorVariable) -> str:
    """Return the name of a variable's distribution."""
    return getattr(rv.owner.op, "name", None) or type(rv.owner.op).__name__


def keeps_gaussian(model: Model, rv: TensorVariable) -> bool:
    """Whether a Gaussian stays Gaussian under a variable's transform: none, or a linear one for constraints on sums."""
    transform = model.rvs_to_transforms.get(rv)
    return transform is None or isinstance(transform, ZeroSumTransform | NullSpaceTransform)


def follows_from(model: Model, variable: TensorVariable, relevant: Sequence[TensorVariable]) -> bool:
    """Whether all free random variables that a Deterministic depends on are among `relevant`."""
    return all(rv in relevant for rv in model.free_RVs if depends_on([variable], [rv]))


def hyper_fields(
    model: Model, hyper: Sequence[TensorVariable], without: Sequence[TensorVariable] = ()
) -> dict[str, Any]:
    """Return the fields of `pymc_ep.graphs.hyper_functions.Hyperparameters` other than ``hyper_coordinates``, by name.

    `without` are potentials that the log prior leaves out.
    """
    return {
        "hyper_names": tuple(rv.name for rv in hyper),
        "hyper_values": tuple(model.rvs_to_values[rv] for rv in hyper),
        "hyper_constrained": tuple(model.replace_rvs_by_values(hyper)),
        "hyper_transformed": tuple(model.rvs_to_transforms.get(rv) is not None for rv in hyper),
        "hyper_bounded": tuple(_is_bounded(model, rv) for rv in hyper),
        "hyper_gaussian": tuple(rv.name for rv in hyper if keeps_gaussian(model, rv) and gaussian_of(rv)),
        "log_prior": _log_prior(model, hyper, without, jacobian=False),
        "log_prior_unconstrained": _log_prior(model, hyper, without, jacobian=True),
    }


def _is_bounded(model: Model, rv: TensorVariable) -> bool:
    """Whether the support of a variable is an interval with two ends, by its transform."""
    transform = model.rvs_to_transforms.get(rv)
    if isinstance(transform, IntervalTransform):
        return all(end is not None for end in transform.args_fn(*rv.owner.inputs))
    return isinstance(transform, LogOddsTransform)


def coordinates_of(model: Model, hyper: Sequence[TensorVariable]) -> tuple[Coordinates | None, ...]:
    """Return ``hyper_coordinates``: coordinates in which each hyperparameter's posterior is easier to emulate, or None.

    The off-diagonal entries of a covariance's Cholesky factor scale with its standard deviations; partial correlations
    do not. A real variable whose prior has power-law tails has exponential tails in the coordinates of `HeavyTails`.
    """
    factors = [isinstance(model.rvs_to_transforms.get(rv), CholeskyCovPacked) for rv in hyper]
    values = [model.rvs_to_values[rv] for rv, factor in zip(hyper, factors) if factor]
    sizes = iter([value.size for value in initial_values(model, values)] if values else [])
    return tuple(
        PartialCorrelations(next(sizes)) if factor else _heavy_tails(model, rv) for rv, factor in zip(hyper, factors)
    )


_LOCATION_AND_SCALE = {"cauchy": (0, 1), "t": (1, 2), "skewstudentt": (0, 1)}
"""Positions of location and scale among the parameters, by name of the distribution, where tails follow a power law."""


def _heavy_tails(model: Model, rv: TensorVariable) -> HeavyTails | None:
    """Return coordinates of a real variable with heavy tails; None for any other variable.

    They are defined by the prior's location and scale. Where location and scale depend on other variables, they are
    evaluated at PyMC's initial values, as any location and scale would do.
    """
    places = _LOCATION_AND_SCALE.get(kind_of(rv))
    if places is None or model.rvs_to_transforms.get(rv) is not None:
        return None
    parameters = [rv.owner.op.dist_params(rv.owner)[place] for place in places]
    behind = _behind(model, parameters)
    if behind:
        start = make_initial_point_expression(
            free_rvs=behind,
            rvs_to_transforms={},
            initval_strategies=model.rvs_to_initial_values,
            return_transformed=False,
        )
        parameters = graph_replace(parameters, dict(zip(behind, start)), strict=False)
    centre, scale = (np.asarray(value, dtype=float) for value in evaluated(replace_rng_nodes(parameters)))
    if not (np.isfinite(centre).all() and np.isfinite(scale).all() and (scale > 0).all()):
        return None
    if centre.size == scale.size == 1 or None in rv.type.shape:
        return HeavyTails(np.mean(centre), np.exp(np.log(scale).mean()))
    return HeavyTails(*(np.broadcast_to(value, rv.type.shape).ravel() for value in (centre, scale)))


def _log_prior(
    model: Model, hyper: Sequence[TensorVariable], without: Sequence[TensorVariable], *, jacobian: bool
) -> TensorVariable:
    """Return the log density of hyperparameters and potentials, (), with or without Jacobian terms.

    `without` are potentials that are left out. `pm.find_MAP` omits the Jacobian terms.
    """
    # PyMC evaluates constants in the graphs of all variables that it is given, such as the kernel in that of utilities.
    values, transforms = (
        {rv: mapping[rv] for rv in _behind(model, hyper)} for mapping in (model.rvs_to_values, model.rvs_to_transforms)
    )
    densities = transformed_conditional_logp(
        hyper, rvs_to_values=values, rvs_to_transforms=transforms, jacobian=jacobian
    )
    terms = [density.sum() for density in outside_support(densities)]
    terms += [p.sum() for p in model.replace_rvs_by_values([p for p in model.potentials if p not in without])]
    return sum(terms, start=pt.constant(0.0))
