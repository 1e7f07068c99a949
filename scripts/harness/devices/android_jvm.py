"""The app's job runner and the official Android library on a JVM: `local-android`, and `local-android:arm64`.

The second runs the unmodified library of phones in an arm64 JVM under qemu: its losses are a phone's, its times are
not. Instead the emulator counts the instructions of the library, and of nothing else in the JVM.
"""

from __future__ import annotations

import os
import re
import shlex
import subprocess
from pathlib import Path

from converter.support.errors import UsageError

ROOT = Path(__file__).resolve().parents[3]
ANDROID = ROOT / "android_app"
SOURCE = Path(__file__).with_name("AndroidWorker.java")
#: The modules of the app's build whose classes run here.
MODULES = ("runtime-tflite", "trainer", "tflite-library")
#: From Maven Central, in the versions of android_app/pom.xml: group and artifact by the property of its version.
LIBRARIES = {
    "kotlin.version": ("org/jetbrains/kotlin/kotlin-stdlib",),
    "coroutines.version": ("org/jetbrains/kotlinx/kotlinx-coroutines-core-jvm",),
    "serialization.version": (
        "org/jetbrains/kotlinx/kotlinx-serialization-core-jvm",
        "org/jetbrains/kotlinx/kotlinx-serialization-json-jvm",
    ),
}
ADVICE_ARM64 = "run android_app/test first: it sets up an arm64 JVM under emulation"
ADVICE = "run android_app/test and scripts/build_apk first: they compile what this host runs"


def command(counts: str | None = None) -> list[str]:
    """Return the command line that runs jobs, to be followed by JOB.json and RESULTS.

    Compiles the worker when it is old.

    Args:
        counts: run the arm64 library, and keep the number of its instructions in this file.

    Raises:
        UsageError: the app has not been built, or there is no JDK.
    """
    versions = dict(re.findall(r"<([\w.-]+\.version)>([^<]+)<", (ANDROID / "pom.xml").read_text()))
    emulated = ANDROID / "target/arm64"
    natives = emulated / "natives" if counts else ANDROID / "target/natives" / versions["tflite.version"]
    path = [_app(), *(ANDROID / module / "target/classes" for module in MODULES)]
    path += [_jar(artifact, versions[name]) for name, artifacts in LIBRARIES.items() for artifact in artifacts]
    counting = (natives / "counter.so", emulated / "instructions.so") if counts else ()
    for needed in (*path, natives / "libtensorflowlite_jni.so", *counting):
        if not needed.exists():
            raise UsageError(f"local-android: {needed} is missing: {ADVICE_ARM64 if counts else ADVICE}")
    classes = ANDROID / "target/harness-worker"
    classpath = os.pathsep.join(map(str, path))
    _compile(classes, classpath)
    java = _arm64_java(emulated, counts) if counts else ["java"]
    settings = ["-Xmx1g", f"-Djava.library.path={natives}", f"-Dnatives={natives}"]
    return [*java, *settings, "-cp", f"{classes}{os.pathsep}{classpath}", "AndroidWorker"]


def worker(job: str, results: str) -> str:
    """Return the script that runs a job."""
    return f"exec {shlex.join([*command(), job, results])}"


def arm64_worker(job: str, results: str) -> str:
    """Return the script that runs a job under emulation."""
    arguments = [*command(counts=f"{results}/instructions"), job, results]
    return f"exec {shlex.join(arguments)}"


def _arm64_java(folder: Path, counts: str) -> list[str]:
    """Return an arm64 JVM as android_app/test sets it up. The library picks its kernels by the cpuinfo it is shown."""
    environment = {
        "LD_LIBRARY_PATH": folder / "natives",
        "LD_PRELOAD": folder / "natives/tlspad.so",
        "BIONIC_SHIM_CPUINFO": ROOT / "scripts/arm64/cpu/a76",
    }
    given = [word for name, value in environment.items() for word in ("-E", f"{name}={value}")]
    java = folder / "jre/usr/lib/jvm/java-17-openjdk-arm64/bin/java"
    emulator = ["qemu-aarch64", "-cpu", "cortex-a76", "-plugin", f"{folder}/instructions.so,out={counts}"]
    return [*emulator, "-L", str(folder / "jre"), *given, str(java), "-Xint", f"-Dcounts={counts}"]


def _app() -> Path:
    """Return the app's classes: the folder of a compilation, or the jar of a finished build."""
    folder = ANDROID / "app/target"
    return (
        folder / "classes"
        if (folder / "classes/org/pocketune/app/harness").exists()
        else next(folder.glob("app-*.jar"), folder / "app.jar")
    )


def _jar(artifact: str, version: str) -> Path:
    repository = Path(os.environ.get("MAVEN_REPOSITORY", Path.home() / ".m2/repository"))
    return repository / artifact / version / f"{Path(artifact).name}-{version}.jar"


def _compile(classes: Path, classpath: str) -> None:
    made = classes / "AndroidWorker.class"
    if made.exists() and made.stat().st_mtime > SOURCE.stat().st_mtime:
        return
    arguments = ["javac", "-nowarn", "-d", str(classes), "-cp", classpath, str(SOURCE)]
    try:
        done = subprocess.run(arguments, capture_output=True, text=True, timeout=120, check=False)
    except FileNotFoundError:
        raise UsageError("local-android: there is no javac (on Debian: apt install openjdk-17-jdk-headless)") from None
    if done.returncode:
        raise UsageError(f"local-android: {SOURCE.name} does not fit the app's classes:\n{done.stderr.strip()}")
