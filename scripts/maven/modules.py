"""What a module of android_app is, read from its pom.xml."""

from __future__ import annotations

import re
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from xml.etree import ElementTree

ANDROID = Path(__file__).resolve().parents[2] / "android_app"
POM = "{http://maven.apache.org/POM/4.0.0}"
#: The module that holds TensorFlow's AARs for Maven; apps get these themselves.
UNPACKED = "tflite-library"
#: TensorFlow's own dependency, which comes with tensorflow-lite.
IMPLIED = "tensorflow-lite-api"
#: What a Gradle build chooses the artefact of Android of, and Maven on a JVM takes by its own name.
CHOSEN = {"okhttp-jvm": "okhttp"}


@dataclass(frozen=True)
class Dependency:
    """What a library needs: of `type` jar or aar."""

    group: str
    artifact: str
    version: str
    type: str = "jar"


@dataclass(frozen=True)
class Module:
    """A library: its name, its `packaging` (jar or aar) and what it needs."""

    name: str
    packaging: str
    version: str
    description: str
    dependencies: tuple[Dependency, ...]

    @property
    def folder(self) -> Path:
        return ANDROID / self.name


def read(name: str, packaging: str, description: str) -> Module:
    """Returns a module with the dependencies that its users get, all with versions."""
    parent = _root(ANDROID)
    properties = {each.tag.removeprefix(POM): each.text or "" for each in parent.iterfind(f"{POM}properties/*")}
    version = _text(parent, "version")
    properties["project.version"] = version
    managed = {}
    for each in parent.iterfind(f"{POM}dependencyManagement/{POM}dependencies/{POM}dependency"):
        managed[_text(each, "groupId"), _text(each, "artifactId")] = _text(each, "version")

    def whole(text: str) -> str:
        return re.sub(r"\$\{([\w.-]+)\}", lambda match: properties[match[1]], text)

    found: list[Dependency] = []
    for each in _root(ANDROID / name).iterfind(f"{POM}dependencies/{POM}dependency"):
        group, artifact = _text(each, "groupId"), _text(each, "artifactId")
        if each.findtext(f"{POM}scope") is not None:
            continue
        if artifact == UNPACKED:
            found += [item for item in _unpacked(whole) if item.artifact != IMPLIED]
            continue
        given = each.findtext(f"{POM}version") or managed[group, artifact]
        found.append(Dependency(group, CHOSEN.get(artifact, artifact), whole(given)))
    return Module(name, packaging, version, description, tuple(found))


def _unpacked(whole: Callable[[str], str]) -> list[Dependency]:
    parts = ("groupId", "artifactId", "version", "type")
    items = _root(ANDROID / UNPACKED).iter(f"{POM}artifactItem")
    return [Dependency(*(whole(_text(item, part)) for part in parts)) for item in items]


def _root(folder: Path) -> ElementTree.Element:
    return ElementTree.parse(folder / "pom.xml").getroot()  # noqa: S314 (a file of this repository)


def _text(element: ElementTree.Element, name: str) -> str:
    text = element.findtext(f"{POM}{name}")
    if text is None:
        raise ValueError(f"{element.tag.removeprefix(POM)} has no {name}")
    return text
