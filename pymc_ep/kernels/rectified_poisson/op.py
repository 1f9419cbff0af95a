"""Tilted moments of a Gaussian cavity times a power of the rectified-linear Poisson likelihood."""

from pathlib import Path
from typing import Any, ClassVar

import pytensor.tensor as pt
from pytensor.gradient import DisconnectedType, disconnected_type, grad_undefined
from pytensor.tensor.elemwise import Elemwise

from pymc_ep.kernels.rectified_poisson import body, coefficients
from pymc_ep.kernels.scalar_kernel import ScalarKernel
from pymc_ep.kernels.truncated_normal import op as truncated

__all__ = ["OUTPUTS", "RectifiedPoisson", "rectified_poisson"]

OUTPUTS = ("log_z", "tilted_mean", "tilted_variance", "gradient", "precision")


class RectifiedPoisson(ScalarKernel):
    """Scalar Op of `rectified_poisson`."""

    __props__ = ("zero_mass",)
    nin = 4
    nout = 5
    body = body
    tables: ClassVar = {
        **truncated.C_TABLES,
        "PYMC_EP_SADDLE_LOG_MASS": coefficients.SADDLE_LOG_MASS,
        "PYMC_EP_SADDLE_MEAN": coefficients.SADDLE_MEAN,
        "PYMC_EP_SADDLE_VARIANCE": coefficients.SADDLE_VARIANCE,
    }
    c_sources = (truncated.C_SOURCE, Path(__file__).with_name("body.c"))
    c_fields = ("log_z", "mean", "variance", "gradient", "precision")

    def __init__(self, zero_mass: bool) -> None:
        self.zero_mass = bool(zero_mass)
        super().__init__("rectified_poisson" if zero_mass else "rectified_poisson_without_zero_mass")

    def impl(self, y: float, mean: float, variance: float, power: float) -> tuple[float, ...]:
        """Return the outputs of the Python body at one element."""
        return body.rectified_poisson(float(y), float(mean), float(variance), float(power), self.zero_mass)

    def c_call(self, arguments: list[str]) -> tuple[str, str]:
        """Return the struct type of the C body, and the C expression that calls it."""
        call = f"pymc_ep_rectified_poisson({', '.join(arguments)}, {int(self.zero_mass)})"
        return "pymc_ep_tilted", call

    def pullback(self, inputs: list[Any], outputs: list[Any], cotangents: list[Any]) -> list[Any]:
        """Return the cotangents of mean and variance; y and power have none."""
        self.differentiable_outputs(cotangents, (0,), OUTPUTS)
        y, _, variance, power = inputs
        gradient, precision = outputs[3], outputs[4]
        cotangent = cotangents[0]
        if isinstance(cotangent.type, DisconnectedType):
            return [disconnected_type() for _ in inputs]
        # Z solves the heat equation: d log Z / dv = (g^2 - beta) / 2 with g = d log Z / dm, beta = -d^2 log Z / dm^2.
        # The site precision pi gives beta, as the tilted variance is v - v^2 beta = 1 / (1 / v + pi).
        beta = precision / (1.0 + variance * precision)
        return [
            grad_undefined(self, 0, y, "log_z is differentiated with respect to the cavity only"),
            cotangent * gradient,
            cotangent * 0.5 * (gradient * gradient - beta),
            grad_undefined(self, 3, power, "log_z is differentiated with respect to the cavity only"),
        ]

    L_op = pullback


_elemwise = {zero_mass: Elemwise(RectifiedPoisson(zero_mass)) for zero_mass in (True, False)}


def rectified_poisson(y: Any, mean: Any, variance: Any, power: Any, zero_mass: bool = True) -> list[Any]:
    """Return log normaliser and moments of the density proportional to N(f; mean, variance) t_y(f)^power.

    The site is t_y(f) = max(0, f)^y exp(-max(0, f)) / y!, with 0^0 = 1 (Ko and Seeger, 2015, "Expectation propagation
    for rectified linear Poisson regression").

    Parameters
    ----------
    y : tensor_like
        Counts, >= 0.
    mean, variance : tensor_like
        Mean and variance of the cavity; the variance is > 0.
    power : tensor_like
        Exponent of the site, > 0: 1 for expectation propagation, less for its fractional variant.
    zero_mass : bool, default True
        Whether a zero count is possible at negative f: t_0(f) = 1 there if True, and 0 if False, which is the
        likelihood of Ko and Seeger (their equation 13).

    Returns
    -------
    list of TensorVariable
        The fields of `pymc_ep.sites.base.Tilted`: ``log_z``, ``tilted_mean``, ``tilted_variance``, ``gradient`` and
        ``precision``, float64, of the broadcast shape. Relative errors are below 1e-11 for the mean and 1e-9 for the
        rest over y from 0 to 1e6, variance from 1e-8 to 1e6 and mean from -1e3 to 1e6, and for ``log_z`` below
        1e-12 of max(1, abs(log_z)). Arguments outside the domain give nan. Only ``log_z`` can be differentiated, and
        only with respect to mean and variance.
    """
    return _elemwise[bool(zero_mass)](*map(pt.as_tensor_variable, (y, mean, variance, power)))
