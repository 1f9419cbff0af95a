# %% [markdown]
# # Who listens to what: counts of plays on Last.fm
#
# 1,892 users of Last.fm and how often they listened to the artists they like best (HetRec 2011). Counts are of pairs
# that met: zeros are not in the data. A low-rank model with biases and overdispersion predicts new pairs, recommends
# artists, and finds the taste of a new user without another fit. The data come from
# [GroupLens](https://grouplens.org/datasets/hetrec-2011/), before this is run:
#
# ```bash
# curl -O https://files.grouplens.org/datasets/hetrec2011/hetrec2011-lastfm-2k.zip
# unzip -d hetrec2011-lastfm-2k hetrec2011-lastfm-2k.zip
# export PYMC_EP_DATA=$PWD
# ```

# %%
import matplotlib.pyplot as plt
import numpy as np
import pymc as pm

import pymc_ep as pmep

plays = pmep.datasets.load_lastfm()
# A few hundred users, and artists that some of them share, so that this takes a minute at most.
plays = plays[plays["user"] < 400]
plays = plays[plays.groupby("artist")["user"].transform("size") >= 10]
artists, row = np.unique(plays["name"], return_inverse=True)
users, col = np.unique(plays["user"], return_inverse=True)
# The square root of a count: overdispersion beyond that is learned.
count = np.floor(np.sqrt(plays["plays"].to_numpy()) + 0.5).astype(int)
train = np.random.default_rng(0).random(len(count)) < 0.75
print(f"{len(count)} pairs of {len(artists)} artists and {len(users)} users, {train.sum()} to learn from")

# %% [markdown]
# All scales, the dispersion and the level are learned from the bound on the evidence.

# %%
with pm.Model(coords={"artist": artists, "user": users, "factor": range(3)}) as model:
    V = pm.Normal("V", 0, pm.HalfNormal("s", 1), dims=("artist", "factor"))
    U = pm.Normal("U", 0, 1, dims=("user", "factor"))
    fame = pm.Normal("fame", 0, pm.HalfNormal("s_fame", 1), dims="artist")
    zeal = pm.Normal("zeal", 0, pm.HalfNormal("s_zeal", 1), dims="user")
    level = pm.Normal("level", 0, 5)
    pmep.BilinearPoisson(
        "plays",
        V,
        U,
        rows=row[train],
        cols=col[train],
        offset=fame[row[train]] + zeal[col[train]] + level,
        alpha=pm.HalfNormal("alpha", 10),
        truncated=True,
        observed=count[train],
    )
    print(pmep.explain())
    idata = pmep.fit(method="vg", draws=100, random_seed=1)

fit = idata["fit"]
print(fit.attrs["status"])
for name in ("s", "s_fame", "s_zeal", "alpha", "level"):
    print(f"{name:7} {float(fit[f'hyper_mode_{name}']):.3f}")

# %% [markdown]
# ## Pairs that were held out

# %%
held_out = {"rows": row[~train], "cols": col[~train], "observed": count[~train]}
score = pmep.log_predictive(idata, model, {"plays": held_out})["plays"].values
frequency = np.bincount(count[train], minlength=count.max() + 1) + 0.1
alike = np.log(frequency / frequency.sum())[count[~train]]
print(f"log predictive density of a count: {score.mean():.3f}, of their frequencies alone {alike.mean():.3f}")

# %% [markdown]
# ## Recommendations, also for a user whom the fit does not know
#
# Every count is at least one, so that artists are ranked by the mean of the predictor: how much a user who meets them
# listens to them.

# %%
known = pmep.recommend(idata, model, user=users[:2], n=5, by="predictor_mean")
for user in known["user"].values:
    print(user, ", ".join(known["artist"].sel(user=user).values))
new = {"user": {"rows": [int(np.flatnonzero(artists == "Radiohead")[0])], "observed": [60]}}
newcomer = pmep.fold_in(idata, model, new)
found = pmep.recommend(idata, model, user=newcomer, n=5, by="predictor_mean")
print("new", ", ".join(found["artist"].values[0]))

# %%
figure, axes = plt.subplots(1, 2, figsize=(10, 3.4), layout="constrained")
pmep.plots.plot_relevance(idata, ax=axes[0])
axes[0].set_ylim(top=1.35 * axes[0].get_ylim()[1])  # room for the legend
famous = (fame := idata["posterior_mean"]["fame"]).sortby(fame)[-12:]
sd = idata["posterior_sd"]["fame"].sel(artist=famous["artist"])
axes[1].errorbar(famous, range(12), xerr=1.645 * sd, fmt="o")
axes[1].set_yticks(range(12), famous["artist"].values)
axes[1].set(xlabel="bias, with 90% intervals", title="listened to the most by whom they meet")
figure.savefig("lastfm_counts.png", dpi=110)
print("saved lastfm_counts.png")
