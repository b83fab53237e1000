"""What the kinds of index keep of exact search, how fast they are, and how they grow: `make bench-indexes`.

    python benchmarks/indexes.py [--quick] [--only quality|speed|scale]

`quality` takes the models that `benchmarks/quality.py medquad-FAMILY` trained, and encodes medquad and cranfield
once (`runs/indexes`); it leaves out a family whose model is not there. A row is written when it is measured.
"""

from __future__ import annotations

import argparse

import index_quality
import index_scale
import index_speed
from results import Results

GROUPS = {"quality": index_quality.rows, "speed": index_speed.rows, "scale": index_scale.rows}


def main() -> None:
    parser = argparse.ArgumentParser(description="Indexes: what they keep, how fast they are, how they grow.")
    parser.add_argument("--quick", action="store_true", help="a small part of each")
    parser.add_argument("--only", choices=GROUPS, help="one of the groups")
    arguments = parser.parse_args()
    results = Results("indexes", quick=arguments.quick)
    for name, rows in GROUPS.items():
        if arguments.only in (None, name):
            for row in rows(quick=arguments.quick):
                results.add(row)
                print(row, flush=True)
    results.print()


if __name__ == "__main__":
    main()
