"""EP on three correlated observations against quadrature of the three-dimensional posterior.

EP is not exact here: the tolerances are two to three times its own error, which this quadrature found. They catch a
wrong constant in the evidence or a wrong moment. With a Gaussian likelihood EP is exact, and so the quadrature's own
accuracy is tested too.
"""

import numpy as np
import pymc as pm
import pytest
from scipy import special, stats

import pymc_ep as pmep

MEAN = np.array([0.8, 1.4, 0.3])
COVARIANCE = np.array([[1.5, 0.9, 0.3], [0.9, 1.2, 0.5], [0.3, 0.5, 1.0]])
COUNTS = np.array([2, 0, 3])
SIGNS = np.array([1, 0, 1])
REALS = np.array([1.8, -2.5, 0.4])


def posterior_by_quadrature(log_likelihood, data):
    """Return log evidence, means and sds by Gauss-Legendre panels whose edges lie where likelihoods have kinks."""
    nodes, weights = np.polynomial.legendre.leggauss(16)
    axes, masses = [], []
    for centre, variance, y in zip(MEAN, COVARIANCE.diagonal(), data):
        # Kinks: at zero (rectified) and at the datum (Laplace).
        ends = centre + 9 * np.sqrt(variance) * np.array([-1, -0.4, 0.4, 1])
        edges = np.unique([*ends, 0.0, float(y)])
        half, middle = np.diff(edges) / 2, (edges[1:] + edges[:-1]) / 2
        axes.append((middle[:, None] + half[:, None] * nodes).ravel())
        masses.append((half[:, None] * weights).ravel())
    grid = np.stack(np.meshgrid(*axes, indexing="ij"), axis=-1)
    with np.errstate(divide="ignore"):
        log_density = stats.multivariate_normal(MEAN, COVARIANCE).logpdf(grid) + log_likelihood(data, grid).sum(axis=-1)
    mass = np.exp(log_density) * np.einsum("i,j,k->ijk", *masses)
    evidence = mass.sum()
    mean = np.einsum("ijk,ijkd->d", mass, grid) / evidence
    variance = np.einsum("ijk,ijkd->d", mass, (grid - mean) ** 2) / evidence
    return np.log(evidence), mean, np.sqrt(variance)


def rectified(y, f):
    return special.xlogy(y, np.maximum(f, 0.0)) - np.maximum(f, 0.0) - special.gammaln(y + 1)


CASES = {
    # name: model, log likelihood, data, error of log evidence, of means in sd, of log sd
    "normal": (
        lambda f, y: pm.Normal("y", f, 0.7, observed=y),
        lambda y, f: stats.norm.logpdf(y, f, 0.7),
        REALS,
        (1e-8, 1e-8, 1e-8),
    ),
    "exp": (
        lambda f, y: pm.Poisson("y", pm.math.exp(f), observed=y),
        lambda y, f: stats.poisson.logpmf(y, np.exp(f)),
        COUNTS,
        (2e-3, 1e-3, 5e-3),
    ),
    "softplus": (
        lambda f, y: pmep.SoftplusPoisson("y", f, observed=y),
        lambda y, f: stats.poisson.logpmf(y, np.logaddexp(0.0, f)),
        COUNTS,
        (4e-4, 4e-4, 1e-3),
    ),
    "rectified": (lambda f, y: pmep.RectifiedPoisson("y", f, observed=y), rectified, COUNTS, (2e-3, 2e-3, 6e-3)),
    "rectified, cut": (
        lambda f, y: pmep.RectifiedPoisson("y", f, zero_mass=False, observed=y),
        lambda y, f: np.where(f >= 0, rectified(y, f), -np.inf),
        COUNTS,
        (6e-3, 4e-3, 0.015),
    ),
    "probit": (
        lambda f, y: pm.Bernoulli("y", p=pm.math.invprobit(f), observed=y),
        lambda y, f: stats.norm.logcdf((2 * y - 1) * f),
        SIGNS,
        (6e-4, 3e-4, 2e-3),
    ),
    "logit": (
        lambda f, y: pm.Bernoulli("y", logit_p=f, observed=y),
        lambda y, f: special.log_expit((2 * y - 1) * f),
        SIGNS,
        (4e-4, 4e-4, 1e-3),
    ),
    "log standard deviation": (
        lambda f, y: pm.Normal("y", 0.1, pm.math.exp(f), observed=y),
        lambda y, f: stats.norm.logpdf(y, 0.1, np.exp(f)),
        REALS,
        (5e-3, 4e-3, 0.015),
    ),
    "log precision of t": (
        lambda f, y: pm.StudentT("y", nu=3, mu=0.1, lam=pm.math.exp(-2 * f), observed=y),
        lambda y, f: stats.t.logpdf(y, 3, 0.1, np.exp(f)),
        REALS,
        (2.5e-3, 2.5e-3, 7e-3),
    ),
    "laplace": (
        lambda f, y: pm.Laplace("y", f, 0.6, observed=y),
        lambda y, f: stats.laplace.logpdf(y, f, 0.6),
        REALS,
        (3e-4, 1e-3, 2e-3),
    ),
    "student_t": (
        lambda f, y: pm.StudentT("y", nu=4, mu=f, sigma=0.5, observed=y),
        lambda y, f: stats.t.logpdf(y, 4, f, 0.5),
        REALS,
        (3e-3, 4e-3, 3e-3),
    ),
}


@pytest.mark.parametrize("case", CASES)
def test_evidence_and_moments(case):
    observe, log_likelihood, data, (evidence_error, mean_error, sd_error) = CASES[case]
    with pm.Model():
        observe(pm.MvNormal("f", MEAN, COVARIANCE), data)
        idata = pmep.fit("ep", draws=0, progressbar=False)
    log_z, mean, sd = posterior_by_quadrature(log_likelihood, data)
    assert abs(float(idata["fit"]["log_evidence"]) - log_z) < evidence_error
    assert np.abs((idata["posterior_mean"]["f"].to_numpy() - mean) / sd).max() < mean_error
    assert np.abs(np.log(idata["posterior_sd"]["f"].to_numpy() / sd)).max() < sd_error
