"""Build a model of a class with small random weights, and find how its inputs look."""

from __future__ import annotations

import contextlib
import inspect
import itertools
import time
from collections.abc import Iterator
from typing import Any

import torch
from torch import Tensor

from tests.models import others, torchvision_ops
from tests.models.inputs import Inputs, Layout, NoInput, layouts
from tests.models.overrides import CONFIGS, EXTRA
from tests.models.shrink import shrink

TRIED_LAYOUTS = 100
TRIED_SECONDS = 20.0
SEED = 20
_PARAMETERS = 60_000_000  # more than that is no small model


class NotBuilt(Exception):
    """No model, or no inputs, come of a class."""


def build(name: str, mode: str) -> Any:
    """A model by ``library/class``; the same weights each time."""
    library, _, kind = name.partition("/")
    torch.manual_seed(SEED)
    model = _BUILDERS[library](kind)
    _fill(model)
    model.train(mode == "train")
    if mode == "eval":
        model.requires_grad_(False)
    return model


def _transformers(kind: str) -> Any:
    torchvision_ops.provide()
    import transformers

    cls = getattr(transformers, kind)
    config = small_config(cls)
    with torch.device("meta"):
        size = sum(one.numel() for one in cls(config).parameters())
    if size > _PARAMETERS:
        raise NotBuilt(f"it has {size:,} parameters in small")
    torch.manual_seed(SEED)
    model = cls(config)
    if hasattr(model, "set_experts_implementation"):
        with contextlib.suppress(ValueError):
            model.set_experts_implementation("eager")  # as the modeling file has them
    return model


def small_config(cls: Any) -> Any:
    """The config of a class, in small."""
    kind = cls.config_class
    config = shrink(kind(**EXTRA.get(kind.__name__, {})), CONFIGS.get(cls.__name__, {}))
    for one in _with_nested(config):
        one._experts_implementation = "eager"
    return config


def _with_nested(config: Any) -> Iterator[Any]:
    yield config
    for value in vars(config).values():
        if hasattr(value, "to_dict") and hasattr(value, "model_type"):
            yield from _with_nested(value)


def _fill(model: Any) -> None:
    """Random numbers where a model leaves memory as it was, and nothing that hides a difference.

    What is initialised to zeros in a config's model makes outputs equal whatever was computed.
    """
    generator = torch.Generator().manual_seed(SEED)
    with torch.no_grad():
        for one in itertools.chain(model.parameters(), model.buffers()):
            if one.is_floating_point() and (not one.isfinite().all() or not one.any()):
                if one.dim() > 1:
                    one.copy_(torch.randn(one.shape, generator=generator) * 0.02)
                elif not one.isfinite().all():
                    one.zero_()


def found_layout(name: str, mode: str) -> Layout:
    """The first layout of inputs that eager mode takes in all six calls."""
    model = build(name, mode)
    met: dict[str, None] = {}
    until = time.monotonic() + TRIED_SECONDS
    for layout in itertools.islice(layouts(model, mode == "train"), TRIED_LAYOUTS):
        if time.monotonic() > until:
            break
        try:
            for call in (0, 3, 2, 1, 4, 5):
                arguments = inputs(model, call, layout, mode)
                with torch.random.fork_rng(devices=[]), torch.set_grad_enabled(mode == "train"):
                    result = model(**arguments)
            if mode == "train":
                loss(result)
            return layout
        except NoInput as error:
            met[f"nothing is known about the argument {error}"] = None
            if str(error) != "labels":
                break
        except Exception as error:  # noqa: BLE001 - whatever a model says about a wrong input
            met[f"{type(error).__name__}: {error}"[:150]] = None
    raise NotBuilt(f"no inputs: {' | '.join([*met][:4])}")


def inputs(model: Any, call: int, layout: Layout, mode: str) -> dict[str, Any]:
    """The arguments of one call, with as many placeholder tokens as the model has features."""
    made = Inputs(model, call, layout, mode == "train")
    if made.placeholder() is not None and call not in layout.placeholders:
        layout.placeholders[call] = _feature_counts(model, made.make())
        made = Inputs(model, call, layout, mode == "train")
    return made.make()


def _feature_counts(model: Any, arguments: dict[str, Any]) -> tuple[int, ...]:
    """How many features the model makes of each image or sound."""
    for name in ("get_image_features", "get_audio_features"):
        method = getattr(model, name, None) or getattr(getattr(model, "model", None), name, None)
        if method is None or ("image" in name) != ("pixel_values" in arguments):
            continue
        given = {key: value for key, value in arguments.items() if key not in _TEXT}
        known = inspect.signature(method).parameters
        with torch.no_grad(), torch.random.fork_rng(devices=[]):
            found = method(**{key: value for key, value in given.items() if key in known})
        found = getattr(found, "pooler_output", found)
        while isinstance(found, (tuple, list)) and len(found) == 1:
            found = found[0]
        if isinstance(found, Tensor):
            return (
                (found.shape[:-1].numel(),)
                if found.dim() < 3
                else (found.shape[1:-1].numel(),) * len(found)
            )
        return tuple(
            one.shape[:-1].numel() for one in found if isinstance(one, Tensor) and one.dim() > 1
        )
    return ()


_TEXT = ("input_ids", "attention_mask", "labels", "token_type_ids", "mm_token_type_ids")


def loss(result: Any) -> Tensor:
    """The model's loss, or the sum of what it returns."""
    found = getattr(result, "loss", None)
    if isinstance(found, Tensor):
        return found.sum()
    from fusepass.testing.compare import tensors

    parts = [
        one.float().sum()
        for one in tensors(result)
        if one.requires_grad and one.is_floating_point()
    ]
    if not parts:
        raise NotBuilt("nothing that it returns has a gradient")
    return torch.stack(parts).sum()


_BUILDERS = {
    "transformers": _transformers,
    "timm": others.timm,
    "torchvision": others.torchvision,
    "diffusers": others.diffusers,
}
