"""Normal distribution truncated from below: log mass, hazard, mean and variance, accurate in both tails."""

from collections.abc import Sequence
from pathlib import Path
from typing import Any, ClassVar

import pytensor.tensor as pt
from pytensor.gradient import DisconnectedType
from pytensor.scalar import basic as scalar
from pytensor.tensor.elemwise import Elemwise

from pymc_ep.kernels.scalar_kernel import ScalarKernel
from pymc_ep.kernels.truncated_normal import body, coefficients

__all__ = ["C_SOURCE", "C_TABLES", "OUTPUTS", "TruncatedNormal", "truncated_normal"]

OUTPUTS = ("log_mass", "hazard", "truncated_mean", "truncated_variance")
C_SOURCE = Path(__file__).with_name("body.c")
C_TABLES: dict[str, Sequence[float] | float] = {
    "PYMC_EP_SCALE": float(coefficients.SCALE),
    "PYMC_EP_SCALED_MEAN": coefficients.SCALED_MEAN,
    "PYMC_EP_SCALED_VARIANCE": coefficients.SCALED_VARIANCE,
}

ASYMPTOTIC_FROM = 200.0
"""Least k at which V - r^2, the truncated variance less the squared mean, is computed by its asymptotic
series -2 / k^4 + ..., as the difference itself is less accurate there."""


class TruncatedNormal(ScalarKernel):
    """Scalar Op of `truncated_normal`."""

    __props__ = ()
    nin = 1
    nout = 4
    body = body
    tables: ClassVar = C_TABLES
    c_sources = (C_SOURCE,)
    c_fields = ("log_mass", "hazard", "mean", "variance")

    def __init__(self) -> None:
        super().__init__("truncated_normal")

    def impl(self, k: float) -> tuple[float, float, float, float]:
        """Return the outputs of the Python body at one k."""
        return body.truncated_normal(float(k))

    def c_call(self, arguments: list[str]) -> tuple[str, str]:
        """Return the struct type of the C body, and the C expression that calls it."""
        return "pymc_ep_truncated", f"pymc_ep_truncated_normal({arguments[0]})"

    def pullback(self, inputs: list[Any], outputs: list[Any], cotangents: list[Any]) -> list[Any]:
        """Return the cotangent of k, from the closed-form derivatives of all outputs."""
        (k,) = inputs
        _, hazard, mean, variance = outputs
        # dh/dk = h r follows from phi' = -k phi; the others from r = h - k and V = 1 - h r.
        derivatives = (-hazard, hazard * mean, -variance, hazard * _variance_less_square(k, mean, variance))
        terms = [
            cotangent * derivative
            for cotangent, derivative in zip(cotangents, derivatives, strict=True)
            if not isinstance(cotangent.type, DisconnectedType)
        ]
        total = terms[0]
        for term in terms[1:]:
            total = total + term
        return [total]

    L_op = pullback


def _variance_less_square(k: Any, mean: Any, variance: Any) -> Any:
    """Return V - r^2 for the mean r and the variance V at k. With the hazard h, dV/dk = h (V - r^2).

    dV/dk is minus the third central moment.
    For large k, r ~ 1/k - 2/k^3 + 10/k^5 - ... and V ~ 1/k^2 - 6/k^4 + 50/k^6 - ... cancel to
    V - r^2 ~ -2/k^4 + 26/k^6 - 330/k^8 + ...
    """
    far = scalar.ge(k, ASYMPTOTIC_FROM)
    safe = scalar.switch(far, k, ASYMPTOTIC_FROM)
    q = 1.0 / (safe * safe)
    series = -q * q * (2.0 + q * (-26.0 + q * 330.0))
    return scalar.switch(far, series, variance - mean * mean)


truncated_normal_scalar = TruncatedNormal()
_elemwise = Elemwise(truncated_normal_scalar)


def truncated_normal(k: Any) -> list[Any]:
    """Return log mass, hazard, mean and variance of X ~ N(-k, 1) truncated to X > 0.

    Parameters
    ----------
    k : tensor_like
        Truncation point less the mean, in standard deviations.

    Returns
    -------
    list of TensorVariable
        ``log_mass`` = log Phi(-k), ``hazard`` = phi(k) / Phi(-k), ``truncated_mean`` = hazard - k and
        ``truncated_variance`` = 1 - hazard (hazard - k), with the standard normal density phi and distribution function
        Phi; float64, of the shape of `k`. Relative errors are about 1e-15 for finite k of either sign. All outputs are
        nan where k is not finite, and all are differentiable.
    """
    return _elemwise(pt.as_tensor_variable(k))
