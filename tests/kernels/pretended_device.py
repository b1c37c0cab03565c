"""Inductor's code for a CUDA device that is not there, and what it computes.

Nothing here needs a device. Code with kernels in it is generated for an H200 in a process that is
made to believe in one; its kernels are compiled by Triton; and it is run on the CPU, in a process
that was told to interpret kernels (``TRITON_INTERPRET=1``).
"""

from __future__ import annotations

import contextlib
import importlib.util
import inspect
import linecache
import re
import tempfile
import types
from collections.abc import Callable
from pathlib import Path
from typing import Any

import torch
from torch import Tensor

H200 = types.SimpleNamespace(
    name="NVIDIA H200",
    multi_processor_count=132,
    major=9,
    minor=0,
    total_memory=141 << 30,
    regs_per_multiprocessor=65536,
    max_threads_per_multi_processor=2048,
    max_threads_per_block=1024,
    warp_size=32,
    shared_memory_per_block=49152,
    shared_memory_per_block_optin=232448,
    shared_memory_per_multiprocessor=233472,
    gcnArchName="",
    L2_cache_size=60 << 20,
)


def believe_in_a_device() -> None:
    """Until this process ends."""
    import torch._dynamo.device_interface as interfaces
    import torch._subclasses.fake_tensor as fake_tensors
    import torch.utils._triton as of_triton
    from torch._inductor.async_compile import AsyncCompile
    from triton.backends.compiler import GPUTarget
    from triton.runtime.driver import driver

    class Driver:
        def get_current_target(self) -> GPUTarget:
            return GPUTarget("cuda", 90, 32)

        def get_current_device(self) -> int:
            return 0

        def get_device_capability(self, *_: Any) -> tuple[int, int]:
            return 9, 0

    def properties(*_: Any) -> Any:
        return H200

    driver._active = Driver()
    cuda: Any = torch.cuda
    cuda.get_device_properties = cuda._get_device_properties = properties
    cuda.is_available = lambda: True
    cuda.device_count = lambda: 1
    cuda.current_device = lambda: 0
    cuda.get_device_name = lambda *_: H200.name
    cuda.get_device_capability = lambda *_: (9, 0)
    cuda._lazy_init = lambda: None
    torch.version.cuda = "13.0"
    of_triton.triton_hash_with_backend = lambda: "none"  # type: ignore[assignment]
    interface: Any = interfaces.CudaInterface
    interface.get_device_properties = staticmethod(properties)
    interface.Worker.get_device_properties = staticmethod(properties)
    interface.is_available = staticmethod(lambda: True)
    fake_tensors.init_gpu_context = lambda device: None
    AsyncCompile.wakeup = classmethod(lambda cls: None)  # type: ignore[method-assign,assignment]


def _on_cuda(like: Tensor) -> Tensor:
    return torch.empty_strided(like.shape, like.stride(), dtype=like.dtype, device="cuda")


def _with_a_first_dimension_that_varies(like: Tensor, mode: Any) -> Tensor:
    from torch.fx.experimental.symbolic_shapes import DimDynamic, StatelessSymbolicContext
    from torch.utils._python_dispatch import _disable_current_modes

    with _disable_current_modes():
        real = torch.empty_strided(like.shape, like.stride(), dtype=like.dtype, device="meta")
    kinds = [DimDynamic.DYNAMIC] + [DimDynamic.STATIC] * (like.dim() - 1)
    context = StatelessSymbolicContext(dynamic_sizes=kinds)
    symbolic: Tensor = mode.from_tensor(real, symbolic_context=context)
    return symbolic


def code_of(
    program: Callable[..., Any],
    given: list[Tensor],
    *,
    varies: bool = False,
    edit: Callable[[torch.fx.GraphModule], Any] | None = None,
) -> str:
    """What Inductor generates for a function of CUDA tensors.

    Args:
        program: returns a tensor or a list of tensors.
        given: on the CPU; all that counts is their dtypes, sizes and strides.
        varies: whether the first dimension of the first one is not known beforehand.
        edit: is given the graph before Inductor is.
    """
    from torch._inductor.debug import DebugContext
    from torch._inductor.decomposition import select_decomp_table
    from torch._inductor.graph import GraphLowering
    from torch._inductor.virtualized import V
    from torch._subclasses.fake_tensor import FakeTensorMode
    from torch.fx.experimental.proxy_tensor import make_fx
    from torch.fx.experimental.symbolic_shapes import ShapeEnv

    shapes = ShapeEnv()
    with FakeTensorMode(shape_env=shapes) as mode:
        fakes = [_on_cuda(one) for one in given]
        if varies:
            fakes[0] = _on_cuda(_with_a_first_dimension_that_varies(given[0], mode))
        gm = make_fx(program, select_decomp_table(), _allow_non_fake_inputs=True)(*fakes)
    sizes = [one for one in fakes[0].shape if isinstance(one, torch.SymInt)]
    if sizes:  # Inductor takes its numbers from inputs
        (size,) = sizes
        first = next(iter(gm.graph.nodes))
        with gm.graph.inserting_before(first):
            gm.graph.placeholder("size").meta["val"] = size
        gm.recompile()
    inputs = [*sizes, *fakes]
    if edit is not None:
        edit(gm)
    lowering = GraphLowering(gm, example_inputs=inputs, shape_env=shapes if varies else None)
    with (
        V.set_graph_handler(lowering),
        V.set_fake_mode(mode),
        V.set_debug_handler(DebugContext()),
    ):
        lowering.run(*inputs)
        made = lowering.codegen()
    text = made[0]
    return str(getattr(text, "value", text))


def compiled_kernels(code: str) -> dict[str, int]:
    """Lines of machine code that Triton makes from each of our kernels' text."""
    found = {}
    for name, text in re.findall(
        r"async_compile\.triton\('(fusepass\w*)', '''(.*?)'''", code, re.DOTALL
    ):
        found[name] = _machine_code(getattr(_module_of(text), name)).count("\n")
    return found


def _machine_code(launcher: Any) -> str:
    import triton
    from triton.backends.compiler import GPUTarget
    from triton.compiler import ASTSource

    (config,) = launcher.configs
    meta = launcher.triton_meta
    constants = {**meta["constants"], **config.kwargs}
    given = {
        k: v for k, v in constants.items() if isinstance(k, str) and k in launcher.fn.arg_names
    }
    attributes = meta["configs"][0]
    source = ASTSource(launcher.fn, meta["signature"], given, attributes)
    options = {"num_warps": config.num_warps, "num_stages": config.num_stages}
    made = triton.compile(source, target=GPUTarget("cuda", 90, 32), options=options)
    return str(made.asm["ptx"])


def results(code: str, given: list[Any]) -> list[Tensor]:
    """What the code computes of CPU tensors, kernels through Triton's interpreter.

    Args:
        code: as :func:`code_of` gives it, where Triton was told to interpret.
        given: in the order of the code's inputs, numbers for sizes included.
    """
    from torch._inductor.async_compile import AsyncCompile

    def loaded(self: Any, name: str, text: str, **_: Any) -> Any:
        launcher = getattr(_module_of(text), name)
        return _Interpreted(launcher) if name.startswith("fusepass") else launcher

    compiler: Any = AsyncCompile
    compiler.triton, compiler.wait = loaded, lambda self, scope: None
    of_torch: Any = torch._C
    of_torch._cuda_getCurrentRawStream = lambda device: 0
    device: Any = torch.cuda
    device._DeviceGuard, device.set_device = lambda index: contextlib.nullcontext(), lambda index: 0
    with tempfile.TemporaryDirectory() as folder:
        file = Path(folder) / "code.py"
        file.write_text(code)
        module = _loaded(file)
    scope = vars(module)
    scope["empty_strided_cuda"] = lambda *sizes: torch.empty_strided(*sizes[:2], dtype=sizes[2])
    return list(scope["call"](list(given)))


class _Interpreted:
    """In the place of Inductor's launcher, which the interpreter's own would not tell apart."""

    def __init__(self, launcher: Any) -> None:
        self.launcher = launcher

    def run(self, *args: Any, stream: int) -> None:
        """As the generated code calls it: arguments that are no constants, then the grid's."""
        meta, (config,) = self.launcher.triton_meta, self.launcher.configs
        parameters = inspect.signature(self.launcher.fn.fn).parameters.values()
        names = [one.name for one in parameters if one.annotation is one.empty]
        fixed = {k: v for k, v in meta["constants"].items() if k not in names} | config.kwargs
        *given, x, y, z = args
        passed = dict(zip(names, given, strict=True)) | fixed
        self.launcher.fn[x, y, z](**passed)


def _module_of(text: str) -> types.ModuleType:
    with tempfile.TemporaryDirectory() as folder:
        file = Path(folder) / "kernel.py"
        file.write_text(text)
        return _loaded(file)


def _loaded(file: Path) -> types.ModuleType:
    spec = importlib.util.spec_from_file_location(file.stem, file)
    assert spec is not None
    assert spec.loader is not None
    module = importlib.util.module_from_spec(spec)
    linecache.cache[str(file)] = 0, None, file.read_text().splitlines(True), str(file)  # type: ignore[assignment]
    spec.loader.exec_module(module)
    return module
