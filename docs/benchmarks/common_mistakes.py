"""What mistakes of users of PyMC and Bambi are answered, collected from their forums and issues.

    python -m docs.benchmarks common_mistakes [--mistakes NAME ...]

Some are no mistakes, but feared to be, and fit. Writes a section of docs/benchmarks/first_calls.md; needs bambi. Five
minutes.
"""

import argparse
import logging
from collections import Counter
from typing import Any

from docs.benchmarks._answers import answer_to_call
from docs.benchmarks._common import header, markdown_table, write_page
from docs.benchmarks.mistakes import MISTAKES

__all__ = ["answer_to"]


def answer_to(name: str) -> tuple[str, str]:
    """Return `answer_to_call` of a mistake."""
    return answer_to_call(MISTAKES[name].call)


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
