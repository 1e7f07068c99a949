"""What can go wrong with a device. Each fault has a name, says what happened, and what to do about it."""

from __future__ import annotations

from typing import ClassVar

from converter.support.errors import DeviceError


class Fault(DeviceError):
    """Base of all faults.

    Attributes:
        kind: its name in result files.
        advice: what a user can do, a sentence.
        recoverable: worth another try without a user.
        of_variant: says nothing about the device's other work, which goes on.
    """

    kind: ClassVar[str] = "fault"
    advice: ClassVar[str] = ""
    recoverable: ClassVar[bool] = False
    of_variant: ClassVar[bool] = False

    def __init__(self, device: str, problem: str) -> None:
        super().__init__(f"{device}: {problem}. {self.advice}".rstrip())
        self.device = device
        self.problem = problem


class Gone(Fault):
    """The connection broke, or there is no such device (any more)."""

    kind = "gone"
    advice = "Check the cable or the network and `scripts/device list`, then run again with --resume."
    recoverable = True


class Silent(Fault):
    """A command got no answer in time."""

    kind = "silent"
    advice = "Unplug it and plug it in again, or restart it, then run again with --resume."
    recoverable = True


class Unauthorized(Fault):
    """The phone does not trust this computer."""

    kind = "unauthorized"
    advice = "Unlock the phone, tap Allow in the dialog about USB debugging, then run again with --resume."


class NoLogin(Fault):
    """The machine behind ssh does not let this user in."""

    kind = "no-login"
    advice = "Make `ssh HOST true` work without a question, then run again with --resume."


class NoCheckout(Fault):
    """There is nothing behind ssh that could run a job."""

    kind = "no-checkout"
    advice = "Clone Pocketune there and run scripts/setup in it, or say where it is with --on ssh:HOST:FOLDER."


class Changed(Fault):
    """Another device, app or runtime answers than the one that was measured so far."""

    kind = "changed"
    advice = "Bring the one before back and run again with --resume, or give another --out."


class OutOfSpace(Fault):
    """A file does not fit."""

    kind = "out-of-space"
    advice = "Free some storage on the device (`scripts/device clean` removes ours), then run again with --resume."


class Corrupted(Fault):
    """What arrived is not what was sent."""

    kind = "corrupted"
    advice = "Try another cable or port, then run again with --resume."
    recoverable = True


class Killed(Fault):
    """The job's process ended before the job did."""

    kind = "killed"
    advice = "Close other apps and run again with --resume; if it stays so, a program of a smaller batch may fit."
    of_variant = True


class Crashed(Fault):
    """The library ended the job's process by a signal that only a fault in it raises."""

    kind = "crashed"
    advice = "The fault is the library's, not one of memory: try another target or frozen='float32', and report it."
    of_variant = True


class Stalled(Fault):
    """The job's process lives and writes nothing any more."""

    kind = "stalled"
    advice = "Look at the device's screen; raise stall_seconds in the plan if a step may take so long; then --resume."
    of_variant = True


class Failed(Fault):
    """The job ran and reported an error."""

    kind = "failed"
    advice = "Mend what it says, then run again with --resume."
    of_variant = True


class NotReady(Fault):
    """The device is in a condition in which numbers mean little."""

    kind = "not-ready"
    advice = "Mend that and run again with --resume, or accept it with --allow and its name."


class Overheated(Fault):
    """The device did not cool down, or grew hot in every run."""

    kind = "overheated"
    advice = "Take it out of the sun and its case, let it rest, then run again with --resume; or --allow THERMAL."


class WrongDevice(Fault):
    """The app cannot run there at all."""

    kind = "wrong-device"
    advice = "Take another device."


class NotInstalled(Fault):
    """The app is missing on the phone."""

    kind = "not-installed"
    advice = "Build it with scripts/build_apk and give it with --apk FILE."


class Fallback(Fault):
    """Another accelerator ran than the one that was asked for: such a number would be a lie."""

    kind = "fallback"
    advice = "Build the program for that accelerator, or take it out of the plan and give another --out."
    of_variant = True


class WrongNumbers(Fault):
    """The device computes something else than the host: its speed is of no interest."""

    kind = "wrong-numbers"
    advice = "Look at `scripts/device check`; a program for that device's runtime needs the right --target."
    exit_code = 4
    of_variant = True


class Interrupted(Fault):
    """A user stopped the run."""

    kind = "interrupted"
    advice = "Run again with --resume to finish it."
