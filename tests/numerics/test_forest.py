"""Sum-product on forests against enumeration of all states, in NumPy, as PyTensor graphs and under JAX."""

import itertools
from functools import lru_cache

import numpy as np
import pytensor
import pytensor.tensor as pt
import pytest
import scipy.special

from pymc_ep.modes import numpy_mode
from pymc_ep.numerics.factorisation.quad_forest import Forest, quad_forest

FORESTS = {
    "one level": quad_forest(3, 2, 2, 1),
    "one tree": quad_forest(1, 2, 2, 2),
    "trees side by side": quad_forest(3, 2, 2, 2),
    "tall": quad_forest(1, 4, 2, 2),
    "wide": quad_forest(1, 2, 6, 2),
}
"""Of at most 15 nodes, whose states can be enumerated."""


def parents_of(forest):
    """Parent of each node by its number, -1 for roots, node by node from rows and columns."""
    number, out = {}, []
    for level, (trees, rows, columns) in enumerate(forest.shapes):
        for place in itertools.product(range(trees), range(rows), range(columns)):
            number[(level, *place)] = len(number)
    for level, tree, row, column in number:
        out.append(number.get((level + 1, tree, row // 2, column // 2), -1))
    return np.array(out)


def enumerated(forest, log_odds, low, high):
    """log weights of all states, (2^n,), and the states, (2^n, n)."""
    parents = parents_of(forest)
    states = np.array(list(itertools.product([0, 1], repeat=forest.size)))
    # A root counts as below a low parent.
    above = np.where(parents < 0, 0, states[:, parents])
    probability = np.where(above == 1, high, low)
    log_prior = np.where(states == 1, np.log(probability), np.log1p(-probability)).sum(axis=1)
    return log_prior + states @ log_odds, states, above


def random_inputs(forest, seed=0, spread=3.0):
    rng = np.random.default_rng(seed)
    return (
        spread * rng.normal(size=forest.size),
        rng.uniform(0.05, 0.5, forest.size),
        rng.uniform(0.5, 0.95, forest.size),
    )


@lru_cache
def compiled(forest):
    inputs = [pt.dvector(name) for name in ("log_odds", "low", "high")]
    total = forest.log_normaliser(*inputs, pt)
    return pytensor.function(
        inputs, [total, *pytensor.grad(total, inputs, disconnected_inputs="ignore")], mode=numpy_mode()
    )


@pytest.fixture(params=FORESTS)
def forest(request):
    return FORESTS[request.param]


def test_children_are_two_by_two_blocks():
    assert quad_forest(3, 8, 4, 2) == Forest(((3, 8, 4), (3, 4, 2)))
    assert quad_forest(3, 8, 4, 2).size == 3 * (32 + 8)
    assert [level.shape for level in quad_forest(1, 4, 8, 3).levels(np.arange(42))] == [(1, 4, 8), (1, 2, 4), (1, 1, 2)]


def test_against_enumeration(forest):
    arguments = random_inputs(forest)
    log_weights, states, above = enumerated(forest, *arguments)
    expected = scipy.special.logsumexp(log_weights)
    weights = np.exp(log_weights - expected)
    np.testing.assert_allclose(forest.log_normaliser(*arguments), expected, rtol=1e-12)
    found = forest.posterior(*arguments)
    np.testing.assert_allclose(found.log_normaliser.sum(), expected, rtol=1e-12)
    high, both = weights @ states, weights @ (states * above)
    parent = weights @ above
    np.testing.assert_allclose(found.high, high, rtol=1e-11)
    np.testing.assert_allclose(found.parent, parent, rtol=1e-11)
    below = parents_of(forest) >= 0
    np.testing.assert_allclose(found.below_low, (high - both) / (1.0 - parent), rtol=1e-11)
    np.testing.assert_allclose(found.below_high[below], (both / np.where(below, parent, 1.0))[below], rtol=1e-11)


def test_graph_and_its_gradients_against_enumeration(forest):
    """The gradients are the marginals, and expected counts of states over their probabilities."""
    log_odds, low, high = random_inputs(forest, seed=1)
    log_weights, states, above = enumerated(forest, log_odds, low, high)
    expected = scipy.special.logsumexp(log_weights)
    weights = np.exp(log_weights - expected)
    value, *gradients = compiled(forest)(log_odds, low, high)
    np.testing.assert_allclose(value, expected, rtol=1e-12)
    np.testing.assert_allclose(gradients[0], weights @ states, rtol=1e-10)
    for state, probability, gradient in ((0, low, gradients[1]), (1, high, gradients[2])):
        there = above == state
        score = there * np.where(states == 1, 1.0 / probability, -1.0 / (1.0 - probability))
        np.testing.assert_allclose(gradient, weights @ score, rtol=1e-10, atol=1e-12)


@pytest.mark.parametrize("name", ["one level", "trees side by side"])
def test_jax_against_enumeration(name):
    forest = FORESTS[name]
    jax = pytest.importorskip("jax")
    arguments = random_inputs(forest, seed=2)
    log_weights, states, _ = enumerated(forest, *arguments)
    expected = scipy.special.logsumexp(log_weights)
    with jax.enable_x64() if hasattr(jax, "enable_x64") else jax.experimental.enable_x64():
        own = [jax.numpy.asarray(part) for part in arguments]
        value, slope = jax.jit(jax.value_and_grad(forest.log_normaliser))(*own)
        found = jax.jit(forest.posterior)(*own)
    np.testing.assert_allclose(value, expected, rtol=1e-12)
    np.testing.assert_allclose(slope, found.high, rtol=1e-11)
    np.testing.assert_allclose(found.high, np.exp(log_weights - expected) @ states, rtol=1e-11)
    for ours, theirs in zip(forest.posterior(*arguments), found):
        np.testing.assert_allclose(ours, theirs, rtol=1e-11)


@pytest.mark.parametrize("size", [1e3, 1e6])
@pytest.mark.parametrize("spread", ["high", "low", "mixed"])
def test_extreme_log_odds(size, spread):
    """Where one state of each node has all the weight, the normaliser is the weight of these states."""
    forest = FORESTS["trees side by side"]
    _, low, high = random_inputs(forest)
    signs = {"high": np.ones(15), "low": -np.ones(15), "mixed": np.where(np.arange(15) % 3, 1.0, -1.0)}[spread]
    with np.errstate(over="raise", invalid="raise", divide="raise"):
        found = forest.posterior(size * signs, low, high)
        value = forest.log_normaliser(size * signs, low, high)
    parents = parents_of(forest)
    above = np.where(parents < 0, -1.0, signs[parents])
    probability = np.where(above > 0, high, low)
    expected = np.where(signs > 0, np.log(probability), np.log1p(-probability)).sum() + size * (signs > 0).sum()
    np.testing.assert_allclose(value, expected, rtol=1e-12, atol=1e-12)
    np.testing.assert_allclose(found.high, signs > 0, atol=1e-12)
    assert all(np.isfinite(part).all() for part in found)
    value, *gradients = compiled(forest)(size * signs, low, high)
    np.testing.assert_allclose(value, expected, rtol=1e-12, atol=1e-12)
    assert all(np.isfinite(part).all() for part in gradients)
    np.testing.assert_allclose(gradients[0], signs > 0, atol=1e-12)


@pytest.mark.parametrize("edge", [1e-12, 1.0 - 1e-12])
def test_probabilities_next_to_the_ends(edge):
    forest = FORESTS["trees side by side"]
    log_odds, _, high = random_inputs(forest)
    arguments = log_odds, np.full(15, edge), high
    log_weights, states, _ = enumerated(forest, *arguments)
    expected = scipy.special.logsumexp(log_weights)
    found = forest.posterior(*arguments)
    # 1 - p itself is only known to 1e-16.
    np.testing.assert_allclose(found.log_normaliser.sum(), expected, rtol=1e-9)
    np.testing.assert_allclose(found.high, np.exp(log_weights - expected) @ states, rtol=1e-4)


def test_draws_have_the_marginals_of_enumeration():
    """Of 50,000 trees side by side: frequencies of nodes and pairs lie within 4.5 standard errors."""
    draws, single = 50_000, FORESTS["one tree"]
    many = quad_forest(draws, 2, 2, 2)
    _, low, high = random_inputs(single, seed=4)
    uniform = pt.dvector("uniform")
    probabilities = [
        pt.constant(np.concatenate([np.tile(level.ravel(), draws) for level in single.levels(p)])) for p in (low, high)
    ]
    draw = pytensor.function([uniform], many.states(uniform, *probabilities, pt), mode=numpy_mode())
    levels = many.levels(draw(np.random.default_rng(5).random(many.size)))
    found = np.concatenate([level.reshape(draws, -1) for level in levels], axis=1)
    log_weights, states, _ = enumerated(single, np.zeros(single.size), low, high)
    weights = np.exp(log_weights)
    np.testing.assert_allclose(weights.sum(), 1.0, rtol=1e-12)
    for one in range(single.size):
        for other in range(one + 1):
            exact = weights @ (states[:, one] * states[:, other])
            error = np.sqrt(exact * (1.0 - exact) / draws)
            assert abs((found[:, one] & found[:, other]).mean() - exact) < 4.5 * error


def test_many_nodes_are_one_call_a_level():
    """A million leaves: the number of array operations does not depend on them."""
    forest = quad_forest(3, 512, 512, 8)
    rng = np.random.default_rng(6)
    low, high = np.full(forest.size, 0.2), np.full(forest.size, 0.7)
    found = forest.posterior(rng.normal(size=forest.size), low, high)
    assert found.high.shape == (forest.size,)
    # Without evidence the states are those of the prior, level by level, and the normaliser is one.
    found = forest.posterior(np.zeros(forest.size), low, high)
    np.testing.assert_allclose(found.log_normaliser.sum(), 0.0, atol=1e-9)
    share = 0.2
    for level in reversed(forest.levels(found.high)):
        np.testing.assert_allclose(level, share, rtol=1e-12)
        share = 0.2 + 0.5 * share
