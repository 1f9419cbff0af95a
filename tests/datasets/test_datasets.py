"""Data sets are what their sources say."""

import gzip
from functools import partial

import numpy as np
import pytest

from pymc_ep.datasets import (
    load_checkins,
    load_coal,
    load_gowalla,
    load_lastfm,
    load_melbourne_pedestrians,
    load_movielens,
    load_nips_coauthors,
)


def test_coal_has_the_published_dates():
    dates = load_coal()
    assert dates.shape == (191,) and dates.dtype == np.float64
    assert np.all(np.diff(dates) >= 0)
    # 15 March 1851 and 22 March 1962
    np.testing.assert_allclose([dates[0], dates[-1]], [1851 + 74 / 365, 1962 + 80.5 / 365], atol=2 / 365)
    assert np.sum(np.diff(dates) == 0) == 1
    # Before the change near 1890 a disaster came about every four months, afterwards about one a year (Jarrett 1979).
    assert 3.0 < np.sum(dates < 1890) / 39 < 3.4
    assert 0.8 < np.sum(dates >= 1890) / 72 < 1.1


def test_files_are_read_plain_or_compressed(tmp_path, monkeypatch):
    folder = tmp_path / "hetrec2011-lastfm-2k"
    folder.mkdir()
    (folder / "user_artists.dat").write_text("userID\tartistID\tweight\n2\t51\t13883\n4\t7\t1\n")
    with gzip.open(folder / "artists.dat.gz", "wt", encoding="utf-8") as out:
        out.write('id\tname\turl\tpictureURL\n7\tThe "Band"\ta\tb\n51\tBjörk\ta\tb\n')
    monkeypatch.setenv("PYMC_EP_DATA", str(tmp_path))
    for found in (load_lastfm(), load_lastfm(folder)):
        assert found.to_dict("list") == {
            "user": [2, 4],
            "artist": [51, 7],
            "name": ["Björk", 'The "Band"'],
            "plays": [13883, 1],
        }


@pytest.mark.parametrize(
    "load",
    [
        load_lastfm,
        load_gowalla,
        load_melbourne_pedestrians,
        load_movielens,
        partial(load_movielens, "100k"),
        load_checkins,
        partial(load_checkins, "brightkite"),
        load_nips_coauthors,
    ],
)
def test_missing_files_say_where_they_are(load, tmp_path, monkeypatch):
    with pytest.raises(FileNotFoundError, match=r"Get it from .*path=.*PYMC_EP_DATA"):
        load(path=tmp_path)
    monkeypatch.delenv("PYMC_EP_DATA", raising=False)
    with pytest.raises(FileNotFoundError, match="PYMC_EP_DATA is not set"):
        load()


def test_real_counts_are_what_their_sources_say(data_folder):
    plays = load_lastfm(data_folder / "hetrec2011-lastfm-2k")
    assert (len(plays), plays["user"].nunique(), plays["artist"].nunique()) == (92_834, 1_892, 17_632)
    assert plays["plays"].sum() == 69_183_975 and plays["name"].notna().all()
    visits = load_gowalla(data_folder / "gowalla-counts")
    assert (len(visits), visits["user"].nunique(), visits["place"].nunique()) == (378_968, 5_628, 31_803)
    assert visits["visits"].sum() == 620_683 and not visits.duplicated(["user", "place"]).any()
    assert visits["part"].value_counts().to_dict() == {"train": 262_714, "test": 78_892, "tune": 37_362}
    people = load_melbourne_pedestrians(data_folder / "melbourne-pedestrians")
    assert people.shape == (16_056, 55) and people.max().max() == 9_509
    assert people.isna().to_numpy().mean() == pytest.approx(0.014, abs=1e-4)
