"""Integrate over the hyperparameters: an emulator of the log evidence, and the exact prior.

The density that is integrated is Z(theta) p(theta) on the unconstrained scale, Jacobian terms included. Its prior is
known exactly and carries the tails: where a scale runs to zero, log Z tends to a constant. A Gaussian process emulates
log Z alone, from values and exact gradients. Chains move under emulator times prior, but not to where the emulator does
not know log Z to a nat; fits at some of their positions judge the emulator, fits where it knows least teach it. Fits at
representatives of the draws weigh these at the end.
"""

from typing import NamedTuple

import numpy as np
from scipy.spatial.distance import cdist
from scipy.special import logsumexp

from pymc_ep.engines.interrupt import INTERRUPTS, reached
from pymc_ep.hyper.budget import MOST_DIMENSIONS, most_draws, most_fits
from pymc_ep.hyper.evidence.cumulants import why_no_correction
from pymc_ep.hyper.evidence.evidence import Evidence
from pymc_ep.hyper.integration.cloud import Cloud, bridged, weighted
from pymc_ep.hyper.integration.corrections import Corrected, corrected_weights, doubt
from pymc_ep.hyper.integration.emulator import FIRST_KERNEL, Emulator
from pymc_ep.hyper.integration.explore import DesignPoint, Explorer
from pymc_ep.hyper.integration.frame import Frame, first_frame
from pymc_ep.hyper.integration.interpolated_sites import error_between
from pymc_ep.hyper.integration.walkers import Walkers
from pymc_ep.hyper.lbfgs_search import Objective, search
from pymc_ep.hyper.maximise import Hyper, Sites, endless_directions, hold, owners, why_not_settled
from pymc_ep.numerics.interpolation.stratified_draws import nearest, stratified

__all__ = ["Integral", "integrate"]

_GAIN = 1e-3
"""Nats for which the search for the mode takes another step: all that is needed is a centre."""
_WALKERS = 200
_MOVES = 10
"""Moves of the chains after each change of the emulator: to forget the last one, and again to be looked at."""
_KNOWN = 1.0
"""Standard deviation of the emulated log Z, in nats, beyond which it counts as unknown."""
_BEYOND = 3.0
"""The same for the places beyond that a fit may teach of; farther out it would teach of nothing else."""
_FAR = 10.0, 2.0
"""Nats below the largest log density, in all and for each hyperparameter, at which a fit teaches nothing."""
_SPREAD, _WORST, _WALL = 0.15, 0.3, 0.01
"""The emulator is right where log(exact / emulated) has this standard deviation at most at draws, is this at most where
it knows least, and this share of moves meets the wall at most."""
_EFFECTIVE, _MOST_WALL = 0.9, 0.1
"""Relative effective sample size of the weights exact / emulated that a result needs, and most moves that may meet the
wall at its end."""
_LEAST_VARIANCE = 1e-6
"""Variance of chains that have not moved, in that of the frame before."""
_CHECKS = 15, 10, 5
"""Fits at representatives of the draws, in all and for each of so many hyperparameters at most."""
_BETWEEN, _FITTED = 0.03, 250
"""Error of predictors by sites between fits, in standard deviations, from which on fits are made at so many draws:
sites of outliers under heavy tails jump (0.10 for two groups under Student-t noise; counts have 0.01)."""
_PAIRS = 2000
"""Sites up to which each fit is corrected; beyond, only those at representatives of the draws are."""
_CANDIDATES = 6000
"""Positions of chains from which draws are taken."""
_IMPORTANCE, _EVEN = 4, 0.1
"""Dimensions up to which importance weights take the place of chains, where that share of them is effective."""


class Integral(NamedTuple):
    """The posterior of the hyperparameters as draws, and the fits between which the sites are interpolated.

    Attributes
    ----------
    mode : Hyper
    places : ndarray, (m, p)
    place_weights : ndarray, (m,)
        Many hyperparameters with weights, for moments.
    draws : ndarray, (s, p)
        Of the hyperparameters, equally weighted; none where those of `points` are the draws.
    points : list of DesignPoint
        None where there was nothing to integrate.
    weights : ndarray, (k,)
        Share of the draws nearest to each fit.
    log_evidence : float
        Log of the integral of Z(theta) p(theta).
    corrected : Corrected, optional
        What EP's own error in log Z does, as far as it can be known.
    effective : float
        Relative effective sample size of the weights exact / emulated at the fits made last.
    spread : float
        Standard deviation of their logarithms.
    evaluations : int
        Fits, the search for the mode included.
    converged : bool
    sentence : str
    """

    mode: Hyper
    places: np.ndarray
    place_weights: np.ndarray
    draws: np.ndarray
    points: list[DesignPoint]
    weights: np.ndarray
    log_evidence: float
    corrected: Corrected | None
    effective: float
    spread: float
    evaluations: int
    converged: bool
    sentence: str


def integrate(evidence: Evidence, theta: np.ndarray, start: Sites = None) -> Integral:
    """Integrate over the hyperparameters.

    Parameters
    ----------
    evidence : Evidence
        With the density on the unconstrained scale.
    theta : ndarray, (p,)
        Where the search for the mode starts.
    start : tuple of ndarray, optional
        Sites to start from.

    Returns
    -------
    Integral
        Without draws where the density has no mode, or does not fall on some side; the sentence says why.

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
    objective = Objective(evidence, start, gain=_GAIN, notice=explorer.notice)
    try:
        endless = search(objective, theta)
        sentence = why_not_settled(objective, theta, 1.0) if endless else ""
        mode = hold(objective.at, np.array(objective.trace), not sentence, sentence)
        return _nothing(mode, explorer, sentence) if sentence else _Integration(explorer, mode).run()
    except INTERRUPTS as stop:
        at = reached(stop, objective.best or objective.latest)
        sentence = f"interrupted after {explorer.evaluations} fits, and hyperparameters not integrated over but held"
        mode = hold(at, np.array(objective.trace), False, sentence)
        return _nothing(mode._replace(interrupted=True), explorer, sentence)


def _nothing(mode: Hyper, explorer: Explorer, sentence: str) -> Integral:
    """Return what there is where the density cannot be integrated: the mode."""
    mode = mode._replace(converged=False, sentence=sentence)
    none, empty = np.zeros((0, mode.at.theta.size)), np.zeros(0)
    return Integral(
        mode, none, empty, none, [], empty, np.nan, None, 0.0, np.inf, explorer.evaluations, False, sentence
    )


class _Integration:
    """The rounds: emulate, move, judge, teach; then draw, and weigh the draws."""

    def __init__(self, explorer: Explorer, mode: Hyper):
        self.explorer, self.mode = explorer, mode
        self.form = explorer.evidence.form
        self.p = mode.at.theta.size
        self.rng = np.random.default_rng(0)
        self.kernel = FIRST_KERNEL
        self.most = most_fits(self.form)
        self.corrects = not why_no_correction(self.form, explorer.evidence.engine.power)
        explorer.correct = self.corrects and sum(map(len, explorer.evidence.observed)) <= _PAIRS
        self.checks = _CHECKS[0] + _CHECKS[1] * min(self.p, _CHECKS[2])

    def run(self) -> Integral:
        """Go round until the emulator is right, or until the fits that are allowed are made."""
        self.explorer.evidence.report.phase("integrating over the hyperparameters", total=self.most + self.checks)
        self.frame, edge = first_frame(self.explorer, self.mode.at)
        if edge.any():
            return _nothing(
                self.mode,
                self.explorer,
                f"the search for the mode of the hyperparameters ended where fits do not converge beyond, in "
                f"{', '.join(owners(self.explorer.evidence, edge))}, and they were not integrated over but held; start "
                f"elsewhere, with start={{...}}, or use power=0.5",
            )
        scale = np.sqrt((self.frame.axes**2).sum(axis=0))
        if endless := endless_directions(self.explorer.evidence, self.mode.at.theta, scale):
            return _nothing(
                self.mode,
                self.explorer,
                f"the density of the hyperparameters does not fall on the way to {', '.join(endless)}, so that their "
                f"posterior is improper, or as good as that, and they were not integrated over but held; give them "
                f"proper priors that are not much wider than the data allow",
            )
        self._emulate()
        walkers = Walkers(self._seats(), self.rng)
        try:
            return self._rounds(walkers)
        except INTERRUPTS as stop:
            reached(stop, self.mode.at)
            return self._so_far()

    def _rounds(self, walkers: Walkers) -> Integral:
        last = self.explorer.evaluations + self.most
        while True:
            right = self._round(walkers)
            spent = self.explorer.evaluations >= last
            if right or spent:
                found = self._weighed(walkers)
                if spent or found.effective > _EFFECTIVE:
                    return self._told(self._fitted(found), walkers)
                self._emulate()

    def _so_far(self) -> Integral:
        """Return draws from the emulator as it is, which no fits have judged."""
        self._emulate()
        cloud = self._cloud(Walkers(self._seats(), self.rng))
        found = self._integral(cloud, cloud.weights, 0.0)
        sentence = f"interrupted after {found.evaluations} fits: hyperparameters integrated over as far as these tell"
        return found._replace(mode=self.mode._replace(interrupted=True), converged=False, sentence=sentence)

    def _round(self, walkers: Walkers) -> bool:
        """Move the chains, judge and teach the emulator by fits, and say whether it was right."""
        walkers.move(self._target, self._known, _MOVES)
        kept = np.concatenate(walkers.move(self._target, self._known, _MOVES))
        spread, worst = self._judge(kept, walkers.refused, 4 + 2 * self.p)
        self.met_wall = walkers.met_wall
        self._reframe(kept, walkers)
        return spread < _SPREAD and worst < _WORST and self.met_wall < _WALL

    def _taught(self) -> list[DesignPoint]:
        """Return the fits that teach: those not too far below the best."""
        least = max(point.value for point in self.explorer.points) - _FAR[0] - _FAR[1] * self.p
        return [point for point in self.explorer.points if point.value > least]

    def _emulate(self) -> None:
        points = self._taught()
        self.places = self.frame.z(np.array([point.theta for point in points]))
        gradients = np.array([point.gradient for point in points]) @ self.frame.axes.T
        self.emulator = Emulator(self.places, np.array([point.log_z for point in points]), gradients, self.kernel)
        self.kernel = self.emulator.kernel
        self.failed = self.frame.z(np.array(self.explorer.failed).reshape(-1, self.p))

    def _target(self, z: np.ndarray) -> tuple[np.ndarray, np.ndarray]:
        """Return emulated log Z plus log prior, and gradients, at rows of z."""
        value, gradient = self.emulator.mean(z)
        with np.errstate(all="ignore"):
            log_prior, prior_gradient = self.form.rows.log_prior_gradients(self.frame.theta(z))
        return value + log_prior, gradient + prior_gradient @ self.frame.axes.T

    def _known(self, z: np.ndarray) -> np.ndarray:
        """Whether log Z is known at rows of z, and fits converge there as far as one can tell."""
        return self._known_where(z, self._target(z)[0])

    def _known_where(self, z: np.ndarray, value: np.ndarray) -> np.ndarray:
        """Do the same where the emulated density, (m,), is computed already."""
        # No density exceeds that of the mode: where the emulator says so it invents.
        highest = max(point.value for point in self.explorer.points) + _KNOWN
        known = (self.emulator.sd(z) < _KNOWN) & (value < highest)
        if len(self.failed) and known.any():
            known &= cdist(z, self.failed).min(axis=1) > cdist(z, self.places).min(axis=1)
        return known

    def _seats(self) -> np.ndarray:
        """Return positions to start the chains from: fits, by their density."""
        values = np.array([point.value for point in self._taught()])
        weights = np.exp(np.maximum(values - values.max(), -4.0))
        return self.places[self.rng.choice(len(values), _WALKERS, p=weights / weights.sum())]

    def _reframe(self, kept: np.ndarray, walkers: Walkers) -> None:
        """Standardise by the chains' positions, emulate anew, and seat chains that stand where nothing is known."""
        theta, moved = self.frame.theta(kept), self.frame.theta(walkers.positions)
        covariance = np.atleast_2d(np.cov(theta, rowvar=False))
        floor = _LEAST_VARIANCE * np.diag((self.frame.axes**2).sum(axis=0))
        # The Cholesky factor leaves a hyperparameter and its residuals given those before it on axes of their own.
        self.frame = Frame(theta.mean(axis=0), np.linalg.cholesky(covariance + floor).T)
        self._emulate()
        walkers.positions = self.frame.z(moved)
        lost = ~self._known(walkers.positions)
        walkers.positions = np.where(lost[:, None], self._seats(), walkers.positions)

    def _judge(self, kept: np.ndarray, refused: np.ndarray, batch: int) -> tuple[float, float]:
        """Fit at some draws and where least is known; return the spread of log(exact / emulated), and the worst."""
        random = self.rng.choice(kept, batch, replace=False)
        pool = self.rng.choice(kept, min(len(kept), 400), replace=False)
        if len(refused):
            beyond = self.rng.choice(refused, min(len(refused), 200), replace=False)
            pool = np.concatenate([pool, beyond[self.emulator.sd(beyond) < _BEYOND]])
        far = _least_known(self.emulator, pool, batch // 2)
        errors = self._errors(random)
        # Places beyond the wall are looked at to learn, not to judge.
        worst = self._errors(far)[self.emulator.sd(far) < _KNOWN]
        spread = errors.std() if np.all(np.isfinite(errors)) else np.inf
        return float(spread), float(np.max(np.abs(worst[np.isfinite(worst)]), initial=0.0))

    def _errors(self, z: np.ndarray) -> np.ndarray:
        """Fit at rows of z, and return log(exact / emulated), NaN where there is no fit."""
        emulated = self.emulator.mean(z)[0]
        found = [self.explorer(theta) for theta in self.frame.theta(z)]
        return np.array([np.nan if point is None else point.log_z for point in found]) - emulated

    def _weighed(self, walkers: Walkers) -> Integral:
        """Draw, fit at representatives of the draws, and choose draws by the weights exact / emulated."""
        cloud, taught, before = self._cloud(walkers), self._taught(), len(self.explorer.points)
        self.explorer.correct = self.corrects
        places = cloud.z[np.unique(stratified(cloud.z, cloud.weights, self.checks, self.rng))]
        logs = self._errors(places)
        self.between = error_between(self.form, taught, self.explorer.points[before:])
        cell = nearest(cloud.z, places)
        share = np.bincount(cell, weights=cloud.weights, minlength=len(places))
        fitted = np.isfinite(logs) & (share > np.finfo(float).tiny)
        total = logsumexp(logs[fitted] + np.log(share[fitted]))
        ratio = np.where(fitted, np.exp(np.where(fitted, logs, 0.0) - total), 0.0)
        effective = float((share @ ratio) ** 2 / (share @ ratio**2))
        spread = float(np.sqrt(np.cov(logs[fitted], aweights=share[fitted]))) if fitted.sum() > 1 else 0.0
        weights = cloud.weights * ratio[cell]
        weights /= weights.sum()
        corrected = None
        if self.corrects:
            made, thetas = self.explorer.points[before:], self.frame.theta(cloud.z)
            corrected = corrected_weights(self._taught(), made, thetas, weights)
            weights = corrected.weights
        log_factor = float(total) + (corrected.log_factor if corrected else 0.0)
        found = self._integral(cloud, weights, log_factor)
        return found._replace(corrected=corrected, effective=effective, spread=spread)

    def _integral(self, cloud: Cloud, weights: np.ndarray, log_factor: float) -> Integral:
        """Return draws of a cloud with weights, whose integral is larger by a factor, and the fits between these."""
        draws = cloud.z[self.rng.permutation(stratified(cloud.z, weights, most_draws(self.form), self.rng))]
        points = self._taught()
        near = nearest(draws, self.frame.z(np.array([point.theta for point in points])))
        return Integral(
            self.mode,
            self.frame.theta(cloud.z),
            weights,
            self.frame.theta(draws),
            points,
            np.bincount(near, minlength=len(points)) / len(draws),
            cloud.log_integral + float(np.linalg.slogdet(self.frame.axes)[1]) + log_factor,
            None,
            np.nan,
            np.nan,
            self.explorer.evaluations,
            True,
            "",
        )

    def _fitted(self, found: Integral) -> Integral:
        """Fit at draws themselves where sites between the fits are not those of fits there."""
        if self.between < _BETWEEN:
            return found
        # Their hyperparameters are drawn by the corrected density already.
        self.explorer.correct = False
        points = [point for point in map(self.explorer, found.draws[:_FITTED]) if point is not None]
        weights, none = np.full(len(points), 1.0 / len(points)), np.zeros((0, self.p))
        return found._replace(points=points, weights=weights, draws=none, evaluations=self.explorer.evaluations)

    def _cloud(self, walkers: Walkers) -> Cloud:
        """Return many places that stand for emulator times prior where that is known."""

        def log_density(z: np.ndarray) -> np.ndarray:
            value = self._target(z)[0]
            return np.where(self._known_where(z, value), value, -np.inf)

        walkers.move(self._target, self._known, _MOVES)
        z = np.concatenate([walkers.move(self._target, self._known, 2)[-1] for _ in range(_CANDIDATES // _WALKERS)])
        if self.p <= _IMPORTANCE and (cloud := weighted(log_density, z)).effective > _EVEN:
            return cloud
        return bridged(log_density, z, self.rng)

    def _told(self, found: Integral, walkers: Walkers) -> Integral:
        """Say how many fits there were, and where they were spent before the emulator was right."""
        if found.effective > _EFFECTIVE and self.met_wall < _MOST_WALL:
            why = doubt(found.corrected, self.explorer.evidence)
            told = [f"hyperparameters integrated over by {found.evaluations} fits", *([why] if why else [])]
            return found._replace(converged=not why, sentence="; ".join(told))
        least = _least_known(self.emulator, walkers.positions, 1)[0]
        which = np.abs(least @ self.frame.axes / self.frame.theta(walkers.positions).std(axis=0)).argmax()
        name = owners(self.explorer.evidence, np.arange(self.p) == which)[0]
        sentence = (
            f"hyperparameters not settled after {found.evaluations} fits: weights of their draws have a "
            f"relative effective sample size of {found.effective:.2f}, and {self.met_wall:.0%} of moves lead to where "
            f"the evidence is unknown, mostly in {name}; give it a prior that keeps it from there, or use "
            f"hyper='sample'"
        )
        return found._replace(converged=False, sentence=sentence)


def _least_known(emulator: Emulator, pool: np.ndarray, count: int) -> np.ndarray:
    """Return the points of a pool that the emulator knows least, apart from each other."""
    sd = emulator.sd(pool)
    chosen: list[int] = []
    for _ in range(count):
        chosen.append(k := int(np.argmax(sd)))
        # What a fit there would teach of its surroundings.
        close = np.exp(-(cdist(pool, pool[k : k + 1])[:, 0] ** 2) / emulator.kernel.values[0] ** 2)
        sd = sd * np.sqrt(np.maximum(1.0 - close, 0.0))
    return pool[chosen]
