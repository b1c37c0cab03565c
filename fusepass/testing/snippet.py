"""A failing case as a program anybody can run: plain torch code, and the rule."""

from __future__ import annotations

import inspect
import re
import sys
import textwrap
from importlib.metadata import packages_distributions
from pathlib import Path
from types import ModuleType
from typing import Any

import torch
from torch import Tensor

from fusepass.rewrite.rule import Rule
from fusepass.testing.case import Case
from fusepass.testing.oracle import NOT_FINITE, VALUES, Difference
from fusepass.testing.program_text import literal
from fusepass.testing.trial import Trials, resized

MOST_NUMBERS = 300
# Enough to get the very same number back.
_DIGITS = {torch.float64: ".17g", torch.float32: ".9g", torch.float16: ".5g", torch.bfloat16: ".4g"}
_CONTEXTS = {"": "enable_grad", "inference": "inference_mode", "no_grad": "no_grad"}

_TEMPLATE = """\
import torch
{imports}
import fusepass

{rule}
pattern = rule.pattern


{program}

def run(program, inputs):
    with torch.{context}():
        outputs = program(*inputs)
{backward}    return {{"outputs": outputs, "inputs": inputs{gradients}}}


{inputs}

with fusepass.rules(rule):
    compiled_program = torch.compile(
        program, backend="fusepass", dynamic={dynamic}, options={options}
    )
{calls}
print(fusepass.last_report(compiled_program))
print("eager   ", eager)
print("compiled", compiled)
{assertion}
"""

_BACKWARD = """\
    leaves = [x for x in inputs if x.requires_grad]
    ends = [y for y in outputs if y.requires_grad]
    torch.manual_seed(7)
    given = [torch.randn(y.shape, dtype=torch.float64).to(y.device, y.dtype) for y in ends]
    gradients = torch.autograd.grad(ends, leaves, given, allow_unused=True)
"""


def snippet(trials: Trials, case: Case, difference: Difference) -> str:
    """Python text that shows a difference, and fails on it."""
    names = [trials.space.names[p] for p in trials.space.tensors]
    makers, calls = [], []
    for step, one in enumerate([case, resized(case, trials.space)][: 1 + difference.resized]):
        tensors = trials.inputs(one, difference.values, difference.seed)
        makers.append(_maker(f"inputs{step}" if step else "inputs", names, tensors))
        maker = f"inputs{step}()" if step else "inputs()"
        calls += [f"eager = run(program, {maker})"]
        calls += [f"compiled = run(compiled_program, {maker})"]
    inputs = "\n\n".join(makers)
    imports = []
    if difference.path == "rule":  # what became of the rule was said in a warning
        imports.append("import warnings\n")
        calls.insert(0, 'warnings.simplefilter("error", fusepass.FusepassWarning)')
    if re.search(r"\b(inf|nan)\b", inputs):
        imports.append("from torch import inf, nan\n")
    backward = difference.path.startswith("gradients")
    return _TEMPLATE.format(
        imports="".join(imports),
        backward=_BACKWARD if backward else "",
        gradients=', "gradients": gradients' if backward else "",
        rule=rule_text(trials.rule),
        program=trials.source(case),
        context=_CONTEXTS[case.called],
        inputs=inputs,
        dynamic=case.resized,
        options=trials.options,
        calls=textwrap.indent("\n".join(calls), "    "),
        assertion=_assertion(difference),
    )


def _maker(name: str, names: list[str], tensors: list[Tensor]) -> str:
    lines: list[str] = []
    seen: dict[int, str] = {}
    for variable, tensor in zip(names, tensors, strict=True):
        text = seen.setdefault(id(tensor), variable)
        lines.append(f"{variable} = {_tensor(tensor) if text == variable else text}")
    lines.append(f"return [{', '.join(names)}]")
    return f"def {name}():\n" + textwrap.indent("\n".join(lines), "    ") + "\n"


def _tensor(tensor: Tensor) -> str:
    """An expression for a tensor with its values and its place in memory."""
    steps = zip(tensor.shape, tensor.stride(), strict=True)
    span = 1 + sum((size - 1) * step for size, step in steps) if tensor.numel() else 0
    flat = tensor.detach().as_strided((span,), (1,)).cpu()
    if span <= MOST_NUMBERS:
        digits = _DIGITS.get(tensor.dtype, "")
        numbers = ", ".join(f"{number:{digits}}" for number in flat.tolist())
        text = f"torch.tensor([{numbers}], dtype={tensor.dtype})"
    else:  # values by number would fill pages; the fault is unlikely to hang on them
        text = f"torch.randn({span}).to({tensor.dtype})"
    if tensor.device.type != "cpu":
        text += f".to({str(tensor.device)!r})"
    text += f".as_strided({tuple(tensor.shape)}, {tensor.stride()})"
    return text + (".requires_grad_()" if tensor.requires_grad else "")


def _assertion(difference: Difference) -> str:
    group, _, index = difference.path.rstrip("]").partition("[")
    if difference.path == "rule" or group == "program":
        return ""
    if not index:
        if difference.fact == "shared memory":
            return _SHARING.format(of="x.untyped_storage().data_ptr()")
        if difference.fact == "identity":
            return _SHARING.format(of="id(x)")
        return f'assert len(compiled["{group}"]) == len(eager["{group}"])'
    pair = [f'{name}["{group}"][{index}]' for name in ("compiled", "eager")]
    if difference.fact == VALUES:
        bound = difference.bound or 0.0
        given = f"rtol=0, atol={literal(bound)}, equal_nan=True, check_stride=False"
        return f"torch.testing.assert_close({pair[0]}, {pair[1]}, {given})"
    if difference.fact == NOT_FINITE:
        return "\n".join(
            f"assert torch.equal({pair[0]}.{kind}(), {pair[1]}.{kind}())"
            for kind in ("isnan", "isposinf", "isneginf")
        )
    if difference.fact in ("stride", "is_inference"):
        return f"assert {pair[0]}.{difference.fact}() == {pair[1]}.{difference.fact}()"
    if difference.fact in ("dtype", "shape", "device", "requires_grad"):
        return f"assert {pair[0]}.{difference.fact} == {pair[1]}.{difference.fact}"
    return f"assert type({pair[0]}) is type({pair[1]})"


_SHARING = """\
def sharing(run):
    every = [{of} for x in (*run["outputs"], *run["inputs"])]
    return [every.index(one) for one in every]


assert sharing(compiled) == sharing(eager)"""


def rule_text(rule: Rule) -> str:
    """Lines that bind ``rule``: an import where the rule can be imported, else its source."""
    file = rule.location.rpartition(":")[0]
    modules: list[Any] = list(sys.modules.values())  # anything may have been put there
    for module in modules:
        if isinstance(module, ModuleType) and getattr(module, "__file__", None) == file:
            found = _place(module, rule)
            if found is not None:
                return f"{_import(module, found[0])}\n\nrule = {''.join(found)}"
    functions = {"pattern": rule.pattern, "replacement": rule.replacement, "check": rule.check}
    texts = [_function(f) for f in functions.values() if f is not None]
    if not all(texts):
        return f"rule = ...  # {rule.name!r}, made at {rule.location}"
    given = ", ".join(f"{k}={f.__name__}" for k, f in functions.items() if f is not None)
    example = ", ".join(map(_example, rule.inputs()))
    made = (
        f"rule = fusepass.Rule({rule.name!r}, {given}, example=({example},), place={rule.place!r})"
    )
    return "\n\n".join([*(str(text) for text in texts), made])


def _place(module: ModuleType, rule: Rule) -> tuple[str, str] | None:
    """Name of the module's attribute that is or holds a rule, and the index in it."""
    for name, value in vars(module).items():
        if value is rule:
            return name, ""
        if isinstance(value, (list, tuple)) and any(item is rule for item in value):
            return name, f"[{next(i for i, item in enumerate(value) if item is rule)}]"
        if isinstance(value, dict) and any(item is rule for item in value.values()):
            return name, f"[{next(k for k, item in value.items() if item is rule)!r}]"
    return None


def _import(module: ModuleType, name: str) -> str:
    """Lines that import a name of a module, installed or not."""
    if module.__name__.partition(".")[0] in packages_distributions():
        return f"from {module.__name__} import {name}"
    file = Path(str(module.__file__))
    parts, folder = [file.stem], file.parent
    while (folder / "__init__.py").exists():
        parts.insert(0, folder.name)
        folder = folder.parent
    where = f"import sys\n\nsys.path.insert(0, {str(folder)!r})"
    return f"{where}\nfrom {'.'.join(parts)} import {name}"


def _function(function: Any) -> str | None:
    try:
        source = textwrap.dedent(inspect.getsource(function))
    except (OSError, TypeError):
        return None
    return source.rstrip() + "\n" if source.startswith("def ") else None


def _example(value: Any) -> str:
    if isinstance(value, Tensor):
        return f"torch.ones({tuple(value.shape)}, dtype={value.dtype})"
    return literal(value)
