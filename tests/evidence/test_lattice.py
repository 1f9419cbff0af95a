"""The lattice over few hyperparameters, against closed forms."""

import numpy as np
import pytest
from scipy.special import gammaln
from scipy.stats import multivariate_normal, skewnorm

from pymc_ep.contracts.posterior import Moments
from pymc_ep.evidence.integration.frame import Frame, first_frame
from pymc_ep.evidence.integration.lattice import Cells, lattice
from pymc_ep.evidence.mixtures import mixed_moments

WIDE = {"fall": 12.0, "reach": 40.0, "most": 3000}


def grown(log_density, frame, step=1.0, **options):
    """A lattice whose states count the fits from the centre."""

    def fit(theta, steps):
        return float(log_density(theta)), steps + 1

    return lattice(fit, frame, fit(frame.centre, -1), **(WIDE | {"step": step} | options))


@pytest.mark.parametrize("p", [1, 2, 3])
def test_a_gaussian_is_integrated_to_the_error_of_the_rule(p):
    rng = np.random.default_rng(p)
    factor = rng.normal(size=(p, p)) + 2.0 * np.eye(p)
    truth = multivariate_normal(np.arange(p), factor @ factor.T)
    frame, edge = first_frame(
        lambda theta: (truth.logpdf(theta), -np.linalg.solve(factor @ factor.T, theta - np.arange(p))),
        np.arange(p, dtype=float),
        truth.logpdf(np.arange(p)),
        np.zeros(p, dtype=bool),
    )
    assert not edge.any()
    found = grown(truth.logpdf, frame)
    assert found.log_integral == pytest.approx(0.0, abs=1e-3)
    mean = found.shares @ found.thetas
    np.testing.assert_allclose(mean, np.arange(p), atol=1e-9)
    np.testing.assert_allclose(
        (found.shares[:, None] * (found.thetas - mean)).T @ (found.thetas - mean),
        factor @ factor.T,
        rtol=1e-2,
        atol=1e-2,
    )
    assert len(found.open_ends) == 0
    assert max(found.states) <= 6 * p


@pytest.mark.parametrize("shape", [0.5, 2.0])
def test_a_log_gamma_density_has_its_normaliser_and_moments(shape):
    """Of the logarithm: with a tail of slope 0.5 to the left, and a double exponential to the right."""
    frame = Frame(np.log([shape]), np.array([[shape**-0.5]]))
    found = grown(lambda t: shape * t[0] - np.exp(t[0]), frame, step=0.75)
    assert found.log_integral == pytest.approx(gammaln(shape), abs=2e-3)
    values = np.exp(found.thetas[:, 0])
    mean = found.shares @ values
    assert mean == pytest.approx(shape, rel=0.01)
    assert found.shares @ (values - mean) ** 2 == pytest.approx(shape, rel=0.02)


def test_a_narrow_peak_halves_the_step():
    narrow = Frame(np.zeros(1), np.array([[2.5]]))
    found = grown(lambda t: -0.5 * t[0] ** 2, narrow)
    assert found.steps.item() == 1.25
    assert found.log_integral == pytest.approx(0.5 * np.log(2.0 * np.pi), abs=1e-4)
    assert grown(lambda t: -0.5 * t[0] ** 2, narrow, halvings=0).steps.item() == 2.5


def test_a_density_that_does_not_fall_leaves_an_open_end():
    found = grown(lambda t: min(0.0, 3.0 + t[0]) + 1e-3 * t[0], Frame(np.zeros(1), np.eye(1)))
    assert found.open_ends.item() == pytest.approx(40.0)
    assert len(grown(lambda t: 0.0, Frame(np.zeros(2), np.eye(2)), most=50).thetas) <= 50


def test_fits_that_fail_far_out_are_nothing_and_near_the_mode_an_open_end():
    def fit(limit):
        return lambda theta, _: None if theta[0] > limit else (-0.5 * theta[0] ** 2, None)

    options = WIDE | {"step": 0.5}
    frame = Frame(np.zeros(1), np.eye(1))
    far, near = (lattice(fit(limit), frame, (0.0, None), **options) for limit in (4.1, 2.1))
    assert far.log_integral == pytest.approx(0.5 * np.log(2.0 * np.pi), abs=1e-4)
    assert near.open_ends.item() == 2.0


def test_draws_of_cells_have_the_moments_of_the_density():
    truth = skewnorm(4.0)
    nodes = np.arange(-3.0, 5.0, 0.5)[:, None]
    shares = truth.pdf(nodes[:, 0])
    kept = shares > 1e-6
    nodes, shares = nodes[kept], shares[kept] / shares[kept].sum()
    rng = np.random.default_rng(0)
    own = rng.choice(len(shares), size=200_000, p=shares)
    draws = Cells(nodes, shares, np.array([[0.5]])).draws(own, rng)[:, 0]
    assert draws.mean() == pytest.approx(truth.mean(), abs=0.01)
    assert draws.std() == pytest.approx(truth.std(), rel=0.01)
    assert len(np.unique(draws)) == len(draws)
    np.testing.assert_allclose(np.quantile(draws, [0.05, 0.5, 0.95]), truth.ppf([0.05, 0.5, 0.95]), atol=0.04)


def test_moments_of_a_mixture_far_from_zero_are_those_of_all_draws():
    parts = [(0.2, Moments(1e8 + np.array([1.0, 2.0]), np.ones(2))), (0.8, Moments(1e8 + np.zeros(2), np.zeros(2)))]
    mean, sd = mixed_moments((weight, {"f": found}) for weight, found in parts)["f"]
    np.testing.assert_allclose(mean - 1e8, [0.2, 0.4], atol=1e-6)
    np.testing.assert_allclose(sd**2, [0.2 + 0.16, 0.2 + 0.64], rtol=1e-6)
