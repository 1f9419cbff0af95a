# %% [markdown]
# # What sushi people like: preferences from comparisons
#
# 5,000 people, 100 kinds of sushi (Kamishima 2003). Of each person ten comparisons of two kinds are known. The fit
# learns what people share, ranks all kinds for each person with probabilities, and finds what to ask next.
# The data come from [Toshihiro Kamishima](https://www.kamishima.net/sushi/), before this is run:
#
# ```bash
# curl -O https://www.kamishima.net/asset/sushi3-2016.zip && unzip sushi3-2016.zip && mv sushi3-2016 sushi3
# export PYMC_EP_DATA=$PWD
# ```

# %%
import matplotlib.pyplot as plt
import numpy as np
import pandas as pd
import pymc as pm

import pymc_ep as pmep

rankings, features = pmep.datasets.load_sushi("b")
rankings = rankings.iloc[:2000]  # so that this takes half a minute
pairs = pmep.datasets.pairs_from_rankings(rankings, n=11, seed=1)
last = pairs.groupby("user").cumcount() == 10
train, held_out = pairs[~last], pairs[last]

# %% [markdown]
# Features are standardised; labels of people and kinds are those of the table.

# %%
x = ((features - features.mean()) / features.std()).to_numpy()
coords = {"person": rankings.index, "kind": features.index, "factor": range(4)}

with pm.Model(coords=coords) as model:
    V = pm.Normal("V", 0, 0.5, dims=("kind", "factor"))
    b = pm.Normal("b", 0, 2, dims="kind")
    sigma = pm.HalfNormal("sigma", 2)
    kernel = pm.gp.cov.ExpQuad(x.shape[1], ls=4.0)
    f = pmep.PreferenceUtility("f", V=V, b=b, kernel=kernel, X=x, sigma=sigma, jitter=0.1, dims=("person", "kind"))
    pmep.PairwiseProbit("prefers", f, users=train["user"], winners=train["winner"], losers=train["loser"])
    print(pmep.explain())
    idata = pmep.fit(draws=0)

print(idata["fit"].attrs["status"])

# %% [markdown]
# ## Comparisons that were held out
#
# One of each person. A coin has one bit; the paper's best figure for 5,000 people is 0.690.

# %%
new = held_out["user"], held_out["winner"], held_out["loser"]
log_p = pmep.log_predictive(idata, model, {"prefers": new})["prefers"].values
print(f"{-log_p.mean() / np.log(2):.3f} bits, {np.mean(log_p > np.log(0.5)):.1%} of the winners called")

# %% [markdown]
# ## One person's ranking, and what to ask next

# %%
ranks = pmep.rank_items(idata, model, person=[7])
best = ranks["probability_best"].squeeze("person").to_series().nlargest(5)
print(best.round(3))
ask = pmep.next_pairs(idata, model, person=7, n=3)
for i, j, bits in zip(ask["first"].values, ask["second"].values, ask["information"].values):
    print(f"{i} or {j}? {bits:.2f} bits")

# %% [markdown]
# ## Which kinds are alike, what one person likes, and whether the probabilities are right

# %%
rng = np.random.default_rng(0)
flipped = rng.random(len(log_p)) < 0.5
p = np.where(flipped, 1 - np.exp(log_p), np.exp(log_p))
bins = np.digitize(p, np.linspace(0, 1, 11)[1:-1])
said = [p[bins == k].mean() for k in range(10)]
came = [(~flipped)[bins == k].mean() for k in range(10)]
fig, panels = plt.subplot_mosaic("mp;mc", figsize=(11, 7.4), width_ratios=[1.5, 1], layout="constrained")
means = {"heaviness": "less oily", "price": "dearer", "frequency_eaten": "eaten often", "major_group": "no seafood"}
pmep.plots.plot_item_map(idata, "V", features=features[list(means)].rename(columns=means), n_labels=0, ax=panels["m"])
panels["m"].set_title("Kinds that the same people like are close")
english = [
    "shrimp",
    "sea eel",
    "tuna",
    "squid",
    "sea urchin",
    "salmon roe",
    "egg",
    "fatty tuna",
    "tuna roll",
    "cucumber roll",
]
names = pd.Series(english, index=pmep.datasets.load_sushi("a").features.index)
best = idata["posterior_mean"]["f"].sel(person=7).to_series()[names.index].sort_values(ascending=False).index
pmep.plots.plot_forest(idata, "f", coords={"person": 7, "kind": list(best)}, ax=panels["p"])
panels["p"].set_yticks(range(10), names[best])
panels["p"].set(xlabel="utility for person 7, intervals of 50% and 90%", title="What one person likes, of ten kinds")
panels["p"].get_legend().remove()
panels["c"].plot([0, 1], [0, 1], color="0.7")
panels["c"].plot(said, came, "o-")
panels["c"].set(xlabel="probability that was said", ylabel="share that came true", title="Held-out comparisons")
fig.savefig("sushi.png", dpi=110)
