"""Meshes: points in triangles and cells, integrals of linear functions, their shape, and what is refused."""

import numpy as np
import pytest
import shapely
from scipy.spatial import Delaunay

import pymc_ep as pmep
from pymc_ep.exceptions import InvalidDataError

RNG = np.random.default_rng(0)
POINTS = RNG.uniform(0, 1, (300, 2)) * [1.0, 0.7]
MESH = pmep.meshes.around(POINTS, longest=0.05)
SQUARE = np.array([[0.0, 0.0], [1.0, 0.0], [1.0, 1.0], [0.0, 1.0]])
WINDOW = np.array([[0.1, 0.1], [0.9, 0.1], [0.9, 0.5], [0.5, 0.2], [0.1, 0.5]])
"""Not convex, of area 0.2."""


def test_linear_functions_are_their_values_at_points():
    nodes, weights = MESH.locate(POINTS)
    np.testing.assert_allclose(weights.sum(axis=1), 1.0, rtol=1e-12)
    assert weights.min() >= -1e-9
    np.testing.assert_allclose(np.einsum("ij,ijk->ik", weights, MESH.vertices[nodes]), POINTS, atol=1e-12)


def test_each_point_is_in_the_triangle_that_scipy_finds():
    """Of a mesh of very different triangles, in which near centres are those of others."""
    nodes = np.concatenate([RNG.uniform(0, 1, (30, 2)), 0.01 * RNG.standard_normal((400, 2)) + 0.5])
    found = Delaunay(nodes)
    mesh = pmep.meshes.Mesh(nodes, found.simplices)
    at = RNG.uniform(0.2, 0.8, (500, 2))
    corners, _ = mesh.locate(at)
    np.testing.assert_array_equal(np.sort(corners), np.sort(found.simplices[found.find_simplex(at)]))


def test_integrals_are_exact_for_linear_functions():
    """Those of the function x, and of the squared gradient of x + 2 y."""
    corner = MESH.vertices[MESH.triangles]
    a, b = corner[:, 1] - corner[:, 0], corner[:, 2] - corner[:, 0]
    area = 0.5 * np.abs(a[:, 0] * b[:, 1] - a[:, 1] * b[:, 0])
    np.testing.assert_allclose(MESH.areas.sum(), area.sum(), rtol=1e-12)
    np.testing.assert_allclose(MESH.areas @ MESH.vertices[:, 0], area @ corner[:, :, 0].mean(axis=1), rtol=1e-12)
    f = MESH.vertices @ [1.0, 2.0]
    np.testing.assert_allclose(f @ (MESH.stiffness @ f), 5.0 * area.sum(), rtol=1e-10)
    np.testing.assert_allclose(MESH.stiffness @ np.ones(len(MESH)), 0.0, atol=1e-10)


def test_triangles_are_even_within_and_coarse_without():
    edges = np.linalg.norm(
        MESH.vertices[MESH.triangles] - np.roll(MESH.vertices[MESH.triangles], 1, axis=1), axis=2
    ).max(axis=1)
    centre = MESH.vertices[MESH.triangles].mean(axis=1)
    within = np.all((centre > [0.05, 0.05]) & (centre < [0.95, 0.65]), axis=1)
    assert edges[within].max() < 1.01 * 0.05 and edges.max() > 2 * 0.05
    assert np.abs(MESH.vertices - 0.5).max() > 0.5 + 0.3
    finer = pmep.meshes.around(POINTS, longest=0.025)
    assert 3 * len(MESH) < len(finer) < 4 * len(MESH)


def test_areas_of_polygons_are_meshed_by_their_corners():
    class Frame:
        """As GeoPandas has it."""

        def get_coordinates(self):
            return POINTS

    assert len(pmep.meshes.around(Frame(), longest=0.05)) == len(MESH)


def test_areas_within_a_window_add_up_to_its_area():
    """Of a polygon that is not convex, of two with a hole, and of all triangles."""
    within = MESH.areas_within(WINDOW)
    np.testing.assert_allclose(within.sum(), 0.2, rtol=1e-12)
    assert np.all(within <= MESH.areas * (1 + 1e-12)) and np.any((within > 0) & (within < 0.9 * MESH.areas))
    ring, square = shapely.Polygon(WINDOW, [[0.2, 0.15] + 0.02 * SQUARE]), shapely.box(0.4, 0.5, 0.6, 0.6)
    several = shapely.union_all([ring, square])
    assert several.geom_type == "MultiPolygon"
    np.testing.assert_allclose(MESH.areas_within(several).sum(), 0.2 - 0.0004 + 0.02, rtol=1e-12)
    whole = shapely.union_all(shapely.polygons(MESH.vertices[MESH.triangles]))
    np.testing.assert_allclose(MESH.areas_within(whole), MESH.areas, rtol=1e-9)


def test_points_are_counted_in_cells_of_these_areas():
    at = RNG.uniform(0.1, 0.6, (100_000, 2))
    counts = MESH.counts(at)
    expected = MESH.areas_within(0.1 + 0.5 * SQUARE) / 0.25 * len(at)
    assert counts.sum() == len(at) and not counts[expected == 0].any()
    seen = expected > 5
    assert np.mean((counts - expected)[seen] ** 2 / expected[seen]) == pytest.approx(1.0, abs=0.3)


@pytest.mark.parametrize(
    ("window", "message"),
    [
        (9 * SQUARE, "98.* of the window is outside of the mesh; make the mesh around the window's corners"),
        (SQUARE[[0, 2, 1, 3]], "The window is no polygon: Self-intersection"),
        (SQUARE[:2], "The window is no polygon: its area is zero. Give its corners in order"),
    ],
)
def test_windows_that_are_none(window, message):
    with pytest.raises(InvalidDataError, match=message):
        MESH.areas_within(window)


@pytest.mark.parametrize(
    ("vertices", "triangles", "message"),
    [
        (SQUARE, [[0, 1, 2], [2, 1, 0]], r"the triangle 1, \(2, 1, 0\), which has the corners of another one"),
        (SQUARE, [[0, 1, 2], [0, 1, 7]], "the triangle 1, .*, which has a vertex beyond the 4 there are"),
        (
            np.concatenate([SQUARE, [[0.5, 0.0]]]),
            [[0, 1, 2], [0, 2, 3], [0, 4, 1]],
            "the triangle 2, .*, which is flat, its corners on one line",
        ),
        (SQUARE, [[0, 1, 2]], r"the vertex 3, \(0, 1\), which is of no triangle"),
        (
            np.concatenate([SQUARE, SQUARE[:1]]),
            [[0, 1, 2], [4, 2, 3]],
            "the vertex 4, .*, which is at the place of another one",
        ),
        (np.where(SQUARE > 0.5, np.nan, 0.0), [[0, 1, 2]], r"Point 1 is \(nan, 0\), which is not finite"),
        (SQUARE, [[0, 1]], r"Triangles have the shape \(1, 2\)"),
        (SQUARE[:, :1], [[0, 1, 2]], r"Points have the shape \(4, 1\), and are rows of two coordinates"),
    ],
)
def test_wrong_triangles_are_named(vertices, triangles, message):
    with pytest.raises(InvalidDataError, match=message):
        pmep.meshes.Mesh(vertices, triangles)


def test_points_outside_are_named():
    at = np.concatenate([POINTS[:3], [[9.0, 9.0]], [[-7.0, 0.0]]])
    with pytest.raises(InvalidDataError, match=r"Point 3, \(9, 9\), is outside of the mesh \(of 2 such points\)"):
        MESH.locate(at)


def test_what_has_no_mesh_is_named():
    line = np.stack([np.arange(5.0), np.arange(5.0)], axis=1)
    for points, many in ((line, 5), (POINTS[:2], 2), (np.repeat(POINTS[:1], 9, axis=0), 1)):
        with pytest.raises(InvalidDataError, match=f"three points that are on no line, and got {many} different ones"):
            pmep.meshes.around(points, longest=0.1, rim=1.0)
    with pytest.raises(InvalidDataError, match="longest=0 of a mesh is a length"):
        pmep.meshes.around(POINTS, longest=0)
