"""The log determinant of a sparse precision as a PyTensor Op, with its gradient as a second output."""

from collections.abc import Sequence
from typing import Any

import numpy as np
import pytensor.tensor as pt
from pytensor.gradient import DisconnectedType
from pytensor.graph.basic import Apply
from pytensor.graph.op import Op
from pytensor.tensor.variable import TensorVariable

from pymc_ep.kernels import register_bodies
from pymc_ep.numerics.sparse.matrix_sum import MatrixSum

__all__ = ["LogDeterminant"]

register_bodies("jax", "pymc_ep.distributions.log_determinant_jax")
register_bodies("numba", "pymc_ep.distributions.log_determinant_numba")


class LogDeterminant(Op):
    """Op of `MatrixSum.log_determinant`: ``log_det, gradient = op(c)``, for coefficients c, (K,), and a gradient, (K,).

    Parameters
    ----------
    matrices : MatrixSum
    """

    __props__ = ("matrices",)

    def __init__(self, matrices: MatrixSum):
        self.matrices = matrices

    def make_node(self, coefficients: TensorVariable) -> Apply:
        """Return the node from coefficients, a vector of doubles, to a double and a vector of doubles."""
        coefficients = pt.as_tensor_variable(coefficients).astype("float64")
        return Apply(self, [coefficients], [pt.dscalar("log_det"), pt.dvector("gradient")])

    def infer_shape(self, *args: Any) -> list[tuple[Any, ...]]:
        """Return the outputs' shapes, from the last argument; older versions of PyTensor pass a graph before it."""
        return [(), args[-1][0]]

    def perform(self, node: Apply, inputs: Sequence[Any], output_storage: Sequence[list[Any]]) -> None:
        """Compute both outputs on the host, by a Cholesky factor."""
        log_det, gradient = self.matrices.log_determinant(np.asarray(inputs[0]))
        output_storage[0][0], output_storage[1][0] = np.asarray(log_det), gradient

    def pullback(self, inputs: Sequence[Any], outputs: Sequence[Any], cotangents: Sequence[Any]) -> list[Any]:
        """Return the cotangent of the coefficients, (K,); there are no second derivatives."""
        if not isinstance(cotangents[1].type, DisconnectedType):
            raise NotImplementedError(
                "The gradient of a sparse log determinant cannot be differentiated again: methods that need second "
                "derivatives, such as a Hessian by PyTensor, do not work with a precision of several terms."
            )
        # The second output is d log |Q|_+ / dc.
        return [cotangents[0] * outputs[1]]

    L_op = pullback
