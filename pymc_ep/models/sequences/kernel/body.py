"""NumPy body of the collaborative recurrent network: log probabilities of the next items, and their gradient.

Ko, Maystre and Grossglauser (2016). Let y_t be item t of a user, of I items, and h_t, (D,), the user's state after it.
The state follows from

    tanh:  h_t = tanh(W y_t + R h_{t-1})
    GRU:   h_t = (1 - w) h_{t-1} + w c,    c = tanh(W_c y_t + R_c (r h_{t-1})),    w, r = sig(W y_t + R h_{t-1}),

and P(y_{t+1} = i | y_1 .. y_t) is proportional to exp(v_i^T h_t): an item is predicted from the state before it. The
table of inputs, (I, G, D), has the row W y for each item y, and the table of outputs, (I, D), the rows v_i. The number
of gates is G = 1 for tanh (candidate), and G = 3 for GRU (candidate c, update w, reset r). Recurrent matrices R,
(U, G, D, D), are one set for each of U users, or one set for all users where U is 1.

In addition to items, the softmax may choose one of K memories of the user's own events, with the logits
m_k^T h_t + b_k + log I. Their table, (K, D + 1), has the rows m_k, b_k. Memory k then yields item i with the
probability s_k(i), the item's share in the memory, see `pymc_ep.models.sequences.kernel.memory`:

    P(y_{t+1} = i | y_1 .. y_t)  is proportional to  exp(v_i^T h_t) + I sum_k exp(m_k^T h_t + b_k) s_k(i).

Items among the user's earlier events, the known items, may be likelier than others or less likely: z^T h_t + c is added
to their logits v_i^T h_t. The row z, c, (D + 1,), is empty, (0,), where known items are like others.

Gates may have biases, a table (C, G, D) with a row for each context, such as the hour. The row of the context x_{t+1}
of the event to predict, which is known before its item, is added to W y_t. Without contexts C is 1, and without biases
C is 0.

Events of several users are sorted by time, and at each time by user, users of longer sequences first. The users with an
event at one time are then the first of the users at the time before, and nothing is padded.
"""

from typing import NamedTuple

import numpy as np
from scipy.sparse import csr_array
from scipy.special import expit

from pymc_ep.models.sequences.kernel.candidates import Candidates
from pymc_ep.models.sequences.kernel.past import Past
from pymc_ep.numerics.memory import chunks

__all__ = [
    "CELLS",
    "Gradient",
    "Tape",
    "Weights",
    "Window",
    "Windowed",
    "forward",
    "log_softmax",
    "summed_rows",
    "window_gradient",
]

CELLS = {"tanh": ("candidate",), "gru": ("candidate", "update", "reset")}
"""Gates of each cell."""
BLOCK = 2**19
"""Largest number of logits of a block of events, 4 MiB in double precision, unless a single event has more. Of 2**17 to
2**23, it is the fastest for 10,000 items in either precision."""


class Weights(NamedTuple):
    """Tables of weights of the network; see the module.

    Attributes
    ----------
    recurrent : ndarray, (U, G, D, D)
        U is 1 where users share the matrices.
    inputs : ndarray, (I, G, D)
    outputs : ndarray, (I, D)
    memory : ndarray, (K, D + 1)
    known : ndarray, (D + 1,) or (0,)
    bias : ndarray, (C, G, D)
    """

    recurrent: np.ndarray
    inputs: np.ndarray
    outputs: np.ndarray
    memory: np.ndarray
    known: np.ndarray
    bias: np.ndarray

    def shift(self, states: np.ndarray) -> np.ndarray:
        """Return z^T h + c, (n,), the shift of the logits of known items, for each of n states h, (n, D)."""
        return states @ self.known[:-1] + self.known[-1]


class Window(NamedTuple):
    """Consecutive events of P users, sorted by time.

    Attributes
    ----------
    items : ndarray of int, (n,)
    counts : ndarray of int, (T,)
        Number of users with an event at each time, which never rises.
    past : Past, optional
        Past of the events. It is needed to predict the events, but not to compute states.
    following : ndarray of int, (n,), optional
        For each event, the context of its user's next event; by default 0 for all.
    candidates : Candidates, optional
        Items that the softmax sums over; by default all.
    """

    items: np.ndarray
    counts: np.ndarray
    past: Past | None = None
    following: np.ndarray | None = None
    candidates: Candidates | None = None

    @property
    def users(self) -> np.ndarray:
        """Index of each event's user among the P users, (n,)."""
        return np.arange(len(self.items)) - np.repeat(self.begins, self.counts)

    @property
    def begins(self) -> np.ndarray:
        """Index of the first event at each time, (T,)."""
        return np.cumsum(self.counts) - self.counts


class Tape(NamedTuple):
    """Values of the forward pass at all events of a window, sorted by time.

    Attributes
    ----------
    states : ndarray, (n, D)
        State before each event, from which the event is predicted.
    gates : ndarray, (n, G, D)
        Candidate, update and reset in the step of the state at each event.
    last : ndarray, (P, D)
        States after all events of the window.
    """

    states: np.ndarray
    gates: np.ndarray
    last: np.ndarray


class Gradient(NamedTuple):
    """Gradient in the weights, from the events of a window.

    Attributes
    ----------
    recurrent : ndarray, (P or 1, G, D, D)
    items : ndarray of int, (k,)
        Distinct items of the window, ascending.
    inputs : ndarray, (k, G, D)
        Rows of these items; the other rows are zero.
    outputs : ndarray, (I or c, D)
        Rows of all items, or of the window's c candidates if it has any.
    memory : ndarray, (K, D + 1)
    known : ndarray, (D + 1,) or (0,)
    bias : ndarray, (C, G, D)
    """

    recurrent: np.ndarray
    items: np.ndarray
    inputs: np.ndarray
    outputs: np.ndarray
    memory: np.ndarray
    known: np.ndarray
    bias: np.ndarray


class Windowed(NamedTuple):
    """Log probabilities of a window's events, (n,), the states after the window, (P, D), and the sum's gradient."""

    values: np.ndarray
    last: np.ndarray
    gradient: Gradient


def forward(weights: Weights, window: Window, first: np.ndarray) -> Tape:
    """Return the states of P users in a window, given the states before it, `first`, (P, D).

    The recurrent matrices are one set for each of these users, or one set for all.
    """
    recurrent, inputs = weights.recurrent, weights.inputs
    states = np.empty((len(window.items), first.shape[1]), dtype=first.dtype)
    gates = np.empty((len(window.items), *inputs.shape[1:]), dtype=first.dtype)
    last, h, begin = first.copy(), first, 0
    for n in window.counts.tolist():
        rows = slice(begin, begin + n)
        states[rows] = h = h[:n]
        matrices = recurrent if len(recurrent) == 1 else recurrent[:n]
        x = inputs[window.items[rows]]
        if len(weights.bias):
            x = x + weights.bias[0 if window.following is None else window.following[rows]]
        if x.shape[1] == 1:
            h = np.tanh(x[:, 0] + _products(matrices, h)[:, 0])
            gates[rows, 0] = h
        else:
            # w, r = sig(W y + R h), c = tanh(W_c y + R_c (r h)) and (1 - w) h + w c.
            w, r = np.moveaxis(expit(x[:, 1:] + _products(matrices[:, 1:], h)), 1, 0)
            c = np.tanh(x[:, 0] + _products(matrices[:, :1], r * h)[:, 0])
            gates[rows, 0], gates[rows, 1], gates[rows, 2] = c, w, r
            h = h + w * (c - h)
        last[:n] = h
        begin += n
    return Tape(states, gates, last)


def _products(matrices: np.ndarray, h: np.ndarray) -> np.ndarray:
    """Return the products of matrices, (n or 1, g, D, D), and states, (n, D), as (n, g, D)."""
    m, g, width, _ = matrices.shape
    stacked = matrices.reshape(m, g * width, width)
    products = h @ stacked[0].T if m == 1 else np.matmul(stacked, h[:, :, None])
    return products.reshape(len(h), g, width)


def _pullbacks(matrices: np.ndarray, rows: np.ndarray) -> np.ndarray:
    """Return the sums over g of the products of rows, (n, g, D), and matrices, (n or 1, g, D, D), as (n, D)."""
    m, g, width, _ = matrices.shape
    stacked, flat = matrices.reshape(m, g * width, width), rows.reshape(len(rows), g * width)
    return flat @ stacked[0] if m == 1 else np.matmul(flat[:, None], stacked)[:, 0]


def window_gradient(
    weights: Weights,
    window: Window,
    first: np.ndarray,
    kept: np.ndarray | None = None,
    cotangents: np.ndarray | None = None,
) -> Windowed:
    """Return log probabilities of all events of a window, and the gradient of their sum.

    The states before the window count as constants.

    Parameters
    ----------
    weights : Weights
        Weights with the recurrent matrices of only the P users, or with one set.
    window : Window
    first : ndarray, (P, D)
        States before the window.
    kept : ndarray, (n, D), optional
        Dropout: factors of the states in the predictions.
    cotangents : ndarray, (n,), optional
        Weights of the events in the sum; by default 1.
    """
    tape = forward(weights, window, first)
    seen = tape.states if kept is None else tape.states * kept
    event_weights = np.ones(len(window.items), dtype=first.dtype) if cotangents is None else cotangents
    assert window.past is not None, "predictions need the past of the events"
    values, of_states, (of_outputs, of_memory, of_known) = log_softmax(
        weights, seen, window.items, window.past, event_weights, window.candidates
    )
    gradient = _backward(weights, window, tape, of_states if kept is None else of_states * kept)
    return Windowed(values, tape.last, gradient._replace(outputs=of_outputs, memory=of_memory, known=of_known))


def log_softmax(
    weights: Weights,
    states: np.ndarray,
    items: np.ndarray,
    past: Past,
    cotangents: np.ndarray | None = None,
    candidates: Candidates | None = None,
) -> tuple[np.ndarray, np.ndarray, tuple[np.ndarray, np.ndarray, np.ndarray]]:
    """Return log probabilities, (n,), of n items, and gradients of their sum with the weights `cotangents`, (n,).

    Gradients are in the states, (n, D), and in the tables of outputs (rows of candidates only, if there are any), of
    memories and of known items. Without `cotangents` the gradients are empty arrays.
    """
    outputs, log_items = weights.outputs, np.log(len(weights.outputs))
    if candidates is not None:
        if len(weights.known):
            past = past.among(candidates.places(len(outputs)))
        outputs, items = outputs[candidates.items], candidates.targets
    n_items, table = len(outputs), np.concatenate([outputs, weights.memory[:, :-1]])
    n = len(items)
    # Logarithms of the probabilities of what an event may be, the item or one of the memories, times its share there.
    ways = np.empty((n, 1 + len(weights.memory)), dtype=states.dtype)
    values = np.empty(n, dtype=states.dtype)
    of_states, of_table, of_constant, of_known = states[:0], table[:0], weights.memory[:0, -1:], weights.known[:0]
    if cotangents is not None:
        of_states, of_table, of_constant = map(np.zeros_like, (states, table, weights.memory[:, -1:]))
        of_known = np.zeros_like(weights.known)
    for block in chunks(n, len(table), BLOCK):
        h, block_items = states[block], items[block]
        # Logits l_i = v_i^T h of items and l_k = m_k^T h + b_k + log I of memories.
        logits = h @ table.T
        logits[:, n_items:] += log_items + weights.memory[:, -1]
        if candidates is not None:
            logits[:, :n_items] += candidates.offsets.astype(logits.dtype, copy=False)
        if len(weights.known):
            events, columns = past.of(block).pairs()
            logits[events, columns] += weights.shift(h)[events]
        top = logits.max(axis=1)
        logits -= top[:, None]
        # log p = log(exp(l_y) + sum_k exp(l_k) s_k(y)) - log sum_j exp(l_j), over items and memories j.
        ways[block, 0] = logits[np.arange(len(block_items)), block_items]
        ways[block, 1:] = logits[:, n_items:] + past.log_shares[block]
        exponentials = np.exp(logits, out=logits)
        total = exponentials.sum(axis=1)
        values[block] = np.logaddexp.reduce(ways[block], axis=1)
        ways[block] -= values[block, None]
        values[block] -= np.log(total)
        if cotangents is not None:
            # d log p / dl_j = q_j - exp(l_j) / sum_i exp(l_i), q_j the share of j in p; the second term first.
            # Weights are divided by their sums after the products, which are far smaller.
            share = (cotangents[block] / total)[:, None]
            of_states[block] -= share * (exponentials @ table)
            of_table -= exponentials.T @ (share * h)
            of_constant -= exponentials[:, n_items:].T @ share
            if len(weights.known):
                # d log p / d(z^T h + c) = q_y [y is known] - sum_i exp(l_i) / sum_j exp(l_j), over known items i.
                sums = np.bincount(events, exponentials[events, columns], len(block_items))
                of_shift = -share[:, 0] * sums.astype(h.dtype)
                repeats = events[columns == block_items[events]]
                of_shift[repeats] += np.exp(ways[block, 0][repeats]) * cotangents[block][repeats]
                of_states[block] += of_shift[:, None] * weights.known[:-1]
                of_known += np.append(of_shift @ h, of_shift.sum())
    if cotangents is not None:
        # The terms q_j.
        way_weights = np.exp(ways) * cotangents[:, None]
        of_states += way_weights[:, :1] * outputs[items] + way_weights[:, 1:] @ table[n_items:]
        rows, sums = summed_rows(items, way_weights[:, :1] * states)
        of_table[rows] += sums
        of_table[n_items:] += way_weights[:, 1:].T @ states
        of_constant += way_weights[:, 1:].sum(axis=0)[:, None]
    return values, of_states, (of_table[:n_items], np.append(of_table[n_items:], of_constant, axis=1), of_known)


def summed_rows(index: np.ndarray, rows: np.ndarray) -> tuple[np.ndarray, np.ndarray]:
    """Return the k distinct values of `index`, (n,), ascending, and the sum of the rows of each, (k, ...)."""
    distinct, place = np.unique(index, return_inverse=True)
    flat = rows.reshape(len(rows), int(np.prod(rows.shape[1:])))
    table = csr_array((np.ones(len(rows), rows.dtype), (place, np.arange(len(rows)))), shape=(len(distinct), len(rows)))
    return distinct, (table @ flat).reshape(len(distinct), *rows.shape[1:])


def _backward(weights: Weights, window: Window, tape: Tape, of_states: np.ndarray) -> Gradient:
    """Return the gradient in recurrent matrices, inputs and biases, given the gradient in `tape.states`, (n, D)."""
    recurrent, (_, n_gates, width) = weights.recurrent, weights.inputs.shape
    begins, counts = window.begins.tolist(), window.counts.tolist()
    # Gradient before the nonlinearities of each event that another one follows; zero at the last ones of the window.
    inner = np.zeros((len(window.items), n_gates, width), dtype=of_states.dtype)
    g = of_states[begins[-1] :] if counts else of_states
    for t in range(len(counts) - 2, -1, -1):
        n = counts[t + 1]
        rows = slice(begins[t], begins[t] + n)
        matrices = recurrent if len(recurrent) == 1 else recurrent[:n]
        h, gates = tape.states[rows], tape.gates[rows]
        c = gates[:, 0]
        if n_gates == 1:
            # h' = tanh(a): da = g (1 - h'^2) and dh = R^T da.
            inner[rows, 0] = g * (1.0 - c**2)
            back = _pullbacks(matrices, inner[rows])
        else:
            w, r = gates[:, 1], gates[:, 2]
            # h' = h + w (c - h): da_c = g w (1 - c^2), da_w = g (c - h) w (1 - w), da_r = (R_c^T da_c) h r (1 - r) and
            # dh = g (1 - w) + (R_c^T da_c) r + R_w^T da_w + R_r^T da_r.
            inner[rows, 0] = g * w * (1.0 - c**2)
            of_reset = _pullbacks(matrices[:, :1], inner[rows, :1])
            inner[rows, 1] = g * (c - h) * w * (1.0 - w)
            inner[rows, 2] = of_reset * h * r * (1.0 - r)
            back = g * (1.0 - w) + of_reset * r + _pullbacks(matrices[:, 1:], inner[rows, 1:])
        g = of_states[begins[t] : begins[t] + counts[t]].copy()
        g[:n] += back
    items, of_inputs = summed_rows(window.items, inner)
    of_recurrent, of_bias = _outer_sums(recurrent, window, tape, inner), np.zeros_like(weights.bias)
    if window.following is None:
        of_bias[:1] = inner.sum(axis=0)
    else:
        contexts, sums = summed_rows(window.following, inner)
        of_bias[contexts] = sums
    return Gradient(of_recurrent, items, of_inputs, weights.outputs[:0], weights.memory[:0], weights.known[:0], of_bias)


def _outer_sums(recurrent: np.ndarray, window: Window, tape: Tape, inner: np.ndarray) -> np.ndarray:
    """Return the gradient in recurrent matrices, given `inner`, (n, G, D), the gradient before nonlinearities."""
    n, n_gates, width = inner.shape
    # dR = sum_t da_t x_t^T, with x = r h for the candidate and h for the other gates.
    reset = tape.states * tape.gates[:, 2] if n_gates == 3 else None
    if len(recurrent) == 1:
        groups = [np.arange(n)]
    else:
        users = window.users
        groups = np.split(np.argsort(users, kind="stable"), np.cumsum(np.bincount(users))[:-1])
    out = np.zeros((len(recurrent), n_gates, width, width), dtype=inner.dtype)
    for k, events in enumerate(groups):
        rows, h = inner[events].reshape(len(events), n_gates * width), tape.states[events]
        if reset is None:
            out[k, 0] = rows.T @ h
        else:
            out[k, 0] = rows[:, :width].T @ reset[events]
            out[k, 1:] = (rows[:, width:].T @ h).reshape(2, width, width)
    return out
