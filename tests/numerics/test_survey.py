"""Which integrands a survey calls one peak near the cavity's centre, and what it bounds."""

import numpy as np
import pytest
import scipy.stats

from pymc_ep.numerics.quadrature.multimodal import defined
from pymc_ep.numerics.quadrature.peak_search import Peak, has_one_peak, is_near, share_outside, surveyed


def logistic(f, y):
    return -np.logaddexp(0.0, -f), 1.0 / (1.0 + np.exp(f))


def flat_until(end):
    def density(f, y):
        return np.where(f < end, 0.0, -np.inf), np.zeros_like(f)

    return density


def spike(place, width, height):
    """A t of 1 with a Gaussian bump."""

    def density(f, y):
        bump = height * np.exp(-(((f - place) / width) ** 2) / 2)
        return bump, -bump * (f - place) / width**2

    return density


@pytest.mark.parametrize(
    ("density", "expected"),
    [
        (logistic, True),
        (spike(0.0, 3.0, 0.5), True),
        (flat_until(0.13), False),  # the support ends under the cavity
        (flat_until(1.0), True),  # and here ten standard deviations away
        (spike(0.5, 0.05, 30.0), False),  # a second peak, of the same height as the cavity's own
        (spike(0.0, 1e-6, 30.0), False),  # one that is seen at its top alone
        (spike(2.0, 0.4, 400.0), False),  # and one that outweighs it from twenty standard deviations away
    ],
)
def test_one_near_peak(density, expected):
    mean, variance, power = np.zeros(1), np.full(1, 0.01), np.ones(1)
    seen, *_ = surveyed(defined(density), np.zeros(1), mean, variance, power, also=np.zeros(1))
    assert (has_one_peak(seen) & is_near(seen)).tolist() == [expected]


@pytest.mark.parametrize("ends", [(-3.0, 3.0), (-1.1, 6.0), (-20.0, 2.2)])
def test_what_is_left_out_is_bounded(ends):
    """Of a normal integrand, whose tails are known: sum of P(|z| > end) and E[z**2; |z| > end]."""
    seen, *_ = surveyed(defined(flat_until(np.inf)), np.zeros(1), np.zeros(1), np.ones(1), np.ones(1), also=np.zeros(1))
    ends = np.array(ends)[:, None]
    density = scipy.stats.norm.pdf(ends)
    bound = share_outside(seen, Peak(np.zeros(1), np.ones(1)), ends, density, np.full(1, 0.5 * np.log(2 * np.pi)))
    true = (2 * scipy.stats.norm.sf(np.abs(ends)) + np.abs(ends) * density).sum()
    assert true < bound < 10 * true
