"""EP against Markov chains on 100 bins of coal mining disasters, at fixed hyperparameters.

Tolerances are EP's own error, as docs/benchmarks/mcmc_agreement.md measures it with chains that are twenty times as
long, plus four standard errors of the chains here.
"""

import numpy as np
import pymc as pm
import pytest

import pymc_ep as pmep
from tests.agreement.elliptical_slice import LOG_LIKELIHOODS, annealed_evidence, sample_latents, times_sites

N = 100
LINKS = {
    # observe; length scale, amplitude, level; EP's own error of means in sd, of sd as ratios, of log evidence
    "exp": (
        lambda f, y: pm.Poisson("y", pm.math.exp(f), observed=y),
        (11.5, 0.66, 0.46),
        (0.006, (0.98, 1.005), (-0.03, 0.0)),
    ),
    "softplus": (
        lambda f, y: pmep.SoftplusPoisson("y", f, observed=y),
        (10.8, 1.5, 1.65),
        (0.006, (0.98, 1.005), (-0.03, 0.0)),
    ),
    "rectified": (
        lambda f, y: pmep.RectifiedPoisson("y", f, observed=y),
        (10.9, 1.16, 2.0),
        (0.02, (0.88, 1.01), (-0.2, 0.0)),
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
        fit = pmep.fit("ep", draws=0, progressbar=False)["fit"]
    shift, precision = fit["y_site_shift"].to_numpy(), fit["y_site_precision"].to_numpy()
    near_mean, near, log_base = times_sites(mean, covariance, shift, precision)

    def remainder(f):
        with np.errstate(divide="ignore"):
            return LOG_LIKELIHOODS[link](counts, f).sum(axis=1) - (f @ shift - 0.5 * f**2 @ precision)

    rng = np.random.default_rng(0)
    chains = sample_latents(near_mean, near, remainder, chains=40, warmup=200, steps=1500, rng=rng, start=near_mean)
    assert chains.r_hat.max() < 1.02
    error = np.abs(fit["f_mean"].to_numpy() - chains.mean) / chains.sd
    assert (error < mean_error + 4 * chains.mean_error).all()
    ratio = fit["f_sd"].to_numpy() / chains.sd
    assert (ratio > sd_range[0] - 4 * chains.sd_error).all()
    assert (ratio < sd_range[1] + 4 * chains.sd_error).all()
    log_z, log_z_error = annealed_evidence(near_mean, near, remainder, particles=2000, temperatures=30, rng=rng)
    difference = float(fit["log_evidence"]) - (log_z + log_base)
    assert evidence_range[0] - 4 * log_z_error < difference < evidence_range[1] + 4 * log_z_error


def test_the_reference_itself():
    """With Gaussian noise the chains and the annealing have closed forms to meet."""
    rng = np.random.default_rng(1)
    n, noise = 6, 0.5
    covariance = np.exp(-0.5 * np.subtract.outer(np.arange(n), np.arange(n)) ** 2 / 4) + 1e-6 * np.eye(n)
    mean, y = np.full(n, 0.7), rng.normal(size=n)
    log_likelihood = lambda f: -0.5 * ((y - f) ** 2 / noise + np.log(2 * np.pi * noise)).sum(axis=1)  # noqa: E731
    total = covariance + noise * np.eye(n)
    expected = mean + covariance @ np.linalg.solve(total, y - mean)
    expected_sd = np.sqrt(np.diag(covariance - covariance @ np.linalg.solve(total, covariance)))
    expected_log_z = -0.5 * ((y - mean) @ np.linalg.solve(total, y - mean) + np.linalg.slogdet(2 * np.pi * total)[1])

    chains = sample_latents(mean, covariance, log_likelihood, chains=40, warmup=200, steps=1500, rng=rng)
    assert (np.abs(chains.mean - expected) < 4 * chains.mean_error * chains.sd).all()
    assert (np.abs(chains.sd / expected_sd - 1) < 4 * chains.sd_error).all()
    log_z, error = annealed_evidence(
        mean, covariance, log_likelihood, particles=2000, temperatures=60, rng=rng, steepness=3.0
    )
    assert error < 0.05
    assert abs(log_z - expected_log_z) < 4 * error
