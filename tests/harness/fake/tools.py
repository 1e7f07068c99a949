"""The small tools inside the device."""

from __future__ import annotations

import hashlib
import re
import shutil
import time
from pathlib import Path

from tests.harness.fake.shell import Shell, command


@command("echo")
def _echo(sh: Shell, args: list[str]) -> int | None:
    end = "\n"
    if args[:1] == ["-n"]:
        args, end = args[1:], ""
    sh.out(" ".join(args) + end)
    return 0


@command("true", ":", "export", "setprop", "sync", "input", "wm", "trap")
def _true(sh: Shell, args: list[str]) -> int | None:
    return 0


@command("false")
def _false(sh: Shell, args: list[str]) -> int | None:
    return 1


@command("exit")
def _exit(sh: Shell, args: list[str]) -> int | None:
    sh.env["__exit"] = "1"
    return int(args[0]) if args else sh.status


@command("cd")
def _cd(sh: Shell, args: list[str]) -> int | None:
    if not sh.local(args[0]).is_dir():
        return sh.fail(f"/system/bin/sh: cd: {args[0]}: No such file or directory", 2)
    sh.cwd = sh.path(args[0])
    return 0


@command("sleep")
def _sleep(sh: Shell, args: list[str]) -> int | None:
    sh.io.closed.wait(float(args[0]))
    return 0


@command("id", "whoami")
def _id(sh: Shell, args: list[str]) -> int | None:
    sh.out("uid=2000(shell) gid=2000(shell) groups=2000(shell)\n")
    return 0


@command("date")
def _date(sh: Shell, args: list[str]) -> int | None:
    sh.out(time.strftime(args[0][1:] if args else "%c").replace("%s", str(int(time.time()))) + "\n")
    return 0


@command("cat")
def _cat(sh: Shell, args: list[str]) -> int | None:
    if not args:
        sh.out(sh.io.read())
    for name in args:
        with sh.device.open(sh.path(name)) as file:
            while data := file.read(65536):
                sh.out(data)
    return 0


@command("ls")
def _ls(sh: Shell, args: list[str]) -> int | None:
    code, names = 0, [a for a in args if a[0] != "-"] or ["."]
    long = any("l" in a for a in args if a[0] == "-")
    for name in names:
        local = sh.local(name)
        if not local.exists():
            code = sh.fail(f"ls: {name}: No such file or directory")
            continue
        for entry in sorted(local.iterdir()) if local.is_dir() and "-d" not in args else [local]:
            shown = entry.name if local.is_dir() else name
            s = entry.stat()
            sh.out(f"-rw-rw-rw- 1 shell shell {s.st_size} 2024-01-01 00:00 {shown}\n" if long else shown + "\n")
    return code


@command("mkdir")
def _mkdir(sh: Shell, args: list[str]) -> int | None:
    for name in (a for a in args if a[0] != "-"):
        sh.device.check_writable(sh.path(name))
        sh.local(name).mkdir(parents="-p" in args, exist_ok="-p" in args)
    return 0


@command("rm", "rmdir")
def _rm(sh: Shell, args: list[str]) -> int | None:
    options = "".join(a for a in args if a[0] == "-")
    for name in (a for a in args if a[0] != "-"):
        sh.device.check_writable(sh.path(name))
        local = sh.local(name)
        if local.is_dir() and ("r" in options or "R" in options):
            shutil.rmtree(local)
        elif local.exists() or "f" not in options:
            local.unlink()
    return 0


@command("cp")
def _cp(sh: Shell, args: list[str]) -> int | None:
    source, target = (a for a in args if a[0] != "-")
    sh.device.check_writable(sh.path(target))
    shutil.copy(sh.local(source), sh.local(target))
    return 0


@command("mv")
def _mv(sh: Shell, args: list[str]) -> int | None:
    source, target = (a for a in args if a[0] != "-")
    sh.device.check_writable(sh.path(target))
    sh.local(source).replace(sh.local(target))
    return 0


@command("chmod", "touch")
def _chmod(sh: Shell, args: list[str]) -> int | None:
    for name in (a for a in args if "/" in a):
        sh.device.check_writable(sh.path(name))
        sh.local(name).touch()
    return 0


@command("test", "[")
def _test(sh: Shell, args: list[str]) -> int | None:
    args = [a for a in args if a != "]"]
    checks = {"-e": Path.exists, "-f": Path.is_file, "-d": Path.is_dir, "-s": lambda p: p.stat().st_size}
    if len(args) == 2 and args[0] in checks:
        return 0 if checks[args[0]](sh.local(args[1])) else 1
    return 0 if len(args) == 3 and (args[0] == args[2]) == (args[1] in ("=", "==")) else 1


@command("stat")
def _stat(sh: Shell, args: list[str]) -> int | None:
    for name in (a for a in args if a[0] == "/"):
        sh.out(f"{sh.local(name).stat().st_size}\n")
    return 0


@command("sha256sum")
def _sha256sum(sh: Shell, args: list[str]) -> int | None:
    for name in args:
        with sh.local(name).open("rb") as file:
            sh.out(f"{hashlib.file_digest(file, 'sha256').hexdigest()}  {name}\n")
    return 0


@command("grep")
def _grep(sh: Shell, args: list[str]) -> int | None:
    pattern = next(a for a in args if a[0] != "-")
    lines = [line for line in sh.io.read().decode().splitlines() if re.search(pattern, line)]
    sh.out("".join(line + "\n" for line in lines))
    return 0 if lines else 1


@command("df")
def _df(sh: Shell, args: list[str]) -> int | None:
    size, used = sh.device.capacity // 1024, sh.device.used_bytes() // 1024
    sh.out(
        "Filesystem      1K-blocks     Used Available Use% Mounted on\n"
        f"/dev/block/dm-9 {size:9} {used:8} {max(size - used, 0):9} {100 * used // size:3}% /data\n"
    )
    return 0


@command("uptime")
def _uptime(sh: Shell, args: list[str]) -> int | None:
    sh.out(f"up {int(time.time() - sh.device.booted)} seconds\n")
    return 0
