"""Posteriors with several peaks, of observations that contradict each other: the highest one found, and others told."""

import warnings
from itertools import product

import numpy as np
import pymc as pm
import pytest
from scipy import stats
from scipy.special import logsumexp

import pymc_ep as pmep
from pymc_ep.compat import group
from pymc_ep.exceptions import ConvergenceWarning

NU, SCALE, PRIOR = 3.0, 0.5, 10.0


def gross_errors(n, p, share, size, seed, *, line=True):
    """Inputs, (n, p), and observations, (n,); a share of these is on a line of the slope `size`, or raised by it."""
    rng = np.random.default_rng(seed)
    inputs = np.c_[np.ones(n), rng.normal(size=(n, p - 1))]
    y = inputs @ np.r_[1.0, rng.normal(size=p - 1)] + SCALE * rng.standard_t(NU, size=n)
    k = int(share * n)
    if line:
        inputs[:k, 1] = rng.normal(2.0, 0.3, size=k)
        y[:k] = size * inputs[:k, 1] + SCALE * rng.normal(size=k)
    else:
        y[:k] += size
    return inputs, y


def regression(inputs, y, unit=1.0):
    with pm.Model() as model:
        beta = pm.Normal("beta", 0.0, PRIOR * unit, shape=inputs.shape[1])
        pm.StudentT("y", nu=NU, mu=inputs @ beta, sigma=SCALE * unit, observed=unit * y)
    return model


def maxima(inputs, y):
    """Log posterior densities at local maxima, and these, descending, by reweighted least squares from some points."""
    rng, found = np.random.default_rng(0), []
    p = inputs.shape[1]
    for _ in range(300):
        some = rng.choice(len(y), p, replace=False)
        beta = np.linalg.lstsq(inputs[some], y[some], rcond=None)[0]
        for _ in range(200):
            weights = (NU + 1) / (NU * SCALE**2 + (y - inputs @ beta) ** 2)
            normal = (inputs.T * weights) @ inputs + np.eye(p) / PRIOR**2
            before, beta = beta, np.linalg.solve(normal, inputs.T @ (weights * y))
            if np.allclose(before, beta, rtol=0.0, atol=1e-6):
                break
        if not any(np.allclose(beta, other, atol=1e-3) for _, other in found):
            log_t = stats.t(NU, inputs @ beta, SCALE).logpdf(y).sum()
            found.append((log_t + stats.norm(0.0, PRIOR).logpdf(beta).sum(), beta))
    return sorted(found, key=lambda pair: -pair[0])


@pytest.mark.parametrize("method", ["ep", "laplace", "vg"])
@pytest.mark.parametrize(("n", "p", "seed"), [(30, 3, 33), (200, 8, 208)])
def test_the_highest_peak_is_found(n, p, seed, method):
    """EP's first start, the prior, ends at the peak of gross errors, 12 or 163 nats below the highest."""
    inputs, y = gross_errors(n, p, 0.3, 8.0, seed)
    (highest, beta), (lower, other), *_ = maxima(inputs, y)
    assert highest > lower + 10.0
    result = pmep.fit(method, model=regression(inputs, y), draws=0, progressbar=False)
    mean, sd = (group(result, f"posterior_{what}")["beta"].to_numpy() for what in ("mean", "sd"))
    assert np.max(np.abs(mean - beta) / sd) < 0.3 < 10.0 < np.max(np.abs(mean - other) / sd)


def test_sixty_regressions():
    """Of a fit that does not warn, means are those at the highest maximum; a lower one may have been missed."""
    warned, missed = 0, []
    for line, (n, p), share, size in product(
        (True, False), ((12, 2), (30, 3), (100, 3), (30, 8), (200, 8)), (0.1, 0.3, 0.45), (3.0, 8.0)
    ):
        inputs, y = gross_errors(n, p, share, size, n + p, line=line)
        with warnings.catch_warnings():
            warnings.simplefilter("ignore", ConvergenceWarning)
            result = pmep.fit(model=regression(inputs, y), draws=0, progressbar=False)
        if not group(result, "fit")["converged"]:
            warned += 1
            continue
        mean, sd = (group(result, f"posterior_{what}")["beta"].to_numpy() for what in ("mean", "sd"))
        (highest, beta), *others = maxima(inputs, y)
        # A skewed posterior's mean is off its maximum.
        assert np.max(np.abs(mean - beta) / sd) < 1.5, (line, n, p, share, size)
        missed += [(n, p, share, size) for density, _ in others if density > highest - 4.0]
    assert warned == 10
    assert missed == [(12, 2, 0.45, 8.0)]


def test_order_and_units_do_not_matter():
    inputs, y = gross_errors(30, 3, 0.3, 8.0, 33)
    order = np.random.default_rng(1).permutation(30)
    expected = group(pmep.fit(model=regression(inputs, y), draws=0, progressbar=False), "posterior_mean")["beta"]
    others = [(regression(inputs, y, unit), unit) for unit in (1e6, 1e-6)]
    for model, unit in ((regression(inputs[order], y[order]), 1.0), *others):
        found = group(pmep.fit(model=model, draws=0, progressbar=False), "posterior_mean")["beta"] / unit
        np.testing.assert_allclose(found, expected, rtol=1e-8)


def location(y, *, learned=False):
    with pm.Model() as model:
        sigma = pm.HalfNormal("sigma", 1.0) if learned else SCALE
        pm.StudentT("y", nu=NU, mu=pm.Normal("f", 0.0, PRIOR), sigma=sigma, observed=y)
    return model


def exact_sd(y):
    """Of a location with the known scale, by quadrature."""
    f = np.linspace(-30.0, 40.0, 70_001)
    log_density = stats.norm(0.0, PRIOR).logpdf(f) + stats.t(NU, f[:, None], SCALE).logpdf(y).sum(axis=1)
    mass = np.exp(log_density - logsumexp(log_density))
    return np.sqrt(mass @ (f - mass @ f) ** 2)


@pytest.mark.parametrize(
    ("apart", "weights", "too_small", "sentence"),
    [
        (8.0, (2, 2), 0.8, "the posterior has several peaks, and the result describes the one with 5.% of its mass"),
        (4.0, (6, 5), 0.2, "the posterior has several peaks, and the result describes the one with 100% of its mass"),
        (2.0, (6, 5), 0.15, "standard deviation of the predictor of observation . of 'y' is some 18% too small"),
        (4.0, (6, 2), 0.0, ""),
        (8.0, (30, 25), 0.0, ""),
    ],
)
def test_a_posterior_that_is_too_narrow_is_told(apart, weights, too_small, sentence):
    """Of two groups of observations of a location, and only then."""
    y = np.repeat([0.0, apart], weights)
    model, sd = location(y), exact_sd(y)
    if not sentence:
        result = pmep.fit(model=model, draws=0, progressbar=False)
        np.testing.assert_allclose(group(result, "posterior_sd")["f"], sd, rtol=0.03)
        return
    with pytest.warns(ConvergenceWarning, match=sentence):
        result = pmep.fit(model=model, draws=0, progressbar=False)
    assert float(group(result, "posterior_sd")["f"]) < (1.0 - too_small) * sd


def test_a_learned_scale_has_one_peak():
    """The cure that the warning gives."""
    result = pmep.fit(model=location(np.repeat([0.0, 4.0], (6, 5)), learned=True), draws=0, progressbar=False)
    assert group(result, "fit")["converged"]
