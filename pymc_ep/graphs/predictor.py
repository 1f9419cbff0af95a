"""Recognition of the affine predictor of a likelihood, and of the link to the distribution's parameter."""

import warnings
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from typing import Any, NamedTuple

import numpy as np
import pytensor.tensor as pt
from pytensor.compile.sharedvalue import SharedVariable
from pytensor.gradient import NullTypeGradError
from pytensor.graph.basic import Apply, Constant
from pytensor.graph.op import Op
from pytensor.graph.replace import graph_replace
from pytensor.graph.traversal import explicit_graph_inputs, io_toposort
from pytensor.tensor.elemwise import Elemwise
from pytensor.tensor.subtensor import AdvancedSubtensor
from pytensor.tensor.variable import TensorVariable

from pymc_ep.concurrency import compiled_function
from pymc_ep.exceptions import InvalidDataError, UnsupportedModelError, at_index, first_index
from pymc_ep.graphs.families import Family, Link
from pymc_ep.graphs.queries import (
    depends_on,
    dominators,
    is_affine_numerically,
    is_affine_symbolically,
    value_depends_on,
)
from pymc_ep.modes import quick_mode
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
    "index_error",
    "indexing_nodes",
    "names_of",
    "needing_gradients",
    "not_affine_message",
    "operation_of",
    "require_latent",
    "warn_of_missing_groups",
]


class NotAffineError(UnsupportedModelError):
    """A mean or predictor is not affine in the proposed latent variables; it may be affine in fewer of them."""


class AffineTest:
    """Test of whether a graph is affine in the noise, the zero-mean parts of latent variables.

    The graph of its derivative must not depend on the noise, and its value midway between two points must be the mean
    of its values there.

    Parameters
    ----------
    noise : dict
        Shape of each noise variable, by variable.
    point : dict
        Values of the hyperparameters at which graphs are evaluated, by value variable.
    zeros : dict, optional
        For each noise variable, a graph of zeros in its shape that is free of noise.
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
        self._results: dict[TensorVariable, bool] = {}

    def __call__(self, graph: TensorVariable) -> bool:
        """Return whether a graph is affine in the noise; results are cached."""
        if graph not in self._results:
            self._results[graph] = self._test(graph)
        return self._results[graph]

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
            raise index_error(names_of(graph, reached), error) from error

    def compile(
        self, graph: TensorVariable, arguments: Sequence[TensorVariable], *, without_checks: bool = False
    ) -> Callable[..., np.ndarray]:
        """Return a compiled function from `arguments` to a graph, with the hyperparameters fixed at `point`.

        With `without_checks`, PyMC's checks of parameters are left out.
        """
        needed = set(explicit_graph_inputs([graph]))
        at_point = {v: pt.constant(x, dtype=v.dtype) for v, x in self.point.items() if v in needed}
        fixed = graph_replace([graph], at_point, strict=False)[0] if at_point else graph
        mode = quick_mode("local_remove_check_parameter") if without_checks else quick_mode()
        return compiled_function(arguments, fixed, mode=mode, on_unused_input="ignore")


def index_error(names: str, error: IndexError) -> InvalidDataError:
    """Return the error for an index out of range; `names` are the indexed variables, quoted as by `names_of`."""
    reason = str(error).partition("\n")[0]
    return InvalidDataError(
        f"The model indexes {names} out of range: {reason}. Check the index array against the variable's shape or "
        f"dims. A new group is predicted by a model that has it from the start, without data, or by its own variable."
    )


def indexing_nodes(graphs: Sequence[TensorVariable], noise: Sequence[TensorVariable]) -> Iterator[Apply]:
    """Yield the nodes that index, by arrays, a graph that depends on the latent variables `noise`."""
    for node in io_toposort([], list(graphs)):
        if isinstance(node.op, AdvancedSubtensor) and depends_on([node.inputs[0]], noise):
            yield node


def warn_of_missing_groups(name: str, predictor: TensorVariable, noise: Sequence[TensorVariable]) -> None:
    """Warn where the index of a latent variable is -1 at some places and not negative at others.

    pandas codes a missing label as -1, and the index -1 selects the last value.
    """
    for node in indexing_nodes([predictor], noise):
        for index in (v for v in node.inputs[1:] if isinstance(v, Constant | SharedVariable) and v.ndim):
            places = np.asarray(index.data if isinstance(index, Constant) else index.get_value(borrow=True))
            missing = places == -1
            if places.dtype.kind == "i" and missing.any() and (places >= 0).any():
                warnings.warn(
                    f"The predictor of {name!r} takes the last value of {names_of(node.inputs[0], noise)}"
                    f"{at_index(first_index(missing))}, where its index is -1, as pandas codes a missing label. Leave "
                    f"such observations out, or give them a group.",
                    UserWarning,
                    stacklevel=2,
                )


@contextmanager
def needing_gradients(name: str) -> Iterator[None]:
    """Raise, for an operation without a gradient in a ``with`` block, an error with the name of the variable."""
    try:
        yield
    except (NotImplementedError, NullTypeGradError) as error:
        raise UnsupportedModelError(
            f"{name!r} depends on its latent variables through an operation that has no gradient ({error}), so that "
            f"fits cannot tell whether it is linear in them. Write it in PyTensor, or sample by pm.sample with a step "
            f"that needs no gradient, such as step=pm.Slice() or pm.DEMetropolisZ()."
        ) from error


class Found(NamedTuple):
    """Site of a likelihood, with static options, predictor, name of the link and parameters; any further predictors."""

    site: Site
    options: dict[str, Any]
    predictor: TensorVariable
    link: str
    parameters: list[TensorVariable]
    others: tuple[TensorVariable, ...] = ()


def find_predictor(
    name: str, op: Op, family: Family, parameters: Sequence[TensorVariable], affine: AffineTest
) -> Found:
    """Return predictor, link and site of a likelihood with a registered family.

    Parameters
    ----------
    name : str
        The observed variable, for messages.
    op : Op
        Op of the distribution, which holds the static options of the site.
    family : Family
    parameters : sequence of TensorVariable
        Parameters of the distribution, as graphs of hyperparameters and noise.
    affine : AffineTest

    Raises
    ------
    NotAffineError
        Where the parameter is not a known link of one affine predictor; names the operation that prevents it.
    """
    parameter = parameters[family.predictor]
    require_latent(name, [parameter], affine)
    site_parameters = family.site_parameters(parameters)
    chain = dominators([parameter], affine.noise)
    nearest = None
    for place, current in enumerate(chain):
        if affine(current):
            nearest = current if nearest is None else nearest
            match = _match_link(chain[: place + 1], family, site_parameters, affine)
            if match is not None:
                eta, link = match
                site = get_site(family.links[link])
                return Found(site, family.options(op), eta, link, [at_zero_noise(p, affine) for p in site_parameters])
    if nearest is not None:
        between = [operation_of(v) for v in chain[: chain.index(nearest)]]
        raise NotAffineError(
            f"The link of {name!r} is none of {', '.join(family.links)}: its parameter is {' of '.join(between)} of an "
            f"affine predictor. Use one of these links, or name all but {names_of(nearest, list(affine.noise))} in "
            f"latent=[...]."
        )
    raise NotAffineError(not_affine_message(name, parameter, affine))


def require_latent(name: str, parameters: Sequence[TensorVariable], affine: AffineTest) -> None:
    """Raise where no parameter of a likelihood depends on the noise."""
    if not depends_on(parameters, list(affine.noise)):
        raise NotAffineError(
            f"{name!r} does not depend on any latent variable; observe it in a model of its own, or name other "
            f"variables with latent=[...]."
        )


def at_zero_noise(graph: TensorVariable, affine: AffineTest) -> TensorVariable:
    """Return a graph with the noise replaced by zeros."""
    return graph_replace([graph], affine.zeros, strict=False)[0] if depends_on([graph], affine.zeros) else graph


def _match_link(
    chain: Sequence[TensorVariable], family: Family, site_parameters: Sequence[TensorVariable], affine: AffineTest
) -> tuple[TensorVariable, str] | None:
    """Return eta and the name of the link where the first graph of a chain is a known inverse link of the last one.

    The first graph is the parameter, the last one is affine. Between link and parameter, elements may be selected,
    repeated or reordered (``rate[group]``): eta is then the affine graph after the same selection, and must itself be
    affine. An offset free of noise, such as the log of an exposure, may be added to eta. The match is verified by
    value, at arguments that differ from element to element. The site's parameters must not vary with the noise. Return
    None where there is no such match.
    """
    parameter, current = chain[0], chain[-1]
    arguments = _arguments(current, affine)
    target = _values(parameter, current, arguments, affine)
    parameter_values = [_fixed_value(p, current, arguments, affine) for p in site_parameters]
    fixed = [value for value in parameter_values if value is not None]
    if target is None or len(fixed) < len(parameter_values):
        return None
    eta = _apply_selections(chain)
    if eta is None or not affine(eta):
        return None
    values = _values(eta, current, arguments, affine)
    if values is None:
        return None
    for name in family.links:
        link = family.link(name)
        if _link_matches(link, values, fixed, target):
            return (eta if link.sign > 0 else -eta), name
        if link.forward is None:
            continue
        # parameter = g(eta + offset) with g the inverse link, so that offset = g^-1(parameter at eta = 0).
        offset = _offset(parameter, current, link.forward, site_parameters, affine)
        with np.errstate(invalid="ignore", divide="ignore", over="ignore"):
            shift = np.asarray(affine.compile(at_zero_noise_and_shape(offset, affine), [])())
        if np.all(np.isfinite(shift)) and _link_matches(link, values, fixed, target, shift):
            return (eta + offset if link.sign > 0 else -eta - offset), name
    return None


def _apply_selections(chain: Sequence[TensorVariable]) -> TensorVariable | None:
    """Return the last graph of a chain with the chain's operations that are not elementwise applied to it.

    None where an elementwise operation, which is left out, changes the shape: an amplitude times a covariance is no
    predictor.
    """
    eta = chain[-1]
    for inner, outer in zip(chain[:0:-1], chain[-2::-1]):
        if not isinstance(outer.owner.op, Elemwise) and inner in outer.owner.inputs:
            if not inner.type.is_super(eta.type):
                return None
            eta = graph_replace([outer], {inner: eta}, strict=False)[0]
    return eta


def _offset(
    parameter: TensorVariable,
    current: TensorVariable,
    forward: Callable[..., TensorVariable],
    site_parameters: Sequence[TensorVariable],
    affine: AffineTest,
) -> TensorVariable:
    """Return the offset, which is the link function `forward` of the parameter at a predictor of zero."""
    at_zero = graph_replace([parameter], {current: pt.zeros_like(current)}, strict=False)[0]
    return forward(at_zero_noise(at_zero, affine), *(at_zero_noise(p, affine) for p in site_parameters))


def _link_matches(
    link: Link,
    values: Sequence[np.ndarray],
    fixed: Sequence[np.ndarray],
    target: Sequence,
    shift: np.ndarray | float = 0.0,
) -> bool:
    """Whether the inverse link of ``values + shift`` equals the distribution's parameter, `target`."""
    with np.errstate(over="ignore", invalid="ignore"):
        try:
            return _all_close(target, [link.inverse(z + shift, *fixed) for z in values])
        except ValueError:  # Shapes that do not broadcast.
            return False


def at_zero_noise_and_shape(graph: TensorVariable, affine: AffineTest) -> TensorVariable:
    """Return a graph with the noise replaced by zeros of the constant shapes in `affine`."""
    zero = {v: pt.zeros(shape, dtype=v.dtype) for v, shape in affine.noise.items()}
    return graph_replace([graph], zero, strict=False)[0]


def _fixed_value(
    graph: TensorVariable, predictor: TensorVariable, arguments: Sequence[np.ndarray], affine: AffineTest
) -> np.ndarray | None:
    """Return the value of a site parameter; None where it varies with the predictor, or with noise by another path."""
    if not value_depends_on(graph, list(affine.noise)):
        return np.asarray(affine.compile(at_zero_noise_and_shape(graph, affine), [])())
    values = _values(graph, predictor, arguments, affine)
    if values is None or not _all_close(values[1:], [values[0]] * (len(values) - 1)):
        return None
    return values[0]


def _arguments(predictor: TensorVariable, affine: AffineTest) -> list[np.ndarray]:
    """Return three arrays of the predictor's shape, uniform in [-2.5, 3.5].

    On that range links differ by more than the tolerance of `_all_close`, and none saturates: the complementary
    log-log, the steepest, is exp(-exp(3.5)) = 4e-15 from one at its end.
    """
    shape = np.shape(affine.compile(at_zero_noise_and_shape(predictor, affine), [])())
    rng = np.random.default_rng(0)
    return [rng.uniform(-2.5, 3.5, shape) for _ in range(3)]


def _values(
    graph: TensorVariable, predictor: TensorVariable, arguments: Sequence[np.ndarray], affine: AffineTest
) -> list[np.ndarray] | None:
    """Return a graph's values at three values of the predictor; None where noise also enters by another path."""
    if graph is predictor:
        return list(arguments)
    function = as_function_of(graph, predictor, affine)
    return None if function is None else [function(z) for z in arguments]


def as_function_of(
    graph: TensorVariable, predictor: TensorVariable, affine: AffineTest
) -> Callable[[np.ndarray], np.ndarray] | None:
    """Return a graph as a function of the predictor's value; None where noise also enters by another path."""
    free = predictor.type("free")
    replaced = graph_replace([graph], {predictor: free}, strict=False)[0]
    if value_depends_on(replaced, list(affine.noise)):
        return None
    function = affine.compile(at_zero_noise_and_shape(replaced, affine), [free])
    return lambda z: np.asarray(function(z.astype(predictor.dtype)))


def _all_close(values: Sequence[np.ndarray], expected: Sequence[np.ndarray]) -> bool:
    """Whether arrays agree in shape, and in value to 1e-6: PyMC has link constants in single precision."""
    return all(
        np.shape(v) == np.shape(e) and np.allclose(v, e, rtol=1e-6, atol=1e-9)
        for v, e in zip(values, expected, strict=True)
    )


def not_affine_message(name: str, parameter: TensorVariable, affine: AffineTest) -> str:
    """Return the message that names the operation, nearest to the latent variables, that is not affine."""
    current = first_not_affine(parameter, affine)
    return (
        f"The predictor of {name!r} is not affine in the latent variables: the operation {operation_of(current)} is "
        f"applied to {names_of(current, list(affine.noise))}. Name all but one of these in latent=[...], "
        f"which becomes a hyperparameter, or rewrite that term."
    )


def first_not_affine(graph: TensorVariable, affine: AffineTest) -> TensorVariable:
    """Return an ancestor of a non-affine graph that is not affine although all of its inputs are."""
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
