"""The sample project says what docs/android.md shows and what the trainer was built with."""

from __future__ import annotations

import re
import tomllib
from pathlib import Path

import pytest
from markdown_it import MarkdownIt

from scripts.maven.__main__ import libraries
from tests.tree import ROOT

SAMPLE = ROOT / "examples" / "android"
CATALOG = tomllib.loads((ROOT / "android_app/gradle/libs.versions.toml").read_text())


def blocks() -> dict[str, str]:
    """The blocks of docs/android.md that are files, by name."""
    tokens = MarkdownIt("commonmark").parse((ROOT / "docs/android.md").read_text())
    texts = [token.content for token in tokens if token.type == "fence" and token.content.startswith("// ")]
    return {text.splitlines()[0].removeprefix("// "): text.partition("\n")[2] for text in texts}


@pytest.mark.parametrize("name", ["settings.gradle.kts", "app/build.gradle.kts", "Learner.kt", "SampleApp.kt"])
def test_the_documentation_shows_the_files_of_the_sample(name: str) -> None:
    [file] = [path for path in SAMPLE.rglob(Path(name).name) if str(path).endswith(name)]
    assert blocks()[name] == file.read_text()


def test_versions_are_those_of_the_trainer() -> None:
    gradle = (SAMPLE / "app/build.gradle.kts").read_text()
    versions = CATALOG["versions"]
    plugins = dict(re.findall(r'id\("([\w.]+)"\) version "([\d.]+)"', gradle))
    assert plugins == {"com.android.application": versions["agp"], "org.jetbrains.kotlin.android": versions["kotlin"]}
    needed = re.findall(r'implementation\("([\w.:-]+):([\d.]+)"\)', gradle)
    [runtime] = [module for module in libraries() if module.packaging == "aar"]
    assert dict(needed) == {
        f"org.pocketune:{runtime.name}": runtime.version,
        CATALOG["libraries"]["coroutines-android"]["module"]: versions["coroutines"],
    }
    app = (ROOT / "android_app/app/build.gradle.kts").read_text()
    for setting in ("minSdk", "targetSdk", "compileSdk"):
        assert re.search(rf"{setting} = (\d+)", gradle)[1] == re.search(rf"{setting} = (\d+)", app)[1]
    wrapper = Path("gradle/wrapper/gradle-wrapper.properties")
    assert (SAMPLE / wrapper).read_text() == (ROOT / "android_app" / wrapper).read_text()


def test_the_documentation_names_the_versions() -> None:
    text = (ROOT / "docs/android.md").read_text()
    assert f"Kotlin {CATALOG['versions']['kotlin']}" in text
    for module in libraries():
        assert f"org.pocketune:{module.name}:{module.version}" in text


def test_what_a_library_needs_is_what_gradle_says() -> None:
    catalog = {each["module"]: CATALOG["versions"][each["version"]["ref"]] for each in CATALOG["libraries"].values()}
    by_name = {module.name: module for module in libraries()}
    trainer = {
        f"{each.group}:{each.artifact}".removesuffix("-jvm"): each.version for each in by_name["trainer"].dependencies
    }
    assert trainer.pop("org.jetbrains.kotlin:kotlin-stdlib") == CATALOG["versions"]["kotlin"]
    assert trainer == {name: catalog[name] for name in trainer}
    assert len(trainer) == 2
    runtime = {f"{each.group}:{each.artifact}": each for each in by_name["runtime-tflite"].dependencies}
    assert runtime.pop("org.pocketune:trainer").version == by_name["trainer"].version
    assert {name: each.version for name, each in runtime.items()} == {
        name: version for name, version in catalog.items() if name.startswith("org.tensorflow:")
    }
    assert {each.type for each in runtime.values()} == {"aar"}
