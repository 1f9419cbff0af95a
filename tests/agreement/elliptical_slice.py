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
    state: np.ndarray, ellipse: np.ndarray, log_density: LogDensity, current: np.ndarray, rng: np.random.Generator
) -> tuple[np.ndarray, np.ndarray]:
    """Advance all chains by one elliptical slice (Murray, Adams and MacKay 2010, figure 2).

    Parameters
    ----------
    state, ellipse : ndarray, (chains, n)
        States about the Gaussian's mean, and draws of the zero-mean Gaussian that span the ellipses.
    log_density : callable
        Log of the factor that multiplies the Gaussian.
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
        density = log_density(proposal)
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
    about = lambda state: log_likelihood(mean + state)  # noqa: E731
    state = start - mean + 0.01 * draw()
    current = about(state)
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
        state, scaled = _step(state, draw(), lambda s, now=now: now * about(s), now * current, rng)
        current = scaled / now
    top = log_weight.max()
    weight = np.exp(log_weight - top)
    return float(top + np.log(weight.mean())), float(weight.std(ddof=1) / weight.mean() / np.sqrt(particles))


class Hierarchy(NamedTuple):
    """A Gaussian process with random hyperparameters: f = level + L(theta) z with standard normal z.

    Attributes
    ----------
    factor : callable
        L, (chains, n, n), of rows of theta, (chains, p).
    log_prior : callable
        Log density of theta, (chains,), from its rows.
    level : tuple of float
        Mean and standard deviation of the level.
    log_likelihood : callable
        From rows of f, (chains, n), to (chains,).
    """

    factor: Callable[[np.ndarray], np.ndarray]
    log_prior: LogDensity
    level: tuple[float, float]
    log_likelihood: LogDensity


class HierarchicalChains(NamedTuple):
    """Moments of the latent values, draws (steps, chains, p) of theta and (steps, chains) of the level."""

    latent: Chains
    theta: np.ndarray
    level: np.ndarray
    acceptance: float


def sample_hierarchical(
    model: Hierarchy, theta: np.ndarray, *, n: int, warmup: int, steps: int, rng: np.random.Generator
) -> HierarchicalChains:
    """Alternate elliptical slices in z and the level with Metropolis steps in theta at fixed z.

    Moving theta under a fixed z ("whitened", Murray and Adams 2010) mixes where the data say little about single
    latent values. The proposal is tuned, by the scatter of all chains, in the warm-up alone.

    Parameters
    ----------
    theta : ndarray, (chains, p)
        Starts, scattered.
    """
    chains, p = theta.shape
    mean, sd = model.level
    state = np.zeros((chains, 2 * n + 1))
    log_density = lambda s: model.log_likelihood(mean + s[:, :n])  # noqa: E731
    factor, log_prior, current = model.factor(theta), model.log_prior(theta), log_density(state)
    proposal = 0.1 * np.eye(p)
    history, levels, accepted = [], [], 0
    total, squares = np.zeros((chains, n)), np.zeros((chains, n))

    def values(factor: np.ndarray, noise: np.ndarray) -> np.ndarray:
        """Return f about the level's mean, next to the noise it comes from."""
        f = sd * noise[:, -1:] + np.einsum("cij,cj->ci", factor, noise[:, :-1], optimize=True)
        return np.hstack([f, noise])

    for step in range(warmup + steps):
        for _ in range(5):
            ellipse = values(factor, rng.standard_normal((chains, n + 1)))
            state, current = _step(state, ellipse, log_density, current, rng)
        new = theta + rng.standard_normal((chains, p)) @ proposal.T
        new_factor, new_prior = model.factor(new), model.log_prior(new)
        new_state = values(new_factor, state[:, n:])
        new_density = log_density(new_state)
        take = new_density + new_prior - current - log_prior > -rng.exponential(size=chains)
        theta, factor, state = theta.copy(), factor.copy(), state.copy()
        theta[take], factor[take], state[take] = new[take], new_factor[take], new_state[take]
        current, log_prior = np.where(take, new_density, current), np.where(take, new_prior, log_prior)
        history.append(theta)
        if step < warmup and (step + 1) % 50 == 0:
            recent = np.concatenate(history[len(history) // 2 :])
            proposal = 2.4 / np.sqrt(p) * np.linalg.cholesky(np.cov(recent.T) + 1e-8 * np.eye(p))
        if step >= warmup:
            accepted += take.sum()
            total += state[:, :n]
            squares += state[:, :n] ** 2
            levels.append(mean + sd * state[:, -1])
    latent = Chains.from_sums(total, squares, steps)
    latent = latent._replace(mean=mean + latent.mean)
    return HierarchicalChains(latent, np.array(history[warmup:]), np.array(levels), accepted / (steps * chains))
