"""The axes that all plots draw on."""

from collections.abc import Iterable, Sequence
from typing import TYPE_CHECKING, Any

import numpy as np

if TYPE_CHECKING:
    from matplotlib.axes import Axes

__all__ = ["axes_for", "draw_density"]

_PANEL = (4.5, 3.2)
"""Width and height of one panel, in inches."""


def axes_for(
    count: int, ax: "Axes | Iterable[Axes] | None", figsize: Sequence[float] | None, *, columns: int = 3
) -> np.ndarray:
    """Return `count` Matplotlib axes, (count,): the given ones, or a new figure's.

    Parameters
    ----------
    count : int
    ax : matplotlib.axes.Axes or sequence of them, optional
        At least `count` axes.
    figsize : (float, float), optional
        Of a new figure, in inches.
    columns : int
        Largest number of panels side by side.

    Raises
    ------
    ImportError
        Without Matplotlib; the message tells how to install it.
    ValueError
        For too few axes.
    """
    if ax is not None:
        given = np.atleast_1d(np.asarray(ax, dtype=object)).ravel()
        if len(given) < count:
            raise ValueError(f"ax= holds {len(given)} axes but the plot has {count} panels; pass so many.")
        return given[:count]
    try:
        from matplotlib import pyplot
    except ImportError as error:
        raise ImportError("The plots need Matplotlib; install it with: pip install 'pymc-ep[plots]'") from error
    across = min(count, columns)
    down = -(-count // across)
    size = (_PANEL[0] * across, _PANEL[1] * down) if figsize is None else tuple(figsize)
    _, grid = pyplot.subplots(down, across, figsize=size, squeeze=False, layout="constrained")
    for unused in grid.ravel()[count:]:
        unused.remove()
    return grid.ravel()[:count]


def draw_density(panel: "Axes", at: np.ndarray, density: np.ndarray, **style: Any) -> None:
    """Draw a line of `density` over `at`; for an empty density, a vertical line at the single value ``at[0]``."""
    if density.size:
        panel.plot(at, density, **style)
    else:
        panel.axvline(at[0], **style)
