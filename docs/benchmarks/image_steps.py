"""Outer loops of image models: seconds of the processor, beside those of another checkout of this package.

    python -m docs.benchmarks.image_steps --before CHECKOUT

Needs scikit-image (the extra ``docs``). Writes docs/benchmarks/image_scaling.md.
"""

import argparse
import json
import time
import warnings

import numpy as np

import pymc_ep as pmep
from docs.benchmarks._common import header, markdown_table, write_page
from docs.benchmarks.image_scaling import SAMPLES, STUDENT, build

NAME = "docs/benchmarks/image_steps.py"
FITS = (
    ("denoising", "TV", 256),
    ("inpainting", "TV", 256),
    ("inpainting", STUDENT, 256),
    ("inpainting", "TV", 512),
)
LOOPS, REPEATS = 5, 2


def measured(task: str, prior: str, size: int) -> dict[str, float]:
    """Return seconds of a loop, as the difference of a fit with several and one with one, and the moments' sums."""
    model, _, _ = build(task, prior, size)

    def fitted(loops: int) -> tuple[float, dict[str, float]]:
        began = time.process_time()
        with warnings.catch_warnings():
            warnings.simplefilter("ignore", pmep.ConvergenceWarning)
            found = pmep.fit(
                "dsb",
                model=model,
                variance="perturb-and-map",
                n_samples=SAMPLES,
                draws=0,
                random_seed=1,
                progressbar=False,
                outer=loops,
                tol=1e-12,
            )
        taken = time.process_time() - began
        return taken, {what: float(np.sum(found[f"posterior_{what}"]["u"])) for what in ("mean", "sd")}

    # The first fit compiles.
    fitted(1)
    seconds, sums = fitted(1 + LOOPS)
    return {"seconds": (seconds - fitted(1)[0]) / LOOPS} | sums


def main() -> None:
    """Measure and write the page."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--before", help="the other checkout")
    parser.add_argument("--one", help=argparse.SUPPRESS)
    options = parser.parse_args()
    if options.one:
        print(json.dumps(measured(*json.loads(options.one))))
        return
    # Another checkout, which runs the lines above, may be without.
    from docs.benchmarks._checkouts import in_turn

    lines, commit = [], ""
    for fit in FITS:
        commit, before, after = in_turn(__file__, options.before, fit, REPEATS)
        least = [min(row["seconds"] for row in rows) for rows in (before, after)]
        apart = max(abs(after[0][what] / before[0][what] - 1.0) for what in ("mean", "sd"))
        task, prior, size = fit
        lines.append(
            [
                f"{task}, {prior}, {size} x {size}",
                *(f"{1e3 * s:.3g}" for s in least),
                f"{least[0] / least[1]:.2f}",
                f"{apart:.0e}",
            ]
        )
    head = ["fit", f"ms a loop, commit {commit}", "ms a loop", "ratio", "sums of moments apart, relative"]
    print(
        write_page("image_steps", [header("Loops by fused bodies", NAME, "numba"), TEXT, markdown_table(head, lines)])
    )


TEXT = f"""\
The fits above, with {SAMPLES} samples, beside an earlier commit that had no Numba bodies of products of images, of
wavelets and of the updates of conjugate gradients, and drew random numbers anew in each loop.

- Milliseconds of the processor, one thread: a fit of {1 + LOOPS} loops less one of a single loop.
- The least of {REPEATS} runs of either commit in turn, beside other work.
"""


if __name__ == "__main__":
    main()
