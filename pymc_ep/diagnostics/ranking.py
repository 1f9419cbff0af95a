"""How good rankings are: hit rate, precision, recall, discounted gain and log score of held-out pairs."""

import numpy as np
import pandas as pd
import xarray as xr

from pymc_ep.engines.options import check_whole

__all__ = ["rank_metrics"]


def rank_metrics(ranks: xr.Dataset, k: int = 20) -> pd.DataFrame:
    """Return metrics of the first `k` places of rankings, by user, as defined by LensKit and implicit.

    Parameters
    ----------
    ranks : xarray.Dataset
        Dataset returned by `pymc_ep.rank_items` for held-out pairs.
    k : int
        Length of a list.

    Returns
    -------
    pandas.DataFrame
        A row for each user, or other row that was ranked for. The metrics of a model are means over these rows,
        ``rank_metrics(ranks).mean()``. A user has m held-out items at positions r, counted from 1; the list is the
        first k positions. Columns are

        ``hit``
            1 if a held-out item is in the list, else 0; its mean is the hit rate, HR.
        ``precision``
            Number of held-out items in the list, over k. (implicit divides by the smaller of k and m.)
        ``recall``
            Number of held-out items in the list, over m.
        ``ndcg``
            Sum of 1 / log2(1 + r) over held-out items in the list, over the same sum for positions 1 to min(k, m).
        ``recip_rank``
            1 / r of the first held-out item, 0 where no held-out item is in the list.
        ``log_score``
            Mean log probability of a held-out item among items not observed, in nats; where items were ranked
            by probabilities that sum to one.

        Items of equal scores have one position, the mean of the positions that they take.

    Raises
    ------
    ValueError
        For a dataset without positions of pairs, and a length below one.
    """
    check_whole("k", k)
    if "position" not in ranks or "ranked_for" not in ranks.attrs:
        raise ValueError("ranks= has no positions of pairs; give what rank_items returns for them, as user= and item=.")
    position = ranks["position"].to_numpy()
    inside = position <= k
    user = pd.Index(ranks[ranks.attrs["ranked_for"]].to_numpy(), name=ranks.attrs["ranked_for"])
    pairs = pd.DataFrame(
        {
            "inside": inside,
            "gain": np.where(inside, 1.0 / np.log2(1.0 + position), 0.0),
            "reciprocal": np.where(inside, 1.0 / position, 0.0),
        },
        index=user,
    )
    by_user = pairs.groupby(level=0)
    hits, size = by_user["inside"].sum(), by_user.size()
    # best[j - 1] = sum_{r = 1}^j 1 / log2(1 + r).
    best = np.cumsum(1.0 / np.log2(2.0 + np.arange(k)))
    out = pd.DataFrame(
        {
            "hit": (hits > 0).astype(float),
            "precision": hits / k,
            "recall": hits / size,
            "ndcg": by_user["gain"].sum() / best[np.minimum(size, k) - 1],
            "recip_rank": by_user["reciprocal"].max(),
        }
    )
    if "log_probability" in ranks:
        out["log_score"] = pd.Series(ranks["log_probability"].to_numpy(), index=user).groupby(level=0).mean()
    return out
