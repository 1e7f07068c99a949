"""A fake phone for the real adb: adbd's side of the protocol, a small shell, Android's tools, and faults on demand."""

# The commands inside the device register themselves.
import tests.harness.fake.android
import tests.harness.fake.packages
import tests.harness.fake.tools
from tests.harness.fake.device import FakeDevice
from tests.harness.fake.server import AdbServer

__all__ = ["AdbServer", "FakeDevice"]
