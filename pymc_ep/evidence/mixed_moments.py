"""Moments of a mixture, such as one over the hyperparameters, from those of its components."""

from collections.abc import Iterable

import numpy as np

from pymc_ep.contracts.posterior import Moments

__all__ = ["mixed_moments"]


def mixed_moments(parts: Iterable[tuple[float, dict[str, Moments]]]) -> dict[str, Moments]:
    """Return the moments of a mixture from weights and moments of its components, of which one is held at a time."""
    total = 0.0
    means: dict[str, np.ndarray] = {}
    squares: dict[str, np.ndarray] = {}
    for weight, found in parts:
        total += weight
        for name, (mean, sd) in found.items():
            before = means.get(name, np.zeros_like(mean))
            # Squares about the mean so far (West 1979): those about zero would cancel.
            after = before + weight / total * (mean - before)
            means[name] = after
            squares[name] = squares.get(name, np.zeros_like(mean)) + weight * (sd**2 + (mean - before) * (mean - after))
    return {name: Moments(mean, np.sqrt(squares[name] / total)) for name, mean in means.items()}
