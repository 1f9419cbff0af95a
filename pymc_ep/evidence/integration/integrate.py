"""Integrate over the hyperparameters: an emulator of the log evidence, and the exact prior.

The density that is integrated is Z(theta) p(theta) on the unconstrained scale, Jacobian terms included. The prior p is
known exactly and determines the tails: where a scale runs to zero, log Z tends to a constant. A Gaussian process
emulates log Z alone, from values and exact gradients. Chains move under the emulated Z times the prior, restricted to
where the emulator's standard deviation is below a nat. Fits at some of the chains' positions test the emulator; fits
where its standard deviation is largest extend it. At the end, fits at representatives of the chains test it once more.
The emulator learns from these fits as well before draws are made.
"""

from functools import partial
from typing import Generic

import numpy as np
import scipy

from pymc_ep.contracts.evidence import DesignPoint, FitState, LogEvidence, OwnFit
from pymc_ep.engines.interrupt import INTERRUPTS, reached
from pymc_ep.evidence.budget import MOST_DIMENSIONS, most_draws, most_fits, most_posteriors
from pymc_ep.evidence.integration.cloud import Cloud, bridged, by_cells, outermost, tails, weighted
from pymc_ep.evidence.integration.corrections import corrected_weights, error_of_corrections
from pymc_ep.evidence.integration.emulator import FIRST_KERNEL, Emulator, least_known
from pymc_ep.evidence.integration.explore import Explorer
from pymc_ep.evidence.integration.frame import Frame, first_frame
from pymc_ep.evidence.integration.integral import Integral, not_integrated
from pymc_ep.evidence.integration.mirrors import mirrored
from pymc_ep.evidence.integration.scan import Scan, scanned
from pymc_ep.evidence.integration.walkers import Walkers
from pymc_ep.evidence.lbfgs_search import Objective, search
from pymc_ep.evidence.mode import (
    Hyper,
    endless_directions,
    endless_sentence,
    held_fixed,
    hyper_names_of,
    why_not_settled,
)
from pymc_ep.numerics.interpolation.stratified_draws import nearest, stratified

__all__ = ["integrate"]

_MODE_GAIN = 1e-3
"""Gain of an iteration, in nats, below which the search for the mode ends. The mode is only a centre of the
integration, and need not be exact."""
_WALKERS = 200
"""Number of chains, moved as one array: more give a better covariance of the density, and cost evaluations of the
emulator."""
_MOVES = 10
"""Number of moves by which chains forget an old emulator, and number of moves after these whose positions are kept."""
_KNOWN = 1.0
"""Standard deviation of the emulated log Z, in nats, beyond which it counts as unknown: an error by a factor of e."""
_EXTENDED = 3.0
"""Standard deviation of the emulated log Z, in nats, up to which a refused position may have a fit that extends the
emulator: a fit farther out informs no other position."""
_FAR = 10.0, 2.0
"""Drop (a, b) below the largest log density, a + b p nats, beyond which a fit is left out of the emulator. The mass of
a Gaussian out there is negligible, and the drop grows with p as its typical drop p / 2 does."""
_SPREAD, _WORST, _REFUSED = 0.15, 0.3, 0.01
"""Limits of an accurate emulator: the standard deviation of e = log(exact / emulated) at positions of the chains, the
largest |e| where the emulator is least certain, and the share of refused moves. With a standard deviation of 0.15 the
weights exact / emulated have a relative effective sample size of exp(-0.15^2) = 0.98."""
_EFFECTIVE, _MOST_REFUSED = 0.9, 0.1
"""Limits of a converged result: least relative effective sample size of the weights exact / emulated, and largest share
of refused moves."""
_EFFECTIVE_OF_PEAKS = 0.97
"""Least relative effective sample size where there are several peaks, between which errors of the emulator do not
average out: a spread of 0.17 moves means by 0.1 standard deviations at most."""
_LEAST_VARIANCE = 1e-6
"""Least variance of the chains, relative to the variance of the frame before: keeps the covariance positive definite
where chains have not moved."""
_CHECKS = 15, 10, 5
"""Number of fits at representatives of the chains, as (a, b, c) for a + b min(p, c): 65 at most."""
_FEW_CHECKS, _SETTLED, _CLOSE = 3, 0.02, 3e-3
"""One in `_FEW_CHECKS` of the fits of `_CHECKS` is enough where two standard deviations of errors, in nats, are below
`_SETTLED` and `_CLOSE`: of the emulator at the fits of the last round, and of emulated log Z plus interpolated
correction at the few fits. The integral then errs by 1e-3. Emulators that have settled err by 1e-4."""
_CORRECTED = 10, 5
"""Number of fits with a correction where not all have one, as (a, b) for a + b p; fits at representatives are not
counted."""
_INTERPOLATION_ERROR, _MOST_AT_DRAWS, _AT_ONCE = 0.03, 250, 25
"""Error of predictors from interpolated sites, in standard deviations, beyond which draws get fits of their own; the
most of these fits; and the number in a batch, which tests the interpolation between all earlier fits. If no batch has a
smaller error, results come from the fits at draws alone. Sites of outliers under heavy tails jump: an error of 0.10 was
measured for two groups under Student-t noise, and 0.01 for counts."""
_CANDIDATES = 6000
"""Number of chain positions among which draws are chosen, one and a half for each draw."""
_GUESSED, _MOST_GUESSED, _GUESSES = 0.9, 1e-3, 3
"""Fraction of the emulator's prior standard deviation above which its standard deviation at a point counts as a guess;
the largest mass of such points; and the number of rounds of fits that reduce this mass, k (p + 2) fits in round k. As
many more rounds are left for tails."""
_ROUGH = 0.25
"""Share of the points of a cloud that is enough to choose fits by."""
_LIGHTEST = 1e-4
"""Largest total mass of the points that are too light to be examined."""
_MOST_BEYOND, _FORESEEN = 2.5e-3, 0.1
"""Largest mass beyond all fits on either side of a hyperparameter, a quarter of the mass beyond its 99% quantile. More
is allowed where the emulator predicted fits there to within `_FORESEEN` nats."""
_MOST_UNTOLD = 5e-3
"""Largest mass of a converged result, by the emulator, where fits fail, or that is still beyond all fits when no more
are allowed."""
_NO_FIT = "no fit on the way to the mode of the hyperparameters converged, and they are held where it ended"
_OF_PEAK = 10
"""Least number of draws at a peak with which the mass of the peak is computed separately, divided by p + 1: the number
of moments of each coordinate, a mean and p covariances."""
_IMPORTANCE, _LEAST_EFFECTIVE = 4, 0.1
"""Most dimensions in which importance sampling replaces the chains, and its least relative effective sample size."""


def integrate(evidence: LogEvidence[OwnFit], theta: np.ndarray, start: FitState | None = None) -> Integral[OwnFit]:
    """Integrate over the hyperparameters.

    Parameters
    ----------
    evidence : LogEvidence
        Its `density` is ``"unconstrained"``.
    theta : ndarray, (p,)
        Where the search for the mode starts.
    start : tuple of ndarray, optional
        State of a fit to start from.

    Returns
    -------
    Integral
        Without draws where the density has no mode, or does not fall in some direction; `sentence` holds the reason.

    Raises
    ------
    ValueError
        For more than 25 hyperparameters.
    """
    if theta.size > MOST_DIMENSIONS:
        raise ValueError(
            f"hyper='integrate' takes up to {MOST_DIMENSIONS} hyperparameters, but the model has {theta.size} "
            f"(elements of vectors counted); use hyper='sample', or 'optimize'."
        )
    explorer = Explorer(evidence)
    evidence.report.phase("searching for the mode of the hyperparameters")
    objective = Objective(evidence, start, gain=_MODE_GAIN, on_fit=explorer.record)
    try:
        endless = search(objective, theta)
        sentence = why_not_settled(objective, theta, 1.0) if endless else "" if explorer.points else _NO_FIT
        mode = held_fixed(objective.at, np.array(objective.trace), not sentence, sentence)
        return not_integrated(mode, explorer, sentence) if sentence else _Integration(explorer, mode).run()
    except INTERRUPTS as stop:
        at = reached(stop, objective.best or objective.latest)
        sentence = f"interrupted after {explorer.evaluations} fits, and hyperparameters not integrated over but held"
        mode = held_fixed(at, np.array(objective.trace), False, sentence)
        return not_integrated(mode._replace(interrupted=True), explorer, sentence)


class _Integration(Generic[OwnFit]):
    """Integration by rounds of fits, emulator and chains until the emulator is accurate; then weighted draws."""

    def __init__(self, explorer: Explorer[OwnFit], mode: Hyper[OwnFit]):
        self.explorer, self.mode = explorer, mode
        self.form = explorer.evidence.form
        self.p = mode.at.theta.size
        self.rng = np.random.default_rng(0)
        self.kernel = FIRST_KERNEL
        self.most = most_fits(self.form)
        self.which_corrected = explorer.evidence.corrected_fits(mode.at)
        self.unknown, self.untold = (0.0, 0), (0.0, 0)
        self.scan = Scan(mode, mode.at.theta[None])
        self.checks = _CHECKS[0] + _CHECKS[1] * min(self.p, _CHECKS[2])

    def run(self) -> Integral[OwnFit]:
        """Return the integral after rounds until the emulator is accurate, or the fits are used up."""
        self.scan = scanned(self.explorer, self.mode, self.most)
        self.mode = self.scan.mode
        # Of fits along the scan, most are far from where the corrections are interpolated.
        count = _CORRECTED[0] + _CORRECTED[1] * self.p
        self.explorer.corrected = {"all": np.inf, "some": count, "none": 0.0}[self.which_corrected]
        self.explorer.evidence.report.phase("integrating over the hyperparameters", total=self.most + self.checks)
        at = self.mode.at
        self.frame, edge = first_frame(self.explorer.density, at.theta, at.value, self.form.transformed)
        if edge.any():
            return not_integrated(
                self.mode,
                self.explorer,
                f"the search for the mode of the hyperparameters ended where fits do not converge beyond, in "
                f"{', '.join(hyper_names_of(self.explorer.evidence, edge))}, and they were not integrated over but "
                f"held; start elsewhere, with start={{...}}, or use power=0.5",
            )
        scale = np.sqrt((self.frame.axes**2).sum(axis=0))
        if endless := endless_directions(self.explorer.evidence, self.mode.at.theta, scale):
            return not_integrated(
                self.mode,
                self.explorer,
                f"{endless_sentence(endless)}, and they were not integrated over but held; give them proper priors "
                f"that are not much wider than the data allow",
            )
        self._emulate()
        walkers = Walkers(self._chain_starts(), self.rng)
        try:
            return self._rounds(walkers)
        except INTERRUPTS as stop:
            reached(stop, self.mode.at)
            return self._interrupted()

    def _rounds(self, walkers: Walkers) -> Integral[OwnFit]:
        last = self.explorer.evaluations + self.most
        while True:
            right = self._round(walkers)
            spent = self.explorer.evaluations >= last
            if right or spent:
                integral = self._tested(walkers)
                if spent or integral.effective > self._least_effective:
                    return self._with_sentence(self._fitted_at_draws(integral), walkers)

    @property
    def _least_effective(self) -> float:
        return _EFFECTIVE if len(self.scan.peaks) == 1 else _EFFECTIVE_OF_PEAKS

    def _interrupted(self) -> Integral[OwnFit]:
        """Return draws from the present emulator, untested by fits, after an interruption."""
        self._emulate()
        cloud = self._cloud(Walkers(self._chain_starts(), self.rng))
        integral = self._integral(cloud, cloud.weights, 0.0)
        sentence = (
            f"interrupted after {integral.evaluations} fits: hyperparameters integrated over as far as these tell"
        )
        return integral._replace(mode=self.mode._replace(interrupted=True), converged=False, sentence=sentence)

    def _round(self, walkers: Walkers) -> bool:
        """Move the chains, test and extend the emulator by fits, and return whether the emulator passed."""
        walkers.move(self._target, self._known, _MOVES)
        kept = np.concatenate(walkers.move(self._target, self._known, _MOVES))
        spread, worst = self._emulator_error(kept, walkers.refused, 4 + 2 * self.p)
        self.refused_share = walkers.refused_share
        self._standardise(kept, walkers)
        self.last_spread = spread
        return spread < _SPREAD and worst < _WORST and self.refused_share < _REFUSED

    def _design_points(self) -> list[DesignPoint]:
        """Return the fits that the emulator interpolates, within the limit `_FAR` of the best."""
        least = max(point.value for point in self.explorer.points) - _FAR[0] - _FAR[1] * self.p
        return [point for point in self.explorer.points if point.value > least]

    def _emulate(self, earlier: Emulator | None = None) -> None:
        points = self._design_points()
        self.places = self.frame.z(np.array([point.theta for point in points]))
        # theta = centre + z A, so that a gradient g^T in theta is g^T A^T in z.
        gradients = np.array([point.gradient for point in points]) @ self.frame.axes.T
        values = np.array([point.log_z for point in points])
        self.emulator = Emulator(self.places, values, gradients, self.kernel, earlier)
        self.kernel = self.emulator.kernel
        left_out = [point.theta for point in self.explorer.points if point.value < min(kept.value for kept in points)]
        self.failed, low = (
            self.frame.z(np.reshape(thetas, (-1, self.p))) for thetas in (self.explorer.failed, left_out)
        )
        self.unused = np.concatenate([self.failed, low])

    def _target(self, z: np.ndarray) -> tuple[np.ndarray, np.ndarray]:
        """Return emulated log Z plus log prior, (m,), and its gradients, (m, p), at rows of z, (m, p)."""
        value, gradient = self.emulator.mean(z)
        with np.errstate(all="ignore"):
            log_prior, prior_gradient = self.form.rows.log_prior_gradients(self.frame.theta(z))
        return value + log_prior, gradient + prior_gradient @ self.frame.axes.T

    def _known(self, z: np.ndarray) -> np.ndarray:
        """Whether log Z is known at rows of z, (m,): the emulator is certain, and has learnt from the nearest fit.

        The emulator learns nothing from fits that failed, nor from fits whose density is far below the largest.
        """
        return self._known_where(z, self._target(z)[0])

    def _known_where(self, z: np.ndarray, value: np.ndarray) -> np.ndarray:
        """`_known` at rows of z, given the log density `value` of `_target` there, (m,)."""
        is_known = (self.emulator.sd(z, _KNOWN) < _KNOWN) & (value < self._highest)
        return is_known & ~self._nearer_to(self.unused, z) if is_known.any() else is_known

    @property
    def _highest(self) -> float:
        """Log density, `_KNOWN` nats above the highest fit's, from which on emulated values count as errors."""
        return max(point.value for point in self.explorer.points) + _KNOWN

    def _nearer_to(self, others: np.ndarray, z: np.ndarray) -> np.ndarray:
        """Whether rows of z, (m, p), are nearer to some of the others, (k, p), than to the emulator's fits."""
        if not len(others):
            return np.zeros(len(z), dtype=bool)
        to_others, to_fits = (scipy.spatial.distance.cdist(z, rows).min(axis=1) for rows in (others, self.places))
        return to_others <= to_fits

    def _chain_starts(self) -> np.ndarray:
        """Return starting positions of the chains, rows of z, (walkers, p): places of fits, drawn by their density."""
        values = np.array([point.value for point in self._design_points()])
        weights = np.exp(np.maximum(values - values.max(), -4.0))
        return self.places[self.rng.choice(len(values), _WALKERS, p=weights / weights.sum())]

    def _standardise(self, kept: np.ndarray, walkers: Walkers) -> None:
        """Set `frame` by the moments of positions `kept`, emulate anew, and restart chains where log Z is unknown."""
        theta, moved = self.frame.theta(kept), self.frame.theta(walkers.positions)
        covariance = np.atleast_2d(np.cov(theta, rowvar=False))
        floor = _LEAST_VARIANCE * np.diag((self.frame.axes**2).sum(axis=0))
        # By the Cholesky factor each axis is one hyperparameter, less its regression on those before it.
        # A = L^T, with A^T A = L L^T the covariance.
        self.frame = Frame(theta.mean(axis=0), np.linalg.cholesky(covariance + floor).T)
        self._emulate()
        walkers.positions = self.frame.z(moved)
        lost = ~self._known(walkers.positions)
        walkers.positions = np.where(lost[:, None], self._chain_starts(), walkers.positions)

    def _emulator_error(self, kept: np.ndarray, refused: np.ndarray, batch: int) -> tuple[float, float]:
        """Return the standard deviation of e = log(exact / emulated), and the largest |e| at the least certain points.

        Both are from new fits: the first at `batch` of the positions `kept`, (m, p), and the second at half as many
        points of `kept` or `refused` where the emulator is least certain.
        """
        random = self.rng.choice(kept, batch, replace=False)
        pool = self.rng.choice(kept, min(len(kept), 400), replace=False)
        if len(refused):
            beyond = self.rng.choice(refused, min(len(refused), 200), replace=False)
            pool = np.concatenate([pool, beyond[self.emulator.sd(beyond, _EXTENDED) < _EXTENDED]])
        far = least_known(self.emulator, pool, batch // 2)
        errors = self._errors(random)
        # Fits at unknown positions extend the emulator and do not count in its test.
        worst = self._errors(far)[self.emulator.sd(far, _KNOWN) < _KNOWN]
        spread = errors.std() if np.all(np.isfinite(errors)) else np.inf
        return float(spread), float(np.max(np.abs(worst[np.isfinite(worst)]), initial=0.0))

    def _errors(self, z: np.ndarray) -> np.ndarray:
        """Return log(exact / emulated), (m,), from new fits at rows of z, (m, p); NaN where there is no fit."""
        emulated = self.emulator.mean(z)[0]
        points = [self.explorer(theta) for theta in self.frame.theta(z)]
        return np.array([np.nan if point is None else point.log_z for point in points]) - emulated

    def _tested(self, walkers: Walkers) -> Integral[OwnFit]:
        """Return the integral after a test by fits at representatives of the chains; the emulator learns from these."""
        moved = np.concatenate(walkers.move(self._target, self._known, _MOVES))
        even, design, before = np.full(len(moved), 1.0 / len(moved)), self._design_points(), len(self.explorer.points)
        counts = (self.checks // _FEW_CHECKS, self.checks) if self.last_spread < _SETTLED else (self.checks,)
        corrects = self.which_corrected != "none"
        self.explorer.corrected = np.inf if corrects else 0.0
        for count in counts:
            log_ratios = self._errors(moved[np.unique(stratified(moved, even, count, self.rng))])
            new_points = self.explorer.points[before:]
            if np.hypot(np.std(log_ratios), error_of_corrections(design, new_points) if corrects else 0.0) < _CLOSE:
                break
        self.interpolation_error = self.explorer.evidence.interpolation_error(design, new_points)
        fitted = log_ratios[np.isfinite(log_ratios)]
        ratio = np.exp(fitted - fitted.max(initial=-np.inf))
        # A failed fit counts with a ratio of zero.
        effective = float(ratio.sum() ** 2 / (ratio**2).sum() / len(log_ratios)) if fitted.size else 0.0
        self._emulate(self.emulator)
        cloud = self._informed_cloud(walkers)
        weights, corrected, log_factor = cloud.weights, None, 0.0
        if corrects:
            corrected = corrected_weights(self._design_points(), new_points, self.frame.theta(cloud.z), weights)
            weights, log_factor = corrected.weights, corrected.log_factor
        integral = self._integral(cloud, weights, log_factor)
        spread = float(fitted.std()) if fitted.size else 0.0
        return integral._replace(corrected=corrected, effective=effective, spread=spread)

    def _integral(self, cloud: Cloud, weights: np.ndarray, log_factor: float) -> Integral[OwnFit]:
        """Return the integral from a cloud's points with `weights`, (m,); `log_factor` is added to its log integral."""
        draws = cloud.z[self.rng.permutation(stratified(cloud.z, weights, most_draws(self.form), self.rng))]
        points, thetas = self._design_points(), self.frame.theta(draws)
        shares = self._shares(thetas, points)
        components = self._some_of(draws, most_posteriors(self.form, self.explorer.evidence.variation(points, shares)))
        return Integral(
            self.mode,
            self.frame.theta(cloud.z),
            weights,
            thetas,
            self.frame.theta(components),
            points,
            shares,
            # dtheta = |A| dz.
            cloud.log_integral + float(np.linalg.slogdet(self.frame.axes)[1]) + log_factor,
            None,
            np.nan,
            np.nan,
            self.explorer.evaluations,
            True,
            "",
        )

    def _fitted_at_draws(self, integral: Integral[OwnFit]) -> Integral[OwnFit]:
        """Return the integral with fits at draws: as many as make interpolated sites accurate, or these fits alone."""
        if self.interpolation_error < _INTERPOLATION_ERROR:
            return integral
        # The draws follow the corrected density already.
        self.explorer.corrected = 0.0
        thetas = self.frame.theta(self._some_of(self.frame.z(integral.draws), _MOST_AT_DRAWS))
        points: list[DesignPoint] = []
        for chunk in np.array_split(thetas, -(-len(thetas) // _AT_ONCE)):
            new_points = [point for point in map(self.explorer, chunk) if point is not None]
            error = self.explorer.evidence.interpolation_error([*integral.points, *points], new_points)
            points += new_points
            if new_points and error < _INTERPOLATION_ERROR:
                points = [*integral.points, *points]
                shares = self._shares(integral.draws, points)
                return integral._replace(points=points, weights=shares, evaluations=self.explorer.evaluations)
        weights, none = np.full(len(points), 1.0 / len(points)), np.zeros((0, self.p))
        return integral._replace(points=points, weights=weights, components=none, evaluations=self.explorer.evaluations)

    def _some_of(self, draws: np.ndarray, count: int) -> np.ndarray:
        """Return at most `count` of the draws, rows of z, stratified and in random order."""
        even, count = np.full(len(draws), 1.0 / len(draws)), min(count, len(draws))
        return draws[self.rng.permutation(stratified(draws, even, count, self.rng))]

    def _shares(self, draws: np.ndarray, points: list[DesignPoint]) -> np.ndarray:
        """Return for each fit of `points` the share of the draws, rows of theta, to which it is the nearest, (k,)."""
        fits = self.frame.z(np.array([point.theta for point in points]))
        return np.bincount(nearest(self.frame.z(draws), fits), minlength=len(points)) / len(draws)

    def _informed_cloud(self, walkers: Walkers) -> Cloud:
        """Return `_cloud` after further fits where the emulator guesses or extrapolates, as long as some mass is there.

        The emulator extrapolates in a tail beyond all fits, and is too certain there if its scale is small or its
        lengths are long. Chains do not come so far, but moments and quantiles may depend on the tail.
        """
        limit = min(_WORST, _GUESSED * self.emulator.prior_sd)
        share, rounds, foreseen = _ROUGH, 0, False
        while True:
            cloud = self._cloud(walkers, share)
            guessed, beyond = self._guessed(cloud, limit), self._tails(cloud)
            mass = cloud.weights[guessed]
            going = rounds < 2 * _GUESSES and not foreseen
            if guesses := going and rounds < _GUESSES and mass.sum() > _MOST_GUESSED:
                count = (1 + rounds) * (2 + self.p)
                chosen = guessed[stratified(cloud.z[guessed], mass, count, self.rng)]
            elif going and beyond:
                chosen = np.concatenate([outermost(where, cloud.weights) for _, where in beyond])
            elif share < 1.0:
                share = 1.0
                continue
            else:
                break
            errors = self._errors(cloud.z[np.unique(chosen)])
            self._emulate(self.emulator)
            rounds, foreseen = rounds + 1, not guesses and bool(np.all(np.abs(errors) < _FORESEEN))
        masses = [(0.0, 0)]
        if not foreseen:
            masses += [(float(cloud.weights[where].sum()), k) for k, where in beyond]
            if len(self.scan.peaks) > 1:
                masses.append((float(mass.sum()), self.scan.coordinate))
        self.untold = max(masses)
        return cloud

    def _guessed(self, cloud: Cloud, limit: float) -> np.ndarray:
        """Return indices of points where the emulator's standard deviation is above `limit`, without the lightest."""
        counting = np.flatnonzero(cloud.weights > _LIGHTEST / len(cloud.weights))
        return counting[self.emulator.sd(cloud.z[counting], limit) > limit]

    def _tails(self, cloud: Cloud) -> list[tuple[int, np.ndarray]]:
        fits = np.array([point.theta for point in self._design_points()])
        return tails(self.frame.theta(cloud.z), cloud.weights, fits, _MOST_BEYOND)

    def _cloud(self, walkers: Walkers, share: float = 1.0) -> Cloud:
        """Return points that represent the emulated Z times the prior, restricted to where log Z is known.

        `share` is that of their number after which the rest is left out.

        In few dimensions the method also sets `unknown`: the mass, where log Z is unknown, that is nearest to failed
        fits, and the index of the coordinate whose mean changes most by the restriction.
        """
        draws = np.concatenate(walkers.move(self._target, self._known, _MOVES))
        peaks, flags = self._peaks(draws), []

        def log_density(z: np.ndarray) -> np.ndarray:
            value = self._target(z)[0]
            flags.append(self._known_where(z, value))
            return np.minimum(value, self._highest)

        def restricted(z: np.ndarray) -> np.ndarray:
            value = log_density(z)
            return np.where(flags[-1], value, -np.inf)

        if self.p <= _IMPORTANCE:
            # Positions of a few moves tell the moments of the proposal.
            whole = by_cells(partial(weighted, share=share / len(peaks)), log_density, draws, peaks)
            is_known = np.concatenate(flags)
            cloud = whole.within(is_known)
            if cloud.effective > _LEAST_EFFECTIVE:
                theta = self.frame.theta(whole.z) / np.sqrt((self.frame.axes**2).sum(axis=0))
                moved_by = np.abs(whole.weights @ theta - cloud.weights @ theta)
                self.unknown = (
                    float(whole.weights[~is_known & self._nearer_to(self.failed, whole.z)].sum()),
                    int(moved_by.argmax()),
                )
                return cloud
        draws = np.concatenate(walkers.move(self._target, self._known, int(share * _CANDIDATES) // _WALKERS))
        return by_cells(partial(bridged, rng=self.rng), restricted, draws, self._peaks(draws))

    def _peaks(self, draws: np.ndarray) -> np.ndarray:
        """Return the likely peaks of the scan, rows of z, (k, p), each nearest to enough draws for their moments."""
        peaks = self.frame.z(self.scan.peaks)
        if len(peaks) == 1:
            return peaks
        counts = np.bincount(nearest(draws, peaks), minlength=len(peaks))
        return peaks[counts >= min(_OF_PEAK * (self.p + 1), counts.max())]

    def _correction_warning(self, integral: Integral[OwnFit]) -> str:
        if (corrected := integral.corrected) is None:
            return ""
        return self.explorer.evidence.correction_warning(
            corrected.shift if corrected.applied else None, corrected.diverged
        )

    def _with_sentence(self, integral: Integral[OwnFit], walkers: Walkers) -> Integral[OwnFit]:
        """Return the integral with `converged` and `sentence`: the number of fits, or the reason for a failure."""
        mass, k = max(self.untold, self.unknown)
        beyond = mass > _MOST_UNTOLD
        if not beyond and integral.effective > self._least_effective and self.refused_share < _MOST_REFUSED:
            why = self._correction_warning(integral)
            integral, images = mirrored(integral, self.explorer, self.frame, self.rng)
            remarks = [why, f"hyperparameters integrated over by {integral.evaluations} fits", images]
            return integral._replace(converged=not why, sentence="; ".join(filter(None, remarks)), doubt=0.0)
        if len(self.scan.peaks) > 1 and integral.effective <= self._least_effective:
            k, cure = self.scan.coordinate, "that leaves it one of them"
            why = (
                f"weights of their draws have a relative effective sample size of {integral.effective:.2f}, so that "
                f"the masses of several peaks of the posterior are uncertain, in"
            )
        elif beyond:
            why, cure = f"{mass:.1%} of the posterior is beyond all of these, in", "of lighter tails"
        else:
            least = least_known(self.emulator, walkers.positions, 1)[0]
            k = int(np.abs(least @ self.frame.axes / self.frame.theta(walkers.positions).std(axis=0)).argmax())
            cure = "that keeps it from there"
            why = (
                f"weights of their draws have a relative effective sample size of {integral.effective:.2f}, and "
                f"{self.refused_share:.0%} of moves lead to where the evidence is unknown, mostly in"
            )
        name = hyper_names_of(self.explorer.evidence, np.arange(self.p) == k)[0]
        sentence = (
            f"hyperparameters not settled after {integral.evaluations} fits: {why} {name}; compare with "
            f"hyper='sample', or give it a prior {cure}; under a flat one the posterior may be improper: give it a "
            f"proper one first"
        )
        doubt = max(mass, 1.0 - integral.effective, self.refused_share)
        return integral._replace(converged=False, sentence=sentence, doubt=doubt)
