"""Posteriors of small models without the package: closed forms, quadrature, importance sampling, fixed points of EP."""

from collections.abc import Callable
from dataclasses import dataclass, replace

import mpmath
import numpy as np
from scipy import special, stats

from docs.benchmarks._fuzz_likelihoods import LIKELIHOODS
from docs.benchmarks._fuzz_models import Case, Numbers

__all__ = ["Reference", "distance_from_fixed_point", "reference_of"]

DIGITS = 60
"""Digits of closed forms: prior and posterior variances differ by up to 24 decades and more."""
UNITS = 16 * np.finfo(float).eps
"""Rounding of a number, of a few operations of half a unit each."""
FEWER_DIGITS = 1e-12
"""The same of log evidences that are themselves computed in double precision."""
NODES, WEIGHTS = np.polynomial.legendre.leggauss(16)
POINTS = 2**14
"""Draws of importance sampling."""
ROUNDS = 5
"""Proposals, each with the moments found by the one before."""
WIDER = 1.2
"""Factor of the proposals' spread: too wide costs some weight, too narrow misses tails."""
FREEDOM = 5
"""Degrees of freedom of the proposals: heavier tails than any posterior under a Gaussian prior."""


@dataclass(frozen=True)
class Reference:
    """Log evidence, and means and standard deviations (d,) of the latent variables, with their largest errors.

    Parameters
    ----------
    kind : str
        How it was found.
    error : float
        Measured error of means in standard deviations, of standard deviations relative, of the evidence in nats.
    rounding : float
        Error of the evidence in nats that comes of its numbers alone, each rounded to double precision.
    """

    kind: str
    log_evidence: float
    mean: np.ndarray
    sd: np.ndarray
    error: float
    rounding: float


def reference_of(case: Case, numbers: Numbers) -> Reference | None:
    """Return the posterior of a case; None where none could be found."""
    if case.likelihood == "normal":
        return closed_form(numbers)
    direction = numbers.design @ numbers.root
    with np.errstate(all="ignore"):
        if np.linalg.matrix_rank(direction) == 1 or direction.shape[0] == 1:
            return by_quadrature(case, numbers, direction)
        # Proposals about one peak would not know of another.
        return by_importance(case, numbers, direction) if LIKELIHOODS[case.likelihood].log_concave else None


def closed_form(numbers: Numbers) -> Reference:
    """Return the posterior under a Normal likelihood, in `DIGITS` digits."""
    with mpmath.workdps(DIGITS):
        design, root = mpmath.matrix(numbers.design.tolist()), mpmath.matrix(numbers.root.tolist())
        residual = mpmath.matrix(numbers.y.tolist()) - mpmath.matrix(numbers.offset.tolist())
        n, d = design.rows, design.cols
        effect = design * root
        covariance = effect * effect.T + mpmath.mpf(float(numbers.s)) ** 2 * mpmath.eye(n)
        factor = mpmath.cholesky(covariance)
        whitened = lower_solve(factor, residual)
        gain = lower_solve(factor, effect * root.T)
        mean = gain.T * whitened
        variance = [sum(r**2 for r in root[i, :]) - sum(g**2 for g in gain[:, i]) for i in range(d)]
        square = sum(w**2 for w in whitened)
        log_determinant = 2 * sum(mpmath.log(factor[i, i]) for i in range(n))
        log_evidence = -(square + log_determinant + n * mpmath.log(2 * mpmath.pi)) / 2
        sd = [float(mpmath.sqrt(v)) for v in variance]
        weights = np.abs([float(w) for w in mpmath.lu_solve(covariance, residual)])
    # Its derivatives in data and covariances, times their last digits: those of a covariance near to singular cancel.
    sizes = np.abs(numbers.y) + np.abs(numbers.offset)
    inputs = weights @ sizes + weights @ np.abs(effect_covariance(numbers)) @ weights
    rounding = UNITS * (float(inputs) + abs(float(log_evidence)))
    return Reference(
        "closed form", float(log_evidence), np.array([float(m) for m in mean]), np.array(sd), 0.0, rounding
    )


def effect_covariance(numbers: Numbers) -> np.ndarray:
    """Return the prior covariance of the predictors, (n, n)."""
    effect = numbers.design @ numbers.root
    return effect @ effect.T


def lower_solve(factor: mpmath.matrix, right: mpmath.matrix) -> mpmath.matrix:
    """Solve with a lower triangular matrix."""
    out = right.copy()
    for j in range(right.cols):
        for i in range(right.rows):
            out[i, j] = (out[i, j] - sum(factor[i, k] * out[k, j] for k in range(i))) / factor[i, i]
    return out


def log_likelihood(case: Case, numbers: Numbers, eta: np.ndarray) -> np.ndarray:
    """Return the log likelihoods (..., n) at predictors; minus infinity where the density is none."""
    values = LIKELIHOODS[case.likelihood].logp(numbers.y, eta, numbers.s, numbers.trials)
    return np.where(np.isnan(values), -np.inf, values)


def by_quadrature(case: Case, numbers: Numbers, direction: np.ndarray) -> Reference | None:
    """Return the posterior where all predictors move along one line, (n, k) of rank one.

    With b the direction of the line and u its unit vector among the k standard normal coordinates, the predictors are
    offset + b t, where t = u'z is standard normal, and the other coordinates keep their prior.
    """
    row = direction[np.argmax(np.linalg.norm(direction, axis=1))]
    if not np.any(row):
        return None
    unit = row / np.linalg.norm(row)
    line = direction @ unit

    def log_density(t: np.ndarray) -> np.ndarray:
        values = log_likelihood(case, numbers, numbers.offset + t[:, None] * line).sum(axis=-1)
        return values - 0.5 * t**2 - 0.5 * np.log(2 * np.pi)

    found = line_integral(log_density, peaks_on(case, numbers, numbers.offset, line))
    if found is None:
        return None
    log_z, mean, variance, error = found
    along = numbers.root @ unit
    others = numbers.root - np.outer(along, unit)
    # A single coordinate leaves nothing but rounding across the line.
    across = np.sum(others**2, axis=1) if numbers.root.shape[1] > 1 else 0.0
    # What is less than rounding of the whole is rounding.
    across = np.where(across > 1e-26 * np.sum(numbers.root**2, axis=1), across, 0.0)
    sd = np.sqrt(across + along**2 * variance)
    return Reference("quadrature", log_z, along * mean, sd, error, FEWER_DIGITS * abs(log_z))


def peaks_on(case: Case, numbers: Numbers, offset: np.ndarray, line: np.ndarray) -> np.ndarray:
    """Return places on a line at which likelihoods have kinks or peaks, to be looked at closely."""
    kind, y = LIKELIHOODS[case.likelihood].kind, np.asarray(numbers.y, dtype=float)
    with np.errstate(all="ignore"):
        match kind:
            case "real":
                places = [y]
            case "above":
                places = [y, 0.0 * y]
            case "within":
                places = [y, y - numbers.s, y + numbers.s]
            case "count" | "count above" | "positive":
                places = [np.log(y), y, 0.0 * y]
            case "share":
                places = [special.logit(y)]
            case "trials":
                share = y / numbers.trials
                places = [special.logit(share), special.ndtri(share), np.log(-np.log1p(-share)), 0.0 * y]
            case _:
                places = [0.0 * y]
        t = np.concatenate([(place - offset) / line for place in places])
    return np.unique(np.concatenate([[0.0], t[np.isfinite(t)]]))


def line_integral(
    log_density: Callable[[np.ndarray], np.ndarray], places: np.ndarray
) -> tuple[float, float, float, float] | None:
    """Return log integral, mean, variance and error of a density on the line, by panels graded to given places.

    The place of the largest value among the nodes joins them until it stays; the error is the difference from panels of
    half the width.
    """
    steps = 10.0 ** np.arange(-18.0, 14.0, 0.25)
    for _ in range(60):
        edges = np.unique(np.concatenate([places, *(places + sign * steps[:, None] for sign in (1, -1))], axis=None))
        coarse = np.concatenate([0.5 * (edges[1:] + edges[:-1]), edges])
        best = coarse[np.argmax(log_density(coarse))]
        if best in places:
            break
        places = np.append(places, best)
    first, second = panel_sums(log_density, edges), panel_sums(log_density, np.sort(coarse))
    if first is None or second is None:
        return None
    (log_z, mean, variance), (other_z, other_mean, other_variance) = second, first
    if min(variance, other_variance) <= 0.0:  # A density narrower than the distances of numbers about its mean.
        return None
    differences = [log_z - other_z, (mean - other_mean) / np.sqrt(variance), np.log(variance / other_variance)]
    error = float(np.abs(differences).max())
    return (log_z, mean, variance, error) if np.isfinite(error) else None


def panel_sums(log_density: Callable[[np.ndarray], np.ndarray], edges: np.ndarray) -> tuple[float, float, float] | None:
    """Return log integral, mean and variance by 16 Gauss-Legendre nodes a panel."""
    half, middle = np.diff(edges) / 2, (edges[1:] + edges[:-1]) / 2
    t, width = (middle[:, None] + half[:, None] * NODES).ravel(), (half[:, None] * WEIGHTS).ravel()
    values = log_density(t)
    top = values.max()
    if not np.isfinite(top):
        return None
    mass = width * np.exp(values - top)
    total = mass.sum()
    centre = t[np.argmax(values)]
    shift = np.sum(mass * (t - centre)) / total
    mean = centre + shift
    return top + np.log(total), mean, float(np.sum(mass * (t - centre - shift) ** 2) / total)


def by_importance(case: Case, numbers: Numbers, direction: np.ndarray) -> Reference | None:
    """Return the posterior by importance sampling from a Student-t, in standard normal coordinates.

    The first is about the mode, with its curvature; each later one has the moments that the one before found.
    """
    k = direction.shape[1]
    found = mode_of(case, numbers, direction)
    if found is None:
        return None
    centre, spread = found
    uniform = stats.qmc.Sobol(k + 1, seed=0).random(POINTS)
    chi = stats.chi2.ppf(uniform[:, k], FREEDOM) / FREEDOM
    t = special.ndtri(uniform[:, :k]) / np.sqrt(chi)[:, None]
    log_t = stats.multivariate_t(np.zeros(k), np.eye(k), df=FREEDOM).logpdf(t)
    best = None
    for _ in range(ROUNDS):
        moved = t @ spread.T
        predictor = numbers.offset + direction @ centre + moved @ direction.T
        log_p = log_likelihood(case, numbers, predictor).sum(axis=-1)
        log_p = log_p - 0.5 * np.sum((centre + moved) ** 2, axis=1) - 0.5 * k * np.log(2 * np.pi)
        log_w = log_p - log_t + np.linalg.slogdet(spread)[1]
        top = log_w.max()
        if not np.isfinite(top):
            break
        weight = np.exp(log_w - top)
        total = weight.sum()
        weight /= total
        latent = moved @ numbers.root.T
        mean = weight @ latent
        sd = np.sqrt(weight @ (latent - mean) ** 2)
        # Twenty draws that carry much of the weight stand for a tail that has not been drawn.
        error = float(max(np.sqrt(np.sum(weight**2)), np.sort(weight)[-20:].sum()))
        if best is None or error < best.error:
            log_z = float(top + np.log(total / POINTS))
            rounding = FEWER_DIGITS * abs(log_z)
            best = Reference("importance sampling", log_z, numbers.root @ centre + mean, sd, error, rounding)
        shift = weight @ moved
        covariance = (weight[:, None] * (moved - shift)).T @ (moved - shift)
        try:
            centre, spread = centre + shift, WIDER * np.linalg.cholesky(covariance)
        except np.linalg.LinAlgError:
            break
    return best


def starts_of(case: Case, numbers: Numbers, direction: np.ndarray) -> list[np.ndarray]:
    """Return coordinates from which a mode is sought: the prior mean, and predictors near what was observed."""
    y, trials, k = np.asarray(numbers.y, dtype=float), numbers.trials, direction.shape[1]
    share = (y + 0.5) / (trials + 1.0)
    targets = [y, y + 0.5, np.log(np.abs(y) + 0.5), np.log(np.abs(y) + 1e-300), special.logit(share)]
    rows = np.concatenate([1e3 * direction / np.linalg.norm(direction), 1e-3 * np.eye(k)])
    scale, none = 1e3 / np.linalg.norm(direction), np.zeros(k)
    sides = (np.concatenate([scale * (target - numbers.offset), none]) for target in targets)
    return [np.zeros(k), *(np.linalg.lstsq(rows, side)[0] for side in sides if np.all(np.isfinite(side)))]


def mode_of(case: Case, numbers: Numbers, direction: np.ndarray) -> tuple[np.ndarray, np.ndarray] | None:
    """Return the mode in standard normal coordinates and a root of the inverse of its curvature."""
    likelihood, k = LIKELIHOODS[case.likelihood], direction.shape[1]
    # Differences over a scale on which log densities bend; kinks are smoothed.
    step = (1e-3 if likelihood.smooth else 1.0) * (numbers.s if likelihood.kind in ("real", "above", "within") else 1.0)

    def height(z: np.ndarray) -> float:
        return float(log_likelihood(case, numbers, numbers.offset + direction @ z).sum() - 0.5 * z @ z)

    z = max(starts_of(case, numbers, direction), key=height)
    factor = np.eye(k)
    for _ in range(200):
        eta = numbers.offset + direction @ z
        below, at, above = (log_likelihood(case, numbers, eta + d) for d in (-step, 0.0, step))
        slope, bend = (above - below) / (2 * step), (2 * at - above - below) / step**2
        usable = np.isfinite(slope) & np.isfinite(bend)
        slope, bend = np.where(usable, slope, 0.0), np.where(usable, np.maximum(bend, 0.0), 0.0)
        factor = np.linalg.qr(np.concatenate([np.eye(k), np.sqrt(bend)[:, None] * direction]), mode="r")
        move = np.linalg.solve(factor, np.linalg.solve(factor.T, direction.T @ slope - z))
        size, before = 1.0, height(z)
        while size > 1e-8 and not height(z + size * move) >= before:
            size /= 2
        z = z + size * move
        if np.linalg.norm(factor @ move) < 1e-3 or size <= 1e-8:
            break
    return (z, WIDER * np.linalg.inv(factor)) if np.isfinite(height(z)) else None


def distance_from_fixed_point(case: Case, numbers: Numbers, shift: np.ndarray, precision: np.ndarray) -> float | None:
    """Return how far given sites are from a fixed point of EP, in posterior standard deviations; None if unknown.

    Sites are exp(shift f - precision f^2 / 2) of predictors f without their offset. The posterior is taken in
    `DIGITS` digits, and moments of a cavity times its likelihood by panels.
    """
    direction = numbers.design @ numbers.root
    n, k = direction.shape
    with mpmath.workdps(DIGITS):
        rows = mpmath.matrix(direction.tolist())
        inverse = mpmath.eye(k)
        for i in range(n):
            inverse += mpmath.mpf(float(precision[i])) * (rows[i, :].T * rows[i, :])
        right = rows.T * mpmath.matrix(shift.tolist())
        covariance = mpmath.inverse(inverse)
        centre, spread = rows * covariance * right, rows * covariance * rows.T
        cavities = []
        for i in range(n):
            variance = 1 / (1 / spread[i, i] - mpmath.mpf(float(precision[i])))
            mean = variance * (centre[i] / spread[i, i] - mpmath.mpf(float(shift[i])))
            cavities.append((float(mean), float(variance), float(centre[i]), float(spread[i, i])))
    worst = 0.0
    for i, (mean, variance, posterior_mean, posterior_variance) in enumerate(cavities):
        if variance <= 0:
            return None
        with np.errstate(all="ignore"):
            found = tilted_integral(case, numbers, i, mean, variance)
        if found is None or found[3] > 1e-3:
            return None
        _, tilted_mean, tilted_variance, _ = found
        of_mean = (mean + np.sqrt(variance) * tilted_mean - posterior_mean) / np.sqrt(posterior_variance)
        worst = max(worst, abs(of_mean), abs(np.log(variance * tilted_variance / posterior_variance)))
    return worst


def tilted_integral(
    case: Case, numbers: Numbers, i: int, mean: float, variance: float
) -> tuple[float, float, float, float] | None:
    """Return `line_integral` of a cavity times the likelihood of observation i, in cavity standard deviations."""
    only = replace(numbers, y=numbers.y[i : i + 1], trials=numbers.trials[i : i + 1])
    offset, line = numbers.offset[i : i + 1] + mean, np.array([np.sqrt(variance)])

    def log_density(t: np.ndarray) -> np.ndarray:
        return log_likelihood(case, only, offset + t[:, None] * line)[:, 0] - 0.5 * t**2

    return line_integral(log_density, peaks_on(case, only, offset, line))
