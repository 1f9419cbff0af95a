"""Categories without order, observed one by one or counted, whose probabilities are a softmax.

The predictors are the log-odds of all other categories to the first. A single observation of three categories has a
site of two predictors, see `pymc_ep.sites.two_predictors`; more categories, and counts, have a `SoftmaxSite`.
"""

from dataclasses import dataclass, replace
from functools import lru_cache
from typing import Any

import numpy as np
import pytensor.tensor as pt
from scipy.special import gammaln

from pymc_ep.numerics.backend.namespace import Array
from pymc_ep.sites.base import Relation, Site, Tilted
from pymc_ep.sites.compiled import COMPILED, STEP
from pymc_ep.sites.rows_of_many import covariances, number_of_rows, precision_rows, sums, variance_rows
from pymc_ep.sites.softmax_moments import log_probabilities, rule_errors, softmax_moments
from pymc_ep.sites.two_predictors import CompiledJointSite, two_predictor_site

__all__ = ["MOST_CATEGORIES", "THREE_CATEGORIES", "CompiledSoftmaxSite", "SoftmaxSite", "softmax_site"]

MOST_CATEGORIES = 15
"""Largest number of categories of a softmax: an observation then has 105 rows."""


def _log_odds_logp(y: Any, eta: Any, second: Any) -> Any:
    """Return ``eta [y = 1] + second [y = 2] - log(1 + exp(eta) + exp(second))``."""
    # log(1 + e^eta + e^second) = rest + log(1 + e^(eta - rest)), rest = log(1 + e^second).
    rest = pt.softplus(second)
    chosen = pt.switch(pt.eq(y, 1.0), eta, pt.switch(pt.eq(y, 2.0), second, 0.0))
    return chosen - rest - pt.softplus(eta - rest)


def _given_second(second: Any) -> tuple[Any]:
    return (second,)


def _up_to(last: int) -> Relation:
    """Return the condition that a category is at most `last`."""
    return Relation(lambda y, *parameters: y <= last, f"categories from 0 to {last}")


THREE_CATEGORIES = replace(
    two_predictor_site(
        Site(
            name="categorical",
            parameters=("second",),
            parameter_domains=("real",),
            domain="ordinal",
            log_concave=True,
            analytic=True,
            logp=_log_odds_logp,
        ),
        _given_second,
        (),
    ),
    relation=_up_to(2),
)
"""Categories 0, 1 and 2, with the log-odds of 1 and of 2 to 0."""


@dataclass(frozen=True, kw_only=True)
class SoftmaxSite(Site):
    """Site of `categories` categories; an observation is one of them, or the counts of all.

    For counts, the observed value is their sum n, and the parameters are n and the counts.
    """

    categories: int

    def __reduce__(self) -> tuple[Any, ...]:
        """Pickle the arguments of `softmax_site`."""
        return softmax_site, (self.categories, self.counted)

    @property
    def predictors(self) -> int:
        """The number of log-odds to the first category."""
        return self.categories - 1

    @property
    def counted(self) -> bool:
        """Whether counts are observed."""
        return bool(self.parameters)


@lru_cache
def softmax_site(categories: int, counted: bool) -> SoftmaxSite:
    """Return the site of one observed category, or of counts of all, see `SoftmaxSite`."""

    def logp(y: Any, *log_odds_and_counts: Any) -> Any:
        log_odds, counts = log_odds_and_counts[: categories - 1], log_odds_and_counts[categories - 1 :]
        eta = pt.stack([pt.zeros_like(log_odds[0]), *log_odds])
        log_p = eta - pt.logsumexp(eta, axis=0, keepdims=True)
        if not counts:
            return sum(pt.switch(pt.eq(y, k), log_p[k], 0.0) for k in range(categories))
        # Multinomial coefficient n! / prod_k y_k!: y is n, which is also the first parameter before the counts y_k.
        whole = pt.gammaln(y + 1.0) - sum(pt.gammaln(count + 1.0) for count in counts[1:])
        return whole + sum(count * log_p[k] for k, count in enumerate(counts[1:]))

    def whole(y: np.ndarray, n: np.ndarray, *counts: np.ndarray) -> np.ndarray:
        return (y == n) & (y == sum(counts))

    names = ("n", *(f"count_{k}" for k in range(categories))) if counted else ()
    return SoftmaxSite(
        name="multinomial" if counted else "categorical",
        parameters=names,
        parameter_domains=("count",) * len(names),
        relation=Relation(whole, "counts that add up to n") if counted else _up_to(categories - 1),
        domain="count" if counted else "ordinal",
        # It is in all predictors, but the precisions of the rows of sums are not positive, as engines rely on.
        log_concave=False,
        logp=logp,
        holds_observations=counted,
        interpreted=True,
        categories=categories,
    )


class CompiledSoftmaxSite(CompiledJointSite):
    """Functions of arrays of a `SoftmaxSite`.

    For n observations of r rows each, arguments of the moments are (r n,), with observations and parameters repeated
    for each row. Results are (r n,) as well: log Z is in the first row, zero in the others.
    """

    site: SoftmaxSite

    def moments(self, y: Array, mean: Array, variance: Array, power: Array = 1.0, *parameters: Array) -> Tilted:
        """Return the tilted moments of the rows, fields (r n,)."""
        counts, centre, covariance = self._of_sites(y, mean, variance, parameters)
        n, size = centre.shape
        at = softmax_moments(counts.T, centre, covariance, np.broadcast_to(np.asarray(power, dtype=float), n))
        log_z, gradient = np.zeros((2, len(y)))
        # t = (n! / prod_k y_k!) prod_k p_k^y_k, and `softmax_moments` leaves out the first factor.
        log_z[:n] = at.log_z + power * self._log_ways(counts)
        # A slope in a sum is one in both predictors: rows of single ones hold the gradient, rows of sums zeros.
        gradient[: size * n] = at.gradient.T.ravel()
        return Tilted(log_z, sums(at.mean), variance_rows(at.covariance), gradient, precision_rows(at.precision))

    def parameter_gradient(
        self, y: Array, mean: Array, variance: Array, power: Array = 1.0, *parameters: Array
    ) -> tuple[Array, ...]:
        """Return zeros, (n,) for each parameter: parameters are observed counts, which need no derivative."""
        return tuple(np.zeros(len(y) // number_of_rows(self.site.predictors)) for _ in self.site.parameters)

    def rule_errors(self, y: Array, mean: Array, variance: Array, *parameters: Array) -> np.ndarray:
        """Return the largest difference of the tilted means by two rules, (n,), in cavity standard deviations.

        It is zero for sites that do not need the last rule, see `softmax_moments.rule_errors`.
        """
        counts, centre, covariance = self._of_sites(y, mean, variance, parameters)
        return rule_errors(counts.T, centre, covariance)

    def third_moments(self, y: Array, mean: Array, variance: Array, *parameters: Array) -> np.ndarray:
        """Return the third central moments 111, 112, 122 and 222 of the tilted densities of two log-odds, (4, n).

        These are derivatives of the tilted covariance, by finite differences as in `CompiledSite.cumulants`.
        """
        counts, centre, covariance = self._of_sites(y, mean, variance, parameters)
        power = np.ones(len(centre))
        tilted = softmax_moments(counts.T, centre, covariance, power).covariance
        out = []
        for k in range(2):
            unit = STEP / np.sqrt(tilted[:, k, k])
            # A cavity mean m + s V e_k multiplies the density by exp(s eta_k): d Cov_ij / ds is the third moment ijk.
            moved = (covariance[:, :, k] * (steps * unit[:, None]) for steps in (-2, -1, 1, 2))
            back2, back1, ahead1, ahead2 = (
                softmax_moments(counts.T, centre + move, covariance, power).covariance for move in moved
            )
            out.append((8.0 * (ahead1 - back1) - (ahead2 - back2)) / (12.0 * unit[:, None, None]))
        (of_first, of_second) = out
        return np.array([of_first[:, 0, 0], of_first[:, 0, 1], of_first[:, 1, 1], of_second[:, 1, 1]])

    def _of_sites(
        self, y: Array, mean: Array, variance: Array, parameters: Any
    ) -> tuple[np.ndarray, np.ndarray, np.ndarray]:
        """Return counts, (K, n), and means and covariances, (n, D) and (n, D, D), of cavities, from rows."""
        size = self.site.predictors
        n = len(y) // number_of_rows(size)
        counts = self._counts(np.asarray(y)[:n], [np.asarray(values)[:n] for values in parameters])
        return counts, np.asarray(mean).reshape(-1, n)[:size].T, covariances(np.asarray(variance), size)

    def log_density(self, y: Array, eta: Array, *parameters: Array) -> Array:
        """Return log t, of the broadcast shape of the arguments.

        The log-odds to the first category are `eta` for the second category, and the first of `parameters` for the
        third and further ones.
        """
        y, *arrays = np.broadcast_arrays(y, eta, *parameters)
        size = self.site.predictors
        counts = self._counts(y, arrays[size:])
        return (counts * log_probabilities(np.array(arrays[:size]))).sum(axis=0) + self._log_ways(counts)

    def _counts(self, y: np.ndarray, parameters: Any) -> np.ndarray:
        """Return the counts of all categories, (K, ...)."""
        if self.site.counted:
            return np.array(parameters[1:], dtype=float)
        return (y == np.arange(self.site.categories).reshape(-1, *(1,) * y.ndim)).astype(float)

    def _log_ways(self, counts: np.ndarray) -> np.ndarray:
        """Return the log of the number of orders in which counts are observed; zero for single observations."""
        return gammaln(counts.sum(axis=0) + 1.0) - gammaln(counts + 1.0).sum(axis=0)


COMPILED[SoftmaxSite] = CompiledSoftmaxSite
