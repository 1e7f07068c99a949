"""The Maven artefacts, as an Android project takes them: resolved by Maven, compiled against and run."""

from __future__ import annotations

import hashlib
import io
import os
import re
import shutil
import subprocess
import sys
import zipfile
from pathlib import Path
from xml.etree import ElementTree

import pytest

from scripts.maven.__main__ import libraries
from tests.tree import ROOT

ANDROID = ROOT / "android_app"
SAMPLE = ROOT / "examples" / "android" / "app" / "src" / "main"
LOCAL = Path(os.environ.get("MAVEN_REPOSITORY", Path.home() / ".m2/repository"))
PROPERTIES = dict(re.findall(r"<([\w.-]+\.version)>([^<]+)<", (ANDROID / "pom.xml").read_text()))
ANDROID_ALL = "org/robolectric/android-all/{0}/android-all-{0}.jar".format(PROPERTIES["android.all.version"])

pytestmark = pytest.mark.android


def run(*command: str | Path, cwd: Path = ROOT) -> str:
    done = subprocess.run(command, check=False, capture_output=True, text=True, cwd=cwd)
    assert done.returncode == 0, f"{done.stdout[-3000:]}\n{done.stderr[-3000:]}"
    return done.stdout


@pytest.fixture(scope="module")
def repository(tmp_path_factory: pytest.TempPathFactory) -> Path:
    out = tmp_path_factory.mktemp("maven")
    run(ROOT / "scripts" / "build_maven", out)
    return out


@pytest.fixture(scope="module")
def aar(repository: Path) -> zipfile.ZipFile:
    [file] = repository.rglob("*.aar")
    return zipfile.ZipFile(file)


@pytest.fixture(scope="module")
def needed(repository: Path, tmp_path_factory: pytest.TempPathFactory) -> list[Path]:
    """All classes that a project gets which depends on the AAR: jars, and the classes.jar of each AAR."""
    folder = tmp_path_factory.mktemp("sample")
    shutil.copy(ROOT / "tests/android/sample/pom.xml", folder)
    taken = LOCAL / "org" / "pocketune"
    # Of a version that it has Maven asks nobody again.
    shutil.rmtree(taken, ignore_errors=True)
    settings = {"repository": repository, "pocketune.version": libraries()[0].version}
    settings |= {name: PROPERTIES[name] for name in PROPERTIES}
    given = [f"-D{name}={value}" for name, value in settings.items()]
    run("mvn", "-q", "-B", *given, "dependency:copy-dependencies", "-DincludeScope=compile", cwd=folder)
    shutil.rmtree(taken)
    found = []
    for file in sorted((folder / "target" / "needed").iterdir()):
        if file.suffix == ".aar":
            with zipfile.ZipFile(file) as archive:
                file = file.with_suffix(".jar")
                file.write_bytes(archive.read("classes.jar"))
        found.append(file)
    return found


@pytest.fixture(scope="module")
def classes(needed: list[Path], tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The sample, and what runs it here, compiled against the artefacts with the warnings of a build."""
    out = tmp_path_factory.mktemp("classes")
    android = [] if any("android-all" in file.name for file in needed) else [LOCAL / ANDROID_ALL]
    compiler = (ANDROID / "desktop/target/classpath").read_text()
    sources = [*(SAMPLE / "kotlin").rglob("*.kt"), ROOT / "tests/android/sample/Run.kt"]
    options = ["-no-stdlib", "-no-reflect", "-Werror", "-jvm-target", "1.8", "-d", str(out)]
    path = os.pathsep.join(map(str, [*needed, *android]))
    run("java", "-cp", compiler, "org.jetbrains.kotlin.cli.jvm.K2JVMCompiler", *options, "-cp", path, *sources)
    return out


@pytest.mark.quick
def test_the_aar_is_what_the_format_asks_for(aar: zipfile.ZipFile) -> None:
    assert {"AndroidManifest.xml", "classes.jar", "R.txt"} <= set(aar.namelist())
    manifest = ElementTree.fromstring(aar.read("AndroidManifest.xml"))
    gradle = (ANDROID / "runtime-tflite/build.gradle.kts").read_text()
    assert f'namespace = "{manifest.get("package")}"' in gradle
    [sdk] = manifest.iter("uses-sdk")
    lowest = sdk.get("{http://schemas.android.com/apk/res/android}minSdkVersion")
    assert f"defaultConfig.minSdk = {lowest}\n" in gradle
    metadata = aar.read("META-INF/com/android/build/gradle/aar-metadata.properties").decode()
    values = dict(line.split("=") for line in metadata.split())
    assert (values["aarFormatVersion"], values["aarMetadataVersion"], values["minCompileSdk"]) == ("1.0", "1.0", "34")
    assert aar.read("proguard.txt") == (ANDROID / "consumer-rules.pro").read_bytes()
    with zipfile.ZipFile(io.BytesIO(aar.read("classes.jar"))) as jar:
        assert "org/pocketune/runtime/tflite/TfliteRuntimeFactory.class" in jar.namelist()
        assert not [name for name in jar.namelist() if name.startswith(("org/tensorflow", "kotlin"))]


def test_the_jar_says_what_a_shrinker_keeps(repository: Path) -> None:
    [file] = [path for path in repository.rglob("trainer-*.jar") if "sources" not in path.name]
    with zipfile.ZipFile(file) as jar:
        assert jar.read("META-INF/proguard/pocketune.pro") == (ANDROID / "consumer-rules.pro").read_bytes()


def test_the_client_of_federated_training_brings_notices_and_rules(repository: Path) -> None:
    [file] = [path for path in repository.rglob("federated-*.jar") if "sources" not in path.name]
    with zipfile.ZipFile(file) as jar:
        names = jar.namelist()
        assert b"Flower" in jar.read("META-INF/NOTICE")
        assert {"META-INF/proguard/federated.pro", "org/pocketune/federated/FederatedClient.class"} <= set(names)
        assert "org/pocketune/federated/wire/Message.class" in names
    pom = next(repository.rglob("federated-*.pom")).read_text()
    assert "<artifactId>okhttp</artifactId>" in pom
    assert "<artifactId>trainer</artifactId>" in pom


@pytest.mark.quick
def test_aapt_takes_the_manifests(aar: zipfile.ZipFile, needed: list[Path], tmp_path: Path) -> None:
    sample = (SAMPLE / "AndroidManifest.xml").read_text()
    merged = sample.replace("<manifest ", '<manifest package="org.pocketune.sample" ')
    for name, text in (("library", aar.read("AndroidManifest.xml").decode()), ("sample", merged)):
        (tmp_path / name).mkdir()
        (tmp_path / name / "AndroidManifest.xml").write_text(text)
        arguments = ["-M", f"{name}/AndroidManifest.xml", "-I", str(LOCAL / ANDROID_ALL), "-F", f"{name}.apk"]
        run("aapt", "package", "-f", *arguments, cwd=tmp_path)
    badging = run("aapt", "dump", "badging", "sample.apk", cwd=tmp_path)
    assert "launchable-activity: name='org.pocketune.sample.MainActivity'" in badging


def test_digests_sources_and_metadata(repository: Path) -> None:
    for module in libraries():
        folder = repository / "org/pocketune" / module.name / module.version
        start = f"{module.name}-{module.version}"
        names = [f"{start}.{module.packaging}", f"{start}-sources.jar", f"{start}.pom"]
        for name in names:
            for digest in ("md5", "sha1", "sha256"):
                whole = hashlib.new(digest, (folder / name).read_bytes()).hexdigest()
                assert (folder / f"{name}.{digest}").read_text() == whole
        sources = zipfile.ZipFile(folder / names[1]).namelist()
        written = (module.folder / "src/main/kotlin").rglob("*.kt")
        notices = {"META-INF/NOTICE"} if module.name == "federated" else set()
        assert set(sources) - notices == {
            "META-INF/LICENSE",
            *(p.relative_to(module.folder / "src/main/kotlin").as_posix() for p in written),
        }
        metadata = ElementTree.parse(folder.parent / "maven-metadata.xml").getroot()
        assert metadata.findtext("versioning/release") == module.version


def test_the_same_classes_give_the_same_bytes(repository: Path, tmp_path: Path) -> None:
    run(sys.executable, "-m", "scripts.maven", tmp_path)
    files = [path.relative_to(repository) for path in repository.rglob("*") if path.is_file()]
    assert files
    assert all((tmp_path / name).read_bytes() == (repository / name).read_bytes() for name in files)


def test_a_project_gets_all_that_it_needs(needed: list[Path]) -> None:
    names = {re.sub(r"-[\d.]+(?:-robolectric-\d+)?$", "", path.stem) for path in needed}
    assert names >= {"trainer", "runtime-tflite", "tensorflow-lite", "tensorflow-lite-api", "tensorflow-lite-gpu"}
    assert names >= {"kotlin-stdlib", "kotlinx-coroutines-core-jvm", "kotlinx-serialization-json-jvm"}
    assert not names & {"tflite-library", "litert-stubs", "junit-jupiter"}


@pytest.mark.skipif(shutil.which("gradle") is None, reason="there is no Gradle: apt-get install gradle")
def test_gradle_resolves_the_libraries(repository: Path, tmp_path: Path) -> None:
    (tmp_path / "settings.gradle").write_text("rootProject.name = 'sample'\n")
    (tmp_path / "build.gradle").write_text(
        f"""repositories {{ maven {{ url uri("{repository}") }}; mavenCentral() }}
        configurations {{ app }}
        dependencies {{ app "org.pocketune:runtime-tflite:{libraries()[0].version}" }}
        task show {{ doLast {{ configurations.app.files.each {{ println it.name }} }} }}"""
    )
    found = run("gradle", "--no-daemon", "-q", "show", cwd=tmp_path)
    versions = {name: PROPERTIES[f"{name}.version"] for name in ("tflite", "kotlin", "coroutines")}
    for name in ("", "-api", "-gpu"):
        assert f"tensorflow-lite{name}-{versions['tflite']}.aar" in found
    assert f"kotlin-stdlib-{versions['kotlin']}.jar" in found
    assert f"kotlinx-coroutines-core-jvm-{versions['coroutines']}.jar" in found


@pytest.mark.quick
def test_the_sample_trains_and_exports(classes: Path, needed: list[Path], tmp_path: Path) -> None:
    make = "import sys, pathlib, test_programs; test_programs.write_docs(pathlib.Path(sys.argv[1]))"
    environment = os.environ | {"PYTHONPATH": os.pathsep.join([str(ROOT), str(ANDROID)])}
    subprocess.run([sys.executable, "-c", make, tmp_path], check=True, env=environment)
    natives = ANDROID / "target/natives" / PROPERTIES["tflite.version"]
    path = os.pathsep.join(map(str, [classes, *(file for file in needed if "android-all" not in file.name)]))
    java = ["java", f"-Djava.library.path={natives}", "-cp", path, "RunKt"]
    accuracy, guess = run(*java, natives, tmp_path / "docs.tflite", tmp_path).split()
    assert (float(accuracy), guess) == (1.0, "1")
    assert (tmp_path / "learned/personal.state").exists()
    assert (tmp_path / "mine.tflite").exists()
