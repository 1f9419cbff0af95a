"""Scales that multiply latent variables: s z, with z standard, becomes the latent variable w, whose prior has s.

A model that is written non-centred has the same posterior as the centred one. The map from w to the predictors is free
of hyperparameters, so that it is evaluated once, may be sparse, and leaves a sparse precision sparse.

A factor outside is moved to the variables through all operations that are linear in them: with c and s scalars that
depend on hyperparameters,

    s (A x + b) = A (s x) + s b,        s (x + c y) = s x + (s c) y.

A scale may be a matrix: with independent rows v of z, or of its transpose, and a square M such as a Cholesky factor,

    v M D = w,        w ~ N(0, D M^T Cov(v) M D),        D diagonal, with a scale for each column.

A factor that may be zero, such as a slope with a normal prior, is no scale: z = w / s has no value there.
"""

import math
from collections.abc import Callable, Iterable, Sequence
from dataclasses import replace
from typing import NamedTuple

import numpy as np
import pytensor.scalar as ps
import pytensor.tensor as pt
from pytensor.graph.basic import Apply, equal_computations
from pytensor.graph.replace import graph_replace
from pytensor.graph.traversal import io_toposort
from pytensor.scalar.math import Sigmoid, Softplus
from pytensor.sparse.math import StructuredDot
from pytensor.tensor.basic import Alloc, Join
from pytensor.tensor.elemwise import DimShuffle, Elemwise
from pytensor.tensor.math import Dot, Sum
from pytensor.tensor.shape import Reshape, SpecifyShape
from pytensor.tensor.subtensor import AdvancedSubtensor, Subtensor
from pytensor.tensor.type import TensorType
from pytensor.tensor.variable import TensorVariable

from pymc_ep.graphs.gaussian_variables import block_diagonal
from pymc_ep.graphs.queries import core_op, value_dependent
from pymc_ep.models.latent_gaussian.form import NoiseBlock
from pymc_ep.models.latent_gaussian.prior_moments import deviations_of, variances_of

__all__ = ["absorb_scales"]


class _Mixing(NamedTuple):
    """Product w = v M with the rows v of a latent variable.

    Attributes
    ----------
    matrix : TensorVariable, (k, k)
        M.
    transposed : bool
        Whether v are the columns of the variable.
    """

    matrix: TensorVariable
    transposed: bool

    def rows(self, variable: TensorVariable) -> TensorVariable:
        """Return the argument, transposed if `transposed`: v, (g, k), for the variable, and the variable for v."""
        return variable.T if self.transposed else variable


Factors = tuple[TensorVariable | _Mixing, ...]
"""Factors that multiply a latent variable; a `_Mixing`, if there is one, is the last."""

_POSITIVE = (ps.Exp, ps.Sqrt, Sigmoid, Softplus)
"""Functions whose values may scale a variable, as they are positive for all arguments that a model gives them. Squares
and absolute values are not here: they are zero where their argument is."""
_LEAST_SCALE = 1e-100
"""Least scale: spectral densities of smooth processes underflow at their last frequencies. A variable with a smaller
scale changes no predictor, and the square of the least one, 1e-200, and its inverse are finite."""
_OF_FIRST = (Alloc, DimShuffle, Subtensor, AdvancedSubtensor, Reshape, SpecifyShape, Sum)
"""Operations that are linear in their first input."""


def absorb_scales(
    blocks: Sequence[NoiseBlock],
    outputs: Sequence[TensorVariable],
    predictors: Sequence[int],
    hyper: Iterable[TensorVariable],
) -> tuple[list[NoiseBlock], list[TensorVariable], dict[TensorVariable, TensorVariable]]:
    """Return blocks of the scaled variables w, all outputs as graphs of w, and each former noise as a graph of w.

    Parameters
    ----------
    blocks : sequence of NoiseBlock
    outputs : sequence of TensorVariable
        All graphs that contain noise.
    predictors : sequence of int
        Positions of the outputs whose factors become scales s. In other outputs, such as z itself, z becomes w / s.
    hyper : iterable of TensorVariable
        Value variables of the hyperparameters.
    """
    graph = _Factored([block.noise for block in blocks], outputs, set(hyper))
    factors_of = graph.factors([outputs[place] for place in predictors])
    scaled = dict(zip([block.noise for block in blocks], blocks))
    replacement = {}
    for v, alternatives in factors_of.items():
        block, factors = scaled[v], alternatives[0]
        if (
            not factors
            or block.flat
            or block.factor is not None
            or not all(_same(factors, other) for other in alternatives[1:])
        ):
            continue
        mixing, name = _mixing_among(factors), f"{v.name}_scaled"
        if mixing is None:
            w, scale = v.type(name=name), _not_vanishing(_product(_scales(factors), v))
            scaled[v] = _scaled(block, w, scale)
            replacement[v] = w / scale
        elif variances_of(block) is not None:
            # w = v M, with all scalars in M, and v = w M^-1.
            matrix = math.prod(_scales(factors), start=mixing.matrix)
            w = mixing.rows(v).type(name=name)
            scaled[v] = _mixed(block, w, mixing._replace(matrix=matrix))
            replacement[v] = mixing.rows(w @ pt.linalg.inv(matrix))
    if not replacement:
        return list(blocks), list(outputs), {}

    def leaf(v: TensorVariable, factors: Factors) -> TensorVariable:
        if v in replacement and _same(factors, factors_of[v][0]):
            return scaled[v].noise
        graph = replacement.get(v, v)
        if mixing := _mixing_among(factors):
            graph = mixing.rows(graph) @ mixing.matrix
        return graph * _product(scales, v) if (scales := _scales(factors)) else graph

    # Shapes of the former noise may be left.
    written = graph_replace(graph.written(leaf), replacement, strict=False)
    return list(scaled.values()), written, replacement


def _not_vanishing(scale: TensorVariable) -> TensorVariable:
    """Return a scale, raised to the least one where it is smaller, so that w / s and the variance of w are finite."""
    return pt.switch(pt.abs(scale) < _LEAST_SCALE, np.asarray(_LEAST_SCALE, dtype=scale.dtype), scale)


def _scaled(block: NoiseBlock, w: TensorVariable, scale: TensorVariable) -> NoiseBlock:
    """Return the block of w = s v from the block of v, with s a scalar or of the shape of v."""
    # w = s v has the covariance diag(s) C diag(s) and the root R diag(s), where C = R^T R.
    s = pt.broadcast_to(scale, block.shape).ravel() if scale.ndim else scale
    variances, deviations = variances_of(block), deviations_of(block)
    column = s[:, None] if s.ndim else s
    covariance = column * block.covariance * s if variances is None else pt.diag(variances * s**2)
    root = block.root * s if deviations is None else pt.diag(deviations * s)
    return replace(block, noise=w, covariance=covariance, root=root, outer_scale=s)


def _mixed(block: NoiseBlock, w: TensorVariable, mixing: _Mixing) -> NoiseBlock:
    """Return the block of w = v M from the block of a variable of independent values, whose rows or columns are v."""
    matrix, transposed = mixing

    def rows(values: TensorVariable | None) -> TensorVariable:
        assert values is not None, "the noise is independent"
        return mixing.rows(values.reshape(block.shape))[:, :, None]

    # A row of w = v M, with variances d^2 of v, has the covariance M^T diag(d^2) M and the root diag(d) M.
    return replace(
        block,
        noise=w,
        shape=block.shape[::-1] if transposed else block.shape,
        covariance=block_diagonal(matrix.T @ (rows(variances_of(block)) * matrix)),
        root=block_diagonal(rows(deviations_of(block)) * matrix),
        outer_scale=matrix,
        of_columns=transposed,
    )


class _Rule(NamedTuple):
    """Rule by which factors of the output of a node are moved to its inputs.

    Attributes
    ----------
    inputs : list
        Each input of the node, with its factors; None for an input without noise.
    build : callable
        Takes the inputs with their factors applied, returns the output times its own factors.
    """

    inputs: list[tuple[TensorVariable, Factors] | None]
    build: Callable[[list[TensorVariable | None]], TensorVariable]


class _Factored:
    """Graphs in which factors are moved to the noise that they multiply.

    Parameters
    ----------
    noise, outputs : sequence of TensorVariable
        Noise variables, and the graphs that contain them.
    hyper : set
        Value variables of the hyperparameters.
    """

    def __init__(self, noise: Sequence[TensorVariable], outputs: Sequence[TensorVariable], hyper: set):
        self._noise = list(noise)
        self._outputs = list(outputs)
        self._dependent = value_dependent(outputs, noise)
        self._varying = value_dependent(outputs, hyper)
        self._signed = self._without_sign(hyper)
        self._linear = self._linear_in_noise()
        self._rules: dict[tuple[TensorVariable, Factors], _Rule] = {}
        self._inverses: dict[TensorVariable, TensorVariable] = {}

    def factors(self, outputs: Sequence[TensorVariable]) -> dict[TensorVariable, list[Factors]]:
        """Return, for each noise variable in some outputs, the different factors that multiply it there."""
        asked = self._asked(outputs)
        return {v: list(asked[v]) for v in self._noise if v in asked}

    def written(self, leaf: Callable[[TensorVariable, Factors], TensorVariable]) -> list[TensorVariable]:
        """Return all outputs, with ``leaf(noise, factors)`` in place of a noise variable times its factors."""
        asked = self._asked(self._outputs)
        rebuilt = {(v, factors): leaf(v, factors) for v in self._noise for factors in asked.get(v, ())}
        for node in io_toposort([], self._outputs):
            for out in node.outputs:
                for factors in asked.get(out, ()):
                    rule = self._rule(node, out, factors)
                    graph = rule.build([None if pair is None else rebuilt[pair] for pair in rule.inputs])
                    # A factor that was taken out may have made a product of single precision one of double.
                    graph = graph.astype(out.dtype) if isinstance(out.type, TensorType) else graph
                    rebuilt[out, factors] = out.type.filter_variable(graph, allow_convert=True)
        return [rebuilt.get((out, ()), out) for out in self._outputs]

    def _asked(self, outputs: Sequence[TensorVariable]) -> dict[TensorVariable, dict[Factors, None]]:
        """Return, for each variable between noise and outputs, the different factors that multiply it in these."""
        asked: dict[TensorVariable, dict[Factors, None]] = {}

        def ask(v: TensorVariable, factors: Factors) -> None:
            asked.setdefault(v, {})[factors] = None

        for out in outputs:
            if out in self._dependent:
                ask(out, ())
        for node in reversed(io_toposort([], list(outputs))):
            for out in node.outputs:
                for factors in asked.get(out, ()):
                    for pair in self._rule(node, out, factors).inputs:
                        if pair is not None:
                            ask(*pair)
        return asked

    def _rule(self, node: Apply, out: TensorVariable, factors: Factors) -> _Rule:
        if (out, factors) not in self._rules:
            self._rules[out, factors] = self._new_rule(node, out, factors)
        return self._rules[out, factors]

    def _new_rule(self, node: Apply, out: TensorVariable, factors: Factors) -> _Rule:
        moving = self._moving(node)
        if out in self._linear and (mixing := self._mixing(node)):
            return self._of_mixing(node, mixing, factors)
        # What is not linear is asked for without factors: beyond it graphs stay as they are written.
        if out in self._linear and isinstance(_scalar_op(node), ps.Mul | ps.TrueDiv):
            return self._of_product(node, moving[0], factors)
        if out in self._linear and (isinstance(_scalar_op(node), ps.Add | ps.Sub) or isinstance(node.op, Join)):
            return self._of_sum(node, factors)

        def build(scaled_inputs: list[TensorVariable | None]) -> TensorVariable:
            inputs = [v if scaled is None else scaled for v, scaled in zip(node.inputs, scaled_inputs)]
            return node.clone_with_new_inputs(inputs).outputs[node.outputs.index(out)]

        return _Rule([(v, factors) if v in moving else None for v in node.inputs], build)

    def _moving(self, node: Apply) -> list[TensorVariable]:
        return [v for v in node.inputs if v in self._dependent]

    def _linear_in_noise(self) -> set[TensorVariable]:
        """Return the variables that are linear in noise, by operations through which factors can be moved."""
        linear = set(self._noise)
        for node in io_toposort([], self._outputs):
            moving = self._moving(node)
            if moving and linear.issuperset(moving) and _is_linear(node, moving):
                linear.update(node.outputs)
        return linear

    def _without_sign(self, hyper: set) -> set[TensorVariable]:
        """Return the functions of hyperparameters that may be zero.

        Values of a function in `_POSITIVE`, and functions of such values alone, are taken to be positive.
        """
        signed = set(hyper)
        for node in io_toposort([], self._outputs):
            if not signed.isdisjoint(node.inputs) and not isinstance(_scalar_op(node), _POSITIVE):
                signed.update(node.outputs)
        return signed

    def _of_product(self, node: Apply, moving: TensorVariable, factors: Factors) -> _Rule:
        """Return the rule of a product, or of a division by a graph without noise.

        Its factors that are scales join the factors of the output; other factors stay where they are written.
        """
        scales, rest = [], []
        for place, v in enumerate(node.inputs):
            if v is moving:
                continue
            inverse = isinstance(node.op.scalar_op, ps.TrueDiv) and place > 0
            if v not in self._varying or v in self._signed:
                rest.append((v, inverse))
            elif all(v.type.broadcastable):
                scales.append(self._inverse(_as_scalar(v)) if inverse else _as_scalar(v))
            elif self._scales_values(v, moving) or self._scales_columns(v, moving):
                scales.append(self._inverse(v) if inverse else v)
            else:
                rest.append((v, inverse))

        def build(scaled_inputs: list[TensorVariable | None]) -> TensorVariable:
            graph = next(scaled for scaled in scaled_inputs if scaled is not None)
            for v, inverse in rest:
                graph = graph / v if inverse else graph * v
            return graph

        inner = (*factors, *scales)
        return _Rule([(v, inner) if v is moving else None for v in node.inputs], build)

    def _scales_values(self, v: TensorVariable, z: TensorVariable) -> bool:
        """Whether z is a noise variable, and v, whose shape broadcasts to its shape, may scale each of its values."""
        return z in self._noise and all(map(int.__ge__, v.type.broadcastable, z.type.broadcastable))

    def _scales_columns(self, v: TensorVariable, product: TensorVariable) -> bool:
        """Whether `product` is w = u M or its transpose, for noise u, and v has one scale for each column of w."""
        node = product.owner
        if node is None or self._mixing(node) is None:
            return False
        first = node.inputs[1] in self._dependent
        return v.type.broadcastable == ((False, True) if first else (True, False))

    def _mixing(self, node: Apply) -> _Mixing | None:
        """Return the `_Mixing` of a node that multiplies noise by a square matrix of hyperparameters, else None."""
        moving = self._moving(node)
        if not isinstance(core_op(node.op), Dot) or len(moving) != 1 or moving[0].ndim != 2:
            return None
        first = node.inputs[1] is moving[0]
        matrix = node.inputs[0 if first else 1]
        square = matrix.ndim == 2 and None is not matrix.type.shape[0] == matrix.type.shape[1]
        if not square or matrix not in self._varying or _untransposed(moving[0]) not in self._noise:
            return None
        # In M z and z^T M the rows v are columns of z.
        transposed = first != (_untransposed(moving[0]) is not moving[0])
        return _Mixing(matrix.T if first else matrix, transposed)

    def _of_mixing(self, node: Apply, mixing: _Mixing, factors: Factors) -> _Rule:
        """Return the rule of a product v M with a matrix: scales of the columns of v M become scales of M's columns."""
        first = node.inputs[1] in self._dependent
        matrix, scalars = mixing.matrix, []
        # (v M) D = v (M D): a scale of each column of v M is one of each column of M.
        for factor in _scales(factors):
            if factor.ndim:
                matrix = matrix * (factor.T if first else factor)
            else:
                scalars.append(factor)
        noise = _untransposed(node.inputs[1 if first else 0])

        def build(scaled_inputs: list[TensorVariable | None]) -> TensorVariable:
            (product,) = (scaled for scaled in scaled_inputs if scaled is not None)
            return product.T if first else product

        inner = (*scalars, mixing._replace(matrix=matrix))
        return _Rule([(noise, inner) if v in self._dependent else None for v in node.inputs], build)

    def _of_sum(self, node: Apply, factors: Factors) -> _Rule:
        """Return the rule of a sum or a concatenation: each term has the factors."""
        inputs = [(v, factors) if v in self._dependent else None for v in node.inputs]

        def build(scaled_inputs: list[TensorVariable | None]) -> TensorVariable:
            # The axis of a concatenation may be an input, as its only scalar.
            axes = [isinstance(node.op, Join) and not v.ndim for v in node.inputs]
            operands = [
                scaled if scaled is not None else v * _product(_scales(factors), v) if factors and not is_axis else v
                for v, scaled, is_axis in zip(node.inputs, scaled_inputs, axes)
            ]
            return node.op.make_node(*operands).outputs[0]

        return _Rule(inputs, build)

    def _inverse(self, factor: TensorVariable) -> TensorVariable:
        return self._inverses.setdefault(factor, 1.0 / factor)


def _is_linear(node: Apply, moving: Sequence[TensorVariable]) -> bool:
    """Whether a node is linear, or affine, in `moving`, its inputs with noise."""
    op, scalar_op = node.op, _scalar_op(node)
    if isinstance(scalar_op, ps.Neg | ps.Cast):
        return node.outputs[0].dtype.startswith("float")
    if isinstance(scalar_op, ps.TrueDiv) or isinstance(op, _OF_FIRST):
        return moving == node.inputs[:1]
    if isinstance(scalar_op, ps.Mul) or isinstance(core_op(op), Dot | StructuredDot):
        return len(moving) == 1
    return isinstance(scalar_op, ps.Add | ps.Sub) or isinstance(op, Join)


def _scalar_op(node: Apply) -> object:
    return node.op.scalar_op if isinstance(node.op, Elemwise) else None


def _as_scalar(v: TensorVariable) -> TensorVariable:
    """Return a factor of a single value as a scalar, without the axes of length one that were added to it."""
    while v.owner is not None and isinstance(v.owner.op, DimShuffle) and all(v.owner.inputs[0].type.broadcastable):
        v = v.owner.inputs[0]
    return v.dimshuffle(()) if v.ndim else v


def _untransposed(v: TensorVariable) -> TensorVariable:
    """Return A where a variable is a transpose A^T by its graph, else the variable itself."""
    node = v.owner
    transposes = node is not None and isinstance(node.op, DimShuffle) and node.op.new_order == (1, 0)
    return node.inputs[0] if transposes else v


def _mixing_among(factors: Factors) -> _Mixing | None:
    return next((factor for factor in factors if isinstance(factor, _Mixing)), None)


def _scales(factors: Factors) -> list[TensorVariable]:
    """Return the factors other than a `_Mixing`."""
    return [factor for factor in factors if not isinstance(factor, _Mixing)]


def _product(scales: Sequence[TensorVariable], like: TensorVariable) -> TensorVariable:
    total = math.prod(scales[1:], start=scales[0])
    # An integer, such as the 1 of (1 - p) k, would cut off the digits of k.
    return total.astype(like.dtype) if like.dtype.startswith("float") else total


def _same(first: Factors, second: Factors) -> bool:
    if first == second:
        return True
    transposed = [[f.transposed for f in some if isinstance(f, _Mixing)] for some in (first, second)]
    graphs = [[f.matrix if isinstance(f, _Mixing) else f for f in some] for some in (first, second)]
    return transposed[0] == transposed[1] and len(first) == len(second) and equal_computations(*graphs)
