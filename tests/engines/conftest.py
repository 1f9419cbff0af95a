"""Independent references: likelihoods by SciPy, quadrature on a fixed fine grid, and EP by the book."""

from types import SimpleNamespace

import numpy as np
import pytest
import scipy.special
import scipy.stats

from pymc_ep.engines.loop import run
from pymc_ep.evidence.ep.engine import EP
from pymc_ep.evidence.ep.sweep import Problem
from pymc_ep.numerics.gaussian.observation_space import DensePrior
from pymc_ep.sites import compile_site

_POINTS, _WEIGHTS = np.polynomial.legendre.leggauss(24)


def _poisson(y, rate):
    return scipy.stats.poisson.logpmf(y, rate)


# log t(f; y, parameters), written from the textbook, and the points where it has a kink.
LOG_T = {
    "poisson": lambda f, y: _poisson(y, np.exp(f)),
    "softplus_poisson": lambda f, y: _poisson(y, np.logaddexp(0.0, f)),
    "rectified_poisson": lambda f, y: _poisson(y, np.maximum(f, 0.0)),
    "probit": lambda f, y: scipy.stats.norm.logcdf((2 * y - 1) * f),
    "logit": lambda f, y: -np.logaddexp(0.0, -(2 * y - 1) * f),
    "normal": lambda f, y, sigma: scipy.stats.norm.logpdf(y, f, sigma),
    "laplace": lambda f, y, b: scipy.stats.laplace.logpdf(y, f, b),
    "student_t": lambda f, y, nu, sigma: scipy.stats.t.logpdf(y, nu, f, sigma),
    "cloglog": lambda f, y: np.where(y > 0, np.log(-np.expm1(-np.exp(f))), -np.exp(f)),
    "exponential": lambda f, y: scipy.stats.expon.logpdf(y, scale=np.exp(f)),
    "gamma": lambda f, y, alpha: scipy.stats.gamma.logpdf(y, alpha, scale=np.exp(f) / alpha),
    "negative_binomial": lambda f, y, alpha: scipy.stats.nbinom.logpmf(y, alpha, alpha / (alpha + np.exp(f))),
    "binomial_logit": lambda f, y, n: scipy.stats.binom.logpmf(y, n, scipy.special.expit(f)),
}
KINK = {"rectified_poisson": lambda y: 0.0, "laplace": lambda y: y}
PARAMETERS = {
    "normal": (0.7,),
    "laplace": (0.6,),
    "student_t": (2.5, 0.4),
    "gamma": (1.8,),
    "negative_binomial": (2.2,),
    "binomial_logit": (12.0,),
}


def tilted(log_t, mean, variance, power, kink):
    """log Z, mean and variance of N(f; mean, variance) t(f)**power, by 80 panels of 24 nodes that meet at the kink."""
    sd = np.sqrt(variance)
    edges = mean + sd * np.linspace(-16.0, 16.0, 81)
    if kink is not None:
        edges = np.sort(np.append(edges, kink))
    half = np.diff(edges)[:, None] / 2
    f = (edges[:-1, None] + half + half * _POINTS).ravel()
    with np.errstate(divide="ignore"):
        exponent = scipy.stats.norm.logpdf(f, mean, sd) + power * log_t(f)
    top = exponent.max()
    mass = (half * _WEIGHTS).ravel() * np.exp(exponent - top)
    total = mass.sum()
    centre = (mass @ f) / total
    return np.log(total) + top, centre, (mass @ (f - centre) ** 2) / total


def log_partition(h, precision):
    """log of the integral of exp(h f - f P f / 2), for a vector or a number."""
    precision = np.atleast_2d(precision)
    h = np.atleast_1d(h)
    sign, log_det = np.linalg.slogdet(precision)
    assert sign > 0
    return 0.5 * h @ np.linalg.solve(precision, h) - 0.5 * log_det + 0.5 * len(h) * np.log(2 * np.pi)


def textbook_ep(log_ts, mean, covariance, *, power=1.0, kinks=None, damping=0.7, tol=1e-11, sweeps=400):
    """Sequential EP (Minka 2001) with a fresh inverse before every update, and log Z as a sum of log partitions."""
    n = len(mean)
    kinks = kinks or [None] * n
    prior = np.linalg.inv(covariance)
    h0 = prior @ mean
    h, p = np.zeros(n), np.zeros(n)
    log_z_hat, cavity = np.zeros(n), np.zeros((n, 2))
    for _ in range(sweeps):
        moved = 0.0
        for i in range(n):
            v = np.linalg.inv(prior + np.diag(p))
            m = v @ (h0 + h)
            cavity[i] = m[i] / v[i, i] - power * h[i], 1 / v[i, i] - power * p[i]
            cv = 1 / cavity[i, 1]
            log_z_hat[i], tm, tv = tilted(log_ts[i], cavity[i, 0] * cv, cv, power, kinks[i])
            new = (tm / tv - cavity[i, 0]) / power, (1 / tv - cavity[i, 1]) / power
            step = damping * (new[0] - h[i]), damping * (new[1] - p[i])
            h[i], p[i] = h[i] + step[0], p[i] + step[1]
            moved = max(moved, abs(step[0]), abs(step[1]))
        if moved < tol:
            break
    else:
        raise AssertionError(f"the reference did not converge: {moved}")
    v = np.linalg.inv(prior + np.diag(p))
    m = v @ (h0 + h)
    local = sum(
        (log_z_hat[i] + log_partition(*cavity[i]) - log_partition(m[i] / v[i, i], 1 / v[i, i])) / power
        for i in range(n)
    )
    log_z = local + log_partition(h0 + h, prior + np.diag(p)) - log_partition(h0, prior)
    return SimpleNamespace(mean=m, covariance=v, log_z=log_z, shift=h, precision=p)


def likelihoods(name, y, parameters=()):
    """log t of each datum as a function of f alone, and its kinks."""
    one = LOG_T[name]
    kink = KINK.get(name)
    return [lambda f, k=k: one(f, k, *parameters) for k in y], [kink(k) if kink else None for k in y]


def solve(name, y, mean, covariance, parameters=(), *, start=None, max_iter=400, options=None, **settings):
    """Run our EP on one group of sites."""
    y = np.asarray(y, dtype=float)
    engine = EP([compile_site(name, **(options or {}))], **settings)
    full = tuple(np.full(len(y), p) for p in parameters)
    problem = Problem(np.asarray(mean, dtype=float), DensePrior(np.asarray(covariance, dtype=float)), (y,), (full,))
    return run(engine, problem, start, max_iter=max_iter)


@pytest.fixture(scope="session")
def reference():
    """The functions and tables of this file."""
    return SimpleNamespace(
        LOG_T=LOG_T,
        PARAMETERS=PARAMETERS,
        likelihoods=likelihoods,
        solve=solve,
        textbook_ep=textbook_ep,
        tilted=tilted,
    )


@pytest.fixture(scope="session")
def gaussian_process():
    """Return a maker of (mean, covariance) of a squared exponential GP on a grid, with a well-conditioned prior."""

    def make(n, *, amplitude=1.0, length=1.0, level=0.0, nugget=0.05):
        x = np.linspace(0.0, 4.0, n)
        distance = (x[:, None] - x) / length
        return np.full(n, level), amplitude**2 * np.exp(-0.5 * distance**2) + nugget * np.eye(n)

    return make
