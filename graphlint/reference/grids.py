"""Grids of samples as PNG; imports torch, and Pillow when a grid is drawn."""

import math
from collections.abc import Sequence
from pathlib import Path
from typing import TYPE_CHECKING

import torch
from torch import Tensor

from graphlint.errors import UsageError
from graphlint.reference.writing import replacing

if TYPE_CHECKING:
    from PIL.Image import Image

_CELL = 64
_GAP = 4
_LETTER = 7
_BACKGROUND = 255
_INK = 0
_MODES = ("L", "RGB")


def draw_grid(images: Tensor, captions: Sequence[str]) -> "Image":
    """Returns one picture with a row for each caption, which stands at its left.

    Small images are enlarged by whole numbers, so that their pixels stay sharp.

    Args:
        images: `(rows, columns, channels, height, width)` in [-1, 1], with 1 or 3 channels, on any device.
        captions: one for each row; an empty one takes no room.

    Raises:
        UsageError: there are no images, or they have other channels than 1 or 3.
    """
    from PIL import Image, ImageDraw

    rows, columns, channels, height, width = images.shape
    if channels not in {1, 3} or not images.numel():
        raise UsageError(
            f"a grid is drawn of images with 1 or 3 channels, not of shape {tuple(images.shape)}"
        )
    mode = _MODES[channels == 3]  # noqa: PLR2004 - as many as RGB has letters
    scale = max(1, math.ceil(_CELL / max(height, width)))
    left = max((len(caption) for caption in captions), default=0) * _LETTER
    left += 2 * _GAP if left else 0
    size = (left + columns * (width * scale + _GAP) + _GAP, rows * (height * scale + _GAP) + _GAP)
    grid = Image.new(mode, size, _color(mode, _BACKGROUND))
    text = ImageDraw.Draw(grid)
    for row in range(rows):
        top = _GAP + row * (height * scale + _GAP)
        if captions[row]:
            middle = top + height * scale // 2
            text.text((_GAP, middle), captions[row], fill=_color(mode, _INK), anchor="lm")
        for column in range(columns):
            cell = _picture(images[row, column], mode)
            cell = cell.resize((width * scale, height * scale), Image.Resampling.NEAREST)
            grid.paste(cell, (left + _GAP + column * (width * scale + _GAP), top))
    return grid


def save_png(picture: "Image", path: Path) -> None:
    """Writes the picture as PNG, in place of the file or not at all.

    Raises:
        UsageError: it can't be written.
    """
    try:
        with replacing(path) as file:
            picture.save(file, format="PNG")
    except OSError as error:
        raise UsageError(f"can't write the picture {path}: {error.strerror or error}") from error


def _picture(image: Tensor, mode: str) -> "Image":
    from PIL import Image

    levels = ((image.detach().float().cpu() + 1.0) * 127.5).round().clamp(0, 255).to(torch.uint8)
    channels, height, width = levels.shape
    data = bytes(levels.permute(1, 2, 0).reshape(height * width * channels).tolist())
    return Image.frombytes(mode, (width, height), data)


def _color(mode: str, level: int) -> int | tuple[int, int, int]:
    return level if mode == "L" else (level, level, level)
