"""Priors and their parameters, Gaussian processes and areas."""

from collections.abc import Callable
from typing import Any

import numpy as np
import pymc as pm
import pytensor.tensor as pt

from docs.benchmarks.mistakes.common import (
    BITS,
    COUNTS,
    GROUP,
    REALS,
    N,
    W,
    X,
    fit_with,
    line,
    mistake,
    process,
)


@mistake("HalfNormal with a negative sigma", "pymc 'sigma > 0' ParameterValueError")
def _() -> Any:
    return fit_with(lambda: pm.Normal("y", line(), pm.HalfNormal("s", -1), observed=REALS))


@mistake("a prior with sigma = 0", "typical question: 'fix a parameter by sd=0'")
def _() -> Any:
    return fit_with(lambda: pm.Normal("y", pm.Normal("a", 0, 2) + pm.Normal("b", 1, 0) * X, 1.0, observed=REALS))


@mistake(
    "noise with a Normal prior",
    "typical question: 'sigma = pm.Normal' Initial evaluation -inf; half its mass is impossible",
)
def _() -> Any:
    return fit_with(lambda: pm.Normal("y", line(), pm.Normal("s", 0, 1), observed=REALS))


@mistake("noise with a Flat prior", "pm.Flat as sigma")
def _() -> Any:
    return fit_with(lambda: pm.Normal("y", line(), pm.Flat("s"), observed=REALS))


@mistake("Uniform with lower above upper", "pymc 'lower <= upper'")
def _() -> Any:
    return fit_with(lambda: pm.Normal("y", line(), pm.Uniform("s", 10, 0), observed=REALS))


@mistake("Uniform noise that excludes what the data need", "typical question: 'posterior piles up at the bound'")
def _() -> Any:
    return fit_with(lambda: pm.Normal("y", line(), pm.Uniform("s", 0, 0.05), observed=REALS))


@mistake("TruncatedNormal prior with lower above upper", "pymc TruncatedNormal bounds")
def _() -> Any:
    return fit_with(lambda: pm.Normal("y", line(), pm.TruncatedNormal("s", 1, 1, lower=3, upper=0), observed=REALS))


@mistake("a negative precision", "Normal tau vs sigma")
def _() -> Any:
    return fit_with(lambda: pm.Normal("y", pm.Normal("a", 0, tau=-1.0), 1.0, observed=REALS))


@mistake("Gamma with its shape zero", "typical question: 'Gamma(0.0, 0.001)'")
def _() -> Any:
    return fit_with(lambda: pm.Normal("y", line(), tau=pm.Gamma("tau", 0.0, 0.001), observed=REALS))


@mistake("LogNormal noise with mu taken for its mean", "pymc #4535 'I thought mu is mean in Lognormal'")
def _() -> Any:
    return fit_with(lambda: pm.Normal("y", line(), pm.LogNormal("s", 100, 0.33), observed=REALS))


@mistake("group scale HalfFlat with two groups", "Gelman 2006: improper posterior of tau")
def _() -> Any:
    def write() -> None:
        u = pm.Normal("u", pm.Flat("m"), pm.HalfFlat("tau"), shape=2)
        pm.Normal("y", u[GROUP % 2], 1.0, observed=REALS)

    return fit_with(write)


@mistake("Student-t with nu = 0", "StudentT nu from a rounded prior")
def _() -> Any:
    return fit_with(lambda: pm.StudentT("y", nu=0, mu=line(), sigma=1.0, observed=REALS))


@mistake("NegativeBinomial with alpha = 0", "alpha taken for overdispersion, none")
def _() -> Any:
    return fit_with(lambda: pm.NegativeBinomial("y", mu=pt.exp(line()), alpha=0.0, observed=COUNTS))


@mistake("a covariance that is not symmetric", "typical question: 'MvNormal cov'; typing error in one entry")
def _() -> Any:
    cov = np.array([[1.0, 0.5, 0.0], [0.1, 1.0, 0.2], [0.0, 0.2, 1.0]])
    return fit_with(lambda: pm.Normal("y", pm.MvNormal("u", np.zeros(3), cov)[GROUP], 1.0, observed=REALS))


@mistake("a covariance given as chol", "MvNormal chol= with a full matrix")
def _() -> Any:
    cov = np.array([[1.0, 0.5, 0.0], [0.5, 1.0, 0.2], [0.0, 0.2, 1.0]])
    return fit_with(lambda: pm.Normal("y", pm.MvNormal("u", np.zeros(3), chol=cov)[GROUP], 1.0, observed=REALS))


@mistake("LKJ with eta = 0", "LKJCholeskyCov eta")
def _() -> Any:
    def write() -> None:
        chol, _, _ = pm.LKJCholeskyCov("chol", n=2, eta=0.0, sd_dist=pm.Exponential.dist(1.0))
        u = pm.MvNormal("u", np.zeros(2), chol=chol, shape=(3, 2))
        pm.Normal("y", u[GROUP, 0] + u[GROUP, 1] * X, 1.0, observed=REALS)

    return fit_with(write)


@mistake("correlated effects by LKJCorr as a matrix", "pymc #7101 'LKJCorr breaks when used as covariance'")
def _() -> Any:
    def write() -> None:
        corr = pm.LKJCorr("corr", n=2, eta=1.0, **({} if pm.__version__ > "6" else {"return_matrix": True}))
        u = pm.MvNormal("u", np.zeros(2), corr, shape=(3, 2))
        pm.Normal("y", u[GROUP, 0] + u[GROUP, 1] * X, 1.0, observed=REALS)

    return fit_with(write)


@mistake("cut points in falling order", "pymc #5064; rethinking #315")
def _() -> Any:
    return fit_with(lambda: pm.OrderedLogistic("y", line(), np.array([1.0, -1.0]), observed=[0, 1, 2, 0, 1, 2]))


@mistake("unknown cut points without the ordered transform", "pymc #6610; rethinking #315")
def _() -> Any:
    def write() -> None:
        cuts = pm.Normal("cuts", 0, 2, shape=2)
        pm.OrderedLogistic("y", pm.Normal("b", 0, 1) * X, cuts, observed=[0, 1, 2, 0, 1, 2])

    return fit_with(write)


@mistake("a length-scale of zero", "GP lengthscale 0")
def _() -> Any:
    return process(lambda: 0.0)


@mistake("a length-scale with a Normal prior", "GP lengthscale can be negative: two mirrored modes")
def _() -> Any:
    return process(lambda: pm.Normal("ell", 0, 1))


@mistake("NaN in the inputs of a Gaussian process", "pymc #3482 'array must not contain infs or NaNs'")
def _() -> Any:
    return process(lambda: pm.InverseGamma("ell", 3, 3), np.where(np.arange(N) == 3, np.nan, X)[:, None])


@mistake("HSGP on a domain smaller than the data", "pymc #7240 'HSGP making wrong predictions when X domain changes'")
def _() -> Any:
    def write() -> None:
        gp = pm.gp.HSGP(m=[8], L=[0.5], cov_func=pm.gp.cov.ExpQuad(1, 0.4))
        pm.Normal("y", gp.prior("f", X=X[:, None]), 0.3, observed=REALS)

    return fit_with(write)


@mistake("a random walk without init_dist", "Fine: pymc PR #5829, UserWarning of PyMC")
def _() -> Any:
    return fit_with(lambda: pm.Normal("y", pm.GaussianRandomWalk("w", sigma=0.5, shape=N), 0.5, observed=REALS))


@mistake("a random walk of another length", "pymc 'steps' and shape: steps = n gives n + 1 values")
def _() -> Any:
    walk = lambda: pm.GaussianRandomWalk("w", sigma=0.5, init_dist=pm.Normal.dist(0, 1), steps=N)  # noqa: E731
    return fit_with(lambda: pm.Normal("y", walk(), 0.5, observed=REALS))


def _map(prior: Callable[[], Any]) -> Any:
    return fit_with(lambda: pm.Poisson("y", pt.exp(pm.Normal("m", 0, 1) + prior()), observed=COUNTS))


@mistake("CAR with an area without neighbours", "brms #554, spdep #129 'areas with no neighbours'")
def _() -> Any:
    island = W.copy()
    island[-1] = island[:, -1] = 0
    return _map(lambda: pm.CAR("phi", np.zeros(N), island, alpha=pm.Beta("rho", 1, 1), tau=pm.HalfNormal("tau", 2)))


@mistake("CAR with alpha = 1", "pymc #6792 'CAR exhibits inconsistent behavior at the alpha parameter boundary'")
def _() -> Any:
    return _map(lambda: pm.CAR("phi", np.zeros(N), W, alpha=1.0, tau=1.0))


@mistake("CAR with alpha of 1.5", "pymc CAR: -1 < alpha < 1")
def _() -> Any:
    return _map(lambda: pm.CAR("phi", np.zeros(N), W, alpha=1.5, tau=1.0))


@mistake("CAR with row-standardised weights", "libpysal's default transform: W is not symmetric")
def _() -> Any:
    return _map(lambda: pm.CAR("phi", np.zeros(N), W / W.sum(1, keepdims=True), alpha=0.5, tau=1.0))


@mistake("ICAR of two unconnected islands", "spdep #129 'subgraphs'")
def _() -> Any:
    split = W.copy()
    split[2, 3] = split[3, 2] = 0
    return _map(lambda: pm.ICAR("phi", W=split, sigma=1.0))


@mistake("Poisson without a link", "typical question: 'Poisson mu negative'")
def _() -> Any:
    return fit_with(lambda: pm.Poisson("y", line(), observed=COUNTS))


@mistake("Bernoulli with p linear", "typical question: 'p outside 0 and 1'")
def _() -> Any:
    return fit_with(lambda: pm.Bernoulli("y", p=line(), observed=BITS))


@mistake("logit_p with a probability", "typical question: 'logit_p=pm.math.sigmoid(eta)': two links")
def _() -> Any:
    return fit_with(lambda: pm.Bernoulli("y", logit_p=pm.math.sigmoid(line()), observed=BITS))


@mistake("Gamma observations with an identity link", "typical question: Gamma or Poisson with identity link")
def _() -> Any:
    return fit_with(
        lambda: pm.Gamma("y", mu=pm.Normal("a", 2, 1) + pm.Normal("b", 0, 1) * X, sigma=1.0, observed=COUNTS + 0.5)
    )


@mistake("sigma with an exponent that overflows", "exp of unscaled covariates in a scale model")
def _() -> Any:
    return fit_with(lambda: pm.Normal("y", 0.0, pt.exp(line(2000 + 100 * X)), observed=REALS))
