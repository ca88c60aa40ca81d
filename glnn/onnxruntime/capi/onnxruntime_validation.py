"""Checks of the installed package that programs call."""

from __future__ import annotations

from glnn.onnxruntime.capi.options import VERSION


def get_package_name_and_version_info() -> tuple[str, str, str]:
    """The package's name, its version, and that of CUDA, which is none."""
    return "onnxruntime", VERSION, ""


def check_distro_info() -> None:
    """Do nothing."""


def check_training_module() -> tuple[bool, str, str]:
    """There is no module for training."""
    return False, "onnxruntime", VERSION
