"""Stored references of tests."""

import json
from pathlib import Path

import numpy as np

__all__ = ["nuts"]


def nuts(name: str) -> dict[str, np.ndarray]:
    """Return quantities of a model by long NUTS, as `tests.reference.make_nuts` wrote them."""
    stored = json.loads(Path(__file__).with_name("nuts.json").read_text(encoding="utf-8"))
    return {key: np.array(values) for key, values in stored[name].items()}
