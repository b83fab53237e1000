"""What training and scoring reach of the machine: `make bench-training`.

    python benchmarks/training.py [--quick]

Exact search, dense and MaxSim, against the rate of one large matrix product on the same cores.
"""

import argparse

from exact_rate import rows
from results import Results

parser = argparse.ArgumentParser(description="What training and scoring reach of the machine.")
parser.add_argument("--quick", action="store_true", help="three runs of each instead of nine")
arguments = parser.parse_args()

results = Results("training", quick=arguments.quick)
for row in rows(repeats=3 if arguments.quick else 9):
    results.add(row)
results.print()
