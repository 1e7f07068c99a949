"""The APK as a phone's installer and runtime will see it."""

from __future__ import annotations

import hashlib
import re
import shutil
import subprocess
import zipfile
from pathlib import Path

import pytest

from scripts.app_assets.pages import PAGE, misaligned, stored_at

ROOT = Path(__file__).resolve().parents[2]
APK = ROOT / "android_app" / "app" / "target" / "pocketune-debug.apk"
PERMISSIONS = ("FOREGROUND_SERVICE", "FOREGROUND_SERVICE_SPECIAL_USE", "POST_NOTIFICATIONS", "RECEIVE_BOOT_COMPLETED")
ABIS = ("arm64-v8a", "armeabi-v7a", "x86_64")
MOST_BYTES = 20 << 20

pytestmark = pytest.mark.android


def run(*command: str | Path) -> str:
    return subprocess.run(command, check=True, capture_output=True, text=True).stdout


@pytest.fixture(scope="module")
def apk() -> Path:
    run(ROOT / "scripts" / "build_apk")
    return APK


def test_badging(apk: Path) -> None:
    badging = run("aapt", "dump", "badging", apk)
    assert "package: name='org.pocketune.app' versionCode='200' versionName='0.2.0'" in badging
    assert "sdkVersion:'26'" in badging
    assert "targetSdkVersion:'34'" in badging
    permissions = re.findall(r"uses-permission[^:]*: name='([^']+)'", badging)
    assert sorted(permissions) == [f"android.permission.{name}" for name in PERMISSIONS]
    assert f"native-code: {' '.join(repr(abi) for abi in ABIS)}" in badging
    assert "application-debuggable" not in badging
    assert "launchable-activity: name='org.pocketune.app.ui.MainActivity'" in badging


def test_only_the_shell_starts_the_harness_and_only_two_doors_are_open(apk: Path) -> None:
    tree = run("aapt", "dump", "xmltree", apk, "AndroidManifest.xml")
    doors = {}
    for element in re.split(r"\n\s+E: (?=activity|service|receiver|provider)", tree)[1:]:
        name = re.search(r'android:name\([^)]*\)="([^"]+)"', element)[1]
        permission = re.search(r'android:permission\([^)]*\)="([^"]+)"', element)
        if re.search(r"android:exported\([^)]*\)=\(type 0x12\)0xffffffff", element):
            doors[name.rpartition(".")[2]] = permission and permission[1]
    assert doors == {"MainActivity": None, "HarnessActivity": "android.permission.DUMP"}


def test_no_instruction_that_old_phones_lack(apk: Path) -> None:
    code = run("dexdump", "-d", apk)
    assert "Lorg/pocketune/app/ui/MainActivity;" in code
    assert "Lkotlinx/coroutines/android/AndroidDispatcherFactory;" in code
    assert not re.findall(r"\|[0-9a-f]+: (?:invoke-custom|invoke-polymorphic|const-method)\S*", code)


def test_signature(apk: Path) -> None:
    report = run("apksigner", "verify", "--verbose", "--min-sdk-version", "26", apk)
    assert "Verified using v2 scheme (APK Signature Scheme v2): true" in report
    assert "Number of signers: 1" in report


def test_contents_alignment_and_size(apk: Path) -> None:
    run("zipalign", "-c", str(PAGE), apk)
    # TFLite 2.16.1 is not made for pages of 16 KiB; whatever else comes in must be.
    assert {Path(name).name for name in misaligned(apk)} <= {"libtensorflowlite_jni.so", "libtensorflowlite_gpu_jni.so"}
    assert all(place % PAGE == 0 for name, place in stored_at(apk).items() if name.startswith("lib/"))
    with zipfile.ZipFile(apk) as archive:
        stored = {i.filename: i.compress_type == zipfile.ZIP_STORED for i in archive.infolist()}
        for abi in ABIS:
            assert stored[f"lib/{abi}/libtensorflowlite_jni.so"]
        assert stored["resources.arsc"]
        assert stored["assets/digits.tflite"]
        built = ROOT / "android_app" / "app" / "target" / "assets" / "digits.tflite"
        assert archive.read("assets/digits.tflite") == built.read_bytes()
    assert apk.stat().st_size < MOST_BYTES


@pytest.mark.slow  # builds it once more
def test_the_same_sources_and_key_give_the_same_bytes(apk: Path) -> None:
    first = hashlib.sha256(apk.read_bytes()).hexdigest()
    apk.unlink()
    for folder in ("apk", "classes", "gen"):
        shutil.rmtree(apk.parent / folder)
    run(ROOT / "scripts" / "build_apk")
    assert hashlib.sha256(apk.read_bytes()).hexdigest() == first
