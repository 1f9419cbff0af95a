"""One update of the weights by the events of a window, in JAX: see `pymc_ep.models.sequences.engine.update.updated`."""

from functools import partial

import jax
import jax.numpy as jnp
import numpy as np

from pymc_ep.models.sequences.engine.rules import RULES, stepped
from pymc_ep.models.sequences.engine.update import Settings, Shares, Updated
from pymc_ep.models.sequences.engine.values import Learned, Moments, Priors
from pymc_ep.models.sequences.kernel import Weights, Window
from pymc_ep.models.sequences.kernel.jax import Grid, grid_gradient, grid_of
from pymc_ep.numerics.backend.namespace_jax import require_float64

__all__ = ["updated_jax"]


def updated_jax(
    learned: Learned,
    window: Window,
    first: np.ndarray,
    kept: np.ndarray | None,
    priors: Priors,
    shares: Shares,
    most: int,
    settings: Settings,
    batch: int,
) -> Updated:
    """Return the same as `updated`, for arrays of JAX; `batch` is the number of times of a full window."""
    require_float64()
    outputs = learned.weights.outputs
    grid = grid_of(window, batch, len(first), len(outputs), kept, outputs.dtype)
    return Updated(*_updated(learned, grid, first, priors, shares, most, settings))


@partial(jax.jit, static_argnames="settings")
def _updated(
    learned: Learned,
    grid: Grid,
    first: jax.Array,
    priors: Priors,
    shares: Shares,
    most: int,
    settings: Settings,
) -> tuple[jax.Array, jax.Array, Learned, jax.Array]:
    weights, moments = learned
    total, last, gradient = grid_gradient(weights, grid, first)
    of_priors = (prior.pull(table, share) for prior, table, share in zip(priors, weights, shares))
    scaled = [(g + of_prior) / most for g, of_prior in zip(gradient, of_priors)]
    norm = jnp.sqrt(sum(jnp.vdot(g, g) for g in scaled))
    finite = jnp.isfinite(total) & jnp.isfinite(norm)
    # g min(1, clip / |g|), with |g| over all tables.
    shrink = jnp.minimum(1.0, settings.clip / jnp.where(norm > 0, norm, 1.0))
    steps = [
        stepped(RULES[settings.optimizer], settings.learning_rate, table, shrink * g, table_moments)
        for table, g, table_moments in zip(weights, scaled, moments)
    ]
    # Only rows with an event in the window move.
    moved = [finite & (jnp.broadcast_to(share, len(table)) > 0) for share, table in zip(shares, weights)]
    tables = Weights(*(_where(rows, after, table) for rows, (after, _), table in zip(moved, steps, weights)))
    changed = [
        Moments(*(_where(rows, new, old) if len(old) else old for new, old in zip(after, table_moments)))
        for rows, (_, after), table_moments in zip(moved, steps, moments)
    ]
    return total, last, Learned(tables, tuple(changed)), finite


def _where(rows: jax.Array, after: jax.Array, before: jax.Array) -> jax.Array:
    return jnp.where(rows.reshape(-1, *[1] * (before.ndim - 1)), after, before)
