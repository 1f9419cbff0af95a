"""The log evidence as a PyTensor Op, so that a sampler of the hyperparameters can differentiate it.

One evaluation is one fit; the value and its gradient are the two outputs.
"""

import logging
import mmap
import threading
from collections.abc import Callable, Sequence
from typing import Any, NamedTuple

import numpy as np
import pytensor.tensor as pt
from pytensor.gradient import DisconnectedType
from pytensor.graph.basic import Apply
from pytensor.graph.op import Op
from pytensor.tensor.variable import TensorVariable

from pymc_ep.contracts.evidence import EvidenceFit, FitState, LogEvidence
from pymc_ep.contracts.form import HyperForm
from pymc_ep.evidence.mode import endless_directions
from pymc_ep.exceptions import InvalidDataError, NumericalError
from pymc_ep.kernels import register_bodies
from pymc_ep.numerics.backend.namespace import Array

__all__ = ["Counts", "EvidenceOp"]

_log = logging.getLogger(__name__)

register_bodies("jax", "pymc_ep.evidence.op_jax")
register_bodies("numba", "pymc_ep.evidence.op_numba")


class Counts(NamedTuple):
    """How often an `EvidenceOp` was evaluated, in this process and those forked from it.

    Attributes
    ----------
    evaluations : int
    failed : int
        Evaluations without a finite, converged log evidence.
    """

    evaluations: int
    failed: int


class EvidenceOp(Op):
    """``log_z, gradient = op(theta)`` at unconstrained hyperparameters theta, (p,).

    Z is the integral of PyMC's joint density of latent variables and observations over the latent variables. The prior
    of the hyperparameters is not in it. Where there is no finite, converged log evidence, as next to a boundary of the
    hyperparameters, log Z is minus infinity and the gradient zero: a sampler turns back from there. `counts` holds the
    number of such points, and the first one is logged.

    Parameters
    ----------
    form : HyperForm
    evidence_of : callable
        ``evidence_of(form, density)`` returns the `LogEvidence` of the form with this density. Samplers of several
        processes pickle the callable, so that it must be a function of a module, or a `functools.partial` of one.

    Notes
    -----
    Each fit starts from the state of the last where that cannot change the result beyond the tolerance, see
    `LogEvidence.settled`. Evaluations are serial: a lock keeps the threads of one process apart. A pickled Op
    contains the form, not its compiled functions.
    """

    def __init__(self, form: HyperForm, evidence_of: Callable[[Any, str], LogEvidence]):
        self.form = form.in_values()
        self.evidence_of = evidence_of
        self._begin()

    def _begin(self) -> None:
        self._lock = threading.Lock()
        self._evidence: LogEvidence | None = None
        self._start: FitState | None = None
        # Anonymous shared memory, so that the counts of forked samplers arrive here.
        self._counts = np.frombuffer(mmap.mmap(-1, 16), dtype=np.int64)

    def __getstate__(self) -> dict[str, Any]:
        return {"form": self.form, "evidence_of": self.evidence_of}

    def __setstate__(self, state: dict[str, Any]) -> None:
        self.__dict__.update(state)
        self.form = self.form.in_values()
        self._begin()

    @property
    def counts(self) -> Counts:
        """Number of evaluations so far, and of failed ones."""
        return Counts(*(int(count) for count in self._counts))

    def make_node(self, theta: TensorVariable) -> Apply:
        """Return the node that maps theta, a vector of doubles, to a double and a vector of doubles."""
        theta = pt.as_tensor_variable(theta).astype("float64")
        return Apply(self, [theta], [pt.dscalar("log_z"), pt.dvector("gradient")])

    def infer_shape(self, *args: Any) -> list[tuple[Any, ...]]:
        """Return the outputs' shapes, () and (p,); the graph, a first argument in older PyTensor, is not needed."""
        return [(), args[-1][0]]

    def perform(self, node: Apply, inputs: Sequence[Any], output_storage: Sequence[list[Any]]) -> None:
        """Evaluate on the host."""
        log_z, gradient = self.evaluate(inputs[0])
        output_storage[0][0], output_storage[1][0] = np.asarray(log_z), gradient

    def evaluate(self, theta: Array) -> tuple[float, np.ndarray]:
        """Return log Z and its gradient, (p,), at theta, (p,)."""
        theta = np.array(theta, dtype=float)
        with self._lock:
            self._counts[0] += 1
            try:
                at, gradient = self._fit(theta)
                why = "" if at.status.converged else at.status.sentence
            except (InvalidDataError, NumericalError) as error:
                at, why = None, str(error)
            if at is None or why or not (np.isfinite(at.log_z) and np.all(np.isfinite(gradient))):
                return self._failed(theta, why or "it is not finite")
            self._start = at.state
            return at.log_z, gradient

    def endless_directions(self, theta: np.ndarray) -> list[str]:
        """Return the hyperparameters along which the density does not fall far out, the others being near theta, (p,).

        The list is empty if the density falls along all.
        """
        return endless_directions(self.evidence_of(self.form, "unconstrained"), theta)

    def _fit(self, theta: np.ndarray) -> tuple[EvidenceFit, np.ndarray]:
        """Return the fit at theta and the gradient there."""
        if self._evidence is None:
            self._evidence = self.evidence_of(self.form, "none")
        at = self._evidence.settled(theta, self._start)
        return at, self._evidence.gradient(at)

    def _failed(self, theta: np.ndarray, why: str) -> tuple[float, np.ndarray]:
        self._counts[1] += 1
        if self._counts[1] == 1:
            with np.printoptions(precision=3, threshold=6):
                _log.warning("No log evidence at unconstrained hyperparameters %s, taken as -inf: %s", theta, why)
        return -np.inf, np.zeros_like(theta)

    def pullback(self, inputs: Sequence[Any], outputs: Sequence[Any], cotangents: Sequence[Any]) -> list[Any]:
        """Return the cotangent of theta, (p,); there are no second derivatives."""
        if not isinstance(cotangents[1].type, DisconnectedType):
            raise NotImplementedError(
                "The gradient of the log evidence cannot be differentiated again: methods that need second derivatives "
                "(a Hessian by PyTensor) do not work on a marginal model; fit(hyper='optimize') gives the curvature."
            )
        return [cotangents[0] * outputs[1]]

    L_op = pullback
