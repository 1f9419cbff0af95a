"""Numba body of the draws of `CollaborativeRNN`: one event after the other."""

from collections.abc import Callable
from typing import Any

import numpy as np
from pytensor.graph.basic import Apply
from pytensor.link.numba.dispatch.basic import numba_njit
from pytensor.link.numba.dispatch.random import numba_core_rv_funcify

from pymc_ep.models.sequences.distribution import CollaborativeRNNRV


@numba_core_rv_funcify.register(CollaborativeRNNRV)
def collaborative_rnn(op: CollaborativeRNNRV, node: Apply) -> Callable[..., Any]:
    """Return the function ``random(rng, *parameters)``, which draws rows of user and item, (N, 2)."""

    @numba_njit
    def random(
        rng: Any,
        recurrent: Any,
        inputs: Any,
        outputs: Any,
        memory: Any,
        known: Any,
        bias: Any,
        initial: Any,
        half_lives: Any,
        contexts: Any,
        users: Any,
    ) -> Any:
        n, n_memories, (n_items, n_gates, width) = len(users), len(memory), inputs.shape
        # Numba reads beyond the ends of arrays.
        if len(contexts) > 0 and len(contexts) != n:
            raise ValueError("the sequences have other numbers of contexts than of events; give each event one")
        if memory.shape[1] != width + 1 or (len(known) > 0 and len(known) != width + 1):
            raise ValueError("memories and known items have other numbers of weights than units and a constant")
        n_users = 0
        for k in range(n):
            if users[k] < 0 or (len(recurrent) > 1 and users[k] >= len(recurrent)):
                raise ValueError("the sequences have a user without recurrent matrices; correct the users")
            if len(contexts) > 0 and not 0 <= contexts[k] < len(bias):
                raise ValueError("the sequences have a context without biases; correct the contexts")
            n_users = max(n_users, users[k] + 1)
        ends, lengths = np.zeros(n_users + 1, dtype=np.int64), np.zeros(n_users, dtype=np.int64)
        for k in range(n):
            ends[users[k] + 1] += 1
        ends, past = np.cumsum(ends), np.empty(n, dtype=np.int64)
        # The row of each user's next event.
        following, last = np.zeros(n, dtype=np.int64), np.full(n_users, -1)
        for k in range(n):
            if last[users[k]] >= 0 and len(contexts):
                following[last[users[k]]] = contexts[k]
            last[users[k]] = k
        h = np.full((n_users, width), float(initial))
        out, sums = np.empty((n, 2), dtype=np.int64), np.empty((n_gates, width))
        weights, reset, marks = np.empty(n_items + n_memories), np.empty(width), np.full(n_items, -1)
        for k in range(n):
            u = users[k]
            matrices, state = recurrent[u if len(recurrent) > 1 else 0], h[u]
            # Logits v_i^T h of items and m_k^T h + b_k + log I of memories; known items have z^T h + c more.
            for i in range(n_items + n_memories):
                row = outputs[i] if i < n_items else memory[i - n_items]
                weights[i] = 0.0 if i < n_items else np.log(n_items) + row[width]
                for d in range(width):
                    weights[i] += row[d] * state[d]
            t = lengths[u]
            if len(known):
                more = known[width]
                for d in range(width):
                    more += known[d] * state[d]
                for item in past[ends[u] : ends[u] + t]:
                    if marks[item] < k:
                        weights[item], marks[item] = weights[item] + more, k
            weights = np.cumsum(np.exp(weights - weights.max()))
            item = min(np.searchsorted(weights, rng.random() * weights[-1], side="right"), n_items + n_memories - 1)
            if item >= n_items:
                half_life, uniform = half_lives[item - n_items], rng.random()
                if t == 0:
                    item = int(uniform * n_items)
                else:
                    # P(age <= a) = (1 - q^a) / (1 - q^t) with q = 2^{-1 / H}, inverted; a / t where H is infinite.
                    age = 1.0 + np.floor(uniform * t)
                    if np.isfinite(half_life):
                        rate = -np.log(2.0) / half_life
                        age = np.ceil(np.log1p(uniform * np.expm1(t * rate)) / rate)
                    item = past[ends[u] + t - int(min(max(age, 1.0), t))]
            past[ends[u] + t] = item
            lengths[u] += 1
            out[k, 0], out[k, 1] = u, item
            # The candidate is last: it takes the state that the reset gate lets through.
            for step in range(n_gates):
                gate = n_gates - 1 - step
                for d in range(width):
                    total = inputs[item, gate, d]
                    if len(bias):
                        total += bias[following[k], gate, d]
                    for e in range(width):
                        total += matrices[gate, d, e] * (state[e] if gate or n_gates == 1 else reset[e])
                    sums[gate, d] = 1.0 / (1.0 + np.exp(-total)) if gate else np.tanh(total)
                if gate == 2:
                    for d in range(width):
                        reset[d] = sums[2, d] * state[d]
            for d in range(width):
                # (1 - w) h + w c.
                h[u, d] = sums[0, d] if n_gates == 1 else state[d] + sums[1, d] * (sums[0, d] - state[d])
        return out

    return random
