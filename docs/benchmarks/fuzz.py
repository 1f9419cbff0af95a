"""Models that nobody would choose: thousands of small ones, with scales over twelve decades, against references.

    python -m docs.benchmarks fuzz [--models 2400] [--learned 200] [--processes 1]

Each part of 200 models runs in a process of its own, and each of 25 models with a learned standard deviation. Writes a
section of docs/reliability.md. Half an hour.
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
from docs.benchmarks._fuzz_outcomes import CLASSES, EXACT, FAR_SHARE, FAULTS, FIXED, KNOWN, LIMITS, SHARE_LIMIT, Outcome
from docs.benchmarks._fuzz_runs import drawn_outcomes

PART = 200
"""Models of a process: each likelihood, block and size keeps a compiled model."""
LEARNED_PART = 25
"""The same of models with a learned standard deviation, whose references take seconds each."""
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


def all_outcomes(models: int, part: int, processes: int, learned: bool) -> dict[Case, Outcome]:
    """Return the outcomes of parts of so many models, each part with a seed of its own."""
    outcomes: dict[Case, Outcome] = {}
    context = multiprocessing.get_context("spawn")
    run = partial(drawn_outcomes, part, learned=learned)
    with ProcessPoolExecutor(processes, mp_context=context, max_tasks_per_child=1) as pool:
        for found in pool.map(run, range(-(-models // part))):
            outcomes |= found
            print(len(outcomes), dict(Counter(one.name for one in found.values())), flush=True)
    return outcomes


def tables(outcomes: dict[Case, Outcome]) -> list[str]:
    """Return the counts of classes, and by what the classes were found."""
    total = Counter(outcome.name for outcome in outcomes.values())
    judged = Counter((outcome.name, outcome.judge) for outcome in outcomes.values())
    rows = [[name, what, str(total[name])] for name, what in CLASSES.items()]
    judges = [[name, judge, str(count)] for (name, judge), count in sorted(judged.items()) if judge]
    return [
        markdown_table(["class", "which is", "models"], rows),
        markdown_table(["class", "found by", "models"], judges),
    ]


def main() -> None:
    """Run all and write the section."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--models", type=int, default=2400)
    parser.add_argument("--learned", type=int, default=200)
    parser.add_argument("--processes", type=int, default=1)
    options = parser.parse_args()
    outcomes = all_outcomes(options.models, PART, options.processes, learned=False)
    learned = all_outcomes(options.learned, LEARNED_PART, options.processes, learned=True)
    print(write_page("fuzz", section(outcomes, learned)))


def section(outcomes: dict[Case, Outcome], learned: dict[Case, Outcome]) -> list[str]:
    """Return the parts of the section."""
    means, sds, nats = LIMITS
    text = (
        f"{len(outcomes)} models at fixed hyperparameters, {sum(case.missing for case in outcomes)} of them with "
        f"missing observations. A fit is right where means are within {means} posterior standard deviations, "
        f"standard deviations within a factor of {np.exp(sds):.2f}, and the log evidence within {nats} nats of the "
        f"reference; where EP is exact, for Normal likelihoods and one observation, within {EXACT} each. Beyond these "
        f"come twice the reference's own error, at most {KNOWN}, and what rounding of a model's numbers does to its "
        f"evidence. Sites count as a fixed point of EP where moments of each are matched to {FIXED} standard "
        f"deviations.\n"
    )
    text_learned = (
        f"{len(learned)} more with one standard deviation tau learned, under a HalfCauchy prior of any scale, by fits "
        f"as a user makes them. A fit is right within the limits above, and where the shares of tau's draws below its "
        f"5, 50 and 95% quantiles are within {SHARE_LIMIT}, two Monte Carlo errors aside. Standard deviations are not "
        f"compared where the last hundredth of tau's posterior has more than {FAR_SHARE} of the variance. References "
        f"are quadrature over the logarithm of tau.\n"
    )
    by_likelihood = Counter((case.likelihood, outcome.name) for case, outcome in outcomes.items())
    by_block = Counter((case.block, outcome.name) for case, outcome in outcomes.items())
    parts = [
        header("Models drawn at random", __file__, "hypothesis"),
        text,
        *tables(outcomes),
        counts_by(LIKELIHOODS, by_likelihood),
        counts_by(BLOCKS, by_block),
    ]
    for title, names in (("Faults", FAULTS), ("Examples of EP's own error", ["EP's own error"])):
        found = examples(outcomes, names)
        parts.append(f"{title}:\n\n{found}" if found else f"{title}: none.\n")
    found = examples(learned, FAULTS)
    return [*parts, text_learned, *tables(learned), f"Faults:\n\n{found}" if found else "Faults: none.\n"]


if __name__ == "__main__":
    main()
