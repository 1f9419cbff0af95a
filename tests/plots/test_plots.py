"""What the plots draw, read back from their axes."""

import sys

import numpy as np
import pymc as pm
import pytest
from matplotlib import pyplot
from scipy import stats

import pymc_ep as pmep
from pymc_ep.compat import group, make_container, to_dataset
from pymc_ep.diagnostics import loo_pit

COUNTS = np.array([2, 0, 1, 8, 13, 3, 0, 1, 2])


@pytest.fixture(autouse=True)
def _closed():
    yield
    pyplot.close("all")


@pytest.fixture(scope="module")
def poisson():
    x = np.linspace(0.0, 3.0, 9)
    with pm.Model() as model:
        amplitude = pm.HalfNormal("amplitude", 1.0)
        kernel = np.exp(-0.5 * np.subtract.outer(x, x) ** 2) + 1e-6 * np.eye(9)
        f = pm.MvNormal("f", np.full(9, 0.3), amplitude**2 * kernel)
        pm.Poisson("y", pm.math.exp(f), observed=COUNTS)
    return model, pmep.fit(model=model, hyper="optimize", draws=300, random_seed=2, progressbar=False)


def line_data(axis, k=0):
    return np.asarray(axis.lines[k].get_xdata(), dtype=float), np.asarray(axis.lines[k].get_ydata(), dtype=float)


def chains_near(result, name, seed=0):
    noise = np.random.default_rng(seed).normal(size=(4, 500, *result["posterior_mean"][name].shape))
    draws = {name: result["posterior_mean"][name].to_numpy() + 1.2 * result["posterior_sd"][name].to_numpy() * noise}
    return make_container({"posterior": to_dataset(draws, coords={}, dims={}, sample_dims=("chain", "draw"))})


def test_convergence_shows_the_traces(poisson):
    _, result = poisson
    axes = pmep.plots.plot_convergence(result, figsize=(9, 3))
    fit = group(result, "fit")
    assert len(axes) == 3
    for axis, name in zip(axes, ("objective", "max_change", "hyper_objective")):
        x, y = line_data(axis)
        np.testing.assert_array_equal(y, fit[name])
        np.testing.assert_array_equal(x, np.arange(1, len(y) + 1))
    assert axes[1].get_yscale() == "log" and axes[1].get_title() == "converged"
    np.testing.assert_array_equal(line_data(axes[1], 1)[1], 1e-8)
    np.testing.assert_allclose(axes[0].figure.get_size_inches(), (9, 3))


def test_convergence_at_fixed_hyperparameters_has_two_panels(poisson):
    model, _ = poisson
    with pytest.warns(pmep.ConvergenceWarning):
        early = pmep.fit(model=model, hyper="fixed", max_iter=1, draws=0, progressbar=False)
    axes = pmep.plots.plot_convergence(early)
    assert len(axes) == 2 and axes[1].get_title() == "not converged"


def test_axes_that_are_given_are_drawn_on(poisson):
    _, result = poisson
    figure, given = pyplot.subplots(2, 2)
    axes = pmep.plots.plot_convergence(result, ax=given)
    assert list(axes) == list(given.ravel()[:3]) and len(pyplot.get_fignums()) == 1
    assert not given[1, 1].lines
    with pytest.raises(ValueError, match="ax= holds 1 axes but the plot has 3 panels"):
        pmep.plots.plot_convergence(result, ax=figure.add_subplot())


def test_densities_of_fit_and_chains(poisson):
    """The line is the density of the fit's draws, the bars that of the chains, which are wider."""
    _, result = poisson
    axes = pmep.plots.plot_compare(result, chains_near(result, "f"))
    assert [axis.get_title() for axis in axes] == [f"f[{k}]" for k in range(9)]
    for axis, mean, sd in zip(axes, result["posterior_mean"]["f"].to_numpy(), result["posterior_sd"]["f"].to_numpy()):
        x, y = line_data(axis)
        np.testing.assert_allclose(y, stats.norm.pdf(x, mean, sd), atol=0.12 / sd)
        bars = [(bar.get_x() + bar.get_width() / 2, bar.get_width() * bar.get_height()) for bar in axis.patches]
        centre, mass = np.array(bars).T
        np.testing.assert_allclose(mass.sum(), 1.0, rtol=1e-9)
        np.testing.assert_allclose(np.sqrt(mass @ centre**2 - (mass @ centre) ** 2), 1.2 * sd, rtol=0.06)


def test_without_draws_the_density_is_normal(poisson):
    model, result = poisson
    moments = pmep.fit(model=model, draws=0, progressbar=False)
    axes = pmep.plots.plot_compare(moments, chains_near(result, "f"))
    x, y = line_data(axes[3])
    np.testing.assert_allclose(
        y, stats.norm.pdf(x, moments["posterior_mean"]["f"][3], moments["posterior_sd"]["f"][3]), rtol=1e-9
    )


def test_many_elements_become_two_scatters(poisson):
    _, result = poisson
    chains = chains_near(result, "f")
    axes = pmep.plots.plot_compare(result, chains, kind="scatter")
    table = pmep.compare_to_mcmc(result, chains)
    for axis, column in zip(axes, ("mean", "sd")):
        x, y = line_data(axis)
        np.testing.assert_array_equal(x, table[f"{column}_mcmc"])
        np.testing.assert_array_equal(y, table[column])
        low, high = axis.collections[0].get_segments()[0][:, 0]
        np.testing.assert_allclose(high - low, 8 * table[f"{column}_mcse"].iloc[0] * table["sd_mcmc"].iloc[0])
    with pytest.raises(ValueError, match="kind='violin' must be"):
        pmep.plots.plot_compare(result, chains, kind="violin")


def test_the_number_of_elements_chooses_the_kind():
    with pm.Model() as model:
        pm.Poisson("y", pm.math.exp(pm.Normal("f", 0.0, 1.0, shape=13)), observed=np.arange(13))
    result = pmep.fit(model=model, hyper="optimize", draws=30, progressbar=False)
    assert len(pmep.plots.plot_compare(result, chains_near(result, "f"))) == 2


def test_diagnosis_shows_sites_and_weights(poisson):
    model, result = poisson
    found = pmep.diagnose(result, model)
    sites, weights = pmep.plots.plot_diagnose(found)
    np.testing.assert_array_equal(line_data(sites)[1], found["y_non_gaussianity"])
    worst = int(found["y_non_gaussianity"].to_numpy().argmax())
    assert sites.texts[0].get_text() == f"y[{worst}]"
    assert sites.texts[0].xy == (worst, float(found["y_non_gaussianity"].max()))
    assert sum(bar.get_height() for bar in weights.patches) == found["log_weight"].size
    relative = found["log_weight"].to_numpy().ravel()
    relative = relative - np.log(np.mean(np.exp(relative)))
    edges = [weights.patches[0].get_x(), weights.patches[-1].get_x() + weights.patches[-1].get_width()]
    # Whatever is lower is counted at the lowest weight of the axis.
    np.testing.assert_allclose(edges, [max(relative.min(), -100.0), relative.max()], rtol=1e-9)
    assert f"{float(found['pareto_k']):.2f}" in weights.get_title()


def test_diagnosis_without_weights_has_one_panel(monkeypatch):
    with pm.Model() as model:
        f = pm.MvNormal("f", np.zeros(6), pm.HalfNormal("amp", 1) * (np.eye(6) + 0.5))
        pm.Poisson("y", pm.math.exp(f), observed=[0, 1, 3, 9, 30, 2])
    monkeypatch.setattr("pymc_ep.diagnostics.report._BUDGET", 1.0)
    found = pmep.diagnose(pmep.fit(model=model, draws=0, progressbar=False), model)
    assert "log_weight" not in found
    assert len(pmep.plots.plot_diagnose(found)) == 1


def test_calibration_of_counts_spreads_their_intervals(poisson):
    model, result = poisson
    axis = pmep.plots.plot_calibration(result, model, bins=5)
    found = loo_pit(result, model)
    lower, upper = found["y_lower"].to_numpy(), found["y_upper"].to_numpy()
    spread = np.random.default_rng(0).uniform(lower, upper, size=(200_000, 9))
    expected = np.histogram(spread, np.linspace(0, 1, 6))[0] / spread.size
    heights = [bar.get_height() for bar in axis.patches[:5]]
    np.testing.assert_allclose(heights, expected, atol=2e-3)
    np.testing.assert_allclose(sum(heights), 1.0, rtol=1e-12)


@pytest.mark.parametrize(("noise", "shape"), [(1.0, "flat"), (0.4, "cup"), (3.0, "cap")])
def test_calibration_tells_wrong_noise(noise, shape):
    """Observations with unit noise about a known mean, under models with other noise."""
    y = np.random.default_rng(1).normal(size=400)
    with pm.Model() as model:
        pm.Normal("y", 1e-3 * pm.Normal("f", 0.0, 1.0, shape=400), noise, observed=y)
    axis = pmep.plots.plot_calibration(pmep.fit(model=model, draws=0, progressbar=False), model)
    heights = np.array([bar.get_height() for bar in axis.patches[:10]])
    expected = np.diff(stats.norm.cdf(noise * stats.norm.ppf(np.linspace(0, 1, 11))))
    np.testing.assert_allclose(heights, expected, atol=4 * np.sqrt(expected.max() / 400))
    middle, ends = heights[4:6].sum(), heights[[0, -1]].sum()
    assert {"flat": abs(middle - ends) < 0.1, "cup": ends > 2 * middle, "cap": middle > 2 * ends}[shape]


def test_reliability_of_zeros_and_ones():
    rng = np.random.default_rng(2)
    group_of = np.repeat(np.arange(6), 40)
    with pm.Model() as model:
        f = pm.Normal("f", 0.0, 2.0, shape=6)
        y = rng.binomial(1, np.linspace(0.05, 0.95, 6)[group_of])
        pm.Bernoulli("y", logit_p=f[group_of], observed=y)
    result = pmep.fit(model=model, draws=0, progressbar=False)
    axis = pmep.plots.plot_calibration(result, model, bins=5)
    found = loo_pit(result, model)
    probability = np.where(y == 1, 1 - found["y_lower"], 1 - found["y_upper"])
    points = np.array([[line.get_xdata()[0], line.get_ydata()[0]] for line in axis.lines if line.get_marker() == "o"])
    which = np.minimum((probability * 5).astype(int), 4)
    expected = [[probability[which == k].mean(), y[which == k].mean()] for k in np.unique(which)]
    np.testing.assert_allclose(points, expected, rtol=1e-6)


def test_without_matplotlib_the_message_says_what_to_install(poisson, monkeypatch):
    monkeypatch.setitem(sys.modules, "matplotlib", None)
    with pytest.raises(ImportError, match=r"pip install 'pymc-ep\[plots\]'"):
        pmep.plots.plot_convergence(poisson[1])
