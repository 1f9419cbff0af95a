"""The variational Gaussian on bilinear models from end to end: options, points, solution."""

from collections.abc import Callable, Mapping, Sequence
from typing import Any

import numpy as np

from pymc_ep.engines.base import EngineEntry, check_whole, register_engine
from pymc_ep.engines.bilinear_bound import BilinearBound, Sides
from pymc_ep.engines.bilinear_rows import factored, independent
from pymc_ep.engines.checkpoint import Checkpoint
from pymc_ep.engines.loop import run
from pymc_ep.engines.saved import Saved
from pymc_ep.engines.solution import Solution
from pymc_ep.engines.unseen_rows import with_unseen
from pymc_ep.engines.vg import State, VariationalGaussian, first_state
from pymc_ep.forms.bilinear import Bilinear
from pymc_ep.forms.bilinear_posterior import BilinearPosterior
from pymc_ep.forms.compiled_bilinear import CompiledBilinear
from pymc_ep.kernels.inner_products import FactoredRows, Rows
from pymc_ep.sites.cells import CELL_SITES

__all__ = ["OPTIONS", "rebuild", "solve"]

OPTIONS = {"covariance": "diagonal", "estimate": (), "tol": 1e-6, "max_iter": 200, "seed": 0}
"""Options and their defaults."""
_BOUND = "lower bound on the log density of the data at the hyperparameters of the result, without their prior"
_WITH_POINTS = (
    "lower bound on the log density of the data and of the estimated {}, at the hyperparameters of the result"
)
_COVARIANCES = ("diagonal", "full")


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
    """Fit a bilinear form by a Gaussian of independent rows.

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
        first = _from_start(first, start, full=settings["covariance"] == "full")
    bound = BilinearBound(cells, form.n_factors, points)
    ascent = VariationalGaussian(
        bound,
        learn=hyper == "optimize",
        tol=settings["tol"],
        max_iter=settings["max_iter"],
        full=settings["covariance"] == "full",
    )
    engine = Saved(ascent, checkpoint, _saved)
    found = run(engine, form, first, max_iter=settings["max_iter"] + 1, report=report)
    engine.save(found.state, last=True)
    state = _saved(found.state)
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
    return BilinearPosterior(form, state["theta"], *_sides(state))


def _saved(state: State) -> dict[str, np.ndarray]:
    """Return the arrays that a posterior and a later start are made of."""
    sides = {"left": state.left, "right": state.right}
    return {f"{side}_{name}": part for side, rows in sides.items() for name, part in rows._asdict().items()} | {
        "theta": state.theta
    }


def _sides(saved: Mapping[str, np.ndarray]) -> Sides:
    """Return the matrices of which the arrays were saved."""
    kind = FactoredRows if "left_factor" in saved else Rows
    left, right = (kind(*(saved[f"{side}_{name}"] for name in kind._fields)) for side in ("left", "right"))
    return left, right


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


def _from_start(first: State, start: Mapping[str, np.ndarray], *, full: bool) -> State:
    """Return where an earlier fit ended, by covariances or without."""
    left, right = (factored(rows) if full else independent(rows) for rows in _sides(start))
    for side, own, rows in (("left", left, first.left), ("right", right, first.right)):
        if own.mean.shape != rows.mean.shape:
            raise ValueError(
                f"start= holds a {side} matrix of shape {own.mean.shape}, but the model's is {rows.mean.shape}; fit "
                f"without start=, or pass the hyperparameters alone as a dict."
            )
        if ((own.variance > 0) != (rows.variance > 0)).any():
            raise ValueError("start= is a fit with another estimate=; fit without start=, or with the same.")
    return first._replace(left=left, right=right)


def _checked(options: dict[str, Any]) -> dict[str, Any]:
    """Raise for options outside their range."""
    if options["covariance"] not in _COVARIANCES:
        raise ValueError(f"covariance={options['covariance']!r} is none of {', '.join(map(repr, _COVARIANCES))}.")
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
