"""Rankings of sushi, from files made here, and from the real ones where they are."""

import numpy as np
import pandas as pd
import pytest

from pymc_ep.datasets import load_sushi, pairs_from_rankings
from pymc_ep.exceptions import InvalidDataError


@pytest.fixture
def folder(tmp_path):
    rows = [f"{k}\tkind {k}\t{k % 2}\t{k % 3 % 2}\t{k % 12}\t{k}.5\t1\t2\t0.5" for k in range(100)]
    (tmp_path / "sushi3.idata").write_text("header\n\n" + "\n".join(rows) + "\n", encoding="utf-8")
    (tmp_path / "sushi3a.5000.10.order").write_text("10 1\n0 10 5 0 3 4 6 9 8 1 7 2\n")
    (tmp_path / "sushi3b.5000.10.order").write_text("100 1\n0 10 58 4 3 44 87 60 67 1 12 74\n")
    return tmp_path


def test_numbers_of_either_set_are_named(folder):
    one = load_sushi("b", folder)
    assert one.rankings.loc[0].tolist()[:3] == ["kind 58", "kind 4", "kind 3"]
    assert one.features.shape == (100, 18)
    assert one.features.loc["kind 13", ["style", "heaviness", "group_1"]].tolist() == [1.0, 13.5, 1.0]
    # The ten kinds of set a have numbers of their own: the sixth of these is the seventh of all.
    other = load_sushi("a", folder)
    assert other.rankings.loc[0].tolist()[:2] == ["kind 6", "kind 0"]
    assert other.features.index.tolist()[-2:] == ["kind 26", "kind 29"]


def test_other_sets_and_missing_files_are_named(tmp_path):
    with pytest.raises(ValueError, match="neither"):
        load_sushi("c")
    with pytest.raises(FileNotFoundError, match="kamishima"):
        load_sushi("a", tmp_path)


def test_rankings_imply_comparisons():
    rankings = pd.DataFrame([list("bca"), list("abc")], index=["x", "y"])
    found = pairs_from_rankings(rankings)
    assert set(found.itertuples(index=False, name=None)) == {
        ("x", "b", "c"),
        ("x", "b", "a"),
        ("x", "c", "a"),
        ("y", "a", "b"),
        ("y", "a", "c"),
        ("y", "b", "c"),
    }
    some = pairs_from_rankings(rankings, n=2, seed=1)
    assert some.groupby("user").size().tolist() == [2, 2]
    assert not some.duplicated().any()
    assert set(some.itertuples(index=False, name=None)) < set(found.itertuples(index=False, name=None))
    with pytest.raises(InvalidDataError, match="3 comparisons"):
        pairs_from_rankings(rankings, n=4)


def test_real_rankings_are_complete():
    try:
        rankings, features = load_sushi("b")
    except FileNotFoundError as missing:
        pytest.skip(str(missing))
    assert rankings.shape == (5000, 10)
    assert features.shape == (100, 18)
    assert np.isfinite(features.to_numpy()).all()
    assert (rankings.nunique(axis=1) == 10).all()
