"""Sequences as they are given and stored, their draws, and what is refused before anything is fitted."""

import numpy as np
import pandas as pd
import pymc as pm
import pytensor
import pytest
from scipy import stats

import pymc_ep as pmep
from pymc_ep.models.sequences.distribution import CollaborativeRNNRV
from pymc_ep.models.sequences.kernel import CELLS, Sequences, Weights, log_probabilities


def stored(model, name="y"):
    return model.rvs_to_values[model[name]].eval()


def test_sequences_are_stored_in_rows_of_user_and_item():
    frame = pd.DataFrame({"user": [1, 0, 1], "item": ["b", "a", "a"], "time": [2, 1, 1]})
    expected = [[0, 0], [1, 0], [1, 1]]
    givens = [[0], [0, 1]], [np.array([0.0]), pd.Series([0, 1])], pmep.from_events(frame, "user", "item", "time")
    for given in givens:
        with pm.Model() as model:
            pmep.CollaborativeRNN("y", n_items=2, hidden=2, observed=given)
        np.testing.assert_array_equal(stored(model), expected)
    with pm.Model() as model:
        rows = pm.Data("rows", np.array(expected))
        pmep.CollaborativeRNN("y", n_items=2, n_users=2, hidden=2, observed=rows)
    np.testing.assert_array_equal(stored(model), expected)


def test_a_table_brings_its_names_and_labels():
    frame = pd.DataFrame({"listener": ["Bo", "Al", "Bo"], "song": ["hey", "bye", "bye"], "at": [2, 1, 1]})
    table = pmep.from_events(frame, "listener", "song", "at")
    assert repr(table) == "<SequenceTable of 3 events (listener: 2, song: 2)>"
    for coords in ({}, {"song": ["hey", "bye", "new"]}):
        with pm.Model(coords=coords) as model:
            pmep.CollaborativeRNN("y", hidden=2, observed=table)
        assert list(model.coords["listener"]) == ["Al", "Bo"]
        assert list(model.coords["song"]) == coords.get("song", ["bye", "hey"])
        songs = [model.coords["song"][k] for k in stored(model)[:, 1].astype(int)]
        assert songs == ["bye", "bye", "hey"]
        assert model.named_vars_to_dims["y_output"][0] == "song"


def test_weights_have_dims_and_priors():
    with pm.Model(coords={"item": list("abc"), "person": ["x", "y"]}) as model:
        prior = {"recurrent": pm.Normal.dist(0, 2), "inputs": pm.Normal.dist(1, 3)}
        pmep.CollaborativeRNN("y", hidden=2, user="person", observed=[[0, 1], [2]], **prior)
    shapes = {rv.name: tuple(rv.shape.eval()) for rv in model.free_RVs}
    assert shapes == {
        "y_recurrent": (2, 3, 2, 2),
        "y_input": (3, 3, 2),
        "y_output": (3, 2),
        "y_memory": (2, 3),
        "y_known": (3,),
        "y_bias": (1, 3, 2),
    }
    assert model.named_vars_to_dims["y_recurrent"] == ("person", "y_gate", "y_unit", "y_earlier_unit")
    assert model.named_vars_to_dims["y_output"] == ("item", "y_unit")
    assert model.named_vars_to_dims["y_memory"] == ("y_half_life", "y_term")
    assert list(model.coords["y_half_life"]) == [5.0, np.inf]
    assert [type(rv.owner.op).__name__ for rv in model.free_RVs] == ["NormalRV"] * 2 + ["FlatRV"] * 4
    assert abs(pm.draw(model["y_input"], 300, random_seed=1, mode="FAST_COMPILE").mean() - 1.0) < 0.5


@pytest.mark.parametrize(
    ("options", "sd"),
    [
        ({}, 1.0),
        ({"spread": 0.2}, 0.2),
        ({"spread": False}, None),
        ({"pooled": True}, None),
        ({"recurrent": pm.Flat.dist()}, None),
    ],
)
def test_matrices_of_users_lie_about_shared_ones_unless_told_otherwise(options, sd):
    with pm.Model() as model:
        pmep.CollaborativeRNN("y", n_items=3, hidden=2, observed=[[0, 1], [2]], **options)
    assert ("y_recurrent_mean" in model.named_vars) == (sd is not None)
    point = {name: np.random.default_rng(0).normal(size=value.shape) for name, value in model.initial_point().items()}
    found = float(model.compile_logp(model["y_recurrent"], mode="FAST_COMPILE")(point))
    expected = 0.0
    if sd is not None:
        expected = stats.norm.logpdf(point["y_recurrent"], point["y_recurrent_mean"], sd).sum()
    np.testing.assert_allclose(found, expected, rtol=1e-12)


@pytest.mark.parametrize(("cell", "mode"), [("gru", None), ("gru", "FAST_COMPILE"), ("tanh", "FAST_COMPILE")])
def test_draws_have_the_probabilities_of_the_density(cell, mode):
    """Frequencies of all four events of two users, in the default mode and in NumPy."""
    rng, gates, n = np.random.default_rng(0), len(CELLS[cell]), 4000
    weights = [rng.normal(size=s) for s in ((2, gates, 3, 3), (2, gates, 3), (2, 3), (2, 4), (4,), (2, gates, 3))]
    users, contexts, half_lives = np.repeat([0, 1], [3, 1]), np.array([0, 1, 0, 1]), (0.8, np.inf)
    given = {"users": users, "contexts": contexts, "half_lives": half_lives, "initial": 0.4}
    rv = pmep.CollaborativeRNN.dist(*weights[:3], memory=weights[3], known=weights[4], bias=weights[5], **given)
    drawn = pm.draw(rv, n, random_seed=2, mode=mode)
    assert drawn.shape == (n, 4, 2) and (drawn[:, :, 0] == users).all()
    for items in np.ndindex(2, 2, 2, 2):
        data = Sequences.of_parts(np.split(np.array(items), [3]), 2, half_lives).in_context(contexts)
        first = np.full((2, 3), 0.4)
        p = np.exp(log_probabilities(Weights(*weights), data, first).values.sum())
        share = (drawn[:, :, 1] == items).all(axis=1).mean()
        assert abs(share - p) < 4 * np.sqrt(p * (1 - p) / n)


@pytest.mark.parametrize("mode", [None, "FAST_COMPILE"])
def test_draws_of_what_has_no_weights_are_refused(mode):
    """Set anew as data, so that one function is compiled for all."""
    users, contexts = pytensor.shared(np.array([0, 0, 1])), pytensor.shared(np.array([0, 1, 0]))
    known = pytensor.shared(np.zeros(3))
    weights = [np.zeros(shape) for shape in ((2, 1, 2, 2), (3, 1, 2), (3, 2))]
    given = {"known": known, "bias": np.zeros((2, 1, 2)), "users": users, "contexts": contexts}
    rv = pmep.CollaborativeRNN.dist(*weights, **given)
    draw = pm.compile([], rv, mode=mode)
    assert draw().shape == (3, 2)
    for *bad, message in (
        ([0, 0, 10**6], [0, 1, 0], [0.0] * 3, "user"),
        ([0, 0, -1], [0, 1, 0], [0.0] * 3, "user"),
        ([0, 0, 1], [0, 1, 10**6], [0.0] * 3, "context"),
        ([0, 0, 1], [0, -1, 0], [0.0] * 3, "context"),
        ([0, 0, 1], [0], [0.0] * 3, "contexts"),
        ([0, 0, 1], [0, 1, 0], [0.0] * 2, "known items"),
    ):
        for variable, values in zip((users, contexts, known), bad):
            variable.set_value(np.array(values))
        with pytest.raises(ValueError, match=message):
            draw()


def test_draws_of_many_parameters():
    rng = np.random.default_rng(1)
    parts = [rng.normal(size=shape) for shape in ((5, 1, 1, 2, 2), (4, 1, 2), (4, 2), (1, 3), (3,), (1, 1, 2))]
    constants = np.array(0.1), np.array([3.0]), np.zeros(0, dtype=int), np.array([0, 0, 1])
    drawn = CollaborativeRNNRV.rng_fn(rng, *parts, *constants, None)
    assert drawn.shape == (5, 3, 2) and drawn[:, :, 1].max() < 4


def test_prior_predictive_of_given_lengths():
    with pm.Model() as model:
        prior = pm.Normal.dist(0, 1)
        weights = dict.fromkeys(("recurrent", "inputs", "outputs", "memory", "known", "bias"), prior)
        pmep.CollaborativeRNN("y", n_items=5, hidden=2, lengths=[3, 1], cell="tanh", **weights)
    drawn = pm.draw(model["y"], 20, random_seed=1, mode="FAST_COMPILE")
    assert drawn.shape == (20, 4, 2) and drawn[0, :, 0].tolist() == [0, 0, 0, 1]
    assert drawn[:, :, 1].min() >= 0 and drawn[:, :, 1].max() == 4


@pytest.mark.parametrize(
    ("observed", "message"),
    [
        ([[0, 1], []], "'y' has no events of user 1; leave that user out"),
        (
            [[0, 1], [0, 4]],
            "the item 4 at event 1 of user 1, but items go from 0 to 3, as n_items=4 says; .*raise n_items",
        ),
        ([[0, -1]], "the item -1 at event 1 of user 0"),
        ([[0, 1.5]], r"the item 1\.5 at event 1 of user 0, which is no whole number"),
        ([[0, np.nan]], "the item nan at event 1 of user 0"),
        ([["a"]], "The sequence of user 0 in 'y' has the type <U1; .*from_events makes these from labels"),
        ([[[0, 1]]], r"has the shape \(1, 2\); give one array"),
        ([], "'y' has no sequences"),
        ({0: [1]}, "got a dict; give a list of arrays, or from_events"),
        (7, "got a int; give a list"),
    ],
)
def test_bad_sequences(observed, message):
    with pm.Model(), pytest.raises(pmep.InvalidDataError, match=message):
        pmep.CollaborativeRNN("y", n_items=4, hidden=2, observed=observed)


@pytest.mark.parametrize(
    ("options", "message"),
    [
        ({"cell": "lstm"}, "cell='lstm' of 'y' must be 'tanh' or 'gru'"),
        ({"hidden": 0}, "hidden=0 of 'y' must be a whole number"),
        ({"n_items": 3}, "3 items by n_items=3, and 4 by the dim 'item'"),
        ({"n_users": 3}, "3 users by n_users=3, and 2 by the observations"),
        ({"spread": 0}, "spread=0 of 'y' must be a positive number"),
        ({"spread": 1.0, "pooled": True}, "spread=1.0 and pooled=True, of which one alone"),
        ({"initial": np.inf}, "initial=inf of 'y' must be a finite number"),
        ({"repeats": (5, 0)}, r"repeats=\(5, 0\) of 'y' must be True, False or different half-lives"),
        ({"repeats": (5, 5)}, r"repeats=\(5, 5\) of 'y' must be True, False or different half-lives"),
        ({"repeats": "often"}, "repeats='often' of 'y' must be True, False or different half-lives"),
        ({"repeats": False, "memory": pm.Flat.dist()}, "memory= and repeats=False, so no memories"),
        ({"repeats": (), "memory": pm.Flat.dist()}, r"memory= and repeats=\(\), so no memories"),
        ({"repeats": False, "known": pm.Flat.dist()}, "known= and repeats=False, so no known items"),
        ({"bias": False, "context": [[0, 0], [0]]}, "has contexts and bias=False, but contexts are biases"),
        ({"inputs": 3.0}, "The prior of 'y_input' is a float; give a distribution"),
        ({"outputs": np.zeros(3)}, "The prior of 'y_output' is a ndarray; give a distribution"),
    ],
)
def test_bad_architectures(options, message):
    with pm.Model(coords={"item": list("abcd")}), pytest.raises(ValueError, match=message):
        pmep.CollaborativeRNN("y", **{"hidden": 2, "observed": [[0, 1], [2]], **options})


def test_unknown_numbers_and_wrong_shapes():
    with pm.Model(), pytest.raises(pmep.InvalidDataError, match="unknown number of items; give n_items="):
        pmep.CollaborativeRNN("y", hidden=2, observed=[[0, 1]])
    with pm.Model(), pytest.raises(pmep.InvalidDataError, match="unknown number of users; give n_users="):
        pmep.CollaborativeRNN("y", n_items=3, hidden=2)
    with pm.Model():
        outputs = pm.Normal("v", 0, 1, shape=(3, 2))
        with pytest.raises(pmep.InvalidDataError, match=r"has the shape \(3, 2\); 'y_output' needs \(4, 2\)"):
            pmep.CollaborativeRNN("y", n_items=4, hidden=2, outputs=outputs, observed=[[0, 1]])
    with pytest.raises(pmep.InvalidDataError, match="got 2, 3, 2, 2, 1, 3 dimensions"):
        pmep.CollaborativeRNN.dist(np.zeros((2, 2)), np.zeros((3, 1, 2)), np.zeros((3, 2)), users=[0])
