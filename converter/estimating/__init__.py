"""What a training would take on a device, before anything is deployed: an interval, and what it is based on."""

from converter.estimating.catalogue import Device, device, devices
from converter.estimating.estimates import Estimate, Estimates, estimate, estimate_rows, setting, steps_of
from converter.estimating.interval import Interval
from converter.estimating.measured import Measured, read_measured
