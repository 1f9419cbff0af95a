"""Rows of bilinear models: both bodies of the divergence and of the derivatives, on the same rows."""

import numpy as np
import pytest

from pymc_ep.models.bilinear.engine import row_parameters
from pymc_ep.models.bilinear.engine.row_parameters import divergence, packed_derivative
from pymc_ep.models.bilinear.engine.values import MatrixPrior
from pymc_ep.models.bilinear.kernel import Rows

I, K = 50, 21  # noqa: E741


@pytest.mark.parametrize("flat", [(), (20,), (3, 4)])
@pytest.mark.parametrize("points", [(), (20,), range(K)])
@pytest.mark.parametrize("scale", [1.0, 1e-12, 1e12])
def test_bodies_agree(monkeypatch, flat, points, scale):
    rng, masked = np.random.default_rng(0), np.isin(np.arange(K), points)
    rows = Rows(rng.normal(size=(I, K)), np.where(masked, 0.0, scale * rng.uniform(0.1, 2.0, (I, K))))
    prior = MatrixPrior(rng.normal(size=(I, K)), rng.uniform(0.5, 2.0, (I, K)))
    prior.variance[:, list(flat)] = np.inf
    cells, found = Rows(*rng.normal(size=(2, I, K))), []
    for few in (np.inf, -1):
        monkeypatch.setattr(row_parameters, "_FEW", few)
        value, of_prior = divergence(rows, prior, masked)
        out = np.empty((I, K + int((~masked).sum())))
        packed_derivative(cells, of_prior.mean, rows, prior, masked, out)
        found.append((value, *of_prior[:2], out))
    for one, other in zip(*found):
        np.testing.assert_allclose(one, other, rtol=1e-12, atol=1e-14)
