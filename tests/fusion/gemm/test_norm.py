"""A norm with a weight in front of products: what is read off it."""

from __future__ import annotations

import torch
from torch import Tensor
from torch.nn import functional as F

from fusepass.fusion.gemm.norm import RowNorm, norm_of
from fusepass.fusion.gemm.region import is_gemm, operands_of
from fusepass.fusion.kernel_ir.norm import Norm, normalize
from tests.patterns.test_normed_gemms import EPS, LAYER_NORMS, NORMS, K, drawn, graph_of


def found(name: str) -> RowNorm:
    def program(x: Tensor, gain: Tensor, w: Tensor, b: Tensor) -> list[Tensor]:
        n = NORMS[name](x, gain)
        return [F.linear(n, w), F.linear(n, w[:8], b[:8])]

    graph = graph_of(program, *drawn(torch.bfloat16, 3)).graph
    first = next(filter(is_gemm, graph.nodes))
    norm = norm_of(operands_of(first)[1])
    assert norm is not None
    return norm


def test_eps_offset_and_centring_of_norms() -> None:
    for name in NORMS:
        norm = found(name)
        assert abs(norm.norm.eps - EPS) < 1e-9  # F.rms_norm hands it on in single precision
        assert norm.norm.offset == (name == "gemma")
        assert norm.norm.centred == (name in LAYER_NORMS)
        assert norm.norm.shifted == (name in ("layer_norm", "by_variance"))
        assert len(norm.vectors) == norm.norm.vectors
        assert norm.source.op == norm.vectors[0].op == "placeholder"
        assert norm.source is not norm.vectors[0]
        assert len(norm.products) == 2
        assert list(norm.removed) == sorted(norm.removed)
        assert norm.result in norm.removed
        assert not {norm.source, *norm.vectors, *norm.products} & set(norm.removed)


def test_its_numbers() -> None:
    x, gain, *_ = drawn(torch.bfloat16, 3)
    want = torch.nn.functional.rms_norm(x.double(), (K,), gain.double() + 1, 1e-3)
    torch.testing.assert_close(normalize(x.double(), [gain.double()], Norm(1e-3, 1.0)), want)
    assert normalize(x, [gain], Norm(1e-3)).dtype is torch.float32
    shifted = Norm(1e-3, centred=True, shifted=True)
    want = F.layer_norm(x.double(), (K,), gain.double(), gain.double() + 1, 1e-3)
    got = normalize(x.double(), [gain.double(), gain.double() + 1], shifted)
    torch.testing.assert_close(got, want)
