"""Five scripts of ten lines from the docs, each beside its peer: lines, seconds, and a score of what was held out.

    PYTHONPATH=/path/of/peers python -m docs.benchmarks.five_scripts

Needs implicit, choix and scikit-image. Each script runs in a process of its own, twice: the first time compiles. Data
are simulated, so that a score says that a script is right and no more. Some minutes; writes
docs/benchmarks/first_calls.md.
"""

import json
import os
import subprocess
import sys

from docs.benchmarks._common import header, markdown_table, write_page

DATA = """
import numpy as np, pandas as pd
rng = np.random.default_rng(0)
"""
PAIRS = """
taste, style = rng.normal(size=(300, 3)), rng.normal(size=(200, 3))
chance = np.outer(rng.gamma(2, size=300), rng.gamma(1, size=200)) / (1 + np.exp(-3 * taste @ style.T))
drawn = rng.choice(chance.size, 12_000, p=chance.ravel() / chance.sum())
frame = pd.DataFrame({"visitor": [f"v{k:03d}" for k in drawn // 200], "shop": [f"s{k:03d}" for k in drawn % 200]})
frame = frame.drop_duplicates()
held_out = frame.groupby("visitor").sample(1, random_state=1)
frame = frame.drop(held_out.index)
held_out = held_out[held_out["visitor"].isin(frame["visitor"]) & held_out["shop"].isin(frame["shop"])]
"""
ALS = """
from implicit.als import AlternatingLeastSquares
rows, visitors = pd.factorize(frame["{user}"])
columns, shops = pd.factorize(frame["{item}"])
matrix = sparse.csr_matrix((np.ones(len(frame)), (rows, columns)))
als = AlternatingLeastSquares(factors=5, random_state=1)
als.fit(matrix, show_progress=False)
asked = visitors.get_indexer(held_out["{user}"])
found = als.recommend(asked, matrix[asked], N=10)[0]
score = (found == shops.get_indexer(held_out["{item}"])[:, None]).any(axis=1).mean()
"""
TASKS = {
    "blurred image": (
        """
from skimage import data
from scipy.ndimage import convolve
truth = data.camera()[60:260, 110:350].astype(float).reshape(20, 10, 24, 10).mean(axis=(1, 3)) / 25
taps = np.outer([0.25, 0.5, 0.25], [0.25, 0.5, 0.25])
counts = rng.poisson(convolve(truth, taps, mode="reflect"))
""",
        """
import pymc as pm
import pymc_ep as pmep
blur = pmep.operators.Convolution2D((20, 24), taps, boundary="reflect")
with pm.Model():
    b = pm.HalfNormal("b", 5)
    u = pmep.SparseField("u", operator=pmep.operators.Gradient2D((20, 24)), potential=pm.Laplace.dist(0, b))
    pmep.RectifiedPoisson("y", pmep.apply_operator(blur, u), observed=counts)
    idata = pmep.fit(method="ep", random_seed=1, progressbar=False)
score = np.abs(idata["posterior_mean"]["u"] - truth).mean()
""",
        "scikit-image, `richardson_lucy`",
        """
from skimage.restoration import richardson_lucy
padded = np.pad(counts.astype(float), 8, mode="reflect")
score = np.abs(richardson_lucy(padded, taps, num_iter=10, clip=False)[8:-8, 8:-8] - truth).mean()
""",
        "mean error of a pixel",
    ),
    "listens": (
        PAIRS.replace("visitor", "user").replace("shop", "artist").replace("frame = frame.drop_duplicates()\n", "")
        + 'frame = frame.groupby(["user", "artist"]).size().rename("plays").reset_index()\n'
        + 'both = frame.merge(held_out.drop_duplicates(), on=["user", "artist"])\n'
        + 'held_out = held_out.merge(both, how="left", indicator=True).query("_merge == \'left_only\'")\n',
        """
import pymc as pm
import pymc_ep as pmep
coords = {"user": frame["user"].unique(), "artist": frame["artist"].unique(), "factor": range(5)}
with pm.Model(coords=coords) as model:
    U = pm.Normal("U", 0, 0.5, dims=("user", "factor"))
    V = pm.Normal("V", 0, 0.5, dims=("artist", "factor"))
    b, c = pm.Normal("b", 0, 1, dims="user"), pm.Normal("c", 0, 1, dims="artist")
    plays = frame.pivot_table("plays", "user", "artist", fill_value=0).loc[coords["user"], coords["artist"]]
    pm.Poisson("plays", pm.math.exp(U @ V.T + b[:, None] + c), observed=plays.to_numpy())
    idata = pmep.fit(draws=0, progressbar=False)
ranks = pmep.rank_items(idata, model, exclude_observed=False, user=held_out.user, artist=held_out.artist)
score = pmep.rank_metrics(ranks, k=10)["hit"].mean()
""",
        "implicit, `AlternatingLeastSquares`",
        "\nfrom scipy import sparse"
        + ALS.format(user="user", item="artist")
        .replace("np.ones(len(frame))", "frame.plays.astype(float)")
        .replace("N=10", "N=10, filter_already_liked_items=False"),
        "hit rate in ten of all",
    ),
    "implicit pairs, own column names": (
        PAIRS,
        """
import pymc as pm
import pymc_ep as pmep
counts, coords = pmep.datasets.from_pairs(frame, "visitor", "shop")
with pm.Model(coords=coords | {"factor": range(5)}) as model:
    U = pm.Normal("U", 0, 1, dims=("visitor", "factor"))
    V = pm.Normal("V", 0, 1, dims=("shop", "factor"))
    pmep.PairedSymbols("visits", U, V, censored_ratio=4.0, observed=counts)
    idata = pmep.fit(draws=0, progressbar=False)
ranks = pmep.rank_items(idata, model, visitor=held_out["visitor"], shop=held_out["shop"])
score = pmep.rank_metrics(ranks, k=10)["hit"].mean()
""",
        "implicit, `AlternatingLeastSquares`",
        "\nfrom scipy import sparse" + ALS.format(user="visitor", item="shop"),
        "hit rate in ten",
    ),
    "preferences": (
        """
worth = rng.normal(0, 1.5, 30)
one = rng.integers(0, 30, 1000)
two = (one + rng.integers(1, 30, 1000)) % 30
won = rng.random(1000) < 1 / (1 + np.exp(worth[two] - worth[one]))
winners, losers = np.where(won, one, two), np.where(won, two, one)
""",
        """
import pymc as pm
import pymc_ep as pmep
with pm.Model(coords={"dish": range(30)}) as model:
    f = pmep.PreferenceUtility("f", kernel=np.eye(30), sigma=pm.HalfNormal("sigma", 2), dims="dish")
    pmep.PairwiseLogit("prefers", f, winners=winners[:700], losers=losers[:700])
    idata = pmep.fit(draws=0, progressbar=False)
log_p = pmep.log_predictive(idata, model, {"prefers": (winners[700:], losers[700:])})["prefers"]
score = -float(log_p.mean()) / np.log(2)
""",
        "choix, `ilsr_pairwise`",
        """
import choix
params = choix.ilsr_pairwise(30, list(zip(winners[:700], losers[:700])), alpha=0.01)
score = np.log2(1 + np.exp(params[losers[700:]] - params[winners[700:]])).mean()
""",
        "bits of a comparison",
    ),
    "sequences": (
        """
steps = rng.permutation(12)
events = []
for user in range(60):
    item = rng.integers(12)
    for k in range(60):
        item = steps[item] if rng.random() < 0.8 else rng.integers(12)
        events.append((f"u{user:02d}", f"i{item:02d}", k))
frame = pd.DataFrame(events, columns=["user", "item", "time"])
past, future = frame[frame["time"] < 50], frame[frame["time"] >= 50]
""",
        """
import pymc as pm
import pymc_ep as pmep
table = pmep.from_events(past, "user", "item", "time")
with pm.Model(coords=table.coords) as model:
    pmep.CollaborativeRNN("visits", hidden=16, cell="gru", observed=table)
    idata = pmep.fit(epochs=40, users_per_batch=8, progressbar=False)
later = pmep.from_events(future, "user", "item", "time")
score = -float(pmep.log_predictive(idata, model, {"visits": later})["visits"].mean())
""",
        "counts of pairs that follow each other",
        """
before = past.groupby("user")["item"].shift()
counts = pd.crosstab(before, past["item"]) + 0.1
last = frame.groupby("user")["item"].shift().loc[future.index]
p = counts.div(counts.sum(axis=1), axis=0)
score = -np.mean([np.log(p.at[a, b]) for a, b in zip(last, future["item"])])
""",
        "nats an event",
    ),
}
WORKER = """
import json, sys, time, warnings
warnings.simplefilter("ignore")
data, script = json.load(sys.stdin)
seconds = []
for _ in range(2):
    names = {}
    exec(data, names)
    began = time.process_time()
    exec(script, names)
    seconds.append(time.process_time() - began)
print(json.dumps([*seconds, float(names["score"])]))
"""


def lines_of(script: str) -> int:
    """Return the number of lines of a script, imports aside."""
    return sum(not line.startswith(("import ", "from ")) for line in script.strip().splitlines())


def measured(data: str, script: str) -> tuple[float, float, float]:
    """Return processor seconds of the first and the second run in one process, on one thread, and the score."""
    alone = dict.fromkeys(("OMP_NUM_THREADS", "OPENBLAS_NUM_THREADS", "NUMBA_NUM_THREADS"), "1")
    done = subprocess.run(
        [sys.executable, "-c", WORKER],
        input=json.dumps([DATA + data, script]),
        env=os.environ | alone,
        capture_output=True,
        text=True,
    )
    if done.returncode:
        raise RuntimeError(done.stderr)
    first, again, score = json.loads(done.stdout.splitlines()[-1])
    return first, again, score


def main() -> None:
    """Run all scripts and write the section."""
    rows = []
    for name, (data, ours, peer_name, peer, what) in TASKS.items():
        for label, script in (("pymc-ep", ours), (peer_name, peer)):
            first, again, score = measured(data, script)
            rows.append([name, label, str(lines_of(script)), f"{first:.2g}", f"{again:.2g}", f"{score:.3g} ({what})"])
            print(*rows[-1])
    text = (
        "Processor seconds on one thread, in a process of its own whose caches hold compiled kernels: of the first "
        "run, with imports, and of a second one; other work shared the machine. Data are simulated. Lines are those of "
        "the script, without imports and data.\n"
    )
    table = markdown_table(["task", "by", "lines", "first, s", "again, s", "score"], rows)
    script = "docs/benchmarks/five_scripts.py"
    write_page(
        "five_scripts", [header("Five scripts of ten lines", script, "scikit-image", "implicit", "choix"), text, table]
    )


if __name__ == "__main__":
    main()
