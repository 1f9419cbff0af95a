"""Variational Bayes on paired symbols: options, fit, warnings."""

from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from dataclasses import replace
from typing import Any

import numpy as np

from pymc_ep.contracts.cost import Cost
from pymc_ep.contracts.method import Call, Method
from pymc_ep.contracts.solution import Solution
from pymc_ep.engines.loop import Run, run
from pymc_ep.engines.options import check_flag, check_positive, check_whole, estimate_names
from pymc_ep.evidence import ManyFits
from pymc_ep.evidence.bound import BoundAt, BoundSampling, Maximum
from pymc_ep.evidence.fit_mixture import FitMixture, stacked, unstacked
from pymc_ep.exceptions import UnsupportedModelError
from pymc_ep.models.paired_symbols.compiled import CompiledPairedSymbols
from pymc_ep.models.paired_symbols.cost import cost_of
from pymc_ep.models.paired_symbols.engine.divided import DividedPairs
from pymc_ep.models.paired_symbols.engine.state import State, Summary, first_state
from pymc_ep.models.paired_symbols.engine.symmetric import SymmetricBayes
from pymc_ep.models.paired_symbols.engine.values import GammaFactor, PairCounts, Points, Popularity, Rows
from pymc_ep.models.paired_symbols.engine.variational_bayes import VariationalBayes
from pymc_ep.models.paired_symbols.form import PairedSymbolsForm
from pymc_ep.models.paired_symbols.kernel import Symbols
from pymc_ep.models.paired_symbols.methods.observed_pairs import observed_pairs
from pymc_ep.models.paired_symbols.posterior import PairedSymbolsPosterior

__all__ = ["OPTIONS", "PAIRED_VB", "rebuild", "solve"]

OPTIONS = {
    "estimate": (),
    "constant_messages": False,
    "calibrate": True,
    "partitions": None,
    "client": None,
    "update": "bulk",
    "dtype": "float64",
    "tol": 1e-6,
    "max_iter": 200,
    "seed": 0,
}
"""Options and their defaults."""
_UPDATES = ("bulk", "sequential")
_DTYPES = ("float64", "float32")
_BOUND = "lower bound on the log density of the stream of pairs and its censored pairs"
"""Description of the log evidence in the result."""
_WITH_POINTS = "lower bound on the log density of the stream of pairs, its censored pairs and the estimated {}"
"""Description of the log evidence with point estimates of some variables."""
_PRUNED = 1e-3
"""Root mean square of u_i^T v_j, at posterior means, below which all factors count as pruned: far below any effect."""
_CONSTANT = "constant_messages"
"""Name of the option, and of its value in ``fit_state``, by which new rows are updated like fitted ones."""
_SIDES = ("user", "item")


def solve(call: Call) -> Solution:
    """Fit a form of paired symbols.

    Raises
    ------
    InvalidDataError
        For observations outside their domain, and indices out of range.
    ValueError
        For options out of range.
    """
    form, settings = call.form, _checked(OPTIONS | call.options)
    estimated, points = _points(form, settings["estimate"], learned=call.hyper == "optimize")
    settings["estimate"] = estimated
    first = first_state(form.prior(call.theta), call.theta, settings["seed"], settings["dtype"], points)
    if call.start is not None:
        first = _from_start(form, first, call)
    divided = settings.pop("partitions"), settings.pop("client")
    with _engine(call, settings, points, *divided) as (engine, pairs):
        return _fitted(call, settings, engine, first, pairs)


@contextmanager
def _engine(
    call: Call[CompiledPairedSymbols], settings: dict[str, Any], points: tuple[Points, ...], *divided: Any
) -> Iterator[tuple[VariationalBayes, DividedPairs] | tuple[SymmetricBayes, PairCounts]]:
    """Provide the engine and its pairs; `divided` are the options ``partitions`` and ``client``, or None."""
    form = call.form
    engine_options = {
        "sequential": settings["update"] == "sequential",
        "constant_messages": settings["constant_messages"],
        "learn": call.hyper == "optimize",
        "tol": settings["tol"],
        "backend": form.backend,
    }
    if form.form.alike:
        _require_whole(form, *divided)
        pairs = form.pairs()
        yield SymmetricBayes(pairs, points=points[0], **engine_options), pairs
        return
    with observed_pairs(call, *divided) as divided_pairs:
        if divided_pairs.digest is not None:
            call.checkpoint.identify("set of pairs in files", divided_pairs.digest.tobytes().hex())
        yield VariationalBayes(divided_pairs, points=(points[0], points[1]), **engine_options), divided_pairs


def maximum_at(settings: dict[str, Any], form: CompiledPairedSymbols, theta: np.ndarray) -> Maximum:
    """Return the maximum of the bound at hyperparameters theta, (p,), as a fit with ``hyper="fixed"`` finds it.

    Only the expected log density of factors and biases depends on theta, and gives the gradient.
    """
    call = Call(form, theta, "fixed")
    _, points = _points(form, (), learned=False)
    first = first_state(form.prior(theta), theta, settings["seed"], settings["dtype"], points)
    with _engine(call, settings, points, None, None) as (engine, _):
        ascent, state, _ = _swept(call, settings, engine, first, calibrate=False)
    _, slope = form.expected_log_prior(theta, ascent.state.users.symbols, ascent.state.items.symbols, of_log_prior=0.0)
    return Maximum(ascent.state.log_bound, slope, ascent.status, state)


def _sampling_settings(form: CompiledPairedSymbols, options: dict[str, Any]) -> dict[str, Any]:
    """Return all options; raise where the bound is not maximised over all factors, and for pairs in files."""
    settings = _checked(OPTIONS | options)
    if named := _points(form, settings["estimate"], learned=False)[0]:
        raise UnsupportedModelError(
            f"estimate= makes points of {', '.join(map(repr, named))}, and at the best points for each value of the "
            f"hyperparameters the bound is no density of these; leave estimate= out, or use hyper='fixed'."
        )
    if settings[_CONSTANT]:
        raise ValueError(
            "constant_messages=True ends where the bound is not at its maximum, so that it is no density of the "
            "hyperparameters; leave that option out, or use hyper='fixed'."
        )
    if settings["partitions"] is not None or settings["client"] is not None:
        raise ValueError("hyper='sample' has all pairs in this process; leave partitions= and client= out.")
    return settings


def _cost(call: Call[CompiledPairedSymbols]) -> Cost:
    return cost_of(call.form, _checked(OPTIONS | call.options)["max_iter"])


def _require_whole(form: CompiledPairedSymbols, partitions: Any, client: Any) -> None:
    """Raise for pairs in files where both sides are the same symbols."""
    if partitions is not None or client is not None:
        raise ValueError(
            f"partitions= and client= are for pairs of two sides, and {form.form.pairs.name!r} pairs the rows of "
            f"{form.form.users.factors.name!r} with each other, which are updated in turn; give observed= the pairs."
        )


def _fitted(
    call: Call,
    settings: dict[str, Any],
    engine: VariationalBayes | SymmetricBayes,
    first: State,
    pairs: DividedPairs | PairCounts,
) -> Solution:
    """Return the solution of a run of the engine from its first state."""
    form = call.form
    ascent, state, summary = _swept(call, settings, engine, first, calibrate=settings["calibrate"])
    scalars = {} if summary.calibration is None else summary.calibration.scalars()
    solution = _solution(form, ascent, settings, pairs, state)
    return replace(solution, scalars=solution.scalars | scalars)


def _swept(
    call: Call,
    settings: dict[str, Any],
    engine: VariationalBayes | SymmetricBayes,
    first: State,
    *,
    calibrate: bool,
) -> tuple[Run[State], dict[str, np.ndarray], Summary]:
    """Return the finished run, the arrays from which its posterior is rebuilt, and the summary for predictions."""
    form, record = call.form, call.checkpoint.record()
    ascent = run(engine, form, first, max_iter=settings["max_iter"] + 1, report=call.report, record=record)
    # Before the first sweep popularities know nothing of the pairs.
    summary = engine.summarised(form, ascent.state, calibrate=calibrate and ascent.state.loop > 0)
    ascent = ascent._replace(state=engine.whole(ascent.state))
    state = saved(ascent.state) | {
        _CONSTANT: np.array(settings[_CONSTANT]),
        "n_censored": np.array(form.prior(ascent.state.theta).censored_ratio * engine.total),
        "log_normalisers": np.array(summary.log_normalisers),
    }
    if summary.calibration is not None:
        state["calibration"] = np.array(summary.calibration[:3])
    return ascent, state, summary


def _checked(options: dict[str, Any]) -> dict[str, Any]:
    check_positive("tol", options["tol"])
    for name, allowed in (("update", _UPDATES), ("dtype", _DTYPES)):
        if options[name] not in allowed:
            raise ValueError(f"{name}={options[name]!r} must be one of {', '.join(map(repr, allowed))}.")
    for name in ("constant_messages", "calibrate"):
        check_flag(name, options[name])
    check_whole("max_iter", options["max_iter"])
    check_whole("seed", options["seed"], least=0)
    return options | {"tol": float(options["tol"])}


def _points(form: CompiledPairedSymbols, estimate: Any, *, learned: bool) -> tuple[tuple[str, ...], tuple[Points, ...]]:
    """Return the names of point estimates, and for each side whether factors and biases are points.

    Raises
    ------
    ValueError
        For names of no matrix or bias, and for scales that are learned: the density of a point and of its scale is
        largest where the scale is zero.
    """
    named = estimate_names(estimate, [entries.name for entries in form.form.entries if entries.name])
    for entries in form.form.entries:
        scale = form.scale_of(entries) if entries.name in named else ""
        if scale and (entries.learned >= 0 or learned):
            raise ValueError(
                f"estimate= makes points of {entries.name!r}, whose scale {scale!r} is to be learned, and the density "
                f"of both together is largest where scales are zero: give {entries.name!r} a scale that is a number, "
                f"or leave it out of estimate=."
            )
    return named, tuple(Points(side.factors.name in named, side.bias.name in named) for side in form.form.sides)


def _solution(
    form: CompiledPairedSymbols,
    ascent: Run[State],
    settings: dict[str, Any],
    pairs: DividedPairs | PairCounts,
    state: dict[str, np.ndarray],
) -> Solution:
    """Return the solution, given the arrays from which its posterior is rebuilt."""
    estimated = settings["estimate"]
    posterior = _rebuilt(form, state)
    moments = {name: (m.mean, m.sd) for name, m in posterior.moments().items()}
    of_hyper = {name: (m.mean, m.sd) for name, m in posterior.hyper_moments().items()}
    return Solution(
        moments=lambda: moments | of_hyper,
        hyper_modes=form.constrained(ascent.state.theta),
        scalars={"log_evidence": ascent.state.log_bound, "n_iter": ascent.state.loop, "xi": ascent.state.xi},
        traces={"objective": ("iteration", ascent.objective), "max_change": ("iteration", ascent.change)},
        hyper_traces=form.constrained(ascent.thetas),
        sites={
            side.popularity: {"pairs": counts, "censored": popularity.censored}
            for side, counts, popularity in zip(form.form.sides, (pairs.users, pairs.items), posterior.popularities)
        },
        state=state | form.fingerprint(ascent.state.theta),
        draws=posterior.draws,
        numbers_per_draw=sum(mean.size for mean, _ in moments.values()),
        most_draws=form.most_draws,
        status=_status(form, ascent, pairs),
        converged=ascent.status.converged,
        settings=settings,
        log_evidence_is=_WITH_POINTS.format(", ".join(estimated)) if estimated else _BOUND,
        objective_is="bound + log prior",
        max_change_is="rise of the bound, a pair",
    )


def _conditional_solution(form: CompiledPairedSymbols, fits: ManyFits[BoundAt], settings: dict[str, Any]) -> Solution:
    """Return the solution of a mixture over draws of the hyperparameters, without a log evidence."""
    theta, state = fits.centre.theta, fits.centre.maximum.saved | stacked(fits.kept)
    posterior = rebuild(form, state)
    assert isinstance(posterior, FitMixture), "its state has fits at draws"
    moments = {name: (m.mean, m.sd) for name, m in (posterior.moments() | posterior.hyper_moments()).items()}
    return Solution(
        moments=lambda: moments,
        hyper_modes=form.constrained(theta),
        state=state | form.fingerprint(theta),
        draws=posterior.in_turn,
        numbers_per_draw=sum(mean.size for mean, _ in moments.values()),
        most_draws=form.most_draws,
        status=fits.sentence("factors"),
        converged=fits.converged,
        settings={name: value for name, value in settings.items() if name not in ("partitions", "client")},
    )


def _status(form: CompiledPairedSymbols, ascent: Run[State], pairs: DividedPairs | PairCounts) -> str:
    """Return the status with remarks on rows without pairs, pruned factors and standard deviations."""
    remarks = [ascent.status.sentence]
    for side, counts in zip(form.form.sides, (pairs.users, pairs.items)):
        if none := int((counts == 0).sum()):
            remarks.append(f"{none} of {len(counts)} rows of {side.factors.name!r} have no pair")
    state = ascent.state
    squares = [(rows.symbols.mean.astype(float) ** 2).mean(axis=0) for rows in (state.users, state.items)]
    # Mean square of E u^T E v without cross terms: sum_k (mean_i (E u_ik)^2) (mean_j (E v_jk)^2).
    if float(np.sqrt(squares[0] @ squares[1])) < _PRUNED:
        remarks.append(
            "every factor is pruned, as the pairs say less of preferences than it costs to describe them: all is "
            "popularity and bias. Observe more pairs, raise censored_ratio, or narrow the priors"
        )
    n_users, n_items, width = form.shapes
    if width > (least := min(n_users, n_items)):
        remarks.append(f"of {width} factors no more than {least} can matter to a matrix with a side of {least}")
    remarks.append("standard deviations are those of independent factors, which are too small")
    if ascent.state.theta.size:
        remarks.append(form.form.mode_remark)
    return "; ".join(remarks)


def saved(state: State) -> dict[str, np.ndarray]:
    """Return the arrays of a state from which a posterior is rebuilt and a later fit starts."""
    out = {"theta": state.theta, "xi": np.array(state.xi)}
    for name, (symbols, popularity) in zip(_SIDES, state.sides):
        fields = symbols._asdict() | popularity._asdict()
        out |= {f"{name}_{field}": values for field, values in fields.items()}
    for k, gamma in enumerate(state.gammas):
        out |= {f"precision_{k}_{field}": np.asarray(values) for field, values in gamma._asdict().items()}
    return out


def rebuild(
    form: CompiledPairedSymbols, state: Mapping[str, np.ndarray]
) -> PairedSymbolsPosterior | FitMixture[PairedSymbolsPosterior]:
    """Return the posterior that a saved ``fit_state`` describes."""
    centre, components = _rebuilt(form, state), [_rebuilt(form, draw) for draw in unstacked(state)]
    return FitMixture(centre, components) if components else centre


def _rebuilt(form: CompiledPairedSymbols, state: Mapping[str, np.ndarray]) -> PairedSymbolsPosterior:
    rows = [_rows(state, name) for name, _ in zip(_SIDES, form.form.sides)]
    users, items = rows[0], rows[-1]
    gammas: list[GammaFactor] = []
    while f"precision_{len(gammas)}_shape" in state:
        k = len(gammas)
        gammas.append(GammaFactor(state[f"precision_{k}_shape"], state[f"precision_{k}_rate"]))
    of_users, of_items = map(float, state["log_normalisers"])
    return PairedSymbolsPosterior(
        form,
        state["theta"],
        (users.symbols, items.symbols),
        (users.popularity, items.popularity),
        tuple(gammas),
        float(state["xi"]),
        bool(state[_CONSTANT]),
        float(state["n_censored"]),
        (of_users, of_items),
        tuple(map(float, state["calibration"])) if "calibration" in state else None,
    )


def _rows(state: Mapping[str, np.ndarray], name: str) -> Rows:
    symbols = Symbols(*(state[f"{name}_{field}"] for field in Symbols._fields))
    return Rows(symbols, Popularity(*(state[f"{name}_{field}"] for field in Popularity._fields)))


def _from_start(form: CompiledPairedSymbols, first: State, call: Call[Any]) -> State:
    """Return the first state with the values of the earlier fit ``call.start``.

    New rows keep their first values, and rows that the model no longer has are left out.

    Raises
    ------
    ValueError
        If the fit has another number of factors or other precisions, other rows without labels, or another
        ``estimate=``.
    """
    start, fields = dict(call.start or {}), saved(first)
    for name, side in zip(_SIDES, form.form.sides):
        rows = call.start_rows(side.factors.name)
        if rows is not None:
            keys = [field for field in fields if field.startswith(f"{name}_")]
            start |= {field: _placed(fields[field], start[field], rows) for field in keys if field in start}
    for name, values in fields.items():
        if name not in start or np.shape(start[name]) != np.shape(values):
            held = f"an array of shape {np.shape(start[name])}" if name in start else "no array"
            raise ValueError(
                f"start= holds {held} as {name!r}, and the model needs one of shape {np.shape(values)}; give rows "
                f"labels by coords= if these have changed, fit without start=, or pass the hyperparameters alone as a "
                f"dict."
            )
    for name, _ in zip(_SIDES, form.form.sides):
        for field in ("variance", "bias_variance"):
            if bool(np.any(start[f"{name}_{field}"])) != bool(np.any(fields[f"{name}_{field}"])):
                raise ValueError("start= is a fit with another estimate=; fit without it, or with the same.")
    return _state(first, start)


def _placed(first: np.ndarray, before: np.ndarray, rows: np.ndarray) -> np.ndarray:
    """Return `first` with row rows[i] of `before` as row i, unchanged where rows[i] = -1; `before` if widths differ."""
    if before.shape[1:] != first.shape[1:]:
        return before
    out, fitted = first.copy(), rows >= 0
    out[fitted] = before[rows[fitted]]
    return out


def _state(first: State, start: Mapping[str, np.ndarray]) -> State:
    """Return the first state with the saved arrays of `start` instead of its own."""
    dtype, sides = first.items.symbols.mean.dtype, []
    for name, _ in zip(_SIDES, first.sides):
        symbols, popularity = _rows(start, name)
        # Shares of rows that are new or gone leave the others' with another sum.
        popularity = popularity._replace(censored=popularity.censored / popularity.censored.sum())
        sides.append(Rows(Symbols(*(array.astype(dtype) for array in symbols)), popularity))
    gammas = tuple(
        GammaFactor(start[f"precision_{k}_shape"], start[f"precision_{k}_rate"]) for k in range(len(first.gammas))
    )
    return first._replace(
        users=sides[0],
        items=sides[-1],
        gammas=gammas,
        theta=start["theta"],
        xi=float(start["xi"]),
    )


_SAMPLING = BoundSampling(_sampling_settings, maximum_at, _conditional_solution)
PAIRED_VB = Method(
    "paired_vb",
    PairedSymbolsForm,
    solve,
    rebuild,
    OPTIONS,
    ("optimize", "fixed", "sample"),
    evidence_op=_SAMPLING.evidence_op,
    condition=_SAMPLING.condition,
    # Pairs in files are known by what they are.
    cost=_cost,
    changeable=("max_iter", "partitions"),
    jax=True,
)
