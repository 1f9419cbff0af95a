"""A model written by others, where its data come from, and the list of all of them."""

import json
import os
import zipfile
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
import pandas as pd
import pymc as pm

__all__ = [
    "FOLDERS",
    "MODELS",
    "PublicModel",
    "codes",
    "data_table",
    "public",
    "r_table",
    "rethinking_table",
    "stan_data",
    "stan_example",
]

FOLDERS = {
    "posteriordb": "PUBLIC_POSTERIORDB",
    "Rdatasets": "PUBLIC_RDATASETS",
    "rethinking": "PUBLIC_RETHINKING",
    "Stan's examples": "PUBLIC_STAN_EXAMPLES",
    "data": "PYMC_EP_DATA",
}
"""Environment variables that name the folders of data: four public checkouts, and the project's own real data."""


@dataclass(frozen=True)
class PublicModel:
    """A model as its authors wrote it.

    Attributes
    ----------
    name : str
    source : str
        Book, documentation or collection.
    build : callable
        Returns the `pymc.Model`; priors are the source's.
    obstacle : str
        Why the model is not latent Gaussian, in a few words; empty where it is.
    simulated : bool
        Whether the source's data are replaced by simulated ones of its size and formula, or are simulated there.
    quadrature : bool
        Whether the reference is quadrature of all unknowns, two at most: NUTS is slow to see tails that fall like a
        power.
    """

    name: str
    source: str
    build: Callable[[], pm.Model]
    obstacle: str = ""
    simulated: bool = False
    quadrature: bool = False


MODELS: dict[str, PublicModel] = {}
"""All models by name, in the order of the tables."""


def public(name: str, source: str, **details: Any) -> Callable[[Callable[..., pm.Model]], Callable[..., pm.Model]]:
    """Add a function that builds a model to `MODELS`; `details` are fields of `PublicModel`."""

    def register(build: Callable[..., pm.Model]) -> Callable[..., pm.Model]:
        if name in MODELS:
            raise ValueError(f"Two models are called {name!r}.")
        MODELS[name] = PublicModel(name, source, build, **details)
        return build

    return register


def _folder(which: str) -> Path:
    if FOLDERS[which] not in os.environ:
        raise FileNotFoundError(f"The folder of {which} is unknown; set {FOLDERS[which]}.")
    return Path(os.environ[FOLDERS[which]])


def _zipped_json(path: Path) -> Any:
    with zipfile.ZipFile(path) as archive:
        return json.loads(archive.read(archive.namelist()[0]))


def stan_data(name: str) -> dict[str, Any]:
    """Return the data of a posteriordb posterior, lists as arrays."""
    stored = _zipped_json(_folder("posteriordb") / "posterior_database" / "data" / "data" / f"{name}.json.zip")
    return {k: np.array(v) if isinstance(v, list) else v for k, v in stored.items()}


def r_table(name: str) -> pd.DataFrame:
    """Return a table of Rdatasets, such as ``"lme4/sleepstudy"``."""
    return pd.read_csv(_folder("Rdatasets") / "csv" / f"{name}.csv", index_col=0)


def rethinking_table(name: str) -> pd.DataFrame:
    """Return a table of the package of Statistical Rethinking, such as ``"reedfrogs"``."""
    path = _folder("rethinking") / "data" / f"{name}.csv"
    separator = ";" if ";" in path.read_text().partition("\n")[0] else ","
    return pd.read_csv(path, sep=separator)


def stan_example(name: str) -> dict[str, Any]:
    """Return the data of one of Stan's example models, such as ``"bugs_examples/vol1/salm/salm"``, lists as arrays."""
    stored = json.loads((_folder("Stan's examples") / f"{name}.data.json").read_text())
    return {k: np.array(v) if isinstance(v, list) else v for k, v in stored.items()}


def codes(column: Any) -> tuple[np.ndarray, int]:
    """Return the levels of a factor as integers from zero, in sorted order, and how many there are."""
    found, levels = pd.factorize(column, sort=True)
    return found, len(levels)


def data_table(name: str) -> pd.DataFrame:
    """Return a table of the project's folder of real data."""
    return pd.read_csv(_folder("data") / name)
