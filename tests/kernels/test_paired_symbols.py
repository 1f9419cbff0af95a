"""Row updates of paired symbols: all bodies against NumPy, which a dense implementation is the measure of elsewhere."""

import numpy as np
import pytensor
import pytensor.tensor as pt
import pytest

from pymc_ep.models.paired_symbols.kernel import (
    Background,
    Cells,
    Censored,
    Priors,
    Statistics,
    Symbols,
    body,
    curvature,
    pair_sums,
    row_statistics,
    solve_rows,
    update_in_turn,
    update_rows,
)
from pymc_ep.models.paired_symbols.kernel.body import NOTHING
from pymc_ep.models.paired_symbols.kernel.op import PairSums, RowStatistics, SolveRows, UpdateInTurn, UpdateRows

I, J = 40, 23  # noqa: E741
BACKENDS = ["numba", "c", "jax"]


def problem(width=5, dtype=float, held=False):
    rng = np.random.default_rng(width)
    own = np.sort(rng.integers(0, I - 1, 300))
    own[own == 7] = 8
    cells = Cells(
        np.concatenate([[0], np.cumsum(np.bincount(own, minlength=I))]),
        rng.integers(0, J, 300).astype(np.int32),
        rng.integers(1, 4, 300).astype(float),
    )

    def symbols(n):
        parts = rng.normal(size=(n, width)), rng.uniform(0.1, 1, (n, width)), rng.normal(size=n), rng.uniform(0.1, 1, n)
        return Symbols(*(part.astype(dtype) for part in parts))

    users, items = symbols(I), symbols(J)
    precision = np.where(np.arange(I) % 3 == 0, np.inf, 2.0) if held else rng.uniform(0.5, 2, I)
    priors = Priors(rng.normal(size=(I, width)), rng.uniform(0.5, 2, (I, width)), rng.normal(size=I), precision)
    s, t = rng.dirichlet(np.ones(I)), rng.dirichlet(np.ones(J))
    v = items.mean.astype(float)
    moments = Background(
        (t[:, None] * v).T @ v + np.diag(t @ items.variance.astype(float)),
        t @ v,
        (t * items.bias) @ v,
        float(t @ items.bias),
        float(t @ (items.bias**2 + items.bias_variance)),
    )
    return cells, users, items, priors, Censored(450.0, s, t, moments, 1.3)


@pytest.mark.parametrize("sequential", [False, True], ids=["bulk", "sequential"])
@pytest.mark.parametrize("held", [False, True], ids=["free", "held"])
@pytest.mark.parametrize("backend", BACKENDS)
def test_bodies_agree(backend, held, sequential):
    cells, users, items, priors, censored = problem(held=held)
    expected = body.update_rows(cells, users, items, priors, censored, sequential)
    found = update_rows(cells, users, items, priors, censored, sequential=sequential, backend=backend)
    for one, other in zip(found, expected):
        np.testing.assert_allclose(one, other, rtol=1e-11, atol=1e-12)
    sums = pair_sums(cells, users, items, censored.other, backend=backend)
    np.testing.assert_allclose(sums, body.pair_sums(cells, users, items, censored.other), rtol=1e-12, atol=1e-13)


@pytest.mark.parametrize("sequential", [False, True], ids=["bulk", "sequential"])
@pytest.mark.parametrize("backend", ["numpy", *BACKENDS])
def test_sums_of_parts_update_a_row_as_all_of_its_cells_do(backend, sequential):
    """Cells in two parts, which have other symbols each."""
    cells, users, items, priors, censored = problem(held=True)
    expected = update_rows(cells, users, items, priors, censored, sequential=sequential, backend=backend)
    own = np.repeat(np.arange(I), np.diff(cells.ends))
    total = None
    for part in (slice(0, 9), slice(9, J)):
        here = (cells.others >= part.start) & (cells.others < part.stop)
        ends = np.concatenate([[0], np.cumsum(np.bincount(own[here], minlength=I))])
        some = Cells(ends, (cells.others[here] - part.start).astype(np.int32), cells.counts[here])
        there = Symbols(*(values[part] for values in items))
        seen = censored._replace(other=censored.other[part], background=NOTHING)
        found = row_statistics(some, users, there, seen, backend=backend)
        total = found if total is None else Statistics(*map(np.add, total, found))
    found = solve_rows(total, users, priors, censored, sequential=sequential, backend=backend)
    for one, other in zip(found, expected):
        np.testing.assert_allclose(one, other, rtol=1e-11, atol=1e-12)


def symmetric_problem(width=4, dtype=float, held=False):
    """Symbols that are paired with each other; one of them has no pair."""
    rng = np.random.default_rng(width)
    counts = np.triu(rng.poisson(0.2, (I, I)), 1).astype(float)
    counts[7] = counts[:, 7] = 0.0
    counts += counts.T
    own, others = np.nonzero(counts)
    ends = np.concatenate([[0], np.cumsum((counts > 0).sum(axis=1))])
    _, symbols, _, priors, censored = problem(width, dtype, held)
    s, m = censored.own, symbols.mean.astype(float)
    moments = Background(
        (s[:, None] * m).T @ m + np.diag(s @ symbols.variance.astype(float)),
        s @ m,
        (s * symbols.bias) @ m,
        float(s @ symbols.bias),
        float(s @ (symbols.bias**2 + symbols.bias_variance)),
    )
    cells = Cells(ends, others.astype(np.int32), counts[own, others])
    return cells, symbols, priors, Censored(450.0, s, s, moments, 1.3)


@pytest.mark.parametrize("sequential", [False, True], ids=["bulk", "sequential"])
@pytest.mark.parametrize("points", [(False, False), (True, False), (False, True)], ids=str)
@pytest.mark.parametrize("backend", BACKENDS)
def test_bodies_of_updates_in_turn_agree(backend, points, sequential):
    arguments = symmetric_problem(held=points == (False, False))
    expected = body.update_in_turn(*arguments, sequential, points)
    found = update_in_turn(*arguments, sequential=sequential, points=points, backend=backend)
    for one, other in zip(found, expected):
        np.testing.assert_allclose(one, other, rtol=1e-10, atol=1e-12)
    assert found.variance.any() != points[0] and found.bias_variance.any() != points[1]


@pytest.mark.parametrize("backend", ["numpy", *BACKENDS])
def test_updates_in_turn_are_updates_of_one_row_after_the_other(backend):
    """Each row against an update of all rows, from moments of all others that are summed anew."""
    cells, symbols, priors, censored = symmetric_problem()
    found = update_in_turn(cells, symbols, priors, censored, backend=backend)
    own, s = Symbols(*(part.copy() for part in symbols)), censored.own
    for i in range(I):
        t = np.where(np.arange(I) == i, 0.0, s)
        moments = Background(
            (t[:, None] * own.mean).T @ own.mean + np.diag(t @ own.variance),
            t @ own.mean,
            (t * own.bias) @ own.mean,
            float(t @ own.bias),
            0.0,
            t.sum(),
        )
        every = body.update_rows(cells, own, own, priors, censored._replace(background=moments))
        for part, value in zip(own, every):
            part[i] = value[i]
    for one, other in zip(found, own):
        np.testing.assert_allclose(one, other, rtol=1e-9, atol=1e-10)


@pytest.mark.parametrize("backend", ["numpy", *BACKENDS])
def test_updates_in_turn_of_single_precision(backend):
    cells, symbols, priors, censored = symmetric_problem(dtype="float32")
    exact = body.update_in_turn(cells, Symbols(*(part.astype(float) for part in symbols)), priors, censored)
    found = update_in_turn(cells, symbols, priors, censored, backend=backend)
    assert all(part.dtype == np.float32 for part in found)
    for one, other in zip(found, exact):
        np.testing.assert_allclose(one, other, rtol=1e-5, atol=1e-5)


def example(mode):
    """Outputs of each Op, of its whole update and of the same in two steps."""
    cells, symbols, priors, censored = symmetric_problem(width=3)
    arrays = [*cells, *symbols, *priors, censored.own, *censored.background[:4], censored.number, censored.xi]
    inputs = [pt.as_tensor(value).type() for value in arrays]
    in_turn = pytensor.function(inputs, UpdateInTurn(point_bias=True)(*inputs), mode=mode)(*arrays)
    cells, users, items, priors, censored = problem(width=3)
    arrays = [*cells, *users, *items, *priors, censored.own, censored.other, *censored.background[:4]]
    arrays += [censored.number, censored.xi]
    inputs = [pt.as_tensor(value).type() for value in arrays]
    own, rest = inputs[:11], inputs[15:]
    statistics = RowStatistics()(*own, *rest[:2], *rest[6:])
    composed = SolveRows()(*statistics, inputs[3], *inputs[11:16], *rest[2:])
    outputs = [*UpdateRows()(*inputs), *composed, PairSums()(*own, inputs[16])]
    return [*in_turn, *pytensor.function(inputs, outputs, mode=mode)(*arrays)]


def test_ops_run_their_bodies():
    cells, symbols, priors, censored = symmetric_problem(width=3)
    expected = [*body.update_in_turn(cells, symbols, priors, censored, points=(False, True))[: len(symbols)]]
    cells, users, items, priors, censored = problem(width=3)
    updated = body.update_rows(cells, users, items, priors, censored)
    expected += [*updated, *updated, body.pair_sums(cells, users, items, censored.other)]
    for one, other in zip(example("FAST_COMPILE"), expected, strict=True):
        np.testing.assert_allclose(one, other, rtol=1e-10, atol=1e-12)


@pytest.mark.parametrize("backend", ["numpy", *BACKENDS])
def test_strides_and_single_precision(backend):
    cells, users, items, priors, censored = problem(dtype="float32")
    exact = body.update_rows(
        cells, *(Symbols(*(p.astype(float) for p in own)) for own in (users, items)), priors, censored
    )
    found = update_rows(cells, users, items, priors, censored, backend=backend)
    assert all(part.dtype == np.float32 for part in found)
    for one, other in zip(found, exact):
        np.testing.assert_allclose(one, other, rtol=2e-6, atol=2e-6)
    cells, users, items, priors, censored = problem()
    strided = Symbols(*(np.asfortranarray(part) for part in users))
    one_prior = priors._replace(precision=np.broadcast_to(2.0, users.mean.shape))
    found = update_rows(cells, strided, items, one_prior, censored, backend=backend)
    expected = body.update_rows(cells, users, items, one_prior, censored)
    np.testing.assert_allclose(found.mean, expected.mean, rtol=1e-11, atol=1e-12)


def test_blocks_and_chunks_change_nothing(monkeypatch):
    jax = pytest.importorskip("pymc_ep.models.paired_symbols.kernel.jax")
    cells, users, items, priors, censored = problem(width=4)
    expected = body.update_rows(cells, users, items, priors, censored)
    sums = body.pair_sums(cells, users, items, censored.other)
    monkeypatch.setattr(body, "_CHUNK", 16 * 7)
    monkeypatch.setattr(jax, "_BLOCK", 16 * 9)
    for update, add in ((body.update_rows, body.pair_sums), (jax.update_rows, jax.pair_sums)):
        for one, other in zip(update(cells, users, items, priors, censored), expected):
            np.testing.assert_allclose(one, other, rtol=1e-11, atol=1e-12)
        np.testing.assert_allclose(add(cells, users, items, censored.other), sums, rtol=1e-12, atol=1e-13)


def test_the_curvature_is_smooth_at_the_end_of_its_series():
    xi = np.array([0.0, 1e-8, 9.99e-4, 1.001e-3, 0.1, 50.0])
    mp = pytest.importorskip("mpmath")
    with mp.workdps(50):
        values = map(mp.mpf, xi[1:].tolist())
        exact = [0.125] + [float((1 / (1 + mp.exp(-x)) - mp.mpf(1) / 2) / (2 * x)) for x in values]
    np.testing.assert_allclose(curvature(xi), exact, rtol=1e-13)
