"""Rows of the benchmark of sequences: settings, and what each row measures."""

import time
from collections.abc import Callable, Iterable, Iterator
from functools import cache, partial
from typing import Any

import numpy as np
import pandas as pd

import pymc_ep as pmep
from docs.benchmarks import _sequence_baselines as baselines
from docs.benchmarks._sequence_data import (
    Predictor,
    Split,
    Task,
    entropies,
    in_context,
    of_new_items,
    scored,
    split,
    terciles,
    user_mean,
)
from docs.benchmarks._sequence_networks import Trained, bias_of_sampling, in_torch, predictor_of, softmax_of, trained

__all__ = [
    "AFTER_POOLED",
    "CONTEXTS",
    "DATA",
    "DEFAULT",
    "NETWORKS",
    "NEW_ITEMS",
    "PAPER",
    "SAMPLES",
    "SIZES",
    "TIMED",
    "VARIANTS",
    "VARIED",
    "data_of",
    "grids",
    "grouping",
    "work",
]

DATA = {"foursquare-nyc": "Foursquare, New York", "brightkite": "Brightkite", "ml-100k": "MovieLens 100k"}
ONCE = ("ml-100k",)
"""Data sets in which nobody chooses an item twice."""
NEW_ITEMS = "SASRec, new items"
"""The method that is told so."""
HIDDEN = 32
"""Units of all networks."""
ARCHITECTURE = ("pooled", "cell", "spread", "repeats", "bias")
"""What is said to the network; all else is said to `pymc_ep.fit`."""
BUDGET: dict[str, Any] = {"epochs": 60, "patience": 3}
"""Of all networks; the other options are the defaults."""
PAPER: dict[str, Any] = {"repeats": False, "bias": False, "spread": False}
"""The network of the paper."""
NETWORKS: dict[str, dict[str, Any]] = {
    "hierarchical C-GRU, repeats": {},
    "C-GRU, repeats": {"spread": False},
    "pooled GRU, repeats": {"pooled": True},
    "C-tanh, repeats": {"cell": "tanh", "spread": False},
    "hierarchical C-GRU": PAPER | {"spread": True},
    "C-GRU": PAPER,
    "pooled GRU": PAPER | {"pooled": True, "patience": 8},
    "C-tanh": PAPER | {"cell": "tanh"},
}
"""Architectures, and options that differ from the defaults. The loss of the paper's pooled network falls slowly."""
DEFAULT = "hierarchical C-GRU, repeats"
"""The one of the default options."""
AFTER_POOLED = "pooled GRU, then own, repeats"
"""The default network from the weights of the pooled one."""
OWN: dict[str, Any] = {"learning_rate": 0.003}
"""How its training goes on."""
LATER: dict[str, Any] = {"epochs": 2, "held_out": 0}
"""A training goes on with the validation events."""
VARIANTS: dict[str, dict[str, Any]] = {
    f"{option}={value}": {option: value}
    for option, values in {
        "ridge": (0.3, 3),
        "learning_rate": (0.003, 0.02),
        "optimizer": ("rmsprop", "adam"),
        "users_per_batch": (16, 64),
        "batch": (32, 64),
        "dropout": (0.2, 0.5),
        "spread": (0.1, 0.3, 3),
        "repeats": ((), (5,), (np.inf,), (20, np.inf)),
    }.items()
    for value in values
}
"""Other options of the default network, to be judged by the validation events."""
VARIED = ("foursquare-nyc", "ml-100k")
"""Data sets on which these are tried."""
GAPS = pd.to_timedelta(["1h", "3h", "6h", "12h", "1D", "3D", "7D"])
"""Bounds of the times between events that are told apart."""


def gaps(users: pd.Series, times: pd.Series) -> np.ndarray:
    """Return the interval of the time since the user's event before."""
    return np.searchsorted(GAPS, times.groupby(users).diff().fillna(pd.Timedelta(0)), side="right")


def hours(users: pd.Series, times: pd.Series) -> np.ndarray:
    """Return the two hours of the day in New York, in standard time, and whether it is a weekend."""
    local = times - pd.Timedelta(hours=5)
    return 2 * (local.dt.hour // 2).to_numpy() + (local.dt.weekday >= 5).to_numpy()


CONTEXTS: dict[str, Callable[[pd.Series, pd.Series], np.ndarray]] = {"gap": gaps, "hour": hours}
"""What networks are told of the time of an event."""
SASREC = {"kind": "SASRec", "width": 64, "blocks": 2, "heads": 1, "dropout": 0.2, "learning_rate": 2e-3} | BUDGET
"""One setting, near that of its authors."""
SIZES = (16, 32, 64)
"""Units of the networks that are timed."""
TIMED: dict[str, Any] = {
    "users_per_batch": 32,
    "batch": 128,
    "learning_rate": 0.01,
    "ridge": 0.3,
    "clip": 1.0,
    "epochs": 3,
    "optimizer": "rmsprop",
}
SAMPLES = (64, 256, 1024)
"""Items of a sampled softmax."""
POWERS = [10.0 ** (k / 2) for k in range(-8, 5)]
"""Constants that are added to counts."""


@cache
def data_of(name: str) -> Split:
    """Return a data set."""
    return split(name)


def measured(data: Split, predictor: Predictor) -> dict[str, Any]:
    """Return the figures of the test events, over all users and in groups of them by entropy and by length."""
    task, found = data.test, scored(data.test, predictor)
    users = task.users
    row: dict[str, Any] = {"nats": -user_mean(users, found.log_p), "recall": user_mean(users, found.recall)}
    for what, values in grouping(data).items():
        groups = terciles(values)
        kept = [groups[users] == group for group in range(3)]
        row[what] = [-user_mean(users[own], found.log_p[own]) for own in kept]
    return row


def grouping(data: Split) -> dict[str, np.ndarray]:
    """Return what users are grouped by: the entropy of their training events, and the number of these."""
    before = data.test.before
    return {"groups": entropies(before), "lengths": np.array(list(map(len, before)), dtype=float)}


def grids(data: Split) -> dict[str, tuple[Callable[..., Predictor], Iterable[dict[str, Any]]]]:
    """Return the baselines with settings to choose from, some of which the validation events learn."""
    return {
        "uniform": (baselines.uniform, [{}]),
        "1-gram": (baselines.unigram, [{"epsilon": e} for e in POWERS]),
        "2-gram": (baselines.bigram, [{"epsilon": e} for e in POWERS]),
        "1-gram of the user": (
            baselines.own_unigram,
            [{"epsilon": 1.0, "weight": w} for w in (1.0, 3.0, 10.0, 30.0, 100.0)],
        ),
        "HMM": (
            partial(baselines.hidden_markov, iterations=30),
            [{"n_states": k, "epsilon": e} for k in (16, 64) for e in (1e-3, 1e-2)],
        ),
        "counts, mixed": (baselines.mixed_counts, mixture_settings(data)),
        "MF": (baselines.factors, factor_settings(data)),
    }


def factor_settings(data: Split) -> Iterator[dict[str, Any]]:
    """Yield settings of the matrix factorisation, each with its best slope."""
    for penalty in (0.003, 0.01, 0.03):
        for weight in (0.0, 0.001, 0.003, 0.01):
            one = {"n_factors": HIDDEN, "penalty": penalty, "weight": weight}
            yield one | {
                "slope": baselines.best_slope(data.validation, baselines.factor_scores(data.validation, **one))
            }


def mixture_settings(data: Split) -> Iterator[dict[str, Any]]:
    """Yield settings of the mixture of counts, each with its best weights."""
    for epsilon in (1e-3, 1e-2, 1e-1):
        yield {"epsilon": epsilon, "weights": baselines.best_weights(data.validation, epsilon)}


def of_baseline(name: str, method: str) -> dict[str, Any]:
    """Return the row of a baseline, whose settings the validation events choose."""
    data, began = data_of(name), time.process_time()
    function, settings = grids(data)[method]
    best, validation = baselines.chosen(data.validation, function, settings)
    row = measured(data, function(data.test, **best))
    return row | {"settings": best, "validation": validation, "seconds": time.process_time() - began}


def of_network(name: str, network: str, seed: int, *, jax: bool = False) -> dict[str, Any]:
    """Return the row of a network, on a device by JAX."""
    on = {"device": device()} if jax else {}
    where = {"compile_kwargs": {"mode": "JAX"}} if jax else {}
    return of_fit(data_of(name), NETWORKS[network], where | {"seed": seed}) | on


def of_fit(data: Split, change: dict[str, Any], options: dict[str, Any]) -> dict[str, Any]:
    """Return the row of a network; its log probabilities are those of `pymc_ep.log_predictive`."""
    found = fitted(data, change, BUDGET | options)
    predictor = predictor_of(data.test, found)
    public = pmep.log_predictive(found.idata, found.model, {"visits": data.test.given})["visits"].values
    np.testing.assert_allclose(scored(data.test, predictor).log_p, public, atol=1e-3)
    return measured(data, predictor) | of_training(data, found)


def device() -> str:
    """Return the name of the device that JAX runs on, with products in full single precision."""
    import jax

    jax.config.update("jax_default_matmul_precision", "float32")
    return str(jax.devices()[0].device_kind)


def of_contexts(name: str, what: str, seed: int) -> dict[str, Any]:
    """Return the row of the default network with a context of events."""
    data = data_of(name)
    return of_fit(in_context(data, CONTEXTS[what](data.frame["user"], data.frame["time"])), {}, {"seed": seed})


def of_later(name: str, network: str, seed: int) -> dict[str, Any]:
    """Return the row of a network that learns from the validation events too, once training has ended by them."""
    first, _, row = sequel(name, network, network, LATER, seed)
    return row | {"best_epoch": int(first.idata["fit"]["best_epoch"])}


def of_own(name: str, seed: int) -> dict[str, Any]:
    """Return the row of the default network from the weights of the pooled one, once the training of this has ended."""
    first, found, row = sequel(name, "pooled GRU, repeats", DEFAULT, BUDGET | OWN, seed)
    validation = data_of(name).validation
    return row | {
        "validation": baselines.nats(validation, predictor_of(validation, found)),
        "validation_events": float(found.idata["fit"]["held_out_nats"]),
        "best_epoch": sum(int(one.idata["fit"]["best_epoch"]) for one in (first, found)),
    }


def sequel(
    name: str, network: str, then: str, options: dict[str, Any], seed: int
) -> tuple[Trained, Trained, dict[str, Any]]:
    """Return a training to its end, one that goes on from its weights, and the figures of the test and seconds."""
    data = data_of(name)
    first = fitted(data, NETWORKS[network], BUDGET | {"seed": seed})
    found = fitted(data, NETWORKS[then], options | {"seed": seed}, first)
    row = measured(data, predictor_of(data.test, found))
    return first, found, row | {"seconds": first.seconds + found.seconds}


def of_variant(name: str, change: dict[str, Any]) -> dict[str, Any]:
    """Return nats of the validation events under other options; the test is left alone."""
    data = data_of(name)
    return of_training(data, fitted(data, change, BUDGET | {"seed": 0}))


def fitted(data: Split, change: dict[str, Any], options: dict[str, Any], start: Trained | None = None) -> Trained:
    """Train a network of an architecture and options that differ from the defaults."""
    architecture = {key: value for key, value in change.items() if key in ARCHITECTURE}
    others = {key: value for key, value in change.items() if key not in ARCHITECTURE}
    return trained(data.test, {"hidden": HIDDEN} | architecture, options | others, start)


def of_training(data: Split, found: Trained) -> dict[str, Any]:
    """Return what a training says of itself, and the validation events: their mean, and that over users of means."""
    fit = found.idata["fit"]
    return {
        "validation": baselines.nats(data.validation, predictor_of(data.validation, found)),
        "validation_events": float(fit["objective"].min()),
        "training": float(fit["training_nats"][int(fit["best_epoch"]) - 1]),
        "curves": [fit[which].values.round(4).tolist() for which in ("training_nats", "objective")],
        "best_epoch": int(fit["best_epoch"]),
        "epochs": int(fit["objective"].size),
        "seconds": found.seconds,
    }


def of_sasrec(name: str, python: str, seed: int, *, new: bool = False) -> dict[str, Any]:
    """Return the row of SASRec, which may be told that users choose new items alone."""
    data, found = data_of(name), sasrec(name, python, seed)
    predictor = softmax_of(found["states"], found["outputs"], found["bias"])
    return measured(data, of_new_items(data.test, predictor) if new else predictor) | {
        "validation_events": float(found["trace"].min()),
        "best_epoch": 1 + int(found["trace"].argmin()),
        "epochs": len(found["trace"]),
        "seconds": float(found["seconds"]),
        "torch": str(found["version"]),
    }


@cache
def sasrec(name: str, python: str, seed: int) -> dict[str, np.ndarray]:
    """Return states, item tables and losses of SASRec, trained once for the rows that differ in their predictions."""
    data = data_of(name)
    tail = np.array(list(map(len, data.validation.after)))
    return in_torch(python, data.test, tail, SASREC, seed)


def of_time(name: str, hidden: int, python: str | None) -> dict[str, Any]:
    """Return processor seconds of an epoch here and in PyTorch, from the same weights in the same order of users."""
    task = data_of(name).test
    row: dict[str, Any] = epoch_of(task, hidden, TIMED) | {"events": int(sum(map(len, task.before)))}
    if python:
        tail = np.zeros(len(task.before), dtype=np.int64)
        peer = in_torch(python, task, tail, TIMED | {"kind": "GRU", "hidden": hidden}, 0)
        row |= {"torch": float(peer["seconds"][1:].mean()), "torch_nats": peer["nats"].tolist()}
        row["version"] = str(peer["version"])
    return row


def of_single_users(name: str, hidden: int) -> dict[str, Any]:
    """Return processor seconds of an epoch in which each user makes a step of its own."""
    return epoch_of(data_of(name).test, hidden, TIMED | {"users_per_batch": 1})


def epoch_of(task: Task, hidden: int, options: dict[str, Any]) -> dict[str, Any]:
    """Return processor seconds of an epoch of the paper's network after the first, and nats of training."""
    n, options = int(options["epochs"]), options | {"held_out": 0, "seed": 0}
    one, all_of_them = (trained(task, PAPER | {"hidden": hidden}, options | {"epochs": k}) for k in (1, n))
    nats = all_of_them.idata["fit"]["training_nats"].values.tolist()
    return {"here": (all_of_them.seconds - one.seconds) / (n - 1), "nats": nats}


@cache
def default_network(name: str) -> Trained:
    """Return the default network."""
    return fitted(data_of(name), {}, BUDGET | {"seed": 0})


def of_sampled(name: str, n: int) -> dict[str, Any]:
    """Return nats of the validation events where windows sample items, and the bias of the loss of training."""
    data = data_of(name)
    found = fitted(data, {}, BUDGET | {"seed": 0, "sampled": n})
    return of_training(data, found) | {"bias": bias_of_sampling(data.test, default_network(name), n)}


def work(name: str, seeds: int, python: str | None, *, jax: bool) -> Iterator[tuple[str, Callable[[], dict[str, Any]]]]:
    """Yield the key and the measurement of each row of a data set."""
    for method in grids(data_of(name)):
        yield f"{name}: {method}", partial(of_baseline, name, method)
    for seed in range(seeds):
        for network in NETWORKS:
            yield f"{name}: {network}, seed {seed}", partial(of_network, name, network, seed, jax=jax)
        yield f"{name}: {AFTER_POOLED}, seed {seed}", partial(of_own, name, seed)
        yield f"{name}: C-GRU, later, seed {seed}", partial(of_later, name, "C-GRU", seed)
        if python:
            yield f"{name}: SASRec, seed {seed}", partial(of_sasrec, name, python, seed)
            if name in ONCE:
                yield f"{name}: {NEW_ITEMS}, seed {seed}", partial(of_sasrec, name, python, seed, new=True)
    if name == "foursquare-nyc":
        for hidden in SIZES:
            yield f"{name}: time, {hidden} units", partial(of_time, name, hidden, python)
            yield f"{name}: time, {hidden} units, single users", partial(of_single_users, name, hidden)
        for seed in range(seeds):
            for what in CONTEXTS:
                yield f"{name}: context {what}, seed {seed}", partial(of_contexts, name, what, seed)
        for n in SAMPLES:
            yield f"{name}: sampled={n}", partial(of_sampled, name, n)
    if name in VARIED:
        for change, settings in VARIANTS.items():
            yield f"{name}: {change}", partial(of_variant, name, settings)
