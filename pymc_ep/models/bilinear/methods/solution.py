"""Options, starts and solutions shared by the methods for bilinear forms."""

from collections.abc import Mapping, Sequence
from typing import Any

import numpy as np

from pymc_ep.contracts.solution import Solution
from pymc_ep.engines.loop import Run
from pymc_ep.engines.options import check_positive, check_whole
from pymc_ep.evidence import ManyFits
from pymc_ep.evidence.bound import BoundAt
from pymc_ep.evidence.fit_mixture import stacked, unstacked
from pymc_ep.models.bilinear.compiled import CompiledBilinear
from pymc_ep.models.bilinear.engine import singular_value_shrinkage, variational_gaussian
from pymc_ep.models.bilinear.engine.bound import Sides
from pymc_ep.models.bilinear.engine.values import Cells
from pymc_ep.models.bilinear.form import Bilinear
from pymc_ep.models.bilinear.kernel import FactoredRows, Rows
from pymc_ep.models.bilinear.posterior import BilinearMixture, BilinearPosterior

__all__ = [
    "BOUND",
    "bilinear_solution",
    "checked",
    "conditional_solution",
    "rebuild",
    "saved",
    "started_sides",
    "with_unseen_rows",
]

BOUND = "lower bound on the log density of the data at the hyperparameters of the result, without their prior"
"""Description of the log evidence in the result."""
_LEARNED = ("left_prior_variance", "right_prior_variance")
"""Entries of ``fit_state`` for learned prior variances of columns."""


def bilinear_solution(
    form: CompiledBilinear,
    end: Run,
    settings: dict[str, Any],
    log_evidence_is: str,
    *,
    points: bool,
    learned: bool,
    prior_variances: Sequence[np.ndarray] | None = None,
) -> Solution:
    """Return the solution at the end of an iteration.

    Parameters
    ----------
    form : CompiledBilinear
    end : Run
        End of the iteration; its state has ``sides``, ``theta``, ``log_bound`` and ``loop``.
    settings : dict
        Options in force.
    log_evidence_is : str
        Description of the log evidence.
    points : bool
        Whether all rows are point estimates, so that the objective is a log density.
    learned : bool
        Whether hyperparameters were learned, and so are at their mode.
    prior_variances : (D,) and (D,), optional
        Learned prior variances of the columns of either matrix, if any, which replace the model's.
    """
    state = saved(end.state, prior_variances)
    posterior, objective = _rebuilt(form, state), "log density" if points else "bound"
    predictor, shape = posterior.predictor_moments(), form.observed()[0].shape
    constant = form.constrained(end.state.theta)
    moments = {name: (m.mean, m.sd) for name, m in posterior.moments().items()}
    of_hyper = {name: (m.mean, m.sd) for name, m in posterior.hyper_moments().items()}
    return Solution(
        moments=lambda: moments | of_hyper,
        hyper_modes=constant,
        scalars={"log_evidence": end.state.log_bound, "n_iter": end.state.loop},
        traces={"objective": ("iteration", end.objective), "max_change": ("iteration", end.change)},
        hyper_traces=form.constrained(end.thetas),
        sites={
            form.form.cells.name: {
                "predictor_mean": predictor.mean.reshape(shape),
                "predictor_sd": predictor.sd.reshape(shape),
            }
        },
        state=state | form.fingerprint(end.state.theta),
        draws=posterior.draws,
        numbers_per_draw=sum(mean.size for mean, _ in moments.values()),
        most_draws=form.most_draws,
        status="; ".join([end.status.sentence, *([form.form.mode_remark] if learned and constant else [])]),
        converged=end.status.converged,
        settings=settings,
        log_evidence_is=log_evidence_is,
        objective_is=f"{objective} + log prior",
        max_change_is=f"rise of the {objective}, a cell",
    )


def conditional_solution(form: CompiledBilinear, fits: ManyFits[BoundAt], settings: dict[str, Any]) -> Solution:
    """Return the solution of a mixture over draws of the hyperparameters, without a log evidence."""
    theta, state = fits.centre.theta, dict(fits.centre.maximum.saved) | stacked(fits.kept)
    posterior = rebuild(form, state)
    assert isinstance(posterior, BilinearMixture), "its state has fits at draws"
    predictor, shape = posterior.predictor_moments(), form.observed()[0].shape
    moments = {name: (m.mean, m.sd) for name, m in (posterior.moments() | posterior.hyper_moments()).items()}
    return Solution(
        moments=lambda: moments,
        hyper_modes=form.constrained(theta),
        sites={
            form.form.cells.name: {
                "predictor_mean": predictor.mean.reshape(shape),
                "predictor_sd": predictor.sd.reshape(shape),
            }
        },
        state=state | form.fingerprint(theta),
        draws=posterior.in_turn,
        numbers_per_draw=sum(mean.size for mean, _ in moments.values()),
        most_draws=form.most_draws,
        status=fits.sentence("rows"),
        converged=fits.converged,
        settings=settings,
    )


def saved(
    state: variational_gaussian.State | singular_value_shrinkage.State,
    prior_variances: Sequence[np.ndarray] | None = None,
) -> dict[str, np.ndarray]:
    """Return the arrays of a state, and learned prior variances, from which a posterior is rebuilt."""
    sides = zip(("left", "right"), state.sides)
    arrays = {f"{side}_{name}": array for side, rows in sides for name, array in rows._asdict().items()}
    learned = {} if prior_variances is None else dict(zip(_LEARNED, prior_variances))
    return arrays | learned | {"theta": state.theta}


def rebuild(form: CompiledBilinear, state: Mapping[str, np.ndarray]) -> BilinearPosterior | BilinearMixture:
    """Return the posterior that a saved ``fit_state`` describes."""
    centre, components = _rebuilt(form, state), [_rebuilt(form, draw_state) for draw_state in unstacked(state)]
    return BilinearMixture(centre, components) if components else centre


def _rebuilt(form: CompiledBilinear, state: Mapping[str, np.ndarray]) -> BilinearPosterior:
    learned = [state[name] for name in _LEARNED] if _LEARNED[0] in state else None
    return BilinearPosterior(form, state["theta"], *_sides(state), learned)


def started_sides(first: Sides, start: Mapping[str, np.ndarray]) -> Sides:
    """Return the rows of an earlier fit; raise unless they have the shapes of `first`."""
    sides = _sides(start)
    for side, held, rows in zip(("left", "right"), sides, first):
        if held.mean.shape != rows.mean.shape:
            raise ValueError(
                f"start= holds a {side} matrix of shape {held.mean.shape}, but the model's is {rows.mean.shape}; fit "
                f"without start=, or pass the hyperparameters alone as a dict."
            )
    return sides


def _sides(arrays: Mapping[str, np.ndarray]) -> Sides:
    """Return both matrices from their saved arrays."""
    kind = FactoredRows if "left_factor" in arrays else Rows
    left, right = (kind(*(arrays[f"{side}_{name}"] for name in kind._fields)) for side in ("left", "right"))
    return left, right


def checked(options: dict[str, Any], form: Bilinear, hyper: str) -> dict[str, Any]:
    """Return the options, after checks of the ones that all methods for bilinear forms share.

    Raises
    ------
    ValueError
        For options out of range, and if a hyperparameter to be learned is the prior scale of another.
    """
    check_positive("tol", options["tol"])
    check_whole("max_iter", options["max_iter"])
    check_whole("seed", options["seed"], least=0)
    if hyper == "optimize" and form.nested:
        (name, scale), *_ = form.nested.items()
        raise ValueError(
            f"{name!r} is held at its mode, and its scale {scale!r} is to be learned, but the density of both together "
            f"is largest where the scale is zero. Hold the scale by hyper='fixed', at another value than the model's "
            f"initial point by start={{{scale!r}: ...}}, give it a number, or use pm.sample; of vectors, those that "
            f"are added as b[rows] to inner products of rows are integrated out."
        )
    return options | {"tol": float(options["tol"])}


def with_unseen_rows(
    sentence: str, form: CompiledBilinear, cells: Cells, proper: str = "have their prior as posterior"
) -> str:
    """Return `sentence` with a remark on rows without a cell, if there are any: their number and posterior."""
    remarks = [sentence]
    for matrix, pairs in zip(form.form.matrices, (cells.by_left, cells.by_right)):
        counts = np.diff(pairs.ends)
        if unseen := int((counts == 0).sum()):
            # A flat prior has no mode.
            where = "are where they started, as its prior is flat" if matrix.flat else proper
            remarks.append(f"{unseen} of {len(counts)} rows of {matrix.name!r} have no cell and {where}")
    return "; ".join(remarks)
