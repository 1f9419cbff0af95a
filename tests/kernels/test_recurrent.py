"""Log probabilities of sequences and their gradients, against plain loops over events and finite differences."""

import tracemalloc

import numpy as np
import pymc as pm
import pytensor
import pytensor.tensor as pt
import pytest

import pymc_ep as pmep
from pymc_ep.exceptions import InvalidDataError
from pymc_ep.models.sequences.kernel import (
    CELLS,
    Sequences,
    Weights,
    body,
    log_probabilities,
    longest_first,
    sampled_candidates,
    sequence_logp,
    sequences,
    window_gradient,
    window_of,
)
from pymc_ep.models.sequences.kernel.past import event_past

N_ITEMS, WIDTH, LENGTHS = 7, 4, np.array([5, 1, 8, 3])
HALF_LIVES, N_CONTEXTS = (1.5, np.inf), 3
KINDS = [(cell, pooled) for cell in CELLS for pooled in (False, True)]
every_kind = pytest.mark.parametrize(("cell", "pooled"), KINDS)


def weights_of(cell, pooled, seed=0, half_lives=HALF_LIVES):
    rng, gates = np.random.default_rng(seed), len(CELLS[cell])
    n = 1 if pooled else len(LENGTHS)
    shapes = (n, gates, WIDTH, WIDTH), (N_ITEMS, gates, WIDTH), (N_ITEMS, WIDTH), (len(half_lives), WIDTH + 1)
    return Weights(*(rng.normal(size=shape) for shape in (*shapes, (WIDTH + 1,), (N_CONTEXTS, gates, WIDTH))))


def contexts(seed=7):
    return np.random.default_rng(seed).integers(0, N_CONTEXTS, LENGTHS.sum())


def data(seed=1, half_lives=HALF_LIVES, items=None):
    items = np.random.default_rng(seed).integers(0, N_ITEMS, LENGTHS.sum()) if items is None else items
    return Sequences.of_parts(np.split(items, np.cumsum(LENGTHS)[:-1]), N_ITEMS, half_lives).in_context(contexts())


def first_states(seed=2):
    return 0.3 * np.random.default_rng(seed).normal(size=(len(LENGTHS), WIDTH))


def by_loops(weights, sequences, first, kept=None, half_lives=HALF_LIVES, factors=1.0):
    """Log probabilities, one event after the other, as the formulas are printed (Ko thesis, 3.132 and 3.151).

    Memories are sums over the items before, which count half after a half-life. Those among them have another factor
    than other items. Exponentials of items have factors in the sum over all. Gates have the biases of the context of
    the event that follows.
    """
    recurrent, inputs, outputs, memory, known, bias = weights
    out = []
    for u, (begin, end) in enumerate(zip(sequences.ends, sequences.ends[1:])):
        h, R = first[u], recurrent[0 if len(recurrent) == 1 else u]
        for k in range(begin, end):
            y, seen = sequences.items[k], h if kept is None else h * kept[k]
            before, p = sequences.items[begin:k], np.exp(outputs @ seen)
            if len(known):
                p[list(set(before))] *= np.exp(np.dot(known[:-1], seen) + known[-1])
            total = (factors * p).sum()
            for (*m, constant), half_life in zip(memory, half_lives):
                counted = 0.5 ** (np.arange(len(before))[::-1] / half_life)
                held = np.bincount(before, counted, len(p)) if len(before) else np.ones(len(p))
                chosen = len(p) * np.exp(np.dot(m, seen) + constant)
                p, total = p + chosen * held / held.sum(), total + chosen
            out.append(np.log(p[y] / total))
            x = inputs[y] + bias[0 if sequences.following is None else sequences.following[k]]
            if len(R) == 1:
                h = np.tanh(R[0] @ h + x[0])
            else:
                w, r = (1 / (1 + np.exp(-(R[g] @ h + x[g]))) for g in (1, 2))
                h = (1 - w) * h + w * np.tanh(R[0] @ (r * h) + x[0])
    return np.array(out)


def differences(function, weights, step=1e-6):
    """Central differences of a function of weights in all entries."""
    found = Weights(*map(np.zeros_like, weights))
    for table, out in zip(weights, found):
        for index in np.ndindex(*table.shape):
            ends = []
            for sign in (1, -1):
                table[index] += sign * step
                ends.append(function(weights))
                table[index] -= sign * step
            out[index] = (ends[0] - ends[1]) / (2 * step)
    return found


def whole_window():
    users = longest_first(LENGTHS, np.arange(len(LENGTHS)))
    return users, *window_of(data(), LENGTHS, users, 0, 100)


@every_kind
def test_log_probabilities_are_those_of_loops(cell, pooled, monkeypatch):
    weights, first = weights_of(cell, pooled), first_states()
    expected = by_loops(weights, data(), first)
    np.testing.assert_allclose(log_probabilities(weights, data(), first).values, expected, rtol=1e-12)
    monkeypatch.setattr(body, "BLOCK", 3)  # an event at a time
    monkeypatch.setattr(sequences, "_TIMES", 2)  # states are carried
    monkeypatch.setattr(sequences, "_EVENTS", 6)  # groups of users
    found = log_probabilities(weights, data(), first)
    np.testing.assert_allclose(found.values, expected, rtol=1e-12)
    begins = LENGTHS // 2
    late = np.concatenate([np.arange(n) >= b for n, b in zip(LENGTHS, begins)])
    np.testing.assert_allclose(log_probabilities(weights, data(), first, begins).values, expected[late], rtol=1e-12)
    np.testing.assert_allclose(log_probabilities(weights, data(), first, LENGTHS).last, found.last, rtol=1e-12)


@pytest.mark.parametrize("n_sampled", [None, 100])
def test_no_array_of_all_events_and_items_is_held(n_sampled):
    """All logits of 3,000 events and 20,000 items would be 480 MB; a block is 4 MiB, and there are some of its size.

    The user knows nearly all items.
    """
    rng, n_items = np.random.default_rng(0), 20_000
    outputs, states, items = rng.normal(size=(n_items, 4)), rng.normal(size=(3_000, 4)), rng.permutation(n_items)
    others = np.zeros((1, 5)), np.ones(5), np.zeros((1, 1, 4))
    weights = Weights(np.zeros((1, 1, 4, 4)), np.zeros((n_items, 1, 4)), outputs, *others)
    past = event_past(items, np.array([0, n_items]), n_items, [np.inf]).of(slice(-3_000, None))
    items, candidates = items[-3_000:] % 300, None
    if n_sampled:
        candidates = sampled_candidates(items, n_items, n_sampled, rng)
    tracemalloc.start()
    body.log_softmax(weights, states, items, past, np.ones(3_000), candidates)
    _, peak = tracemalloc.get_traced_memory()
    tracemalloc.stop()
    assert peak < 10 * 8 * body.BLOCK


@every_kind
def test_gradients_of_a_window_are_differences(cell, pooled):
    users, window, places = whole_window()
    weights, first, rng = weights_of(cell, pooled), first_states(), np.random.default_rng(3)
    own = weights if pooled else weights._replace(recurrent=weights.recurrent[users])
    kept, factors = (rng.random((len(places), WIDTH)) < 0.7) / 0.7, rng.normal(size=len(places))

    def total(weights):
        in_order, factors_in_order = np.empty_like(kept), np.empty_like(factors)
        in_order[places], factors_in_order[places] = kept, factors
        unsorted = weights if pooled else weights._replace(recurrent=weights.recurrent[np.argsort(users)])
        return by_loops(unsorted, data(), first, in_order) @ factors_in_order

    found = window_gradient(own, window, first[users], kept, factors)
    inputs = np.zeros_like(weights.inputs)
    inputs[found.gradient.items] = found.gradient.inputs
    expected = differences(total, Weights(*(table.copy() for table in own)))
    tables = found.gradient.recurrent, inputs, *(getattr(found.gradient, what) for what in Weights._fields[2:])
    for table, other in zip(tables, expected, strict=True):
        np.testing.assert_allclose(table, other, rtol=1e-6, atol=1e-8)


@every_kind
def test_gradients_on_a_grid_are_those_of_events(cell, pooled, monkeypatch):
    """Blocks of four events, of which most are empty."""
    jax = pytest.importorskip("jax")
    jax.config.update("jax_enable_x64", True)
    from pymc_ep.models.sequences.kernel import jax as on_grid

    monkeypatch.setattr(on_grid, "BLOCK", 4 * N_ITEMS)
    users, window, places = whole_window()
    weights, first = weights_of(cell, pooled), first_states()[users]
    own = weights if pooled else weights._replace(recurrent=weights.recurrent[users])
    kept = np.random.default_rng(3).random((len(places), WIDTH))
    expected = window_gradient(own, window, first, kept)
    grid = on_grid.grid_of(window, 9, len(users), N_ITEMS, kept, first.dtype)
    total, last, gradient = jax.jit(lambda *args: on_grid.grid_gradient(*args))(own, grid, first)
    inputs = np.zeros_like(weights.inputs)
    inputs[expected.gradient.items] = expected.gradient.inputs
    np.testing.assert_allclose(total, expected.values.sum(), rtol=1e-12)
    np.testing.assert_allclose(last, expected.last, rtol=1e-12)
    others = (getattr(expected.gradient, what) for what in Weights._fields[2:])
    for table, other in zip(gradient, (expected.gradient.recurrent, inputs, *others), strict=True):
        np.testing.assert_allclose(table, other, atol=1e-12)


@pytest.mark.parametrize("n", [1, 2, N_ITEMS])
def test_gradients_of_a_sampled_softmax_on_a_grid(n):
    """Padded to one shape for all windows, and never beyond all items."""
    jax = pytest.importorskip("jax")
    jax.config.update("jax_enable_x64", True)
    from pymc_ep.models.sequences.kernel import jax as on_grid

    users = longest_first(LENGTHS, np.arange(len(LENGTHS)))
    sequences, weights, first = data(items=data().items % 4), weights_of("gru", True), first_states()[users]
    for size, most in ((9, N_ITEMS), (1, min(N_ITEMS, len(users) + n))):
        window, _ = window_of(sequences, LENGTHS, users, 0, size)
        candidates = sampled_candidates(window.items, N_ITEMS, n, np.random.default_rng(2))
        window = window._replace(candidates=candidates)
        expected = window_gradient(weights, window, first)
        grid = on_grid.grid_of(window, size, len(users), N_ITEMS, None, first.dtype)
        assert len(grid.candidates.items) == most
        total, _, gradient = jax.jit(lambda *args: on_grid.grid_gradient(*args))(weights, grid, first)
        np.testing.assert_allclose(total, expected.values.sum(), rtol=1e-12)
        np.testing.assert_allclose(gradient.outputs[candidates.items], expected.gradient.outputs, atol=1e-12)
        np.testing.assert_allclose(gradient.memory, expected.gradient.memory, atol=1e-12)
        np.testing.assert_allclose(gradient.known, expected.gradient.known, atol=1e-12)


@every_kind
def test_gradients_of_a_sampled_softmax_are_differences(cell, pooled):
    """Of seven items four have events; one of the three others is drawn, and counts three times."""
    users = longest_first(LENGTHS, np.arange(len(LENGTHS)))
    sequences = data(items=data().items % 4)
    window, _ = window_of(sequences, LENGTHS, users, 0, 100)
    candidates = sampled_candidates(window.items, N_ITEMS, 1, np.random.default_rng(6))
    factors = np.zeros(N_ITEMS)
    factors[candidates.items] = np.exp(candidates.offsets)
    np.testing.assert_allclose(factors.sum(), N_ITEMS)
    weights, first = weights_of(cell, pooled), first_states()
    own = weights if pooled else weights._replace(recurrent=weights.recurrent[users])

    def total(weights):
        unsorted = weights if pooled else weights._replace(recurrent=weights.recurrent[np.argsort(users)])
        return by_loops(unsorted, sequences, first, factors=factors).sum()

    found = window_gradient(own, window._replace(candidates=candidates), first[users])
    np.testing.assert_allclose(found.values.sum(), total(own), rtol=1e-12)
    inputs, outputs = np.zeros_like(weights.inputs), np.zeros_like(weights.outputs)
    inputs[found.gradient.items], outputs[candidates.items] = found.gradient.inputs, found.gradient.outputs
    tables = found.gradient.recurrent, inputs, outputs, *(getattr(found.gradient, what) for what in Weights._fields[3:])
    expected = differences(total, Weights(*(table.copy() for table in own)))
    for table, other in zip(tables, expected, strict=True):
        np.testing.assert_allclose(table, other, rtol=1e-6, atol=1e-8)


def test_a_sample_of_all_others_is_the_whole_softmax():
    users, window, _ = whole_window()
    weights, first = weights_of("gru", False), first_states()
    own = weights._replace(recurrent=weights.recurrent[users])
    candidates = sampled_candidates(window.items, N_ITEMS, N_ITEMS, np.random.default_rng(0))
    assert sorted(candidates.items) == list(range(N_ITEMS))
    found = window_gradient(own, window._replace(candidates=candidates), first[users])
    expected = window_gradient(own, window, first[users])
    np.testing.assert_allclose(found.values, expected.values, rtol=1e-12)
    np.testing.assert_allclose(found.gradient.outputs, expected.gradient.outputs[candidates.items], atol=1e-12)


def test_sampled_sums_are_unbiased():
    """Over all samples of two of four others, which are equally likely, the sums have the mean of the whole one."""
    p, items, sums = np.random.default_rng(0).exponential(size=6), np.array([1, 4, 1]), []
    for seed in range(600):
        found = sampled_candidates(items, 6, 2, np.random.default_rng(seed))
        assert found.items[found.targets].tolist() == items.tolist()
        sums.append((p[found.items] * np.exp(found.offsets)).sum())
    assert abs(np.mean(sums) - p.sum()) < 4 * np.std(sums) / np.sqrt(len(sums))
    assert len(np.unique(np.round(sums, 9))) == 6


@every_kind
def test_users_together_are_users_alone(cell, pooled):
    users, window, places = whole_window()
    weights, first = weights_of(cell, pooled), first_states()
    own = weights if pooled else weights._replace(recurrent=weights.recurrent[users])
    together = window_gradient(own, window, first[users])
    recurrent, inputs, outputs, memory, known, bias = (np.zeros_like(table) for table in own)
    for k, u in enumerate(users):
        alone, its_places = window_of(data(), LENGTHS, np.array([u]), 0, 100)
        part = weights if pooled else weights._replace(recurrent=weights.recurrent[[u]])
        found = window_gradient(part, alone, first[[u]])
        np.testing.assert_allclose(found.values, together.values[np.isin(places, its_places)], rtol=1e-12)
        np.testing.assert_allclose(found.last[0], together.last[k], rtol=1e-12)
        recurrent[0 if pooled else k] += found.gradient.recurrent[0]
        inputs[found.gradient.items] += found.gradient.inputs
        outputs += found.gradient.outputs
        memory += found.gradient.memory
        known += found.gradient.known
        bias += found.gradient.bias
    np.testing.assert_allclose(together.gradient.recurrent, recurrent, atol=1e-12)
    np.testing.assert_allclose(together.gradient.inputs, inputs[together.gradient.items], atol=1e-12)
    np.testing.assert_allclose(together.gradient.outputs, outputs, atol=1e-12)
    np.testing.assert_allclose(together.gradient.memory, memory, atol=1e-12)
    np.testing.assert_allclose(together.gradient.known, known, atol=1e-12)
    np.testing.assert_allclose(together.gradient.bias, bias, atol=1e-12)


def test_an_item_does_not_predict_itself():
    """The state of an event is that before it: as an input it changes only what is later in its sequence."""
    weights, first = weights_of("gru", False), first_states()
    before = log_probabilities(weights, data(), first).values
    for k in (2, 7, 12):
        items = data().items.copy()
        items[k] = (items[k] + 1) % N_ITEMS
        after = log_probabilities(weights, data(items=items), first).values
        user = np.searchsorted(data().ends, k, side="right") - 1
        h = np.delete(np.arange(len(items)), k)
        same = (h < k) | (h >= data().ends[user + 1])
        np.testing.assert_array_equal(after[h[same]], before[h[same]])


def of_op():
    """Users of rows in any order, their items and contexts, the order by user, and weights of rows."""
    rng = np.random.default_rng(4)
    users = rng.permutation(np.repeat(np.arange(len(LENGTHS)), LENGTHS))
    items, order = np.empty_like(users), np.argsort(users, kind="stable")
    items[order] = data().items
    in_context = np.empty_like(users)
    in_context[order] = contexts()
    return (users, items, in_context), order, rng.normal(size=len(users))


def example(mode):
    """Log probabilities, and gradients of their weighted sum in all weights."""
    rows, _, factors = of_op()
    graphs = [pt.tensor4(), pt.tensor3(), pt.matrix(), pt.matrix(), pt.vector(), pt.tensor3()]
    values = sequence_logp(*rows, *graphs, 0.1, HALF_LIVES)
    function = pytensor.function(graphs, [values, *pt.grad((values * factors).sum(), graphs)], mode=mode)
    return function(*weights_of("gru", False))


def test_op_agrees_with_loops():
    """Rows of users in any order; the gradient of a weighted sum."""
    weights, sequences, (_, order, factors) = weights_of("gru", False), data(), of_op()
    found, *gradient = example("FAST_COMPILE")
    first = np.full((len(LENGTHS), WIDTH), 0.1)
    np.testing.assert_allclose(found[order], by_loops(weights, sequences, first), rtol=1e-12)
    expected = differences(lambda weights: by_loops(weights, sequences, first) @ factors[order], weights)
    for table, other in zip(gradient, expected):
        np.testing.assert_allclose(table, other, rtol=1e-6, atol=1e-8)


def test_op_refuses_what_is_out_of_range():
    weights = weights_of("tanh", False)
    for users, items, own, message in (
        ([0, 4], [0, 1], [0, 0], "user 4 at row 1"),
        ([0, 1], [7, 1], [0, 0], "item 7 at row 0"),
        ([0, 1], [0, 1], [0, 3], "context 3 at row 1"),
        ([0, 1], [0, 1], [0, 0, 0], "2 events and 3 contexts"),
    ):
        graph = sequence_logp(np.array(users), np.array(items), np.array(own), *weights, 0.1, HALF_LIVES)
        function = pytensor.function([], graph, mode="FAST_COMPILE")
        with pytest.raises(InvalidDataError, match=message):
            function()


@pytest.mark.parametrize("length", [1, WIDTH, WIDTH + 2])
def test_op_refuses_weights_of_other_lengths(length):
    weights = weights_of("tanh", False)._replace(known=np.zeros(length))
    graph = sequence_logp(np.array([0]), np.array([0]), np.array([0]), *weights, 0.1, HALF_LIVES)
    with pytest.raises(InvalidDataError, match=f"{length} of known items; with {WIDTH} units both have {WIDTH + 1}"):
        pytensor.function([], graph, mode="FAST_COMPILE")()


def test_logp_of_a_model_is_that_of_the_op_and_samplers_can_use_its_gradient():
    with pm.Model() as model:
        R = pm.Normal("R", 0, 1, shape=(2, 1, 3, 3))
        W, V = pm.Normal("W", 0, 1, shape=(4, 1, 3)), pm.Normal("V", 0, 1, shape=(4, 3))
        weights = {"recurrent": R, "inputs": W, "outputs": V, "memory": pm.Normal("M", 0, 1, shape=(2, 4))}
        weights["known"] = pm.Normal("k", 0, 1, shape=4)
        weights["bias"] = pm.Normal("b", 0, 1, shape=(1, 1, 3))
        pmep.CollaborativeRNN("y", n_items=4, hidden=3, cell="tanh", **weights, observed=[[0, 1, 0], [3]])
    rng = np.random.default_rng(5)
    point = {name: rng.normal(size=value.shape) for name, value in model.initial_point().items()}
    gradient = model.compile_dlogp(mode="FAST_COMPILE")(point)
    logp, step = model.compile_logp(mode="FAST_COMPILE"), 1e-6
    flat = np.concatenate([np.ravel(point[rv.name]) for rv in model.free_RVs])
    for k in rng.integers(0, len(flat), 10):
        ends = []
        for sign in (1, -1):
            moved = flat.copy()
            moved[k] += sign * step
            parts = np.split(moved, np.cumsum([point[rv.name].size for rv in model.free_RVs])[:-1])
            shaped = {rv.name: p.reshape(point[rv.name].shape) for rv, p in zip(model.free_RVs, parts)}
            ends.append(float(logp(shaped)))
        np.testing.assert_allclose(gradient[k], (ends[0] - ends[1]) / (2 * step), rtol=1e-5, atol=1e-7)


@every_kind
def test_without_memories_there_is_the_network_of_the_paper(cell, pooled):
    weights, first = weights_of(cell, pooled, half_lives=()), first_states()
    sequences, plain = data(half_lives=())._replace(following=None), weights._replace(bias=weights.bias[:0])
    plain = plain._replace(known=plain.known[:0])
    found = log_probabilities(plain, sequences, first).values
    by_hand = by_loops(plain._replace(bias=np.zeros((1, *weights.bias.shape[1:]))), sequences, first)
    np.testing.assert_allclose(found, by_hand, rtol=1e-12)
    window, _ = window_of(sequences, LENGTHS, np.array([2]), 0, 100)
    own = plain if pooled else plain._replace(recurrent=plain.recurrent[[2]])
    gradient = window_gradient(own, window, first[[2]]).gradient
    assert (gradient.bias.shape, gradient.known.shape) == (plain.bias.shape, (0,))


def test_an_item_that_softmax_excludes_comes_from_memory():
    """Logits beyond what doubles can exponentiate, whose probability is that of the memory alone."""
    weights = Weights(
        np.zeros((1, 1, 1, 1)),
        np.zeros((3, 1, 1)),
        np.array([[0.0], [0.0], [-1e4]]),
        np.zeros((1, 2)),
        np.zeros(0),
        np.zeros((1, 1, 1)),
    )
    sequences, first = Sequences.of_parts([np.array([2, 2])], 3, [np.inf]), np.ones((1, 1))
    found = log_probabilities(weights, sequences, first).values
    # Of exp(0) + exp(0) + 3, the memory has 3: a third of it for each item before the first event.
    np.testing.assert_allclose(found[0], np.log(1 / 5), rtol=1e-12)
