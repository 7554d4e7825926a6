"""What the ops that a descriptor may hold mean for liveness. An op that is not named here is an effect (H13).

`PURE` ops have no effect beside their results, and each result counts as depending on every operand. The names in
`WHILE`, `BRANCH` and `MANUAL` are followed per operand; calls and kernels are marked as such in the descriptor.
"""

from __future__ import annotations

WHILE = frozenset({"stablehlo.while"})
BRANCH = frozenset({"stablehlo.case", "stablehlo.if"})
MANUAL = frozenset({"sdy.manual_computation"})
TERMINATORS = frozenset({"func.return", "stablehlo.return", "sdy.return"})
# Hold other nodes and do nothing themselves.
SCOPES = frozenset({"builtin.module", "func.func", "sdy.mesh"})

_STABLEHLO = """
abs add and atan2 bitcast_convert broadcast broadcast_in_dim cbrt ceil cholesky clamp compare complex concatenate
constant convert convolution cosine count_leading_zeros divide dot dot_general dynamic_broadcast_in_dim dynamic_conv
dynamic_gather dynamic_iota dynamic_pad dynamic_reshape dynamic_slice dynamic_update_slice exponential
exponential_minus_one fft floor gather get_dimension_size get_tuple_element imag iota is_finite log log_plus_one
logistic map maximum minimum multiply negate not optimization_barrier or pad partition_id popcnt power real
real_dynamic_slice reduce reduce_precision reduce_window remainder replica_id reshape reverse round_nearest_afz
round_nearest_even rsqrt scatter select select_and_scatter shift_left shift_right_arithmetic shift_right_logical
sign sine slice sort sqrt subtract tan tanh torch_index_select transpose triangular_solve tuple
uniform_dequantize uniform_quantize xor
"""
_CHLO = """
acos acosh asin asinh atan atanh bessel_i1e broadcast_add broadcast_and broadcast_compare broadcast_divide
broadcast_maximum broadcast_minimum broadcast_multiply broadcast_or broadcast_power broadcast_select
broadcast_subtract broadcast_xor conj constant constant_like cosh digamma erf erf_inv erfc is_inf is_neg_inf
is_pos_inf lgamma next_after polygamma ragged_dot sinh square tan top_k zeta
"""
PURE = (
    frozenset(f"stablehlo.{name}" for name in _STABLEHLO.split())
    | frozenset(f"chlo.{name}" for name in _CHLO.split())
    | frozenset({"sdy.sharding_constraint", "sdy.reshard"})
)
