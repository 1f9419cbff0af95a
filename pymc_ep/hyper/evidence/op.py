"""The log evidence as a PyTensor Op, so that a sampler of the hyperparameters can differentiate it.

One evaluation is one fixed point; value and gradient are two outputs of it, since at the fixed point log Z is
stationary in the sites and its gradient is a by-product (Seeger 2005, section 4).
"""

import logging
import mmap
import threading
from collections.abc import Sequence
from functools import cached_property
from typing import Any, NamedTuple

import numpy as np
import pytensor.tensor as pt
from pytensor.compile.sharedvalue import SharedVariable
from pytensor.gradient import DisconnectedType
from pytensor.graph.basic import Apply
from pytensor.graph.op import Op
from pytensor.tensor.variable import TensorVariable

from pymc_ep.contracts.form import CompiledSiteForm
from pymc_ep.exceptions import InvalidDataError, NumericalError
from pymc_ep.hyper.evidence.evidence import Evidence, EvidenceAt, evidence_of, with_all_digits
from pymc_ep.hyper.maximise import endless_directions
from pymc_ep.kernels import register_bodies
from pymc_ep.numerics.backend.namespace import Array

__all__ = ["Counts", "EvidenceOp"]

_log = logging.getLogger(__name__)

register_bodies("jax", "pymc_ep.hyper.evidence.op_jax")
register_bodies("numba", "pymc_ep.hyper.evidence.op_numba")


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

    Log Z is that of the latent variables and the observations under PyMC's densities; the prior of the hyperparameters
    is not in it. Where there is no finite, converged log evidence, as next to a boundary of the hyperparameters, log Z
    is minus infinity and the gradient zero: a sampler turns back from there. `counts` holds the number of such
    points, and the first one is logged.

    Parameters
    ----------
    form : CompiledSiteForm
        Data are read from its shared variables at each evaluation.
    settings : dict
        Options of EP, all of them.

    Notes
    -----
    Each fit starts from the sites of the last where that cannot change the result beyond the tolerance, see
    `Evidence.settled`. Evaluations are serial: a lock keeps the threads of one process apart. Pickled, the Op takes
    along the form, not its compiled functions.
    """

    def __init__(self, form: CompiledSiteForm, settings: dict[str, Any]):
        self.form = form.in_values()
        self.settings = settings
        self._begin()

    def _begin(self) -> None:
        self._lock = threading.Lock()
        self._evidence: Evidence | None = None
        self._data: list[Any] = []
        self._sites: tuple[np.ndarray, np.ndarray] | None = None
        # Anonymous shared memory, so that the counts of forked samplers arrive here.
        self._counts = np.frombuffer(mmap.mmap(-1, 16), dtype=np.int64)

    def __getstate__(self) -> dict[str, Any]:
        return {"form": self.form, "settings": self.settings}

    def __setstate__(self, state: dict[str, Any]) -> None:
        self.settings, self.form = state["settings"], state["form"].in_values()
        self._begin()

    @property
    def counts(self) -> Counts:
        """Number of evaluations so far, and of failed ones."""
        return Counts(*(int(count) for count in self._counts))

    def make_node(self, theta: TensorVariable) -> Apply:
        """Take a vector of doubles, give a double and a vector of doubles."""
        theta = pt.as_tensor_variable(theta).astype("float64")
        return Apply(self, [theta], [pt.dscalar("log_z"), pt.dvector("gradient")])

    def infer_shape(self, *args: Any) -> list[tuple[Any, ...]]:
        """Return the outputs' shapes; the older stack's first argument, the graph, is not needed."""
        return [(), args[-1][0]]

    def perform(self, node: Apply, inputs: Sequence[Any], output_storage: Sequence[list[Any]]) -> None:
        """Evaluate on the host."""
        log_z, gradient = self.evaluate(inputs[0])
        output_storage[0][0], output_storage[1][0] = np.asarray(log_z), gradient

    def evaluate(self, theta: Array) -> tuple[float, np.ndarray]:
        """Return log Z and its gradient, (p,)."""
        theta = np.array(theta, dtype=float)
        with self._lock:
            self._counts[0] += 1
            try:
                at, gradient = with_all_digits(self.settings, lambda settings: self._at(theta, settings))
                why = "" if at.run.status.converged else at.run.status.sentence
            except (InvalidDataError, NumericalError) as error:
                at, why = None, str(error)
            if at is None or why or not (np.isfinite(at.log_z) and np.all(np.isfinite(gradient))):
                return self._failed(theta, why or "it is not finite")
            self._sites = at.sites
            return at.log_z, gradient

    def endless_directions(self, theta: np.ndarray) -> list[str]:
        """Return the hyperparameters along which the density about theta, (p,), does not fall; empty if it falls.

        Empty also for sites whose quadrature searches for peaks: so far out each fit may take minutes.
        """
        if any(group.site.scanned for group in self.form.form.factors):
            return []
        # Fits that far out converge within a few iterations or not at all.
        settings = self.settings | {"max_iter": min(20, self.settings["max_iter"])}
        return with_all_digits(
            settings, lambda own: endless_directions(evidence_of(self.form, own, density="unconstrained"), theta)
        )

    def _at(self, theta: np.ndarray, settings: dict[str, Any]) -> tuple[EvidenceAt, np.ndarray]:
        """Return the fit at theta and the gradient there; where the settings are others than so far, these are kept."""
        if settings is not self.settings:
            self.settings, self._evidence = settings, None
        evidence = self._present()
        at = evidence.settled(theta, self._sites)
        return at, evidence.gradient(at)

    @cached_property
    def _shared(self) -> list[SharedVariable]:
        """Data that observations, predictors and site parameters depend on."""
        return [v for v in self.form.form.made_of(())[0] if isinstance(v, SharedVariable)]

    def _present(self) -> Evidence:
        """Return the evidence for the present values of the data, rebuilt where these have changed."""
        data = [v.get_value(borrow=True) for v in self._shared]
        known = self._evidence
        if known is None or any(new is not old for new, old in zip(data, self._data)):
            known = evidence_of(self.form, self.settings, density="none")
            self._evidence, self._data, self._sites = known, data, None
        return known

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
