"""Fixtures shared by the tests that run a real model."""

from __future__ import annotations

from pathlib import Path

import pytest


@pytest.fixture(scope="session", autouse=True)
def _one_thread() -> None:
    """The models here are so small that a second thread only adds waiting."""
    import torch

    torch.set_num_threads(1)


@pytest.fixture(scope="session")
def tiny_gpt2(tmp_path_factory: pytest.TempPathFactory) -> Path:
    from models_for_tests import random_gpt2

    return random_gpt2(tmp_path_factory.mktemp("tiny"))
