"""Simulated comparisons of a few items."""

import numpy as np


def answers(kernel, n_users, n_pairs, seed):
    """Answers of people whose utilities have a given covariance, (I, I): users, winners and losers."""
    rng = np.random.default_rng(seed)
    n_items = len(kernel)
    utilities = rng.multivariate_normal(np.zeros(n_items), kernel, size=n_users)
    users = np.repeat(np.arange(n_users), n_pairs)
    firsts = rng.integers(n_items, size=len(users))
    seconds = (firsts + rng.integers(1, n_items, size=len(users))) % n_items
    wins = utilities[users, firsts] - utilities[users, seconds] + rng.normal(size=len(users)) > 0
    return users, np.where(wins, firsts, seconds), np.where(wins, seconds, firsts)
