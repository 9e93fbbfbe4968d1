"""Opening the device of a rank, on a machine without accelerators."""

from __future__ import annotations

import pytest
import torch

from seatrial.errors import RequestError
from seatrial.worker.device import open_device

pytestmark = pytest.mark.skipif(torch.cuda.is_available(), reason="this machine has accelerators")


@pytest.mark.parametrize("wanted", ["cpu", "auto"])
def test_the_cpu_is_opened_where_there_is_nothing_else(wanted: str) -> None:
    device = open_device(wanted, 3, 2)
    assert (device.type, device.vendor, device.index, device.backend) == ("cpu", "cpu", 0, "gloo")
    assert device.torch == torch.device("cpu")
    assert torch.get_num_threads() == 2
    assert device.name
    assert device.memory_bytes > 1 << 28
    assert torch.__version__ in device.libraries
    device.synchronize()


@pytest.mark.parametrize("wanted", ["cuda", "rocm"])
def test_an_accelerator_that_torch_cannot_drive_is_refused(wanted: str) -> None:
    with pytest.raises(RequestError, match=f"--device {wanted}: torch .*use --device cpu"):
        open_device(wanted, 0, 1)
