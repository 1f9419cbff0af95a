"""Long tables of pairs: ratings of films, check-ins at places, and authors of papers."""

import os
from contextlib import AbstractContextManager
from typing import IO

import numpy as np
import pandas as pd

from pymc_ep.datasets.files import Collection, require_counts
from pymc_ep.exceptions import did_you_mean

__all__ = ["film_genres", "load_checkins", "load_movielens", "load_nips_coauthors"]

_MOVIELENS = {
    size: Collection(
        f"ml-{size}",
        f"https://grouplens.org/datasets/movielens/{size}/",
        "for research, with citation; no redistribution, no commercial use",
    )
    for size in ("1m", "100k")
}
_CHECKINS = {
    "foursquare-nyc": Collection(
        "foursquare-nyc-10core",
        "https://github.com/tanloc49/SEP-GCN, folder data/nyc, made of the check-ins of Yang et al. (2015), "
        "IEEE Transactions on Systems, Man, and Cybernetics: Systems 45",
        "for research, with citation",
    ),
    "brightkite": Collection(
        "brightkite-10core",
        "https://github.com/tanloc49/SEP-GCN, folder data/brightkite, made of the check-ins of Cho, Myers and Leskovec "
        "(2011), KDD",
        "for research, with citation",
    ),
}
_NIPS = Collection(
    "nips0-12",
    "https://github.com/gregoryyy/knowceans, file nips-corpus-20111211.zip, made of "
    "https://cs.nyu.edu/~roweis/data.html",
    "for research, with citation",
)


def load_movielens(size: str = "1m", path: str | os.PathLike | None = None) -> pd.DataFrame:
    """Return the ratings that users of MovieLens gave to films.

    Parameters
    ----------
    size : {"1m", "100k"}
    path : path-like, optional
        Folder of ``ratings.dat`` and ``movies.dat``, or of ``u.data`` and ``u.item`` for ``"100k"``. By default
        ``ml-1m`` or ``ml-100k`` in the folder that the environment variable ``PYMC_EP_DATA`` names.
        ``ratings_notime.dat``, without times, is read where there is no ``ratings.dat``.

    Returns
    -------
    pandas.DataFrame
        A row for each of 1,000,209 or 100,000 pairs, with the columns ``user``, ``item`` (both the publishers'
        numbers), ``title`` of the film, ``rating``, from 1 to 5, and ``time``, in UTC, missing where the file has none.
        In ``"100k"`` 18 titles have two numbers each.

    Raises
    ------
    ValueError
        For another size.
    FileNotFoundError
        If the files are missing; the message has their source.

    References
    ----------
    .. [1] F. M. Harper and J. A. Konstan (2015), The MovieLens datasets: history and context, ACM TiiS 5(4).
    """
    if size not in _MOVIELENS:
        raise ValueError(f"size={size!r} is neither '1m' nor '100k'.{did_you_mean(size, _MOVIELENS)}")
    small, files = size == "100k", _MOVIELENS[size]
    # Fields of ratings.dat are separated by two colons; every other field between single ones is empty.
    sep, fields = ("\t", [0, 1, 2, 3]) if small else (":", [0, 2, 4, 6])
    names = ["user", "item", "rating", "time"]
    with files.open("u.data", path) if small else _ratings_1m(path) as lines:
        ratings = pd.read_csv(lines, sep=sep, header=None)
        ratings = ratings[[field for field in fields if field in ratings]]
        ratings = ratings.set_axis(names[: ratings.shape[1]], axis=1)
        ratings = ratings.apply(lambda column: require_counts(ratings, column.name))
    titles = {int(number): title for number, title, *_ in _films(size, path)}
    time = pd.to_datetime(ratings.get("time", np.full(len(ratings), np.nan)), unit="s")
    return ratings.assign(title=ratings["item"].map(titles), time=time)[["user", "item", "title", "rating", "time"]]


def film_genres(size: str, path: str | os.PathLike | None = None) -> pd.DataFrame:
    """Return ones for the genres of each film, else zeros, (films, genres), indexed by the publishers' numbers."""
    films = _films(size, path)
    numbers = pd.Index([int(film[0]) for film in films], name="item")
    if size == "100k":
        with _MOVIELENS[size].open("u.genre", path) as lines:
            names = [line.split("|")[0] for line in lines if line.strip()]
        return pd.DataFrame([film[-len(names) :] for film in films], numbers, names).astype(float)
    return pd.Series([film[-1] for film in films], numbers).str.get_dummies("|").astype(float)


def _ratings_1m(path: str | os.PathLike | None) -> AbstractContextManager[IO[str]]:
    """Open the file of ratings; without it, the file of ratings without times."""
    try:
        return _MOVIELENS["1m"].open("ratings.dat", path)
    except FileNotFoundError as error:
        try:
            return _MOVIELENS["1m"].open("ratings_notime.dat", path)
        except FileNotFoundError:
            raise error from None


def _films(size: str, path: str | os.PathLike | None) -> list[list[str]]:
    """Return the fields of each film: in Latin-1 as published, in UTF-8 in some copies."""
    name, sep = ("u.item", "|") if size == "100k" else ("movies.dat", "::")
    try:
        with _MOVIELENS[size].open(name, path) as lines:
            return [line.rstrip("\n").split(sep) for line in lines]
    except UnicodeDecodeError:
        with _MOVIELENS[size].open(name, path, encoding="latin-1") as lines:
            return [line.rstrip("\n").split(sep) for line in lines]


def load_checkins(name: str = "foursquare-nyc", path: str | os.PathLike | None = None) -> pd.DataFrame:
    """Return the check-ins of users of a service at places, in order of time for each user.

    Parameters
    ----------
    name : {"foursquare-nyc", "brightkite"}
        Foursquare in New York, or Brightkite.
    path : path-like, optional
        Folder of ``train.txt`` and ``test.txt``, and of ``time_train.txt`` and ``time_test.txt``. By default
        ``foursquare-nyc-10core`` or ``brightkite-10core`` in the folder that the environment variable ``PYMC_EP_DATA``
        names.

    Returns
    -------
    pandas.DataFrame
        A row for each of 179,468 or 841,511 check-ins, with the columns ``user`` and ``place``, counted from zero,
        ``time``, in UTC, missing where there is no file of times, and ``part``: ``"train"`` or ``"test"``, a user's
        earlier and later ones. The rows of a user follow each other in time order. Users have at least 10 check-ins,
        places of Brightkite as well, and places of Foursquare at least 5.

    Raises
    ------
    ValueError
        For another name.
    FileNotFoundError
        If the files are missing; the message has their source.

    References
    ----------
    .. [1] D. Yang, D. Zhang, V. W. Zheng and Z. Yu (2015), Modeling user activity preference by leveraging user spatial
       temporal characteristics in LBSNs, IEEE Transactions on Systems, Man, and Cybernetics: Systems 45.
    .. [2] E. Cho, S. A. Myers and J. Leskovec (2011), Friendship and mobility, KDD.
    .. [3] T. L. Nguyen and T. T. Tran (2025), SEP-GCN, ICTIR.
    """
    if name not in _CHECKINS:
        names = " nor ".join(map(repr, _CHECKINS))
        raise ValueError(f"name={name!r} is neither {names}.{did_you_mean(name, _CHECKINS)}")
    tables = []
    for split in ("train", "test"):
        users, places = _numbered(name, f"{split}.txt", path)
        try:
            times = pd.to_datetime(_numbered(name, f"time_{split}.txt", path)[1], unit="s")
        except FileNotFoundError:
            times = pd.DatetimeIndex([pd.NaT] * len(users))
        tables.append(pd.DataFrame({"user": users, "place": places, "time": times, "part": split}))
    return pd.concat(tables).sort_values("user", kind="stable", ignore_index=True)


def _numbered(name: str, file: str, path: str | os.PathLike | None) -> tuple[np.ndarray, np.ndarray]:
    """Return users and values, (n,) each, of a file with a user and the values of its check-ins in each line."""
    with _CHECKINS[name].open(file, path) as lines:
        rows = [np.array(line.split(), dtype=np.int64) for line in lines]
    users = np.repeat([row[0] for row in rows], [len(row) - 1 for row in rows])
    return users, np.concatenate([row[1:] for row in rows])


def load_nips_coauthors(path: str | os.PathLike | None = None) -> pd.DataFrame:
    """Return the authors of the papers at the conferences NIPS 0 to 12, 1987 to 1999.

    Parameters
    ----------
    path : path-like, optional
        Folder of ``nips.authors`` and ``nips.authors.key``. By default ``nips0-12`` in the folder that the environment
        variable ``PYMC_EP_DATA`` names.

    Returns
    -------
    pandas.DataFrame
        A row for each of 3,990 authors of 1,740 papers, with the columns ``paper``, counted from zero, and ``author``,
        a name such as ``"Jordan_M"``.

    Raises
    ------
    FileNotFoundError
        If the files are missing; the message has their source.

    Notes
    -----
    ``papers.merge(papers, on="paper").query("author_x < author_y")`` has a row for each pair of co-authors of each
    paper.

    References
    ----------
    .. [1] S. Roweis, NIPS conference papers, volumes 0-12, https://cs.nyu.edu/~roweis/data.html.
    .. [2] G. Heinrich (2011), NIPS0-12 test collection.
    """
    with _NIPS.open("nips.authors.key", path, encoding="latin-1") as lines:
        names = [line.strip() for line in lines]
    with _NIPS.open("nips.authors", path) as lines:
        pairs = [(paper, names[int(author)]) for paper, line in enumerate(lines) for author in line.split()]
    return pd.DataFrame(pairs, columns=["paper", "author"])
