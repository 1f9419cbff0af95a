"""EP against Markov chains on 100 bins of coal mining disasters, at fixed hyperparameters.

Tolerances are EP's own error, as docs/benchmarks/when_it_works.md measures it with chains that are twenty times as
long, plus four standard errors of the chains here.
"""

import numpy as np
import pymc as pm
import pytest
from scipy import stats

import pymc_ep as pmep
from tests.agreement.elliptical_slice import (
    LOG_LIKELIHOODS,
    Hierarchy,
    annealed_evidence,
    sample_hierarchical,
    sample_latents,
    times_sites,
)

N = 100
LINKS = {
    # observe; length scale, amplitude, level; EP's own error of means in sd, of sd as ratios, of log evidence
    "exp": (
        lambda f, y: pm.Poisson("y", pm.math.exp(f), observed=y),
        (11.5, 0.66, 0.46),
        (0.006, (0.99, 1.005), (-0.03, 0.0)),
    ),
    "softplus": (
        lambda f, y: pmep.SoftplusPoisson("y", f, observed=y),
        (10.8, 1.5, 1.65),
        (0.006, (0.99, 1.005), (-0.03, 0.0)),
    ),
    "rectified": (
        lambda f, y: pmep.RectifiedPoisson("y", f, observed=y),
        (10.9, 1.16, 2.0),
        (0.02, (0.985, 1.015), (-0.2, 0.0)),
    ),
}


@pytest.mark.parametrize("link", LINKS)
def test_latents_and_evidence_of_coal(link):
    observe, (ell, amp, level), (mean_error, sd_range, evidence_range) = LINKS[link]
    counts, edges = np.histogram(pmep.datasets.load_coal(), bins=N)
    years = (edges[:-1] + edges[1:]) / 2
    covariance = amp**2 * np.exp(-0.5 * (np.subtract.outer(years, years) / ell) ** 2) + 1e-6 * np.eye(N)
    mean = np.full(N, level)
    with pm.Model():
        observe(pm.MvNormal("f", mean, covariance), counts)
        idata = pmep.fit("ep", draws=0, progressbar=False)
    shift, precision = idata["fit"]["y_site_shift"].to_numpy(), idata["fit"]["y_site_precision"].to_numpy()
    near_mean, near, log_base = times_sites(mean, covariance, shift, precision)

    def remainder(f):
        with np.errstate(divide="ignore"):
            return LOG_LIKELIHOODS[link](counts, f).sum(axis=1) - (f @ shift - 0.5 * f**2 @ precision)

    rng = np.random.default_rng(0)
    chains = sample_latents(near_mean, near, remainder, chains=40, warmup=200, steps=1500, rng=rng, start=near_mean)
    assert chains.r_hat.max() < 1.02
    error = np.abs(idata["posterior_mean"]["f"].to_numpy() - chains.mean) / chains.sd
    assert (error < mean_error + 4 * chains.mean_error).all()
    ratio = idata["posterior_sd"]["f"].to_numpy() / chains.sd
    assert (ratio > sd_range[0] - 4 * chains.sd_error).all()
    assert (ratio < sd_range[1] + 4 * chains.sd_error).all()
    log_z, log_z_error = annealed_evidence(near_mean, near, remainder, particles=2000, temperatures=30, rng=rng)
    difference = float(idata["fit"]["log_evidence"]) - (log_z + log_base)
    assert evidence_range[0] - 4 * log_z_error < difference < evidence_range[1] + 4 * log_z_error


NOISE, POINTS = 0.5, 6
CORRELATION = np.exp(-0.5 * np.subtract.outer(np.arange(POINTS), np.arange(POINTS)) ** 2 / 4) + 1e-6 * np.eye(POINTS)
MEAN = np.full(POINTS, 0.7)
DATA = np.array([1.9, 0.4, 0.8, -0.9, -0.1, 1.3])


def gaussian_log_likelihood(f):
    return stats.norm.logpdf(DATA, f, np.sqrt(NOISE)).sum(axis=1)


def conjugate(scale):
    """Return mean and variance of f, and log evidence, for a prior covariance of scale times CORRELATION."""
    covariance = scale * CORRELATION
    total = covariance + NOISE * np.eye(POINTS)
    mean = MEAN + covariance @ np.linalg.solve(total, DATA - MEAN)
    variance = np.diag(covariance - covariance @ np.linalg.solve(total, covariance))
    return mean, variance, stats.multivariate_normal(MEAN, total).logpdf(DATA)


def meets(chains, mean, sd):
    """Whether chains agree with known moments within four of their standard errors."""
    means = np.abs(chains.mean - mean) < 4 * chains.mean_error * chains.sd
    return means.all() and (np.abs(chains.sd / sd - 1) < 4 * chains.sd_error).all()


def test_chains_and_annealing_meet_the_conjugate_posterior():
    rng = np.random.default_rng(1)
    mean, variance, expected = conjugate(1.0)
    run = {"chains": 40, "warmup": 200, "steps": 1500}
    assert meets(sample_latents(MEAN, CORRELATION, gaussian_log_likelihood, rng=rng, **run), mean, np.sqrt(variance))
    log_z, error = annealed_evidence(
        MEAN, CORRELATION, gaussian_log_likelihood, particles=2000, temperatures=60, rng=rng, steepness=3.0
    )
    assert error < 0.05
    assert abs(log_z - expected) < 4 * error


def test_hierarchical_chains_meet_quadrature_over_the_hyperparameter():
    """The sites are deliberately poor: they may cost time, but must not move the target."""
    theta = np.linspace(-4, 5, 181)
    means, variances, log_evidence = map(np.array, zip(*(conjugate(np.exp(2 * t)) for t in theta)))
    weight = np.exp(log_evidence + stats.norm.logpdf(theta))
    weight /= weight.sum()
    mean = weight @ means
    sd = np.sqrt(weight @ (variances + means**2) - mean**2)
    centre = weight @ theta

    model = Hierarchy(
        MEAN,
        lambda t: np.exp(2 * t)[..., None] * CORRELATION,
        lambda t: stats.norm.logpdf(t[:, 0]),
        gaussian_log_likelihood,
    )
    rng = np.random.default_rng(2)
    start = 0.5 * rng.standard_normal((40, 1))
    sites = DATA / NOISE + 0.5, np.full(POINTS, 0.6 / NOISE)
    found = sample_hierarchical(model, start, *sites, warmup=200, steps=600, rng=rng)
    assert meets(found.latent, mean, sd)
    assert meets(found.theta, centre, np.sqrt(weight @ theta**2 - centre**2))
