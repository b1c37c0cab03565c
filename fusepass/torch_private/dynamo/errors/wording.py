"""Rewrite torch's messages in the program's terms, without internal names of torch."""

from __future__ import annotations

import re

_PARTS = r"(?:\.\w+|\[(?:'[^']*'|\"[^\"]*\"|-?\d+)\])*"
_SOURCE = re.compile(rf"\b[LG]\[(['\"])(\w+?)\1\]({_PARTS})")
_FLAT = re.compile(r"\b[LG]_+(\w+?)_*\b(?=[^\w(]|\Z)")  # a name of an input in torch's graphs
_MEMBER = re.compile(r"(?:\.__dict__)?(?:\._(?:modules|parameters|buffers)|\.__dict__)\['(\w+)'\]")
_DUNDER = re.compile(r"\.__\w+__.*\Z")
_TRACKED = re.compile(r"\b(\w*?)Variable(?:Tracker)?\b(?:\((?:[^()]|\([^()]*\))*\))?")
_NOUNS = {
    "Builtin": "builtin",
    "Cell": "variable that functions share",
    "ConstDict": "dictionary",
    "Constant": "constant",
    "DefaultDict": "dictionary",
    "Dict": "dictionary",
    "FrozenDataClass": "dataclass",
    "List": "list",
    "NumpyNdarray": "NumPy array",
    "Range": "range",
    "Set": "set",
    "Size": "size",
    "Slice": "slice",
    "StringFormat": "string",
    "SymNode": "number that is not known",
    "Tensor": "tensor",
    "Tuple": "tuple",
    "UserDefinedClass": "class",
    "UserDefinedObject": "object",
    "UserFunction": "function",
    "UserMethod": "method",
    "BuiltinFunction": "function",
    "FunctoolsPartial": "partial function",
    "GetAttr": "attribute",
    "NNModule": "module",
    "NestedUserFunction": "function",
    "SkipFunction": "function",
    "TorchCtxManagerClass": "context manager",
    "TorchInGraphFunction": "function",
    "UnspecializedNNModule": "module",
}
_OPERATIONS = {
    "_get_data_attr": "`.data`",
    "autograd_function_apply": "an autograd.Function",
    "cond": "torch.cond",
    "invoke_subgraph": "a nested compiled region",
    "scan": "a scan",
    "tag_activation_checkpoint": "torch.utils.checkpoint",
    "while_loop": "torch.while_loop",
    "wrap_activation_checkpoint": "torch.utils.checkpoint",
}
_RENAMED = (
    (re.compile(r"\bSym(?:Node|Int|Float|Bool)\b"), "number that is not known"),
    (re.compile(r"\bFakeTensor(?:\((?:[^()]|\([^()]*\))*\))?"), "tensor"),
    (re.compile(r"\b(?:torch\.ops\.)?(?:aten|prims)\.(\w+)(?:\.\w+)?"), r"\1"),
    (re.compile(r"\btorch\._(?:C|refs|decomp)\.(?:_\w+\.)*(\w+)"), r"torch.\1"),
    (re.compile(r"\bHOP\b|\b[Hh]igher[ -]?[Oo]rder ?[Oo]p(?:erator)?\b"), "higher-order operator"),
    (re.compile(r"\bDyn(?:amo|anmo|amo developers)\b"), "torch.compile"),
    (
        re.compile(r"<(?:function|class|built-in function|method) '?([\w.<>]+?)'?(?: at 0x\w+)?>"),
        r"\1",
    ),
)
# What no user knows: classes and errors of Dynamo, C slots, symbols, settings, places in memory.
_UNKNOWN = re.compile(
    r"""[LG]\[['"] | ___\w | \bL_\w | \w*Variable(?:Tracker)?\b | Sym(?:Node|Int|Float|Bool)\b
    | \bHOP\b | \bObserved[A-Z]\w* | \b(?:Fake|Functional)Tensor | \bInternalTorch | \bGuardOn
    | \bTorchRuntimeError\b | \bUnsupported\b(?=:|\() | \bBackendCompilerFailed\b
    | \b(?:tp|nb|sq|mp)_\w+ | \bas_proxy\b | \b[uUsS]\d+\b | \bzu[fi]\d+ | \baten\. | \bprims\.
    | torch\._(?!check|assert|dynamo\.graph_break) | torch/_ | \bat\ 0x
    | \b(?:BUILD|CALL|DELETE|FOR|IMPORT|LOAD|MAKE|POP|RAISE|SETUP|STORE|UNPACK|YIELD)_[A-Z_]+\b
    | \bcapture_\w+ | \bfusepass_\w+ | \bAOTDispatcher\b | \bmeta\ kernel | \bVT\b | \w+_impl\b
    | \b(?:triton|cpp)_\w+ | \bpolyfill | (?:^|[ `])\w*Source\(""",
    re.VERBOSE,
)


def plain(text: str, otherwise: str) -> str:
    """One line of text without names that only torch's developers know.

    Names of values become those of the program (``self.layer`` for ``L['self'].layer``).

    Args:
        text: to be said.
        otherwise: what to say where a name remains that nothing is known of.
    """
    text = _MEMBER.sub(r".\1", text)
    text = _SOURCE.sub(_name, text)
    text = _FLAT.sub(_flat_name, text)
    text = _TRACKED.sub(lambda found: with_article(noun_of(found[1])), text)
    for pattern, word in _RENAMED:
        text = pattern.sub(word, text)
    return otherwise if _UNKNOWN.search(text) else text


def knows_only_torch(text: str) -> bool:
    """Whether a text has a name in it that only torch's developers know."""
    return _UNKNOWN.search(text) is not None


def noun_of(kind: str) -> str:
    """The noun for one of Dynamo's classes of tracked values, ``"list"`` for ``ListVariable``."""
    return _NOUNS.get(kind.removesuffix("Variable"), "value")


def with_article(noun: str) -> str:
    """``"an object"`` for ``"object"``."""
    return f"{'an' if noun[:1].lower() in tuple('aeiou') else 'a'} {noun}"


def operation(name: str) -> str:
    """The user's name of an operation that torch has a name of its own for in graphs."""
    of_numpy = name.removeprefix("wrapped_")
    return _OPERATIONS.get(name, f"NumPy's {of_numpy}" if of_numpy != name else name)


def first_sentence(text: str) -> str:
    """The first sentence of a text, without its full stop."""
    return re.split(r"(?<=[^.\s])\.(?:\s|\Z)", text.strip(), maxsplit=1)[0]


def _name(found: re.Match[str]) -> str:
    if found[2].startswith("_"):
        return "a value"
    return found[2] + _DUNDER.sub("", found[3])


def _flat_name(found: re.Match[str]) -> str:
    name = re.sub(r"_+(?:modules|parameters|buffers)_+", ".", found[1])
    return "a value" if "__" in name or name.startswith("stack") else name
