"""What all tests share: no windows, and the folder with data that the package does not bring."""

import os
from pathlib import Path

import pytest

# Set before anything imports matplotlib, and inherited by the processes that some tests start.
os.environ["MPLBACKEND"] = "Agg"


@pytest.fixture(scope="session")
def data_folder() -> Path:
    """The folder that PYMC_EP_DATA names; tests that need real data beyond the bundled are skipped without it."""
    folder = os.environ.get("PYMC_EP_DATA")
    if not folder:
        pytest.skip("PYMC_EP_DATA is not set; it names the folder with the public data sets.")
    path = Path(folder)
    assert path.is_dir(), f"PYMC_EP_DATA names {folder!r}, which is no folder."
    return path
