"""Log densities that keep their digits: those of all of PyMC's univariate distributions, against 150 digits.

The link is what a user would take: exp for positive parameters, the logistic function for probabilities, and none for
locations. A log density counts as wrong where it is infinite, undefined, above zero for a discrete variable, or off by
more than 1e-6, unless the exact one is below -1000: no posterior has mass there. Slopes, of which sites are made, are
compared as well: PyMC's are undefined in places where its densities are right.
"""

import mpmath as mp
import numpy as np
import pymc as pm
import pytensor
import pytensor.tensor as pt
import pytest

import pymc_ep
from pymc_ep.exceptions import ImpossibleDensityError, UnsupportedModelError
from pymc_ep.forms import compiled_form
from pymc_ep.graphs.densities import log_density
from pymc_ep.modes import numpy_mode

from .exact_values import DIGITS, exact_value, number

E, S = pt.exp, pt.sigmoid
ETA = np.array([-60, -45, -40, -36, -30, -20, -12, -6, -3, -1, 0.0, 1, 3, 6, 12, 20, 30, 36, 40, 45, 60])
REALS, POSITIVE, UNIT = [-3.0, -0.4, 0.0, 1.3, 8.0], [0.01, 0.5, 1.0, 3.7, 40.0], [0.02, 0.3, 0.5, 0.97]
COUNTS, OF_NINE = [0, 1, 2, 7, 40], [0, 1, 5, 9]
NONZERO, ANGLES = COUNTS[1:], [-3.0, -0.4, 0.0, 1.3, 3.0]
CUTS = np.array([-0.7, 0.3, 1.1])
WEIGHTS = np.array([0.3, 0.7])
T, C = pm.Truncated.dist, pm.Censored.dist

CONTINUOUS = {
    "Normal mu": (lambda f: pm.Normal.dist(f, 0.7), REALS),
    "Normal sigma": (lambda f: pm.Normal.dist(0.3, E(f)), REALS),
    "TruncatedNormal mu": (lambda f: pm.TruncatedNormal.dist(f, 0.7, lower=-3.5, upper=9), REALS),
    "TruncatedNormal sigma": (lambda f: pm.TruncatedNormal.dist(0.3, E(f), lower=-3.5, upper=9), REALS),
    "TruncatedNormal lower": (lambda f: pm.TruncatedNormal.dist(f, 0.7, lower=0.0), POSITIVE),
    "TruncatedNormal upper": (lambda f: pm.TruncatedNormal.dist(f, 0.7, upper=50.0), POSITIVE),
    "HalfNormal sigma": (lambda f: pm.HalfNormal.dist(E(f)), POSITIVE),
    "SkewNormal mu": (lambda f: pm.SkewNormal.dist(mu=f, sigma=0.8, alpha=2.0), REALS),
    "SkewNormal sigma": (lambda f: pm.SkewNormal.dist(mu=0.3, sigma=E(f), alpha=2.0), REALS),
    "SkewNormal alpha": (lambda f: pm.SkewNormal.dist(mu=0.3, sigma=0.8, alpha=f), REALS),
    "Uniform upper": (lambda f: pm.Uniform.dist(0, E(f)), POSITIVE),
    "Beta mu": (lambda f: pm.Beta.dist(mu=S(f), nu=6.0), UNIT),
    "Beta nu": (lambda f: pm.Beta.dist(mu=0.37, nu=E(f)), UNIT),
    "Beta alpha": (lambda f: pm.Beta.dist(alpha=E(f), beta=1.5), UNIT),
    "Kumaraswamy a": (lambda f: pm.Kumaraswamy.dist(a=E(f), b=1.5), UNIT),
    "Kumaraswamy b": (lambda f: pm.Kumaraswamy.dist(a=1.5, b=E(f)), UNIT),
    "Exponential lam": (lambda f: pm.Exponential.dist(lam=E(f)), POSITIVE),
    "Exponential scale": (lambda f: pm.Exponential.dist(scale=E(f)), POSITIVE),
    "Laplace mu": (lambda f: pm.Laplace.dist(f, 0.7), REALS),
    "Laplace b": (lambda f: pm.Laplace.dist(0.3, E(f)), REALS),
    "AsymmetricLaplace mu": (lambda f: pm.AsymmetricLaplace.dist(kappa=2.0, mu=f, b=1.5), REALS),
    "AsymmetricLaplace b": (lambda f: pm.AsymmetricLaplace.dist(kappa=2.0, mu=0.3, b=E(f)), REALS),
    "AsymmetricLaplace kappa": (lambda f: pm.AsymmetricLaplace.dist(kappa=E(f), mu=0.3, b=1.5), REALS),
    "StudentT mu": (lambda f: pm.StudentT.dist(nu=4, mu=f, sigma=0.7), REALS),
    "StudentT sigma": (lambda f: pm.StudentT.dist(nu=4, mu=0.3, sigma=E(f)), REALS),
    "StudentT nu": (lambda f: pm.StudentT.dist(nu=E(f), mu=0.3, sigma=0.7), REALS),
    "SkewStudentT mu": (lambda f: pm.SkewStudentT.dist(a=2.0, b=3.0, mu=f, sigma=0.7), REALS),
    "SkewStudentT sigma": (lambda f: pm.SkewStudentT.dist(a=2.0, b=3.0, mu=0.3, sigma=E(f)), REALS),
    "SkewStudentT a": (lambda f: pm.SkewStudentT.dist(a=E(f), b=3.0, mu=0.3, sigma=0.7), REALS),
    "Cauchy alpha": (lambda f: pm.Cauchy.dist(f, 0.7), REALS),
    "Cauchy beta": (lambda f: pm.Cauchy.dist(0.3, E(f)), REALS),
    "HalfCauchy beta": (lambda f: pm.HalfCauchy.dist(E(f)), POSITIVE),
    "HalfStudentT sigma": (lambda f: pm.HalfStudentT.dist(nu=4, sigma=E(f)), POSITIVE),
    "HalfStudentT nu": (lambda f: pm.HalfStudentT.dist(nu=E(f), sigma=0.7), POSITIVE),
    "Gamma mean": (lambda f: pm.Gamma.dist(alpha=2.5, beta=2.5 / E(f)), POSITIVE),
    "Gamma alpha": (lambda f: pm.Gamma.dist(alpha=E(f), beta=1.5), POSITIVE),
    "Gamma mu, sigma": (lambda f: pm.Gamma.dist(mu=E(f), sigma=0.8), POSITIVE),
    "Gamma alpha, mean": (lambda f: pm.Gamma.dist(alpha=E(f), beta=E(f) / 1.5), POSITIVE),
    "InverseGamma alpha": (lambda f: pm.InverseGamma.dist(alpha=E(f), beta=1.5), POSITIVE),
    "InverseGamma beta": (lambda f: pm.InverseGamma.dist(alpha=2.0, beta=E(f)), POSITIVE),
    "InverseGamma mu": (lambda f: pm.InverseGamma.dist(mu=E(f), sigma=0.8), POSITIVE),
    "ChiSquared nu": (lambda f: pm.ChiSquared.dist(E(f)), POSITIVE),
    "Weibull alpha": (lambda f: pm.Weibull.dist(alpha=E(f), beta=1.5), POSITIVE),
    "Weibull beta": (lambda f: pm.Weibull.dist(alpha=1.5, beta=E(f)), POSITIVE),
    "LogNormal mu": (lambda f: pm.LogNormal.dist(f, 0.5), POSITIVE),
    "LogNormal sigma": (lambda f: pm.LogNormal.dist(0.3, E(f)), POSITIVE),
    "Pareto alpha": (lambda f: pm.Pareto.dist(alpha=E(f), m=0.005), POSITIVE),
    "Pareto m": (lambda f: pm.Pareto.dist(alpha=1.5, m=E(f)), POSITIVE),
    "ExGaussian mu": (lambda f: pm.ExGaussian.dist(mu=f, sigma=0.7, nu=1.5), REALS),
    "ExGaussian sigma": (lambda f: pm.ExGaussian.dist(mu=0.3, sigma=E(f), nu=1.5), REALS),
    "ExGaussian nu": (lambda f: pm.ExGaussian.dist(mu=0.3, sigma=0.7, nu=E(f)), REALS),
    "VonMises mu": (lambda f: pm.VonMises.dist(mu=f, kappa=3.0), ANGLES),
    "VonMises kappa": (lambda f: pm.VonMises.dist(mu=0.3, kappa=E(f)), ANGLES),
    "Gumbel mu": (lambda f: pm.Gumbel.dist(f, 0.6), REALS),
    "Gumbel beta": (lambda f: pm.Gumbel.dist(0.3, E(f)), REALS),
    "Logistic mu": (lambda f: pm.Logistic.dist(f, 0.6), REALS),
    "Logistic s": (lambda f: pm.Logistic.dist(0.3, E(f)), REALS),
    "LogitNormal mu": (lambda f: pm.LogitNormal.dist(mu=f, sigma=0.7), UNIT),
    "LogitNormal sigma": (lambda f: pm.LogitNormal.dist(mu=0.3, sigma=E(f)), UNIT),
    "Moyal mu": (lambda f: pm.Moyal.dist(mu=f, sigma=0.7), REALS),
    "Moyal sigma": (lambda f: pm.Moyal.dist(mu=0.3, sigma=E(f)), REALS),
    "Rice nu": (lambda f: pm.Rice.dist(nu=E(f), sigma=0.7), POSITIVE),
    "Rice sigma": (lambda f: pm.Rice.dist(nu=1.5, sigma=E(f)), POSITIVE),
    "Triangular c": (lambda f: pm.Triangular.dist(lower=0.0, upper=1.0, c=S(f)), UNIT),
    "Wald mu": (lambda f: pm.Wald.dist(mu=E(f), lam=1.5), POSITIVE),
    "Wald lam": (lambda f: pm.Wald.dist(mu=1.5, lam=E(f)), POSITIVE),
}
DISCRETE = {
    "Poisson mu": (lambda f: pm.Poisson.dist(E(f)), COUNTS),
    "Bernoulli p": (lambda f: pm.Bernoulli.dist(p=S(f)), [0, 1]),
    "Binomial p": (lambda f: pm.Binomial.dist(n=9, p=S(f)), OF_NINE),
    "BetaBinomial mean": (lambda f: pm.BetaBinomial.dist(alpha=3 * S(f), beta=3 * (1 - S(f)), n=9), OF_NINE),
    "BetaBinomial alpha": (lambda f: pm.BetaBinomial.dist(alpha=E(f), beta=1.5, n=9), OF_NINE),
    "BetaBinomial concentration": (lambda f: pm.BetaBinomial.dist(alpha=0.3 * E(f), beta=0.7 * E(f), n=9), OF_NINE),
    "NegativeBinomial mu": (lambda f: pm.NegativeBinomial.dist(mu=E(f), alpha=1.7), COUNTS),
    "NegativeBinomial alpha": (lambda f: pm.NegativeBinomial.dist(mu=2.0, alpha=E(f)), COUNTS),
    "NegativeBinomial p": (lambda f: pm.NegativeBinomial.dist(n=1.7, p=S(f)), COUNTS),
    "Geometric p": (lambda f: pm.Geometric.dist(S(f)), NONZERO),
    "DiscreteWeibull q": (lambda f: pm.DiscreteWeibull.dist(q=S(f), beta=1.3), COUNTS),
    "DiscreteWeibull beta": (lambda f: pm.DiscreteWeibull.dist(q=0.7, beta=E(f)), COUNTS),
    "OrderedLogistic": (lambda f: pm.OrderedLogistic.dist(eta=f, cutpoints=CUTS), [0, 1, 2, 3]),
    "OrderedProbit": (lambda f: pm.OrderedProbit.dist(eta=f, cutpoints=CUTS), [0, 1, 2, 3]),
}
MIXTURES = {
    "ZeroInflatedPoisson mu": (lambda f: pm.ZeroInflatedPoisson.dist(psi=0.7, mu=E(f)), COUNTS),
    "ZeroInflatedPoisson psi": (lambda f: pm.ZeroInflatedPoisson.dist(psi=S(f), mu=2.0), COUNTS),
    "ZeroInflatedBinomial p": (lambda f: pm.ZeroInflatedBinomial.dist(psi=0.7, n=9, p=S(f)), OF_NINE),
    "ZeroInflatedNegativeBinomial mu": (
        lambda f: pm.ZeroInflatedNegativeBinomial.dist(psi=0.7, mu=E(f), alpha=1.7),
        COUNTS,
    ),
    "ZeroInflatedNegativeBinomial alpha": (
        lambda f: pm.ZeroInflatedNegativeBinomial.dist(psi=0.7, mu=2.0, alpha=E(f)),
        COUNTS,
    ),
    "HurdlePoisson mu": (lambda f: pm.HurdlePoisson.dist(psi=0.7, mu=E(f)), COUNTS),
    "HurdlePoisson psi": (lambda f: pm.HurdlePoisson.dist(psi=S(f), mu=2.0), COUNTS),
    "HurdleNegativeBinomial mu": (lambda f: pm.HurdleNegativeBinomial.dist(psi=0.7, mu=E(f), alpha=1.7), COUNTS),
    "HurdleNegativeBinomial alpha": (lambda f: pm.HurdleNegativeBinomial.dist(psi=0.7, mu=2.0, alpha=E(f)), COUNTS),
    "HurdleNegativeBinomial psi": (lambda f: pm.HurdleNegativeBinomial.dist(psi=S(f), mu=2.0, alpha=1.7), COUNTS),
    "HurdleGamma mean": (lambda f: pm.HurdleGamma.dist(psi=0.7, alpha=2.0, beta=2.0 / E(f)), [0.0, *POSITIVE]),
    "HurdleGamma psi": (lambda f: pm.HurdleGamma.dist(psi=S(f), alpha=2.0, beta=1.0), [0.0, *POSITIVE]),
    "HurdleLogNormal mu": (lambda f: pm.HurdleLogNormal.dist(psi=0.7, mu=f, sigma=0.5), [0.0, *POSITIVE]),
    "HurdleLogNormal psi": (lambda f: pm.HurdleLogNormal.dist(psi=S(f), mu=0.3, sigma=0.5), [0.0, *POSITIVE]),
    "NormalMixture mu": (
        lambda f: pm.NormalMixture.dist(w=WEIGHTS, mu=pt.stack([f, f + 2], axis=-1), sigma=0.7),
        REALS,
    ),
    "Mixture of Poissons": (
        lambda f: pm.Mixture.dist(w=WEIGHTS, comp_dists=[pm.Poisson.dist(E(f)), pm.Poisson.dist(E(f + 1))]),
        COUNTS,
    ),
}
CUT = {
    "Truncated Poisson": (lambda f: T(pm.Poisson.dist(E(f)), lower=1), NONZERO),
    "Truncated Poisson from 3": (lambda f: T(pm.Poisson.dist(E(f)), lower=3), [3, 4, 7]),
    "Truncated Poisson to 40": (lambda f: T(pm.Poisson.dist(E(f)), lower=None, upper=40), COUNTS),
    "Truncated Poisson 1 to 40": (lambda f: T(pm.Poisson.dist(E(f)), lower=1, upper=40), NONZERO),
    "Truncated NegativeBinomial": (lambda f: T(pm.NegativeBinomial.dist(mu=E(f), alpha=1.7), lower=1), NONZERO),
    "Truncated NegativeBinomial from 3": (
        lambda f: T(pm.NegativeBinomial.dist(mu=E(f), alpha=1.7), lower=3),
        [3, 4, 7],
    ),
    "Truncated NegativeBinomial alpha": (lambda f: T(pm.NegativeBinomial.dist(mu=2.0, alpha=E(f)), lower=1), NONZERO),
    "Truncated NegativeBinomial 1 to 40": (
        lambda f: T(pm.NegativeBinomial.dist(mu=E(f), alpha=1.7), lower=1, upper=40),
        NONZERO,
    ),
    "Truncated DiscreteWeibull to 40": (lambda f: T(pm.DiscreteWeibull.dist(q=S(f), beta=1.3), upper=40), COUNTS),
    "Truncated Binomial": (lambda f: T(pm.Binomial.dist(n=9, p=S(f)), lower=1), OF_NINE[1:]),
    "Truncated Binomial to 8": (lambda f: T(pm.Binomial.dist(n=9, p=S(f)), upper=8), [0, 1, 5, 8]),
    "Truncated Geometric": (lambda f: T(pm.Geometric.dist(S(f)), lower=2), [2, 7, 40]),
    "Truncated DiscreteWeibull": (lambda f: T(pm.DiscreteWeibull.dist(q=S(f), beta=1.3), lower=1), NONZERO),
    "Truncated Gamma": (lambda f: T(pm.Gamma.dist(alpha=2.0, beta=2 / E(f)), upper=50.0), POSITIVE),
    "Truncated Exponential": (lambda f: T(pm.Exponential.dist(scale=E(f)), lower=0.005), POSITIVE),
    "Truncated Weibull": (lambda f: T(pm.Weibull.dist(alpha=1.5, beta=E(f)), upper=50.0), POSITIVE),
    "Truncated LogNormal": (lambda f: T(pm.LogNormal.dist(f, 0.5), upper=50.0), POSITIVE),
    "Truncated StudentT": (lambda f: T(pm.StudentT.dist(nu=4, mu=f, sigma=0.7), lower=-3.5), REALS),
    "Truncated Gamma from 2": (lambda f: T(pm.Gamma.dist(alpha=2.0, beta=2 / E(f)), lower=2.0), [2.5, 3.7, 40.0]),
    "Truncated Gamma alpha": (lambda f: T(pm.Gamma.dist(alpha=E(f), beta=1.5), lower=2.0), [2.5, 3.7, 40.0]),
    "Truncated Exponential from 2": (lambda f: T(pm.Exponential.dist(scale=E(f)), lower=2.0), [2.5, 3.7, 40.0]),
    "Truncated Weibull from 2": (lambda f: T(pm.Weibull.dist(alpha=1.5, beta=E(f)), lower=2.0), [2.5, 3.7, 40.0]),
    "Truncated Weibull from 0": (lambda f: T(pm.Weibull.dist(alpha=E(f), beta=1.5), lower=0.0), [2.5, 3.7, 40.0]),
    "Truncated Logistic": (lambda f: T(pm.Logistic.dist(f, 0.7), lower=-3.5), REALS),
    "Truncated Laplace": (lambda f: T(pm.Laplace.dist(f, 0.7), lower=-3.5), REALS),
    "Truncated Beta": (lambda f: T(pm.Beta.dist(mu=S(f), nu=6.0), upper=0.98), UNIT),
    "Censored Normal": (lambda f: C(pm.Normal.dist(f, 0.7), lower=-3, upper=8), REALS),
    "Censored NegativeBinomial at 0": (
        lambda f: C(pm.NegativeBinomial.dist(mu=E(f), alpha=1000.0), lower=0, upper=None),
        COUNTS,
    ),
    "Truncated NegativeBinomial of 1000": (
        lambda f: T(pm.NegativeBinomial.dist(mu=E(f), alpha=1000.0), lower=1),
        NONZERO,
    ),
    "Censored Poisson": (lambda f: C(pm.Poisson.dist(E(f)), lower=1, upper=40), NONZERO),
    "Censored NegativeBinomial": (
        lambda f: C(pm.NegativeBinomial.dist(mu=E(f), alpha=1.7), lower=1, upper=40),
        NONZERO,
    ),
    "Censored Binomial": (lambda f: C(pm.Binomial.dist(n=9, p=S(f)), lower=1, upper=8), [1, 5, 8]),
    "Censored Exponential": (lambda f: C(pm.Exponential.dist(scale=E(f)), lower=0.01, upper=40.0), POSITIVE),
    "Censored Weibull": (lambda f: C(pm.Weibull.dist(alpha=1.5, beta=E(f)), lower=0.01, upper=40.0), POSITIVE),
    "Censored Gamma": (lambda f: C(pm.Gamma.dist(alpha=2.0, beta=2 / E(f)), lower=0.01, upper=40.0), POSITIVE),
    "Censored LogNormal": (lambda f: C(pm.LogNormal.dist(f, 0.5), lower=0.01, upper=40.0), POSITIVE),
    "Censored StudentT": (lambda f: C(pm.StudentT.dist(nu=4, mu=f, sigma=0.7), lower=-3, upper=8), REALS),
    "Censored Logistic": (lambda f: C(pm.Logistic.dist(f, 0.7), lower=-3, upper=8), REALS),
    "Censored Geometric": (lambda f: C(pm.Geometric.dist(S(f)), lower=None, upper=40), NONZERO),
    "Censored Beta": (lambda f: C(pm.Beta.dist(mu=S(f), nu=6.0), lower=0.02, upper=0.97), UNIT),
}
ALL = CONTINUOUS | DISCRETE | MIXTURES | CUT


def test_every_univariate_distribution_is_walked():
    """Those without are no likelihood of one predictor: flat, tabulated, or of integers in place of a parameter."""
    without = {"Flat", "HalfFlat", "Interpolated", "PolyaGamma", "DiscreteUniform", "HyperGeometric", "Categorical"}
    known = {
        *pm.distributions.continuous.__all__,
        *pm.distributions.discrete.__all__,
        *pm.distributions.mixture.__all__,
    }
    walked = {name.split()[0] for name in ALL}
    assert known - without - walked == set()


def of_pymc(make, ys):
    """PyMC's log density, (y, eta), and that in 150 digits; its mpmath functions may take long far out."""
    eta, discrete = pt.vector("eta"), isinstance(ys[0], int)
    rv = make(eta)
    y = pt.vector("y", dtype="int64" if discrete else "float64")
    graph = pt.broadcast_to(pm.logp(rv, y, warn_rvs=False), eta.shape)
    function = pytensor.function([eta, y], graph, mode=numpy_mode().including("local_remove_check_parameter"))
    grid, repeated = np.tile(ETA, len(ys)), np.repeat(ys, len(ETA))
    with np.errstate(all="ignore"):
        found = function(grid, repeated)
    exact = []
    for at, value in zip(grid, repeated):
        given = {eta: np.array([number(at)], dtype=object), y: np.array([number(value)], dtype=object)}
        one = exact_value(graph, given).ravel()[0]
        exact.append(float(mp.re(one)) if abs(one) < 1e300 or not mp.isfinite(one) else -1e300)
    return found, np.array(exact)


def exact_slopes(make, ys):
    """Derivatives of PyMC's log density in eta, as differences in 150 digits; NaN where it is not finite."""
    eta, discrete = pt.vector("eta"), isinstance(ys[0], int)
    y = pt.vector("y", dtype="int64" if discrete else "float64")
    graph = pt.broadcast_to(pm.logp(make(eta), y, warn_rvs=False), eta.shape)
    slopes = []
    with mp.workdps(DIGITS):
        step = mp.mpf(10) ** -(DIGITS // 4)
        for value in ys:
            for at in ETA:
                given = {y: np.array([number(value)], dtype=object)}
                low, high = (
                    mp.re(exact_value(graph, given | {eta: np.array([number(at) + move], dtype=object)}).ravel()[0])
                    for move in (-step, step)
                )
                slopes.append(float((high - low) / (2 * step)) if mp.isfinite(low) and mp.isfinite(high) else np.nan)
    return np.array(slopes)


def of_package(make, ys):
    """The log density that a fit takes, (y, eta), and its slope: a registered site's, or the rebuilt one."""
    grid, repeated = np.tile(ETA, len(ys)), np.repeat(ys, len(ETA))
    with pm.Model() as model:
        rv = make(pm.Normal("f", grid, 1.0))
        model.register_rv(rv, "y", observed=repeated)
    compiled = compiled_form(model)
    prior = compiled.prior(compiled.start)
    site, arguments = compiled.sites[0], (compiled.residuals()[0], prior.mean, *prior.parameters[0])
    with np.errstate(all="ignore"):
        # Some sites have -f as their predictor.
        return site.log_density(*arguments), site.slope(*arguments) * np.sign(prior.mean @ grid)


def wrong(found, exact):
    """Where a log density is wrong, as the module says."""
    with np.errstate(invalid="ignore"):
        off = ~(np.abs(found - exact) <= 1e-6 * np.maximum(1.0, np.abs(exact)))
        off &= ~((exact < -1e3) & ~(found > -1e3)) & (found != exact) & ~np.isnan(exact)
    return off


def wrong_slopes(found, exact, log_density):
    """Where a slope is undefined, or above -30, 1e-13 of the highest, off by more than 1e-4."""
    with np.errstate(invalid="ignore"):
        off = ~(np.abs(found - exact) <= 1e-4 * np.maximum(1.0, np.abs(exact))) & (log_density > -30.0)
    return (off | (np.isnan(found) & (log_density > -1e3))) & ~np.isnan(exact)


REPAIRED = {
    *("Beta mu", "Kumaraswamy a", "StudentT nu", "HalfStudentT nu", "Binomial p", "OrderedLogistic", "OrderedProbit"),
    *("BetaBinomial mean", "BetaBinomial alpha", "BetaBinomial concentration"),
    *("NegativeBinomial mu", "NegativeBinomial alpha", "NegativeBinomial p"),
    *("DiscreteWeibull q", "DiscreteWeibull beta", "Truncated Binomial to 8"),
    *("ZeroInflatedBinomial p", "ZeroInflatedNegativeBinomial mu", "ZeroInflatedNegativeBinomial alpha"),
    *("HurdlePoisson mu", "HurdlePoisson psi", "HurdleGamma psi", "HurdleLogNormal psi"),
    *("HurdleNegativeBinomial mu", "HurdleNegativeBinomial alpha", "HurdleNegativeBinomial psi"),
    *("Truncated Poisson", "Truncated Poisson from 3", "Truncated NegativeBinomial"),
    *("Truncated NegativeBinomial from 3", "Truncated NegativeBinomial alpha", "Truncated Binomial"),
    *("Truncated DiscreteWeibull", "Truncated Beta", "Truncated Poisson to 40", "Truncated Poisson 1 to 40"),
    *("Truncated NegativeBinomial 1 to 40", "Truncated DiscreteWeibull to 40"),
    *("TruncatedNormal mu", "TruncatedNormal lower"),
    *(
        "Truncated NegativeBinomial of 1000",
        "Censored Binomial",
        "Censored Gamma",
        "Truncated Gamma from 2",
        "Truncated Gamma alpha",
    ),
}
"""Those of which PyMC's log density is wrong, on one of the stacks at least, and the fit's is not."""
KEPT = {
    "SkewNormal alpha": "rounded",
    "SkewStudentT sigma": "ended",
    "Rice sigma": "ended",
    "Censored Poisson": "ended",
    "Censored NegativeBinomial": "ended",
    "Censored Beta": "ended",
}
"""Log densities that a fit takes as they are.

rounded : by less than 1e-3 where the exact one is above -30, and by less than two per cent below.
ended : minus infinity, or undefined, where the exact one is below -40, 4e-18 of the highest, and taken for the end of
    the support; before that rounded by less than three per cent.
"""
SLOPES = {
    "AsymmetricLaplace mu": lambda ys: np.tile(ETA, len(ys)) == np.repeat(ys, len(ETA)),
    "Triangular c": lambda ys: np.tile(S(ETA).eval(), len(ys)) == np.repeat(ys, len(ETA)),
    "Truncated Gamma alpha": lambda ys: np.tile(ETA < -25.0, len(ys)),
}
"""Places where a log density has a kink, and two slopes; and shapes below 1e-11, where PyTensor's derivative of the
incomplete gamma function is rounding."""
OUTSIDE = {
    "LogitNormal mu": "has the distribution LogitNormal",
    "LogitNormal sigma": "has the distribution LogitNormal",
    "NormalMixture mu": "not elementwise",
}
"""Distributions that are refused when the model is read."""


@pytest.mark.parametrize("name", [name for name in ALL if name not in OUTSIDE])
def test_log_densities(name):
    make, ys = ALL[name]
    raw, exact = of_pymc(make, ys)
    assert not np.isnan(exact).any()
    own, slope = of_package(make, ys)
    bad, off = wrong(own, exact), wrong_slopes(slope, exact_slopes(make, ys), own)
    assert not off.any() if name not in SLOPES else SLOPES[name](ys)[off].all()
    if name not in KEPT:
        assert not bad.any(), f"{bad.sum()} of {bad.size}, as {own[bad][0]} for {exact[bad][0]}"
        assert name in REPAIRED or not wrong(raw, exact).any()
        return
    own, exact = own[bad], exact[bad]
    kind = {
        "rounded": np.where(exact > -30.0, np.abs(own - exact) < 1e-3, np.abs(own / exact - 1.0) < 0.02),
        "ended": (~(own > -np.inf) & (exact < -40.0)) | (np.abs(own / exact - 1.0) < 0.03),
    }
    assert bad.any() and kind[KEPT[name]].all()


@pytest.mark.parametrize("name", OUTSIDE)
def test_refused_distributions(name):
    make, ys = ALL[name]
    with pytest.raises(UnsupportedModelError, match=OUTSIDE[name]):
        of_package(make, ys)


def test_zero_truncated_counts():
    """The densities log p(y) - log(1 - p(0)), and psi times them, by 700 digits of their formulas."""
    eta, discrete = pt.vector("eta"), pt.lvector("y")
    # PyMC stores numbers in single precision.
    psi, alpha = (pt.constant(value, dtype="float64") for value in (0.75, 1.75))
    written = pm.Truncated.dist(pm.Poisson.dist(E(eta)), lower=1), pm.HurdlePoisson.dist(psi=psi, mu=E(eta))
    written += (pm.HurdleNegativeBinomial.dist(psi=psi, mu=E(eta), alpha=alpha),)
    found = pytensor.function([eta, discrete], [log_density(rv, discrete) for rv in written], mode=numpy_mode())
    at, y = np.tile([-700.0, -60.0, -36.0, -20.0, 0.0, 5.0, 40.0], 2), np.repeat([1, 3], 7)

    def poisson(k, x):
        return k * x - mp.exp(x) - mp.log(mp.factorial(k)) - mp.log(-mp.expm1(-mp.exp(x)))

    def negative_binomial(k, x):
        n = mp.mpf(1.75)
        log_p = -mp.log1p(mp.exp(x) / n)
        log_zero, ways = n * log_p, mp.loggamma(n + k) - mp.loggamma(n) - mp.log(mp.factorial(k))
        return ways + k * (x - mp.log(n) + log_p) + log_zero - mp.log(-mp.expm1(log_zero))

    with mp.workdps(700):
        exact = [[float(f(int(k), mp.mpf(x))) for k, x in zip(y, at)] for f in (poisson, negative_binomial)]
    expected = np.array(exact)[[0, 0, 1]] + np.log([[1.0], [0.75], [0.75]])
    np.testing.assert_allclose(found(at, y), expected, rtol=1e-12, atol=1e-12)


def test_an_impossible_density_is_named():
    """Counts in a wide range have PyMC's density, infinite where 1 - p(0) is lost."""
    with pm.Model() as model:
        b = pm.Normal("b", -20.0, 10.0)
        pm.Truncated("y", pm.Poisson.dist(E(b) * np.ones(4)), lower=1, upper=5000, observed=[2, 1, 2, 1])
    with pytest.raises(ImpossibleDensityError, match=r"observation 0 of 'y' \(y = 2\).*inf at the predictor -"):
        pymc_ep.fit(model=model, progressbar=False)
