"""`python -m sourcier`: the command line, for launchers such as torchrun."""

from sourcier.cli import run

if __name__ == "__main__":
    run()
