"""Gradle cannot run here: at least it must say the same as Maven, which does."""

from __future__ import annotations

import os
import re
import tomllib
import zipfile
from collections.abc import Callable
from pathlib import Path
from xml.etree import ElementTree

import pytest

ANDROID = Path(__file__).resolve().parents[2] / "android_app"
POM = "{http://maven.apache.org/POM/4.0.0}"
MODULES = ("trainer", "federated", "federated-work", "runtime-tflite", "runtime-litert", "app")
CATALOG = tomllib.loads((ANDROID / "gradle" / "libs.versions.toml").read_text())
LOCAL = Path(os.environ.get("MAVEN_REPOSITORY", Path.home() / ".m2/repository"))
#: What only one of the two needs: Gradle takes AARs as they are, Maven runs the tests.
ONLY_MAVEN = {"android-all", "robolectric", "tflite-library", "litert-stubs", "work-stubs", "kotlin-stdlib"}
ONLY_GRADLE = {
    "litert",
    "litert-gpu",
    "litert-gpu-api",
    "runtime-litert",
    "tensorflow-lite",
    "tensorflow-lite-gpu",
    "tensorflow-lite-gpu-api",
    "work-runtime",
}


def pom(module: str = ".") -> ElementTree.Element:
    return ElementTree.parse(ANDROID / module / "pom.xml").getroot()


def properties(module: str = ".") -> dict[str, str]:
    element = pom(module).find(f"{POM}properties")
    return {p.tag.removeprefix(POM): p.text or "" for p in element if isinstance(p.tag, str)}


def gradle(module: str = ".") -> str:
    return (ANDROID / module / "build.gradle.kts").read_text()


def number(name: str, text: str) -> int:
    return int(re.search(rf"\b{name} = (\d+)", text)[1])


def artifact(name: str) -> str:
    return name.removesuffix("-jvm")


def test_versions_are_the_same() -> None:
    versions = {name.removesuffix(".version"): v for name, v in properties().items() if name.endswith(".version")}
    maven = {name.replace(".", "-"): version for name, version in versions.items()}
    shared = maven.keys() & CATALOG["versions"].keys()
    tflite = {"tflite", "tflite-gpu-api"}
    assert shared == tflite | {"coroutines", "junit", "kotlin", "okhttp", "protobuf", "serialization", "turbine"}
    assert {name: maven[name] for name in shared} == {name: CATALOG["versions"][name] for name in shared}


def test_the_tflite_library_is_the_same() -> None:
    versions = {f"${{{name}}}": version for name, version in properties().items()}
    maven = {
        f"{item.findtext(f'{POM}groupId')}:{item.findtext(f'{POM}artifactId')}": item.findtext(f"{POM}version")
        for item in pom("tflite-library").iter(f"{POM}artifactItem")
    }
    gradle = {
        library["module"]: CATALOG["versions"][library["version"]["ref"]]
        for library in CATALOG["libraries"].values()
        if library["module"].startswith("org.tensorflow:")
    }
    # Gradle takes tensorflow-lite-api of itself: tensorflow-lite depends on it.
    api = maven.pop("org.tensorflow:tensorflow-lite-api")
    assert api == maven["org.tensorflow:tensorflow-lite"]
    assert gradle == {module: versions[version] for module, version in maven.items()}


def test_modules_are_the_same() -> None:
    maven = {m.text for m in pom().iter(f"{POM}module")}
    settings = (ANDROID / "settings.gradle.kts").read_text()
    assert (
        set(re.findall(r'":([a-z-]+)"', settings))
        == maven - {"tflite-library", "litert-stubs", "work-stubs", "desktop"}
        == set(MODULES)
    )


@pytest.mark.parametrize("module", MODULES)
def test_dependencies_are_the_same(module: str) -> None:
    aliases = {name.replace("-", "."): library["module"] for name, library in CATALOG["libraries"].items()}
    text = gradle(module)
    taken = {artifact(aliases[alias].split(":")[1]) for alias in re.findall(r"\(libs\.((?!plugins)[a-z0-9.]+)\)", text)}
    taken |= set(re.findall(r'project\(":([a-z-]+)"\)', text))
    wanted = {
        artifact(d.findtext(f"{POM}artifactId") or "")
        for d in pom(module).findall(f"{POM}dependencies/{POM}dependency")
        # Gradle builds the app; its tests, and those of the runtime, run in Maven.
        if module == "trainer" or d.findtext(f"{POM}scope") != "test"
    }
    assert taken - ONLY_GRADLE == wanted - ONLY_MAVEN


def test_sdk_levels_version_and_libraries_are_the_same() -> None:
    maven, app = properties("app"), gradle("app")
    assert number("minSdk", app) == number("minSdk", gradle("runtime-tflite")) == int(maven["min.sdk"]) == 26
    assert number("targetSdk", app) == number("compileSdk", app) == int(maven["target.sdk"]) == 34
    assert number("minSdk", gradle("runtime-litert")) == 26
    assert number("compileSdk", gradle("runtime-tflite")) == number("compileSdk", gradle("runtime-litert")) == 34
    # The Android that Maven compiles against.
    assert properties()["android.all.version"].startswith("14-")
    assert number("versionCode", app) == int(maven["version.code"])
    assert re.search(r'versionName = "(.*)"', app)[1] == pom().findtext(f"{POM}version")
    assert f'applicationId = "{maven["application.id"]}"' in app
    assert f'namespace = "{maven["application.id"]}"' in app
    abis = [pattern.partition("/")[0] for pattern in maven["libraries"].split(",")]
    assert re.findall(r'"([\w-]+)"', re.search(r"abiFilters.*", app)[0]) == abis


def test_both_build_from_one_manifest_without_internet() -> None:
    manifests = [p for p in ANDROID.rglob("AndroidManifest.xml") if "target" not in p.parts]
    app, work = (ANDROID / module / "src/main/AndroidManifest.xml" for module in ("app", "federated-work"))
    assert set(manifests) == {app, work}
    name = "{http://schemas.android.com/apk/res/android}name"
    asked = [element.get(name) for element in ElementTree.parse(work).getroot().iter("uses-permission")]
    assert asked == ["android.permission.INTERNET"]
    assert "federated" not in gradle("app"), "an app has the network by that library, and the demo does not take it"
    root = ElementTree.parse(app).getroot()
    permissions = {element.get(name) for element in root.iter("uses-permission")}
    assert permissions == {
        "android.permission.FOREGROUND_SERVICE",
        "android.permission.FOREGROUND_SERVICE_SPECIAL_USE",
        "android.permission.POST_NOTIFICATIONS",
        "android.permission.RECEIVE_BOOT_COMPLETED",
    }
    assert 'srcDir("target/assets")' in gradle("app")


def taken_by(module: str, of: Callable[[str], set[str]]) -> set[str]:
    """The modules of this project that one takes, and those that these take."""
    found, left = set(), [module]
    while left:
        new = of(left.pop()) - found
        found |= new
        left += new
    return found


def test_nothing_that_merges_into_the_app_asks_for_the_network() -> None:
    """No module that the app takes has a manifest of its own, and no AAR of TensorFlow's asks for a permission."""
    by_gradle = taken_by("app", lambda module: set(re.findall(r'project\(":([a-z-]+)"\)', gradle(module))))
    assert by_gradle == {"trainer", "runtime-tflite", "runtime-litert"}
    by_maven = taken_by("app", own_dependencies)
    assert by_maven == {"trainer", "runtime-tflite", "tflite-library"}
    assert not [name for name in by_gradle | by_maven if list((ANDROID / name / "src").rglob("AndroidManifest.xml"))]
    # The client of federated training, whose manifest asks for the network, is another one's to take.
    assert "federated" in taken_by("federated-work", own_dependencies)


def own_dependencies(module: str) -> set[str]:
    found = pom(module).findall(f"{POM}dependencies/{POM}dependency")
    named = {d.findtext(f"{POM}artifactId") or "" for d in found if d.findtext(f"{POM}groupId") == "org.pocketune"}
    tests = {d.findtext(f"{POM}artifactId") for d in found if d.findtext(f"{POM}scope") == "test"}
    return named - tests


@pytest.mark.parametrize("library", ["tensorflow-lite", "tensorflow-lite-api", "tensorflow-lite-gpu"])
def test_libraries_that_the_app_takes_ask_for_no_permission(library: str) -> None:
    version = properties()["tflite.version"]
    file = LOCAL / f"org/tensorflow/{library}/{version}/{library}-{version}.aar"
    if not file.exists():
        pytest.skip(f"{library} {version} is not here: android_app/test")
    with zipfile.ZipFile(file) as archive:
        root = ElementTree.fromstring(archive.read("AndroidManifest.xml"))
    assert root.tag == "manifest"
    assert not [element.tag for element in root.iter() if element.tag.startswith("uses-permission")]


def test_the_gate_builds_the_client_of_federated_training() -> None:
    [command] = re.findall(r"^\./maven -pl (\S+) test ", (ANDROID / "test").read_text(), re.M)
    modules = {m.text for m in pom().iter(f"{POM}module")}
    # The app has a gate of its own, and the desktop is compiled beside.
    assert {"federated", "federated-work", "work-stubs"} <= set(command.split(",")) == modules - {"app"}


def test_every_catalog_entry_is_used() -> None:
    texts = "".join(gradle(module) for module in (".", *MODULES))
    unused = [name for name in CATALOG["libraries"] if f"(libs.{name.replace('-', '.')})" not in texts]
    unused += [name for name in CATALOG["plugins"] if f"(libs.plugins.{name.replace('-', '.')})" not in texts]
    assert not unused
