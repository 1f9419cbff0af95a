"""States of wavelet trees that the data do not tell apart, or in the other order than their names say."""

import numpy as np
import pymc as pm
import pytest
import scipy.stats

import pymc_ep as pmep
from pymc_ep.operators import Wavelet2D

SIDE, LEVELS, NOISE = 16, 2, 0.1


def model_of(image, family=pm.Normal.dist, seen=None):
    with pm.Model() as model:
        low, high = (family(0, pm.HalfNormal(name, 1, shape=LEVELS)) for name in ("low", "high"))
        u = pmep.WaveletTree("u", shape=(SIDE, SIDE), levels=LEVELS, low=low, high=high)
        if seen is None:
            pm.Normal("y", u, NOISE, observed=image)
        else:
            pm.Normal("y", u[seen], NOISE, observed=image[seen])
    return model


def fit(model, method, **options):
    return pmep.fit(method, model=model, draws=0, progressbar=False, **options)


def log_evidence_without_details(seen):
    """Return it where scales are zero and the image has no noise: the scaling coefficients alone are integrated out."""
    scaling = Wavelet2D((SIDE, SIDE), "db2", LEVELS, scaling=True).matrix()[-((SIDE // 4) ** 2) :]
    columns = scaling.toarray()[:, seen.ravel()]
    n, k = int(seen.sum()), len(columns)
    return (n - k) * scipy.stats.norm.logpdf(0.0, scale=NOISE) - 0.5 * np.linalg.slogdet(columns @ columns.T)[1]


PART = np.random.default_rng(4).random((SIDE, SIDE)) < 0.6
WHOLE = np.ones((SIDE, SIDE), dtype=bool)


@pytest.mark.filterwarnings("ignore:The result of dsb may be off")
@pytest.mark.parametrize("level", [0.0, 0.5, 5.0])
@pytest.mark.parametrize("method", ["ep", "dsb", "dsb, part"])
def test_an_image_without_details(method, level):
    """Scales run to zero, the evidence to that of the scaling coefficients; what is said of states is that."""
    method, *part = method.split(", ")
    seen = PART if part else None
    found = fit(model_of(np.full((SIDE, SIDE), level), seen=seen), method)
    expected = log_evidence_without_details(PART if part else WHOLE)
    # The bound may end where states are still apart, which costs it a nat.
    assert float(found["fit"]["log_evidence"]) == pytest.approx(expected, abs=0.1 if method == "ep" else 1.5)
    assert float(found["fit"]["log_evidence"]) < expected + 1e-6
    objective = found["fit"]["objective"].to_numpy()
    assert np.all(np.diff(objective) >= -1e-9 * np.abs(objective[1:])) or method == "ep"
    told = "the evidence hardly depends on high, low" if method == "ep" else "the states of 'u' ended as the same"
    assert told in found["fit"].attrs["status"]
    np.testing.assert_allclose(found["posterior_mean"]["u"], level, atol=1e-6)


@pytest.mark.filterwarnings("ignore:The result of dsb may be off")
@pytest.mark.parametrize("family", [pm.Normal.dist, pm.Laplace.dist])
def test_a_light_where_nothing_is_seen(family):
    image = np.zeros((SIDE, SIDE))
    image[tuple(np.argwhere(~PART)[3])] = 1.0
    found = fit(model_of(image, family, seen=PART), "dsb", outer=5)
    np.testing.assert_allclose(found["posterior_mean"]["u"], 0.0, atol=1e-6)


def pictured():
    """Return an image with one edge and one corner, and noise."""
    rows, cols = np.mgrid[:SIDE, :SIDE] / SIDE
    return np.where((rows > 0.4) & (cols > 0.3), 2.0, 0.3) + np.random.default_rng(0).normal(0, NOISE, (SIDE, SIDE))


def test_states_that_changed_places_are_named():
    model = model_of(pictured())
    start = {"low": np.array([1.0, 2.0]), "high": np.array([0.01, 0.02])}
    swapped, usual = fit(model, "ep", start=start), fit(model, "ep")
    assert "the low state of 'u' ended as the wider one at levels 0 and 1" in swapped["fit"].attrs["status"]
    assert "state" not in usual["fit"].attrs["status"]
    np.testing.assert_allclose(swapped["fit"]["hyper_mode_low"], usual["fit"]["hyper_mode_high"], rtol=0.05)
    np.testing.assert_allclose(swapped["fit"]["u_indicator"], 1.0 - usual["fit"]["u_indicator"], atol=0.02)


def test_a_parameter_out_of_its_domain_is_told_by_its_level():
    with pm.Model() as model:
        child = pm.Data("child", np.array([[0.1, 0.9], [1.5, 0.9]]))
        pair = {"low": pm.Normal.dist(0, 0.1), "high": pm.Normal.dist(0, 1.0)}
        u = pmep.WaveletTree("u", shape=(SIDE, SIDE), levels=3, transition={"child": child}, **pair)
        pm.Normal("y", u, NOISE, observed=pictured())
    for method in ("ep", "dsb"):
        with pytest.raises(pmep.InvalidDataError, match=r"'u'.*below low = 1\.5 at index 1,.*Indices are levels"):
            fit(model, method)


def test_the_density_is_none_where_probabilities_are_none():
    with pm.Model() as model:
        root = pm.Uniform("root", 0, 2, initval=0.5)
        pair = {"low": pm.Normal.dist(0, 0.1), "high": pm.Normal.dist(0, 1.0)}
        pmep.WaveletTree("u", shape=(SIDE, SIDE), levels=2, transition={"root": root}, **pair)
    logp, point = model.compile_logp(), model.initial_point()
    assert np.isfinite(logp(point))
    assert logp(point | {"root_interval__": np.log(3.0)}) == -np.inf
