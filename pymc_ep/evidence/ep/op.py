"""The log evidence by EP as an Op; value and gradient are two outputs of one fixed point.

At the fixed point log Z is stationary in the sites, so that its gradient is a by-product (Seeger 2005, section 4).
"""

from collections.abc import Callable
from functools import cached_property
from typing import Any

import numpy as np
from pytensor.compile.sharedvalue import SharedVariable

from pymc_ep.contracts.evidence import LogEvidence
from pymc_ep.contracts.form import CompiledSiteForm
from pymc_ep.evidence.ep.evidence import evidence_of
from pymc_ep.evidence.ep.fit import EvidenceAt
from pymc_ep.evidence.ep.lost_digits import with_all_digits
from pymc_ep.evidence.mode import endless_directions
from pymc_ep.evidence.op import EvidenceOp

__all__ = ["EPEvidenceOp"]


class EPEvidenceOp(EvidenceOp):
    """`EvidenceOp` of a form with univariate sites.

    Parameters
    ----------
    form : CompiledSiteForm
        Data are read from its shared variables at each evaluation.
    settings : dict
        All options of the method, by name.
    make : callable
        ``make(form, settings, density=)`` returns the evidence, by default EP's; for pickling see `EvidenceOp`.
    """

    form: CompiledSiteForm

    def __init__(
        self, form: CompiledSiteForm, settings: dict[str, Any], make: Callable[..., LogEvidence] = evidence_of
    ):
        self.settings = settings
        self.make = make
        super().__init__(form, lambda site_form, density: make(site_form, self.settings, density=density))

    def _begin(self) -> None:
        super()._begin()
        self._data: list[Any] = []

    def __getstate__(self) -> dict[str, Any]:
        return {"form": self.form, "settings": self.settings, "make": self.make}

    def __setstate__(self, state: dict[str, Any]) -> None:
        EPEvidenceOp.__init__(self, **state)

    def endless_directions(self, theta: np.ndarray) -> list[str]:
        """Return the hyperparameters along which the density does not fall far out, the others being near theta, (p,).

        Empty also for sites whose quadrature searches for peaks, as each fit so far out may take minutes.
        """
        if any(group.site.scanned for group in self.form.form.factors):
            return []
        # Fits that far out converge within a few iterations or not at all.
        settings = self.settings | {"max_iter": min(20, self.settings["max_iter"])}
        return with_all_digits(
            settings, lambda options: endless_directions(self.make(self.form, options, density="unconstrained"), theta)
        )

    def _fit(self, theta: np.ndarray) -> tuple[EvidenceAt, np.ndarray]:
        return with_all_digits(self.settings, lambda settings: self._fit_with(theta, settings))

    def _fit_with(self, theta: np.ndarray, settings: dict[str, Any]) -> tuple[EvidenceAt, np.ndarray]:
        """Return the fit at theta, (p,), and the gradient there; new settings replace the Op's from then on."""
        if settings is not self.settings:
            self.settings, self._evidence = settings, None
        evidence = self._present()
        at = evidence.settled(theta, self._start)
        return at, evidence.gradient(at)

    @cached_property
    def _shared(self) -> list[SharedVariable]:
        """Shared variables that observations, predictors and site parameters depend on."""
        return [v for v in self.form.form.made_of(())[0] if isinstance(v, SharedVariable)]

    def _present(self) -> LogEvidence:
        """Return the evidence for the present values of the data, rebuilt where these have changed."""
        data = [v.get_value(borrow=True) for v in self._shared]
        evidence = self._evidence
        if evidence is None or any(new is not old for new, old in zip(data, self._data)):
            evidence = self.evidence_of(self.form, "none")
            self._evidence, self._data, self._start = evidence, data, None
        return evidence
