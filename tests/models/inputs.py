"""Inputs of a model, made from the signature of its forward and from its config.

Each argument has a name that says what it is: token ids, a mask, pixels, a waveform. What the name
does not say, as whether a waveform has a channel dimension, is tried: the first layout that eager
mode takes is the model's. The six inputs of a model differ in what Dynamo must not compile into a
graph: which tokens are padding, how many images there are, how long the text is, how large an
image is, and all values. The first two calls have the same sizes, and the third has others
everywhere: what changes is a symbol from the second compile on.
"""

from __future__ import annotations

import inspect
import itertools
import re
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass, field
from typing import Any
from zlib import crc32

import torch
from torch import Tensor

from tests.models import images
from tests.models.shrink import FIRST_SPECIAL, PATCH

CALLS = 6
BATCH = 2
_LENGTHS = (12, 12, 16, 20, 12, 16)
_SIDES = ((1, 1), (1, 1), (2, 1.5), (1.5, 2), (1, 1), (2, 2))
# Height and width of two images, in merged patches; as many patches in the first two calls.
_GRIDS = (
    ((2, 3), (2, 2)),
    ((2, 2), (2, 3)),
    ((3, 3), (2, 2)),
    ((1, 2), (3, 3)),
    ((3, 2), (2, 2)),
    ((4, 3), (2, 2)),
)
_FRAMES = (1, 1, 1.25, 1.5, 1, 1.25)


class NoInput(Exception):
    """Nothing is known about an argument that a model needs."""


@dataclass
class Layout:
    """How the arguments of one model look.

    Attributes:
        choice: which of its layouts each argument has, by name.
        sizes_vary: whether images and waveforms have several sizes.
        left_out: optional arguments that the model does not get.
        placeholders: how many placeholder tokens stand for each image, by call; unknown if empty.
    """

    choice: dict[str, int] = field(default_factory=dict)
    sizes_vary: bool = True
    left_out: frozenset[str] = frozenset()
    placeholders: dict[int, tuple[int, ...]] = field(default_factory=dict)


class Inputs:
    """Makes the arguments of one call of a model."""

    def __init__(self, model: Any, call: int, layout: Layout, training: bool = False) -> None:
        self.model, self.config, self.call, self.layout = (
            model,
            getattr(model, "config", None),
            call,
            layout,
        )
        self.training = training
        self.random = torch.Generator().manual_seed(1000 + call)
        self.length = _LENGTHS[call]
        self.made: dict[str, Any] = {}
        self.name = type(model).__name__

    # What the config says.

    def setting(self, *names: str, default: Any = None, inside: str = "") -> Any:
        """The first of these fields in the config or, by breadth, in one inside it."""
        level = [self.config] if self.config is not None else []
        for _ in range(4):
            for name in names:
                for one in level:
                    value = vars(one).get(name)
                    if value is not None:
                        return value
            level = [
                part
                for one in level
                for key, part in sorted(vars(one).items(), key=lambda item: inside not in item[0])
                if hasattr(part, "to_dict")
            ]
        return default

    def number(self, *names: str, default: int, inside: str = "") -> int:
        value = self.setting(*names, default=default, inside=inside)
        while isinstance(value, (list, tuple)) and value:
            value = value[0]
        if isinstance(value, Mapping):
            value = next(iter(value.values()))
        return int(value) if isinstance(value, (int, float)) else default

    # Parts that several arguments share.

    def normal(self, *shape: int) -> Tensor:
        return torch.randn(*shape, generator=self.random)

    def integers(self, high: int, *shape: int, low: int = 0) -> Tensor:
        return torch.randint(low, max(high, low + 1), shape, generator=self.random)

    def valid(self, length: int, least: int = 0) -> Tensor:
        """How many of ``length`` steps each row of the batch has; all in the last call."""
        if self.call == CALLS - 1:
            return torch.full((BATCH,), length)
        found = self.integers(length + 1, BATCH, low=max(least, length // 2, 1))
        found[0] = length
        return found

    def mask(self, length: int) -> Tensor:
        return (torch.arange(length) < self.valid(length)[:, None]).long()

    def sides(self) -> tuple[int, int]:
        """Height and width of the images."""
        size = self.setting(
            "image_size", "input_size", "img_size", "crop_size", default=64, inside="vision"
        )
        if isinstance(size, Mapping):
            size = [size.get("height", 64), size.get("width", 64)]
        height, width = (
            size[-2:] if isinstance(size, (list, tuple)) and len(size) > 1 else (size, size)
        )
        if isinstance(height, (list, tuple)):
            height, width = height
        more = _SIDES[self.call] if self.layout.sizes_vary else (1, 1)
        return int(height * more[0]), int(width * more[1])

    def steps(self, steps: int) -> int:
        """How long a waveform or a spectrogram is."""
        return int(steps * (_FRAMES[self.call] if self.layout.sizes_vary else 1))

    def vocabulary(self) -> int:
        return self.number("vocab_size", "n_vocab", "text_vocab_size", default=100, inside="text")

    # Arguments.

    def tokens(self, length: int | None = None) -> Tensor:
        """Ids of ordinary tokens, the last valid one an end token where there is one."""
        length = length or self.length
        ids = self.integers(min(self.vocabulary(), FIRST_SPECIAL - 20), BATCH, length, low=5)
        special = self.specials(self.config)
        free = next(one for one in range(5, FIRST_SPECIAL) if one not in special)
        ids[torch.isin(ids, torch.tensor(sorted(special), dtype=torch.long))] = free
        end, pad = self.number("eos_token_id", default=-1), self.number("pad_token_id", default=1)
        for row, valid in enumerate(self.valid(length).tolist()):
            ids[row, valid:] = max(pad, 0)
            if 0 <= end < self.vocabulary():
                ids[row, valid - 1] = end
        return ids

    def specials(self, config: Any) -> set[int]:
        """Ids of tokens that stand for something other than text."""
        found: set[int] = set()
        for name, value in vars(config).items() if config is not None else ():
            if hasattr(value, "to_dict"):
                found |= self.specials(value)
            elif name.endswith(("token_id", "token_index")) and isinstance(value, int):
                found.add(value)
        return found

    def input_ids(self) -> Tensor:
        ids = self.tokens()
        counts = self.layout.placeholders.get(self.call)
        token = self.placeholder()
        if counts and token is not None:
            each = [sum(counts)] if len(counts) != BATCH else list(counts)
            if len(counts) != BATCH:  # of all rows together
                per = sum(counts) // BATCH
                each = [per + sum(counts) - per * BATCH, *[per] * (BATCH - 1)]
            rows = [self._with_images(ids[row], each[row], token) for row in range(BATCH)]
            longest = max(map(len, rows))
            pad = max(self.number("pad_token_id", default=1), 0)
            ids = torch.stack(
                [torch.cat([row, row.new_full((longest - len(row),), pad)]) for row in rows]
            )
        if self.name.endswith("ForMultipleChoice"):
            ids = torch.stack([ids, ids.flip(0)], 1)
        return ids

    def _with_images(self, row: Tensor, count: int, token: int) -> Tensor:
        at = 1 + int(self.integers(3, 1))
        before, after = [], []
        for name, into in (("vision_start_token_id", before), ("vision_end_token_id", after)):
            one = self.setting(name)
            into += [one] if isinstance(one, int) else []
        piece = row.new_tensor([*before, *[token] * count, *after])
        return torch.cat([row[:at], piece, row[at:]])

    def placeholder(self) -> int | None:
        """The id of the token that an image, or sound, stands for."""
        names = ("image_token_id", "image_token_index", "media_placeholder_token_id", "im_patch_id")
        sound = ("audio_token_id", "audio_token_index")
        has_images = "pixel_values" in self.made or "pixel_values" in self.arguments()
        for name in names if has_images else sound:
            found = self.setting(name)
            if isinstance(found, int):
                return found
        return None

    def arguments(self) -> dict[str, inspect.Parameter]:
        found = inspect.signature(self.model.forward).parameters
        return {n: p for n, p in found.items() if p.kind not in (p.VAR_KEYWORD, p.VAR_POSITIONAL)}

    def text_length(self) -> int:
        ids = self.made.get("input_ids")
        return self.length if ids is None else ids.shape[-1]

    def attention_mask(self) -> Tensor | None:
        for name in ("input_features", "input_values", "inputs"):
            data = self.made.get(name)
            if data is not None and "input_ids" not in self.made:
                axis = (
                    1 if self.layout.choice.get(name, 0) == 1 and name == "input_features" else -1
                )
                return self.mask(data.shape[axis])
        ids = self.made.get("input_ids")
        if ids is None:
            return None
        pad = max(self.number("pad_token_id", default=1), 0)
        return (ids != pad).long()

    def pixel_values(self) -> Tensor:
        if {
            "image_grid_thw",
            "grid_thw",
            "image_grid_hws",
            "spatial_shapes",
            "pixel_position_ids",
            "image_position_ids",
        } & set(self.arguments()):
            return self.patches()
        height, width = self.sides()
        channels = self.number(
            "num_channels", "in_channels", "in_chans", "image_channels", default=3, inside="vision"
        )
        frames = self.number("num_frames", "frames_per_clip", "max_frames", default=2)
        shapes: tuple[tuple[int, ...], ...] = (
            (BATCH, channels, height, width),
            (BATCH, 1, channels, height, width),
            (BATCH, frames, channels, height, width),
            (BATCH, channels, frames, height, width),
        )
        return self.normal(*shapes[self.layout.choice.get("pixel_values", 0)])

    def grid(self) -> list[list[int]]:
        """Time, height and width, in patches, of each image: other sizes in each call."""
        merge = self.number("spatial_merge_size", "merge_size", default=2, inside="vision")
        sides = _GRIDS[self.call] if self.layout.sizes_vary else ((2, 2), (2, 2))
        return [[1, a * merge, b * merge] for a, b in sides]

    def patches(self) -> Tensor:
        patch = self.number("patch_size", default=PATCH, inside="vision")
        depth = self.number("temporal_patch_size", default=1, inside="vision")
        channels = self.number(
            "in_channels", "num_channels", "in_chans", default=3, inside="vision"
        )
        count = sum(t * h * w for t, h, w in self.grid())
        shapes = (
            (count, channels * depth * patch * patch),
            (count, channels, patch, patch),
            (BATCH, count // BATCH, channels * depth * patch * patch),
            (1, count, channels * depth * patch * patch),
        )
        return self.normal(*shapes[self.layout.choice.get("pixel_values", 0)])

    def image_grid_thw(self) -> Tensor:
        return torch.tensor(self.grid())

    def mm_token_type_ids(self) -> Tensor | None:
        ids, token = self.made.get("input_ids"), self.placeholder()
        return None if ids is None or token is None else (ids == token).long()

    def image_sizes(self) -> Tensor:
        height, width = self.made["pixel_values"].shape[-2:]
        if self.made["pixel_values"].dim() == 5:  # tiles: how much of them is no padding
            least = torch.tensor([height, width]) * 5 // 8
            more = torch.stack([self.integers(int(one) // 2, BATCH) for one in (height, width)], 1)
            return (least + more).clamp(max=min(height, width))
        return torch.tensor([[height, width]] * BATCH)

    def pixel_mask(self) -> Tensor:
        height, width = self.made["pixel_values"].shape[-2:]
        rows, columns = self.valid(height), self.valid(width)
        down = torch.arange(height)[None, :, None] < rows[:, None, None]
        return (down & (torch.arange(width) < columns[:, None, None])).long()

    def input_values(self) -> Tensor:
        mel = self.number("num_mel_bins", default=80)
        steps = self.steps(4800)
        frames = self.number("max_length", default=64)
        shapes = ((BATCH, steps), (BATCH, 1, steps), (BATCH, frames, mel), (BATCH, 2, steps))
        return self.normal(*shapes[self.layout.choice.get("input_values", 0)])

    def input_features(self) -> Tensor:
        mel = self.number(
            "num_mel_bins",
            "feature_size",
            "n_mels",
            "input_feat_size",
            "feature_projection_input_dim",
            "input_dim",
            default=80,
            inside="audio",
        )
        positions = self.number("max_source_positions", default=32, inside="audio")
        shapes = (
            (BATCH, mel, self.steps(64)),
            (BATCH, self.steps(64), mel),
            (BATCH, mel, 2 * positions),
            (BATCH, 1, mel, self.steps(64)),
            (BATCH, 1, 1024, mel),
        )
        return self.normal(*shapes[self.layout.choice.get("input_features", 0)])

    def features_mask(self) -> Tensor:
        data = self.made.get("input_features", self.made.get("input_values"))
        axis = 1 if self.layout.choice.get("input_features", 0) == 1 else -1
        return self.mask(data.shape[axis])

    def bbox(self) -> Tensor:
        low = self.integers(100, *self.made["input_ids"].shape, 2)
        return torch.cat([low, low + self.integers(100, *low.shape)], -1)

    def decoder_input_ids(self) -> Tensor:
        return self.tokens(max(self.length // 2, 4))

    def global_attention_mask(self) -> Tensor:
        mask = torch.zeros_like(self.made["input_ids"])
        for row, count in enumerate(self.integers(4, BATCH, low=1).tolist()):
            mask[row, :count] = 1
        return mask

    def labels(self) -> Any:
        kinds = self.number("num_labels", default=2)
        if re.search(
            r"(Sequence|Image|Audio|Video)Classification|MultipleChoice|ForXVector|NextSentence",
            self.name,
        ):
            return self.integers(kinds, BATCH)
        if "ObjectDetection" in self.name or "ForSegmentation" in self.name:
            return [self._boxes(kinds, int(self.integers(4, 1, low=1))) for _ in range(BATCH)]
        if "SemanticSegmentation" in self.name:
            return self.integers(kinds, BATCH, *self.made["pixel_values"].shape[-2:])
        if "TokenClassification" in self.name:
            return self.integers(kinds, *self.made["input_ids"].shape)
        if "CTC" in self.name:
            found = self.integers(min(self.vocabulary(), 30), BATCH, 6, low=1)
            return found.masked_fill(torch.arange(6) >= self.valid(6)[:, None], -100)
        if "decoder_input_ids" in self.arguments():
            found = self.decoder_input_ids()
            return found.masked_fill(
                torch.arange(found.shape[1]) >= self.valid(found.shape[1])[:, None], -100
            )
        ids = self.made.get("input_ids")
        if ids is None or not re.search(r"LM|Generation|PreTraining|DoubleHeads", self.name):
            raise NoInput("labels")
        return ids.clone()

    def _boxes(self, kinds: int, count: int) -> dict[str, Tensor]:
        centre = torch.rand(count, 4, generator=self.random) * 0.3 + 0.2
        return {"class_labels": self.integers(kinds, count), "boxes": centre}

    def positions(self) -> Tensor:
        return self.integers(self.text_length(), BATCH)

    def series(self) -> Tensor:
        length = self.number("context_length", "prediction_length", default=32)
        lags = self.setting("lags_sequence", default=[0]) or [0]
        channels = self.number("num_input_channels", "input_size", default=1)
        total = length + max(lags)
        choice = self.layout.choice.get("past_values", 0)
        shape = ((BATCH, total, channels), (BATCH, total))[choice]
        return self.normal(*shape)

    def make(self) -> dict[str, Any]:
        """All arguments that the model needs, and those that data is in."""
        for name, parameter in self.arguments().items():
            if name in self.layout.left_out:
                continue
            needed = parameter.default is parameter.empty
            known = MAKERS.get(name)
            if known is None:
                if needed:
                    raise NoInput(name)
                continue
            when, maker = known
            if not (needed or when(self)):
                continue
            self.random = torch.Generator().manual_seed(crc32(name.encode()) + self.call)
            value = maker(self)
            if value is not None:
                self.made[name] = value
        return self.made


def _always(_: Inputs) -> bool:
    return True


def _never(_: Inputs) -> bool:
    return False


def _has(*names: str) -> Callable[[Inputs], bool]:
    return lambda self: any(name in self.made for name in names)


def _trains(self: Inputs) -> bool:
    return self.training


def _has_no_labels(self: Inputs) -> bool:
    return not (
        self.training and "labels" in self.arguments() and "labels" not in self.layout.left_out
    )


def _is_diffusion(self: Inputs) -> bool:
    return type(self.model).__module__.startswith("diffusers.")


_When = Callable[[Inputs], bool]
# When an argument that may be left out is given, and what makes it.
MAKERS: dict[str, tuple[_When, Callable[[Inputs], Any]]] = {
    "input_ids": (_always, Inputs.input_ids),
    "pixel_values": (_always, Inputs.pixel_values),
    "input_values": (_always, Inputs.input_values),
    "input_features": (_always, Inputs.input_features),
    "attention_mask": (_has("input_ids", "input_features", "input_values"), Inputs.attention_mask),
    "padding_mask": (_has("input_values"), Inputs.features_mask),
    "feature_attention_mask": (_has("input_features"), Inputs.features_mask),
    "input_features_mask": (_has("input_features"), Inputs.features_mask),
    "mask_time_indices": (_never, lambda self: None),
    "image_grid_thw": (_has("pixel_values"), Inputs.image_grid_thw),
    "grid_thw": (_has("pixel_values", "hidden_states"), Inputs.image_grid_thw),
    "image_grid_hws": (_has("pixel_values"), lambda self: torch.tensor(self.grid())[:, 1:]),
    "mm_token_type_ids": (_has("image_grid_thw", "pixel_values"), Inputs.mm_token_type_ids),
    "token_type_ids": (_has("pixel_values"), lambda self: torch.zeros_like(self.made["input_ids"])),
    "image_sizes": (_has("pixel_values"), Inputs.image_sizes),
    "pixel_mask": (_has("pixel_values"), Inputs.pixel_mask),
    "bbox": (_has("input_ids"), Inputs.bbox),
    "decoder_input_ids": (_has_no_labels, Inputs.decoder_input_ids),
    "global_attention_mask": (_has("input_ids"), Inputs.global_attention_mask),
    "hidden_states": (
        _is_diffusion,
        lambda self: images.sample(self) if _is_diffusion(self) else Inputs.patches(self),
    ),
    "past_values": (_always, Inputs.series),
    "past_time_features": (
        _never,
        lambda self: self.normal(*self.made["past_values"].shape[:2], 0),
    ),
    "past_observed_mask": (
        _has("past_values"),
        lambda self: (self.normal(*self.made["past_values"].shape) > -1).float(),
    ),
    "labels": (_trains, Inputs.labels),
    "start_positions": (_trains, Inputs.positions),
    "end_positions": (_trains, Inputs.positions),
    "return_loss": (_never, lambda self: True),
    "x": (_always, lambda self: images.sample(self) if _is_diffusion(self) else images.x(self)),
    "input": (_always, images.x),
    "images": (_always, images.images),
    "targets": (_trains, images.targets),
    "image1": (_always, images.image_of_flow),
    "image2": (_always, images.image_of_flow),
    "sample": (_always, images.sample),
    "timestep": (_always, images.timestep),
    "timesteps": (_always, images.timestep),
    "encoder_hidden_states": (_is_diffusion, images.text_states),
    "pooled_projections": (
        _is_diffusion,
        lambda self: self.normal(2, self.number("pooled_projection_dim", default=64)),
    ),
    "img_ids": (_is_diffusion, images.ids(1)),
    "txt_ids": (_is_diffusion, images.ids(0)),
}
_CHOICES = {"pixel_values": 4, "input_values": 4, "input_features": 5, "past_values": 2}
_CHOICES |= {"x": 5, "sample": 6, "hidden_states": 6}
_OPTIONAL = (
    ("labels",),
    ("pixel_mask",),
    ("decoder_input_ids",),
    ("token_type_ids",),
    ("image_sizes",),
    ("attention_mask",),
    ("past_observed_mask",),
    ("padding_mask",),
    ("pixel_values", "image_grid_thw", "mm_token_type_ids", "token_type_ids"),
    ("input_features", "input_features_mask", "feature_attention_mask"),
)


def layouts(model: Any, training: bool) -> Iterator[Layout]:
    """Layouts to try, the most telling first."""
    names = set(inspect.signature(model.forward).parameters)
    choices = [
        [(name, i) for i in range(count)] for name, count in _CHOICES.items() if name in names
    ]
    left_out: list[tuple[str, ...]] = [(), *(one for one in _OPTIONAL if names & {*one})]
    if not training:
        left_out = [one for one in left_out if one != ("labels",)]
    for without in left_out:
        for vary in (True, False):
            for choice in itertools.product(*choices):
                yield Layout(dict(choice), vary, frozenset(without))
