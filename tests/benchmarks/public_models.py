"""Models that others wrote, unchanged: what is recognised, how well it agrees with NUTS, how long it takes.

    python -m tests.benchmarks.public_models --posteriordb DIR --rdatasets DIR --cache DIR
        [--models NAME ...] [--hyper optimize integrate] [--no-nuts] [--limit 120] [--again]

Each measurement runs in a process of its own with empty compile caches, and is stored in the cache folder as soon as
it is made; a second call measures only what is missing (`--again`: all that it names). The page is written from
whatever the cache holds. The folders are checkouts of stan-dev/posteriordb and vincentarelbundock/Rdatasets; real
data of the disease map and the coal mines come from the folder in PYMC_EP_DATA.
"""

import argparse
import json
import os
from pathlib import Path
from typing import Any

from tests.benchmarks._common import run_module, write_page
from tests.benchmarks.public import FOLDERS, MODELS
from tests.benchmarks.public.report import report
from tests.benchmarks.public.summary import summarise

HYPER = ("optimize", "integrate")
FIRST = {name: model for name, model in MODELS.items() if model.source in ("posteriordb", "Bambi", "PyMC gallery")}
"""The models of this page; those of other sources are on the page "agreement with NUTS"."""


def measure(what: str, name: str, out: Path, limit: float, *options: str) -> dict[str, Any]:
    """Run the worker."""
    command = [what, name, str(out), "--limit", str(limit), *options]
    if failure := run_module("tests.benchmarks.public.worker", command, 4 * limit + 300):
        out.write_text(json.dumps({"failed": failure}))
    return json.loads(out.read_text())


def stored(cache: Path, name: str, what: str) -> dict[str, Any] | None:
    """Return a cached measurement, if there is one."""
    path = cache / f"{name}.{what}.json"
    return json.loads(path.read_text()) if path.exists() else None


def run_all(arguments: argparse.Namespace) -> None:
    """Measure what is missing."""
    cache = arguments.cache
    for name in arguments.models:
        for hyper in arguments.hyper:
            if arguments.again or stored(cache, name, hyper) is None:
                found = measure("ep", name, cache / f"{name}.{hyper}.json", arguments.limit, "--hyper", hyper)
                said = found.get("refused") or found.get("failed") or f"{found['cold']:.1f} s, {found['warm']:.3f} s"
                print(f"{name}, {hyper}: {said}", flush=True)
        # Nothing to compare nutpie with where no fit was made.
        fitted = any("moments" in (stored(cache, name, hyper) or {}) for hyper in HYPER)
        if fitted and not arguments.no_nuts and (arguments.again or stored(cache, name, "nuts") is None):
            found = measure("nuts", name, cache / f"{name}.nuts.json", arguments.limit)
            said = found.get("failed") or f"{found['seconds']:.1f} s, least ESS {found['least_ess']:.0f}"
            print(f"{name}, nutpie: {said}", flush=True)


def main() -> None:
    """Measure and write the page."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--posteriordb", help="checkout of stan-dev/posteriordb")
    parser.add_argument("--rdatasets", help="checkout of vincentarelbundock/Rdatasets")
    parser.add_argument("--cache", type=Path, required=True, help="folder of measurements")
    parser.add_argument("--models", nargs="*", choices=list(FIRST), default=list(FIRST), metavar="NAME")
    parser.add_argument("--hyper", nargs="*", choices=HYPER, default=list(HYPER))
    parser.add_argument("--no-nuts", action="store_true", help="leave nutpie out")
    parser.add_argument("--limit", type=float, default=120.0, help="seconds of nutpie's sampling for a model")
    parser.add_argument("--again", action="store_true", help="measure even what the cache holds")
    arguments = parser.parse_args()
    for which in ("posteriordb", "rdatasets"):
        if folder := getattr(arguments, which):
            os.environ[FOLDERS["posteriordb" if which == "posteriordb" else "Rdatasets"]] = folder
    arguments.cache.mkdir(parents=True, exist_ok=True)
    run_all(arguments)
    rows = [
        summarise(model, hyper, stored(arguments.cache, name, hyper), stored(arguments.cache, name, "nuts"))
        for hyper in HYPER
        for name, model in FIRST.items()
    ]
    refusals = {name: stored(arguments.cache, name, "optimize") or {} for name in FIRST}
    print(write_page("public_models", report(rows, refusals)))


if __name__ == "__main__":
    main()
