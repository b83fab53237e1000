"""What training and scoring reach of the machine, and of their peers: `make bench-training`.

    python benchmarks/training.py [--quick] [--only splade]

Exact search against the rate of one large matrix product; steps of training against sentence-transformers and, for
SparseEmbed, neural-cherche (`make bench-peers`): the same rows, lengths, batch, dropout, optimizer and form of loss,
each system in processes of its own, ours and the peer's in turn. `training_cases.py` says what is compared with what.
A row is written as soon as it is measured. To have a table for RESULTS.md: `python benchmarks/results.py training`.
"""

import argparse

import exact_rate
import training_cases
from results import Results


def main() -> None:
    parser = argparse.ArgumentParser(description="What training and scoring reach of the machine.")
    parser.add_argument("--quick", action="store_true", help="one short step of each instead of medians")
    parser.add_argument("--only", default="", help="rows whose name holds this")
    arguments = parser.parse_args()
    quick = arguments.quick
    results = Results("training", quick=quick)
    if arguments.only in "exact search":
        for row in exact_rate.rows(repeats=3 if quick else 9):
            results.add(row)
    for row in training_cases.rows(quick=quick, only=arguments.only):
        results.add(row)
    results.print()


if __name__ == "__main__":
    main()
