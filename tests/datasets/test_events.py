"""Sequences come out of tables in the order of time, whatever that of the rows."""

import numpy as np
import pandas as pd
import pytest

import pymc_ep as pmep


def table(**columns):
    base = {"user": ["Bo", "Al", "Bo", "Bo"], "item": [7, 7, 5, 9], "time": [4, 1, 3, 4]}
    return pd.DataFrame(base | columns)


def test_events_are_sorted_by_time_and_ties_keep_their_order():
    sequences, coords, *_ = pmep.from_events(table(), "user", "item", "time")
    assert [items.tolist() for items in sequences] == [[1], [0, 1, 2]]
    assert coords["user"].tolist() == ["Al", "Bo"] and coords["item"].tolist() == [5, 7, 9]
    dates = pd.to_datetime(["2020-01-04", "2020-01-01", "2020-01-03", "2020-01-04"])
    again = pmep.from_events(table(time=dates).set_index("item", drop=False), "user", "item", "time")
    assert [items.tolist() for items in again.sequences] == [[1], [0, 1, 2]]


def test_without_times_rows_are_in_order():
    sequences = pmep.from_events(table(), "user", "item").sequences
    assert [items.tolist() for items in sequences] == [[1], [1, 0, 2]]


def test_shuffled_rows_give_the_same_sequences():
    rng = np.random.default_rng(0)
    frame = pd.DataFrame({"who": rng.integers(0, 20, 500), "what": rng.integers(0, 30, 500), "when": np.arange(500)})
    expected = pmep.from_events(frame, "who", "what")
    found = pmep.from_events(frame.sample(frac=1.0, random_state=1), "who", "what", "when")
    for one, other in zip(found.sequences, expected.sequences, strict=True):
        np.testing.assert_array_equal(one, other)


@pytest.mark.parametrize(
    ("frame", "columns", "message"),
    [
        (table(time=[4, np.nan, 3, 4]), ("user", "item", "time"), "'time' has nan in row 1, .*a time is needed"),
        (table(time=[4, "x", 3, 4]), ("user", "item", "time"), "times of the column 'time' cannot be sorted"),
        (table(user=["Bo", None, "Bo", "Bo"]), ("user", "item"), "'user' has (None|nan) in row 1"),
        (table().iloc[:0], ("user", "item"), "no rows, so no events"),
        (table(), ("user", "itm"), "no column 'itm'; .*Did you mean 'item'"),
        (table(), ("user", "user"), "'user' is given twice"),
        ([1, 2], ("user", "item"), "takes a pandas DataFrame, not list"),
    ],
)
def test_bad_tables(frame, columns, message):
    with pytest.raises(pmep.InvalidDataError, match=message):
        pmep.from_events(frame, *columns)
