"""Starting processes, and what one does for all, as far as one process shows it."""

import pytest

from sourcier.train.processes import on_main, start
from sourcier.types import SourcierError


def test_the_main_process_gives_its_result() -> None:
    assert on_main(start(precision="fp32", timeout=1), lambda: 7) == 7


def test_the_main_process_raises_its_own_error() -> None:
    with pytest.raises(ZeroDivisionError):
        on_main(start(precision="fp32", timeout=1), lambda: 1 // 0)


def test_an_unknown_tracker_names_those_that_are_known() -> None:
    with pytest.raises(SourcierError, match=r"log_with=tensorbord is unknown: .*tensorboard"):
        start(precision="fp32", timeout=1, log_with=("tensorbord",))


def test_a_tracker_that_is_not_installed_says_what_to_install(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("sourcier.train.processes.get_available_trackers", list)
    with pytest.raises(SourcierError, match="pip install wandb"):
        start(precision="fp32", timeout=1, log_with=("wandb",))


def test_a_world_of_one_where_accelerate_was_asked_for_two(monkeypatch: pytest.MonkeyPatch) -> None:
    """What `accelerate launch --cpu --num_processes 2` sets for the one process that it starts."""
    monkeypatch.setenv("ACCELERATE_MIXED_PRECISION", "no")
    monkeypatch.setenv("MASTER_ADDR", "127.0.0.1")
    with pytest.raises(SourcierError, match="torchrun"):
        start(precision="fp32", timeout=1)


def test_a_world_that_is_smaller_than_its_launcher_says(monkeypatch: pytest.MonkeyPatch) -> None:
    start(precision="fp32", timeout=1)  # so that accelerate has already taken the world as it is
    monkeypatch.setenv("WORLD_SIZE", "2")
    with pytest.raises(SourcierError, match="2 processes were asked for, 1 joined"):
        start(precision="fp32", timeout=1)
