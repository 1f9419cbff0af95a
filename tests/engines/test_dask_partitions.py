"""Partitions on a cluster of processes: the same results as in one, also where workers are killed."""

import gc
import os
import sys
import threading
import time
from copy import copy
from pathlib import Path

import numpy as np
import pytest

from pymc_ep import ClusterError
from pymc_ep.engines.partitions import LocalPartitions, added

distributed = pytest.importorskip("distributed", reason="needs distributed")
cloudpickle = pytest.importorskip("cloudpickle")

from pymc_ep.engines.partitions import dask as on_dask  # noqa: E402
from pymc_ep.engines.partitions.dask import DaskPartitions  # noqa: E402

# Workers do not import the tests.
cloudpickle.register_pickle_by_value(sys.modules[__name__])
N_PARTS, ROWS, WIDTH = 5, 8, 3


def load(seed):
    return np.random.default_rng(seed).normal(size=(ROWS, WIDTH))


def multiply(data, rows, vector):
    """A step of the power method for sum A^T A, and a running value of each part."""
    product = data @ vector
    return rows + product, (data.T @ product, float(product.sum()))


def power_method(parts, steps=6, before=lambda step: None):
    rows, vector, totals = parts.place([np.zeros(ROWS) for _ in range(parts.n)]), np.ones(WIDTH), []
    for k in range(steps):
        before(k)

        def step(rows=rows, vector=vector):
            after, total = parts.run(multiply, rows, shared=(vector,))
            parts.keep(after)
            return after, total

        rows, (vector, total) = parts.attempt(step)
        vector = vector / np.linalg.norm(vector)
        totals.append(total)
    return np.concatenate(parts.collect(rows)), vector, np.array(totals)


EXPECTED = power_method(LocalPartitions([load(k) for k in range(N_PARTS)]))


def assert_expected(found):
    for one, other in zip(found, EXPECTED):
        np.testing.assert_allclose(one, other, rtol=1e-12)


def test_parts_on_a_cluster_are_parts_in_this_process(dask_client):
    with DaskPartitions(dask_client, load, range(N_PARTS)) as parts:
        assert_expected(power_method(parts))
        shares = [len(held) for held in parts._by_worker().values()]
        assert sorted(shares) == [2, 3]


@pytest.mark.parametrize("small", [0, 2**20], ids=["scattered", "sent"])
def test_large_values_travel_apart(dask_client, small, monkeypatch):
    def sums(data, own, weights):
        return own + 1, np.outer(data.sum(axis=0), weights)

    monkeypatch.setattr(on_dask, "_SMALL", small)
    weights = np.arange(40_000.0)
    local = LocalPartitions([load(k) for k in range(N_PARTS)])
    own = [np.full(3, float(k)) for k in range(N_PARTS)]
    with DaskPartitions(dask_client, load, range(N_PARTS)) as parts:
        kept, total = parts.run(sums, parts.place(own), shared=(weights,))
        _, expected = local.run(sums, local.place(own), shared=(weights,))
        np.testing.assert_allclose(total, expected, rtol=1e-12)
        assert [float(one[0]) for one in parts.collect(kept)] == [1.0, 2.0, 3.0, 4.0, 5.0]


def test_terms_are_combined_as_asked(dask_client):
    with DaskPartitions(dask_client, load, range(N_PARTS)) as parts:
        _, total = parts.run(lambda data: (None, float(data[0, 0])), combine=min)
    assert total == min(load(k)[0, 0] for k in range(N_PARTS))
    assert added((1.0, None), (2.0, 3.0)) == (3.0, 3.0)


def test_terms_of_different_sizes_add_up(dask_client, monkeypatch):
    """A large term after two small ones of the same worker."""
    monkeypatch.setattr(on_dask, "_SMALL", 0)
    with DaskPartitions(dask_client, load, range(N_PARTS)) as parts:
        own = parts.place([0.0, 0.0, np.ones(2**18), 0.0, np.ones(2**18)])
        _, total = parts.run(lambda data, own: (None, own + 1.0), own)
        np.testing.assert_array_equal(total, np.full(2**18, 7.0))


def held():
    """Number of values on this worker."""
    from pymc_ep.engines.partitions import dask

    return sum(len(part.values) for part in dask._PARTS.values())


def n_parts():
    """Number of parts on this worker."""
    from pymc_ep.engines.partitions import dask

    return len(dask._PARTS)


def test_released_values_leave_the_workers(dask_client):
    with DaskPartitions(dask_client, load, range(N_PARTS)) as parts:
        rows = parts.place([np.zeros(ROWS) for _ in range(N_PARTS)])
        for _ in range(10):
            rows, _ = parts.run(multiply, rows, shared=(np.ones(WIDTH),))
        # The last values, and those of the call before, which are released by the next.
        assert sum(dask_client.run(held).values()) <= 3 * N_PARTS
    assert sum(dask_client.run(held).values()) == 0


def test_killed_workers_change_nothing(dask_client, kill_worker, monkeypatch):
    """A worker is killed before every step, which does not wait until its nanny has started another."""
    monkeypatch.setattr(on_dask, "_RETURN", 0.0)
    with DaskPartitions(dask_client, load, range(N_PARTS)) as parts:
        assert_expected(power_method(parts, before=lambda step: kill_worker()))


@pytest.mark.parametrize("wait", [0.0, 60.0], ids=["at once", "waiting"])
def test_parts_are_spread_again_after_a_loss(dask_client, kill_worker, wait, monkeypatch):
    """By the next step once the worker is back, or by the same one if that waits for it."""
    monkeypatch.setattr(on_dask, "_RETURN", wait)
    dask_client.wait_for_workers(2, timeout=60)
    with DaskPartitions(dask_client, load, range(N_PARTS)) as parts:
        rows, shares = parts.place([np.full(ROWS, float(k)) for k in range(N_PARTS)]), []
        kill_worker()
        for _ in range(2):
            _, total = parts.attempt(lambda: parts.run(lambda data, rows: (None, rows), rows))
            np.testing.assert_array_equal(total, np.full(ROWS, 10.0))
            shares.append(sorted(len(own) for own in parts._by_worker().values()))
            dask_client.wait_for_workers(2, timeout=60)
        # A nanny that is quick has the worker back before a step that does not wait for it.
        assert shares[0] in ([[2, 3]] if wait else [[5], [2, 3]])
        assert shares[1] == [2, 3]
        assert sorted(dask_client.run(n_parts).values()) == [2, 3]


def test_spread_keeps_parts_where_they_are():
    assert on_dask._spread(5, {"a": [], "b": []}) == {0: "a", 1: "a", 2: "a", 3: "b", 4: "b"}
    assert on_dask._spread(5, {"a": [0, 3], "b": [1, 2, 4]}) == {0: "a", 1: "b", 2: "b", 3: "a", 4: "b"}
    assert on_dask._spread(5, {"a": [], "b": [0, 1, 2, 3, 4]}) == {0: "b", 1: "b", 2: "b", 3: "a", 4: "a"}
    assert on_dask._spread(2, {"a": [], "b": [1], "c": []}) == {0: "a", 1: "b"}


def test_values_that_are_gone_are_told_from_lost_workers(dask_client, kill_worker):
    ones = (np.ones(WIDTH),)
    with DaskPartitions(dask_client, load, range(N_PARTS)) as parts:
        placed = parts.place([np.zeros(ROWS)] * N_PARTS)
        released = copy(placed)
        rows, _ = parts.run(multiply, placed, shared=ones)
        del placed
        parts.run(multiply, rows, shared=ones)
        with pytest.raises(RuntimeError, match="handles were released"):
            parts.attempt(lambda: parts.run(multiply, released, shared=ones))
        kill_worker()
        with pytest.raises(RuntimeError, match=r"worker was lost.*by keep\(\)"):
            parts.attempt(lambda: parts.run(multiply, rows, shared=ones))


def test_handles_of_other_partitions_are_refused(dask_client):
    with DaskPartitions(dask_client, load, range(2)) as parts, DaskPartitions(dask_client, load, range(2)) as others:
        rows = others.place([np.zeros(ROWS)] * 2)
        with pytest.raises(ValueError, match="handles are of other partitions"):
            parts.run(multiply, rows, shared=(np.ones(WIDTH),))
        for handles in (rows, (np.zeros(ROWS),) * 2):
            with pytest.raises(ValueError, match="handles are of other partitions"):
                parts.collect(handles)


def test_a_part_that_is_added_takes_part(dask_client):
    with DaskPartitions(dask_client, load, range(N_PARTS - 1)) as parts:
        parts.place([np.zeros(ROWS)] * (N_PARTS - 1))
        parts.add(N_PARTS - 1)
        assert_expected(power_method(parts))


def test_parts_that_nobody_refers_to_leave_the_workers(dask_client):
    def broken(source):
        return load(source) if source < N_PARTS - 1 else {}[source]

    parts = DaskPartitions(dask_client, load, range(N_PARTS))
    assert sum(dask_client.run(n_parts).values()) == N_PARTS
    del parts
    with pytest.raises(KeyError):
        DaskPartitions(dask_client, broken, range(N_PARTS))
    gc.collect()
    end = time.monotonic() + 10.0
    while any(dask_client.run(n_parts).values()):
        assert time.monotonic() < end


@pytest.fixture
def kill_within_calls(kill_worker, tmp_path):
    """Folder in which a call writes its process id to be killed, and the threads that do so."""
    ended = threading.Event()

    def watch():
        seen = set()
        while not ended.wait(0.02):
            for mark in set(tmp_path.glob("*.pid")) - seen:
                seen.add(mark)
                kill_worker(process=int(mark.stem))

    thread = threading.Thread(target=watch)
    thread.start()
    yield tmp_path
    ended.set()
    thread.join()


def wait_for_the_end(folder):
    (Path(folder) / f"{os.getpid()}.pid").touch()
    time.sleep(120)


def test_a_worker_killed_within_a_call_changes_nothing(dask_client, kill_within_calls):
    def fatal(data, rows, vector, folder, step):
        mark = Path(folder) / str(step)
        if not mark.exists():
            mark.touch()
            wait_for_the_end(folder)
        return multiply(data, rows, vector)

    with DaskPartitions(dask_client, load, range(N_PARTS)) as parts:
        rows, vector, totals = parts.place([np.zeros(ROWS) for _ in range(N_PARTS)]), np.ones(WIDTH), []
        for k in range(6):

            def step(rows=rows, vector=vector, k=k):
                after, total = parts.run(fatal, rows, shared=(vector, str(kill_within_calls), k))
                parts.keep(after)
                return after, total

            rows, (vector, total) = parts.attempt(step)
            vector = vector / np.linalg.norm(vector)
            totals.append(total)
        assert_expected((np.concatenate(parts.collect(rows)), vector, np.array(totals)))
    assert all((kill_within_calls / str(k)).exists() for k in range(6))


def test_errors_of_functions_are_theirs(dask_client):
    def fails(data):
        raise FileNotFoundError("no such part")

    with DaskPartitions(dask_client, load, range(N_PARTS)) as parts:
        with pytest.raises(FileNotFoundError, match="no such part"):
            parts.attempt(lambda: parts.run(fails))
        assert_expected(power_method(parts))
    with pytest.raises(FileNotFoundError, match="nowhere"):
        DaskPartitions(dask_client, lambda source: Path(source).read_text(), ["nowhere"])
    with pytest.raises(ValueError, match="5 parts need as many values, and got 1"):
        DaskPartitions(dask_client, load, range(N_PARTS)).place([1])


def test_an_interruption_leaves_the_parts_usable(dask_client, monkeypatch):
    def slow(data, rows, vector):
        time.sleep(0.5)
        return multiply(data, rows, vector)

    with DaskPartitions(dask_client, load, range(N_PARTS)) as parts:
        rows = parts.place([np.zeros(ROWS) for _ in range(N_PARTS)])
        with monkeypatch.context() as context:
            context.setattr(on_dask, "_finished", lambda futures: (_ for _ in ()).throw(KeyboardInterrupt))
            with pytest.raises(KeyboardInterrupt):
                parts.attempt(lambda: parts.run(slow, rows, shared=(np.ones(WIDTH),)))
        assert_expected(power_method(parts))


def test_a_cluster_without_workers_is_named(monkeypatch):
    monkeypatch.setattr(on_dask, "_PATIENCE", 0.2)
    with (
        distributed.LocalCluster(n_workers=0, processes=False, dashboard_address=":0") as cluster,
        distributed.Client(cluster) as empty,
    ):
        began = time.perf_counter()
        with pytest.raises(ClusterError, match=r"has no workers.*cluster\.scale\(2\)"):
            DaskPartitions(empty, load, range(N_PARTS))
        assert time.perf_counter() - began < 10.0


def test_workers_that_die_again_and_again_end_the_fit(dask_client, kill_within_calls, monkeypatch):
    monkeypatch.setattr(on_dask, "_MOST_LOSSES", 1)
    monkeypatch.setattr(on_dask, "_RETURN", 0.0)
    with (
        DaskPartitions(dask_client, load, range(2)) as parts,
        pytest.raises(ClusterError, match="run out of memory"),
    ):
        parts.attempt(lambda: parts.run(lambda data: (None, wait_for_the_end(str(kill_within_calls)))))
