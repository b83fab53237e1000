"""Starting processes, what one does for all, and what one says of another that failed."""

import pytest

from sourcier.train.launch import in_processes
from sourcier.train.processes import on_main, start, together
from sourcier.types import SourcierError


def fail_in_turn() -> list[str]:
    """Two runs, of which process 1 fails the first, and process 0 the second; what this process says of each."""
    said = []
    for run, failing in ((1, 1), (2, 0)):
        accelerator = start(precision="fp32", timeout=1)
        fails = accelerator.process_index == failing
        try:
            with together(accelerator):
                if not fails:
                    accelerator.wait_for_everyone()  # until the other one has said why it failed
                raise SourcierError(f"process {accelerator.process_index} failed run {run}")
        except SourcierError as error:
            said.append(str(error))
        if fails:
            accelerator.wait_for_everyone()
    return said


@pytest.mark.slow
def test_what_failed_in_one_run_is_not_told_of_the_next() -> None:
    said = in_processes(fail_in_turn, processes=2)
    assert said == ["process 1 stopped: process 1 failed run 1", "process 0 failed run 2"]


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
