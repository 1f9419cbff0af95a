"""Find the affine predictor of a likelihood and the link between it and the distribution's parameter."""

from collections.abc import Callable, Sequence
from typing import Any, NamedTuple

import numpy as np
import pytensor
import pytensor.tensor as pt
from pytensor.graph.replace import graph_replace
from pytensor.graph.traversal import explicit_graph_inputs
from pytensor.tensor.elemwise import Elemwise
from pytensor.tensor.variable import TensorVariable

from pymc_ep.compat import quick_mode
from pymc_ep.exceptions import InvalidDataError, UnsupportedModelError
from pymc_ep.graphs.families import Family, Link
from pymc_ep.graphs.queries import (
    depends_on,
    dominators,
    is_affine_numerically,
    is_affine_symbolically,
    value_depends_on,
)
from pymc_ep.operators.apply import ApplyLinearMap, apply_operator
from pymc_ep.sites.base import Site, get_site

__all__ = [
    "AffineTest",
    "Found",
    "NotAffineError",
    "as_function_of",
    "at_zero_noise",
    "at_zero_noise_and_shape",
    "find_predictor",
    "first_not_affine",
    "names_of",
    "operation_of",
    "require_latent",
    "what_is_not_affine",
]


class NotAffineError(UnsupportedModelError):
    """A mean or predictor is not affine in the latent variables tried; fewer of them may do."""


class AffineTest:
    """Whether a graph is affine in the noise, by its derivative's graph and by its values.

    Parameters
    ----------
    noise : dict
        Noise variables and the shapes of their values.
    point : dict
        Hyperparameter value variables and a working point.
    zeros : dict, optional
        For each noise variable zeros of its shape, as a graph free of noise.
    """

    def __init__(
        self,
        noise: dict[TensorVariable, tuple[int, ...]],
        point: dict[TensorVariable, np.ndarray],
        zeros: dict[TensorVariable, TensorVariable] | None = None,
    ):
        self.noise = noise
        self.point = point
        self.zeros = zeros or {}
        self._known: dict[TensorVariable, bool] = {}

    def __call__(self, graph: TensorVariable) -> bool:
        """Test a graph, once."""
        if graph not in self._known:
            self._known[graph] = self._test(graph)
        return self._known[graph]

    def _test(self, graph: TensorVariable) -> bool:
        reached = [v for v in self.noise if depends_on([graph], [v])]
        if not reached:
            return True
        if not graph.dtype.startswith("float") or not is_affine_symbolically(graph, reached):
            return False
        function = self.compile(graph, reached)
        shapes = [self.noise[v] for v in reached]
        try:
            return is_affine_numerically(lambda at: function(*at), shapes, np.random.default_rng(0))
        except IndexError as error:
            reason = str(error).partition("\n")[0]
            raise InvalidDataError(
                f"The model indexes {names_of(graph, reached)} out of range: {reason}. Check the index array against "
                f"the variable's shape or dims."
            ) from error

    def compile(
        self, graph: TensorVariable, arguments: Sequence[TensorVariable], *, without_checks: bool = False
    ) -> Callable[..., np.ndarray]:
        """Compile a graph, quickly, at the working point of the hyperparameters; maybe without PyMC's assertions."""
        needed = set(explicit_graph_inputs([graph]))
        at_point = {v: pt.constant(x, dtype=v.dtype) for v, x in self.point.items() if v in needed}
        fixed = graph_replace([graph], at_point, strict=False)[0] if at_point else graph
        mode = quick_mode()
        mode = mode.including("local_remove_check_parameter") if without_checks else mode
        return pytensor.function(list(arguments), fixed, mode=mode, on_unused_input="ignore")


class Found(NamedTuple):
    """The predictor of a likelihood and the site that takes it."""

    site: Site
    options: dict[str, Any]
    predictor: TensorVariable
    link: str
    parameters: list[TensorVariable]


def find_predictor(
    name: str, op: Any, family: Family, parameters: Sequence[TensorVariable], affine: AffineTest
) -> Found:
    """Return the affine predictor behind a distribution's parameters, the link and the site.

    Parameters
    ----------
    name : str
        The observed variable, for messages.
    op : Op
        That of the distribution, for the static options of the site.
    family : Family
        What is registered for the distribution.
    parameters : sequence of TensorVariable
        Those of the distribution, in terms of hyperparameters and noise.
    affine : AffineTest

    Raises
    ------
    NotAffineError
        Where the parameter is not a known link of one affine predictor; names the operation in the way.
    """
    parameter = parameters[family.predictor]
    require_latent(name, [parameter], affine)
    own = family.site_parameters(parameters)
    chain = dominators([parameter], affine.noise)
    nearest = None
    for place, current in enumerate(chain):
        if affine(current):
            nearest = current if nearest is None else nearest
            found = _behind_link(chain[: place + 1], family, own, affine)
            if found is not None:
                eta, link = found
                site = get_site(family.links[link])
                return Found(site, family.options(op), eta, link, [at_zero_noise(p, affine) for p in own])
    if nearest is not None:
        between = [operation_of(v) for v in chain[: chain.index(nearest)]]
        raise NotAffineError(
            f"The link of {name!r} is none of {', '.join(family.links)}: its parameter is {' of '.join(between)} of an "
            f"affine predictor. Use one of these links, or leave {names_of(nearest, list(affine.noise))} out of "
            f"latent=[...]."
        )
    raise NotAffineError(what_is_not_affine(name, parameter, affine))


def require_latent(name: str, parameters: Sequence[TensorVariable], affine: AffineTest) -> None:
    """Raise where no parameter of a likelihood depends on the noise."""
    if not depends_on(parameters, list(affine.noise)):
        raise NotAffineError(
            f"{name!r} does not depend on any latent variable; observe it in a model of its own, or name other "
            f"variables with latent=[...]."
        )


def at_zero_noise(graph: TensorVariable, affine: AffineTest) -> TensorVariable:
    """Return a graph with zeros in the place of the noise, and so free of it."""
    return graph_replace([graph], affine.zeros, strict=False)[0] if depends_on([graph], affine.zeros) else graph


def _behind_link(
    chain: Sequence[TensorVariable], family: Family, own: Sequence[TensorVariable], affine: AffineTest
) -> tuple[TensorVariable, str] | None:
    """Return eta and the link, where the first graph of a chain is a known link of the last, which is affine.

    Between link and parameter values may be selected, repeated or reordered (``rate[group]``): the same is then
    done to the affine graph, which must stay affine. An offset, free of the noise, may be added to eta, such as the log
    of an exposure. All of it, and that the site's own parameters are free of the noise, is verified by value, at
    arguments that differ from element to element.
    """
    parameter, current = chain[0], chain[-1]
    arguments = _arguments(current, affine)
    target = _values(parameter, current, arguments, affine)
    found = [_fixed_value(p, current, arguments, affine) for p in own]
    fixed = [value for value in found if value is not None]
    if target is None or len(fixed) < len(found):
        return None
    eta = _with_selections(chain)
    if not affine(eta):
        return None
    values = _values(eta, current, arguments, affine)
    if values is None:
        return None
    for name in family.links:
        link = family.link(name)
        if _explains(link, values, fixed, target):
            return (eta if link.sign > 0 else -eta), name
        if link.forward is None:
            continue
        offset = _offset(parameter, current, link.forward, own, affine)
        with np.errstate(invalid="ignore", divide="ignore", over="ignore"):
            shift = np.asarray(affine.compile(at_zero_noise_and_shape(offset, affine), [])())
        if np.all(np.isfinite(shift)) and _explains(link, values, fixed, target, shift):
            return (eta + offset if link.sign > 0 else -eta - offset), name
    return None


def _with_selections(chain: Sequence[TensorVariable]) -> TensorVariable:
    """Apply to the last graph of a chain what is not elementwise on the way to the first."""
    eta = chain[-1]
    for inner, outer in zip(chain[:0:-1], chain[-2::-1]):
        if not isinstance(outer.owner.op, Elemwise) and inner in outer.owner.inputs:
            eta = graph_replace([outer], {inner: eta}, strict=False)[0]
    return eta


def _offset(
    parameter: TensorVariable,
    current: TensorVariable,
    forward: Callable[..., TensorVariable],
    own: Sequence[TensorVariable],
    affine: AffineTest,
) -> TensorVariable:
    """Return the argument of the link, the inverse of `forward`, where the predictor is zero."""
    at_zero = graph_replace([parameter], {current: pt.zeros_like(current)}, strict=False)[0]
    return forward(at_zero_noise(at_zero, affine), *(at_zero_noise(p, affine) for p in own))


def _explains(
    link: Link, values: Sequence[np.ndarray], fixed: Sequence[np.ndarray], target: Sequence, shift: Any = 0.0
) -> bool:
    """Whether a link of these values, moved by `shift`, is the distribution's parameter."""
    with np.errstate(over="ignore", invalid="ignore"):
        try:
            return _close(target, [link.inverse(z + shift, *fixed) for z in values])
        except ValueError:  # Shapes that do not broadcast.
            return False


def at_zero_noise_and_shape(graph: TensorVariable, affine: AffineTest) -> TensorVariable:
    """Return a graph with zeros of the shapes at the working point in the place of the noise."""
    zero = {v: pt.zeros(shape, dtype=v.dtype) for v, shape in affine.noise.items()}
    return graph_replace([graph], zero, strict=False)[0]


def _fixed_value(
    graph: TensorVariable, predictor: TensorVariable, arguments: Sequence[np.ndarray], affine: AffineTest
) -> np.ndarray | None:
    """Evaluate a site parameter; None where it varies with the predictor or depends on other noise."""
    if not value_depends_on(graph, list(affine.noise)):
        return np.asarray(affine.compile(at_zero_noise_and_shape(graph, affine), [])())
    values = _values(graph, predictor, arguments, affine)
    if values is None or not _close(values[1:], [values[0]] * (len(values) - 1)):
        return None
    return values[0]


def _arguments(predictor: TensorVariable, affine: AffineTest) -> list[np.ndarray]:
    """Return arrays of the predictor's shape within the range in which all links differ."""
    shape = np.shape(affine.compile(at_zero_noise_and_shape(predictor, affine), [])())
    rng = np.random.default_rng(0)
    return [rng.uniform(-2.5, 3.5, shape) for _ in range(3)]


def _values(
    graph: TensorVariable, predictor: TensorVariable, arguments: Sequence[np.ndarray], affine: AffineTest
) -> list[np.ndarray] | None:
    """Evaluate a graph with each argument in the place of the predictor; None where other noise enters."""
    if graph is predictor:
        return list(arguments)
    function = as_function_of(graph, predictor, affine)
    return None if function is None else [function(z) for z in arguments]


def as_function_of(
    graph: TensorVariable, predictor: TensorVariable, affine: AffineTest
) -> Callable[[np.ndarray], np.ndarray] | None:
    """Return a graph's value as a function of the predictor's; None where other noise enters."""
    free = predictor.type("free")
    replaced = graph_replace([graph], {predictor: free}, strict=False)[0]
    if value_depends_on(replaced, list(affine.noise)):
        return None
    function = affine.compile(at_zero_noise_and_shape(replaced, affine), [free])
    return lambda z: np.asarray(function(z.astype(predictor.dtype)))


def _close(values: Sequence[np.ndarray], expected: Sequence[np.ndarray]) -> bool:
    """Compare lists of arrays by shape and value; PyMC writes some constants of its links in single precision."""
    return all(
        np.shape(v) == np.shape(e) and np.allclose(v, e, rtol=1e-6, atol=1e-9)
        for v, e in zip(values, expected, strict=True)
    )


def what_is_not_affine(name: str, parameter: TensorVariable, affine: AffineTest) -> str:
    """Say which operation, nearest to the latent variables, makes the predictor non-affine."""
    current = first_not_affine(parameter, affine)
    return (
        f"The predictor of {name!r} is not affine in the latent variables: the operation {operation_of(current)} is "
        f"applied to {names_of(current, list(affine.noise))}. Leave one of these out of latent=[...] so that it "
        f"becomes a hyperparameter, or rewrite that term."
    )


def first_not_affine(graph: TensorVariable, affine: AffineTest) -> TensorVariable:
    """Return the graph behind one that is not affine, nearest to the latent variables, all inputs of which are."""
    while inputs := [] if graph.owner is None else [i for i in graph.owner.inputs if not affine(i)]:
        graph = inputs[0]
    return graph


def operation_of(variable: TensorVariable) -> str:
    """Return the name of the operation that computes a variable."""
    operation = variable.owner.op
    if isinstance(operation, ApplyLinearMap):
        return apply_operator.__name__
    return type(getattr(operation, "scalar_op", operation)).__name__


def names_of(variable: TensorVariable, noise: Sequence[TensorVariable]) -> str:
    """Return the names of the latent variables that a graph depends on, quoted."""
    reached = [v.name.removesuffix("_factored").removesuffix("_noise") for v in noise if depends_on([variable], [v])]
    return ", ".join(repr(name) for name in reached)
