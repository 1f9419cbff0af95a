"""Many maxima at once, against SciPy one by one."""

import numpy as np
import pytest
import scipy.optimize

from pymc_ep.numerics.optimise import batched_lbfgs
from pymc_ep.numerics.optimise.batched_lbfgs import maximise_many

RNG = np.random.default_rng(1)
M, P = 7, 4
RATES, TARGETS = RNG.uniform(0.1, 30.0, (M, P)), RNG.uniform(0.5, 5.0, (M, P))
MIXING = RNG.normal(size=(M, P, P))


@pytest.fixture(autouse=True, params=["numpy", "numba"])
def body(request, monkeypatch):
    monkeypatch.setattr(batched_lbfgs, "_FEW", np.inf if request.param == "numpy" else -1)


def evaluate(numbers, points):
    """Concave: sum of target x - rate e^{(B x)}, less a quadratic and a barrier at 3, beyond which it is -inf."""
    mixed = np.einsum("mij,mj->mi", MIXING[numbers], points)
    grown = RATES[numbers] * np.exp(mixed)
    inside = (points < 3.0).all(axis=1)
    room = np.where(inside[:, None], 3.0 - points, 1.0)
    terms = TARGETS[numbers] * points - grown - 0.5 * points**2 + np.log(room)
    gradients = TARGETS[numbers] - np.einsum("mi,mij->mj", grown, MIXING[numbers]) - points - 1.0 / room
    return np.where(inside, terms.sum(axis=1), -np.inf), gradients


def test_maxima_are_scipys():
    points, values, *_ = maximise_many(evaluate, np.zeros((M, P)), np.full((M, P), 0.1), max_iter=100, tol=1e-14)
    for k in range(M):

        def fall(x, k=k):
            value, gradient = evaluate(np.array([k]), x[None])
            return -float(value[0]), -gradient[0]

        found = scipy.optimize.minimize(fall, np.zeros(P), jac=True, method="BFGS", options={"gtol": 1e-9})
        np.testing.assert_allclose(points[k], found.x, atol=1e-5)
        np.testing.assert_allclose(values[k], -found.fun, rtol=1e-12)


def test_no_function_falls_and_those_at_their_maximum_are_left_alone():
    asked, last = [], {}

    def watched(numbers, points):
        asked.append(numbers.copy())
        return evaluate(numbers, points)

    points = np.zeros((M, P))
    for _ in range(10):
        points, values, *_ = maximise_many(watched, points, np.full((M, P), 1.0), max_iter=3, tol=1e-6)
        assert all(values >= last.get("values", -np.inf))
        last["values"] = values
    asked.clear()
    points, *_ = maximise_many(evaluate, points, np.full((M, P), 1.0), max_iter=100, tol=1e-6)
    maximise_many(watched, points, np.full((M, P), 1.0), max_iter=3, tol=1e-6)
    assert len(asked) == 1


def test_an_ascent_goes_on_from_its_memory():
    options = {"scale": np.full((M, P), 0.1), "tol": 1e-14}
    whole = maximise_many(evaluate, np.zeros((M, P)), max_iter=14, **options)
    first = maximise_many(evaluate, np.zeros((M, P)), max_iter=5, **options)
    second = maximise_many(evaluate, first, max_iter=9, **options)
    np.testing.assert_array_equal(second.points, whole.points)


def test_steps_are_no_longer_than_allowed():
    """The maximum of t / 2 - c e^t / 2 is at -log c; a step by the scale there leads from zero to 1 - c."""
    c, lowest = np.array([10.0, 1e3, 1e5]), [0.0]

    def evaluate(which, at):
        lowest[0] = min(lowest[0], at.min())
        return 0.5 * (at - c[which, None] * np.exp(at))[:, 0], 0.5 * (1.0 - c[which, None] * np.exp(at))

    given = {"scale": np.full((3, 1), 2.0), "max_iter": 20, "tol": 1e-16}
    limited = maximise_many(evaluate, np.zeros((3, 1)), longest=np.array([5.0]), **given)
    np.testing.assert_allclose(limited.points[:, 0], -np.log(c), atol=1e-6)
    assert lowest[0] > -20.0
    assert maximise_many(evaluate, np.zeros((3, 1)), **given).points.min() < -1000.0


def test_a_pass_adds_and_multiplies():
    """A row is longer than a piece of the Numba body, and some rows are left out."""
    rng, active = np.random.default_rng(3), np.array([0, 2])
    q, weights = rng.normal(size=(2, 40_000)), rng.normal(size=2)
    added, other = rng.normal(size=(2, 3, 40_000))
    expected = q + weights[:, None] * added[active]
    products = batched_lbfgs._added(q, weights, added, other, active)
    np.testing.assert_allclose(q, expected, rtol=0.0, atol=1e-14)
    np.testing.assert_allclose(products, (expected * other[active]).sum(axis=1), rtol=1e-12)


def test_units_of_unknowns_do_not_change_the_steps():
    units = 10.0 ** np.array([6, -6, 0, 3])

    def scaled_evaluate(numbers, points):
        values, gradients = evaluate(numbers, points / units)
        return values, gradients / units

    plain = maximise_many(evaluate, np.zeros((M, P)), np.full((M, P), 0.1), max_iter=12, tol=0.0)
    scaled = maximise_many(
        scaled_evaluate, np.zeros((M, P)), 0.1 * np.broadcast_to(units**2, (M, P)), max_iter=12, tol=0.0
    )
    np.testing.assert_allclose(scaled.points / units, plain.points, rtol=1e-6)
