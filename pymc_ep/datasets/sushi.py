"""Rankings of kinds of sushi by people, and comparisons of pairs of items that rankings imply."""

import os
from typing import NamedTuple

import numpy as np
import pandas as pd

from pymc_ep.datasets.files import Collection, read_table
from pymc_ep.exceptions import InvalidDataError, did_you_mean

__all__ = ["SushiRankings", "load_sushi", "pairs_from_rankings"]

_SUSHI = Collection(
    "sushi3", "https://www.kamishima.net/sushi/", "for research, with citation; no redistribution without permission"
)
_SET_A = (0, 1, 2, 3, 4, 6, 7, 8, 26, 29)
"""Numbers, in the list of all kinds, of the ten kinds that everybody ranked. The file of these rankings numbers the ten
kinds from zero."""
_NUMERIC = ["heaviness", "frequency_eaten", "price", "frequency_sold"]


class SushiRankings(NamedTuple):
    """Rankings, and features of the ranked items.

    Attributes
    ----------
    rankings : pandas.DataFrame, (5000, 10)
        Names of kinds of sushi by person, in the columns 1 to 10 from the most liked one on.
    features : pandas.DataFrame, (10, 18) or (100, 18)
        By name, as the publisher has them: ``style``, 0 for rolls, ``major_group``, 0 for seafood, ``heaviness``, 0 for
        the most oily, ``frequency_eaten``, ``price``, ``frequency_sold``, and one column for each of 12 groups.
    """

    rankings: pd.DataFrame
    features: pd.DataFrame


def load_sushi(items: str = "b", path: str | os.PathLike | None = None) -> SushiRankings:
    """Return how 5,000 people ranked ten kinds of sushi.

    Parameters
    ----------
    items : {"a", "b"}
        ``"a"``, the same ten for everybody; ``"b"``, ten of a hundred, drawn by how often they are sold.
    path : path-like, optional
        Folder of ``sushi3a.5000.10.order``, ``sushi3b.5000.10.order`` and ``sushi3.idata``. By default ``sushi3`` in
        the folder that the environment variable ``PYMC_EP_DATA`` names.

    Returns
    -------
    SushiRankings

    Raises
    ------
    ValueError
        For another set.
    FileNotFoundError
        If the files are missing; the message has their source.

    References
    ----------
    .. [1] T. Kamishima (2003), Nantonac collaborative filtering: recommendation based on order responses, KDD.
    """
    if items not in ("a", "b"):
        raise ValueError(f"items={items!r} is neither 'a' nor 'b'.{did_you_mean(items, ('a', 'b'))}")
    columns = ["number", "name", "style", "major_group", "group", *_NUMERIC]
    with _SUSHI.open("sushi3.idata", path) as lines:
        next(lines)
        table = read_table(lines, "\t", columns)
    groups = pd.get_dummies(table["group"], prefix="group", dtype=float)
    features = pd.concat([table[["style", "major_group", *_NUMERIC]].astype(float), groups], axis=1)
    features.index = pd.Index(table["name"], name="item")
    if items == "a":
        features = features.iloc[list(_SET_A)]
    with _SUSHI.open(f"sushi3{items}.5000.10.order", path) as lines:
        orders = np.loadtxt(lines, skiprows=1, dtype=np.int64, ndmin=2)[:, 2:]
    names = features.index.to_numpy()[orders]
    people = pd.RangeIndex(len(names), name="user")
    return SushiRankings(pd.DataFrame(names, index=people, columns=1 + np.arange(names.shape[1])), features)


def pairs_from_rankings(rankings: pd.DataFrame, n: int | None = None, seed: int = 0) -> pd.DataFrame:
    """Return the comparisons that rankings imply.

    Parameters
    ----------
    rankings : pandas.DataFrame, (users, k)
        Items by user, the most liked one in the first column.
    n : int, optional
        Comparisons of each user, drawn at random without repeats; all k (k - 1) / 2 by default.
    seed : int

    Returns
    -------
    pandas.DataFrame
        A row for each comparison, with the columns ``user``, ``winner`` and ``loser``. With `n`, the comparisons of a
        user are in random order.

    Raises
    ------
    InvalidDataError
        If there are fewer comparisons than `n`.
    """
    values = rankings.to_numpy()
    first, second = np.triu_indices(values.shape[1], k=1)
    if n is not None and not 0 < n <= len(first):
        raise InvalidDataError(f"n={n}, but a ranking of {values.shape[1]} items has {len(first)} comparisons.")
    rng, every = np.random.default_rng(seed), np.arange(len(first))
    chosen = np.stack([every if n is None else rng.permutation(every)[:n] for _ in range(len(values))])
    rows = np.arange(len(values))[:, None]
    return pd.DataFrame(
        {
            "user": np.repeat(rankings.index.to_numpy(), chosen.shape[1]),
            "winner": values[rows, first[chosen]].ravel(),
            "loser": values[rows, second[chosen]].ravel(),
        }
    )
