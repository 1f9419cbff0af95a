"""Log evidence by EP of a form with univariate sites, and its exact gradient in the hyperparameters."""

from collections.abc import Callable, Sequence
from typing import Any, TypeVar

import numpy as np

from pymc_ep.contracts.evidence import DesignPoint, FitState, LogEvidence, nearest_points
from pymc_ep.contracts.form import CompiledSiteForm
from pymc_ep.engines.base import Report
from pymc_ep.engines.checkpoint import Checkpoint
from pymc_ep.engines.interrupt import Interrupted
from pymc_ep.engines.loop import run
from pymc_ep.engines.options import require_parallel
from pymc_ep.engines.prior import Prior
from pymc_ep.evidence.budget import choose, fits_of
from pymc_ep.evidence.ep.cavities import FLAT, cavities
from pymc_ep.evidence.ep.cumulants import (
    SAMPLE,
    SHIFTED,
    correction_at,
    cumulants_at,
    why_no_correction,
)
from pymc_ep.evidence.ep.directions import MOST_ROWS, Directions, directions_at
from pymc_ep.evidence.ep.engine import EP
from pymc_ep.evidence.ep.fit import EvidenceAt, KeptFit, Shape
from pymc_ep.evidence.ep.interpolated_sites import InterpolatedSites, error_between
from pymc_ep.evidence.ep.lost_digits import LostDigits
from pymc_ep.evidence.ep.peaks import Peaks, find_peaks
from pymc_ep.evidence.ep.prior_checks import prior_at, require_covariance, require_finite_prior
from pymc_ep.evidence.ep.repeats import Repeats, repeats_at
from pymc_ep.evidence.ep.run_status import explained
from pymc_ep.evidence.ep.shape import shape_at, shape_of_two, used_skewness
from pymc_ep.evidence.ep.sweep import Kinds, group_slices
from pymc_ep.evidence.mode import hyper_names_of
from pymc_ep.exceptions import ImpossibleDensityError, InvalidDataError, NumericalError
from pymc_ep.sites.rows_of_many import number_of_rows

__all__ = ["Evidence", "evidence_of"]

Value = TypeVar("Value")
"""Type of what is computed from a fit."""

_MOST_ROUNDING = 1e-6
"""Rounding error of posterior moments, in standard deviations, above which ``solver="auto"`` changes to the
representation that loses no digits. With a smaller limit sweeps would take up to five times as long, for digits that
nobody reads."""
_BETWEEN = 6
"""Number of nearest fits between which the start of the next one is interpolated, divided by p + 1, with p
hyperparameters. A field of 10^4 areas took 2.0 sweeps a fit from such starts, and 3.0 from the state of the nearest
fit."""
_MOST_CORRECTED = 500
"""Most predictors for which every fit has a correction. A correction costs a term for each pair of predictors: for 2000
predictors as much as a fit."""


def evidence_of(form: CompiledSiteForm, settings: dict[str, Any], **others: Any) -> "Evidence":
    """Return the evidence of a form by EP with the options `settings`; `others` are arguments of `Evidence`.

    The option ``power="auto"`` is 1 here: only a fit shows whether it needs another power.
    """
    power = 1.0 if settings["power"] == "auto" else settings["power"]
    engine = EP(form.sites, power=power, **{k: settings[k] for k in ("damping", "tol", "schedule")})
    form.solve_in(settings["solver"])
    exact = form.solver.exact if settings["solver"] == "auto" else ""
    return Evidence(form, engine, settings["max_iter"], exact=exact, **others)


class Evidence(LogEvidence[EvidenceAt]):
    """log Z(theta) + log p(theta) by a converged fit at each theta; see `pymc_ep.contracts.LogEvidence`.

    Parameters
    ----------
    form : CompiledSiteForm
    engine : EP
    max_iter : int
        Largest number of iterations of one fit.
    report : Report, optional
        Called in each iteration with log evidence and change.
    checkpoint : Checkpoint, optional
        Stores the state of each fit, by `grid` and the fit's hyperparameters and start.
    grid : str
        Name by which the checkpoint tells several forms of one call apart.
    density : {"natural", "unconstrained", "none"}
        See `LogEvidence`.
    exact : str
        Name of the prior's representation that loses no digits: where rounding limits the form's own, `at` raises a
        `LostDigits` with this name. Empty to accept rounding.

    Raises
    ------
    InvalidDataError
        Where an observation lies outside the domain of its site, or lengths do not agree.
    UnsupportedModelError
        Where sites that depend on each other are to be updated one after another.
    """

    form: CompiledSiteForm

    def __init__(
        self,
        form: CompiledSiteForm,
        engine: EP,
        max_iter: int,
        report: Report | None = None,
        checkpoint: Checkpoint | None = None,
        *,
        grid: str = "",
        density: str = "natural",
        exact: str = "",
    ):
        super().__init__(form, report, density=density)
        self.engine = engine
        self.max_iter = max_iter
        self.checkpoint = checkpoint or Checkpoint()
        self.grid = grid
        self.exact = exact
        self.joint = any(factor.site.predictors > 1 for factor in form.form.factors)
        """Whether any sites have several predictors."""
        self.start: FitState | None = None
        """Sites, (n,) each, at which fits without a start begin; None for the form's own first sites."""
        self._checked = False
        if engine.schedule == "sequential":
            require_parallel(form.form.factors)
        for group, y in zip(form.form.factors, form.observed()):
            if y.size == 0:
                raise InvalidDataError(f"{group.name!r} has no observations; pass at least one.")
            group.site.validate(y, group.name)
        self.observed = tuple(form.residuals())
        self._repeats: Repeats | None = None
        self._sampled: int | None = None
        self._last: dict[Callable[..., Any], tuple[EvidenceAt, Any]] = {}
        self.origins = np.concatenate(form.origins())
        """Origins from which predictors are counted, (n,)."""
        self.spacing = np.spacing(np.abs(self.origins)) * (self.origins != 0.0)
        """Distance of neighbouring doubles at each origin, (n,), 0 where it is zero."""

    def at(self, theta: np.ndarray, start: FitState | None = None, *, engine: EP | None = None) -> EvidenceAt:
        """Return the fit at unconstrained `theta`, (p,), from sites `start`, (n,) each, or from the form's first sites.

        `engine` replaces the evidence's own, for a fit to another tolerance.

        Raises
        ------
        Interrupted
            Where the user interrupts the fit; its attribute ``at`` is the unfinished fit.
        LostDigits
            Where rounding limits the representation of the prior, and `exact` names one that loses no digits.
        """
        prior = self._prior(theta)
        if not self._checked:
            self.form.require_distances(theta, self.describe(theta))
        require_finite_prior(self, theta, prior)
        if not self._checked:
            require_covariance(self, theta, prior)
            self._checked = True
        repeats = self._repeats_at(theta, prior)
        problem = repeats.problem(prior)
        engine = engine or self.engine
        steps = np.array([engine.tol, engine.power])
        record = self.checkpoint.record(self.grid, self.form.solver.name, theta, steps, *(start or ()))
        if start is None:
            start = self.first_sites(prior) if self.start is None else self.start
        if start is not None:
            start = repeats.together(start[0]), repeats.together(start[1])
        try:
            ended = run(engine, problem, start, max_iter=self.max_iter, report=self._reporter(prior), record=record)
        except ImpossibleDensityError as error:
            raise error.named(self.observation(int(repeats.first[error.index]))) from None
        at = EvidenceAt(theta, prior, problem, explained(self, repeats, ended), repeats)
        if at.status.interrupted:
            raise Interrupted(at)
        if self.exact and self.engine.rounding(at.run.state) > _MOST_ROUNDING:
            raise LostDigits(self.form.solver.name, self.exact)
        return at

    def first_sites(self, prior: Prior) -> FitState | None:
        """Return the sites, (n,) each, at which a fit without a start begins; None where the engine chooses them."""
        return self.form.first_sites(prior)

    def _repeats_at(self, theta: np.ndarray, prior: Prior) -> Repeats:
        """Return the groups of observations that share a predictor, determined at the first theta."""
        if self._repeats is None:
            fits = fits_of(self.form, choose(self.form, chains=False)[0])
            self._repeats = repeats_at(self.form, theta, prior).for_fits(fits)
            self.engine = self.engine.with_sites(self._repeats.sites)
        return self._repeats

    def _reporter(self, prior: Prior) -> Callable[[float, float], None]:
        """Return a callback that reports an iteration's log evidence, as in `EvidenceAt.log_z`, and its change."""
        return lambda value, change: self.report(value + prior.log_excess, change)

    def settled(self, theta: np.ndarray, start: FitState | None = None, *, engine: EP | None = None) -> EvidenceAt:
        """Return a fit at `theta`, (p,), that does not depend on `start` beyond the tolerance.

        Log-concave sites and sites of several predictors have one fixed point in practice: a start only saves sweeps.
        Other sites may have several fixed points. For these, and where a warm start does not converge, the fit starts
        from the form's first sites.
        """
        if start is not None and self.engine.one_fixed_point:
            try:
                at = self.at(theta, start, engine=engine)
            except NumericalError:
                return self.at(theta, engine=engine)
            if at.run.status.converged:
                return at
        return self.at(theta, engine=engine)

    def explored(self, theta: np.ndarray, points: Sequence[DesignPoint]) -> EvidenceAt:
        """Return a fit at `theta`, (p,), started from sites interpolated between near `points`, or from the nearest's.

        The engine has a larger tolerance, which suffices for log Z and its gradient.
        """
        near = nearest_points(points, theta, _BETWEEN * (theta.size + 1))
        start = near[0].state
        if self.engine.one_fixed_point and len(near) > theta.size + 1:
            sites = InterpolatedSites.between(near)
            start = sites(theta) if sites.varies else start
        assert self._repeats is not None, "known from the fits"
        # sum_i pi_i V_i, the number of parameters that the data determine.
        effective = float(np.maximum(near[0].state[1] * near[0].kept.variance, 0.0).sum())
        return self.settled(theta, start, engine=self.engine.rough(len(self._repeats.first), effective))

    def kept(self, at: EvidenceAt) -> KeptFit:
        """Return the parts of a fit that results need: moments, leave-one-out densities, and skewness of sites."""
        skewness = None if self.joint else np.zeros(len(at.repeats.owner))
        if skewness is not None and (tilted_skewness := self._skewness(at)) is not None:
            variance = np.asarray(at.run.state.sweep.posterior.variance)
            skewness[at.repeats.first] = used_skewness(tilted_skewness, variance)
        return KeptFit(*at.predictors, self.leave_one_out(at), skewness)

    def shape(self, at: EvidenceAt) -> Shape:
        """Return the shape of the posterior; all zero, as for a Gaussian, without convergence or known cumulants."""
        if self.joint and self._has_shape(at):
            return shape_of_two(at, self.directions(at))
        if self.joint or (skewness := self._skewness(at)) is None:
            return Shape(*np.zeros((4, len(at.repeats.owner))))
        return shape_at(at, skewness)

    def _has_shape(self, at: EvidenceAt) -> bool:
        """Whether EP converged at this fit, and `why_no_correction` is empty, so that there may be cumulants."""
        return at.status.converged and not self.why_no_correction(len(at.problem.mean))

    def _skewness(self, at: EvidenceAt) -> np.ndarray | None:
        """Return the skewness of the distinct predictors' tilted distributions, (m,); None where it is not known."""
        if not self._has_shape(at):
            return None
        try:
            return self.cumulants(at)[0]
        except NumericalError:
            return None

    def cumulants(self, at: EvidenceAt) -> tuple[np.ndarray, np.ndarray]:
        """Return skewness and kurtosis of the sites of the m distinct predictors, (m,) each, by `cumulants_at`.

        The result for the last fit is cached.
        """
        return self._kept_for_last(at, cumulants_at, at)

    def _kept_for_last(self, at: EvidenceAt, compute: Callable[..., Value], *arguments: Any) -> Value:
        """Return ``compute(*arguments)`` for a fit, from before if that was the last one asked for."""
        if compute not in self._last or self._last[compute][0] is not at:
            self._last[compute] = at, compute(*arguments)
        return self._last[compute][1]

    def why_no_correction(self, predictors: int) -> str:
        """Return why the evidence has no correction with this number of predictors; empty where it has one."""
        many = self.joint and predictors > MOST_ROWS
        no_room = (
            f"over {MOST_ROWS} rows of sites of two predictors, for all pairs of which there is no room" if many else ""
        )
        return why_no_correction(self.form, self.engine.power, predictors) or no_room

    def directions(self, at: EvidenceAt) -> Directions:
        """Return `directions_at` a fit, for sites of two predictors; the result for the last fit is cached."""
        return self._kept_for_last(at, directions_at, at)

    def peaks(self, at: EvidenceAt) -> Peaks:
        """Return the fixed points at the hyperparameters of a fit; the result for the last fit is cached."""
        return self._kept_for_last(at, find_peaks, self, at)

    def corrected_fits(self, at: EvidenceAt) -> str:
        """Return which fits have a correction by cumulants: ``"all"``, ``"some"`` or ``"none"``."""
        predictors = len(at.problem.mean)
        if self.why_no_correction(predictors):
            return "none"
        return "all" if predictors <= _MOST_CORRECTED else "some"

    def correction(self, at: EvidenceAt) -> float:
        """Return the correction by cumulants of the sites, in nats; NaN where the series diverges."""
        if self.joint:
            of_two = self.directions(at).correction()
            return np.nan if of_two.diverges else of_two.total
        # One sample for all hyperparameters, so that its error hardly depends on them; the first fit tells how large.
        sampled = correction_at(at, self._sampled or SAMPLE, self.cumulants(at))
        if self._sampled is None:
            self._sampled = sampled.sufficient
        return np.nan if sampled.diverges else sampled.of_sample(self._sampled).total

    def correction_warning(self, shifts: np.ndarray | None, missing: float) -> str:
        """Return a warning where the correction is large, or its series diverges; see `LogEvidence`."""
        if shifts is None:
            return (
                f"EP's own error is not known, as the series that tells it diverges at {missing:.0%} of the fits; "
                f"compare with pm.sample, started by pmep.start_point(idata)"
            )
        most = np.abs(shifts).max()
        if most < SHIFTED:
            return ""
        name = hyper_names_of(self, np.abs(shifts) == most)[0]
        return (
            f"skewness and kurtosis of the sites move the mean of {name} by {most:.1f} standard deviations, as binary "
            f"data in small groups do; that is corrected, but about a sixth of it may be left: compare with pm.sample, "
            f"started by pmep.start_point(idata)"
        )

    def variation(self, points: Sequence[DesignPoint], shares: np.ndarray) -> float:
        """Return the largest variation of a predictor's mean between k fits, weighted by `shares`, (k,).

        It is the standard deviation of the fits' posterior means over the root of their mean posterior variance.
        """
        # Sums over fits one at a time, whose moments together may take gigabytes.
        mean = sum(share * point.kept.mean for share, point in zip(shares, points))
        square = sum(share * (point.kept.mean - mean) ** 2 for share, point in zip(shares, points))
        variance = sum(share * point.kept.variance for share, point in zip(shares, points))
        # Root of sum_j w_j (m_j - m)^2 / sum_j w_j V_j over fits j, with m = sum_j w_j m_j.
        # A predictor that is known has one mean.
        return float(np.sqrt(np.divide(square, variance, out=np.zeros_like(square), where=variance > 0.0).max()))

    def interpolation_error(self, points: Sequence[DesignPoint], new_points: Sequence[DesignPoint]) -> float:
        """Return the error at `new_points` from sites interpolated between `points`; see `error_between`."""
        return error_between(self.form, points, new_points)

    def _prior(self, theta: np.ndarray) -> Prior:
        prior = prior_at(self, theta)
        if self.density == "natural":
            return prior
        unconstrained = self.density == "unconstrained"
        return prior._replace(log_prior=float(self.form.rows.log_prior(theta[None])[0]) if unconstrained else 0.0)

    def leave_one_out(self, at: EvidenceAt) -> np.ndarray:
        """Return the log predictive density of each observation given the others, (n,).

        EP's cavity is the posterior without the observation, so that the log normaliser of the cavity times the
        likelihood is its log predictive density. With a fractional power the whole site is removed first. Where
        observations share a site, the site of all but one is multiplied in again. NaN where the cavity is improper, as
        where one Gaussian observation alone determines its predictor.
        """
        sweep = at.run.state.sweep
        if self.engine.power != 1.0:
            sweep = EP(self.engine.sites, power=1.0).sweep(at.problem, at.run.state.shift, at.run.state.precision)
        mean, variance = np.asarray(sweep.cavity_mean), np.asarray(sweep.cavity_variance)
        proper = np.asarray(sweep.posterior.remainder) > 0
        for rows, _ in Kinds.of(self.engine.sites).joint(at.problem.observed):
            # One row's precision may be of any size where the joint cavity is proper.
            proper[rows] = variance[rows] > 0
        log_z = np.where(proper, np.asarray(sweep.tilted.log_z), np.nan)
        groups = zip(at.repeats.groups, at.prior.parameters, group_slices(at.problem.observed))
        return np.concatenate(
            [group.left_out(values, mean[rows], variance[rows], log_z[rows]) for group, values, rows in groups]
        )

    def gradient(self, at: EvidenceAt) -> np.ndarray:
        """Return the gradient of `EvidenceAt.value`, (p,).

        At a fixed point log Z is stationary in the sites, so that only its explicit dependence on the prior's mean m0,
        covariance K and the site parameters counts (Seeger 2005, section 4): d log Z / d m0 = a and
        d log Z / d K = (a a^T - E) / 2. For sites of shift b and precision Pi, a = (I + Pi K)^{-1} (b - Pi m0) and
        E = (I + Pi K)^{-1} Pi.
        """
        sweep = at.run.state.sweep
        d_array = at.problem.prior.cotangent(sweep.posterior, at.run.state.precision)
        d_mean, d_array = at.repeats.cotangents(at.prior, sweep.posterior.weights, d_array)
        parameters = self._parameter_gradients(at)
        return self.form.pullback(at.theta, d_mean, d_array, parameters, density=self.density)

    def _parameter_gradients(self, at: EvidenceAt) -> list[tuple[Any, ...]]:
        sweep, power = at.run.state.sweep, self.engine.power
        out = []
        observed = at.problem.observed
        precision = at.run.state.precision
        gaussian = cavities(sweep.posterior, precision, power, exact=True, flat=FLAT)
        groups = zip(at.repeats.groups, self.form.varying_parameters, at.prior.parameters, group_slices(observed))
        for group, varies, values, rows in groups:
            if not varies:
                # Compiling the parameter gradient may take seconds.
                out.append(tuple(np.zeros(len(value)) for value in values))
                continue
            of_gaussian = gaussian.mean, gaussian.variance
            mean, variance = of_gaussian if group.site.site.gaussian else (sweep.cavity_mean, sweep.cavity_variance)
            out.append(group.parameter_gradient(values, mean[rows], variance[rows], power))
        return out

    def observation(self, predictor: int) -> str:
        """Return the name of a predictor's observation, for messages; `predictor` is its index among all predictors."""
        group, places = next(
            (g, s) for g, s in zip(self.form.form.factors, group_slices(self.observed)) if predictor < s.stop
        )
        # Sites of several predictors have a row for each of these, and for the sum of each two.
        rows = number_of_rows(group.site.predictors)
        return f"observation {(predictor - places.start) % ((places.stop - places.start) // rows)} of {group.name!r}"

    def describe(self, theta: np.ndarray) -> str:
        """Return the hyperparameters and their values at `theta`, (p,), for messages."""
        if not theta.size:
            return "a model without hyperparameters"
        values = self.form.constrained(theta).items()
        return ", ".join(f"{n} = {np.array2string(v, precision=3, threshold=4, edgeitems=2)}" for n, v in values)
