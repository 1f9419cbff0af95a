"""What the pictures of images draw, read back from their axes."""

import numpy as np
import pymc as pm
import pytest
import xarray as xr
from matplotlib import pyplot
from scipy import stats

import pymc_ep as pmep
from pymc_ep.compat import group, make_container

ROWS, COLUMNS = 5, 7


@pytest.fixture(autouse=True)
def _closed():
    yield
    pyplot.close("all")


def container(mean, sd=None, dims=("row", "column"), coords=None, **observed):
    moments = {"posterior_mean": mean} | ({} if sd is None else {"posterior_sd": sd})
    groups = {name: xr.Dataset({"u": (dims, values)}, coords=coords) for name, values in moments.items()}
    groups["fit"] = xr.Dataset({"converged": True})
    if observed:
        groups["observed_data"] = xr.Dataset(
            {k: ([f"{k}_{i}" for i in range(np.ndim(v))], v) for k, v in observed.items()}
        )
    return make_container(groups)


@pytest.fixture
def images():
    rng = np.random.default_rng(3)
    return rng.normal(size=(ROWS, COLUMNS)), rng.gamma(2.0, size=(ROWS, COLUMNS))


def shown(axis):
    (image,) = axis.images
    return image


def test_panels_and_their_colours(images):
    mean, sd = images
    truth, counts = mean + 0.5, np.full((ROWS, COLUMNS), 9)
    axes = pmep.plots.plot_image(container(mean, sd, y=counts), "u", truth=truth, data="y", figsize=(12, 2))
    assert [axis.get_title() for axis in axes] == ["truth", "data", "posterior mean", "posterior sd"]
    for axis, image in zip(axes, (truth, counts, mean, sd)):
        np.testing.assert_array_equal(shown(axis).get_array(), image)
    for axis in axes[:3]:
        assert shown(axis).get_clim() == (truth.min(), truth.max()) and shown(axis).get_cmap().name == "gray"
    assert shown(axes[3]).get_clim() == (sd.min(), sd.max()) and shown(axes[3]).get_cmap().name == "viridis"
    figure = axes[0].figure
    np.testing.assert_allclose(figure.get_size_inches(), (12, 2))
    bars = figure.axes[4:]
    # One for the images that share a scale, of which data lie above and the mean below; one for the deviations.
    assert [bar._colorbar.extend for bar in bars] == ["both", "neither"]


def test_what_is_not_there_has_no_panel(images):
    mean, sd = images
    assert [axis.get_title() for axis in pmep.plots.plot_image(container(mean, sd), "u")] == [
        "posterior mean",
        "posterior sd",
    ]
    assert len(pmep.plots.plot_image(container(mean), "u")) == 1
    assert len(pmep.plots.plot_image(container(mean), "u", truth=mean)) == 2
    mode = make_container(
        {"fit": xr.Dataset({"converged": True}), "posterior_mode": xr.Dataset({"u": (("row", "column"), mean)})}
    )
    (axis,) = pmep.plots.plot_image(mode, "u")
    assert axis.get_title() == "posterior mode"


def test_pixels_without_data_are_left_out(images):
    mean, sd = images
    data = np.full((2, 3), np.nan)
    data[1, 1:] = -40.0, 40.0
    axes = pmep.plots.plot_image(container(mean, sd), "u", data=data)
    assert shown(axes[0]).get_clim() == (mean.min(), mean.max())
    assert axes[0].figure.axes[3]._colorbar.extend == "both" and len(axes[0].figure.axes) == 5
    np.testing.assert_array_equal(np.ma.getmaskarray(shown(axes[0]).get_array()), np.isnan(data))
    red, _, blue, _ = axes[0].get_facecolor()
    assert red < blue, "told from any shade of gray"
    assert list(shown(axes[0]).get_extent()) == [-0.5, 2.5, 1.5, -0.5], "pixels of its own"


def test_axes_that_are_given_are_drawn_on(images):
    figure, given = pyplot.subplots(1, 3)
    axes = pmep.plots.plot_image(container(*images), "u", ax=given)
    assert list(axes) == list(given[:2]) and not given[2].images and len(pyplot.get_fignums()) == 1
    with pytest.raises(ValueError, match="ax= holds 1 axes but the plot has 2 panels"):
        pmep.plots.plot_image(container(*images), "u", ax=figure.add_subplot())


@pytest.mark.parametrize(
    ("rows", "columns", "extent"),
    [
        # Left, right, bottom, top: the first row is on top, whichever way its coordinate runs.
        (np.arange(ROWS), np.arange(COLUMNS), [-0.5, 6.5, 4.5, -0.5]),
        (np.linspace(2.0, 0.0, ROWS), 10.0 + 2.0 * np.arange(COLUMNS), [9.0, 23.0, -0.25, 2.25]),
        (np.array([0.0, 1.0, 4.0, 9.0, 16.0]), np.arange(COLUMNS), [-0.5, 6.5, 4.5, -0.5]),
        (list("abcde"), np.arange(COLUMNS), [-0.5, 6.5, 4.5, -0.5]),
    ],
    ids=["positions", "numbers", "uneven", "letters"],
)
def test_axes_are_in_the_coordinates_of_the_variable(images, rows, columns, extent):
    (axis,) = pmep.plots.plot_image(container(images[0], coords={"row": rows, "column": columns}), "u")
    np.testing.assert_allclose(shown(axis).get_extent(), extent)


def test_a_fit_with_dims_and_without():
    counts = np.random.default_rng(0).poisson(3.0, size=(4, 6))
    with pm.Model(coords={"y": [30.0, 20.0, 10.0, 0.0], "x": np.arange(6.0)}) as model:
        u = pmep.SparseField(
            "u", operator=pmep.operators.Gradient2D((4, 6)), potential=pm.Laplace.dist(0, 2.0), dims=("y", "x")
        )
        v = pmep.SparseField("v", operator=pmep.operators.Gradient2D((4, 6)), potential=pm.Laplace.dist(0, 2.0))
        pmep.RectifiedPoisson("counts", u, observed=counts)
        pm.Normal("seen", v, 1.0, observed=counts)
    idata = pmep.fit(model=model, draws=0, progressbar=False, method="ep")
    axes = pmep.plots.plot_image(idata, "u", data="counts")
    np.testing.assert_allclose(shown(axes[0]).get_extent(), [-0.5, 5.5, -5.0, 35.0])
    np.testing.assert_array_equal(shown(axes[0]).get_array(), counts)
    np.testing.assert_allclose(shown(pmep.plots.plot_image(idata, "v")[0]).get_extent(), [-0.5, 5.5, 3.5, -0.5])


@pytest.mark.parametrize(
    ("name", "given", "message"),
    [
        ("v", {}, "no posterior mean of 'v'; variables with this moment: 'u'"),
        ("u", {"truth": np.zeros((2, 2))}, r"truth= has the shape \(2, 2\), but the variable has \(5, 7\)"),
        ("u", {"data": np.zeros(4)}, r"data has the shape \(4,\), and an image has two axes; of observed pixels"),
        ("u", {"data": "flat"}, r"data has the shape \(3,\)"),
        ("u", {"data": "z"}, "data='z' is no observed variable of the container; there are: 'flat'"),
    ],
)
def test_wrong_input_is_named(images, name, given, message):
    with pytest.raises(ValueError, match=message):
        pmep.plots.plot_image(container(*images, flat=np.zeros(3)), name, **given)


def test_a_vector_is_no_image():
    with pytest.raises(ValueError, match=r"u has the shape \(3,\), and an image has two axes"):
        pmep.plots.plot_image(container(np.zeros(3), dims=("element",)), "u")
    with pytest.raises(ValueError, match="there are: none"):
        pmep.plots.plot_image(container(np.zeros((2, 2))), "u", data="y")


def curve(axis):
    line = axis.lines[1]
    return np.asarray(line.get_xdata()), np.asarray(line.get_ydata())


@pytest.mark.parametrize("factor", [1.0, 0.5, 2.0])
def test_coverage_of_intervals_that_are_right_or_not(factor):
    """Errors are Gaussian quantiles, so that the share has a closed form up to one element."""
    n = 2000
    sd = np.linspace(0.5, 3.0, n).reshape(50, 40)
    errors = stats.norm.ppf((np.random.default_rng(1).permutation(n) + 0.5) / n).reshape(50, 40)
    axis = pmep.plots.plot_coverage(container(np.ones((50, 40)), factor * sd), 1.0 + sd * errors, "u")
    level, share = curve(axis)
    np.testing.assert_allclose(share, 2 * stats.norm.cdf(factor * stats.norm.ppf((1 + level) / 2)) - 1, atol=2 / n)
    np.testing.assert_array_equal(axis.lines[0].get_xdata(), axis.lines[0].get_ydata())
    # The band: 95% of binomial shares, which at this many elements are nearly Gaussian.
    middle = np.isclose(level, 0.5)
    corners = axis.collections[0].get_paths()[0].vertices
    heights = corners[np.isclose(corners[:, 0], level[middle][0]), 1]
    half = stats.norm.ppf(0.975) * np.sqrt(0.25 / n)
    np.testing.assert_allclose([heights.min(), heights.max()], [0.5 - half, 0.5 + half], atol=1 / n)


def test_what_is_known_exactly_is_in_all_intervals_or_in_none():
    fit = container(np.zeros(5), np.array([0.0, 0.0, 1.0, 1.0, 1.0]), dims=("k",))
    axis = pmep.plots.plot_coverage(fit, np.array([0.0, 1.0, 0.0, 9.0, np.nan]), "u")
    np.testing.assert_array_equal(curve(axis)[1], 0.5)
    with pytest.raises(ValueError, match="truth= holds no number"):
        pmep.plots.plot_coverage(fit, np.full(5, np.nan), "u")


def test_coverage_on_given_axes_and_wrong_input(images):
    _, given = pyplot.subplots()
    assert pmep.plots.plot_coverage(container(*images), images[0], "u", ax=given) is given
    assert curve(given)[1].min() == 1.0
    with pytest.raises(ValueError, match=r"truth= has the shape \(5,\), but 'u' has \(5, 7\)"):
        pmep.plots.plot_coverage(container(*images), np.zeros(ROWS), "u")
    with pytest.raises(ValueError, match="no posterior sd of 'u'; variables with this moment: none"):
        pmep.plots.plot_coverage(container(images[0]), images[0], "u")


@pytest.mark.parametrize(
    ("options", "objective"),
    [
        ({"method": "ep"}, "log evidence"),
        ({"method": "dsb", "variance": "exact"}, "bound + log prior"),
        ({"method": "dsb", "variance": "perturb-and-map", "tol": 1e-2}, "inner objective + log prior"),
        ({"method": "map"}, "log density"),
    ],
)
def test_convergence_says_what_rises(options, objective):
    data = np.random.default_rng(0).normal(size=(4, 6))
    with pm.Model() as model:
        u = pmep.SparseField("u", operator=pmep.operators.Gradient2D((4, 6)), potential=pm.Laplace.dist(0, 1.0))
        pm.Normal("y", u, 1.0, observed=data)
    idata = pmep.fit(model=model, draws=0, random_seed=1, progressbar=False, **options)
    axes = pmep.plots.plot_convergence(idata)
    assert len(axes) == 2 and axes[0].get_ylabel() == objective and axes[1].get_title() == "converged"
    np.testing.assert_array_equal(axes[0].lines[0].get_ydata(), group(idata, "fit")["objective"])
    if objective.startswith("bound"):
        assert (np.diff(axes[0].lines[0].get_ydata()) >= -1e-9).all()
    (image, *_) = pmep.plots.plot_image(idata, "u")
    assert image.get_title() == ("posterior mode" if options["method"] == "map" else "posterior mean")


def test_one_image_of_a_stack():
    values = np.arange(24.0).reshape(2, 3, 4)
    stack = container(values, dims=("frame", "row", "column"), coords={"frame": ["first", "second"]})
    axes = pmep.plots.plot_image(stack, "u", coords={"frame": "second"})
    np.testing.assert_array_equal(shown(axes[0]).get_array(), values[1])
    with pytest.raises(ValueError, match="coords= has the dim 'frames'"):
        pmep.plots.plot_image(stack, "u", coords={"frames": "second"})
