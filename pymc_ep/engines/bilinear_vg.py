"""The variational Gaussian on bilinear models from end to end: options, points, solution."""

from collections.abc import Callable, Mapping, Sequence
from typing import Any

import numpy as np

from pymc_ep.engines.base import EngineEntry, check_whole, register_engine
from pymc_ep.engines.bilinear_bound import BilinearBound
from pymc_ep.engines.checkpoint import Checkpoint
from pymc_ep.engines.loop import run
from pymc_ep.engines.saved import Saved
from pymc_ep.engines.solution import Solution
from pymc_ep.engines.unseen_rows import with_unseen
from pymc_ep.engines.vg import State, VariationalGaussian, first_state
from pymc_ep.forms.bilinear import Bilinear
from pymc_ep.forms.bilinear_posterior import BilinearPosterior
from pymc_ep.forms.compiled_bilinear import CompiledBilinear
from pymc_ep.kernels.inner_products import Rows
from pymc_ep.sites.cells import CELL_SITES

__all__ = ["OPTIONS", "rebuild", "solve"]

OPTIONS = {"estimate": (), "tol": 1e-6, "max_iter": 200, "seed": 0}
"""Options and their defaults."""
_BOUND = "lower bound on the log density of the data at the hyperparameters of the result, without their prior"
_WITH_POINTS = (
    "lower bound on the log density of the data and of the estimated {}, at the hyperparameters of the result"
)
_SAVED = ("left_mean", "left_variance", "right_mean", "right_variance", "theta")


def solve(
    form: CompiledBilinear,
    *,
    hyper: str,
    theta: np.ndarray,
    start: dict[str, np.ndarray] | None,
    options: dict[str, Any],
    report: Callable[[float, float], None] | None = None,
    checkpoint: Checkpoint | None = None,
) -> Solution:
    """Fit a bilinear form by a Gaussian of independent entries.

    Parameters
    ----------
    form : CompiledBilinear
    hyper : {"optimize", "fixed"}
    theta : ndarray, (p,)
        Unconstrained hyperparameters to start from, or to stay at.
    start : dict, optional
        ``fit_state`` of an earlier fit.
    options : dict
        Overrides of `OPTIONS`.
    report : callable, optional
        Called in each step with objective and change.
    checkpoint : Checkpoint, optional
        Receives the state at intervals.

    Raises
    ------
    InvalidDataError
        For observations that cannot be, and for rows that there are not.
    ValueError
        For options that cannot be, such as points with a scale that is learned.
    """
    settings = _checked(OPTIONS | options)
    estimated, points = _points(form.form, settings["estimate"], form.n_factors)
    settings["estimate"] = estimated
    if hyper == "optimize" and (scales := form.scales_of(estimated)):
        raise ValueError(
            f"estimate= makes points of {', '.join(map(repr, estimated))}, whose scale {scales[0]!r} is to be learned, "
            f"and the density of both together is largest where scales are zero: hold it by hyper='fixed', at another "
            f"value than the model's initial point by start={{{scales[0]!r}: ...}}, or leave them out of estimate=."
        )
    cells, prior = form.cells(), form.prior(theta)
    first = first_state(prior, form.n_factors, points, theta, settings["seed"])
    if start is not None:
        first = _from_start(first, start)
    bound = BilinearBound(cells, form.n_factors, points)
    ascent = VariationalGaussian(bound, learn=hyper == "optimize", tol=settings["tol"], max_iter=settings["max_iter"])
    engine = Saved(ascent, checkpoint, _SAVED)
    found = run(engine, form, first, max_iter=settings["max_iter"] + 1, report=report)
    engine.save(found.state, last=True)
    state = engine.saved(found.state)
    posterior = rebuild(form, state)
    predictor = posterior.predictor_moments()
    constant = form.constrained(found.state.theta)
    moments = {name: (m.mean, m.sd) for name, m in posterior.moments().items()}
    return Solution(
        moments=moments | {name: (value, np.zeros_like(value)) for name, value in constant.items()},
        hyper_modes=constant,
        scalars={"log_evidence": found.state.log_bound, "n_iter": found.state.loop},
        traces={"objective": ("iteration", found.objective), "max_change": ("iteration", found.change)},
        hyper_traces=form.constrained(np.array(engine.thetas)),
        sites={form.form.cells.name: {"predictor_mean": predictor.mean, "predictor_sd": predictor.sd}},
        state=state,
        draws=posterior.draws,
        numbers_per_draw=sum(mean.size for mean, _ in moments.values()),
        most_draws=form.most_draws,
        status=with_unseen(found.status.sentence, form, cells),
        converged=found.status.converged,
        settings=settings,
        log_evidence_is=_WITH_POINTS.format(", ".join(estimated)) if estimated else _BOUND,
    )


def rebuild(form: CompiledBilinear, state: Mapping[str, np.ndarray]) -> BilinearPosterior:
    """Return the posterior that a saved ``fit_state`` describes."""
    left, right = (Rows(state[f"{side}_mean"], state[f"{side}_variance"]) for side in ("left", "right"))
    return BilinearPosterior(form, state["theta"], left, right)


def _points(form: Bilinear, estimate: Sequence[str], d: int) -> tuple[tuple[str, ...], tuple[np.ndarray, np.ndarray]]:
    """Return the names of what is estimated, and which columns of either side that is."""
    named = (estimate,) if isinstance(estimate, str) else tuple(estimate)
    unknown = [name for name in named if name not in form.latent_names]
    if unknown:
        raise ValueError(
            f"estimate= names {unknown[0]!r}, which is neither a matrix nor a bias of this model; these are "
            f"{', '.join(form.latent_names)}."
        )
    # A flat prior gives no posterior that is proper for sure.
    estimated = tuple(one.name for one in form.entries if one.flat or one.name in named)
    columns = []
    for matrix, bias in zip(form.matrices, form.biases):
        own = [matrix.name in estimated] * d
        columns.append(np.array([*own, *([] if bias is None else [bias.name in estimated])]))
    return estimated, (columns[0], columns[1])


def _from_start(first: State, start: Mapping[str, np.ndarray]) -> State:
    """Return where an earlier fit ended."""
    known = {name: start[name] for name in _SAVED if name != "theta"}
    for name, value in known.items():
        if value.shape != (shape := getattr(first, name).shape):
            raise ValueError(
                f"start= holds a {name.replace('_', ' ')} of shape {value.shape}, but the model's is {shape}; fit "
                f"without start=, or pass the hyperparameters alone as a dict."
            )
        if name.endswith("variance") and ((value > 0) != (getattr(first, name) > 0)).any():
            raise ValueError("start= is a fit with another estimate=; fit without start=, or with the same.")
    left, right = (Rows(known[f"{side}_mean"], known[f"{side}_variance"]) for side in ("left", "right"))
    return first.with_sides(left, right)


def _checked(options: dict[str, Any]) -> dict[str, Any]:
    """Raise for options outside their range."""
    if not (isinstance(options["tol"], int | float) and options["tol"] > 0):
        raise ValueError(f"tol={options['tol']!r} must be positive.")
    check_whole("max_iter", options["max_iter"])
    return options


register_engine(
    EngineEntry(
        "vg",
        Bilinear,
        solve,
        rebuild,
        OPTIONS,
        ("optimize", "fixed"),
        takes=lambda site: isinstance(site, CELL_SITES),
    )
)
