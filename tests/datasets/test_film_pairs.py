"""Comparisons of films are those that ratings imply, from files made here, and from the real ones where they are."""

import numpy as np
import pytest

from pymc_ep.datasets import load_movielens_pairs
from pymc_ep.exceptions import InvalidDataError

RATINGS = {
    1: {1: 5, 2: 5, 3: 5, 4: 1, 5: 1, 6: 3},
    2: {3: 5, 1: 1},
    3: {2: 5, 5: 4},
}
"""By user and film: six comparisons of the first user, one of the second, none of the third."""


@pytest.fixture(params=["100k", "1m"])
def size(request):
    return request.param


@pytest.fixture
def folder(size, tmp_path):
    rows = [(user, film, rating) for user, own in RATINGS.items() for film, rating in own.items()]
    if size == "100k":
        (tmp_path / "u.data").write_text("".join(f"{u}\t{i}\t{r}\t0\n" for u, i, r in rows))
        (tmp_path / "u.item").write_text("".join(f"{k}|film {k}|||url|{k % 2}|{k // 4}\n" for k in range(1, 7)))
        (tmp_path / "u.genre").write_text("Odd|0\nLate|1\n\n")
    else:
        (tmp_path / "ratings.dat").write_text("".join(f"{u}::{i}::{r}::0\n" for u, i, r in rows))
        genres = ["Odd", "Other", "Odd", "Late", "Late|Odd", "Late"]
        (tmp_path / "movies.dat").write_text("".join(f"{k + 1}::film::{g}\n" for k, g in enumerate(genres)))
    return tmp_path


def rows(frame):
    return set(frame.itertuples(index=False, name=None))


EVERY = {(1, best, worst) for best in (1, 2, 3) for worst in (4, 5)} | {(2, 3, 1)}


def test_films_rated_highest_win_against_those_rated_lowest(size, folder):
    found = load_movielens_pairs(size, n_test=2, path=folder)
    assert len(found.train) == 5 and len(found.test) == 2
    assert rows(found.train) | rows(found.test) == EVERY
    assert set(found.test["user"]) == {1}
    assert found.features.index.tolist() == [1, 2, 3, 4, 5]
    assert found.features["Odd"].tolist() == [1.0, 0.0, 1.0, 0.0, 1.0]
    assert found.features["Late"].tolist() == [0.0, 0.0, 0.0, 1.0, 1.0]


def test_test_films_may_be_kept_out_of_training(size, folder):
    for seed in range(5):
        found = load_movielens_pairs(size, n_test=1, unseen=True, seed=seed, path=folder)
        assert len(found.test) == 2 and rows(found.test) < EVERY
        (own,) = found.test.loc[found.test["user"] == 1, ["winner", "loser"]].to_numpy().tolist()
        assert rows(found.train) == {pair for pair in EVERY if pair[0] == 1 and not set(pair[1:]) & set(own)}


def test_smaller_samples_are_parts_of_larger_ones(size, folder):
    few, more = (load_movielens_pairs(size, max_pairs=n, n_test=1, seed=3, path=folder) for n in (2, 4))
    assert len(few.train) == 2 and len(more.train) == 4 and rows(few.train) < rows(more.train)
    assert rows(few.test) == rows(more.test)


def test_users_with_few_comparisons_are_left_out(size, folder):
    found = load_movielens_pairs(size, min_pairs=2, n_test=0, path=folder)
    assert rows(found.train) == {pair for pair in EVERY if pair[0] == 1} and found.test.empty
    with pytest.raises(InvalidDataError, match="min_pairs=7"):
        load_movielens_pairs(size, min_pairs=7, path=folder)
    with pytest.raises(InvalidDataError, match="max_pairs=0"):
        load_movielens_pairs(size, max_pairs=0, path=folder)


def test_real_comparisons_are_as_many_as_documented(data_folder):
    found = load_movielens_pairs("100k", path=data_folder / "ml-100k")
    assert found.train["user"].nunique() == 715 and len(found.features) == 1_526
    assert (len(found.train), len(found.test)) == (216_932, 1_380)
    assert np.isin(found.features, (0.0, 1.0)).all() and found.features.to_numpy().sum(axis=1).min() == 1
    assert not rows(found.train) & rows(found.test)
