"""Bands, forests and marginals, read back from their axes."""

import numpy as np
import pymc as pm
import pytest
from matplotlib import pyplot
from scipy import stats

import pymc_ep as pmep
from pymc_ep.compat import group

X = np.array([0.0, 0.5, 1.5, 1.0, 3.0])
COUNTS = np.array([2, 0, 1, 8, 3])


@pytest.fixture(autouse=True)
def _closed():
    yield
    pyplot.close("all")


@pytest.fixture(scope="module")
def fitted():
    kernel = np.exp(-0.5 * np.subtract.outer(X, X) ** 2) + 1e-6 * np.eye(5)
    with pm.Model(coords={"year": X}) as model:
        amplitude = pm.HalfNormal("amplitude", 1.0)
        f = pm.MvNormal("f", np.full(5, 0.3), amplitude**2 * kernel, dims="year")
        pm.Deterministic("rate", pm.math.exp(f), dims="year")
        pm.Poisson("y", pm.math.exp(f), observed=COUNTS, dims="year")
    return model, pmep.fit(model=model, hyper="integrate", draws=2000, random_seed=2, progressbar=False)


def band(axis, k):
    """Lower and upper edge of a filled band, by x."""
    vertices = axis.collections[k].get_paths()[0].vertices
    return [[vertices[vertices[:, 0] == x, 1].min(), vertices[vertices[:, 0] == x, 1].max()] for x in np.sort(X)]


def test_band_of_a_latent_function_with_data(fitted):
    _, result = fitted
    axis = pmep.plots.plot_latent(result, "f", data="y", ylabel="log rate per year")
    mean, sd = result["posterior_mean"]["f"], result["posterior_sd"]["f"]
    order = np.argsort(X)
    line, points = axis.lines
    np.testing.assert_array_equal(line.get_xdata(), X[order])
    np.testing.assert_allclose(line.get_ydata(), mean[order])
    np.testing.assert_array_equal(points.get_ydata(), COUNTS)
    ends = stats.norm(mean.to_numpy()[order], sd.to_numpy()[order])
    np.testing.assert_allclose(band(axis, 0), np.transpose(ends.interval(0.9)))
    np.testing.assert_allclose(band(axis, 1), np.transpose(ends.interval(0.5)))
    assert axis.get_xlabel() == "year" and axis.get_ylabel() == "log rate per year"


def test_band_of_a_rate_three_ways(fitted):
    """By a transform of the function, by draws of the Deterministic, and by predictions."""
    model, result = fitted
    by_transform = pmep.plots.plot_latent(result, "f", transform=np.exp)
    by_draws = pmep.plots.plot_latent(result, "rate", ax=pyplot.figure().add_subplot())
    predicted = pmep.predict(result, model, response=True)
    by_prediction = pmep.plots.plot_latent(predicted, "y", x=10 + X, data=COUNTS, ax=pyplot.figure().add_subplot())
    middle = [axis.lines[0].get_ydata() for axis in (by_transform, by_draws, by_prediction)]
    np.testing.assert_allclose(middle[0], middle[1], rtol=0.1)
    np.testing.assert_allclose(middle[2], predicted["y_quantile"].sel(quantile=0.5)[np.argsort(X)])
    np.testing.assert_array_equal(by_prediction.lines[0].get_xdata(), 10 + np.sort(X))
    np.testing.assert_allclose(middle[0], middle[2], rtol=0.1)


def test_bad_bands(fitted):
    model, result = fitted
    with pytest.raises(ValueError, match=r"'amplitude' has the dims \(\), but a band needs one"):
        pmep.plots.plot_latent(result, "amplitude")
    with pytest.raises(ValueError, match="neither moments nor draws of 'nothing'"):
        pmep.plots.plot_latent(result, "nothing")
    with pytest.raises(ValueError, match=r"x= has the shape \(2,\), but 'f' has 5 values"):
        pmep.plots.plot_latent(result, "f", x=[0, 1])
    with pytest.raises(ValueError, match=r"data= has the shape \(3,\), but 'f' has 5 values"):
        pmep.plots.plot_latent(result, "f", data=[0, 1, 2])
    with pytest.raises(ValueError, match="data='z' is no observed variable"):
        pmep.plots.plot_latent(result, "f", data="z")
    found = pmep.predict(result, model, response=True, quantiles=(0.1, 0.9))
    with pytest.raises(ValueError, match=r"'y' lack the quantile 0\.05"):
        pmep.plots.plot_latent(found, "y")
    with pytest.raises(ValueError, match="no predictions of 'f'"):
        pmep.plots.plot_latent(found, "f")


def test_forest_of_moments_and_draws(fitted):
    _, result = fitted
    axis = pmep.plots.plot_forest(result, ["f", "amplitude"])
    labels = [label.get_text() for label in axis.get_yticklabels()]
    assert labels == ["f[0]", "f[0.5]", "f[1.5]", "f[1]", "f[3]", "amplitude"]
    mean, sd = result["posterior_mean"]["f"], result["posterior_sd"]["f"]
    low, high = stats.norm(mean, sd).interval(0.9)
    segments = np.array(axis.collections[0].get_segments())
    np.testing.assert_allclose(segments[:5, :, 0], np.transpose([low, high]))
    draws = group(result, "posterior")["amplitude"].to_numpy().ravel()
    np.testing.assert_allclose(segments[5, :, 0], np.quantile(draws, [0.05, 0.95]))
    np.testing.assert_array_equal(segments[:, 0, 1], np.arange(6))
    assert len(pmep.plots.plot_forest(result).get_yticklabels()) == 5


def test_marginals_of_hyperparameters_and_their_priors(fitted):
    model, result = fitted
    (axis,) = pmep.plots.plot_hyper(result, model)
    draws = group(result, "posterior")["amplitude"].to_numpy().ravel()
    low, high = np.quantile(draws, [0.002, 0.998])
    expected = np.histogram(draws, 40, range=(low, high), density=True)[0]
    np.testing.assert_allclose([bar.get_height() for bar in axis.patches], expected)
    x, prior = axis.lines[0].get_xdata(), axis.lines[0].get_ydata()
    np.testing.assert_allclose(prior, stats.halfnorm.pdf(x), rtol=1e-6)
    assert axis.get_xlabel() == "amplitude"
    assert [text.get_text() for text in axis.get_legend().texts] == ["posterior", "prior"]
    assert not pmep.plots.plot_hyper(result)[0].lines, "no priors without a model"


def test_hyperparameters_that_are_vectors_or_have_random_priors():
    rng = np.random.default_rng(0)
    with pm.Model(coords={"side": ["left", "right"]}) as model:
        width = pm.Exponential("width", 1.0)
        s = pm.HalfNormal("s", width)
        noise = pm.HalfNormal("noise", [1.0, 2.0], dims="side")
        u = pm.Normal("u", 0.0, s, shape=10)
        pm.Normal("y", u[:, None] + np.zeros((10, 2)), noise, observed=rng.normal(size=(10, 2)))
        result = pmep.fit(hyper="fixed", draws=200, random_seed=0, progressbar=False)
        axes = pmep.plots.plot_hyper(result)
    assert [axis.get_xlabel() for axis in axes] == ["width", "s", "noise[left]", "noise[right]"]
    assert all(axis.lines[0].get_label() == "value" for axis in axes)
    draws = pmep.fit(model=model, draws=0, progressbar=False, hyper="fixed")
    with pytest.raises(ValueError, match="no draws of 'width'"):
        pmep.plots.plot_hyper(draws)
    with pytest.raises(ValueError, match="no draws of 'v'"):
        pmep.plots.plot_hyper(result, model, "v")


def test_convergence_shows_the_integral_and_no_noise(fitted):
    _, result = fitted
    axes = pmep.plots.plot_convergence(result)
    fit = group(result, "fit")
    assert len(axes) == 4 and axes[3].get_xlabel() == "amplitude"
    np.testing.assert_array_equal(axes[3].lines[0].get_xdata(), fit["hyper_point_amplitude"])
    np.testing.assert_allclose(axes[3].lines[0].get_ydata(), fit["hyper_log_density"] - fit["hyper_log_density"].max())
    low, high = axes[0].get_ylim()
    assert high - low >= 0.1 and low < fit["objective"].min() and fit["objective"].max() < high
