"""Bounds of cells: below expectations by quadrature, exact where they say so, with right derivatives."""

import mpmath
import numpy as np
import pytest
import scipy.optimize
import scipy.special
from scipy import stats

from pymc_ep.exceptions import InvalidDataError
from pymc_ep.sites import compile_site, get_site
from pymc_ep.sites.cells.base import CurvedCellSite, require_observations
from pymc_ep.sites.cells.count_rates import below_log_softplus, softplus
from pymc_ep.sites.cells.likelihoods import (
    BernoulliCells,
    NegativeBinomialCells,
    NormalCells,
    PoissonCells,
    SoftplusPoissonCells,
)

COUNTS = np.array([1.0, 2.0, 7.0, 40.0])
SITES = {
    "poisson": (PoissonCells(), np.array([0.0, 1.0, 7.0, 40.0]), ()),
    "poisson, truncated": (PoissonCells(truncated=True), COUNTS, ()),
    "negative binomial": (NegativeBinomialCells(), np.array([0.0, 1.0, 7.0, 40.0]), (np.full(4, 1.7),)),
    "negative binomial, truncated": (NegativeBinomialCells(truncated=True), COUNTS, (np.full(4, 0.4),)),
    "bernoulli": (BernoulliCells(), np.array([0.0, 1.0, 1.0, 0.0]), ()),
    "softplus": (SoftplusPoissonCells(), np.array([0.0, 1.0, 7.0, 40.0]), ()),
    "normal": (NormalCells(), np.array([-3.0, 0.0, 1.5, 40.0]), (np.full(4, 1.3),)),
}
every_site = pytest.mark.parametrize("name", SITES)
F = np.array([-40.0, -8.0, -1.0, 0.0, 2.0, 5.0])


def reference(name, y, f):
    """The log density by SciPy."""
    if name == "bernoulli":
        return stats.bernoulli.logpmf(y, 1 / (1 + np.exp(-f)))
    if name == "normal":
        return stats.norm(f, 1.3).logpdf(y)
    if name == "softplus":
        return stats.poisson(np.log1p(np.exp(f))).logpmf(y)
    if name.startswith("poisson"):
        law = stats.poisson(np.exp(f))
    else:
        alpha = SITES[name][2][0][0]
        law = stats.nbinom(alpha, alpha / (alpha + np.exp(f)))
    cut = np.log(-np.expm1(law.logpmf(0))) if "truncated" in name else 0.0
    return law.logpmf(y) - cut


@every_site
def test_log_densities_are_scipys(name):
    site, ys, parameters = SITES[name]
    for k, y in enumerate(ys):
        own = [p[k] for p in parameters]
        # Where a rate is tiny SciPy's own laws lose it.
        f = F[2:] if "truncated" in name else F[1:] if parameters else F
        np.testing.assert_allclose(site.log_density(y, f, *own), reference(name, y, f), rtol=1e-9, atol=1e-12)
        if "truncated" in name:
            # Where zero is almost certain one is the count that is seen.
            np.testing.assert_allclose(site.log_density(1.0, F[0], *own), 0.0, atol=1e-12)


@pytest.mark.parametrize("truncated", [False, True])
@pytest.mark.parametrize("alpha", [1e-6, 0.5, 1e6, 1e9, 1e12, 1e16])
def test_negative_binomials_of_any_dispersion_against_fifty_digits(alpha, truncated):
    """Where alpha is large they are Poisson, and terms of its size cancel."""
    with mpmath.workdps(50):
        for y, f in ((1, -3.0), (3, 1.0), (200, 5.5), (2, -30.0)):
            a, grown = mpmath.mpf(alpha), mpmath.log1p(mpmath.exp(f) / mpmath.mpf(alpha))
            expected = mpmath.loggamma(a + y) - mpmath.loggamma(a) - mpmath.loggamma(y + 1)
            expected += y * (f - mpmath.log(a)) - (a + y) * grown
            expected -= mpmath.log(-mpmath.expm1(-a * grown)) if truncated else 0
            site = NegativeBinomialCells(truncated=truncated)
            found = site.log_density(*(np.array([x]) for x in (float(y), f, alpha)))[0]
            assert found == pytest.approx(float(expected), rel=2e-9)


@every_site
def test_probabilities_above_are_scipys(name):
    site, ys, parameters = SITES[name]
    f = F[2:]
    for k, y in enumerate(ys):
        if name == "bernoulli":
            expected = stats.bernoulli(1 / (1 + np.exp(-f))).sf(y)
        elif name == "normal":
            expected = stats.norm(f, 1.3).sf(y)
        elif name == "softplus":
            expected = stats.poisson(np.log1p(np.exp(f))).sf(y)
        else:
            alpha = parameters[0][k] if parameters else None
            law = stats.nbinom(alpha, alpha / (alpha + np.exp(f))) if parameters else stats.poisson(np.exp(f))
            expected = law.sf(y) / (law.sf(0) if "truncated" in name else 1.0)
        own = [p[k] for p in parameters]
        np.testing.assert_allclose(site.above(y, f, *own), expected, rtol=1e-9, atol=1e-300)
        if "truncated" in name:
            # Where rates vanish one is the only count there is.
            assert site.above(y, np.array([-800.0]), *own) == 0.0


@every_site
@pytest.mark.parametrize("sd", [0.0, 0.3, 1.2])
def test_bounds_lie_below_the_expectation(name, sd):
    site, ys, parameters = SITES[name]
    nodes, weights = np.polynomial.hermite_e.hermegauss(150)
    weights = weights / weights.sum()
    for mean in (-2.0, 0.5, 3.0):
        f = mean + sd * nodes
        spread = mean + sd**2 / 2 if site.spread == "log_mean_exp" else sd**2
        means, spreads = np.full(4, mean), np.full(4, spread)
        truth = np.array([weights @ site.log_density(y, f, *(p[k] for p in parameters)) for k, y in enumerate(ys)])
        for anchor in (None, (means - 1.0, spreads), (means + 0.7, 2 * spreads)):
            found = site.bounded(ys, means, spreads, *parameters, anchor=anchor).value
            assert np.all(found <= truth + 1e-9 * np.abs(truth))
        if sd == 0.0 or name in ("poisson", "normal"):
            np.testing.assert_allclose(site.bounded(ys, means, spreads, *parameters).value, truth, rtol=1e-9)
        if sd == 0.3:
            assert np.all(found >= truth - 2.0)


@every_site
@pytest.mark.parametrize("held", [False, True])
def test_derivatives(name, held):
    site, ys, parameters = SITES[name]
    mean, spread = np.array([-1.5, 0.2, 1.0, 3.1]), np.array([0.3, 0.9, 1.4, 3.6])
    arguments = [mean, spread, *parameters]
    anchor = (mean - 0.3, 1.2 * spread) if held else None
    found = site.bounded(ys, *arguments, anchor=anchor)
    # Derivatives in parameters are those without another anchor.
    for k, derivative in enumerate((found.of_mean, found.of_spread, *(() if held else found.of_parameters))):
        ends = []
        for sign in (1, -1):
            moved = list(arguments)
            moved[k] = moved[k] + sign * 1e-6
            ends.append(site.bounded(ys, *moved, anchor=anchor).value)
        np.testing.assert_allclose(derivative, np.subtract(*ends) / 2e-6, rtol=1e-6, atol=1e-7)


@every_site
def test_densities_are_those_of_the_sites(name):
    """A likelihood that is written in NumPy for speed is that of a site."""
    site, ys, parameters = SITES[name]
    if site.truncated:
        pytest.skip("Sites cut no zeros off.")
    f = np.array([-1.5, 0.2, 1.0, 3.1])
    same = {"bernoulli": "logit"}.get(site.name, site.name)
    expected = compile_site(get_site(same)).log_density(ys, f, *parameters)
    np.testing.assert_allclose(site.log_density(ys, f, *parameters), expected, rtol=1e-12, atol=1e-13)


@every_site
def test_observations_that_cannot_be(name):
    site, ys, _ = SITES[name]
    require_observations(site, ys, "y")
    impossible = (np.nan, np.inf) if name == "normal" else (-1.0, 0.5, np.nan, np.inf)
    for bad in (*impossible, *([0.0] if site.truncated else [])):
        with pytest.raises(InvalidDataError, match=r"'y' has the value .* at index 2, but a .* site takes"):
            require_observations(site, np.array([1.0, 1.0, bad, bad]), "y")


CURVED = [name for name, (site, *_) in SITES.items() if isinstance(site, CurvedCellSite)]


@pytest.mark.parametrize("name", CURVED)
def test_curvatures_are_the_largest_and_no_larger(name):
    """By second differences of the log density, with derivatives in the parameters by differences too."""
    site, ys, parameters = SITES[name]
    found, *derivatives = site.curvature(ys, *parameters)
    f = np.linspace(-9.0, 9.0, 3601)
    for k, y in enumerate(ys):
        own = [p[k] for p in parameters]
        second = -np.diff(site.log_density(y, f, *own), 2) / (f[1] - f[0]) ** 2
        assert second.max() <= found[k] * (1 + 1e-4) + 1e-6
        if "truncated" not in name:
            assert second.max() >= found[k] * (1 - 1e-3)
    for derivative, parameter in zip(derivatives, parameters):
        ends = [site.curvature(ys, parameter + step)[0] for step in (1e-6, -1e-6)]
        np.testing.assert_allclose(derivative, np.subtract(*ends) / 2e-6, rtol=1e-6)


def test_published_curvatures_of_softplus_counts():
    counts = np.array([0.0, 1.0, 2.0, 5.0, 10.0, 100.0])
    found = SoftplusPoissonCells().curvature(counts)[0]
    np.testing.assert_allclose(found, [0.25, 0.41210, 0.57670, 1.07482, 1.90858, 16.94512], rtol=2e-5)
    for y, kappa in zip(counts, found):

        def fall(x, y=y):
            p, rate = 1 / (1 + np.exp(-x)), np.log1p(np.exp(x))
            return -(p * (1 - p) + y * (p**2 / rate**2 - p * (1 - p) / rate))

        best = scipy.optimize.minimize_scalar(fall, bounds=(-3.0, 3.0), method="bounded", options={"xatol": 1e-12})
        # A bound, and one that is sharp.
        assert -best.fun <= kappa <= -best.fun * (1 + 2e-6)


def test_softplus_counts_have_right_tails():
    site = SoftplusPoissonCells()
    y, f = np.array([0.0, 1.0, 5.0]), np.array([-800.0, -800.0, -40.0])
    np.testing.assert_allclose(site.log_density(y, f), y * f - scipy.special.gammaln(y + 1), rtol=1e-12)
    np.testing.assert_allclose(site.bounded(y, f, np.zeros(3)).of_mean, y, atol=1e-12)


@pytest.mark.parametrize("mean", [-1e5, -30.0, -1.0, 0.495, 0.5, 4.0, 300.0, 1e6])
def test_no_parabola_below_log_softplus_is_better(mean):
    """It lies below h, and E h under a distribution on two points with the same moments equals its expectation."""
    variance = np.array([0.0, 1e-4, 0.01, 1.0, 30.0]) * (1 + mean**2)
    found = below_log_softplus(np.full(5, mean), variance)
    f = np.concatenate([[0.0], *(sign * np.geomspace(1e-4, 1e7, 3000) for sign in (-1, 1))])

    def h(f):
        # log log(1 + e^f) = f + log1p(-e^f / 2 + ...) on the far left.
        return np.where(f < -30, f, np.log(np.logaddexp(0.0, np.maximum(f, -30))))

    _, value, _, slope = softplus(found.touches)
    np.testing.assert_allclose(value, h(found.touches), rtol=1e-12)
    step = f[:, None] - found.touches
    assert np.all(value + slope * step - found.curvature / 2 * step**2 <= h(f)[:, None] + 1e-12 * np.abs(step))

    away = mean - found.touches
    promised = value + slope * away - found.curvature / 2 * (away**2 + variance)
    certain = variance == 0
    np.testing.assert_allclose(promised[certain], h(mean), rtol=1e-12)
    away, variance, touches = away[~certain], variance[~certain], found.touches[~certain]
    share = variance / (variance + away**2)
    other = mean + variance / away
    np.testing.assert_allclose(promised[~certain], share * h(touches) + (1 - share) * h(other), rtol=1e-7, atol=1e-7)


@every_site
def test_bounds_at_moments_that_overflowed_are_no_numbers(name):
    """As of steps that a line search turns back from."""
    site, ys, parameters = SITES[name]
    mean, spread = np.array([np.nan, 1.0, np.inf, np.nan]), np.array([1.0, np.nan, np.inf, np.inf])
    with np.errstate(all="ignore"):
        assert not np.isfinite(site.bounded(ys, mean, spread, *parameters).value).any()
