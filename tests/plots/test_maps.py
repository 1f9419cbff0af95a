"""What maps of areas and of fields draw, read back from their axes."""

import numpy as np
import pytest
import xarray as xr
from matplotlib import pyplot

import pymc_ep as pmep
from pymc_ep.compat import make_container

SQUARE = np.array([[0.0, 0.0], [1.0, 0.0], [1.0, 1.0], [0.0, 1.0]])
AREAS = [SQUARE + np.array([k, 0.0]) for k in range(3)]
POINTS = np.random.default_rng(0).uniform(0, 1, (40, 2))
MESH = pmep.meshes.around(POINTS, longest=0.2)


@pytest.fixture(autouse=True)
def _closed():
    yield
    pyplot.close("all")


def container(count, shape=()):
    rng = np.random.default_rng(1)
    dims = ["year", "node"][-len(shape) - 1 :]
    groups = {
        f"posterior_{what}": xr.Dataset({"x": (dims, rng.gamma(2.0, size=(*shape, count)))}) for what in ("mean", "sd")
    }
    return make_container(groups | {"fit": xr.Dataset({"converged": True})})


def moments(idata):
    return [np.asarray(idata[f"posterior_{what}"]["x"]) for what in ("mean", "sd")]


class Shape:
    """A shape as GeoPandas and Shapely have it."""

    def __init__(self, *parts):
        polygons = [[[*map(tuple, part), tuple(part[0])]] for part in parts]
        one = len(parts) == 1
        self.__geo_interface__ = {
            "type": "Polygon" if one else "MultiPolygon",
            "coordinates": polygons[0] if one else polygons,
        }


class Frame:
    geometry = (Shape(AREAS[0]), Shape(AREAS[1], AREAS[1] + 5.0), Shape(AREAS[2]))


@pytest.mark.parametrize("areas", [AREAS, [AREAS[0], [AREAS[1], AREAS[1] + 5.0], AREAS[2]], Frame()])
def test_areas_have_the_colours_of_their_values(areas):
    idata = container(3)
    axes = pmep.plots.plot_areas(idata, "x", areas, figsize=(7, 3))
    assert [axis.get_title() for axis in axes] == ["x, posterior mean", "x, posterior sd"]
    for axis, values in zip(axes, moments(idata)):
        (drawn,) = axis.collections
        np.testing.assert_array_equal(drawn.get_array(), values)
        assert axis.get_aspect() == 1.0
        np.testing.assert_allclose(drawn.get_paths()[0].get_extents().bounds, (0, 0, 1, 1))
        assert axis.get_xlim()[0] <= 0 and axis.get_xlim()[1] >= 3
    np.testing.assert_allclose(axes[0].figure.get_size_inches(), (7, 3))


def test_fields_have_the_values_of_their_nodes():
    idata = container(len(MESH))
    axes = pmep.plots.plot_field(idata, "x", MESH, points=POINTS, show_mesh=True)
    for axis, values in zip(axes, moments(idata)):
        drawn = axis.collections[0]
        np.testing.assert_array_equal(drawn.get_array(), values)
        assert axis.get_xlim()[0] > MESH.vertices[:, 0].min()
        (*_, points) = axis.lines
        np.testing.assert_array_equal(points.get_xydata(), POINTS)
    given = pyplot.figure().subplots(1, 2)
    whole = pmep.plots.plot_field(idata, "x", MESH, ax=given)
    assert list(whole) == list(given)
    np.testing.assert_allclose(whole[0].get_xlim(), (MESH.vertices[:, 0].min(), MESH.vertices[:, 0].max()))


def test_coords_leave_one_map():
    idata = container(3, (2,))
    (axis, _) = pmep.plots.plot_areas(idata, "x", AREAS, coords={"year": 1})
    np.testing.assert_array_equal(axis.collections[0].get_array(), moments(idata)[0][1])


def test_other_numbers_of_values_are_told():
    with pytest.raises(ValueError, match=r"'x' has values of shape \(3,\), but areas= has 2 areas"):
        pmep.plots.plot_areas(container(3), "x", AREAS[:2])
    with pytest.raises(ValueError, match=rf"'x' has values of shape \(3,\), but mesh= has {len(MESH)} nodes"):
        pmep.plots.plot_field(container(3), "x", MESH)
    with pytest.raises(ValueError, match="has no posterior mean of 'z'"):
        pmep.plots.plot_areas(container(3), "z", AREAS)
