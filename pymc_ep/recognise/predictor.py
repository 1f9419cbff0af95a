"""Find the affine predictor of a likelihood and the link between it and the distribution's parameter."""

from collections.abc import Callable, Sequence

import numpy as np
import pytensor
import pytensor.tensor as pt
from pytensor.graph.replace import graph_replace
from pytensor.graph.traversal import explicit_graph_inputs
from pytensor.tensor.variable import TensorVariable

from pymc_ep.exceptions import UnsupportedModelError
from pymc_ep.recognise.families import LINKS
from pymc_ep.recognise.graph import depends_on, is_affine_numerically, is_affine_symbolically, value_depends_on

__all__ = ["AffineTest", "NotAffineError", "find_predictor"]


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
        raise NotAffineError(
            f"{name!r} does not depend on any latent variable; observe it in a model of its own, or name other "
            f"variables with latent=[...]."
        )
    chain = [parameter]
    nearest = None
    while chain[-1] is not None:
        current = chain[-1]
        if affine(current):
            nearest = current if nearest is None else nearest
            found = _behind_link(chain, links, affine)
            if found is not None:
                return found
        chain.append(_only_way_down(current, affine))
    if nearest is not None:
        between = [_operation(v) for v in chain[: chain.index(nearest)]]
        raise NotAffineError(
            f"The link of {name!r} is none of {', '.join(links)}: its parameter is {' of '.join(between)} of an affine "
            f"predictor. Use one of these links, or leave {_names(nearest, noise)} out of latent=[...]."
        )
    raise NotAffineError(_what_is_not_affine(name, parameter, affine))


def _behind_link(
    chain: Sequence[TensorVariable], links: dict[str, str], affine: AffineTest
) -> tuple[TensorVariable, str] | None:
    """Return eta and the link, where the first graph of a chain is a known link of the last, which is affine.

    Between link and parameter values may be selected, repeated or reordered (``rate[group]``): the same is then
    done to the affine graph. An exposure, free of the noise, may multiply an exponential. Everything is verified
    by value, at arguments that differ from element to element.
    """
    parameter, current = chain[0], chain[-1]
    if parameter is current:
        return (current, "identity") if "identity" in links else None
    arguments = _arguments(current, affine)
    at = {v: _values(v, current, arguments, affine) for v in chain}
    if at[parameter] is None:
        return None
    for link in links:
        inverse = LINKS[link]
        for linked in chain[-2::-1]:
            if at[linked] is None or not _close(at[linked], [inverse(z) for z in arguments]):
                continue
            for outer in chain[: chain.index(linked) + 1]:
                eta = graph_replace([outer], {linked: current}, strict=False)[0] if outer is not linked else current
                values = _values(eta, current, arguments, affine)
                if outer is parameter and _close(at[parameter], [inverse(z) for z in values]):
                    return eta, link
                exposure = _exposure(parameter, current, affine) if link == "exp" else None
                if exposure is not None and _close(at[parameter], [exposure[1] * np.exp(z) for z in values]):
                    return eta + pt.log(exposure[0]), link
    return None


def _arguments(predictor: TensorVariable, affine: AffineTest) -> list[np.ndarray]:
    """Return arrays of the predictor's shape within the range in which all links differ."""
    zero = {v: pt.zeros(shape, dtype=v.dtype) for v, shape in affine.noise.items()}
    shape = np.shape(affine.compile(graph_replace([predictor], zero, strict=False)[0], [])())
    rng = np.random.default_rng(0)
    return [rng.uniform(-2.5, 3.5, shape) for _ in range(3)]


def _values(
    graph: TensorVariable, predictor: TensorVariable, arguments: Sequence[np.ndarray], affine: AffineTest
) -> list[np.ndarray] | None:
    """Evaluate a graph with each argument in the place of the predictor; None where other noise enters."""
    if graph is predictor:
        return list(arguments)
    free = predictor.type("free")
    replaced = graph_replace([graph], {predictor: free}, strict=False)[0]
    if value_depends_on(replaced, list(affine.noise)):
        return None
    zero = {v: pt.zeros(shape, dtype=v.dtype) for v, shape in affine.noise.items()}
    function = affine.compile(graph_replace([replaced], zero, strict=False)[0], [free])
    return [np.asarray(function(z.astype(predictor.dtype))) for z in arguments]


def _exposure(
    parameter: TensorVariable, predictor: TensorVariable, affine: AffineTest
) -> tuple[TensorVariable, np.ndarray] | None:
    """Return the parameter at predictor 0, as a graph and by value, where it is positive."""
    graph = graph_replace([parameter], {predictor: pt.zeros_like(predictor)}, strict=False)[0]
    zero = {v: pt.zeros(shape, dtype=v.dtype) for v, shape in affine.noise.items()}
    value = np.asarray(affine.compile(graph_replace([graph], zero, strict=False)[0], [])())
    return (graph, value) if np.all(value > 0) else None


def _close(values: Sequence[np.ndarray], expected: Sequence[np.ndarray]) -> bool:
    """Compare lists of arrays by shape and value; PyMC writes some constants of its links in single precision."""
    return all(
        np.shape(v) == np.shape(e) and np.allclose(v, e, rtol=1e-6, atol=1e-9)
        for v, e in zip(values, expected, strict=True)
    )


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
