"""`python -m tests.fuzz KIND [COUNT [FIRST]]`: tries more inputs than a test run does, and prints every fault."""

import sys
import time

from .driver import KINDS, Tally, attempt, corpus_of, empty_folder, worker_for


def main(kinds: str, count: int = 1000, first: int = 0) -> None:
    """Tries the corpus and `count` seeds of each kind, and prints the counts."""
    for kind in KINDS if kinds == "all" else kinds.split(","):
        tally, start = Tally(kind), time.perf_counter()
        with worker_for(kind) as worker:
            for seed in (*corpus_of(kind), *range(first, first + count)):
                before = len(tally.faults)
                with empty_folder() as folder:
                    attempt(worker, kind, seed, folder, tally)
                for fault in tally.faults[before:]:
                    print(fault, flush=True)
        print(f"{tally.line()} in {time.perf_counter() - start:.1f} s", flush=True)


if __name__ == "__main__":
    main(sys.argv[1], *map(int, sys.argv[2:]))
