"""The command line: finds the command, reads its flags, has a room do the work, and says how it ended.

Standard output holds the result alone, as text or (`--json`) as one JSON object; whatever else is said goes to standard
error. Exit status: 0 done, 1 failed, 2 wrong use, 130 interrupted. An error is one line; `--debug` shows its traceback.
"""

from sourcier.cli.entry import main, run

__all__ = ["main", "run"]
