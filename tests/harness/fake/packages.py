"""Installing apps: reads the binary manifest of a real APK."""

from __future__ import annotations

import shutil
import struct
import zipfile
from pathlib import Path

from tests.harness.fake.android import am
from tests.harness.fake.shell import Shell, command


def manifest(apk: Path) -> dict:
    """Package name and integer attributes from the binary AndroidManifest.xml of an APK."""
    with zipfile.ZipFile(apk) as archive:
        data, names = archive.read("AndroidManifest.xml"), archive.namelist()
    found = {"abis": {n.split("/")[1] for n in names if n.startswith("lib/") and n.count("/") == 2}}
    strings, at = [], 8
    while at < len(data):
        kind, _, size = struct.unpack_from("<HHI", data, at)
        if kind == 0x0001:  # string pool
            count, _, flags, start = struct.unpack_from("<4I", data, at + 8)
            for offset in struct.unpack_from(f"<{count}I", data, at + 28):
                p = at + start + offset
                if flags & 0x100:  # UTF-8: two lengths, short ones only
                    strings.append(data[p + 2 : p + 2 + data[p + 1]].decode())
                else:
                    (length,) = struct.unpack_from("<H", data, p)
                    strings.append(data[p + 2 : p + 2 + 2 * length].decode("utf-16-le"))
        elif kind == 0x0102:  # start of an element
            first, width, count = struct.unpack_from("<3H", data, at + 24)
            for i in range(count):
                _, name, raw, _, _, _, value = struct.unpack_from("<3IHBBI", data, at + 16 + first + i * width)
                found.setdefault(strings[name], strings[raw] if raw != 0xFFFFFFFF else value)
        at += size
    return found


def install(sh: Shell, apk: Path, options: list[str]) -> int:
    device = sh.device

    def failure(reason: str) -> int:
        sh.out(f"Failure [{reason}]\n")
        return 1

    reason = device.take("install-fail")
    if reason:
        return failure(reason)
    try:
        info = manifest(apk)
    except (zipfile.BadZipFile, KeyError, struct.error):
        return failure(f"INSTALL_PARSE_FAILED_NOT_APK: Failed to parse {device.remote(apk)}")
    name, abis = info.get("package", "unknown"), device.props["ro.product.cpu.abilist"].split(",")
    if info["abis"] and not info["abis"] & set(abis):
        return failure("INSTALL_FAILED_NO_MATCHING_ABIS: Failed to extract native libraries, res=-113")
    if info.get("minSdkVersion", 1) > int(device.props["ro.build.version.sdk"]):
        return failure(f"INSTALL_FAILED_OLDER_SDK: Requires newer sdk version #{info['minSdkVersion']}")
    if info.get("testOnly") and "-t" not in options:
        return failure("INSTALL_FAILED_TEST_ONLY: Failed to install test-only apk")
    if apk.stat().st_size > device.free_bytes():
        return failure("INSTALL_FAILED_INSUFFICIENT_STORAGE: Failed to override installation location")
    device.install(name, apk.read_bytes(), int(info.get("versionCode", 1)))
    sh.out("Success\n")
    return 0


@command("pm")
def _pm(sh: Shell, args: list[str]) -> int | None:
    device, verb, rest = sh.device, args[0], args[1:]
    plain = [a for i, a in enumerate(rest) if a[0] != "-" and (i == 0 or rest[i - 1] not in ("-S", "--user", "-i"))]
    if verb == "install" and "-S" in rest:  # streamed: the APK comes on standard input
        size, staged = int(rest[rest.index("-S") + 1]), device.local("/data/local/tmp/.staged.apk")
        with staged.open("wb") as file:
            while size and (data := sh.io.read(min(size, 65536))):
                file.write(data)
                size -= len(data)
        try:
            if size:
                sh.out("Failure [INSTALL_FAILED_INVALID_APK: stream ended early]\n")
                return 1
            return install(sh, staged, rest)
        finally:
            staged.unlink()
    if verb == "install":
        if not sh.local(plain[-1]).exists():
            return sh.fail(f"Error: Unable to open file: {plain[-1]}\nConsider using a file under /data/local/tmp/")
        return install(sh, sh.local(plain[-1]), rest)
    if verb == "list":
        sh.out("".join(f"package:{n}\n" for n in sorted(device.packages) if not plain[1:] or plain[1] in n))
    elif verb == "path":
        if plain[0] not in device.packages:
            return 1
        sh.out(f"package:{device.packages[plain[0]].path}\n")
    elif verb in ("uninstall", "clear"):
        if plain[0] not in device.packages:
            sh.out("Failure [DELETE_FAILED_INTERNAL_ERROR]\n")
            return 1
        if verb == "uninstall":
            device.uninstall(plain[0])
        else:
            for process in device.running(plain[0]):
                device.kill(process)
            shutil.rmtree(device.local(f"/sdcard/Android/data/{plain[0]}"), ignore_errors=True)
        sh.out("Success\n")
    elif verb not in ("grant", "revoke"):
        return sh.fail(f"Unknown command: {verb}", 255)
    return 0


@command("cmd")
def _cmd(sh: Shell, args: list[str]) -> int | None:
    if args[:1] == ["package"]:
        return _pm(sh, args[1:])
    if args[:1] == ["activity"]:
        return am(sh, args[1:])
    if args[:2] == ["thermalservice", "override-status"]:
        sh.device.thermal_ramp = [(0.0, int(args[2]))]
        return 0
    return sh.fail(f"cmd: Can't find service: {args[0] if args else ''}", 20)
