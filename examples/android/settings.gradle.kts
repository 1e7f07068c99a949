pluginManagement {
    repositories {
        google()
        mavenCentral()
        gradlePluginPortal()
    }
}

dependencyResolutionManagement {
    repositoriesMode.set(RepositoriesMode.FAIL_ON_PROJECT_REPOS)
    repositories {
        google()
        mavenCentral()
        // What scripts/build_maven wrote.
        maven { url = uri("maven") }
    }
}

rootProject.name = "pocketune-sample"
include(":app")
