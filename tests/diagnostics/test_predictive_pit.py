"""Transforms of new observations against quadrature and draws."""

import numpy as np
import pymc as pm
import pytest
from scipy import stats

import pymc_ep as pmep
from pymc_ep.diagnostics import predictive_pit
from pymc_ep.numerics.skewed_normal import gaussian_parts, skewed
from pymc_ep.predict.rebuild import posterior_of

NEW = np.array([0, 1, 4, 25, 2, 2, 0, 7, 300])
RNG = np.random.default_rng(3)
N_ROWS, N_COLS, D, N = 12, 9, 2, 70
ROWS, COLS = np.divmod(RNG.choice(N_ROWS * N_COLS, N, replace=False), N_COLS)
MEAN = np.exp(0.8 * (RNG.normal(size=(N_ROWS, D))[ROWS] * RNG.normal(size=(N_COLS, D))[COLS]).sum(axis=1))


def test_new_counts_by_quadrature(poisson):
    model, result = poisson
    found = predictive_pit(result, model, {"y": NEW})
    z = np.linspace(-9, 9, 20_001)
    mass = stats.norm.pdf(z) * 18 / 20_000
    mean, sd = (result[f"posterior_{what}"]["f"].to_numpy()[:, None] for what in ("mean", "sd"))
    posterior = posterior_of(result, model, ["f"])
    (f,) = (variable for variable in posterior.form.form.affine if variable.name == "f")
    skewness = posterior.skewness([f], {"f": sd[:, 0]})["f"][:, None]
    assert np.abs(skewness).max() > 0.1
    parts = list(zip(*gaussian_parts(skewness)))
    for which, y in (("upper", NEW), ("lower", NEW - 1)):
        # Normals whose mixture is nearly the density of the predictor, and this density.
        below = sum(w * stats.poisson.cdf(y[:, None], np.exp(mean + sd * (m + s * z))) @ mass for w, m, s in parts)
        np.testing.assert_allclose(found[f"y_{which}"], below, atol=1e-7)
        exact = stats.poisson.cdf(y[:, None], np.exp(mean + sd * skewed(z, skewness))) @ mass
        np.testing.assert_allclose(found[f"y_{which}"], exact, atol=1e-3)
    assert found["y_upper"].dims == ("x",) and found.attrs["domain"] == "count"


def test_of_a_mixture_over_hyperparameters():
    """Every component is Gaussian, and their weighted transforms are those of the draws of all."""
    with pm.Model() as model:
        s = pm.HalfNormal("s", 1.0)
        pm.Normal("y", pm.Normal("f", 0.0, s, shape=4), 0.5, observed=[0.3, -1.0, 2.0, 0.1])
        result = pmep.fit(hyper="integrate", draws=20_000, chains=1, random_seed=0, progressbar=False)
        found = predictive_pit(result, model, {"y": np.array([0.0, -2.0, 2.0, 1.0])})
    drawn = stats.norm.cdf((np.array([0.0, -2.0, 2.0, 1.0]) - result["posterior"]["f"].to_numpy()[0]) / 0.5)
    error = drawn.std(axis=0) / np.sqrt(len(drawn))
    assert np.all(np.abs(found["y_upper"] - drawn.mean(axis=0)) < 5 * error)
    np.testing.assert_array_equal(found["y_lower"], found["y_upper"])


def cells_model(kind):
    with pm.Model() as model:
        V, U = pm.Normal("V", 0, 0.6, shape=(N_ROWS, D)), pm.Normal("U", 0, 1.0, shape=(N_COLS, D))
        b = pm.Normal("b", 0.2, 0.5, shape=N_ROWS)
        if kind == "bits":
            pmep.BilinearBernoulli("y", V, U, ROWS, COLS, offset=b[ROWS], observed=(MEAN > 1).astype(int))
        elif kind == "normal":
            f = (V[ROWS] * U[COLS]).sum(axis=-1) + b[ROWS]
            pm.Normal("y", f, 0.5, observed=np.log(MEAN))
        else:
            y = RNG.poisson(MEAN)
            pmep.BilinearPoisson(
                "y", V, U, ROWS, COLS, offset=b[ROWS], alpha=1.7, truncated=True, observed=np.maximum(y, 1)
            )
    return model


@pytest.mark.parametrize("kind", ["counts", "bits", "normal"])
def test_new_cells_by_draws(kind):
    model = cells_model(kind)
    result = pmep.fit(model=model, draws=4000, chains=1, random_seed=0, progressbar=False)
    rows, cols = np.array([0, 3, 3, 11]), np.array([1, 1, 8, 0])
    y = {"counts": np.array([1, 2, 9, 1]), "bits": np.array([0, 1, 1, 0]), "normal": np.array([-1.0, 0.1, 2.0, 0.4])}[
        kind
    ]
    draws = {name: result["posterior"][name].to_numpy()[0] for name in ("V", "U", "b")}
    given = {"rows": rows, "cols": cols, "observed": y}
    found = predictive_pit(result, model, {"y": given})
    f = (draws["V"][:, rows] * draws["U"][:, cols]).sum(axis=-1) + draws["b"][:, rows]
    if kind == "bits":
        upper, lower = (stats.bernoulli(1 / (1 + np.exp(-f))).cdf(at) for at in (y, y - 1))
    elif kind == "normal":
        upper = lower = stats.norm(f, 0.5).cdf(y)
    else:
        law = stats.nbinom(1.7, 1.7 / (1.7 + np.exp(f)))
        upper, lower = ((law.cdf(at) - law.pmf(0)) / law.sf(0) for at in (y, y - 1))
    for which, drawn in (("upper", upper), ("lower", lower)):
        error = drawn.std(axis=0) / np.sqrt(len(drawn)) + drawn.std(axis=0) / np.sqrt(1000)
        assert np.all(np.abs(found[f"y_{which}"] - drawn.mean(axis=0)) <= 4 * error + 1e-12)
    assert found.attrs["domain"] == {"counts": "count", "bits": "binary", "normal": "real"}[kind]


def test_bad_input(poisson):
    model, result = poisson
    with pytest.raises(ValueError, match="one variable at a time"):
        predictive_pit(result, model, {"y": NEW, "z": NEW})
    with pytest.raises(pmep.UnsupportedModelError, match="no variable 'z'"):
        predictive_pit(result, model, {"z": NEW})
    with pytest.raises(pmep.InvalidDataError, match="predictors of shape"):
        predictive_pit(result, model, {"y": NEW[:3]})
    with pytest.raises(pmep.InvalidDataError, match="'y'"):
        predictive_pit(result, model, {"y": -1 - NEW})
