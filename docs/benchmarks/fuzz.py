"""Models that nobody would choose: thousands of small ones, with scales over twelve decades, against references.

    python -m docs.benchmarks fuzz [--models 2400] [--processes 1]

Each part of 400 models runs in a process of its own. Writes a section of docs/reliability.md. Ten minutes.
"""

import argparse
import multiprocessing
from collections import Counter
from collections.abc import Iterable
from concurrent.futures import ProcessPoolExecutor
from functools import partial

import numpy as np

from docs.benchmarks._common import header, markdown_table, write_page
from docs.benchmarks._fuzz_likelihoods import LIKELIHOODS
from docs.benchmarks._fuzz_models import BLOCKS, Case
from docs.benchmarks._fuzz_outcomes import CLASSES, EXACT, FAULTS, FIXED, KNOWN, LIMITS, Outcome
from docs.benchmarks._fuzz_runs import drawn_outcomes

PART = 400
"""Models of a process: each likelihood, block and size keeps a compiled model."""
EXAMPLES = 5
"""Examples shown of a class."""


def counts_by(names: Iterable[str], own: Counter[tuple[str, str]]) -> str:
    """Return the table of classes in columns, for rows of likelihoods or blocks."""
    rows = []
    for name in names:
        cells = [own[name, of] for of in CLASSES]
        rows.append([name, str(sum(cells)), *(str(cell) for cell in cells)])
    return markdown_table(["", "models", *CLASSES], rows)


def examples(outcomes: dict[Case, Outcome], names: Iterable[str]) -> str:
    """Return the first cases of some classes, no two of one likelihood and block."""
    shown: dict[tuple[str, str, str], str] = {}
    for case, outcome in outcomes.items():
        if outcome.name in names:
            last = outcome.said.strip().rpartition("\n")[2]
            shown.setdefault((outcome.name, case.likelihood, case.block), f"- {last}: `{case}`\n")
    return "".join(list(shown.values())[:EXAMPLES])


def main() -> None:
    """Run all and write the section."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--models", type=int, default=2400)
    parser.add_argument("--processes", type=int, default=1)
    options = parser.parse_args()
    outcomes: dict[Case, Outcome] = {}
    context = multiprocessing.get_context("spawn")
    with ProcessPoolExecutor(options.processes, mp_context=context, max_tasks_per_child=1) as pool:
        for part in pool.map(partial(drawn_outcomes, PART), range(-(-options.models // PART))):
            outcomes |= part
            print(len(outcomes), dict(Counter(one.name for one in part.values())), flush=True)
    total = Counter(outcome.name for outcome in outcomes.values())
    judged = Counter((outcome.name, outcome.judge) for outcome in outcomes.values())
    means, sds, nats = LIMITS
    text = (
        f"{len(outcomes)} models. A fit is right where means are within {means} posterior standard deviations, "
        f"standard deviations within a factor of {np.exp(sds):.2f}, and the log evidence within {nats} nats of the "
        f"reference; where EP is exact, for Normal likelihoods and one observation, within {EXACT} each. Beyond these "
        f"come twice the reference's own error, at most {KNOWN}, and what rounding of a model's numbers does to its "
        f"evidence. Sites count as a fixed point of EP where moments of each are matched to {FIXED} standard "
        f"deviations.\n"
    )
    rows = [[name, what, str(total[name])] for name, what in CLASSES.items()]
    judges = [[name, judge, str(count)] for (name, judge), count in sorted(judged.items()) if judge]
    by_likelihood = Counter((case.likelihood, outcome.name) for case, outcome in outcomes.items())
    by_block = Counter((case.block, outcome.name) for case, outcome in outcomes.items())
    parts = [
        header("Models drawn at random", __file__, "hypothesis"),
        text,
        markdown_table(["class", "which is", "models"], rows),
        markdown_table(["class", "found by", "models"], judges),
        counts_by(LIKELIHOODS, by_likelihood),
        counts_by(BLOCKS, by_block),
    ]
    for title, names in (("Faults", FAULTS), ("Examples of EP's own error", ["EP's own error"])):
        found = examples(outcomes, names)
        parts.append(f"{title}:\n\n{found}" if found else f"{title}: none.\n")
    print(write_page("fuzz", parts))


if __name__ == "__main__":
    main()
