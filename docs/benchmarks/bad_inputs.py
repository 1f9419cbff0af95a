"""What wrong calls and wrong data are answered: the exception and its sentence, for each of some common mistakes.

    python -m docs.benchmarks bad_inputs

Writes a section of docs/reliability.md. Seconds.
"""

from collections.abc import Callable
from typing import Any

import numpy as np
import pymc as pm
import pytensor.tensor as pt

import pymc_ep as pmep
from docs.benchmarks._common import header, markdown_table, write_page

__all__ = ["MISTAKES", "answer"]

COUNTS = np.array([2.0, 0.0, 1.0, 3.0, 1.0])


def counts_with(value: float) -> np.ndarray:
    """Return counts of which one is replaced."""
    return np.where(np.arange(5) == 3, value, COUNTS)


def observed(write: Callable[[Any], Any], **options: Any) -> None:
    """Fit a model of five independent normal latent values."""
    with pm.Model():
        write(pm.Normal("f", 0.0, 1.0, shape=5))
        pmep.fit(**({"draws": 0, "progressbar": False} | options))


def poisson(counts: np.ndarray) -> None:
    """Fit counts that are changed as shared data."""
    with pm.Model():
        shared = pm.Data("counts", COUNTS)
        pm.Poisson("y", pt.exp(pm.Normal("f", 0.0, 1.0, shape=5)), observed=shared)
        pm.set_data({"counts": counts})
        pmep.fit(draws=0, progressbar=False)


def product_of_latents() -> None:
    """Fit a predictor that is a product of two variables."""
    with pm.Model():
        a, b = pm.Normal("a", 0.0, 1.0, shape=2), pm.Normal("b", 0.0, 1.0, shape=2)
        pm.Normal("y", a * b, 1.0, observed=np.zeros(2))
        pmep.fit(latent=["a", "b"], draws=0, progressbar=False)


def discrete() -> None:
    """Fit a model with a discrete free variable."""
    with pm.Model():
        which = pm.Bernoulli("which", 0.5)
        pm.Normal("y", pm.Normal("f", 0.0, 1.0, shape=3) + which, 1.0, observed=np.zeros(3))
        pmep.fit(draws=0, progressbar=False)


def normal(f: Any) -> Any:
    """Write three real observations."""
    return pm.Normal("y", f, 1.0, observed=np.zeros(5))


MISTAKES: dict[str, Callable[[], None]] = {
    "a negative count": lambda: poisson(counts_with(-1.0)),
    "half a count": lambda: poisson(counts_with(1.5)),
    "NaN among counts": lambda: poisson(counts_with(np.nan)),
    "infinity among reals": lambda: observed(
        lambda f: pm.Normal("y", f, 1.0, observed=pm.Data("reals", counts_with(np.inf)))
    ),
    "a binary observation of 2": lambda: observed(lambda f: pm.Bernoulli("y", logit_p=f, observed=[0, 1, 2, 0, 1])),
    "a share of 1": lambda: observed(
        lambda f: pm.Beta("y", mu=pt.sigmoid(f), nu=3.0, observed=[0.1, 0.2, 1.0, 0.4, 0.5])
    ),
    "more successes than trials": lambda: observed(lambda f: pm.Binomial("y", 3, logit_p=f, observed=[0, 1, 4, 0, 1])),
    "a negative noise": lambda: observed(
        lambda f: pm.Normal("y", f, np.array([1.0, 0.5, -1.0, 1.0, 1.0]), observed=np.zeros(5))
    ),
    "data of another length": lambda: poisson(COUNTS[:3]),
    "a product of latents": product_of_latents,
    "a discrete variable": discrete,
    "no such latent": lambda: observed(normal, latent=["g"]),
    "no such method": lambda: observed(normal, method="epp"),
    "no such option": lambda: observed(normal, dampng=0.5),
    "an option out of range": lambda: observed(normal, power=2.0),
    "negative draws": lambda: observed(normal, draws=-1),
}
"""Mistakes by name, each a call that must raise."""


def answer(mistake: Callable[[], None]) -> tuple[str, str]:
    """Return the class and the sentence of the exception that a mistake raises."""
    try:
        mistake()
    except Exception as refusal:
        return type(refusal).__name__, " ".join(str(refusal).split()).replace("|", "\\|")
    raise AssertionError("no exception")


def main() -> None:
    """Make all mistakes and write the section."""
    rows = []
    for name, mistake in MISTAKES.items():
        kind, sentence = answer(mistake)
        rows.append([name, f"`{kind}`", sentence])
        print(*rows[-1], sep=" | ", flush=True)
    table = markdown_table(["mistake", "raises", "and says"], rows)
    print(write_page("bad_inputs", [header("Bad inputs and their sentences", __file__), table]))


if __name__ == "__main__":
    main()
