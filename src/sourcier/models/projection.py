"""What stands between the backbone's vectors and those of a family: one linear map, or a stack of layers.

Shapes: ... any leading axes, I input size, D dimensions.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import MISSING, dataclass
from typing import Any, Literal

import torch
from torch import Tensor, nn

from sourcier.config import setting
from sourcier.models.backbone import Backbone
from sourcier.ranges import check_ranges
from sourcier.types import SourcierError

Activation = Literal["none", "tanh", "relu", "gelu", "silu", "sigmoid"]

_ACTIVATIONS: dict[str, type[nn.Module]] = {
    "none": nn.Identity,
    "tanh": nn.Tanh,
    "relu": nn.ReLU,
    "gelu": nn.GELU,
    "silu": nn.SiLU,
    "sigmoid": nn.Sigmoid,
}


@dataclass(kw_only=True)
class Layer:
    """One layer of a projection: activation(linear(input)), with `residual` the input added to it."""

    dimension: int = setting(MISSING, "size of what comes out", at_least=1)
    bias: bool = False
    activation: Activation = "none"
    residual: bool = False

    def __post_init__(self) -> None:
        check_ranges(self)

    @property
    def is_plain(self) -> bool:
        """Whether it is a linear map without a bias and nothing else."""
        return not self.bias and not self.residual and self.activation == "none"


class ProjectionLayer(nn.Module):
    """A `Layer` with its weights."""

    def __init__(self, size: int, layer: Layer, **options: Any) -> None:
        super().__init__()
        self.described = layer
        self.linear = nn.Linear(size, layer.dimension, bias=layer.bias, **options)
        self.activation = _ACTIVATIONS[layer.activation]()
        self.shortcut: nn.Module | None = None
        if layer.residual:
            same = size == layer.dimension
            self.shortcut = nn.Identity() if same else nn.Linear(size, layer.dimension, bias=False, **options)

    def forward(self, vectors: Tensor) -> Tensor:
        """[..., I] to [..., D]"""
        projected = self.activation(self.linear(vectors))
        return projected if self.shortcut is None else projected + self.shortcut(vectors)


def check_layers(layers: Sequence[Layer], dimension: int | None) -> None:
    """Refuses a projection that ends in another size than `dimension` says."""
    if layers and layers[-1].dimension != dimension:
        raise SourcierError(
            f"dimension={dimension}: the layers of the projection end in {layers[-1].dimension}: set that"
        )


def projection(
    backbone: Backbone, dimension: int | None, layers: Sequence[Layer] = (), *, ways: int = 1
) -> nn.Linear | nn.Sequential | None:
    """The new projection of a family: its layers, or else a linear map to `dimension`, or none.

    It reads `ways` vectors of the backbone's size, put side by side.
    """
    size = ways * backbone.hidden_size
    if not layers:
        return None if dimension is None else orthogonal_projection(backbone, dimension, size=size)
    sizes = [size, *(layer.dimension for layer in layers)]
    options = _options(backbone)
    return nn.Sequential(
        *(ProjectionLayer(size, layer, **options) for size, layer in zip(sizes, layers, strict=False))
    )


def orthogonal_projection(
    backbone: Backbone, dimension: int, gain: float = 1.0, *, size: int | None = None
) -> nn.Linear:
    """A new projection without bias; orthogonal rows keep the angles of the backbone as well as they can.

    `size` is that of its input (default: the backbone's).
    """
    size = size or backbone.hidden_size
    linear = nn.Linear(size, dimension, bias=False, **_options(backbone))
    # In float32, since half precision has no orthogonalisation.
    weight = nn.init.orthogonal_(torch.empty(dimension, size), gain=gain)
    with torch.no_grad():
        linear.weight.copy_(weight)
    return linear


def _options(backbone: Backbone) -> dict[str, Any]:
    return {"dtype": backbone.model.dtype, "device": backbone.model.device}
