"""Training time and memory on a device, estimated before deployment: an interval, and its basis."""

from converter.tools.estimate.catalogue import Device, device, devices
from converter.tools.estimate.estimates import Estimate, Estimates, estimate, estimate_rows, setting, steps_of
from converter.tools.estimate.interval import Interval
from converter.tools.estimate.measured import Measured, read_measured
from converter.tools.estimate.on_board import BoardEstimate, board_to_json, estimate_on_board
