"""Write nuts.json: quantities of small models in tests, by long NUTS on the same models.

Run as ``python -m tests.reference.make_nuts``; it takes some minutes.
"""

import json
from collections.abc import Callable
from pathlib import Path

import numpy as np
import pymc as pm
import xarray as xr

from pymc_ep.compat import group
from tests.models.paired_symbols.test_fit import few_pairs
from tests.models.preferences.test_nuts import chances_of, coins

PATH = Path(__file__).with_name("nuts.json")
CHAINS, DRAWS, TUNE = 4, 4000, 1000


def moments(*names: str) -> Callable[[xr.Dataset], dict[str, np.ndarray]]:
    """Return a function of draws to the means and standard deviations of variables."""

    def quantities(draws: xr.Dataset) -> dict[str, np.ndarray]:
        sample = ("chain", "draw")
        means = {name: draws[name].mean(sample).to_numpy() for name in names}
        return means | {f"{name}_sd": draws[name].std(sample).to_numpy() for name in names}

    return quantities


def of_coins(draws: xr.Dataset) -> dict[str, np.ndarray]:
    """Return moments of utilities and of all probabilities of preferring one item to another."""
    chances = chances_of(draws["f"].to_numpy().reshape(-1, *draws["f"].shape[2:]))
    return moments("f")(draws) | {"chances": chances.mean(axis=0), "chances_sd": chances.std(axis=0)}


MODELS = {
    "coins": (coins, of_coins),
    "few pairs": (few_pairs, moments("b", "c", "views_user_popularity", "views_item_popularity")),
}


def main() -> None:
    """Sample all models and write the file."""
    out = {}
    for name, (build, quantities) in MODELS.items():
        with build():
            chains = pm.sample(DRAWS, tune=TUNE, chains=CHAINS, cores=1, random_seed=1, progressbar=False)
        out[name] = {
            key: np.round(values, 6).tolist() for key, values in quantities(group(chains, "posterior")).items()
        }
    PATH.write_text(json.dumps(out, indent=1) + "\n")


if __name__ == "__main__":
    main()
