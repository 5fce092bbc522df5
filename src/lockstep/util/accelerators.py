"""Ray's names of GPU models, for ``ScalingConfig(accelerator_type=…)``, without effect here."""

from __future__ import annotations

__all__ = [
    "NVIDIA_A100_40G",
    "NVIDIA_A100_80G",
    "NVIDIA_H100",
    "NVIDIA_L4",
    "NVIDIA_TESLA_A10G",
    "NVIDIA_TESLA_K80",
    "NVIDIA_TESLA_P4",
    "NVIDIA_TESLA_P100",
    "NVIDIA_TESLA_T4",
    "NVIDIA_TESLA_V100",
]

NVIDIA_TESLA_V100 = "V100"
NVIDIA_TESLA_P100 = "P100"
NVIDIA_TESLA_T4 = "T4"
NVIDIA_TESLA_P4 = "P4"
NVIDIA_TESLA_K80 = "K80"
NVIDIA_TESLA_A10G = "A10G"
NVIDIA_L4 = "L4"
NVIDIA_A100_40G = "A100-40G"
NVIDIA_A100_80G = "A100-80G"
NVIDIA_H100 = "H100"
