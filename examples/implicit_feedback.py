# %% [markdown]
# # Films that people liked: implicit feedback with censored pairs
#
# 6,040 people and the films that they gave four or five stars (MovieLens 1M, 575,000 pairs). Low ratings are left out,
# as they would be in a log of views: pairs are drawn by popularity, and a preference decides whether a pair is seen.
# The fit tells popularity from preference, recommends films, and finds the taste of a new person without another fit.
# The data come from [GroupLens](https://grouplens.org/datasets/movielens/1m/), before this is run:
#
# ```bash
# curl -O https://files.grouplens.org/datasets/movielens/ml-1m.zip && unzip ml-1m.zip
# export PYMC_EP_DATA=$PWD
# ```

# %%
import matplotlib.pyplot as plt
import numpy as np
import pandas as pd
import pymc as pm

import pymc_ep as pmep

ratings = pmep.datasets.load_movielens("1m")
liked = ratings[ratings["rating"] >= 4].rename(columns={"title": "film"})
# People and films with some pairs, so that this takes half a minute.
liked = liked[liked["user"] <= 2000]
liked = liked[liked.groupby("film")["user"].transform("size") >= 10]

# %% [markdown]
# One film of each person is held out, to see how high it ranks.

# %%
held_out = liked.groupby("user").sample(1, random_state=1)
counts, coords = pmep.datasets.from_pairs(liked.drop(held_out.index), "user", "film")
held_out = held_out[held_out["user"].isin(coords["user"]) & held_out["film"].isin(coords["film"])]
print(f"{counts.sum()} pairs of {counts.shape[0]} people and {counts.shape[1]} films")

# %%
with pm.Model(coords=coords | {"factor": range(10)}) as model:
    U = pm.Normal("U", 0, 1, dims=("user", "factor"))
    V = pm.Normal("V", 0, 1, dims=("film", "factor"))
    bu = pm.Normal("bu", 0, 1, dims="user")
    bv = pm.Normal("bv", 0, 1, dims="film")
    pmep.PairedSymbols("liked", U, V, bu, bv, censored_ratio=4.0, observed=counts)
    print(pmep.explain())
    idata = pmep.fit(estimate=["V", "bv"], constant_messages=True, tol=1e-5, draws=0)

print(idata["fit"].attrs["status"])

# %% [markdown]
# ## Films that were held out
#
# Beside the ranking by popularity alone. One is above all other unseen films, one half is chance.

# %%
ranks = pmep.rank_items(idata, model, user=held_out["user"], film=held_out["film"])
films, people = pd.Index(coords["film"]), pd.Index(coords["user"])
popular = counts.sum(axis=0)
place = people.get_indexer(held_out["user"]), films.get_indexer(held_out["film"])
unseen = counts[place[0]].toarray() == 0
own = popular[place[1]][:, None]
above = ((popular > own) & unseen).sum(axis=1) + 0.5 * ((popular == own) & unseen).sum(axis=1) - 0.5
of_popularity = 1.0 - above / (unseen.sum(axis=1) - 1)
print(f"mean rank {float(ranks['rank'].mean()):.3f}, by popularity {of_popularity.mean():.3f}")
hits = pmep.rank_metrics(ranks, k=20)["hit"].mean()
print(f"in the first 20: {hits:.3f}, by popularity {(above < 20).mean():.3f}")

# %% [markdown]
# ## Recommendations, neighbours, and a new person

# %%
known = pmep.recommend(idata, model, user=coords["user"][:2], n=5)
for person in known["user"].values:
    print(person, "; ".join(known["film"].sel(user=person).values))
some = [title for title in films if title.startswith(("Alien (", "Toy Story ("))]
near = pmep.similar(idata, model, film=some, n=4)
for title in some:
    print(title, "->", "; ".join(near["neighbour"].sel(film=title).values))
newcomer = pmep.fold_in(idata, model, {"user": [[0, films.get_loc(title)] for title in some]})
print("new:", "; ".join(pmep.recommend(idata, model, user=newcomer, n=5)["film"].values[0]))

# %% [markdown]
# ## One person's list, what the fit knows of popularity, and how ranks depend on activity

# %%
person = coords["user"][1]
best = pmep.recommend(idata, model, user=[person], n=10).squeeze("user")
titles, probability = best["film"].values, best["calibrated_probability"].values
figure, panels = plt.subplot_mosaic("lp;lr", figsize=(11, 6.4), width_ratios=[1.3, 1], layout="constrained")
panels["l"].barh(titles, 100 * probability)
panels["l"].invert_yaxis()
panels["l"].set(xlabel="probability of the next film, %", title=f"What person {person} might like next")
pmep.plots.plot_popularity(idata, "liked_item_popularity", ax=panels["p"])
pmep.plots.plot_rank_by_activity(ranks, np.diff(counts.indptr)[place[0]], ax=panels["r"])
panels["p"].set_title("Popularity of films")
panels["r"].set_title("1 is above all other unseen films")
figure.savefig("implicit_feedback.png", dpi=110)
print("saved implicit_feedback.png")
