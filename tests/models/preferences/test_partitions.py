"""Fits of users in parts: those of one part, in this process and on a cluster, whatever dies."""

import sys
import warnings

import numpy as np
import pymc as pm
import pytest

import pymc_ep as pmep
from pymc_ep.compat import group
from pymc_ep.models.preferences.engine.divided import divided
from pymc_ep.models.preferences.engine.users import UserFactors
from pymc_ep.models.preferences.engine.values import ComparedUsers

U, N, P = 40, 8, 240
RNG = np.random.default_rng(3)
ROWS = {"users": RNG.integers(0, U - 1, P), "winners": RNG.integers(0, N, P)}
ROWS["losers"] = (ROWS["winners"] + RNG.integers(1, N, P)) % N
# Evaluations on the way of a search amplify rounding: few of them, of factors that have settled.
QUIET = {"progressbar": False, "random_seed": 1, "draws": 0, "max_iter": 12, "held_out": 0, "tol": 1e-11}


def model_of():
    with pm.Model(coords={"user": range(U), "item": range(N), "factor": range(2)}) as model:
        V = pm.Normal("V", 0, 1, dims=("item", "factor"))
        sigma = pm.HalfNormal("sigma", 1)
        f = pmep.PreferenceUtility("f", V=V, sigma=sigma, dims=("user", "item"))
        pmep.PairwiseProbit("prefers", f, **ROWS)
    return model


def flat_model():
    with pm.Model(coords={"user": range(U), "item": range(N), "factor": range(2)}) as model:
        V, b, sigma = pm.Flat("V", dims=("item", "factor")), pm.Flat("b", dims="item"), pm.HalfFlat("sigma")
        f = pmep.PreferenceUtility("f", V=V, b=b, sigma=sigma, dims=("user", "item"))
        pmep.PairwiseProbit("prefers", f, **ROWS)
    return model


def fitted(model, **options):
    with warnings.catch_warnings():
        warnings.simplefilter("ignore", pmep.ConvergenceWarning)
        return pmep.fit(model=model, **QUIET | options)


def assert_same(one, other):
    assert float(one["fit"]["log_evidence"]) == pytest.approx(float(other["fit"]["log_evidence"]), rel=1e-9)
    for name in group(one, "posterior_mean").data_vars:
        for what in ("posterior_mean", "posterior_sd"):
            np.testing.assert_allclose(group(one, what)[name], group(other, what)[name], rtol=1e-9, atol=1e-9)


@pytest.fixture(scope="module")
def whole():
    return fitted(model_of())


def test_parts_give_what_the_whole_gives(whole):
    found = fitted(model_of(), partitions=3)
    assert_same(found, whole)
    assert found["fit"].attrs["status"] == whole["fit"].attrs["status"]


def test_parts_give_what_the_whole_gives_by_em_with_comparisons_held_out():
    options = {"learn": "em", "held_out": 0.2}
    assert_same(fitted(flat_model(), partitions=4, **options), fitted(flat_model(), **options))


def parts_of_worker():
    from pymc_ep.engines.partitions import dask

    return list(dask._PARTS)


def test_a_cluster_gives_what_the_whole_gives(whole, dask_client):
    found = fitted(model_of(), partitions=5, client=dask_client)
    assert_same(found, whole)
    assert "client" not in str(found["fit"].attrs)
    assert not any(dask_client.run(parts_of_worker).values())


@pytest.mark.skipif(sys.platform == "win32", reason="signals of POSIX")
def test_a_lost_worker_changes_nothing(whole, dask_client, kill_worker, monkeypatch):
    from pymc_ep.engines.partitions.dask import DaskPartitions

    run, calls = DaskPartitions.run, []

    def losing(*given, **options):
        calls.append(given)
        if len(calls) == 4:
            kill_worker()
        return run(*given, **options)

    monkeypatch.setattr(DaskPartitions, "run", losing)
    assert_same(fitted(model_of(), client=dask_client), whole)
    # The evaluation in which a worker was lost is repeated.
    assert len(calls) > int(whole["fit"]["n_iter"]) + 2


def test_an_interrupted_fit_on_a_cluster_returns_what_it_reached(dask_client, monkeypatch):
    from pymc_ep.engines.partitions.dask import DaskPartitions

    run, calls = DaskPartitions.run, []

    def interrupted(*given, **options):
        calls.append(given)
        if len(calls) == 5:
            raise KeyboardInterrupt
        return run(*given, **options)

    monkeypatch.setattr(DaskPartitions, "run", interrupted)
    found = fitted(model_of(), client=dask_client, max_iter=1000)
    # The first of the four finds where the factors of items start.
    assert "interrupted after 3 evaluations" in found["fit"].attrs["status"]
    assert np.isfinite(float(found["fit"]["log_evidence"]))
    assert not any(dask_client.run(parts_of_worker).values())


@pytest.mark.parametrize("n", [1, 2, 5, 1000])
def test_parts_have_all_users_once(n):
    compared = ComparedUsers.of(*ROWS.values(), N)
    comparisons = compared.comparisons
    users = UserFactors.first(comparisons)._replace(
        weights=np.arange(len(comparisons.items)), log_z=np.arange(comparisons.n_users)
    )
    with divided(comparisons, np.arange(P), n) as found:
        assert found.partitions.n == min(n, comparisons.n_users)
        again = found.collect(found.place(users))
        np.testing.assert_array_equal(again.weights, users.weights)
        np.testing.assert_array_equal(again.log_z, users.log_z)
        np.testing.assert_array_equal(np.concatenate([data.observed for data in found.partitions.data]), np.arange(P))
        items = np.concatenate([data.comparisons.items for data in found.partitions.data])
        np.testing.assert_array_equal(items, comparisons.items)
        entries = [data.comparisons.square_ends[-1] for data in found.partitions.data]
        assert max(entries) <= comparisons.square_ends[-1] / found.partitions.n + N**2


@pytest.mark.parametrize("n", [0, "pairs/*.parquet"])
def test_partitions_are_numbers_of_parts(n):
    with pytest.raises(ValueError, match=r"partitions=.*whole number of at least 1"):
        pmep.fit(model=model_of(), partitions=n)
