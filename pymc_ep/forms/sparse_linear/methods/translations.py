"""Fits on translated grids of wavelets: their average, and what a result keeps of them."""

from collections.abc import Callable, Mapping, Sequence
from typing import Any

import numpy as np
from scipy.special import logsumexp

from pymc_ep.engines.base import Status
from pymc_ep.forms.sparse_linear.posterior_average import PosteriorAverage, translations_of

__all__ = ["averaged_evidence", "averaged_status", "grid_state", "rebuild_average"]

_GRID = "grid_"
"""What is put before the names of what the state holds of each translated grid."""


def averaged_evidence(values: Sequence[float]) -> float:
    """Return the log evidence of the equal mixture, from that on each grid."""
    return float(logsumexp(values) - np.log(len(values)))


def averaged_status(first: Status, others: Sequence[Status]) -> Status:
    """Say how the fits ended, that on the model's own grid and those on the others."""
    failed = sum(not other.converged for other in others)
    sentence = f"{first.sentence}; averaged over {len(others) + 1} translations of the wavelets' grid"
    if failed:
        sentence += f", of which {failed} did not converge"
    return Status(first.converged and not failed, sentence)


def grid_state(states: Sequence[Mapping[str, np.ndarray]]) -> dict[str, np.ndarray]:
    """Return the arrays of the fits on all grids but the first, stacked under names of their own."""
    return {_GRID + name: np.array([state[name] for state in states]) for name in (states[0] if states else ())}


def rebuild_average(
    form: Any, state: Mapping[str, np.ndarray], rebuild_one: Callable[[Any, Mapping[str, np.ndarray]], Any]
) -> Any:
    """Return the posterior of a saved state: an average where it holds more grids than the form's own."""
    grids = {name.removeprefix(_GRID): value for name, value in state.items() if name.startswith(_GRID)}
    own = {name: value for name, value in state.items() if not name.startswith(_GRID)}
    parts = [rebuild_one(form, own)]
    if not grids:
        return parts[0]
    count = len(next(iter(grids.values())))
    for k, moved in enumerate(translations_of(form, count + 1)):
        parts.append(rebuild_one(moved, own | {name: value[k] for name, value in grids.items()}))
    return PosteriorAverage(parts)
