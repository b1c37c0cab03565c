"""Whether a tensor is in the device's memory or in the host's.

With a GPU its device says so. Without one (a CI machine) the program runs on the CPU *as if* there
were one: what exists before the call is taken to be on the device, and so is what is made with the
device of such a tensor or computed from one; what is made without a device, or on ``"cpu"``, is on
the host, as it would be.
"""

from __future__ import annotations

from collections.abc import Iterable
from typing import Any

import torch
from torch import Tensor

from fusepass.torch_private.fx.dispatch_watch import tensor_keyed_dict

# Functions of torch that make a tensor where their ``device`` argument says.
MAKERS = frozenset(
    """
    tensor as_tensor asarray zeros ones full empty eye arange range linspace logspace rand randn
    randint randperm empty_strided empty_permuted tril_indices triu_indices from_numpy frombuffer
    normal scalar_tensor complex polar hann_window hamming_window blackman_window bartlett_window
    kaiser_window sparse_coo_tensor
    """.split()
)


def no_device() -> bool:
    """Whether this machine has nothing but its CPU."""
    return not torch.accelerator.is_available()


def really(tensor: Tensor) -> bool:
    """Whether a tensor is on a device other than the CPU."""
    return tensor.device.type not in ("cpu", "meta")


class AsIf:
    """Keeps apart, among CPU tensors, those of the host and those of the device there is not.

    Args:
        unknown: where a tensor is of which nothing says it: on the host if torch's functions are
            watched, which would have said so.

    Attributes:
        default: where a tensor is that an operation makes out of nothing just now.
    """

    def __init__(self, *, unknown: bool = False) -> None:
        self.default = self.unknown = unknown
        self._on_host = tensor_keyed_dict()
        self._devices: dict[int, tuple[Any, bool]] = {}  # id of a torch.device -> it, on the device

    def __call__(self, tensor: Tensor) -> bool:
        """Whether a tensor is on the device."""
        return tensor.device.type != "meta" and tensor not in self._on_host

    def put(self, tensors: Iterable[Any], on_device: bool) -> None:
        """Say where tensors are."""
        for tensor in tensors:
            if isinstance(tensor, Tensor):
                if on_device:
                    self._on_host.pop(tensor, None)
                else:
                    self._on_host[tensor] = True

    def computed(self, inputs: Iterable[Any], outputs: Iterable[Any]) -> None:
        """Results are where their operands are: on the device if one of them is.

        A result that is one of the operands (an operation in place) stays where it is.
        """
        operands = [value for value in inputs if isinstance(value, Tensor)]
        known = {id(value) for value in operands}
        where = any(map(self, operands)) if operands else self.default
        self.put((v for v in outputs if id(v) not in known), where)

    def note_device(self, device: Any, on_device: bool) -> Any:
        """Remember what a ``torch.device`` object stands for; returns it."""
        self._devices[id(device)] = device, on_device
        return device

    def names_device(self, device: Any) -> bool:
        """Whether a ``device`` argument means the device: None and ``"cpu"`` mean the host.

        A ``torch.device`` that was there before the call means the device.
        """
        if device is None or isinstance(device, str):
            return device is not None and not device.startswith("cpu")
        if isinstance(device, torch.device):
            return self._devices.get(id(device), (device, True))[1]
        return True
