"""Fits of sequences: what is learned, predicted, saved, gone on with, and refused."""

from itertools import pairwise

import arviz as az
import numpy as np
import pandas as pd
import pymc as pm
import pytest
from scipy.special import logsumexp

import pymc_ep as pmep
from pymc_ep.compat import group, group_names
from pymc_ep.engines.base import Report
from pymc_ep.models.sequences.kernel import Sequences, Weights
from tests.kernels.test_recurrent import by_loops

N_USERS, PLACES = 12, np.array([f"place {k}" for k in range(8)])
USERS = np.arange(100, 100 + N_USERS)
QUIET = {"progressbar": False, "random_seed": 1}


def walks(length, seed=0):
    """Each user goes round all places in an order of its own: the next place follows from the last one and the user."""
    rng = np.random.default_rng(seed)
    after = [dict(zip(order, np.roll(order, -1))) for order in (rng.permutation(len(PLACES)) for _ in range(N_USERS))]
    out = []
    for own in after:
        items = [int(rng.integers(len(PLACES)))]
        while len(items) < length:
            items.append(int(own[items[-1]]))
        out.append(np.array(items))
    return out


WALKS = walks(60)
WEIGHTS = "recurrent", "input", "output", "memory", "known", "bias"


def model_of(sequences=None, **kwargs):
    with pm.Model(coords={"user": USERS, "item": PLACES}) as model:
        own = [items[:50] for items in WALKS] if sequences is None else sequences
        pmep.CollaborativeRNN("visits", hidden=8, observed=own, **kwargs)
    return model


def fitted(model, **options):
    return pmep.fit("ml", model=model, **{"epochs": 30, "batch": 16, "users_per_batch": 4, **QUIET, **options})


@pytest.fixture(scope="module")
def model():
    return model_of()


@pytest.fixture(scope="module")
def idata(model):
    with pytest.warns(pmep.ConvergenceWarning, match="raise epochs"):
        return fitted(model, learning_rate=0.02)


def by_formula(idata, sequences):
    """Log probabilities of all events at the weights of a result."""
    mode = group(idata, "posterior_mode")
    weights = Weights(*(mode[f"visits_{what}"].to_numpy() for what in WEIGHTS))
    sequences, first = Sequences.of_parts(sequences, len(PLACES)), np.full((N_USERS, 8), 0.1)
    return by_loops(weights, sequences, first, half_lives=mode["visits_half_life"].values)


def test_walks_are_learned(model, idata):
    lpd = pmep.log_predictive(idata, model, {"visits": [items[50:] for items in WALKS]})["visits"]
    assert -float(lpd.mean()) < 0.1
    fit = group(idata, "fit")
    assert fit.attrs["objective_is"] == "nats a held-out event after each epoch"
    assert fit["objective"].sizes["iteration"] == fit["n_iter"] == 30
    assert float(fit["held_out_nats"]) == fit["objective"].to_numpy().min()
    late = np.concatenate([np.arange(50) >= 47 for _ in range(N_USERS)])  # 5% of 50 events, rounded up
    own = by_formula(idata, [items[:50] for items in WALKS])
    np.testing.assert_allclose(fit["held_out_nats"], -own[late].mean(), rtol=1e-10)
    assert fit["n_held_out"] == late.sum()


def test_predictions_carry_the_state_through_what_was_observed(model, idata):
    found = pmep.log_predictive(idata, model, {"visits": [items[50:] for items in WALKS]})
    late = np.concatenate([np.arange(60) >= 50 for _ in range(N_USERS)])
    np.testing.assert_allclose(found["visits"], by_formula(idata, WALKS)[late], rtol=1e-10)
    np.testing.assert_array_equal(found["visits_user"], np.repeat(USERS, 10))
    np.testing.assert_array_equal(found["visits_item"], PLACES[np.concatenate([items[50:] for items in WALKS])])
    some = pmep.log_predictive(idata, model, {"visits": {103: WALKS[3][50:], 101: WALKS[1][50:52]}})
    np.testing.assert_allclose(some["visits"], [*found["visits"][30:40], *found["visits"][10:12]], rtol=1e-12)
    pair = pmep.log_predictive(idata, model, {"visits": {101: tuple(WALKS[1][50:52])}})
    np.testing.assert_allclose(pair["visits"], found["visits"][10:12], rtol=1e-12)
    assert pmep.log_predictive(idata, model, {"visits": [[]] * N_USERS})["visits"].size == 0


def test_next_items_are_those_of_log_predictive(model, idata):
    found = pmep.next_items(idata, model, user=[107, 100], n=len(PLACES))
    assert found["item"].dims == ("user", "rank") and found["user"].values.tolist() == [107, 100]
    np.testing.assert_allclose(found["probability"].sum("rank"), 1.0)
    assert (found["probability"].diff("rank") <= 0).all()
    for user, place in ((107, 7), (100, 0)):
        for k, item in enumerate(PLACES):
            lpd = pmep.log_predictive(idata, model, {"visits": {user: [k]}})["visits"].values[0]
            own = found.sel(user=user)
            np.testing.assert_allclose(own["probability"].values[own["item"].values == item], np.exp(lpd), rtol=1e-10)
        assert found["item"].sel(user=user, rank=1) == PLACES[WALKS[place][50]]
    assert pmep.next_items(idata, model, user=107, n=2)["item"].shape == (1, 2)


def test_a_result_read_back_predicts_the_same(model, idata, tmp_path):
    path = str(tmp_path / "found.nc")
    idata.to_netcdf(path)
    again = az.from_netcdf(path)
    expected = pmep.next_items(idata, model, user=107, n=3)
    assert pmep.next_items(again, model, user=107, n=3).equals(expected)


def test_what_pymc_does_with_the_result(model, idata):
    mode = group(idata, "posterior_mode")
    assert group(idata, "posterior").sizes["chain"] == 1
    assert mode["visits_recurrent"].dims == ("user", "visits_gate", "visits_unit", "visits_earlier_unit")
    assert mode["visits_gate"].values.tolist() == ["candidate", "update", "reset"]
    assert mode["visits_output"].dims == ("item", "visits_unit")
    own = by_formula(idata, [items[:50] for items in WALKS])
    found = pm.compute_log_likelihood(idata.copy(), model=model, progressbar=False)
    np.testing.assert_allclose(group(found, "log_likelihood")["visits"].squeeze(), own, rtol=1e-10)
    logp = model.compile_logp(model["visits"])(mode_point(model, mode))
    np.testing.assert_allclose(logp, own.sum(), rtol=1e-10)
    drawn = pm.sample_posterior_predictive(idata, model=model, random_seed=2, progressbar=False)
    rows = group(drawn, "posterior_predictive")["visits"].to_numpy().reshape(N_USERS, 50, 2)
    walked = {(u, int(a), int(b)) for u, own in enumerate(WALKS) for a, b in pairwise(own)}
    # One in eight by chance; a walk that leaves its round has steps that were never seen before.
    assert np.mean([(int(u), int(a), int(b)) in walked for own in rows for (u, a), (_, b) in pairwise(own[20:])]) > 0.7


def mode_point(model, mode):
    return {rv.name: mode[rv.name].to_numpy() for rv in model.free_RVs}


def test_log_likelihoods_are_stored_on_request(idata):
    with pytest.warns(pmep.ConvergenceWarning):
        found = fitted(model_of(), start=idata, epochs=1, log_likelihood=True)
    own = by_formula(found, [items[:50] for items in WALKS])
    np.testing.assert_allclose(group(found, "log_likelihood")["visits"].squeeze(), own, rtol=1e-10)


@pytest.mark.parametrize(
    "options",
    [
        {"cell": "tanh"},
        {"pooled": True},
        {"spread": False, "repeats": False, "bias": False},
        {"repeats": [4]},
        {"inputs": pm.Normal.dist},
    ],
)
def test_other_networks(options):
    """Every variant lowers its loss from the entropy of eight places."""
    if "inputs" in options:
        options = {"inputs": pm.Normal.dist(0, 1), "outputs": pm.Normal.dist(0, [1.0] * 8), "recurrent": pm.Flat.dist()}
    model = model_of(**options)
    with pytest.warns(pmep.ConvergenceWarning):
        found = fitted(model, epochs=8, learning_rate=0.05)
    nats = group(found, "fit")["objective"].values
    # Users that share all matrices go round in different orders, which one network has to tell apart by their past.
    assert nats[-1] < (1.95 if "pooled" in options else 0.7)
    assert pmep.next_items(found, model, user=100, n=1)["item"].size == 1


def test_jax_gives_the_curve_of_numpy_and_goes_on_from_its_checkpoint(tmp_path):
    pytest.importorskip("jax")
    curves = []
    for compile_kwargs in (None, {"mode": "JAX"}):
        # One window, which is compiled once.
        options = {"batch": 64, "users_per_batch": N_USERS, "compile_kwargs": compile_kwargs}
        with pytest.warns(pmep.ConvergenceWarning):
            found = fitted(model_of(), epochs=3, draws=0, **options)
        curves.append(group(found, "fit")["objective"].values)
    np.testing.assert_allclose(curves[0], curves[1], rtol=1e-10)
    for epochs in (1, 3):
        with pytest.warns(pmep.ConvergenceWarning):
            found = fitted(model_of(), epochs=epochs, draws=0, checkpoint=tmp_path / "fit.npz", **options)
    np.testing.assert_array_equal(group(found, "fit")["objective"].values, curves[1])
    with pytest.raises(pmep.UnsupportedModelError, match=r"asks for numba.*NumPy and JAX alone"):
        fitted(model_of(), compile_kwargs={"mode": "NUMBA"})


def test_events_of_a_table_with_other_labels_go_on_from_a_fit(idata):
    """Users and places that are new start anew; those that are gone are left out; the others are where they were."""
    frame = pd.DataFrame(
        {
            "user": np.repeat(np.append(USERS[3:], 999), 50),
            "item": np.concatenate([*(PLACES[items[:50]] for items in WALKS[3:]), np.repeat("nowhere", 50)]),
            "time": np.tile(np.arange(50), N_USERS - 2),
        }
    ).sample(frac=1.0, random_state=1)
    table = pmep.from_events(frame, "user", "item", "time")
    with pm.Model(coords=table.coords) as model:
        pmep.CollaborativeRNN("visits", hidden=8, observed=table)
    with pytest.warns(pmep.ConvergenceWarning):
        found = fitted(model, start=idata, epochs=1, learning_rate=1e-12)
    before, after = group(idata, "posterior_mode"), group(found, "posterior_mode")
    for what, same in {
        "recurrent": {"user": USERS[3:]},
        "input": {"item": PLACES},
        "output": {"item": PLACES},
        "memory": {},
        "known": {},
        "bias": {},
    }.items():
        np.testing.assert_allclose(after[f"visits_{what}"].sel(same), before[f"visits_{what}"].sel(same), atol=1e-10)
    np.testing.assert_allclose(after["visits_recurrent"].sel(user=999), before["visits_recurrent_mean"], atol=1e-10)
    with pytest.raises(ValueError, match=r"'visits_recurrent', and the network needs .*give cell=, hidden=, spread="):
        fitted(model_of(cell="tanh"), start=idata)
    with pytest.raises(ValueError, match=r"as 'memory', and the network needs .*pooled= and repeats= of that fit"):
        fitted(model_of(repeats=False), start=idata)
    with pytest.raises(ValueError, match=r"as 'shared', and the network needs .*spread="):
        fitted(model_of(spread=False), start=idata)


@pytest.fixture(scope="module")
def shared():
    with pytest.warns(pmep.ConvergenceWarning, match="raise epochs"):
        return fitted(model_of(pooled=True))


@pytest.mark.parametrize("spread", [True, False])
def test_matrices_of_users_go_on_from_one_set(shared, spread):
    """They begin at the one set of a pooled fit, as all other weights do, and then tell users apart."""
    before, own = group(shared, "posterior_mode"), model_of(spread=spread)
    with pytest.warns(pmep.ConvergenceWarning):
        first = fitted(own, start=shared, epochs=1, learning_rate=1e-12)
    with pytest.warns(pmep.ConvergenceWarning):
        last = fitted(own, start=shared)
    after = group(first, "posterior_mode")
    for name in before.data_vars:
        same = np.broadcast_to(before[name], after[name].shape)
        np.testing.assert_allclose(after[name], same, atol=1e-10, err_msg=str(name))
    if spread:
        np.testing.assert_allclose(after["visits_recurrent_mean"], before["visits_recurrent"], atol=1e-10)
    later = {"visits": [items[50:] for items in WALKS]}
    nats = [-float(pmep.log_predictive(*fit, later)["visits"].mean()) for fit in ((first, own), (last, own))]
    assert nats[1] < nats[0] - 0.3


def test_users_and_items_that_were_hardly_met():
    sequences = [[0], *([k % 6 for k in items[:20]] for items in WALKS[1:])]
    model = model_of(sequences)
    remarks = "1 of 12 users have one event, .* those that users share; 2 of 8 items have no event"
    with pytest.warns(pmep.ConvergenceWarning, match=remarks):
        found = fitted(model, epochs=1)
    mode = group(found, "posterior_mode")
    shared, own = mode["visits_recurrent_mean"], mode["visits_recurrent"]
    np.testing.assert_allclose(shared, own[1:].mean("user"), rtol=1e-10)
    np.testing.assert_array_equal(own[0], shared)
    with pytest.warns(UserWarning, match="1 of 2 events of 'visits' have items that were never observed"):
        lpd = pmep.log_predictive(found, model, {"visits": {100: [0, 7]}})
    assert lpd["visits_item_seen"].values.tolist() == [True, False]
    assert np.isfinite(lpd["visits"]).all()


def test_training_ends_once_held_out_events_get_no_likelier():
    """Places are drawn anew each time, some more often than others, and nothing beyond that can be learned."""
    rng, p = np.random.default_rng(0), np.arange(1, 9) / 36
    found = fitted(model_of([rng.choice(8, 40, p=p) for _ in USERS]), epochs=200, patience=2, held_out=0.3)
    fit = group(found, "fit")
    assert fit["converged"] and "none of the 2 after it has a lower loss" in fit.attrs["status"]
    assert int(fit["n_iter"]) == int(fit["best_epoch"]) + 2 < 200
    assert float(fit["held_out_nats"]) == fit["objective"].values.min()


def test_without_held_out_events_all_epochs_are_run():
    found = fitted(model_of(), held_out=0, epochs=2)
    fit = group(found, "fit")
    assert fit["converged"] and fit["n_iter"] == 2 and "held_out_nats" not in fit
    assert fit.attrs["objective_is"].startswith("nats a training event")
    np.testing.assert_array_equal(fit["objective"], fit["training_nats"])


def test_an_interrupt_returns_what_was_reached(monkeypatch):
    calls = []

    def interrupted(*_):
        calls.append(1)
        if len(calls) == 8:
            raise KeyboardInterrupt

    monkeypatch.setattr(Report, "__call__", interrupted)
    with pytest.warns(pmep.ConvergenceWarning, match="interrupted after 9 iterations"):
        found = fitted(model_of())
    assert group(found, "fit")["n_iter"] == 2  # of three groups each
    assert "posterior_mode" in group_names(found)


def test_rows_that_are_set_anew():
    """Rows in any order of users; a result belongs to those it was fitted to."""
    rows = np.concatenate([np.stack([np.full(50, u), items[:50]], axis=1) for u, items in enumerate(WALKS)])
    shuffled = rows[np.argsort(np.tile(np.arange(50), N_USERS), kind="stable")]
    with pm.Model(coords={"user": USERS, "item": PLACES}) as model:
        pmep.CollaborativeRNN("visits", hidden=8, observed=pm.Data("rows", shuffled))
    with pytest.warns(pmep.ConvergenceWarning):
        found, expected = fitted(model, epochs=2), fitted(model_of(), epochs=2)
    np.testing.assert_array_equal(group(found, "fit")["objective"], group(expected, "fit")["objective"])
    for bad, message in (([[12, 0]], "the user 12 in row 0, but .* 0 to 11"), ([[0, 8]], "the item 8 at event 0, but")):
        pm.set_data({"rows": np.array(bad)}, model=model)
        with pytest.raises(pmep.InvalidDataError, match=message):
            fitted(model)
    pm.set_data({"rows": rows[::2]}, model=model)
    with pytest.raises(ValueError, match="data of the model have changed"):
        pmep.next_items(found, model, user=100, n=1)


def test_a_checkpoint_is_that_of_one_network(tmp_path):
    path = tmp_path / "fit.npz"
    with pytest.warns(pmep.ConvergenceWarning):
        fitted(model_of(), epochs=1, checkpoint=path)
    with pytest.raises(ValueError, match=r"of a fit with another .*definition of 'visits_recurrent',"):
        fitted(model_of(cell="tanh"), epochs=1, checkpoint=path)
    with pytest.raises(ValueError, match="of a fit with another learning_rate="):
        fitted(model_of(), epochs=1, checkpoint=path, learning_rate=0.5)


def test_explain_says_what_was_read(model):
    text = pmep.explain(model)
    for part in (
        "recurrent network (gru), matrices each user's own",
        "12 x 3 x 8 x 8 values, Gaussian, about visits_recurrent_mean",
        "600 events of",
    ):
        assert part in text
    assert "ml" in text and "CollaborativeRNN" in pmep.supported()


def test_a_model_that_is_more_is_refused():
    with model_of():
        pm.Normal("y", 0, 1, observed=[0.0])
        with pytest.raises(pmep.UnsupportedModelError, match=r"no other observed variable or potential \('y'\)"):
            pmep.fit()
    with pm.Model():
        prior = pm.Normal.dist(0, pm.HalfNormal("scale", 1))
        pmep.CollaborativeRNN("visits", n_items=8, hidden=2, inputs=prior, observed=WALKS)
        with pytest.raises(pmep.UnsupportedModelError, match="depends on 'scale'"):
            pmep.fit()
    with pm.Model():
        pmep.CollaborativeRNN("visits", n_items=8, hidden=2, outputs=pm.Laplace.dist(0, 1), observed=WALKS)
        with pytest.raises(pmep.UnsupportedModelError, match=r"'visits_output' has the prior Laplace.* or none"):
            pmep.fit()


@pytest.mark.parametrize(
    ("options", "message"),
    [
        ({"epochs": 0}, "epochs=0 must be a whole number of at least 1"),
        ({"held_out": 1.0}, "held_out=1.0 must be a finite number of at least 0 and less than 1"),
        ({"optimizer": "adm"}, "Did you mean 'adam'"),
        ({"learning_rate": 0}, "learning_rate=0 must be positive"),
        ({"sampled": 0}, "sampled=0 must be a whole number of at least 1"),
        ({"ridge": -1}, "ridge=-1 must be a finite number of at least 0"),
        ({"lerning_rate": 1}, "has no option 'lerning_rate'.*Did you mean 'learning_rate'"),
    ],
)
def test_bad_options(options, message, model):
    with pytest.raises(ValueError, match=message):
        fitted(model, **options)


def test_bad_questions(model, idata):
    for call, error, message in [
        (lambda: pmep.next_items(idata, model, item=3), ValueError, "takes users by user=, and got item"),
        (lambda: pmep.next_items(idata, model, user=3, n=1), ValueError, "holds 3, but there is no such row"),
        (
            lambda: pmep.log_predictive(idata, model, {"visits": [[0]]}),
            pmep.InvalidDataError,
            "by 1 sequences.* 12 users",
        ),
        (lambda: pmep.log_predictive(idata, model, {"visits": {100: [8]}}), pmep.InvalidDataError, "item 8 at event 0"),
        (lambda: pmep.log_predictive(idata, model, {"y": []}), pmep.UnsupportedModelError, "continue these, not y"),
        (
            lambda: pmep.predict(idata, model, var_names=["visits"]),
            pmep.UnsupportedModelError,
            "use next_items, log_predictive",
        ),
        (lambda: pmep.next_items(idata, model_of(WALKS), user=100, n=1), ValueError, "data of the model have changed"),
        (lambda: pmep.next_items(idata, model_of(cell="tanh"), user=100, n=1), ValueError, "of shape .*fit anew"),
    ]:
        with pytest.raises(error, match=message):
            call()


def test_next_items_sum_to_one_under_large_weights(model, idata):
    """Logits far beyond what doubles can exponentiate."""
    from pymc_ep.models.sequences.kernel import next_log_probabilities

    outputs, memory = np.array([[1e4, 0], [0, 1e4], [-1e4, 0.0]]), np.array([[1e4, 1.0, -2.0]])
    recurrent, inputs, known, bias = np.zeros((1, 1, 2, 2)), np.zeros((3, 1, 2)), np.full(3, 1e4), np.zeros((1, 1, 2))
    weights = Weights(recurrent, inputs, outputs, memory, known, bias)
    states = np.array([[0.5, 0.4]])
    found = next_log_probabilities(weights, states, np.log([[[0.2, 0.5, 0.3]]]), np.array([[True, False, True]]))
    np.testing.assert_allclose(logsumexp(found), 0.0, atol=1e-12)
