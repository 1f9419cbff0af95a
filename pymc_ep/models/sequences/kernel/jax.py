"""JAX body of recurrent networks: gradients of windows on a grid of times and users.

The Ops of PyTensor graphs run the NumPy body on the host, as JAX cannot trace sequences whose lengths it does not know.
"""

from collections.abc import Callable
from functools import partial
from typing import Any, NamedTuple

import jax
import jax.numpy as jnp
import numpy as np
from jax import lax
from pytensor.link.jax.dispatch import jax_funcify

from pymc_ep.models.sequences.kernel.blocks_jax import summed_blocks
from pymc_ep.models.sequences.kernel.body import BLOCK, Weights, Window
from pymc_ep.models.sequences.kernel.candidates import Candidates
from pymc_ep.models.sequences.kernel.op import WEIGHTS, SequenceGradient, SequenceLogp
from pymc_ep.models.sequences.kernel.past import Past

__all__ = ["Grid", "grid_gradient", "grid_of", "grid_total"]

DEVICE_BLOCK = 2**25
"""Largest number of logits of a block on an accelerator, 128 MiB in single precision; small blocks leave it idle."""


class Grid(NamedTuple):
    """Events of a window in a grid of T times and P users, some of which count in the sum of log probabilities.

    Arrays of the events that count are padded to the length m >= T P.

    Attributes
    ----------
    items : ndarray of int, (T, P)
        Item of each event, zero for places without an event.
    there : ndarray of bool, (T, P)
        Whether a place has an event.
    kept : ndarray, (T, P, D) or ()
        Dropout factors of the states; 1 without dropout.
    places : ndarray of int, (m,)
        Index of each event that counts in the ravelled grid.
    valid : ndarray, (m,)
        1 for events that count, 0 for padding.
    log_shares : ndarray, (m, K)
        Logarithms of the share of each event's item in the K memories of its user.
    listed : ndarray of int, (P, M)
        Distinct items of each user in the order of first events, as columns of the softmax, padded by the number of
        columns.
    counts : ndarray of int, (m,)
        Number of the user's items, the first in `listed`, that are known before each event.
    following : ndarray of int, (T, P), optional
        For each event, the context of its user's next event.
    candidates : Candidates, optional
        Items that the softmax sums over, padded by items whose factor is zero; by default all.
    """

    items: np.ndarray
    there: np.ndarray
    kept: np.ndarray
    places: np.ndarray
    valid: np.ndarray
    log_shares: np.ndarray
    listed: np.ndarray
    counts: np.ndarray
    following: np.ndarray | None
    candidates: Candidates | None


def grid_of(
    window: Window,
    n_times: int,
    n_users: int,
    n_items: int,
    kept: np.ndarray | None,
    dtype: np.dtype,
    counted: np.ndarray | slice = slice(None),
) -> Grid:
    """Return the grid of a window.

    Parameters
    ----------
    window : Window
    n_times, n_users : int
        T and P, at least the numbers of times and users of any window.
    n_items : int
    kept : ndarray, (n, D), optional
        Dropout factors of the states.
    dtype : numpy.dtype
    counted : ndarray of bool, (n,), optional
        Events that count; by default all.
    """
    times = np.repeat(np.arange(len(window.counts)), window.counts)
    there, items = np.zeros((n_times, n_users), dtype=bool), np.zeros((n_times, n_users), dtype=np.int32)
    there[times, window.users], items[times, window.users] = True, window.items
    factors = np.ones((), dtype=dtype)
    if kept is not None:
        factors = np.zeros((n_times, n_users, kept.shape[1]), dtype=dtype)
        factors[times, window.users] = kept
    # A power of two, which blocks of events divide, and the same for all windows.
    m = 1 << (n_times * n_users - 1).bit_length()
    places, valid, candidates = np.zeros(m, dtype=np.int32), np.zeros(m, dtype=dtype), window.candidates
    counted_places = (times * n_users + window.users)[counted]
    places[: len(counted_places)], valid[: len(counted_places)] = counted_places, 1.0
    assert window.past is not None, "predictions need the past of the events"
    log_shares, counts = np.zeros((m, window.past.log_shares.shape[1]), dtype=dtype), np.zeros(m, dtype=np.int32)
    past, n_columns = window.past, n_items
    if candidates is not None:
        past = past.among(candidates.places(n_items))
        candidates = _padded(
            candidates._replace(targets=candidates.targets[counted]), n_times * n_users, n_items, m, dtype
        )
        n_columns = len(candidates.items)
    log_shares[: len(counted_places)], counts[: len(counted_places)] = past.log_shares[counted], past.counts[counted]
    following = None
    if window.following is not None:
        following = np.zeros_like(items)
        following[times, window.users] = window.following
    listed = _listed(past, window.users, n_users, n_columns)
    return Grid(items, there, factors, places, valid, log_shares, listed, counts, following, candidates)


def _listed(past: Past, users: np.ndarray, n_users: int, n_columns: int) -> np.ndarray:
    """Return `Grid.listed`, (P, M): items that each user had before its last event, given each event's user, (n,)."""
    n_known, column = np.zeros(n_users, dtype=np.int64), np.arange(past.most)
    np.maximum.at(n_known, users, past.counts)
    begins = np.zeros(n_users, dtype=np.int64)
    begins[users] = past.begins
    there = column < n_known[:, None]
    listed = np.full(there.shape, n_columns, dtype=np.int32)
    listed[there] = past.listed[(begins[:, None] + column)[there]]
    return listed


def _padded(candidates: Candidates, n_events: int, n_items: int, m: int, dtype: np.dtype) -> Candidates:
    """Return candidates padded to the largest number for a window of `n_events` events, and targets padded to m."""
    n, n_drawn = len(candidates.items), int((candidates.offsets > 0).sum())
    more = max(0, min(n_items, n_events + n_drawn) - n)
    offsets = np.pad(candidates.offsets.astype(dtype), (0, more), constant_values=-np.inf)
    places = np.pad(candidates.targets, (0, m - len(candidates.targets)))
    return Candidates(np.pad(candidates.items, (0, more)), offsets, places)


def grid_gradient(weights: Weights, grid: Grid, first: jax.Array) -> tuple[jax.Array, jax.Array, Weights]:
    """Return the sum of the log probabilities of a window, the states after it, (P, D), and the gradient of the sum.

    `weights` have the recurrent matrices of the P users, or one set. Gradients in matrices, inputs and biases are sums
    of the gradient before the nonlinearities, (T, P, G, D). The sums are taken once, after the loop over times, as the
    loop would otherwise add to whole tables at each time.
    """
    recurrent, inputs, *tables, bias = weights
    total = jax.value_and_grad(_total, argnums=(0, 1), has_aux=True)
    (value, (last, seen)), (inner, of_tables) = total(_given(weights, grid), tables, recurrent, grid, first)
    # dR = sum_t da_t x_t^T, with x = r h for the candidate and h for the other gates.
    subscripts = "gde" if len(recurrent) == 1 else "ngde"
    gate_slices = (slice(1), slice(1, None))
    of_recurrent = jnp.concatenate(
        [jnp.einsum(f"tngd,tne->{subscripts}", inner[:, :, gates], h) for gates, h in zip(gate_slices, seen)], axis=-3
    )
    of_inputs = jnp.zeros_like(inputs).at[grid.items].add(inner)
    contexts = jnp.zeros_like(grid.items) if grid.following is None else grid.following
    of_bias = jnp.zeros_like(bias)
    if len(bias):
        of_bias = of_bias.at[contexts].add(inner)
    of_outputs, of_memory, of_known = of_tables
    of_recurrent = of_recurrent.reshape(recurrent.shape)
    return value, last, Weights(of_recurrent, of_inputs, of_outputs, of_memory, of_known, of_bias)


def grid_total(weights: Weights, grid: Grid, first: jax.Array) -> tuple[jax.Array, jax.Array]:
    """Return the sum of the log probabilities of the events that count, and the states after the window, (P, D)."""
    tables = [weights.outputs, weights.memory, weights.known]
    value, (last, _) = _total(_given(weights, grid), tables, weights.recurrent, grid, first)
    return value, last


def _given(weights: Weights, grid: Grid) -> jax.Array:
    """Return the terms that items and contexts add to the products of matrices and states, (T, P, G, D)."""
    x = weights.inputs[grid.items]
    return x + weights.bias[0 if grid.following is None else grid.following] if len(weights.bias) else x


def _total(
    x: jax.Array, tables: list[jax.Array], recurrent: jax.Array, grid: Grid, first: jax.Array
) -> tuple[jax.Array, tuple[jax.Array, tuple[jax.Array, jax.Array]]]:
    """Return the sum of log probabilities, last states, and the vectors that the matrices multiply, (T, P, D).

    The vectors are two arrays: for the candidate, and for the other gates.
    """

    def step(h: jax.Array, event: tuple[jax.Array, jax.Array]) -> tuple[jax.Array, tuple[jax.Array, jax.Array]]:
        inputs, there = event
        after, reset = _cell(recurrent, inputs, h)
        return jnp.where(there[:, None], after, h), (reset, h)

    last, (reset, states) = lax.scan(step, first, (x, grid.there))
    seen = (states * grid.kept).reshape(-1, first.shape[1])[grid.places]
    return _log_softmax(tables, seen, grid), (last, (reset, states))


def _cell(recurrent: jax.Array, x: jax.Array, h: jax.Array) -> tuple[jax.Array, jax.Array]:
    """Return the states after `h`, and the vectors that the candidate's matrices multiply, (P, D) each.

    The terms of items and contexts are `x`, (P, G, D).
    """
    if x.shape[1] == 1:
        return jnp.tanh(x[:, 0] + _products(recurrent, h)[:, 0]), h
    # (1 - w) h + w c with c = tanh(x_c + R_c (r h)).
    gates = jax.nn.sigmoid(x[:, 1:] + _products(recurrent[:, 1:], h))
    w, r = gates[:, 0], gates[:, 1]
    reset = r * h
    return h + w * (jnp.tanh(x[:, 0] + _products(recurrent[:, :1], reset)[:, 0]) - h), reset


def _products(matrices: jax.Array, h: jax.Array) -> jax.Array:
    shared = len(matrices) == 1
    return jnp.einsum("gde,ne->ngd" if shared else "ngde,ne->ngd", matrices[0] if shared else matrices, h)


def _log_softmax(tables: list[jax.Array], states: jax.Array, grid: Grid) -> jax.Array:
    """Return the sum of log probabilities of the events that count, over the blocks that have such events."""
    outputs, memory, known = tables
    items, n_items = grid.items.ravel()[grid.places], len(outputs)
    offsets = jnp.zeros((), states.dtype)
    if grid.candidates is not None:
        outputs, offsets, items = outputs[grid.candidates.items], grid.candidates.offsets, grid.candidates.targets
    rows, most = 1, BLOCK if jax.default_backend() == "cpu" else DEVICE_BLOCK
    while 2 * rows * len(outputs) <= most and 2 * rows <= len(items):
        rows *= 2
    users = grid.places % len(grid.listed)
    h, *others = (
        array.reshape(len(items) // rows, rows, *array.shape[1:])
        for array in (states, items, grid.log_shares, users, grid.counts, grid.valid)
    )
    n_blocks = jnp.ceil(grid.valid.sum() / rows).astype(jnp.int32)
    log_items = jnp.log(n_items).astype(states.dtype)
    return summed_blocks(_block, (outputs, memory, known, offsets, log_items), grid.listed, h, tuple(others), n_blocks)


def _block(
    shared: tuple[jax.Array, ...], listed: jax.Array, states: jax.Array, events: tuple[jax.Array, ...]
) -> jax.Array:
    (outputs, memory, known, offsets, log_items), (items, log_shares, users, counts, counted) = shared, events
    # Logits v_i^T h of items and m_k^T h + b_k + log I of memories.
    logits, of_memories = states @ outputs.T + offsets, states @ memory[:, :-1].T + memory[:, -1] + log_items
    if len(known):
        # Columns beyond the last one are dropped.
        columns = jnp.where(jnp.arange(listed.shape[1]) < counts[:, None], listed[users], len(outputs))
        shift = (states @ known[:-1] + known[-1])[:, None]
        logits = logits.at[jnp.arange(len(states))[:, None], columns].add(shift, mode="drop")
    # log(exp(l_y) + sum_k exp(l_k) s_k(y)) - log sum_j exp(l_j), over items and memories j.
    ways = [jnp.take_along_axis(logits, items[:, None], axis=1), of_memories + log_shares]
    of_item = jax.nn.logsumexp(jnp.concatenate(ways, axis=1), axis=1)
    total = jax.nn.logsumexp(jnp.concatenate([logits, of_memories], axis=1), axis=1)
    return (counted * (of_item - total)).sum()


@jax_funcify.register(SequenceLogp)
@jax_funcify.register(SequenceGradient)
def jax_sequences(op: SequenceLogp | SequenceGradient, **kwargs: object) -> Callable[..., Any]:
    """Return a function by which JAX calls the NumPy body on the host; gradients are an Op of their own."""
    gradient = isinstance(op, SequenceGradient)

    def call(*inputs: jax.Array) -> Any:
        doubles = partial(jax.ShapeDtypeStruct, dtype=jnp.float64)
        shapes: Any = (
            Weights(*(doubles(array.shape) for array in inputs[WEIGHTS])) if gradient else doubles(inputs[0].shape)
        )
        return jax.pure_callback(op.evaluate, shapes, *inputs, vmap_method="sequential")

    return call
