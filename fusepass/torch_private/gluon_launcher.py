"""Inductor: its launcher of a kernel, for one in Gluon; generated code imports it. Run on 2.11.

See ``kernels/gluon_stub.py``. Classes stand at the top level because Inductor's compiling processes
send launchers back.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from torch._inductor.runtime import triton_heuristics as of
from torch._inductor.runtime.runtime_utils import triton_hash_to_path_key
from torch._inductor.runtime.triton_helpers import set_driver_to_gpu
from torch._inductor.triton_bundler import TritonBundler

_THREADS = 32  # in a warp


class GluonLauncher(of.CachingAutotuner):
    """Compiles with Gluon's compiler."""

    def _precompile_config(self, cfg: Any) -> Any:
        import triton
        from triton.backends.compiler import GPUTarget
        from triton.experimental.gluon._runtime import GluonASTSource

        meta = self._create_compile_meta(cfg)
        set_driver_to_gpu()
        arguments = meta["signature"], meta["constants"], meta["configs"][0]
        binary = triton.compile(
            GluonASTSource(self.fn, *arguments),
            target=GPUTarget(meta["device_type"], meta["cc"], _THREADS),
            options=self._create_compile_options(cfg, meta),
        )
        device = self.triton_meta.get("device", 0)
        TritonBundler.put(triton_hash_to_path_key(binary.hash), device)
        return of.TritonCompileResult(binary, cfg, meta, self.inductor_meta)


class GluonDebugLauncher(GluonLauncher, of.DebugAutotuner):
    """The same for one that also measures."""


def use(kernel: Any, namespace: Mapping[str, Any]) -> None:
    """Have the launcher that generated code made of a stub compile a kernel instead.

    Args:
        kernel: a ``gluon.jit`` function with the stub's parameters.
        namespace: of the generated code, with one launcher.
    """
    (launcher,) = [one for one in namespace.values() if isinstance(one, of.CachingAutotuner)]
    measures = isinstance(launcher, of.DebugAutotuner)
    launcher.__class__ = GluonDebugLauncher if measures else GluonLauncher
    launcher.fn = kernel
