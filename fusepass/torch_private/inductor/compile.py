"""Call Inductor: options, hand-off, caches. Run on torch 2.11 to 2.15."""

from __future__ import annotations

import contextlib
import functools
import os
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from typing import Any

import torch
import torch._dynamo
import torch._inductor
from torch import fx

from fusepass.torch_private.fx.graphs import cond_operator, while_loop_operator
from fusepass.torch_private.inductor import generated_code, input_checks
from fusepass.torch_private.inductor.freezing import FREEZING
from fusepass.torch_private.versions import torch_version


def checked_inductor_option(name: str, value: Any, given_as: str) -> Any:
    """Return ``value`` if Inductor's config has ``name`` and takes such a value.

    Raises:
        UnknownOption: no such key.
        OptionType: a value of another type than the key's.
    """
    from torch._inductor import config

    from fusepass.errors import OptionType, UnknownOption

    known = config.get_config_copy()
    if name not in known:
        raise UnknownOption(given_as, [f"inductor.{key}" for key in known])
    expected = config.get_type(name)  # type: ignore[attr-defined]
    if isinstance(expected, type) and not isinstance(value, expected):
        raise OptionType(given_as, value, f"of type {expected.__name__}")
    return value


def cond_config(gm: fx.GraphModule) -> dict[str, Any]:
    """Settings under which Inductor computes the ``torch.cond`` calls of a graph right.

    Before torch 2.15 an arm that constant folding makes an identity (``x + 0 * y``) hands its
    operand back as if it were fresh memory, and what comes next overwrites it.
    """
    if torch_version() >= (2, 15):
        return {}
    return {"joint_graph_constant_folding": False} if _calls(gm, cond_operator()) else {}


def while_loop_config(gm: fx.GraphModule) -> dict[str, Any]:
    """Settings under which Inductor runs the ``torch.while_loop`` calls of a graph.

    It reads the condition back in each round, which no CUDA graph can hold. From torch 2.11 to 2.15
    it splits a graph for CUDA graphs at a ``torch.cond``, but not at a ``torch.while_loop``: the
    call raises.
    """
    return {"triton.cudagraphs": False} if _calls(gm, while_loop_operator()) else {}


def _calls(gm: fx.GraphModule, operator: Any) -> bool:
    modules = [m for m in gm.modules() if isinstance(m, fx.GraphModule)]
    return any(node.target is operator for m in modules for node in m.graph.nodes)


def mode_config(mode: str) -> dict[str, Any]:
    """Inductor's config changes behind a ``mode`` of torch.compile."""
    if mode == "default":
        return {}
    return dict(torch._inductor.list_mode_options(mode))


def inductor_config_value(name: str) -> Any:
    """Current value of one Inductor config key, the object itself; None where there is no key."""
    from torch._inductor import config

    return getattr(config, name, None)


def compile_with_inductor(
    gm: fx.GraphModule,
    inputs: Sequence[Any],
    patches: Mapping[str, Any],
    region_name: str | None = None,
) -> Callable[..., Any]:
    """Hand a graph to Inductor (through AOTAutograd) with these config patches.

    Going through torch's own wrapper keeps what it does beside the call: CUPTI settings for CUDA
    graphs and the bisector's config changes. ``region_name`` is what 2.13 and later call ``name``.
    """
    input_checks.install()
    generated_code.keep_order_of_writes()
    generated_code.keep_numbers()
    if patches.get(FREEZING, inductor_config_value(FREEZING)):
        generated_code.keep_nan()
    wrapper = torch._TorchCompileInductorWrapper
    if torch_version() >= (2, 13):
        compiler = wrapper(None, None, None, region_name)
    else:
        compiler = wrapper(None, None, None)
    with_cudagraphs = {k: v for k, v in patches.items() if k == "triton.cudagraphs"}
    if with_cudagraphs:
        compiler = type(compiler)(None, with_cudagraphs, None)
        if torch_version() >= (2, 13):
            compiler.name = region_name
    compiler.config = {**compiler.config, **patches}
    return compiler(gm, inputs)  # type: ignore[no-any-return]


def reset_cudagraphs() -> None:
    """Free the CUDA-graph trees, as Inductor's own ``reset`` does."""
    if torch.cuda.is_available():
        from torch._inductor.cudagraph_trees import reset_cudagraph_trees

        reset_cudagraph_trees()


def compile_decomposed_eager(
    gm: fx.GraphModule, inputs: Sequence[Any], compiler: Callable[..., Any]
) -> Callable[..., Any]:
    """Hand a graph to AOTAutograd with Inductor's decompositions; ``compiler`` gets the results."""
    from torch._dynamo.backends.common import aot_autograd
    from torch._inductor import lowering  # noqa: F401 - a decomposition of pooling names it
    from torch._inductor.decomposition import select_decomp_table

    compiled = aot_autograd(
        fw_compiler=compiler,
        decompositions=select_decomp_table(),
        keep_inference_input_mutations=True,  # as Inductor has it, and `x.data = y` asks for
    )
    return compiled(gm, inputs)


def run_op_by_op(gm: fx.GraphModule, inputs: list[Any]) -> Callable[..., Any]:
    """The graph itself as what runs, in the calling convention of AOTAutograd."""
    from torch._dynamo.backends.debugging import boxed_nop

    return boxed_nop(gm, inputs)


def forward_of(gm: fx.GraphModule) -> Callable[..., Any]:
    """The graph itself as what runs. Calling the module would print a traceback if that fails.

    Where it fails, grad mode is left as it was found, as by the end of a ``with`` in eager.
    """
    from torch.fx._lazy_graph_module import _LazyGraphModule

    _LazyGraphModule.force_recompile(gm)
    forward = gm.forward
    if not gm.graph.find_nodes(op="call_function", target=torch._C._set_grad_enabled):
        return forward

    @functools.wraps(forward)
    def run(*args: Any) -> Any:
        enabled = torch.is_grad_enabled()
        try:
            return forward(*args)
        except BaseException:
            torch._C._set_grad_enabled(enabled)
            raise

    return run


def inductor_cache_folder() -> str:
    """The folder Inductor keeps generated code and compiled graphs in; it may not exist yet."""
    from torch._inductor.runtime.cache_dir_utils import default_cache_dir

    given = os.environ.get("TORCHINDUCTOR_CACHE_DIR")
    return str(Path(default_cache_dir() if given is None else given).absolute())


def inductor_counters() -> Any:
    """The ``inductor`` counters, whose changes travel inside cached artifacts."""
    from torch._dynamo.utils import counters

    return counters["inductor"]


def clear_inductor_caches() -> None:
    """Drop Inductor's in-memory caches, so that a compile reads (or misses) those on disk."""
    from torch._inductor.utils import clear_caches

    clear_caches()


def clear_compilation_metrics() -> None:
    """Forget the frames Dynamo has compiled so far."""
    from torch._dynamo.utils import clear_compilation_metrics as clear

    clear()


def compilation_metrics() -> list[Any]:
    """One record per frame Dynamo compiled or gave up (the last 64), with ``graph_op_count``."""
    from torch._dynamo.utils import get_compilation_metrics

    return list(get_compilation_metrics())


# --- Keep tensors that a graph makes on the CPU and returns on the CPU, under CUDA graphs ---------
# Read in torch 2.11, 2.13, 2.15.
#
# There Inductor's pass over constructors makes them on the GPU, and hands out what is on the GPU: a
# result on another device than eager's.


def host_output_config(gm: fx.GraphModule, patches: Mapping[str, Any]) -> dict[str, Any]:
    """Settings under which what ``gm`` makes on the CPU and returns stays there.

    Without graph partitions Inductor moves no output; it then leaves the CUDA graph out, which
    costs this graph time and no other.
    """
    from torch._inductor import config

    if not patches.get("triton.cudagraphs", config.triton.cudagraphs):
        return {}
    devices = {value.device.type for node in gm.graph.nodes if (value := _value(node)) is not None}
    moved = "cuda" in devices and any(map(_is_moved, gm.graph.output_node().all_input_nodes))
    return {"graph_partition": False} if moved else {}


def _is_moved(node: fx.Node) -> bool:
    """Whether everything a CPU result is computed from can be made on the GPU just as well."""
    open_nodes, seen = [node], {node}
    if node.op == "placeholder" or not _on_cpu(node):
        return False
    while open_nodes:
        node = open_nodes.pop()
        inputs = [n for n in node.all_input_nodes if _value(n) is not None]
        if node.op == "placeholder" and _value(node).dim() > 0:  # type: ignore[union-attr]
            return False
        if any(not _on_cpu(one) for one in inputs) or node.op == "get_attr":
            return False
        fresh = [one for one in inputs if one not in seen]
        seen.update(fresh)
        open_nodes += fresh
    return True


def _on_cpu(node: fx.Node) -> bool:
    value = _value(node)
    return value is not None and value.device.type == "cpu"


def _value(node: fx.Node) -> torch.Tensor | None:
    value = node.meta.get("example_value")
    return value if isinstance(value, torch.Tensor) else None


def has_varying_floats(gm: fx.GraphModule) -> bool:
    """Whether a graph is given a Python float that may differ from call to call."""
    reads = gm.graph.find_nodes(op="call_method", target="item")
    floats = (n for n in reads if isinstance(n.meta.get("example_value"), torch.SymFloat))
    return any(isinstance(n.args[0], fx.Node) and n.args[0].op == "placeholder" for n in floats)


def without_autograd_cache() -> contextlib.AbstractContextManager[None]:
    """AOTAutograd compiles anew, before torch 2.15, where it may take one number for another.

    Where a float is asked for as such, as by what the program keeps of it (``self.rate *= 0.9``),
    torch compiles for the value of the moment, with a guard, which gets lost where the cache knows
    the graph from another value (pytorch/pytorch issue 194976).
    """
    from torch._functorch import config

    known = torch_version() >= (2, 15)
    return contextlib.nullcontext() if known else config.patch(enable_autograd_cache=False)
