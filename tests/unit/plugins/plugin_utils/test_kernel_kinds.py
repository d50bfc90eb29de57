# Copyright (c) 2026 The aorta.automation maintainers
# GNU General Public License v3.0+ (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later

from __future__ import annotations

import pytest
from ansible_collections.aorta.automation.plugins.plugin_utils._kernel_kinds import KINDS, PATTERNS, compile_kinds

kind_of = compile_kinds()


@pytest.mark.parametrize(
    ("name", "kind"),
    [
        ("Cijk_Ailk_Bljk_BBS_BH_MT256x128x64_MI16x16x16x1_SN", "gemm"),
        ("Custom_Cijk_Alik_Bljk_F8BS_BH", "gemm"),
        ("ampere_fp16_s16816gemm_fp16_128x64_ldg8_f2f_stages_64x4_tn", "gemm"),
        ("nvjet_tst_128x256_64x4_1x2_h_bz_coopA_NTN", "gemm"),
        ("sm90_xmma_gemm_bf16bf16_bf16f32_f32_tn_n_tilesize64x64x64", "gemm"),
        ("void cutlass::Kernel2<cutlass_80_tensorop_s16816gemm_bf16_64x64>(Params)", "gemm"),
        ("triton_mm", "gemm"),
        ("attn_fwd", "attention"),
        ("void ck_tile::kentry<256, 2, ck_tile::FmhaBwdDQDKDVKernel<...>>(...)", "attention"),
        ("void pytorch_flash::flash_fwd_kernel<Flash_fwd_kernel_traits<64, 128>>(Flash_fwd_params)", "attention"),
        ("fmha_cutlassF_bf16_aligned_64x64_rf_sm80", "attention"),
        ("aiter::paged_attention_ll4mi_QKV_kernel", "attention"),
        ("miopenSp3AsmConv_v30_3_1_gfx9_fp32_f2x3_dilation2_stride1", "convolution"),
        ("igemm_fwd_gtcx3_nhwc_bf16_bx0_ex1_bt256x128x32", "convolution"),
        ("cudnn_infer_volta_scudnn_winograd_128x128_ldg1_ldg4_relu_tile148t_nt_v1", "convolution"),
        ("sm80_xmma_dgrad_implicit_gemm_f16f16_f16f32", "convolution"),
        ("void at::native::(anonymous namespace)::multi_tensor_apply_kernel<...FusedAdamMathFunctor...>", "optimizer"),
        (
            "void at::native::reduce_kernel<512, 1, at::native::ReduceOp<float, at::native::MeanOps<float>>>",
            "reduction",
        ),
        ("void (anonymous namespace)::softmax_warp_forward<float, float, float, 8, false, false>", "reduction"),
        ("void at::native::(anonymous namespace)::vectorized_layer_norm_kernel<c10::BFloat16, float>", "reduction"),
        ("triton_red_fused__to_copy_add_mul_3", "reduction"),
        ("triton_per_fused_native_layer_norm_12", "reduction"),
        ("void at::native::vectorized_elementwise_kernel<4, at::native::CUDAFunctor_add<float>>", "elementwise"),
        ("triton_poi_fused_convert_element_type_7", "elementwise"),
        ("void at::native::vectorized_elementwise_kernel<4, at::native::FillFunctor<float>>", "memory"),
        ("void at::native::(anonymous namespace)::CatArrayBatchedCopy<float, unsigned int, 2, 128, 1>", "memory"),
        ("Memset (Device)", "memory"),
        ("__amd_rocclr_fillBufferAligned.kd", "memory"),
        ("void batched_transpose_32x32_dword(float*)", "memory"),
        ("my_kernel", "other"),
        ("", "other"),
    ],
)
def test_what_names_tell(name: str, kind: str) -> None:
    assert kind_of(name, "computation") == kind


def test_the_timeline_decides_on_copies_and_communication() -> None:
    assert kind_of("Cijk_gemm", "memcpy") == "memory"
    assert kind_of("Cijk_gemm", "communication") == "communication"
    assert set(PATTERNS) | {"communication", "other"} == set(KINDS)


def test_own_patterns_come_first() -> None:
    own = compile_kinds({"gemm": ["^my_"], "sparse": ["elementwise"]})
    assert own("My_kernel", "computation") == "gemm"
    assert own("vectorized_elementwise_kernel", "computation") == "sparse"


@pytest.mark.parametrize("extra", [{"a": ["("]}, {"a": []}, {"a": [""]}])
def test_unusable_patterns_are_refused(extra: dict[str, list[str]]) -> None:
    with pytest.raises(ValueError, match="kernel_categories: a"):
        compile_kinds(extra)
