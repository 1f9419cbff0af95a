"""Markov chain references for latent Gaussian models, in NumPy alone and independent of the package.

The chains of a sampler advance together, as rows of arrays.
"""

from collections.abc import Callable
from itertools import pairwise
from typing import NamedTuple

import numpy as np
from scipy import special

__all__ = [
    "LOG_LIKELIHOODS",
    "Chains",
    "HierarchicalChains",
    "Hierarchy",
    "annealed_evidence",
    "sample_hierarchical",
    "sample_latents",
    "times_sites",
]

LogDensity = Callable[[np.ndarray], np.ndarray]
"""From rows (chains, n) to (chains,)."""


def _exp(y: np.ndarray, f: np.ndarray) -> np.ndarray:
    return y * f - np.exp(f) - special.gammaln(y + 1)


def _softplus(y: np.ndarray, f: np.ndarray) -> np.ndarray:
    rate = np.logaddexp(0.0, f)
    return special.xlogy(y, rate) - rate - special.gammaln(y + 1)


def _rectified(y: np.ndarray, f: np.ndarray) -> np.ndarray:
    rate = np.maximum(f, 0.0)
    return special.xlogy(y, rate) - rate - special.gammaln(y + 1)


LOG_LIKELIHOODS = {"exp": _exp, "softplus": _softplus, "rectified": _rectified}
"""Poisson log likelihood of each count given the predictor, by link."""


class Chains(NamedTuple):
    """Moments from independent chains.

    Attributes
    ----------
    mean, sd : ndarray, (n,)
    mean_error : ndarray, (n,)
        Standard error of the mean, in units of sd, from the scatter of the chains.
    sd_error : ndarray, (n,)
        Relative standard error of the sd, likewise.
    r_hat : ndarray, (n,)
        Potential scale reduction (Gelman and Rubin 1992).
    """

    mean: np.ndarray
    sd: np.ndarray
    mean_error: np.ndarray
    sd_error: np.ndarray
    r_hat: np.ndarray

    @classmethod
    def from_sums(cls, total: np.ndarray, squares: np.ndarray, count: int) -> "Chains":
        """Summarise sums of x and of its square, (chains, n), over `count` draws a chain."""
        chains = len(total)
        means = total / count
        mean = means.mean(axis=0)
        deviations = squares / count - 2 * means * mean + mean**2
        variance = deviations.mean(axis=0)
        within = (squares / count - means**2).mean(axis=0)
        scatter = means.var(axis=0, ddof=1)
        return cls(
            mean=mean,
            sd=np.sqrt(variance),
            mean_error=np.sqrt(scatter / chains / variance),
            sd_error=deviations.std(axis=0, ddof=1) / np.sqrt(chains) / (2 * variance),
            r_hat=np.sqrt(1.0 + scatter / within),
        )


def _step(
    state: np.ndarray,
    ellipse: np.ndarray,
    log_density: Callable[[np.ndarray, np.ndarray], np.ndarray],
    current: np.ndarray,
    rng: np.random.Generator,
) -> tuple[np.ndarray, np.ndarray]:
    """Advance all chains by one elliptical slice (Murray, Adams and MacKay 2010, figure 2).

    Parameters
    ----------
    state, ellipse : ndarray, (chains, n)
        States about the Gaussian's mean, and draws of the zero-mean Gaussian that span the ellipses.
    log_density : callable
        Log of the factor that multiplies the Gaussian, from rows of states and the indices of their chains.
    current : ndarray, (chains,)
        Its values at `state`.
    """
    height = current - rng.exponential(size=len(state))
    angle = rng.uniform(0.0, 2 * np.pi, len(state))
    low, high = angle - 2 * np.pi, angle.copy()
    new, value = state.copy(), current.copy()
    todo = np.arange(len(state))
    while todo.size:
        turn = angle[todo, None]
        proposal = state[todo] * np.cos(turn) + ellipse[todo] * np.sin(turn)
        density = log_density(proposal, todo)
        accepted = density > height[todo]
        new[todo[accepted]], value[todo[accepted]] = proposal[accepted], density[accepted]
        todo = todo[~accepted]
        below = angle[todo] < 0
        low[todo[below]] = angle[todo[below]]
        high[todo[~below]] = angle[todo[~below]]
        angle[todo] = rng.uniform(low[todo], high[todo])
    return new, value


def times_sites(
    mean: np.ndarray, covariance: np.ndarray, shift: np.ndarray, precision: np.ndarray
) -> tuple[np.ndarray, np.ndarray, float]:
    """Return the Gaussian N(f; mean, covariance) exp(shift f - precision f^2 / 2) and the log of its integral.

    Ellipses drawn from it fit the posterior when the sites are EP's. With the likelihood over the sites as the
    remaining factor the target is the same whatever the sites are, so that nothing is taken on trust.
    """
    system = np.eye(len(mean)) + covariance * precision
    centred = shift - precision * mean
    product = np.linalg.solve(system, covariance)
    product = (product + product.T) / 2
    log_integral = (
        -0.5 * np.linalg.slogdet(system)[1]
        + shift @ mean
        - 0.5 * mean @ (precision * mean)
        + 0.5 * centred @ product @ centred
    )
    return mean + product @ centred, product, float(log_integral)


def sample_latents(
    mean: np.ndarray,
    covariance: np.ndarray,
    log_likelihood: LogDensity,
    *,
    chains: int,
    warmup: int,
    steps: int,
    rng: np.random.Generator,
    start: np.ndarray | float = 0.0,
) -> Chains:
    """Return the moments of N(f; mean, covariance) exp(log_likelihood(f)), up to a constant.

    The chains start at `start` plus a hundredth of a prior draw, where the likelihood must not vanish.
    """
    factor = np.linalg.cholesky(covariance)
    draw = lambda: rng.standard_normal((chains, len(mean))) @ factor.T  # noqa: E731
    about = lambda state, rows: log_likelihood(mean + state)  # noqa: E731
    state = start - mean + 0.01 * draw()
    current = about(state, slice(None))
    total, squares = np.zeros_like(state), np.zeros_like(state)
    for step in range(warmup + steps):
        state, current = _step(state, draw(), about, current, rng)
        if step >= warmup:
            total += state
            squares += state**2
    found = Chains.from_sums(total, squares, steps)
    return found._replace(mean=mean + found.mean)


def annealed_evidence(
    mean: np.ndarray,
    covariance: np.ndarray,
    log_density: LogDensity,
    *,
    particles: int,
    temperatures: int,
    rng: np.random.Generator,
    steepness: float = 1.0,
) -> tuple[float, float]:
    """Return log of the integral of N(f; mean, covariance) exp(log_density(f)), and its standard error.

    Annealed importance sampling (Neal 2001) along exp(t log_density), t = (k / temperatures)^steepness, with one
    elliptical slice a temperature. A density that vanishes somewhere needs no care: its first particles weigh nothing.
    """
    factor = np.linalg.cholesky(covariance)
    draw = lambda: rng.standard_normal((particles, len(mean))) @ factor.T  # noqa: E731
    about = lambda state: np.maximum(log_density(mean + state), -1e6)  # noqa: E731
    state = draw()
    current = about(state)
    log_weight = np.zeros(particles)
    schedule = np.linspace(0.0, 1.0, temperatures + 1) ** steepness
    for before, now in pairwise(schedule):
        log_weight += (now - before) * current
        state, scaled = _step(state, draw(), lambda s, rows, now=now: now * about(s), now * current, rng)
        current = scaled / now
    top = log_weight.max()
    weight = np.exp(log_weight - top)
    return float(top + np.log(weight.mean())), float(weight.std(ddof=1) / weight.mean() / np.sqrt(particles))


class Hierarchy(NamedTuple):
    """A Gaussian vector x ~ N(mean, covariance(theta)) with random hyperparameters theta.

    Attributes
    ----------
    mean : ndarray, (n,)
    covariance : callable
        Of rows of theta, (chains, p), to (chains, n, n).
    log_prior : callable
        Log density of rows of theta, (chains,).
    log_likelihood : callable
        Of rows of x, (chains, n), to (chains,).
    """

    mean: np.ndarray
    covariance: Callable[[np.ndarray], np.ndarray]
    log_prior: LogDensity
    log_likelihood: LogDensity


class HierarchicalChains(NamedTuple):
    """Moments of x and of theta, and the share of the moves of theta that were accepted."""

    latent: Chains
    theta: Chains
    acceptance: float


def _whitened(
    model: Hierarchy, theta: np.ndarray, shift: np.ndarray, precision: np.ndarray
) -> tuple[np.ndarray, np.ndarray, np.ndarray]:
    """Return mean and factor of prior times sites at rows of theta, and log of its integral plus log prior of theta."""
    covariance = model.covariance(theta)
    root = np.sqrt(precision)
    lower = np.linalg.cholesky(np.eye(len(root)) + root[:, None] * covariance * root)
    half = np.linalg.solve(lower, root[:, None] * covariance)
    product = covariance - half.transpose(0, 2, 1) @ half
    centred = shift - precision * model.mean
    moved = product @ centred
    log_integral = 0.5 * moved @ centred - np.log(np.diagonal(lower, axis1=1, axis2=2)).sum(axis=1)
    return model.mean + moved, np.linalg.cholesky(product), log_integral + model.log_prior(theta)


def sample_hierarchical(
    model: Hierarchy,
    theta: np.ndarray,
    shift: np.ndarray,
    precision: np.ndarray,
    *,
    warmup: int,
    steps: int,
    rng: np.random.Generator,
) -> HierarchicalChains:
    """Alternate elliptical slices in x with Metropolis steps in theta.

    Gaussian sites (shift, precision) that do not depend on theta split the target into a Gaussian N(x; m, V), its
    integral, both functions of theta, and the likelihood over the sites. Both kinds of move act on the whitened
    x = m + chol(V) z (as Murray and Adams 2010 whiten by surrogate data); where the sites resemble the likelihood,
    z and theta are nearly independent. The target is the same for any sites. The proposal of theta is tuned in the
    warm-up alone, by the scatter of all chains.

    Parameters
    ----------
    theta : ndarray, (chains, p)
        Starts, scattered.
    shift, precision : ndarray, (n,)
        Sites, without negative precisions.
    """
    chains, p = theta.shape
    n = len(model.mean)
    at = _whitened(model, theta, shift, precision)
    noise = 0.1 * rng.standard_normal((chains, n))

    def place(at: tuple[np.ndarray, ...], noise: np.ndarray) -> np.ndarray:
        return at[0] + (at[1] @ noise[..., None])[..., 0]

    def remainder(x: np.ndarray) -> np.ndarray:
        return model.log_likelihood(x) - (x @ shift - 0.5 * x**2 @ precision)

    proposal = 0.1 * np.eye(p)
    history: list[np.ndarray] = []
    accepted = 0
    x = place(at, noise)
    current = remainder(x)
    total, squares = np.zeros_like(x), np.zeros_like(x)
    for step in range(warmup + steps):
        for _ in range(5):
            # x - m and z move alike on the ellipse, so that they share it.
            fresh = rng.standard_normal(noise.shape)
            both, ellipse = np.hstack([x - at[0], noise]), np.hstack([place(at, fresh) - at[0], fresh])
            both, current = _step(both, ellipse, lambda s, rows, m=at[0]: remainder(m[rows] + s[:, :n]), current, rng)
            x, noise = at[0] + both[:, :n], both[:, n:]
        new = theta + rng.standard_normal((chains, p)) @ proposal.T
        new_at = _whitened(model, new, shift, precision)
        new_x = place(new_at, noise)
        new_current = remainder(new_x)
        take = new_current + new_at[2] - current - at[2] > -rng.exponential(size=chains)
        theta = np.where(take[:, None], new, theta)
        at = tuple(np.where(take.reshape(-1, *[1] * (a.ndim - 1)), b, a) for a, b in zip(at, new_at))
        x, current = np.where(take[:, None], new_x, x), np.where(take, new_current, current)
        history.append(theta)
        if step < warmup and (step + 1) % 50 == 0:
            recent = np.concatenate(history[len(history) // 2 :])
            proposal = 2.4 / np.sqrt(p) * np.linalg.cholesky(np.cov(recent.T) + 1e-8 * np.eye(p))
        if step >= warmup:
            accepted += take.sum()
            total += x - model.mean
            squares += (x - model.mean) ** 2
    latent = Chains.from_sums(total, squares, steps)
    draws = np.array(history[warmup:])
    return HierarchicalChains(
        latent._replace(mean=model.mean + latent.mean),
        Chains.from_sums(draws.sum(axis=0), (draws**2).sum(axis=0), steps),
        accepted / (steps * chains),
    )
