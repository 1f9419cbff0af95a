"""Sites of likelihoods with two affine predictors, such as a location and the logarithm of a scale."""

from collections.abc import Iterator, Sequence
from typing import Any

import numpy as np
import pytensor.tensor as pt
from pytensor.gradient import NullTypeGradError
from pytensor.graph.replace import graph_replace
from pytensor.graph.traversal import ancestors
from pytensor.scalar.basic import Mul, TrueDiv
from pytensor.tensor.basic import Alloc
from pytensor.tensor.elemwise import DimShuffle
from pytensor.tensor.subtensor import AdvancedSubtensor, Subtensor
from pytensor.tensor.variable import TensorVariable

from pymc_ep.exceptions import UnsupportedModelError
from pymc_ep.graphs.densities import log_density
from pymc_ep.graphs.families import family_of
from pymc_ep.graphs.predictor import (
    AffineTest,
    Found,
    NotAffineError,
    at_zero_noise_and_shape,
    find_predictor,
    names_of,
    not_affine_message,
)
from pymc_ep.graphs.queries import applies, depends_on, value_dependent, value_depends_on
from pymc_ep.graphs.random_nodes import is_random, parameter_positions, with_parameters
from pymc_ep.models.latent_gaussian.recognise.any_density import find_generic, leaf_name, verify
from pymc_ep.models.latent_gaussian.recognise.rebuilder import Rebuilder
from pymc_ep.sites.two_predictors import two_predictor_site

__all__ = ["find_two_predictors"]

_SELECTIONS = (Alloc, AdvancedSubtensor, DimShuffle, Subtensor)
"""Operations that select, repeat or reorder values of a predictor."""


def find_two_predictors(
    rv: TensorVariable, parameters: Sequence[TensorVariable], observed: TensorVariable | None, affine: AffineTest
) -> Found:
    """Return both predictors of a likelihood, and its site.

    Parameters
    ----------
    rv : TensorVariable
        Observed variable.
    parameters : sequence of TensorVariable
        Parameters of its distribution, as graphs of hyperparameters and noise.
    observed : TensorVariable, optional
        Observations, at which the density is compared with PyMC's.
    affine : AffineTest

    Raises
    ------
    NotAffineError
        Where the parameters do not depend on two affine predictors, each by itself.
    """
    name = rv.name
    pair = _predictors(name, parameters, affine)
    refusals: list[UnsupportedModelError] = []
    for registered in (True, False):
        for first, second in (pair, pair[::-1]):
            try:
                match = _given_second(rv, parameters, first, second, affine, registered=registered)
                if observed is not None:
                    density = log_density(with_parameters(rv.owner, parameters), observed)
                    as_parameters = match._replace(parameters=[*match.others, *match.parameters])
                    verify(name, density, observed, as_parameters, match.site.logp, affine)
            except UnsupportedModelError as error:
                refusals.append(error)
            except (NotImplementedError, NullTypeGradError, TypeError, ValueError, AttributeError) as error:
                refusals.append(UnsupportedModelError(f"{type(error).__name__}: {error}"))
            else:
                return match
    raise NotAffineError(
        f"{name!r} has two predictors, of {' and of '.join(names_of(v, list(affine.noise)) for v in pair)}, but no "
        f"site of both ({str(refusals[-1]).partition('. ')[0]}). Name only those of one in latent=[...], so that the "
        f"others become hyperparameters."
    )


def _predictors(
    name: str, parameters: Sequence[TensorVariable], affine: AffineTest
) -> tuple[TensorVariable, TensorVariable]:
    """Return the two affine graphs that the parameters of a likelihood depend on; raise where there are more or fewer.

    A likelihood whose predictors enter one parameter only, as a sum of two rates, is refused: they may change places,
    so that their posterior has several modes.
    """
    noise = list(affine.noise)
    dependent = value_dependent(parameters, noise)
    if sum(parameter in dependent for parameter in parameters) < 2:
        parameter = next(p for p in parameters if p in dependent)
        alone = f"{name!r} has one predictor, in one of its parameters."
        raise NotAffineError(alone if affine(parameter) else not_affine_message(name, parameter, affine))
    etas: dict[TensorVariable, None] = {}
    seen: set[TensorVariable] = set()

    def visit(graph: TensorVariable) -> None:
        if graph in seen or graph not in dependent:
            return
        seen.add(graph)
        if is_random(graph):
            for position in parameter_positions(graph.owner):
                visit(graph.owner.inputs[position])
        elif affine(graph):
            etas[graph] = None
        else:
            for v in graph.owner.inputs if graph.owner is not None else ():
                visit(v)

    for parameter in parameters:
        visit(parameter)
    for graph in list(etas):
        others = {v: v.type() for v in etas if v is not graph}
        if others and not value_depends_on(graph_replace([graph], others, strict=False)[0], noise):
            # It is a multiple of another one.
            del etas[graph]
    if len(etas) != 2:
        raise NotAffineError(
            f"{name!r} has {len(etas)} predictors, of {' and of '.join(names_of(v, noise) for v in etas)}, and a "
            f"site takes two at most. Name only those of one or two in latent=[...], so that the others become "
            f"hyperparameters."
        )
    for graph in seen:
        if applies(graph.owner, Mul | TrueDiv) and len({_selected(v) for v in graph.owner.inputs} & set(etas)) == 2:
            raise NotAffineError(
                f"The parameters of {name!r} have a product of {' and of '.join(names_of(v, noise) for v in etas)}: "
                f"its posterior has several modes. Name only one of these in latent=[...]."
            )
    first, second = etas
    return first, second


def _selected(graph: Any) -> Any:
    """Return the graph from which operations of `_SELECTIONS` take the values of `graph`."""
    while graph.owner is not None and isinstance(graph.owner.op, _SELECTIONS):
        graph = graph.owner.inputs[0]
    return graph


def _given_second(
    rv: TensorVariable,
    parameters: Sequence[TensorVariable],
    first: TensorVariable,
    second: TensorVariable,
    affine: AffineTest,
    *,
    registered: bool,
) -> Found:
    """Return the site of two predictors: a site of the first, with parameters that depend on the second.

    `registered` says whether the site of the first is a registered one, or PyMC's log density.
    """
    name = rv.name
    free = second.type("second")
    given = _with_free(parameters, first, second, free)
    # Links are compared by value, at one of the second predictor.
    shape = np.shape(affine.compile(at_zero_noise_and_shape(second, affine), [])())
    value = np.random.default_rng(0).uniform(-1.0, 1.0, shape).astype(free.dtype)
    at_value = AffineTest(affine.noise, affine.point | {free: value}, affine.zeros)
    if registered:
        if (family := family_of(rv)) is None:
            raise NotAffineError(f"{name!r} has no registered site.")
        match = find_predictor(name, rv.owner.op, family, given, at_value)
    else:
        match = find_generic(name, rv.owner, given, None, at_value)
    if depends_on([match.predictor], [free]):
        raise NotAffineError(f"The predictors of {name!r} enter one parameter together.")
    rebuilder = Rebuilder(name, free, value_dependent(match.parameters, [free]), at_value)

    def arguments(eta: Any, *values: Any) -> list[Any]:
        return [rebuilder.density(p, eta, values or None, 0.0) for p in match.parameters]

    arguments(pt.dscalar())
    leaves = [leaf.astype("float64") for leaf in rebuilder.leaves]
    site = two_predictor_site(match.site, arguments, tuple(leaf_name(leaf, k) for k, leaf in enumerate(leaves)))
    (second_predictor,) = graph_replace([rebuilder.predictor], {free: second}, strict=False)
    return Found(
        site, match.options, match.predictor, f"{match.link}, and a second predictor", leaves, (second_predictor,)
    )


def _with_free(
    parameters: Sequence[TensorVariable], first: TensorVariable, second: TensorVariable, free: TensorVariable
) -> list[TensorVariable]:
    """Return the parameters with a variable `free` in place of the second predictor.

    The first predictor stays as it is, even where it depends on the second.
    """
    held = first.type("first")
    steps: Iterator[dict] = iter([{first: held}, {second: free}])
    if first in ancestors([second]):
        steps = iter([{second: free}, {first: held}])
    graphs = list(parameters)
    for step in steps:
        graphs = graph_replace(graphs, step, strict=False)
    return graph_replace(graphs, {held: first}, strict=False)
