"""Comparisons of films: the ones that a user of MovieLens rated highest against the ones rated lowest."""

import os
from typing import NamedTuple

import numpy as np
import pandas as pd

from pymc_ep.datasets.long_tables import film_genres, load_movielens
from pymc_ep.exceptions import InvalidDataError

__all__ = ["FilmPairs", "load_movielens_pairs"]

_HIGHEST, _LOWEST = 5, 1
"""Ratings of a preferred film and of one that it is compared with."""


class FilmPairs(NamedTuple):
    """Comparisons of films, and features of the films.

    Attributes
    ----------
    train, test : pandas.DataFrame
        A row for each comparison, with the columns ``user``, ``winner`` and ``loser``, the publishers' numbers. The
        comparisons of a user are in random order.
    features : pandas.DataFrame, (films, genres)
        One for each genre of a film, zero for all others, indexed by the number of the film. It has all films that a
        user of the comparisons rated highest or lowest.
    """

    train: pd.DataFrame
    test: pd.DataFrame
    features: pd.DataFrame


def load_movielens_pairs(
    size: str = "100k",
    *,
    max_pairs: int | None = None,
    min_pairs: int = 1,
    n_test: int = 4,
    unseen: bool = False,
    seed: int = 0,
    path: str | os.PathLike | None = None,
) -> FilmPairs:
    """Return comparisons that ratings of MovieLens imply: films that a user rated 5 against those rated 1 [1]_.

    Parameters
    ----------
    size : {"100k", "1m"}
    max_pairs : int, optional
        Largest number of training comparisons of a user, drawn at random. The comparisons for a smaller number are a
        subset of the ones for a larger number.
    min_pairs : int
        Users with fewer comparisons are left out.
    n_test : int
        Number of test comparisons of each user who rated at least so many films 5, and as many 1. Other users have no
        test comparisons.
    unseen : bool
        Whether the films in a user's test comparisons, then all different, are in none of the user's training
        comparisons. Otherwise most of them won or lost in training too.
    seed : int
    path : path-like, optional
        Folder of the files, as in `load_movielens`; for ``"100k"`` with ``u.genre``.

    Returns
    -------
    FilmPairs
        By default 216,932 training comparisons of 715 users and 1,526 films, and 1,380 for testing, or of ``"1m"``
        3,895,534 of 4,645 users and 3,501 films, and 9,952.

    Raises
    ------
    ValueError
        For another size, and counts out of range.
    FileNotFoundError
        If the files are missing; the message has their source.

    References
    ----------
    .. [1] M. E. Khan, Y. J. Ko and M. Seeger (2014), Scalable collaborative Bayesian preference learning, AISTATS.
    """
    for name, value, least in (("max_pairs", max_pairs, 1), ("min_pairs", min_pairs, 1), ("n_test", n_test, 0)):
        if value is not None and value < least:
            raise InvalidDataError(f"{name}={value!r} must be at least {least}.")
    ratings = load_movielens(size, path)
    ratings = ratings[ratings["rating"].isin((_HIGHEST, _LOWEST))]
    rng = np.random.default_rng(seed)
    comparisons: tuple[list[pd.DataFrame], list[pd.DataFrame]] = ([], [])
    films: set[int] = set()
    for user, rated in ratings.groupby("user"):
        item, high = rated["item"].to_numpy(), (rated["rating"] == _HIGHEST).to_numpy()
        best, worst = item[high], item[~high]
        if len(best) * len(worst) < min_pairs:
            continue
        films.update(item)
        some = n_test if min(len(best), len(worst)) >= n_test else 0
        for rows, pairs in zip(comparisons, _divided(len(best), len(worst), some, unseen, rng)):
            first, second = np.divmod(pairs[:max_pairs] if rows is comparisons[0] else pairs, len(worst))
            rows.append(pd.DataFrame({"user": user, "winner": best[first], "loser": worst[second]}))
    if not films:
        raise InvalidDataError(f"No user has min_pairs={min_pairs} comparisons; ask for fewer.")
    genres = film_genres(size, path).loc[sorted(films)]
    train, test = (pd.concat(rows, ignore_index=True) for rows in comparisons)
    return FilmPairs(train, test, genres)


def _divided(
    n_best: int, n_worst: int, n_test: int, unseen: bool, rng: np.random.Generator
) -> tuple[np.ndarray, np.ndarray]:
    """Return training and test comparisons, as row-major positions in a matrix, (n_best, n_worst), of film pairs."""
    if not unseen:
        order = rng.permutation(n_best * n_worst)
        return order[n_test:], order[:n_test]
    best, worst = rng.permutation(n_best), rng.permutation(n_worst)
    train = (best[n_test:, None] * n_worst + worst[n_test:]).ravel()
    return rng.permutation(train), best[:n_test] * n_worst + worst[:n_test]
