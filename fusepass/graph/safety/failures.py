"""Which errors a call may raise when it runs, shapes and dtypes having been accepted.

The question of a ``try`` around it, where an error may be caught. totality.py asks another: whether
a call may run untaken, so that what is not in its table is partial. Here calls that read back, draw
or give a size that only the data know are harmless, as long as they raise for no value.
"""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass

import torch
from torch import fx
from torch.linalg import LinAlgError  # type: ignore[attr-defined]

from fusepass.capture.masks.masked_store import is_masked_store, mask_of, why_kept
from fusepass.graph.ops.op_names import op_name, tensor_value
from fusepass.graph.safety.totality import NOT_LISTED, partial_reason, reason_of_values


class AnyException(Exception):
    """Stands for exceptions of a class nobody knows."""


@dataclass(frozen=True)
class Failure:
    """How a call may fail.

    Attributes:
        kinds: classes of what it may raise, the most special ones; :class:`AnyException` for any.
        text: which call, and of what it fails, for a person.
    """

    kinds: tuple[type[BaseException], ...]
    text: str


# Not in the table of total operations, because arms of branches have no use for them.
_ALSO_TOTAL = frozenset(
    """
    _foreach_abs _foreach_add _foreach_addcdiv _foreach_addcmul _foreach_copy
    _foreach_div _foreach_exp _foreach_lerp _foreach_maximum _foreach_minimum _foreach_mul
    _foreach_neg _foreach_norm _foreach_reciprocal _foreach_sqrt _foreach_sub _foreach_zero
    """.split()
)
_NEVER_RAISE = frozenset(
    """
    argwhere combinations item masked_select nonzero unique unique_consecutive
    alpha_dropout dropout dropout1d dropout2d dropout3d exponential feature_alpha_dropout
    feature_dropout native_dropout normal rand rand_like randint randint_like randn randn_like
    randperm random rrelu uniform
    cholesky_ex det geqrf householder_product inv_ex ldl_factor_ex linalg_cholesky_ex linalg_det
    linalg_householder_product linalg_inv_ex linalg_ldl_factor_ex linalg_lu linalg_lu_factor_ex
    linalg_matrix_exp linalg_multi_dot linalg_qr linalg_slogdet linalg_solve_ex
    linalg_solve_triangular linalg_vecdot logdet lu_solve lu_unpack matrix_exp multi_dot qr slogdet
    solve_ex solve_triangular triangular_solve vecdot
    fft_fft fft_fft2 fft_fftfreq fft_fftn fft_fftshift fft_hfft fft_ifft fft_ifft2 fft_ifftn
    fft_ifftshift fft_ihfft fft_irfft fft_irfft2 fft_irfftn fft_rfft fft_rfft2 fft_rfftfreq
    fft_rfftn stft
    adaptive_max_pool1d adaptive_max_pool2d adaptive_max_pool3d as_strided_scatter
    atleast_1d atleast_2d atleast_3d bartlett_window
    binary_cross_entropy_with_logits blackman_window block_diag bucketize cartesian_prod
    channel_shuffle col2im corrcoef cosine_embedding_loss cov cumulative_trapezoid detach detach_
    diagonal_scatter diff dsplit equal fold frexp gradient gru gru_cell hamming_window
    hann_window hinge_embedding_loss hsplit im2col is_nonzero isin kaiser_window ldexp
    local_response_norm logspace lp_pool1d lp_pool2d lstm lstm_cell margin_ranking_loss
    max_pool1d_with_indices max_pool2d_with_indices max_pool3d_with_indices meshgrid mode msort
    native_batch_norm native_group_norm native_layer_norm pairwise_distance
    poisson_nll_loss polygamma ravel renorm result_type rnn_relu rnn_tanh searchsorted
    select_scatter set_ slice_scatter soft_margin_loss special_bessel_j0
    special_entr special_erfcx special_i0e special_i1 special_i1e special_log_ndtr special_ndtr
    special_ndtri special_xlog1py special_zeta trace trapezoid trapz tril_indices
    triplet_margin_loss triu_indices unfold vander vsplit
    """.split()
)

_INDEX = frozenset("__getitem__ cross_entropy embedding getitem nll_loss put select take".split())
_INDEX_OR_NOT = frozenset(
    """
    __setitem__ embedding_bag gather index_add index_copy index_fill index_put index_reduce
    index_select one_hot scatter scatter_add scatter_reduce setitem take_along_dim
    """.split()
)
_PLAIN = frozenset(
    """
    bernoulli binary_cross_entropy bincount ctc_loss div floor_divide fmod histc histogram
    masked_scatter max_unpool1d max_unpool2d max_unpool3d multi_margin_loss multilabel_margin_loss
    multinomial poisson pow quantile nanquantile remainder repeat_interleave
    """.split()
)
# On a GPU an assert of the device instead, of which nothing is heard at the call.
_SILENT_ON_GPU = (
    _INDEX
    | _INDEX_OR_NOT
    | frozenset(
        """
        bernoulli binary_cross_entropy div floor_divide fmod masked_scatter multi_margin_loss
        multilabel_margin_loss multinomial remainder
        """.split()
    )
)
_ANY_OF_TORCH = (LinAlgError, NotImplementedError, IndexError, ValueError)
_MATRICES = frozenset(
    """
    cholesky cholesky_inverse cond eig eigh eigvals eigvalsh inverse lobpcg lstsq matrix_norm
    matrix_power matrix_rank nuclear_norm pca_lowrank pinv pinverse svd svd_lowrank svdvals
    tensorinv tensorsolve
    """.split()
)


def may_fail(node: fx.Node) -> str | None:
    """Why a call may fail for some values, or None; also of calls that no arm of a branch has."""
    name = op_name(node)
    known = _is_of_transform(node) or (name is not None and name.rstrip("_") in _ALSO_TOTAL)
    return None if known else partial_reason(node)


def failure_of(node: fx.Node) -> Failure | None:
    """What a call may raise for some values, or None."""
    name = op_name(node)
    if _is_number(node) or (name is not None and _never_raises(node, name)):
        return None
    why = may_fail(node)
    if why is None:
        return None
    if name is None:
        shown = getattr(node.target, "__name__", None) or str(node.target)
        return Failure((AnyException,), f"{shown} is no operation of torch, and may raise anything")
    plain = _plain(name)
    if why != reason_of_values(node, name):  # but of dtypes, or numbers, or where it writes
        return Failure(_ANY_OF_TORCH, why)
    if plain in _SILENT_ON_GPU and _on_gpu(node):
        return None
    return Failure(_kinds(plain), _text(plain, why))


def kinds_of_values(nodes: Iterable[fx.Node]) -> frozenset[type[BaseException]]:
    """What calls may raise for some values, whatever their dtypes are; asked of whole graphs."""
    found: set[type[BaseException]] = set()
    for node in nodes:
        name = op_name(node)
        if node.op in ("placeholder", "get_attr", "output") or _is_number(node):
            continue
        if name is None:
            found.update(() if may_fail(node) is None else (AnyException,))
        elif not _never_raises(node, name) and reason_of_values(node, name) is not None:
            plain = _plain(name)
            silent = plain in _SILENT_ON_GPU and _on_gpu(node)
            found.update(() if silent or plain in _ALSO_TOTAL else _kinds(plain))
    return frozenset(found)


def _kinds(name: str) -> tuple[type[BaseException], ...]:
    if name in _INDEX:
        return (IndexError,)
    if name in _INDEX_OR_NOT:
        return IndexError, RuntimeError
    if name in _PLAIN:
        return (RuntimeError,)
    return (LinAlgError,) if _is_matrix_op(name) else _ANY_OF_TORCH


def _text(name: str, why: str) -> str:
    if _is_matrix_op(name):
        return f"{name} raises for some matrices"
    return f"{name} may raise for some inputs" if why.endswith(NOT_LISTED) else why


def _is_matrix_op(name: str) -> bool:
    return name in _MATRICES or name.startswith("linalg_")


def _plain(name: str) -> str:
    return name if name.startswith("__") else name.rstrip("_")


def _is_number(node: fx.Node) -> bool:
    """Whether a call gives a number: those of sizes are computed where the graph is guarded."""
    value = node.meta.get("example_value")
    return isinstance(value, (bool, int, float, torch.SymInt, torch.SymFloat, torch.SymBool))


def _never_raises(node: fx.Node, name: str) -> bool:
    if _is_of_transform(node):
        return True
    plain = _plain(name)
    if plain in _NEVER_RAISE or name in _NEVER_RAISE:
        return True
    if plain == "where":  # of one argument: it gives places
        return True
    if plain in ("getitem", "__getitem__"):
        value = tensor_value(node.args[0])
        return value is not None and mask_of(value, node.args[1]) is not None
    return is_masked_store(node) and why_kept(node, exact=False) is None


def _is_of_transform(node: fx.Node) -> bool:
    """Whether a call only enters, leaves or prepares a transform of torch.func."""
    return "_functorch" in str(getattr(node.target, "__module__", ""))


def _on_gpu(node: fx.Node) -> bool:
    values = [tensor_value(one) for one in node.all_input_nodes]
    return any(value is not None and value.device.type == "cuda" for value in values)
