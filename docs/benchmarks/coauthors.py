"""Co-authors of NIPS volumes 0 to 12: held-out co-authorships by symmetric paired symbols and by a softmax.

    python -m docs.benchmarks.coauthors

Needs the folder ``nips0-12`` under ``PYMC_EP_DATA``; about two minutes on one core. Writes docs/benchmarks/coauthors.md
and .png.
"""

import os
import time
import warnings
from collections import Counter
from collections.abc import Callable, Iterator
from itertools import combinations
from pathlib import Path
from typing import Any, NamedTuple

import matplotlib.pyplot as plt
import numpy as np
import pymc as pm
import scipy.optimize
from scipy import sparse
from scipy.special import xlogy

import pymc_ep as pmep
from docs.benchmarks._common import PAGES, header, markdown_table, mean_se, write_page

NAME = "docs/benchmarks/coauthors.py"
SEEDS = range(1, 6)
"""Splits; split 0 chose the ratio of 4 and the priors beside it."""
WIDTH = 5
SHARE = 0.1
"""Share of the distinct co-authorships that is held out."""
BINS = (1, 2, 4, 10, np.inf)
"""Edges of the bins of authors by their number of learned co-authorships."""
STEPS = 150
"""L-BFGS iterations of the softmax, after which the held-out log probability changes by hundredths of a nat."""


class Split(NamedTuple):
    """Learned counts, (N, N), symmetric, and held-out pairs, (n, 2), in both orders."""

    learned: sparse.csr_array
    held_out: np.ndarray


class Found(NamedTuple):
    """Log p(j | i) of all pairs of authors, (N, N), -inf on the diagonal, and seconds."""

    log_p: np.ndarray
    seconds: float


def papers() -> tuple[int, np.ndarray, np.ndarray]:
    """Return the number of authors with a co-author, distinct pairs of these, (n, 2), and their numbers of papers."""
    path = Path(os.environ["PYMC_EP_DATA"]) / "nips0-12" / "nips.authors"
    found: Counter[tuple[int, int]] = Counter()
    for line in path.read_text().splitlines():
        found.update(combinations(sorted(set(map(int, line.split()))), 2))
    authors, pairs = np.unique(np.array(list(found)), return_inverse=True)
    return len(authors), pairs.reshape(-1, 2), np.array(list(found.values()))


def split_of(n: int, pairs: np.ndarray, counts: np.ndarray, seed: int) -> Split:
    """Hold out a share of the distinct pairs, with all of their papers."""
    order = np.random.default_rng(seed).permutation(len(pairs))
    held_out, kept = np.split(order, [round(SHARE * len(pairs))])
    once = sparse.coo_array((counts[kept], pairs[kept].T), shape=(n, n))
    return Split(sparse.csr_array(once + once.T), np.concatenate([pairs[held_out], pairs[held_out, ::-1]]))


def popularity(split: Split) -> Found:
    """Return probabilities proportional to numbers of papers, plus one."""
    n = split.learned.shape[0]
    return Found(normalised(np.tile(np.log(split.learned.sum(axis=0) + 1.0), (n, 1))), 0.0)


def paired(ratio: float, sd: float, bias: float | None = None, **options: Any) -> Callable[[Split], Found]:
    """Return a fit of `PairedSymbols`, without biases or with those of a normal of this mean."""

    def fit(split: Split) -> Found:
        n = split.learned.shape[0]
        with pm.Model(coords={"author": np.arange(n), "factor": range(WIDTH)}) as model:
            U = pm.Normal("U", 0, sd, dims=("author", "factor"))
            b = 0 if bias is None else pm.Normal("b", bias, 1, dims="author")
            pmep.PairedSymbols("papers", U, U, b, b, censored_ratio=ratio, observed=split.learned)
        began = time.perf_counter()
        with warnings.catch_warnings():
            warnings.simplefilter("ignore", pmep.ConvergenceWarning)
            idata = pmep.fit(model=model, draws=0, progressbar=False, random_seed=1, max_iter=300, **options)
        seconds = time.perf_counter() - began
        every = pmep.recommend(idata, model, author=np.arange(n), n=n - 1, exclude_observed=False)
        log_p = np.full((n, n), -np.inf)
        log_p[np.arange(n)[:, None], every["U"].to_numpy()] = np.log(every["probability"].to_numpy())
        return Found(log_p, seconds)

    return fit


def softmax(split: Split) -> Found:
    """Return p(j | i) proportional to exp(u_i . u_j + b_j) at the mode, with standard normal priors."""
    began, n = time.perf_counter(), split.learned.shape[0]
    counts = split.learned.astype("float32")
    papers = counts.sum(axis=1)

    def unpacked(x: np.ndarray) -> tuple[np.ndarray, np.ndarray]:
        return x[: n * WIDTH].reshape(n, WIDTH).astype("float32"), x[n * WIDTH :].astype("float32")

    def objective(x: np.ndarray) -> tuple[float, np.ndarray]:
        U, b = unpacked(x)
        z = U @ U.T + b
        np.fill_diagonal(z, -np.inf)
        seen = float(counts.multiply(sparse.csr_array((z[counts.nonzero()], counts.nonzero()), (n, n))).sum())
        largest = z.max(axis=1, keepdims=True)
        np.exp(z - largest, out=z)
        total = z.sum(axis=1)
        value = seen - float(papers @ (np.log(total) + largest[:, 0]).astype(float)) - 0.5 * float(x @ x)
        # Gradient in z: counts without the share of all papers of an author.
        z *= -(papers / total)[:, None]
        by_factor = z @ U + z.T @ U + counts @ U + counts.T @ U
        gradient = np.concatenate([by_factor.ravel(), z.sum(axis=0) + counts.sum(axis=0)]).astype(float)
        return -value, x - gradient

    start = np.append(0.1 * np.random.default_rng(0).normal(size=n * WIDTH), np.zeros(n))
    found = scipy.optimize.minimize(objective, start, jac=True, method="L-BFGS-B", options={"maxiter": STEPS})
    U, b = unpacked(found.x)
    return Found(normalised((U @ U.T + b).astype(float)), time.perf_counter() - began)


def normalised(scores: np.ndarray) -> np.ndarray:
    """Return log probabilities of the others, (N, N)."""
    np.fill_diagonal(scores, -np.inf)
    scores = scores - scores.max(axis=1, keepdims=True)
    return scores - np.log(np.exp(scores).sum(axis=1, keepdims=True))


FITS: dict[str, Callable[[Split], Found]] = {
    "numbers of papers": popularity,
    "ratio 1": paired(1.0, 1.0),
    "ratio 1, points": paired(1.0, 1.0, estimate="U"),
    "ratio 4, biases": paired(4.0, 2.0, -1.0),
    "ratio 4, biases, points": paired(4.0, 2.0, -1.0, estimate="U"),
    "softmax, mode": softmax,
}


def scored(split: Split, found: Found) -> tuple[float, float, np.ndarray]:
    """Return the mean log probability and rank of held-out pairs, and entropies by bins of authors."""
    own, others = split.held_out.T
    log_p = found.log_p[own, others]
    unseen = np.where(split.learned.toarray() > 0, -np.inf, found.log_p)[own]
    above, equal = (unseen > log_p[:, None]).sum(axis=1), (unseen == log_p[:, None]).sum(axis=1) - 1
    rank = 1.0 - (above + 0.5 * equal) / ((unseen > -np.inf).sum(axis=1) - 1)
    p = np.exp(found.log_p)
    place = np.digitize(np.diff(split.learned.indptr), BINS) - 1
    entropy = -xlogy(p, p).sum(axis=1)
    return float(log_p.mean()), float(rank.mean()), np.array([entropy[place == k].mean() for k in range(len(BINS) - 1)])


def measured(n: int, pairs: np.ndarray, counts: np.ndarray) -> Iterator[tuple[str, np.ndarray, np.ndarray]]:
    """Yield each fit's name, figures by split, (splits, 3), and entropies, (splits, bins)."""
    splits = [split_of(n, pairs, counts, seed) for seed in SEEDS]
    for name, fit in FITS.items():
        figures, entropies = [], []
        for split in splits:
            found = fit(split)
            log_p, rank, entropy = scored(split, found)
            figures.append([log_p, rank, found.seconds])
            entropies.append(entropy)
        yield name, np.array(figures), np.array(entropies)


def draw(entropies: dict[str, np.ndarray], labels: list[str], n: int) -> None:
    """Draw the entropies of predictions by numbers of co-authors."""
    figure, axes = plt.subplots(figsize=(6.4, 3.6), layout="constrained")
    for name, values in entropies.items():
        axes.plot(labels, values, marker="o", label=name)
    axes.axhline(np.log(n - 1), color="0.7", linestyle=":", label="all others alike")
    axes.set(xlabel="learned co-authors", ylabel="entropy of p(j | i), nats")
    axes.legend(fontsize=8)
    figure.savefig(PAGES / "coauthors.png", dpi=100)


def main() -> None:
    """Fit, draw and write the page."""
    n, pairs, counts = papers()
    scores, entropies = [], {}
    labels = ["1", "2 to 3", "4 to 9", "10 or more"]
    for name, figures, spread in measured(n, pairs, counts):
        mean, sd = figures.mean(axis=0), figures.std(axis=0, ddof=1)
        scores.append([name, mean_se(mean[0], sd[0], 3), mean_se(mean[1], sd[1], 3), f"{mean[2]:.1f}"])
        entropies[name] = spread.mean(axis=0)
    draw(entropies, labels, n)
    what = (
        f"{n} authors with a co-author, {len(pairs)} distinct co-authorships in {counts.sum()} pairs, at most "
        f"{counts.max()} papers of a pair. {SHARE:.0%} of the co-authorships are held out, in {len(SEEDS)} splits; "
        f"means over both orders of a pair, and standard deviations over splits in parentheses. log p(j | i) is among "
        f"all other authors, the rank among those without a learned paper with i: 1 is above all, 1/2 is chance. "
        f"{WIDTH} factors. Paired symbols at a ratio of 1 have standard normal factors and no biases; at 4, factors of "
        f"standard deviation 2 and biases of mean -1, which another split chose. Points are those of the factors. The "
        f"softmax is p(j | i) proportional to exp(u_i . u_j + b_j), with standard normal priors."
    )
    spreads = [[name, *(f"{value:.2f}" for value in values)] for name, values in entropies.items()]
    bound = f"Entropies of p(j | i) in nats, by the number of learned co-authors of i; {np.log(n - 1):.2f} at most."
    write_page(
        "coauthors",
        [
            header("Co-authors", NAME),
            f"{what}\n",
            markdown_table(["Fit", "log p", "Rank", "Seconds"], scores),
            f"{bound}\n",
            markdown_table(["Fit", *labels], spreads),
        ],
    )


if __name__ == "__main__":
    main()
