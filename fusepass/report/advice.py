"""What to write instead of what keeps a graph break, by its reason code."""

from __future__ import annotations

from fusepass.report.decision import Decision, Reason

_CHECKS = (
    "check at the start of the compiled function, or outside of it; put a check that is for "
    "debugging behind a flag of Python"
)
_ADVICE: dict[Reason, str] = {
    Reason.ALIAS: "add .clone(), or pass a copy of what shares memory",
    Reason.COST: 'options={"treatment": "where"} has both arms run',
    Reason.DEVICE_MISMATCH: "have both arms leave tensors on the device of what is tested",
    Reason.DTYPE_MISMATCH: "cast in the arm, so that both leave the same dtype",
    Reason.FORCED: "options keep it; take the option away",
    Reason.GENERATOR: "return a list instead of yielding",
    Reason.LOOP: "a graph break in a loop has the whole function run in eager mode: move it out",
    Reason.NAN_GRAD: "compute the value in the arm that uses it",
    Reason.NONE_GRAD: 'options={"allow_zero_grad": True} accepts a gradient of zero for None',
    Reason.OVERFLOW: "convert to float before the arithmetic: float(n) + 1",
    Reason.PARTIAL_OP: "what cannot fail may run in both arms: values[index.clamp(0, n - 1)]",
    Reason.PREDICATE: "test a plain tensor of one element, or a number of Python's own",
    Reason.PYTHON_VALUE: "keep it a tensor: x.new_tensor(2.0) for 2.0, n for n.item()",
    Reason.RAISES: _CHECKS,
    Reason.RANDOM_OP: "draw before the branch: noise = torch.rand_like(x); for dropout "
    "keep = dropout(torch.ones_like(x)), and multiply by keep in the arm",
    Reason.RULE_OFF: "options switch this rule off",
    Reason.SHAPE_MISMATCH: "have both arms leave tensors of the same shape",
    Reason.SIDE_EFFECT: "compute the new value in the arm, and write it behind the branch",
    Reason.SIZE: "keep a fixed size and a mask: torch.where(mask, x, 0) for x[mask], or "
    "torch.arange(len(x)) < n for x[:n]; or compute the size outside and pass it as a number",
    Reason.STRIDE_MISMATCH: "call .contiguous() in the arms",
    Reason.UNBOUND: "bind the variable in front of the branch",
    Reason.UNTRACEABLE: "move it out of the compiled function, or out of the arm or loop it is in",
}


def advice_for(decision: Decision) -> str:
    """What to do about a decision that keeps a graph break; ``""`` if nothing is known.

    docs/reasons.md says more.
    """
    if "only raises" in decision.reason or decision.reason.startswith("after the raise"):
        return _CHECKS
    if decision.reason.startswith("an arm writes something that requires grad"):
        return "write in both arms, or select with torch.where and write behind the branch"
    return _ADVICE.get(decision.reason_code, "")
