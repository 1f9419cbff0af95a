"""Gaussian lower bounds on sites, as functions of arrays.

Bounds ``exp(k + b eta - pi eta**2 / 2)`` exist for two kinds of site. On a super-Gaussian site,
``log t(eta) = slope * eta + g((eta - centre)**2)``, a bound touches the site at a squared distance x from the centre
and has the precision ``pi = -2 g'(x)``. For a Gaussian predictor of mean eta and variance z the best one has
``x = z + (eta - centre)**2``. On a site of bounded curvature a bound has a fixed pi and touches the site at one point;
the best one touches at the mean eta.

`Bounded.value` is the expected log of the best bound, with the derivative ``b - pi eta`` in the mean eta: the objective
of the inner loop of a double loop (Seeger and Nickisch 2011).
"""

from collections.abc import Callable, Sequence
from typing import Any, NamedTuple

import pytensor
import pytensor.tensor as pt

from pymc_ep.concurrency import compiled_property
from pymc_ep.numerics.backend.namespace import Array
from pymc_ep.sites.base import Site

__all__ = ["BoundFunctions", "Bounded"]

_LEAST_WEIGHT = 0.01
"""Least weight of log-concave sites in reweighted least squares, as a share of pi. It may be small, since the objective
has one maximum."""
_SAFE_WEIGHT = 0.5
"""Least weight of sites that are not log-concave, as a share of pi. A step is then at most 2 / pi times the gradient:
it does not lower the value, as -d^2 value / d eta^2 <= pi. Longer steps may end at distant maxima."""


class Bounded(NamedTuple):
    """Best Gaussian lower bound on a site; all fields have the broadcast shape of the arguments.

    Attributes
    ----------
    value : array
        Expected log of the bound: ``slope * eta + g(z + (eta - centre)**2)`` for a super-Gaussian site,
        ``log t(eta) - pi z / 2`` for a site of bounded curvature.
    gradient : array
        ``d value / d eta``.
    precision : array
        Precision pi of the Gaussian.
    weight : array
        Weight in reweighted least squares: ``-d^2 value / d eta^2``, which is at most pi, or a least share of pi if
        that is larger.
    """

    value: Array
    gradient: Any
    precision: Any
    weight: Any


class BoundFunctions:
    """Functions of a compiled site for its Gaussian lower bounds."""

    site: Site
    options: dict[str, Any]
    _flatten: Callable[..., tuple[tuple[int, ...], list[Any]]]
    _function: Callable[..., Callable[..., Any]]
    _vectors: Callable[..., list[Any]]

    def bounded(self, y: Array, eta: Array, z: Array, *parameters: Array) -> Bounded:
        """Return the best Gaussian below the site for a predictor of mean `eta` and variance `z`.

        Parameters
        ----------
        y : array_like
            Observations.
        eta, z : array_like
            Mean and variance of the predictor. z is positive: at z = 0 the precision may be infinite, as at the peak of
            a Laplace site.
        *parameters : array_like
            In the order of ``site.parameters``.

        Returns
        -------
        Bounded

        Raises
        ------
        TypeError
            If the site has no Gaussian lower bound, see `Site.has_bound`.
        """
        shape, arrays = self._flatten(y, eta, z, *parameters)
        return Bounded(*(field.reshape(shape) for field in self._bounded_function(*arrays)))

    def bounded_parameter_gradient(self, y: Array, eta: Array, z: Array, *parameters: Array) -> tuple[Array, ...]:
        """Return the derivatives of `Bounded.value` in the parameters, one array each; for arguments see `bounded`."""
        if not self.site.parameters:
            return ()
        shape, arrays = self._flatten(y, eta, z, *parameters)
        return tuple(derivative.reshape(shape) for derivative in self._bounded_gradient_function(*arrays))

    def bounded_with_gradient(
        self, y: Array, eta: Array, z: Array, *parameters: Array
    ) -> tuple[Bounded, tuple[Array, ...]]:
        """Return `bounded` and `bounded_parameter_gradient`; subclasses may compute common parts once."""
        arguments = (y, eta, z, *parameters)
        return self.bounded(*arguments), self.bounded_parameter_gradient(*arguments)

    @compiled_property
    def _bounded_function(self) -> Callable[..., Sequence[Any]]:
        inputs = self._vectors("y", "eta", "z")
        return self._function(inputs, [field + pt.zeros_like(inputs[1]) for field in self._bounded_graph(*inputs)])

    @compiled_property
    def _bounded_gradient_function(self) -> Callable[..., Sequence[Any]]:
        inputs = self._vectors("y", "eta", "z")
        total = self._bounded_graph(*inputs).value.sum()
        return self._function(inputs, pytensor.grad(total, inputs[3:], disconnected_inputs="ignore"))

    def _bounded_graph(self, y: Any, eta: Any, z: Any, *parameters: Any) -> Bounded:
        bound = self.site.super_gaussian
        if bound is not None:
            # E (f - centre)^2 = z + (eta - centre)^2 = x for f ~ N(eta, z), where the tangent of g touches:
            # value = slope eta + g(x), d value / d eta = slope + 2 g'(x) (eta - centre).
            away = eta - bound.centre(y, *parameters)
            slope = bound.slope(y, *parameters)
            x = z + away**2
            precision = bound.precision(y, x, *parameters)
            value, gradient = slope * eta + bound.log_at(y, x, *parameters), slope - precision * away
        elif self.site.curvature_bound is not None:
            precision = self.site.curvature_bound(y, *parameters)
            # E of log t(eta) + (log t)'(eta) (f - eta) - pi (f - eta)^2 / 2.
            log_t = self.site.logp(y, eta, *parameters, **self.options)
            value, gradient = log_t - 0.5 * precision * z, pytensor.grad(log_t.sum(), eta)
        else:
            raise TypeError(f"A {self.site.name} site has no `super_gaussian` or `curvature_bound`; set one of them.")
        # -d^2 value / d eta^2 is pi - 4 g''(x) (eta - centre)^2 <= pi, as g is convex, or -(log t)'' <= pi.
        least = _LEAST_WEIGHT if self.site.log_concave else _SAFE_WEIGHT
        weight = pt.maximum(-pytensor.grad(gradient.sum(), eta), least * precision)
        return Bounded(value, gradient, precision, weight)
