"""Android's own tools: properties, settings, dumpsys, logcat, activities. Their texts are from memory."""

from __future__ import annotations

import time

from tests.harness.fake.shell import Shell, command


@command("getprop")
def _getprop(sh: Shell, args: list[str]) -> int | None:
    props = sh.device.props
    sh.out(props.get(args[0], "") + "\n" if args else "".join(f"[{k}]: [{v}]\n" for k, v in sorted(props.items())))
    return 0


@command("settings")
def _settings(sh: Shell, args: list[str]) -> int | None:
    verb, key = args[0], "/".join(args[1:3])
    if verb == "get":
        sh.out(sh.device.settings.get(key, "null") + "\n")
    elif verb == "put":
        sh.device.settings[key] = args[3]
    elif verb == "delete":
        sh.out(f"Deleted {1 if sh.device.settings.pop(key, None) else 0} rows\n")
    return 0


@command("svc")
def _svc(sh: Shell, args: list[str]) -> int | None:
    sh.device.settings["svc/" + args[0]] = " ".join(args[1:])
    return 0


@command("dumpsys")
def _dumpsys(sh: Shell, args: list[str]) -> int | None:
    device, b = sh.device, sh.device.battery
    if args[:1] == ["battery"]:
        plugged = b["plugged"]
        sh.out(
            "Current Battery Service state:\n"
            f"  AC powered: {str(plugged == 1).lower()}\n  USB powered: {str(plugged == 2).lower()}\n"
            f"  Wireless powered: false\n  status: {b['status']}\n  health: 2\n  present: true\n"
            f"  level: {b['level']}\n  scale: 100\n  voltage: {b['voltage']}\n"
            f"  temperature: {b['temperature']}\n  technology: Li-ion\n"
        )
    elif args[:1] == ["thermalservice"]:
        status = device.thermal_status()
        sh.out(
            f"IsStatusOverride: false\nThermalEventListeners:\n\tcallbacks: 1\nThermal Status: {status}\n"
            "Cached temperatures:\n"
            f"\tTemperature{{mValue={33 + 8 * status}.0, mType=0, mName=CPU, mStatus={status}}}\n"
            f"\tTemperature{{mValue={31 + 4 * status}.5, mType=3, mName=SKIN, mStatus={status}}}\n"
            "HAL Ready: true\n"
        )
    elif args[:1] == ["cpuinfo"]:
        sh.out("Load: 1.5 / 1.2 / 1.0\nCPU usage from 10000ms to 0ms ago:\n  12% TOTAL: 8% user + 4% kernel\n")
    elif args[:1] == ["package"] and len(args) > 1 and args[1] in device.packages:
        sh.out(
            f"Packages:\n  Package [{args[1]}] (0):\n    versionCode={device.packages[args[1]].version_code} "
            "minSdk=26 targetSdk=34\n"
        )
    elif args[:1] == ["power"]:
        sh.out("Power Manager State:\n  mWakefulness=Awake\n")
    else:
        sh.out(f"Can't find service: {' '.join(args)}\n")
    return 0


FORMATS = {
    "threadtime": "{date} {pid:5} {pid:5} {level} {tag}: {text}",
    "brief": "{level}/{tag}({pid:5}): {text}",
    "time": "{date} {level}/{tag}({pid:5}): {text}",
    "raw": "{text}",
    "epoch": "{when:15.3f} {pid:5} {pid:5} {level} {tag}: {text}",
}
LEVELS = "VDIWEFS"


@command("logcat")
def _logcat(sh: Shell, args: list[str]) -> int | None:
    device, form, dump, default, pid, tail, specs = sh.device, "threadtime", False, "V", None, None, {}
    queue = iter(args)
    for arg in queue:
        if arg == "-c":
            device.logs.clear()
            return 0
        if arg in ("-d", "-s"):
            dump, default = dump or arg == "-d", "S" if arg == "-s" else default
        elif arg.startswith("--pid="):
            pid = int(arg[6:])
        elif arg in ("-v", "-b", "-T", "-t"):
            value = next(queue)
            form = value if arg == "-v" and value in FORMATS else form
            tail = int(value) if arg in ("-T", "-t") and value.isdigit() else tail
            dump = dump or arg == "-t"
        elif arg[0] != "-":
            tag, _, level = arg.partition(":")
            if tag == "*":
                default = level or "V"
            else:
                specs[tag] = level or "V"
    at = 0 if tail is None else max(len(device.logs) - tail, 0)
    sh.out("--------- beginning of main\n")
    while not sh.io.closed.is_set():
        with device.logged:
            if at > len(device.logs):
                at = 0  # cleared meanwhile
            lines, at = device.logs[at:], len(device.logs)
            if not lines and not dump:
                device.logged.wait(0.2)
        for line in lines:
            wanted = LEVELS.index(line.level) >= LEVELS.index(specs.get(line.tag, default))
            if wanted and pid in (None, line.pid):
                date = time.strftime("%m-%d %H:%M:%S", time.localtime(line.when)) + f".{int(line.when % 1 * 1000):03}"
                sh.out(FORMATS[form].format(date=date, **vars(line)) + "\n")
        if dump:
            return 0
    return 0


@command("am")
def am(sh: Shell, args: list[str]) -> int | None:
    verb, device, queue = args[0], sh.device, iter(args[1:])
    extras, component, wait, raw, plain = {}, "", False, False, []
    for arg in queue:
        if arg in ("--es", "--ei", "--ez", "--el", "--ef", "-e"):
            name = next(queue)  # the right-hand side would be evaluated first
            extras[name] = next(queue)
        elif arg in ("-W", "-w"):
            wait = True
        elif arg == "-n":
            component = next(queue)
        elif arg in ("-a", "-c", "-d", "-t", "-f", "--user"):
            next(queue)
        elif arg == "-r":
            raw = True
        elif arg[0] != "-":
            plain.append(arg)
    if verb in ("force-stop", "kill"):
        for process in device.running(plain[0]):
            device.kill(process)
        return 0
    component = component or (plain[0] if plain else "")
    package, _, name = component.partition("/")
    full = package + name if name.startswith(".") else name
    if verb == "start":
        sh.out(f"Starting: Intent {{ cmp={component} (has extras) }}\n")
        if package not in device.packages:
            return sh.fail(f"Error type 3\nError: Activity class {{{package}/{full}}} does not exist.")
        if device.running(package):
            sh.out("Warning: Activity not started, intent has been delivered to currently running top-most instance.\n")
        else:
            device.start_app(package, extras, tag=full.rpartition(".")[2])
        if wait:
            sh.out(f"Status: ok\nLaunchState: COLD\nActivity: {component}\nTotalTime: 212\nWaitTime: 215\nComplete\n")
        return 0
    if verb == "instrument":
        if package not in device.packages:
            sh.out(
                "INSTRUMENTATION_STATUS: Error=Unable to find instrumentation info for: "
                f"ComponentInfo{{{component}}}\nINSTRUMENTATION_STATUS_CODE: -1\n"
            )
            return sh.fail(f"android.util.AndroidException: INSTRUMENTATION_FAILED: {component}")
        process = device.start_app(package, extras, tag=full.rpartition(".")[2])
        while wait and not process.finished.wait(0.1):
            if sh.io.closed.is_set():
                return 1
        if process.exit_code:
            sh.out("INSTRUMENTATION_RESULT: shortMsg=Process crashed.\nINSTRUMENTATION_CODE: 0\n")
        else:
            sh.out(("INSTRUMENTATION_RESULT: stream=\n" if raw else "\nOK (1 test)\n") + "INSTRUMENTATION_CODE: -1\n")
        return 0
    return sh.fail(f"Unknown command: {verb}", 255)


@command("pidof")
def _pidof(sh: Shell, args: list[str]) -> int | None:
    found = sh.device.running(args[-1])
    sh.out(" ".join(str(p.pid) for p in found) + "\n" if found else "")
    return 0 if found else 1


@command("ps")
def _ps(sh: Shell, args: list[str]) -> int | None:
    sh.out("USER           PID  PPID     VSZ    RSS WCHAN            ADDR S NAME\n")
    for process in sh.device.processes:
        if not process.finished.is_set():
            sh.out(f"u0_a123      {process.pid}   400 1234567 123456 0                   0 S {process.package}\n")
    return 0
