"""Log density of a site at a point, and its expectation under a Gaussian predictor, each with slope and curvature.

With f = m + s x and x standard normal, Stein's identity gives the derivatives of E log t in the mean m and variance s^2
from the slope of log t alone, so that kinks do no harm:

    d/dm E log t = E (log t)',      2 d/ds^2 E log t = E (log t)'' = E[(log t)' x] / s.

A Gauss-Hermite rule is used where its last coefficients show that integrands are close to polynomials of low degree.
Other integrals, such as of a narrow density under a wide Gaussian, are over panels, which are halved until the halves
agree with them.
"""

from collections.abc import Callable, Iterator, Sequence
from functools import lru_cache
from typing import Any, NamedTuple

import numpy as np
import pytensor
import pytensor.tensor as pt
import scipy.special

from pymc_ep.concurrency import compiled_property
from pymc_ep.numerics.memory import chunks
from pymc_ep.numerics.quadrature.gauss_hermite import hermite_rule
from pymc_ep.sites.base import Site
from pymc_ep.sites.log_density_rows import BLOCK

__all__ = ["ExpectationFunctions", "Expected"]

_NODES, _PANEL = 32, 16
"""Nodes of the Gauss-Hermite rule, and of a panel."""
_NEGLIGIBLE = 1e-9
"""Largest size of a rule's last coefficients, relative to the mean modulus of the integrand, at which the rule is
accepted. The coefficients that the rule misses have twice the degree, and about the square of this size."""
_CUTS = np.array([-38.0, -19.0, -9.5, -5.0, -2.5, 0.0, 2.5, 5.0, 9.5, 19.0, 38.0])
"""Ends of the first panels, in standard deviations s of f: beyond 38 the normal density is zero. For a rate exp(f) the
integrand is centred s standard deviations from the mean, so that 9.5 are not enough."""
_AGREEMENT, _HALVINGS = 1e-12, 40
"""Difference of a panel and its halves, as a share of the integral of the modulus, up to which the halves are accepted,
and largest number of halvings, after which a jump is left in 1e-12 of a panel."""
_NO_MASS = 1e-100
"""Weight below which a node where the density overflows, or is not defined, has no part in the integral."""


class Expected(NamedTuple):
    """Log t of sites, or E log t, with slope and negative curvature in the predictor or in its mean, (n,) each."""

    value: np.ndarray
    gradient: np.ndarray
    precision: np.ndarray


class _Rule(NamedTuple):
    """Quadrature nodes of m sites; each site has one or more columns of nodes.

    Attributes
    ----------
    sites : ndarray of int, (m,)
        Indices of the sites.
    site : ndarray of int, (columns,)
        Position in `sites` of each column's site.
    node, weight : ndarray, (nodes, columns)
        Standardised predictors, and their probabilities.
    log_t, slope : ndarray, (nodes, columns)
        Log density at the nodes, and its slope in the predictor.
    """

    sites: np.ndarray
    site: np.ndarray
    node: np.ndarray
    weight: np.ndarray
    log_t: np.ndarray
    slope: np.ndarray

    def sums(self, values: np.ndarray) -> np.ndarray:
        """Return sums for each site, (m,), of values, (nodes, columns)."""
        return np.bincount(self.site, values.sum(axis=0), minlength=len(self.sites))


class ExpectationFunctions:
    """Functions of a compiled site for approximations by log t at a point or by E log t, for NumPy arrays alone."""

    site: Site
    options: dict[str, Any]
    _density_function: Callable[..., Sequence[Any]]
    _density_gradient_function: Callable[..., Sequence[Any]]
    _flatten: Callable[..., tuple[tuple[int, ...], list[Any]]]
    _function: Callable[..., Callable[..., Any]]
    _log_t: Callable[..., Any]
    _mode_of_derivatives: Callable[..., Any]
    _vectors: Callable[..., list[Any]]
    log_density_derivatives: Callable[..., tuple[Any, ...]]

    def at_point(self, y: Any, eta: Any, *parameters: Any) -> Expected:
        """Return log t at predictors, (n,), with slope and negative curvature."""
        value, slope, curvature, _ = self.log_density_derivatives(y, eta, *parameters)
        return Expected(value, slope, -curvature)

    def expected(self, y: Any, mean: Any, variance: Any, *parameters: Any) -> Expected:
        """Return E log t under N(mean, variance), (n,) each, with slope and negative curvature in the mean.

        The expectation is minus infinity where t is zero with positive probability.
        """
        _, (y, mean, variance, *values) = self._flatten(y, mean, variance, *parameters)
        sd = np.sqrt(variance)
        out = np.empty((3, len(mean)))
        for rule in self._averages([y, mean, sd, *values]):
            scale = np.where(sd > 0, sd, 1.0)[rule.sites]
            by_slope = rule.weight * rule.slope
            # E log t, E (log t)' and -E[(log t)' x] / s = -E (log t)''.
            out[:, rule.sites] = (
                rule.sums(rule.weight * rule.log_t),
                rule.sums(by_slope),
                -rule.sums(by_slope * rule.node) / scale,
            )
        if not sd.all():
            out[2] = np.where(sd > 0, out[2], self.at_point(y, mean, *values).precision)
        return Expected(*out)

    def expected_parameter_gradient(self, y: Any, mean: Any, variance: Any, *parameters: Any) -> tuple[np.ndarray, ...]:
        """Return the derivatives of E log t in each parameter, (n,) each; for arguments see `expected`."""
        _, (y, mean, variance, *values) = self._flatten(y, mean, variance, *parameters)
        sd = np.sqrt(variance)
        out = np.empty((len(values), len(mean)))
        for rule in self._averages([y, mean, sd, *values]):
            column = rule.sites[rule.site]
            arrays = (array[column] for array in (y, *values))
            terms = self._density_gradient_function(mean[column] + sd[column] * rule.node, rule.weight, *arrays)
            out[:, rule.sites] = [np.bincount(rule.site, term, minlength=len(rule.sites)) for term in terms]
        return tuple(out)

    def point_parameter_gradient(
        self, y: Any, eta: Any, by_slope: Any, by_curvature: Any, *parameters: Any
    ) -> tuple[np.ndarray, ...]:
        """Return the derivatives of log t + b (log t)' + c (log t)'' in each parameter, (n,) each.

        Here b is `by_slope` and c is `by_curvature`, (n,) each.
        """
        _, arrays = self._flatten(y, eta, by_slope, by_curvature, *parameters)
        return tuple(self._point_gradient_function(*arrays))

    @compiled_property
    def _point_gradient_function(self) -> Callable[..., Sequence[Any]]:
        y, eta, by_slope, by_curvature, *parameters = inputs = self._vectors("y", "eta", "by_slope", "by_curvature")
        log_t = self._log_t(y, eta, parameters)
        slope = pytensor.grad(log_t.sum(), eta)
        total = log_t + by_slope * slope + by_curvature * pytensor.grad(slope.sum(), eta)
        gradient = pytensor.grad(total.sum(), parameters, disconnected_inputs="ignore")
        gradient = [derivative + pt.zeros_like(eta) for derivative in gradient]
        return self._function(inputs, gradient, self._mode_of_derivatives(gradient))

    def _averages(self, arrays: Sequence[np.ndarray]) -> Iterator[_Rule]:
        """Yield rules for expectations under N(mean, sd^2), a few for each block of sites.

        `arrays` are y, mean, sd and the parameters, (n,) each.
        """
        node, weight, last = hermite_rule(_NODES)
        for block in chunks(len(arrays[0]), _NODES, BLOCK):
            sites = np.arange(block.start, block.stop)
            rule = self._evaluated(sites, np.arange(len(sites)), node[:, None], weight[:, None], arrays)
            smooth = np.isfinite(rule.log_t).all(axis=0) & np.isfinite(rule.slope).all(axis=0)
            # Hermite coefficients sum_k w_k h_j(x_k) f(x_k) for the last j, of f = log t and d log t / dx = s (log t)'.
            for array in (rule.log_t, rule.slope * arrays[2][sites]):
                with np.errstate(invalid="ignore"):
                    size_of = np.maximum(np.abs(rule.weight * array).sum(axis=0), 1.0)
                    smooth &= np.abs(last @ (rule.weight * array)).max(axis=0) <= _NEGLIGIBLE * size_of
            if smooth.any():
                yield _Rule(sites[smooth], np.arange(smooth.sum()), *(array[:, smooth] for array in rule[2:]))
            if not smooth.all():
                yield self._halved(sites[~smooth], arrays)

    def _evaluated(
        self, sites: np.ndarray, site: np.ndarray, node: np.ndarray, weight: np.ndarray, arrays: Sequence[np.ndarray]
    ) -> _Rule:
        """Return the rule of given nodes and weights, (nodes, columns), with log t and its slope at the nodes."""
        y, mean, sd, *values = (array[sites[site]] for array in arrays)
        log_t, slope = self._density_function(mean + sd * node, y, *values)
        node, weight = np.broadcast_to(node, log_t.shape), np.broadcast_to(weight, log_t.shape)
        lost = (weight < _NO_MASS) & ~(np.isfinite(log_t) & np.isfinite(slope))
        return _Rule(sites, site, node, weight, np.where(lost, 0.0, log_t), np.where(lost, 0.0, slope))

    def _halved(self, sites: np.ndarray, arrays: Sequence[np.ndarray]) -> _Rule:
        """Return a rule of panels, each of which is halved until the halves agree with it."""
        x, unit = (array[:, None] for array in _lobatto(_PANEL))

        def evaluated(site: np.ndarray, left: np.ndarray, width: np.ndarray) -> tuple[_Rule, np.ndarray]:
            node = left + width * x
            # phi(x) dx, with dx the weight of a node in its panel.
            weight = np.exp(-0.5 * node**2) / np.sqrt(2 * np.pi) * width * unit
            rule = self._evaluated(sites, site, node, weight, arrays)
            by_slope = rule.weight * rule.slope * arrays[2][sites[site]]
            # Integrals over each panel of log t, s (log t)' and s (log t)' x.
            return rule, np.array([array.sum(axis=0) for array in (weight * rule.log_t, by_slope, by_slope * node)])

        site = np.repeat(np.arange(len(sites)), len(_CUTS) - 1)
        left, width = np.tile(_CUTS[:-1], len(sites)), np.tile(np.diff(_CUTS), len(sites))
        rule, whole = evaluated(site, left, width)
        size = np.maximum([np.bincount(site, np.abs(array), minlength=len(sites)) for array in whole], 1.0)
        done = []
        for _ in range(_HALVINGS):
            half = 0.5 * width
            left, width = np.column_stack([left, left + half]).ravel(), np.repeat(half, 2)
            rule, halves = evaluated(np.repeat(site, 2), left, width)
            with np.errstate(invalid="ignore"):
                error = np.abs(halves[:, ::2] + halves[:, 1::2] - whole)
                differs = np.repeat((error > _AGREEMENT * size[:, site]).any(axis=0), 2)
            done.append(_columns(rule, ~differs))
            rule, left, width, whole = _columns(rule, differs), left[differs], width[differs], halves[:, differs]
            site = rule.site
            if not site.size:
                break
        done.append(rule)
        return _Rule(sites, *(np.concatenate(pieces, axis=-1) for pieces in list(zip(*done))[1:]))


@lru_cache
def _lobatto(nodes: int) -> tuple[np.ndarray, np.ndarray]:
    """Return nodes and weights of the Gauss-Lobatto rule on (0, 1).

    Nodes at both ends detect a kink next to an end, which other rules miss both in a panel and in its halves.
    """
    # On (-1, 1) inner nodes are zeros of P'_(n-1), a Jacobi polynomial of parameters (1, 1), and weights are
    # 2 / (n (n - 1) P_(n-1)(x)^2); on (0, 1) half of it.
    node = np.concatenate([[-1.0], scipy.special.roots_jacobi(nodes - 2, 1.0, 1.0)[0], [1.0]])
    weight = 1.0 / (nodes * (nodes - 1) * scipy.special.eval_legendre(nodes - 1, node) ** 2)
    return (node + 1.0) / 2.0, weight


def _columns(rule: _Rule, kept: np.ndarray) -> _Rule:
    """Return the rule with some of its columns."""
    return _Rule(rule.sites, rule.site[kept], *(array[:, kept] for array in rule[2:]))
