"""Orders of elimination, by the operations of the factor, which is compared with dense algebra."""

import numpy as np
import pytest

from pymc_ep.numerics.sparse import factor, order
from pymc_ep.numerics.sparse.factor import Analysis


def crossed(users, items, rows):
    """Places of the lower triangle of the precision of crossed effects, users first."""
    rng = np.random.default_rng(0)
    pairs = np.unique(np.stack([users + rng.integers(items, size=rows), rng.integers(users, size=rows)]), axis=1)
    diagonal = np.arange(users + items)
    return np.concatenate([diagonal, pairs[0]]), np.concatenate([diagonal, pairs[1]])


@pytest.mark.parametrize(("users", "rows"), [(30, 100), (30, 4000), (400, 100), (400, 4000)])
def test_crossed_effects(users, rows, monkeypatch):
    """The larger effect comes first; a search takes as many operations, within a tenth, and finds the same factor."""
    items = 40
    places, n = crossed(users, items, rows), users + items
    rng = np.random.default_rng(1)
    relabelled = rng.permutation(n)
    low, high = np.sort(relabelled[np.stack(places)], axis=0)
    values = np.where(low == high, 60.0, rng.uniform(-0.5, 0.5, len(low)))
    dense = np.zeros((n, n))
    dense[low, high] = dense[high, low] = values
    found = Analysis(high, low, n)
    factored = found.factor(values)
    np.testing.assert_allclose(factored.log_det, np.linalg.slogdet(dense)[1], rtol=1e-12)
    np.testing.assert_allclose(factored.inverse_entries(), np.linalg.inv(dense)[high, low], atol=1e-12)
    asked = []
    monkeypatch.setattr(order, "_is_dense", lambda *given: asked.append(given))
    assert found.flops <= 1.1 * Analysis(high, low, n).flops
    # 100 rows of 70 unknowns leave too many that no effect comes before.
    assert len(asked) == ((users, rows) != (30, 100))


def test_nested_dissection():
    """Of a triangulated square, next to which all unknowns have a common one, by the package that finds such orders."""
    pytest.importorskip("pymetis", reason="comes with pip install 'pymc-ep[maps]'")
    side = 40
    n, node = side**2 + 1, np.arange(side**2).reshape(side, side)
    edges = [(node[1:], node[:-1]), (node[:, 1:], node[:, :-1]), (node[1:, 1:], node[:-1, :-1])]
    rows = np.concatenate([np.arange(n), *(ends.ravel() for ends, _ in edges), np.full(n - 1, n - 1)])
    columns = np.concatenate([np.arange(n), *(starts.ravel() for _, starts in edges), np.arange(n - 1)])
    pattern = factor._symmetric_pattern(rows, columns, n)
    dissected = order.dissection_order(pattern)
    assert dissected[-1] == n - 1 and np.array_equal(np.sort(dissected), np.arange(n))
    inverse = np.append(np.argsort(dissected[:-1]), n - 1)
    searched, by_parts, wrong = (
        factor._eliminated(pattern, places).operations
        for places in (order.elimination_order(pattern), dissected, inverse)
    )
    assert by_parts < 1.2 * searched and by_parts < 0.2 * wrong
