"""Expected log likelihoods of the cells of a matrix, or lower bounds on them, for predictors of Gaussian vectors.

The predictor of a cell is f = v^T u, of the vectors v and u of its row and its column. Its distribution is not
Gaussian, but E f, Var f and log E e^f have closed forms. The expected log likelihood follows from these exactly for a
Poisson rate e^f and for a normal density. For other likelihoods there is a lower bound on the expectation, by the best
parabola above log(1 + e^x) (Jaakkola and Jordan 2000) or below log log(1 + e^x), or by the tangent of a convex function
of f. With the parabola or tangent fixed the bound is concave in the mean and variances of v, and in u's. At Var f = 0
the bound and its derivatives equal the log density's.
"""

from collections.abc import Callable
from dataclasses import dataclass
from functools import partial

import numpy as np
from scipy.special import betainc, digamma, expit, gammainc, gammaln, ndtr

from pymc_ep.sites.cells.base import Anchor, CellBound
from pymc_ep.sites.cells.count_rates import (
    at_most_one,
    below_log_softplus,
    log_binomial,
    log_or_none,
    log_softplus_bends,
    no_zeros,
    no_zeros_dispersed,
    softplus,
    softplus_curvature,
)

__all__ = ["BernoulliCells", "NegativeBinomialCells", "NormalCells", "PoissonCells", "SoftplusPoissonCells"]


@dataclass(frozen=True)
class PoissonCells:
    """Counts with the rate e^f (Ko and Khan 2014), for which the expectation is exact.

    Attributes
    ----------
    truncated : bool
        True if the counts are truncated to y > 0. The term -log P(y > 0) is convex in f and bounded by its tangent.
    """

    truncated: bool = False

    name = "poisson"
    parameters = ()
    spread = "log_mean_exp"
    domain = "count"

    def bounded(
        self, y: np.ndarray, mean: np.ndarray, spread: np.ndarray, *, anchor: Anchor | None = None
    ) -> CellBound:
        """See `CellSite`."""
        # E log p(y | f) = y E f - E e^f - log y!, with spread = log E e^f.
        rate = np.exp(spread)
        bound = CellBound(y * mean - rate - gammaln(y + 1), np.asarray(y, dtype=float), -rate)
        return _with_tangent(bound, mean, anchor, no_zeros) if self.truncated else bound

    def log_density(self, y: np.ndarray, f: np.ndarray) -> np.ndarray:
        """See `CellSite`."""
        out = y * f - np.exp(f) - gammaln(y + 1)
        return out + no_zeros(f)[0] if self.truncated else out

    def peak(self, y: np.ndarray) -> np.ndarray:
        """See `CellSite`."""
        return log_or_none(y)

    def slopes(self, y: np.ndarray, f: np.ndarray) -> tuple[np.ndarray, np.ndarray]:
        """See `CellSite`."""
        rate = np.exp(f)
        return y - rate + (no_zeros(f)[1] if self.truncated else 0.0), rate

    def above(self, y: np.ndarray, f: np.ndarray) -> np.ndarray:
        """See `CellSite`."""
        # P(Y > y) = P(G < e^f) for a gamma variable G of shape y + 1.
        out = gammainc(y + 1, np.exp(f))
        return at_most_one(out, no_zeros(f)[0]) if self.truncated else out


@dataclass(frozen=True)
class NegativeBinomialCells:
    """Counts with the rate g e^f, with an independent g ~ Gamma of mean one and shape alpha in each cell.

    With g integrated out the log likelihood is y x - (alpha + y) log(1 + e^x), x = f - log alpha, up to constants. A
    variational g independent of f gives another bound, with log E e^f in place of f in the logarithm. This bound is not
    used: its curvature, alpha + y for rates far above alpha, has no counterpart in the likelihood. On listening counts
    the bound reduced variances to a tenth, and the evidence was largest for biases with a variance of zero.

    Attributes
    ----------
    truncated : bool
        True if the counts are truncated to y > 0; see `PoissonCells`.
    """

    truncated: bool = False

    name = "negative_binomial"
    parameters = ("alpha",)
    spread = "variance"
    domain = "count"

    def bounded(
        self, y: np.ndarray, mean: np.ndarray, spread: np.ndarray, alpha: np.ndarray, *, anchor: Anchor | None = None
    ) -> CellBound:
        """See `CellSite`."""
        parabola = _parabola(
            mean - np.log(alpha), spread, None if anchor is None else (anchor[0] - np.log(alpha), anchor[1])
        )
        total = alpha + y
        value = y * (mean - np.log(alpha)) - total * parabola.value + log_binomial(y, alpha)
        # x = f - log alpha gives dx / d alpha = -1 / alpha, and -y / alpha = 1 - total / alpha.
        of_alpha = digamma(total) - digamma(alpha) + 1 - parabola.value - total * (1 - parabola.of_mean) / alpha
        bound = CellBound(value, y - total * parabola.of_mean, -total * parabola.of_spread, (of_alpha,))
        return _with_tangent(bound, mean, anchor, partial(no_zeros_dispersed, alpha=alpha)) if self.truncated else bound

    def log_density(self, y: np.ndarray, f: np.ndarray, alpha: np.ndarray) -> np.ndarray:
        """See `CellSite`."""
        x = f - np.log(alpha)
        out = y * x - (alpha + y) * np.logaddexp(0.0, x) + log_binomial(y, alpha)
        return out + no_zeros_dispersed(f, alpha)[0] if self.truncated else out

    def peak(self, y: np.ndarray, alpha: np.ndarray) -> np.ndarray:
        """See `CellSite`."""
        return log_or_none(y)

    def slopes(self, y: np.ndarray, f: np.ndarray, alpha: np.ndarray) -> tuple[np.ndarray, np.ndarray]:
        """See `CellSite`."""
        probability = expit(f - np.log(alpha))
        first = y - (alpha + y) * probability + (no_zeros_dispersed(f, alpha)[1] if self.truncated else 0.0)
        return first, (alpha + y) * probability * (1 - probability)

    def above(self, y: np.ndarray, f: np.ndarray, alpha: np.ndarray) -> np.ndarray:
        """See `CellSite`."""
        # P(Y > y) = I_p(y + 1, alpha) with p = e^f / (alpha + e^f).
        out = betainc(y + 1, alpha, expit(f - np.log(alpha)))
        return at_most_one(out, no_zeros_dispersed(f, alpha)[0]) if self.truncated else out

    def curvature(self, y: np.ndarray, alpha: np.ndarray) -> tuple[np.ndarray, ...]:
        """See `CurvedCellSite`. Truncation adds a convex term, so the bound holds with it too."""
        # (alpha + y) p (1 - p) <= (alpha + y) / 4.
        return (alpha + y) / 4, np.full(y.shape, 0.25)


@dataclass(frozen=True)
class BernoulliCells:
    """Bits with log odds f: log p(y | f) = y f - log(1 + e^f)."""

    name = "bernoulli"
    parameters = ()
    spread = "variance"
    domain = "binary"
    truncated = False

    def bounded(
        self, y: np.ndarray, mean: np.ndarray, spread: np.ndarray, *, anchor: Anchor | None = None
    ) -> CellBound:
        """See `CellSite`."""
        parabola = _parabola(mean, spread, anchor)
        return CellBound(y * mean - parabola.value, y - parabola.of_mean, -parabola.of_spread)

    def log_density(self, y: np.ndarray, f: np.ndarray) -> np.ndarray:
        """See `CellSite`."""
        return y * f - np.logaddexp(0.0, f)

    def peak(self, y: np.ndarray) -> np.ndarray:
        """See `CellSite`."""
        return np.where(y > 0, np.inf, -np.inf)

    def slopes(self, y: np.ndarray, f: np.ndarray) -> tuple[np.ndarray, np.ndarray]:
        """See `CellSite`."""
        probability = expit(f)
        return y - probability, probability * (1 - probability)

    def above(self, y: np.ndarray, f: np.ndarray) -> np.ndarray:
        """See `CellSite`."""
        return np.where(y < 1, expit(f), 0.0)

    def curvature(self, y: np.ndarray) -> tuple[np.ndarray, ...]:
        """See `CurvedCellSite`."""
        return (np.full(y.shape, 0.25),)


@dataclass(frozen=True)
class SoftplusPoissonCells:
    """Counts with the rate l = log(1 + e^f), with the best quadratic lower bound on log l and upper bound on l."""

    name = "softplus_poisson"
    parameters = ()
    spread = "variance"
    domain = "count"
    truncated = False

    def bounded(
        self, y: np.ndarray, mean: np.ndarray, spread: np.ndarray, *, anchor: Anchor | None = None
    ) -> CellBound:
        """See `CellSite`."""
        rate, parabola = (
            _parabola(mean, spread, anchor),
            below_log_softplus(*((mean, spread) if anchor is None else anchor)),
        )
        _, log_rate, _, slope = softplus(parabola.touches)
        bend, step = parabola.curvature, mean - parabola.touches
        # E of h(t) + h'(t) (f - t) - c (f - t)^2 / 2 for h = log l, as E (f - t)^2 = (E f - t)^2 + Var f.
        log_rate = log_rate + slope * step - bend / 2 * (step**2 + spread)
        value = y * log_rate - rate.value - gammaln(y + 1)
        return CellBound(value, y * (slope - bend * step) - rate.of_mean, -y * bend / 2 - rate.of_spread)

    def log_density(self, y: np.ndarray, f: np.ndarray) -> np.ndarray:
        """See `CellSite`."""
        rate, log_rate, *_ = softplus(f)
        return y * log_rate - rate - gammaln(y + 1)

    def peak(self, y: np.ndarray) -> np.ndarray:
        """See `CellSite`."""
        # l = y at f = log(e^y - 1) = y + log(1 - e^-y).
        return y + log_or_none(-np.expm1(-y))

    def slopes(self, y: np.ndarray, f: np.ndarray) -> tuple[np.ndarray, np.ndarray]:
        """See `CellSite`."""
        _, _, probability, slope = softplus(f)
        # y h' - l' and l'' - y h'', with h = log l, l' = 1 / (1 + e^-f) and l'' = l' (1 - l').
        return y * slope - probability, probability * (1 - probability) - y * log_softplus_bends(f)[0]

    def above(self, y: np.ndarray, f: np.ndarray) -> np.ndarray:
        """See `CellSite`."""
        return gammainc(y + 1, np.logaddexp(0.0, f))

    def curvature(self, y: np.ndarray) -> tuple[np.ndarray, ...]:
        """See `CurvedCellSite`."""
        return (softplus_curvature(y),)


@dataclass(frozen=True)
class NormalCells:
    """Reals y ~ N(f, sigma^2), for which the expectation is exact."""

    name = "normal"
    parameters = ("sigma",)
    spread = "variance"
    domain = "real"
    truncated = False

    def bounded(
        self, y: np.ndarray, mean: np.ndarray, spread: np.ndarray, sigma: np.ndarray, *, anchor: Anchor | None = None
    ) -> CellBound:
        """See `CellSite`."""
        # E (y - f)^2 = (y - E f)^2 + Var f.
        precision, second = sigma**-2.0, (y - mean) ** 2 + spread
        value = -0.5 * (np.log(2 * np.pi) + precision * second) - np.log(sigma)
        of_sigma = (precision * second - 1) / sigma
        return CellBound(value, precision * (y - mean), -0.5 * precision, (of_sigma,))

    def log_density(self, y: np.ndarray, f: np.ndarray, sigma: np.ndarray) -> np.ndarray:
        """See `CellSite`."""
        return -0.5 * (np.log(2 * np.pi) + ((y - f) / sigma) ** 2) - np.log(sigma)

    def peak(self, y: np.ndarray, sigma: np.ndarray) -> np.ndarray:
        """See `CellSite`."""
        return y

    def slopes(self, y: np.ndarray, f: np.ndarray, sigma: np.ndarray) -> tuple[np.ndarray, np.ndarray]:
        """See `CellSite`."""
        return (y - f) / sigma**2, sigma**-2.0

    def above(self, y: np.ndarray, f: np.ndarray, sigma: np.ndarray) -> np.ndarray:
        """See `CellSite`."""
        return ndtr((f - y) / sigma)

    def curvature(self, y: np.ndarray, sigma: np.ndarray) -> tuple[np.ndarray, ...]:
        """See `CurvedCellSite`."""
        return sigma**-2.0, -2 * sigma**-3.0


def _parabola(mean: np.ndarray, variance: np.ndarray, anchor: Anchor | None) -> CellBound:
    """Return an upper bound on E log(1 + e^x), and its derivatives in the moments of x.

    With z^2 = E x^2 at the anchor, log(1 + e^x) <= log(1 + e^z) + (x - z) / 2 + k (x^2 - z^2), k = tanh(z / 2) / (4 z).
    """
    at = (mean, variance) if anchor is None else anchor
    z = np.sqrt(at[0] ** 2 + at[1])
    k = np.where(z > 0, np.tanh(z / 2) / np.where(z > 0, 4 * z, 1.0), 0.125)
    value = np.logaddexp(0.0, z) + (mean - z) / 2 + k * (mean**2 + variance - z**2)
    return CellBound(value, 0.5 + 2 * k * mean, k)


def _with_tangent(
    bound: CellBound, mean: np.ndarray, anchor: Anchor | None, cut: Callable[[np.ndarray], tuple[np.ndarray, ...]]
) -> CellBound:
    """Return `bound` plus the tangent of -log P(y > 0 | f), which touches at the anchor's mean, by default at `mean`.

    ``cut(f)`` returns -log P(y > 0 | f) and its derivatives in f and in the parameters.
    """
    at = mean if anchor is None else anchor[0]
    value, slope, *of_parameters = cut(at)
    derivatives = tuple(a + b for a, b in zip(bound.of_parameters, of_parameters))
    return CellBound(bound.value + value + slope * (mean - at), bound.of_mean + slope, bound.of_spread, derivatives)
