"""A long soak: runs to which bad things happen at random instants, for as long as asked.

Workers, drivers and all processes at once are killed; processes are stopped and continued; a file
change fails with EIO or ENOSPC; the wall clock jumps; workers print texts that are made to do harm.

    python benchmarks/soak.py --minutes 30 [--seed 7]

Prints what was hit and stops at the first thing that does not hold, with the seed to repeat it.
"""

from __future__ import annotations

import argparse
import random
import sys
import tempfile
import time
from collections import Counter
from pathlib import Path

sys.path.insert(0, str(Path(__file__).parents[1]))

from tests.integration.failures.soak import KINDS, check


def main() -> None:
    """Run until the time is over."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0] if __doc__ else None)
    parser.add_argument("--minutes", type=float, default=10.0)
    parser.add_argument("--seed", type=int, default=int(time.time()))
    arguments = parser.parse_args()
    end = time.monotonic() + 60 * arguments.minutes
    counts: Counter[str] = Counter()
    while time.monotonic() < end:
        seed = arguments.seed + counts.total()
        rng = random.Random(seed)
        mode, kind = rng.choice(["sync", "async"]), rng.choice(list(KINDS))
        with tempfile.TemporaryDirectory() as directory:
            storage, notes = Path(directory, "runs"), Path(directory, "notes")
            try:
                check(storage, notes, KINDS[kind](storage, notes, rng, mode))
            except BaseException:
                print(f"\nfailed ({kind}, {mode}): repeat with --seed {seed}", file=sys.stderr)
                raise
        counts[kind] += 1
        print(f"\r{counts.total()} runs", end="", flush=True)
    print(f"\r{counts.total()} runs, and everything held:")
    for kind, count in sorted(counts.items()):
        print(f"  {count:6,}  {kind}")


if __name__ == "__main__":
    main()
