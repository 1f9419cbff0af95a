"""Simulated comparisons of three items."""

import numpy as np


def answers(kernel, n_users, n_pairs, seed):
    """Answers of people whose utilities have a given covariance, (3, 3): users, winners and losers."""
    rng = np.random.default_rng(seed)
    utilities = rng.multivariate_normal(np.zeros(3), kernel, size=n_users)
    users = np.repeat(np.arange(n_users), n_pairs)
    firsts = rng.integers(3, size=len(users))
    seconds = (firsts + rng.integers(1, 3, size=len(users))) % 3
    wins = utilities[users, firsts] - utilities[users, seconds] + rng.normal(size=len(users)) > 0
    return users, np.where(wins, firsts, seconds), np.where(wins, seconds, firsts)
