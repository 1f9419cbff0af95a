"""Rankings of the items for a user, and the comparisons of the largest expected information on a user's utilities."""

from collections.abc import Mapping, Sequence
from typing import Any

import numpy as np
import pymc as pm
import xarray as xr
from scipy.special import entr

from pymc_ep.compat import Container
from pymc_ep.engines.options import check_whole
from pymc_ep.models.preferences.predict.rebuild import UtilityPosterior, preference_posterior
from pymc_ep.numerics.memory import chunks
from pymc_ep.numerics.quadrature.gauss_hermite import standard_normal_rule
from pymc_ep.results.container import model_dims
from pymc_ep.results.row_labels import numbered_rows, row_labels
from pymc_ep.sites.compiled import CompiledSite, compile_site

__all__ = ["next_pairs", "rank_items"]

_DRAWS = 4000
"""Number of draws for the probabilities of ranks, which then have a standard error of 0.008 at most."""
_RANKS = 100
"""Number of ranks whose probabilities are kept: thousands of items have millions of probabilities for each user."""
_NODES = 24
"""Number of quadrature nodes for the expected entropy of an answer, whose error is then less than 1e-4 bits."""


def rank_items(
    idata: Container,
    model: pm.Model,
    *,
    by: str | None,
    exclude_observed: bool,
    cells: Mapping[str, Any] | None,
    **user: Any,
) -> xr.Dataset:
    """Return the distribution of the ranks of all items for users; see `pymc_ep.rank_items`."""
    if by is not None or not exclude_observed or cells is not None:
        raise ValueError("rank_items of utilities takes none of by=, exclude_observed= and cells=.")
    posterior = preference_posterior(idata, model)
    dims = model_dims(model, posterior.form.form.utilities)
    users, labels = _users(model, posterior, dims, user, "rank_items")
    ranks = _ranks(posterior, users, np.random.default_rng(0))
    items = row_labels(model, dims[-1], posterior.form.shape[-1])
    ranks = ranks.rename(item=dims[-1]).assign_coords({dims[-1]: items})
    if labels is None:
        return ranks.isel(user=0)
    return ranks.rename(user=dims[0]).assign_coords({dims[0]: labels})


def next_pairs(idata: Container, model: pm.Model, *, n: int, **user: Any) -> xr.Dataset:
    """Return the comparisons of the largest expected information on a user's utilities; see `pymc_ep.next_pairs`."""
    check_whole("n", n)
    posterior = preference_posterior(idata, model)
    dims = model_dims(model, posterior.form.form.utilities)
    users, _ = _users(model, posterior, dims, user, "next_pairs")
    if len(users) != 1:
        raise ValueError(f"next_pairs takes one user at a time, and got {len(users)}.")
    pairs = _informative(posterior, int(users[0]), n)
    labels = row_labels(model, dims[-1], posterior.form.shape[-1])
    return pairs.assign({side: ("comparison", labels[pairs[side].to_numpy()]) for side in ("first", "second")})


def _users(
    model: pm.Model, posterior: UtilityPosterior, dims: Sequence[str], rows: Mapping[str, Any], caller: str
) -> tuple[np.ndarray, np.ndarray | None]:
    """Return positions, (n,), and labels of the users in `rows`; position 0 and None for utilities of one user."""
    if len(dims) == 1:
        if rows:
            raise ValueError(f"{caller} takes no {next(iter(rows))}= here, as these are the utilities of one user.")
        return np.zeros(1, dtype=np.int64), None
    if list(rows) != [dims[0]]:
        raise ValueError(f"{caller} takes users by {dims[0]}=, and got {', '.join(rows) or 'none'}.")
    return numbered_rows(model, dims[0], rows[dims[0]], posterior.form.shape[0], f"{dims[0]}=")


def _ranks(posterior: UtilityPosterior, users: np.ndarray, rng: np.random.Generator) -> xr.Dataset:
    """Return the probability of each of the first ranks, (users, items, ranks), and the mean rank of each item."""
    n_items = posterior.form.n_items
    items, first = np.arange(n_items), np.arange(min(n_items, _RANKS))
    probability, mean = np.zeros((len(users), n_items, len(first))), np.ones((len(users), n_items))
    for size, component in posterior.portions(_DRAWS, rng):
        for k, user_posterior in enumerate(component.each(users)):
            order = np.argsort(-component.user_draws(user_posterior, size, rng), axis=1)
            # The inverse of the permutation `order`.
            ranks = np.empty_like(order)
            np.put_along_axis(ranks, order, items, axis=1)
            among = ranks < len(first)
            cells = (items * len(first) + ranks)[among]
            counts = np.bincount(cells, minlength=probability[k].size)
            probability[k] += counts.reshape(probability[k].shape) / _DRAWS
            mean[k] += ranks.sum(axis=0) / _DRAWS
    return xr.Dataset(
        {
            "rank_probability": (("user", "item", "rank"), probability),
            "mean_rank": (("user", "item"), mean),
            "probability_best": (("user", "item"), probability[:, :, 0]),
        },
        coords={"rank": 1 + first},
    )


def _informative(posterior: UtilityPosterior, user: int, n: int) -> xr.Dataset:
    """Return the `n` comparisons of the largest expected information, in bits, and P(the first item wins) of each.

    The information is the entropy of the answer, less the expected entropy of the answer if the utilities were known
    (Houlsby et al. 2011, eq. 2).
    """
    firsts, seconds = np.triu_indices(posterior.form.n_items, k=1)
    site = compile_site(posterior.form.form.comparisons.site)
    expected_entropy, probability = np.zeros((2, len(firsts)))
    for weight, component in posterior.components():
        (user_posterior,) = component.each(np.array([user]))
        mean, covariance = component.joint(user_posterior)
        variances = np.diag(covariance)
        for pairs in chunks(len(firsts), _NODES):
            i, j = firsts[pairs], seconds[pairs]
            # var(f_i - f_j) = C_ii + C_jj - 2 C_ij.
            spread = np.maximum(variances[i] + variances[j] - 2.0 * covariance[i, j], 0.0)
            entropy, chance = _answers(site, mean[i] - mean[j], spread)
            expected_entropy[pairs] += weight * entropy
            probability[pairs] += weight * chance
    # H(E[p]) - E[H(p)], where p is the probability given the utilities.
    information = np.maximum(_entropy(probability) - expected_entropy, 0.0)
    best = np.argsort(-information, kind="stable")[:n]
    return xr.Dataset(
        {
            "first": ("comparison", firsts[best]),
            "second": ("comparison", seconds[best]),
            "information": ("comparison", information[best]),
            "probability": ("comparison", probability[best]),
        },
        coords={"comparison": 1 + np.arange(len(best))},
    )


def _answers(site: CompiledSite, mean: np.ndarray, variance: np.ndarray) -> tuple[np.ndarray, np.ndarray]:
    """Return expected entropies of answers given the utilities, in bits, and P(the first item wins), (n,) each."""
    # E over d ~ N(m, v) at d = m + v^1/2 x, x the Gauss-Hermite nodes.
    nodes, weights = standard_normal_rule(_NODES)
    differences = mean[:, None] + np.sqrt(variance)[:, None] * nodes
    win_probability = np.exp(site.log_density(np.ones((len(mean), 1)), differences))
    return _entropy(win_probability) @ weights, win_probability @ weights


def _entropy(p: np.ndarray) -> np.ndarray:
    """Return the entropy of a binary answer, in bits."""
    return (entr(p) + entr(1.0 - p)) / np.log(2.0)
