"""Times and peak memory of the kernels against their plain references, forward and backward.

    python benchmarks/kernels.py [--rounds 5]

Times are medians of runs in turn (ours, plain, ours, …) in this process; memory is the growth of the peak resident
set, inputs and gradients included, of one run in a process of its own.
"""

from __future__ import annotations

import argparse
import multiprocessing
import resource
import sys
import time
from collections.abc import Callable
from statistics import median

import torch
from torch import Tensor

from sourcier.kernels.maxsim import maxsim, maxsim_reference
from sourcier.kernels.splade_pool import splade_pool, splade_pool_reference
from sourcier.kernels.term_match import term_match, term_match_reference

Run = Callable[[], None]
Case = tuple[str, Callable[..., Run], dict[str, int]]


def splade_pool_run(ours: bool, *, batch: int, length: int, width: int, vocabulary: int) -> Run:
    """The SPLADE activation of a batch whose weights are as sparse as after some training."""
    hidden = torch.randn(batch, length, width, requires_grad=True)
    weight = (torch.randn(vocabulary, width) / width**0.5).requires_grad_()
    bias = torch.full((vocabulary,), -3.5, requires_grad=True)
    mask = ragged(batch, length)
    form = splade_pool if ours else splade_pool_reference
    return both_ways(lambda: form(hidden, mask, weight, bias))


def maxsim_run(
    ours: bool, *, queries: int, documents: int, query_length: int, length: int, width: int
) -> Run:
    """MaxSim of a training batch."""
    query = torch.randn(queries, query_length, width, requires_grad=True)
    document = torch.randn(documents, length, width, requires_grad=True)
    query_mask, document_mask = ragged(queries, query_length), ragged(documents, length)
    form = maxsim if ours else maxsim_reference
    return both_ways(lambda: form(query, query_mask, document, document_mask))


def term_match_run(
    ours: bool, *, queries: int, documents: int, query_terms: int, terms: int, width: int
) -> Run:
    """The SparseEmbed score of a training batch, whose terms come from 2,000 frequent ones."""

    def batch(rows: int, kept: int) -> tuple[Tensor, Tensor, Tensor]:
        drawn = torch.rand(rows, 2000).argsort(dim=1)[:, :kept]
        return drawn, ragged(rows, kept), torch.randn(rows, kept, width, requires_grad=True)

    query, document = batch(queries, query_terms), batch(documents, terms)
    form = term_match if ours else term_match_reference
    return both_ways(lambda: form(*query, *document))


#: What is measured: a name, how it is made, and its sizes.
CASES: list[Case] = [
    ("splade_pool", splade_pool_run, {"batch": 32, "length": 180, "width": 384, "vocabulary": 30522}),
    ("splade_pool", splade_pool_run, {"batch": 32, "length": 180, "width": 128, "vocabulary": 30522}),
    ("maxsim", maxsim_run, {"queries": 16, "documents": 32, "query_length": 32, "length": 180, "width": 128}),
    ("maxsim", maxsim_run, {"queries": 64, "documents": 128, "query_length": 32, "length": 180, "width": 128}),
    ("term_match", term_match_run,
     {"queries": 16, "documents": 16, "query_terms": 32, "terms": 64, "width": 64}),
    ("term_match", term_match_run,
     {"queries": 16, "documents": 64, "query_terms": 32, "terms": 256, "width": 128}),
]  # fmt: skip


def ragged(rows: int, length: int) -> Tensor:
    """A padding mask with lengths between two thirds of `length` and all of it. [rows, length]"""
    lengths = torch.linspace(length * 2 // 3, length, rows).long()
    return torch.arange(length) < lengths[:, None]


def both_ways(form: Callable[[], Tensor]) -> Run:
    """One run: forward and backward."""
    return lambda: form().square().mean().backward()


def seconds(run: Run) -> float:
    started = time.perf_counter()
    run()
    return time.perf_counter() - started


def peak_growth(case: Case, ours: bool) -> float:
    """Growth of the peak resident set over one run, inputs and gradients included, in MB.

    To be called before this process has grown: on Linux a new process starts with the peak of its parent.
    """
    with multiprocessing.get_context("spawn").Pool(1) as pool:
        return pool.apply(measure_growth, (case, ours))


def measure_growth(case: Case, ours: bool) -> float:
    _, build, sizes = case
    before = peak()
    build(ours, **sizes)()
    return peak() - before


def peak() -> float:
    """The largest resident set of this process so far, in MB."""
    unit = 2**20 if sys.platform == "darwin" else 2**10
    return resource.getrusage(resource.RUSAGE_SELF).ru_maxrss / unit


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawTextHelpFormatter)
    parser.add_argument("--rounds", type=int, default=5)
    parser.add_argument("--only", default="", help="kernels whose name holds this")
    options = parser.parse_args()
    cases = [case for case in CASES if options.only in case[0]]
    memory = [(peak_growth(case, ours=True), peak_growth(case, ours=False)) for case in cases]
    titles = ("ours s", "plain s", "ratio", "ours MB", "plain MB", "ratio")
    print(f"{'kernel':12}", *(f"{title:>8}" for title in titles), " sizes")
    for (lean, large), (name, build, sizes) in zip(memory, cases, strict=True):
        ours, plain = build(True, **sizes), build(False, **sizes)
        ours(), plain()
        times = [(seconds(ours), seconds(plain)) for _ in range(options.rounds)]
        fast, slow = (median(column) for column in zip(*times, strict=True))
        print(
            f"{name:12} {fast:8.4f} {slow:8.4f} {slow / fast:8.2f} "
            f"{lean:8.0f} {large:8.0f} {large / max(lean, 1):8.1f}  {sizes}",
            flush=True,
        )


if __name__ == "__main__":
    main()
