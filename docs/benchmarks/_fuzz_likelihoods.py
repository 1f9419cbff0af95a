"""Likelihoods of the latent Gaussian form: how PyMC writes them, and their log densities written without it."""

from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

import numpy as np
import pymc as pm
import pytensor.tensor as pt
from scipy import special

import pymc_ep as pmep

__all__ = ["CUTS", "LIKELIHOODS", "Likelihood"]

CUTS = np.array([-1.0, 0.5, 2.0])
"""Cutpoints of the ordered likelihoods."""
ASYMMETRY = 2.0


@dataclass(frozen=True)
class Likelihood:
    """A likelihood of the latent Gaussian form.

    Parameters
    ----------
    observe : callable
        Of predictor, scale s, trials and observations: write the observed variable ``y``.
    logp : callable
        Of observations (n,), predictors (..., n), s and trials: log density, written without the package or PyMC.
    kind : {"real", "above", "within", "count", "count above", "binary", "trials", "positive", "share", "category"}
        What observations are; those above are positive reals and counts, and reals within [-s, s] may be censored.
    link : callable
        Mean of an observation, of the predictor; the identity where it is None.
    smooth : bool
        Whether the log density has a second derivative everywhere.
    log_concave : bool
        Whether it is concave: posteriors then have one peak.
    """

    observe: Callable[..., Any]
    logp: Callable[..., np.ndarray]
    kind: str
    link: Callable[[np.ndarray], np.ndarray] | None = None
    smooth: bool = True
    log_concave: bool = True


def cloglog(f: Any) -> Any:
    """Return 1 - exp(-exp(f)) as models write it."""
    return 1 - pt.exp(-pt.exp(f))


def log_cloglog(f: np.ndarray) -> np.ndarray:
    """Return log(1 - exp(-exp(f))); below -30 it is f to double precision."""
    return np.where(f < -30, f, np.log(-np.expm1(-np.exp(np.maximum(f, -30.0)))))


def log_softplus(f: np.ndarray) -> np.ndarray:
    """Return log log(1 + exp(f)); below -30 it is f to double precision."""
    return np.where(f < -30, f, np.log(np.logaddexp(0.0, np.maximum(f, -30.0))))


def of_trials(log_p: Callable[..., Any], log_q: Callable[..., Any]) -> Callable[..., np.ndarray]:
    """Return the binomial log density of log probabilities of success and of failure."""

    def logp(y: np.ndarray, f: np.ndarray, s: float, trials: np.ndarray) -> np.ndarray:
        binomial = -special.betaln(y + 1.0, trials - y + 1.0) - np.log1p(trials)
        # Zero times minus infinity is zero: of no successes each is certain to be none.
        return binomial + np.where(y > 0, y * log_p(f), 0.0) + np.where(trials > y, (trials - y) * log_q(f), 0.0)

    return logp


def of_rate(log_rate: Callable[..., Any], rate: Callable[..., Any]) -> Callable[..., np.ndarray]:
    """Return the log density of Poisson counts."""

    def logp(y: np.ndarray, f: np.ndarray, s: float, trials: np.ndarray) -> np.ndarray:
        return np.where(y > 0, y * log_rate(f), 0.0) - rate(f) - special.gammaln(y + 1.0)

    return logp


def negative_binomial(y: np.ndarray, f: np.ndarray, s: float, trials: np.ndarray) -> np.ndarray:
    """Return the log density for mean exp(f) and shape s."""
    total = np.logaddexp(np.log(s), f)
    ways = -special.betaln(s, y + 1.0) - np.log(s + y)
    return ways + s * (np.log(s) - total) + y * (f - total)


def gamma(y: np.ndarray, f: np.ndarray, s: float, trials: np.ndarray) -> np.ndarray:
    """Return the log density for mean exp(f) and shape s."""
    return s * (np.log(s) - f) - special.gammaln(s) + (s - 1.0) * np.log(y) - s * y * np.exp(-f)


def beta(y: np.ndarray, f: np.ndarray, s: float, trials: np.ndarray) -> np.ndarray:
    """Return the log density for mean expit(f) and concentration s."""
    a, b = s * special.expit(f), s * special.expit(-f)
    return (a - 1.0) * np.log(y) + (b - 1.0) * np.log1p(-y) - special.betaln(a, b)


def asymmetric_laplace(y: np.ndarray, f: np.ndarray, s: float, trials: np.ndarray) -> np.ndarray:
    """Return PyMC's log density with b = 1 / s and kappa = ASYMMETRY."""
    x = (y - f) / s
    sign = np.sign(x)
    return -np.log(s * (ASYMMETRY + 1 / ASYMMETRY)) - x * sign * ASYMMETRY**sign


def ordered_logit(y: np.ndarray, f: np.ndarray, s: float, trials: np.ndarray) -> np.ndarray:
    """Return log(expit(upper - f) - expit(lower - f))."""
    edges = np.concatenate([[-np.inf], CUTS, [np.inf]])
    lower, upper = edges[y] - f, edges[y + 1] - f
    return special.log_expit(upper) + special.log_expit(-lower) + np.log(-np.expm1(edges[y] - edges[y + 1]))


def ordered_probit(y: np.ndarray, f: np.ndarray, s: float, trials: np.ndarray) -> np.ndarray:
    """Return log(Phi(upper - f) - Phi(lower - f)), of the tail in which it loses no digits."""
    edges = np.concatenate([[-np.inf], CUTS, [np.inf]])
    lower, upper = edges[y] - f, edges[y + 1] - f
    lower, upper = np.where(lower > 0, -upper, lower), np.where(lower > 0, -lower, upper)
    below, at = special.log_ndtr(upper), special.log_ndtr(lower)
    return below + np.log(-np.expm1(at - below))


def student_t(y: np.ndarray, f: np.ndarray, s: float, trials: np.ndarray) -> np.ndarray:
    """Return the log density for 4 degrees of freedom and scale s."""
    constant = special.gammaln(2.5) - special.gammaln(2.0) - 0.5 * np.log(4 * np.pi) - np.log(s)
    return constant - 2.5 * np.log1p(((y - f) / s) ** 2 / 4.0)


def gumbel(y: np.ndarray, f: np.ndarray, s: float, trials: np.ndarray) -> np.ndarray:
    """Return the log density for location f and scale s."""
    x = (y - f) / s
    return -x - np.exp(-x) - np.log(s)


def cauchy(y: np.ndarray, f: np.ndarray, s: float, trials: np.ndarray) -> np.ndarray:
    """Return the log density for location f and scale s."""
    return -np.log(np.pi * s) - np.log1p(((y - f) / s) ** 2)


def truncated_normal(y: np.ndarray, f: np.ndarray, s: float, trials: np.ndarray) -> np.ndarray:
    """Return the log density of a Normal above zero.

    Far below zero the squares of f cancel: log N(y; f, s^2) - log Phi(f / s) is -(y^2 - 2 y f) / (2 s^2) less the
    logarithm of erfcx.
    """
    z = f / s
    near = -0.5 * ((y - f) / s) ** 2 - special.log_ndtr(np.maximum(z, 0.0))
    far = -0.5 * (y / s) ** 2 + (y / s) * z - np.log(special.erfcx(-np.minimum(z, 0.0) / np.sqrt(2)) / 2)
    return np.where(z < 0, far, near) - np.log(s) - 0.5 * np.log(2 * np.pi)


def truncated_poisson(y: np.ndarray, f: np.ndarray, s: float, trials: np.ndarray) -> np.ndarray:
    """Return the log density of Poisson counts above zero; below -30, log(exp(exp(f)) - 1) is f."""
    rate = np.exp(np.maximum(f, -30.0))
    at_least_one = np.where(f < -30, f, rate + np.log(-np.expm1(-rate)))
    return np.where(y > 0, y * f - at_least_one - special.gammaln(y + 1.0), -np.inf)


def censored_normal(y: np.ndarray, f: np.ndarray, s: float, trials: np.ndarray) -> np.ndarray:
    """Return the log density of a Normal of which only the side is seen beyond -s and s."""
    inside = -0.5 * ((y - f) / s) ** 2 - np.log(s) - 0.5 * np.log(2 * np.pi)
    below, above = special.log_ndtr(-1 - f / s), special.log_ndtr(f / s - 1)
    return np.where(y <= -s, below, np.where(y >= s, above, inside))


def signed(log_cdf: Callable[..., Any]) -> Callable[..., np.ndarray]:
    """Return the log density of bits under a symmetric link."""
    return lambda y, f, s, trials: log_cdf((2 * y - 1) * f)


INVPROBIT = pm.math.invprobit
LOGIT_PAIR = (special.log_expit, lambda f: special.log_expit(-f))
PROBIT_PAIR = (special.log_ndtr, lambda f: special.log_ndtr(-f))
CLOGLOG_PAIR = (log_cloglog, lambda f: -np.exp(f))
LIKELIHOODS = {
    "normal": Likelihood(
        lambda f, s, t, y: pm.Normal("y", f, s, observed=y),
        lambda y, f, s, t: -0.5 * ((y - f) / s) ** 2 - np.log(s) - 0.5 * np.log(2 * np.pi),
        "real",
    ),
    "student_t": Likelihood(
        lambda f, s, t, y: pm.StudentT("y", nu=4, mu=f, sigma=s, observed=y), student_t, "real", log_concave=False
    ),
    "laplace": Likelihood(
        lambda f, s, t, y: pm.Laplace("y", f, s, observed=y),
        lambda y, f, s, t: -np.abs(y - f) / s - np.log(2 * s),
        "real",
        smooth=False,
    ),
    "asymmetric_laplace": Likelihood(
        lambda f, s, t, y: pm.AsymmetricLaplace("y", kappa=ASYMMETRY, mu=f, b=1 / s, observed=y),
        asymmetric_laplace,
        "real",
        smooth=False,
    ),
    "gumbel, by quadrature": Likelihood(lambda f, s, t, y: pm.Gumbel("y", f, s, observed=y), gumbel, "real"),
    "cauchy, by quadrature": Likelihood(
        lambda f, s, t, y: pm.Cauchy("y", f, s, observed=y), cauchy, "real", log_concave=False
    ),
    "truncated_normal": Likelihood(
        lambda f, s, t, y: pm.Truncated("y", pm.Normal.dist(f, s), lower=0.0, observed=y), truncated_normal, "above"
    ),
    "censored_normal": Likelihood(
        lambda f, s, t, y: pm.Censored("y", pm.Normal.dist(f, s), lower=-s, upper=s, observed=y),
        censored_normal,
        "within",
        smooth=False,
    ),
    "truncated_poisson": Likelihood(
        lambda f, s, t, y: pm.Truncated("y", pm.Poisson.dist(pt.exp(f)), lower=1, observed=y),
        truncated_poisson,
        "count above",
        np.exp,
    ),
    "poisson": Likelihood(
        lambda f, s, t, y: pm.Poisson("y", pt.exp(f), observed=y), of_rate(lambda f: f, np.exp), "count", np.exp
    ),
    "softplus_poisson": Likelihood(
        lambda f, s, t, y: pmep.SoftplusPoisson("y", f, observed=y),
        of_rate(log_softplus, lambda f: np.logaddexp(0.0, f)),
        "count",
        lambda f: np.logaddexp(0.0, f),
    ),
    "rectified_poisson": Likelihood(
        lambda f, s, t, y: pmep.RectifiedPoisson("y", f, observed=y),
        of_rate(lambda f: np.log(np.maximum(f, 0.0)), lambda f: np.maximum(f, 0.0)),
        "count",
        lambda f: np.maximum(f, 0.0),
        smooth=False,
    ),
    "negative_binomial": Likelihood(
        lambda f, s, t, y: pm.NegativeBinomial("y", mu=pt.exp(f), alpha=s, observed=y),
        negative_binomial,
        "count",
        np.exp,
    ),
    "bernoulli_logit": Likelihood(
        lambda f, s, t, y: pm.Bernoulli("y", logit_p=f, observed=y), signed(special.log_expit), "binary", special.expit
    ),
    "bernoulli_probit": Likelihood(
        lambda f, s, t, y: pm.Bernoulli("y", INVPROBIT(f), observed=y), signed(special.log_ndtr), "binary", special.ndtr
    ),
    "bernoulli_cloglog": Likelihood(
        lambda f, s, t, y: pm.Bernoulli("y", cloglog(f), observed=y),
        lambda y, f, s, t: np.where(y == 1, log_cloglog(f), -np.exp(f)),
        "binary",
        lambda f: -np.expm1(-np.exp(f)),
    ),
    "binomial_logit": Likelihood(
        lambda f, s, t, y: pm.Binomial("y", t, logit_p=f, observed=y), of_trials(*LOGIT_PAIR), "trials", special.expit
    ),
    "binomial_probit": Likelihood(
        lambda f, s, t, y: pm.Binomial("y", t, INVPROBIT(f), observed=y),
        of_trials(*PROBIT_PAIR),
        "trials",
        special.ndtr,
    ),
    "binomial_cloglog": Likelihood(
        lambda f, s, t, y: pm.Binomial("y", t, cloglog(f), observed=y),
        of_trials(*CLOGLOG_PAIR),
        "trials",
        lambda f: -np.expm1(-np.exp(f)),
    ),
    "exponential": Likelihood(
        lambda f, s, t, y: pm.Exponential("y", scale=pt.exp(f), observed=y),
        lambda y, f, s, t: -f - y * np.exp(-f),
        "positive",
        np.exp,
    ),
    "gamma": Likelihood(
        lambda f, s, t, y: pm.Gamma("y", alpha=s, beta=s / pt.exp(f), observed=y), gamma, "positive", np.exp
    ),
    "beta": Likelihood(
        lambda f, s, t, y: pm.Beta("y", mu=pt.sigmoid(f), nu=s, observed=y),
        beta,
        "share",
        special.expit,
        log_concave=False,
    ),
    "ordered_logit": Likelihood(
        lambda f, s, t, y: pm.OrderedLogistic("y", eta=f, cutpoints=CUTS, compute_p=False, observed=y),
        ordered_logit,
        "category",
        lambda f: np.searchsorted(CUTS, f),
    ),
    "ordered_probit": Likelihood(
        lambda f, s, t, y: pm.OrderedProbit("y", eta=f, cutpoints=CUTS, compute_p=False, observed=y),
        ordered_probit,
        "category",
        lambda f: np.searchsorted(CUTS, f),
    ),
}
