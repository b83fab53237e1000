"""What the tests of all kernels need: a record of the largest tensor, which tells memory without a clock or a meter."""

from __future__ import annotations

import pytest
from torch import Tensor
from torch.utils._python_dispatch import TorchDispatchMode
from torch.utils._pytree import tree_leaves


class LargestTensor(TorchDispatchMode):
    """Records how many numbers the largest tensor held that any operation made."""

    numbers = 0

    def __torch_dispatch__(self, function, types, args=(), kwargs=None):  # type: ignore[no-untyped-def]
        result = function(*args, **(kwargs or {}))
        for leaf in tree_leaves(result):
            if isinstance(leaf, Tensor):
                self.numbers = max(self.numbers, leaf.numel())
        return result


@pytest.fixture
def largest_tensor() -> type[LargestTensor]:
    return LargestTensor
