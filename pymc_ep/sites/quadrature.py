"""Quadrature of a site: moments of its tilted densities and their derivatives, as sums over nodes.

If a site has a generated loop, the loop computes the observations at which it passes its own test of accuracy. All
others are sums over the nodes of quadrature rules.
"""

from collections.abc import Callable, Iterable, Iterator, Sequence
from contextlib import contextmanager
from functools import cached_property
from typing import Any

import numpy as np
import pytensor
import pytensor.tensor as pt

from pymc_ep.concurrency import compiled_property
from pymc_ep.exceptions import ImpossibleDensityError
from pymc_ep.numerics.backend.namespace import Array, is_jax
from pymc_ep.numerics.quadrature.gauss_hermite import known_smooth_nodes, seen_smooth_nodes
from pymc_ep.numerics.quadrature.gauss_legendre import (
    TiltedNodes,
    cumulants_from_nodes,
    moments_from_nodes,
    tilted_nodes,
)
from pymc_ep.numerics.quadrature.multimodal import defined, scanned_nodes
from pymc_ep.numerics.quadrature.peak_search import Survey, beside_support
from pymc_ep.sites.base import Site, Tilted
from pymc_ep.sites.generated.kernel import GeneratedMoments
from pymc_ep.sites.generated.op import FIELDS
from pymc_ep.sites.log_density_rows import BLOCK

__all__ = ["QuadratureFunctions", "among", "gathered"]

_MOMENTS, _CUMULANTS = slice(len(Tilted._fields)), slice(len(Tilted._fields), len(FIELDS))
_GRADIENT = slice(len(FIELDS), -1)
"""Rows of moments, of cumulants and of derivatives in parameters in the result of a generated loop."""

_NO_WEIGHT = 1e-100
"""Largest weight of a quadrature node, as a share of the integral, that is treated as zero."""
_ROUNDING = 1e-6
"""Largest log density of a discrete variable that is accepted. The exact one is at most zero: this allows for rounding
of terms of 1e9."""

_ANYWHERE = np.concatenate([[0.0], np.geomspace(1e-3, 30.0, 20), -np.geomspace(1e-3, 30.0, 20)])
"""Offsets of predictors from the cavity mean at which the density of an observation is tested: if it is zero at all of
them, the observation is impossible. Beyond 30, links overflow or vanish."""


class QuadratureFunctions:
    """The functions of a compiled site that concern quadrature; arguments are vectors, (n,) each."""

    site: Site
    options: dict[str, Any]
    mode: Any
    loop: bool
    requires_support: bool = True
    """Whether a density that is zero at all predictors, or too high at one, raises an error."""
    _jax: bool
    _function: Callable[..., Callable[..., Any]]
    _log_t: Callable[..., Any]
    _vectors: Callable[..., list[Any]]

    @compiled_property
    def _density_function(self) -> Callable[..., Sequence[Any]]:
        """``(f, y, *parameters) -> log t, slope`` with f of shape (k, n) and the rest (n,)."""
        eta = pt.matrix("eta", dtype="float64")
        y, *parameters = self._vectors("y")
        log_t = self._log_t(y, eta, parameters)
        # Entry (k, n) of log t depends on eta_kn alone: the gradient of the sum holds all slopes.
        return self._function([eta, y, *parameters], [log_t, pytensor.grad(log_t.sum(), eta)])

    @compiled_property
    def _density_gradient_function(self) -> Callable[..., Sequence[Any]]:
        """``(f, w, y, *parameters) -> sum_k w_k d log t(f_k) / d parameter``, f and w of shape (k, n)."""
        eta, weight = pt.matrix("eta", dtype="float64"), pt.matrix("weight", dtype="float64")
        y, *parameters = self._vectors("y")
        total = (weight * self._log_t(y, eta, parameters)).sum()
        return self._function([eta, weight, y, *parameters], pytensor.grad(total, parameters))

    @cached_property
    def _density(self) -> Callable[..., Sequence[Any]]:
        """`_density_function`; where the support of t is unknown, log t is minus infinity where it is not valid."""
        if not self.site.scanned:
            return self._density_function
        return defined(self._density_function, self._highest)

    @property
    def _highest(self) -> float:
        """Largest valid log density: zero, plus rounding, for whole numbers; no limit for others."""
        return _ROUNDING if self.site.domain == "integer" else np.finfo(float).max

    def _require_possible(self, seen: Survey, arrays: Sequence[Any], first: int) -> None:
        """Raise `ImpossibleDensityError` for a density that is zero at all predictors, or above `_highest` at one.

        Points of the survey `seen` are tested at which t is not valid, while it matters to the integral next to them.
        If log t is undefined or minus infinity there, the support of t ends there, which is no error. Observation 0 of
        `arrays` has the index `first` in the message.
        """
        if not self.requires_support:
            return
        name = f"an observation of the {self.site.name} site"
        for k in np.flatnonzero(~np.isfinite(seen.level).any(axis=0)):
            y, mean, _, _, *parameters = (array[k : k + 1] for array in arrays)
            log_t = self._density_function(mean + _ANYWHERE[:, None], y, *parameters)[0]
            if np.all(log_t == -np.inf):
                raise ImpossibleDensityError(name, first + int(k), y[0], mean[0], -np.inf)
        points, sites = np.nonzero(beside_support(seen))
        if not points.size:
            return
        y, mean, _, _, *parameters = (array[sites] for array in arrays)
        eta = mean + seen.offset[points, sites]
        log_t = self._density_function(eta[None], y, *parameters)[0][0]
        wrong = np.flatnonzero(log_t > self._highest)
        if wrong.size:
            k = wrong[0]
            raise ImpossibleDensityError(name, first + int(sites[k]), y[k], eta[k], log_t[k])

    def _rule(self, arrays: Sequence[Any], seen: Survey | None = None) -> TiltedNodes:
        y, mean, variance, power, *parameters = arrays
        if seen is not None:
            return scanned_nodes(self._density, y, mean, variance, power, parameters, seen=seen, nodes=self.site.nodes)
        knots = () if self.site.knots is None else self.site.knots(y, *parameters)
        peaks = () if self.site.peaks is None else self.site.peaks(y, mean, variance, power, *parameters)
        return tilted_nodes(
            self._density_function,
            y,
            mean,
            variance,
            power,
            parameters,
            knots=knots,
            peaks=peaks,
            knots_beyond=self.site.knots_beyond,
            log_concave=self.site.log_concave,
            nodes=self.site.nodes,
        )

    def _summed(self, rule: TiltedNodes) -> Sequence[Any]:
        return moments_from_nodes(rule, log_concave=self.site.log_concave)

    @cached_property
    def _loop(self) -> GeneratedMoments:
        return GeneratedMoments(self.site, self.options, self._highest, self.mode)

    def _by_quadrature(self, *arrays: Array) -> Sequence[Any]:
        return self._first_by_loop(_MOMENTS, arrays, lambda _, rule: self._summed(rule))

    def _cumulants_by_quadrature(self, *arrays: Array) -> Sequence[Any]:
        return self._first_by_loop(_CUMULANTS, arrays, lambda _, rule: cumulants_from_nodes(rule))

    def _gradient_by_quadrature(self, *arrays: Array) -> Sequence[Any]:
        return self._first_by_loop(_GRADIENT, arrays, self._summed_gradient)

    def _first_by_loop(self, rows: slice, arrays: Sequence[Any], summed: Callable[..., Sequence[Any]]) -> Sequence[Any]:
        """Return rows of the generated loop for sites that it accepts, and sums over nodes for the others."""
        generated = self._generated(arrays)
        if generated is None:
            return self._by_nodes(arrays, summed)
        fields = list(generated[rows])
        rest = np.flatnonzero(generated[-1] == 0)
        if rest.size:
            with among(rest):
                values = self._by_nodes([array[rest] for array in arrays], summed)
            for field, value in zip(fields, values, strict=True):
                field[rest] = value
        return fields

    def _generated(self, arrays: Sequence[Any]) -> np.ndarray | None:
        """Return the result of the generated loop; None without one."""
        return self._loop(arrays) if self.loop else None

    def _by_nodes(self, arrays: Sequence[Any], summed: Callable[..., Sequence[Any]]) -> Sequence[Any]:
        pieces = ((index, summed(subset, rule)) for index, subset, rule in self._pieces(arrays))
        return gathered(pieces, len(arrays[0]))

    def _summed_gradient(self, arrays: Sequence[Any], rule: TiltedNodes) -> Sequence[Any]:
        panels, site = rule.panels, rule.panels.site
        y, _, _, power, *parameters = arrays
        y, power, centre, *parameters = (array[site] for array in (y, power, rule.centre, *parameters))
        # Nodes of weight zero are moved to the centre: the derivative may not exist at them, or overflow.
        offset = np.where(rule.weight > _NO_WEIGHT, rule.offset, 0.0) if self.site.scanned else rule.offset
        # d log Z / d parameter = sum_k w_k power d log t(f_k) / d parameter, where sum_k w_k = 1.
        terms = self._density_gradient_function(centre + offset, power * rule.weight, y, *parameters)
        return [panels.reduce(term, "add") for term in terms]

    def _pieces(self, arrays: Sequence[Any]) -> Iterator[tuple[Any, Sequence[Any], TiltedNodes]]:
        """Yield pieces of the vectors, each as indices of the sites, their arrays and their quadrature rule.

        Pieces keep the (nodes, n) arrays small. In JAX, which fuses these arrays away, all sites are one piece. Sites
        whose integrand is a smooth single peak get a Gauss-Hermite rule, which is accurate for them. The others of a
        block form a second piece.
        """
        n = arrays[0].shape[0]
        if self._jax:
            yield slice(None), arrays, self._rule(arrays)
            return
        smooth_nodes = seen_smooth_nodes if self.site.scanned else known_smooth_nodes
        size = max(1, BLOCK // (2 * self.site.nodes))
        for start in range(0, n, size):
            block = [array[start : start + size] for array in arrays]
            smooth = smooth_nodes(self._density, *block)
            if smooth.seen is not None:
                self._require_possible(smooth.seen, block, start)
            for index, rule in smooth.rules:
                yield start + index, [array[index] for array in block], rule
            if smooth.rest.size:
                subset = [array[smooth.rest] for array in block]
                seen = None if smooth.seen is None else smooth.seen.of(smooth.rest)
                yield start + smooth.rest, subset, self._rule(subset, seen)


@contextmanager
def among(sites: np.ndarray) -> Iterator[None]:
    """In a ``with`` block that evaluates the sites of indices `sites` alone, correct an `ImpossibleDensityError`.

    Its index among these sites is replaced by the index among all.
    """
    try:
        yield
    except ImpossibleDensityError as error:
        raise error.moved(int(sites[error.index]) - error.index) from None


def gathered(pieces: Iterable[tuple[Any, Sequence[Any]]], size: int) -> Sequence[Any]:
    """Return vectors of all sites from pieces, each given as indices and a sequence of vectors."""
    out: list[Any] = []
    for index, fields in pieces:
        if is_jax(fields[0]):
            return fields
        out = out or [np.empty(size) for _ in fields]
        for whole, field in zip(out, fields, strict=True):
            whole[index] = field
    return out
