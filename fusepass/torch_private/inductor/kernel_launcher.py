"""Launch fusepass's kernels by Inductor's C++ launcher; generated code imports this file.

Run on 2.11.

See ``kernels/codegen/inductor_source.py``. Inductor launches kernels of its own by a function in
C++ that knows their arguments' types, kernels of the user by Triton's launcher, which asks the
driver about every pointer. Here both take the short way, kernels in Gluon
(``kernels/gemm/hopper/gluon_stub.py``) and such that need memory for descriptors included; those
whose descriptors the host makes are launched by ``tma_launch.py``.

Classes stand at the top level because Inductor's compiling processes send launchers back.
"""

from __future__ import annotations

import copy
import functools
import inspect
from collections.abc import Mapping
from types import MappingProxyType
from typing import Any

import torch
from torch._inductor.runtime import triton_heuristics as of
from torch._inductor.runtime.hints import HeuristicType
from torch._inductor.runtime.runtime_utils import triton_hash_to_path_key
from torch._inductor.runtime.static_triton_launcher import StaticallyLaunchedCudaKernel
from torch._inductor.runtime.triton_helpers import set_driver_to_gpu
from torch._inductor.triton_bundler import TritonBundler

from fusepass.torch_private.cuda.tma_descriptors import Matrix, descriptor, layout_of, round_to_tf32
from fusepass.torch_private.cuda.tma_launch import DTYPES, THREADS, MappedKernel


class KernelWithScratch(StaticallyLaunchedCudaKernel):
    """A kernel that is given memory with each launch, in which it makes its descriptors."""

    def __init__(self, kernel: Any, bytes_each: int) -> None:
        super().__init__(kernel)
        self.bytes_each = bytes_each  # for each program

    def run(self, grid_x: int, grid_y: int, grid_z: int, stream: int, *args: object) -> None:
        """Launch it; memory is of the current stream, as the launch is."""
        size = grid_x * grid_y * grid_z * self.bytes_each
        scratch = torch.empty(size, dtype=torch.int8, device="cuda")
        more = (scratch, None) if self.has_profile_scratch else (scratch,)
        kinds, given = self.arg_tys + "O" * len(more), (*args, *more)
        grid = grid_x, grid_y, grid_z
        launch = self.C_impl._launch_kernel
        launch(self.function, *grid, self.num_warps, self.shared, kinds, given, stream)


class DescribedResult(of.TritonCompileResult):
    """A kernel that takes descriptors, where only Triton's launcher will do: a debugger asks so."""

    matrices: Mapping[str, Matrix]

    def make_launcher(self) -> Any:
        """What launches the kernel, with tensors in place of its descriptors."""
        round_to_tf32(self.kernel, self.matrices)
        launcher: Any = super().make_launcher()
        *names, _ = inspect.signature(launcher).parameters  # the last is the stream

        @functools.wraps(launcher)
        def launch(*args: Any, **kwargs: Any) -> Any:
            given = dict(zip(names, args, strict=False))
            made = {name: descriptor(given, name, of) for name, of in self.matrices.items()}
            rest = args[len(names) :]
            return launcher(*(given | made).values(), *rest, **kwargs)

        return launch


class DirectLauncher(of.CachingAutotuner):
    """Launches by Inductor's launcher, or the like."""

    matrices: Mapping[str, Matrix] = MappingProxyType({})  # of which the host makes descriptors

    def _precompile_config(self, cfg: Any) -> Any:
        return self._direct(super()._precompile_config(cfg))

    def _build_fast_launcher(self, launcher: Any) -> Any:
        """None where a kernel's ``run`` does what torch's faster way (2.13) would leave out."""
        kernel = getattr(launcher.__globals__.get("runner"), "__self__", None)
        if isinstance(kernel, KernelWithScratch | MappedKernel):
            return None
        faster = getattr(super(), "_build_fast_launcher", None)
        return None if faster is None else faster(launcher)

    def _direct(self, result: Any) -> Any:
        """The result of a compile, to be launched directly if that can be."""
        if type(result) is not of.TritonCompileResult:
            return result
        binary = copy.copy(result.kernel)
        each = getattr(binary.metadata, "global_scratch_size", 0)
        if each:
            binary.metadata = binary.metadata._replace(global_scratch_size=0)
        # With pointers in place of descriptors, which the launcher of torch before 2.15 has not.
        plain = copy.copy(binary)
        plain.src = copy.copy(binary.src)
        plain.src.signature = binary.src.signature | dict.fromkeys(self.matrices, "*i8")
        able = of.StaticTritonCompileResult.can_statically_launch
        kind = HeuristicType.POINTWISE  # kernels of the user are left out, which ours need not be
        found = able(plain, self.inductor_meta, self.triton_meta, kind)
        made = result.config, result.compile_meta, result.inductor_meta
        if found is None and not self.matrices:
            return result
        if found is None:
            described = DescribedResult(result.kernel, *made)
            described.matrices = self.matrices
            return described
        binary._cubin_path = plain._cubin_path
        if each:
            found = KernelWithScratch(binary, each)
        elif self.matrices:
            found = MappedKernel(binary, self.matrices)
        return of.StaticTritonCompileResult(found, *made)


class GluonLauncher(DirectLauncher):
    """Compiles with Gluon's compiler."""

    def _precompile_config(self, cfg: Any) -> Any:
        import triton
        from triton.backends.compiler import GPUTarget
        from triton.experimental.gluon._runtime import GluonASTSource

        meta = self._create_compile_meta(cfg)
        set_driver_to_gpu()
        kinds = meta["signature"] | {
            name: f"tensordesc<{kind}{list(one.tile)},{layout_of(DTYPES[kind], one)!r}>"
            for name, one in self.matrices.items()
            if (kind := meta["signature"][name].removeprefix("*"))
        }
        arguments = kinds, meta["constants"], meta["configs"][0]
        binary = triton.compile(
            GluonASTSource(self.fn, *arguments),
            target=GPUTarget(meta["device_type"], meta["cc"], THREADS),
            options=self._create_compile_options(cfg, meta),
        )
        device = self.triton_meta.get("device", 0)
        TritonBundler.put(triton_hash_to_path_key(binary.hash), device)
        return self._direct(of.TritonCompileResult(binary, cfg, meta, self.inductor_meta))


class GluonDebugLauncher(GluonLauncher, of.DebugAutotuner):
    """The same for one that also measures."""


def use(
    kernel: Any,
    namespace: Mapping[str, Any],
    described: Mapping[str, tuple[str, str, str, tuple[int, int], bool]],
) -> None:
    """Have the launcher that generated code made of a stub compile a kernel instead.

    Args:
        kernel: a ``gluon.jit`` function with the stub's parameters.
        namespace: of the generated code, with one launcher.
        described: of these of its parameters the launcher makes descriptors; see ``Matrix``.
    """
    launcher = _launcher_in(namespace)
    launcher.matrices = {name: Matrix(*given) for name, given in described.items()}
    measures = isinstance(launcher, of.DebugAutotuner)
    launcher.__class__ = GluonDebugLauncher if measures else GluonLauncher
    launcher.fn = kernel


def direct(namespace: Mapping[str, Any]) -> None:
    """Have the launcher that generated code made of a kernel launch directly, unless it measures.

    Args:
        namespace: of the generated code, with one launcher.
    """
    launcher = _launcher_in(namespace)
    if type(launcher) is of.CachingAutotuner:
        launcher.__class__ = DirectLauncher


def _launcher_in(namespace: Mapping[str, Any]) -> Any:
    (launcher,) = [one for one in namespace.values() if isinstance(one, of.CachingAutotuner)]
    return launcher
