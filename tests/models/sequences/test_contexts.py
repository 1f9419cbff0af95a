"""Contexts of events, known before their items: what they tell the network, and how they are given."""

import numpy as np
import pandas as pd
import pymc as pm
import pytest

import pymc_ep as pmep
from pymc_ep.compat import group
from pymc_ep.models.sequences.kernel import Sequences, Weights
from tests.kernels.test_recurrent import by_loops

HOURS, PLACES, PEOPLE = ["evening", "morning", "noon"], ["cafe", "home", "work"], ["ann", "bob"]
WEIGHTS = "recurrent", "input", "output", "memory", "known", "bias"


def events(n, seed=0):
    """Hours by chance; each of two people is at a place of its own at each hour, nine times in ten."""
    rng, rows = np.random.default_rng(seed), []
    for person, own in zip(PEOPLE, ([1, 2, 0], [0, 1, 2])):
        for time in range(n):
            hour = int(rng.integers(3))
            place = own[hour] if rng.random() < 0.9 else int(rng.integers(3))
            rows.append({"user": person, "item": PLACES[place], "hour": HOURS[hour], "time": time})
    return pd.DataFrame(rows)


N_PAST, N = 240, 300
FRAME = events(N)
PAST, LATER = FRAME[FRAME["time"] < N_PAST], FRAME[FRAME["time"] >= N_PAST]


def tables():
    return (pmep.from_events(part, "user", "item", "time", context="hour") for part in (PAST, LATER))


@pytest.fixture(scope="module")
def fitted():
    past, _ = tables()
    with pm.Model(coords=past.coords) as model:
        pmep.CollaborativeRNN("visits", hidden=6, observed=past)
        idata = pmep.fit(epochs=300, batch=16, held_out=0.1, patience=30, learning_rate=0.02, progressbar=False)
    return model, idata


def test_tables_have_contexts():
    past, _ = tables()
    assert past.coords["hour"].tolist() == HOURS and past.context == "hour"
    own = PAST[PAST["user"] == "bob"]
    assert [HOURS[k] for k in past.contexts[1]] == own["hour"].tolist()
    assert [PLACES[k] for k in past.sequences[1]] == own["item"].tolist()


def test_explain_counts_contexts(fitted):
    assert "480 events of 2 users with 3 items in 3 contexts" in pmep.explain(fitted[0])


def test_places_follow_from_hours(fitted):
    """By the hour an event costs little more than its entropy; without, it costs nearly that of three places."""
    model, idata = fitted
    _, later = tables()
    nats = -float(pmep.log_predictive(idata, model, {"visits": later})["visits"].mean())
    entropy = -(0.9 + 0.1 / 3) * np.log(0.9 + 0.1 / 3) - 2 * (0.1 / 3) * np.log(0.1 / 3)
    assert nats < entropy + 0.25
    past = pmep.from_events(PAST, "user", "item", "time")
    with pm.Model(coords=past.coords) as plain:
        pmep.CollaborativeRNN("visits", hidden=6, observed=past)
        # Nearly chance, of which little can be learned.
        other = pmep.fit(epochs=100, batch=16, held_out=0.1, patience=5, learning_rate=0.003, progressbar=False)
        assert other["fit"]["best_epoch"] > 0
    without = -float(pmep.log_predictive(other, plain, {"visits": later.sequences})["visits"].mean())
    assert without > nats + 0.3
    assert group(idata, "posterior_mode")["visits_bias"].dims == ("hour", "visits_gate", "visits_unit")


def test_predictions_are_those_of_loops_in_all_ways_of_giving_contexts(fitted):
    model, idata = fitted
    past, later = tables()
    mode = group(idata, "posterior_mode")
    weights = Weights(*(mode[f"visits_{what}"].to_numpy() for what in WEIGHTS))
    both = [np.append(a, b) for a, b in zip(past.sequences, later.sequences)]
    contexts = np.concatenate([np.append(a, b) for a, b in zip(past.contexts, later.contexts)])
    half_lives = mode["visits_half_life"].values
    sequences = Sequences.of_parts(both, 3).in_context(contexts)
    expected = by_loops(weights, sequences, np.full((2, 6), 0.1), half_lives=half_lives).reshape(2, N)
    found = pmep.log_predictive(idata, model, {"visits": later})["visits"].values.reshape(2, N - N_PAST)
    np.testing.assert_allclose(found, expected[:, N_PAST:], rtol=1e-9)
    some = {"bob": (later.sequences[1][:3], later.contexts[1][:3])}
    alone = pmep.log_predictive(idata, model, {"visits": some})["visits"].values
    np.testing.assert_allclose(alone, expected[1, N_PAST : N_PAST + 3], rtol=1e-9)
    np.testing.assert_allclose(
        model.compile_logp(model["visits"])({rv.name: mode[rv.name].to_numpy() for rv in model.free_RVs}),
        expected[:, :N_PAST].sum(),
        rtol=1e-9,
    )
    for k, hour in enumerate(HOURS):
        best = pmep.next_items(idata, model, user="bob", hour=hour, n=3)
        for place, p in zip(best["item"].values[0], best["probability"].values[0]):
            one = {"bob": ([PLACES.index(place)], [k])}
            np.testing.assert_allclose(
                pmep.log_predictive(idata, model, {"visits": one})["visits"].values, np.log(p), rtol=1e-9
            )


def test_labels_of_a_table_are_found_in_the_coordinates_of_the_model(fitted):
    """A later table with fewer people, places and hours, and a model with more of them than its table."""
    model, idata = fitted
    few = LATER[(LATER["user"] == "bob") & (LATER["hour"] != "evening") & (LATER["item"] != "cafe")]
    table = pmep.from_events(few, "user", "item", "time", context="hour")
    found = pmep.log_predictive(idata, model, {"visits": table})
    np.testing.assert_array_equal(found["visits_item"], few["item"])
    pair = few["item"].map(PLACES.index).to_numpy(), few["hour"].map(HOURS.index).to_numpy()
    expected = pmep.log_predictive(idata, model, {"visits": {"bob": pair}})
    np.testing.assert_allclose(found["visits"], expected["visits"], rtol=1e-12)
    gym = pmep.from_events(few.assign(item="gym"), "user", "item", "time", context="hour")
    with pytest.raises(pmep.InvalidDataError, match="has events of 'gym', which is no label of 'item' in the model"):
        pmep.log_predictive(idata, model, {"visits": gym})
    more = {"user": ["bob"], "item": ["bar", *PLACES], "hour": ["dawn", *HOURS]}
    with pm.Model(coords=more) as wider:
        pmep.CollaborativeRNN("visits", hidden=2, observed=table)
    rows = wider.rvs_to_values[wider["visits"]].eval()
    assert [more["item"][int(k)] for k in rows[:, 1]] == few["item"].tolist()
    assert wider["visits_bias"].shape.eval().tolist() == [4, 3, 2]


def test_users_who_share_their_matrices_are_found_by_labels():
    """In a table of one of them, in a mapping, and by name; their column has a name of its own."""
    past = pmep.from_events(PAST.rename(columns={"user": "who"}), "who", "item", "time")
    with pm.Model(coords=past.coords) as model:
        pmep.CollaborativeRNN("visits", hidden=2, pooled=True, user="who", observed=past)
        with pytest.warns(pmep.ConvergenceWarning, match="raise epochs"):
            idata = pmep.fit(epochs=1, progressbar=False)
    bob = pmep.from_events(LATER[LATER["user"] == "bob"].rename(columns={"user": "who"}), "who", "item", "time")
    found = pmep.log_predictive(idata, model, {"visits": bob})
    for user in (1, "bob"):
        expected = pmep.log_predictive(idata, model, {"visits": {user: bob.sequences[0]}})
        np.testing.assert_allclose(found["visits"], expected["visits"], rtol=1e-12)
    assert (found["visits_user"] == "bob").all()
    best = pmep.next_items(idata, model, who="bob", n=len(PLACES))
    assert best["who"].values.tolist() == ["bob"]
    own = best["probability"].values[best["item"].values == str(found["visits_item"].values[0])]
    np.testing.assert_allclose(np.log(own), found["visits"].values[0], rtol=1e-10)


def test_contexts_of_rows_are_data():
    """Contexts by rows in any order of users, which may be set anew with the observations."""
    past, _ = tables()
    rows = np.stack([np.repeat([0, 1], N_PAST), np.concatenate(past.sequences)], axis=1)
    order = np.argsort(np.tile(np.arange(N_PAST), 2), kind="stable")
    curves = []
    for table in (True, False):
        with pm.Model(coords=past.coords) as model:
            if table:
                pmep.CollaborativeRNN("visits", hidden=3, observed=past)
            else:
                model.add_coords({"visits_context": HOURS})
                data = pm.Data("rows", rows[order]), pm.Data("hours", np.concatenate(past.contexts)[order])
                pmep.CollaborativeRNN("visits", hidden=3, observed=data[0], context=data[1])
            with pytest.warns(pmep.ConvergenceWarning, match="raise epochs"):
                idata = pmep.fit(epochs=3, progressbar=False)
        curves.append(group(idata, "fit")["objective"].values)
    np.testing.assert_array_equal(curves[0], curves[1])
    pm.set_data({"hours": np.zeros(3, dtype=int)}, model=model)
    with pytest.raises(pmep.InvalidDataError, match="has 480 events and 3 contexts, which go from 0 to 2"):
        pmep.fit(model=model, progressbar=False)
    for bad, message in ((3, "has the context 3 at event 7, but .* 0 to 2"), (-1, "the context -1 at event 7")):
        pm.set_data({"hours": np.where(np.arange(480) == 7, bad, 0)}, model=model)
        with pytest.raises(pmep.InvalidDataError, match=message):
            pmep.fit(model=model, progressbar=False)


def test_contexts_of_data_are_whole_numbers():
    with pm.Model(coords={"visits_context": HOURS}) as model:
        rows = pm.Data("rows", [[0, 0], [0, 1]])
        pmep.CollaborativeRNN(
            "visits", n_items=3, n_users=1, hidden=2, context=pm.Data("hours", [0.0, 1.5]), observed=rows
        )
    with pytest.raises(pmep.InvalidDataError, match=r"has the context 1\.5 at event 1, no whole number"):
        pmep.fit(model=model, progressbar=False)


def test_a_result_is_that_of_its_contexts_and_half_lives():
    """Weights of one shape, so that all that differs is what goes in."""
    items, contexts, found = [[0, 1, 2, 0], [2, 1]], [[0, 1, 2, 0], [1, 2]], {}
    for what, options in {
        "contexts": {"context": contexts},
        "none": {},
        "others": {"context": [[1, 1, 2, 0], [1, 2]]},
        "half lives": {"context": contexts, "repeats": (2, 3)},
    }.items():
        with pm.Model(coords={"visits_context": HOURS}) as model:
            memory = pm.Flat("memory", shape=(2, 3))
            pmep.CollaborativeRNN("visits", n_items=3, hidden=2, observed=items, memory=memory, **options)
        with pytest.warns(pmep.ConvergenceWarning):
            found[what] = model, pmep.fit(model=model, epochs=1, held_out=0.2, progressbar=False)
    _, idata = found["contexts"]
    for other, what in (("none", "contexts"), ("others", "contexts"), ("half lives", "half lives")):
        with pytest.raises(ValueError, match=f"data of the model have changed since the fit .its {what} differ"):
            pmep.log_predictive(idata, found[other][0], {"visits": [[], []]})
    with pytest.raises(ValueError, match="its contexts differ"):
        pmep.log_predictive(found["none"][1], found["contexts"][0], {"visits": [[], []]})


def test_bad_contexts(fitted):
    model, idata = fitted
    past, later = tables()
    for call, error, message in [
        (lambda: pmep.next_items(idata, model, user="bob"), ValueError, "users by user= and the next event's hour="),
        (lambda: pmep.next_items(idata, model, user="bob", hour="dawn", n=1), ValueError, "hour= holds 'dawn'"),
        (
            lambda: pmep.next_items(idata, model, user="bob", hour=HOURS, n=1),
            ValueError,
            "hour= names 3 contexts; ask for one",
        ),
        (
            lambda: pmep.log_predictive(idata, model, {"visits": later.sequences}),
            pmep.InvalidDataError,
            r"have contexts; continue them by from_events\(..., context=\)",
        ),
        (
            lambda: pmep.log_predictive(idata, model, {"visits": {"bob": ([0], [3])}}),
            pmep.InvalidDataError,
            "has the context 3 at event 0 of user 'bob', but contexts go from 0 to 2; .*coordinates of all contexts",
        ),
        (
            lambda: pmep.log_predictive(idata, model, {"visits": {"bob": ([0, 1], [0])}}),
            pmep.InvalidDataError,
            "other numbers of contexts than of events, of user 'bob' 1 and 2",
        ),
        (
            lambda: pmep.log_predictive(idata, model, {"visits": {"bob": ([0, 1], [0, 0.5])}}),
            pmep.InvalidDataError,
            "has the context 0.5 at event 1 of user 'bob', which is no whole number",
        ),
        (
            lambda: pmep.log_predictive(idata, model, {"visits": later._replace(coords={"who": 0, "item": 0})}),
            pmep.InvalidDataError,
            "has the dims 'user', 'item', 'hour', and the table the columns 'who', 'item'; give both the same names",
        ),
    ]:
        with pytest.raises(error, match=message):
            call()
    with pm.Model(coords=past.coords):
        with pytest.raises(pmep.InvalidDataError, match="other numbers of contexts than of events, of user 1"):
            pmep.CollaborativeRNN("y", hidden=2, context=[past.contexts[0], [0]], observed=past)
        with pytest.raises(pmep.InvalidDataError, match="has contexts of 1 users, and events of 2"):
            pmep.CollaborativeRNN("y", hidden=2, context=[[0]], observed=past)
        with pytest.raises(pmep.InvalidDataError, match="one array of contexts for each user, and got a int"):
            pmep.CollaborativeRNN("y", hidden=2, context=0, observed=past)
        with pytest.raises(pmep.InvalidDataError, match="the dims 'person', 'item', and the table the columns 'user'"):
            pmep.CollaborativeRNN("y", hidden=2, user="person", observed=past)
        with pytest.raises(pmep.InvalidDataError, match="have no labels; give the model coordinates of 'y_context'"):
            pmep.CollaborativeRNN("y", hidden=2, context=pm.Data("c", [0]), observed=past.sequences)
        with pytest.raises(pmep.InvalidDataError, match="rows that are data; give context= as data"):
            pmep.CollaborativeRNN("y", hidden=2, context=[[0]], observed=pm.Data("rows", [[0, 0]]))


def test_draws_in_contexts():
    """An hour decides on the place, by large biases, whatever came before."""
    with pm.Model(coords={"item": PLACES}) as model:
        bias = np.array([[[9.0, 0.0]], [[-9.0, 0.0]]])
        pmep.CollaborativeRNN(
            "y",
            hidden=2,
            cell="tanh",
            repeats=False,
            lengths=[3, 4],
            context=[[0, 1, 0], [0, 0, 1, 1]],
            recurrent=pm.Normal("R", 0, 1e-9, shape=(2, 1, 2, 2)),
            inputs=pm.Normal("W", 0, 1e-9, shape=(3, 1, 2)),
            outputs=pm.Normal("V", [[99.0, 0], [-99.0, 0], [0, 0]], 1e-9, shape=(3, 2)),
            bias=pm.Normal("b", bias, 1e-9, shape=(2, 1, 2)),
        )
    for mode in (None, "FAST_COMPILE"):
        drawn = pm.draw(model["y"], random_seed=1, mode=mode)
        assert drawn[[1, 2, 4, 5, 6], 1].tolist() == [1, 0, 0, 1, 1]


def test_users_without_events_have_no_contexts():
    with pm.Model(coords={"item": PLACES}) as model:
        pmep.CollaborativeRNN("y", hidden=2, lengths=[0, 2, 0], context=[[], [0, 1], []])
    assert model["y"].owner.inputs[-2].eval().tolist() == [0, 1]
