"""Lower bounds of sites by Gaussians, as functions of arrays.

A site below which Gaussians ``exp(k + b eta - pi eta**2 / 2)`` are known is one of two kinds. Where it is
super-Gaussian they touch it at a squared distance x from its centre and have the precision ``pi = -2 g'(x)``; for a
predictor of mean eta and variance z under a Gaussian, ``x = z + (eta - centre)**2`` is the best. Where only its
curvature is bounded, pi is fixed and they touch it at eta. In both cases the expected log of the best Gaussian is the
`Bounded.value`, the inner objective of a double loop, of which ``b - pi eta`` is the derivative in eta.
"""

from collections.abc import Callable, Sequence
from functools import cached_property
from typing import Any, NamedTuple

import pytensor
import pytensor.tensor as pt

from pymc_ep.sites.base import Site

__all__ = ["BoundFunctions", "Bounded"]

_LEAST_WEIGHT = 0.01
"""Least weight in reweighted least squares, relative to pi, of log-concave sites: they have one maximum."""
_SAFE_WEIGHT = 0.5
"""Least weight of other sites, relative to pi. Steps are up to twice those of the quadratic below the value that pi
belongs to, along which the value does not fall; longer ones would leave for maxima far away."""


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
        ``-d^2 value / d eta^2``, which pi exceeds, but no less than a part of pi: for reweighted least squares.
    """

    value: Any
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

    def bounded(self, y: Any, eta: Any, z: Any, *parameters: Any) -> Bounded:
        """Return the best Gaussian below the site for a predictor of mean `eta` and variance `z`.

        Parameters
        ----------
        y : array_like
            Observations.
        eta, z : array_like
            z is positive: a Laplace site has no Gaussian below it that touches it at its peak.
        *parameters : array_like
            In the order of ``site.parameters``.

        Raises
        ------
        TypeError
            Where no bound of the site is known, see `Site.has_bound`.
        """
        shape, arrays = self._flatten(y, eta, z, *parameters)
        return Bounded(*(part.reshape(shape) for part in self._bounded_function(*arrays)))

    def bounded_parameter_gradient(self, y: Any, eta: Any, z: Any, *parameters: Any) -> tuple[Any, ...]:
        """Return the derivative of `Bounded.value` in each parameter, one array a parameter; arguments as there."""
        if not self.site.parameters:
            return ()
        shape, arrays = self._flatten(y, eta, z, *parameters)
        return tuple(part.reshape(shape) for part in self._bounded_gradient_function(*arrays))

    def bounded_with_gradient(self, y: Any, eta: Any, z: Any, *parameters: Any) -> tuple[Bounded, tuple[Any, ...]]:
        """Return both `bounded` and `bounded_parameter_gradient`, of which some sites have parts in common."""
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
