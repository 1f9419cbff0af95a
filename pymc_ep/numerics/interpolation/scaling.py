"""Centre and scale of points, by which their coordinates become comparable."""

import numpy as np

__all__ = ["centre_and_scale"]


def centre_and_scale(points: np.ndarray) -> tuple[np.ndarray, np.ndarray]:
    """Return means and standard deviations of the columns, (p,) each; a column that is constant has a scale of 1."""
    spread = points.std(axis=0)
    return points.mean(axis=0), np.where(spread > 0, spread, 1.0)
