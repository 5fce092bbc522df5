"""A long soak: runs whose workers and drivers are killed at random instants, for as long as asked.

    python benchmarks/soak.py --minutes 30 [--seed 7]

Prints what was hit and stops at the first thing that does not hold, with the seed to repeat it.
"""

from __future__ import annotations

import argparse
import random
import sys
import tempfile
import time
from pathlib import Path

sys.path.insert(0, str(Path(__file__).parents[1]))

from tests.integration.failures.soak import check, hit_driver, hit_workers


def main() -> None:
    """Run until the time is over."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0] if __doc__ else None)
    parser.add_argument("--minutes", type=float, default=10.0)
    parser.add_argument("--seed", type=int, default=int(time.time()))
    arguments = parser.parse_args()
    end = time.monotonic() + 60 * arguments.minutes
    runs = hits = drivers = 0
    while time.monotonic() < end:
        seed = arguments.seed + runs
        rng = random.Random(seed)
        mode = rng.choice(["sync", "async"])
        with tempfile.TemporaryDirectory() as directory:
            storage, notes = Path(directory, "runs"), Path(directory, "notes")
            try:
                if rng.random() < 0.25:
                    result = hit_driver(storage, notes, rng, mode)
                    drivers += 1
                else:
                    result, more = hit_workers(storage, notes, rng, mode)
                    hits += more
                check(storage, notes, result)
            except BaseException:
                print(f"failed: repeat with --seed {seed}", file=sys.stderr)
                raise
        runs += 1
        print(f"\r{runs} runs, {hits} workers and {drivers} drivers killed", end="", flush=True)
    print("\neverything held")


if __name__ == "__main__":
    main()
