"""Op of the tilted moments of all sites of one density."""

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
import pytensor.tensor as pt
from pytensor.graph.basic import Apply
from pytensor.graph.op import Op
from pytensor.scalar.basic import Composite

from pymc_ep.kernels.registry import register_bodies

__all__ = ["FIELDS", "Rule", "TiltedMoments"]

FIELDS = ("log_z", "mean", "variance", "gradient", "precision", "skewness", "kurtosis")
"""Rows of the result, before the derivatives of log Z in the parameters and whether a site is accepted."""


@dataclass(frozen=True)
class Rule:
    """What `body` takes from the site.

    Attributes
    ----------
    analytic, log_concave, scanned : bool
        See `Site`.
    highest : float
        Largest log density that is believed.
    parameters : int
        Number of derivatives in parameters.
    """

    analytic: bool
    log_concave: bool
    scanned: bool
    highest: float
    parameters: int

    @property
    def constants(self) -> dict[str, Any]:
        """Constants of `body`."""
        return {
            "TOLERANCE": 1e-5 if self.analytic else 1e-10,
            "LOG_CONCAVE": self.log_concave,
            "SCANNED": self.scanned,
            "HIGHEST": self.highest,
            "PARAMETERS": self.parameters,
        }


class TiltedMoments(Op):
    """Moments of N(f; m, v) t(f)**p, (8 + parameters, n), with zeros for sites that are not accepted."""

    __props__ = ("fixed", "density", "rule")

    def __init__(self, fixed: Composite | None, density: Composite, rule: Rule) -> None:
        self.fixed = fixed
        self.density = density
        self.rule = rule

    def make_node(self, arguments: Any) -> Apply:
        """Return the node: observations, cavity means and variances, powers and all parameters, (4 + k, n)."""
        return Apply(self, [pt.as_tensor_variable(arguments)], [pt.matrix(dtype="float64")])

    def perform(self, node: Apply, inputs: Sequence[np.ndarray], output_storage: Sequence[list[Any]]) -> None:
        """Refuse: without a compiler sites have other routes."""
        raise NotImplementedError("Tilted moments by generated loops are compiled.")


register_bodies("numba", "pymc_ep.sites.generated.numba")
