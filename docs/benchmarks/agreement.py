"""The default fit of all public models beside long NUTS runs: errors, warnings, evaluations and times.

    python -m docs.benchmarks.agreement [--models NAME ...] [--hyper default] [--limit 240] [--again] [--foreseen]
                                        [--page-only]

Each fit runs in a process of its own with empty compile caches and a time limit, and is stored at once in
``docs/benchmarks/rows/agreement.json``; a second call runs what is missing. References are those that
``python -m docs.benchmarks.public.references`` has stored, and nutpie's times those of its ``--times``. Other
treatments of the hyperparameters (``--hyper integrate``) have rows beside the default's. The environment variables in
`docs.benchmarks.public.FOLDERS` name the data: checkouts of stan-dev/posteriordb, vincentarelbundock/Rdatasets,
rmcelreath/rethinking and stan-dev/example-models, and the project's own real data.
"""

import argparse
import json
import logging
from pathlib import Path
from typing import Any

import pymc_ep as pmep
from docs.benchmarks._common import PAGES, result_apart, write_page
from docs.benchmarks.public import MODELS
from docs.benchmarks.public.agreement_report import report
from docs.benchmarks.public.comparison import measure_fit, seconds_foreseen, verdict
from docs.benchmarks.public.references import load_references

ROWS = PAGES / "rows" / "agreement.json"


def load_rows() -> dict[str, dict[str, Any]]:
    """Return the stored rows by treatment of the hyperparameters, then by model."""
    return json.loads(ROWS.read_text()) if ROWS.exists() else {}


def store(hyper: str, name: str, row: dict[str, Any]) -> None:
    """Write a row, one line each."""
    rows = load_rows()
    rows.setdefault(hyper, {})[name] = row
    parts = []
    for key, by_model in rows.items():
        lines = [f"{json.dumps(n)}: {json.dumps(by_model[n], separators=(',', ':'))}" for n in sorted(by_model)]
        parts.append(f"{json.dumps(key)}: {{\n" + ",\n".join(lines) + "\n}")
    ROWS.write_text("{" + ",\n".join(parts) + "}\n")


def fit_apart(name: str, hyper: str, limit: float) -> dict[str, Any]:
    """Fit in a process of its own."""
    return result_apart("docs.benchmarks.agreement", ["--models", name, "--hyper", hyper], limit)


def child(name: str, hyper: str, out: Path) -> None:
    """Fit and compare here; write the row, or what stopped it."""
    logging.disable(logging.INFO)
    try:
        row = measure_fit(name, hyper, load_references().get(name, {}))
    except pmep.UnsupportedModelError as error:
        row = {"refused": str(error)}
    except Exception as error:
        first = str(error).strip().partition("\n")[0]
        row = {"failed": f"{type(error).__name__}: {first}"}
    out.write_text(json.dumps(row))


def main() -> None:
    """Fit what is missing and write the page."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--models", nargs="*", choices=list(MODELS), default=list(MODELS), metavar="NAME")
    parser.add_argument("--hyper", default="default")
    parser.add_argument("--limit", type=float, default=240.0, help="seconds of two fits and their compilation")
    parser.add_argument("--again", action="store_true", help="fit even what is stored")
    parser.add_argument("--foreseen", action="store_true", help="foresee the times of stored fits again")
    parser.add_argument("--page-only", action="store_true", help="write the page from the stored rows")
    parser.add_argument("--child", type=Path, help=argparse.SUPPRESS)
    arguments = parser.parse_args()
    if arguments.child:
        child(arguments.models[0], arguments.hyper, arguments.child)
        return
    if arguments.foreseen:
        for name, row in load_rows()[arguments.hyper].items():
            if "warm" in row:
                store(arguments.hyper, name, row | {"foreseen": seconds_foreseen(MODELS[name].build())})
    references = load_references()
    for name in [] if arguments.page_only else arguments.models:
        stored = load_rows().get(arguments.hyper, {}).get(name)
        # A row made before the reference was there is made again.
        late = stored is not None and "compared" not in stored and "scalars" in references.get(name, {})
        fitted = stored is not None and not (late and "cold" in stored)
        if fitted and not arguments.again:
            continue
        row = fit_apart(name, arguments.hyper, arguments.limit)
        store(arguments.hyper, name, row)
        said = verdict(row, references.get(name, {}))
        detail = row.get("refused") or row.get("failed") or f"{row.get('mean')}, {row['cold']} s, {row['warm']} s"
        print(f"{name}: {said}; {detail}", flush=True)
    print(write_page("agreement", report(load_rows(), references)))


if __name__ == "__main__":
    main()
