"""What in a graph, as it is handed on to be compiled, makes the host wait when it runs."""

from __future__ import annotations

from typing import Any

from torch import Tensor, fx

from fusepass.capture.nodes.select_node import one_arm
from fusepass.graph.ops.op_names import op_name, tensor_value
from fusepass.report.decision import Decision
from fusepass.report.host_syncs import operations, residence
from fusepass.report.host_syncs.kinds import Kind
from fusepass.report.host_syncs.observe import Wait
from fusepass.report.host_syncs.place import ProgramPlace
from fusepass.report.log import GraphRecord
from fusepass.torch_private.fx.graphs import cond_operator, operator_name, source_of, tree_map

_ATEN = {
    "getitem": "index",
    "setitem": "index_put_",
    "__setitem__": "index_put_",
    "unique": "_unique2",
    "to": "_to_copy",
    "cpu": "_to_copy",
    "cuda": "_to_copy",
    "tolist": "item",
    "inverse": "_linalg_check_errors",
    "linalg_inv": "_linalg_check_errors",
    "linalg_solve": "_linalg_check_errors",
    "linalg_cholesky": "_linalg_check_errors",
    "cholesky": "_linalg_check_errors",
    "linalg_eigh": "_linalg_eigh",
    "svd": "_linalg_svd",
    "linalg_svd": "_linalg_svd",
}


def read_back(record: GraphRecord) -> list[Wait]:
    """The one wait behind a graph for what is raised and written there; none if nothing is."""
    if not record.reads_back:
        return []
    return [Wait(Kind.READ_BACK, "fusepass", ProgramPlace(record.file, record.line))]


def waits_in_graph(gm: fx.GraphModule, decisions: list[Decision]) -> list[Wait]:
    """Calls in ``gm`` and its nested graphs that make the host wait.

    Without a device in the graph its tensors are taken to be on one; copies cannot be seen then.
    Decisions say at which lines the graph's conditions are.
    """
    nodes = [
        node
        for module in gm.modules()
        if isinstance(module, fx.GraphModule)
        for node in module.graph.nodes
    ]
    real = any(residence.really(v) for v in map(tensor_value, nodes) if v is not None)
    found = [wait for node in nodes for wait in _of_node(node, real)]
    return found + _conditions(nodes, decisions)


def _of_node(node: fx.Node, real: bool) -> list[Wait]:
    # An operator that is not torch's own (torchvision::nms) has its name from the registry.
    name = op_name(node) or (operator_name(node.target) or (None, None))[1]
    if name is None or node.op not in ("call_function", "call_method"):
        return []
    args = list(tree_map(_value, node.args))
    kwargs = dict(tree_map(_value, node.kwargs))
    if name == "where" and len(args) + len(kwargs) == 1:
        name = "nonzero"
    if name == "one_hot":
        classes = args[1] if len(args) > 1 else kwargs.get("num_classes", -1)
        name = "_unique2" if classes == -1 else name
    name = _ATEN.get(name, name)
    if name in ("index", "index_put_") and not _index(args):
        return []
    if not any(isinstance(value, Tensor) for value in args):
        return []
    place = ProgramPlace(*source_of(node))
    waits = operations.waits_of(
        name, args, kwargs, tensor_value(node), residence.really if real else lambda _: True
    )
    return [Wait(kind, op_name(node) or name, place, times) for kind, times in waits]


def _index(args: list[Any]) -> bool:
    """Bring ``x[index]`` and ``x[index] = value`` into the form of ATen; False if not indexing."""
    if not isinstance(args[0], Tensor):
        return False
    given = args[1] if isinstance(args[1], (tuple, list)) else [args[1]]
    args[1] = [index for index in given if isinstance(index, Tensor)]
    # A number written through a mask is a masked_fill.
    return bool(args[1]) and (len(args) < 3 or isinstance(args[2], Tensor))


def _conditions(nodes: list[fx.Node], decisions: list[Decision]) -> list[Wait]:
    """Each torch.cond reads its predicate."""
    found = [n for n in nodes if n.target in (cond_operator(), one_arm)]
    known = [d for d in decisions if d.treatment == "cond"]
    places = [(d.file, d.line) for d in known]
    if len(places) != len(found):
        places = [source_of(node) for node in found]
    return [Wait(Kind.BRANCH, "cond", ProgramPlace(*place)) for place in places]


def _value(leaf: Any) -> Any:
    if not isinstance(leaf, fx.Node):
        return leaf
    return leaf.meta.get("example_value", leaf.meta.get("val"))
