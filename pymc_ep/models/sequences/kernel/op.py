"""Op of the log probabilities of sequences under the collaborative recurrent network, with its gradient."""

from collections.abc import Sequence
from typing import Any

import numpy as np
import pytensor.tensor as pt
from pytensor.gradient import DisconnectedType, grad_undefined
from pytensor.graph.basic import Apply
from pytensor.graph.op import Op

from pymc_ep.exceptions import InvalidDataError
from pymc_ep.models.sequences.kernel.body import Weights
from pymc_ep.models.sequences.kernel.sequences import Sequences, log_probabilities, sum_gradient

__all__ = ["WEIGHTS", "SequenceGradient", "SequenceLogp", "initial_states", "require_rows", "sequence_logp"]

_DTYPES = ("int64", "int64", "int64", *["float64"] * 8)
"""Dtypes of the inputs: users, items and contexts of the events, weights, initial states, half-lives of memories."""
WEIGHTS = slice(3, 9)
"""Slice of the weights among the inputs."""


class SequenceLogp(Op):
    """Log probability of each event, (n,), given its user's events before it.

    Inputs of the Op are users, items and contexts of the events, (n,) each; then recurrent matrices,
    (users or 1, G, D, D); inputs, (I, G, D); outputs, (I, D); memories, (K, D + 1); known items, (D + 1,) or (0,);
    biases, (C, G, D); the value of all entries of the initial states; and the half-lives of the memories, (K,). The
    events of a user are in order of time. Contexts are (0,) where events have none.
    """

    __props__ = ()

    def make_node(self, *inputs: Any) -> Apply:
        """Return the node; inputs are cast to their types."""
        cast = [pt.as_tensor_variable(value).astype(dtype) for value, dtype in zip(inputs, _DTYPES, strict=True)]
        return Apply(self, cast, [pt.dvector("log_probabilities")])

    def infer_shape(self, *args: Any) -> list[tuple[Any, ...]]:
        """Return the shape of the output, from the last argument; older versions of PyTensor pass a graph before it."""
        return [args[-1][0]]

    def perform(self, node: Apply, inputs: Sequence[Any], output_storage: Sequence[list[Any]]) -> None:
        """Evaluate on the host."""
        output_storage[0][0] = self.evaluate(*inputs)

    @staticmethod
    def evaluate(users: np.ndarray, *parameters: np.ndarray) -> np.ndarray:
        """Return the log probabilities, (n,)."""
        weights, sequences, order, first = _arranged(users, *parameters)
        out = np.empty(len(users))
        out[order] = log_probabilities(weights, sequences, first).values
        return out

    def pullback(self, inputs: Sequence[Any], outputs: Sequence[Any], cotangents: Sequence[Any]) -> list[Any]:
        """Return a gradient for each input, defined for the weights alone; it cannot be differentiated again."""
        gradients = SequenceGradient()(*inputs, cotangents[0])
        why = "initial states and half-lives of a recurrent network are constants"
        undefined = [grad_undefined(self, k, inputs[k], why) for k in (9, 10)]
        return [*(DisconnectedType()() for _ in range(3)), *gradients, *undefined]

    L_op = pullback

    def connection_pattern(self, node: Apply) -> list[list[bool]]:
        """Return for each input whether the output is connected to it: not to users, items and contexts."""
        return [*[[False]] * 3, *[[True]] * 8]


class SequenceGradient(Op):
    """Gradient, in the weights, of a weighted sum of the outputs of `SequenceLogp`.

    Inputs are the inputs of `SequenceLogp`, then the weights of the sum, (n,).
    """

    __props__ = ()

    def make_node(self, *inputs: Any) -> Apply:
        """Return the node."""
        *variables, cotangents = map(pt.as_tensor_variable, inputs)
        return Apply(self, [*variables, cotangents.astype("float64")], [weight.type() for weight in variables[WEIGHTS]])

    def infer_shape(self, *args: Any) -> list[tuple[Any, ...]]:
        """Return the shapes of the weights."""
        return list(args[-1][WEIGHTS])

    def perform(self, node: Apply, inputs: Sequence[Any], output_storage: Sequence[list[Any]]) -> None:
        """Evaluate on the host."""
        for storage, value in zip(output_storage, self.evaluate(*inputs)):
            storage[0] = value

    @staticmethod
    def evaluate(*inputs: np.ndarray) -> Weights:
        """Return the gradient in each table of weights."""
        *arrays, cotangents = inputs
        weights, sequences, order, first = _arranged(*arrays)
        return sum_gradient(weights, sequences, first, np.asarray(cotangents)[order])


def _arranged(*inputs: np.ndarray) -> tuple[Weights, Sequences, np.ndarray, np.ndarray]:
    """Return weights, sequences, the position of each of their events in the inputs, (n,), and first states, (U, D)."""
    # Inputs may be arrays of JAX.
    users, items, contexts, *arrays, initial, half_lives = map(np.asarray, inputs)
    weights = Weights(*arrays)
    n_users = require_rows(weights, users, items, contexts)
    sequences, order = Sequences.of_rows(users, items, n_users, len(weights.outputs), half_lives)
    if len(contexts):
        sequences = sequences.in_context(contexts[order])
    return weights, sequences, order, initial_states(n_users, weights, float(initial))


def require_rows(weights: Weights, users: np.ndarray, items: np.ndarray, contexts: np.ndarray) -> int:
    """Return the number of users; raise for indices out of range, and for weights or contexts of other lengths."""
    n_users = len(weights.recurrent) if len(weights.recurrent) > 1 else int(users.max(initial=-1)) + 1
    checks = ("user", users, n_users), ("item", items, len(weights.outputs)), ("context", contexts, len(weights.bias))
    for what, index, n in checks:
        bad = (index < 0) | (index >= n)
        if bad.any():
            k = int(np.argmax(bad))
            raise InvalidDataError(
                f"The sequences have the {what} {index[k]} at row {k}, but indices go from 0 to {n - 1}; correct it."
            )
    width = weights.outputs.shape[1]
    if len(weights.known) not in (0, width + 1) or weights.memory.shape[1] != width + 1:
        raise InvalidDataError(
            f"The sequences have memories of {weights.memory.shape[1]} weights each, and {len(weights.known)} of known "
            f"items; with {width} units both have {width + 1}, of which the constant is the last."
        )
    if len(contexts) not in (0, len(users)):
        raise InvalidDataError(
            f"The sequences have {len(users)} events and {len(contexts)} contexts; give each event one, or none."
        )
    return n_users


def initial_states(n_users: int, weights: Weights, initial: float) -> np.ndarray:
    """Return the states of users before all events, (U, D)."""
    return np.full((n_users, weights.outputs.shape[1]), initial, dtype=weights.outputs.dtype)


sequence_logp = SequenceLogp()
