"""Op of the tilted moments of all sites of one density."""

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
from pytensor.scalar.basic import Composite

from pymc_ep.kernels.array_op import MATRIX, ArrayOp
from pymc_ep.kernels.registry import register_bodies
from pymc_ep.sites.generated import c_text

__all__ = ["FIELDS", "FIELDS_OF_TWO", "Rule", "TiltedMoments"]

FIELDS = ("log_z", "mean", "variance", "gradient", "precision", "skewness", "kurtosis")
"""Names of the first rows of the result; derivatives of log Z in the parameters and whether a site is accepted
follow."""


FIELDS_OF_TWO = (
    *("log_z", "mean_1", "mean_2", "variance_1", "variance_2", "covariance", "gradient_1", "gradient_2"),
    *("precision_11", "precision_22", "precision_12", "third_111", "third_112", "third_122", "third_222"),
)
"""Names of the first rows of the result for sites of two predictors; the third moments are central ones."""


@dataclass(frozen=True)
class Rule:
    """Properties of a site that the compiled bodies depend on.

    Attributes
    ----------
    analytic, log_concave, scanned : bool
        See `Site`.
    peaked : bool
        Whether the site knows the peaks of its tilted densities.
    highest : float
        Largest valid log density; a site where it is exceeded is not accepted.
    parameters, predictors : int
        Numbers of parameters and of predictors.
    """

    analytic: bool
    log_concave: bool
    scanned: bool
    peaked: bool
    highest: float
    parameters: int
    predictors: int = 1

    @property
    def inputs(self) -> int:
        """Number of rows of the input, see `TiltedMoments`."""
        return 1 + 3 * self.predictors + self.parameters + (5 if self.peaked else 0)

    @property
    def fields(self) -> tuple[str, ...]:
        """Names of the first rows of the result."""
        return FIELDS if self.predictors == 1 else FIELDS_OF_TWO

    @property
    def constants(self) -> dict[str, Any]:
        """Constants of `body` or `body_of_two` that depend on the site, by name."""
        return {
            "HIGHEST": self.highest,
            "PARAMETERS": self.parameters,
        } | ({} if self.predictors > 1 else self._of_one)

    @property
    def _of_one(self) -> dict[str, Any]:
        return {
            "TOLERANCE": 1e-5 if self.analytic else 1e-10,
            "LOG_CONCAVE": self.log_concave,
            "SCANNED": self.scanned,
            "PEAKED": self.peaked,
        }


class TiltedMoments(ArrayOp):
    """Moments of N(f; m, v) t(f)**p of n sites with k parameters, zeros for sites that are not accepted.

    The input, (4 + k, n), has the rows observations, cavity means and variances, powers, and parameters. Sites that
    know their peaks have five rows more, see `Site.outermost_peaks`. For sites of two predictors the input is
    (7 + k, n), with both means, both variances and the covariance. The result has the rows of `FIELDS` or
    `FIELDS_OF_TWO`, k derivatives of log Z, and a last row of ones for accepted sites.
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
        """Raise NotImplementedError: without a compiler, moments of sites are computed by other quadrature."""
        raise NotImplementedError("Tilted moments by generated loops are compiled.")

    def c_headers(self, **kwargs: object) -> list[str]:
        """Return the headers of the body and of the Ops in the density."""
        return list(dict.fromkeys([*super().c_headers(**kwargs), *c_text.headers(self)]))

    def c_header_dirs(self, **kwargs: object) -> list[str]:
        """Return the folders of the headers of the Ops in the density."""
        return [*super().c_header_dirs(**kwargs), *c_text.header_dirs(self)]

    def c_compile_args(self, **kwargs: object) -> list[str]:
        """Return compiler flags, with two for vector instructions, which need no OpenMP library."""
        return [*super().c_compile_args(**kwargs), "-fopenmp-simd", "-fno-trapping-math"]

    def c_support_code(self, **kwargs: object) -> str:
        """Return the text of the body, with the density."""
        return c_text.support_code(self)

    def c_sizes(self, arrays: Sequence[str], pointers: Sequence[str]) -> str:
        """Return C declarations of the numbers of sites and of rows of the result."""
        rows = 1 + len(self.rule.fields) + self.rule.parameters
        return f"const npy_intp n = PyArray_DIM({arrays[0]}, 1), rows = {rows};"

    def c_shapes(self) -> Sequence[str]:
        """Return the shape of the result, as C expressions."""
        return ["rows, n"]

    def c_call(self, inputs: Sequence[str], outputs: Sequence[str], fail: str) -> str:
        """Return the C statements of the loop over sites."""
        return c_text.loop(self, inputs[0], outputs[0])


register_bodies("numba", "pymc_ep.sites.generated.numba")
