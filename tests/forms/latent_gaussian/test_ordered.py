"""Ordered categories: the sites of the result belong to the predictor as the model writes it."""

import numpy as np
import pymc as pm
import pytest

import pymc_ep as pmep

X = np.array([0.5, -1.0, 1.5, 0.2, -0.7, 1.1])
Y = np.array([0, 2, 1, 1, 0, 2])
CUTS = np.array([2.0, 4.0])


@pytest.mark.parametrize(
    ("observe", "scale"),
    [
        (lambda eta: pm.OrderedLogistic("y", eta=eta, cutpoints=CUTS, observed=Y), 1.0),
        (lambda eta: pm.OrderedProbit("y", eta=eta, cutpoints=CUTS, observed=Y), 1.0),
        (lambda eta: pm.OrderedProbit("y", eta=eta, cutpoints=CUTS, sigma=2.0, observed=Y), 2.0),
    ],
)
def test_prior_and_sites_make_the_posterior(observe, scale):
    """Slope b ~ N(2, 1), eta = b x + 3: a prior of one coefficient times Gaussians in eta over the noise's scale."""
    with pm.Model():
        b = pm.Normal("b", 2.0, 1.0)
        observe(b * X + 3.0)
        idata = pmep.fit(draws=0, progressbar=False)
    shift, precision = (idata["fit"][f"y_site_{what}"].to_numpy() for what in ("shift", "precision"))
    x, offset = X / scale, 3.0 / scale
    total = 1.0 + (precision * x**2).sum()
    mean = (2.0 + (x * (shift - precision * offset)).sum()) / total
    assert float(idata["posterior_mean"]["b"]) == pytest.approx(mean, abs=1e-7)
    assert float(idata["posterior_sd"]["b"]) == pytest.approx(total**-0.5, abs=1e-7)
