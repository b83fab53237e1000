"""Files that stay: what was written reaches the disk before something else relies on it."""

from __future__ import annotations

import os
from pathlib import Path


def sync(path: Path) -> None:
    """Have the contents of a file, or the names in a folder, reach the disk."""
    windows = os.name == "nt"
    if windows and path.is_dir():
        return  # Windows opens no folders; its renames are durable by themselves
    # Windows syncs only what may be written; elsewhere a file that is read-only can be synced too.
    descriptor = os.open(path, os.O_RDWR if windows else os.O_RDONLY)
    try:
        os.fsync(descriptor)
    finally:
        os.close(descriptor)


def sync_tree(folder: Path) -> None:
    """Have a folder with all that is in it reach the disk."""
    for path in (*folder.rglob("*"), folder):
        sync(path)
