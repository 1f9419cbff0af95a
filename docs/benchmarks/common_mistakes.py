"""What mistakes of users of PyMC and Bambi are answered, collected from their forums and issues.

    python -m docs.benchmarks common_mistakes [--mistakes NAME ...]

Some are no mistakes, but feared to be, and fit. Writes a section of docs/benchmarks/first_calls.md; needs bambi. Five
minutes.
"""

import argparse
import logging
import traceback
import warnings
from collections import Counter
from typing import Any

import pymc_ep as pmep
from docs.benchmarks._common import header, markdown_table, write_page
from docs.benchmarks.mistakes import MISTAKES

__all__ = ["answer_to"]

OWN = (pmep.ClusterError, pmep.InvalidDataError, pmep.NumericalError, pmep.UnsupportedModelError)


def answer_to(name: str) -> tuple[str, str]:
    """Return what a mistake gives, and what is said.

    It gives "fits", "warned", "refused" by the package, or an error "of PyMC" or "of ArviZ" where a result or a model
    is given to these; "raw" is any other error.
    """
    with warnings.catch_warnings(record=True) as heard:
        warnings.simplefilter("always")
        try:
            MISTAKES[name].call()
        except Exception as error:
            said = f"`{type(error).__name__}`: {' '.join(str(error).split())}"
            return _whose(error), said
    said = [str(one.message) for one in heard if issubclass(one.category, pmep.ConvergenceWarning)]
    return ("warned", said[0]) if said else ("fits", "")


def _whose(error: Exception) -> str:
    """Return who refuses: the package if it raises, otherwise the library that the user has called."""
    modules = [frame.f_globals.get("__name__", "") for frame, _ in traceback.walk_tb(error.__traceback__)]
    if isinstance(error, OWN) or modules[-1].partition(".")[0] == "pymc_ep":
        return "refused"
    called = next((m for m in modules if not m.startswith("docs.benchmarks")), "").partition(".")[0]
    return {"arviz": "of ArviZ", "arviz_stats": "of ArviZ", "pymc": "of PyMC"}.get(called, "raw")


def main() -> None:
    """Make all mistakes and write the page."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--mistakes", nargs="*", choices=list(MISTAKES), default=list(MISTAKES), metavar="NAME")
    options = parser.parse_args()
    logging.disable(logging.WARNING)
    rows: list[list[str]] = []
    total: Counter[str] = Counter()
    for name in options.mistakes:
        gives, said = answer_to(name)
        total[gives] += 1
        cells: list[Any] = [name, MISTAKES[name].seen, gives, said]
        rows.append([str(cell).replace("|", "\\|") for cell in cells])
        print(*rows[-1], sep=" ; ", flush=True)
    counts = [[gives, str(total[gives])] for gives in ("fits", "warned", "refused", "of PyMC", "of ArviZ", "raw")]
    parts = [
        header("Common mistakes", __file__, "bambi"),
        markdown_table(["gives", f"of {total.total()} calls"], counts),
        markdown_table(["", "seen in", "gives", "and says"], rows),
    ]
    if options.mistakes == list(MISTAKES):
        print(write_page("common_mistakes", parts))


if __name__ == "__main__":
    main()
