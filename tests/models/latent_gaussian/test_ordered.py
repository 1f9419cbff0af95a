"""Ordered categories: the sites of the result belong to the predictor as the model writes it."""

import numpy as np
import pymc as pm
import pytensor.tensor as pt
import pytest
from scipy import stats

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


@pytest.mark.parametrize(
    ("share", "of_share"), [(pm.math.sigmoid, stats.logistic.cdf), (pm.math.invprobit, stats.norm.cdf)]
)
def test_probabilities_of_stopping_against_quadrature(share, of_share):
    """As Bambi's family sratio writes them; the cutpoints need not be in order."""
    cutpoints = np.array([0.4, -0.3, 0.8])

    def probabilities(stops, concatenate, prod):
        goes_on = [prod(1 - stops[..., :k], -1)[..., None] for k in range(4)]
        return concatenate([*(stops[..., k : k + 1] * goes_on[k] for k in range(3)), goes_on[3]], -1)

    with pm.Model() as model:
        seen, level = pm.Data("seen", np.array([0])), pm.Normal("level", 0.5, 1.2, shape=1)
        stops = share(cutpoints - level[:, None])
        pm.Categorical("y", probabilities(stops, pt.concatenate, pt.prod), observed=seen)
    assert "link stopping ordered" in pmep.explain(model)
    grid = np.linspace(-8.0, 9.0, 4001)
    each = probabilities(of_share(cutpoints - grid[:, None]), np.concatenate, np.prod)
    for y in range(4):
        with model:
            pm.set_data({"seen": np.array([y])})
            found = pmep.fit(draws=50, random_seed=1, progressbar=False, log_likelihood=True)
        weight = stats.norm.pdf(grid, 0.5, 1.2) * each[:, y]
        mean = weight @ grid / weight.sum()
        sd = np.sqrt(weight @ (grid - mean) ** 2 / weight.sum())
        log_evidence = np.log(weight.sum() * (grid[1] - grid[0]))
        np.testing.assert_allclose(float(found["fit"]["log_evidence"]), log_evidence, atol=1e-6)
        np.testing.assert_allclose(found["posterior_mean"]["level"], mean, atol=1e-6)
        np.testing.assert_allclose(found["posterior_sd"]["level"], sd, rtol=1e-6)
        draws = found["posterior"]["level"].to_numpy()
        expected = np.log(probabilities(of_share(cutpoints - draws[..., None]), np.concatenate, np.prod))[..., y]
        np.testing.assert_allclose(found["log_likelihood"]["y"], expected, rtol=1e-6)
