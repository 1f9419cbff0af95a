"""Dense expectation propagation over all items of one user, by inverses, against which the engine is tested."""

import numpy as np
from scipy.stats import norm


def simulated(n_users=40, n_items=12, n_factors=2, n_pairs=7, seed=0):
    """Return a prior and comparisons (users, winners, losers) drawn under it, in random order."""
    rng = np.random.default_rng(seed)
    features = rng.normal(size=(n_items, 3))
    kernel = np.exp(-((features[:, None] - features) ** 2).sum(-1) / 4.0) + 0.1 * np.eye(n_items)
    factors, mean, scale = rng.normal(size=(n_items, n_factors)), rng.normal(size=n_items), 0.8
    covariance = factors @ factors.T + scale * kernel
    utilities = rng.multivariate_normal(mean, covariance, size=n_users)
    rows = []
    for u in range(n_users):
        some = rng.choice(n_items, 5, replace=False)
        for _ in range(n_pairs):
            i, j = rng.choice(some, 2, replace=False)
            rows.append((u, i, j) if utilities[u, i] - utilities[u, j] > rng.normal() else (u, j, i))
    users, winners, losers = rng.permutation(np.array(rows)).T
    return (mean, factors, scale, kernel), (users, winners, losers)


def contrasts(winners, losers, n_items):
    """Return the matrix with rows e_i - e_j."""
    design = np.zeros((len(winners), n_items))
    design[np.arange(len(winners)), winners] += 1.0
    design[np.arange(len(winners)), losers] -= 1.0
    return design


def dense_ep(mean, covariance, winners, losers, rounds=60):
    """Return site precisions and shifts, posterior moments of all items, and the log evidence, of one user."""
    design = contrasts(winners, losers, len(mean))
    precision, shift = np.zeros((2, len(winners)))
    prior_precision = np.linalg.inv(covariance)
    for _ in range(rounds):
        for k, row in enumerate(design):
            posterior = np.linalg.inv(prior_precision + design.T @ (precision[:, None] * design))
            at = posterior @ (prior_precision @ mean + design.T @ shift)
            v, m = row @ posterior @ row, row @ at
            cavity = 1.0 / (1.0 / v - precision[k])
            centre = cavity * (m / v - shift[k])
            z = centre / np.sqrt(1.0 + cavity)
            ratio = np.exp(norm.logpdf(z) - norm.logcdf(z))
            new_mean = centre + cavity * ratio / np.sqrt(1.0 + cavity)
            new_variance = cavity - cavity**2 * ratio * (z + ratio) / (1.0 + cavity)
            precision[k] = 1.0 / new_variance - 1.0 / cavity
            shift[k] = new_mean / new_variance - centre / cavity
    posterior = np.linalg.inv(prior_precision + design.T @ (precision[:, None] * design))
    at = posterior @ (prior_precision @ mean + design.T @ shift)
    return precision, shift, at, posterior, _log_evidence(mean, covariance, design, precision, shift, at, posterior)


def _log_evidence(mean, covariance, design, precision, shift, at, posterior):
    """Return the log evidence as normalisers of cavities times that of the Gaussian integral."""
    m, v = design @ at, np.einsum("kn,nm,km->k", design, posterior, design)
    cavity = 1.0 / (1.0 / v - precision)
    centre = cavity * (m / v - shift)
    log_z = norm.logcdf(centre / np.sqrt(1.0 + cavity))
    widened = 1.0 + precision * cavity
    own = (cavity * shift**2 + 2.0 * centre * shift - precision * centre**2) / widened
    constants = log_z + 0.5 * np.log(widened) - 0.5 * own
    pull = design.T @ shift
    gaussian = 0.5 * (np.linalg.slogdet(posterior)[1] - np.linalg.slogdet(covariance)[1])
    natural = np.linalg.solve(covariance, mean)
    gaussian += 0.5 * (natural + pull) @ posterior @ (natural + pull) - 0.5 * mean @ natural
    return float(constants.sum() + gaussian)
