"""Items that users choose again, and such as nobody chooses twice."""

import numpy as np
import pymc as pm
import pytest

import pymc_ep as pmep


def fitted(model, **options):
    rest = {"users_per_batch": 4, "held_out": 0.1, "patience": 5, "random_seed": 1, "progressbar": False}
    return pmep.fit("ml", model=model, **rest, **options)


def returning(seed, n_users=80, n_places=50, length=60):
    """Each user stays at a place, goes back to one of its own three, or explores, by a coin with known chances."""
    rng, sequences = np.random.default_rng(seed), []
    for _ in range(n_users):
        chances = np.full(n_places, 0.1 / n_places)
        chances[rng.choice(n_places, 3, replace=False)] += 0.5 / 3
        items = [int(rng.choice(n_places, p=chances / chances.sum()))]
        while len(items) < length:
            items.append(items[-1] if rng.random() < 0.4 else int(rng.choice(n_places, p=chances / chances.sum())))
        sequences.append(np.array(items))
    return sequences


def test_repeats_are_learned_where_people_go_back():
    """Later events cost no more than by the coin's true chances and the shares of places so far."""
    sequences = returning(0)
    events = [(items, t) for items in sequences for t in range(50, 60)]
    later = [0.4 * (s[t] == s[t - 1]) + 0.5 * (s[:t] == s[t]).mean() + 0.1 / 50 for s, t in events]
    nats = {}
    for repeats in ((0.2, np.inf), False):  # the last place, and how often one was anywhere
        with pm.Model() as model:
            pmep.CollaborativeRNN(
                "visits", n_items=50, hidden=4, observed=[items[:50] for items in sequences], repeats=repeats
            )
        found = fitted(model, epochs=100, batch=16, learning_rate=0.03)
        lpd = pmep.log_predictive(found, model, {"visits": [items[50:] for items in sequences]})["visits"]
        nats[repeats] = -float(lpd.mean())
    assert nats[0.2, np.inf] < -np.log(later).mean() + 0.05
    assert nats[False] > nats[0.2, np.inf] + 0.5


def test_items_that_nobody_chooses_twice_are_known():
    """In orders by chance, a later event is any of the items that are left: it costs the logarithm of their number."""
    rng, n_items, n_past = np.random.default_rng(0), 30, 20
    sequences = [rng.permutation(n_items) for _ in range(100)]
    left = np.log(np.arange(n_items - n_past, 1, -1)).mean()
    nats = {}
    for repeats in (True, (), False):
        with pm.Model() as model:
            pmep.CollaborativeRNN(
                "seen", n_items=n_items, hidden=4, observed=[s[:n_past] for s in sequences], repeats=repeats
            )
        found = fitted(model, epochs=60, batch=20)
        lpd = pmep.log_predictive(found, model, {"seen": [s[n_past:-1] for s in sequences]})["seen"]
        nats[repeats] = -float(lpd.mean())
    assert left < nats[True] < left + 0.15 and left < nats[()] < left + 0.15
    assert nats[False] > left + 1.0


@pytest.mark.filterwarnings("ignore:The result of ml may be off")
def test_results_are_read_with_the_network_of_their_fit():
    def model_of(**options):
        with pm.Model() as model:
            pmep.CollaborativeRNN("seen", n_items=4, hidden=2, observed=[[0, 1, 2], [1, 3]], **options)
        return model

    others = [{}, {"repeats": ()}, {"repeats": False}, {"bias": False}, {"spread": False}, {"pooled": True}]
    found = [fitted(model_of(**options), epochs=1) for options in others]
    refused = "|".join(
        (
            r"has '\w+' weights, and the \w+ has none\. Give repeats=",
            r"holds 'seen_recurrent' of shape .* in the model it is now",
            r"leaves out 'seen_\w+'.*read a result with the model of its fit",
            r"is that of another model: it has 'seen_\w+'.*Give the model of the fit",
        )
    )
    for k, idata in enumerate(found):
        for other, options in enumerate(others):
            if other == k:
                assert pmep.next_items(idata, model_of(**options), user=0, n=1).sizes["rank"] == 1
            else:
                with pytest.raises((ValueError, pmep.UnsupportedModelError), match=refused):
                    pmep.next_items(idata, model_of(**options), user=0, n=1)


def test_known_items_are_explained():
    with pm.Model() as model:
        pmep.CollaborativeRNN("seen", n_items=4, hidden=2, observed=[[0, 1, 2], [1, 3]], repeats=())
    assert "likelier than others or less likely, by seen_known" in pmep.explain(model)
