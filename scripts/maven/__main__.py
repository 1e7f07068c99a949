"""Writes the compiled libraries as a Maven repository: `python -m scripts.maven OUT`, for scripts/build_maven."""

from __future__ import annotations

import hashlib
import re
from pathlib import Path
from xml.sax.saxutils import escape

from scripts.arguments import parser
from scripts.maven.archives import aar, jar
from scripts.maven.modules import ANDROID, Module, read

GROUP = "org.pocketune"
LICENSE = ANDROID.parent / "LICENSE"
#: What a shrinker of an app is to keep.
RULES = ANDROID / "consumer-rules.pro"
#: Of what a module has from others.
NOTICE = "src/main/proto/NOTICE"
LICENSE_NAME = "Apache-2.0"


def libraries() -> list[Module]:
    """Return the libraries that apps use. `runtime-litert` is none: it was never compiled against Google's library."""
    return [
        read("trainer", "jar", "Trains programs of Pocketune on the device."),
        read("runtime-tflite", "aar", "Pocketune's trainer on TensorFlow Lite."),
        read("federated", "jar", "A client of federated training with Flower, on Pocketune's trainer."),
    ]


def write(out: Path, module: Module) -> None:
    """Writes the files of one library: archive, sources, POM and their digests."""
    extra = {"META-INF/LICENSE": LICENSE.read_bytes()}
    if (notice := module.folder / NOTICE).exists():
        extra["META-INF/NOTICE"] = notice.read_bytes()
    rules = RULES.read_bytes()
    # R8 finds them in a jar there, of an AAR beside its classes.
    shrinking = {"META-INF/proguard/pocketune.pro": rules} if module.packaging == "jar" else {}
    classes = jar(module.folder / "target/classes", (".class", ".kotlin_module", ".pro"), extra | shrinking)
    if module.packaging == "aar":
        gradle = (module.folder / "build.gradle.kts").read_text()
        levels = [int(_setting(gradle, name)) for name in ("minSdk", "compileSdk")]
        classes = aar(classes, _setting(gradle, "namespace").strip('"'), *levels, LICENSE.read_bytes(), rules)
    start = f"{module.name}-{module.version}"
    files = {
        f"{start}.{module.packaging}": classes,
        f"{start}-sources.jar": jar(module.folder / "src/main/kotlin", (".kt",), extra),
        f"{start}.pom": pom(module).encode(),
    }
    folder = out / GROUP.replace(".", "/") / module.name
    _write(folder / module.version, files)
    _write(folder, {"maven-metadata.xml": _metadata(module).encode()})


def pom(module: Module) -> str:
    """Returns the POM of a library, whole: without a parent."""
    dependencies = "".join(
        f"""
    <dependency>
      <groupId>{each.group}</groupId>
      <artifactId>{each.artifact}</artifactId>
      <version>{each.version}</version>
      <type>{each.type}</type>
      <scope>compile</scope>
    </dependency>"""
        for each in module.dependencies
    )
    return f"""<?xml version="1.0" encoding="UTF-8"?>
<project xmlns="http://maven.apache.org/POM/4.0.0">
  <modelVersion>4.0.0</modelVersion>
  <groupId>{GROUP}</groupId>
  <artifactId>{module.name}</artifactId>
  <version>{module.version}</version>
  <packaging>{module.packaging}</packaging>
  <name>{GROUP}:{module.name}</name>
  <description>{escape(module.description)}</description>
  <licenses>
    <license>
      <name>{LICENSE_NAME}</name>
    </license>
  </licenses>
  <dependencies>{dependencies}
  </dependencies>
</project>
"""


def _metadata(module: Module) -> str:
    return f"""<?xml version="1.0" encoding="UTF-8"?>
<metadata>
  <groupId>{GROUP}</groupId>
  <artifactId>{module.name}</artifactId>
  <versioning>
    <latest>{module.version}</latest>
    <release>{module.version}</release>
    <versions>
      <version>{module.version}</version>
    </versions>
  </versioning>
</metadata>
"""


def _write(folder: Path, files: dict[str, bytes]) -> None:
    folder.mkdir(parents=True, exist_ok=True)
    for name, data in files.items():
        (folder / name).write_bytes(data)
        for digest in ("md5", "sha1", "sha256"):
            (folder / f"{name}.{digest}").write_text(hashlib.new(digest, data).hexdigest())


def _setting(gradle: str, name: str) -> str:
    found = re.search(rf"\b{name} = (\S+)", gradle)
    if found is None:
        raise ValueError(f"build.gradle.kts does not set {name}")
    return found[1]


if __name__ == "__main__":
    options = parser(__doc__)
    options.add_argument("out", type=Path, metavar="OUT", help="the folder of the repository")
    given = options.parse_args()
    for library in libraries():
        write(given.out, library)
