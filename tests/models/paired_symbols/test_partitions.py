"""Fits of pairs in Parquet files: those of pairs in the model, in this process and on a cluster, whatever dies."""

import os
import signal
import subprocess
import sys
import time
from itertools import pairwise
from threading import Timer

import numpy as np
import pandas as pd
import pymc as pm
import pytest
from scipy.sparse import csr_array

import pymc_ep as pmep
from pymc_ep.compat import group
from pymc_ep.datasets import from_pairs, split_pairs
from pymc_ep.models.paired_symbols import files
from pymc_ep.models.paired_symbols.engine import user_steps
from pymc_ep.models.paired_symbols.files import Side, pairs_in_files

pytest.importorskip("pyarrow", reason="needs PyArrow")
K = 2
QUIET = {"progressbar": False, "random_seed": 1, "draws": 0, "max_iter": 60, "tol": 1e-4}


def pairs_of(n=900, users=50, items=25, seed=0):
    rng = np.random.default_rng(seed)
    u, v = rng.normal(size=(users, K)), rng.normal(size=(items, K))
    scores = (1.5 * u @ v.T + rng.gumbel(size=(users, items))).ravel()
    chosen = np.argsort(-scores)[: n // 2]
    i, j = np.divmod(np.concatenate([chosen, rng.choice(chosen, n - n // 2)]), items)
    return pd.DataFrame({"user": [f"user {k}" for k in i], "item": 100 + j})


FRAME = pairs_of()
COUNTS, COORDS = from_pairs(FRAME, "user", "item")
COORDS |= {"user": np.array([*COORDS["user"], "nobody"]), "factor": np.arange(K)}
COUNTS.resize((len(COORDS["user"]), len(COORDS["item"])))


def model_of(observed, coords=COORDS, gamma=False):
    with pm.Model(coords=coords) as model:
        own = {"tau": pm.Gamma("tau", 2.0, 2.0, dims="factor")} if gamma else {}
        U, V = (pm.Normal(name, 0, **own, dims=(dim, "factor")) for name, dim in (("U", "user"), ("V", "item")))
        b, c = pm.Normal("bu", 0, 1, dims="user"), pm.Normal("bi", 0, 1, dims="item")
        pmep.PairedSymbols("views", U, V, b, c, observed=observed)
    return model


@pytest.fixture
def ctrl_c():
    """Python's own handler, which a process that was started in the background does not have."""
    before = signal.signal(signal.SIGINT, signal.default_int_handler)
    yield
    signal.signal(signal.SIGINT, before)


@pytest.fixture(scope="module")
def folder(tmp_path_factory):
    where = tmp_path_factory.mktemp("pairs")
    split_pairs(FRAME, where, n=3)
    return where


def assert_same(one, other, rtol=1e-9):
    assert float(one["fit"]["log_evidence"]) == pytest.approx(float(other["fit"]["log_evidence"]), abs=1e-8)
    for name in group(one, "posterior_mean").data_vars:
        for what in ("posterior_mean", "posterior_sd"):
            np.testing.assert_allclose(group(one, what)[name], group(other, what)[name], rtol=rtol, atol=1e-9)


@pytest.mark.parametrize("gamma", [False, True], ids=["fixed", "learned"])
@pytest.mark.parametrize("options", [{}, {"constant_messages": True}, {"estimate": ["V", "bi"]}], ids=str)
def test_files_give_what_the_model_gives(folder, options, gamma):
    if gamma and options.get("estimate"):
        pytest.skip("Scales of points are not learned.")
    expected = pmep.fit(model=model_of(COUNTS, gamma=gamma), **QUIET | options)
    found = pmep.fit(model=model_of([], gamma=gamma), partitions=folder / "*.parquet", **QUIET | options)
    assert_same(found, expected)
    assert found["fit"].attrs["status"] == expected["fit"].attrs["status"]
    np.testing.assert_allclose(found["fit"]["views_user_popularity_pairs"], COUNTS.sum(axis=1))


def test_a_cluster_gives_what_the_model_gives(folder, dask_client):
    expected = pmep.fit(model=model_of(COUNTS), **QUIET)
    found = pmep.fit(model=model_of([]), partitions=str(folder), client=dask_client, **QUIET)
    assert_same(found, expected)
    assert "client" not in str(found["fit"].attrs)
    assert not any(dask_client.run(parts_of_worker).values())


def parts_of_worker():
    from pymc_ep.engines.partitions import dask

    return list(dask._PARTS)


@pytest.mark.skipif(sys.platform == "win32", reason="signals of POSIX")
def test_an_interrupted_fit_on_a_cluster_returns_what_it_reached(folder, dask_client, ctrl_c, monkeypatch):
    """Interrupted while the workers are in the middle of a sweep, as a terminal does: these are sent the signal too."""
    from pymc_ep.engines.partitions.dask import DaskPartitions

    run, updates = DaskPartitions.run, []

    def slowed(*arguments):
        time.sleep(0.5)
        return user_steps.update(*arguments)

    processes = [*dask_client.run(os.getpid).values(), os.getpid()]

    def interrupt_all():
        for pid in processes:
            os.kill(pid, signal.SIGINT)

    def interrupting(parts, function, *own, **options):
        if function.__name__ == "update":
            updates.append(function)
            if len(updates) >= 4:
                # A signal may come while an exception can't leave a callback; a user presses Ctrl-C again.
                function = slowed
                Timer(0.3, interrupt_all).start()
        return run(parts, function, *own, **options)

    monkeypatch.setattr(DaskPartitions, "run", interrupting)
    endless = QUIET | {"max_iter": 10_000, "tol": 1e-300}
    with pytest.warns(pmep.ConvergenceWarning, match="interrupted after"):
        found = pmep.fit(model=model_of([]), partitions=folder, client=dask_client, **endless)
    assert f"interrupted after {len(updates)} iterations" in found["fit"].attrs["status"]
    monkeypatch.undo()
    with pytest.warns(pmep.ConvergenceWarning, match="sweeps|max_iter"):
        expected = pmep.fit(model=model_of(COUNTS), **QUIET | {"max_iter": len(updates) - 1})
    assert np.isfinite(float(found["fit"]["log_evidence"]))
    assert_same(found, expected)
    assert sorted(dask_client.run(os.getpid).values()) == sorted(processes[:-1])
    assert not any(dask_client.run(parts_of_worker).values())


def test_predictions_of_pairs_in_files(folder):
    model, whole = model_of([]), model_of(COUNTS)
    found = pmep.fit(model=model, partitions=folder, **QUIET)
    expected = pmep.fit(model=whole, **QUIET)
    some = {"user": ["user 3", "nobody"], "n": 4, "by": "probability", "exclude_observed": False}
    best = [pmep.recommend(*of, **some)["item"].to_numpy() for of in ((found, model), (expected, whole))]
    np.testing.assert_array_equal(*best)
    with pytest.raises(pmep.InvalidDataError, match=r"are in files.*exclude_observed=False, or fold"):
        pmep.recommend(found, model, user=["user 3"], n=4)
    new = [pmep.fold_in(*of, {"user": [[0, 3], [0, 5]]})["U_mean"] for of in ((found, model), (expected, whole))]
    np.testing.assert_allclose(*new, rtol=1e-8, atol=1e-10)
    assert len(pmep.recommend(found, model, user=pmep.fold_in(found, model, {"user": [[0, 3]]}), n=4)["rank"]) == 4
    draws = pmep.fit(model=model, partitions=folder, **QUIET | {"draws": 5})
    assert draws["posterior"]["U"].shape == (4, 5, len(COORDS["user"]), K)


def test_rows_without_labels_are_positions(tmp_path):
    frame = pd.DataFrame({"user": [0, 0, 2, 3], "item": np.array([1, 1, 0, 2], dtype=np.int32), "count": [1, 2, 4, 0]})
    frame[:2].to_parquet(tmp_path / "a.parquet")
    frame[2:].to_parquet(tmp_path / "b.parquet")
    with pm.Model():
        U, V = pm.Normal("U", 0, 1, shape=(5, 1)), pm.Normal("V", 0, 1, shape=(3, 1))
        pmep.PairedSymbols("views", U, V, observed=[])
        found = pmep.fit(partitions=[tmp_path / "b.parquet", tmp_path / "a.parquet"], **QUIET)
    assert found["fit"]["views_user_popularity_pairs"].values.tolist() == [3, 0, 4, 0, 0]
    assert found["fit"]["views_item_popularity_pairs"].values.tolist() == [4, 3, 0]


def test_an_earlier_fit_starts_one_of_files(folder):
    model = model_of([])
    first = pmep.fit(model=model_of(COUNTS), **QUIET | {"max_iter": 2000, "tol": 1e-7})
    found = pmep.fit(model=model, partitions=folder, start=first, **QUIET)
    assert int(found["fit"]["n_iter"]) < 10
    assert float(found["fit"]["log_evidence"]) > float(first["fit"]["log_evidence"]) - 1e-6


LABELS = {
    "positions": lambda codes, n: (codes, None),
    "numbers": lambda codes, n: (7 * codes - 5, 7 * np.arange(n) - 5),
    "strings": lambda codes, n: (np.array([f"row {k}" for k in codes]), np.array([f"row {k}" for k in range(n)])),
    "categories": lambda codes, n: (pd.Categorical.from_codes(codes, list("cadbfegh")[:n]), np.array(list("cadbfegh"))),
    "dates": lambda codes, n: (pd.to_datetime(codes, unit="D"), np.arange(n).astype("datetime64[D]")),
}


@pytest.mark.parametrize("labels", LABELS)
def test_parts_hold_the_pairs_of_the_table(labels, tmp_path):
    """Repeated pairs, counts of zero, a user with nothing else, users without rows, and categories of other files."""
    rng, shape = np.random.default_rng(0), (8, 6)
    users, items, counts = rng.choice([0, 1, 3, 4, 6], 60), rng.integers(0, 6, 60), rng.integers(0, 3, 60)
    counts[users == 4] = 0
    expected = np.zeros(shape)
    np.add.at(expected, (users, items), counts)
    own, known = LABELS[labels](users, 8)
    frame = pd.DataFrame({"user": own, "item": items.astype(np.int16), "count": counts})
    for k, here in enumerate((users < 3, users >= 3)):
        frame[here].to_parquet(tmp_path / f"{k}.parquet")
    sides = Side("user", 8, None if known is None else pd.Index(known)), Side("item", 6)
    with pairs_in_files(tmp_path, sides) as pairs:
        found = np.zeros(shape)
        for data, rows in zip(pairs.partitions.data, pairs.rows):
            ends, others, times = data.by_user
            np.add.at(found, (rows.repeat(np.diff(ends)), others), times)
            assert all((np.diff(others[a:b]) > 0).all() for a, b in pairwise(ends))
            turned = csr_array((data.by_item.counts, data.by_item.others, data.by_item.ends), (6, len(rows))).toarray()
            np.testing.assert_array_equal(turned.T, expected[rows])
        np.testing.assert_array_equal(found, expected)
        np.testing.assert_array_equal(np.sort(np.concatenate(pairs.rows)), np.arange(8))
        np.testing.assert_array_equal(pairs.users, expected.sum(axis=1))
        np.testing.assert_array_equal(pairs.items, expected.sum(axis=0))
        assert pairs.n_cells == (expected > 0).sum()


def test_each_file_is_read_once(folder, monkeypatch):
    seen = []

    def counted(file, columns):
        seen.append(file)
        return table(file, columns)

    table = files._table
    monkeypatch.setattr(files, "_table", counted)
    pmep.fit(model=model_of([]), partitions=folder, **QUIET)
    assert seen == sorted(map(str, folder.iterdir()))


def broken(frame, tmp_path, name="a.parquet"):
    frame.to_parquet(tmp_path / name)
    return tmp_path / name


@pytest.mark.parametrize(
    ("change", "message"),
    [
        (lambda f: f.rename(columns={"item": "items"}), r"no column 'item'.*Did you mean 'items'"),
        (lambda f: f.assign(user=["user 1", None, "user 2"]), r"(None|nan) as 'user' in row 1"),
        (lambda f: f.assign(user=["user 1", "user 2", "stranger"]), "'stranger' as 'user' in row 2.*no label"),
        (lambda f: f.assign(item=["100", "101", "102"]), r"'item' of type .*are numbers"),
        (lambda f: f.assign(user=[1, 2, 3]), "'user' of type int64"),
        (lambda f: f.assign(count=[1, 2, -1]), "-1 as 'count' in row 2.*at least 0"),
        (lambda f: f.assign(count=[1, 2.5, 1]), "2.5 as 'count' in row 1"),
        (lambda f: f.assign(count=["1", "2", "3"]), "counts of type"),
        (lambda f: f.assign(count=0), "have no pairs; give at least one"),
        (lambda f: f[:0], "have no pairs; give at least one"),
    ],
    ids=lambda value: value if isinstance(value, str) else "",
)
def test_bad_files_are_named(change, message, tmp_path):
    frame = pd.DataFrame({"user": ["user 1", "user 2", "user 3"], "item": [100, 101, 102]})
    path = broken(change(frame), tmp_path)
    with pytest.raises(pmep.InvalidDataError, match=message):
        pmep.fit(model=model_of([]), partitions=path, **QUIET)


def test_bad_partitions_are_named(folder, tmp_path):
    model = model_of([])
    with pytest.raises(pmep.InvalidDataError, match="names no file"):
        pmep.fit(model=model, partitions=tmp_path / "*.parquet", **QUIET)
    with pytest.raises(pmep.InvalidDataError, match="which is no file"):
        pmep.fit(model=model, partitions=[tmp_path / "none.parquet"], **QUIET)
    (tmp_path / "text.parquet").write_text("no Parquet")
    with pytest.raises(pmep.InvalidDataError, match=r"text\.parquet' of partitions= can't be read as Parquet"):
        pmep.fit(model=model, partitions=tmp_path, **QUIET)
    one = broken(FRAME, tmp_path, "whole.parquet")
    with pytest.raises(pmep.InvalidDataError, match="twice; name each file once"):
        pmep.fit(model=model, partitions=[one, one], **QUIET)
    with pytest.raises(pmep.InvalidDataError, match=r"The user 'user \d+' has pairs in .*split_pairs"):
        pmep.fit(model=model, partitions=[one, *folder.glob("*.parquet")], **QUIET)
    with pytest.raises(pmep.InvalidDataError, match=r"'views' has observations in the model beside the files"):
        pmep.fit(model=model_of(COUNTS), partitions=folder, **QUIET)
    with pytest.raises(ValueError, match="client= is a cluster for pairs in files"):
        pmep.fit(model=model_of(COUNTS), client=object(), **QUIET)
    with pytest.raises(pmep.InvalidDataError, match="has no pairs; observe at least one, or name the files"):
        pmep.fit(model=model, **QUIET)


def test_a_full_disk_is_named(folder, monkeypatch):
    def full(*_):
        raise OSError(28, "No space left on device")

    monkeypatch.setattr(np, "save", full)
    with pytest.raises(pmep.InvalidDataError, match=r"MiB in .*No space left on device.*TMPDIR"):
        pmep.fit(model=model_of([]), partitions=folder, **QUIET)


def test_a_checkpoint_that_can_not_be_written_warns_and_the_fit_goes_on(folder, tmp_path, monkeypatch):
    expected = pmep.fit(model=model_of([]), partitions=folder, **QUIET)

    savez, calls = np.savez, []

    def full(file, **arrays):
        calls.append(1)
        if len(calls) > 1:
            file.write(b"half")
            raise OSError(28, "No space left on device")
        savez(file, **arrays)

    monkeypatch.setattr(np, "savez", full)
    with pytest.warns(RuntimeWarning, match=r"could not be written: No space left on device\. The fit goes on"):
        found = pmep.fit(model=model_of([]), partitions=folder, checkpoint=tmp_path / "fit.npz", **QUIET)
    assert_same(found, expected, rtol=1e-12)
    assert "could not be written" in found["fit"].attrs["status"]
    assert list(tmp_path.iterdir()) == []


def test_a_checkpoint_of_other_files_is_refused(folder, tmp_path):
    path = tmp_path / "fit.npz"
    pmep.fit(model=model_of([]), partitions=folder, checkpoint=path, keep_checkpoint=True, **QUIET)
    other = broken(FRAME[FRAME["user"] != FRAME["user"][0]], tmp_path)
    with pytest.raises(ValueError, match="is of a fit with another set of pairs in files"):
        pmep.fit(model=model_of([]), partitions=other, checkpoint=path, **QUIET)


SCRIPT = """
import os, signal, sys
import numpy as np
from pymc_ep.engines.checkpoint import checkpoint
sys.path.insert(0, {here!r})
from test_partitions import QUIET, model_of
import pymc_ep as pmep

checkpoint._now = lambda: 0.0
written, savez = [], np.savez

def half(file, **arrays):
    written.append(1)
    if len(written) == {count}:
        file.write(b"PK half of an archive")
        file.flush()
        os.kill(os.getpid(), signal.SIGKILL)
    savez(file, **arrays)

np.savez = half
idata = pmep.fit(model=model_of([]), partitions={folder!r}, checkpoint={path!r}, **QUIET)
print(repr(float(idata["fit"]["log_evidence"])))
"""


@pytest.mark.skipif(sys.platform == "win32", reason="signals of POSIX")
def test_a_process_killed_while_it_writes_resumes(folder, tmp_path):
    """Killed ten times in the middle of a checkpoint, a few sweeps after each start; the end is that of one fit."""
    expected = pmep.fit(model=model_of([]), partitions=folder, **QUIET)
    text = {"here": os.path.dirname(__file__), "folder": str(folder), "path": str(tmp_path / "fit.npz")}  # noqa: PTH120
    for count in (2, 4, 1, 3, 2, 5, 2, 3, 1, 2):
        script = SCRIPT.format(count=count, **text)
        assert subprocess.run([sys.executable, "-c", script], check=False).returncode == -signal.SIGKILL
    done = subprocess.run(
        [sys.executable, "-c", SCRIPT.format(count=10**6, **text)], capture_output=True, text=True, check=True
    )
    assert float(done.stdout) == pytest.approx(float(expected["fit"]["log_evidence"]), rel=1e-12)


def test_workers_killed_within_sweeps_change_nothing(folder, dask_client, kill_worker, monkeypatch):
    """A worker is killed in the middle of each of ten sweeps."""
    from pymc_ep.engines.partitions.dask import DaskPartitions

    expected = pmep.fit(model=model_of([]), partitions=folder, **QUIET)
    run, calls, killed = DaskPartitions.run, [], []

    def killing(parts, function, *own, **options):
        calls.append(function.__name__)
        if function.__name__ == "update" and calls.count("update") % 2 == 0 and len(killed) < 10:
            killed.append(kill_worker(len(killed) % 2, both=True))
            time.sleep(0.1)
        return run(parts, function, *own, **options)

    monkeypatch.setattr(DaskPartitions, "run", killing)
    found = pmep.fit(model=model_of([]), partitions=folder, client=dask_client, **QUIET)
    assert len(killed) == 10
    assert_same(found, expected, rtol=1e-10)
    assert int(found["fit"]["n_iter"]) == int(expected["fit"]["n_iter"])
