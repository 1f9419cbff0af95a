"""Lower bounds of sites by Gaussians, as functions of arrays.

A site with lower bounds ``exp(k + b eta - pi eta**2 / 2)`` is of one of two kinds. For a super-Gaussian site a bound
touches it at a squared distance x from its centre and has the precision ``pi = -2 g'(x)``. The best bound for a
Gaussian predictor of mean eta and variance z has ``x = z + (eta - centre)**2``. For a site whose curvature alone is
bounded, pi is fixed and the bound touches the site at eta. In both cases `Bounded.value` is the expected log of the
best bound: the inner objective of a double loop. Its derivative in eta is ``b - pi eta``.
"""

from collections.abc import Callable, Sequence
from functools import cached_property
from typing import Any, NamedTuple

import pytensor
import pytensor.tensor as pt

from pymc_ep.numerics.backend.namespace import Array
from pymc_ep.sites.base import Site

__all__ = ["BoundFunctions", "Bounded"]

_LEAST_WEIGHT = 0.01
"""Least weight of log-concave sites in reweighted least squares, relative to pi. A small value is safe: there is one
maximum."""
_SAFE_WEIGHT = 0.5
"""Least weight of other sites, relative to pi. A step is then at most twice that of the quadratic lower bound with
curvature pi, along which the value does not fall. Longer steps would lead to distant maxima."""


class Bounded(NamedTuple):
    """The best Gaussian below a site; all fields have the broadcast shape of the arguments.

    Attributes
    ----------
    value : array
        slope * eta + g(z + (eta - centre)**2), or log t(eta) - pi z / 2 where only the curvature is bounded.
    gradient : array
        d value / d eta.
    precision : array
        pi of the Gaussian.
    weight : array
        ``-d^2 value / d eta^2``, at most pi, raised to a given share of pi: the weight in reweighted least squares.
    """

    value: Array
    gradient: Any
    precision: Any
    weight: Any


class BoundFunctions:
    """The functions of a compiled site that concern bounds."""

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
            Mean and variance of the predictor. z is positive, since no Gaussian below a Laplace site touches its peak.
        *parameters : array_like
            In the order of ``site.parameters``.

        Raises
        ------
        TypeError
            Where no bound of the site is known, see `Site.has_bound`.
        """
        shape, arrays = self._flatten(y, eta, z, *parameters)
        return Bounded(*(part.reshape(shape) for part in self._bounded_function(*arrays)))

    def bounded_parameter_gradient(self, y: Array, eta: Array, z: Array, *parameters: Array) -> tuple[Array, ...]:
        """Return the derivative of `Bounded.value` in each parameter, one array each; arguments as in `bounded`."""
        if not self.site.parameters:
            return ()
        shape, arrays = self._flatten(y, eta, z, *parameters)
        return tuple(part.reshape(shape) for part in self._bounded_gradient_function(*arrays))

    def bounded_with_gradient(
        self, y: Array, eta: Array, z: Array, *parameters: Array
    ) -> tuple[Bounded, tuple[Array, ...]]:
        """Return both `bounded` and `bounded_parameter_gradient`; some sites compute common parts once."""
        arguments = (y, eta, z, *parameters)
        return self.bounded(*arguments), self.bounded_parameter_gradient(*arguments)

    @cached_property
    def _bounded_function(self) -> Callable[..., Sequence[Any]]:
        inputs = self._vectors("y", "eta", "z")
        return self._function(inputs, [part + pt.zeros_like(inputs[1]) for part in self._bounded_graph(*inputs)])

    @cached_property
    def _bounded_gradient_function(self) -> Callable[..., Sequence[Any]]:
        inputs = self._vectors("y", "eta", "z")
        total = self._bounded_graph(*inputs).value.sum()
        return self._function(inputs, pytensor.grad(total, inputs[3:], disconnected_inputs="ignore"))

    def _bounded_graph(self, y: Any, eta: Any, z: Any, *parameters: Any) -> Bounded:
        bound = self.site.super_gaussian
        if bound is not None:
            away = eta - bound.centre(y, *parameters)
            slope = bound.slope(y, *parameters)
            x = z + away**2
            precision = bound.precision(y, x, *parameters)
            value, gradient = slope * eta + bound.log_at(y, x, *parameters), slope - precision * away
        elif self.site.curvature_bound is not None:
            precision = self.site.curvature_bound(y, *parameters)
            log_t = self.site.logp(y, eta, *parameters, **self.options)
            value, gradient = log_t - 0.5 * precision * z, pytensor.grad(log_t.sum(), eta)
        else:
            raise TypeError(f"No Gaussians below a {self.site.name} site are known.")
        least = _LEAST_WEIGHT if self.site.log_concave else _SAFE_WEIGHT
        weight = pt.maximum(-pytensor.grad(gradient.sum(), eta), least * precision)
        return Bounded(value, gradient, precision, weight)
