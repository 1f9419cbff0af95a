"""Training of a recurrent network: options, start, fit, warnings."""

from collections.abc import Mapping
from typing import Any

import numpy as np

from pymc_ep.contracts.method import Call, Method
from pymc_ep.contracts.solution import Solution
from pymc_ep.engines.base import Status
from pymc_ep.engines.loop import Run, run
from pymc_ep.engines.options import check_least, check_positive, check_whole
from pymc_ep.exceptions import UnsupportedModelError, did_you_mean
from pymc_ep.models.sequences.compiled import CompiledSequences
from pymc_ep.models.sequences.engine.rules import RULES
from pymc_ep.models.sequences.engine.training import State, Training
from pymc_ep.models.sequences.engine.update import Settings
from pymc_ep.models.sequences.engine.values import Problem, first_learned
from pymc_ep.models.sequences.form import SequencesForm
from pymc_ep.models.sequences.kernel import Sequences, Weights
from pymc_ep.models.sequences.posterior import SequencesPosterior

__all__ = ["ML", "OPTIONS", "rebuild", "solve"]

OPTIONS: dict[str, Any] = {
    "epochs": 25,
    "batch": 128,
    "users_per_batch": 32,
    "patience": 3,
    "held_out": 0.05,
    "optimizer": "yogi",
    "learning_rate": 0.01,
    "clip": 1.0,
    "ridge": 1.0,
    "sampled": None,
    "dropout": 0.0,
    "dtype": "float64",
    "seed": 0,
}
"""Options and their defaults."""
_OF_ENGINE = ("batch", "users_per_batch", "epochs", "patience", "ridge", "sampled", "dropout", "seed")
_DTYPES = ("float64", "float32")
_FIRST_CONSTANT = -2.3
"""First constant in the logits of memories: each memory is at first as likely as a tenth of all items together. With a
first constant of zero, films that nobody sees twice (MovieLens 100k) cost 0.03 nats a later event more than without
memories, and with this constant no more (measured while known items had the logits of others)."""
_LEAST = 3
"""Smallest number of a user's events at which some of them are held out."""
_OBJECTIVE = "nats a held-out event after each epoch"
_WITHOUT = "nats a training event in each epoch, as no events are held out"


def solve(call: Call[CompiledSequences]) -> Solution:
    """Train the network of a form of sequences.

    Raises
    ------
    InvalidDataError
        For indices out of range and shapes of weights that do not belong together.
    ValueError
        For options out of range, and a start of another architecture.
    """
    form, settings = call.form, OPTIONS | call.options
    _check(settings)
    _require_body(form)
    sequences, _ = form.sequences()
    problem = _problem(form, sequences, settings)
    engine = Training(
        Settings(settings["optimizer"], float(settings["learning_rate"]), float(settings["clip"])),
        held_out=bool(problem.held_out.any()),
        jax=form.backend == "jax",
        **{name: settings[name] for name in _OF_ENGINE},
    )
    weights, shared = _first(form, settings) if call.start is None else _from_start(form, settings, call)
    start = first_learned(weights, with_first=RULES[settings["optimizer"]].first > 0), shared
    steps = 1 + settings["epochs"] * engine.groups(problem)
    training_run = run(engine, problem, start, max_iter=steps, report=call.report, record=call.checkpoint.record())
    return _solution(form, problem, engine, training_run, settings)


def _check(options: Mapping[str, Any]) -> None:
    for name in ("epochs", "batch", "users_per_batch", "patience"):
        check_whole(name, options[name])
    check_whole("seed", options["seed"], least=0)
    if options["sampled"] is not None:
        check_whole("sampled", options["sampled"])
    for name in ("learning_rate", "clip"):
        check_positive(name, options[name])
    for name in ("held_out", "dropout"):
        check_least(name, options[name], below=1.0)
    check_least("ridge", options["ridge"])
    for name, allowed in (("optimizer", tuple(RULES)), ("dtype", _DTYPES)):
        if options[name] not in allowed:
            raise ValueError(
                f"{name}={options[name]!r} must be one of {', '.join(map(repr, allowed))}."
                f"{did_you_mean(options[name], allowed)}"
            )


def _require_body(form: CompiledSequences) -> None:
    if form.backend not in ("auto", "numpy", "jax"):
        raise UnsupportedModelError(
            f"compile_kwargs= asks for {form.backend}; training of {form.form.sequences.name!r} has bodies in NumPy "
            f"and JAX alone; leave it out, or ask for {{'mode': 'JAX'}}."
        )


def _problem(form: CompiledSequences, sequences: Sequences, settings: Mapping[str, Any]) -> Problem:
    """Return the problem of the training: sequences, numbers of events before the held-out tails, and priors."""
    n = sequences.lengths
    tail = np.where(n >= _LEAST, np.ceil(float(settings["held_out"]) * n), 0).astype(np.int64)
    lengths = n - np.minimum(tail, n - 1)
    lengths[n == 0] = 0
    places = np.arange(len(sequences.items)) - np.repeat(sequences.ends[:-1], n)
    trained = sequences.items[places < np.repeat(lengths, n)]
    counts = np.maximum(1, np.bincount(trained, minlength=form.n_items))
    priors, of_shared = form.priors(settings["dtype"])
    return Problem(sequences, lengths, counts, form.initial, priors, of_shared)


def _first(form: CompiledSequences, settings: Mapping[str, Any]) -> tuple[Weights, np.ndarray]:
    """Return weights, drawn from N(0, 1 / D), and shared matrices, empty if there are none.

    Users' matrices equal the shared matrices. Biases and the constant of known items are zero, and the constant of
    memories is `_FIRST_CONSTANT`.
    """
    rng = np.random.default_rng(settings["seed"])
    recurrent, *others = form.shapes
    scale, dtype = recurrent[-1] ** -0.5, settings["dtype"]
    shared = np.zeros((0, 0, 0), dtype)
    if form.form.shared is not None:
        shared = (scale * rng.standard_normal(recurrent[1:])).astype(dtype)
        matrices = np.broadcast_to(shared, recurrent).copy()
    else:
        matrices = (scale * rng.standard_normal(recurrent)).astype(dtype)
    inputs, outputs, memory, known, bias = ((scale * rng.standard_normal(shape)).astype(dtype) for shape in others)
    memory[:, -1], known[-1:], bias[...] = _FIRST_CONSTANT, 0.0, 0.0
    return Weights(matrices[None] if form.pooled else matrices, inputs, outputs, memory, known, bias), shared


def _from_start(
    form: CompiledSequences, settings: Mapping[str, Any], call: Call[CompiledSequences]
) -> tuple[Weights, np.ndarray]:
    """Return the weights of an earlier fit, and shared matrices.

    Rows of new users and items have first values, and rows that the model no longer has are left out. Matrices of new
    users start at the shared matrices, if any. If the earlier fit has one set of matrices, all users start at these.

    Raises
    ------
    ValueError
        If the fit has another architecture, or other rows without labels.
    """
    start: dict[str, np.ndarray] = dict(call.start or {})
    weights, shared = _first(form, settings)
    one_set, of_users = start.get("recurrent"), weights.recurrent.shape
    name = form.form.recurrent.name
    if one_set is not None and one_set.shape == (1, *of_users[1:]) and call.start_rows(name) is None:
        start |= {"recurrent": np.broadcast_to(one_set, of_users), "shared": one_set[0] if shared.size else shared}
    about = start.get("shared", shared)
    if shared.size and about.shape == shared.shape:
        weights.recurrent[...] = about
    tables = {}
    for what, table in (weights._asdict() | {"shared": shared}).items():
        prior, saved = getattr(form.form, what), start.get(what)
        rows = None
        if prior is not None and saved is not None and what != "shared" and not (what == "recurrent" and form.pooled):
            rows = call.start_rows(prior.name)
        if saved is not None and rows is not None and saved.shape[1:] == table.shape[1:]:
            is_old = rows >= 0
            table[is_old] = saved[rows[is_old]]
            saved = table
        if saved is None or saved.shape != table.shape:
            name = what if prior is None else prior.name
            raise ValueError(
                f"start= holds {'nothing' if saved is None else f'an array of shape {saved.shape}'} as {name!r}, and "
                f"the network needs {table.shape}; give cell=, hidden=, spread=, bias=, pooled= and repeats= of that "
                f"fit, or fit without start=. Users and items may be others where both models have coordinates of them."
            )
        tables[what] = saved.astype(settings["dtype"])
    return Weights(*(tables[what] for what in Weights._fields)), tables["shared"]


def _solution(
    form: CompiledSequences, problem: Problem, engine: Training, training_run: Run[State], settings: dict[str, Any]
) -> Solution:
    state, trace = training_run.state, training_run.state.trace
    weights, shared = engine.result(problem, state)
    saved = weights._asdict() | {"shared": shared, "theta": form.start} | form.fingerprint()
    posterior = rebuild(form, saved)
    scalars: dict[str, Any] = {"n_iter": state.epoch, "best_epoch": state.best_epoch}
    if engine.held_out:
        scalars |= {"held_out_nats": state.best_nats, "n_held_out": int(problem.held_out.sum())}
    return Solution(
        moments=dict,
        modes=posterior.values(),
        scalars=scalars,
        traces={
            "objective": ("iteration", trace[:, 0]),
            "training_nats": ("iteration", trace[:, 1]),
            "max_change": ("iteration", np.abs(np.diff(trace[:, 0], prepend=state.first_nats))),
        },
        state=saved,
        draws=posterior.draws,
        numbers_per_draw=posterior.unknowns,
        most_draws=form.most_draws,
        status=_status(problem, training_run.status),
        converged=training_run.status.converged,
        settings=settings,
        objective_is=_OBJECTIVE if engine.held_out else _WITHOUT,
        max_change_is="change of the objective in an epoch",
    )


def _status(problem: Problem, status: Status) -> str:
    """Return the status with remarks on users of one event and items without events."""
    remarks = [status.sentence]
    sequences = problem.sequences
    if alone := int((sequences.lengths == 1).sum()):
        whose = "those that they started from" if problem.of_shared is None else "those that users share"
        remarks.append(
            f"{alone} of {len(sequences.lengths)} users have one event, which is predicted from the first state: their "
            f"matrices are {whose}"
        )
    if unmet := len(problem.item_counts) - len(np.unique(sequences.items)):
        remarks.append(f"{unmet} of {len(problem.item_counts)} items have no event, and inputs that they started from")
    remarks.append("weights are points, and draws of them all the same")
    return "; ".join(remarks)


def rebuild(form: CompiledSequences, state: Mapping[str, np.ndarray]) -> SequencesPosterior:
    """Return the point estimates that a saved ``fit_state`` describes."""
    return SequencesPosterior(form, Weights(*(state[what] for what in Weights._fields)), state["shared"])


ML = Method(
    "ml",
    SequencesForm,
    solve,
    rebuild,
    OPTIONS,
    ("fixed",),
    choose_hyper=lambda form, options, *, chains: ("fixed", Status(True, "")),
    changeable=("epochs",),
    jax=True,
)
