"""Maps of areas and of fields in the plane: posterior mean and standard deviation."""

from collections.abc import Iterable, Mapping, Sequence
from typing import TYPE_CHECKING, Any

import numpy as np
import xarray as xr
from numpy.typing import ArrayLike

from pymc_ep.compat import Container
from pymc_ep.numerics.meshes import Mesh, coordinates_of
from pymc_ep.plots.axes import axes_for
from pymc_ep.plots.image import moment_of
from pymc_ep.results import require_dims, selected

if TYPE_CHECKING:
    from matplotlib.axes import Axes
    from matplotlib.collections import Collection

__all__ = ["plot_areas", "plot_field"]

_PANEL = (4.2, 3.6)
"""Width and height of one map with its colour bar, in inches."""
_COLOURS = ("viridis", "cividis")
"""Colour maps of mean and standard deviation, legible for readers who cannot tell red from green."""
_MARGIN = 0.04
"""Room around the points of a field, relative to their extent."""


def plot_areas(
    idata: Container,
    var_name: str,
    areas: Any,
    *,
    coords: Mapping[str, Any] | None = None,
    ax: "Axes | Iterable[Axes] | None" = None,
    figsize: Sequence[float] | None = None,
) -> np.ndarray:
    """Colour areas by the posterior mean and standard deviation of a variable.

    Parameters
    ----------
    idata : arviz.InferenceData or xarray.DataTree
        Result of `pymc_ep.fit`.
    var_name : str
        A variable with one value an area.
    areas : GeoDataFrame, or sequence
        The areas in the variable's order. Each is a shape of GeoPandas or Shapely, the corners of a polygon, (m, 2), or
        a list of such polygons.
    coords : mapping, optional
        Labels by dim, which leave one value an area.
    ax : sequence of matplotlib.axes.Axes, optional
        One for the mean and one for the standard deviation.
    figsize : (float, float), optional
        Of a new figure, in inches.

    Returns
    -------
    ndarray of matplotlib.axes.Axes, (2,)

    Raises
    ------
    ValueError
        Where the numbers of areas and of values differ.
    """
    shapes = [_polygons(shape) for shape in getattr(areas, "geometry", areas)]
    moments = _moments(idata, var_name, coords, len(shapes), "areas=", "areas")

    def draw(panel: "Axes", values: np.ndarray, cmap: str) -> "Collection":
        from matplotlib.collections import PathCollection
        from matplotlib.path import Path

        paths = [Path.make_compound_path(*(Path(ring, closed=True) for ring in rings)) for rings in shapes]
        drawn = PathCollection(paths, array=values, cmap=cmap, edgecolors="white", linewidths=0.4)
        panel.add_collection(drawn)
        panel.autoscale_view()
        return drawn

    return _two_maps(moments, var_name, draw, ax, figsize)


def plot_field(
    idata: Container,
    var_name: str,
    mesh: Mesh,
    *,
    points: ArrayLike | None = None,
    show_mesh: bool = False,
    coords: Mapping[str, Any] | None = None,
    ax: "Axes | Iterable[Axes] | None" = None,
    figsize: Sequence[float] | None = None,
) -> np.ndarray:
    """Show the posterior mean and standard deviation of a field on a mesh.

    Parameters
    ----------
    idata : arviz.InferenceData or xarray.DataTree
        Result of `pymc_ep.fit`.
    var_name : str
        A variable with values at the nodes, such as a `pymc_ep.SPDE`.
    mesh : pymc_ep.meshes.Mesh
    points : array_like, (m, 2), optional
        Places of the data. The maps then show the area around them, without the mesh's rim.
    show_mesh : bool
        Whether to draw the edges of the triangles.
    coords : mapping, optional
        Labels by dim, which leave one value a node.
    ax : sequence of matplotlib.axes.Axes, optional
        One for the mean and one for the standard deviation.
    figsize : (float, float), optional
        Of a new figure, in inches.

    Returns
    -------
    ndarray of matplotlib.axes.Axes, (2,)

    Raises
    ------
    ValueError
        Where the numbers of nodes and of values differ.
    """
    moments = _moments(idata, var_name, coords, len(mesh), "mesh=", "nodes")
    at = None if points is None else coordinates_of(points)
    shown = mesh.vertices if at is None else at
    low, high = shown.min(axis=0), shown.max(axis=0)
    room = 0.0 if at is None else _MARGIN * (high - low).max()
    # Colours span what is shown.
    within = ((mesh.vertices >= low - room) & (mesh.vertices <= high + room)).all(axis=1)

    def draw(panel: "Axes", values: np.ndarray, cmap: str) -> "Collection":
        span = values[within] if within.any() else values
        ends: dict[str, Any] = {"vmin": span.min(), "vmax": span.max()}
        x, y = mesh.vertices.T
        drawn = panel.tripcolor(x, y, values, triangles=mesh.triangles, shading="gouraud", cmap=cmap, **ends)
        if show_mesh:
            panel.triplot(x, y, mesh.triangles, color="white", linewidth=0.3, alpha=0.6)
        if at is not None:
            panel.plot(*at.T, color="black", marker=".", markersize=2, linestyle="none", alpha=0.5)
        panel.set(xlim=(low[0] - room, high[0] + room), ylim=(low[1] - room, high[1] + room))
        return drawn

    return _two_maps(moments, var_name, draw, ax, figsize)


def _moments(
    idata: Container, name: str, coords: Mapping[str, Any] | None, count: int, argument: str, what: str
) -> list[np.ndarray]:
    """Return posterior mean and standard deviation of a variable with `count` values, (count,) each."""
    moments: list[xr.DataArray] = [moment_of(idata, name, kind) for kind in ("mean", "sd")]
    require_dims(coords, moments)
    values = [selected(moment, coords, squeeze=True).to_numpy() for moment in moments]
    if values[0].shape != (count,):
        raise ValueError(f"{name!r} has values of shape {values[0].shape}, but {argument} has {count} {what}.")
    return values


def _two_maps(moments: Sequence[np.ndarray], name: str, draw: Any, ax: Any, figsize: Any) -> np.ndarray:
    size = (2 * _PANEL[0], _PANEL[1]) if figsize is None else figsize
    axes = axes_for(2, ax, size, columns=2)
    for panel, values, what, cmap in zip(axes, moments, ("mean", "sd"), _COLOURS):
        drawn = draw(panel, values, cmap)
        panel.set(title=f"{name}, posterior {what}", aspect="equal")
        panel.figure.colorbar(drawn, ax=panel, shrink=0.8)
    return axes


def _polygons(shape: Any) -> list[np.ndarray]:
    """Return the closed rings of an area, (m, 2) each, from a shape of Shapely or arrays of corners."""
    if hasattr(shape, "__geo_interface__"):
        given = shape.__geo_interface__
        polygon_rings = given["coordinates"] if given["type"] == "MultiPolygon" else [given["coordinates"]]
        return [np.asarray(ring, dtype=float)[:, :2] for rings in polygon_rings for ring in rings]
    polygons = shape if isinstance(shape, list) and np.ndim(shape[0]) == 2 else [shape]
    return [coordinates_of(np.concatenate([corners, np.asarray(corners)[:1]])) for corners in polygons]
