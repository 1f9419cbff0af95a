"""Square roots that have a slope of zero where their argument is zero.

A spectral density exp(-w^2 l^2 / 2), of frequency w, underflows to zero at a long lengthscale l, and so does its slope.
The slope of its root would be infinity times zero, which is no number.
"""

from collections.abc import Sequence
from typing import Any

import pytensor.tensor as pt
from pytensor.graph.basic import Apply
from pytensor.scalar.basic import Sqrt
from pytensor.tensor.variable import TensorVariable

from pymc_ep.graphs.queries import applies, rebuilt

__all__ = ["with_slopes_at_zero"]


def with_slopes_at_zero(graphs: Sequence[TensorVariable]) -> list[TensorVariable]:
    """Return graphs with the same values whose square roots have a slope of zero at zero."""

    def root(node: Apply, inputs: list[Any]) -> TensorVariable | None:
        if not applies(node, Sqrt):
            return None
        # Both branches are differentiated: the root of one is the branch not taken at zero.
        zero = pt.eq(inputs[0], 0.0)
        return pt.switch(zero, 0.0, pt.sqrt(pt.switch(zero, 1.0, inputs[0])))

    return rebuilt(graphs, root)
