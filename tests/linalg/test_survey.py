"""Which integrands a survey calls one peak near the cavity's centre."""

import numpy as np
import pytest

from pymc_ep.linalg.scan import defined
from pymc_ep.linalg.survey import has_one_near_peak, surveyed


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
        (spike(2.0, 0.4, 400.0), False),  # and one that outweighs it from twenty standard deviations away
    ],
)
def test_one_near_peak(density, expected):
    mean, variance, power = np.zeros(1), np.full(1, 0.01), np.ones(1)
    seen, *_ = surveyed(defined(density), np.zeros(1), mean, variance, power, also=np.zeros(1))
    assert has_one_near_peak(seen).tolist() == [expected]
