"""Triangulations of the plane, on which fields are piecewise linear: their matrices, and points in them."""

from functools import cached_property
from typing import Any

import numpy as np
import scipy
import scipy.sparse

from pymc_ep.exceptions import InvalidDataError

__all__ = ["Mesh", "around"]

_FLAT = 1e-4
"""Area of a triangle, relative to the square of its longest edge, below which it is flat: two long edges then meet at
less than 0.0115 degrees."""
_COLLAR, _GROWTH = 1.5, 2.0
"""Width, in edges, of the collar of equilateral triangles beyond the points' hull, and ratio of a ring's edges to the
next inner ring's.

With ten edges in the range of a field, its variances at nodes within the hull are then between 1 and 4.5% too large,
and 4.5% far within. With a collar of half an edge, and ratios of 1.25 to 2, they are 3% too small to 7% too large."""
_TILT = np.sqrt(0.75)
"""Height of an equilateral triangle, relative to its edge."""
_INSIDE = 1e-9
"""Largest modulus of a negative barycentric coordinate that counts as rounding: the point is then in the triangle."""
_BEYOND = 1e-9
"""Largest share of a window's area outside of a mesh that counts as rounding."""
_CANDIDATES = 4
"""Number of triangles, of the nearest centres, that are tried first for a point; then four times as many, and so on."""


class Mesh:
    """A triangulation of a region of the plane. Fields have values at its nodes, and are linear in each triangle.

    Parameters
    ----------
    vertices : array_like, (n, 2)
        Coordinates of the nodes, in units of length: project longitudes and latitudes first.
    triangles : array_like of int, (m, 3)
        Indices of the three nodes at the corners of each triangle, such as the attribute ``simplices`` of
        `scipy.spatial.Delaunay`.

    Raises
    ------
    InvalidDataError
        For a vertex that is not finite, equal to another one or in no triangle, and for a triangle that is flat,
        repeated or has an index outside 0, ..., n - 1. The message gives the index of the first such vertex or
        triangle.
    """

    def __init__(self, vertices: Any, triangles: Any):
        self.vertices, self.triangles = np.asarray(vertices, dtype=float), np.asarray(triangles, dtype=np.int64)
        _require(self.vertices, self.triangles)

    def __len__(self) -> int:
        """Return the number of nodes, n."""
        return len(self.vertices)

    @cached_property
    def areas(self) -> np.ndarray:
        """Area of each node, (n,): a third of the area of its triangles. Areas are the weights of integrals."""
        # A third of a triangle's area |(b - a) x (c - a)| / 2.
        triangle_areas = _doubled_areas(self.vertices, self.triangles) / 6.0
        return np.bincount(self.triangles.ravel(), np.repeat(triangle_areas, 3), minlength=len(self))

    @cached_property
    def stiffness(self) -> scipy.sparse.csr_array:
        """Integrals, (n, n), of products of the gradients of basis functions.

        The basis function of a node is one there, zero at all other nodes, and linear in each triangle.
        """
        corner = self.vertices[self.triangles]
        # Gradient i is the opposite edge e_i, turned by 90 degrees, over 2 A: the integral over A is e_i^T e_j / (4 A).
        edge = np.roll(corner, -1, axis=1) - np.roll(corner, 1, axis=1)
        scale = 2.0 * _doubled_areas(self.vertices, self.triangles)
        products = np.einsum("tid,tjd->tij", edge, edge) / scale[:, None, None]
        rows, columns = np.repeat(self.triangles, 3, axis=1), np.tile(self.triangles, 3)
        return scipy.sparse.csr_array((products.ravel(), (rows.ravel(), columns.ravel())), shape=(len(self),) * 2)

    @property
    def edge(self) -> float:
        """Median length of the triangles' edges."""
        corner = self.vertices[self.triangles]
        return float(np.median(np.linalg.norm(corner - np.roll(corner, 1, axis=1), axis=2)))

    @property
    def extent(self) -> float:
        """Largest side of the box around the nodes."""
        return float(np.ptp(self.vertices, axis=0).max())

    def locate(self, points: Any) -> tuple[np.ndarray, np.ndarray]:
        """Return the triangle that each of `points`, (m, 2), is in, and the point's barycentric coordinates, (m, 3).

        A triangle is given by the indices of its nodes, (m, 3).

        Raises
        ------
        InvalidDataError
            For points that are not finite or outside of the mesh; the message names the first.
        """
        points = coordinates_of(points)
        inside = np.zeros(len(points), dtype=bool)
        corners, coordinates = np.zeros((len(points), 3), np.int64), np.zeros((len(points), 3))
        count = min(_CANDIDATES, len(self.triangles))
        left = np.arange(len(points))
        while left.size:
            _, near = self._centres.query(points[left], k=count)
            near = near.reshape(len(left), -1)
            best, weights = self._best(points[left], near)
            good = weights.min(axis=1) >= -_INSIDE
            inside[left[good]] = True
            corners[left[good]], coordinates[left[good]] = self.triangles[best[good]], weights[good]
            if count == len(self.triangles):
                break
            left, count = left[~good], min(4 * count, len(self.triangles))
        if not inside.all():
            first = int(np.flatnonzero(~inside)[0])
            low, high = self.vertices.min(axis=0), self.vertices.max(axis=0)
            raise InvalidDataError(
                f"Point {first}, {_written(points[first])}, is outside of the mesh (of {(~inside).sum()} such points), "
                f"whose nodes are between {_written(low)} and {_written(high)}. Make the mesh around all points, or "
                f"leave it out."
            )
        return corners, coordinates

    def counts(self, points: Any) -> np.ndarray:
        """Return the numbers, (n,), of `points`, (m, 2), in the cells of all nodes.

        The cell of a node is where the barycentric coordinate of that node is the largest; it has the node's area.

        Raises
        ------
        InvalidDataError
            For points that are not finite or outside of the mesh; the message names the first.
        """
        corners, weights = self.locate(points)
        return np.bincount(corners[np.arange(len(corners)), weights.argmax(axis=1)], minlength=len(self))

    def areas_within(self, window: Any) -> np.ndarray:
        """Return the areas, (n,), of the parts of all nodes' cells that lie within a window.

        They are the exposures of `counts` of points that were observed in the window only.

        Parameters
        ----------
        window : array_like, (k, 2), or geometry of Shapely or GeoPandas
            Corners of a polygon in order; or polygons as geometry, which may have holes.

        Raises
        ------
        InvalidDataError
            For a window that crosses itself, has no area or reaches beyond the mesh.
        ImportError
            Without Shapely.
        """
        shapely = _shapely()
        polygon = _window(window)
        corner = self.vertices[self.triangles]
        centre = corner.mean(axis=1)
        cells = [
            [corner[:, k], corner[:, [k, k - 2]].mean(axis=1), centre, corner[:, [k, k - 1]].mean(axis=1)]
            for k in range(3)
        ]
        # A quadrilateral of each corner of each triangle, (3, m).
        quadrilaterals = shapely.polygons(np.moveaxis(np.array(cells), 1, 2))
        shapely.prepare(polygon)
        area = np.where(shapely.covers(polygon, quadrilaterals), shapely.area(quadrilaterals), 0.0)
        crossed = shapely.intersects(polygon, quadrilaterals) & (area == 0.0)
        area[crossed] = shapely.area(shapely.intersection(quadrilaterals[crossed], polygon))
        if area.sum() < (1.0 - _BEYOND) * polygon.area:
            raise InvalidDataError(
                f"{1.0 - area.sum() / polygon.area:.1%} of the window is outside of the mesh; make the mesh around the "
                f"window's corners."
            )
        return np.bincount(self.triangles.T.ravel(), area.ravel(), minlength=len(self))

    @cached_property
    def _centres(self) -> Any:
        return scipy.spatial.cKDTree(self.vertices[self.triangles].mean(axis=1))

    def _best(self, points: np.ndarray, near: np.ndarray) -> tuple[np.ndarray, np.ndarray]:
        """Return one of the triangles `near`, (m, k), for each point, and the point's coordinates in it, (m, 3).

        It is the triangle, (m,), in which the least barycentric coordinate of the point is the largest.
        """
        a, b, c = np.moveaxis(self.vertices[self.triangles[near]], 2, 0)
        at = points[:, None]
        # The coordinate of a is the signed area of (at, b, c) over the signed area of (a, b, c); b and c in turn.
        area = _cross(b - a, c - a)
        weights = np.stack([_cross(b - at, c - at), _cross(c - at, a - at), _cross(a - at, b - at)], axis=-1)
        weights = weights / area[..., None]
        place = weights.min(axis=2).argmax(axis=1)
        row = np.arange(len(points))
        return near[row, place], weights[row, place]


def around(points: Any, *, longest: float, rim: float | None = None) -> Mesh:
    """Return a mesh around points: fine, even triangles over their convex hull, and coarser ones in a rim around it.

    A field has a larger variance at the boundary of its mesh; the rim keeps the boundary away from the points.

    Parameters
    ----------
    points : array_like, (m, 2), or GeoDataFrame
        Coordinates in units of length, or points and polygons of GeoPandas. The fine triangles cover their convex hull.
    longest : float
        Edge of the fine triangles: an eighth of the range of a field, or less.
    rim : float, optional
        Width of the rim; by default a third of the points' extent. It should be as wide as the field's range.

    Raises
    ------
    InvalidDataError
        For fewer than three different points, points on one line, and lengths that are not positive.
    """
    points = np.unique(coordinates_of(points), axis=0)
    extent = float(np.ptp(points, axis=0).max()) if len(points) else 0.0
    rim = extent / 3.0 if rim is None else rim
    for name, length in (("longest", longest), ("rim", rim)):
        if not 0.0 < length < np.inf:
            raise InvalidDataError(f"{name}={length} of a mesh is a length in units of the coordinates, above zero.")
    try:
        hull = points[scipy.spatial.ConvexHull(points).vertices]
    except (scipy.spatial.QhullError, ValueError):
        raise InvalidDataError(
            f"A mesh needs three points that are on no line, and got {len(points)} different ones; give the corners of "
            f"the area too."
        ) from None
    inner, layers = _COLLAR * longest, [_lattice(hull, longest)]
    distance, edge = inner + _TILT * longest, longest
    while True:
        layers.append(_ring(hull, min(distance, rim + inner), edge))
        if distance >= rim + inner:
            break
        edge *= _GROWTH
        distance += _TILT * edge
    nodes = np.concatenate(layers)
    triangles = scipy.spatial.Delaunay(nodes).simplices
    triangles = triangles[_doubled_areas(nodes, triangles) > 2.0 * _FLAT * _longest_squared(nodes, triangles)]
    used, triangles = np.unique(triangles, return_inverse=True)
    return Mesh(nodes[used], triangles.reshape(-1, 3))


def coordinates_of(points: Any) -> np.ndarray:
    """Return coordinates, (m, 2), of an array or of the points and corners of a GeoDataFrame."""
    given = points.get_coordinates() if hasattr(points, "get_coordinates") else points
    coordinates = np.asarray(given, dtype=float)
    if coordinates.ndim != 2 or coordinates.shape[1] != 2:
        raise InvalidDataError(f"Points have the shape {coordinates.shape}, and are rows of two coordinates, (m, 2).")
    if (wrong := ~np.isfinite(coordinates).all(axis=1)).any():
        first = int(np.flatnonzero(wrong)[0])
        raise InvalidDataError(
            f"Point {first} is {_written(coordinates[first])}, which is not finite; correct or remove it."
        )
    return coordinates


def _shapely() -> Any:
    try:
        import shapely
    except ImportError as error:
        raise ImportError("Areas within a window need Shapely; install it with: pip install 'pymc-ep[maps]'") from error
    return shapely


def _window(window: Any) -> Any:
    """Return a window as a valid geometry of Shapely with an area; raise InvalidDataError if there is none."""
    shapely = _shapely()
    if hasattr(window, "union_all"):
        window = window.union_all()
    if isinstance(window, shapely.Geometry):
        polygon = window
    else:
        corners = coordinates_of(window)
        polygon = shapely.Polygon(corners if len(corners) > 2 else None)
    if polygon.is_valid and polygon.area > 0.0:
        return polygon
    why = shapely.is_valid_reason(polygon) if not polygon.is_valid else "its area is zero"
    raise InvalidDataError(f"The window is no polygon: {why}. Give its corners in order, or polygons of Shapely.")


def _require(vertices: np.ndarray, triangles: np.ndarray) -> None:
    coordinates_of(vertices)
    if triangles.ndim != 2 or triangles.shape[1] != 3:
        raise InvalidDataError(f"Triangles have the shape {triangles.shape}, and are rows of three vertices, (m, 3).")
    n = len(vertices)
    for wrong, what in (
        (((triangles < 0) | (triangles >= n)).any(axis=1), f"has a vertex beyond the {n} there are"),
        (_repeats(np.sort(triangles, axis=1)), "has the corners of another one"),
    ):
        _raise_first(triangles, wrong, "triangle", what)
    flat = _doubled_areas(vertices, triangles) <= 2.0 * _FLAT * _longest_squared(vertices, triangles)
    _raise_first(triangles, flat, "triangle", "is flat, its corners on one line")
    _raise_first(vertices, _repeats(vertices), "vertex", "is at the place of another one")
    _raise_first(vertices, np.bincount(triangles.ravel(), minlength=n) == 0, "vertex", "is of no triangle")


def _raise_first(rows: np.ndarray, wrong: Any, kind: str, what: str) -> None:
    if wrong.any():
        first = int(np.flatnonzero(wrong)[0])
        raise InvalidDataError(
            f"A mesh has the {kind} {first}, {_written(rows[first])}, which {what} (of {int(wrong.sum())} such); "
            f"remove it, or make a mesh by pymc_ep.meshes.around."
        )


def _repeats(rows: np.ndarray) -> np.ndarray:
    """Whether each row is equal to an earlier one."""
    out = np.ones(len(rows), dtype=bool)
    out[np.unique(rows, axis=0, return_index=True)[1]] = False
    return out


def _written(values: np.ndarray) -> str:
    return f"({', '.join(f'{value:.6g}' for value in values)})"


def _cross(a: np.ndarray, b: np.ndarray) -> np.ndarray:
    return a[..., 0] * b[..., 1] - a[..., 1] * b[..., 0]


def _doubled_areas(vertices: np.ndarray, triangles: np.ndarray) -> np.ndarray:
    a, b, c = np.moveaxis(vertices[triangles], 1, 0)
    return np.abs(_cross(b - a, c - a))


def _longest_squared(vertices: np.ndarray, triangles: np.ndarray) -> np.ndarray:
    corner = vertices[triangles]
    return ((corner - np.roll(corner, 1, axis=1)) ** 2).sum(axis=2).max(axis=1)


def _lattice(hull: np.ndarray, edge: float) -> np.ndarray:
    """Return the nodes, (k, 2), of equilateral triangles over a convex polygon and the collar around it."""
    beyond = (_COLLAR + 1.0) * edge
    low, high = hull.min(axis=0) - beyond, hull.max(axis=0) + beyond
    across, up = (np.arange(int(np.ceil((high[k] - low[k]) / (edge * step))) + 1) for k, step in ((0, 1.0), (1, _TILT)))
    # Rows are sqrt(3) / 2 edges apart, every other one shifted by half an edge.
    x = low[0] + edge * (across + 0.5 * (up[:, None] % 2))
    y = np.broadcast_to(low[1] + edge * _TILT * up[:, None], x.shape)
    nodes = np.stack([x.ravel(), y.ravel()], axis=1)
    return nodes[_beyond(hull, nodes) <= _COLLAR * edge]


def _beyond(hull: np.ndarray, points: np.ndarray) -> np.ndarray:
    """Return how far each point is outside of a convex polygon, (m,): negative inside.

    It is the largest of the point's signed distances from the lines through the polygon's sides.
    """
    side = np.roll(hull, -1, axis=0) - hull
    # The hull is counterclockwise: (dy, -dx) points outwards from a side (dx, dy).
    normal = np.stack([side[:, 1], -side[:, 0]], axis=1) / np.linalg.norm(side, axis=1)[:, None]
    out = np.full(len(points), -np.inf)
    for corner, outward in zip(hull, normal):
        np.maximum(out, (points - corner) @ outward, out=out)
    return out


def _ring(hull: np.ndarray, distance: float, edge: float) -> np.ndarray:
    """Return nodes, (k, 2), on the curve at `distance` around a convex polygon, about `edge` apart."""
    side = np.roll(hull, -1, axis=0) - hull
    # Angles of the outward normals (dy, -dx): sides are moved along these and joined by arcs of angle `turn`.
    angle = np.arctan2(-side[:, 0], side[:, 1])
    turn = np.mod(np.roll(angle, -1) - angle, 2.0 * np.pi)
    path: list[np.ndarray] = []
    for k in range(len(hull)):
        outward = angle[k] + turn[k] * np.linspace(0.0, 1.0, 2 + int(8 * turn[k]))
        corner = np.roll(hull, -1, axis=0)[k]
        path += [hull[k] + distance * np.array([np.cos(angle[k]), np.sin(angle[k])])]
        path += list(corner + distance * np.stack([np.cos(outward), np.sin(outward)], axis=1))
    closed = np.array([*path, path[0]])
    length = np.concatenate([[0.0], np.cumsum(np.linalg.norm(np.diff(closed, axis=0), axis=1))])
    places = np.linspace(0.0, length[-1], max(8, round(length[-1] / edge)), endpoint=False)
    return np.stack([np.interp(places, length, closed[:, k]) for k in range(2)], axis=1)
