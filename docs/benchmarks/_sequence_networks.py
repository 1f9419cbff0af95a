"""Networks of the benchmark of sequences: those of pymc_ep, and those of PyTorch under an interpreter of its own."""

import json
import subprocess
import tempfile
import time
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np
import pymc as pm
from scipy.special import log_softmax

import pymc_ep as pmep
from docs.benchmarks._sequence_data import Predictor, Task
from pymc_ep.models.sequences.kernel import (
    Sequences,
    initial_states,
    longest_first,
    next_log_probabilities,
    sampled_candidates,
    window_of,
)
from pymc_ep.models.sequences.kernel.body import forward
from pymc_ep.models.sequences.kernel.body import log_softmax as log_softmax_of_items
from pymc_ep.models.sequences.kernel.memory import last_log_shares
from pymc_ep.models.sequences.kernel.past import known_items
from pymc_ep.models.sequences.predict.rebuild import sequences_posterior

__all__ = ["Trained", "bias_of_sampling", "in_torch", "predictor_of", "trained"]

SCRIPT = Path(__file__).with_name("_sequence_torch.py")
USERS = 64
"""Users whose states are computed together."""


class Trained(NamedTuple):
    """A fit, its model, and processor seconds."""

    idata: Any
    model: pm.Model
    seconds: float


def trained(task: Task, architecture: dict[str, Any], options: dict[str, Any], start: Trained | None = None) -> Trained:
    """Train a network on the events before those of a task, from first weights or those of another training."""
    contexts = task.contexts
    if contexts is not None:
        contexts = [own[: len(b)] for own, b in zip(contexts, task.before)]
        n = 1 + max(int(own.max(initial=0)) for own in task.contexts)
    with pm.Model(coords={} if contexts is None else {"visits_context": range(n)}) as model:
        pmep.CollaborativeRNN("visits", n_items=task.n_items, observed=task.before, context=contexts, **architecture)
        before = None if start is None else start.idata
        began = time.process_time()
        idata = pmep.fit(method="ml", dtype="float32", progressbar=False, start=before, **options)
        return Trained(idata, model, time.process_time() - began)


def predictor_of(task: Task, found: Trained) -> Predictor:
    """Predict by a trained network, whose state passes through all events of a user."""
    posterior = sequences_posterior(found.idata, found.model)
    weights = posterior.weights
    both = [np.append(b, a) for b, a in zip(task.before, task.after)]
    lengths, sequences = np.array(list(map(len, both))), Sequences.of_parts(both, task.n_items)
    if task.contexts is not None:
        sequences = sequences.in_context(np.concatenate(task.contexts))
    first = initial_states(len(both), weights, posterior.form.initial)
    states = np.empty((len(sequences.items), first.shape[1]), dtype=first.dtype)
    for begin in range(0, len(both), USERS):
        users = longest_first(lengths, np.arange(len(both))[begin : begin + USERS])
        window, places = window_of(sequences, lengths, users, 0, int(lengths[users[0]]))
        own = weights if len(weights.recurrent) == 1 else weights._replace(recurrent=weights.recurrent[users])
        states[places] = forward(own, window, first[users]).states
    after = np.concatenate([np.arange(len(b) + len(a)) >= len(b) for b, a in zip(task.before, task.after)])
    wanted = states[after]
    past = task.past
    half_lives = posterior.form.half_lives

    def log_p(here: slice) -> np.ndarray:
        log_shares = last_log_shares(past[here], task.n_items, half_lives)
        return next_log_probabilities(weights, wanted[here], log_shares, known_items(past[here], task.n_items))

    return log_p


def bias_of_sampling(task: Task, found: Trained, n: int, batch: int = 128) -> float:
    """Return by how much the log probability of a training event is too high where windows sample so many items."""
    posterior, rng = sequences_posterior(found.idata, found.model), np.random.default_rng(0)
    weights, (sequences, _) = posterior.weights, posterior.form.sequences()
    lengths, total = sequences.lengths, 0.0
    for begin in range(0, len(lengths), 32):
        users = longest_first(lengths, np.arange(begin, min(begin + 32, len(lengths))))
        h = initial_states(len(users), weights, posterior.form.initial)
        for at in range(0, int(lengths[users[0]]), batch):
            window, _ = window_of(sequences, lengths, users, at, batch)
            m = int(window.counts[0])
            own = weights if len(weights.recurrent) == 1 else weights._replace(recurrent=weights.recurrent[users[:m]])
            tape = forward(own, window, h[:m])
            both = [
                log_softmax_of_items(weights, tape.states, window.items, window.past, None, candidates)[0].sum()
                for candidates in (sampled_candidates(window.items, task.n_items, n, rng), None)
            ]
            h[:m] = tape.last
            total += float(both[0] - both[1])
    return total / len(sequences.items)


def softmax_of(states: np.ndarray, outputs: np.ndarray, bias: np.ndarray) -> Predictor:
    """Predict by softmax(states . outputs + bias), of a state for each event."""
    return lambda here: log_softmax(states[here] @ outputs.T + bias, axis=1)


def in_torch(python: str, task: Task, tail: np.ndarray, settings: dict[str, Any], seed: int) -> dict[str, Any]:
    """Run ``_sequence_torch.py`` under an interpreter, and return its arrays."""
    given = {
        "items": np.concatenate(task.before),
        "lengths": list(map(len, task.before)),
        "tail": tail,
        "test_items": task.items,
        "test_lengths": list(map(len, task.after)),
        "n_items": task.n_items,
        "seed": seed,
        "settings": json.dumps(settings),
    }
    with tempfile.TemporaryDirectory() as folder:
        paths = [Path(folder, f"{name}.npz") for name in ("given", "found")]
        np.savez(paths[0], **given)
        subprocess.run([python, "-W", "ignore", str(SCRIPT), *map(str, paths)], check=True, stdout=subprocess.DEVNULL)
        with np.load(paths[1]) as found:
            return {name: found[name] for name in found.files}
