"""Expected log likelihoods of the cells of a matrix whose predictors are inner products of Gaussian rows, or bounds.

The distribution of such a predictor f is not Gaussian, but its mean, its variance and log E e^f are known. For a
Poisson rate e^f the expectation follows from these as it is. Otherwise there is a lower bound, concave in the moments
of either row: by Jensen's inequality where the log likelihood depends on f through a concave function of e^f, by the
tangent of a convex function of f, or by the greatest curvature that a concave function of f has anywhere.
"""

from dataclasses import dataclass
from typing import Any, NamedTuple, Protocol

import numpy as np
from scipy.special import digamma, expit, gammaln

__all__ = [
    "CELL_SITES",
    "BernoulliCells",
    "CellBound",
    "CellSite",
    "NegativeBinomialCells",
    "PoissonCells",
    "cell_site",
    "cell_site_names",
]


class CellBound(NamedTuple):
    """What cells add to a bound on the log evidence.

    Attributes
    ----------
    value : ndarray, (n,)
        A lower bound on E log p(y | f), all constants included.
    of_mean, of_spread : ndarray, (n,)
        Its derivatives in E f and in the site's second statistic.
    of_parameters : tuple of ndarray, (n,)
        Its derivatives in the parameters, where tangents are taken at the mean.
    """

    value: np.ndarray
    of_mean: np.ndarray
    of_spread: np.ndarray
    of_parameters: tuple[np.ndarray, ...] = ()


class CellSite(Protocol):
    """What a likelihood of cells offers.

    Attributes
    ----------
    name : str
    parameters : tuple of str
        Names of the likelihood's parameters beside f.
    spread : {"log_mean_exp", "variance"}
        The second statistic of f: log E e^f or Var f.
    """

    name: str
    parameters: tuple[str, ...]
    spread: str

    def bounded(
        self, y: np.ndarray, mean: np.ndarray, spread: np.ndarray, *parameters: np.ndarray, anchor: Any = None
    ) -> CellBound:
        """Return the bound at moments of f, (n,) each; tangents are taken at `anchor`, (n,), by default at the mean."""

    def log_density(self, y: np.ndarray, f: np.ndarray, *parameters: np.ndarray) -> np.ndarray:
        """Return log p(y | f), of the common shape of all arguments."""

    def first_bad(self, y: np.ndarray) -> tuple[int, str] | None:
        """Return the place of the first observation that cannot be, and what they may be; None where all can."""


def _counts(y: np.ndarray, least: int) -> tuple[int, str] | None:
    bad = ~((y >= least) & (y == np.floor(y)) & np.isfinite(y))
    kinds = "whole numbers of at least zero" if least == 0 else "whole numbers of at least one, as zeros are cut off"
    return (int(np.argmax(bad)), kinds) if bad.any() else None


@dataclass(frozen=True)
class PoissonCells:
    """Counts with the rate e^f (Ko and Khan 2014), for which the expectation is exact.

    Attributes
    ----------
    truncated : bool
        Whether zeros cannot be observed. -log P(y > 0) is convex in f, and its tangent takes its place.
    """

    truncated: bool = False

    name = "poisson"
    parameters = ()
    spread = "log_mean_exp"

    def bounded(self, y, mean, spread, *, anchor=None):
        """See `CellSite`."""
        rate = np.exp(spread)
        found = CellBound(y * mean - rate - gammaln(y + 1), np.asarray(y, dtype=float), -rate)
        return (
            _with_tangent(found, mean, anchor, _no_zeros(mean if anchor is None else anchor))
            if self.truncated
            else found
        )

    def log_density(self, y, f):
        """See `CellSite`."""
        out = y * f - np.exp(f) - gammaln(y + 1)
        return out + _no_zeros(f)[0] if self.truncated else out

    def first_bad(self, y):
        """See `CellSite`."""
        return _counts(y, int(self.truncated))


@dataclass(frozen=True)
class NegativeBinomialCells:
    """Counts with the rate g e^f, of which g has a gamma distribution with mean one and shape alpha in each cell.

    Summed over g the log likelihood is y f - (alpha + y) log(alpha + e^f) up to constants, and by Jensen's inequality
    its expectation is no less than with E e^f in place of e^f. That is the bound with the best gamma distribution for
    each g.

    Attributes
    ----------
    truncated : bool
        Whether zeros cannot be observed; see `PoissonCells`.
    """

    truncated: bool = False

    name = "negative_binomial"
    parameters = ("alpha",)
    spread = "log_mean_exp"

    def bounded(self, y, mean, spread, alpha, *, anchor=None):
        """See `CellSite`."""
        log_sum, share = np.logaddexp(np.log(alpha), spread), expit(spread - np.log(alpha))
        value = y * mean - (alpha + y) * log_sum + _negative_binomial_constant(y, alpha)
        of_alpha = digamma(alpha + y) - digamma(alpha) + np.log(alpha) + 1 - log_sum - (alpha + y) * np.exp(-log_sum)
        found = CellBound(value, np.asarray(y, dtype=float), -(alpha + y) * share, (of_alpha,))
        if not self.truncated:
            return found
        return _with_tangent(found, mean, anchor, _no_zeros_dispersed(mean if anchor is None else anchor, alpha))

    def log_density(self, y, f, alpha):
        """See `CellSite`."""
        out = y * f - (alpha + y) * np.logaddexp(np.log(alpha), f) + _negative_binomial_constant(y, alpha)
        return out + _no_zeros_dispersed(f, alpha)[0] if self.truncated else out

    def first_bad(self, y):
        """See `CellSite`."""
        return _counts(y, int(self.truncated))


@dataclass(frozen=True)
class BernoulliCells:
    """Bits with log odds f: y f - log(1 + e^f), whose curvature is a quarter at most."""

    name = "bernoulli"
    parameters = ()
    spread = "variance"

    def bounded(self, y, mean, spread, *, anchor=None):
        """See `CellSite`."""
        return CellBound(self.log_density(y, mean) - spread / 8, y - expit(mean), np.full(len(mean), -0.125))

    def log_density(self, y, f):
        """See `CellSite`."""
        return y * f - np.logaddexp(0.0, f)

    def first_bad(self, y):
        """See `CellSite`."""
        bad = ~((y == 0) | (y == 1))
        return (int(np.argmax(bad)), "0 or 1") if bad.any() else None


def _negative_binomial_constant(y, alpha):
    return gammaln(alpha + y) - gammaln(alpha) - gammaln(y + 1) + alpha * np.log(alpha)


def _with_tangent(found: CellBound, mean, anchor, tangent) -> CellBound:
    """Add the tangent of -log P(y > 0) at the anchor."""
    value, slope, *of_parameters = tangent
    shift = 0.0 if anchor is None else mean - anchor
    own = tuple(a + b for a, b in zip(found.of_parameters, of_parameters))
    return CellBound(found.value + value + slope * shift, found.of_mean + slope, found.of_spread, own)


def _no_zeros(f):
    """Return -log P(y > 0) for a Poisson count of rate e^f, and its derivative in f."""
    rate = np.exp(f)
    small = rate < 1e-8
    # -log(1 - e^-rate) = -f + rate / 2 - ..., and rate / (e^rate - 1) = 1 - rate / 2 + ...: exact below 1e-8.
    safe = np.where(small, 1.0, rate)
    with np.errstate(over="ignore"):
        slope = -np.where(small, 1.0 - rate / 2, safe / np.expm1(safe))
    return np.where(small, -f + rate / 2, -np.log(-np.expm1(-safe))), slope


def _no_zeros_dispersed(f, alpha):
    """Return -log P(y > 0) for a negative binomial count of mean e^f, and its derivatives in f and in alpha."""
    rate = np.exp(f)
    grown = np.log1p(rate / alpha)
    # P(0) = e^{-t} with t = alpha log(1 + rate / alpha), and odds of zero are 1 / (e^t - 1).
    t = alpha * grown
    small = t < 1e-8
    safe = np.where(small, 1.0, t)
    with np.errstate(over="ignore"):
        odds = np.where(small, 1.0 / np.where(small, t, 1.0) - 0.5, 1.0 / np.expm1(safe))
    value = np.where(small, -np.log(np.where(small, t, 1.0)) + t / 2, -np.log(-np.expm1(-safe)))
    share = rate / (alpha + rate)
    return value, -odds * alpha * share, -odds * (grown - share)


_SITES: dict[str, Any] = {
    "poisson": PoissonCells,
    "negative_binomial": NegativeBinomialCells,
    "logit": BernoulliCells,
}
"""By the names of the sites that have the same likelihood of a predictor with a Gaussian posterior."""
_TRUNCATED = (PoissonCells, NegativeBinomialCells)
CELL_SITES = tuple(_SITES.values())
"""Their types."""


def cell_site(name: str, *, truncated: bool) -> CellSite | None:
    """Return the likelihood of cells that is that of a site, maybe with zeros cut off; None where there is none."""
    kind = _SITES.get(name)
    if kind is None or (truncated and kind not in _TRUNCATED):
        return None
    return kind(truncated=True) if truncated else kind()


def cell_site_names() -> tuple[str, ...]:
    """Return the names of the sites that cells can have."""
    return tuple(_SITES)
