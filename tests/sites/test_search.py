"""Moments of densities that say nothing of their shape, against dense panels about the places that a test knows."""

import numpy as np
import pymc as pm
import pytensor.tensor as pt
import pytest
from scipy.special import log_ndtr

from pymc_ep.sites import quadrature
from pymc_ep.sites.base import Site
from pymc_ep.sites.compiled import compile_site

NODE, WEIGHT = np.polynomial.legendre.leggauss(40)


def bump(f, place, width):
    return -(((f - place) / width) ** 2) / 2


def student(f, place, width, nu):
    return -(nu + 1) / 2 * pt.log1p(((f - place) / width) ** 2 / nu)


def site(log_t):
    return Site("test", (), "real", False, lambda y, eta: log_t(eta), interpreted=True)


def by_panels(log_t, places, mean, variance):
    """Return log Z, mean, variance, gradient and precision by panels that double away from every place given."""
    steps = np.concatenate([[0.0], np.geomspace(1e-9, 40 * np.sqrt(variance), 220)])
    breaks = np.unique([place + sign * steps for place in (mean, *places) for sign in (-1, 1)])
    half, middle = np.diff(breaks)[:, None] / 2, (breaks[1:] + breaks[:-1])[:, None] / 2
    f = middle + half * NODE
    with np.errstate(all="ignore"):
        log_t = log_t(pt.as_tensor(f)).eval(mode="FAST_COMPILE")
    level = np.where(np.isfinite(log_t), log_t, -np.inf) - (f - mean) ** 2 / (2 * variance)
    top = level.max()
    weight = np.exp(level - top) * half * WEIGHT
    total = weight.sum()
    centre = (weight * (f - mean)).sum() / total
    spread = (weight * (f - mean - centre) ** 2).sum() / total
    log_z = top + np.log(total) - 0.5 * np.log(2 * np.pi * variance)
    return log_z, mean + centre, spread, centre / variance, 1 / spread - 1 / variance


SMOOTH = {
    "weak": (lambda f: -pt.softplus(-f), (), 0.3, 0.01),
    "narrow and near": (lambda f: bump(f, 0.2, 0.01), (0.2,), 0.0, 1.0),
    "steep": (lambda f: 40 * f - pt.exp(f), (3.7,), 0.0, 0.05),
    "heavy tails within reach": (lambda f: student(f, 1.0, 2.0, 3.0), (), 0.0, 0.5),
}
ROUGH = {
    "skewed": (lambda f: 3 * f - pt.exp(f), (), 0.0, 0.5),
    "narrow and far": (lambda f: bump(f, 300.0, 1e-5), (300.0,), 0.0, 1.0),
    "two peaks": (lambda f: pt.logaddexp(bump(f, -2.0, 0.1), -1 + bump(f, 2.5, 0.3)), (-2.0, 2.5), 0.0, 1.0),
    "three peaks": (
        lambda f: pt.logaddexp(bump(f, -20.0, 0.5), pt.logaddexp(-150 + bump(f, 8.0, 0.2), -120.0)),
        (-20.0, 8.0),
        0.0,
        1.0,
    ),
    "tiny and far": (lambda f: student(f, 5.2, 1e-6, 2.0), (5.2,), 0.0, 1.0),
    "a floor under a peak": (lambda f: pt.logaddexp(bump(f, 0.0, 0.1), np.log(1e-6)), (0.0,), 0.1, 1.0),
    "a low floor": (lambda f: pt.logaddexp(bump(f, 0.0, 0.1), np.log(1e-11)), (0.0,), 0.1, 1.0),
    "a floor below all nodes": (lambda f: pt.logaddexp(bump(f, 0.0, 1e-6), np.log(1e-21)), (0.0,), 0.0, 1.0),
    "kink": (lambda f: -5 * pt.abs(f - 0.37), (0.37,), 0.0, 1.0),
    "sharp kink far away": (lambda f: -1e4 * pt.abs(f - 37.0), (37.0,), 0.0, 1.0),
    "kink within a narrow cavity": (lambda f: -pt.abs(f - 0.37), (0.37,), 0.36, 0.01),
    "jump": (lambda f: pt.switch(f > 0.3, 0.0, -2.0), (0.3,), 0.0, 1.0),
    "end of the support": (lambda f: pt.log1p(f) - f, (-1.0,), 0.0, 1.0),
    "end with the most mass beside it": (lambda f: -30 * f + 0 * pt.log(f), (0.0,), 0.5, 1.0),
    "interval": (lambda f: pt.log(f - 0.6) + pt.log(0.9 - f), (0.6, 0.9), 0.0, 1.0),
    "heavy tails": (lambda f: student(f, 3.0, 0.05, 1.0), (3.0,), 0.0, 1.0),
    "flat, then falling": (lambda f: -((f / 2) ** 12), (-2.0, 2.0), 0.0, 9.0),
}


@pytest.mark.parametrize("case", [*SMOOTH, *ROUGH])
def test_moments_against_dense_panels(case):
    log_t, places, mean, variance = (SMOOTH | ROUGH)[case]
    found = np.array(compile_site(site(log_t)).moments(0.0, mean, variance))
    expected = np.array(by_panels(log_t, places, mean, variance))
    deviation = np.sqrt(expected[2])
    scale = np.array([1.0, deviation, expected[2], 1 / deviation, 1 / expected[2]])
    np.testing.assert_allclose((found - expected) / scale, 0, atol=2e-8)


@pytest.mark.parametrize("mean", [0.0355, -0.2])
def test_a_density_whose_slope_is_undefined(mean):
    """A Normal above zero: PyMC's derivative is NaN below zero on one stack, where the density is in order."""
    y, sd, variance = 0.0025, 0.1, 0.001
    function = compile_site(site(lambda f: pm.logp(pm.Truncated.dist(pm.Normal.dist(f, sd), lower=0.0), y)))
    found = np.array(function.moments(0.0, mean, variance))
    f = mean + np.sqrt(variance) * np.linspace(-9, 9, 40001)
    weight = np.exp(-(((y - f) / sd) ** 2) / 2 - log_ndtr(f / sd) - (f - mean) ** 2 / (2 * variance))
    weight /= weight.sum()
    centre = weight @ f
    spread = weight @ (f - centre) ** 2
    expected = [centre, spread, (centre - mean) / variance, 1 / spread - 1 / variance]
    np.testing.assert_allclose(found[1:], expected, rtol=1e-6)


def test_a_density_without_digits_is_not_halved_for_ever(monkeypatch):
    """A staircase of 1e4 steps a unit is as rough in every part as in the whole; its moments are those of the slope."""
    sizes, scanned = [], quadrature.scanned_nodes

    def counted(*arguments, **options):
        rule = scanned(*arguments, **options)
        sizes.append(rule.panels.width.size)
        return rule

    monkeypatch.setattr(quadrature, "scanned_nodes", counted)
    stairs = site(lambda f: bump(pt.round(1e4 * f) / 1e4, 0.2, 0.1))
    log_z, mean, variance = compile_site(stairs).moments(0.0, 0.0, 1.0)[:3]
    assert sizes and max(sizes) < 3000
    assert log_z == pytest.approx(np.log(0.1) - 0.5 * np.log(1.01) - 0.5 * 0.04 / 1.01, abs=1e-4)
    assert mean == pytest.approx(0.2 / 1.01, abs=1e-4)
    assert variance == pytest.approx(0.01 / 1.01, rel=1e-3)


@pytest.mark.parametrize("case", SMOOTH)
def test_smooth_peaks_need_no_scan(case, monkeypatch):
    log_t, _, mean, variance = SMOOTH[case]

    def refuse(*arguments, **options):
        raise AssertionError("A smooth single peak was scanned.")

    monkeypatch.setattr(quadrature, "scanned_nodes", refuse)
    compile_site(site(log_t)).moments(0.0, mean, variance)


@pytest.mark.parametrize("log_concave", [True, False])
def test_a_known_predictor(log_concave):
    """Where the cavity has no variance log Z is log t at its mean, here for t = exp(-s f**2 / 2)."""
    logp = lambda y, eta, s: -s * eta**2 / 2  # noqa: E731
    function = compile_site(Site("test", ("s",), "real", log_concave, logp, interpreted=True))
    means = np.array([0.0, 1.5])
    (gradient,) = function.parameter_gradient(0.0, means, np.zeros(2), 1.0, 2.0)
    np.testing.assert_allclose(gradient, -(means**2) / 2, rtol=1e-14)


def test_sites_of_one_block_do_not_see_each_other():
    log_t = SMOOTH["steep"][0]
    mean, variance = np.linspace(-3, 6, 50), np.geomspace(1e-4, 30, 50)
    function = compile_site(site(log_t))
    together = np.array(function.moments(np.zeros(50), mean, variance))
    alone = np.array([function.moments(0.0, *pair) for pair in zip(mean, variance)]).T
    np.testing.assert_allclose(together, alone, rtol=1e-12, atol=1e-13)
