"""How every benchmark keeps and prints its rows: `benchmarks/results/NAME.json`, one table on standard output.

A row has `what` and, as far as they apply, `ours`, `peer`, `peer_name`, `ratio`, `asked`, `holds`, and whatever else
the benchmark measured. A row of the same `what` is replaced, the others stay.

    python benchmarks/results.py training            the rows as a table in Markdown, for RESULTS.md
"""

from __future__ import annotations

import argparse
import json
import os
import platform
import subprocess
from importlib.metadata import version
from pathlib import Path
from typing import Any

from rich.console import Console
from rich.table import Table

FOLDER = Path(__file__).with_name("results")
COLUMNS = ("what", "before", "ours", "peer", "peer_name", "ratio", "asked", "holds")


class Results:
    """The rows of one benchmark, written through to its file."""

    def __init__(self, name: str, *, quick: bool = False) -> None:
        self.path = FOLDER / f"{name}{'-quick' if quick else ''}.json"
        self.quick = quick

    @property
    def rows(self) -> dict[str, dict[str, Any]]:
        """The rows of the file by `what`; read each time, since benchmarks may run side by side."""
        kept = json.loads(self.path.read_text())["rows"] if self.path.exists() else []
        return {row["what"]: row for row in kept}

    def add(self, row: dict[str, Any]) -> None:
        """Keeps a row, with the commit it was measured on, and writes the file."""
        rows = self.rows | {row["what"]: row | {"commit": commit()}}
        self.path.parent.mkdir(exist_ok=True)
        content = {
            "machine": machine(),
            "commit": commit(),
            "quick": self.quick,
            "rows": list(rows.values()),
        }
        self.path.write_text(json.dumps(content, indent=1, ensure_ascii=False) + "\n")

    def print(self) -> None:
        """The table of all rows."""
        table = Table(title=f"{self.path.stem}{' (quick: a small part only)' if self.quick else ''}")
        used = [name for name in COLUMNS if any(name in row for row in self.rows.values())]
        for name in used:
            table.add_column(name)
        for row in self.rows.values():
            table.add_row(*[_cell(row.get(name)) for name in used])
        Console(width=160).print(table)

    def markdown(self) -> str:
        """The table of all rows for RESULTS.md, and the shares of time of those that have them."""
        rows = list(self.rows.values())
        used = [name for name in COLUMNS if any(name in row for row in rows)]
        text = _markdown(used, [[_cell(row.get(name)) for name in used] for row in rows])
        profiled = [row for row in rows if "shares" in row]
        if profiled:
            parts = list(dict.fromkeys(part for row in profiled for part in row["shares"]))
            shares = [
                [row["what"], *(f"{row['shares'].get(part, 0):.0%}" for part in parts)] for row in profiled
            ]
            text += "\n\n" + _markdown(["what", *parts], shares)
        return text


def commit() -> str:
    """The commit that is measured, with a + where the tree has changes that are not in it."""
    described = subprocess.run(
        ["git", "describe", "--always", "--dirty=+", "--abbrev=10"],
        cwd=FOLDER.parent,
        capture_output=True,
        text=True,
        check=False,
    )
    return described.stdout.strip() or "unknown"


def machine() -> dict[str, Any]:
    """What the figures were measured on."""
    return {
        "processor": platform.processor() or platform.machine(),
        "cores": os.cpu_count(),
        "python": platform.python_version(),
        "torch": version("torch"),
        "numpy": version("numpy"),
    }


def _markdown(titles: list[str], rows: list[list[str]]) -> str:
    lines = [titles, ["---"] * len(titles), *rows]
    return "\n".join(f"| {' | '.join(line)} |" for line in lines)


def _cell(value: Any) -> str:
    if isinstance(value, bool):
        return "yes" if value else "no"
    if isinstance(value, float):
        return f"{value:.4g}"
    return "" if value is None else str(value)


if __name__ == "__main__":
    parser = argparse.ArgumentParser(description="The rows of a benchmark as a table in Markdown.")
    parser.add_argument("name", help="of a file in benchmarks/results, without .json")
    print(Results(parser.parse_args().name).markdown())
