"""Width of posteriors where EP's is wrong, against quadrature, in all representations and orders of rows."""

import numpy as np
import pymc as pm
import pytest

import pymc_ep as pmep
from pymc_ep.compat import group
from pymc_ep.predict.rebuild import posterior_of
from pymc_ep.results import fit_state

X = np.random.default_rng(4).standard_normal((12, 2))
Y = (X[:, 0] + 0.3 * X[:, 1] > -0.2).astype(int)
"""Two classes that are separated: posteriors of coefficients under a wide prior are wide and skewed."""
CONTRASTS = np.array([[1.0, 0.0], [0.0, 1.0], [1.0, -1.0], [1.0, 1.0]])


def separated(order=slice(None), copies=1, scale=4.0, units=1.0):
    """Regression by a logit; each row is there so many times, with a weight for it all the same."""
    rows = np.repeat(X[order], copies, axis=0)
    with pm.Model() as model:
        slopes = pm.Normal("slopes", 0.0, scale / units, shape=2)
        pm.Deterministic("eta", X @ slopes * units)
        pm.Deterministic("contrast", units * CONTRASTS @ slopes)
        pm.Bernoulli("y", logit_p=rows @ slopes * units, observed=np.repeat(Y[order], copies))
    return model


def exact(log_prior, copies=1):
    """Means and standard deviations of the contrasts, (4,), by quadrature."""
    line = np.linspace(-40.0, 60.0, 401)
    slopes = np.stack(np.meshgrid(line, line, indexing="ij"), axis=-1).reshape(-1, 2)
    log_p = log_prior(slopes) - copies * np.logaddexp(0.0, (1 - 2 * Y) * (slopes @ X.T)).sum(axis=1)
    mass = np.exp(log_p - log_p.max())
    mass /= mass.sum()
    values = slopes @ CONTRASTS.T
    mean = mass @ values
    return mean, np.sqrt(mass @ (values - mean) ** 2)


def fitted(model, draws=0, **options):
    return pmep.fit(model=model, draws=draws, chains=1, random_seed=1, progressbar=False, **options)


def sd_of(result, name="contrast"):
    return group(result, "posterior_sd")[name].to_numpy()


@pytest.fixture
def ep_alone(monkeypatch):
    """Function that fits without the correction."""

    def fit(model):
        with monkeypatch.context() as patch:
            patch.setattr("pymc_ep.evidence.ep.shape._LEAST_WIDENED", np.inf)
            return fitted(model)

    return fit


def test_against_quadrature(ep_alone):
    """EP's standard deviations are 2 to 11% too small; means, sites and densities of what is left out stay EP's."""
    model = separated()
    mean, sd = exact(lambda slopes: -0.5 * (slopes**2).sum(axis=1) / 16.0)
    result, alone = fitted(model, 40_000), ep_alone(model)
    assert (sd_of(alone) / sd).min() < 0.9
    np.testing.assert_allclose(sd_of(result), sd, rtol=0.02)
    np.testing.assert_allclose(group(result, "posterior")["contrast"].std(("chain", "draw")), sd, rtol=0.03)
    assert np.abs((group(result, "posterior_mean")["contrast"] - mean) / sd).max() < 0.02
    for name in ("y_site_shift", "y_site_precision", "y_loo", "log_evidence"):
        np.testing.assert_array_equal(group(result, "fit")[name], group(alone, "fit")[name])
    for name in ("contrast", "eta"):
        moved = group(result, "posterior_mean")[name] - group(alone, "posterior_mean")[name]
        assert np.abs(moved / sd_of(result, name)).max() < 1e-9


def test_hyperparameters_integrated_over(ep_alone):
    """The width of the mode, carried to other scales of the prior."""

    def log_prior(slopes):
        grid = np.linspace(0.05, 15.0, 150)
        square = (slopes**2).sum(axis=1)[:, None]
        # HalfNormal(3) for the scale of two slopes.
        each = -0.5 * square / grid**2 - 2.0 * np.log(grid) - 0.5 * (grid / 3.0) ** 2
        return np.log(np.exp(each).sum(axis=1))

    with pm.Model() as model:
        slopes = pm.Normal("slopes", 0.0, pm.HalfNormal("scale", 3.0), shape=2)
        pm.Deterministic("contrast", CONTRASTS @ slopes)
        pm.Bernoulli("y", logit_p=X @ slopes, observed=Y)
    _, sd = exact(log_prior)
    corrected, alone = (np.abs(sd_of(found) / sd - 1.0) for found in (fitted(model), ep_alone(model)))
    assert corrected.max() < 0.05 < 0.9 * alone.max()


def test_a_predictor_that_is_known():
    """A row of zeros adds a constant to the log density, at all scales."""
    found = []
    for more in (0, 1):
        with pm.Model() as model:
            slopes = pm.Normal("slopes", 0.0, pm.HalfNormal("scale", 3.0), shape=2)
            pm.Deterministic("contrast", CONTRASTS @ slopes)
            rows = np.concatenate([X, np.zeros((more, 2))])
            pm.Bernoulli("y", logit_p=rows @ slopes, observed=np.append(Y, np.ones(more, dtype=int)))
        found.append(sd_of(fitted(model, 100)))
    np.testing.assert_allclose(*found, rtol=1e-6)


def test_all_representations_orders_and_units_have_one_width():
    told = sd_of(fitted(separated()))
    order = np.random.default_rng(0).permutation(12)
    for model, options in (
        (separated(order), {}),
        (separated(), {"solver": "observations"}),
        (separated(order), {"solver": "coefficients"}),
        (separated(units=1e6), {}),
        (separated(units=1e-6), {}),
    ):
        np.testing.assert_allclose(sd_of(fitted(model, **options)), told, rtol=1e-6)


def test_observations_that_share_a_predictor():
    """They have one site together, whose width no copy changes; saved results have the width of fresh ones."""
    model = separated(copies=2, scale=2.0)
    _, sd = exact(lambda slopes: -0.5 * (slopes**2).sum(axis=1) / 4.0, copies=2)
    result = fitted(model)
    np.testing.assert_allclose(sd_of(result), sd, rtol=0.02)
    again = posterior_of(result, model, ["contrast"]).moments()["contrast"].sd
    np.testing.assert_allclose(again, sd_of(result), rtol=1e-9)
    np.testing.assert_allclose(pmep.predict(result, model, var_names="contrast")["contrast_sd"], again, rtol=1e-9)


def test_precisions_stay_positive_and_posteriors_proper():
    """Of sites that say little, no more is taken than they say."""
    rng = np.random.default_rng(1)
    x = np.arange(40.0)[:, None]
    with pm.Model() as model:
        f = pm.MvNormal("f", np.full(40, 0.3), 2.0 * np.exp(-0.5 * ((x - x.T) / 6.0) ** 2) + 1e-6 * np.eye(40))
        pmep.RectifiedPoisson("y", f, observed=rng.poisson(0.1, size=40))
    state = fit_state(fitted(model))
    wide = state["precision"] + state["added_precision"]
    assert state["added_precision"].min() < 0.0 <= wide.min() + 1e-15
    assert (wide < 1e-12).any()


def test_too_many_predictors_have_the_width_of_ep(monkeypatch, ep_alone):
    model = separated()
    monkeypatch.setattr("pymc_ep.evidence.ep.shape.MOST_PAIRED", 11)
    monkeypatch.setattr("pymc_ep.evidence.ep.shape._ROWS", 1)
    np.testing.assert_array_equal(sd_of(fitted(model)), sd_of(ep_alone(model)))
