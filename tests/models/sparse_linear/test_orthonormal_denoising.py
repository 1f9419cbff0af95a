"""Denoising under wavelet potentials: closed form against entries, and bounds that rise."""

import numpy as np
import pymc as pm
import pytest

import pymc_ep as pmep
from pymc_ep.models.sparse_linear.compiled import CompiledSparseLinear
from pymc_ep.numerics.precision.orthonormal import OrthonormalFactor
from pymc_ep.operators import Wavelet2D

NOISE = 0.3


def picture(side, rng):
    """Two squares and a slope, with noise."""
    out = np.tile(np.linspace(0.0, 1.0, side), (side, 1))
    out[side // 4 : side // 2, side // 4 : -side // 4] += 2.0
    out[-side // 3 :, : side // 3] -= 1.0
    return out + NOISE * rng.standard_normal((side, side))


def fields(side, levels):
    b = pm.HalfNormal("b", 1.0, shape=levels)
    return pmep.SparseField("u", operator=Wavelet2D((side, side), "db2", levels), potential=pm.Laplace.dist(0, b))


def trees(side, levels, **scaling):
    low = pm.HalfNormal("low", 1.0, shape=levels, initval=np.full(levels, 0.05))
    high = pm.HalfNormal("high", 1.0, shape=levels, initval=np.full(levels, 1.0))
    pair = {"low": pm.Normal.dist(0, low), "high": pm.StudentT.dist(nu=2.1, sigma=high)}
    return pmep.WaveletTree("u", shape=(side, side), wavelet="haar", levels=levels, **pair, **scaling)


def whole_trees(side, levels):
    return trees(side, levels, scaling=pm.Laplace.dist(0, 5.0))


def fitted(prior, side, levels, method, **options):
    with pm.Model():
        noise = pm.HalfNormal("noise", 1.0, initval=0.5)
        pm.Normal("y", prior(side, levels), noise, observed=picture(side, np.random.default_rng(0)))
        options = {"hyper": "optimize", "draws": 0, "progressbar": False} | options
        return pmep.fit(method, **options)


def by_entries(monkeypatch):
    """Hide from the plan that observations are equally precise."""
    monkeypatch.setattr(CompiledSparseLinear, "_noise_precisions", lambda form: [])
    monkeypatch.setattr(OrthonormalFactor, "__init__", None)


@pytest.mark.filterwarnings("ignore:The result of dsb may be off")
@pytest.mark.parametrize(("prior", "method"), [(fields, "ep"), (fields, "dsb"), (trees, "dsb"), (whole_trees, "dsb")])
def test_fits_are_those_with_entries(prior, method, monkeypatch):
    options = {"outer": 4} if method == "dsb" else {}
    found = fitted(prior, 16, 2, method, **options)
    by_entries(monkeypatch)
    expected = fitted(prior, 16, 2, method, **options)
    assert float(found["fit"]["hyper_mode_noise"]) != 0.5
    results = [("fit", "log_evidence", 1e-7), ("fit", "hyper_mode_noise", 1e-4)]
    for part, name, tolerance in (*results, ("posterior_mean", "u", 1e-4), ("posterior_sd", "u", 1e-4)):
        np.testing.assert_allclose(found[part][name], expected[part][name], rtol=tolerance, atol=tolerance)


@pytest.mark.filterwarnings("ignore:The result of dsb may be off")
@pytest.mark.parametrize("prior", [fields, trees, whole_trees])
def test_bounds_rise_in_every_loop(prior):
    fit = fitted(prior, 64, 3, "dsb", outer=12)["fit"]
    objective = fit["objective"].to_numpy()
    assert len(objective) > 5
    assert np.all(np.diff(objective) >= -1e-9 * np.abs(objective[1:]))
    assert "variance_error" not in fit
