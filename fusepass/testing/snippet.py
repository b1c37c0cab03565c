"""A failing case as a program anybody can run: plain torch code, and the rule."""

from __future__ import annotations

import re
import textwrap

import torch
from torch import Tensor

from fusepass.testing.case import Case
from fusepass.testing.compare import Difference
from fusepass.testing.program_text import literal
from fusepass.testing.rounding import NOT_FINITE
from fusepass.testing.rule_text import rule_text
from fusepass.testing.trial import Trials, Verdict, resized

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
        result = program(*inputs)
{backward}    return {{"result": result, "args": inputs{gradients}}}


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
    ends = [y for y in result if y.requires_grad]
    torch.manual_seed(7)
    given = [torch.randn(y.shape, dtype=torch.float64).to(y.device, y.dtype) for y in ends]
    gradients = torch.autograd.grad(ends, leaves, given, allow_unused=True)
"""


def snippet(trials: Trials, case: Case, verdict: Verdict, difference: Difference) -> str:
    """Python text that shows a difference, and fails on it."""
    names = [trials.space.names[p] for p in trials.space.tensors]
    makers, calls = [], []
    for step, one in enumerate([case, resized(case, trials.space)][: 1 + verdict.resized]):
        tensors = trials.inputs(one, verdict.values, verdict.seed)
        makers.append(_maker(f"inputs{step}" if step else "inputs", names, tensors))
        maker = f"inputs{step}()" if step else "inputs()"
        calls += [f"eager = run(program, {maker})"]
        calls += [f"compiled = run(compiled_program, {maker})"]
    inputs = "\n\n".join(makers)
    imports = []
    if difference.kind == "fault":  # what became of the rule was said in a warning
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
    """Lines that fail on what a program leaves; none for one that fails by itself."""
    group, _, index = difference.path.rstrip("]").partition("[")
    kind = difference.kind
    if kind == "aliasing":
        return _SHARING
    if group not in ("result", "args", "gradients"):
        return ""
    if not index:
        return f'assert len(compiled["{group}"]) == len(eager["{group}"])'
    pair = [f'{name}["{group}"][{index}]' for name in ("compiled", "eager")]
    if kind == "values":
        given = f"rtol=0, atol={literal(difference.bound)}, equal_nan=True, check_stride=False"
        return f"torch.testing.assert_close({pair[0]}, {pair[1]}, {given})"
    if kind == NOT_FINITE:
        return "\n".join(
            f'assert torch.equal({pair[0]}.{kind}(), {pair[1]}.{kind}()), "{what} stands elsewhere"'
            for kind, what in _NOT_FINITE.items()
        )
    if kind in ("stride", "inference"):
        name = {"inference": "is_inference"}.get(kind, kind)
        return f"assert {pair[0]}.{name}() == {pair[1]}.{name}()"
    if kind in ("dtype", "shape", "device", "requires_grad"):
        return f"assert {pair[0]}.{kind} == {pair[1]}.{kind}"
    return f"assert type({pair[0]}) is type({pair[1]})"


_NOT_FINITE = {"isnan": "NaN", "isposinf": "infinity", "isneginf": "-infinity"}
_SHARING = """\
def sharing(run):
    every = [*run["result"], *run["args"]]
    kinds = [id(x) for x in every], [x.untyped_storage().data_ptr() for x in every]
    return [[ids.index(one) for one in ids] for ids in kinds]


assert sharing(compiled) == sharing(eager)"""
