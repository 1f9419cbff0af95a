"""Training of recurrent networks: rules of updates, priors, JAX beside NumPy, and what can and cannot be learned."""

import numpy as np
import pytest
import scipy.optimize

from pymc_ep.engines.loop import run
from pymc_ep.models.sequences.engine import update
from pymc_ep.models.sequences.engine.held_out import held_out_total
from pymc_ep.models.sequences.engine.rules import RULES, stepped
from pymc_ep.models.sequences.engine.training import Training
from pymc_ep.models.sequences.engine.update import Settings
from pymc_ep.models.sequences.engine.values import Moments, Prior, Problem, first_learned
from pymc_ep.models.sequences.kernel import Sequences, Weights, initial_states, log_probabilities, window_of

INITIAL, HALF_LIVES, N_CONTEXTS = 0.1, (2.0, np.inf), 2


def flat(ndim, precision=0.0, dtype="float64"):
    return Prior(np.zeros((1,) * ndim, dtype), np.full((1,) * ndim, precision, dtype))


def problem_of(sequences, n_items, *, tail=0, precision=0.0, dtype="float64", of_shared=None, half_lives=HALF_LIVES):
    lengths = np.array([len(items) for items in sequences])
    items = np.concatenate(sequences)
    counts = np.maximum(1, np.bincount(items, minlength=n_items))
    priors = tuple(flat(ndim, precision, dtype) for ndim in (4, 3, 2, 2, 1, 3))
    contexts = np.random.default_rng(3).integers(0, N_CONTEXTS, len(items))
    data = Sequences.of_parts(sequences, n_items, half_lives)
    if half_lives:
        data = data.in_context(contexts)
    return Problem(data, np.maximum(lengths - tail, 1), counts, INITIAL, priors, of_shared)


def weights_of(n_users, n_items, width, *, gates=3, dtype="float64", seed=0, half_lives=HALF_LIVES):
    rng = np.random.default_rng(seed)
    shapes = (n_users, gates, width, width), (n_items, gates, width), (n_items, width), (len(half_lives), width + 1)
    # Without memories there are no biases either, as in the paper, and known items are as others.
    shapes = (*shapes, (width + 1 if half_lives else 0,), (N_CONTEXTS if half_lives else 0, gates, width))
    return Weights(*((rng.normal(size=shape) / width**0.5).astype(dtype) for shape in shapes))


def trained(problem, weights, *, optimizer="rmsprop", rate=0.02, clip=1.0, shared=None, epochs=4, **options):
    engine = Training(Settings(optimizer, rate, clip), epochs=epochs, held_out=bool(problem.held_out.any()), **options)
    start = first_learned(weights, with_first=optimizer == "adam"), np.zeros((0, 0, 0)) if shared is None else shared
    found = run(engine, problem, start, max_iter=1 + epochs * engine.groups(problem))
    return engine, found


def random_sequences(seed=0, n_users=12, n_items=9):
    rng = np.random.default_rng(seed)
    return [rng.integers(0, n_items, n) for n in rng.integers(2, 40, n_users)]


@pytest.mark.parametrize("optimizer", RULES)
def test_updates_are_those_of_the_papers(optimizer):
    """Kingma and Ba (2015), Algorithm 1, of which RMSprop is the case beta_1 = 0, and Zaheer et al. (2018), 2."""
    rule, rng, rate = RULES[optimizer], np.random.default_rng(0), 0.1
    w = rng.normal(size=(3, 2))
    moments, m, v, expected = Moments.zero(w, with_first=rule.first > 0), 0.0, 0.0, w
    for t in range(1, 6):
        g = rng.normal(size=w.shape)
        w, moments = stepped(rule, rate, w, g, moments)
        m = rule.first * m + (1 - rule.first) * g
        if optimizer == "yogi":
            v = v - (1 - rule.second) * np.sign(v - g**2) * g**2
        else:
            v = rule.second * v + (1 - rule.second) * g**2
        expected = expected + rate * (m / (1 - rule.first**t)) / (np.sqrt(v / (1 - rule.second**t)) + 1e-8)
        np.testing.assert_allclose(w, expected, rtol=1e-12)


@pytest.mark.parametrize(("optimizer", "up"), [("yogi", True), ("rmsprop", False)])
def test_large_rare_gradients_outweigh_small_ones(optimizer, up):
    """Of 200 gradients one is 300 and the others -1: their sum is positive. RMSprop forgets the large one."""
    w, ends = np.zeros((1, 1)), []
    moments = Moments.zero(w, with_first=False)
    for t in range(4000):
        g = np.full((1, 1), 300.0 if t % 200 == 0 else -1.0)
        w, moments = stepped(RULES[optimizer], 0.01, w, g, moments)
        if t % 200 == 199:
            ends.append(float(w[0, 0]))
    assert (np.diff(ends) > 0).all() == up and (ends[-1] > ends[0]) == up


@pytest.mark.parametrize("shared", [False, True])
def test_windows_of_an_epoch_take_the_whole_prior_once(shared):
    problem = problem_of(random_sequences(), 9)
    engine = Training(Settings("rmsprop", 0.1, 1.0), batch=7)
    of_users, of_items, of_all = np.zeros(12), np.zeros(9), 0.0
    for u in range(12):
        for begin in range(0, int(problem.lengths[u]), 7):
            window, _ = window_of(problem.sequences, problem.lengths, np.array([u]), begin, 7)
            shares = engine._shares(problem, window, np.array([u]), shared=shared)
            of_users[u] += shares.users[0]
            of_items += shares.items
            of_all += shares.outputs[0]
    np.testing.assert_allclose(of_items, np.bincount(problem.sequences.items, minlength=9) > 0)
    np.testing.assert_allclose(of_all, 1.0)
    np.testing.assert_allclose(of_users.sum(), 1.0 if shared else 12.0)
    np.testing.assert_allclose(of_users, problem.lengths / problem.n_trained if shared else 1.0)


def test_windows_of_an_epoch_weigh_all_events_alike(monkeypatch):
    """Of few events and of many: steps in the outputs sum to the gradient of the log density, here by differences."""
    problem, weights, found = problem_of(random_sequences(), 9, precision=0.5), weights_of(12, 9, 3), np.zeros((9, 3))

    def unmoved(rule, rate, table, gradient, moments):
        found[...] += gradient if table.shape == found.shape else 0.0
        return table, moments

    monkeypatch.setattr(update, "stepped", unmoved)
    trained(problem, weights, epochs=1, clip=np.inf, batch=10, users_per_batch=7)

    def log_density(outputs):
        moved = weights._replace(outputs=outputs.reshape(9, 3))
        total = log_probabilities(moved, problem.sequences, initial_states(12, moved, INITIAL)).values.sum()
        return total - 0.25 * (outputs**2).sum()

    expected = scipy.optimize.approx_fprime(weights.outputs.ravel(), log_density, 1e-6)
    most = sum(sorted(min(10, int(n)) for n in problem.lengths)[-7:])
    np.testing.assert_allclose(most * found.ravel(), expected, rtol=1e-4, atol=1e-4)


def test_full_batches_climb_to_the_mode_of_the_density():
    """All users in one window, small steps: L-BFGS with numerical gradients goes no higher from there."""
    problem = problem_of(random_sequences(1, 3, 3), 3, precision=8.0)
    weights = weights_of(3, 3, 2, gates=1)

    def log_density(flat_weights):
        parts = np.split(flat_weights, np.cumsum([table.size for table in weights])[:-1])
        tables = Weights(*(part.reshape(table.shape) for part, table in zip(parts, weights)))
        first = initial_states(3, tables, INITIAL)
        return log_probabilities(tables, problem.sequences, first).values.sum() - 4.0 * (flat_weights**2).sum()

    options = {"batch": 50, "users_per_batch": 3}
    found = None
    for rate in (0.05, 0.005, 5e-4):
        engine, found = trained(problem, weights, rate=rate, epochs=400, **options)
        weights, _ = engine.result(problem, found.state)
    at = np.concatenate([np.ravel(table) for table in weights])
    mode = scipy.optimize.minimize(lambda x: -log_density(x), at, method="L-BFGS-B")
    assert -mode.fun - log_density(at) < 2e-3
    assert found.status.converged  # as many epochs as were asked for, without held-out events


def test_shared_matrices_are_at_their_mode():
    prior = Prior(np.full((1, 1, 1), 0.3), np.full((1, 1, 1), 5.0))
    problem = problem_of(random_sequences(), 9, precision=4.0, of_shared=prior)
    engine, found = trained(problem, weights_of(12, 9, 2, gates=1), shared=np.zeros((1, 2, 2)), users_per_batch=5)
    weights, shared = engine.result(problem, found.state)

    def density(x):
        own = weights.recurrent - x.reshape(1, 1, 2, 2)
        return 2.0 * (own**2).sum() + 2.5 * ((x - 0.3) ** 2).sum()

    np.testing.assert_allclose(shared.ravel(), scipy.optimize.minimize(density, np.zeros(4)).x, atol=1e-5)


@pytest.mark.parametrize(
    ("n_matrices", "gates", "optimizer", "dtype", "tolerance", "half_lives", "sampled"),
    [(12, 3, "rmsprop", "float64", 1e-12, HALF_LIVES, None), (1, 1, "adam", "float32", 1e-5, (), 2)],
)
def test_jax_has_the_curve_of_numpy(n_matrices, gates, optimizer, dtype, tolerance, half_lives, sampled):
    jax = pytest.importorskip("jax")
    jax.config.update("jax_enable_x64", True)
    problem = problem_of(random_sequences(), 9, tail=2, precision=0.5, dtype=dtype, half_lives=half_lives)
    weights = weights_of(n_matrices, 9, 5, gates=gates, dtype=dtype, half_lives=half_lives)
    options = {"optimizer": optimizer, "batch": 10, "users_per_batch": 6, "dropout": 0.2, "ridge": 0.1}
    options["sampled"] = sampled
    both = [trained(problem, weights, jax=jax, **options) for jax in (False, True)]
    (numpy_engine, numpy_run), (jax_engine, jax_run) = both
    np.testing.assert_allclose(jax_run.state.trace, numpy_run.state.trace, rtol=tolerance)
    pairs = zip(jax_engine.result(problem, jax_run.state)[0], numpy_engine.result(problem, numpy_run.state)[0])
    for one, other in pairs:
        assert other.dtype == dtype
        np.testing.assert_allclose(one, other, atol=10 * tolerance)


@pytest.mark.parametrize("n_matrices", [12, 1])
def test_jax_compiles_once_for_all_windows_and_groups(n_matrices, monkeypatch):
    """Twelve users in groups of seven and five, and windows of few events and of many."""
    jax = pytest.importorskip("jax")
    jax.config.update("jax_enable_x64", True)
    from pymc_ep.models.sequences.engine import update_jax

    traced = []
    monkeypatch.setattr(
        update_jax, "grid_gradient", lambda *args, own=update_jax.grid_gradient: traced.append(1) or own(*args)
    )
    trained(problem_of(random_sequences(), 9), weights_of(n_matrices, 9, 3), jax=True, batch=10, users_per_batch=7)
    assert len(traced) == 1


@pytest.mark.parametrize("n_matrices", [12, 1])
def test_jax_has_the_held_out_loss_of_numpy(n_matrices):
    """Tails begin within windows of five events, and some take several."""
    jax = pytest.importorskip("jax")
    jax.config.update("jax_enable_x64", True)
    from pymc_ep.models.sequences.engine.held_out_jax import held_out_total_jax

    problem, weights = problem_of(random_sequences(), 9, tail=13), weights_of(n_matrices, 9, 5)
    found = held_out_total_jax(weights, problem, batch=5, users_per_batch=7)
    np.testing.assert_allclose(found, held_out_total(weights, problem), rtol=1e-12)


def test_steps_leave_earlier_states_as_they_are():
    """A state that a checkpoint holds does not change with the next step."""
    problem = problem_of(random_sequences(), 9, tail=2)
    engine = Training(Settings("adam", 0.1, 1.0), users_per_batch=5)
    state = engine.init(problem, (first_learned(weights_of(12, 9, 4), with_first=True), np.zeros((0, 0, 0))))
    for _ in range(7):
        arrays = [*state.learned.weights, *(part for one in state.learned.moments for part in one), *state.best]
        before = [array.copy() for array in arrays]
        after = engine.step(problem, state)
        for array, copy in zip(arrays, before):
            np.testing.assert_array_equal(array, copy)
        again = engine.step(problem, state)
        np.testing.assert_array_equal(engine.result(problem, after)[0].inputs, engine.result(problem, again)[0].inputs)
        state = after


def test_chance_cannot_be_predicted():
    """Independent uniform draws: no held-out loss is below their entropy, but by chance."""
    n_items, rng = 8, np.random.default_rng(0)
    problem = problem_of([rng.integers(0, n_items, 120) for _ in range(20)], n_items, tail=40)
    _, found = trained(problem, weights_of(20, n_items, 8), epochs=12, patience=12, batch=32, users_per_batch=10)
    nats = found.state.trace[:, 0]
    # 800 events: the mean of the loss of any prediction that is not their own has an error of a few hundredths.
    assert nats.min() > np.log(n_items) - 0.03
    assert found.state.trace[-1, 1] < np.log(n_items)  # those it was trained on are learned by heart


@pytest.mark.parametrize("in_jax", [False, True])
def test_a_loss_that_is_not_finite_ends_training_at_the_last_good_weights(in_jax):
    """The first window is good, and those after the one that fails do not count."""
    if in_jax:
        pytest.importorskip("jax").config.update("jax_enable_x64", True)
    problem = problem_of(random_sequences(), 9, tail=2)
    engine, found = trained(problem, weights_of(12, 9, 5), rate=1e308, users_per_batch=5, batch=6, jax=in_jax)
    assert found.state.failed_event == 6
    assert not found.status.converged
    assert "not finite in epoch 1, at the events of the user at position" in found.status.sentence
    assert "Lower learning_rate" in found.status.sentence
    assert all(np.isfinite(table).all() for table in engine.result(problem, found.state)[0])


def test_dropout_and_shuffling_are_seeded():
    problem = problem_of(random_sequences(), 9, tail=2)
    options = {"dropout": 0.3, "users_per_batch": 4}
    traces = [
        trained(problem, weights_of(12, 9, 5), seed=seed, epochs=2, **options)[1].state.trace for seed in (1, 1, 2)
    ]
    np.testing.assert_array_equal(traces[0], traces[1])
    assert (traces[0] != traces[2]).any()


def test_a_start_that_no_epoch_betters_is_kept():
    """Chance again, from outputs of zero, under which all items are equally likely: nothing is better."""
    n_items, rng = 8, np.random.default_rng(1)
    problem = problem_of([rng.integers(0, n_items, 60) for _ in range(8)], n_items, tail=30, half_lives=())
    weights = weights_of(8, n_items, 4, half_lives=())
    weights = weights._replace(outputs=0.0 * weights.outputs)
    engine, found = trained(problem, weights, epochs=6, rate=1.0)
    assert "no epoch has a lower loss than the start" in found.status.sentence and not found.status.converged
    np.testing.assert_array_equal(engine.result(problem, found.state)[0].outputs, weights.outputs)
