"""Op of the tilted moments of all sites of one density."""

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
from pytensor.scalar.basic import Composite

from pymc_ep.kernels.array_op import MATRIX, ArrayOp
from pymc_ep.kernels.registry import register_bodies
from pymc_ep.sites.generated import c_text

__all__ = ["FIELDS", "Rule", "TiltedMoments"]

FIELDS = ("log_z", "mean", "variance", "gradient", "precision", "skewness", "kurtosis")
"""Rows of the result, before the derivatives of log Z in the parameters and whether a site is accepted."""


@dataclass(frozen=True)
class Rule:
    """Arguments of `body` that follow from the site.

    Attributes
    ----------
    analytic, log_concave, scanned : bool
        See `Site`.
    highest : float
        Largest log density that is believed.
    parameters : int
        Number of parameters.
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


class TiltedMoments(ArrayOp):
    """Moments of N(f; m, v) t(f)**p, (8 + parameters, n), with zeros for sites that are not accepted.

    The input, (4 + k, n), holds observations, cavity means and variances, powers, and all k parameters.
    """

    __props__ = ("fixed", "density", "rule")
    types = (MATRIX,)
    outputs = (MATRIX,)

    def __init__(self, fixed: Composite | None, density: Composite, rule: Rule) -> None:
        super().__init__(openmp=False)
        self.fixed = fixed
        self.density = density
        self.rule = rule

    def evaluate(self, inputs: Sequence[np.ndarray]) -> Sequence[np.ndarray]:
        """Refuse: without a compiler sites have other routes."""
        raise NotImplementedError("Tilted moments by generated loops are compiled.")

    def c_headers(self, **kwargs: object) -> list[str]:
        """Return the headers of the body and of the Ops in the density."""
        return list(dict.fromkeys([*super().c_headers(**kwargs), *c_text.headers(self)]))

    def c_header_dirs(self, **kwargs: object) -> list[str]:
        """Return the folders of these headers."""
        return [*super().c_header_dirs(**kwargs), *c_text.header_dirs(self)]

    def c_compile_args(self, **kwargs: object) -> list[str]:
        """Return flags of the compiler, with those for vector instructions, which need no OpenMP to run."""
        return [*super().c_compile_args(**kwargs), "-fopenmp-simd", "-fno-trapping-math"]

    def c_support_code(self, **kwargs: object) -> str:
        """Return the text of the body, with the density."""
        return c_text.support_code(self)

    def c_sizes(self, arrays: Sequence[str], pointers: Sequence[str]) -> str:
        """Return C declarations of the numbers of sites and of rows of the result."""
        return f"const npy_intp n = PyArray_DIM({arrays[0]}, 1), rows = {8 + self.rule.parameters};"

    def c_shapes(self) -> Sequence[str]:
        """Return the shape of the result."""
        return ["rows, n"]

    def c_call(self, inputs: Sequence[str], outputs: Sequence[str], fail: str) -> str:
        """Return the loop over sites."""
        return c_text.loop(self, inputs[0], outputs[0])


register_bodies("numba", "pymc_ep.sites.generated.numba")
