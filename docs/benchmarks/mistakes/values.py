"""Observations outside their domain, and parameters that a likelihood does not have."""

from typing import Any

import numpy as np
import pymc as pm
import pytensor.tensor as pt

from docs.benchmarks.mistakes.common import (
    COUNTS,
    REALS,
    N,
    X,
    fit_with,
    line,
    mistake,
)


@mistake("a zero among LogNormal observations", "typical question: 'log of zero', reaction times of 0")
def _() -> Any:
    return fit_with(lambda: pm.LogNormal("y", line(), 1.0, observed=np.array([1.0, 2, 0, 3, 1, 1])))


@mistake("a zero among Gamma observations", "typical question: 'Gamma likelihood initial evaluation -inf'")
def _() -> Any:
    def write() -> None:
        mu = pt.exp(line())
        pm.Gamma("y", alpha=2.0, beta=2.0 / mu, observed=np.array([1.0, 2, 0, 3, 1, 1]))

    return fit_with(write)


@mistake("a negative waiting time", "typical question: 'Exponential observed negative'")
def _() -> Any:
    return fit_with(lambda: pm.Exponential("y", pt.exp(line()), observed=np.array([1.0, 2, -0.5, 3, 1, 1])))


@mistake(
    "shares of 0 and 1 under a Beta with alpha and beta", "typical question: 'Beta regression with zeros and ones'"
)
def _() -> Any:
    def write() -> None:
        mu = pm.math.sigmoid(line())
        phi = pm.Gamma("phi", 2, 0.1)
        pm.Beta("y", alpha=mu * phi, beta=(1 - mu) * phi, observed=[0.1, 0.0, 0.4, 1.0, 0.3, 0.6])

    return fit_with(write)


@mistake("a success without trials", "Binomial n = 0 and y = 1")
def _() -> Any:
    return fit_with(lambda: pm.Binomial("y", np.array([3, 0, 4, 5, 2, 6]), logit_p=line(), observed=[2, 1, 1, 3, 1, 4]))


@mistake("half a trial", "Binomial with n from a mean")
def _() -> Any:
    return fit_with(
        lambda: pm.Binomial("y", np.array([3, 2.5, 4, 5, 2, 6]), logit_p=line(), observed=[2, 1, 1, 3, 1, 4])
    )


@mistake("an exposure of zero with a count", "typical question: 'offset log(0)'")
def _() -> Any:
    exposure = np.array([1.0, 0.0, 2.0, 1.0, 1.0, 2.0])
    y = np.array([1, 2, 0, 1, 1, 3])
    return fit_with(lambda: pm.Poisson("y", pt.exp(line() + np.log(exposure)), observed=y))


@mistake("log of a negative covariate", "RuntimeWarning: invalid value encountered in log")
def _() -> Any:
    return fit_with(lambda: pm.Normal("y", line(np.log(X)), 1.0, observed=REALS))


@mistake("infinity in a covariate", "1 / x with x = 0")
def _() -> Any:
    return fit_with(lambda: pm.Normal("y", line(1 / np.arange(N)), pm.HalfNormal("s", 1), observed=REALS))


@mistake("a covariate of a billion", "Fine: typical question: 'standardise your predictors'")
def _() -> Any:
    return fit_with(lambda: pm.Normal("y", line(1e9 + 1e8 * X), pm.HalfNormal("s", 1), observed=REALS))


@mistake("counts of a billion under Normal(0, 1)", "typical question: 'very large counts Poisson'")
def _() -> Any:
    y = 1_000_000_000 + np.array([0, 5000, -3000, 20000, -9000, 100])
    return fit_with(lambda: pm.Poisson("y", pt.exp(pm.Normal("a", 0, 1)), observed=y))


@mistake("the same column twice, flat priors", "bambi/statsmodels 'collinear'")
def _() -> Any:
    design = np.column_stack([np.ones(N), X, 2 * X])
    return fit_with(lambda: pm.Normal("y", design @ pm.Flat("beta", shape=3), pm.HalfNormal("s", 1), observed=REALS))


@mistake("a standard error of zero", "typical question: 'meta-analysis sigma = 0'")
def _() -> Any:
    se = np.array([0.3, 0.0, 0.2, 0.4, 0.3, 0.1])
    return fit_with(lambda: pm.Normal("y", pm.Normal("a", 0, 1), se, observed=REALS))


@mistake("a standard error of NaN", "typical question: 'meta-analysis missing SE'")
def _() -> Any:
    se = np.array([0.3, np.nan, 0.2, 0.4, 0.3, 0.1])
    theta = lambda: pm.Normal("theta", pm.Normal("mu", 0, 1), pm.HalfNormal("tau", 1), shape=N)  # noqa: E731
    return fit_with(lambda: pm.Normal("y", theta(), se, observed=REALS))


def _weighted(weight: np.ndarray, dist: Any = pm.Normal.dist) -> Any:
    def logp(value: Any, mu: Any) -> Any:
        return weight * pm.logp(pm.Normal.dist(mu), value)

    more = {} if dist is None else {"dist": lambda mu, size: dist(mu, size=size)}
    return fit_with(lambda: pm.CustomDist("y", line(), logp=logp, **more, observed=REALS))


@mistake(
    "weights in a CustomDist without dist=",
    "typical question: 'DensityDist with weights'; PyMC samples it without dist=",
)
def _() -> Any:
    return _weighted(np.array([1.0, 2.0, 1.0, 1.0, 0.5, 0.0]), None)


@mistake("a negative weight", "bambi weighted(); survey weights after calibration")
def _() -> Any:
    return _weighted(np.array([1.0, -2.0, 1.0, 1.0, 0.5, 0.0]))


@mistake("a weight of NaN", "bambi weighted(); missing survey weights")
def _() -> Any:
    return _weighted(np.array([1.0, np.nan, 1.0, 1.0, 0.5, 0.0]))


@mistake("ordered categories coded from 1", "typical question: 'OrderedLogistic categories start at 0'; pymc #6610")
def _() -> Any:
    return fit_with(lambda: pm.OrderedLogistic("y", line(), np.array([-1.0, 1.0]), observed=[1, 2, 3, 1, 2, 3]))


@mistake("a value beyond the censoring bound", "pymc #6629: 'I had to censor the dataset just like'")
def _() -> Any:
    y = np.array([0.2, 0.5, 1.4, -0.3, 1.0, 1.0])
    return fit_with(lambda: pm.Censored("y", pm.Normal.dist(line(), 1.0), lower=None, upper=1.0, observed=y))


@mistake("NaN as the bound of what is not censored", "typical question: 'Censored with per-observation bounds'")
def _() -> Any:
    upper = np.where(REALS > 1, REALS, np.nan)
    return fit_with(lambda: pm.Censored("y", pm.Normal.dist(line(), 1.0), lower=None, upper=upper, observed=REALS))


@mistake("censoring bounds that cross", "lower and upper swapped in Censored")
def _() -> Any:
    y = np.clip(REALS, 0.0, 1.0)
    return fit_with(lambda: pm.Censored("y", pm.Normal.dist(line(), 1.0), lower=1.0, upper=0.0, observed=y))


@mistake("truncation bounds that cross", "lower and upper swapped in Truncated")
def _() -> Any:
    y = np.clip(REALS, 0.0, 1.0)
    return fit_with(lambda: pm.Truncated("y", pm.Normal.dist(line(), 1.0), lower=2.0, upper=-2.0, observed=y))


@mistake("a negative exposure where the count is zero", "end - start swapped in one row, and nothing happened there")
def _() -> Any:
    exposure = np.array([1.0, -0.1, 2.0, 1.0, 1.0, 2.0])
    return fit_with(lambda: pm.Poisson("y", exposure * pt.exp(line()), observed=[0, 0, 1, 0, 2, 1]))


@mistake("quantile regression with q in percent", "AsymmetricLaplace(q=90)")
def _() -> Any:
    return fit_with(lambda: pm.AsymmetricLaplace("y", q=90, mu=line(), b=1.0, observed=REALS))


@mistake("weights of a mixture that do not sum to one", "pymc #1096, #5370: p of Categorical, w of Mixture")
def _() -> Any:
    def write() -> None:
        parts = [pm.Normal.dist(line(), 1.0), pm.Normal.dist(0.0, 5.0)]
        pm.Mixture("y", w=[0.7, 0.6], comp_dists=parts, observed=REALS)

    return fit_with(write)


@mistake("VonMises with a negative kappa", "kappa > 0")
def _() -> Any:
    return fit_with(lambda: pm.VonMises("y", mu=line(), kappa=-2.0, observed=REALS))


@mistake("ExGaussian with a negative sigma", "reaction times; log of sigma given as sigma")
def _() -> Any:
    return fit_with(lambda: pm.ExGaussian("y", mu=line(), sigma=-1.0, nu=1.0, observed=REALS))


@mistake("ExGaussian with a negative nu", "reaction times; log of nu given as nu")
def _() -> Any:
    return fit_with(lambda: pm.ExGaussian("y", mu=line(), sigma=1.0, nu=-1.0, observed=REALS))


@mistake("Rice with a negative sigma", "sigma > 0")
def _() -> Any:
    return fit_with(lambda: pm.Rice("y", nu=pt.exp(line()), sigma=-1.0, observed=COUNTS + 1.0))


@mistake("Gumbel with a negative beta", "extremes: scale with the sign of minima")
def _() -> Any:
    return fit_with(lambda: pm.Gumbel("y", mu=line(), beta=-1.0, observed=REALS))


@mistake("zero inflation with psi above one", "psi in percent, or as odds")
def _() -> Any:
    return fit_with(lambda: pm.ZeroInflatedPoisson("y", psi=1.2, mu=pt.exp(line()), observed=COUNTS))


@mistake("OrderedProbit with a negative sigma", "sigma > 0")
def _() -> Any:
    return fit_with(
        lambda: pm.OrderedProbit("y", line(), np.array([-1.0, 1.0]), sigma=-1.0, observed=[0, 1, 2, 0, 1, 2])
    )


@mistake("a kappa with a Normal prior", "VonMises(kappa=pm.Normal): negative half is impossible under PyMC")
def _() -> Any:
    return fit_with(lambda: pm.VonMises("y", mu=line(), kappa=pm.Normal("kappa", 1, 2), observed=REALS))


@mistake("a scale of a prior with a Normal prior", "HalfNormal(sigma=pm.Normal)")
def _() -> Any:
    scale = lambda: pm.HalfNormal("s", pm.Normal("scale", 0.5, 1))  # noqa: E731
    return fit_with(lambda: pm.Normal("y", line(), scale(), observed=REALS))


@mistake("dates as seconds since 1970 in a Gaussian process", "typical question: 'GP with timestamps': uncentred")
def _() -> Any:
    seconds = 1.5778368e9 + 86400.0 * np.arange(N)

    def write() -> None:
        gp = pm.gp.Latent(cov_func=pm.gp.cov.ExpQuad(1, pm.InverseGamma("ell", 3, 3)))
        pm.Normal("y", gp.prior("f", X=seconds[:, None]), 0.5, observed=REALS)

    return fit_with(write)
