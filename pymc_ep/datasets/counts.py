"""Matrices of counts: plays of artists, check-ins at places, and pedestrians at sensors."""

import os

import pandas as pd

from pymc_ep.datasets.files import Collection, read_table, require_counts

__all__ = ["load_gowalla", "load_lastfm", "load_melbourne_pedestrians"]

_LASTFM = Collection(
    "hetrec2011-lastfm-2k", "https://grouplens.org/datasets/hetrec-2011/", "for non-commercial use, with citation"
)
_GOWALLA = Collection(
    "gowalla-counts",
    "the data of Liu et al. (2017), doi:10.14778/3115404.3115407, made of https://snap.stanford.edu/data/loc-Gowalla.html",
    "for research, with citation",
)
_MELBOURNE = Collection(
    "melbourne-pedestrians",
    "https://data.melbourne.vic.gov.au, Pedestrian Counting System, one column a sensor and one row an hour",
    "CC BY 4.0",
)


def load_lastfm(path: str | os.PathLike | None = None) -> pd.DataFrame:
    """Return the number of times that users of Last.fm played artists.

    Parameters
    ----------
    path : path-like, optional
        Folder of ``user_artists.dat`` and ``artists.dat``. By default ``hetrec2011-lastfm-2k`` in the folder that the
        environment variable ``PYMC_EP_DATA`` names.

    Returns
    -------
    pandas.DataFrame
        A row for each of 92,834 pairs, with the columns ``user``, ``artist`` (both the publishers' numbers), ``name``
        of the artist and ``plays``. Pairs without plays are left out.

    Raises
    ------
    FileNotFoundError
        If the files are missing; the message has their source.

    References
    ----------
    .. [1] I. Cantador, P. Brusilovsky and T. Kuflik (2011), Second workshop on information heterogeneity and fusion in
       recommender systems, RecSys.
    """
    with _LASTFM.open("user_artists.dat", path) as lines:
        plays = read_table(lines, "\t").rename(columns={"userID": "user", "artistID": "artist", "weight": "plays"})
        plays = plays.apply(lambda column: require_counts(plays, column.name))
    with _LASTFM.open("artists.dat", path) as lines:
        # Names may hold quotation marks.
        names = pd.read_csv(lines, sep="\t", usecols=["id", "name"], index_col="id", quoting=3)["name"]
    return plays.assign(name=plays["artist"].map(names))[["user", "artist", "name", "plays"]]


def load_gowalla(path: str | os.PathLike | None = None) -> pd.DataFrame:
    """Return the number of times that users of Gowalla checked in at places.

    Parameters
    ----------
    path : path-like, optional
        Folder of ``train.txt``, ``tune.txt`` and ``test.txt``. By default ``gowalla-counts`` in the folder that the
        environment variable ``PYMC_EP_DATA`` names.

    Returns
    -------
    pandas.DataFrame
        A row for each of 378,968 pairs, with the columns ``user`` and ``place``, counted from zero, ``visits``, and
        ``part``: ``"train"``, ``"tune"`` or ``"test"``, a user's earliest 70, the next 10 and the latest 20 percent.
        Pairs without visits are left out.

    Raises
    ------
    FileNotFoundError
        If the files are missing; the message has their source.

    References
    ----------
    .. [1] Y. Liu, T.-A. N. Pham, G. Cong and Q. Yuan (2017), An experimental evaluation of point-of-interest
       recommendation in location-based social networks, PVLDB 10.
    .. [2] E. Cho, S. A. Myers and J. Leskovec (2011), Friendship and mobility, KDD.
    """
    tables = []
    for split in ("train", "tune", "test"):
        with _GOWALLA.open(f"{split}.txt", path) as lines:
            table = read_table(lines, "\t", ["user", "place", "visits"])
            table = table.apply(lambda column, table=table: require_counts(table, column.name))
        tables.append(table.assign(part=split))
    return pd.concat(tables, ignore_index=True)


def load_melbourne_pedestrians(path: str | os.PathLike | None = None) -> pd.DataFrame:
    """Return the number of pedestrians that passed each sensor of Melbourne in each hour.

    Parameters
    ----------
    path : path-like, optional
        Folder of ``counts_hourly.csv``. By default ``melbourne-pedestrians`` in the folder that the environment
        variable ``PYMC_EP_DATA`` names.

    Returns
    -------
    pandas.DataFrame
        A row for each of 16,056 hours from 2021-01-01, its index, and a column for each of 55 sensors; NaN where an
        hour is missing.

    Raises
    ------
    FileNotFoundError
        If the file is missing; the message has its source.
    """
    with _MELBOURNE.open("counts_hourly.csv", path) as lines:
        counts = read_table(lines, ",").apply(pd.to_numeric)
        valid = counts.where(counts >= 0, 0)
        valid.apply(lambda column: require_counts(valid, column.name))
    hours = pd.date_range("2021-01-01", periods=len(counts), freq="h", name="hour")
    return counts.where(counts >= 0).astype(float).set_index(hours)
