"""Find the affine predictor of a likelihood and the link between it and the distribution's parameter."""

from collections.abc import Callable, Sequence
from typing import Any

import numpy as np
import pytensor
import pytensor.tensor as pt
from pytensor.graph.replace import graph_replace
from pytensor.graph.traversal import explicit_graph_inputs
from pytensor.tensor.variable import TensorVariable

from pymc_ep.exceptions import UnsupportedModelError
from pymc_ep.recognise.families import LINKS
from pymc_ep.recognise.graph import depends_on, is_affine_numerically, is_affine_symbolically, value_depends_on

__all__ = ["AffineTest", "find_predictor"]

# PyMC writes some constants of its links in single precision, hence the tolerance of the comparison.
_LINK_POINTS = (-2.3, -0.7, 0.4, 1.9, 3.1)


class AffineTest:
    """Whether a graph is affine in the noise, by its derivative's graph and by its values.

    Parameters
    ----------
    noise : dict
        Noise variables and the shapes of their values.
    point : dict
        Hyperparameter value variables and a working point.
    """

    def __init__(self, noise: dict[TensorVariable, tuple[int, ...]], point: dict[TensorVariable, np.ndarray]):
        self.noise = noise
        self.point = point
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
        return is_affine_numerically(lambda at: function(*at), shapes, np.random.default_rng(0))

    def compile(self, graph: TensorVariable, arguments: Sequence[TensorVariable]) -> Callable[..., np.ndarray]:
        """Compile a graph, quickly, at the working point of the hyperparameters."""
        needed = set(explicit_graph_inputs([graph]))
        at_point = {v: pt.constant(x, dtype=v.dtype) for v, x in self.point.items() if v in needed}
        fixed = graph_replace([graph], at_point, strict=False)[0] if at_point else graph
        return pytensor.function(list(arguments), fixed, mode="FAST_COMPILE", on_unused_input="ignore")


def find_predictor(
    name: str, parameter: TensorVariable, links: dict[str, str], affine: AffineTest
) -> tuple[TensorVariable, str]:
    """Return the affine predictor behind a distribution's parameter, and the name of the link.

    Parameters
    ----------
    name : str
        The observed variable, for messages.
    parameter : TensorVariable
        The parameter that carries the predictor, in terms of hyperparameters and noise.
    links : dict
        The links that the family accepts.
    affine : AffineTest

    Raises
    ------
    UnsupportedModelError
        Where the parameter is not a known link of one affine predictor; names the operation in the way.
    """
    noise = list(affine.noise)
    if not depends_on([parameter], noise):
        raise UnsupportedModelError(
            f"{name!r} does not depend on any latent variable; observe it in a model of its own, or name other "
            f"variables with latent=[...]."
        )
    between: list[str] = []
    nearest = None
    current = parameter
    while current is not None:
        if affine(current):
            nearest = current if nearest is None else nearest
            for link in links:
                if _follows(parameter, current, LINKS[link], affine):
                    return current, link
            if "exp" in links and _follows_scaled(parameter, current, affine):
                return current + pt.log(_with_predictor(parameter, current, 0.0)), "exp"
        if nearest is None:
            between.append(_operation(current))
        current = _only_way_down(current, affine)
    if nearest is not None:
        raise UnsupportedModelError(
            f"The link of {name!r} is none of {', '.join(links)}: its parameter is {' of '.join(between)} of an affine "
            f"predictor. Use one of these links, or leave {_names(nearest, noise)} out of latent=[...]."
        )
    raise UnsupportedModelError(_what_is_not_affine(name, parameter, affine))


def _only_way_down(variable: TensorVariable, affine: AffineTest) -> TensorVariable | None:
    """Return the next variable through which all noise enters: an input, or the one affine graph behind several."""
    noise = list(affine.noise)
    inputs = set() if variable.owner is None else {i for i in variable.owner.inputs if depends_on([i], noise)}
    if len(inputs) == 1:
        return inputs.pop()
    behind: set[TensorVariable] = set()
    while inputs:
        found = inputs.pop()
        if affine(found):
            behind.add(found)
        elif found.owner is not None:
            inputs |= {i for i in found.owner.inputs if depends_on([i], noise)}
    return behind.pop() if len(behind) == 1 else None


def _follows(parameter: TensorVariable, predictor: TensorVariable, link: Callable, affine: AffineTest) -> bool:
    """Whether the parameter takes the link's values when the predictor is set to each of several constants."""
    if parameter is predictor:
        return link is LINKS["identity"]
    function = _of_level(parameter, predictor, affine)
    return function is not None and all(_close(function(x), link(np.float64(x))) for x in _LINK_POINTS)


def _follows_scaled(parameter: TensorVariable, predictor: TensorVariable, affine: AffineTest) -> bool:
    """Whether the parameter is a positive exposure, free of the noise, times the exponential of the predictor."""
    function = None if parameter is predictor else _of_level(parameter, predictor, affine)
    if function is None:
        return False
    exposure = function(0.0)
    return bool(np.all(exposure > 0)) and all(_close(function(x) / exposure, np.exp(x)) for x in _LINK_POINTS)


def _close(values: np.ndarray, expected: np.ndarray) -> bool:
    return np.allclose(values, expected, rtol=1e-6, atol=1e-9)


def _of_level(
    parameter: TensorVariable, predictor: TensorVariable, affine: AffineTest
) -> Callable[[float], np.ndarray] | None:
    """Compile the parameter as a function of one level for the whole predictor; None where more noise enters."""
    level = pt.scalar("level", dtype=predictor.dtype)
    filled = _with_predictor(parameter, predictor, level)
    if value_depends_on(filled, list(affine.noise)):
        return None
    at_zero = {v: pt.zeros(shape, dtype=v.dtype) for v, shape in affine.noise.items()}
    filled = graph_replace([filled], at_zero, strict=False)[0]
    return affine.compile(filled, [level])


def _with_predictor(parameter: TensorVariable, predictor: TensorVariable, level: Any) -> TensorVariable:
    constant = pt.full(predictor.shape, level, dtype=predictor.dtype)
    return graph_replace([parameter], {predictor: constant}, strict=False)[0]


def _what_is_not_affine(name: str, parameter: TensorVariable, affine: AffineTest) -> str:
    """Say which operation, nearest to the latent variables, makes the predictor non-affine."""
    current = parameter
    while True:
        inputs = [] if current.owner is None else [i for i in current.owner.inputs if not affine(i)]
        if not inputs:
            break
        current = inputs[0]
    return (
        f"The predictor of {name!r} is not affine in the latent variables: the operation {_operation(current)} is "
        f"applied to {_names(current, list(affine.noise))}. Leave one of these out of latent=[...] so that it becomes "
        f"a hyperparameter, or rewrite that term."
    )


def _operation(variable: TensorVariable) -> str:
    operation = variable.owner.op
    return type(getattr(operation, "scalar_op", operation)).__name__


def _names(variable: TensorVariable, noise: Sequence[TensorVariable]) -> str:
    reached = [v.name.removesuffix("_factored").removesuffix("_noise") for v in noise if depends_on([variable], [v])]
    return ", ".join(repr(name) for name in reached)
