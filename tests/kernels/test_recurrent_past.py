"""What events have of their users' past: shares in memories, and known items."""

import numpy as np
import pytest

from pymc_ep.models.sequences.kernel.memory import event_log_shares, last_log_shares, recalled
from pymc_ep.models.sequences.kernel.past import event_past, known_items


def test_recalled_events_have_the_shares_of_their_memory():
    """The quantiles of a memory are spread evenly: each event back has as many as its share."""
    n = 100_000
    uniform = (np.arange(n) + 0.5) / n
    for half_life in (0.7, 4.0, np.inf):
        ages = recalled(uniform, np.full(n, 6), half_life)
        counted = 0.5 ** (np.arange(6) / half_life)
        np.testing.assert_allclose(np.bincount(ages, minlength=7)[1:] / n, counted / counted.sum(), atol=2e-5)


@pytest.mark.parametrize("half_life", [1e-9, 0.3, 40.0, 1e12, np.inf])
def test_memories_of_all_half_lives(half_life):
    """From the last event alone to all alike, over sequences in which the smallest weights vanish."""
    items = np.random.default_rng(0).integers(0, 3, 2000)
    found = np.exp(event_log_shares(items, np.array([0, 2000]), 3, [half_life])[:, 0])
    assert found[0] == pytest.approx(1 / 3)
    for t in (1, 2, 50, 1999):
        counted = 0.5 ** (np.arange(t)[::-1] / half_life)
        np.testing.assert_allclose(found[t], counted[items[:t] == items[t]].sum() / counted.sum(), rtol=1e-9)
    last = np.exp(last_log_shares([items[:50], items[:0]], 3, [half_life])[:, 0])
    np.testing.assert_allclose(last[0, items[50]], found[50], rtol=1e-9)
    np.testing.assert_allclose(last.sum(axis=1), 1.0)


def test_known_items_are_those_before():
    """Of users with and without events, and of some of the events in another order."""
    rng, lengths = np.random.default_rng(0), [5, 0, 1, 12]
    parts = [rng.integers(0, 6, n) for n in lengths]
    past = event_past(np.concatenate(parts), np.append(0, np.cumsum(lengths)), 6)
    before = [set(own[:t].tolist()) for own in parts for t in range(len(own))]
    for which in (np.arange(18), np.array([17, 0, 9, 3])):
        found = [set() for _ in which]
        for event, item in zip(*past.of(which).pairs(), strict=True):
            assert item not in found[event]
            found[event].add(item)
        assert found == [before[k] for k in which]
    assert past.most == max(len(set(own.tolist())) for own in parts)
    after = [np.flatnonzero(own).tolist() for own in known_items(parts, 6)]
    assert after == [sorted(set(own.tolist())) for own in parts]
