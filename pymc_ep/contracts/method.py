"""Methods of inference, which ``method=`` selects, and the `Call` that each is given."""

from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from typing import Any, Generic, Protocol, TypeVar

import numpy as np
from pytensor.tensor.variable import TensorVariable

from pymc_ep.contracts.cost import Cost
from pymc_ep.contracts.form import CompiledForm
from pymc_ep.contracts.posterior import Posterior
from pymc_ep.contracts.solution import Solution
from pymc_ep.engines.base import Report, Status
from pymc_ep.engines.checkpoint import Checkpoint
from pymc_ep.sites.base import Site

__all__ = ["TREATMENTS", "Call", "EvidenceGraph", "Method"]

TREATMENTS = ("optimize", "fixed", "integrate", "sample")
"""Treatments of hyperparameters that a method may offer; ``hyper="auto"`` chooses one of them."""

_CONVERGED = Status(True, "")
"""Status of a treatment without a remark: its empty sentence adds nothing to the status of the result."""


OwnForm = TypeVar("OwnForm", bound=CompiledForm, covariant=True)
"""Type of the compiled forms that a method fits."""


@dataclass(frozen=True)
class Call(Generic[OwnForm]):
    """Arguments of `Method.solve`.

    Attributes
    ----------
    form : CompiledForm
    theta : ndarray, (p,)
        Unconstrained hyperparameters: initial values, or with ``hyper="fixed"`` the values used.
    hyper : {"optimize", "fixed", "integrate"}
        Treatment of the hyperparameters.
    start : mapping of str to ndarray, optional
        ``fit_state`` of an earlier fit.
    options : dict
        Overrides of the method's own `Method.options`.
    report : Report
        Receives phases, and objective and change in each iteration.
    checkpoint : Checkpoint
        Saves and restores the states of loops; each loop is given a record, ``run(..., record=checkpoint.record())``.
    start_rows : callable
        ``start_rows(name)`` returns, for each row of a variable, (n,), the row of the same label in the fit of `start`,
        -1 for a new label; None where rows have no labels.
    row_labels : callable
        ``row_labels(name)`` returns the dim of the rows of a variable, and their labels, (n,), or None without any.
    """

    form: OwnForm
    theta: np.ndarray
    hyper: str = "optimize"
    start: Mapping[str, np.ndarray] | None = None
    options: dict[str, Any] = field(default_factory=dict)
    report: Report = field(default_factory=Report)
    checkpoint: Checkpoint = field(default_factory=Checkpoint)
    start_rows: Callable[[str], np.ndarray | None] = lambda name: None
    row_labels: Callable[[str], tuple[str, np.ndarray | None]] = lambda name: (name, None)


class EvidenceGraph(Protocol):
    """An Op of the hyperparameters, with outputs log evidence and gradient."""

    def __call__(self, theta: TensorVariable) -> list[TensorVariable]:
        """Return log evidence and gradient, (p,), at the vector of PyMC's unconstrained values, (p,)."""

    def endless_directions(self, theta: np.ndarray) -> list[str]:
        """Return the names of the directions in which the posterior of the hyperparameters is improper."""


@dataclass(frozen=True)
class Method:
    """Entry of a method in the registry.

    Attributes
    ----------
    name : str
        Value of the argument ``method`` of `pymc_ep.fit`.
    form : type
        Type of the forms that it fits.
    solve : callable
        ``solve(call) -> Solution``.
    rebuild : callable
        ``rebuild(compiled form, state) -> Posterior``, from the arrays of a saved state.
    options : dict
        Options beyond those of `pymc_ep.fit`, with their defaults.
    hyper : tuple of str
        Supported treatments of hyperparameters, of `TREATMENTS`; ``"sample"`` needs `evidence_op` and `condition`.
    evidence_op : callable, optional
        ``evidence_op(compiled form, options) -> EvidenceGraph``.
    condition : callable, optional
        ``condition(call, thetas) -> Solution``, given draws of the hyperparameters, (k, p).
    takes : callable
        Whether the method supports a site. None stands for any density by quadrature, and for a factor without a site.
        By default all are supported.
    suits : callable
        Whether the method is preferred for a site that it supports, where ``method`` is left out.
    takes_form : callable
        Whether the method supports a form, apart from its sites. By default all are supported.
    choose_hyper : callable
        ``choose_hyper(compiled form, options, chains=) -> (str, Status)``: the treatment for ``hyper="auto"``, and a
        status with the reason where a better treatment was passed over. `pymc_ep.fit` refuses a treatment that is not
        in `hyper`, unless the model has no hyperparameters. It may be ``"sample"`` only if `chains` is true.
    cost : callable, optional
        ``cost(call) -> Cost``, from sizes alone. It is called before `solve`, which is not called if the memory is too
        small. With ``hyper="sample"`` the cost is of one fit, at fixed hyperparameters. None where nothing is known.
    changeable : tuple of str
        Options that may change when a fit goes on from its checkpoint, since no iteration depends on them, such as the
        largest number of iterations, or the place of the data.
    jax : bool
        Whether the algorithm runs under JAX if ``compile_kwargs`` select JAX's mode. If not, such a call is refused.
    """

    name: str
    form: type
    solve: Callable[[Call], Solution]
    rebuild: Callable[[Any, Mapping[str, np.ndarray]], Posterior]
    options: dict[str, Any]
    hyper: tuple[str, ...]
    evidence_op: Callable[[Any, dict[str, Any]], EvidenceGraph] | None = None
    condition: Callable[[Call, np.ndarray], Solution] | None = None
    takes: Callable[[Site | None], bool] = lambda site: True
    suits: Callable[[Site | None], bool] = lambda site: True
    takes_form: Callable[[Any], bool] = lambda form: True
    choose_hyper: Callable[..., tuple[str, Status]] = lambda form, options, *, chains: ("optimize", _CONVERGED)
    cost: Callable[[Any], Cost] | None = None
    changeable: tuple[str, ...] = ("max_iter",)
    jax: bool = False
