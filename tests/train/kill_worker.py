"""Run by `test_kills.py`: starts `sourcier train` again and again in child processes, and kills them with signal 9.

python kill_worker.py FOLDER MOMENTS SEED TRAIN_ARGUMENTS…

Importing takes most of a start, so it is done once, and each run is a fork of this process: a model is made and thrown
away first, since transformers imports as it goes. A run that is never stopped
writes FOLDER/straight and tells how long it takes. For each number of MOMENTS a run FOLDER/killedN is killed once after
a random part of that time, or, where the number is odd, while a state is being written; then it is resumed to its end.
What the last line of standard output says, as JSON: for each kill what stood in the folder just after it.
"""

from __future__ import annotations

import json
import os
import random
import shutil
import signal
import sys
import time
from pathlib import Path
from typing import Any

from sourcier.cli.entry import main


def import_all(family: str, base: str) -> None:
    import sourcier.train.trainer  # noqa: F401
    from sourcier.models.checkpoints import FAMILIES

    FAMILIES[family].from_base(base)


def start(arguments: list[str]) -> int:
    """The process of a run."""
    process = os.fork()
    if process:
        return process
    sys.stdout = open(os.devnull, "w")  # noqa: SIM115
    os._exit(main(arguments))


def finish(arguments: list[str]) -> float:
    """How long a run takes that is let be."""
    started = time.monotonic()
    status = os.waitstatus_to_exitcode(os.waitpid(start(arguments), 0)[1])
    assert status == 0, f"{arguments} ended with {status}"
    return time.monotonic() - started


def kill_once(arguments: list[str], run: Path, seconds: float, while_writing: bool) -> dict[str, Any]:
    """Kills a run at a random moment; says what it left."""
    process = start(arguments)
    begun = time.monotonic()
    if while_writing:
        wait_for_writing(run / "state", number=random.randint(1, 6))
        time.sleep(random.uniform(0, 0.02))
    else:
        time.sleep(random.uniform(0.2, 0.95) * seconds)
    os.kill(process, signal.SIGKILL)
    os.waitpid(process, 0)
    return {
        "after": round(time.monotonic() - begun, 3),
        "written": sorted(path.name for path in run.glob("state/*")),
        "writing": any(run.glob("state/.step-*")),
        "over": (run / "training.json").is_file(),
    }


def wait_for_writing(states: Path, number: int) -> None:
    """Until the state of that number is begun."""
    seen: set[str] = set()
    deadline = time.monotonic() + 60
    while time.monotonic() < deadline:
        seen |= {path.name for path in states.glob(".step-*")}
        if len(seen) >= number:
            return
        time.sleep(0.0005)


if __name__ == "__main__":
    folder, moments, seed, *given = sys.argv[1:]
    random.seed(seed)
    import_all(given[given.index("--family") + 1], given[given.index("--base") + 1])
    root = Path(folder)
    seconds = finish(["train", *given, "--output", str(root / "straight")])
    kills = []
    for number in range(int(moments)):
        run = root / f"killed{number}"
        arguments = ["train", *given, "--output", str(run)]
        while (found := kill_once(arguments, run, seconds, while_writing=number % 2 == 1))["over"]:
            shutil.rmtree(run)  # it had come to its end, which is no kill
        kills.append(found)
        finish([*arguments, "--resume"])
    print(json.dumps({"seconds": seconds, "kills": kills}))
