"""Pictures of bilinear models, read back from their axes."""

import numpy as np
import pymc as pm
import pytest
from matplotlib import pyplot

import pymc_ep as pmep
from pymc_ep.compat import group

QUIET = {"draws": 0, "progressbar": False}


@pytest.fixture(autouse=True)
def _closed():
    yield
    pyplot.close("all")


@pytest.fixture(scope="module")
def fitted():
    rng = np.random.default_rng(2)
    rows, cols = (part.ravel() for part in np.indices((15, 10)))
    f = 1.2 * rng.normal(size=15)[rows] * rng.normal(size=10)[cols]
    with pm.Model(coords={"item": range(15), "user": range(10), "factor": ["a", "b", "c"]}) as model:
        V, U = pm.Normal("V", 0, [1.0, 0.1, 1.0], dims=("item", "factor")), pm.Normal("U", dims=("user", "factor"))
        b = pm.Normal("b", dims="item")
        pmep.BilinearPoisson("y", V, U, rows, cols, offset=b[rows], observed=rng.poisson(np.exp(f)))
        return model, pmep.fit(**QUIET)


def test_relevance_is_the_size_of_products(fitted):
    _, idata = fitted
    panel = pmep.plots.plot_relevance(idata, figsize=(4, 3))
    outlined, full = (np.array([bar.get_height() for bar in container]) for container in panel.containers)
    V, U = (idata["posterior_mean"][name].to_numpy() for name in "VU")
    products = V[:, None] * U
    expected = np.sqrt((products**2).mean(axis=(0, 1)))
    np.testing.assert_allclose(full, np.sort(expected)[::-1])
    assert full[0] > 0.5 and full[-1] < 0.1
    # By draws of the posterior.
    rng = np.random.default_rng(0)
    V, U = (
        idata["posterior_mean"][name].to_numpy()
        + idata["posterior_sd"][name].to_numpy() * rng.normal(size=(4000, n, 3))
        for name, n in (("V", 15), ("U", 10))
    )
    drawn = np.sqrt(np.einsum("sid,sjd->d", V**2, U**2) / (4000 * 150))
    order = np.argsort(-expected)
    np.testing.assert_allclose(outlined, drawn[order], rtol=0.02)
    assert [label.get_text() for label in panel.get_xticklabels()] == [["a", "b", "c"][k] for k in order]
    assert panel.get_xlabel() == "factor" and panel.get_title() == "factors of V and U"
    np.testing.assert_allclose(panel.figure.get_size_inches(), (4, 3))
    given = pyplot.figure().add_subplot()
    assert pmep.plots.plot_relevance(idata, ax=given) is given


def test_relevance_of_other_models():
    with pm.Model():
        pm.Normal("y", pm.Normal("m", shape=2), 1, observed=[0.5, 1.0])
        idata = pmep.fit(**QUIET)
    with pytest.raises(pmep.UnsupportedModelError, match="two matrices of factors, but this is one of 'm'"):
        pmep.plots.plot_relevance(idata)


def test_convergence_shows_the_bound(fitted):
    _, idata = fitted
    fit = group(idata, "fit")
    axes = pmep.plots.plot_convergence(idata)
    assert len(axes) == 2
    for axis, name in zip(axes, ("objective", "max_change")):
        np.testing.assert_array_equal(axis.lines[0].get_ydata(), fit[name])
    assert axes[0].get_ylabel() == "bound + log prior" and axes[0].get_title() == "VG"
    assert axes[1].get_ylabel() == "rise of the bound, a cell" and axes[1].get_title() == "converged"
    np.testing.assert_array_equal(axes[1].lines[1].get_ydata(), 1e-6)
    axes[0].figure.canvas.draw()


def test_convergence_of_points_shows_their_density(fitted):
    model, _ = fitted
    for estimate, label in ((["V", "U", "b"], "log density + log prior"), (["V", "b"], "bound + log prior")):
        axes = pmep.plots.plot_convergence(pmep.fit(model=model, estimate=estimate, **QUIET))
        assert axes[0].get_ylabel() == label


def test_calibration_of_new_cells(fitted):
    model, idata = fitted
    new = {"rows": np.arange(15), "cols": np.arange(15) % 10, "observed": np.arange(15) // 2, "offset": 0.3}
    panel = pmep.plots.plot_calibration(idata, model, data={"y": new}, bins=4)
    found = pmep.diagnostics.predictive_pit(idata, model, {"y": new})
    spread = np.random.default_rng(0).uniform(found["y_lower"], found["y_upper"], size=(100_000, 15))
    shares = np.histogram(spread, np.linspace(0, 1, 5))[0] / spread.size
    np.testing.assert_allclose([bar.get_height() for bar in panel.patches[:4]], shares, atol=2e-3)
    assert panel.get_xlabel() == "predictive probability integral transform"
