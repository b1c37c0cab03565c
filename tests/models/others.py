"""Build small models of timm, torchvision and diffusers."""

from __future__ import annotations

import importlib
import inspect
from typing import Any

import torch

from tests.models import torchvision_ops
from tests.models.overrides import ARGUMENTS
from tests.models.shrink import small


def timm(name: str) -> Any:
    """A model by its name in timm, which has small ones of most families."""
    torchvision_ops.provide()
    import timm as library

    return library.create_model(
        name, pretrained=False, num_classes=10, **ARGUMENTS.get(f"timm/{name}", {})
    )


def torchvision(name: str) -> Any:
    """A model by its name in torchvision."""
    torchvision_ops.provide()
    import torchvision.models as library

    given: dict[str, Any] = {"weights": None, "num_classes": 5}
    maker = library.get_model_builder(name)
    known = inspect.signature(maker).parameters
    if "weights_backbone" in known:
        given["weights_backbone"] = None
    if "num_classes" not in known and "kwargs" not in known:
        del given["num_classes"]
    if library.optical_flow.__name__ in maker.__module__:
        del given["num_classes"]
    if ".detection" in maker.__module__ and not name.startswith("ssd"):
        given |= {"min_size": 64, "max_size": 128}
    return maker(**(given | ARGUMENTS.get(f"torchvision/{name}", {})))


def diffusers(name: str) -> Any:
    """A model of a class of diffusers, its arguments made small by their names."""
    torchvision_ops.provide()
    library = importlib.import_module("diffusers")
    kind = getattr(library, name)
    told = ARGUMENTS.get(f"diffusers/{name}", {})
    given: dict[str, Any] = {}
    for key, parameter in inspect.signature(kind.__init__).parameters.items():
        if key == "self" or key in told or parameter.default is parameter.empty:
            continue
        given[key] = _of_diffusion(key, parameter.default)
    with torch.device("cpu"):
        return kind(
            **{key: value for key, value in (given | told).items() if key not in ("args", "kwargs")}
        )


def _of_diffusion(name: str, value: Any) -> Any:
    if name.startswith("axes_dim") and isinstance(value, (list, tuple)):
        return type(value)([4, 6, 6] if len(value) == 3 else [8] * len(value))
    if name in ("sample_size", "sample_height", "sample_width") and isinstance(value, int):
        return min(value, 16)
    if name in (
        "num_layers",
        "num_single_layers",
        "layers_per_block",
        "num_refiner_layers",
    ) and isinstance(value, int):
        return min(value, 2)
    return small(name, value)


def candidates(library: str) -> list[str]:
    """Names of models of a library, in small where there are several of a family."""
    return {"timm": _timm_names, "torchvision": _torchvision_names, "diffusers": _diffusers_names}[
        library
    ]()


_SMALL = (
    "test_",
    "atto",
    "femto",
    "pico",
    "nano",
    "tiny",
    "xxs",
    "xs",
    "small",
    "b0",
    "s0",
    "18",
    "10",
    "t0",
    "m0",
)


def _timm_names() -> list[str]:
    torchvision_ops.provide()
    import timm as library

    chosen: list[str] = []
    for module in library.list_modules():
        names = library.list_models(module=module)
        ranked = sorted(names, key=lambda name: (_rank(name), len(name)))
        chosen += ranked[:2]
    return chosen


def _rank(name: str) -> int:
    return next((i for i, part in enumerate(_SMALL) if part in name), len(_SMALL))


def _torchvision_names() -> list[str]:
    torchvision_ops.provide()
    import torchvision.models as library

    large = (
        "_h_14",
        "_l_16",
        "_l_32",
        "128gf",
        "regnet_y_32",
        "_x_32",
        "101",
        "152",
        "b5",
        "b6",
        "b7",
        "161",
        "201",
        "169",
        "vgg1",
        "_l",
        "_b",
        "_s",
    )
    return [name for name in library.list_models() if not any(part in name for part in large)]


def _diffusers_names() -> list[str]:
    torchvision_ops.provide()
    library = importlib.import_module("diffusers")
    found = []
    for name in dir(library):
        if name.startswith(("FrozenDict", "Flax", "Auto")) and not name.startswith("Autoencoder"):
            continue
        kind = getattr(library, name, None)
        if isinstance(kind, type) and issubclass(kind, torch.nn.Module) and name != "ModelMixin":
            found.append(name)
    return found
