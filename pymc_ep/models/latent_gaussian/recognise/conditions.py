"""Conditions on the parameters of a distribution, such as sigma > 0, as PyMC's log density has them.

A condition that depends on the predictor is part of the density, which is zero where the condition does not hold: a
probability that is linear in the predictor may exceed one, for example. For each observation, each condition must hold
at some predictor.
"""

from collections.abc import Callable, Iterator, Sequence
from functools import cached_property, reduce
from typing import Any

import numpy as np
import pytensor.tensor as pt
from pytensor.scalar import GT, LT
from pytensor.tensor.basic import Join, MakeVector, ScalarFromTensor
from pytensor.tensor.elemwise import DimShuffle, Elemwise
from pytensor.tensor.math import All
from pytensor.tensor.variable import TensorVariable

from pymc_ep.concurrency import CompiledFunction, compiled_function
from pymc_ep.exceptions import InvalidDataError, at_index
from pymc_ep.graphs.densities import parameter_checks
from pymc_ep.graphs.queries import depends_on, value_dependent
from pymc_ep.modes import quick_mode

__all__ = ["ParameterConditions", "within_conditions"]

_PREDICTORS = np.array([0.0, *(sign * x for x in (0.01, 0.1, 0.5, 1.0, 3.0, 10.0, 30.0, 300.0) for sign in (-1, 1))])
"""Values of the predictor that are tried; each condition must hold at one of them."""
_JOINED = (All, MakeVector, Join, DimShuffle, ScalarFromTensor)
"""Operations by which PyMC joins several conditions into one."""


def within_conditions(density: TensorVariable, eta: TensorVariable) -> TensorVariable:
    """Return a log density that is minus infinity where PyMC's conditions on the predictor `eta` do not hold."""
    met = [_closed(met) for _, met in _conditions(density) if met in value_dependent([met], [eta])]
    if not met:
        return density
    return pt.switch(reduce(pt.and_, (_of_rows(condition, density.ndim) for condition in met)), density, -np.inf)


class ParameterConditions:
    """Check of the parameters of a site for all observations.

    Parameters
    ----------
    density : callable
        ``density(y, eta, *parameters)``: PyMC's log density, with its checks, of arrays that broadcast.
    names : sequence of str
        Names of the site parameters, for messages.
    """

    def __init__(self, density: Callable[..., TensorVariable], names: Sequence[str]):
        self._density = density
        self._names = names

    @cached_property
    def _compiled(self) -> tuple[list[str], list[list[int]], CompiledFunction | None]:
        """Messages of the conditions, positions of the parameters in each, and the compiled function of all conditions.

        The function takes observations, predictors and site parameters, (m,) each. It is None where there are no
        conditions.
        """
        y, eta, *values = arguments = [pt.dvector() for _ in ("y", "eta", *self._names)]
        conditions = list(_conditions(self._density(y, eta, *values)))
        if not conditions:
            return [], [], None
        messages, places, outputs = [], [], []
        for message, met in conditions:
            dependent = value_dependent([met], arguments)
            messages.append(message)
            places.append([k for k, value in enumerate(values) if depends_on([met], [value])])
            condition = _closed(met) if met in value_dependent([met], [eta]) else met
            outputs.append(_of_rows(condition, 1) if met in dependent else met.all())
        mode = quick_mode("local_remove_check_parameter")
        return messages, places, compiled_function(arguments, outputs, mode=mode, on_unused_input="ignore")

    def __call__(self, name: str, y: Any, values: Sequence[Any]) -> None:
        """Raise `InvalidDataError` for the first observation of a variable for which a condition holds at no predictor.

        `y` has the observations, `values` the site parameters, and `name` is the variable's name in the message.
        """
        messages, places, function = self._compiled
        if function is None:
            return
        shape = np.shape(y)
        arguments = [np.broadcast_to(np.asarray(value, dtype=float), shape).ravel() for value in (y, *values)]
        held = np.zeros((len(messages), arguments[0].size), dtype=bool)
        # Nearly always the first predictor will do.
        for predictor in _PREDICTORS:
            with np.errstate(all="ignore"):
                holds = function(arguments[0], np.full(held.shape[1], predictor), *arguments[1:])
            for row, met in zip(held, holds):
                row |= met
            if held.all():
                return
        condition, first = np.argwhere(~held)[0]
        index = tuple(int(i) for i in np.unravel_index(first, shape))
        given = ", ".join(f"{self._names[j]} = {arguments[1 + j][first]:.6g}" for j in places[condition])
        raise InvalidDataError(
            f"{name!r} has parameters outside their range{at_index(index)}{given and f', where {given}'}: "
            f"{messages[condition]} does not hold. Correct them."
        )


def _conditions(density: TensorVariable) -> Iterator[tuple[str, TensorVariable]]:
    """Yield message and graph of each condition that PyMC checks, before conditions are joined into one."""
    for message, conditions in parameter_checks(density):
        for joined in conditions:
            yield from ((message, met) for met in _separate(joined))


def _separate(joined: Any) -> Iterator[TensorVariable]:
    node = joined.owner
    if node is None or not isinstance(node.op, _JOINED):
        yield joined
        return
    for condition in node.inputs[isinstance(node.op, Join) and len(node.inputs) > 1 :]:
        yield from _separate(condition)


def _closed(met: TensorVariable) -> TensorVariable:
    """Return a strict inequality with equality allowed, as a rate may underflow, and a probability round to one."""
    op = met.owner.op if met.owner is not None else None
    if isinstance(op, Elemwise) and isinstance(op.scalar_op, GT | LT):
        return (pt.ge if isinstance(op.scalar_op, GT) else pt.le)(*met.owner.inputs)
    return met


def _of_rows(met: TensorVariable, ndim: int) -> TensorVariable:
    """Return a condition with `ndim` dimensions, as observations have; it must hold along all further ones."""
    return met.all(axis=tuple(range(ndim, met.ndim))) if met.ndim > ndim else met
