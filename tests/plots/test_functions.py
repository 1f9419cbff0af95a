"""Bands, forests and marginals, read back from their axes."""

import numpy as np
import pymc as pm
import pytest
from matplotlib import pyplot
from scipy import stats

import pymc_ep as pmep
from pymc_ep.compat import density_of_draws, group, group_names, make_container, to_dataset

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


def without_draws(result):
    return make_container({name: group(result, name) for name in group_names(result) if name != "posterior"})


def flat(result, name):
    values = group(result, "posterior")[name].to_numpy()
    return values.reshape(-1, *values.shape[2:])


def test_band_of_a_latent_function_with_data(fitted):
    _, result = fitted
    axis = pmep.plots.plot_latent(without_draws(result), "f", data="y", ylabel="log rate per year")
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


def test_bands_are_those_of_many_draws(fitted):
    """A posterior integrated over hyperparameters, or under a skewed likelihood, is no normal."""
    _, result = fitted
    axis = pmep.plots.plot_latent(result, "f")
    draws = flat(result, "f")[:, np.argsort(X)]
    np.testing.assert_allclose(band(axis, 0), np.quantile(draws, [0.05, 0.95], axis=0).T)
    np.testing.assert_allclose(band(axis, 1), np.quantile(draws, [0.25, 0.75], axis=0).T)
    np.testing.assert_allclose(axis.lines[0].get_ydata(), np.median(draws, axis=0))


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
    with pytest.raises(ValueError, match="neither draws nor moments of 'nothing'"):
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
    with pytest.raises(ValueError, match="neither draws nor moments of 'f', but of 'y'"):
        pmep.plots.plot_latent(found, "f")


def segments(axis, k=0):
    """Ends of the intervals that one call of `hlines` drew, and where they stand."""
    found = np.array(axis.collections[k].get_segments())
    return found[:, :, 0], found[:, 0, 1]


def test_forest_of_moments_and_draws(fitted):
    _, result = fitted
    axis = pmep.plots.plot_forest(result, ["f", "amplitude"])
    labels = [label.get_text() for label in axis.get_yticklabels()]
    assert labels == ["f[0]", "f[0.5]", "f[1.5]", "f[1]", "f[3]", "amplitude"]
    ends, at = segments(axis)
    draws = np.column_stack([flat(result, "f"), flat(result, "amplitude")])
    np.testing.assert_allclose(ends, np.quantile(draws, [0.05, 0.95], axis=0).T)
    np.testing.assert_array_equal(at, np.arange(6))
    assert len(pmep.plots.plot_forest(result).get_yticklabels()) == 5
    axis = pmep.plots.plot_forest(without_draws(result), "f", ax=pyplot.figure().add_subplot())
    mean, sd = result["posterior_mean"]["f"], result["posterior_sd"]["f"]
    np.testing.assert_allclose(segments(axis)[0], np.transpose(stats.norm(mean, sd).interval(0.9)))


def test_intervals_as_arviz_names_them(fitted):
    _, result = fitted
    draws = np.sort(flat(result, "f"), axis=0)
    axis = pmep.plots.plot_forest(result, "f", ci_probs=(0.8,))
    np.testing.assert_allclose(segments(axis)[0], np.quantile(draws, [0.1, 0.9], axis=0).T)
    assert [text.get_text() for text in axis.get_legend().texts] == ["80%", "median"]
    narrowest = pmep.plots.plot_forest(result, "f", ci_probs=(0.8,), ci_kind="hdi", ax=pyplot.figure().add_subplot())
    widths = draws[6400:] - draws[:1600]
    np.testing.assert_allclose(np.diff(segments(narrowest)[0])[:, 0], widths.min(axis=0))
    older = pmep.plots.plot_forest(result, "f", hdi_prob=0.8, ax=pyplot.figure().add_subplot())
    np.testing.assert_array_equal(segments(older)[0], segments(narrowest)[0])
    np.testing.assert_allclose(np.diff(segments(older, 1)[0])[:, 0], (draws[4000:] - draws[:4000]).min(axis=0))
    band_80 = pmep.plots.plot_latent(result, "f", ci_probs=0.8, ax=pyplot.figure().add_subplot())
    np.testing.assert_allclose(band(band_80, 0), np.quantile(draws[:, np.argsort(X)], [0.1, 0.9], axis=0).T)
    for wrong, match in (
        ({"ci_probs": (0.5, 90)}, r"ci_probs=\(0.5, 90\) must be probabilities"),
        ({"ci_kind": "qi"}, "ci_kind='qi' must be"),
        ({"ci_probs": 0.5, "hdi_prob": 0.9}, "hdi_prob= is ArviZ 0.x's name"),
    ):
        with pytest.raises(ValueError, match=match):
            pmep.plots.plot_forest(result, **wrong)
    with pytest.raises(ValueError, match="keeps equal tails"):
        pmep.plots.plot_latent(result, "f", transform=np.exp, ci_kind="hdi")


def test_elements_as_arviz_selects_them(fitted):
    model, result = fitted
    names = [
        label.get_text() for label in pmep.plots.plot_forest(result, coords={"year": [3.0, 0.5]}).get_yticklabels()
    ]
    assert names == ["f[3]", "f[0.5]"]
    found = pmep.plots.plot_forest(result, "amp", filter_vars="like", ax=pyplot.figure().add_subplot())
    assert [label.get_text() for label in found.get_yticklabels()] == ["amplitude"]
    rest = pmep.plots.plot_forest(result, ["~rate", "~f"], ax=pyplot.figure().add_subplot())
    assert [label.get_text() for label in rest.get_yticklabels()] == ["amplitude"]
    part = pmep.plots.plot_latent(result, "f", coords={"year": slice(0.0, 1.5)}, ax=pyplot.figure().add_subplot())
    np.testing.assert_array_equal(part.lines[0].get_xdata(), [0.0, 0.5, 1.5])
    axes = pmep.plots.plot_hyper(result, model, "^(f|amp)", filter_vars="regex", coords={"year": 1.5})
    assert [axis.get_xlabel() for axis in axes] == ["amplitude", "f[1.5]"]
    with pytest.raises(ValueError, match=r"coords= asks for 9\.0, which is no label of 'year'"):
        pmep.plots.plot_forest(result, coords={"year": [0.5, 9.0]})
    with pytest.raises(ValueError, match=r"coords= has the dim 'years'.* Did you mean 'year'"):
        pmep.plots.plot_forest(result, coords={"years": [0.5]})
    with pytest.raises(ValueError, match="filter_vars='glob' must be one of"):
        pmep.plots.plot_forest(result, "f", filter_vars="glob")
    table = pmep.compare_to_mcmc(result, result, "amp|f", filter_vars="regex", coords={"year": 1.0})
    assert list(table.index) == ["amplitude", "f[1.0]"]
    np.testing.assert_allclose(table.loc["f[1.0]", "mean_mcmc"], flat(result, "f")[:, 3].mean())


def test_several_fits_side_by_side(fitted):
    """A fit, chains of other rows, which have no moments, and predictions."""
    model, result = fitted
    rng = np.random.default_rng(0)
    values = {"f": rng.normal(5.0, 1.0, size=(2, 50, 2)), "amplitude": rng.normal(size=(2, 50))}
    years = {"year": np.array([3.0, 7.0])}
    chains = make_container(
        {"posterior": to_dataset(values, coords=years, dims={"f": ["year"]}, sample_dims=("chain", "draw"))}
    )
    axis = pmep.plots.plot_forest({"EP": result, "NUTS": chains})
    assert [label.get_text() for label in axis.get_yticklabels()] == [
        "f[0]",
        "f[0.5]",
        "f[1.5]",
        "f[1]",
        "f[3]",
        "f[7]",
    ]
    assert [text.get_text() for text in axis.get_legend().texts] == ["EP", "NUTS"]
    (_, at), (others, below) = segments(axis), segments(axis, 2)
    np.testing.assert_allclose(others, np.quantile(values["f"].reshape(-1, 2), [0.05, 0.95], axis=0).T)
    np.testing.assert_allclose(at, np.arange(5) - 0.175)
    np.testing.assert_allclose(below, [4.175, 5.175])
    bands = pmep.plots.plot_latent([result, chains], "f", model_names=["EP", "NUTS"], ax=pyplot.figure().add_subplot())
    assert [line.get_label() for line in bands.lines] == ["EP", "NUTS"]
    np.testing.assert_array_equal(bands.lines[1].get_xdata(), [3.0, 7.0])
    (marginal,) = pmep.plots.plot_hyper([result, chains], model, ax=pyplot.figure().add_subplot())
    assert [text.get_text() for text in marginal.get_legend().texts] == ["fit 1", "fit 2", "prior"]
    with pytest.raises(ValueError, match="model_names= has 1 names, and there are 2 fits"):
        pmep.plots.plot_forest([result, chains], model_names=["EP"])


def test_marginals_of_hyperparameters_and_their_priors(fitted):
    model, result = fitted
    (axis,) = pmep.plots.plot_hyper(result, model)
    draws = flat(result, "amplitude")
    at, expected = density_of_draws(draws)
    np.testing.assert_array_equal(axis.lines[0].get_xdata(), at)
    np.testing.assert_array_equal(axis.lines[0].get_ydata(), expected)
    np.testing.assert_allclose(axis.get_xlim(), np.quantile(draws, [0.002, 0.998]), atol=0.1)
    x, prior = axis.lines[1].get_xdata(), axis.lines[1].get_ydata()
    np.testing.assert_allclose(prior, stats.halfnorm.pdf(x), rtol=1e-6)
    assert axis.get_xlabel() == "amplitude"
    assert [text.get_text() for text in axis.get_legend().texts] == ["posterior", "prior"]
    assert len(pmep.plots.plot_hyper(result)[0].lines) == 1, "no priors without a model"


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
    with pytest.raises(ValueError, match="neither draws nor moments of 'v'"):
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
