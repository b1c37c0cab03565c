"""Record values that only a message needs, to compute them after the graph.

Run on torch 2.11 to 2.15.

The message is an exception's, or a line that is printed or logged. While it is traced
(:func:`message_tracing`), values are recorded that Dynamo would otherwise refuse or specialise:
numbers read from tensors, results whose size depends on data, text made of tensors and of sizes
that vary, and the user's own exceptions.
"""

from __future__ import annotations

import contextlib
import copy
import functools
import operator
import string
from collections.abc import Callable, Iterator
from typing import Any

import torch
import torch._dynamo
from torch._dynamo import exc, variables
from torch._dynamo.symbolic_convert import InstructionTranslatorBase
from torch._dynamo.variables.base import ValueMutationNew, VariableTracker
from torch._dynamo.variables.functions import LocalGeneratorObjectVariable as Generator
from torch._dynamo.variables.misc import StringFormatVariable
from torch._dynamo.variables.user_defined import UserDefinedExceptionClassVariable

from fusepass.torch_private.dynamo.calls import is_assert
from fusepass.torch_private.dynamo.containers import container_items
from fusepass.torch_private.dynamo.phi import is_phi
from fusepass.torch_private.dynamo.print_calls import PRINT
from fusepass.torch_private.dynamo.stack import is_any_tensor, number_node, realized
from fusepass.torch_private.patches import Patches

_NUMBERS = (int, float, bool, complex)
_TEXT = (str, repr, ascii, format)
_OPERATORS = tuple(
    getattr(operator, name)
    for name in (
        "add sub mul truediv floordiv mod pow neg pos getitem lt le gt ge eq ne and_ or_".split()
    )
)
_OF_CONTAINERS = (tuple, list, len, iter, operator.getitem)  # which look at no item
_FUNCTIONS = (operator.not_, len, round, abs, min, max, sum, sorted, list, tuple)
_ON_LATE = (*_NUMBERS, *_TEXT, *_OPERATORS, *_FUNCTIONS)
_MAX_LISTED = 64  # numbers that a list holds one by one
_READS_BACK = ("item", "tolist", "numpy")
_METHODS_ON_LATE = frozenset(
    """
    item tolist numpy cpu detach any all sum min max mean unique numel size dim nonzero flatten
    squeeze unsqueeze view reshape float double int long to abs index format join upper lower strip
    """.split()
)


class _LateVariable(VariableTracker):
    """A call that is made for the message: a function, or a method by its name."""

    def __init__(
        self,
        function: Any,
        arguments: list[Any],
        keywords: dict[str, Any] | None = None,
        **kwargs: Any,
    ) -> None:
        super().__init__(**kwargs)
        self.function, self.arguments, self.keywords = function, arguments, keywords or {}
        self.kind: type | None = str if function in _TEXT else None

    def python_type(self) -> type:
        return super().python_type() if self.kind is None else self.kind

    def call_method(self, tx: Any, name: str, args: Any, kwargs: Any) -> Any:
        if name not in _METHODS_ON_LATE:
            raise unsupported(f"{name} of a value known only after the graph")
        return _late(name, [self, *args], kwargs)

    def richcompare_impl(self, tx: Any, other: Any, op: str) -> Any:  # on 2.13
        return _late(getattr(operator, op.strip("_")), [self, other])

    tp_richcompare_impl = richcompare_impl  # on 2.15

    def var_getattr(self, tx: Any, name: str) -> Any:
        if name in _METHODS_ON_LATE:
            return torch._dynamo.variables.GetAttrVariable(self, name)
        if name not in ("shape", "dtype", "device", "T"):
            raise unsupported(f"{name} of a value known only after the graph")
        constant = torch._dynamo.variables.ConstantVariable.create(name)
        return _late(getattr, [self, constant])


def late_parts(value: Any) -> tuple[Any, list[Any], dict[str, Any]] | None:
    """``(function or name of a method, args, kwargs)`` of a value computed later, or None."""
    if isinstance(value, StringFormatVariable):
        text = torch._dynamo.variables.ConstantVariable.create(value.format_string)
        return str.format, [text, *value.sym_args], dict(value.sym_kwargs)
    if isinstance(value, _LateVariable):
        return value.function, list(value.arguments), dict(value.keywords)
    return None


_MESSAGE = "fusepass_message"  # attribute of what was traced for a message: which one
_message: object = None  # the one being traced


def is_of_this_message(value: Any) -> bool:
    """Whether a value computed later was traced for the message that is being traced."""
    return _message is not None and getattr(value, _MESSAGE, None) is _message


def _marked(value: Any) -> Any:
    setattr(value, _MESSAGE, _message)
    return value


def constant_or_class(value: Any) -> tuple[bool, Any]:
    """``(True, object)`` for anything Dynamo holds as a constant, also a dtype or a class."""
    immutable = (variables.ConstantVariable, variables.UserDefinedClassVariable)
    named = ("BuiltinVariable", "EnumVariable", "SliceVariable", "TorchInGraphFunctionVariable")
    if isinstance(value, immutable) or type(value).__name__ in named:
        with contextlib.suppress(NotImplementedError):
            return True, value.as_python_constant()
    return False, None


@contextlib.contextmanager
def message_tracing(translator: Any, depends_on_data: Callable[[str], bool]) -> Iterator[None]:
    """Keep for later, while a message is traced, what Dynamo would refuse or specialise.

    Dynamo traces one frame at a time, under its own lock, so methods can be replaced meanwhile.

    Args:
        translator: Dynamo's translator. Its checkpoints must be the same in every attempt to trace
            the frame, and a message may be traced in some of them only: it has checkpoints apart.
        depends_on_data: whether the size of what an operation of that name gives depends on data.
    """
    replaced: list[tuple[Any, str, Callable[..., Any]]] = [
        (InstructionTranslatorBase, "_format_value", _format_value),
        (InstructionTranslatorBase, "_convert_value", _convert_value),
        (StringFormatVariable, "create", _create_format),
        (UserDefinedExceptionClassVariable, "call_function", _construct),
        (variables.TensorVariable, "call_method", functools.partial(_method, depends_on_data)),
        (
            variables.TorchInGraphFunctionVariable,
            "call_function",
            functools.partial(_function, depends_on_data),
        ),
        (variables.BuiltinVariable, "call_function", _builtin),
        (variables.ConstantVariable, "call_method", _method_of_constant),
        *only_own_generators(),
    ]
    log = translator.speculation_log
    apart = copy.copy(log)
    apart.entries, apart.index = [], 0
    global _message  # Dynamo traces one frame at a time
    with Patches() as undo:
        outer, _message = _message, object()
        undo.callback(_back_to, outer)
        for owner, name, ours in replaced:
            undo.put(owner, name, ours)
        translator.speculation_log = apart
        undo.callback(setattr, translator, "speculation_log", log)
        yield


def _back_to(message: object) -> None:
    global _message  # noqa: PLW0603  # as above
    _message = message


def _is_late(value: Any) -> bool:
    """Whether a value is computed for a message, or holds one that is."""
    value = realized(value)
    if is_phi(value):
        return True
    return late_parts(value) is not None or any(map(_is_late, _items(value)))


def _is_open(value: Any) -> bool:
    """Whether a value is known only when the graph runs, or holds one that is."""
    value = realized(value)
    if is_any_tensor(value) or number_node(value) is not None or late_parts(value) is not None:
        return True
    if is_phi(value):
        return True
    return any(map(_is_open, _items(value)))


def _items(value: Any) -> list[Any]:
    held = container_items(value)
    if held is None:
        return []
    return [part for pair in held[1] for part in pair] if held[0] is dict else list(held[1])


def _late(function: Any, args: Any, kwargs: Any = None) -> Any:
    return _marked(_LateVariable(function, list(map(realized, args)), dict(kwargs or {})))


def _format_value(theirs: Any, translator: Any, spec: Any, flags: int) -> None:
    conversion = {0: "", 1: "!s", 2: "!r", 3: "!a"}[flags & 3]
    if not _is_open(translator.stack[-1]):
        return theirs(translator, spec, flags)  # type: ignore[no-any-return]
    text = spec.as_python_constant() if spec.is_python_constant() else "{"
    if "{" in text or "}" in text:
        raise unsupported("a format that depends on data")
    value = realized(translator.pop())
    made = StringFormatVariable("{" + conversion + ":" + text + "}", [value], {})
    translator.push(_marked(made))
    return None


def _convert_value(theirs: Any, translator: Any, value: Any, flag: int) -> Any:
    function = {1: str, 2: repr, 3: ascii}.get(flag)
    if function is not None and _is_open(value):
        return _late(function, [value])
    return theirs(translator, value, flag)


def _create_format(theirs: Any, *args: Any, **kwargs: Any) -> Any:
    """Number the fields of a format anew, so that formats can be put one after another."""
    made = theirs(*args, **kwargs)
    if late_parts(made) is None:
        return made
    text, values = "", list[Any]()
    for literal, name, spec, conversion in string.Formatter().parse(made.format_string):
        text += literal.replace("{", "{{").replace("}", "}}")
        if name is None:
            continue
        if name.isdigit() or name == "":
            values.append(made.sym_args[int(name) if name else len(values)])
        elif name not in made.sym_kwargs:
            raise unsupported("a format that reads attributes or items of its arguments")
        if spec and "{" in spec:
            raise unsupported("a format whose width is an argument")
        shown = "" if name.isdigit() else name
        shown += f"!{conversion}" if conversion else ""
        text += "{" + shown + (f":{spec}" if spec else "") + "}"
    return _marked(type(made)(text, values, dict(made.sym_kwargs)))


def _construct(theirs: Any, kind: Any, translator: Any, args: Any, kwargs: Any) -> Any:
    """The class of an exception is called when it is raised, and its ``__init__`` not traced."""
    of: Any = variables
    made = of.ExceptionVariable(kind if isinstance(kind, type) else kind.value, list(args))
    made.fusepass_kwargs = dict(kwargs)
    return made


def _method(
    depends_on_data: Callable[[str], bool],
    theirs: Any,
    tensor: Any,
    translator: Any,
    name: str,
    args: Any,
    kwargs: Any,
) -> Any:
    masked = name == "__getitem__" and _has_mask(args)
    if name == "tolist":
        return _listed(tensor)
    if name in _READS_BACK or masked or depends_on_data(name):
        return _late(operator.getitem if masked else name, [tensor, *args], kwargs)
    if any(map(_is_late, [*args, *kwargs.values()])):
        raise unsupported(f"{name} with a value known only after the graph")
    return theirs(tensor, translator, name, args, kwargs)


def _listed(tensor: Any) -> Any:
    """``tensor.tolist()``: a list of numbers computed later where its length is known."""
    whole = _late("tolist", [tensor])
    value = tensor.as_proxy().node.meta.get("example_value")
    sizes = [] if value is None else list(value.shape)
    if not sizes or not all(isinstance(n, int) for n in sizes) or value.numel() > _MAX_LISTED:
        return whole

    def parts(of: Any, size: int, *inner: int) -> Any:
        numbers = map(variables.ConstantVariable.create, range(size))
        each = [_late(operator.getitem, [of, number]) for number in numbers]
        items = [parts(part, *inner) for part in each] if inner else each
        for part in () if inner else each:
            part.kind = _kind_of_number(value.dtype)
        return variables.ListVariable(items, mutation_type=ValueMutationNew())

    return parts(whole, *sizes)


def _kind_of_number(dtype: torch.dtype) -> type:
    if dtype.is_complex:
        return complex
    if dtype.is_floating_point:
        return float
    return bool if dtype is torch.bool else int


def _function(
    depends_on_data: Callable[[str], bool],
    theirs: Any,
    function: Any,
    translator: Any,
    args: Any,
    kwargs: Any,
) -> Any:
    if is_assert(function.value):  # raises, or does nothing
        return theirs(function, translator, args, kwargs)
    name = getattr(function.value, "__name__", "")
    alone = name == "where" and len(args) == 1
    if alone or depends_on_data(name):
        return _late(function.value, args, kwargs)
    if any(map(_is_late, [*args, *kwargs.values()])):
        raise unsupported(f"{name} with a value known only after the graph")
    return theirs(function, translator, args, kwargs)


def _has_mask(index: Any) -> bool:
    """Whether an index selects by a mask, so that the size of the result depends on it."""
    values = [realized(value) for value in index]
    values += [item for value in values for item in map(realized, _items(value))]
    fakes = [v.as_proxy().node.meta.get("example_value") for v in values if is_any_tensor(v)]
    return any(getattr(fake, "dtype", None) in (torch.bool, torch.uint8) for fake in fakes)


def _builtin(theirs: Any, builtin: Any, translator: Any, args: Any, kwargs: Any) -> Any:
    function = getattr(builtin, "fn", None)
    if isinstance(function, type) and issubclass(function, BaseException):
        return _construct(theirs, function, translator, args, kwargs)
    if function is PRINT:  # a line of its own
        return theirs(builtin, translator, args, kwargs)
    if function in _OF_CONTAINERS and args and _items(realized(args[0])):
        return theirs(builtin, translator, args, kwargs)
    if any(map(_is_late, args)) and function is not getattr:
        if function not in _ON_LATE:
            raise unsupported(f"{function} of a value known only after the graph")
        return _late(function, args, kwargs)
    if args and any(map(_is_open, args)):
        tensor = is_any_tensor(realized(args[0]))
        masked = function is operator.getitem and tensor and _has_mask(args[1:])
        percent = function is operator.mod and not _is_open(args[0])
        of_numbers = tensor and function in (*_NUMBERS, operator.not_)
        if function in _TEXT or masked or of_numbers:
            return _late(function, args, kwargs)
        if percent and isinstance(args[0].as_python_constant(), str):
            return _late(function, args, kwargs)
    return theirs(builtin, translator, args, kwargs)


def _method_of_constant(
    theirs: Any, constant: Any, translator: Any, name: str, args: Any, kwargs: Any
) -> Any:
    if name == "join" and isinstance(constant.value, str) and len(args) == 1:
        joined = realized(args[0])
        if not _items(joined) and late_parts(joined) is None:  # a generator
            tracked: Any = torch._dynamo.variables.base.VariableTracker
            args = [tracked.build(translator, list).call_function(translator, [joined], {})]
        if any(map(_is_late, args)):
            return _late(name, [constant, *args], kwargs)
    return theirs(constant, translator, name, args, kwargs)


def only_own_generators() -> list[tuple[Any, str, Callable[..., Any]]]:
    """Generators made before the message cannot be put back, so they must not be advanced."""
    own: list[Any] = []

    def made(theirs: Any, generator: Any, *args: Any, **kwargs: Any) -> None:
        own.append(generator)
        theirs(generator, *args, **kwargs)

    def advanced(theirs: Any, generator: Any, *args: Any, **kwargs: Any) -> Any:
        if not any(generator is one for one in own):
            raise unsupported("a generator made before is advanced")
        return theirs(generator, *args, **kwargs)

    names = [n for n in ("next_variable", "gen_send_ex2") if n in vars(Generator)]
    return [(Generator, "__init__", made), *((Generator, name, advanced) for name in names)]


def unsupported(what: str) -> Exception:
    """The error that ends the trace of a message."""
    return exc.UserError(exc.UserErrorType.INVALID_INPUT, what)
