"""A script without a `__main__` guard, as it runs on Mac and Windows: one worker needs neither children nor NCCL."""

from __future__ import annotations

import json
import subprocess
import sys
from pathlib import Path

import pytest
from tiny import tiny_model

from sourcier.data.examples import Example, Examples

pytestmark = pytest.mark.slow

SCRIPT = """
import json, multiprocessing, sys
from pathlib import Path

folder = Path(sys.argv[1])
with (folder / "starts").open("a") as file:  # a child that starts afresh runs this again
    file.write("x")
multiprocessing.set_start_method("spawn")
children = []
multiprocessing.process.BaseProcess.start = lambda process: children.append(str(process))
sys.addaudithook(lambda event, _: children.append(event) if event in ("os.fork", "os.posix_spawn") else None)

import torch
import sourcier
from sourcier.types import Document

model = sourcier.Dense.from_base(folder / "bert")
settings = {"steps": 2, "batch_size": 4, "progress": False}
sourcier.Trainer.Config(output=str(folder / "run"), **settings).build(
    model, sourcier.Examples.from_jsonl(folder / "rows.jsonl")
).run()
documents = [Document("d1", "water of a well"), Document("d2", "a list of files")]
index = sourcier.Retriever.build(model, documents, folder / "index")
found = index.search(["well"], k=1)[0]
group = torch.distributed.is_available() and torch.distributed.is_initialized()
print(json.dumps({"children": children, "group": group, "found": len(found)}))
"""


def test_training_and_search_need_no_guard(tmp_path: Path) -> None:
    tiny_model("bert", tmp_path / "bert")
    rows = Examples([Example(f"query {number}", f"text {number}") for number in range(8)])
    rows.to_jsonl(tmp_path / "rows.jsonl")
    script = tmp_path / "script.py"
    script.write_text(SCRIPT)
    finished = subprocess.run(
        [sys.executable, str(script), str(tmp_path)], capture_output=True, text=True, timeout=200
    )
    assert finished.returncode == 0, finished.stderr[-3000:]
    told = json.loads(finished.stdout.splitlines()[-1])
    assert told == {"children": [], "group": False, "found": 1}
    assert (tmp_path / "starts").read_text() == "x"
