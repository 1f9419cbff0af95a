"""Hidden-Markov-tree prior of an image: wavelet coefficients that are mixtures, with indicators on quad-trees."""

from collections.abc import Callable, Mapping, Sequence
from functools import partial
from typing import TYPE_CHECKING, Any, NamedTuple, NoReturn

import numpy as np
import pymc as pm
import pytensor.tensor as pt
from pymc.distributions.continuous import FlatRV
from pymc.distributions.dist_math import check_parameters
from pymc.distributions.distribution import Continuous, SymbolicRandomVariable
from pymc.logprob.abstract import _logprob
from pymc.pytensorf import normalize_rng_param
from pytensor.graph.basic import Constant

from pymc_ep.compat import random_draw
from pymc_ep.distributions.potentials import (
    Potential,
    known_shape,
    length_of,
    read_potential,
    require_positive,
    static_shape,
)
from pymc_ep.exceptions import InvalidDataError, UnsupportedModelError
from pymc_ep.numerics.factorisation.quad_forest import Forest, quad_forest
from pymc_ep.operators import LinearMap, Mask, Wavelet2D, apply_operator

if TYPE_CHECKING:
    import pywt

__all__ = ["Component", "WaveletTree", "WaveletTreeRV", "each_probability"]

_PSEUDO_COUNTS = np.float64(2.0)
"""Both parameters of the beta prior of probabilities that are not given. Its one pseudo-observation of each state keeps
them off 0 and 1 where a level has no node in one of the states. Python's 2.0 would be single precision."""
_FIRST = (0.1, 0.9)
"""Initial values of probabilities that are not given, for nodes with a parent in the low and in the high state."""
_FIRST_ROOT = 0.5


class Component(NamedTuple):
    """The prior of one set of coefficients, the details or the scaling coefficients.

    Attributes
    ----------
    linear_map : LinearMap
        Map from the image to these coefficients; its groups are the levels.
    potentials : tuple of Potential
        Potentials of the low and the high state, or a single one without states.
    forest : Forest
        The forest of the state indicators.
    """

    linear_map: LinearMap
    potentials: tuple[Potential, ...]
    forest: Forest


class WaveletTreeRV(SymbolicRandomVariable):
    """Op of `WaveletTree`: draws the states from the roots to the leaves, then coefficients, then the image.

    Attributes
    ----------
    components : tuple of Component
        Priors of the details and, unless flat, of the scaling coefficients.
    linear_map : Wavelet2D
        Map from the image to all coefficients, in the order of the components.
    """

    _print_name = ("WaveletTree", "\\operatorname{WaveletTree}")

    def __init__(self, *args: Any, components: Sequence[Component], linear_map: Wavelet2D, **kwargs: Any) -> None:
        self.components, self.linear_map = tuple(components), linear_map
        super().__init__(*args, **kwargs)

    def split(self, parameters: Sequence[Any]) -> list[tuple[list[list[Any]], list[Any]]]:
        """Return, for each component, the parameters of its potentials and the probabilities of its states."""
        return _split(self.components, parameters)


def _split(components: Sequence[Component], parameters: Sequence[Any]) -> list[tuple[list[list[Any]], list[Any]]]:
    left, out = iter(parameters), []
    for component in components:
        by_potential = [[next(left) for _ in potential.ndims] for potential in component.potentials]
        states = len(component.potentials) > 1
        probabilities = [next(left) for _ in range(1 + (len(component.forest.shapes) > 1))] if states else []
        out.append((by_potential, probabilities))
    return out


def each_probability(forest: Forest, probabilities: Sequence[Any]) -> tuple[Any, Any]:
    """Return P(high) of each node, (n,), given a parent in the low state, and the same given one in the high state.

    Parameters
    ----------
    forest : Forest
    probabilities : (root, child)
        Graphs of P(high) at the roots, (), and at other nodes, (levels - 1, 2), with a column for each state of the
        parent; `child` is left out for a forest of one level.
    """
    root, *child = (p.astype("float64") for p in probabilities)
    # As a variable: PyTensor would convert a plain array used as an index element by element, in Python.
    levels = pt.constant(np.repeat(np.arange(len(forest.shapes)), [int(np.prod(shape)) for shape in forest.shapes]))
    # P(high | parent in state d) is child[l, d] at level l; roots, the last level, have `root` for both d.
    both = [pt.concatenate([*(p[:, state] for p in child), root[None]])[levels] for state in (0, 1)]
    return both[0], both[1]


@_logprob.register(WaveletTreeRV)
def _wavelet_tree_logp(op: WaveletTreeRV, values: Any, *inputs: Any, **kwargs: Any) -> Any:
    (value,) = values
    total = pt.zeros(())
    for component, (by_potential, probabilities) in zip(op.components, op.split(inputs[1:])):
        coefficients = apply_operator(component.linear_map, value).ravel()
        logs = []
        for potential, parameters in zip(component.potentials, by_potential):
            _, state = potential.random(potential.each(parameters, component.linear_map.groups))
            logs.append(pm.logp(state, coefficients))
        if probabilities:
            # log sum_delta P(delta) prod_j (t_high / t_low)(s_j)^delta_j; the product of all t_low(s_j) follows below.
            low, high = each_probability(component.forest, probabilities)
            total += component.forest.log_normaliser(logs[1] - logs[0], low, high, pt)
            inside = [pt.all((p > 0) & (p < 1)) for p in probabilities]
            total = check_parameters(total, *inside, msg="0 < transition probabilities < 1")
        # W is orthonormal: the Jacobian of s = W x is 1.
        total += logs[0].sum()
    return total


class _FlatScalingRV(FlatRV):
    """Scaling coefficients without a prior."""

    name = "flat_scaling"

    @classmethod
    def rng_fn(cls, *args: object, **kwargs: object) -> NoReturn:
        """Raise NotImplementedError: a flat prior has no draws."""
        raise NotImplementedError(
            "The scaling coefficients of a WaveletTree are flat unless scaling= is given, so that it cannot be drawn "
            "from; give them a prior, such as scaling=pm.Normal.dist(0, 10), or draw from the posterior of a fit."
        )


_flat_scaling = _FlatScalingRV()


class WaveletTree(Continuous):
    r"""Hidden-Markov-tree prior of an image: each wavelet coefficient is a mixture of a low and a high state.

    .. math:: p(x) = \sum_\delta P(\delta) \prod_j t_{\delta_j}\bigl((W x)_j\bigr)

    with an orthonormal wavelet transform W, and potentials :math:`t_0` and :math:`t_1` of the low and the high state.
    The indicators :math:`\delta` are on quad-trees, whose roots are the coarsest details ([1]_, [2]_). An edge makes
    its coefficients large on all levels, so a child is likely in the state of its parent. Levels count from the finest.

    Parameters
    ----------
    shape : (int, int), optional
        Rows and columns of the image, multiples of ``2**levels``; by default from `dims`.
    wavelet : str or pywt.Wavelet
        An orthonormal one; the transform is periodic.
    levels : int
        Number of levels of the transform.
    low, high : pymc distribution
        Distributions of coefficients in the low and in the high state: ``pm.Normal.dist(0, s)``,
        ``pm.Laplace.dist(0, b)`` or ``pm.StudentT.dist(nu=2.1, sigma=s)``. Each parameter is one value, or one for each
        level. Neither distribution is constrained to be the wider; a fit starts with the high one as the wider. NUTS
        may exchange the two where their priors are the same.
    scaling : pymc distribution, or a pair of them, optional
        Potential of the scaling coefficients, the image that remains after the last level, or a pair for their low and
        high state. Their prior is flat by default.
    transition : mapping, optional
        Probabilities of the high state, values or random variables: ``"root"``, (), and ``"child"``, (levels - 1, 2),
        where ``child[l, d]`` is for a node of level l with a parent in state d. With a pair for `scaling` also
        ``"scaling"``, (), for every scaling coefficient. Probabilities left out become variables of the model, named
        ``<name>_root`` and so on, with the prior Beta(2, 2).

    Raises
    ------
    InvalidDataError
        For sides that are not multiples of ``2**levels``, parameters of a wrong length or sign, probabilities outside
        (0, 1), and two equal potentials.
    UnsupportedModelError
        For other potentials.

    References
    ----------
    .. [1] M. Crouse, R. Nowak and R. Baraniuk (1998), Wavelet-based statistical signal processing using hidden Markov
       models, IEEE Transactions on Signal Processing 46.
    .. [2] Y.-J. Ko and M. Seeger (2012), Large scale variational Bayesian inference for structured scale mixture
       models, ICML.

    Examples
    --------
    >>> with pm.Model():
    ...     low, high = (pm.HalfNormal(name, 1, shape=3) for name in ("low", "high"))
    ...     u = WaveletTree("u", shape=(32, 32), levels=3, low=pm.Normal.dist(0, low), high=pm.Laplace.dist(0, high))
    """

    rv_type = WaveletTreeRV

    def __new__(cls, name: str, *args: Any, **kwargs: Any) -> Any:
        """Add to the model the probabilities that are not given, then the image."""
        try:
            return super().__new__(cls, name, *args, learned=partial(_learned, name), **kwargs)
        except (InvalidDataError, UnsupportedModelError) as error:
            raise type(error)(f"{name!r}: {error}") from None

    @classmethod
    def dist(
        cls,
        *,
        levels: int,
        low: Any,
        high: Any,
        shape: Any = None,
        wavelet: "str | pywt.Wavelet" = "db2",
        scaling: Any = None,
        transition: Mapping[str, Any] | None = None,
        learned: Callable[[str, tuple[int, ...]], Any] | None = None,
        **kwargs: Any,
    ) -> Any:
        """Return a variable of this distribution outside of any model; all of `transition` is needed.

        ``learned(name, shape)``, set within a model only, returns a variable for a missing probability.
        """
        if kwargs.get("size") is not None:
            raise InvalidDataError(
                f"size={kwargs['size']!r} of a WaveletTree, which is one image; write a variable for each image."
            )
        if shape is None:
            raise InvalidDataError("A WaveletTree needs its shape=(rows, columns), or dims= that have lengths.")
        shape = static_shape(shape)
        details, whole = (Wavelet2D(shape, wavelet, levels, scaling=with_scaling) for with_scaling in (False, True))
        kinds, states = _potentials({"low": low, "high": high}, details.levels)
        others, of_scaling = _scaling_potentials(scaling)
        forests = [quad_forest(3, *details.band_shapes[0], details.levels), quad_forest(1, *details.band_shapes[-1], 1)]
        names = ["root"] + ["child"] * (details.levels > 1), ["scaling"] * (len(others) > 1)
        given = _given_probabilities(transition, [*names[0], *names[1]], details.levels, learned)
        parameters = [*states, *(given[name] for name in names[0]), *of_scaling, *(given[name] for name in names[1])]
        components = [Component(details, kinds, forests[0])]
        if others:
            components.append(Component(_scaling_map(whole, forests[1].size), others, forests[1]))
        return super().dist(parameters, components=components, linear_map=whole, **kwargs)

    @classmethod
    def rv_op(
        cls,
        *parameters: Any,
        components: Sequence[Component],
        linear_map: Wavelet2D,
        size: Any = None,
        rng: Any = None,
    ) -> Any:
        """Return the random variable."""
        rng = normalize_rng_param(rng)
        following, coefficients = rng, []
        for component, (grouped, probabilities) in zip(components, _split(components, parameters)):
            following, drawn = _drawn(component, grouped, probabilities, following)
            coefficients.append(drawn)
        if len(components) == 1:
            flat = linear_map.output_shape[0] - components[0].forest.size
            following, drawn = random_draw(_flat_scaling, size=(flat,), rng=following)
            coefficients.append(drawn)
        # x = W^T s, as W^-1 = W^T.
        image = apply_operator(linear_map.T, pt.concatenate(coefficients))
        axes = (",".join(f"p{i}_{axis}" for axis in range(p.type.ndim)) for i, p in enumerate(parameters))
        signature = ",".join(f"({grouped})" for grouped in axes)
        op = WaveletTreeRV(
            inputs=[rng, *parameters],
            outputs=[following, image],
            components=components,
            linear_map=linear_map,
            extended_signature=f"[rng],{signature}->[rng],(r,c)",
        )
        return op(rng, *parameters)

    def support_point(rv: Any, *parameters: Any) -> Any:
        """Return the graph of the initial value: zeros."""
        return pt.zeros(rv.owner.op.linear_map.input_shape)


def _drawn(
    component: Component, by_potential: Sequence[Sequence[Any]], probabilities: Sequence[Any], rng: Any
) -> tuple[Any, Any]:
    """Return the next random generator and a draw of a component's coefficients, one for each node of its forest."""
    states = []
    for potential, parameters in zip(component.potentials, by_potential):
        each = potential.each(parameters, component.linear_map.groups)
        rng, draws = potential.random([pt.broadcast_to(p, (component.forest.size,)) for p in each], rng)
        states.append(draws)
    if not probabilities:
        return rng, states[0]
    rng, uniform = random_draw(pt.random.uniform, 0.0, 1.0, size=(component.forest.size,), rng=rng)
    high = component.forest.states(uniform, *each_probability(component.forest, probabilities), pt)
    return rng, pt.switch(high, states[1], states[0])


def _potentials(given: Mapping[str, Any], levels: int) -> tuple[tuple[Potential, ...], list[Any]]:
    """Read potentials, given by their arguments' names; return them, and the parameters of all in one list."""
    out, by_potential = [], []
    for argument, potential in given.items():
        kind, parameters = read_potential(potential, "WaveletTree", argument)
        require_positive(kind, parameters, "WaveletTree", argument)
        for parameter in parameters:
            length = length_of(parameter)
            if length not in (None, levels):
                raise InvalidDataError(
                    f"A parameter of {argument}= of a WaveletTree has {length} values, but it has {levels} "
                    f"level{'' if levels == 1 else 's'}; give as many, the finest first, or one."
                )
        out.append(kind)
        by_potential.append(parameters)
    if len(out) > 1 and out[0].op == out[1].op and all(map(_same, *by_potential)):
        names = "= and ".join(given)
        raise InvalidDataError(
            f"{names}= of a WaveletTree are the same distribution, so that its states mean nothing; give the high "
            f"state another scale, or use a SparseField with this potential."
        )
    return tuple(out), [p for parameters in by_potential for p in parameters]


def _same(first: object, second: object) -> bool:
    if isinstance(first, Constant) and isinstance(second, Constant):
        return bool(np.all(np.equal(first.data, second.data)))
    return first is second


def _scaling_potentials(scaling: Any) -> tuple[tuple[Potential, ...], list[Any]]:
    """Return the potentials of the scaling coefficients, empty for a flat prior, and their parameters."""
    if scaling is None:
        return (), []
    if not isinstance(scaling, tuple | list):
        return _potentials({"scaling": scaling}, 1)
    if len(scaling) != 2:
        raise InvalidDataError(
            f"scaling= of a WaveletTree has {len(scaling)} distribution{'' if len(scaling) == 1 else 's'}; give one "
            f"without brackets, or a pair for the low and the high state."
        )
    return _potentials({"scaling[0]": scaling[0], "scaling[1]": scaling[1]}, 1)


def _scaling_map(whole: Wavelet2D, size: int) -> LinearMap:
    kept = np.zeros(whole.output_shape, dtype=bool)
    kept[-size:] = True
    return Mask(whole.output_shape, kept) @ whole


def _given_probabilities(
    transition: Any, names: Sequence[str], levels: int, learned: Callable[[str, tuple[int, ...]], Any] | None
) -> dict[str, Any]:
    """Return the probabilities called `names`: checked ones from `transition`, and learned ones for the rest."""
    if not isinstance(transition, Mapping | None):
        raise InvalidDataError(
            f"transition={transition!r} of a WaveletTree is no mapping; give a dict with the keys "
            f"{' and '.join(map(repr, names))}."
        )
    transition = transition or {}
    for name in transition:
        if name not in names:
            raise InvalidDataError(
                f"transition= of a WaveletTree has {name!r}, which is none of its probabilities: with {levels} level"
                f"{'' if levels == 1 else 's'} and {'a pair' if 'scaling' in names else 'no pair'} for scaling= these "
                f"are {' and '.join(map(repr, names))}. Leave it out, or correct it."
            )
    shapes = {name: (levels - 1, 2) if name == "child" else () for name in names}
    probabilities = {name: _probability(name, transition[name], shapes[name], levels) for name in transition}
    for name in names:
        if name not in probabilities and learned is None:
            raise InvalidDataError(
                f"transition= of a WaveletTree lacks {name!r}; outside of a model there is nothing to learn it by, so "
                f"give its value."
            )
        if name not in probabilities and learned is not None:
            probabilities[name] = learned(name, shapes[name])
    return probabilities


def _probability(name: str, value: Any, shape: tuple[int, ...], levels: int) -> Any:
    try:
        value = pt.as_tensor_variable(value)
    except (NotImplementedError, TypeError, ValueError):
        raise InvalidDataError(
            f"transition[{name!r}] of a WaveletTree is {value!r}; give numbers or a random variable of shape {shape}."
        ) from None
    static = known_shape(value)
    if len(static) != len(shape) or any(n not in (None, wanted) for n, wanted in zip(static, shape)):
        raise InvalidDataError(
            f"transition[{name!r}] of a WaveletTree has the shape {static}; with {levels} level"
            f"{'' if levels == 1 else 's'} it must be {shape}."
        )
    outside = [index for index, p in np.ndenumerate(value.data) if not 0 < p < 1] if isinstance(value, Constant) else []
    if outside:
        where = f" at index {outside[0]}" if shape else ""
        raise InvalidDataError(
            f"transition[{name!r}] of a WaveletTree holds {value.data[outside[0]]}{where}, but probabilities lie "
            f"between 0 and 1, without the ends. Correct it."
        )
    return value


def _learned(owner: str, name: str, shape: tuple[int, ...]) -> Any:
    """Add a variable for a probability of the high state to the model, and return it."""
    first = np.tile(_FIRST, (shape[0], 1)) if shape else _FIRST_ROOT
    return pm.Beta(f"{owner}_{name}", _PSEUDO_COUNTS, _PSEUDO_COUNTS, shape=shape, initval=first)
