"""The same measurement by this checkout of the package and by another one, in turn."""

import json
import os
import subprocess
import sys
from pathlib import Path
from typing import Any

from docs.benchmarks._common import ROOT

__all__ = ["in_turn"]


def in_turn(script: str, other: str, arguments: Any, repeats: int) -> tuple[str, list[Any], list[Any]]:
    """Return the commit of another checkout, and the answers of a script under it and under this one.

    The script is run with ``--one ARGUMENTS``, in JSON, and prints its answer as a line of JSON. It imports `pymc_ep`
    and `docs` from the checkout.
    """
    git = ["git", "-C", other, "rev-parse", "--short", "HEAD"]
    commit = subprocess.run(git, stdout=subprocess.PIPE, text=True, check=True).stdout.strip()
    answers: list[list[Any]] = [[], []]
    for _ in range(repeats):
        for root, out in zip((Path(other), ROOT), answers):
            threads = dict.fromkeys(("OPENBLAS_NUM_THREADS", "OMP_NUM_THREADS", "NUMBA_NUM_THREADS"), "1")
            environment = os.environ | threads | {"PYTHONPATH": str(root)}
            command = [sys.executable, script, "--one", json.dumps(arguments)]
            done = subprocess.run(command, env=environment, cwd=root, stdout=subprocess.PIPE, text=True, check=True)
            out.append(json.loads(done.stdout.strip().splitlines()[-1]))
    return commit, answers[0], answers[1]
