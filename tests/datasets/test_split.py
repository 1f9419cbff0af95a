"""Long tables split into Parquet files by user."""

import numpy as np
import pandas as pd
import pytest

import pymc_ep as pmep
from pymc_ep.datasets import split, split_pairs

pytest.importorskip("pyarrow", reason="needs PyArrow")
RNG = np.random.default_rng(0)
FRAME = pd.DataFrame(
    {"user": RNG.integers(0, 40, 500), "item": RNG.integers(0, 9, 500), "count": RNG.integers(0, 3, 500)}
)


def ordered(frame):
    return frame.sort_values(["user", "item", "count"], ignore_index=True)


@pytest.mark.parametrize("labels", ["numbers", "strings", "categories", "dates"])
def test_all_rows_of_a_user_are_in_one_file(labels, tmp_path):
    frame = FRAME.copy()
    if labels == "strings":
        frame["user"] = "u" + frame["user"].astype(str)
    elif labels == "categories":
        frame["user"] = ("u" + frame["user"].astype(str)).astype("category")
    elif labels == "dates":
        frame["user"] = pd.to_datetime(frame["user"], unit="D")
    paths = split_pairs(frame, tmp_path / "new", n=4)
    assert [path.name for path in paths] == [f"part-{k:04d}.parquet" for k in range(4)]
    parts = [pd.read_parquet(path) for path in paths]
    users = [set(part["user"].tolist()) for part in parts]
    assert sum(map(len, users)) == len(set.union(*users)) == frame["user"].nunique()
    assert all(users)
    pd.testing.assert_frame_equal(ordered(pd.concat(parts)), ordered(frame), check_dtype=False, check_categorical=False)


def test_files_are_split_in_pieces_as_a_table_is(tmp_path, monkeypatch):
    sources = [tmp_path / f"{k}.parquet" for k in range(2)]
    FRAME[:200].to_parquet(sources[0])
    FRAME[200:].to_parquet(sources[1])
    monkeypatch.setattr(split, "_ROWS", 64)
    found = split_pairs(sources, tmp_path / "files", n=3)
    expected = split_pairs(FRAME, tmp_path / "table", n=3)
    for one, other in zip(found, expected):
        pd.testing.assert_frame_equal(pd.read_parquet(one), pd.read_parquet(other))
    (single,) = split_pairs(sources[0], tmp_path / "one", n=1)
    assert len(pd.read_parquet(single)) == 200


def test_files_are_named_as_partitions_of_a_fit_are(tmp_path):
    (tmp_path / "in").mkdir()
    for k, rows in enumerate((FRAME[:200], FRAME[200:])):
        rows.to_parquet(tmp_path / "in" / f"{k}.parquet")
    (tmp_path / "in" / "notes.txt").write_text("no pairs")
    whole = [pd.read_parquet(path) for path in split_pairs(FRAME, tmp_path / "table", n=3)]
    for k, source in enumerate((tmp_path / "in", str(tmp_path / "in"), str(tmp_path / "in" / "*.parquet"))):
        for path, expected in zip(split_pairs(source, tmp_path / f"out {k}", n=3), whole, strict=True):
            pd.testing.assert_frame_equal(pd.read_parquet(path), expected)
    for source, message in (
        (tmp_path / "table" / "*.csv", "source=.* names no file"),
        ([tmp_path / "none.parquet"], "source= names .*none.parquet', which is no file"),
        ([tmp_path / "in" / "0.parquet"] * 2, "source= names .* twice"),
        (tmp_path / "in" / "notes.txt", "notes.txt' of source= can't be read as Parquet"),
    ):
        with pytest.raises(pmep.InvalidDataError, match=message):
            split_pairs(source, tmp_path / "bad", n=2)
        assert not list(tmp_path.glob("bad/*"))


def test_a_run_that_fails_leaves_no_file(tmp_path):
    good, bad = tmp_path / "good.parquet", tmp_path / "bad.parquet"
    FRAME.to_parquet(good)
    FRAME.assign(user=[None, *FRAME["user"][1:]]).to_parquet(bad)
    with pytest.raises(pmep.InvalidDataError, match="'user' has no label in row 0"):
        split_pairs([good, bad], tmp_path / "out", n=2)
    assert list((tmp_path / "out").iterdir()) == []


@pytest.mark.parametrize("first", [True, False])
def test_files_of_different_columns_are_refused(first, tmp_path):
    """A column of one file alone would be lost, or have no values for the others."""
    with_it, without = FRAME.assign(weight=1.0), FRAME
    files = [tmp_path / "a.parquet", tmp_path / "b.parquet"]
    for file, frame in zip(files, (with_it, without) if first else (without, with_it)):
        frame.to_parquet(file)
    with pytest.raises(pmep.InvalidDataError, match="different columns: 'weight' is not in all"):
        split_pairs(files, tmp_path / "out", n=2)
    assert list((tmp_path / "out").iterdir()) == []


def test_bad_input_is_named(tmp_path):
    with pytest.raises(pmep.InvalidDataError, match=r"no column 'users'.* Did you mean 'user'"):
        split_pairs(FRAME, tmp_path, n=2, user="users")
    with pytest.raises(pmep.InvalidDataError, match="no rows"):
        split_pairs(FRAME[:0], tmp_path, n=2)
    for n in (0, 2.5, True):
        with pytest.raises(pmep.InvalidDataError, match=f"n={n} must be a whole number of files"):
            split_pairs(FRAME, tmp_path, n=n)
    split_pairs(FRAME, tmp_path, n=2)
    with pytest.raises(pmep.InvalidDataError, match="has Parquet files; name a new folder"):
        split_pairs(FRAME, tmp_path, n=2)
