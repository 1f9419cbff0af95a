# %% [markdown]
# # Where people check in next: a recurrent network with matrices of their own
#
# 150 users of Foursquare in New York and the places where they checked in, from April 2012 to February 2013. The
# network predicts each check-in from all those before it, and is scored on each user's later ones, which it has not
# seen. The data come from [SEP-GCN](https://github.com/tanloc49/SEP-GCN), before this is run:
#
# ```bash
# git clone https://github.com/tanloc49/SEP-GCN && mv SEP-GCN/data/nyc foursquare-nyc-10core
# export PYMC_EP_DATA=$PWD
# ```

# %%
import matplotlib.pyplot as plt
import numpy as np
import pymc as pm

import pymc_ep as pmep

visits = pmep.datasets.load_checkins("foursquare-nyc")
# Some users, so that this takes ten seconds.
visits = visits[visits["user"] < 150]
train, test = (visits[visits["part"] == part] for part in ("train", "test"))
table = pmep.from_events(train, "user", "place")
users, places = table.coords["user"], table.coords["place"]
print(f"{len(train)} check-ins of {len(users)} users at {len(places)} places")

# %% [markdown]
# ## Fit
#
# The last twentieth of each user's check-ins is held out, and tells when to end.

# %%
with pm.Model(coords=table.coords) as model:
    pmep.CollaborativeRNN("visits", hidden=16, cell="gru", observed=table)
    print(pmep.explain())
    idata = pmep.fit(method="ml", epochs=40, dtype="float32", users_per_batch=16, patience=3)

print(idata["fit"].attrs["status"])

# %% [markdown]
# ## Later check-ins
#
# Beside counts of pairs of places that follow each other, smoothed as is best for these very events. Places that are
# new are left out.

# %%
position = {place: k for k, place in enumerate(places)}
test = test[test["place"].isin(position)]
later = {user: [position[place] for place in own["place"]] for user, own in test.groupby("user")}
scores = pmep.log_predictive(idata, model, {"visits": later})["visits"]

counts = np.zeros((len(places), len(places)))
for items in table.sequences:
    np.add.at(counts, (items[:-1], items[1:]), 1)
last = {user: items[-1] for user, items in zip(users, table.sequences)}
before = np.concatenate([[last[user], *items[:-1]] for user, items in later.items()])
after = np.concatenate(list(later.values()))
smoothing = [0.001, 0.003, 0.01, 0.03, 0.1]
pairs = min(
    -np.log((counts[before, after] + e) / (counts[before].sum(axis=1) + e * len(places))).mean() for e in smoothing
)
print(f"nats a check-in: {-float(scores.mean()):.2f}, counts of pairs {pairs:.2f}, chance {np.log(len(places)):.2f}")

# %% [markdown]
# ## What comes next, and how training went

# %%
someone = test["user"].value_counts().index[0]
best = pmep.next_items(idata, model, user=someone, n=8)
print(best["place"].values[0], best["probability"].values[0].round(3))

# %%
figure, axes = plt.subplots(1, 2, figsize=(9.0, 3.4), layout="constrained")
fit = idata["fit"]
epochs = 1 + np.arange(fit["objective"].size)
axes[0].plot(epochs, fit["training_nats"], label="training")
axes[0].plot(epochs, fit["objective"], label="held out")
axes[0].axhline(pairs, color="0.6", ls=":", label="counts of pairs, later events")
axes[0].set(xlabel="epoch", ylabel="nats a check-in")
axes[0].xaxis.get_major_locator().set_params(integer=True)
axes[0].legend(frameon=False)
axes[1].bar(np.arange(8), best["probability"].values[0])
axes[1].set_xticks(np.arange(8), best["place"].values[0], rotation=45)
axes[1].set(xlabel=f"place, of user {someone}", ylabel="probability of the next check-in")
figure.savefig("checkins.png", dpi=110)
print("saved checkins.png")
